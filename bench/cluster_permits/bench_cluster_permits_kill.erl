%% The node of the allocator is killed while all nodes use permits. Measures how long it takes until permits of a living
%% node move to another one, and until those of the dead node are used again; the longest call of a process that finds a
%% free permit, beside that in the same time before; and how many permits the living nodes held at once, at most.
-module(bench_cluster_permits_kill).

-export([measure/1, targets/0]).

-define(NODES, 4).
-define(LIMIT, 20).
-define(MOVED, 10).
%% After the lease.
-define(MORE_MS, 3000).
-define(WARM_UP_MS, 1000).
%% The kill comes this long after the load has begun.
-define(BEFORE_MS, 500).
-define(VARIANT, "limit 20, 10 callers per node, 1 ms").

-spec measure(bench:mode()) -> bench_results:results().
measure(#{kill_rounds := Rounds, lease_ms := Lease_ms}) ->
    bench_rounds:play(Rounds, [[fun() -> sample(Lease_ms) end]]).

sample(Lease_ms) ->
    Nodes = bench_cluster_permits_nodes:start(?NODES, Lease_ms),
    {Allocator, [B, C, _] = Others} = bench_cluster_permits_nodes:allocator(Nodes),
    Window_ms = Lease_ms + ?MORE_MS,
    [Dead, Giver, Free, Wanter, Heir] = [test_nodes:worker(Node) || Node <- [Allocator, B, B, C, C]],
    %% Without the kill.
    Calm_ns = test_nodes:order(Free, fun() -> longest_pair(Window_ms) end),
    {acquired, 1} = test_nodes:order(Dead, fun() -> canal_lock_cluster:acquire(of_the_dead, 1, 1, infinity) end),
    {acquired, _} = test_nodes:order(Giver, fun() -> canal_lock_cluster:acquire(moved, ?MOVED, 1, all()) end),
    Work = #{calls => ours, key => load, limit => ?LIMIT, callers => 10, hold_ms => 1},
    Plan = #{
        starts_ns => bench_cluster_permits_load:starts_ns(), warm_up_ms => ?WARM_UP_MS,
        window_ms => ?BEFORE_MS + Window_ms
    },
    Loads = [test_nodes:send_order(test_nodes:worker(Node), fun() -> bench_cluster_permits_load:run(Work, Plan) end)
        || Node <- [Allocator | Others]],
    timer:sleep(500 + ?WARM_UP_MS + ?BEFORE_MS),
    %% The share stays on the node.
    ok = test_nodes:order(Giver, fun() -> canal_lock_cluster:release(moved, #{permits => ?MOVED}) end),
    Killed_ns = os:perf_counter(nanosecond),
    ok = test_nodes:kill(Allocator),
    Longest = test_nodes:send_order(Free, fun() -> longest_pair(Window_ms) end),
    Acquired = fun(Key, Limit, Options) ->
        fun() -> {acquired, _} = canal_lock_cluster:acquire(Key, Limit, 1, Options), os:perf_counter(nanosecond) end
    end,
    Moved = test_nodes:send_order(Wanter, Acquired(moved, ?MOVED, all())),
    Freed = test_nodes:send_order(Heir, Acquired(of_the_dead, 1, infinity)),
    [none | Done] = [test_await:answer(Load) || Load <- Loads],
    #{most := Most, use := Use} = bench_cluster_permits_load:judge(Work, Plan, Done),
    Values = [
        {moves_again, test_await:answer(Moved) - Killed_ns},
        {permits_of_the_dead, test_await:answer(Freed) - Killed_ns},
        {longest_call, test_await:answer(Longest)},
        {longest_call_before, Calm_ns},
        {most, Most},
        {use, Use}
    ],
    ok = bench_cluster_permits_nodes:stop(Others),
    [{{kill, ?VARIANT, ?NODES, ours, Measure}, Value} || {Measure, Value} <- Values].

all() ->
    #{permits => ?MOVED, timeout_ms => infinity}.

%% A pair each millisecond. The permit is free and stays on this node.
longest_pair(Window_ms) ->
    {acquired, _} = canal_lock_cluster:acquire(free, 4, 1, infinity),
    Longest = longest_pair(os:perf_counter(nanosecond) + Window_ms * 1_000_000, 0),
    ok = canal_lock_cluster:release(free),
    Longest.

longest_pair(Ends, Longest) ->
    Asked = os:perf_counter(nanosecond),
    {acquired, _} = canal_lock_cluster:acquire(free, 4, 1, infinity),
    Got = os:perf_counter(nanosecond),
    ok = canal_lock_cluster:release(free),
    case Got >= Ends of
        true ->
            max(Longest, Got - Asked);
        false ->
            timer:sleep(1),
            longest_pair(Ends, max(Longest, Got - Asked))
    end.

%% For the leases of the mode `full'.
-spec targets() -> [bench:target()].
targets() ->
    [
        {{value, {kill, ?VARIANT, ?NODES, ours, Measure}}, Bound}
     || {Measure, Bound} <- [
            {moves_again, {at_most, 11.0e9}}, {permits_of_the_dead, {at_most, 11.0e9}},
            {longest_call, {at_most, 1.0e8}}, {longest_call_before, none}, {most, {at_most, ?LIMIT}}
        ]
    ].
