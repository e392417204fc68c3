%% Measures the share of a core that the VM of an idle node uses: without the quorum locks, with them, and while
%% processes of all nodes hold many locks, which heartbeats renew.
-module(bench_cluster_idle).

-export([measure/4]).

%% Several processes, which lock faster than one.
-define(HOLDERS, 20).
-define(TIMEOUT_MS, 60_000).

%% Starts the quorum locks on all nodes, by `Start'. The values of a figure are those of the nodes, and one for the
%% busiest node. There are none where the system does not report processor times.
-spec measure(bench_results:subject(), [test_nodes:a_node()], fun(() -> ok), bench:mode()) -> bench_results:results().
measure(Subject, Nodes, Start, #{locks := Locks} = Mode) ->
    Percents = fun() -> test_nodes:call_all(Nodes, fun() -> percent(Mode) end) end,
    Without = Percents(),
    ok = Start(),
    With = Percents(),
    Holding = with_locks(Nodes, Locks, Percents),
    lists:foldl(fun bench_results:merge/2, #{}, [
        figures(Variant, Subject, Values)
     || {Variant, Values} <- [{"without quorum locks", Without}, {"no lock held", With}, {"all hold locks", Holding}]
    ]).

percent(#{idle_ms := Idle_ms, idle_warm_up_ms := WarmUp_ms}) ->
    %% The times of the measurement.
    timer:sleep(WarmUp_ms),
    Before = bench_cluster_nodes:cpu_ns(),
    timer:sleep(Idle_ms),
    case Before of
        unknown -> unknown;
        _ -> (bench_cluster_nodes:cpu_ns() - Before) / Idle_ms / 10_000
    end.

figures(Variant, Subject, Percents) ->
    Figure = fun(Measure, Values) -> {{idle, Variant, length(Percents), Subject, Measure}, Values} end,
    case lists:member(unknown, Percents) of
        true -> #{};
        false -> maps:from_list([Figure(core_percent, Percents), Figure(core_percent_most, [lists:max(Percents)])])
    end.

%% While each node holds locks of different names. When it returns all nodes have unlocked.
with_locks(Nodes, Locks, Sample) ->
    Holders = test_nodes:call_all(Nodes, fun() -> hold(Locks) end),
    Percents = Sample(),
    Held = test_nodes:call_all(Nodes, fun() -> maps:get(held, canal_lock_quorum:status()) end),
    %% A lock that is lost during the measurement would cost nothing.
    true = lists:all(fun(Still) -> Still =:= Locks end, Held),
    _ = [test_nodes:call(Node, fun() -> kill(Pids) end) || {Node, Pids} <- lists:zip(Nodes, Holders)],
    ok = bench_cluster_nodes:await_quiet(Nodes),
    Percents.

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
