%% Several permits in one call, and permits that a holder gives to another process.
-module(canal_lock_give_tests).

-include_lib("eunit/include/eunit.hrl").

-import(test_await, [messages/0]).

permits_test_() ->
    test_setup:tests([
        {"P1: several permits are acquired if the capacity allows all of them", fun several/0},
        {"P5: several permits are released, or none", fun release_several/0},
        {"permits above every capacity are never granted", fun above_capacity/0},
        {"W4: the oldest waiter collects permits, which are on its record", fun collects/0},
        {"a smaller request behind a larger one is not starved by it, and does not starve it", fun both_granted/0}
    ]).

give_test_() ->
    test_setup:quietly(
        test_setup:tests([
            {"P14: a permit changes its holder, and the count stays", fun give/0},
            {"P14: several permits are given, or none", fun give_several/0},
            {"P5: a process that does not hold the permit gives nothing", fun give_not_held/0},
            {"a gift to a dead process changes nothing", fun give_to_the_dead/0},
            {"a gift to oneself changes nothing", fun give_to_oneself/0},
            {"P4: the death of the new holder releases the permit, of the old one it does not", fun deaths/0},
            {"a permit that was handed over can be given on", fun give_handed_over/0},
            {"permits of all records are given", fun give_from_all_records/0},
            {"a message sent after a gift finds the receiver with the permit", fun message_after_gift/0},
            {"a gift counts as transferred, and grants nothing", fun totals/0},
            {"views show gifts once, of many keys and of many processes", fun views/0}
        ])
    ).

