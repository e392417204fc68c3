%% Set-up of the suites: a manager for each test, VMs with other settings, and the number of repetitions.
-module(test_setup).

-behaviour(supervisor).

-export([tests/1, tests/2, on_schedulers/2, schedulers/0, schedulers/1, in_a_vm/2]).
-export([permits/0, resident_bytes/0, times/1, sample/1, timeout_s/0, in_soak/2, quietly/1, skipped/2]).
-export([supervise/2, stop_supervisor/1, init/1]).
-export([concurrently/2, concurrently/3, hold_forever/0, spin/1, shuffled/1]).
-export([info/1, is_long_key/1, remote_pid/1, sums/1]).

-define(MAX_PER, 3).

%% A limit for a test that hangs, also on a busy machine. A test that is only slow must be made faster; do not raise
%% this limit for it.
-define(TIMEOUT_S, 600).

%% Each test has its own manager.
-spec tests([{Title :: string(), fun(() -> term())}]) -> term().
tests(Tests) ->
    {foreach, fun start/0, fun stop/1, timed(Tests)}.

%% The tests start their managers themselves.
-spec tests(without_manager, [{Title :: string(), fun(() -> term())}]) -> term().
tests(without_manager, Tests) ->
    {foreach, fun() -> none end, fun stop/1, timed(Tests)}.

timed(Tests) ->
    [{timeout, timeout_s(), {Title, Test}} || {Title, Test} <- Tests].

start() ->
    {ok, Manager} = canal_lock:start_link(?MAX_PER),
    Manager.

stop(_) ->
    case whereis(canal_lock) of
        undefined -> ok;
        _ -> canal_lock:stop()
    end.

%% The tests in VMs with these arguments and with 1, 2 and 8 schedulers. With one scheduler a process that is preempted
%% waits for long. With more schedulers than processors the system preempts threads at any place. No manager runs before
%% a test, nor after it.
-spec on_schedulers([string()], [{Title :: string(), fun(() -> term())}]) -> term().
on_schedulers(Arguments, Tests) ->
    [
        {setup, fun() -> start_vm(schedulers(Count) ++ Arguments) end, fun peer:stop/1, fun(Vm) ->
            timed([
                {lists:concat([Title, "; schedulers: ", Count]), fun() -> ended = in_vm(Vm, without_manager(Test)) end}
             || {Title, Test} <- Tests
            ])
        end}
     || Count <- schedulers()
    ].

without_manager(Test) ->
    fun() ->
        try
            _ = Test(),
            ended
        after
            stop(none)
        end
    end.

%% The numbers of schedulers for tests that depend on it.
-spec schedulers() -> [pos_integer()].
schedulers() ->
    [1, 2, 8].

%% The command-line arguments for this number of schedulers.
-spec schedulers(pos_integer()) -> [string()].
schedulers(Count) ->
    ["+S", lists:concat([Count, ":", Count])].

%% Calls the function in a new VM that is started with these arguments and the same code path.
-spec in_a_vm([string()], fun(() -> Answer)) -> Answer.
in_a_vm(Arguments, Test) ->
    Vm = start_vm(Arguments),
    try
        in_vm(Vm, Test)
    after
        peer:stop(Vm)
    end.

start_vm(Arguments) ->
    Paths = [Path || Path <- code:get_path(), filelib:is_dir(Path)],
    {ok, Vm, _} = peer:start(#{
        connection => standard_io,
        wait_boot => 1000 * timeout_s(),
        args => ["-kernel", "logger_level", "none", "-pa" | Paths] ++ Arguments
    }),
    Vm.

in_vm(Vm, Test) ->
    peer:call(Vm, erlang, apply, [Test, []], 1000 * timeout_s()).

%% The resident memory of this VM, or 0 if the operating system does not report it.
-spec resident_bytes() -> non_neg_integer().
resident_bytes() ->
    erlang:garbage_collect(),
    case file:read_file("/proc/self/statm") of
        {ok, Pages} -> 4096 * binary_to_integer(lists:nth(2, binary:split(Pages, <<" ">>, [global])));
        {error, _} -> 0
    end.

%% The number of repetitions of a random test: CANAL_LOCK_SOAK times as many. That is more than 1 in the soak, and less
%% in `make test WHAT=quick'.
-spec times(pos_integer()) -> pos_integer().
times(Times) ->
    max(1, round(Times * factor())).

%% All elements, or as many random ones as `times/1' says, if these are fewer: for cases that are each played once.
-spec sample([Element]) -> [Element].
sample(Elements) ->
    case times(length(Elements)) of
        Fewer when Fewer < length(Elements) -> lists:sublist(shuffled(Elements), Fewer);
        _ -> Elements
    end.

%% The first value in the soak, the second otherwise. For tests that need seconds in the soak only.
-spec in_soak(Soak, Otherwise) -> Soak | Otherwise.
in_soak(Soak, Otherwise) ->
    case os:getenv("CANAL_LOCK_SOAK") =/= false andalso factor() >= 1 of
        true -> Soak;
        false -> Otherwise
    end.

%% Longer in the soak, and never shorter.
-spec timeout_s() -> pos_integer().
timeout_s() ->
    ?TIMEOUT_S * ceil(max(1, factor())).

