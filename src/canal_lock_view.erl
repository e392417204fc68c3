%% @private
%% Reads keys and holders of the table. The native library answers in pieces, so reading a million keys delays no other
%% process.
-module(canal_lock_view).

-export([keys/0, holders/2, held/1, holder_info/1, audit/0]).
-export([fold_keys/2, fold_shares/2, fold_permits/2, fold_queues/2]).

%% What a process holds of one key, and since when it holds permits of any key.
-type permits() :: {pid(), canal_lock:key(), Permits :: pos_integer(), Held_ms :: non_neg_integer()}.

%% Keys read in one native call, which takes about 0.1 ms.
-define(KEYS_PER_PIECE, 512).

%% The first position in the keys of the table or of one process.
-define(FIRST_KEY, 0).

%% The first position in the holders: see `Cursor' in inspect.rs of permit_table.
-define(FIRST_HOLDER, {0, 0, 0}).

-spec keys() -> [{canal_lock:key(), Permits :: pos_integer()}].
keys() ->
    fold_keys(fun lists:append/2, []).

%% Folds over lists of keys, without keeping all of them. If the table is closed during the fold, the fold begins again
%% with the initial `Result'.
-spec fold_keys(fun(([{canal_lock:key(), Permits :: pos_integer()}], Result) -> Result), Result) -> Result.
fold_keys(Add, Result) ->
    fold(fun(Serial, From) -> canal_lock_nif:keys(Serial, From, ?KEYS_PER_PIECE) end, ?FIRST_KEY, Add, Result).

%% As `fold_keys/2', over the shared keys.
-spec fold_shares(fun(([{canal_lock:key(), Share :: non_neg_integer(), InUse :: non_neg_integer()}], Result) -> Result),
    Result) -> Result.
fold_shares(Add, Result) ->
    fold(fun(Serial, From) -> canal_lock_nif:shared_keys(Serial, From, ?KEYS_PER_PIECE) end, ?FIRST_KEY, Add, Result).

-spec holders(canal_lock_nif:namespace(), canal_lock:key()) -> [{pid(), Permits :: pos_integer()}].
holders(Namespace, Key) ->
    canal_lock_interned:call(Key, fun(KeyOrHandle) ->
        Read = fun(Serial, From) -> canal_lock_nif:holders(Namespace, Serial, From, KeyOrHandle) end,
        fold(Read, ?FIRST_HOLDER, fun lists:append/2, [])
    end).

-spec held(pid()) -> [{canal_lock:key(), Permits :: pos_integer()}].
held(Pid) ->
    fold(fun(Serial, From) -> canal_lock_nif:held(Serial, From, Pid) end, ?FIRST_KEY, fun lists:append/2, []).

-spec holder_info(pid()) -> canal_lock:holder_info() | none.
holder_info(Pid) ->
    Read = fun(Serial, From) -> canal_lock_nif:holder(Serial, From, Pid) end,
    case fold(Read, ?FIRST_KEY, fun lists:append/2, []) of
        [] ->
            none;
        Keys = [{_, Held_ms} | _] ->
            #{permits => lists:sum([N || {N, _} <- Keys]), keys => length(Keys), held_ms => Held_ms}
    end.

%% As `fold_keys/2'. The permits of one process are consecutive, but can be split over two lists.
-spec fold_permits(fun(([permits()], Result) -> Result), Result) -> Result.
fold_permits(Add, Result) ->
    fold(fun(Serial, From) -> canal_lock_nif:permits(local, Serial, From) end, ?FIRST_HOLDER, Add, Result).

%% As `fold_keys/2', over the keys that requests wait for.
-spec fold_queues(fun(([{canal_lock:key(), pos_integer(), pid(), non_neg_integer()}], Result) -> Result), Result) ->
    Result.
fold_queues(Add, Result) ->
    fold(fun canal_lock_nif:queues/2, {0, 0}, Add, Result).

%% Keys whose count differs from the records of their holders.
-spec audit() -> [{canal_lock:key(), Counted :: non_neg_integer(), Held :: non_neg_integer()}].
audit() ->
    Held = fold_permits(fun(Permits, Rows) -> lists:foldl(fun add_held/2, Rows, Permits) end, #{}),
    Both = fold_keys(fun(Keys, Rows) -> lists:foldl(fun add_counted/2, Rows, Keys) end, Held),
    [{Key, Counted, Sum} || {Key, {Counted, Sum}} <- maps:to_list(Both), Counted =/= Sum].

add_held({_Pid, Key, Permits, _Held_ms}, Rows) ->
    maps:update_with(Key, fun({0, Sum}) -> {0, Sum + Permits} end, {0, Permits}, Rows).

add_counted({Key, Counted}, Rows) ->
    maps:update_with(Key, fun({_, Sum}) -> {Counted, Sum} end, {Counted, 0}, Rows).

fold(Piece, Start, Add, Initial) ->
    fold(Piece, Start, Add, Initial, 0, Start, Initial).

%% `Serial' is the number of the table; 0 stands for the open one.
fold(Piece, Start, Add, Initial, Serial, From, Result) ->
    case Piece(Serial, From) of
        %% The pieces so far belong to a table that was closed.
        changed -> fold(Piece, Start, Add, Initial, 0, Start, Initial);
        {_, Last, done} -> Add(Last, Result);
        {Same, Next, Rest} -> fold(Piece, Start, Add, Initial, Same, Rest, Add(Next, Result))
    end.
