%% Records times of single calls and computes percentiles. The times are stored outside the heap of the measuring
%% process, in memory allocated before, so that storing them causes neither garbage nor page faults. Percentiles use the
%% nearest rank: always a measured value.
-module(bench_times).

-export([of_calls/2, in_a_process/1, new/1, note/3, ns/1, of_native/1, percentiles/2, worst_us/1]).

-export_type([times/0]).

-opaque times() :: atomics:atomics_ref().

%% The measuring process collects garbage between two calls, before its heap is full: 250 pairs of the subject with most
%% garbage leave less than 20,000 words.
-define(CALLS_PER_COLLECTION, 250).
-define(HEAP_WORDS, 32768).
%% The untimed calls are this part of the timed ones.
-define(WARM_UP_PART, 10).

%% Times this number of calls, in nanoseconds. The fun makes one call and returns its duration in native units.
-spec of_calls(Calls :: pos_integer(), fun(() -> integer())) -> [integer()].
of_calls(Calls, Time) ->
    Times = new(Calls),
    WarmUp = Calls div ?WARM_UP_PART + 1,
    ok = in_a_process(fun() ->
        ok = each(Time, new(WarmUp), WarmUp),
        each(Time, Times, Calls)
    end),
    ns(Times).

%% Runs the fun in another process and returns its result. The process stays on the first scheduler (the option is
%% undocumented, but the VM's own tests rely on it). Its heap is not full before 32,768 words.
-spec in_a_process(fun(() -> Result)) -> Result.
in_a_process(Fun) ->
    bench_process:result([{scheduler, 1}, {min_heap_size, ?HEAP_WORDS}], Fun).

each(_Time, _Times, 0) ->
    ok;
each(Time, Times, Call) ->
    ok = note(Times, Call, Time()),
    Call rem ?CALLS_PER_COLLECTION =:= 0 andalso erlang:garbage_collect(),
    each(Time, Times, Call - 1).

-spec new(Calls :: pos_integer()) -> times().
new(Calls) ->
    atomics:new(Calls, []).

%% Stores the time of one call, in native units.
-spec note(times(), Call :: pos_integer(), Native :: integer()) -> ok.
note(Times, Call, Native) ->
    atomics:put(Times, Call, Native).

%% Returns all times in nanoseconds. Raises if one is missing.
-spec ns(times()) -> [integer()].
ns(Times) ->
    #{size := Calls} = atomics:info(Times),
    [of_native(atomics:get(Times, Call)) || Call <- lists:seq(1, Calls)].

%% A time of 0 means that the call was not timed.
-spec of_native(pos_integer()) -> Ns :: integer().
of_native(Native) when Native > 0 ->
    erlang:convert_time_unit(Native, native, nanosecond).

%% 100 is the longest call. Percentages have a resolution of 0.01. A percentile with no call beyond it is left out,
%% because it would equal the longest call.
-spec percentiles(Percents :: [number()], Ns :: [integer(), ...]) -> [{Percent :: number(), Ns :: float()}].
percentiles(Percents, Ns) ->
    Sorted = list_to_tuple(lists:sort(Ns)),
    Count = tuple_size(Sorted),
    [
        {Percent, float(element(Rank, Sorted))}
     || Percent <- Percents,
        Rank <- [rank(Percent, Count)],
        Rank < Count orelse Percent =:= 100
    ].

%% For work that can delay callers, in microseconds. `rare' is the 99.9th percentile.
-spec worst_us(Ns :: [integer(), ...]) -> [{median | rare | longest, Us :: float()}].
worst_us(Ns) ->
    [
        {Measure, Value / 1000}
     || {Measure, Percent} <- [{median, 50}, {rare, 99.9}, {longest, 100}],
        {_, Value} <- percentiles([Percent], Ns)
    ].

%% Integer arithmetic: as floats, 99.99 % of 200,000 are 199,980.00000000003.
rank(Percent, Count) ->
    max(1, (round(Percent * 100) * Count + 9999) div 10000).
