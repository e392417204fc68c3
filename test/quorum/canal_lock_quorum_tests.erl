%% The API of the quorum locks: its answers and errors on one node and on several.
-module(canal_lock_quorum_tests).

-include_lib("eunit/include/eunit.hrl").

-import(test_nodes, [call/2, worker/1, order/2, send_order/2]).
-import(test_quorum_cluster, [lock/3, rlock/3, held/2, unlock/2, unlock_async/2, await_status/3]).
-import(test_worker, [caught/1]).

cluster_test_() ->
    test_quorum_cluster:tests(3, [
        {"Q1: one writer at a time on all nodes", fun one_writer/1},
        {"Q1: readers share a name, and exclude writers", fun readers/1},
        {"Q11: several names are locked together or not at all", fun lock_many/1},
        {"Q11: several names are locked for readers together or not at all", fun rlock_many/1},
        {"a request with the timeout infinity waits until it is granted", fun infinity/1},
        {"Q5: fences grow from holder to holder, from node to node", fun fences/1},
        {"Q5, Q8: a lock that passes from waiter to waiter of a node is a new lock each time", fun waiters_of_a_node/1},
        {"Q8: after unlock and unlock_async a lock is not held", fun unlocked/1},
        {"a second unlock is refused", fun once/1},
        {"of two unlocks at the same moment one succeeds", fun at_once/1},
        {"any process of the node may unlock a lock", fun by_another/1},
        {"with_lock unlocks however its function ends", fun with_lock/1},
        {"a timeout of 0 is enough for a free name, also the first, and does not wait for another", fun tries/1},
        {"with_rlock calls its function together with other readers, and unlocks", fun with_rlock/1},
        {"a holder that dies unlocks", fun death/1},
        {"a waiter that dies leaves the queue", fun death_of_a_waiter/1},
        {"a lock is a wrong argument on another node", fun of_another_node/1},
        {"force_unlock tells the holder and frees the name", fun force_unlock/1},
        {"locks/0 returns the holders of all nodes", fun locks/1},
        {"status/0 shows members that do not answer", fun status/1}
    ]).

one_writer([A, B, _C]) ->
    {One, Other} = {worker(A), worker(B)},
    {ok, _} = lock(One, x, 5000),
    ?assertEqual({error, timeout}, lock(Other, x, 100)),
    ?assertEqual({error, timeout}, rlock(Other, x, 100)),
    ?assert(held(One, x)),
    %% Other names are free, also those that only look similar.
    [{ok, _} = lock(Other, Name, 5000) || Name <- [y, <<"x">>, "x", {x}]],
    ok = unlock(One, x),
    ?assertMatch({ok, _}, lock(Other, x, 5000)).

readers([A, B, C]) ->
    Readers = [worker(Node) || Node <- [A, B, C]],
    [{ok, _} = rlock(Reader, x, 5000) || Reader <- Readers],
    ?assertEqual([true, true, true], [held(Reader, x) || Reader <- Readers]),
    Writer = worker(A),
    ?assertEqual({error, timeout}, lock(Writer, x, 100)),
    [ok = unlock(Reader, x) || Reader <- Readers],
    ?assertMatch({ok, _}, lock(Writer, x, 5000)).

lock_many([A, B, _C]) ->
    {One, Other} = {worker(A), worker(B)},
    {ok, _} = lock(One, y, 5000),
    Many = fun() -> canal_lock_quorum:lock_many([x, y, z], 300) end,
    ?assertEqual({error, timeout}, order(Other, Many)),
    %% It holds none of the names.
    {ok, _} = lock(One, x, 5000),
    [ok = unlock(One, Name) || Name <- [x, y]],
    {ok, Lock} = order(Other, Many),
    [?assertEqual({error, timeout}, lock(One, Name, 50)) || Name <- [x, y, z]],
    ok = order(Other, fun() -> canal_lock_quorum:unlock(Lock) end),
    [?assertMatch({ok, _}, lock(One, Name, 5000)) || Name <- [x, y, z]].

