%% Measures the share of a core that the VM of an idle node uses: without the quorum locks, with them, and while
%% processes of all nodes hold many locks, which heartbeats renew.
-module(bench_cluster_idle).

-export([shares/2, with_locks/3]).

-type mode() :: #{idle_ms := pos_integer(), idle_warm_up_ms := pos_integer(), _ => _}.

%% Several processes, which lock faster than one.
-define(HOLDERS, 20).
-define(TIMEOUT_MS, 60_000).

%% For each idle node the percentage of a core that it uses.
-spec shares([test_nodes:a_node()], mode()) -> [float()] | unknown.
shares(Nodes, #{idle_ms := Idle_ms, idle_warm_up_ms := WarmUp_ms}) ->
    Shares = test_nodes:call_all(Nodes, fun() ->
        %% The times of the measurement.
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

%% Calls the function while each node holds this many locks of different names. When it returns the nodes are unlocking.
-spec with_locks([test_nodes:a_node()], pos_integer(), fun(() -> Result)) -> Result.
with_locks(Nodes, Locks, Fun) ->
    Holders = test_nodes:call_all(Nodes, fun() -> hold(Locks) end),
    Result = Fun(),
    Held = test_nodes:call_all(Nodes, fun() -> maps:get(held, canal_lock_quorum:status()) end),
    %% A lock that is lost during the measurement would cost nothing.
    true = lists:all(fun(Still) -> Still =:= Locks end, Held),
    _ = [test_nodes:call(Node, fun() -> kill(Pids) end) || {Node, Pids} <- lists:zip(Nodes, Holders)],
    Result.

hold(Locks) ->
    Here = self(),
    Holders = [spawn_monitor(fun() -> hold(Here, I, Locks div ?HOLDERS) end) || I <- lists:seq(1, ?HOLDERS)],
    [
        receive
            {Holder, holds} -> Holder;
            {'DOWN', Monitor, process, Holder, Reason} -> error({holder_failed, Reason})
        end
     || {Holder, Monitor} <- Holders
    ].

hold(Caller, Holder, Locks) ->
    _ = [{ok, _} = canal_lock_quorum:lock({bench, node(), Holder, I}, ?TIMEOUT_MS) || I <- lists:seq(1, Locks)],
    Caller ! {self(), holds},
    receive
        never -> ok
    end.

kill(Pids) ->
    lists:foreach(fun(Pid) -> exit(Pid, kill) end, Pids).
