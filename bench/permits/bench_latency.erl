%% Measures the duration of single acquires. An average hides rare slow calls. One process times each of its acquires,
%% while all schedulers but one run processes that acquire and release. They use the same key each time ("under load"),
%% or a new one ("under load with new keys"), while the sweep starts again each millisecond.
%%
%% Each time includes one reading of the clock; the subject `none' is that alone. On a shared machine the machine causes
%% most of the longest calls (the 100th percentile): compare with `none'.
%%
%% Options of the mode: latency_rounds; latency_calls (per subject, variant and round).
-module(bench_latency).

-export([measure/1]).

-define(MAX_PER, 10).
%% Pairs between two checks of the stop flag. A process that is killed would leak permits of ETS.
-define(BUSY_PAIRS, 100).

-spec measure(bench:mode()) -> bench_results:results().
measure(#{latency_rounds := Rounds, latency_calls := Calls}) ->
    %% The other subjects never forget a key.
    Variants = [{"under load", [ours, ets, counters, none]}, {"under load with new keys", [ours]}],
    bench_rounds:play(Rounds, [
        [run(Variant, Subject, Calls) || Subject <- bench_builds:with_ours(Subjects)]
     || {Variant, Subjects} <- Variants
    ]).

run(Variant, Subject, Calls) ->
    fun() ->
        Percentiles = bench_builds:once(Subject, fun() -> bench_times:percentiles(times(Variant, Subject, Calls)) end),
        [{{latency, Variant, Percent, Subject, acquire}, Ns} || {Percent, Ns} <- Percentiles]
    end.

times("under load", Subject, Calls) ->
    ok = bench_subjects:start(Subject),
    under_load(Subject, Calls, fun(Scheduler, _Lap) -> {busy, Scheduler} end);
times("under load with new keys", Subject, Calls) ->
    {ok, _} = canal_lock:start_link(?MAX_PER, #{sweep_interval_ms => 1}),
    Ns = under_load(Subject, Calls, fun(Scheduler, Lap) -> {busy, Scheduler, Lap} end),
    #{reclaimed := Reclaimed} = canal_lock:info(),
    true = Reclaimed > 0,
    Ns.

under_load(Subject, Calls, KeyOf) ->
    Others = lists:seq(2, erlang:system_info(schedulers_online)),
    _ = [bench_subjects:prepare(Subject, Key) || Key <- [hot | [KeyOf(Scheduler, 0) || Scheduler <- Others]]],
    Stop = atomics:new(1, []),
    AllBusy = [
        spawn_opt(fun() -> be_busy(Subject, KeyOf, Scheduler, 0, Stop) end, [monitor, {scheduler, Scheduler}])
     || Scheduler <- Others
    ],
    Ns = bench_times:of_calls(Calls, fun() -> time(Subject, hot) end),
    ok = atomics:put(Stop, 1, 1),
    [ok = bench_process:await_exit(Busy, normal) || Busy <- AllBusy],
    Ns.

be_busy(Subject, KeyOf, Scheduler, Lap, Stop) ->
    [time(Subject, KeyOf(Scheduler, Lap + Pair)) || Pair <- lists:seq(1, ?BUSY_PAIRS)],
    case atomics:get(Stop, 1) of
        0 -> be_busy(Subject, KeyOf, Scheduler, Lap + ?BUSY_PAIRS, Stop);
        1 -> ok
    end.

%% Times one acquire in native units; the release is not timed. A macro, as in bench_loops.
-define(TIME(Subject, Module),
    time(Subject, Key) ->
        Start = erlang:monotonic_time(),
        {acquired, _} = Module:acquire(Key, ?MAX_PER, 1),
        Time = erlang:monotonic_time() - Start,
        ok = Module:release(Key, ?MAX_PER, 1),
        Time
).

?TIME(ours, canal_lock);
?TIME(other, canal_lock);
?TIME(ets, test_original);
?TIME(counters, bench_counters);
time(none, _Key) ->
    Start = erlang:monotonic_time(),
    erlang:monotonic_time() - Start.
