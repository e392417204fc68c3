%% Measures the duration of single acquires. An average hides rare slow calls.
%%
%% "under load": all schedulers but one run processes that acquire and release other keys of the same subject, and one
%% process times each of its acquires. "first acquire, idle VM": a new process times its first acquire, at intervals of
%% about a millisecond, while nothing else runs. For ours this includes the monitor; for all subjects, cold caches.
%%
%% Each time includes one reading of the clock; the subject `none' is that alone. On a shared machine the machine causes
%% most of the longest calls (the 100th percentile): compare with `none'.
%%
%% Options of the mode: latency_rounds; latency_calls (under load, per subject and round); first_acquires (likewise);
%% and those of bench_background.
-module(bench_latency).

-export([measure/2]).
%% Called in the other VM.
-export([acquires/1]).

-define(SUBJECTS, [ours, ets, counters, none]).
-define(PERCENTS, [50, 90, 99, 99.9, 99.99, 100]).
-define(MAX_PER, 10).
%% Pairs between two checks of the stop flag. A process that is killed would leak permits of ETS.
-define(BUSY_PAIRS, 100).
%% Between two processes that acquire for the first time.
-define(PAUSE_MS, 1).

-spec measure(map(), fun((iodata()) -> ok)) -> #{bench_results:id() => [{pos_integer(), float()}]}.
measure(#{latency_rounds := Rounds} = Mode, Report) ->
    bench_rounds:play(Rounds, fun(Round) ->
        lists:append([
            begin
                ok = Report(io_lib:format("latency of ~s, round ~b of ~b", [What, Round, Rounds])),
                Samples = bench_vm:call(ours, Module, What, [Mode]),
                [
                    {{latency, Variant, Percent, Subject, Measure}, Value}
                 || {Variant, Subject, Measure, Ns} <- Samples,
                    {Percent, Value} <- bench_times:percentiles(?PERCENTS, Ns)
                ]
            end
         || {Module, What} <- [{?MODULE, acquires}, {bench_background, pairs}]
        ])
    end).

-spec acquires(map()) -> [{Variant :: string(), bench_cases:subject(), acquire, [Ns :: integer()]}].
acquires(#{latency_calls := Calls, first_acquires := Firsts}) ->
    [ok = start(Subject) || Subject <- ?SUBJECTS],
    First = first_acquires(Firsts),
    InTurn = bench_rounds:shuffle(?SUBJECTS),
    Loaded = [{"under load", Subject, acquire, under_load(Subject, Calls)} || Subject <- InTurn],
    [ok = closed(Subject) || Subject <- ?SUBJECTS],
    First ++ Loaded.

start(none) -> ok;
start(Subject) -> bench_subjects:start(Subject).

closed(none) -> ok;
closed(Subject) -> bench_records:closed(Subject).

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
?TIME(ets, test_original);
?TIME(counters, bench_counters);
time(none, _Key) ->
    Start = erlang:monotonic_time(),
    erlang:monotonic_time() - Start.

under_load(Subject, Calls) ->
    Stop = atomics:new(1, []),
    AllBusy = [
        spawn_opt(fun() -> be_busy(Subject, {busy, Scheduler}, Stop) end, [monitor, {scheduler, Scheduler}])
     || Scheduler <- lists:seq(2, erlang:system_info(schedulers_online))
    ],
    Ns = bench_times:of_calls(Calls, fun() -> time(Subject, hot) end),
    ok = atomics:put(Stop, 1, 1),
    [ok = bench_process:await_exit(Busy, normal) || Busy <- AllBusy],
    Ns.

be_busy(Subject, Key, Stop) ->
    [time(Subject, Key) || _ <- lists:seq(1, ?BUSY_PAIRS)],
    case atomics:get(Stop, 1) of
        0 -> be_busy(Subject, Key, Stop);
        1 -> ok
    end.

first_acquires(Firsts) ->
    Times = [{Subject, bench_times:new(Firsts)} || Subject <- ?SUBJECTS],
    %% The first use of the key is not part of the cost of a process.
    [time(Subject, hot) || Subject <- ?SUBJECTS],
    [
        first_acquire(Subject, Call, OfSubject)
     || Call <- lists:seq(1, Firsts), {Subject, OfSubject} <- bench_rounds:shuffle(Times)
    ],
    [{"first acquire, idle VM", Subject, acquire, bench_times:ns(OfSubject)} || {Subject, OfSubject} <- Times].

first_acquire(Subject, Call, Times) ->
    First = spawn_monitor(fun() -> ok = bench_times:note(Times, Call, time(Subject, hot)) end),
    ok = bench_process:await_exit(First, normal),
    receive
    after ?PAUSE_MS -> ok
    end.
