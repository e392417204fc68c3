%% @private
%% Asking the manager of another node for permits.
%%
%% A grant must not be lost between two nodes: if the answer does not reach the process that asked, the permit has to
%% go back; if it does, it has to stay, though the manager may crash right then. So a process of its own makes the
%% call. The manager takes a permit that the call has brought back if the call dies unconfirmed, and the call lives
%% until its confirmation has been heard:
%%
%% ```
%%   holder             call                            manager there
%%     | spawns          |                                   |
%%     |---------------->| acquire                           |
%%     |                 |---------------------------------->| takes a permit for the holder, on record as the
%%     |                 |                      {acquired,N} | call's; watches both
%%     |   {acquired,N}  |<----------------------------------|
%%     |<----------------| confirm                           |
%%   goes on             |---------------------------------->| the permit is the holder's
%%                       | ends                           ok |
%%                       |<----------------------------------|
%% '''
%%
%% The call dies earlier only if it has not told the holder of a permit, or if the holder cannot have it any more,
%% because the connection was lost. A manager that adopts a table finds the calls that are on record, and watches
%% them again.
-module(canal_lock_remote).

-export([acquire/2, release/2]).

-export_type([wish/0, request/0]).

%% What is wanted.
-type wish() :: {canal_lock:key(), MaxPer :: non_neg_integer(), Buckets :: non_neg_integer()}.

%% What a manager is asked by other nodes. A release is on behalf of the process that calls.
-type request() ::
    {acquire, Holder :: pid(), Call :: pid(), wish()}
    | {confirm, Holder :: pid(), Call :: pid()}
    | {release, canal_lock:key()}.

%% How long to wait for a manager that has crashed to be there again, first and at most.
-define(FIRST_WAIT_MS, 10).
-define(LAST_WAIT_MS, 5000).

%% Exits with a reason as those of `gen_server:call/2'.
-spec acquire(node(), wish()) -> {acquired, pos_integer()} | full | {raise, canal_lock_errors:cause()}.
acquire(Node, Wish) ->
    Holder = self(),
    Tag = make_ref(),
    {Call, Monitor} = spawn_monitor(fun() -> call({canal_lock, Node}, Holder, Tag, Wish) end),
    receive
        {Tag, Answer} ->
            demonitor(Monitor, [flush]),
            Answer;
        {'DOWN', Monitor, process, Call, Reason} ->
            exit(Reason)
    end.

-spec release(node(), canal_lock:key()) -> ok | {error, not_held} | {raise, canal_lock_errors:cause()}.
release(Node, Key) ->
    request({canal_lock, Node}, {release, Key}).

call(Manager, Holder, Tag, Wish) ->
    Answer = request(Manager, {acquire, Holder, self(), Wish}),
    Holder ! {Tag, Answer},
    case Answer of
        {acquired, _} -> confirm(Manager, Holder, ?FIRST_WAIT_MS);
        _ -> ok
    end.

%% Until it has been heard, or does not matter any more: without a connection the permit has been taken back, or will
%% be, as this process ends.
confirm(Manager, Holder, Wait_ms) ->
    try request(Manager, {confirm, Holder, self()}) of
        _ -> ok
    catch
        exit:{nodedown, _} ->
            ok;
        exit:_ ->
            case is_process_alive(Holder) of
                true ->
                    timer:sleep(Wait_ms),
                    confirm(Manager, Holder, min(2 * Wait_ms, ?LAST_WAIT_MS));
                false ->
                    ok
            end
    end.

%% Without a timeout: an answer that comes too late would be a permit that nobody knows of.
-spec request({atom(), node()}, request()) -> term().
request(Manager, Request) ->
    try
        gen_server:call(Manager, Request, infinity)
    catch
        exit:{Reason, {gen_server, call, _}} -> exit(Reason)
    end.
