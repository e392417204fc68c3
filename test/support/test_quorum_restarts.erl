%% Quorum locks on clusters whose nodes a test suspends, kills and restarts (test_faulty_cluster, sound network). Each
%% node has a file of fences, as a server has.
-module(test_quorum_restarts).

-export([tests/2, restart/2, start_locks/2, stop_locks/2, worker/2, await_voting/1]).

-import(test_faulty_cluster, [call/3, file/3, node_at/2, nodes_of/1, places/1, places/2]).

-type cluster() :: test_faulty_cluster:cluster().
-type place() :: test_faulty_cluster:place().

%% For 16 nodes on few processors.
-define(ONE_SCHEDULER, ["+S", "1:1"]).

-define(TIMEOUT_S, 120).

%% Each test begins when all nodes vote. After it all nodes run again, vote, and have no vote left: Q9.
-spec tests(pos_integer(), [{Title :: string(), fun((cluster()) -> term())}]) -> term().
tests(Count, Tests) ->
    Start = fun() ->
        Cluster = test_faulty_cluster:start(#{nodes => Count, network => sound, arguments => ?ONE_SCHEDULER}),
        [store_fence(Cluster, Place) || Place <- places(Cluster)],
        Cluster
    end,
    {setup, Start, fun test_faulty_cluster:stop/1, fun(Cluster) ->
        [
            {timeout, test_setup:times(?TIMEOUT_S), {Title, fun() -> run(Test, Cluster) end}}
         || {Title, Test} <- Tests
        ]
    end}.

%% As if the nodes had run before: they vote as soon as they know which locks are held.
store_fence(Cluster, Place) ->
    File = fence_file(Cluster, Place),
    call(Cluster, Place, fun() ->
        ok = canal_lock_quorum_nif:load(),
        {ok, true} = canal_lock_quorum_nif:fence_store(File, 1)
    end).

run(Test, Cluster) ->
    try
        start_locks(Cluster, places(Cluster)),
        await_voting(Cluster),
        Test(Cluster),
        revive(Cluster),
        Nodes = nodes_of(Cluster),
        [test_nodes:kill_workers(Node) || Node <- Nodes],
        test_quorum_cluster:await_voting(Nodes),
        test_quorum_cluster:await_empty(Nodes)
    after
        revive(Cluster),
        stop_locks(Cluster, places(Cluster))
    end.

revive(Cluster) ->
    test_faulty_cluster:resume(Cluster, places(Cluster, suspended)),
    test_faulty_cluster:introduce(Cluster),
    restart(Cluster, places(Cluster, dead)).

%% Starts dead nodes and their locks. When it returns they may not vote yet.
-spec restart(cluster(), place() | [place()]) -> ok.
restart(Cluster, Place) when is_integer(Place) ->
    restart(Cluster, [Place]);
restart(Cluster, Places) ->
    test_faulty_cluster:restart(Cluster, Places),
    start_locks(Cluster, Places).

-spec start_locks(cluster(), [place()]) -> ok.
start_locks(Cluster, Places) ->
    Options = test_quorum_cluster:options(nodes_of(Cluster)),
    Start = fun(Place) ->
        test_quorum_cluster:start(node_at(Cluster, Place), Options#{fence_file => fence_file(Cluster, Place)})
    end,
    _ = test_await:in_parallel(Start, Places),
    ok.

fence_file(Cluster, Place) ->
    list_to_binary(file(Cluster, fences, Place)).

%% The voters of these nodes forget their votes within milliseconds. A restart of the nodes takes longer.
-spec stop_locks(cluster(), [place()]) -> ok.
stop_locks(Cluster, Places) ->
    _ = test_await:in_parallel(fun(Place) -> test_quorum_cluster:stop(node_at(Cluster, Place)) end, Places),
    ok.

-spec worker(cluster(), place()) -> test_nodes:worker().
worker(Cluster, Place) ->
    test_nodes:worker(node_at(Cluster, Place)).

-spec await_voting(cluster()) -> ok.
await_voting(Cluster) ->
    test_quorum_cluster:await_voting(nodes_of(Cluster)).
