%% P9: a term of the wrong type in place of a number raises `badarg' and changes nothing.
-module(canal_lock_badarg_tests).

-include_lib("eunit/include/eunit.hrl").

badarg_test_() ->
    test_setup:tests([
        {"P9: acquire/3 and release/3 reject every kind of term in place of each number", fun numbers/0},
        {"P9: they also reject it beside keys of every kind, which other code parses", fun beside_other_keys/0},
        {"P9: buckets/2 rejects it in place of MaxPer", fun bucket_size/0},
        {"P9: native functions reject it in place of the manager's arguments", fun native/0}
    ]).

%% Every kind of term except non-negative integers.
not_numbers() ->
    [atom, '', infinity, undefined, -1, -(1 bsl 59) - 1, -(1 bsl 63), -(1 bsl 64), -(1 bsl 70)] ++
        [0.0, -0.0, 1.0, 1.5, -1.5, 1.0e300, [], [1], "1", [1 | 2], {}, {1}, {1, 2}, #{}, #{1 => 1}] ++
        [<<>>, <<1>>, <<"3">>, <<1:1>>, binary:copy(<<1>>, 100), self(), make_ref(), atomics:new(1, [])] ++
        [hd(erlang:ports()), fun() -> 1 end, fun erlang:abs/1].

numbers() ->
    {acquired, 1} = canal_lock:acquire(db, 2, 1),
    Before = canal_lock:info(),
    [
        ?assertError(badarg, canal_lock:Call(Key, MaxPer, Buckets))
     || Bad <- not_numbers(),
        Call <- [acquire, release],
        Key <- [db, unknown],
        {MaxPer, Buckets} <- [{Bad, 1}, {1, Bad}, {Bad, 0}, {0, Bad}, {Bad, Bad}, {Bad, 1 bsl 70}, {1 bsl 70, Bad}]
    ],
    ?assertEqual(Before, canal_lock:info()),
    ?assertEqual([1, 0], [canal_lock:count(Key) || Key <- [db, unknown]]),
    ?assertEqual({acquired, 2}, canal_lock:acquire(db, 2, 1)).

beside_other_keys() ->
    Before = canal_lock:info(),
    [
        ?assertError(badarg, canal_lock:Call(Key, MaxPer, Buckets))
     || {_, Key} <- test_key_terms:all(), Call <- [acquire, release], {MaxPer, Buckets} <- [{-1, 1}, {1, atom}]
    ],
    ?assertEqual(Before, canal_lock:info()).

bucket_size() ->
    {acquired, 1} = canal_lock:acquire(db, 2, 1),
    [?assertError(badarg, canal_lock:buckets(Key, Bad)) || Bad <- [0 | not_numbers()], Key <- [db, unknown]],
    ?assertEqual([1], canal_lock:buckets(db, 2)).

%% Only the manager calls these. Wrong arguments must still not crash the VM or damage the open table.
native() ->
    {acquired, 1} = canal_lock:acquire(db, 2, 1),
    Handle = element(3, sys:get_state(canal_lock)),
    ?assert(is_reference(Handle)),
    [?assertError(badarg, canal_lock_nif:open(Bad, 3, false)) || Bad <- not_numbers()],
    [?assertError(badarg, canal_lock_nif:open(1024, 3, Bad)) || Bad <- [0, 1, "true" | not_numbers()]],
    ?assertError(system_limit, canal_lock_nif:open(1 bsl 63, 3, false)),
    [?assertError(badarg, canal_lock_nif:close(Bad)) || Bad <- not_numbers()],
    [?assertError(badarg, canal_lock_nif:sweep_step(Bad, 1)) || Bad <- not_numbers()],
    [?assertError(badarg, canal_lock_nif:sweep_step(Handle, Bad)) || Bad <- not_numbers()],
    ?assertEqual({acquired, 2}, canal_lock:acquire(db, 2, 1)).
