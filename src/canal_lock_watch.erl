%% @private
%% The manager's watch on holders on other nodes, which the VM lets nobody else watch. `canal_lock_remote' is the other
%% end; what is held is in the native table.
%%
%% The ETS table has a row for each process that is watched: holders, and calls that are not over.
-module(canal_lock_watch).

-export([adopt/2, acquire/5, confirm/4, release/4, down/4]).

%% `{Pid, Monitor, Why}'
-type row() :: {pid(), reference(), why()}.
-type why() :: holder | {call_of, Holder :: pid()}.

%% What stands for the connection to a node, and for no other connection to it.
-type connection() :: port() | pid() | none.

-export_type([row/0, connection/0]).

%% Watches all those anew that a table knows which an earlier manager has left. Whoever has lost the connection that it
%% came by has lost its permits, though there was nobody to see it.
-spec adopt(ets:tid() | atom(), canal_lock_nif:handle()) -> ok.
adopt(Table, Handle) ->
    lists:foreach(
        fun({Holder, Connection, Calls}) ->
            %% First the watch: if the connection is the same afterwards, its loss will be seen.
            watch(Table, Holder, holder),
            case connection(Holder) of
                Connection ->
                    [watch(Table, Call, {call_of, Holder}) || Call <- Calls];
                _ ->
                    unwatch(Table, Holder),
                    canal_lock_nif:remote_give_back(Handle, Holder)
            end
        end,
        canal_lock_nif:remote_holders(Handle)
    ).

connection(Pid) ->
    proplists:get_value(node(Pid), erlang:system_info(dist_ctrl), none).

-spec acquire(ets:tid() | atom(), canal_lock_nif:handle(), pid(), Call :: pid(), canal_lock_remote:wish()) ->
    {acquired, pos_integer()} | full | {raise, canal_lock_errors:cause()}.
acquire(Table, Handle, Holder, Call, {Key, MaxPer, Buckets}) ->
    Acquire = fun(KeyOrHandle) ->
        Wish = {KeyOrHandle, MaxPer, Buckets},
        canal_lock_nif:remote_acquire(Handle, {Holder, connection(Holder)}, Call, Wish)
    end,
    try canal_lock_interned:call(Key, Acquire) of
        full ->
            full;
        Acquired ->
            %% If they are dead by now, the watch says so at once.
            watch(Table, Holder, holder),
            watch(Table, Call, {call_of, Holder}),
            Acquired
    catch
        error:system_limit -> {raise, system_limit}
    end.

-spec confirm(ets:tid() | atom(), canal_lock_nif:handle(), pid(), Call :: pid()) -> ok.
confirm(Table, Handle, Holder, Call) ->
    [unwatch(Table, Call) || [{_, _, {call_of, _}}] <- [ets:lookup(Table, Call)]],
    unwatch_unless(canal_lock_nif:remote_end_call(Handle, Holder, Call, true), Table, Holder).

-spec release(ets:tid() | atom(), canal_lock_nif:handle(), pid(), canal_lock:key()) ->
    ok | {error, not_held} | {raise, canal_lock_errors:cause()}.
release(Table, Handle, Holder, Key) ->
    Release = fun(KeyOrHandle) -> canal_lock_nif:remote_release(Handle, Holder, KeyOrHandle) end,
    try canal_lock_interned:call(Key, Release) of
        {Released, StillAHolder} ->
            unwatch_unless(StillAHolder, Table, Holder),
            case Released of
                true -> ok;
                false -> {error, not_held}
            end
    catch
        error:system_limit -> {raise, system_limit}
    end.

%% A `'DOWN'' of one of these, or of somebody who is not watched any more.
-spec down(ets:tid() | atom(), canal_lock_nif:handle(), reference(), pid()) -> ok.
down(Table, Handle, Monitor, Pid) ->
    case ets:lookup(Table, Pid) of
        [{Pid, Monitor, Why}] ->
            true = ets:delete(Table, Pid),
            case Why of
                holder ->
                    canal_lock_nif:remote_give_back(Handle, Pid);
                {call_of, Holder} ->
                    unwatch_unless(canal_lock_nif:remote_end_call(Handle, Holder, Pid, false), Table, Holder)
            end;
        _ ->
            ok
    end.

-spec watch(ets:tid() | atom(), pid(), why()) -> ok.
watch(Table, Pid, Why) ->
    case ets:member(Table, Pid) of
        true ->
            ok;
        false ->
            true = ets:insert(Table, {Pid, monitor(process, Pid), Why}),
            ok
    end.

unwatch_unless(true, _Table, _Holder) -> ok;
unwatch_unless(false, Table, Holder) -> unwatch(Table, Holder).

unwatch(Table, Pid) ->
    case ets:take(Table, Pid) of
        [{Pid, Monitor, _}] ->
            demonitor(Monitor, [flush]),
            ok;
        [] ->
            ok
    end.
