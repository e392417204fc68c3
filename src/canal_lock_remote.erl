%% @private
%% The holder's side of permits in the table of another node. The holder asks that node's manager for its proxy, and the
%% proxy for the permit. See canal_lock_proxy.
%%
%% ```
%%   holder                  remote manager                remote proxy
%%     | proxy                      |                            |
%%     |--------------------------->| finds or starts it ------->| monitors the holder
%%     |<------------------- Proxy -|                            |
%%     | {acquire, ...}             |                            |
%%     |-------------------------------------------------------->| acquires for itself
%%     |<------------------------------- {acquired, N} or full --|   at once, or after a wait
%% '''
-module(canal_lock_remote).

-export([call/2, answer/2]).

%% The number increases with each change of the messages between nodes.
-define(PROXY_REQUEST, {proxy, 3}).

%% A proxy that has exited, because it was idle or its connection or table is gone, held nothing. So a second attempt,
%% with the next proxy, is safe.
-define(ATTEMPTS, 2).

%% Exits with the bare reason of `gen_server:call/2'. If the first of its two calls fails, nothing has changed. If the
%% second one fails, the proxy has exited and the holder's permits are released.
-spec call(node(), canal_lock_proxy:request()) -> Answer | {raise, canal_lock_errors:cause()} when
    Answer :: {acquired, pos_integer()} | full | ok | {error, not_held}.
call(Node, Request) ->
    call(Node, Request, ?ATTEMPTS).

call(Node, Request, Attempts) ->
    case canal_lock_exit:call({canal_lock, Node}, ?PROXY_REQUEST, infinity) of
        Proxy when is_pid(Proxy) ->
            try
                canal_lock_exit:call(Proxy, Request, infinity)
            catch
                exit:Reason when Attempts > 1, (Reason =:= normal orelse Reason =:= noproc) ->
                    call(Node, Request, Attempts - 1)
            end;
        {raise, Cause} ->
            {raise, Cause};
        _ ->
            {raise, version_mismatch}
    end.

%% The manager's answer to a call from another node.
-spec answer(Request :: term(), Holder :: pid()) -> pid() | none | {raise, canal_lock_errors:cause()}.
answer(?PROXY_REQUEST, Holder) ->
    canal_lock_proxy:find_or_start(Holder);
answer(_OfAnotherVersion, _From) ->
    {raise, version_mismatch}.
