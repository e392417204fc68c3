%% How long calls take, counted by steps of one per cent: memory that is there before and does not grow, so that to
%% note a time makes no garbage, however many there are and however long they are.
-module(bench_cluster_waits).

-export([new/0, note/2, filled/1, all/1, count/1, percentile/2]).

-export_type([waits/0, filled/0]).

-opaque waits() :: counters:counters_ref().
%% What can be sent to another node: the steps in which something was noted, in order, and how many times.
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

%% Of all of them together.
-spec all([filled()]) -> filled().
all(Filled) ->
    Add = fun({Step, Times}, Sum) -> maps:update_with(Step, fun(Before) -> Before + Times end, Times, Sum) end,
    lists:sort(maps:to_list(lists:foldl(Add, #{}, lists:append(Filled)))).

-spec count(filled()) -> non_neg_integer().
count(Filled) ->
    lists:sum([Times || {_, Times} <- Filled]).

%% In nanoseconds, by the nearest rank, half a per cent more or less.
-spec percentile(number(), filled()) -> float().
percentile(P, Filled) ->
    step(max(1, ceil(P * count(Filled) / 100)), Filled).

step(Rank, [{Step, Times} | _]) when Rank =< Times -> math:exp((Step - 0.5) / ?STEPS_PER_E);
step(Rank, [{_, Times} | Filled]) -> step(Rank - Times, Filled).
