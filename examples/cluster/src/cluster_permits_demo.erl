%% Three nodes limit one back-end together with cluster permits, in 25 s: a node is killed, a node is cut off, and the
%% allocator is killed, all of them with requests at work. At the end the demo judges what the back-end has counted. Run
%% it with `make demo WHAT=cluster'.
-module(cluster_permits_demo).

-export([main/0]).

-record(demo, {
    backend :: cluster_permits_backend:backend(),
    nodes :: #{Name :: atom() => test_nodes:a_node()}
}).

-define(NAMES, [n1, n2, n3]).
-define(NODE_ARGUMENTS, ["-kernel", "logger_level", "error", "+S", "2:2", "+sbwt", "none"]).
-define(LIMIT, 8).
%% On each node, so that any two nodes can use all permits and more.
-define(WORKERS, 8).
%% A quarter of the default, so that the demo takes 25 s.
-define(LEASE_MS, 2500).
%% After a fault, for the permits of the node (CP3, CP5).
-define(PROMISED_MS, ?LEASE_MS + 1000).
%% How long the demo shows a state.
-define(SHOW_MS, 1500).
%% Limits a wait that hangs. A restarted node waits for its quarantine, at most a lease.
-define(AWAIT_MS, 20_000).

-spec main() -> no_return().
main() ->
    cluster_demo_stage:main(fun run/0, fun cluster_permits_verdict:lines/1).

run() ->
    lists:foreach(fun cluster_demo_screen:say/1, introduction()),
    Backend = cluster_permits_backend:start(?NAMES),
    Nodes = test_await:in_parallel(fun(Name) -> test_nodes:start(Name, ?NODE_ARGUMENTS) end, ?NAMES),
    Demo = #demo{backend = Backend, nodes = maps:from_list(lists:zip(?NAMES, Nodes))},
    ok = test_nodes:introduce(Nodes),
    lists:foreach(fun(Name) -> start_workers(Name, Demo) end, ?NAMES),
    {Last, Missing} = cluster_demo_stage:act(Demo, [fun share/1, fun kill_node/1, fun cut_off/1, fun kill_allocator/1]),
    Verdict = cluster_permits_verdict:judge(cluster_permits_backend:events(Backend), #{
        limit => ?LIMIT, promised_ms => ?PROMISED_MS, missing => Missing
    }),
    lists:foreach(fun test_nodes:stop/1, maps:values(Last#demo.nodes)),
    Verdict.

introduction() ->
    [
        io_lib:format("Three nodes of this machine send requests to one back-end: at most ~b at once. Each node has", [
            ?LIMIT
        ]),
        io_lib:format("~b workers, which acquire a cluster permit for each request. The back-end only counts.", [
            ?WORKERS
        ]),
        "",
        io_lib:format("The lease is ~b ms, a quarter of the default. A node that is killed or cut off loses its", [
            ?LEASE_MS
        ]),
        io_lib:format("permits, and the other nodes use all ~b within the lease and 1 s.", [?LIMIT]),
        "",
        "seconds     n1  n2  n3  at work   served"
    ].

%%% Acts

share(Demo) ->
    ok = say("--- three nodes share the limit", Demo),
    ok = await_shared(Demo),
    Demo.

kill_node(Demo) ->
    [Name | _] = ?NAMES -- [allocator(Demo)],
    kill("a node", Name, Demo).

kill_allocator(Demo) ->
    kill("the allocator", allocator(Demo), Demo).

kill(What, Name, #demo{nodes = Nodes} = Demo) ->
    #{Name := Node} = Nodes,
    ok = fault(io_lib:format("~ts, ~ts, is killed (kill -9)", [What, Name]), Name, Demo),
    ok = test_nodes:kill(Node),
    ok = await_others(Name, Demo),
    Restarted = Demo#demo{nodes = Nodes#{Name := test_nodes:restart(Node, ?NODE_ARGUMENTS)}},
    ok = test_nodes:introduce(maps:values(Restarted#demo.nodes)),
    ok = say(io_lib:format("*** ~ts is started again", [Name]), Restarted),
    start_workers(Name, Restarted),
    ok = await_shared(Restarted),
    Restarted.

cut_off(#demo{nodes = Nodes} = Demo) ->
    [Name | _] = ?NAMES -- [allocator(Demo)],
    {Node, Others} = maps:take(Name, Nodes),
    ok = fault(io_lib:format("a node, ~ts, is cut off from the others", [Name]), Name, Demo),
    lists:foreach(fun(Other) -> test_nodes:separate(Node, Other) end, maps:values(Others)),
    ok = await_others(Name, Demo),
    ok = say(io_lib:format("*** ~ts can connect again", [Name]), Demo),
    ok = test_nodes:introduce(maps:values(Nodes)),
    ok = await_shared(Demo),
    Demo.

fault(Text, Name, #demo{backend = Backend}) ->
    cluster_permits_backend:note(Backend, {fault, lists:flatten(Text), Name}).

%% After a fault of this node.
await_others(Name, Demo) ->
    AllUsed = fun(AtWork) -> lists:sum(maps:values(maps:remove(Name, AtWork))) >= ?LIMIT end,
    ok = await("that the other nodes use all permits", AllUsed, Demo),
    ok = say("    the other nodes use all permits", Demo),
    timer:sleep(?SHOW_MS).

%% Each node has about its share of the requests at work.
await_shared(Demo) ->
    IsShared = fun(AtWork) -> lists:min(maps:values(AtWork)) >= ?LIMIT div length(?NAMES) end,
    ok = await("that all nodes share the limit", IsShared, Demo),
    ok = say("    all nodes use permits", Demo),
    timer:sleep(?SHOW_MS).

await(What, Is, #demo{backend = Backend}) ->
    case cluster_permits_backend:await(Backend, Is, ?AWAIT_MS) of
        ok -> ok;
        timeout -> throw({missing, What})
    end.

say(Text, #demo{backend = Backend}) ->
    cluster_permits_backend:note(Backend, {said, Text}).

%%% Nodes

start_workers(Name, #demo{backend = Backend, nodes = Nodes}) ->
    Options = #{
        members => test_quorum_cluster:members([maps:get(Member, Nodes) || Member <- ?NAMES]),
        lease_ms => ?LEASE_MS,
        reconnect_ms => 200
    },
    test_nodes:call(maps:get(Name, Nodes), fun() ->
        cluster_permits_worker:start(Options, Name, Backend, #{workers => ?WORKERS, limit => ?LIMIT})
    end).

%% Its name.
allocator(#demo{nodes = Nodes}) ->
    [Any | _] = maps:values(Nodes),
    #{allocator := Allocator} = test_nodes:call(Any, fun canal_lock_cluster:status/0),
    [Name] = [Name || {Name, Node} <- maps:to_list(Nodes), test_nodes:name(Node) =:= Allocator],
    Name.
