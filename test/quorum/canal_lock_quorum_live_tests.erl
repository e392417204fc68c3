%% Which names are locked in the whole cluster.
-module(canal_lock_quorum_live_tests).

-include_lib("eunit/include/eunit.hrl").

-import(test_nodes, [call/2, worker/1, order/2, name/1]).

%% What counts: answers of a quorum of one view, in time.
-define(ANSWERS, [
    {"a voter that is a quorum", [{a, 1, [x]}], {ok, [x]}},
    {"two of three", [none, {a, 2, [y]}, {a, 2, [x, y]}], {ok, [x, y]}},
    {"names of each answer", [{a, 3, [x]}, {a, 3, [y]}, none, none, {a, 3, [z]}], {ok, [x, y, z]}},
    {"one of three", [none, {a, 2, [x]}, none], {error, no_quorum}},
    {"two of four", [{a, 3, [x]}, {a, 3, [x]}, none, none], {error, no_quorum}},
    {"three of five, of two views", [{a, 3, []}, {b, 3, [x]}, {a, 3, [x]}, none, none], {error, no_quorum}},
    {"the first quorum, of two views", [{b, 3, [y]}, {a, 2, []}, {a, 2, [x]}, {b, 3, [y]}, {b, 3, [y]}], {ok, [x]}}
]).

answers_test_() ->
    {setup, fun canal_lock_quorum_nif:load/0, [
        {"Q15: " ++ Title, fun() -> ?assertEqual(Counted, answered(Answers, 60_000, 20)) end}
     || {Title, Answers, Counted} <- ?ANSWERS
    ] ++ [
        {"Q15: an answer that is read late does not count", fun late/0},
        {"Q15: a sixth of `wait', which is 15 % of the lease or 500 ms", fun within/0},
        {"Q15: a voter whose state file is not read does not vote", fun starting/0},
        {"names of node locks have one prefix", fun prefix/0}
    ]}.

