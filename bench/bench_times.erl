%% A histogram of times, with steps of one percent. Its memory is allocated once, so to add a time produces no garbage.
%% Several processes can add to it.
-module(bench_times).

-export([new/0, note/2, filled/1, all/1, count/1, percentile/2, percentiles/1, ns/2]).

-export_type([times/0, filled/0]).

-opaque times() :: counters:counters_ref().
%% The steps that have times and their counts. Unlike the histogram it can be sent to another node.
-type filled() :: [{Step :: pos_integer(), Times :: pos_integer()}].

%% 1 / ln(1.01)
-define(STEPS_PER_E, 100.5).
%% Up to a quarter of an hour in nanoseconds.
-define(STEPS, 2760).
-define(PERCENTS, [50, 90, 99, 99.9, 99.99, 100]).

-spec new() -> times().
new() ->
    counters:new(?STEPS, []).

-spec note(times(), Ns :: integer()) -> ok.
note(Times, Ns) ->
    counters:add(Times, min(?STEPS, 1 + trunc(?STEPS_PER_E * math:log(max(1, Ns)))), 1).

-spec filled(times()) -> filled().
filled(Times) ->
    [{Step, Count} || Step <- lists:seq(1, ?STEPS), Count <- [counters:get(Times, Step)], Count > 0].

%% The sum of several histograms.
-spec all([filled()]) -> filled().
all(Filled) ->
    Add = fun({Step, Times}, Sum) -> maps:update_with(Step, fun(Before) -> Before + Times end, Times, Sum) end,
    lists:sort(maps:to_list(lists:foldl(Add, #{}, lists:append(Filled)))).

-spec count(filled()) -> non_neg_integer().
count(Filled) ->
    lists:sum([Times || {_, Times} <- Filled]).

%% In nanoseconds, by the nearest rank, with an error of at most half a percent.
-spec percentile(number(), filled()) -> float().
percentile(P, Filled) ->
    step(rank(P, Filled), Filled).

rank(P, Filled) ->
    max(1, ceil(P * count(Filled) / 100)).

step(Rank, [{Step, Times} | _]) when Rank =< Times -> math:exp((Step - 0.5) / ?STEPS_PER_E);
step(Rank, [{_, Times} | Filled]) -> step(Rank - Times, Filled).

%% 100 is the longest time. A percentile with no time beyond it is left out, because it would equal the longest time.
-spec percentiles(filled()) -> [{Percent :: number(), Ns :: float()}].
percentiles(Filled) ->
    [{P, percentile(P, Filled)} || P <- ?PERCENTS, rank(P, Filled) < count(Filled) orelse P =:= 100].

%% Between two instants in native units.
-spec ns(Start :: integer(), End :: integer()) -> Ns :: integer().
ns(Start, End) ->
    erlang:convert_time_unit(End - Start, native, nanosecond).
