%% @private
%% Who holds what: long answers of the native library, put together piece by piece, so that looking at a table of a
%% million keys stops nobody.
-module(canal_lock_view).

-export([keys/0, holders/1, permits/0, audit/0]).

%% Keys looked at in one native call: about 0.1 ms.
-define(KEYS_PER_PIECE, 512).

-spec keys() -> [{canal_lock:key(), Permits :: pos_integer()}].
keys() ->
    pieces(fun(Serial, After) -> canal_lock_nif:keys(Serial, After, ?KEYS_PER_PIECE) end).

-spec holders(canal_lock:key()) -> [{pid(), Permits :: pos_integer()}].
holders(Key) ->
    canal_lock_interned:call(Key, fun(KeyOrHandle) ->
        pieces(fun(Serial, From) -> canal_lock_nif:holders(Serial, From, KeyOrHandle) end)
    end).

-spec permits() -> [{pid(), canal_lock:key(), Permits :: pos_integer()}].
permits() ->
    pieces(fun canal_lock_nif:permits/2).

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

pieces(Piece) ->
    pieces(Piece, 0, 0, []).

pieces(Piece, Serial, From, Before) ->
    case Piece(Serial, From) of
        %% The pieces so far are of a table that has been closed: that is not what was asked for.
        changed -> pieces(Piece, 0, 0, []);
        {_, Last, done} -> lists:append(lists:reverse(Before, [Last]));
        {Same, Next, Rest} -> pieces(Piece, Same, Rest, [Next | Before])
    end.
