%% The nodes that the benchmark measures: processes of this machine, each connected with all others, as nodes are by
%% default. The benchmark controls them over their standard input and output, so its requests do not share a connection
%% with the traffic that it measures.
-module(bench_cluster_nodes).

-export([start/2, start_quorum/3, await_quiet/1]).
%% Called on a node.
-export([frames_sent/0, cpu_ns/0]).

%% The longest lease has expired by then, and nothing takes longer than that.
-define(QUIET_MS, 60_000).

%% The nodes share this machine, so an idle scheduler must not spin: it would take processor time from other nodes, and
%% the side that sends more messages would be measured too slow.
-define(NO_SPINNING, ["+sbwt", "none", "+sbwtdcpu", "none", "+sbwtdio", "none"]).

%% Nodes with the library of this subject. Returns when they are all connected, also for `global'.
-spec start(Count :: pos_integer(), bench_results:subject()) -> [test_nodes:a_node()].
start(Count, Subject) ->
    Arguments = ["+Bd", "-kernel", "logger_level", "error"] ++ ?NO_SPINNING ++ test_epmd:arguments(),
    Start = fun(_) -> test_nodes:boot(#{name => peer:random_name(canal_lock_bench), args => Arguments}) end,
    Nodes = lists:map(Start, lists:seq(1, Count)),
    ok = use(bench_builds:library(Subject), Nodes),
    ok = test_nodes:introduce(Nodes),
    Names = test_quorum_cluster:members(Nodes),
    Connect = fun() -> [true = net_kernel:connect_node(Name) || Name <- Names, Name =/= node()] end,
    _ = [test_nodes:call(Node, Connect) || Node <- Nodes],
    _ = test_nodes:call_all(Nodes, fun() ->
        ok = test_await:value(lists:sort(Names), fun() -> lists:sort([node() | nodes()]) end),
        ok = global:sync()
    end),
    Nodes.

%% The nodes load the library from this folder.
use(Library, Nodes) ->
    Ebin = filename:absname(filename:join(Library, "ebin")),
    _ = test_nodes:call_all(Nodes, fun() ->
        true = code:add_patha(Ebin),
        {module, _} = code:ensure_loaded(canal_lock_quorum),
        Ebin = filename:dirname(code:which(canal_lock_quorum)),
        %% So that the native library is that of the folder, too.
        true = filename:absname(Library) =:= code:lib_dir(canal_lock)
    end),
    ok.

%% With these options beside the default ones. Returns when all members vote and answer.
-spec start_quorum(Members :: [test_nodes:a_node()], Clients :: [test_nodes:a_node()], map()) -> ok.
start_quorum(Members, Clients, Options) ->
    Common = Options#{members => test_quorum_cluster:members(Members)},
    %% A first start is slower if there may be clients.
    Allowed = case Clients of [] -> none; _ -> all end,
    OfMember = Common#{clients => Allowed},
    OfClient = Common#{voter => false},
    test_quorum_cluster:start_all([{Node, OfMember} || Node <- Members] ++ [{Node, OfClient} || Node <- Clients]).

%% Waits until no node has a lock or a waiter, of the quorum locks or of `global'.
-spec await_quiet([test_nodes:a_node()]) -> ok.
await_quiet(Nodes) ->
    Left = fun() ->
        Status = maps:with([held, waiting, pending_unlocks], canal_lock_quorum:status()),
        %% `global' has no function that counts its locks.
        {lists:sum(maps:values(Status)), ets:info(global_locks, size)}
    end,
    _ = test_nodes:call_all(Nodes, fun() -> test_await:value({0, 0}, Left, ?QUIET_MS) end),
    ok.

%% The number of packets that all processes of this node have sent to other nodes, as its sockets count them.
-spec frames_sent() -> non_neg_integer().
frames_sent() ->
    lists:sum([
        Count
     || {_, Socket} <- erlang:system_info(dist_ctrl), {ok, [{send_cnt, Count}]} <- [inet:getstat(Socket, [send_cnt])]
    ]).

%% How long all threads of this VM have run, in the kernel too; `unknown' where the system does not report it. In
%% nanoseconds. The times of the whole process are in ticks, which an idle process falls between.
-spec cpu_ns() -> non_neg_integer() | unknown.
cpu_ns() ->
    case filelib:wildcard("/proc/self/task/*/schedstat") of
        [] -> unknown;
        Files -> lists:sum([thread_ns(File) || File <- Files])
    end.

%% The thread may have ended.
thread_ns(File) ->
    case file:read_file(File) of
        {ok, Bytes} ->
            [Ran_ns | _] = binary:split(Bytes, <<" ">>),
            binary_to_integer(Ran_ns);
        {error, _} ->
            0
    end.
