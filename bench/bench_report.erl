%% Formats the report: every figure with its spread, then the targets.
-module(bench_report).

-export([text/2, number/1]).

-spec text(bench_results:results(), [bench_targets:target()]) -> iolist().
text(Results, Targets) ->
    InOrder = bench_results:in_order(Results),
    [
        [
            figures(Case, Title, [Sample || {{C, _, _, _, _}, _} = Sample <- InOrder, C =:= Case])
         || {Case, Title} <- bench_cases:cases()
        ],
        line("~ntargets and ratios (median   p25..p75)~n", []),
        [target(Target, Results) || Target <- Targets]
    ].

figures(_Case, _Title, []) ->
    "";
figures(Case, Title, Measured) ->
    [
        line("~n~s: ~ts~n", [Case, Title]),
        line("  ~-34ts~-10ts~-11ts~-22ts~12s   p25..p75~n", ["", "X", "subject", "measure", "median"]),
        [
            line("  ~-34ts~-10ts~-11ts~-22ts~12s   ~ts ~s~n", [
                Variant, axis(X), Subject, Measure, Median, Spread, bench_cases:unit(Case, Measure)
            ])
         || {{_, Variant, X, Subject, Measure}, Samples} <- Measured,
            {Median, Spread} <- [spread([Value || {_, Value} <- Samples], fun number/1)]
        ]
    ].

axis(none) -> "";
axis(X) when is_integer(X) -> grouped(X);
axis(X) -> float_to_list(X, [short]).

target(#{text := Text, figure := Figure, unit := Unit} = Target, Results) ->
    case bench_targets:figure(Figure, Results) of
        {ok, Values} ->
            #{median := Median} = bench_results:spread(Values),
            {Middle, Spread} = spread(Values, fun ratio/1),
            Line = line("  ~-60ts~10s   ~-22ts ~-3s~ts", [Text, Middle, Spread, Unit, verdict(Target, Median)]),
            [string:trim(Line, trailing), "\n"];
        not_measured ->
            line("  ~-60ts not measured in this run~n", [Text])
    end.

verdict(#{bound := {at_most, Bound}}, Median) -> verdict("<=", Bound, Median =< Bound);
verdict(#{bound := {at_least, Bound}}, Median) -> verdict(">=", Bound, Median >= Bound);
verdict(#{}, _) -> "".

verdict(Sign, Bound, true) -> line("~s ~p  PASS", [Sign, Bound]);
verdict(Sign, Bound, false) -> line("~s ~p  MISS", [Sign, Bound]).

spread(Values, Text) ->
    #{median := Median, p25 := P25, p75 := P75} = bench_results:spread(Values),
    {Text(Median), [Text(P25), "..", Text(P75)]}.

%% Rounds to the significant digits.
-spec number(float()) -> string().
number(Value) when abs(Value) >= 1000 -> grouped(round(Value));
number(Value) -> float_to_list(Value, [{decimals, 1}]).

ratio(Value) when abs(Value) >= 1000 -> number(Value);
ratio(Value) -> float_to_list(Value, [{decimals, 2}]).

%% 1234567 as 1,234,567.
grouped(Integer) when Integer < 0 -> [$- | grouped(-Integer)];
grouped(Integer) when Integer < 1000 -> integer_to_list(Integer);
grouped(Integer) -> grouped(Integer div 1000) ++ "," ++ lists:flatten(line("~3..0b", [Integer rem 1000])).

line(Format, Arguments) ->
    io_lib:format(Format, Arguments).
