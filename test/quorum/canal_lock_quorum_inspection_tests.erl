%% Calls about one name: its holders, its waiters, and the answers of its revocation.
-module(canal_lock_quorum_inspection_tests).

-include_lib("eunit/include/eunit.hrl").

-import(test_nodes, [call/2, worker/1, send_order/2]).
-import(test_quorum_cluster, [members/1, await_status/3]).
-import(test_quorum_cluster, [lock/3, rlock/3, held/2, unlock/2, try_unlock/2, messages/1]).

-define(LONG_MS, 60_000).

cluster_test_() ->
    test_quorum_cluster:tests(3, [
        {"holder/1 returns the writer of a name, with the same values on all nodes", fun writer/1},
        {"holder/1 returns all readers of a name", fun readers/1},
        {"holder/1 returns a lock for each of its names, and for no other name", fun of_each_name/1},
        {"holder/1 returns nothing after any end of a lock", fun ends/1},
        {"waiting/1 returns the waiters of a name on all nodes", fun waiters/1},
        {"holder/1 and waiting/1 return the members that do not answer", fun silent/1},
        {"force_unlock/1 answers when readers on all nodes have lost their locks", fun force_readers/1},
        {"after force_unlock/1 the next request gets the name", fun force_waiting/1},
        {"force_unlock/1 answers timeout after the lease if the node of a holder does not confirm", fun unconfirmed/1},
        {"force_unlock/1 answers timeout after the lease if a member that may hold the name does not answer",
            fun may_hold/1},
        {"force_unlock/1 does not wait for other members if it finds the writer", fun writer_is_alone/1}
    ]).

%% With leases that do not expire during the test.
long_leases_test_() ->
    Options = fun(_, Nodes) ->
        Options = #{rules := Rules} = test_quorum_cluster:options(Nodes),
        Long = #{holder_lease_ms => 60_000, at_risk_ms => 30_000, voter_lease_ms => 70_000, quarantine_ms => 70_000},
        Options#{rules := maps:merge(Rules, Long)}
    end,
    test_quorum_cluster:tests(3, [], Options, [
        {"force_unlock/1 answers when a member that did not answer is back", fun answers_later/1},
        {"force_unlock/1 waits for the lock of a member that did not answer at first", fun holds_and_answers_later/1}
    ]).

