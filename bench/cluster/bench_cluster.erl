%% The program `cluster': the quorum locks beside OTP's `global' on the same nodes, or beside another build. Each build
%% has nodes of its own, which idle while those of the others lock.
%%
%% The nodes that lock run loops from the same moment (bench_cluster_load). In each round the subjects take turns.
%%   cluster   members of which all lock (`alone': only one of them); X is their number
%%   clients   five members and X clients; either the members lock or the clients
%%   changes   changes of X members (bench_cluster_changes)
-module(bench_cluster).

-export([program/1]).

%% For each four nodes: a sample starts this much later, so that all nodes receive the order before.
-define(LEAD_NS, 100_000_000).
-define(ALONE, "own names, one loop in the cluster").
-define(OWN_1, "own names, 1 loop per node").
-define(OWN, "own names, 5 loops per node").
-define(OWN_50, "own names, 50 loops per node").
%% Nine of ten locks are read locks.
-define(READERS, "readers of ten names, 5 loops per node").
-define(ONE, "one name, 5 loops per node").

-spec program(ModeName :: string()) -> bench:program().
program(ModeName) ->
    Mode = #{shapes := Shapes, changes_lease_ms := Lease_ms} = mode(ModeName),
    #{
        mode => Mode,
        groups => [{title(Shape), fun(_) -> measure(Shape, Mode) end} || Shape <- Shapes] ++
            [{"changes of the members", fun(_) -> changes(Mode) end}],
        cases => [
            {cluster, "locks of clusters of X nodes"},
            {clients, "five members and X clients"},
            {changes, "changes of X members under load"}
        ],
        variants => [?ALONE, ?OWN_1, ?OWN, ?OWN_50, ?READERS, ?ONE | bench_cluster_changes:variants()],
        subjects => [ours, other, unlock, global],
        targets => lists:append([targets(Nodes) || {Nodes, 0} <- Shapes]) ++ bench_cluster_changes:targets(Lease_ms),
        facts => [{"nodes", lists:join(", ", [title(Shape) || Shape <- Shapes])}]
    }.

%% A waiter of `global' sleeps for up to eight seconds between its attempts: hence `one_ms'.
mode("full") ->
    #{
        shapes => [{4, 0}, {8, 0}, {16, 0}, {5, 3}, {5, 16}],
        rounds => case bench_builds:ours() of [ours] -> 3; [ours, other] -> 5 end,
        sample_ms => 2000,
        warm_up_ms => 500,
        one_rounds => 2,
        one_ms => 20_000,
        changes_rounds => 3,
        changes_lease_ms => 10_000
    };
mode("quick") ->
    #{
        shapes => [{4, 0}, {8, 0}, {5, 3}],
        rounds => 1,
        sample_ms => 300,
        warm_up_ms => 200,
        one_rounds => 1,
        one_ms => 2000,
        changes_rounds => 1,
        changes_lease_ms => 1000
    }.

title({Nodes, 0}) -> integer_to_list(Nodes) ++ " nodes";
title({Members, Clients}) -> lists:concat([Members, " members and ", Clients, " clients"]).

