%% Nodes as processes of this machine, and what can happen to them: started, cut from each other, connected again,
%% killed, paused.
%%
%% They are held by their standard input: it is closed however the VM of the demo ends, and they end with it. So
%% nothing is left behind, and no cut between nodes is one between them and the demo.
-module(cluster_demo_nodes).

-export([start/2, stop/1, call/4, send/3]).
-export([introduce/2, cut/2, kill/1, pause/1, resume/1]).

-export_type([a_node/0, pause/0]).

-type a_node() :: #{
    %% Short, as it is shown.
    name := atom(),
    node := node(),
    peer := pid(),
    %% Which life of this name it is.
    life := pos_integer(),
    %% Of the operating system.
    process := string()
}.

-opaque pause() :: port().

-define(CALL_MS, 30_000).
-define(POLL_MS, 10).

%% Stops a process, and has it go on when its own standard input is closed: also when whoever wanted this is no more.
-define(PAUSE, "kill -STOP \"$0\" && echo stopped && read -r _; kill -CONT \"$0\"").

%% It connects with nobody but by canal_lock_quorum: otherwise OTP's `global' would, and cut nodes from more than they
%% are to be cut from (`prevent_overlapping_partitions').
-spec start(atom(), pos_integer()) -> a_node().
start(Name, Life) ->
    Paths = [Path || Path <- code:get_path(), filelib:is_dir(Path)],
    {ok, Peer, Node} = peer:start(#{
        name => Name,
        host => "127.0.0.1",
        longnames => true,
        connection => standard_io,
        shutdown => close,
        args =>
            ["-setcookie", "canal_lock_cluster_demo", "-connect_all", "false", "-kernel", "logger_level", "error"] ++
                ["+S", "2:2", "+sbwt", "none"] ++ cluster_demo_epmd:arguments() ++ ["-pa" | Paths]
    }),
    Process = peer:call(Peer, os, getpid, [], ?CALL_MS),
    #{name => Name, node => Node, peer => Peer, life => Life, process => Process}.

-spec stop(a_node()) -> ok.
stop(#{peer := Peer}) ->
    case is_process_alive(Peer) of
        true -> peer:stop(Peer);
        false -> ok
    end.

-spec call(a_node(), module(), atom(), [term()]) -> term().
call(#{peer := Peer}, Module, Function, Arguments) ->
    peer:call(Peer, Module, Function, Arguments, ?CALL_MS).

%% To a process that is registered there; nobody waits for it, so the node may be paused.
-spec send(a_node(), atom(), term()) -> ok.
send(#{peer := Peer}, Process, Message) ->
    peer:send(Peer, Process, Message).

%% Both learn where the other one listens.
-spec introduce(a_node(), a_node()) -> ok.
introduce(One, Other) ->
    ok = tell(One, Other),
    tell(Other, One).

tell(Who, #{node := Node} = Whom) ->
    call(Who, cluster_demo_epmd, tell, [Node, call(Whom, cluster_demo_epmd, port, [])]).

%% When it returns, both know that they are not connected.
-spec cut(a_node(), a_node()) -> ok.
cut(#{node := OneNode} = One, #{node := OtherNode} = Other) ->
    ok = call(One, cluster_demo_epmd, forget, [OtherNode]),
    ok = call(Other, cluster_demo_epmd, forget, [OneNode]),
    _ = call(One, erlang, disconnect_node, [OtherNode]),
    ok = await_gone(One, OtherNode),
    await_gone(Other, OneNode).

await_gone(Who, Node) ->
    case lists:member(Node, call(Who, erlang, nodes, [connected])) of
        true ->
            ok = timer:sleep(?POLL_MS),
            await_gone(Who, Node);
        false ->
            ok
    end.

%% By the operating system, without any last words.
-spec kill(a_node()) -> ok.
kill(#{peer := Peer, process := Process}) ->
    Monitor = monitor(process, Peer),
    [] = os:cmd("kill -9 " ++ Process),
    receive
        {'DOWN', Monitor, process, Peer, _} -> ok
    end.

%% When it returns, nothing runs there.
-spec pause(a_node()) -> pause().
pause(#{process := Process}) ->
    Port = open_port({spawn_executable, "/bin/sh"}, [{args, ["-c", ?PAUSE, Process]}, {line, 80}]),
    receive
        {Port, {data, {eol, "stopped"}}} -> Port
    end.

-spec resume(pause()) -> ok.
resume(Port) ->
    true = port_close(Port),
    ok.
