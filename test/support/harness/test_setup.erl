%% Set-up of the suites: a manager for each test, VMs with other settings, and the number of repetitions.
-module(test_setup).

-export([tests/1, tests/2, on_schedulers/2, schedulers/0, schedulers/1, in_a_vm/2]).
-export([permits/0, resident_bytes/0, times/1, in_soak/2, quietly/1, skipped/2]).

-define(MAX_PER, 3).

%% A limit for a test that hangs. A test that is only slow must be made faster; do not raise this limit for it.
-define(TIMEOUT_S, 120).

%% Each test has its own manager.
-spec tests([{Title :: string(), fun(() -> term())}]) -> term().
tests(Tests) ->
    {foreach, fun start/0, fun stop/1, timed(Tests)}.

%% The tests start their managers themselves.
-spec tests(without_manager, [{Title :: string(), fun(() -> term())}]) -> term().
tests(without_manager, Tests) ->
    {foreach, fun() -> none end, fun stop/1, timed(Tests)}.

timed(Tests) ->
    [{timeout, ?TIMEOUT_S * factor(), {Title, Test}} || {Title, Test} <- Tests].

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
        args => ["-kernel", "logger_level", "none", "-pa" | Paths] ++ Arguments
    }),
    Vm.

in_vm(Vm, Test) ->
    peer:call(Vm, erlang, apply, [Test, []], 1000 * ?TIMEOUT_S * factor()).

%% The resident memory of this VM, or 0 if the operating system does not report it.
-spec resident_bytes() -> non_neg_integer().
resident_bytes() ->
    erlang:garbage_collect(),
    case file:read_file("/proc/self/statm") of
        {ok, Pages} -> 4096 * binary_to_integer(lists:nth(2, binary:split(Pages, <<" ">>, [global])));
        {error, _} -> 0
    end.

%% The number of repetitions of a random test: CANAL_LOCK_SOAK times as many in the soak.
-spec times(pos_integer()) -> pos_integer().
times(Times) ->
    Times * factor().

%% The first value in the soak, the second otherwise. For tests that need seconds in the soak only.
-spec in_soak(Soak, Otherwise) -> Soak | Otherwise.
in_soak(Soak, Otherwise) ->
    case os:getenv("CANAL_LOCK_SOAK") of
        false -> Otherwise;
        _ -> Soak
    end.

factor() ->
    list_to_integer(os:getenv("CANAL_LOCK_SOAK", "1")).

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
    canal_lock_view:fold_permits(fun lists:append/2, []).