rlock_many([A, B, _C]) ->
    {One, Other} = {worker(A), worker(B)},
    Many = fun(Names) -> fun() -> canal_lock_quorum:rlock_many(Names, 300) end end,
    {ok, Lock} = order(One, Many([x, y])),
    ?assertMatch({ok, _}, order(worker(B), Many([y, z]))),
    [?assertEqual({error, timeout}, lock(Other, Name, 50)) || Name <- [x, y, z]],
    ok = order(One, fun() -> canal_lock_quorum:unlock(Lock) end),
    {ok, _} = lock(Other, x, 5000),
    ?assertEqual({error, timeout}, order(One, Many([w, x]))),
    ?assertMatch({ok, _}, lock(Other, w, 5000)).

infinity([A, B, _C]) ->
    {Holder, Waiting} = {worker(A), worker(B)},
    {ok, _} = lock(Holder, x, infinity),
    Ref = send_order(Waiting, fun() -> element(1, canal_lock_quorum:lock(x, infinity)) end),
    await_status(B, waiting, 1),
    ?assertEqual({error, timeout}, lock(worker(B), x, 300)),
    ok = unlock(Holder, x),
    ?assertEqual(ok, test_await:answer(Ref)).

fences(Nodes) ->
    Workers = [worker(Node) || Node <- Nodes],
    Fences = [
        begin
            {ok, Fence} = lock(Worker, x, 5000),
            ok = unlock_async(Worker, x),
            Fence
        end
     || _ <- lists:seq(1, 10), Worker <- Workers
    ],
    ?assertEqual(Fences, lists:usort(Fences)),
    {ok, Reader} = rlock(hd(Workers), x, 5000),
    ?assert(Reader >= lists:last(Fences)).

