%% What a node costs that locks nothing: the share of a core that its VM takes without the quorum locks, with them,
%% and while processes of all nodes hold many locks, which heartbeats keep.
-module(bench_cluster_idle).

-export([shares/2, with_locks/3]).

-type mode() :: #{idle_ms := pos_integer(), idle_warm_up_ms := pos_integer(), _ => _}.

%% So that the many are locked in a short time.
-define(HOLDERS, 20).
-define(TIMEOUT_MS, 60_000).

%% Per cent of a core that each node takes while nothing is asked of it.
-spec shares([bench_cluster_nodes:a_node()], mode()) -> [float()] | unknown.
shares(Nodes, #{idle_ms := Idle_ms, idle_warm_up_ms := WarmUp_ms}) ->
    Shares = bench_cluster_nodes:call_all(Nodes, fun() ->
        timer:sleep(WarmUp_ms),
        Cpu_ns = bench_cluster_nodes:cpu_ns(),
        timer:sleep(Idle_ms),
        case bench_cluster_nodes:cpu_ns() of
            unknown -> unknown;
            After_ns -> (After_ns - Cpu_ns) / Idle_ms / 10_000
        end
    end),
    case lists:member(unknown, Shares) of
        true -> unknown;
        false -> Shares
    end.

%% While each node holds so many, each of a name of its own. When this returns, they are being given back.
-spec with_locks([bench_cluster_nodes:a_node()], pos_integer(), fun(() -> Result)) -> Result.
with_locks(Nodes, Locks, Fun) ->
    Holders = bench_cluster_nodes:call_all(Nodes, fun() -> hold(Locks) end),
    Result = Fun(),
    Held = bench_cluster_nodes:call_all(Nodes, fun() -> maps:get(held, canal_lock_quorum:status()) end),
    %% What is lost meanwhile would cost nothing.
    true = lists:all(fun(Still) -> Still =:= Locks end, Held),
    _ = [bench_cluster_nodes:call(Node, fun() -> kill(Pids) end) || {Node, Pids} <- lists:zip(Nodes, Holders)],
    Result.

hold(Locks) ->
    Here = self(),
    Holders = [spawn(fun() -> hold(Here, I, Locks div ?HOLDERS) end) || I <- lists:seq(1, ?HOLDERS)],
    _ = [
        begin
            Monitor = monitor(process, Holder),
            receive
                {Holder, holds} -> demonitor(Monitor, [flush]);
                {'DOWN', Monitor, process, Holder, Reason} -> error({holder_failed, Reason})
            end
        end
     || Holder <- Holders
    ],
    Holders.

hold(Whoever, Holder, Locks) ->
    _ = [{ok, _} = canal_lock_quorum:lock({bench, node(), Holder, I}, ?TIMEOUT_MS) || I <- lists:seq(1, Locks)],
    Whoever ! {self(), holds},
    receive
        never -> ok
    end.

kill(Pids) ->
    lists:foreach(fun(Pid) -> exit(Pid, kill) end, Pids).
