%% The times of single calls, each taken by itself. They are noted outside of the heap of whoever measures, in memory
%% that is there before, so that noting them neither makes garbage nor meets a page that the system has yet to give.
%% Read as percentiles, by the nearest rank: always a value that was measured.
-module(bench_times).

-export([of_calls/2, in_a_process/1, new/1, note/3, ns/1, of_native/1, percentiles/2, worst_us/1]).

-export_type([times/0]).

-opaque times() :: atomics:atomics_ref().

%% Whoever measures so collects the garbage between two calls, before the heap is full: what 250 pairs of the most
%% wasteful subject leave is less than 20,000 words.
-define(CALLS_PER_COLLECTION, 250).
-define(HEAP_WORDS, 32768).
%% The calls that are not timed are this part of those that are.
-define(WARM_UP_PART, 10).

%% Nanoseconds of so many calls, one after the other. The fun makes one and says how long it took, in the VM's own
%% unit.
-spec of_calls(Calls :: pos_integer(), fun(() -> integer())) -> [integer()].
of_calls(Calls, Time) ->
    Times = new(Calls),
    WarmUp = Calls div ?WARM_UP_PART + 1,
    ok = in_a_process(fun() ->
        ok = each(Time, new(WarmUp), WarmUp),
        each(Time, Times, Calls)
    end),
    ns(Times).

%% What the fun says in a process of its own, which stays on the first scheduler (the option is not documented, but
%% the tests of the VM rely on it), and whose heap is not full before 32,768 words.
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

%% The time of one call, in the VM's own unit.
-spec note(times(), Call :: pos_integer(), Native :: integer()) -> ok.
note(Times, Call, Native) ->
    atomics:put(Times, Call, Native).

%% All of them, in nanoseconds. One that has not been noted is an error.
-spec ns(times()) -> [integer()].
ns(Times) ->
    #{size := Calls} = atomics:info(Times),
    [of_native(atomics:get(Times, Call)) || Call <- lists:seq(1, Calls)].

%% A time of 0 is one that nobody has taken.
-spec of_native(pos_integer()) -> Ns :: integer().
of_native(Native) when Native > 0 ->
    erlang:convert_time_unit(Native, native, nanosecond).

%% 100 is the longest. Hundredths of a percent are told apart. Those beyond which not one call lies are left out: they
%% would be the longest by another name.
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

%% Of pieces of work that others may have to wait for, in microseconds; `rare' is the 99.9th percentile, for there
%% are some thousand pieces.
-spec worst_us(Ns :: [integer(), ...]) -> [{median | rare | longest, Us :: float()}].
worst_us(Ns) ->
    [
        {Measure, Value / 1000}
     || {Measure, Percent} <- [{median, 50}, {rare, 99.9}, {longest, 100}],
        {_, Value} <- percentiles([Percent], Ns)
    ].

%% In whole numbers: as floats, 99.99 % of 200,000 are 199,980.00000000003.
rank(Percent, Count) ->
    max(1, (round(Percent * 100) * Count + 9999) div 10000).
