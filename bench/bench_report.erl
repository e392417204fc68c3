%% From samples to the table that people read and the file that programs read.
-module(bench_report).

-export([text/1, csv/1]).

-type results() :: #{bench_cases:id() => [{Round :: pos_integer(), float()}]}.

-spec text(results()) -> iolist().
text(Results) ->
    Ids = lists:sort(fun(A, B) -> order(A) =< order(B) end, maps:keys(Results)),
    Groups = lists:uniq([Group || {Group, _, _, _} <- Ids]),
    [
        [figures(Group, [Id || {G, _, _, _} = Id <- Ids, G =:= Group], Results) || Group <- Groups],
        line("~nratios~n", []),
        [ratio(Ratio, Results) || Ratio <- bench_cases:ratios()]
    ].

%% As the list of cases has them; what it does not name, memory, comes last.
order({Group, Variant, Subject, Op}) ->
    Cases = bench_cases:cases(),
    {
        place(Group, [G || #{group := G} <- Cases]),
        place(Variant, [V || #{variant := V} <- Cases]),
        place(Subject, lists:append([Subjects || #{subjects := Subjects} <- Cases])),
        Op
    }.

place(Item, List) ->
    length(lists:takewhile(fun(Other) -> Other =/= Item end, List)).

figures(Group, Ids, Results) ->
    [
        line("~n~ts (~ts)~n", [bench_cases:title(Group), bench_cases:unit(Group)]),
        [
            line("  ~-16ts~-9ts~-14ts~s~n", [Variant, Subject, Op, spread(values(Id, Results), 11, 1)])
         || {_, Variant, Subject, Op} = Id <- Ids
        ]
    ].

%% Divided round by round: what a round has in common, such as a busy neighbour, cancels out.
ratio(#{text := Text, dividend := Dividend, divisor := Divisor} = Ratio, Results) ->
    case Results of
        #{Dividend := As, Divisor := Bs} ->
            Factor = maps:get(factor, Ratio, 1),
            Quotients = [Factor * A / B || {{Round, A}, {Round, B}} <- lists:zip(lists:sort(As), lists:sort(Bs))],
            line("  ~-58ts~s~ts~n", [Text, spread(Quotients, 9, 2), verdict(Ratio, percentile(50, Quotients))]);
        #{} ->
            line("  ~-58ts not measured here~n", [Text])
    end.

verdict(#{target := {at_most, Target}}, Value) -> verdict("<=", Target, Value =< Target);
verdict(#{target := {at_least, Target}}, Value) -> verdict(">=", Target, Value >= Target);
verdict(#{}, _) -> "".

verdict(Sign, Target, true) -> line("   ~s ~p  PASS", [Sign, Target]);
verdict(Sign, Target, false) -> line("   ~s ~p  MISS", [Sign, Target]).

spread(Values, Width, Decimals) ->
    [Median, Low, High] = [float_to_list(float(percentile(P, Values)), [{decimals, Decimals}]) || P <- [50, 25, 75]],
    line("~*s   ~s..~s", [Width, Median, Low, High]).

%% The nearest rank: always a value that was measured.
percentile(P, Values) ->
    Rank = max(1, ceil(P * length(Values) / 100)),
    lists:nth(Rank, lists:sort(Values)).

values(Id, Results) ->
    [Value || {_, Value} <- maps:get(Id, Results)].

-spec csv(results()) -> iolist().
csv(Results) ->
    [
        "group,variant,subject,op,unit,round,value\n",
        [
            line("~s,~s,~s,~s,~s,~b,~.3f~n", [Group, Variant, Subject, Op, bench_cases:unit(Group), Round, Value])
         || {{Group, Variant, Subject, Op}, Samples} <- lists:sort(maps:to_list(Results)),
            {Round, Value} <- lists:sort(Samples)
        ]
    ].

line(Format, Arguments) ->
    io_lib:format(Format, Arguments).
