%% Measures the duration of single calls. An average hides rare slow calls.
%%
%% "under load": all schedulers but one run processes that acquire and release other keys of the same subject, and one
%% process times each of its acquires.
%%
%% The other variants show whether the sweep or inspections delay callers. One process times each of its pairs:
%%   "quiet"                nothing else runs
%%   "beside a sweep"       the sweep starts again each millisecond, while another process makes a new key in each call
%%   "beside inspections"   keys/0, audit/0 and info/0 are called in a loop on a table of many held keys
%%
%% Each time includes one reading of the clock; the subject `none' is that alone. On a shared machine the machine causes
%% most of the longest calls (the 100th percentile): compare with `none' and with "quiet".
%%
%% Options of the mode: latency_rounds; latency_calls (per subject, variant and round); latency_keys (inspected).
-module(bench_latency).

-export([measure/1]).

-define(SUBJECTS, [ours, ets, counters, none]).
-define(MAX_PER, 10).
%% Pairs between two checks of the stop flag. A process that is killed would leak permits of ETS.
-define(BUSY_PAIRS, 100).
%% The processes that hold the inspected keys.
-define(HOLDERS, 1000).

-spec measure(bench:mode()) -> bench_results:results().
measure(#{latency_rounds := Rounds, latency_calls := Calls, latency_keys := Keys}) ->
    UnderLoad = [
        run("under load", Subject, acquire, fun() -> under_load(Subject, Calls) end)
     || Subject <- bench_builds:with_ours(?SUBJECTS)
    ],
    Beside = [
        run(Variant, Subject, pair, fun() -> beside(Variant, Keys, Calls) end)
     || Variant <- ["quiet", "beside a sweep", "beside inspections"], Subject <- bench_builds:ours()
    ],
    bench_rounds:play(Rounds, [UnderLoad, Beside]).

run(Variant, Subject, Measure, Times) ->
    fun() ->
        Percentiles = bench_builds:once(Subject, fun() -> bench_times:percentiles(Times()) end),
        [{{latency, Variant, Percent, Subject, Measure}, Ns} || {Percent, Ns} <- Percentiles]
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

under_load(Subject, Calls) ->
    ok = bench_subjects:start(Subject),
    _ = [bench_subjects:prepare(Subject, Key) || Key <- [hot | [{busy, I} || I <- schedulers()]]],
    Stop = atomics:new(1, []),
    AllBusy = [
        spawn_opt(fun() -> be_busy(Subject, {busy, Scheduler}, Stop) end, [monitor, {scheduler, Scheduler}])
     || Scheduler <- tl(schedulers())
    ],
    Ns = bench_times:of_calls(Calls, fun() -> time(Subject, hot) end),
    ok = atomics:put(Stop, 1, 1),
    [ok = bench_process:await_exit(Busy, normal) || Busy <- AllBusy],
    Subject =:= none orelse bench_records:closed(Subject),
    Ns.

be_busy(Subject, Key, Stop) ->
    [time(Subject, Key) || _ <- lists:seq(1, ?BUSY_PAIRS)],
    case atomics:get(Stop, 1) of
        0 -> be_busy(Subject, Key, Stop);
        1 -> ok
    end.

beside("quiet", _Keys, Calls) ->
    {ok, _} = canal_lock:start_link(?MAX_PER),
    beside_tasks([], Calls);
beside("beside a sweep", _Keys, Calls) ->
    {ok, _} = canal_lock:start_link(?MAX_PER, #{sweep_interval_ms => 1}),
    Ns = beside_tasks([fun one_shot/1], Calls),
    #{reclaimed := Reclaimed} = canal_lock:info(),
    true = Reclaimed > 0,
    Ns;
beside("beside inspections", Keys, Calls) ->
    {ok, _} = canal_lock:start_link(?MAX_PER),
    OfHolder = fun(Holder) -> [{Holder, Key} || Key <- lists:seq(1, Keys div ?HOLDERS)] end,
    ok = bench_subjects:hold(ours, [OfHolder(Holder) || Holder <- lists:seq(1, ?HOLDERS)], 1, 1),
    Inspect = [fun(_) -> canal_lock:keys() end, fun(_) -> canal_lock:audit() end, fun(_) -> canal_lock:info() end],
    beside_tasks(Inspect, Calls).

%% The tasks run on other schedulers, if the machine has them, so that only the table can delay a pair. Each task has
%% completed once before the first pair is timed.
beside_tasks(Tasks, Calls) ->
    Parent = self(),
    Places = case schedulers() of [One] -> [One]; [_ | Others] -> Others end,
    Processes = [
        spawn_opt(
            fun() ->
                Task(0),
                Parent ! {self(), at_work},
                repeat(Task, 1)
            end,
            [link, {scheduler, lists:nth(Number rem length(Places) + 1, Places)}]
        )
     || {Number, Task} <- lists:enumerate(Tasks)
    ],
    [receive {Process, at_work} -> ok end || Process <- Processes],
    bench_times:of_calls(Calls, fun pair/0).

pair() ->
    Start = erlang:monotonic_time(),
    {acquired, _} = canal_lock:acquire(hot, ?MAX_PER, 1),
    ok = canal_lock:release(hot, ?MAX_PER, 1),
    erlang:monotonic_time() - Start.

repeat(Task, Lap) ->
    Task(Lap),
    repeat(Task, Lap + 1).

one_shot(Lap) ->
    {acquired, 1} = canal_lock:acquire({one_shot, Lap}, 1, 1),
    ok = canal_lock:release({one_shot, Lap}, 1, 1).

schedulers() ->
    lists:seq(1, erlang:system_info(schedulers_online)).
