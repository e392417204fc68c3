%% @private
%% The holder's side of permits in the table of another node.
%%
%% The holder never sends to the other node, because that can block it for as long as the node or the connection hangs.
%% Each call has a helper, a process of the holder's node. It asks the other node's manager for the holder's proxy, and
%% the proxy for the permit. See canal_lock_proxy.
%%
%% ```
%%   holder            helper                 remote manager                remote proxy
%%     |------------------>|                         |                            |
%%     |                   | {proxy, _, Holder}      |                            |
%%     |                   |------------------------>| finds or starts it ------->| monitors the holder
%%     |                   |<------------------ Proxy|                            |
%%     |                   | {Holder, {acquire, ...}}|                            |
%%     |                   |----------------------------------------------------->| acquires for itself
%%     |<----------- Answer|<------------------------------- {acquired, N} or full|   at once, or after a wait
%%     | taken             |                         |                            |
%%     |------------------>|                         |                            |
%% '''
%%
%% The holder decides what becomes of the answer: it sends either `taken' or, after its time limit, the exit signal
%% `abandoned'. While a helper has not asked a proxy for permits, that signal ends it. Afterwards the helper traps the
%% signal, and releases the permits of the abandoned answer. An abandoned release is completed. If the holder dies, its
%% proxy exits, and the helper has nothing to do.
-module(canal_lock_remote).

-include("canal_lock_errors.hrl").

-export([acquire/5, hold/5, let_go/3, release/3, release_async/3, answer/2]).
%% The main functions of processes.
-export([help/3, release_until_done/2]).

%% The number increases with each change of the messages between nodes.
-define(PROXY_REQUEST(Holder), {proxy, 4, Holder}).

%% A proxy that has exited, because it was idle or its connection or table is gone, held nothing. So a second attempt to
%% acquire, with the next proxy, is safe.
-define(ATTEMPTS, 2).

%% How long a call that does not wait for permits waits for its answer, as `gen_server:call/2'.
-define(LIMIT_MS, 5000).

%% How long a call that waits for permits waits for its answer after its timeout. The timeout is measured on the other
%% node, so `full' arrives a round trip later, and later still if the schedulers are busy. (Tests set another time in
%% the environment of the application.)
-define(GRACE_MS, 100).

%% How often, and with which pause, a release in the background is repeated while the other node has no manager: 10 s. A
%% supervisor restarts a manager within milliseconds.
-define(RELEASES, 100).
-define(PAUSE_MS, 100).

%% A release concerns the permits of one connection. When the connection is lost, they are void.
-type release() :: {release, canal_lock:key(), Permits :: pos_integer(), canal_lock_proxy:connection() | none}.

-type refusal() :: full | {error, timeout} | {raise, canal_lock_errors:cause()}.
-type released() :: ok | {error, not_held} | {raise, canal_lock_errors:cause()}.

%% All calls exit with the bare reason of `gen_server:call/2'. If the call of the manager fails, nothing has changed. If
%% that of the proxy fails, the proxy has exited, or exits with its connection, and the holder's permits are released.
-spec acquire(node(), canal_lock:key(), non_neg_integer(), non_neg_integer(), canal_lock_wait:options()) ->
    {acquired, pos_integer()} | refusal().
acquire(Node, Key, MaxPer, Buckets, Options) ->
    case call(Node, {acquire, Key, MaxPer, Buckets, Options}, limit_ms(Options)) of
        {acquired, N, _Proxy} -> {acquired, N};
        Refusal -> Refusal
    end.

%% The same, for permits that the caller releases by let_go/3.
-spec hold(node(), canal_lock:key(), non_neg_integer(), non_neg_integer(), canal_lock_wait:options()) ->
    {held, Proxy :: pid()} | refusal().
hold(Node, Key, MaxPer, Buckets, Options) ->
    case call(Node, {acquire, Key, MaxPer, Buckets, Options}, limit_ms(Options)) of
        {acquired, _N, Proxy} -> {held, Proxy};
        Refusal -> Refusal
    end.

%% Needs no manager.
-spec let_go(Proxy :: pid(), canal_lock:key(), Permits :: pos_integer()) -> ok.
let_go(Proxy, Key, Permits) ->
    Holder = self(),
    in_background(fun() -> release_at(Proxy, Holder, Key, Permits) end).

-spec release(node(), canal_lock:key(), Permits :: pos_integer()) -> released() | {error, timeout}.
release(Node, Key, Permits) ->
    call(Node, {release, Key, Permits, canal_lock_proxy:connection(Node)}, ?LIMIT_MS).

-spec release_async(node(), canal_lock:key(), Permits :: pos_integer()) -> ok.
release_async(Node, Key, Permits) ->
    Holder = self(),
    Connection = canal_lock_proxy:connection(Node),
    in_background(fun() -> ask(Holder, Node, {release, Key, Permits, Connection}) end).

limit_ms({0, _, _}) ->
    ?LIMIT_MS;
limit_ms({infinity, _, _}) ->
    infinity;
limit_ms({Timeout_ms, _, _}) ->
    min(?MAX_MS, Timeout_ms + application:get_env(canal_lock, remote_grace_ms, ?GRACE_MS)).

