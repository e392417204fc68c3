%% @private
%% The locks that processes of this node hold. The agent's process writes; any process reads, also one that another node
%% has sent. The supervisor owns the table, because the next agent notifies the holders.
%%
%% To find the locks of one name, the calling process searches the table: about 20 ms for 100,000 locks. An index would
%% add two changes of an ordered table to each lock.
-module(canal_lock_quorum_lock_table).

-export([new/0, add/4, remove/1, take_all/0, lookup/1, count/0, infos/0, infos/1, fold/3]).

-export_type([row/0]).

-type id() :: canal_lock_quorum_lock:id().
-type name() :: canal_lock_quorum_names:name().

%% A held lock: its holder, the monitor of the holder, and the time of the grant by the wall clock. Each lock adds
%% and removes a row, so it is small.
-type row() :: {
    id(), Holder :: pid(), Monitor :: reference(), canal_lock_quorum_lock:lock(), Since_us :: integer()
}.

-define(TABLE, canal_lock_quorum).

%% In a match specification, which cannot search a list: whether a lock has several names.
-define(HAS_SEVERAL(Names), {'=/=', {tl, Names}, []}).

%% Locks read in one piece, for which the agent's process may have to wait: about 0.1 ms.
-define(PIECE, 512).

%% The calling process owns the table.
-spec new() -> ok.
new() ->
    ?TABLE = ets:new(?TABLE, [named_table, public]),
    ok.

-spec add(id(), Holder :: pid(), Monitor :: reference(), canal_lock_quorum_lock:lock()) -> ok.
add(Id, Holder, Monitor, Lock) ->
    true = ets:insert(?TABLE, {Id, Holder, Monitor, Lock, erlang:system_time(microsecond)}),
    ok.

%% Removes a lock. Returns the monitor of its holder.
-spec remove(id()) -> {ok, Monitor :: reference()} | not_held.
remove(Id) ->
    try ets:lookup_element(?TABLE, Id, 3) of
        Monitor ->
            true = ets:delete(?TABLE, Id),
            {ok, Monitor}
    catch
        error:badarg -> not_held
    end.

-spec take_all() -> [row()].
take_all() ->
    Rows = ets:tab2list(?TABLE),
    true = ets:delete_all_objects(?TABLE),
    Rows.

-spec lookup(id()) -> [row()].
lookup(Id) ->
    ets:lookup(?TABLE, Id).

%% Exits with `noproc' if canal_lock_quorum is not started on this node.
-spec count() -> non_neg_integer().
count() ->
    case ets:info(?TABLE, size) of
        undefined -> exit(noproc);
        Count -> Count
    end.

%% Folds over lists of the holders and the times of the grants of all locks, without keeping all of them. Locks of one
%% of these names come with their names, and so does each lock of several names; other ones come with none. Exits with
%% `noproc' if canal_lock_quorum is not started on this node, or stops.
-spec fold([name()], fun(([{Holder :: pid(), Since_us :: integer(), [name()]}], Result) -> Result), Result) -> Result.
fold(Names, Add, Result) ->
    case ets:whereis(?TABLE) of
        undefined ->
            exit(noproc);
        Table ->
            %% So that no lock is read twice or left out because of others that come and go.
            true = exists(fun() -> ets:safe_fixtable(Table, true) end),
            try
                add_pieces(exists(fun() -> ets:select(Table, patterns(Names), ?PIECE) end), Add, Result)
            after
                _ = exists(fun() -> ets:safe_fixtable(Table, false) end)
            end
    end.

add_pieces('$end_of_table', _, Result) -> Result;
add_pieces({Piece, Next}, Add, Result) -> add_pieces(exists(fun() -> ets:select(Next) end), Add, Add(Piece, Result)).

%% The table ends with its owner.
exists(Read) ->
    try
        Read()
    catch
        error:badarg -> exit(noproc)
    end.

patterns([]) ->
    [{{'_', '$1', '_', '_', '$2'}, [], [{{'$1', '$2', []}}]}];
patterns(Names) ->
    Wanted = {is_map_key, {hd, '$3'}, {const, maps:from_keys(Names, [])}},
    Pattern = {'_', '$1', '_', canal_lock_quorum_lock:pattern('$3'), '$2'},
    [{Pattern, [{'orelse', Wanted, ?HAS_SEVERAL('$3')}], [{{'$1', '$2', '$3'}}]} | patterns([])].

-spec infos() -> [canal_lock_quorum:lock_info()].
infos() ->
    [info(Row) || Row <- ets:tab2list(?TABLE)].

%% Of one name.
-spec infos(name()) -> [canal_lock_quorum:lock_info()].
infos(Name) ->
    [info(Row) || Row <- rows(Name)].

info({_, Holder, _, Lock, Since_us}) ->
    #{
        node => node(),
        holder => Holder,
        names => canal_lock_quorum_lock:names(Lock),
        mode => canal_lock_quorum_lock:mode(Lock),
        fence => canal_lock_quorum_lock:fence(Lock),
        since_ms => Since_us div 1000,
        held => canal_lock_quorum_lock:is_held(Lock)
    }.

%% The match specification leaves out locks of one other name.
rows(Name) ->
    Guard = {'orelse', {'=:=', {hd, '$1'}, {const, Name}}, ?HAS_SEVERAL('$1')},
    Rows = ets:select(?TABLE, [{{'_', '_', '_', canal_lock_quorum_lock:pattern('$1'), '_'}, [Guard], ['$_']}]),
    [Row || {_, _, _, Lock, _} = Row <- Rows, lists:member(Name, canal_lock_quorum_lock:names(Lock))].
