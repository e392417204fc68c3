%% The API of the quorum locks: its answers and errors on one node and on several.
-module(canal_lock_quorum_tests).

-include_lib("eunit/include/eunit.hrl").

-import(test_nodes, [call/2, worker/1, order/2, send_order/2]).
-import(test_quorum_cluster, [lock/3, rlock/3, held/2, unlock/2, try_unlock/2, messages/1, await_status/3]).
-import(test_worker, [caught/1]).

cluster_test_() ->
    test_quorum_cluster:tests(3, [
        {"Q1: one writer at a time on all nodes", fun one_writer/1},
        {"Q1: readers share a name, and exclude writers", fun readers/1},
        {"Q11: several names are locked together or not at all", fun lock_many/1},
        {"Q5: fences grow from holder to holder, from node to node", fun fences/1},
        {"Q5, Q8: a lock that passes from waiter to waiter of a node is a new lock each time", fun waiters_of_a_node/1},
        {"Q8: after unlock and try_unlock a lock is not held", fun unlocked/1},
        {"a second unlock is refused", fun once/1},
        {"of two unlocks at the same moment one succeeds", fun at_once/1},
        {"any process of the node may unlock a lock", fun by_another/1},
        {"with_lock unlocks however its function ends", fun with_lock/1},
        {"a holder that dies unlocks", fun death/1},
        {"a waiter that dies leaves the queue", fun death_of_a_waiter/1},
        {"a lock is a wrong argument on another node", fun of_another_node/1},
        {"force_unlock tells the holder and frees the name", fun force_unlock/1},
        {"locks/0 returns the holders of all nodes", fun locks/1},
        {"status/0 shows members that do not answer", fun status/1},
        {"status/0 shows whether all names have a quorum", fun status_per_name/1}
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

fences(Nodes) ->
    Workers = [worker(Node) || Node <- Nodes],
    Fences = [
        begin
            {ok, Fence} = lock(Worker, x, 5000),
            ok = try_unlock(Worker, x),
            Fence
        end
     || _ <- lists:seq(1, 10), Worker <- Workers
    ],
    ?assertEqual(Fences, lists:usort(Fences)),
    {ok, Reader} = rlock(hd(Workers), x, 5000),
    ?assert(Reader >= lists:last(Fences)).

%% By unlock, try_unlock and death. Seven processes wait on A while B holds the lock. C asks last.
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
    Ways = [unlock, try_unlock, kill, unlock, try_unlock, kill, unlock],
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
        ?assertEqual([{error, not_held}, {error, not_held}], [try_unlock(Worker, x), unlock(Worker, x)])
    end, [Worker || {Way, Worker} <- lists:zip(Ways, Waiting), Way =/= kill]),
    ?assert(held(Last, x)).

end_lock(kill, Worker) -> test_nodes:kill_worker(Worker);
end_lock(unlock, Worker) -> ok = unlock(Worker, x);
end_lock(try_unlock, Worker) -> ok = try_unlock(Worker, x).

unlocked([A | _]) ->
    order(worker(A), fun() ->
        lists:foreach(fun(Unlock) ->
            {ok, Lock} = canal_lock_quorum:lock(x, 5000),
            ?assert(canal_lock_quorum:held(Lock)),
            ok = canal_lock_quorum:Unlock(Lock),
            ?assertNot(canal_lock_quorum:held(Lock))
        end, [Unlock || Unlock <- [unlock, try_unlock], _ <- lists:seq(1, 100)])
    end).

once([A | _]) ->
    order(worker(A), fun() ->
        lists:foreach(fun({First, Second}) ->
            {ok, Lock} = canal_lock_quorum:lock(x, 5000),
            ok = canal_lock_quorum:First(Lock),
            ?assertEqual({error, not_held}, canal_lock_quorum:Second(Lock))
        end, [{First, Second} || First <- [unlock, try_unlock], Second <- [unlock, try_unlock]])
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
    end, [{One, Another} || One <- [unlock, try_unlock], Another <- [unlock, try_unlock], _ <- lists:seq(1, 100)]).

by_another([A | _]) ->
    Holder = worker(A),
    {ok, _} = lock(Holder, x, 5000),
    Lock = order(Holder, fun() -> get({lock, x}) end),
    ?assertEqual(ok, order(worker(A), fun() -> canal_lock_quorum:unlock(Lock) end)),
    ?assertNot(held(Holder, x)).

with_lock([A | _]) ->
    Worker = worker(A),
    With = fun(Fun) -> order(Worker, fun() -> caught(fun() -> canal_lock_quorum:with_lock(x, 5000, Fun) end) end) end,
    ?assertEqual({ok, true}, With(fun(Lock) -> canal_lock_quorum:held(Lock) end)),
    ?assertMatch({'EXIT', {broken, _}}, With(fun(_) -> error(broken) end)),
    ?assertEqual(thrown, With(fun(_) -> throw(thrown) end)),
    %% It was unlocked each time.
    ?assertEqual({ok, done}, With(fun(_) -> done end)),
    {ok, _} = lock(worker(A), x, 5000),
    Refused = fun() -> canal_lock_quorum:with_lock(x, 50, fun(_) -> error(called) end) end,
    ?assertEqual({error, timeout}, order(Worker, Refused)).

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
    [?assertMatch({'EXIT', {badarg, _}}, Try(Function)) || Function <- [held, unlock, try_unlock]],
    #{held := 50} = call(B, fun canal_lock_quorum:status/0),
    ?assert(held(Holder, x)).

force_unlock([A, B, C]) ->
    {Holder, Next} = {worker(A), worker(B)},
    {ok, First} = lock(Holder, x, 5000),
    Ref = send_order(Next, fun() -> canal_lock_quorum:lock(x, 5000) end),
    {ok, ended} = call(C, fun() -> canal_lock_quorum:force_unlock(x) end),
    {ok, Lock} = test_await:answer(Ref),
    ?assertNot(held(Holder, x)),
    ?assertEqual([{lost, x}], messages(Holder)),
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
    ?assertMatch(#{quorum := all, without_quorum := 0, voting := true, held := 0}, Status),
    test_quorum_cluster:stop(B),
    await_status(A, quorum, none),
    ?assertMatch(#{without_quorum := 4096}, call(A, fun canal_lock_quorum:status/0)).

%% Three members of six run, and three of the six vote for each name.
status_per_name([A, B, C] = Nodes) ->
    [test_quorum_cluster:stop(Node) || Node <- Nodes],
    Absent = [d@nowhere, e@nowhere, f@nowhere],
    Options = #{members := Members} = test_quorum_cluster:options(Nodes),
    [test_quorum_cluster:start(Node, Options#{members := Members ++ Absent, replicas => 3}) || Node <- Nodes],
    await_status(A, quorum, some),
    Answering = fun() ->
        #{members := All, without_quorum := Without} = canal_lock_quorum:status(),
        {length([Node || #{node := Node, answers := true} <- All]), Without > 1500 andalso Without < 2500}
    end,
    %% Of 20 groups, 10 have two or three of them.
    call(A, fun() -> test_await:value({3, true}, Answering) end),
    %% A request for a name without a quorum is refused. The others wait: the voters wait for all members.
    Worker = worker(A),
    Refused = fun(Name) ->
        case test_quorum_groups:voters(Name, Members ++ Absent, 3) -- Absent of
            [_, _ | _] -> {error, timeout};
            _ -> {error, no_quorum}
        end
    end,
    Names = [{x, N} || N <- lists:seq(1, 50)],
    ?assertEqual([{Name, Refused(Name)} || Name <- Names], [{Name, lock(Worker, Name, 0)} || Name <- Names]),
    [test_quorum_cluster:stop(Node) || Node <- [B, C]],
    await_status(A, quorum, none).
