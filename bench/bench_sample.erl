%% One timed sample: fresh processes, one for each worker, run their phases one after the other.
-module(bench_sample).

-export([take/2, laps/2, elapsed/2, heap/1]).

-export_type([worker/0, sample/0, laps/0]).

-type worker() ::
    [{bench_cases:kind(), bench_loops:loop(), Place :: term(), MaxPer :: pos_integer(), Buckets :: pos_integer()}].
%% How long each phase took.
-type sample() :: [{bench_cases:kind(), Ns :: integer()}].
%% When each phase began and ended, in native units.
-type laps() :: [{integer(), integer()}].

%% Words (512 KB). Fixed, so that every subject collects its garbage equally often, and within a second-level cache.
%% The value hardly matters: from 2 KB to 32 MB the pair of the floor stayed within 6 %. A crowd shares 32 MB.
-define(HEAP_WORDS, 65536).
-define(CROWD_WORDS, 4194304).
%% The lap that is not timed is this part of the timed one: it pays for what a process pays once.
-define(WARM_UP_PART, 10).

%% As the workers see it: from the first that begins a phase to the last that ends it.
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

%% With the lap before that is not timed, and whatever has to be waited for between the two.
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

%% In words, of one process among so many.
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

%% Workers that are to run at the same time must not share a scheduler, and the balancing of the VM takes longer than
%% a sample to part them. The option is not documented, but the tests of the VM rely on it.
placement(_Number, 1) -> [];
placement(Number, _Count) -> [{scheduler, (Number - 1) rem erlang:system_info(schedulers_online) + 1}].

%% Nobody sleeps until all are there: to be woken takes as long as many loops, and whoever wakes a thousand takes part
%% of what is measured. Those that have a scheduler each keep it; the others let each other come by.
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

%% Nor does anybody end before all are done: that takes as long, too.
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
