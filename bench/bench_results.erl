%% The figures of a run: for each of them the values of all rounds, their spread, and ratios within each round. Writes
%% the summary, which bench/plots.sh reads.
-module(bench_results).

-export([merge/2, ratio/3, figure/2, spread/1, unit/1, write/3]).

-export_type([id/0, subject/0, measure/0, results/0, figure/0]).

%% X is the place on the horizontal axis: processes, keys, full buckets, permits held, a percentile, nodes.
-type id() :: {Case :: atom(), Variant :: string(), X :: number() | none, subject(), measure()}.
-type subject() :: atom().
-type measure() :: atom().
%% The values in the order of the rounds.
-type results() :: #{id() => [float(), ...]}.
%% Computed within each round, so that a disturbance that affects the whole round cancels out.
-type figure() :: {quotient, Dividend :: id(), Divisor :: id()} | {value, id()}.

-define(HEADER, "case,variant,x,subject,measure,unit,median,p25,p75,n").

%% Raises if both have a figure.
-spec merge(results(), results()) -> results().
merge(Some, Others) ->
    [] = maps:keys(maps:with(maps:keys(Some), Others)),
    maps:merge(Some, Others).

%% Of two subjects.
-spec ratio({Case :: atom(), Variant :: string(), X :: number() | none, measure()}, subject(), subject()) -> figure().
ratio({Case, Variant, X, Measure}, Subject, Other) ->
    {quotient, {Case, Variant, X, Subject, Measure}, {Case, Variant, X, Other, Measure}}.

%% A quotient by 0 is not measured either.
-spec figure(figure(), results()) -> {ok, [float(), ...]} | not_measured.
figure({value, Id}, Results) ->
    case Results of
        #{Id := Values} -> {ok, Values};
        #{} -> not_measured
    end;
figure({quotient, A, B}, Results) ->
    case Results of
        #{A := As, B := Bs} ->
            case lists:all(fun(OfB) -> OfB /= 0 end, Bs) of
                true -> {ok, lists:zipwith(fun erlang:'/'/2, As, Bs)};
                false -> not_measured
            end;
        #{} ->
            not_measured
    end.

%% The nearest rank: always a measured value.
-spec spread([number(), ...]) -> {Median :: number(), P25 :: number(), P75 :: number()}.
spread(Values) ->
    Sorted = lists:sort(Values),
    Rank = fun(Percent) -> lists:nth(max(1, ceil(Percent * length(Sorted) / 100)), Sorted) end,
    {Rank(50), Rank(25), Rank(75)}.

%% Of all measures that are not times in nanoseconds.
-spec unit(id()) -> string().
unit({_, _, _, _, per_second}) -> "1/s";
unit({_, _, _, _, refused_per_second}) -> "1/s";
unit({_, _, _, _, Frames}) when Frames =:= frames; Frames =:= frames_idle; Frames =:= frames_of_busiest_node -> "1/s";
unit({_, _, _, _, Percent}) when Percent =:= use; Percent =:= counted -> "%";
unit({_, _, _, _, most}) -> "held";
unit({_, _, _, _, keys_later}) -> "keys";
unit({_, _, _, _, Bytes}) when Bytes =:= bytes_at_once; Bytes =:= bytes_later -> "B";
unit({_, _, _, _, frames_per_lock}) -> "frames";
unit({_, _, _, _, busiest_member}) -> "cores";
unit({memory, _, _, _, _}) -> "B";
unit(_) -> "ns".

-spec write(file:filename(), bench_machine:facts(), [{id(), [float(), ...]}]) -> ok.
write(File, Facts, InOrder) ->
    Head = [["# ", Name, ": ", Value, $\n] || {Name, Value} <- Facts],
    Rows = [
        begin
            {Case, Variant, X, Subject, Measure} = Id,
            Names = [atom_to_list(Case), Variant, axis(X), atom_to_list(Subject), atom_to_list(Measure), unit(Id)],
            Numbers = [float_to_list(Number, [short]) || Number <- tuple_to_list(spread(Values))],
            [lists:join($,, [quoted(Name) || Name <- Names] ++ Numbers ++ [integer_to_list(length(Values))]), $\n]
        end
     || {Id, Values} <- InOrder
    ],
    file:write_file(File, unicode:characters_to_binary([Head, ?HEADER, $\n, Rows])).

axis(X) when is_float(X) -> float_to_list(X, [short]);
axis(X) -> lists:concat([X]).

quoted(Field) ->
    case lists:any(fun(Char) -> lists:member(Char, ",\"") end, Field) of
        true -> [$", string:replace(Field, "\"", "\"\"", all), $"];
        false -> Field
    end.
