%% Clusters of nodes on this machine on which a test causes faults: nodes are cut off, suspended, killed and started
%% again, and their wall clocks jump.
%%
%% A place is a number, 1 and up. The node of a place keeps its name and its files when it is started again. There are
%% three kinds of network:
%%
%%   sound        nodes connect directly, and only when a test or canal_lock_quorum orders it. It has no faults.
%%   namespaces   each node has a Linux network namespace (test_network).
%%   wires        connections go through proxies that can hold bytes back (test_slow_links). A test uses them where
%%                namespaces are not possible, or where a message must be late for longer than TCP would delay it.
%%
%% In the last two a cut looks the same to the nodes: no message arrives, no connection is closed, and messages that
%% were sent during the cut arrive after it.
-module(test_faulty_cluster).

-export([start/1, stop/1, network/1, places/1, places/2, names/1, name/2, node_at/2, nodes_of/1]).
-export([folder/1, file/3, call/3, call/4, introduce/1]).
-export([cut/3, cut_one_way/3, heal_one_way/3, isolate/2, heal_all/1, held/3, slow/3, fast/2]).
-export([suspend/2, resume/2, kill/2, restart/2, disconnect/3, set_clock/3]).

-export_type([cluster/0, place/0]).

-type place() :: pos_integer().
-type network() :: sound | namespaces | wires.
-opaque cluster() :: #{
    count := pos_integer(),
    network := network(),
    net := none | test_network:net() | test_slow_links:wires(),
    folder := file:filename(),
    prefix := string(),
    clocks := boolean(),
    arguments := [string()],
    %% {{node, place()}, test_nodes:a_node()}, {{suspended, place()}, test_nodes:suspension()}, {{cut, From, To}}
    state := ets:table()
}.

%% Each namespace has this port for its only node.
-define(PORT, 4370).

