%% One timed sample: fresh processes, one for each worker, run their phases one after the other.
-module(bench_sample).

-export([take/2]).

-export_type([worker/0]).

-type worker() ::
    [{bench_cases:op(), bench_loops:loop(), Key :: term(), MaxPer :: pos_integer(), Buckets :: pos_integer()}].

%% Words (512 KB). Fixed, so that every subject collects its garbage equally often, and within a second-level cache.
%% The value hardly matters: from 2 KB to 32 MB the pair of the floor stayed within 6 %.
-define(HEAP_WORDS, 65536).
%% The lap that is not timed is this part of the timed one: it pays for what a process pays once.
-define(WARM_UP_PART, 10).

%% Nanoseconds per loop of each phase, as a worker sees them: from the first that begins to the last that ends.
-spec take([worker()], Times :: pos_integer()) -> [{bench_cases:op(), float()}].
take([First | _] = Workers, Times) ->
    Barrier = atomics:new(1, []),
    Numbered = lists:zip(lists:seq(1, length(Workers)), Workers),
    Started = [start(Worker, Times, Barrier, Number, length(Workers)) || {Number, Worker} <- Numbered],
    Stamps = [await(Pid, Monitor) || {Pid, Monitor} <- Started],
    [
        {Op, per_loop([lists:nth(Phase, OfWorker) || OfWorker <- Stamps], Times)}
     || {Phase, {Op, _, _, _, _}} <- lists:zip(lists:seq(1, length(First)), First)
    ].

per_loop(Laps, Times) ->
    {Starts, Ends} = lists:unzip(Laps),
    Elapsed = erlang:convert_time_unit(lists:max(Ends) - lists:min(Starts), native, nanosecond),
    Elapsed / Times.

start(Worker, Times, Barrier, Number, Workers) ->
    Parent = self(),
    Run = fun() ->
        _ = laps(Worker, Times div ?WARM_UP_PART + 1),
        atomics:add(Barrier, 1, 1),
        spin_until(Barrier, Workers),
        Parent ! {self(), laps(Worker, Times)}
    end,
    spawn_opt(Run, [monitor, {min_heap_size, ?HEAP_WORDS} | placement(Number, Workers)]).

%% Workers that are to run at the same time must not share a scheduler, and the balancing of the VM takes longer than
%% a sample to part them. The option is not documented, but the tests of the VM rely on it.
placement(_Number, 1) -> [];
placement(Number, _Workers) -> [{scheduler, Number}].

laps(Worker, Times) ->
    [lap(Loop, Key, MaxPer, Buckets, Times) || {_, Loop, Key, MaxPer, Buckets} <- Worker].

lap(Loop, Key, MaxPer, Buckets, Times) ->
    Start = erlang:monotonic_time(),
    ok = Loop(Key, MaxPer, Buckets, Times),
    {Start, erlang:monotonic_time()}.

spin_until(Barrier, Workers) ->
    case atomics:get(Barrier, 1) of
        Workers -> ok;
        _ -> spin_until(Barrier, Workers)
    end.

await(Pid, Monitor) ->
    receive
        {Pid, Stamps} ->
            %% The next sample must not run beside the end of this process.
            receive
                {'DOWN', Monitor, process, Pid, normal} -> Stamps
            end;
        {'DOWN', Monitor, process, Pid, Reason} ->
            error({worker, Reason})
    end.
