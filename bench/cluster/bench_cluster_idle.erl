%% Measures the share of a core that the VM of an idle node uses: without the quorum locks, with them, and while
%% processes of all nodes hold many locks, which heartbeats renew.
-module(bench_cluster_idle).

-export([samples/4, samples_with_locks/4]).

%% `locks': how many each node holds in `samples_with_locks/4'.
-type mode() :: #{
    idle_ms := pos_integer(), idle_warm_up_ms := pos_integer(), locks := pos_integer(), _ => _
}.

%% Several processes, which lock faster than one.
-define(HOLDERS, 20).
-define(TIMEOUT_MS, 60_000).

%% For each idle node the percentage of a core that it uses. None where the system does not report processor times.
-spec samples(pos_integer(), atom(), [test_nodes:a_node()], mode()) -> [bench_cluster_report:sample()].
samples(Size, Subject, Nodes, #{idle_ms := Idle_ms, idle_warm_up_ms := WarmUp_ms}) ->
    Used_ns = test_nodes:call_all(Nodes, fun() ->
        %% The times of the measurement.
        timer:sleep(WarmUp_ms),
        Cpu_ns = bench_cluster_nodes:cpu_ns(),
        timer:sleep(Idle_ms),
        case Cpu_ns of
            unknown -> unknown;
            _ -> bench_cluster_nodes:cpu_ns() - Cpu_ns
        end
    end),
    [
        #{
            size => Size, 'case' => idle, subject => Subject, round => Place,
            values => #{core_percent => Ns / Idle_ms / 10_000}
        }
     || {Place, Ns} <- lists:zip(lists:seq(1, Size), Used_ns), Ns =/= unknown
    ].

%% The same while each node holds locks of different names. When it returns all nodes have unlocked.
-spec samples_with_locks(pos_integer(), atom(), [test_nodes:a_node()], mode()) -> [bench_cluster_report:sample()].
samples_with_locks(Size, Subject, Nodes, Mode = #{locks := Locks}) ->
    Holders = test_nodes:call_all(Nodes, fun() -> hold(Locks) end),
    Samples = samples(Size, Subject, Nodes, Mode),
    Held = test_nodes:call_all(Nodes, fun() -> maps:get(held, canal_lock_quorum:status()) end),
    %% A lock that is lost during the measurement would cost nothing.
    true = lists:all(fun(Still) -> Still =:= Locks end, Held),
    _ = [test_nodes:call(Node, fun() -> kill(Pids) end) || {Node, Pids} <- lists:zip(Nodes, Holders)],
    ok = bench_cluster_nodes:await_quiet(Nodes),
    Samples.

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