%% Exactly one side has the permits of an answer: the caller, or the helper that it has abandoned.
call(Node, Request, Limit_ms) ->
    Helper = spawn(?MODULE, help, [self(), Node, Request]),
    Ref = monitor(process, Helper, [{alias, reply_demonitor}]),
    Helper ! {answer_to, Ref},
    receive
        {Ref, Answer} ->
            Helper ! taken,
            return(Answer);
        {'DOWN', Ref, process, Helper, Reason} ->
            exit(Reason)
    after Limit_ms ->
        true = demonitor(Ref, [flush]),
        receive {Ref, _} -> ok after 0 -> ok end,
        true = exit(Helper, abandoned),
        {error, timeout}
    end.

return({exit, Reason}) -> exit(Reason);
return(Answer) -> Answer.

-spec help(Holder :: pid(), node(), canal_lock_proxy:request() | release()) -> ok.
help(Holder, Node, Request) ->
    Answer = caught(fun() -> ask(Holder, Node, Request) end),
    _ = monitor(process, Holder),
    deliver(Answer, Holder, Node, Request).

deliver(Answer, Holder, Node, Request) ->
    receive
        {answer_to, Ref} ->
            Ref ! {Ref, Answer},
            deliver(Answer, Holder, Node, Request);
        taken ->
            ok;
        {'EXIT', Holder, abandoned} ->
            abandoned(Answer, Holder, Node, Request);
        {'DOWN', _, process, Holder, _} ->
            ok
    end.

abandoned({acquired, _, Proxy}, Holder, _Node, {acquire, Key, _, _, {_, Permits, _}}) ->
    release_until_done(fun() -> release_at(Proxy, Holder, Key, Permits) end, ?RELEASES);
abandoned(_, _Holder, _Node, {acquire, _, _, _, _}) ->
    ok;
abandoned(Answer, Holder, Node, Release) ->
    is_done(Answer) orelse release_until_done(fun() -> ask(Holder, Node, Release) end, ?RELEASES),
    ok.

ask(Holder, Node, {acquire, Key, MaxPer, Buckets, {Timeout_ms, Permits, MaxWaiting}}) ->
    End_ms = end_ms(Timeout_ms),
    Request = fun() -> {acquire, Key, MaxPer, Buckets, {left_ms(End_ms), Permits, MaxWaiting}} end,
    acquire_at(Holder, Node, Request, ?ATTEMPTS);
ask(Holder, Node, {release, Key, Permits, Connection}) ->
    _ = process_flag(trap_exit, true),
    case proxy(Holder, Node) of
        Proxy when is_pid(Proxy) ->
            case canal_lock_proxy:connection(Node) of
                Connection -> release_at(Proxy, Holder, Key, Permits);
                _ -> {error, not_held}
            end;
        Raise ->
            Raise
    end.

%% The other node measures what is left of the timeout after the first round trip. A request that may wait always joins
%% the queue.
end_ms(0) -> none;
end_ms(infinity) -> infinity;
end_ms(Timeout_ms) -> erlang:monotonic_time(millisecond) + Timeout_ms.

left_ms(none) -> 0;
left_ms(infinity) -> infinity;
left_ms(End_ms) -> max(1, End_ms - erlang:monotonic_time(millisecond)).

acquire_at(Holder, Node, Request, Attempts) ->
    case proxy(Holder, Node) of
        Proxy when is_pid(Proxy) ->
            is_process_alive(Holder) orelse exit(normal),
            _ = process_flag(trap_exit, true),
            try canal_lock_exit:call(Proxy, {Holder, Request()}, infinity) of
                {acquired, N} -> {acquired, N, Proxy};
                Answer -> Answer
            catch
                exit:Reason when Attempts > 1, (Reason =:= normal orelse Reason =:= noproc) ->
                    acquire_at(Holder, Node, Request, Attempts - 1)
            end;
        Raise ->
            Raise
    end.

proxy(Holder, Node) ->
    case canal_lock_exit:call({canal_lock, Node}, ?PROXY_REQUEST(Holder), infinity) of
        Proxy when is_pid(Proxy) -> Proxy;
        {raise, Cause} -> {raise, Cause};
        _ -> {raise, version_mismatch}
    end.

%% If the proxy exits, its permits are released. Another proxy must not be asked: the holder may have acquired new
%% permits from it.
release_at(Proxy, Holder, Key, Permits) ->
    try
        canal_lock_exit:call(Proxy, {Holder, {release, Key, Permits}}, infinity)
    catch
        exit:Reason when Reason =/= {nodedown, node(Proxy)} -> {error, not_held}
    end.

in_background(Release) ->
    _ = spawn(?MODULE, release_until_done, [Release, ?RELEASES]),
    ok.

-spec release_until_done(fun(() -> released()), Attempts :: pos_integer()) -> ok.
release_until_done(Release, Left) ->
    case is_done(caught(Release)) orelse Left =:= 1 of
        true ->
            ok;
        false ->
            receive after ?PAUSE_MS -> release_until_done(Release, Left - 1) end
    end.

%% A lost connection releases all permits.
is_done({exit, {nodedown, _}}) -> true;
is_done({exit, _}) -> false;
is_done({raise, _}) -> false;
is_done(_) -> true.

caught(Call) ->
    try
        Call()
    catch
        exit:Reason -> {exit, Reason}
    end.

%% The manager's answer to a call from another node.
-spec answer(Request :: term(), node()) -> pid() | none | {raise, canal_lock_errors:cause()}.
answer(?PROXY_REQUEST(Holder), Node) when is_pid(Holder), node(Holder) =:= Node ->
    canal_lock_proxy:find_or_start(Holder);
answer(_OfAnotherVersion, _Node) ->
    {raise, version_mismatch}.
