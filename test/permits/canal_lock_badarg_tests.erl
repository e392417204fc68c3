%% P9: a term of the wrong type in place of a number raises `badarg' and changes nothing.
-module(canal_lock_badarg_tests).

-include_lib("eunit/include/eunit.hrl").

badarg_test_() ->
    test_setup:tests([
        {"P9: acquire/3 and release/3 reject every kind of term in place of each number", fun numbers/0},
        {"P9: they also reject it beside keys of every kind, which other code parses", fun beside_other_keys/0},
        {"P9: buckets/2 rejects it in place of MaxPer", fun bucket_size/0},
        {"P9: calls that wait, or take several permits, reject it in place of each number", fun waits/0},
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

%% Natively, too, as the proxy of another node passes what it gets.
waits() ->
    {acquired, 2} = canal_lock:acquire(db, 2, 1, #{permits => 2}),
    Before = canal_lock:info(),
    lists:foreach(fun(Bad) ->
        [
            begin
                ?assertError(badarg, canal_lock:acquire(Key, MaxPer, Buckets, 5)),
                ?assertError(badarg, canal_lock:request(Key, MaxPer, Buckets)),
                ?assertError(badarg, canal_lock:resized(Key, MaxPer, Buckets)),
                ?assertError(badarg, canal_lock_nif:acquire_many(Key, MaxPer, Buckets, 1)),
                ?assertError(badarg, canal_lock_nif:wait(Key, MaxPer, Buckets, 1, 9, make_ref())),
                ?assertError(badarg, canal_lock_nif:resized(Key, MaxPer, Buckets, 0))
            end
         || Key <- [db, unknown], {MaxPer, Buckets} <- [{Bad, 1}, {1, Bad}, {Bad, Bad}]
        ],
        ?assertError(badarg, canal_lock:acquire(db, 2, 1, #{permits => Bad})),
        ?assertError(badarg, canal_lock:release(db, #{permits => Bad})),
        ?assertError(badarg, canal_lock:give(db, self(), #{permits => Bad})),
        ?assertError(badarg, canal_lock_nif:acquire_many(db, 9, 1, Bad)),
        ?assertError(badarg, canal_lock_nif:release_many(db, Bad)),
        ?assertError(badarg, canal_lock_nif:wait(db, 2, 1, Bad, 9, make_ref())),
        ?assertError(badarg, canal_lock_nif:wait(db, 2, 1, 1, Bad, make_ref())),
        ?assertError(badarg, canal_lock_nif:resized(db, 2, 1, Bad)),
        ?assertError(badarg, canal_lock_nif:give(db, self(), Bad))
    end, not_numbers()),
    ?assertError(badarg, canal_lock_nif:release_many(db, 0)),
    ?assertError(badarg, canal_lock_nif:acquire_many(db, 9, 1, 0)),
    [?assertError(badarg, canal_lock_nif:cancel(Bad, false)) || Bad <- [1, [], {}, self(), #{}, <<>>, fun() -> 1 end]],
    [?assertError(badarg, canal_lock_nif:give(db, Bad, 1)) || Bad <- [test_setup:remote_pid(1), make_ref(), 1, []]],
    ?assertEqual(Before, canal_lock:info()),
    ?assertEqual([2, 0], [canal_lock:count(Key) || Key <- [db, unknown]]).

%% Only the manager calls these. Wrong arguments must still not crash the VM or damage the open table.
native() ->
    {acquired, 1} = canal_lock:acquire(db, 2, 1),
    Handle = element(3, sys:get_state(canal_lock)),
    ?assert(is_reference(Handle)),
    [?assertError(badarg, canal_lock_nif:open(Bad, 3, false, 9)) || Bad <- not_numbers()],
    [?assertError(badarg, canal_lock_nif:open(1024, 3, Bad, 9)) || Bad <- [0, 1, "true" | not_numbers()]],
    [?assertError(badarg, canal_lock_nif:open(1024, 3, false, Bad)) || Bad <- not_numbers()],
    ?assertError(system_limit, canal_lock_nif:open(1 bsl 63, 3, false, 9)),
    [?assertError(badarg, canal_lock_nif:end_waits(Bad)) || Bad <- not_numbers()],
    [?assertError(badarg, canal_lock_nif:close(Bad)) || Bad <- not_numbers()],
    [?assertError(badarg, canal_lock_nif:sweep_step(Bad, 1)) || Bad <- not_numbers()],
    [?assertError(badarg, canal_lock_nif:sweep_step(Handle, Bad)) || Bad <- not_numbers()],
    ?assertEqual({acquired, 2}, canal_lock:acquire(db, 2, 1)).
