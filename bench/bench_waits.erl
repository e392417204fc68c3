%% A histogram of the times of calls, with steps of one percent. Its memory is allocated once, so to add a time produces
%% no garbage.
-module(bench_waits).

-export([new/0, note/2, filled/1, all/1, count/1, percentile/2]).

-export_type([waits/0, filled/0]).

-opaque waits() :: counters:counters_ref().
%% The steps that have times and their counts. Unlike the histogram it can be sent to another node.
-type filled() :: [{Step :: pos_integer(), Times :: pos_integer()}].

%% 1 / ln(1.01)
-define(STEPS_PER_E, 100.5).
%% Up to a quarter of an hour in nanoseconds.
-define(STEPS, 2760).

-spec new() -> waits().
new() ->
    counters:new(?STEPS, []).

-spec note(waits(), Ns :: integer()) -> ok.
note(Waits, Ns) ->
    counters:add(Waits, min(?STEPS, 1 + trunc(?STEPS_PER_E * math:log(max(1, Ns)))), 1).

-spec filled(waits()) -> filled().
filled(Waits) ->
    [{Step, Times} || Step <- lists:seq(1, ?STEPS), Times <- [counters:get(Waits, Step)], Times > 0].

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
    step(max(1, ceil(P * count(Filled) / 100)), Filled).

step(Rank, [{Step, Times} | _]) when Rank =< Times -> math:exp((Step - 0.5) / ?STEPS_PER_E);
step(Rank, [{_, Times} | Filled]) -> step(Rank - Times, Filled).
