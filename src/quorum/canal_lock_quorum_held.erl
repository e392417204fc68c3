%% @private
%% The locks that processes of this node hold, and an index of them by name. The agent's process writes; any process
%% reads, also one that another node has sent. The supervisor owns the tables, because the next agent notifies the
%% holders.
-module(canal_lock_quorum_held).

-export([new/0, add/4, take/1, take_all/0, lookup/1, count/0, infos/0, infos/1, ids/2, any/1]).

-export_type([row/0]).

-type id() :: canal_lock_quorum_lock:id().
-type name() :: canal_lock_quorum_names:name().

%% A held lock: its holder, the monitor of the holder, and the time of the grant by the wall clock.
-type row() :: {id(), Holder :: pid(), Monitor :: reference(), canal_lock_quorum_lock:lock(), Since_ms :: integer()}.

%% The rows.
-define(TABLE, canal_lock_quorum).

%% `{{Name, Id}}' for each name of each lock, in the order of the names. The table compares with `=='. Names contain no
%% floats, so names that are equal for the table are equal.
-define(BY_NAME, canal_lock_quorum_by_name).

%% The calling process owns the tables.
-spec new() -> ok.
new() ->
    ?TABLE = ets:new(?TABLE, [named_table, public, {write_concurrency, true}, {read_concurrency, true}]),
    ?BY_NAME = ets:new(?BY_NAME, [named_table, public, ordered_set]),
    ok.

-spec add(id(), Holder :: pid(), Monitor :: reference(), canal_lock_quorum_lock:lock()) -> ok.
add(Id, Holder, Monitor, Lock) ->
    true = ets:insert(?TABLE, {Id, Holder, Monitor, Lock, erlang:system_time(millisecond)}),
    true = ets:insert(?BY_NAME, [{{Name, Id}} || Name <- canal_lock_quorum_lock:names(Lock)]),
    ok.

%% Removes a lock. Returns its row, or nothing if it is not held.
-spec take(id()) -> [row()].
take(Id) ->
    Rows = ets:take(?TABLE, Id),
    [
        true = ets:delete(?BY_NAME, {Name, Id})
     || {_, _, _, Lock, _} <- Rows, Name <- canal_lock_quorum_lock:names(Lock)
    ],
    Rows.

-spec take_all() -> [row()].
take_all() ->
    Rows = ets:tab2list(?TABLE),
    true = ets:delete_all_objects(?TABLE),
    true = ets:delete_all_objects(?BY_NAME),
    Rows.

-spec lookup(id()) -> [row()].
lookup(Id) ->
    ets:lookup(?TABLE, Id).

-spec count() -> non_neg_integer().
count() ->
    ets:info(?TABLE, size).

-spec infos() -> [canal_lock_quorum:lock_info()].
infos() ->
    [info(Row) || Row <- ets:tab2list(?TABLE)].

%% Of one name. Reads the locks of this name only.
-spec infos(name()) -> [canal_lock_quorum:lock_info()].
infos(Name) ->
    [info(Row) || Row <- rows(Name)].

info({_, Holder, _, Lock, Since_ms}) ->
    #{
        node => node(),
        holder => Holder,
        names => canal_lock_quorum_lock:names(Lock),
        mode => canal_lock_quorum_lock:mode(Lock),
        fence => canal_lock_quorum_lock:fence(Lock),
        since_ms => Since_ms,
        held => canal_lock_quorum_lock:is_held(Lock)
    }.

%% The locks of a name that are held, and were granted at least this time ago.
-spec ids(name(), Age_ms :: non_neg_integer()) -> [{id(), canal_lock_quorum_lock:mode()}].
ids(Name, Age_ms) ->
    Now_ms = erlang:system_time(millisecond),
    [
        {Id, canal_lock_quorum_lock:mode(Lock)}
     || {Id, _, _, Lock, Since_ms} <- rows(Name), Now_ms - Since_ms >= Age_ms,
        canal_lock_quorum_lock:is_held(Lock)
    ].

%% Whether one of these locks has not ended. After its end, the holder of a lost lock has been sent the message.
-spec any([id()]) -> boolean().
any(Ids) ->
    lists:any(fun(Id) -> ets:member(?TABLE, Id) end, Ids).

rows(Name) ->
    %% A number is less than any id.
    rows(Name, ets:next(?BY_NAME, {Name, 0})).

rows(Name, Key = {Name, Id}) ->
    lookup(Id) ++ rows(Name, ets:next(?BY_NAME, Key));
rows(_, _) ->
    [].
