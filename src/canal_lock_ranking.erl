%% @private
%% Keeps the least tuples of a stream, in memory that does not depend on the length of the stream. A tuple that begins
%% with a negative number so ranks by the greatest number first.
-module(canal_lock_ranking).

-export([new/1, add/2, least/1]).

-export_type([ranking/0]).

%% The least `rows' tuples of a stream. Between two sorts, up to as many again that are less than `last', the greatest
%% of the tuples kept at the last sort.
-record(ranking, {
    rows :: pos_integer(),
    count = 0 :: non_neg_integer(),
    kept = [] :: [tuple()],
    last = none :: none | tuple()
}).

-opaque ranking() :: #ranking{}.

-spec new(Rows :: pos_integer()) -> ranking().
new(Rows) ->
    #ranking{rows = Rows}.

-spec add(tuple(), ranking()) -> ranking().
add(New, Ranking = #ranking{rows = Rows, count = Count, kept = Kept, last = Last}) when Last =:= none; New < Last ->
    case Ranking#ranking{count = Count + 1, kept = [New | Kept]} of
        #ranking{count = Enough} = More when Enough >= 2 * Rows -> sorted(More);
        More -> More
    end;
add(_, Ranking) ->
    Ranking.

sorted(Ranking = #ranking{rows = Rows}) ->
    Kept = least(Ranking),
    Ranking#ranking{count = Rows, kept = Kept, last = lists:last(Kept)}.

%% At most `Rows' tuples, the least one first.
-spec least(ranking()) -> [tuple()].
least(#ranking{rows = Rows, kept = Kept}) ->
    lists:sublist(lists:sort(Kept), Rows).
