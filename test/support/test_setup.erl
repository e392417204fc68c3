%% What the suites stand on: a manager that is started before each test and gone after it, and how much a test has to
%% do.
-module(test_setup).

-export([tests/1, tests/2, on_schedulers/2, schedulers/0, schedulers/1, in_a_vm/2]).
-export([permits/0, resident_bytes/0, times/1, in_soak/2, quietly/1, skipped/2]).

-define(MAX_PER, 3).

%% A net for what hangs; a test that is merely slow has to be repaired, not given more.
-define(TIMEOUT_S, 120).

%% The tests, each with a manager of its own.
-spec tests([{Title :: string(), fun(() -> term())}]) -> term().
tests(Tests) ->
    {foreach, fun start/0, fun stop/1, timed(Tests)}.

%% The same without a manager: a test may start and stop some.
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

%% The tests, in VMs of their own: one with a single scheduler, where who is interrupted stays so for long; one with
%% two; and one with more than the machine has processors, as likely as not, where threads are interrupted anywhere.
%% They get such arguments too. No manager is there, before a test and after it.
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

%% With how many of them is tried what depends on it.
-spec schedulers() -> [pos_integer()].
schedulers() ->
    [1, 2, 8].

%% As arguments of a VM.
-spec schedulers(pos_integer()) -> [string()].
schedulers(Count) ->
    ["+S", lists:concat([Count, ":", Count])].

%% In a VM of its own, started with such arguments. The test is in the code path of both.
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

%% What this VM has in memory; does not grow where the operating system does not say.
-spec resident_bytes() -> non_neg_integer().
resident_bytes() ->
    erlang:garbage_collect(),
    case file:read_file("/proc/self/statm") of
        {ok, Pages} -> 4096 * binary_to_integer(lists:nth(2, binary:split(Pages, <<" ">>, [global])));
        {error, _} -> 0
    end.

%% How often something random is tried: so many times, and CANAL_LOCK_SOAK times that when somebody has the patience.
-spec times(pos_integer()) -> pos_integer().
times(Times) ->
    Times * factor().

%% What takes seconds is tried in the soak alone, and otherwise something that shows the same sooner.
-spec in_soak(Soak, Otherwise) -> Soak | Otherwise.
in_soak(Soak, Otherwise) ->
    case os:getenv("CANAL_LOCK_SOAK") of
        false -> Otherwise;
        _ -> Soak
    end.

factor() ->
    list_to_integer(os:getenv("CANAL_LOCK_SOAK", "1")).

%% The tests, with what the VM reports of deaths that are meant kept from whoever reads the output. For all of them
%% together, because it may come after the death that it tells of.
-spec quietly(term()) -> term().
quietly(Tests) ->
    Level = maps:get(level, logger:get_primary_config()),
    SetLevel = fun(New) -> ok = logger:set_primary_config(level, New) end,
    {setup, fun() -> SetLevel(none) end, fun(_) -> SetLevel(Level) end, Tests}.

%% In place of tests that cannot run here. A group without a test: EUnit prints its title and counts nothing as passed,
%% and scripts/eunit.sh prints all such titles at its end. A program that is `missing' should have been installed by
%% scripts/setup.sh, so in CI, where .ci/run has called that, it is a failure.
-spec skipped(Title :: string(), {missing | impossible, Why :: string()}) -> term().
skipped(Title, {Kind, Why}) ->
    Skipped = "SKIPPED: " ++ Title ++ ": " ++ Why,
    case {Kind, os:getenv("CANAL_LOCK_CI", "")} of
        {missing, [_ | _]} -> {Skipped, fun() -> error({missing, Why}) end};
        _ -> {Skipped, []}
    end.

%% Who holds what.
-spec permits() -> [{pid(), canal_lock:key(), pos_integer()}].
permits() ->
    canal_lock_view:fold_permits(fun lists:append/2, []).
