%% Several permits in one call, and permits that a holder gives to another process.
-module(canal_lock_give_tests).

-include_lib("eunit/include/eunit.hrl").

%% (prop_canal_lock_model has all calls in sequence.)
give_test_() ->
    test_setup:quietly(
        test_setup:tests([
            {"permits above every capacity are never granted", fun above_capacity/0},
            {"a gift to a dead process changes nothing", fun give_to_the_dead/0},
            {"permits of all records are given", fun give_from_all_records/0},
            {"a message sent after a gift finds the receiver with the permit", fun message_after_gift/0},
            {"views show gifts once, of many keys and of many processes", fun views/0}
        ])
    ).

above_capacity() ->
    Huge = 1 bsl 100,
    [?assertEqual(full, canal_lock:acquire(db, Huge, Huge, #{permits => Permits})) || Permits <- [1 bsl 60, Huge]],
    ?assertEqual({acquired, (1 bsl 60) - 1}, canal_lock:acquire(db, Huge, Huge, #{permits => (1 bsl 60) - 1})),
    ?assertEqual(full, canal_lock:acquire(db, Huge, Huge)),
    ?assertEqual(ok, canal_lock:release(db, #{permits => (1 bsl 60) - 1})),
    ?assertEqual(0, canal_lock:count(db)).

give_to_the_dead() ->
    {acquired, 1} = canal_lock:acquire(db, 1, 1),
    Never = test_worker:start(),
    Held = test_worker:holder(#{other => 1}),
    Given = test_worker:start(),
    ok = canal_lock:give(db, Given),
    ok = test_worker:kill([Never, Held, Given]),
    ok = test_await:permits(0),
    {acquired, 1} = canal_lock:acquire(db, 1, 1),
    [?assertEqual({error, not_alive}, canal_lock:give(db, Dead)) || Dead <- [Never, Held, Given]],
    ?assertEqual([{db, 1}], canal_lock:held()),
    ?assertMatch(#{transferred := 1}, canal_lock:info()).

%% In the slot, in the list of further keys, and in the ledger.
give_from_all_records() ->
    {Giver, _} = test_worker:start(fun() ->
        {acquired, 2} = canal_lock:acquire(db, 9, 1, #{permits => 2}),
        [{acquired, 1} = canal_lock:acquire({other, N}, 1, 1) || N <- lists:seq(1, 5)],
        {acquired, 5} = canal_lock:acquire(db, 9, 1, #{permits => 3})
    end),
    {acquired, 9} = canal_lock:acquire(db, 9, 1, #{permits => 4}),
    ok = canal_lock:give(db, Giver, #{permits => 4}),
    Worker = test_worker:start(),
    Give = fun(Permits) -> fun() -> canal_lock:give(db, Worker, #{permits => Permits}) end end,
    ?assertEqual({error, not_held}, test_worker:order(Giver, Give(10))),
    ?assertEqual(ok, test_worker:order(Giver, Give(8))),
    ?assertEqual([{db, 8}], canal_lock:held(Worker)),
    ?assertEqual({db, 1}, lists:keyfind(db, 1, canal_lock:held(Giver))),
    ?assertEqual({9, []}, {canal_lock:count(db), canal_lock:audit()}),
    ok = test_worker:kill([Giver, Worker]),
    ok = test_await:permits(0).

message_after_gift() ->
    {acquired, 1} = canal_lock:acquire(db, 1, 1),
    lists:foldl(fun(_, Last) ->
        Worker = test_worker:start(),
        ok = test_worker:order(Last, fun() -> canal_lock:give(db, Worker) end),
        Worker
    end, begin
        First = test_worker:start(),
        ok = canal_lock:give(db, First),
        First
    end, lists:seq(1, 100)),
    ?assertEqual({1, []}, {canal_lock:count(db), canal_lock:audit()}).

views() ->
    Keys = [{key, N} || N <- lists:seq(1, 3000)],
    Worker = test_worker:start(),
    [{{acquired, 1}, ok} = {canal_lock:acquire(Key, 1, 1), canal_lock:give(Key, Worker)} || Key <- Keys],
    Workers = [test_worker:start() || _ <- lists:seq(1, 3000)],
    {acquired, 3000} = canal_lock:acquire(db, 3000, 1, #{permits => 3000}),
    [ok = canal_lock:give(db, Each) || Each <- Workers],
    ?assertEqual(lists:sort([{Key, 1} || Key <- Keys]), lists:sort(canal_lock:held(Worker))),
    ?assertEqual(lists:sort([{Each, 1} || Each <- Workers]), lists:sort(canal_lock:holders(db))),
    All = [{Worker, Key, 1} || Key <- Keys] ++ [{Each, db, 1} || Each <- Workers],
    ?assertEqual(lists:sort(All), lists:sort(test_setup:permits())),
    ?assertEqual([], canal_lock:audit()),
    ?assertMatch(#{permits := 6000, holders := 3001}, canal_lock:info()).
