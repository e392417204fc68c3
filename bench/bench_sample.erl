%% Samples of loops that run for a given time. A sample starts a new process for each worker, which runs the worker's
%% phases one after the other.
-module(bench_sample).

-export([runs/4]).

-export_type([worker/0, loop/0]).

-type loop() ::
    fun((Place :: term(), MaxPer :: pos_integer(), Buckets :: pos_integer(), Times :: non_neg_integer()) -> ok).
-type phase() :: {bench_results:measure(), loop(), Place :: term(), MaxPer :: pos_integer(), Buckets :: pos_integer()}.
%% `around' runs the phases that it gets, and may do something before and after that is not timed.
-type worker() :: #{phases := [phase(), ...], around => fun((fun(() -> laps())) -> laps())}.
%% The duration of each phase.
-type sample() :: [{bench_results:measure(), Ns :: integer()}].
%% When each phase began and ended, in native units.
-type laps() :: [{integer(), integer()}].

%% Loops of the first trial. Each further trial has ?TRIAL_GROWTH times as many, until one takes a quarter of a sample.
-define(TRIAL_LOOPS, 2).
-define(TRIAL_GROWTH, 8).
%% This number of workers shares the time of one sample. More workers get a longer sample, so that start-up costs less.
-define(CROWD, 250).
%% Words (512 KB). Fixed, so that every subject collects garbage equally often, and within a second-level cache. The
%% value hardly matters: from 2 KB to 32 MB the floor's pair stayed within 6 %. Many workers share 32 MB.
-define(HEAP_WORDS, 65536).
-define(CROWD_WORDS, 4194304).
%% An untimed lap of this part of the timed one pays the one-time costs of a process.
-define(WARM_UP_PART, 10).

%% A run for bench_rounds: takes samples of this many milliseconds in the VM, of the workers that `Workers' creates
%% there. Its figures are the nanoseconds of a loop as each worker sees it, or the loops per second of all workers.
%% Trials first find the number of loops. They also warm the caches and pay the one-time costs of a subject.
-spec runs(bench_builds:vm(), {atom(), string(), number() | none, bench_results:subject()}, Options, bench:mode()) ->
    fun(() -> [{bench_results:id(), float()}])
when
    Options :: #{workers := fun(() -> [worker(), ...]), measures => [per_loop | per_second, ...]}.
runs(Vm, {Case, Variant, X, Subject} = Name, #{workers := Workers} = Options, #{sample_ms := Sample_ms}) ->
    %% The workers stay in the VM: counters of `atomics' cannot be sent.
    Count = bench_builds:call(Vm, fun() -> Created = Workers(), put(Name, Created), length(Created) end),
    Take = fun(Times) -> bench_builds:call(Vm, fun() -> take(get(Name), Times) end) end,
    Times = loops(Take, Sample_ms * 1.0e6 * max(1, Count div ?CROWD), ?TRIAL_LOOPS),
    Measures = maps:get(measures, Options, [per_loop]),
    fun() ->
        [
            {{Case, Variant, X, Subject, element(1, Figure)}, element(2, Figure)}
         || {Kind, Ns} <- Take(Times),
            Measure <- Measures,
            Figure <- [
                case Measure of
                    per_loop -> {Kind, Ns / Times};
                    per_second -> {per_second, Count * Times / Ns * 1.0e9}
                end
            ]
        ]
    end.

loops(Take, Sample_ns, Times) ->
    case lists:sum([Ns || {_, Ns} <- Take(Times)]) of
        Ns when Ns >= Sample_ns / 4 -> max(1, round(Times * Sample_ns / Ns));
        _ -> loops(Take, Sample_ns, Times * ?TRIAL_GROWTH)
    end.

%% Each phase counts from the start of the first worker to the end of the last. The phases cannot take longer than the
%% sample: that would be a wrong unit, or a wrong clock of a worker.
-spec take([worker(), ...], Times :: pos_integer()) -> sample().
take([#{phases := Phases} | _] = Workers, Times) ->
    Begin = erlang:monotonic_time(),
    Count = length(Workers),
    Barrier = atomics:new(1, []),
    Started = [start(Worker, Times, Barrier, Number, Count) || {Number, Worker} <- lists:enumerate(Workers)],
    ok = await_last(Barrier),
    [Pid ! {Barrier, report} || {Pid, _} <- Started],
    OfWorkers = [bench_process:await(Pid, Monitor) || {Pid, Monitor} <- Started],
    Sample = [
        {element(1, Phase), between([lists:nth(Number, Laps) || Laps <- OfWorkers])}
     || {Number, Phase} <- lists:enumerate(Phases)
    ],
    true = lists:sum([Ns || {_, Ns} <- Sample]) =< between([{Begin, erlang:monotonic_time()}]),
    Sample.

between(Laps) ->
    {Starts, Ends} = lists:unzip(Laps),
    erlang:convert_time_unit(lists:max(Ends) - lists:min(Starts), native, nanosecond).

%% Heap words of one process if there are this many workers.
heap(Workers) ->
    min(?HEAP_WORDS, ?CROWD_WORDS div Workers).

start(#{phases := Phases} = Worker, Times, Barrier, Number, Count) ->
    Parent = self(),
    Around = maps:get(around, Worker, fun(Run) -> Run() end),
    Run = fun() ->
        Laps = Around(fun() ->
            _ = laps(Phases, Times div ?WARM_UP_PART + 1),
            ok = pass(Barrier, Count),
            laps(Phases, Times)
        end),
        ok = done(Barrier, Count, Parent),
        Parent ! {self(), Laps}
    end,
    spawn_opt(Run, [monitor, {min_heap_size, heap(Count)} | placement(Number, Count)]).

laps(Phases, Times) ->
    [
        begin
            Start = erlang:monotonic_time(),
            ok = Loop(Place, MaxPer, Buckets, Times),
            {Start, erlang:monotonic_time()}
        end
     || {_, Loop, Place, MaxPer, Buckets} <- Phases
    ].

%% Concurrent workers must not share a scheduler, and the VM balances its schedulers too slowly for a sample. The option
%% is undocumented, but the VM's own tests rely on it.
placement(_Number, 1) -> [];
placement(Number, _Count) -> [{scheduler, (Number - 1) rem erlang:system_info(schedulers_online) + 1}].

%% Workers do not sleep while they wait for the others: a wake-up costs as much as many loops, and waking 1,000 workers
%% would overlap with the measurement. They spin if each has a scheduler; otherwise they yield.
pass(Barrier, Count) ->
    ok = atomics:add(Barrier, 1, 1),
    pass(Barrier, Count, Count =< erlang:system_info(schedulers_online)).

pass(Barrier, Count, Spins) ->
    case atomics:get(Barrier, 1) of
        Reached when Reached >= Count ->
            ok;
        _ ->
            Spins orelse erlang:yield(),
            pass(Barrier, Count, Spins)
    end.

%% No worker exits before all are done, because an exit also costs as much as many loops.
done(Barrier, Count, Parent) ->
    case atomics:add_get(Barrier, 1, 1) of
        All when All =:= 2 * Count -> Parent ! {Barrier, all_done};
        _ -> ok
    end,
    receive
        {Barrier, report} -> ok
    end.

await_last(Barrier) ->
    receive
        {Barrier, all_done} -> ok;
        {'DOWN', _, process, _, Reason} -> error({worker, Reason})
    end.
