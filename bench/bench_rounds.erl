%% Takes samples in rounds. Each round takes one sample of each run in random order, but runs of a group, which are
%% compared with each other, are adjacent: a round takes seconds, and a shorter disturbance by another program would
%% affect only one side of the comparison.
-module(bench_rounds).

-export([play/2, shuffle/1]).

-export_type([run/0]).

-type run() :: fun(() -> [{bench_results:id(), number()}]).

%% Between two lines that show the progress.
-define(EVERY_MS, 10_000).

%% Raises if a round lacks a figure, or has it twice.
-spec play(Rounds :: pos_integer(), [[run()]]) -> bench_results:results().
play(Rounds, Groups) ->
    Samples = rounds(1, Rounds, Groups, now_ms(), []),
    Results = maps:groups_from_list(fun({Id, _}) -> Id end, fun({_, Sample}) -> Sample end, Samples),
    All = lists:seq(1, Rounds),
    maps:map(
        fun(Id, OfId) ->
            {Id, All, Values} = {Id, [R || {R, _} <- OfId], [V || {_, V} <- OfId]},
            Values
        end,
        Results
    ).

rounds(Round, Rounds, _Groups, _Told_ms, Samples) when Round > Rounds ->
    lists:reverse(Samples);
rounds(Round, Rounds, Groups, Told_ms, Samples) ->
    Now_ms = now_ms(),
    Tells = Now_ms - Told_ms >= ?EVERY_MS,
    Tells andalso io:format("  round ~b of ~b~n", [Round, Rounds]),
    New = [
        {Id, {Round, float(Value)}}
     || Group <- shuffle(Groups), Run <- shuffle(Group), {Id, Value} <- Run()
    ],
    Last_ms = case Tells of true -> Now_ms; false -> Told_ms end,
    rounds(Round + 1, Rounds, Groups, Last_ms, lists:reverse(New, Samples)).

-spec shuffle([Item]) -> [Item].
shuffle(List) ->
    [Item || {_, Item} <- lists:sort([{rand:uniform(), Item} || Item <- List])].

now_ms() ->
    erlang:monotonic_time(millisecond).
