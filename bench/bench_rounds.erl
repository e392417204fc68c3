%% Collects samples by rounds. Each round takes one sample of each subject in random order, so that load on the machine
%% affects all subjects alike.
-module(bench_rounds).

-export([play/2, shuffle/1]).

-spec play(Rounds :: pos_integer(), fun((Round :: pos_integer()) -> [{bench_results:id(), number()}])) ->
    #{bench_results:id() => [{Round :: pos_integer(), float()}]}.
play(Rounds, Play) ->
    Samples = [{Id, {Round, float(Value)}} || Round <- lists:seq(1, Rounds), {Id, Value} <- Play(Round)],
    maps:groups_from_list(fun({Id, _}) -> Id end, fun({_, Sample}) -> Sample end, Samples).

-spec shuffle([Item]) -> [Item].
shuffle(List) ->
    [Item || {_, Item} <- lists:sort([{rand:uniform(), Item} || Item <- List])].
