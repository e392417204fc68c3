%% The native functions of shared keys: of keys of which this node has a share. They are of a namespace of their own.
-module(canal_lock_shares_tests).

-include_lib("eunit/include/eunit.hrl").

all_test_() ->
    test_setup:tests([
        {"calls with a shared key of every kind", fun every_kind/0},
        {"views and calls of canal_lock have nothing of a shared key", fun apart/0},
        {"CP1: a share below what is in use, and another capacity", fun shares/0},
        {"CP4: a waiter is granted from a larger share, and loses what it has collected", fun waits/0},
        {"a refusal is noted once", fun refusals/0},
        {"a shared key without a share is reclaimed", fun reclaimed/0},
        {"CP4: many waiters are granted in pieces", fun pieces/0},
        {"bad arguments", fun bad_arguments/0}
    ]).

every_kind() ->
    Keys = [Term || {_, Term} <- test_key_terms:all()],
    lists:foreach(fun(Key) ->
        %% Several names have the same term.
        none = call(Key, fun take_share/1),
        done = call(Key, fun(K) -> set_share(K, 2, 3, 3) end),
        ?assertEqual({acquired, 1}, canal_lock:acquire(Key, 1, 1)),
        ?assertEqual({acquired, 1}, acquire(Key, 3, 1)),
        ?assertEqual({acquired, 2}, acquire(Key, 1, 3)),
        ?assertEqual(full, acquire(Key, 3, 1)),
        [{Shared, 2, 2}] = shared_keys(),
        ?assert(Shared =:= Key),
        [{Pid, Held, 2, _}] = pieces(fun(Serial, From) -> canal_lock_nif:permits(shared, Serial, From) end, {0, 0, 0}),
        ?assert(Pid =:= self() andalso Held =:= Key),
        Holders = call(Key, fun(K) ->
            pieces(fun(Serial, From) -> canal_lock_nif:holders(shared, Serial, From, K) end, {0, 0, 0})
        end),
        ?assertEqual([{self(), 2}], Holders),
        ?assertEqual(ok, release(Key)),
        ?assertEqual(ok, call(Key, fun(K) -> canal_lock_nif:release_many(shared, K, 1) end)),
        ?assertEqual({error, not_held}, release(Key)),
        ?assertEqual(ok, canal_lock:release(Key)),
        ?assertEqual({error, not_held}, canal_lock:release(Key)),
        done = call(Key, fun(K) -> set_share(K, 0, 3, none) end),
        ?assertEqual(declare, acquire(Key, 3, 1)),
        sweep(),
        ?assertEqual([], shared_keys())
    end, Keys).

