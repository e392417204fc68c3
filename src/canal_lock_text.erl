%% @private
%% What others use as a key, send or raise, as text for people: of any size, depth and content, but in bounded time and
%% on one line.
-module(canal_lock_text).

-export([short/2, pruned/1, fit/3]).

%% So much of a term is looked at: levels, parts of one list, tuple or map, parts of all together, and bytes of a
%% binary. More than anybody is shown, so that whoever cuts it further says that there was more.
-define(LEVELS, 31).
-define(PARTS, 512).
-define(ALL_PARTS, 4096).
-define(BYTES, 4096).

%% To write down an integer of a million bits takes seconds, on one scheduler and in one go.
-define(IS_HUGE(Integer), (Integer >= 1 bsl 4096 orelse Integer =< -(1 bsl 4096))).

%% About so many characters of a term, twice as many at most.
-spec short(term(), pos_integer()) -> unicode:chardata().
short(Term, Characters) ->
    %% The limit on characters is no more than a wish, numbers and atoms are not cut.
    Text = io_lib:format("~0tP", [pruned(Term), ?LEVELS - 1], [{chars_limit, Characters}]),
    case string:slice(Text, 2 * Characters) of
        Rest when Rest =:= []; Rest =:= <<>> -> Text;
        _ -> [string:slice(Text, 0, 2 * Characters), "..."]
    end.

%% The beginning of a term: the same term if it is short.
-spec pruned(term()) -> term().
pruned(Term) ->
    {Pruned, _} = prune(Term, ?LEVELS, ?ALL_PARTS),
    Pruned.

%% With how many parts may still be looked at.
prune(_, Levels, Left) when Levels =< 0; Left =< 0 ->
    {'...', Left};
prune(Integer, _, Left) when is_integer(Integer), ?IS_HUGE(Integer) ->
    {'a huge integer', Left};
prune(<<First:?BYTES/binary, _:1, _/bitstring>>, _, Left) ->
    {First, Left - 1};
prune(List, Levels, Left) when is_list(List) ->
    prune_list(List, Levels - 1, min(?PARTS, Left), Left, []);
prune(Tuple, Levels, Left) when is_tuple(Tuple) ->
    Parts = [element(N, Tuple) || N <- lists:seq(1, min(?PARTS, tuple_size(Tuple)))],
    {Pruned, NowLeft} = lists:mapfoldl(fun(Part, L) -> prune(Part, Levels - 1, L) end, Left - 1, Parts),
    {list_to_tuple(Pruned), NowLeft};
prune(Map, Levels, Left) when is_map(Map) ->
    {Pairs, NowLeft} = prune_list(first(?PARTS, maps:iterator(Map)), Levels - 1, ?PARTS, Left - 1, []),
    {maps:from_list([Pair || {_, _} = Pair <- Pairs]), NowLeft};
prune(Other, _, Left) ->
    {Other, Left - 1}.

%% As many parts as may still be looked at, and the tail, which need not be that of a list.
prune_list([Part | Parts], Levels, More, Left, Before) when More > 0, Left > 0 ->
    {Pruned, NowLeft} = prune(Part, Levels, Left - 1),
    prune_list(Parts, Levels, More - 1, NowLeft, [Pruned | Before]);
prune_list(Rest, _, _, Left, Before) when is_list(Rest) ->
    {lists:reverse(Before), Left};
prune_list(Tail, Levels, _, Left, Before) ->
    {Pruned, NowLeft} = prune(Tail, Levels, Left),
    {lists:reverse(Before, Pruned), NowLeft}.

first(0, _) ->
    [];
first(Count, Iterator) ->
    case maps:next(Iterator) of
        none -> [];
        {Key, Value, Next} -> [{Key, Value} | first(Count - 1, Next)]
    end.

%% So many columns of a line, from text that may hold anything: what is no plain character is written as its number, or
%% it would move the cursor, colour the screen or turn the line round. If there is more, the line ends in `...'.
-spec fit(unicode:chardata(), non_neg_integer(), unicode | latin1) -> string().
fit(Text, Columns, Encoding) ->
    fit(unicode:characters_to_list(Text), Columns, Encoding, []).

fit([], _, _, Before) ->
    lists:append(lists:reverse(Before));
fit([Character | Rest], Columns, Encoding, Before) ->
    {Shown, Width} = plain(Character, Encoding),
    case Width =< Columns of
        true -> fit(Rest, Columns - Width, Encoding, [Shown | Before]);
        false -> with_dots(Before, Columns)
    end.

%% In place of what stands there, as far as that is needed.
with_dots(Before, Columns) when Columns >= 3; Before =:= [] ->
    lists:append(lists:reverse(Before, [lists:duplicate(min(3, Columns), $.)]));
with_dots([Last | Before], Columns) ->
    with_dots(Before, Columns + width(Last)).

width([Character]) -> element(2, plain(Character, unicode));
width(Escaped) -> length(Escaped).

%% How it is shown, and in how many columns. Two are taken by the characters of East Asia. Terminals do not agree on all
%% others, so that only letters are let through of which nobody doubts.
plain(C, _) when C >= $\s, C =< $~ ->
    {[C], 1};
plain(C, unicode) when C >= 16#a1, C =< 16#2ff, C =/= 16#ad; C >= 16#388, C =< 16#482; C >= 16#48a, C =< 16#52f ->
    {[C], 1};
plain(C, unicode) when C >= 16#3041, C =< 16#3096; C >= 16#30a1, C =< 16#30fa; C >= 16#4e00, C =< 16#9fa5 ->
    {[C], 2};
plain(C, unicode) when C >= 16#ac00, C =< 16#d7a3 ->
    {[C], 2};
plain(C, _) ->
    Escaped = lists:flatten(io_lib:format("\\x{~.16B}", [C])),
    {Escaped, length(Escaped)}.
