%% P9: native functions raise `badarg' for a term of the wrong type and change nothing. canal_lock_errors_tests has the
%% public functions, which check their arguments themselves or explain the error of the native function.
-module(canal_lock_badarg_tests).

-include_lib("eunit/include/eunit.hrl").

badarg_test_() ->
    test_setup:tests([
        {"P9: native functions that a proxy calls reject what is no number", fun of_a_proxy/0},
        {"P9: native functions that the manager calls reject wrong arguments", fun of_the_manager/0}
    ]).

%% A proxy passes what it gets from another node.
of_a_proxy() ->
    {acquired, 2} = canal_lock:acquire(db, 2, 1, #{permits => 2}),
    Before = maps:remove(memory, canal_lock:info()),
    Calls = [
        fun(Bad) -> canal_lock_nif:acquire_many(db, Bad, 1, 1) end,
        fun(Bad) -> canal_lock_nif:acquire_many(unknown, 1, Bad, 1) end,
        fun(Bad) -> canal_lock_nif:acquire_many(db, 9, 1, Bad) end,
        fun(Bad) -> canal_lock_nif:release_many(local, db, Bad) end,
        fun(Bad) -> canal_lock_nif:wait(local, db, Bad, 1, 1, 9, make_ref()) end,
        fun(Bad) -> canal_lock_nif:wait(local, unknown, 1, Bad, 1, 9, make_ref()) end,
        fun(Bad) -> canal_lock_nif:wait(local, db, 2, 1, Bad, 9, make_ref()) end,
        fun(Bad) -> canal_lock_nif:wait(local, db, 2, 1, 1, Bad, make_ref()) end,
        fun(Bad) -> canal_lock_nif:resize(db, Bad, 1, 9) end,
        fun(Bad) -> canal_lock_nif:resize(unknown, 1, Bad, 9) end,
        fun(Bad) -> canal_lock_nif:give(local, db, self(), Bad) end
    ],
    [?assertError(badarg, Call(Bad)) || Call <- Calls, Bad <- test_key_terms:not_counts()],
    ?assertError(badarg, canal_lock_nif:release_many(local, db, 0)),
    ?assertError(badarg, canal_lock_nif:acquire_many(db, 9, 1, 0)),
    [?assertError(badarg, canal_lock_nif:cancel(Bad, false)) || Bad <- [1, [], {}, self(), #{}, <<>>, fun() -> 1 end]],
    NoProcesses = [test_setup:remote_pid(1), make_ref(), 1, []],
    [?assertError(badarg, canal_lock_nif:give(local, db, Bad, 1)) || Bad <- NoProcesses],
    [?assertError(badarg, canal_lock_nif:settle(Bad, db)) || Bad <- [other, 1]],
    ?assertEqual(Before, maps:remove(memory, canal_lock:info())),
    ?assertEqual([2, 0], [canal_lock:count(Key) || Key <- [db, unknown]]).

%% Wrong arguments must not crash the VM or damage the open table.
of_the_manager() ->
    {acquired, 1} = canal_lock:acquire(db, 2, 1),
    Handle = element(3, sys:get_state(canal_lock)),
    ?assert(is_reference(Handle)),
    Calls = [
        fun(Bad) -> canal_lock_nif:open(Bad, 3, false, 9) end,
        fun(Bad) -> canal_lock_nif:open(1024, 3, Bad, 9) end,
        fun(Bad) -> canal_lock_nif:open(1024, 3, false, Bad) end,
        fun canal_lock_nif:join/1,
        fun(Bad) -> canal_lock_nif:adopt(Bad, 3, 9) end,
        fun(Bad) -> canal_lock_nif:adopt(Handle, 3, Bad) end,
        fun(Bad) -> canal_lock_nif:configure(Bad, 3, 9) end,
        fun(Bad) -> canal_lock_nif:configure(Handle, 3, Bad) end,
        fun canal_lock_nif:is_open/1,
        fun canal_lock_nif:leave/1,
        fun canal_lock_nif:end_waits/1,
        fun canal_lock_nif:close/1,
        fun(Bad) -> canal_lock_nif:sweep_step(Bad, 1) end,
        fun(Bad) -> canal_lock_nif:sweep_step(Handle, Bad) end
    ],
    [?assertError(badarg, Call(Bad)) || Call <- Calls, Bad <- test_key_terms:not_counts()],
    [?assertError(badarg, canal_lock_nif:open(1024, 3, Bad, 9)) || Bad <- [0, 1, "true"]],
    ?assertEqual({acquired, 2}, canal_lock:acquire(db, 2, 1)),
    ok = canal_lock:stop(),
    ?assertError(system_limit, canal_lock_nif:open(1 bsl 63, 3, false, 9)).