factor() ->
    Factor = os:getenv("CANAL_LOCK_SOAK", "1"),
    case string:to_float(Factor) of
        {error, no_float} -> list_to_integer(Factor);
        {Float, ""} -> Float
    end.

%% The tests without the crash reports of processes that die on purpose. For all tests together, because a report may
%% arrive later than the death.
-spec quietly(term()) -> term().
quietly(Tests) ->
    Level = maps:get(level, logger:get_primary_config()),
    SetLevel = fun(New) -> ok = logger:set_primary_config(level, New) end,
    {setup, fun() -> SetLevel(none) end, fun(_) -> SetLevel(Level) end, Tests}.

%% In place of tests that cannot run here: a group without a test. EUnit prints its title and counts nothing as passed,
%% and scripts/eunit.sh prints all such titles at the end. scripts/setup.sh installs the programs that may be `missing',
%% and .ci/run calls it, so in CI a missing program is a failure.
-dialyzer({nowarn_function, skipped/2}).
-spec skipped(Title :: string(), {missing | impossible, Reason :: string()}) -> term().
skipped(Title, {Kind, Reason}) ->
    Skipped = "SKIPPED: " ++ Title ++ ": " ++ Reason,
    case {Kind, os:getenv("CANAL_LOCK_CI", "")} of
        {missing, [_ | _]} -> {Skipped, fun() -> error({missing, Reason}) end};
        _ -> {Skipped, []}
    end.

%% All holders, with their keys and numbers of permits.
-spec permits() -> [{pid(), canal_lock:key(), pos_integer()}].
permits() ->
    Add = fun(Piece, Before) -> [{Pid, Key, Permits} || {Pid, Key, Permits, _} <- Piece] ++ Before end,
    canal_lock_view:fold_permits(Add, []).

%% Starts a supervisor, linked to the caller, that allows this many restarts in a minute.
-spec supervise(non_neg_integer(), [supervisor:child_spec()]) -> pid().
supervise(Intensity, Children) ->
    {ok, Supervisor} = supervisor:start_link(?MODULE, {#{intensity => Intensity, period => 60}, Children}),
    Supervisor.

init(Specification) ->
    {ok, Specification}.

%% The caller traps exits.
-spec stop_supervisor(pid()) -> ok.
stop_supervisor(Supervisor) ->
    exit(Supervisor, shutdown),
    shutdown = test_await:exit_reason(Supervisor),
    ok.

%% Calls a function in several workers at the same time. Returns their answers; the workers are dead then.
-spec concurrently(pos_integer(), fun(() -> Answer)) -> [Answer].
concurrently(Workers, Call) ->
    concurrently(Workers, fun() -> none end, fun(_) -> Call() end).

%% Each worker first prepares an argument for its call.
-spec concurrently(pos_integer(), fun(() -> Argument), fun((Argument) -> Answer)) -> [Answer].
concurrently(Count, Prepare, Call) ->
    Gate = counters:new(1, []),
    Workers = [test_worker:start() || _ <- lists:seq(1, Count)],
    Order = fun() ->
        Argument = Prepare(),
        test_await:gate(Gate),
        Call(Argument)
    end,
    Sent = [test_worker:send_order(Worker, Order) || Worker <- Workers],
    counters:add(Gate, 1, 1),
    Answers = [test_await:answer(Ref) || Ref <- Sent],
    ok = test_worker:kill(Workers),
    Answers.

%% Keeps a process alive, with its permits, until it is killed.
-spec hold_forever() -> no_return().
hold_forever() ->
    receive
    after infinity -> ok
    end.

%% Takes a random moment in the work of other processes, without giving up the scheduler.
-spec spin(non_neg_integer()) -> ok.
spin(0) -> ok;
spin(Iterations) -> spin(Iterations - 1).

-spec shuffled([Element]) -> [Element].
shuffled(List) ->
    [Element || {_, Element} <- lists:sort([{rand:uniform(), Element} || Element <- List])].

%% One item of `canal_lock:info/0'.
-spec info(atom()) -> non_neg_integer().
info(Item) ->
    maps:get(Item, canal_lock:info()).

%% Whether a key is too long for a normal scheduler, so that a dirty scheduler reads it.
-spec is_long_key(canal_lock:key()) -> boolean().
is_long_key(Key) ->
    try canal_lock_nif:count(Key) of
        _ -> false
    catch
        error:intern -> true
    end.

%% The pid of a process on a node that does not exist.
-spec remote_pid(non_neg_integer()) -> pid().
remote_pid(Number) ->
    <<131, Node/binary>> = term_to_binary(there@nowhere),
    binary_to_term(<<131, 88, Node/binary, Number:32, 0:32, 1:32>>).

%% How many permits of each key several holders have together.
-spec sums([#{canal_lock:key() => pos_integer()}]) -> #{canal_lock:key() => pos_integer()}.
sums(Holdings) ->
    Add = fun(_, One, Other) -> One + Other end,
    lists:foldl(fun(Held, Sums) -> maps:merge_with(Add, Held, Sums) end, #{}, Holdings).
