%% From rounds to results. Whatever happens to the machine meanwhile happens to all subjects alike: each round takes
%% one sample of each of them, in an order of its own.
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
