%% Known defects of lock managers, in one smoke test. The design of the original has all of them (test_original).
%% native/permit_table/tests has a test of each, without the VM.
-module(canal_lock_conformance_tests).

-include_lib("eunit/include/eunit.hrl").

-define(ONE_SHOT_KEYS, 1000).

conformance_test_() ->
    test_setup:quietly(
        test_setup:tests(without_manager, [
            {"P4, P5, P6, P8, P10: canal_lock has no known defect of lock managers", fun no_known_defect/0}
        ])
    ).

no_known_defect() ->
    process_flag(trap_exit, true),
    Supervisor = test_setup:supervise(1, [canal_lock:child_spec(2)]),
    Manager = whereis(canal_lock),
    Acquire = fun(MaxPer) -> canal_lock:acquire(db, MaxPer, 1) end,
    {Holder, {acquired, 1}} = test_worker:start(fun() -> Acquire(5) end),
    [{acquired, N} = test_worker:order(Holder, fun() -> Acquire(5) end) || N <- [2, 3, 4, 5]],
    %% A caller with a smaller capacity does not lower the count.
    ?assertEqual([full, full], [Acquire(2), Acquire(5)]),
    %% A process that holds nothing releases nothing. Nor does a release that is repeated, because the manager is slow.
    ok = sys:suspend(Manager),
    Release = fun() -> canal_lock:release(db, 5, 1) end,
    ?assertEqual([ok, full], [Release(), Acquire(5)]),
    ?assertEqual([ok, {acquired, 5}], [test_worker:order(Holder, Release), Acquire(5)]),
    ?assertEqual([ok, ok, {acquired, 5}, full], [Release(), Release(), Acquire(5), Acquire(5)]),
    ok = sys:resume(Manager),
    %% A new manager does not count from zero while holders are alive.
    exit(Manager, kill),
    test_await:value(true, fun() -> is_pid(whereis(canal_lock)) andalso whereis(canal_lock) =/= Manager end),
    ?assertEqual([full, ok, {acquired, 5}], [Acquire(5), Release(), Acquire(5)]),
    %% A death releases all permits of the process, whatever the capacity of the manager or of the calls was.
    ok = test_worker:kill(Holder),
    test_await:count(db, 1),
    ?assertEqual([{acquired, N} || N <- [2, 3, 4, 5]] ++ [full], [Acquire(5) || _ <- lists:seq(1, 5)]),
    %% Keys that are used once leave nothing.
    Once = fun(Key) -> {canal_lock:acquire(Key, 1, 1), canal_lock:release(Key)} end,
    [{{acquired, 1}, ok} = Once(Key) || Key <- lists:seq(1, ?ONE_SHOT_KEYS)],
    ok = canal_lock_manager:sweep(),
    ?assertMatch(#{keys := 1, permits := 5}, canal_lock:info()),
    ok = test_setup:stop_supervisor(Supervisor).
