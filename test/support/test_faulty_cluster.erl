%% Clusters of nodes on this machine on which a test causes faults: it disconnects, suspends, kills and restarts nodes,
%% and sets their wall clocks.
%%
%% The index of a node is its number in the cluster, from 1. A node keeps its index, its name and its files when it
%% restarts. There are three kinds of network:
%%
%%   direct       nodes connect directly, and only when a test or canal_lock_quorum connects them. It has no faults.
%%   namespaces   each node has a Linux network namespace (test_network).
%%   proxies      connections go through proxies that can hold bytes back (test_slow_links). A test uses them where
%%                namespaces are not possible, or where a message must be late for longer than TCP would delay it.
%%
%% In the last two, a cut has the same effect: no message arrives, no connection closes, and messages that a node sends
%% during the cut arrive after it.
-module(test_faulty_cluster).

-export([start/1, stop/1, network/1, indexes/1, indexes/2, names/1, name/2, node_at/2, nodes_of/1]).
-export([folder/1, file/3, call/3, call/4, introduce/1]).
-export([cut/3, cut_one_way/3, heal_one_way/3, isolate/2, heal_all/1, bytes_held_back/3, slow/3, fast/2]).
-export([suspend/2, resume/2, kill/2, restart/2, disconnect/3, set_clock/3]).

-export_type([cluster/0, index/0]).

-type index() :: pos_integer().
-type network() :: direct | namespaces | proxies.
-opaque cluster() :: #{
    count := pos_integer(),
    network := network(),
    net := none | test_network:net() | test_slow_links:proxies(),
    folder := file:filename(),
    prefix := string(),
    clocks := boolean(),
    arguments := [string()],
    %% {{node, index()}, test_nodes:a_node()}, {{suspended, index()}, test_nodes:suspension()}, {{cut, From, To}}
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
    _ = Clocks andalso test_quorum_clock:make(Folder),
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
    restart(Cluster, indexes(Cluster)),
    Cluster.

build(direct, _) -> none;
build(namespaces, Count) -> test_network:build(Count);
build(proxies, _) -> test_slow_links:start().

