%% Results of the benchmark groups: samples by measured id. Writes them to two files: all samples with the facts of the
%% machine, for plots and comparisons, and a summary.
-module(bench_results).

-export([merged/1, in_order/1, spread/1, by_round/2]).
-export([write/3, read/1, write_summary/3]).

-export_type([id/0, results/0, samples/0, facts/0, spread/0]).

%% X is the place on the horizontal axis: processes, keys, full buckets, permits held, a percentile.
-type id() ::
    {Case :: atom(), Variant :: string(), X :: number() | none, bench_cases:subject(), bench_cases:measure()}.
-type samples() :: [{Round :: pos_integer(), float()}, ...].
-type results() :: #{id() => samples()}.
%% In the order of the report. Names and values contain no line breaks.
-type facts() :: [{Name :: string(), Value :: string()}].
-type spread() :: #{median := float(), p25 := float(), p75 := float(), n := pos_integer()}.

-define(SAMPLES_HEADER, "case,variant,x,subject,measure,unit,round,value").
-define(SUMMARY_HEADER, "case,variant,x,subject,measure,unit,median,p25,p75,n").

%% Raises if two groups measured the same id, or if a round of a group lacks a sample or has it twice.
-spec merged([results(), ...]) -> results().
merged(Groups) ->
    lists:foldl(fun(Group, Others) -> maps:merge_with(fun twice/3, checked(Group), Others) end, #{}, Groups).

-spec twice(id(), samples(), samples()) -> no_return().
twice(Id, _, _) ->
    error({measured_twice, Id}).

checked(Group) ->
    Rounds = lists:max([Round || Samples <- maps:values(Group), {Round, _} <- Samples]),
    maps:map(fun(Id, Samples) -> checked(Id, lists:sort(Samples), lists:seq(1, Rounds)) end, Group).

checked(Id, Samples, Rounds) ->
    case lists:unzip(Samples) of
        {Rounds, Values} ->
            lists:all(fun is_float/1, Values) orelse error({no_float, Id, Values}),
            Samples;
        {Others, _} ->
            error({samples_missing, Id, {rounds, Others}})
    end.

%% In the order of the report: by case; results that are compared with each other are adjacent.
-spec in_order(results()) -> [{id(), samples()}].
in_order(Results) ->
    Cases = [Case || {Case, _} <- bench_cases:cases()],
    Keyed = [{key(Id, Cases), Id, Samples} || {Id, Samples} <- maps:to_list(Results)],
    [{Id, Samples} || {_, Id, Samples} <- lists:sort(Keyed)].

key({Case, Variant, X, Subject, Measure}, Cases) ->
    Variants = bench_cases:variants(),
    {place(Case, Cases), place(Variant, Variants), Variant, Measure, X, place(Subject, bench_cases:subjects())}.

%% Items that are not in the list come last.
place(Item, List) ->
    length(lists:takewhile(fun(Other) -> Other =/= Item end, List)).

-spec spread([number(), ...]) -> spread().
spread(Values) ->
    Sorted = lists:sort(Values),
    #{median => rank(50, Sorted), p25 => rank(25, Sorted), p75 => rank(75, Sorted), n => length(Sorted)}.

%% Nearest rank: always a measured value.
rank(P, Sorted) ->
    lists:nth(max(1, ceil(P * length(Sorted) / 100)), Sorted).

%% Pairs the values of the same rounds; raises if the rounds differ.
-spec by_round(samples(), samples()) -> [{float(), float()}, ...].
by_round(As, Bs) ->
    lists:zipwith(fun({Round, A}, {Round, B}) -> {A, B} end, lists:sort(As), lists:sort(Bs)).

%%% Files

%% Reads the file back and raises if it differs from the results.
-spec write(file:filename(), facts(), results()) -> ok.
write(File, Facts, Results) ->
    Lines = [
        [row(Id), $,, integer_to_list(Round), $,, number(Value), $\n]
     || {Id, Samples} <- in_order(Results), {Round, Value} <- Samples
    ],
    ok = write_file(File, Facts, ?SAMPLES_HEADER, Lines),
    {Facts, Results} = read(File),
    ok.

-spec write_summary(file:filename(), facts(), results()) -> ok.
write_summary(File, Facts, Results) ->
    Lines = [
        begin
            #{median := Median, p25 := P25, p75 := P75, n := N} = spread([Value || {_, Value} <- Samples]),
            [lists:join($,, [row(Id), number(Median), number(P25), number(P75), integer_to_list(N)]), $\n]
        end
     || {Id, Samples} <- in_order(Results)
    ],
    write_file(File, Facts, ?SUMMARY_HEADER, Lines).

write_file(File, Facts, Header, Lines) ->
    Head = [["# ", Name, ": ", Value, $\n] || {Name, Value} <- Facts],
    file:write_file(File, unicode:characters_to_binary([Head, Header, $\n, Lines])).

row({Case, Variant, X, Subject, Measure}) ->
    Unit = bench_cases:unit(Case, Measure),
    lists:join($,, [quoted(Field) || Field <- [name(Case), Variant, axis(X), name(Subject), name(Measure), Unit]]).

name(Atom) -> atom_to_list(Atom).

axis(none) -> "none";
axis(X) -> number(X).

%% The shortest text that reads back as the same number.
number(Integer) when is_integer(Integer) -> integer_to_list(Integer);
number(Float) -> float_to_list(Float, [short]).

quoted(Field) ->
    case lists:any(fun(Char) -> lists:member(Char, ",\"") end, Field) of
        true -> [$", string:replace(Field, "\"", "\"\"", all), $"];
        false -> Field
    end.

%% Reads a file that write/3 has written.
-spec read(file:filename()) -> {facts(), results()}.
read(File) ->
    {ok, Bytes} = file:read_file(File),
    Lines = string:split(string:trim(unicode:characters_to_list(Bytes), trailing, "\n"), "\n", all),
    {Head, [?SAMPLES_HEADER | Rows]} = lists:splitwith(fun(Line) -> lists:prefix("# ", Line) end, Lines),
    Samples = [sample(fields(Row)) || Row <- Rows],
    Results = maps:groups_from_list(fun({Id, _}) -> Id end, fun({_, Sample}) -> Sample end, Samples),
    {[fact(Line) || Line <- Head], Results}.

fact("# " ++ Line) ->
    [Name, Value] = string:split(Line, ": "),
    {Name, Value}.

sample([Case, Variant, X, Subject, Measure, _Unit, Round, Value]) ->
    Id = {list_to_atom(Case), Variant, to_axis(X), list_to_atom(Subject), list_to_atom(Measure)},
    {Id, {list_to_integer(Round), to_number(Value)}}.

to_axis("none") -> none;
to_axis(X) -> to_number(X).

to_number(Text) ->
    try
        list_to_integer(Text)
    catch
        error:badarg -> list_to_float(Text)
    end.

fields(Row) ->
    fields(Row, [], []).

fields([$" | Row], [], Fields) -> quoted_field(Row, [], Fields);
fields([$, | Row], Field, Fields) -> fields(Row, [], [lists:reverse(Field) | Fields]);
fields([Char | Row], Field, Fields) -> fields(Row, [Char | Field], Fields);
fields([], Field, Fields) -> lists:reverse([lists:reverse(Field) | Fields]).

quoted_field([$", $" | Row], Field, Fields) -> quoted_field(Row, [$" | Field], Fields);
quoted_field([$" | Row], Field, Fields) -> fields(Row, Field, Fields);
quoted_field([Char | Row], Field, Fields) -> quoted_field(Row, [Char | Field], Fields).
