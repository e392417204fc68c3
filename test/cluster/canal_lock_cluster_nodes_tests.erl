%% Cluster permits on three nodes: what each of them gets, and how soon. (canal_lock_cluster_faults_tests checks what
%% they have at the same time.)
-module(canal_lock_cluster_nodes_tests).

-include_lib("eunit/include/eunit.hrl").

-import(test_nodes, [call/2, worker/1, order/2, send_order/2, name/1]).

-define(LONG_MS, 20_000).

%% The lease and 1 s (CP5), and 1 s for a busy machine.
-define(MOVES_MS, 3000).

%% A message that was refused until then is not in the buffer of the connection.
-define(REFUSED_MS, 100).

cluster_test_() ->
    test_nodes:tests(3, [], [
        {Title, fun(Nodes) -> on(Nodes, Test) end}
     || {Title, Test} <- [
            {"CP1: all nodes share one limit", fun one_limit/1},
            {"CP3, CP4: what one node releases, another one gets", fun moves/1},
            {"CP4: a mutex goes round, and one node gets all permits", fun turns/1},
            {"CP3: the permits of a node that stops are free at once", fun stops/1},
            {"CP3, CP5: the same if it is the allocator", fun allocator_stops/1},
            {"CP3: the permits of a node that hangs are free after the lease", fun hangs/1},
            {"CP4: what a busy connection refuses to the allocator is sent again", fun to_allocator/1},
            {"CP4: what a busy connection refuses to a node is sent again", fun to_node/1},
            {"CP5: a node that does not reach the allocator keeps its shares", fun no_allocator/1},
            {"CP5: an allocator that does not reach a living node gives up", fun not_learned/1},
            {"CP6: a node that is cut off grants nothing, and its holders are notified", fun cut_off/1}
        ]
    ]).

killed_test_() ->
    [
        {timeout, test_setup:timeout_s(), {Title, fun() -> test_stalls:again(fun() -> on_new_nodes(Test) end) end}}
     || {Title, Test} <- [
            {"CP5: when the allocator is killed, shares stay, and move again", fun no_master/1},
            {"a client does not become the allocator", fun client/1},
            {"a limit that only a dead node has passed is replaced", fun limits/1}
        ]
    ].

on_new_nodes(Test) ->
    Nodes = [test_nodes:start() || _ <- [1, 2, 3]],
    try
        Test(Nodes)
    after
        [test_nodes:stop(Node) || Node <- Nodes]
    end.

on(Nodes, Test) ->
    test_quorum_cluster:on(Nodes, fun(_, All) -> test_quorum_cluster:options(All) end, fun(_) ->
        [start(Node) || Node <- Nodes],
        try
            Test(Nodes)
        after
            [ok = call(Node, fun stop/0) || Node <- Nodes, test_nodes:is_alive(Node)]
        end
    end).

start_all(Nodes) ->
    ok = test_quorum_cluster:start_all([{Node, test_quorum_cluster:options(Nodes)} || Node <- Nodes]),
    lists:foreach(fun start/1, Nodes).

