%% Formats the report: every figure with its spread, this build beside the other one, and the targets.
-module(bench_report).

-export([text/2, in_order/2]).

-spec text(bench:program(), bench_results:results()) -> iolist().
text(#{cases := Cases, targets := Targets} = Program, Results) ->
    InOrder = in_order(Program, Results),
    [
        [
            of_case(Case, Title, [Figure || {{C, _, _, _, _}, _} = Figure <- InOrder, C =:= Case])
         || {Case, Title} <- Cases
        ],
        builds(InOrder, Results),
        line("~ntargets and ratios (median   p25..p75)~n", []),
        [target(Target, Results) || Target <- Targets]
    ].

%% By case; figures that are compared with each other are adjacent.
-spec in_order(bench:program(), bench_results:results()) -> [{bench_results:id(), [float(), ...]}].
in_order(#{cases := Cases, variants := Variants, subjects := Subjects}, Results) ->
    Place = fun(Item, List) -> length(lists:takewhile(fun(Other) -> Other =/= Item end, List)) end,
    CaseNames = [Case || {Case, _} <- Cases],
    Key = fun({Case, Variant, X, Subject, Measure}) ->
        {Place(Case, CaseNames), Place(Variant, Variants), Variant, Measure, X, Place(Subject, Subjects)}
    end,
    [{Id, Values} || {_, Id, Values} <- lists:sort([{Key(Id), Id, Values} || {Id, Values} <- maps:to_list(Results)])].

of_case(_Case, _Title, []) ->
    "";
of_case(Case, Title, Figures) ->
    [
        line("~n~s: ~ts~n", [Case, Title]),
        line("  ~-44ts~-10ts~-11ts~-24ts~15s   p25..p75~n", ["", "X", "subject", "measure", "median"]),
        [
            line("  ~-44ts~-10ts~-11ts~-24ts~15s   ~s~n", [Variant, axis(X), Subject, Measure, Median, Spread])
         || {{_, Variant, X, Subject, Measure} = Id, Values} <- Figures,
            {Median, Spread} <- [spread(Values, fun(Value) -> number(Value, bench_results:unit(Id)) end)]
        ]
    ].

%% Of each figure that both builds have. Two runs of one build show how much such a ratio varies.
builds(InOrder, Results) ->
    Ratios = [
        line("  ~-12ts~-44ts~-10ts~-24ts~10s   ~s~n", [Case, Variant, axis(X), Measure, Median, Spread])
     || {{Case, Variant, X, ours, Measure} = Id, _} <- InOrder,
        {ok, Values} <- [bench_results:figure({quotient, Id, setelement(4, Id, other)}, Results)],
        {Median, Spread} <- [spread(Values, fun ratio/1)]
    ],
    [[line("~nthis build / the other build (median   p25..p75)~n", []), Ratios] || Ratios =/= []].

target({Figure, Bound}, Results) ->
    Text = text_of(Figure),
    case bench_results:figure(Figure, Results) of
        {ok, Values} ->
            Format =
                case Figure of
                    {quotient, _, _} -> fun ratio/1;
                    _ -> fun(Value) -> number(Value, bench_results:unit(element(2, Figure))) end
                end,
            {Median, _, _} = bench_results:spread(Values),
            {Middle, Spread} = spread(Values, Format),
            Line = line("  ~-84ts~10s   ~-24s~s", [Text, Middle, Spread, verdict(Bound, Median, Format)]),
            [string:trim(Line, trailing), "\n"];
        not_measured ->
            line("  ~-84ts not measured in this run~n", [Text])
    end.

%% What both have in common, then what differs.
text_of({value, Id}) ->
    names(fields(Id));
text_of({quotient, A, B}) ->
    {Same, Differ} = lists:partition(fun({X, Y}) -> X =:= Y end, lists:zip(fields(A), fields(B))),
    {OfA, OfB} = lists:unzip(Differ),
    [names([X || {X, _} <- Same]), ": ", names(OfA), " / ", names(OfB)].

fields({Case, Variant, none, Subject, Measure}) -> [Case, Variant, Subject, Measure];
fields(Id) -> tuple_to_list(Id).

names(Fields) ->
    Names = [case is_number(Field) of true -> axis(Field); false -> line("~ts", [Field]) end || Field <- Fields],
    lists:join(", ", Names).

verdict(none, _, _) -> "";
verdict({at_most, Bound}, Median, Format) -> line("<= ~s  ~s", [Format(Bound), passed(Median =< Bound)]);
verdict({at_least, Bound}, Median, Format) -> line(">= ~s  ~s", [Format(Bound), passed(Median >= Bound)]).

passed(true) -> "PASS";
passed(false) -> "MISS".

spread(Values, Text) ->
    {Median, P25, P75} = bench_results:spread(Values),
    {Text(Median), [Text(P25), "..", Text(P75)]}.

axis(none) -> "";
axis(X) when is_integer(X) -> grouped(X);
axis(X) -> float_to_list(X, [short]).

%% Rounds to the significant digits. Times become readable.
number(Value, "ns") when abs(Value) >= 1.0e9 -> number(Value / 1.0e9, "s");
number(Value, "ns") when abs(Value) >= 1.0e6 -> number(Value / 1.0e6, "ms");
number(Value, "ns") when abs(Value) >= 1.0e3 -> number(Value / 1.0e3, "us");
number(Value, Unit) when abs(Value) >= 1000 -> [grouped(round(Value)), " ", Unit];
number(Value, Unit) -> [decimals(Value, case abs(Value) < 10 of true -> 2; false -> 1 end), " ", Unit].

ratio(Value) -> decimals(Value, 2).

decimals(Value, Decimals) -> float_to_list(float(Value), [{decimals, Decimals}]).

%% 1234567 as 1,234,567.
grouped(Integer) when Integer < 0 -> [$- | grouped(-Integer)];
grouped(Integer) when Integer < 1000 -> integer_to_list(Integer);
grouped(Integer) -> grouped(Integer div 1000) ++ "," ++ lists:flatten(line("~3..0b", [Integer rem 1000])).

line(Format, Arguments) ->
    io_lib:format(Format, Arguments).
