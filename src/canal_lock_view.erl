%% @private
%% Who holds what: long answers of the native library, put together piece by piece, so that looking at a table of a
%% million keys stops nobody.
-module(canal_lock_view).

-export([keys/0, holders/1, held/1, audit/0]).
-export([fold_keys/2, fold_permits/2]).

%% Keys looked at in one native call: about 0.1 ms.
-define(KEYS_PER_PIECE, 512).

%% Where a look at all keys, or at those of one process, begins; and one at all holders.
-define(FIRST_KEY, 0).
-define(FIRST_HOLDER, {false, 0, 0}).

-spec keys() -> [{canal_lock:key(), Permits :: pos_integer()}].
keys() ->
    fold_keys(fun lists:append/2, []).

%% The same without keeping all of it, a list of some of them after the other. It begins again with the first `Result'
%% if the table is another one meanwhile.
-spec fold_keys(fun(([{canal_lock:key(), Permits :: pos_integer()}], Result) -> Result), Result) -> Result.
fold_keys(Add, Result) ->
    fold(fun(Serial, After) -> canal_lock_nif:keys(Serial, After, ?KEYS_PER_PIECE) end, ?FIRST_KEY, Add, Result).

-spec holders(canal_lock:key()) -> [{pid(), Permits :: pos_integer()}].
holders(Key) ->
    canal_lock_interned:call(Key, fun(KeyOrHandle) ->
        pieces(fun(Serial, From) -> canal_lock_nif:holders(Serial, From, KeyOrHandle) end, ?FIRST_HOLDER)
    end).

-spec held(pid()) -> [{canal_lock:key(), Permits :: pos_integer()}].
held(Pid) ->
    pieces(fun(Serial, From) -> canal_lock_nif:held(Serial, From, Pid) end, ?FIRST_KEY).

%% As `fold_keys/2'. What one process holds comes in a row, which may go on in the next list.
-spec fold_permits(fun(([{pid(), canal_lock:key(), Permits :: pos_integer()}], Result) -> Result), Result) -> Result.
fold_permits(Add, Result) ->
    fold(fun canal_lock_nif:permits/2, ?FIRST_HOLDER, Add, Result).

%% Keys of which not as many permits are counted as are on record with their holders.
-spec audit() -> [{canal_lock:key(), Counted :: non_neg_integer(), Held :: non_neg_integer()}].
audit() ->
    Held = fold_permits(fun(Permits, Sums) -> lists:foldl(fun add_held/2, Sums, Permits) end, #{}),
    Compare = fun(Keys, Before) -> lists:foldl(fun(Key, So) -> compare(Key, Held, So) end, Before, Keys) end,
    case fold_keys(Compare, {[], 0}) of
        {Differing, Found} when Found =:= map_size(Held) -> Differing;
        {Differing, _} -> [{Key, 0, Sum} || {Key, Sum} <- maps:to_list(uncounted(Held))] ++ Differing
    end.

add_held({_Pid, Key, Permits}, Sums) ->
    maps:update_with(Key, fun(Sum) -> Sum + Permits end, Permits, Sums).

compare({Key, Count}, Held, {Differing, Found}) ->
    case Held of
        #{Key := Count} -> {Differing, Found + 1};
        #{Key := Sum} -> {[{Key, Count, Sum} | Differing], Found + 1};
        #{} -> {[{Key, Count, 0} | Differing], Found}
    end.

%% Keys that are held, and have no permits out.
uncounted(Held) ->
    fold_keys(fun(Keys, Rest) -> maps:without([Key || {Key, _} <- Keys], Rest) end, Held).

pieces(Piece, Start) ->
    fold(Piece, Start, fun lists:append/2, []).

fold(Piece, Start, Add, First) ->
    fold(Piece, Start, Add, First, 0, Start, First).

fold(Piece, Start, Add, First, Serial, From, Result) ->
    case Piece(Serial, From) of
        %% The pieces so far are of a table that has been closed: that is not what was asked for.
        changed -> fold(Piece, Start, Add, First, 0, Start, First);
        {_, Last, done} -> Add(Last, Result);
        {Same, Next, Rest} -> fold(Piece, Start, Add, First, Same, Rest, Add(Next, Result))
    end.