-spec stop(cluster()) -> ok.
stop(Cluster = #{network := Network, net := Net, folder := Folder, state := State}) ->
    %% Kills the nodes, because a suspended node would not answer a request to stop.
    kill(Cluster, indexes(Cluster, alive)),
    case Network of
        direct -> ok;
        namespaces -> test_network:remove(Net);
        proxies -> test_slow_links:stop(Net)
    end,
    true = ets:delete(State),
    ok = file:del_dir_r(Folder).

%% The default is the most realistic network that a test can cut on this machine.
default_network() ->
    case test_network:possible() of
        true -> namespaces;
        {false, _} -> proxies
    end.

-spec network(cluster()) -> network().
network(#{network := Network}) ->
    Network.

-spec indexes(cluster()) -> [index()].
indexes(#{count := Count}) ->
    lists:seq(1, Count).

-spec indexes(cluster(), alive | dead | suspended) -> [index()].
indexes(Cluster, alive) -> [Index || Index <- indexes(Cluster), test_nodes:is_alive(node_at(Cluster, Index))];
indexes(Cluster, dead) -> indexes(Cluster) -- indexes(Cluster, alive);
indexes(Cluster = #{state := State}, suspended) -> [P || P <- indexes(Cluster), ets:member(State, {suspended, P})].

-spec names(cluster()) -> [node()].
names(Cluster) ->
    [name(Cluster, Index) || Index <- indexes(Cluster)].

-spec name(cluster(), index()) -> node().
name(Cluster, Index) ->
    list_to_atom(short_name(Cluster, Index) ++ "@" ++ host(Cluster, Index)).

short_name(#{prefix := Prefix}, Index) ->
    lists:concat([Prefix, Index]).

host(#{network := namespaces}, Index) -> test_network:address(Index);
host(_, _) -> "127.0.0.1".

-spec node_at(cluster(), index()) -> test_nodes:a_node().
node_at(#{state := State}, Index) ->
    ets:lookup_element(State, {node, Index}, 2).

-spec nodes_of(cluster()) -> [test_nodes:a_node()].
nodes_of(Cluster) ->
    [node_at(Cluster, Index) || Index <- indexes(Cluster)].

%% stop/1 deletes it.
-spec folder(cluster()) -> file:filename().
folder(#{folder := Folder}) ->
    Folder.

%% The path of a file of a node.
-spec file(cluster(), Name :: atom(), index()) -> file:filename().
file(#{folder := Folder}, Name, Index) ->
    filename:join(Folder, lists:concat([Name, "_", Index])).

-spec call(cluster(), index(), fun(() -> Answer)) -> Answer.
call(Cluster, Index, Fun) ->
    test_nodes:call(node_at(Cluster, Index), Fun).

-spec call(cluster(), index(), fun(() -> Answer), Within_ms :: pos_integer()) -> Answer.
call(Cluster, Index, Fun, Within_ms) ->
    test_nodes:call(node_at(Cluster, Index), Fun, Within_ms).

%% In both directions.
-spec cut(cluster(), index(), index()) -> ok.
cut(Cluster, One, Other) ->
    cut_one_way(Cluster, One, Other),
    cut_one_way(Cluster, Other, One).

%% Bytes in this direction do not arrive. The other direction does not change. Repeating a cut changes nothing.
-spec cut_one_way(cluster(), From :: index(), To :: index()) -> ok.
cut_one_way(#{network := Network, net := Net, state := State}, From, To) ->
    case ets:insert_new(State, {{cut, From, To}}) of
        true when Network =:= namespaces -> test_network:drop(Net, From, To);
        true -> test_slow_links:hold(Net, From, To);
        false -> ok
    end.

-spec heal_one_way(cluster(), From :: index(), To :: index()) -> ok.
heal_one_way(#{network := Network, net := Net, state := State}, From, To) ->
    case ets:take(State, {cut, From, To}) of
        [_] when Network =:= namespaces -> test_network:pass(Net, From, To);
        [_] -> test_slow_links:resume(Net, From, To);
        [] -> ok
    end.

%% Cuts a node off from all other nodes.
-spec isolate(cluster(), index()) -> ok.
isolate(Cluster, Index) ->
    lists:foreach(fun(Other) -> cut(Cluster, Index, Other) end, indexes(Cluster) -- [Index]).

-spec heal_all(cluster()) -> ok.
heal_all(Cluster = #{state := State}) ->
    Cuts = ets:select(State, [{{{cut, '$1', '$2'}}, [], [{{'$1', '$2'}}]}]),
    lists:foreach(fun({From, To}) -> heal_one_way(Cluster, From, To) end, Cuts).

%% The number of bytes that proxies hold back, on a network of proxies only.
-spec bytes_held_back(cluster(), From :: index(), To :: index()) -> non_neg_integer().
bytes_held_back(#{network := proxies, net := Proxies}, From, To) ->
    test_slow_links:bytes_held_back(Proxies, From, To).

%% Limits the rate at which a node sends, in namespaces only.
-spec slow(cluster(), index(), Megabits_per_s :: pos_integer()) -> ok.
slow(#{network := namespaces, net := Net}, Index, Megabits_per_s) ->
    test_network:slow(Net, Index, Megabits_per_s).

-spec fast(cluster(), index()) -> ok.
fast(#{network := namespaces, net := Net}, Index) ->
    test_network:fast(Net, Index).

%% Sends SIGSTOP. The nodes are stopped when it returns.
-spec suspend(cluster(), index() | [index()]) -> ok.
suspend(Cluster = #{state := State}, Indexes) ->
    each(fun(Index) ->
        ets:insert(State, {{suspended, Index}, test_nodes:suspend(node_at(Cluster, Index))})
    end, Indexes).

%% Sends SIGCONT.
-spec resume(cluster(), index() | [index()]) -> ok.
resume(#{state := State}, Indexes) ->
    each(fun(Index) ->
        [{_, Suspension}] = ets:take(State, {suspended, Index}),
        test_nodes:resume(Suspension)
    end, Indexes).

%% Sends SIGKILL, also to suspended nodes.
-spec kill(cluster(), index() | [index()]) -> ok.
kill(Cluster = #{state := State}, Indexes) ->
    each(fun(Index) ->
        test_nodes:kill(node_at(Cluster, Index)),
        [test_nodes:resume(Suspension) || {_, Suspension} <- ets:take(State, {suspended, Index})]
    end, Indexes).

%% Restarts dead nodes concurrently. They keep their names, files and addresses.
-spec restart(cluster(), index() | [index()]) -> ok.
restart(Cluster = #{state := State}, Indexes) ->
    List = lists:flatten([Indexes]),
    Nodes = test_await:in_parallel(fun(Index) -> boot(Cluster, Index) end, List),
    true = ets:insert(State, [{{node, Index}, Node} || {Index, Node} <- lists:zip(List, Nodes)]),
    lists:foreach(fun(Index) -> introduce(Cluster, Index) end, List),
    introduce(Cluster).

each(Do, Indexes) ->
    lists:foreach(Do, lists:flatten([Indexes])).

boot(Cluster = #{network := direct, arguments := Arguments}, Index) ->
    test_nodes:start(short_name(Cluster, Index), Arguments);
boot(Cluster = #{arguments := Arguments}, Index) ->
    test_nodes:boot(
        maps:merge(program(Cluster, Index), #{
            name => short_name(Cluster, Index),
            host => host(Cluster, Index),
            env => environment(Cluster, Index),
            args => ["-kernel", "logger_level", "none"] ++ distribution(Cluster) ++ Arguments
        })
    ).

program(#{network := namespaces, net := Net}, Index) ->
    {Program, Arguments} = test_network:inside(Net, Index),
    #{exec => {Program, Arguments ++ [filename:join(os:getenv("BINDIR"), "erlexec")]}};
program(_, _) ->
    #{}.

%% In namespaces the names contain the addresses, and all nodes use the same port. On other networks the test registers
%% each node's port (test_epmd).
distribution(#{network := namespaces}) ->
    Port = integer_to_list(?PORT),
    ["-start_epmd", "false", "-erl_epmd_port", Port, "-kernel", "inet_dist_listen_min", Port] ++
        ["-kernel", "inet_dist_listen_max", Port];
distribution(_) ->
    test_epmd:arguments().

%% On a direct network: registers the ports of all running nodes at each of them.
-spec introduce(cluster()) -> ok.
introduce(Cluster = #{network := direct}) ->
    Running = indexes(Cluster, alive) -- indexes(Cluster, suspended),
    test_nodes:introduce([node_at(Cluster, Index) || Index <- Running]);
introduce(_) ->
    ok.

%% On proxies: connects the proxies to the node's port, and registers at the node the proxy ports of the other nodes.
introduce(Cluster = #{network := proxies, net := Proxies}, Index) ->
    ok = test_slow_links:set_target(Proxies, Index, call(Cluster, Index, fun test_epmd:port/0)),
    Others = [
        {name(Cluster, Other), test_slow_links:port(Proxies, Index, Other)}
     || Other <- indexes(Cluster), Other =/= Index
    ],
    call(Cluster, Index, fun() -> lists:foreach(fun({Name, Port}) -> test_epmd:set_port(Name, Port) end, Others) end);
introduce(_, _) ->
    ok.

environment(#{clocks := false}, _) ->
    [];
environment(Cluster = #{clocks := true, folder := Folder}, Index) ->
    File = file(Cluster, clock, Index),
    filelib:is_file(File) orelse test_quorum_clock:set(File, 0),
    test_quorum_clock:environment(Folder, File).

%% Closes the connection of the first node to the second. Returns whether there was one.
-spec disconnect(cluster(), index(), index()) -> boolean().
disconnect(Cluster, One, Other) ->
    Name = name(Cluster, Other),
    true =:= call(Cluster, One, fun() -> erlang:disconnect_node(Name) end).

%% Sets the wall clock of a node relative to the true time. A negative number sets it behind.
-spec set_clock(cluster(), index(), Ahead_ms :: integer()) -> ok.
set_clock(Cluster = #{clocks := true}, Index, Ahead_ms) ->
    test_quorum_clock:set(file(Cluster, clock, Index), Ahead_ms).