%% `clocks': whether the wall clocks can be set. `arguments': additional command-line arguments of each node.
-spec start(#{nodes := pos_integer(), network => network(), clocks => boolean(), arguments => [string()]}) -> cluster().
start(Options = #{nodes := Count}) ->
    Prefix = lists:concat(["canal_lock_", os:getpid(), "_", erlang:unique_integer([positive]), "_"]),
    Folder = filename:join(os:getenv("TMPDIR", "/tmp"), Prefix ++ "cluster"),
    ok = file:make_dir(Folder),
    Network = maps:get(network, Options, default_network()),
    Clocks = maps:get(clocks, Options, false),
    Clocks andalso (ok = test_quorum_clock:make(Folder)),
    Cluster = #{
        count => Count,
        network => Network,
        net => build(Network, Count),
        folder => Folder,
        prefix => Prefix,
        clocks => Clocks,
        arguments => maps:get(arguments, Options, []),
        state => ets:new(?MODULE, [public])
    },
    restart(Cluster, places(Cluster)),
    Cluster.

build(sound, _) -> none;
build(namespaces, Count) -> test_network:build(Count);
build(wires, _) -> test_slow_links:start().

-spec stop(cluster()) -> ok.
stop(Cluster = #{network := Network, net := Net, folder := Folder, state := State}) ->
    %% A node may be suspended, so none is asked.
    kill(Cluster, places(Cluster, alive)),
    case Network of
        sound -> ok;
        namespaces -> test_network:remove(Net);
        wires -> test_slow_links:stop(Net)
    end,
    true = ets:delete(State),
    ok = file:del_dir_r(Folder).

%% The default: of the networks that can be cut, the one that is most like a real one.
default_network() ->
    case test_network:possible() of
        true -> namespaces;
        {false, _} -> wires
    end.

-spec network(cluster()) -> network().
network(#{network := Network}) ->
    Network.

-spec places(cluster()) -> [place()].
places(#{count := Count}) ->
    lists:seq(1, Count).

-spec places(cluster(), alive | dead | suspended) -> [place()].
places(Cluster, alive) -> [Place || Place <- places(Cluster), test_nodes:is_alive(node_at(Cluster, Place))];
places(Cluster, dead) -> places(Cluster) -- places(Cluster, alive);
places(Cluster = #{state := State}, suspended) -> [P || P <- places(Cluster), ets:member(State, {suspended, P})].

-spec names(cluster()) -> [node()].
names(Cluster) ->
    [name(Cluster, Place) || Place <- places(Cluster)].

-spec name(cluster(), place()) -> node().
name(Cluster, Place) ->
    list_to_atom(short_name(Cluster, Place) ++ "@" ++ host(Cluster, Place)).

short_name(#{prefix := Prefix}, Place) ->
    lists:concat([Prefix, Place]).

host(#{network := namespaces}, Place) -> test_network:address(Place);
host(_, _) -> "127.0.0.1".

-spec node_at(cluster(), place()) -> test_nodes:a_node().
node_at(#{state := State}, Place) ->
    ets:lookup_element(State, {node, Place}, 2).

-spec nodes_of(cluster()) -> [test_nodes:a_node()].
nodes_of(Cluster) ->
    [node_at(Cluster, Place) || Place <- places(Cluster)].

%% Deleted with the cluster.
-spec folder(cluster()) -> file:filename().
folder(#{folder := Folder}) ->
    Folder.

%% The path of a file of the node at a place.
-spec file(cluster(), Name :: atom(), place()) -> file:filename().
file(#{folder := Folder}, Name, Place) ->
    filename:join(Folder, lists:concat([Name, "_", Place])).

-spec call(cluster(), place(), fun(() -> Answer)) -> Answer.
call(Cluster, Place, Fun) ->
    test_nodes:call(node_at(Cluster, Place), Fun).

-spec call(cluster(), place(), fun(() -> Answer), Within_ms :: pos_integer()) -> Answer.
call(Cluster, Place, Fun, Within_ms) ->
    test_nodes:call(node_at(Cluster, Place), Fun, Within_ms).

%% In both directions.
-spec cut(cluster(), place(), place()) -> ok.
cut(Cluster, One, Other) ->
    cut_one_way(Cluster, One, Other),
    cut_one_way(Cluster, Other, One).

%% Bytes in this direction do not arrive. The other direction is not changed. To repeat a cut changes nothing.
-spec cut_one_way(cluster(), From :: place(), To :: place()) -> ok.
cut_one_way(#{network := Network, net := Net, state := State}, From, To) ->
    case ets:insert_new(State, {{cut, From, To}}) of
        true when Network =:= namespaces -> test_network:drop(Net, From, To);
        true -> test_slow_links:hold(Net, From, To);
        false -> ok
    end.

-spec heal_one_way(cluster(), From :: place(), To :: place()) -> ok.
heal_one_way(#{network := Network, net := Net, state := State}, From, To) ->
    case ets:take(State, {cut, From, To}) of
        [_] when Network =:= namespaces -> test_network:pass(Net, From, To);
        [_] -> test_slow_links:let_go(Net, From, To);
        [] -> ok
    end.

%% Cuts a node off from all others.
-spec isolate(cluster(), place()) -> ok.
isolate(Cluster, Place) ->
    lists:foreach(fun(Other) -> cut(Cluster, Place, Other) end, places(Cluster) -- [Place]).

-spec heal_all(cluster()) -> ok.
heal_all(Cluster = #{state := State}) ->
    Cuts = ets:select(State, [{{{cut, '$1', '$2'}}, [], [{{'$1', '$2'}}]}]),
    lists:foreach(fun({From, To}) -> heal_one_way(Cluster, From, To) end, Cuts).

%% Bytes that wires hold back. Not known in namespaces.
-spec held(cluster(), From :: place(), To :: place()) -> non_neg_integer().
held(#{network := wires, net := Wires}, From, To) ->
    test_slow_links:held(Wires, From, To).

%% Limits the rate at which a node sends, in namespaces only.
-spec slow(cluster(), place(), Megabits_per_s :: pos_integer()) -> ok.
slow(#{network := namespaces, net := Net}, Place, Megabits_per_s) ->
    test_network:slow(Net, Place, Megabits_per_s).

-spec fast(cluster(), place()) -> ok.
fast(#{network := namespaces, net := Net}, Place) ->
    test_network:fast(Net, Place).

%% SIGSTOP. The nodes are stopped when it returns.
-spec suspend(cluster(), place() | [place()]) -> ok.
suspend(Cluster = #{state := State}, Places) ->
    each(fun(Place) ->
        ets:insert(State, {{suspended, Place}, test_nodes:suspend(node_at(Cluster, Place))})
    end, Places).

%% SIGCONT.
-spec resume(cluster(), place() | [place()]) -> ok.
resume(#{state := State}, Places) ->
    each(fun(Place) ->
        [{_, Suspension}] = ets:take(State, {suspended, Place}),
        test_nodes:resume(Suspension)
    end, Places).

%% SIGKILL, also of nodes that are suspended.
-spec kill(cluster(), place() | [place()]) -> ok.
kill(Cluster = #{state := State}, Places) ->
    each(fun(Place) ->
        test_nodes:kill(node_at(Cluster, Place)),
        [test_nodes:resume(Suspension) || {_, Suspension} <- ets:take(State, {suspended, Place})]
    end, Places).

%% Starts dead nodes again, at the same time. They keep their names, files and addresses.
-spec restart(cluster(), place() | [place()]) -> ok.
restart(Cluster = #{state := State}, Places) ->
    List = lists:flatten([Places]),
    Nodes = test_await:in_parallel(fun(Place) -> boot(Cluster, Place) end, List),
    true = ets:insert(State, [{{node, Place}, Node} || {Place, Node} <- lists:zip(List, Nodes)]),
    lists:foreach(fun(Place) -> introduce(Cluster, Place) end, List),
    introduce(Cluster).

each(Do, Places) ->
    lists:foreach(Do, lists:flatten([Places])).

boot(Cluster = #{network := sound, arguments := Arguments}, Place) ->
    test_nodes:start(short_name(Cluster, Place), Arguments);
boot(Cluster = #{arguments := Arguments}, Place) ->
    test_nodes:boot(
        maps:merge(program(Cluster, Place), #{
            name => short_name(Cluster, Place),
            host => host(Cluster, Place),
            env => environment(Cluster, Place),
            args => ["-kernel", "logger_level", "none"] ++ distribution(Cluster) ++ Arguments
        })
    ).

program(#{network := namespaces, net := Net}, Place) ->
    {Program, Arguments} = test_network:inside(Net, Place),
    #{exec => {Program, Arguments ++ [filename:join(os:getenv("BINDIR"), "erlexec")]}};
program(_, _) ->
    #{}.

%% In namespaces the names contain the addresses, and all nodes use the same port. Elsewhere the test tells the ports.
distribution(#{network := namespaces}) ->
    Port = integer_to_list(?PORT),
    ["-start_epmd", "false", "-erl_epmd_port", Port, "-kernel", "inet_dist_listen_min", Port] ++
        ["-kernel", "inet_dist_listen_max", Port];
distribution(_) ->
    test_epmd:arguments().

%% On a sound network: all nodes that run learn where the others listen.
-spec introduce(cluster()) -> ok.
introduce(Cluster = #{network := sound}) ->
    Running = places(Cluster, alive) -- places(Cluster, suspended),
    test_nodes:introduce([node_at(Cluster, Place) || Place <- Running]);
introduce(_) ->
    ok.

%% On wires: the wires learn where a node listens, and the node where its wires begin.
introduce(Cluster = #{network := wires, net := Wires}, Place) ->
    ok = test_slow_links:lead_to(Wires, Place, call(Cluster, Place, fun test_epmd:port/0)),
    Others = [
        {name(Cluster, Other), test_slow_links:port(Wires, Place, Other)}
     || Other <- places(Cluster), Other =/= Place
    ],
    call(Cluster, Place, fun() -> lists:foreach(fun({Name, Port}) -> test_epmd:tell(Name, Port) end, Others) end);
introduce(_, _) ->
    ok.

environment(#{clocks := false}, _) ->
    [];
environment(Cluster = #{clocks := true, folder := Folder}, Place) ->
    File = file(Cluster, clock, Place),
    filelib:is_file(File) orelse test_quorum_clock:set(File, 0),
    test_quorum_clock:environment(Folder, File).

%% One node closes its connection with the other. Whether there was one.
-spec disconnect(cluster(), place(), place()) -> boolean().
disconnect(Cluster, One, Other) ->
    Name = name(Cluster, Other),
    true =:= call(Cluster, One, fun() -> erlang:disconnect_node(Name) end).

%% Sets the wall clock of a node ahead of the true time, or behind it.
-spec set_clock(cluster(), place(), Ahead_ms :: integer()) -> ok.
set_clock(Cluster = #{clocks := true}, Place, Ahead_ms) ->
    test_quorum_clock:set(file(Cluster, clock, Place), Ahead_ms).
