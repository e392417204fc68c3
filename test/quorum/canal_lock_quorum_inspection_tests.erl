%% Calls about one name: its holders, its waiters, and its revocation.
-module(canal_lock_quorum_inspection_tests).

-include_lib("eunit/include/eunit.hrl").

-import(test_nodes, [call/2, worker/1, send_order/2]).
-import(test_quorum_cluster, [members/1, await_status/3]).
-import(test_quorum_cluster, [lock/3, rlock/3, held/2, unlock/2, unlock_async/2, messages/1, messages_until_lost/2]).

-define(LONG_MS, 60_000).

cluster_test_() ->
    test_quorum_cluster:tests(3, [
        {"holder/1 returns the writer of a name, with the same values on all nodes", fun writer/1},
        {"holder/1 returns all readers of a name", fun readers/1},
        {"holder/1 returns a lock for each of its names, and for no other name", fun of_each_name/1},
        {"holder/1 returns nothing after any end of a lock", fun ends/1},
        {"waiting/1 returns the waiters of a name on all nodes", fun waiters/1},
        {"holder/1 and waiting/1 return the members that do not answer", fun silent/1},
        {"force_unlock/1 ends the locks of readers on all nodes", fun force_readers/1},
        {"after force_unlock/1 the next request gets the name", fun force_waiting/1},
        {"force_unlock/1 reaches a holder through the other members", fun force_through_others/1}
    ]).

two_nodes_test_() ->
    test_quorum_cluster:tests(2, [
        {"force_unlock/1 ends the lock of a writer", fun force_writer/1},
        {"force_unlock/1 of a name that is not held changes nothing", fun not_held/1}
    ]).

writer([A, B, C]) ->
    Holder = {_, Pid} = worker(B),
    [_, Name, _] = members([A, B, C]),
    Before_ms = call(B, fun() -> erlang:system_time(millisecond) end),
    {ok, Fence} = lock(Holder, x, ?LONG_MS),
    After_ms = call(B, fun() -> erlang:system_time(millisecond) end),
    lists:foreach(fun(Node) ->
        {[Lock], []} = holder(Node, x),
        #{node := Name, names := [x], mode := write, fence := Fence, held := true, since_ms := Since_ms} = Lock,
        ?assertEqual(Pid, maps:get(holder, Lock)),
        ?assert(Since_ms >= Before_ms andalso Since_ms =< After_ms)
    end, [A, B, C]),
    ok = unlock(Holder, x).

