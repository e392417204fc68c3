%% Nodes with cluster permits, for the benchmark.
-module(bench_cluster_permits_nodes).

-export([start/2, start_here/1, stop/1, allocator/1]).

-type a_node() :: test_nodes:a_node().

%% Connected nodes, all of them members. Returns when each of them has a session.
-spec start(Count :: pos_integer(), Lease_ms :: pos_integer()) -> [a_node()].
start(Count, Lease_ms) ->
    Nodes = bench_cluster_nodes:start(Count, ours),
    Options = #{members => test_quorum_cluster:members(Nodes), lease_ms => Lease_ms},
    _ = test_nodes:call_all(Nodes, fun() -> start_here(Options) end),
    Nodes.

%% The caller can end.
-spec start_here(canal_lock_quorum:options()) -> ok.
start_here(Options) ->
    {ok, _} = application:ensure_all_started(canal_lock),
    _ = spawn(fun() ->
        {ok, _} = canal_lock_cluster:start_link(Options),
        receive after infinity -> ok end
    end),
    test_await:value(true, fun() -> canal_lock_cluster:session() =/= none end).

-spec stop([a_node()]) -> ok.
stop(Nodes) ->
    lists:foreach(fun test_nodes:stop/1, Nodes).

%% The node of the allocator, and the others.
-spec allocator([a_node()]) -> {a_node(), [a_node()]}.
allocator([Any | _] = Nodes) ->
    #{allocator := Name} = test_nodes:call(Any, fun canal_lock_cluster:status/0),
    {[Allocator], Others} = lists:partition(fun(Node) -> test_nodes:name(Node) =:= Name end, Nodes),
    {Allocator, Others}.