%% Of a key with permits of both kinds.
apart() ->
    Long = {binary:copy(<<"x">>, 100_000), long},
    lists:foreach(fun(Key) ->
        done = call(Key, fun(K) -> set_share(K, 4, 4, 4) end),
        {acquired, 1} = acquire(Key, 4, 1),
        {acquired, 1} = canal_lock:acquire(Key, 4, 1),
        Worker = test_worker:start(),
        ?assertEqual(ok, call(Key, fun(K) -> canal_lock_nif:give(shared, K, Worker, 1) end)),
        {acquired, 2} = acquire(Key, 4, 1),
        Waiter = test_worker:start(),
        Ref = test_worker:order(Waiter, fun() ->
            Ref = make_ref(),
            waiting = wait(Key, 4, 1, 4, Ref),
            Ref
        end),
        ?assertEqual([{Key, 1}], canal_lock:keys()),
        ?assertEqual([{self(), 1}], canal_lock:holders(Key)),
        ?assertEqual([{Key, 1}], canal_lock:held()),
        ?assertEqual([], canal_lock:held(Worker)),
        ?assertEqual(none, canal_lock_view:holder_info(Worker)),
        ?assertMatch(#{permits := 1, keys := 1}, canal_lock_view:holder_info(self())),
        ?assertEqual({1, 0}, {canal_lock:count(Key), canal_lock:waiting(Key)}),
        ?assertEqual([], canal_lock_view:fold_queues(fun lists:append/2, [])),
        ?assertEqual([], canal_lock:audit()),
        ?assertEqual({error, not_held}, test_worker:order(Worker, fun() -> canal_lock:release(Key) end)),
        ?assertEqual(ok, test_worker:order(Waiter, fun() -> canal_lock:cancel(Ref) end)),
        ?assertEqual(ok, canal_lock:release(Key)),
        ?assertEqual([], canal_lock:keys()),
        ok = release(Key),
        %% Its death releases the other one.
        ok = test_worker:kill(Worker),
        test_await:value([{Key, 4, 0}], fun shared_keys/0),
        done = call(Key, fun(K) -> set_share(K, 0, 4, 4) end),
        sweep()
    end, [db, {app, 12345}, make_ref(), Long, fun() -> Long end, 1 bsl 2000]).

shares() ->
    done = set_share(db, 3, 5, 5),
    {acquired, 2} = acquire(db, 5, 1, 2),
    [{acquired, 3}, full] = [acquire(db, 5, 1) || _ <- [1, 2]],
    [full, declare] = [acquire(db, MaxPer, 1, 2) || MaxPer <- [5, 4]],
    ?assertEqual(done, set_share(db, 1, 5, 5)),
    ?assertMatch({1, 5, 3, 0, 0, 0, {true, _}}, take_share(db)),
    ok = release(db),
    ?assertEqual(full, acquire(db, 5, 1)),
    ok = release(db),
    ?assertEqual(full, acquire(db, 5, 1)),
    ok = release(db),
    ?assertEqual({acquired, 1}, acquire(db, 5, 1)),
    %% Another capacity is passed to the agent.
    ?assertEqual([declare, declare], [acquire(db, 4, 1), acquire(other, 5, 1)]),
    ?assertEqual(done, set_share(db, 2, 4, 4)),
    ?assertEqual([declare, {acquired, 2}, full], [acquire(db, 5, 1), acquire(db, 2, 2), acquire(db, 4, 1)]),
    %% Large numbers.
    Largest = (1 bsl 20) - 2,
    ?assertEqual(done, set_share(db, 1 bsl 70, 1 bsl 70, 1 bsl 70)),
    ?assertMatch({Largest, Largest, 2, 0, 0, 0, {true, _}}, take_share(db)),
    ?assertEqual({acquired, 3}, acquire(db, 1 bsl 70, 1 bsl 70)),
    ?assertEqual({acquired, 4}, acquire(db, Largest, 1)).

waits() ->
    done = set_share(db, 1, 4, 4),
    [First, Second] = [make_ref() || _ <- [1, 2]],
    ?assertEqual(waiting, wait(db, 4, 1, 3, First)),
    ?assertEqual(waiting, wait(db, 4, 1, 1, Second)),
    ?assertMatch({1, 4, 1, 2, 3, 3, {false, _}}, take_share(db)),
    ?assertEqual(done, set_share(db, 0, 4, 4)),
    ?assertMatch({0, 4, 0, 2, 4, 3, {false, _}}, take_share(db)),
    %% The first one needs more than the limit.
    ?assertEqual(done, set_share(db, 2, 2, 2)),
    receive {canal_lock, Second, {acquired, 1}} -> ok end,
    ?assertMatch({2, 2, 1, 1, 0, 0, {false, _}}, take_share(db)),
    ?assertEqual(done, set_share(db, 4, 4, 4)),
    receive {canal_lock, First, {acquired, 4}} -> ok end,
    ?assertEqual([declare, full], [wait(db, 5, 1, 1, make_ref()), wait(db, 4, 1, 5, make_ref())]).

refusals() ->
    done = set_share(db, 0, 4, 4),
    WasRefused = fun() -> element(1, element(7, take_share(db))) end,
    ?assertEqual(false, WasRefused()),
    [full, full] = [acquire(db, 4, 1), acquire(db, 4, 1)],
    ?assertEqual([true, false], [WasRefused(), WasRefused()]).

reclaimed() ->
    done = set_share(db, 1, 4, 4),
    sweep(),
    ?assertEqual([{db, 1, 0}], shared_keys()),
    {acquired, 1} = acquire(db, 4, 1),
    done = set_share(db, 0, 4, 4),
    sweep(),
    ?assertEqual([{db, 0, 1}], shared_keys()),
    ok = release(db),
    sweep(),
    ?assertEqual(none, take_share(db)).

pieces() ->
    done = set_share(db, 0, 5000, 5000),
    Refs = [make_ref() || _ <- lists:seq(1, 1000)],
    [waiting = wait(db, 5000, 1, 1, Ref) || Ref <- Refs],
    more = set_share(db, 5000, 5000, 5000),
    {_, _, Granted, _, _, _, _} = take_share(db),
    ?assert(Granted < 1000),
    ok = settled(canal_lock_nif:settle(shared, db)),
    [receive {canal_lock, Ref, {acquired, _}} -> ok end || Ref <- Refs],
    ?assertMatch({5000, 5000, 1000, 0, 0, 0, {false, _}}, take_share(db)).

settled(more) -> settled(canal_lock_nif:settle(shared, db));
settled(done) -> ok.

bad_arguments() ->
    Wrong = [[db, -1, 1, 1], [db, 1, a, 1], [db, 1, 1, 0], [db, 1, 1, 1.0]],
    [?assertEqual({raise, badarg, All}, apply(canal_lock_nif, acquire_shared, All)) || All <- Wrong],
    [
        ?assertError(badarg, Call())
     || Call <- [
            fun() -> set_share(db, -1, 1, 1) end,
            fun() -> set_share(db, 1, 1.0, 1) end,
            fun() -> set_share(db, 1, 1, -1) end,
            fun() -> set_share(db, 1, 1, all) end,
            fun() -> canal_lock_nif:wait(shared, db, 1, 1, 0, 1, make_ref()) end,
            fun() -> canal_lock_nif:give(shared, db, not_a_pid, 1) end
        ]
    ],
    ?assertEqual(none, take_share(db)).

acquire(Key, MaxPer, Buckets) ->
    acquire(Key, MaxPer, Buckets, 1).

acquire(Key, MaxPer, Buckets, Permits) ->
    case canal_lock_nif:acquire_shared(Key, MaxPer, Buckets, Permits) of
        {raise, Cause, Arguments} ->
            canal_lock_interned:retry(Cause, fun canal_lock_nif:acquire_shared/4, Arguments);
        Answer ->
            Answer
    end.

release(Key) ->
    case canal_lock_nif:release_shared(Key) of
        {raise, Cause, Arguments} -> canal_lock_interned:retry(Cause, fun canal_lock_nif:release_shared/1, Arguments);
        Answer -> Answer
    end.

wait(Key, MaxPer, Buckets, Permits, Ref) ->
    call(Key, fun(K) -> canal_lock_nif:wait(shared, K, MaxPer, Buckets, Permits, 10_000, Ref) end).

%% In the open table.
set_share(Key, Share, Limit, Passed) ->
    {Serial, _, _} = canal_lock_nif:shared_keys(0, 0, 1),
    changed = canal_lock_nif:set_share(Serial + 1, Key, Share, Limit, Passed),
    canal_lock_nif:set_share(Serial, Key, Share, Limit, Passed).

take_share(Key) ->
    {Serial, _, _} = canal_lock_nif:shared_keys(0, 0, 1),
    canal_lock_nif:take_share(Serial, Key).

call(Key, Call) -> canal_lock_interned:call(Key, Call).

shared_keys() ->
    pieces(fun(Serial, After) -> canal_lock_nif:shared_keys(Serial, After, 10) end, 0).

pieces(Read, From) ->
    case Read(0, From) of
        {_, Rows, done} -> Rows;
        {_, Rows, Next} -> Rows ++ pieces(Read, Next)
    end.

%% A key is spared once.
sweep() ->
    [canal_lock_manager:sweep() || _ <- [1, 2, 3]].