start(Node) ->
    call(Node, fun() ->
        process_flag(trap_exit, true),
        {ok, Table} = canal_lock:start_link(),
        {ok, Permits} = canal_lock_cluster:start_link(#{members => [node()]}),
        [unlink(Pid) || Pid <- [Table, Permits]],
        await_session()
    end).

await_session() ->
    test_await:value(true, fun() -> canal_lock_cluster:session() =/= none end).

stop() ->
    _ = [canal_lock_cluster:stop() || whereis(canal_lock_cluster) =/= undefined],
    canal_lock:stop().

acquire(Worker, Limit, Permits) ->
    order(Worker, fun() -> canal_lock_cluster:acquire(db, Limit, #{permits => Permits, timeout_ms => ?LONG_MS}) end).

release(Worker, Permits) ->
    order(Worker, fun() -> canal_lock_cluster:release(db, #{permits => Permits}) end).

%% The node of the allocator first.
allocator_first(Nodes = [Node | _]) ->
    #{allocator := Name} = call(Node, fun canal_lock_cluster:status/0),
    {[Allocator], Others} = lists:partition(fun(Each) -> name(Each) =:= Name end, Nodes),
    [Allocator | Others].

one_limit(Nodes) ->
    Workers = [worker(Node) || Node <- Nodes],
    [{acquired, 2} = acquire(Worker, 7, 2) || Worker <- Workers],
    {acquired, 3} = acquire(hd(Workers), 7, 1),
    Refused = fun() -> canal_lock_cluster:acquire(db, 7) end,
    [?assertEqual(full, order(Worker, Refused)) || Worker <- Workers],
    {ok, #{limit := 7, in_use := 7, silent := []}} = call(hd(Nodes), fun() -> canal_lock_cluster:usage(db) end).

moves([A, B, C]) ->
    [One, Other, Third] = [worker(Node) || Node <- [A, B, C]],
    {acquired, 5} = acquire(One, 5, 5),
    Wait = #{permits => 3, timeout_ms => ?LONG_MS},
    Ref = send_order(Other, fun() -> canal_lock_cluster:acquire(db, 5, Wait) end),
    ok = release(One, 4),
    ?assertEqual({acquired, 3}, test_await:answer(Ref)),
    ?assertEqual({acquired, 1}, acquire(Third, 5, 1)),
    ok = test_nodes:kill_worker(One),
    ?assertEqual({acquired, 2}, acquire(Third, 5, 1)).

turns(Nodes) ->
    Rounds = fun(Limit, Permits) ->
        Options = #{permits => Permits, timeout_ms => ?LONG_MS},
        Use = fun() ->
            [
                begin
                    {acquired, _} = canal_lock_cluster:acquire(db, Limit, Options),
                    ok = canal_lock_cluster:release(db, #{permits => Permits})
                end
             || _ <- lists:seq(1, 20)
            ]
        end,
        Refs = [send_order(worker(Node), Use) || Node <- Nodes, _ <- [1, 2]],
        [20 = length(test_await:answer(Ref)) || Ref <- Refs]
    end,
    Rounds(1, 1),
    Rounds(3, 3).

stops(Nodes) ->
    [_, Other, Third] = allocator_first(Nodes),
    stops(Other, Third).

allocator_stops(Nodes) ->
    [First, _, Third] = allocator_first(Nodes),
    stops(First, Third).

stops(Stopped, Other) ->
    {One, Two} = {worker(Stopped), worker(Other)},
    {acquired, 3} = acquire(One, 3, 3),
    ok = call(Stopped, fun canal_lock_cluster:stop/0),
    Began = erlang:monotonic_time(millisecond),
    ?assertEqual({acquired, 3}, acquire(Two, 3, 3)),
    ?assert(erlang:monotonic_time(millisecond) - Began < test_quorum_cluster:lease_ms() * 4 div 5),
    ?assertEqual({canal_lock_cluster, lost, db}, order(One, fun() -> receive Message -> Message end end)).

hangs(Nodes) ->
    [_, Other, Third] = allocator_first(Nodes),
    {One, Two} = {worker(Other), worker(Third)},
    {acquired, 3} = acquire(One, 3, 3),
    Suspension = test_nodes:suspend(Other),
    try
        ?assertEqual({acquired, 3}, acquire(Two, 3, 3))
    after
        test_nodes:resume(Suspension)
    end,
    ?assertEqual({canal_lock_cluster, lost, db}, order(One, fun() -> receive Message -> Message end end)),
    ok = call(Other, fun await_session/0).

%% Node `Other' gives a permit back while the allocator does not read.
to_allocator(Nodes) ->
    [First, Other, Third] = allocator_first(Nodes),
    moves_after_refusal(Other, First, Third).

%% The allocator gives a permit to `Other' while that does not read.
to_node(Nodes) ->
    [First, Other, _] = allocator_first(Nodes),
    moves_after_refusal(First, Other, Other).

moves_after_refusal(From, To, Waiter) ->
    Holder = worker(From),
    {acquired, 1} = acquire(Holder, 1, 1),
    Ref = send_wait(worker(Waiter)),
    ok = while_busy(From, To, fun() -> ok = release(Holder, 1) end),
    ?assertEqual({acquired, 1}, test_await:answer(Ref)).

%% Returns when the request has reached the allocator.
send_wait({Node, _} = Worker) ->
    Ref = send_order(Worker, fun() -> canal_lock_cluster:acquire(db, 1, 1, ?LONG_MS) end),
    Waiting = fun() -> {ok, #{waiting := Count}} = canal_lock_cluster:usage(db), Count end,
    ok = call(Node, fun() -> test_await:value(1, Waiting) end),
    Ref.

%% The function runs while the connection refuses messages, for less than a lease.
while_busy(From, To, Fun) ->
    Suspension = test_nodes:suspend(To),
    try
        Name = name(To),
        ok = call(From, fun() -> fill(Name) end),
        Fun(),
        timer:sleep(?REFUSED_MS)
    after
        test_nodes:resume(Suspension)
    end.

fill(Name) ->
    case erlang:send({nobody, Name}, binary:copy(<<0>>, 1_000_000), [nosuspend, noconnect]) of
        ok -> fill(Name);
        nosuspend -> ok
    end.

no_master(Nodes) ->
    ok = start_all(Nodes),
    [First, Other, Third] = allocator_first(Nodes),
    {One, Two} = {worker(Other), worker(Third)},
    {acquired, 2} = acquire(One, 3, 2),
    {acquired, 1} = acquire(Two, 3, 1),
    ok = release(One, 2),
    ok = test_nodes:kill(First),
    Began = erlang:monotonic_time(millisecond),
    Local = fun() -> {canal_lock_cluster:acquire(db, 3, 1, 0), canal_lock_cluster:release(db)} end,
    [?assertEqual({{acquired, 1}, ok}, order(One, Local)) || _ <- lists:seq(1, 100)],
    ?assertEqual({acquired, 3}, acquire(Two, 3, 2)),
    ?assert(erlang:monotonic_time(millisecond) - Began < ?MOVES_MS).

no_allocator(Nodes) ->
    [First, Other, Third] = allocator_first(Nodes),
    {One, Two} = {worker(Other), worker(Third)},
    {acquired, 2} = acquire(One, 3, 2),
    Session = order(One, fun canal_lock_cluster:session/0),
    ok = test_quorum_cluster:isolate(Other, [First]),
    Allocator = fun() -> maps:get(allocator, canal_lock_cluster:status()) end,
    ok = call(Other, fun() -> test_await:value(none, Allocator) end),
    ok = release(One, 1),
    AtOnce = fun() -> canal_lock_cluster:acquire(db, 3, 1, 0) end,
    ?assertEqual([{acquired, 2}, full], [order(One, AtOnce) || _ <- [1, 2]]),
    ?assertEqual({acquired, 1}, acquire(Two, 3, 1)),
    ok = test_quorum_cluster:heal(Nodes),
    ok = release(One, 2),
    ?assertEqual({acquired, 3}, acquire(Two, 3, 2)),
    ?assertEqual(Session, order(One, fun canal_lock_cluster:session/0)).

%% Only the first node reaches both others.
not_learned(Nodes) ->
    [First, Other, Third] = allocator_first(Nodes),
    ok = test_quorum_cluster:isolate(Other, [Third]),
    Kill = fun() -> test_quorum_cluster:kill_process(canal_lock_cluster_allocator) end,
    %% Until another node is the allocator.
    test_await:value(false, fun() ->
        ok = call(First, Kill),
        call(First, fun() -> test_await:value(true, fun() -> is_list(waits_for()) end) end),
        #{allocator := Name} = call(First, fun canal_lock_cluster:status/0),
        Name =:= name(First)
    end),
    ?assertEqual({acquired, 1}, acquire(worker(First), 3, 1)),
    ok = test_quorum_cluster:heal(Nodes).

waits_for() ->
    #{waits_for := Nodes} = canal_lock_cluster:status(),
    Nodes.

cut_off(Nodes) ->
    [First, Other, Third] = allocator_first(Nodes),
    {One, Two} = {worker(Other), worker(Third)},
    {acquired, 3} = acquire(One, 3, 3),
    Session = order(One, fun canal_lock_cluster:session/0),
    ok = test_quorum_cluster:isolate(Other, [First, Third]),
    Ended = fun() ->
        receive {canal_lock_cluster, lost, db} -> ok end,
        {canal_lock_quorum:is_held(Session), canal_lock_cluster:release(db, #{permits => 3}),
            canal_lock_cluster:acquire(db, 3), canal_lock_cluster:session()}
    end,
    ?assertEqual({false, ok, {error, no_quorum}, none}, order(One, Ended)),
    ?assertEqual({acquired, 3}, acquire(Two, 3, 3)),
    ok = test_quorum_cluster:heal(Nodes),
    ok = call(Other, fun await_session/0),
    ok = release(Two, 2),
    ?assertEqual({acquired, 2}, acquire(One, 3, 2)).

client([Member | Clients]) ->
    ok = test_quorum_cluster:start_all([{Member, (test_quorum_cluster:options([Member]))#{clients := all}}]),
    test_nodes:introduce([Member | Clients]),
    [test_quorum_cluster:start(Client, test_quorum_cluster:client_options([Member])) || Client <- Clients],
    [start(Node) || Node <- [Member | Clients]],
    Terms = [
        begin
            #{term := Term} = call(Member, fun canal_lock_cluster:status/0),
            ok = call(Member, fun() -> test_quorum_cluster:kill_process(canal_lock_cluster_allocator) end),
            IsNext = fun() -> maps:get(term, canal_lock_cluster:status()) > Term end,
            [ok = call(Node, fun() -> test_await:value(true, IsNext) end) || Node <- [Member | Clients]],
            Name = name(Member),
            [#{allocator := Name} = call(Node, fun canal_lock_cluster:status/0) || Node <- Clients],
            Term
        end
     || _ <- lists:seq(1, 5)
    ],
    ?assertEqual(lists:usort(Terms), Terms).

limits(Nodes) ->
    ok = start_all(Nodes),
    [_, Other, Third] = allocator_first(Nodes),
    {One, Two} = {worker(Other), worker(Third)},
    {acquired, 1} = acquire(One, 5, 1),
    {acquired, 1} = acquire(Two, 2, 1),
    Full = fun() -> canal_lock_cluster:acquire(db, 5) end,
    ?assertEqual(full, order(One, Full)),
    ok = test_nodes:kill(Third),
    ?assertEqual({acquired, 5}, acquire(One, 5, 4)).
