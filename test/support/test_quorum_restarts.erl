%% Quorum locks on clusters whose nodes a test suspends, kills and restarts (test_faulty_cluster, direct network). Each
%% node has a state file, as a server has.
-module(test_quorum_restarts).

-export([tests/2, restart/2, start_locks/2, stop_locks/2, worker/2, await_voting/1]).

-import(test_faulty_cluster, [file/3, node_at/2, nodes_of/1, indexes/1, indexes/2]).

-type cluster() :: test_faulty_cluster:cluster().
-type index() :: test_faulty_cluster:index().

%% For 16 nodes on few processors.
-define(ONE_SCHEDULER, ["+S", "1:1"]).

%% Each test begins when all nodes vote. After it all nodes run again, vote, and have no vote left: Q9. A test that
%% fails when the machine stalls runs again.
-spec tests(pos_integer(), [{Title :: string(), fun((cluster()) -> term())}]) -> term().
tests(Count, Tests) ->
    Start = fun() ->
        test_faulty_cluster:start(#{nodes => Count, network => direct, arguments => ?ONE_SCHEDULER})
    end,
    {setup, Start, fun test_faulty_cluster:stop/1, fun(Cluster) ->
        [
            {timeout, test_setup:timeout_s(), {Title, fun() -> test_stalls:again(fun() -> run(Test, Cluster) end) end}}
         || {Title, Test} <- Tests
        ]
    end}.

run(Test, Cluster) ->
    try
        start_locks(Cluster, indexes(Cluster)),
        await_voting(Cluster),
        Test(Cluster),
        revive(Cluster),
        Nodes = nodes_of(Cluster),
        [test_nodes:kill_workers(Node) || Node <- Nodes],
        test_quorum_cluster:await_voting(Nodes),
        test_quorum_cluster:await_empty(Nodes)
    after
        revive(Cluster),
        stop_locks(Cluster, indexes(Cluster))
    end.

revive(Cluster) ->
    test_faulty_cluster:resume(Cluster, indexes(Cluster, suspended)),
    test_faulty_cluster:introduce(Cluster),
    restart(Cluster, indexes(Cluster, dead)).

%% Starts dead nodes and their locks. When it returns they may not vote yet.
-spec restart(cluster(), index() | [index()]) -> ok.
restart(Cluster, Index) when is_integer(Index) ->
    restart(Cluster, [Index]);
restart(Cluster, Indexes) ->
    test_faulty_cluster:restart(Cluster, Indexes),
    start_locks(Cluster, Indexes).

-spec start_locks(cluster(), [index()]) -> ok.
start_locks(Cluster, Indexes) ->
    Start = fun(Index) -> test_quorum_cluster:start(node_at(Cluster, Index), options(Cluster, Index)) end,
    _ = test_await:in_parallel(Start, Indexes),
    ok.

options(Cluster, Index) ->
    Nodes = nodes_of(Cluster),
    Options = #{lease_ms := Lease_ms} = test_quorum_cluster:options(Nodes),
    %% On few processors, many nodes answer late.
    Longer_ms = case length(Nodes) > 8 of true -> 3 * Lease_ms; false -> Lease_ms end,
    Options#{lease_ms := Longer_ms, state_file => list_to_binary(file(Cluster, state, Index))}.

%% The voters of these nodes forget their votes within milliseconds. A restart of the nodes takes longer.
-spec stop_locks(cluster(), [index()]) -> ok.
stop_locks(Cluster, Indexes) ->
    _ = test_await:in_parallel(fun(Index) -> test_quorum_cluster:stop(node_at(Cluster, Index)) end, Indexes),
    ok.

-spec worker(cluster(), index()) -> test_nodes:worker().
worker(Cluster, Index) ->
    test_nodes:worker(node_at(Cluster, Index)).

-spec await_voting(cluster()) -> ok.
await_voting(Cluster) ->
    test_quorum_cluster:await_voting(nodes_of(Cluster)).
