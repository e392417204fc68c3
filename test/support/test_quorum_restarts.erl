%% Clusters of the quorum locks whose nodes die and come back. A place is a number, 1 and up; the node there has the
%% same name and the same file of fences in each of its lives, as a server has that crashes and is started again.
%%
%% The network between them is sound, and so are their clocks: nodes are killed, stopped and started, which costs
%% nothing but the time they take to come up.
-module(test_quorum_restarts).

-export([tests/2, places/1, at/2, name/2, worker/2, together/2]).
-export([kill/2, restart/2, freeze/2, thaw/2, stop_locks/2, start_locks/2, await_voting/1]).

-export_type([cluster/0, place/0]).

-type place() :: pos_integer().
-type worker() :: test_nodes:worker().
-opaque cluster() :: #{count := pos_integer(), folder := file:filename(), lives := ets:table()}.

-record(life, {
    place :: place(),
    node :: test_nodes:a_node(),
    %% By which the operating system knows it.
    process :: string(),
    is :: running | frozen | dead
}).

%% As many as 16 on few processors.
-define(ARGUMENTS, ["+S", "1:1"]).

-define(TIMEOUT_S, 120).

%% Each test begins with all nodes running and voting. Whatever it does to them, in the end they all run again, vote,
%% and keep no vote of anybody: Q9.
-spec tests(pos_integer(), [{Title :: string(), fun((cluster()) -> term())}]) -> term().
tests(Count, Tests) ->
    Timeout_s = test_setup:times(?TIMEOUT_S),
    {setup, fun() -> start(Count) end, fun stop/1, fun(Cluster) ->
        [{timeout, Timeout_s, {Title, fun() -> run(Test, Cluster) end}} || {Title, Test} <- Tests]
    end}.

run(Test, Cluster) ->
    try
        begin_anew(Cluster),
        Test(Cluster),
        calm(Cluster)
    after
        revive(Cluster),
        together(fun test_quorum_cluster:stop/1, nodes_of(Cluster))
    end.

begin_anew(Cluster) ->
    start_locks(Cluster, places(Cluster)),
    await_voting(Cluster).

calm(Cluster) ->
    revive(Cluster),
    Nodes = nodes_of(Cluster),
    [test_nodes:kill_workers(Node) || Node <- Nodes],
    test_quorum_cluster:await_voting(Nodes),
    test_quorum_cluster:await_empty(Nodes).

revive(Cluster) ->
    thaw(Cluster, places(Cluster, frozen)),
    restart(Cluster, places(Cluster, dead)).

start(Count) ->
    Folder = filename:join(os:getenv("TMPDIR", "/tmp"), peer:random_name(canal_lock_lives)),
    ok = file:make_dir(Folder),
    Cluster = #{count => Count, folder => Folder, lives => ets:new(?MODULE, [public, {keypos, #life.place}])},
    Places = lists:seq(1, Count),
    Nodes = together(fun(_) -> test_nodes:start(?ARGUMENTS) end, Places),
    [live(Cluster, Place, Node) || {Place, Node} <- lists:zip(Places, Nodes)],
    introduce(Cluster, Places),
    [store_fences(fence_file(Cluster, Node), Node) || Node <- Nodes],
    Cluster.

%% As if they had run before: they vote as soon as they know what is held.
store_fences(File, Node) ->
    test_nodes:call(Node, fun() ->
        ok = canal_lock_quorum_nif:load(),
        {ok, true} = canal_lock_quorum_nif:fence_store(File, 1)
    end).

