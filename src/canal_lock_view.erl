%% @private
%% Who holds what: long answers of the native library, put together piece by piece, so that looking at a table of a
%% million keys stops nobody.
-module(canal_lock_view).

-export([keys/0, holders/1, permits/0, audit/0]).
-export([fold_keys/2, fold_permits/2]).

%% Keys looked at in one native call: about 0.1 ms.
-define(KEYS_PER_PIECE, 512).

-spec keys() -> [{canal_lock:key(), Permits :: pos_integer()}].
keys() ->
    pieces(fun keys_piece/2).

%% The same without keeping all of it, a list of some of them after the other. It begins again with the first `Result'
%% if the table is another one meanwhile.
-spec fold_keys(fun(([{canal_lock:key(), Permits :: pos_integer()}], Result) -> Result), Result) -> Result.
fold_keys(Add, Result) ->
    fold(fun keys_piece/2, Add, Result).

-spec holders(canal_lock:key()) -> [{pid(), Permits :: pos_integer()}].
holders(Key) ->
    canal_lock_interned:call(Key, fun(KeyOrHandle) ->
        pieces(fun(Serial, From) -> canal_lock_nif:holders(Serial, From, KeyOrHandle) end)
    end).

-spec permits() -> [{pid(), canal_lock:key(), Permits :: pos_integer()}].
permits() ->
    pieces(fun canal_lock_nif:permits/2).

%% As `fold_keys/2'. What one process holds comes in one list, without anything of others in between: a process has one
%% slot as long as it lives, and a slot is looked at as a whole.
-spec fold_permits(fun(([{pid(), canal_lock:key(), Permits :: pos_integer()}], Result) -> Result), Result) -> Result.
fold_permits(Add, Result) ->
    fold(fun canal_lock_nif:permits/2, Add, Result).

%% Keys of which not as many permits are counted as are on record with their holders.
-spec audit() -> [{canal_lock:key(), Counted :: non_neg_integer(), Held :: non_neg_integer()}].
audit() ->
    Add = fun({_Pid, Key, Permits}, Sums) ->
        maps:update_with(Key, fun(Sum) -> Sum + Permits end, Permits, Sums)
    end,
    Held = lists:foldl(Add, #{}, permits()),
    Counted = maps:from_list(keys()),
    All = maps:keys(maps:merge(Held, Counted)),
    Sums = [{Key, maps:get(Key, Counted, 0), maps:get(Key, Held, 0)} || Key <- All],
    [Differing || {_, Count, Sum} = Differing <- Sums, Count =/= Sum].

keys_piece(Serial, After) ->
    canal_lock_nif:keys(Serial, After, ?KEYS_PER_PIECE).

pieces(Piece) ->
    lists:append(lists:reverse(fold(Piece, fun(List, Before) -> [List | Before] end, []))).

fold(Piece, Add, First) ->
    fold(Piece, Add, First, 0, 0, First).

fold(Piece, Add, First, Serial, From, Result) ->
    case Piece(Serial, From) of
        %% The pieces so far are of a table that has been closed: that is not what was asked for.
        changed -> fold(Piece, Add, First, 0, 0, First);
        {_, Last, done} -> Add(Last, Result);
        {Same, Next, Rest} -> fold(Piece, Add, First, Same, Rest, Add(Next, Result))
    end.
