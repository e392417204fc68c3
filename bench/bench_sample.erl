%% Takes one timed sample: a new process for each worker runs the worker's phases one after the other.
-module(bench_sample).

-export([take/2, laps/2, elapsed/2, heap/1]).

-export_type([worker/0, sample/0, laps/0]).

-type worker() ::
    [{bench_cases:kind(), bench_loops:loop(), Place :: term(), MaxPer :: pos_integer(), Buckets :: pos_integer()}].
%% Duration of each phase.
-type sample() :: [{bench_cases:kind(), Ns :: integer()}].
%% When each phase began and ended, in native units.
-type laps() :: [{integer(), integer()}].

%% Words (512 KB). Fixed, so that every subject collects garbage equally often, and within a second-level cache. The
%% value hardly matters: from 2 KB to 32 MB the floor's pair stayed within 6 %. Many workers share 32 MB.
-define(HEAP_WORDS, 65536).
-define(CROWD_WORDS, 4194304).
%% An untimed lap of this part of the timed one pays the one-time costs of a process.
-define(WARM_UP_PART, 10).

%% Each phase counts from the start of the first worker to the end of the last.
-spec take([worker()], Times :: pos_integer()) -> sample().
take([First | _] = Workers, Times) ->
    Count = length(Workers),
    Barrier = atomics:new(1, []),
    Numbered = lists:zip(lists:seq(1, Count), Workers),
    Started = [start(Worker, Times, Barrier, Number, Count) || {Number, Worker} <- Numbered],
    ok = await_last(Barrier, Started),
    elapsed(First, [bench_process:await(Pid, Monitor) || {Pid, Monitor} <- Started]).

-spec elapsed(worker(), [laps()]) -> sample().
elapsed(Worker, OfWorkers) ->
    [
        {Kind, between([lists:nth(Phase, Laps) || Laps <- OfWorkers])}
     || {Phase, {Kind, _, _, _, _}} <- lists:zip(lists:seq(1, length(Worker)), Worker)
    ].

between(Laps) ->
    {Starts, Ends} = lists:unzip(Laps),
    erlang:convert_time_unit(lists:max(Ends) - lists:min(Starts), native, nanosecond).

%% Runs the untimed lap, calls Wait, then runs the timed lap.
-spec laps(worker(), {Times :: pos_integer(), Wait :: fun(() -> ok)}) -> laps().
laps(Worker, {Times, Wait}) ->
    _ = each(Worker, Times div ?WARM_UP_PART + 1),
    ok = Wait(),
    each(Worker, Times).

each(Worker, Times) ->
    [lap(Loop, Place, MaxPer, Buckets, Times) || {_, Loop, Place, MaxPer, Buckets} <- Worker].

lap(Loop, Place, MaxPer, Buckets, Times) ->
    Start = erlang:monotonic_time(),
    ok = Loop(Place, MaxPer, Buckets, Times),
    {Start, erlang:monotonic_time()}.

%% Heap words of one process if there are this many workers.
-spec heap(Workers :: pos_integer()) -> pos_integer().
heap(Workers) ->
    min(?HEAP_WORDS, ?CROWD_WORDS div Workers).

start(Worker, Times, Barrier, Number, Count) ->
    Parent = self(),
    Run = fun() ->
        Laps = laps(Worker, {Times, fun() -> pass(Barrier, Count) end}),
        ok = done(Barrier, Count, Parent),
        Parent ! {self(), Laps}
    end,
    spawn_opt(Run, [monitor, {min_heap_size, heap(Count)} | placement(Number, Count)]).

%% Concurrent workers must not share a scheduler, and the VM balances its schedulers too slowly for a sample. The option
%% is undocumented, but the VM's own tests rely on it.
placement(_Number, 1) -> [];
placement(Number, _Count) -> [{scheduler, (Number - 1) rem erlang:system_info(schedulers_online) + 1}].

%% Workers do not sleep while they wait for the others: a wake-up costs as much as many loops, and waking 1,000 workers
%% would overlap with the measurement. They spin if each has a scheduler; otherwise they yield.
pass(Barrier, Count) ->
    ok = atomics:add(Barrier, 1, 1),
    case Count =< erlang:system_info(schedulers_online) of
        true -> spin_until(Barrier, Count);
        false -> yield_until(Barrier, Count)
    end.

spin_until(Barrier, Count) ->
    case atomics:get(Barrier, 1) of
        Reached when Reached >= Count -> ok;
        _ -> spin_until(Barrier, Count)
    end.

yield_until(Barrier, Count) ->
    case atomics:get(Barrier, 1) of
        Reached when Reached >= Count ->
            ok;
        _ ->
            true = erlang:yield(),
            yield_until(Barrier, Count)
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

await_last(Barrier, Started) ->
    receive
        {Barrier, all_done} ->
            [Pid ! {Barrier, report} || {Pid, _} <- Started],
            ok;
        {'DOWN', _, process, _, Reason} ->
            error({worker, Reason})
    end.