stop(Cluster = #{folder := Folder}) ->
    %% Also those that a failure has left frozen.
    ok = kill(Cluster, places(Cluster) -- places(Cluster, dead)),
    ok = file:del_dir_r(Folder).

live(#{lives := Lives}, Place, Node) ->
    Process = test_nodes:call(Node, fun os:getpid/0),
    true = ets:insert(Lives, #life{place = Place, node = Node, process = Process, is = running}).

options(Cluster, Node) ->
    (test_quorum_cluster:options(nodes_of(Cluster)))#{fence_file => fence_file(Cluster, Node)}.

fence_file(#{folder := Folder}, Node) ->
    list_to_binary(filename:join(Folder, test_nodes:name(Node))).

%% Those of them that can be asked, and all others.
introduce(Cluster, Places) ->
    Running = places(Cluster, running),
    [
        test_nodes:introduce(at(Cluster, One), at(Cluster, Other))
     || One <- Running, Other <- Running, One =/= Other, lists:member(One, Places) orelse lists:member(Other, Places)
    ],
    ok.

-spec places(cluster()) -> [place()].
places(#{count := Count}) ->
    lists:seq(1, Count).

places(Cluster, Is) ->
    [Place || Place <- places(Cluster), (life(Cluster, Place))#life.is =:= Is].

-spec at(cluster(), place()) -> test_nodes:a_node().
at(Cluster, Place) ->
    (life(Cluster, Place))#life.node.

-spec name(cluster(), place()) -> node().
name(Cluster, Place) ->
    test_nodes:name(at(Cluster, Place)).

-spec worker(cluster(), place()) -> worker().
worker(Cluster, Place) ->
    test_nodes:worker(at(Cluster, Place)).

nodes_of(Cluster) ->
    [at(Cluster, Place) || Place <- places(Cluster)].

life(#{lives := Lives}, Place) ->
    [Life] = ets:lookup(Lives, Place),
    Life.

%% For all at the same time; their answers in order.
-spec together(fun((One) -> Answer), [One]) -> [Answer].
together(Do, All) ->
    Started = [spawn_monitor(fun() -> exit({done, Do(One)}) end) || One <- All],
    [
        case test_await:reason(Doing) of
            {done, Answer} -> Answer;
            Failure -> error(Failure)
        end
     || Doing <- Started
    ].

%% The operating system ends them, without any last words, also if they are frozen.
-spec kill(cluster(), place() | [place()]) -> ok.
kill(Cluster, Places) when is_list(Places) ->
    Peers = [element(1, at(Cluster, Place)) || Place <- Places],
    Monitors = [{Peer, monitor(process, Peer)} || Peer <- Peers],
    signal(Cluster, Places, "KILL", dead),
    lists:foreach(fun test_await:reason/1, Monitors);
kill(Cluster, Place) ->
    kill(Cluster, [Place]).

%% One more life of nodes that are dead. They may not vote yet.
-spec restart(cluster(), place() | [place()]) -> ok.
restart(_Cluster, []) ->
    ok;
restart(Cluster, Places) when is_list(Places) ->
    Again = fun(Place) -> live(Cluster, Place, test_nodes:restart(at(Cluster, Place), ?ARGUMENTS)) end,
    together(Again, Places),
    introduce(Cluster, Places),
    start_locks(Cluster, Places);
restart(Cluster, Place) ->
    restart(Cluster, [Place]).

%% Of nodes that run: their voters forget everything, within milliseconds and not within the time that a node takes.
-spec stop_locks(cluster(), [place()]) -> ok.
stop_locks(Cluster, Places) ->
    _ = together(fun(Place) -> test_quorum_cluster:stop(at(Cluster, Place)) end, Places),
    ok.

-spec start_locks(cluster(), [place()]) -> ok.
start_locks(Cluster, Places) ->
    Start = fun(Node) -> test_quorum_cluster:start(Node, options(Cluster, Node)) end,
    _ = together(Start, [at(Cluster, Place) || Place <- Places]),
    ok.

%% The operating system gives them no time any more.
-spec freeze(cluster(), place() | [place()]) -> ok.
freeze(Cluster, Places) when is_list(Places) -> signal(Cluster, Places, "STOP", frozen);
freeze(Cluster, Place) -> freeze(Cluster, [Place]).

-spec thaw(cluster(), place() | [place()]) -> ok.
thaw(Cluster, Places) when is_list(Places) ->
    signal(Cluster, Places, "CONT", running),
    introduce(Cluster, Places);
thaw(Cluster, Place) ->
    thaw(Cluster, [Place]).

signal(_Cluster, [], _Signal, _Is) ->
    ok;
signal(Cluster = #{lives := Lives}, Places, Signal, Is) ->
    Processes = [(life(Cluster, Place))#life.process || Place <- Places],
    [] = os:cmd(lists:flatten(lists:join(" ", ["kill -" ++ Signal | Processes]))),
    [true = ets:update_element(Lives, Place, {#life.is, Is}) || Place <- Places],
    ok.

%% All nodes, and that all of them answer each other.
-spec await_voting(cluster()) -> ok.
await_voting(Cluster) ->
    test_quorum_cluster:await_voting(nodes_of(Cluster)).
