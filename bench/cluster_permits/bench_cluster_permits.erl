%% The program `permits-cluster': what cluster permits cost, and how well they use a limit, beside a semaphore in Redis
%% (bench_redis) and one in a process of `global' (bench_global_semaphore). It does not measure another build. The head
%% of each module says what it measures.
-module(bench_cluster_permits).

-export([program/1]).

-define(MANY, "limit 100, 50 callers per node, 1 ms").
-define(ONE, "limit 1, 5 callers per node, 1 ms").

-spec program(ModeName :: string()) -> bench:program().
program(ModeName) ->
    #{
        mode => mode(ModeName),
        groups => [
            {"loops of calls", fun bench_cluster_permits_pairs:measure/1},
            {"four nodes that wait", fun waiting/1},
            {"four nodes in overload", fun bench_cluster_permits_overload:measure/1},
            {"the allocator is killed", fun bench_cluster_permits_kill:measure/1},
            {"messages of the allocator", fun bench_cluster_permits_ledger:measure/1},
            {"keys that are used once", fun bench_cluster_permits_once:measure/1}
        ],
        cases => [
            {pair, "acquire + release of a free permit"},
            {refused, "calls that are refused, while another node holds the only permit"},
            {waiting, "X nodes, all callers wait"},
            {overload, "X nodes, ten times as many calls as permits, which do not wait"},
            {kill, "the node of the allocator is killed, one of X"},
            {ledger, "the state machine of the allocator, with X keys"},
            {once, "X keys, each used once"}
        ],
        variants => [?MANY, ?ONE],
        subjects => [ours, local, redis, global],
        targets => targets(),
        facts => []
    }.

mode("full") ->
    #{
        rounds => 21,
        sample_ms => 30,
        lease_ms => 10_000,
        load_rounds => 5,
        load => #{warm_up_ms => 1000, window_ms => 4000},
        kill_rounds => 3,
        ledger_keys => [1000, 100_000],
        once_keys => 1_000_000,
        once_after_ms => 30_000
    };
mode("quick") ->
    #{
        rounds => 3,
        sample_ms => 10,
        lease_ms => 2500,
        load_rounds => 1,
        load => #{warm_up_ms => 500, window_ms => 1000},
        kill_rounds => 1,
        ledger_keys => [1000],
        once_keys => 50_000,
        once_after_ms => 30_000
    }.

%% The subjects take turns on the same nodes.
waiting(#{load_rounds := Rounds, load := Load, lease_ms := Lease_ms}) ->
    Nodes = bench_cluster_permits_nodes:start(4, Lease_ms),
    Redis = bench_redis:start(),
    ok = test_nodes:call(hd(Nodes), fun bench_global_semaphore:start/0),
    _ = test_nodes:call_all(Nodes, fun global:sync/0),
    Run = fun(Variant, Work, {Subject, Calls}) ->
        fun() ->
            Of = Work#{calls => Calls},
            Plan = Load#{starts_ns => bench_cluster_permits_load:starts_ns()},
            Done = test_nodes:call_all(Nodes, fun() -> bench_cluster_permits_load:run(Of, Plan) end),
            Measures = bench_cluster_permits_load:judge(Of, Plan, Done),
            [{{waiting, Variant, 4, Subject, Measure}, Value} || {Measure, Value} <- maps:to_list(Measures)]
        end
    end,
    Results = bench_rounds:play(Rounds, [
        [Run(Variant, Work, Subject) || Subject <- [{ours, ours}, {redis, {redis, Redis}}, {global, global}]]
     || {Variant, Work} <- [
            {?MANY, #{key => many, limit => 100, callers => 50, hold_ms => 1}},
            {?ONE, #{key => one, limit => 1, callers => 5, hold_ms => 1}}
        ]
    ]),
    ok = bench_redis:stop(Redis),
    ok = bench_cluster_permits_nodes:stop(Nodes),
    Results.

targets() ->
    Ratio = fun bench_results:ratio/3,
    Pair = {pair, "one process", none, pair},
    Waiting = fun(Variant, Measure, Bound) -> {{value, {waiting, Variant, 4, ours, Measure}}, Bound} end,
    [
        {{value, {pair, "one process", none, ours, pair}}, {at_most, 300}},
        {Ratio(Pair, ours, local), {at_most, 4}},
        {Ratio(Pair, redis, ours), {at_least, 100}},
        {Ratio(Pair, global, ours), none},
        {{value, {refused, "one process", none, ours, full}}, {at_most, 1000}},
        Waiting(?MANY, use, {at_least, 90}),
        Waiting(?MANY, counted, none),
        Waiting(?MANY, most, {at_most, 100}),
        Waiting(?ONE, use, {at_least, 95}),
        Waiting(?ONE, counted, none),
        Waiting(?ONE, most, {at_most, 1}),
        Waiting(?ONE, wait_p99, {at_most, 1.0e8})
    ] ++ bench_cluster_permits_overload:targets() ++ bench_cluster_permits_kill:targets() ++
        bench_cluster_permits_ledger:targets() ++ bench_cluster_permits_once:targets().
