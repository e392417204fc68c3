%% @private
%% Permits in the table of another node, from the side of the holder: it asks the manager of that node for its proxy,
%% and the proxy for the permit. See canal_lock_proxy.
%%
%% ```
%%   holder                    manager there                proxy there
%%     | proxy                      |                            |
%%     |--------------------------->| finds it, or starts it --->| monitors the holder
%%     |<------------------- Proxy -|                            |
%%     | {acquire, ...}             |                            |
%%     |-------------------------------------------------------->| acquires for itself
%%     |<------------------------------- {acquired, N} or full --|
%% '''
-module(canal_lock_remote).

-export([call/2, answer/2]).

%% Increased with each change of what nodes send to each other.
-define(PROXY_REQUEST, {proxy, 1}).

%% A proxy that exits because it is idle, or belongs to a connection or to a table that is gone, holds nothing. The next
%% one holds what is asked for.
-define(ATTEMPTS, 2).

%% Exits with a reason as those of `gen_server:call/2'. If the first of its two calls fails, nothing has changed; if the
%% second one fails, the proxy is gone, and all permits of the holder with it.
-spec call(node(), canal_lock_proxy:request()) -> Answer | {raise, canal_lock_errors:cause()} when
    Answer :: {acquired, pos_integer()} | full | ok | {error, not_held}.
call(Node, Request) ->
    call(Node, Request, ?ATTEMPTS).

call(Node, Request, Attempts) ->
    case server_call({canal_lock, Node}, ?PROXY_REQUEST) of
        Proxy when is_pid(Proxy) ->
            try
                server_call(Proxy, Request)
            catch
                exit:Reason when Attempts > 1, (Reason =:= normal orelse Reason =:= noproc) ->
                    call(Node, Request, Attempts - 1)
            end;
        {raise, Cause} ->
            {raise, Cause};
        _ ->
            {raise, version_mismatch}
    end.

server_call(Server, Request) ->
    try
        gen_server:call(Server, Request, infinity)
    catch
        exit:{Reason, {gen_server, call, _}} -> exit(Reason)
    end.

%% What a manager answers to a call from another node.
-spec answer(Request :: term(), Holder :: pid()) -> pid() | none | {raise, canal_lock_errors:cause()}.
answer(?PROXY_REQUEST, Holder) ->
    canal_lock_proxy:find_or_start(Holder);
answer(_OfAnotherVersion, _From) ->
    {raise, version_mismatch}.
