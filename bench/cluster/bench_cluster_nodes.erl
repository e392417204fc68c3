%% The nodes that are measured: processes of this machine, each connected with each, as nodes are by default. They are
%% asked over their standard input and output, so what is measured is not in the way of the questions, nor they in its.
-module(bench_cluster_nodes).

-export([start/1, stop/1, name/1, call/2, call_all/2, start_quorum/1, await_quiet/1]).
%% What is asked on a node.
-export([frames_sent/0, cpu_ns/0]).

-export_type([a_node/0]).

-type a_node() :: {Peer :: pid(), node()}.

%% A net for what hangs.
-define(CALL_MS, 300_000).
%% What was going on is over after the longest lease, and nothing takes longer than that.
-define(QUIET_MS, 60_000).

%% All of them share this machine, so none of them turns in circles while it has nothing to do: it would keep the
%% others from a processor, and whoever sends more messages would pay for that, not for what it does.
-define(ARGUMENTS, ["+sbwt", "none", "+sbwtdcpu", "none", "+sbwtdio", "none"]).

%% Connected with each other, as `global' sees it too.
-spec start(pos_integer()) -> [a_node()].
start(Count) ->
    Nodes = [start_one() || _ <- lists:seq(1, Count)],
    Ports = [{name(Node), call(Node, fun test_epmd:port/0)} || Node <- Nodes],
    Names = [Name || {Name, _} <- Ports],
    _ = call_all(Nodes, fun() -> [test_epmd:tell(Name, Port) || {Name, Port} <- Ports, Name =/= node()] end),
    Connect = fun() -> [true = net_kernel:connect_node(Name) || Name <- Names, Name =/= node()] end,
    _ = [call(Node, Connect) || Node <- Nodes],
    _ = call_all(Nodes, fun() ->
        ok = test_await:value(lists:sort(Names), fun() -> lists:sort([node() | nodes()]) end),
        ok = global:sync()
    end),
    Nodes.

start_one() ->
    {ok, Peer, Name} = peer:start_link(#{
        name => peer:random_name(canal_lock_bench),
        host => "127.0.0.1",
        longnames => true,
        connection => standard_io,
        args =>
            ["+Bd", "-setcookie", "canal_lock", "-kernel", "logger_level", "error"] ++ ?ARGUMENTS ++
                test_epmd:arguments() ++ ["-pa" | [Path || Path <- code:get_path(), filelib:is_dir(Path)]]
    }),
    {Peer, Name}.

-spec stop([a_node()]) -> ok.
stop(Nodes) ->
    lists:foreach(fun({Peer, _}) -> peer:stop(Peer) end, Nodes).

-spec name(a_node()) -> node().
name({_, Name}) ->
    Name.

-spec call(a_node(), fun(() -> Answer)) -> Answer.
call({Peer, _}, Fun) ->
    peer:call(Peer, erlang, apply, [Fun, []], ?CALL_MS).

%% On all of them at the same time.
-spec call_all([a_node()], fun(() -> Answer)) -> [Answer].
call_all(Nodes, Fun) ->
    Calls = [spawn_monitor(fun() -> exit({answer, call(Node, Fun)}) end) || Node <- Nodes],
    [
        receive
            {'DOWN', Monitor, process, Pid, {answer, Answer}} -> Answer;
            {'DOWN', Monitor, process, Pid, Reason} -> error({call_failed, Reason})
        end
     || {Pid, Monitor} <- Calls
    ].

%% With the constants that it comes with. Returns when all vote and hear each other.
-spec start_quorum([a_node()]) -> ok.
start_quorum(Nodes) ->
    Members = [name(Node) || Node <- Nodes],
    _ = call_all(Nodes, fun() ->
        %% The caller here is a process for this call alone.
        {ok, Pid} = canal_lock_quorum:start_link(#{members => Members}),
        true = unlink(Pid)
    end),
    Answering = fun() ->
        #{voting := Voting, members := Told} = canal_lock_quorum:status(),
        {Voting, length([Node || #{node := Node, answers := true} <- Told])}
    end,
    _ = call_all(Nodes, fun() -> test_await:value({true, length(Members)}, Answering, ?QUIET_MS) end),
    ok.

%% Nothing is locked on any of them, by either of the two, and nobody waits.
-spec await_quiet([a_node()]) -> ok.
await_quiet(Nodes) ->
    Left = fun() ->
        Status = maps:with([held, waiting, pending_unlocks], canal_lock_quorum:status()),
        %% It has no function that tells.
        {lists:sum(maps:values(Status)), ets:info(global_locks, size)}
    end,
    _ = call_all(Nodes, fun() -> test_await:value({0, 0}, Left, ?QUIET_MS) end),
    ok.

%% To other nodes, by whatever process: what the sockets have counted.
-spec frames_sent() -> non_neg_integer().
frames_sent() ->
    lists:sum([
        Count
     || {_, Socket} <- erlang:system_info(dist_ctrl), {ok, [{send_cnt, Count}]} <- [inet:getstat(Socket, [send_cnt])]
    ]).

%% That all threads of this VM have run, in the system too; `unknown' where it is not told so. To the nanosecond, where
%% the times of the whole process are of ticks that an idle one falls between.
-spec cpu_ns() -> non_neg_integer() | unknown.
cpu_ns() ->
    case filelib:wildcard("/proc/self/task/*/schedstat") of
        [] -> unknown;
        Files -> lists:sum([thread_ns(File) || File <- Files])
    end.

%% One may have ended since.
thread_ns(File) ->
    case file:read_file(File) of
        {ok, Bytes} ->
            [Ran_ns | _] = binary:split(Bytes, <<" ">>),
            binary_to_integer(Ran_ns);
        {error, _} ->
            0
    end.