readers([A, B, C]) ->
    Readers = [worker(Node) || Node <- [A, A, B]],
    [{ok, _} = rlock(Reader, x, ?LONG_MS) || Reader <- Readers],
    {Locks, []} = holder(C, x),
    [AName, BName] = members([A, B]),
    Nodes = [Node || #{node := Node, mode := read, held := true} <- Locks],
    ?assertEqual(lists:sort([AName, AName, BName]), lists:sort(Nodes)),
    ok = unlock(hd(Readers), x),
    {Others, []} = holder(C, x),
    ?assertEqual(lists:sort([AName, BName]), lists:sort([Node || #{node := Node} <- Others])).

%% Also for names that have a meaning in patterns of ETS, and for those next to them in the order of terms.
of_each_name([A, B, _C]) ->
    Names = ['_', '$1', 1, 2, {x, 1}, {x, 2}, "x", <<"x">>, x, []],
    Holder = worker(A),
    {ok, _} = test_nodes:order(Holder, fun() -> canal_lock_quorum:lock_many(Names, ?LONG_MS) end),
    lists:foreach(fun(Name) ->
        ?assertMatch({Name, {[#{names := Names}], []}}, {Name, holder(B, Name)})
    end, Names),
    [?assertEqual({Name, {[], []}}, {Name, holder(B, Name)}) || Name <- [0, 3, '$2', {x}, {x, 3}, {x, 1, 1}, [x], y]].

ends([A, B, C]) ->
    Ended = fun() -> call(C, fun() -> test_await:value({[], []}, fun() -> canal_lock_quorum:holder(x) end) end) end,
    lists:foreach(fun(End) ->
        Holder = worker(A),
        {ok, _} = lock(Holder, x, ?LONG_MS),
        ?assertMatch({[_], []}, holder(C, x)),
        _ = End(Holder),
        Ended()
    end, [
        fun(Holder) -> unlock(Holder, x) end,
        fun(Holder) -> unlock_async(Holder, x) end,
        fun test_nodes:kill_worker/1,
        fun(_) -> call(B, fun() -> canal_lock_quorum:force_unlock(x) end) end,
        fun(_) -> call(A, fun() -> test_quorum_cluster:kill_process(canal_lock_quorum_agent) end) end
    ]).

waiters([A, B, C]) ->
    Holder = worker(A),
    {ok, _} = lock(Holder, x, ?LONG_MS),
    {_, OnA} = First = worker(A),
    Since_ms = erlang:monotonic_time(millisecond),
    _ = send_order(First, fun() -> canal_lock_quorum:rlock(x, ?LONG_MS) end),
    await_status(A, waiting, 1),
    %% This takes 50 ms, so the order of the waits is certain.
    {error, timeout} = lock(worker(C), x, 50),
    _ = send_order(worker(B), fun() -> canal_lock_quorum:lock_many([y, x], ?LONG_MS) end),
    await_status(B, waiting, 1),
    {[One, Other], []} = call(C, fun() -> canal_lock_quorum:waiting(x) end),
    Most_ms = erlang:monotonic_time(millisecond) - Since_ms,
    [AName, BName] = members([A, B]),
    ?assertMatch(#{node := AName, names := [x], mode := read}, One),
    ?assertMatch(#{node := BName, names := [y, x], mode := write}, Other),
    ?assertEqual(OnA, maps:get(waiter, One)),
    #{waited_ms := One_ms} = One,
    #{waited_ms := Other_ms} = Other,
    ?assert(One_ms =< Most_ms),
    ?assert(One_ms >= Other_ms + 50),
    ?assertMatch({[#{node := BName}], []}, call(A, fun() -> canal_lock_quorum:waiting(y) end)),
    ?assertEqual({[], []}, call(A, fun() -> canal_lock_quorum:waiting(z) end)),
    %% A waiter that has left is not returned.
    test_nodes:kill_worker(First),
    await_status(A, waiting, 0),
    ?assertEqual([BName], [Node || #{node := Node} <- element(1, call(C, fun() -> canal_lock_quorum:waiting(x) end))]).

silent([A, _B, C]) ->
    {ok, _} = lock(worker(A), x, ?LONG_MS),
    [CName] = members([C]),
    test_quorum_cluster:stop(C),
    ?assertMatch({[_], [CName]}, holder(A, x)),
    ?assertEqual({[], [CName]}, call(A, fun() -> canal_lock_quorum:waiting(x) end)).

%%% force_unlock/1

%% From the holder's node and from the other one.
force_writer([A, B]) ->
    lists:foreach(fun(From) ->
        Holder = worker(A),
        {ok, _} = lock(Holder, x, ?LONG_MS),
        ?assertEqual(ok, force(From, x)),
        ?assertEqual([{lost, x}], messages_until_lost(Holder, x)),
        ?assertNot(held(Holder, x)),
        ?assertEqual({error, not_held}, unlock(Holder, x))
    end, [A, B]).

%% Also of one that is locked later: its request is behind the revocation.
not_held([A, B]) ->
    Holder = worker(A),
    {ok, _} = lock(Holder, x, ?LONG_MS),
    ?assertEqual(ok, force(B, y)),
    Next = worker(B),
    {ok, _} = lock(Next, y, ?LONG_MS),
    ?assertEqual([true, true], [held(Holder, x), held(Next, y)]),
    ?assertEqual([[], []], [messages(Holder), messages(Next)]).

force_readers([A, B, C]) ->
    Readers = [worker(Node) || Node <- [A, A, B, C]],
    [{ok, _} = rlock(Reader, x, ?LONG_MS) || Reader <- Readers],
    ?assertEqual(ok, force(C, x)),
    [?assertEqual([{lost, x}], messages_until_lost(Reader, x)) || Reader <- Readers],
    ?assertEqual([false], lists:usort([held(Reader, x) || Reader <- Readers])).

force_waiting([A, B, C]) ->
    {Holder, Next} = {worker(A), worker(B)},
    {ok, _} = lock(Holder, x, ?LONG_MS),
    Ref = send_order(Next, fun() -> element(1, canal_lock_quorum:lock(x, ?LONG_MS)) end),
    await_status(B, waiting, 1),
    ?assertEqual(ok, force(C, x)),
    ?assertEqual([{lost, x}], messages_until_lost(Holder, x)),
    ?assertNot(held(Holder, x)),
    ?assertEqual(ok, test_await:answer(Ref)).

force_through_others([A, _B, C]) ->
    Holder = worker(A),
    ok = test_quorum_cluster:isolate(C, [A]),
    {ok, _} = lock(Holder, x, ?LONG_MS),
    ?assertEqual(ok, force(C, x)),
    ?assertEqual([{lost, x}], messages_until_lost(Holder, x)),
    ?assertNot(held(Holder, x)).

force(Node, Name) ->
    call(Node, fun() -> canal_lock_quorum:force_unlock(Name) end).

holder(Node, Name) ->
    call(Node, fun() -> canal_lock_quorum:holder(Name) end).
