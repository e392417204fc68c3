%% Records times of single calls and computes percentiles. The times are stored outside the heap of the measuring
%% process, in memory allocated before, so that storing them causes neither garbage nor page faults. Percentiles use the
%% nearest rank: always a measured value.
-module(bench_times).

-export([of_calls/2, new/1, note/3, ns/1, ns/2, percentiles/1]).

-export_type([times/0]).

-opaque times() :: atomics:atomics_ref().

-define(PERCENTS, [50, 90, 99, 99.9, 99.99, 100]).
%% The measuring process collects garbage between two calls, before its heap is full: 250 pairs of the subject with most
%% garbage leave less than 20,000 words.
-define(CALLS_PER_COLLECTION, 250).
-define(HEAP_WORDS, 32768).
%% The untimed calls are this part of the timed ones.
-define(WARM_UP_PART, 10).

%% Times this number of calls, in nanoseconds. The fun makes one call and returns its duration in native units. The
%% calling process stays on the first scheduler (the option is undocumented, but the VM's own tests rely on it).
-spec of_calls(Calls :: pos_integer(), fun(() -> integer())) -> [integer()].
of_calls(Calls, Time) ->
    Times = new(Calls),
    WarmUp = Calls div ?WARM_UP_PART + 1,
    ok = bench_process:result([{scheduler, 1}, {min_heap_size, ?HEAP_WORDS}], fun() ->
        ok = each(Time, new(WarmUp), WarmUp),
        each(Time, Times, Calls)
    end),
    ns(Times).

each(_Time, _Times, 0) ->
    ok;
each(Time, Times, Call) ->
    ok = note(Times, Call, Time()),
    Call rem ?CALLS_PER_COLLECTION =:= 0 andalso erlang:garbage_collect(),
    each(Time, Times, Call - 1).

-spec new(Calls :: pos_integer()) -> times().
new(Calls) ->
    atomics:new(Calls, []).

%% Stores the time of one call, in native units. A time of 0 means that the call was not timed.
-spec note(times(), Call :: pos_integer(), Native :: integer()) -> ok.
note(Times, Call, Native) ->
    atomics:put(Times, Call, max(1, Native)).

%% All times in nanoseconds. Raises if one is missing.
-spec ns(times()) -> [integer()].
ns(Times) ->
    #{size := Calls} = atomics:info(Times),
    [begin true = Time > 0, ns(0, Time) end || Call <- lists:seq(1, Calls), Time <- [atomics:get(Times, Call)]].

%% Between two instants in native units.
-spec ns(Start :: integer(), End :: integer()) -> Ns :: integer().
ns(Start, End) ->
    erlang:convert_time_unit(End - Start, native, nanosecond).

%% 100 is the longest call. A percentile with no call beyond it is left out, because it would equal the longest call.
-spec percentiles(Ns :: [integer(), ...]) -> [{Percent :: number(), Ns :: integer()}].
percentiles(Ns) ->
    Sorted = list_to_tuple(lists:sort(Ns)),
    Count = tuple_size(Sorted),
    [
        {Percent, element(Rank, Sorted)}
     || Percent <- ?PERCENTS,
        %% Integer arithmetic: as floats, 99.99 % of 200,000 are 199,980.00000000003.
        Rank <- [max(1, (round(Percent * 100) * Count + 9999) div 10000)],
        Rank < Count orelse Percent =:= 100
    ].