several() ->
    ?assertEqual({acquired, 3}, canal_lock:acquire(db, 2, 2, #{permits => 3})),
    ?assertEqual(full, canal_lock:acquire(db, 2, 2, #{permits => 2})),
    ?assertEqual({acquired, 4}, canal_lock:acquire(db, 2, 2, #{permits => 1})),
    ?assertEqual([{db, 4}], canal_lock:held()),
    ?assertMatch(#{granted := 4, refused := 1, permits := 4}, canal_lock:info()).

release_several() ->
    {acquired, 5} = canal_lock:acquire(db, 9, 1, #{permits => 5}),
    [?assertEqual({error, not_held}, canal_lock:release(db, #{permits => N})) || N <- [6, 1 bsl 70]],
    ?assertEqual(5, canal_lock:count(db)),
    ?assertEqual(ok, canal_lock:release(db, #{permits => 3})),
    ?assertEqual(ok, canal_lock:release(db, #{})),
    ?assertEqual(ok, canal_lock:release(db)),
    ?assertEqual({error, not_held}, canal_lock:release(db, #{permits => 1})),
    ?assertMatch(#{granted := 5, released := 5, not_held := 3, permits := 0}, canal_lock:info()).

above_capacity() ->
    Huge = 1 bsl 100,
    [?assertEqual(full, canal_lock:acquire(db, Huge, Huge, #{permits => Permits})) || Permits <- [1 bsl 61, Huge]],
    ?assertEqual({acquired, (1 bsl 61) - 1}, canal_lock:acquire(db, Huge, Huge, #{permits => (1 bsl 61) - 1})),
    ?assertEqual(full, canal_lock:acquire(db, Huge, Huge)),
    ?assertEqual(ok, canal_lock:release(db, #{permits => (1 bsl 61) - 1})),
    ?assertEqual(0, canal_lock:count(db)).

collects() ->
    {acquired, 3} = canal_lock:acquire(db, 3, 1, #{permits => 3}),
    {Worker, {waiting, Ref}} = test_worker:start(fun() -> canal_lock:request(db, 3, 1, #{permits => 3}) end),
    [
        begin
            ok = canal_lock:release(db),
            ?assertEqual({3, [{db, N}], []}, {canal_lock:count(db), canal_lock:held(Worker), canal_lock:audit()}),
            ?assertMatch(#{permits := 3}, canal_lock:info())
        end
     || N <- [1, 2]
    ],
    %% It cannot release what it has collected.
    Release = fun() -> canal_lock:release(db) end,
    ?assertEqual({error, not_held}, test_worker:order(Worker, Release)),
    ?assertEqual(ok, test_worker:order(Worker, fun() -> canal_lock:cancel(Ref) end)),
    ?assertEqual({1, []}, {canal_lock:count(db), canal_lock:held(Worker)}).

both_granted() ->
    {acquired, 2} = canal_lock:acquire(db, 2, 1, #{permits => 2}),
    {waiting, Two} = canal_lock:request(db, 2, 1, #{permits => 2}),
    {waiting, One} = canal_lock:request(db, 2, 1),
    ok = canal_lock:release(db),
    ?assertEqual([], messages()),
    ok = canal_lock:release(db),
    ?assertEqual([{canal_lock, Two, {acquired, 2}}], messages()),
    ok = canal_lock:release(db),
    ?assertEqual([{canal_lock, One, {acquired, 2}}], messages()).

give() ->
    {acquired, 1} = canal_lock:acquire(db, 1, 1),
    Worker = test_worker:start(),
    ?assertEqual(ok, canal_lock:give(db, Worker)),
    ?assertEqual({1, [], [{db, 1}]}, {canal_lock:count(db), canal_lock:held(), canal_lock:held(Worker)}),
    ?assertEqual({[{Worker, 1}], []}, {canal_lock:holders(db), canal_lock:audit()}),
    ?assertEqual({error, not_held}, canal_lock:release(db)),
    ?assertEqual(full, canal_lock:acquire(db, 1, 1)),
    Release = fun() -> canal_lock:release(db) end,
    ?assertEqual([ok, {error, not_held}], [test_worker:order(Worker, Release) || _ <- [1, 2]]),
    ?assertMatch(#{permits := 0, holders := 0}, canal_lock:info()).

give_several() ->
    {acquired, 3} = canal_lock:acquire(db, 3, 1, #{permits => 3}),
    Worker = test_worker:start(),
    ?assertEqual({error, not_held}, canal_lock:give(db, Worker, #{permits => 4})),
    ?assertEqual(ok, canal_lock:give(db, Worker, #{permits => 2})),
    ?assertEqual({[{db, 1}], [{db, 2}]}, {canal_lock:held(), canal_lock:held(Worker)}),
    %% They add up with what the process acquires itself.
    {acquired, 4} = test_worker:order(Worker, fun() -> canal_lock:acquire(db, 4, 1) end),
    ?assertEqual([{db, 3}], canal_lock:held(Worker)),
    ?assertEqual([{Worker, 3}, {self(), 1}], lists:reverse(lists:keysort(2, canal_lock:holders(db)))),
    ?assertMatch(#{holders := 2, permits := 4}, canal_lock:info()),
    Release = fun(Permits) -> fun() -> canal_lock:release(db, #{permits => Permits}) end end,
    ?assertEqual({error, not_held}, test_worker:order(Worker, Release(4))),
    ?assertEqual(ok, test_worker:order(Worker, Release(3))),
    ?assertEqual({1, []}, {canal_lock:count(db), canal_lock:audit()}).

give_not_held() ->
    Worker = test_worker:holder(#{db => 1}),
    ?assertEqual({error, not_held}, canal_lock:give(db, Worker)),
    ?assertEqual({error, not_held}, canal_lock:give(unknown, Worker)),
    ?assertEqual([{db, 1}], canal_lock:held(Worker)).

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

give_to_oneself() ->
    ?assertEqual({error, not_held}, canal_lock:give(db, self())),
    {acquired, 1} = canal_lock:acquire(db, 1, 1),
    ?assertEqual(ok, canal_lock:give(db, self())),
    ?assertEqual([{db, 1}], canal_lock:held()),
    ?assertMatch(#{transferred := 0}, canal_lock:info()).

deaths() ->
    {Giver, {acquired, 1}} = test_worker:start(fun() -> canal_lock:acquire(db, 1, 1) end),
    Worker = test_worker:start(),
    ok = test_worker:order(Giver, fun() -> canal_lock:give(db, Worker) end),
    ok = test_worker:kill(Giver),
    %% The death of another holder shows that the VM has handled this one.
    ?assertEqual([{Worker, 1}], canal_lock:holders(db)),
    ok = test_worker:kill(Worker),
    ok = test_await:count(db, 0),
    ?assertMatch(#{released_by_death := 1, released := 0}, canal_lock:info()).

give_handed_over() ->
    {acquired, 1} = canal_lock:acquire(db, 1, 1),
    {Worker, {waiting, _}} = test_worker:start(fun() -> canal_lock:request(db, 1, 1) end),
    ok = canal_lock:release(db),
    Test = self(),
    ?assertEqual(ok, test_worker:order(Worker, fun() -> canal_lock:give(db, Test) end)),
    ?assertEqual({[{db, 1}], []}, {canal_lock:held(), canal_lock:held(Worker)}),
    ?assertEqual(ok, canal_lock:release(db)).

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

totals() ->
    {acquired, 3} = canal_lock:acquire(db, 3, 1, #{permits => 3}),
    {waiting, Ref} = canal_lock:request(db, 3, 1),
    Worker = test_worker:start(),
    ok = canal_lock:give(db, Worker, #{permits => 2}),
    ?assertEqual([], messages()),
    ?assertMatch(#{transferred := 2, granted := 3, released := 0, handed_over := 0, permits := 3}, canal_lock:info()),
    ok = canal_lock:cancel(Ref).

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