one_node_test_() ->
    Start = fun() -> {ok, _} = canal_lock_quorum:start_link(#{members => [node()]}) end,
    {setup, Start, fun(_) -> canal_lock_quorum:stop() end, [
        {"Q15: a node without distribution", fun one_node/0},
        {"Q15: a voter that does not answer", fun silent/0}
    ]}.

%% The numbers of views begin again after a reset.
views_test_() ->
    Start = fun() -> {ok, _} = canal_lock_quorum:start_link(#{members => [node()], lease_ms => 1000}) end,
    {setup, Start, fun(_) -> canal_lock_quorum:stop() end, [
        {"Q15: voters of two clusters do not count together", fun reset/0}
    ]}.

cluster_test_() ->
    test_quorum_cluster:tests(3, [
        {"Q15: all node locks that are held, on each node, and not those that were unlocked", fun three_nodes/1},
        {"Q15: without a quorum of voters there is no answer, a voter in quarantine gives none", fun no_quorum/1},
        {"Q15: the lock of a node that died, until its lease ends", fun dead_node/1},
        {"Q15: voters of two views do not count together", fun changed/1}
    ]).

%% Sending this many questions takes longer than the first answer. Before it, the process that asks is suspended.
late() ->
    Asked = lists:duplicate(20_000, node()),
    Late = fun() -> as_voter(Asked, 50, fun(Asker) -> answer(Asker, [{a, 1, [x]}], 51) end) end,
    %% A process of its own gets the other questions.
    Voter = spawn_monitor(fun() -> exit(Late()) end),
    ?assertEqual({error, no_quorum}, test_await:reason(Voter)).

answered(Answers, Within_ms, Suspended_ms) ->
    Asked = [node() || _ <- Answers],
    as_voter(Asked, Within_ms, fun(Asker) -> answer(Asker, Answers, Suspended_ms) end).

%% This process is the voter of all members.
as_voter(Asked, Within_ms, Answer) ->
    true = register(canal_lock_quorum_voter, self()),
    {Pid, _} = Asker = spawn_monitor(canal_lock_quorum_live, ask, [<<"prefix">>, Asked, Within_ms]),
    Answer(Pid),
    {names, Counted} = test_await:reason(Asker),
    true = unregister(canal_lock_quorum_voter),
    Counted.

%% The process that asks is suspended for this time when it is answered.
answer(Asker, Answers, Suspended_ms) ->
    Callers = [receive {'$gen_call', From, {names, <<"prefix">>}} -> From end || _ <- Answers],
    true = erlang:suspend_process(Asker),
    [gen_server:reply(From, encoded(Answer)) || {From, Answer} <- lists:zip(Callers, Answers)],
    timer:sleep(Suspended_ms),
    true = erlang:resume_process(Asker).

encoded(none) -> none;
encoded({View, Quorum, Names}) -> {View, Quorum, [encode(Name) || Name <- Names]}.

within() ->
    Within = [{1000, 83}, {3000, 83}, {10_000, 250}, {100_000, 2500}],
    [?assertEqual(Within_ms, canal_lock_quorum_nif:answers_ms(Lease_ms)) || {Lease_ms, Within_ms} <- Within].

starting() ->
    {ok, State, _} = canal_lock_quorum_voter:init(#{}),
    Ref = make_ref(),
    {noreply, State} = canal_lock_quorum_voter:handle_call({names, <<>>}, {self(), Ref}, State),
    ?assertEqual(none, test_await:answer(Ref)).

prefix() ->
    Prefix = canal_lock_quorum_names:prefix(node),
    Size = byte_size(Prefix),
    Has = fun(Name) -> binary:longest_common_prefix([encode(Name), Prefix]) =:= Size end,
    Long = list_to_atom(lists:duplicate(255, $é)),
    Nodes = [{canal_lock_cluster, node, Node} || Node <- ['', nonode@nohost, Long]],
    Others = [
        {canal_lock_cluster, allocator},
        {canal_lock_cluster, nodf, a@b},
        {canal_lock_cluster, node, a@b, 1},
        {canal_lock_clusters, node, a@b},
        [canal_lock_cluster, node, a@b]
    ],
    ?assertEqual({Nodes, Others}, lists:partition(Has, Nodes ++ Others)),
    [?assertEqual(encode(Name), canal_lock_quorum_names:encode_reserved(Name)) || Name <- Nodes].

encode(Name) ->
    term_to_binary(Name, [{minor_version, 2}]).

%% The lease is ten seconds.
silent() ->
    test_await:value({ok, []}, fun names/0),
    ok = sys:suspend(canal_lock_quorum_voter),
    {Time_us, Answer} = timer:tc(fun names/0),
    ok = sys:resume(canal_lock_quorum_voter),
    ?assertEqual({error, no_quorum}, Answer),
    ?assert(Time_us >= 240_000),
    ?assert(Time_us < 5_000_000).

reset() ->
    {View, 1, []} = answer_of_voter(),
    {ok, 0} = canal_lock_quorum:reset_members([node()]),
    {Other, 1, []} = answer_of_voter(),
    ?assertNotEqual(View, Other).

answer_of_voter() ->
    test_await:value(true, fun() -> maps:get(voting, canal_lock_quorum_voter:state()) end),
    {reply, Answer} = gen_server:wait_response(canal_lock_quorum_voter:ask_names(node(), <<>>), infinity),
    Answer.

one_node() ->
    test_await:value({ok, []}, fun names/0),
    {ok, Lock} = lock({canal_lock_cluster, node, node()}),
    {ok, Other} = lock({canal_lock_cluster, allocator}),
    {ok, Plain} = canal_lock_quorum:lock({canal_lock_clusters, node, a}, 5000),
    ?assertEqual({ok, [{canal_lock_cluster, node, node()}]}, names()),
    [ok = canal_lock_quorum:unlock(Each) || Each <- [Lock, Other, Plain]],
    test_await:value({ok, []}, fun names/0).

three_nodes(Nodes) ->
    Workers = [worker(Node) || Node <- Nodes],
    Locked = lists:sort([{canal_lock_cluster, node, name(Node)} || Node <- Nodes]),
    [{ok, _} = order(Worker, locking(Name)) || {Worker, Name} <- lists:zip(Workers, Locked)],
    [?assertEqual({ok, Locked}, call(Node, fun names/0)) || Node <- Nodes],
    [First | _] = Workers,
    ok = order(First, fun() -> canal_lock_quorum:unlock(get(lock)) end),
    [test_await:value({ok, tl(Locked)}, fun() -> call(Node, fun names/0) end) || Node <- Nodes],
    [order(Worker, fun() -> canal_lock_quorum:unlock(get(lock)) end) || Worker <- tl(Workers)].

no_quorum(Nodes = [A, B, C]) ->
    {ok, _} = order(worker(A), locking({canal_lock_cluster, node, name(A)})),
    test_quorum_cluster:isolate(C, [A, B]),
    ?assertEqual({error, no_quorum}, call(C, fun names/0)),
    ?assertMatch({ok, [_]}, call(A, fun names/0)),
    %% Of the two voters that A can ask, one does not vote.
    call(B, fun() -> test_quorum_cluster:kill_process(canal_lock_quorum_voter) end),
    Voter = fun() -> maps:get(voting, canal_lock_quorum_voter:state()) end,
    Answer = call(A, fun names/0),
    ?assertEqual({error, no_quorum}, case call(B, Voter) of true -> skipped; false -> Answer end),
    test_quorum_cluster:heal(Nodes),
    test_await:value({ok, [{canal_lock_cluster, node, name(A)}]}, fun() -> call(C, fun names/0) end).

dead_node([A, B, C]) ->
    Name = {canal_lock_cluster, node, name(C)},
    {ok, _} = order(worker(C), locking(Name)),
    ?assertEqual({ok, [Name]}, call(A, fun names/0)),
    ok = call(C, fun test_quorum_cluster:kill_supervisor/0),
    ?assertEqual({ok, [Name]}, call(B, fun names/0)),
    test_await:value({ok, []}, fun() -> call(A, fun names/0) end).

changed(Nodes = [A, B, _]) ->
    {View, 2, []} = call(A, fun answer_of_voter/0),
    ?assertMatch([{View, 2, []}, {View, 2, []}], [call(Node, fun answer_of_voter/0) || Node <- tl(Nodes)]),
    {ok, 1} = call(A, fun() -> canal_lock_quorum:change_members([name(A), name(B)]) end),
    {Other, 2, []} = call(A, fun answer_of_voter/0),
    ?assertNotEqual(View, Other).

names() ->
    canal_lock_quorum_live:names(canal_lock_quorum_names:prefix(node)).

locking(Name) ->
    fun() ->
        {ok, Lock} = lock(Name),
        put(lock, Lock),
        {ok, Lock}
    end.

lock(Name) ->
    canal_lock_quorum_agent:lock(write, [Name], [canal_lock_quorum_names:encode_reserved(Name)], 5000).
