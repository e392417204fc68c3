%% Samples of loops that run for a given time. A sample starts a new process for each worker, which runs its loop.
-module(bench_sample).

-export([run/5]).

-export_type([worker/0, loop/0]).

-type loop() ::
    fun((Place :: term(), MaxPer :: pos_integer(), Buckets :: pos_integer(), Times :: non_neg_integer()) -> ok).
-type worker() :: {loop(), Place :: term(), MaxPer :: pos_integer(), Buckets :: pos_integer()}.

%% Loops of the first trial. Each further trial has ?TRIAL_GROWTH times as many, until one takes a quarter of a sample.
-define(TRIAL_LOOPS, 2).
-define(TRIAL_GROWTH, 8).
%% Words (512 KB). Fixed, so that every subject collects garbage equally often, and within a second-level cache. The
%% value hardly matters: from 2 KB to 32 MB the floor's pair stayed within 6 %.
-define(HEAP_WORDS, 65536).
%% An untimed lap of this part of the timed one pays the one-time costs of a process.
-define(WARM_UP_PART, 10).

%% A run for bench_rounds: takes samples of this many milliseconds in the VM, of the workers that `Workers' creates
%% there. The measure `per_second' is the loops per second of all workers. Any other one is the nanoseconds of a loop as
%% each worker sees it. Trials first find the number of loops. They also warm the caches and pay the one-time costs of a
%% subject.
-spec run(bench_builds:vm(), Name, [bench_results:measure()], fun(() -> [worker(), ...]), bench:mode()) ->
    bench_rounds:run()
when
    Name :: {Case :: atom(), Variant :: string(), X :: number() | none, bench_results:subject()}.
run(Vm, {Case, Variant, X, Subject} = Name, Measures, Workers, #{sample_ms := Sample_ms}) ->
    %% The workers stay in the VM: counters of `atomics' cannot be sent.
    Count = bench_builds:call(Vm, fun() -> Created = Workers(), put(Name, Created), length(Created) end),
    Take = fun(Times) -> bench_builds:call(Vm, fun() -> take(get(Name), Times) end) end,
    Times = loops(Take, Sample_ms * 1.0e6, ?TRIAL_LOOPS),
    fun() ->
        Ns = Take(Times),
        Value = fun(per_second) -> Count * Times / Ns * 1.0e9; (_) -> Ns / Times end,
        [{{Case, Variant, X, Subject, Measure}, Value(Measure)} || Measure <- Measures]
    end.

loops(Take, Sample_ns, Times) ->
    case Take(Times) of
        Ns when Ns >= Sample_ns / 4 -> max(1, round(Times * Sample_ns / Ns));
        _ -> loops(Take, Sample_ns, Times * ?TRIAL_GROWTH)
    end.

%% From the start of the first worker to the end of the last. That cannot be longer than the sample: it would be a wrong
%% unit, or a wrong clock of a worker.
take(Workers, Times) ->
    Begin = erlang:monotonic_time(),
    Count = length(Workers),
    Barrier = atomics:new(1, []),
    Started = [start(Worker, Times, Barrier, Number, Count) || {Number, Worker} <- lists:enumerate(Workers)],
    {Starts, Ends} = lists:unzip([bench_process:await(Pid, Monitor) || {Pid, Monitor} <- Started]),
    Ns = bench_times:ns(lists:min(Starts), lists:max(Ends)),
    true = Ns =< bench_times:ns(Begin, erlang:monotonic_time()),
    Ns.

start(Worker, Times, Barrier, Number, Count) ->
    Parent = self(),
    Run = fun() ->
        _ = lap(Worker, Times div ?WARM_UP_PART + 1),
        ok = atomics:add(Barrier, 1, 1),
        ok = pass(Barrier, Count),
        Parent ! {self(), lap(Worker, Times)}
    end,
    spawn_opt(Run, [monitor, {min_heap_size, ?HEAP_WORDS} | placement(Number, Count)]).

lap({Loop, Place, MaxPer, Buckets}, Times) ->
    Start = erlang:monotonic_time(),
    ok = Loop(Place, MaxPer, Buckets, Times),
    {Start, erlang:monotonic_time()}.

%% Concurrent workers must not share a scheduler, and the VM balances its schedulers too slowly for a sample. The option
%% is undocumented, but the VM's own tests rely on it.
placement(_Number, 1) -> [];
placement(Number, _Count) -> [{scheduler, (Number - 1) rem erlang:system_info(schedulers_online) + 1}].

%% Workers do not sleep while they wait for the others: a wake-up costs as much as many loops.
pass(Barrier, Count) ->
    case atomics:get(Barrier, 1) of
        Count -> ok;
        _ -> pass(Barrier, Count)
    end.
