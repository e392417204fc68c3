%% @private
%% Formats terms of any size, depth and content for people, in bounded time and on one line.
-module(canal_lock_text).

-export([short/2, pruned/1, fit/3]).

%% Limits of what is read of a term: levels, elements of one list, tuple or map, elements in total, and bytes of a
%% binary. They exceed what is ever shown, so a caller that cuts the text further can see that there was more.
-define(LEVELS, 31).
-define(PARTS, 512).
-define(ALL_PARTS, 4096).
-define(BYTES, 4096).

%% Formatting an integer of a million bits takes seconds and does not yield.
-define(IS_HUGE(Integer), (Integer >= 1 bsl 4096 orelse Integer =< -(1 bsl 4096))).

%% About `Characters' characters of a term, at most twice as many.
-spec short(term(), pos_integer()) -> unicode:chardata().
short(Term, Characters) ->
    %% io_lib treats the limit as a hint: it does not cut numbers and atoms.
    Text = io_lib:format("~0tP", [pruned(Term), ?LEVELS - 1], [{chars_limit, Characters}]),
    case string:slice(Text, 2 * Characters) of
        Rest when Rest =:= []; Rest =:= <<>> -> Text;
        _ -> [string:slice(Text, 0, 2 * Characters), "..."]
    end.

%% A term without what exceeds the limits. A short term is returned unchanged.
-spec pruned(term()) -> term().
pruned(Term) ->
    {Pruned, _} = prune(Term, ?LEVELS, ?ALL_PARTS),
    Pruned.

%% Returns the pruned term, and how many elements may still be read.
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

%% The tail can be any term: the list may be improper.
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

%% Cuts text to a number of columns. A longer line ends in `...'. Characters that could move the cursor, change the
%% color or reverse the direction are written as numbers.
-spec fit(unicode:chardata(), non_neg_integer(), unicode | latin1) -> string().
fit(Text, Columns, Encoding) ->
    %% Each character takes at least one column.
    Characters = lists:sublist(unicode:characters_to_list(Text), Columns + 1),
    Plain = [plain(Character, Encoding) || Character <- Characters],
    case lists:sum([Width || {_, Width} <- Plain]) =< Columns of
        true -> lists:flatmap(fun({Shown, _}) -> Shown end, Plain);
        false -> first_columns(Columns - 3, Plain) ++ lists:duplicate(min(3, Columns), $.)
    end.

first_columns(Columns, [{Shown, Width} | Rest]) when Width =< Columns -> Shown ++ first_columns(Columns - Width, Rest);
first_columns(_, _) -> "".

%% A displayed character and its number of columns. East Asian characters take two. Terminals disagree on the
%% width of many others, so only letters with a well-known width are shown as they are.
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