%% By unlock, unlock_async and death. Seven processes wait on A while B holds the lock. C asks last.
waiters_of_a_node([A, B, C]) ->
    {Holder, Last} = {worker(B), worker(C)},
    {ok, First} = lock(Holder, x, 5000),
    Waiting = [worker(A) || _ <- lists:seq(1, 7)],
    Locking = fun() ->
        {ok, Lock} = canal_lock_quorum:lock(x, 20_000),
        put({lock, x}, Lock),
        canal_lock_quorum:fence(Lock)
    end,
    Refs = [
        begin
            Ref = send_order(Worker, Locking),
            await_status(A, waiting, Count),
            Ref
        end
     || {Count, Worker} <- lists:enumerate(Waiting)
    ],
    ok = unlock(Holder, x),
    Ways = [unlock, unlock_async, kill, unlock, unlock_async, kill, unlock],
    Fences = [
        begin
            Fence = test_await:answer(Ref),
            ?assert(held(Worker, x)),
            ?assertMatch({[#{fence := Fence, held := true}], []}, call(A, fun canal_lock_quorum:locks/0)),
            end_lock(Way, Worker),
            Fence
        end
     || {Way, Worker, Ref} <- lists:zip3(Ways, Waiting, Refs)
    ],
    ?assertEqual([First | Fences], lists:usort([First | Fences])),
    {ok, Next} = lock(Last, x, 5000),
    ?assert(Next > lists:last(Fences)),
    %% The earlier locks are not held, and to unlock them changes nothing.
    lists:foreach(fun(Worker) ->
        ?assertNot(held(Worker, x)),
        ?assertEqual([{error, not_held}, {error, not_held}], [unlock_async(Worker, x), unlock(Worker, x)])
    end, [Worker || {Way, Worker} <- lists:zip(Ways, Waiting), Way =/= kill]),
    ?assert(held(Last, x)).

end_lock(kill, Worker) -> test_nodes:kill_worker(Worker);
end_lock(unlock, Worker) -> ok = unlock(Worker, x);
end_lock(unlock_async, Worker) -> ok = unlock_async(Worker, x).

unlocked([A | _]) ->
    order(worker(A), fun() ->
        lists:foreach(fun(Unlock) ->
            {ok, Lock} = canal_lock_quorum:lock(x, 5000),
            ?assert(canal_lock_quorum:is_held(Lock)),
            ok = canal_lock_quorum:Unlock(Lock),
            ?assertNot(canal_lock_quorum:is_held(Lock))
        end, [Unlock || Unlock <- [unlock, unlock_async], _ <- lists:seq(1, 100)])
    end).

once([A | _]) ->
    order(worker(A), fun() ->
        lists:foreach(fun({First, Second}) ->
            {ok, Lock} = canal_lock_quorum:lock(x, 5000),
            ok = canal_lock_quorum:First(Lock),
            ?assertEqual({error, not_held}, canal_lock_quorum:Second(Lock))
        end, [{First, Second} || First <- [unlock, unlock_async], Second <- [unlock, unlock_async]])
    end).

at_once([A | _]) ->
    {Holder, Other} = {worker(A), worker(A)},
    lists:foreach(fun({One, Another}) ->
        {ok, Lock} = order(Holder, fun() -> canal_lock_quorum:lock(x, 5000) end),
        Refs = [
            send_order(Worker, fun() -> canal_lock_quorum:Function(Lock) end)
         || {Worker, Function} <- [{Holder, One}, {Other, Another}]
        ],
        Answers = [test_await:answer(Ref) || Ref <- Refs],
        ?assertEqual({One, Another, [ok, {error, not_held}]}, {One, Another, lists:sort(Answers)})
    end, [{One, Another} || One <- [unlock, unlock_async], Another <- [unlock, unlock_async], _ <- lists:seq(1, 100)]).

by_another([A | _]) ->
    Holder = worker(A),
    {ok, _} = lock(Holder, x, 5000),
    Lock = order(Holder, fun() -> get({lock, x}) end),
    ?assertEqual(ok, order(worker(A), fun() -> canal_lock_quorum:unlock(Lock) end)),
    ?assertNot(held(Holder, x)).

with_lock([A | _]) ->
    Worker = worker(A),
    With = fun(Fun) -> order(Worker, fun() -> caught(fun() -> canal_lock_quorum:with_lock(x, 5000, Fun) end) end) end,
    ?assertEqual({ok, true}, With(fun(Lock) -> canal_lock_quorum:is_held(Lock) end)),
    ?assertMatch({'EXIT', {broken, _}}, With(fun(_) -> error(broken) end)),
    ?assertEqual(thrown, With(fun(_) -> throw(thrown) end)),
    %% It was unlocked each time.
    ?assertEqual({ok, done}, With(fun(_) -> done end)),
    {ok, _} = lock(worker(A), x, 5000),
    Refused = fun() -> canal_lock_quorum:with_lock(x, 50, fun(_) -> error(called) end) end,
    ?assertEqual({error, timeout}, order(Worker, Refused)).

tries([A, B, _C] = Nodes) ->
    [One, Other, _] = Workers = [worker(Node) || Node <- Nodes],
    lists:foreach(fun(Worker) ->
        ?assertMatch({ok, _}, lock(Worker, x, 0)),
        ?assertMatch({ok, _}, rlock(Worker, y, 0)),
        ok = unlock(Worker, x)
    end, Workers),
    With = fun(Node, Name) ->
        order(worker(Node), fun() -> canal_lock_quorum:with_lock(Name, 0, fun canal_lock_quorum:is_held/1) end)
    end,
    ?assertEqual({ok, true}, With(A, x)),
    {ok, _} = lock(One, x, 0),
    %% Held by a process of the same node, and of another one.
    [?assertEqual({error, timeout}, With(Node, Name)) || Node <- [A, B], Name <- [x, y]],
    ?assertEqual({error, timeout}, lock(Other, y, 0)),
    [?assertMatch(#{waiting := 0}, call(Node, fun canal_lock_quorum:status/0)) || Node <- [A, B]],
    %% It has no position anywhere.
    Queued = fun() -> [maps:get(queued, call(Node, fun canal_lock_quorum:status/0)) || Node <- Nodes] end,
    ?assertEqual([0, 0, 0], Queued()).

with_rlock([A, B, _C]) ->
    Within = fun(Lock) ->
        Refused = canal_lock_quorum:lock(x, 50),
        {ok, Other} = canal_lock_quorum:rlock(x, 5000),
        ok = canal_lock_quorum:unlock(Other),
        {canal_lock_quorum:is_held(Lock), Refused}
    end,
    With = fun() -> canal_lock_quorum:with_rlock(x, 5000, Within) end,
    ?assertEqual({ok, {true, {error, timeout}}}, order(worker(A), With)),
    ?assertMatch({ok, _}, lock(worker(B), x, 5000)).

death([A, B, _C]) ->
    Holder = worker(A),
    {ok, _} = lock(Holder, x, 5000),
    {ok, _} = rlock(Holder, y, 5000),
    Next = worker(B),
    Ref = send_order(Next, fun() -> canal_lock_quorum:lock(x, 5000) end),
    ok = test_nodes:kill_worker(Holder),
    ?assertMatch({ok, _}, test_await:answer(Ref)),
    ?assertMatch({ok, _}, lock(Next, y, 5000)).

death_of_a_waiter([A, B, _C]) ->
    {Holder, Waiting, Next} = {worker(A), worker(B), worker(B)},
    {ok, _} = lock(Holder, x, 5000),
    Ref = send_order(Waiting, fun() -> canal_lock_quorum:lock(x, 60_000) end),
    await_status(B, waiting, 1),
    ok = test_nodes:kill_worker(Waiting),
    none = test_await:answer(Ref),
    await_status(B, waiting, 0),
    ok = unlock(Holder, x),
    ?assertMatch({ok, _}, lock(Next, x, 5000)).

of_another_node([A, B, _C]) ->
    Holder = worker(A),
    {ok, _} = lock(Holder, x, 5000),
    Lock = order(Holder, fun() -> get({lock, x}) end),
    %% Some lock there has the same number.
    [{ok, _} = lock(worker(B), Number, 5000) || Number <- lists:seq(1, 50)],
    Try = fun(Function) -> call(B, fun() -> caught(fun() -> canal_lock_quorum:Function(Lock) end) end) end,
    [?assertMatch({'EXIT', {badarg, _}}, Try(Function)) || Function <- [is_held, unlock, unlock_async]],
    #{held := 50} = call(B, fun canal_lock_quorum:status/0),
    ?assert(held(Holder, x)).

force_unlock([A, B, C]) ->
    {Holder, Next} = {worker(A), worker(B)},
    {ok, First} = lock(Holder, x, 5000),
    Ref = send_order(Next, fun() -> canal_lock_quorum:lock(x, 5000) end),
    ok = call(C, fun() -> canal_lock_quorum:force_unlock(x) end),
    {ok, Lock} = test_await:answer(Ref),
    ?assertNot(held(Holder, x)),
    ?assertEqual([{lost, x}], test_quorum_cluster:messages_until_lost(Holder, x)),
    ?assert(order(Next, fun() -> canal_lock_quorum:fence(Lock) end) > First).

locks([A, B, C]) ->
    {Writer, Reader} = {worker(A), worker(B)},
    {ok, Fence} = lock(Writer, {invoice, 17}, 5000),
    {ok, _} = rlock(Reader, <<"book">>, 5000),
    {Locks, []} = call(C, fun canal_lock_quorum:locks/0),
    [AName, BName] = test_quorum_cluster:members([A, B]),
    ?assertMatch(
        [
            #{node := AName, mode := write, names := [{invoice, 17}], fence := Fence, held := true, since_ms := _},
            #{node := BName, mode := read, names := [<<"book">>], held := true}
        ],
        lists:sort(fun(#{mode := Mode}, _) -> Mode =:= write end, Locks)
    ),
    ?assertEqual([element(2, Writer), element(2, Reader)], [
        call(A, fun() -> Pid end)
     || Mode <- [write, read], #{mode := M, holder := Pid} <- Locks, M =:= Mode
    ]).

status([A, B, C]) ->
    [Name, _, Absent] = test_quorum_cluster:members([A, B, C]),
    test_quorum_cluster:stop(C),
    call(A, fun() ->
        test_await:value([{Absent, false}], fun() ->
            #{members := Members} = canal_lock_quorum:status(),
            [{Node, Answers} || #{node := Node, answers := Answers, valid_ms := 0} <- Members, Node =/= Name]
        end)
    end),
    Status = call(A, fun canal_lock_quorum:status/0),
    ?assertMatch(#{quorum := true, voting := true, held := 0}, Status),
    test_quorum_cluster:stop(B),
    await_status(A, quorum, false).
