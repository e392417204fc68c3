%% P8, P10: tables that have had their time leave no memory behind. In VMs of their own, by what the operating system
%% says: what nobody knows of any more is in nobody's account, and a VM that has run other tests has room to hide it.
-module(canal_lock_memory_tests).

-include_lib("eunit/include/eunit.hrl").

-define(CYCLES, test_setup:in_soak(100, 40)).
-define(KEYS_PER_CYCLE, 10_000).

%% After as many cycles that have given the allocators their reserves. The least that could leak in a cycle, the record
%% of a holder, has 400 kB.
-define(MAX_GROWTH_BYTES, ?CYCLES * 300_000).

memory_test_() ->
    test_setup:tests(without_manager, [
        {"P8, P10: of managers that were stopped", fun() -> no_growth(fun canal_lock:stop/0) end},
        {"P8, P10: of managers that were killed, once the next one sweeps", fun() -> no_growth(fun kill/0) end}
    ]).

no_growth(End) ->
    Growth = test_setup:in_a_vm([], fun() ->
        false = process_flag(trap_exit, true),
        cycles(End),
        Before = test_setup:resident_bytes(),
        cycles(End),
        test_setup:resident_bytes() - Before
    end),
    Max = ?MAX_GROWTH_BYTES,
    ?assertMatch(_ when Growth < Max, Growth).

cycles(End) ->
    [
        begin
            use(Cycle),
            End()
        end
     || Cycle <- lists:seq(1, ?CYCLES)
    ],
    {ok, _} = canal_lock:start_link(3),
    ok = canal_lock_manager:sweep(),
    ok = canal_lock:stop().

%% Leaves holding keys of each form that they are stored in.
use(Cycle) ->
    {ok, _} = canal_lock:start_link(3),
    Rare = ?KEYS_PER_CYCLE div 20,
    [{acquired, 1} = canal_lock:acquire({Cycle, N}, 3, 1) || N <- lists:seq(1, ?KEYS_PER_CYCLE)],
    [{acquired, 1} = canal_lock:acquire(#{Cycle => N}, 3, 1) || N <- lists:seq(1, Rare)],
    [{acquired, 1} = canal_lock:acquire(lists:seq(N, N + 100), 3, 1) || N <- lists:seq(1, Rare)],
    ok.

kill() ->
    Manager = whereis(canal_lock),
    exit(Manager, kill),
    receive
        {'EXIT', Manager, killed} -> ok
    end.
