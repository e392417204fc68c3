%% Compares two runs by the ratio of the medians. Times of two runs also differ by the load of the machine. The lines
%% of the floor, whose code does not change, come first: only a larger difference than theirs is significant.
-module(bench_compare).

-export([text/2]).

-spec text(OldFile :: file:filename(), NewFile :: file:filename()) -> iolist().
text(OldFile, NewFile) ->
    {OldFacts, Old} = bench_results:read(OldFile),
    {NewFacts, New} = bench_results:read(NewFile),
    {Floor, Others} = lists:partition(fun({{_, _, _, Subject, _}, _}) -> Subject =:= floor end, in_both(Old, New)),
    [
        [io_lib:format("old  ~ts: ~ts~n", [Name, Value]) || {Name, Value} <- OldFacts],
        [io_lib:format("new  ~ts: ~ts~n", [Name, Value]) || {Name, Value} <- NewFacts],
        io_lib:format("~n~-76ts~12s~12s  new / old~n", ["", "old", "new"]),
        [line(Id, Samples) || {Id, Samples} <- Floor ++ Others]
    ].

in_both(Old, New) ->
    [{Id, {Before, maps:get(Id, New)}} || {Id, Before} <- bench_results:in_order(Old), is_map_key(Id, New)].

%% The mark: the interquartile ranges of the two runs do not overlap.
line({Case, Variant, X, Subject, Measure}, {Before, After}) ->
    #{median := Old, p25 := OldLow, p75 := OldHigh} = spread(Before),
    #{median := New, p25 := NewLow, p75 := NewHigh} = spread(After),
    Unit = bench_cases:unit(Case, Measure),
    Name = io_lib:format("~s, ~ts, ~p, ~s, ~s (~s)", [Case, Variant, X, Subject, Measure, Unit]),
    Mark = [" *" || NewLow > OldHigh orelse NewHigh < OldLow],
    io_lib:format("~-76ts~12s~12s~11s~s~n", [
        Name, bench_report:number(Old), bench_report:number(New), ratio(New, Old), Mark
    ]).

spread(Samples) ->
    bench_results:spread([Value || {_, Value} <- Samples]).

ratio(_, Old) when Old == 0 -> "-";
ratio(New, Old) -> float_to_list(New / Old, [{decimals, 2}]).