two_nodes_test_() ->
    test_quorum_cluster:tests(2, [
        {"force_unlock/1 answers when the writer has lost its lock", fun force_writer/1},
        {"force_unlock/1 says that a name is not held", fun not_held/1}
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
        fun(Holder) -> try_unlock(Holder, x) end,
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
        ?assertEqual({ok, ended}, force(From, x)),
        ?assertNot(held(Holder, x)),
        ?assertEqual([{lost, x}], messages(Holder)),
        ?assertEqual({error, not_held}, unlock(Holder, x)),
        ?assertEqual({ok, not_held}, force(From, x))
    end, [A, B]).

not_held([A, B]) ->
    Holder = worker(A),
    {ok, _} = lock(Holder, x, ?LONG_MS),
    ?assertEqual({ok, not_held}, force(B, y)),
    ok = unlock(Holder, x),
    ?assertEqual({ok, not_held}, force(B, x)).

force_readers([A, B, C]) ->
    Readers = [worker(Node) || Node <- [A, A, B, C]],
    [{ok, _} = rlock(Reader, x, ?LONG_MS) || Reader <- Readers],
    ?assertEqual({ok, ended}, force(C, x)),
    ?assertEqual([false], lists:usort([held(Reader, x) || Reader <- Readers])),
    ?assertEqual([[{lost, x}]], lists:usort([messages(Reader) || Reader <- Readers])).

force_waiting([A, B, C]) ->
    {Holder, Next} = {worker(A), worker(B)},
    {ok, _} = lock(Holder, x, ?LONG_MS),
    Ref = send_order(Next, fun() -> element(1, canal_lock_quorum:lock(x, ?LONG_MS)) end),
    await_status(B, waiting, 1),
    ?assertEqual({ok, ended}, force(C, x)),
    ?assertNot(held(Holder, x)),
    ?assertEqual(ok, test_await:answer(Ref)).

%% The agent that does not read its messages cannot end the lock.
unconfirmed([A, B, _C]) ->
    Holder = worker(A),
    {ok, _} = lock(Holder, x, ?LONG_MS),
    ok = call(A, fun() -> sys:suspend(canal_lock_quorum_agent) end),
    [{Id, write, _}] = of_table(A, ids, [x]),
    ?assertEqual({error, timeout}, after_the_lease(fun() -> force(B, x) end)),
    ?assertNot(held(Holder, x)),
    %% The lock has expired, but its holder has not been notified.
    ?assertEqual([], of_table(A, ids, [x])),
    ?assert(of_table(A, any, [[unknown, Id]])),
    ok = call(A, fun() -> sys:resume(canal_lock_quorum_agent) end).

of_table(Node, Function, Arguments) ->
    call(Node, fun() -> apply(canal_lock_quorum_held, Function, Arguments) end).

may_hold([A, B, C]) ->
    Reader = worker(A),
    {ok, _} = rlock(Reader, x, ?LONG_MS),
    ok = test_quorum_cluster:stop(C),
    ?assertEqual({error, timeout}, after_the_lease(fun() -> force(B, free) end)),
    ?assert(held(Reader, x)),
    ?assertEqual({error, timeout}, after_the_lease(fun() -> force(B, x) end)),
    ?assertNot(held(Reader, x)).

after_the_lease(Force) ->
    #{voter_lease_ms := Lease_ms} = test_quorum_cluster:rules(),
    {Took_us, Answer} = timer:tc(Force),
    ?assert(Took_us >= 1000 * Lease_ms),
    Answer.

writer_is_alone([A, B, C]) ->
    Holder = worker(A),
    {ok, _} = lock(Holder, x, ?LONG_MS),
    ok = test_quorum_cluster:stop(C),
    ?assertEqual({ok, ended}, force(B, x)),
    ?assertNot(held(Holder, x)).

%% Node C has no connection to the holder's node at first. Node B passes the revocation on. The next lock of the name is
%% another one.
answers_later([A, _B, C] = Nodes) ->
    Holder = worker(A),
    ok = test_quorum_cluster:isolate(C, [A]),
    {ok, _} = lock(Holder, x, ?LONG_MS),
    Ref = send_order(worker(C), fun() -> canal_lock_quorum:force_unlock(x) end),
    ?assertEqual([{lost, x}], test_quorum_cluster:messages_until_lost(Holder, x)),
    Next = worker(A),
    {ok, _} = lock(Next, x, ?LONG_MS),
    ok = test_quorum_cluster:heal(Nodes),
    ?assertEqual({ok, ended}, test_await:answer(Ref)),
    ?assert(held(Next, x)).

%% The suspended agent of node A cannot end the lock.
holds_and_answers_later([A, _B, C] = Nodes) ->
    Holder = worker(A),
    {ok, _} = lock(Holder, x, ?LONG_MS),
    ok = test_quorum_cluster:isolate(C, [A]),
    Any = {canal_lock_quorum_held, any, 1},
    ok = call(A, fun() -> 1 = erlang:trace_pattern(Any, true, [call_count]), sys:suspend(canal_lock_quorum_agent) end),
    Ref = send_order(worker(C), fun() -> canal_lock_quorum:force_unlock(x) end),
    test_nodes:introduce(Nodes),
    Asks = fun() -> erlang:trace_info(Any, call_count) =/= {call_count, 0} end,
    ok = call(A, fun() -> test_await:value(true, Asks), sys:resume(canal_lock_quorum_agent) end),
    ?assertEqual({ok, ended}, test_await:answer(Ref)),
    ?assertNot(held(Holder, x)),
    ok = call(A, fun() -> 1 = erlang:trace_pattern(Any, false, [call_count]), ok end).

force(Node, Name) ->
    call(Node, fun() -> canal_lock_quorum:force_unlock(Name) end).

holder(Node, Name) ->
    call(Node, fun() -> canal_lock_quorum:holder(Name) end).