measure({Members, Clients} = Shape, Mode) ->
    Clusters = clusters(Members + Clients),
    _ = [
        ok = bench_cluster_nodes:start_quorum(OfMembers, OfClients, Options)
     || {_, Nodes, Options} <- Clusters, {OfMembers, OfClients} <- [lists:split(Members, Nodes)]
    ],
    Loads = [bench_rounds:play(Rounds, Groups) || {Rounds, Groups} <- loads(Shape, Clusters, Mode)],
    _ = [test_nodes:stop(Node) || {_, Nodes, _} <- Clusters, Node <- Nodes],
    lists:foldl(fun bench_results:merge/2, #{}, Loads).

changes(#{changes_rounds := Rounds} = Mode) ->
    bench_rounds:play(Rounds, [[fun() -> bench_cluster_changes:samples(Mode) end]]).

%% Another build is compared with this one, or `global' is.
clusters(Count) ->
    Cluster = fun(Subjects, Build, Options) -> {Subjects, bench_cluster_nodes:start(Count, Build), Options} end,
    case bench_builds:ours() of
        [ours] ->
            [Cluster([{ours, unlock_async}, {unlock, unlock}, {global, global}], ours, #{})];
        [ours, other] ->
            [
                Cluster([{ours, unlock_async}], ours, #{}),
                Cluster([{other, unlock_async}], other, #{})
            ]
    end.

loads({Members, 0}, Clusters, #{rounds := Rounds, sample_ms := Sample_ms} = Mode) ->
    #{one_rounds := OneRounds, one_ms := One_ms} = Mode,
    Own = #{names => own, loops => 5},
    Runs = fun(Variant, Work, Lockers, Window_ms) ->
        runs({cluster, Variant, Members}, {1, Lockers}, Work, Clusters, Mode#{window_ms => Window_ms})
    end,
    [
        {Rounds, [
            Runs(?ALONE, Own#{loops := 1}, 1, Sample_ms),
            Runs(?OWN_1, Own#{loops := 1}, Members, Sample_ms),
            Runs(?OWN, Own, Members, Sample_ms),
            Runs(?OWN_50, Own#{loops := 50}, Members, Sample_ms),
            Runs(?READERS, Own#{names := readers}, Members, Sample_ms)
        ]},
        {OneRounds, [Runs(?ONE, Own#{names := one}, Members, One_ms)]}
    ];
loads({Members, Clients}, Clusters, #{rounds := Rounds, sample_ms := Sample_ms} = Mode) ->
    [
        {Rounds, [
            lists:append([
                runs({clients, Variant, Clients}, Lockers, #{names => own, loops => 5}, Clusters, Mode#{
                    window_ms => Sample_ms
                })
             || {Variant, Lockers} <- [{"the members lock", {1, Members}}, {"the clients lock", {Members + 1, Clients}}]
            ])
        ]}
    ].

%% `Lockers': the first of the nodes that lock, and their number.
runs({Case, Variant, X}, {First, Count}, Work, Clusters, Mode) ->
    [
        fun() ->
            Values = sample(Nodes, lists:sublist(Nodes, First, Count), Work#{calls => Calls}, Mode),
            [{{Case, Variant, X, Subject, Measure}, Value} || {Measure, Value} <- Values]
        end
     || {Subjects, Nodes, _} <- Clusters, {Subject, Calls} <- Subjects
    ].

%% The values of all nodes together. Five members vote for each name, which are those of a cluster with clients.
sample(Nodes, Lockers, Work, #{warm_up_ms := WarmUp_ms, window_ms := Window_ms}) ->
    Plan = #{
        starts_ns => os:system_time(nanosecond) + ?LEAD_NS * max(4, length(Nodes)) div 4,
        warm_up_ms => WarmUp_ms,
        window_ms => Window_ms
    },
    Names = [test_nodes:name(Node) || Node <- Lockers],
    Done = test_nodes:call_all(Nodes, fun() ->
        case lists:member(node(), Names) of
            true -> bench_cluster_load:run(Work, Plan);
            false -> bench_cluster_load:run(Work#{loops := 0}, Plan)
        end
    end),
    ok = bench_cluster_nodes:await_quiet(Nodes),
    Waits = bench_times:all([Filled || #{waits := Filled} <- Done]),
    Ends = bench_times:all([Filled || #{ends := Filled} <- Done]),
    Cpu_ns = [Ns || #{cpu_ns := Ns} <- Done],
    Locks = bench_times:count(Waits),
    Locks > 0 orelse error(no_lock_in_a_sample),
    [
        {per_second, 1000 * Locks / Window_ms},
        {wait_p50, bench_times:percentile(50, Waits)},
        {wait_p99, bench_times:percentile(99, Waits)},
        {wait_longest, lists:max([Ns || #{longest_ns := Ns} <- Done])},
        {end_p50, bench_times:percentile(50, Ends)},
        {end_p99, bench_times:percentile(99, Ends)},
        {frames_per_lock, lists:sum([Frames || #{frames := Frames} <- Done]) / Locks}
        | [
            {Measure, Value}
         || not lists:member(unknown, Cpu_ns),
            Busiest <- [lists:max(lists:sublist(Cpu_ns, 5))],
            {Measure, Value} <- [
                {cpu_per_lock, lists:sum(Cpu_ns) / Locks},
                {busiest_member, Busiest / Window_ms / 1.0e6},
                {busiest_member_per_lock, Busiest / Locks}
            ]
        ]
    ].

targets(Nodes) ->
    Ratio = fun bench_results:ratio/3,
    lists:append([
        [
            {Ratio({cluster, Variant, Nodes, per_second}, ours, global), {at_least, 5}},
            {Ratio({cluster, Variant, Nodes, per_second}, unlock, global), none},
            {Ratio({cluster, Variant, Nodes, wait_p50}, ours, global), {at_most, 0.5}}
        ]
     || Variant <- [?OWN, ?READERS, ?ONE]
    ]) ++ [{{value, {cluster, ?ONE, Nodes, ours, wait_longest}}, {at_most, 1.0e9}}].
