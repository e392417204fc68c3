%% @private
%% The locks that processes of this node hold. The agent's process writes; any process reads, also one that another node
%% has sent. The supervisor owns the table, because the next agent notifies the holders.
%%
%% To find the locks of one name, the calling process searches the table: about 25 ms for 100,000 locks. An index would
%% add two changes of an ordered table to each lock.
-module(canal_lock_quorum_held).

-export([new/0, add/4, take/1, take_all/0, lookup/1, count/0, infos/0, infos/1, ids/2, any/1]).

-export_type([row/0]).

-type id() :: canal_lock_quorum_lock:id().
-type name() :: canal_lock_quorum_names:name().

%% A held lock: its holder, the monitor of the holder, the time of the grant by the wall clock, and the names of the
%% lock as keys, for the search of a name.
-type row() :: {
    id(), Holder :: pid(), Monitor :: reference(), canal_lock_quorum_lock:lock(), Since_ms :: integer(), #{name() => []}
}.

-define(TABLE, canal_lock_quorum).

%% The calling process owns the table.
-spec new() -> ok.
new() ->
    ?TABLE = ets:new(?TABLE, [named_table, public]),
    ok.

-spec add(id(), Holder :: pid(), Monitor :: reference(), canal_lock_quorum_lock:lock()) -> ok.
add(Id, Holder, Monitor, Lock) ->
    Names = maps:from_keys(canal_lock_quorum_lock:names(Lock), []),
    true = ets:insert(?TABLE, {Id, Holder, Monitor, Lock, erlang:system_time(millisecond), Names}),
    ok.

%% Removes a lock. Returns its row, or nothing if it is not held.
-spec take(id()) -> [row()].
take(Id) ->
    ets:take(?TABLE, Id).

-spec take_all() -> [row()].
take_all() ->
    Rows = ets:tab2list(?TABLE),
    true = ets:delete_all_objects(?TABLE),
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

%% Of one name.
-spec infos(name()) -> [canal_lock_quorum:lock_info()].
infos(Name) ->
    [info(Row) || Row <- rows(Name)].

info({_, Holder, _, Lock, Since_ms, _}) ->
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
     || {Id, _, _, Lock, Since_ms, _} <- rows(Name), Now_ms - Since_ms >= Age_ms,
        canal_lock_quorum_lock:is_held(Lock)
    ].

%% Whether one of these locks has not ended. After its end, the holder of a lost lock has been sent the message.
-spec any([id()]) -> boolean().
any(Ids) ->
    lists:any(fun(Id) -> ets:member(?TABLE, Id) end, Ids).

rows(Name) ->
    ets:select(?TABLE, [{{'_', '_', '_', '_', '_', '$1'}, [{is_map_key, {const, Name}, '$1'}], ['$_']}]).
