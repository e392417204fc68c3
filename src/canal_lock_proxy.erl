%% @private
%% Holds permits in the table of this node for one process of another node, the holder.
%%
%% A proxy monitors its holder, acquires and releases by the local calls, and exits when the holder dies or the
%% connection is lost. So the VM releases the permits, whatever happens to the holder, the connection or the manager.
%% The native library records which process the proxy represents. A manager starts a proxy and finds it again by that
%% record; no proxy is linked to a manager.
%%
%% A request of the holder that waits is one of the proxy: the proxy gets its message, has its timer, and sends the
%% answer to the holder. It never blocks, so it handles the death of the holder at once.
%%
%% A late 'DOWN' of an old connection cannot release a permit of a new one. A proxy belongs to the connection over which
%% it was started, and exits when it gets a request over another one. The holder then asks the manager for another
%% proxy. If the connection changes while an answer is on its way, the call fails before the answer can arrive.
%%
%% The holder's requests are sent by its helpers (canal_lock_remote), and name the holder.
-module(canal_lock_proxy).

-behaviour(gen_server).

-include("canal_lock_errors.hrl").

-export([find_or_start/1, connection/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-export_type([request/0, connection/0]).

%% A request to the proxy of `Holder' is `{Holder, request()}'.
-type request() ::
    {acquire, canal_lock:key(), MaxPer :: non_neg_integer(), Buckets :: non_neg_integer(), canal_lock_wait:options()}
    | {release, canal_lock:key(), Permits :: pos_integer()}.

%% Identifies one connection to another node. No later connection has the same.
-type connection() :: port() | pid().

%% After this time without a message, a proxy without permits exits, and a proxy with permits checks its connection and
%% its table. (Tests set another time in the environment of the application.)
-define(IDLE_MS, 5000).

-record(wait, {
    from :: gen_server:from(),
    permits :: pos_integer(),
    timer :: reference() | none
}).

-record(state, {
    holder :: pid(),
    %% To the node of the holder.
    connection :: connection(),
    monitor :: reference(),
    permits = 0 :: non_neg_integer(),
    %% Requests that wait, by their references.
    waits = #{} :: #{reference() => #wait{}}
}).

%% Called by a manager. `none' if the connection to the holder has just been lost.
-spec find_or_start(Holder :: pid()) -> pid() | none | {raise, canal_lock_errors:cause()}.
find_or_start(Holder) ->
    Proxy = canal_lock_nif:proxy_of(Holder),
    case Proxy =/= none andalso is_process_alive(Proxy) of
        true -> Proxy;
        false -> start(Holder)
    end.

start(Holder) ->
    case gen_server:start(?MODULE, Holder, []) of
        {ok, Proxy} -> Proxy;
        {error, {shutdown, Answer}} -> Answer
    end.

init(Holder) ->
    Connection = connection(node(Holder)),
    Monitor = monitor(process, Holder),
    %% If the connection did not change, the monitor uses it. Otherwise the proxy stops.
    case connection(node(Holder)) of
        Connection when Connection =/= none ->
            represent(#state{holder = Holder, connection = Connection, monitor = Monitor});
        _ ->
            {stop, {shutdown, none}}
    end.

represent(State = #state{holder = Holder}) ->
    try canal_lock_nif:represent(Holder) of
        ok -> {ok, State, idle_ms()};
        Proxy -> {stop, {shutdown, Proxy}}
    catch
        error:Cause -> {stop, {shutdown, {raise, Cause}}}
    end.

handle_call({Holder, Request}, From = {Pid, _}, State = #state{holder = Holder}) when node(Pid) =:= node(Holder) ->
    case is_current(State) of
        true -> serve(Request, From, State);
        false -> {stop, normal, State}
    end;
handle_call(_Request, _From, State) ->
    {reply, {error, unknown_call}, State, idle_ms()}.

serve(Request = {acquire, _, _, _, {_, Permits, _}}, From, State = #state{waits = Waits}) ->
    case answer(Request) of
        {waiting, Ref} ->
            Wait = #wait{from = From, permits = Permits, timer = start_timer(Request, Ref)},
            {noreply, State#state{waits = Waits#{Ref => Wait}}, idle_ms()};
        Answer ->
            reply(From, Answer, Permits, State)
    end;
serve(Request = {release, _, Permits}, From, State) ->
    reply(From, answer(Request), Permits, State);
serve(_, From, State) ->
    reply(From, {raise, version_mismatch}, 0, State).

%% If the table was replaced during the request, the exit of the proxy releases the new permits.
reply(From, Answer, Permits, State = #state{permits = Before}) ->
    Next = State#state{permits = Before + change(Answer, Permits)},
    case is_current(Next) of
        true ->
            gen_server:reply(From, Answer),
            {noreply, Next, idle_ms()};
        false ->
            {stop, normal, Next}
    end.

answer({acquire, Key, MaxPer, Buckets, Options = {Timeout_ms, _, _}}) ->
    Call =
        case Timeout_ms of
            0 -> fun canal_lock_wait:acquire/4;
            _ -> fun canal_lock_wait:request/4
        end,
    ?CAUGHT(canal_lock_interned:call(Key, fun(KeyOrHandle) -> Call(KeyOrHandle, MaxPer, Buckets, Options) end));
answer({release, Key, Permits}) ->
    ?CAUGHT(canal_lock_interned:call(Key, fun(K) -> canal_lock_nif:release_many(local, K, Permits) end)).

start_timer({acquire, _, _, _, {infinity, _, _}}, _Ref) -> none;
start_timer({acquire, _, _, _, {Timeout_ms, _, _}}, Ref) -> erlang:start_timer(Timeout_ms, self(), Ref).

%% The change in the number of permits after the answer to a request for `Permits'.
change({acquired, _}, Permits) -> Permits;
change(ok, Permits) -> -Permits;
change(_, _Permits) -> 0.

%% Sends the answer to a request that has waited. The request must not be repeated in another table, where its timeout
%% would begin again.
end_wait(Ref, Answer, State = #state{waits = Waits}) ->
    {#wait{from = From, permits = Permits, timer = Timer}, Rest} = maps:take(Ref, Waits),
    _ = [erlang:cancel_timer(Timer) || Timer =/= none],
    Next = reply(From, Answer, Permits, State#state{waits = Rest}),
    _ = [gen_server:reply(From, {raise, not_started}) || stop <- [element(1, Next)]],
    Next.

handle_cast(_Message, State) ->
    {noreply, State, idle_ms()}.

handle_info({'DOWN', Monitor, process, Holder, _Reason}, State = #state{monitor = Monitor, holder = Holder}) ->
    {stop, normal, State};
handle_info({canal_lock, Ref, End}, State = #state{waits = Waits}) when is_map_key(Ref, Waits) ->
    end_wait(Ref, canal_lock_wait:answer(End), State);
handle_info({timeout, _Timer, Ref}, State = #state{waits = Waits}) when is_map_key(Ref, Waits) ->
    end_wait(Ref, canal_lock_wait:cancel_after_timeout(Ref), State);
handle_info(timeout, State = #state{permits = Permits, waits = Waits}) ->
    case Permits + map_size(Waits) > 0 andalso is_current(State) of
        true -> {noreply, State, idle_ms()};
        false -> {stop, normal, State}
    end;
handle_info(_Message, State) ->
    {noreply, State, idle_ms()}.

idle_ms() ->
    application:get_env(canal_lock, proxy_idle_ms, ?IDLE_MS).

%% Whether the proxy still represents its holder: over the same connection, in the open table.
is_current(#state{holder = Holder, connection = Connection}) ->
    connection(node(Holder)) =:= Connection andalso is_represented(Holder).

is_represented(Holder) ->
    try
        canal_lock_nif:proxy_of(Holder) =:= self()
    catch
        error:not_started -> false
    end.

-spec connection(node()) -> connection() | none.
connection(Node) ->
    proplists:get_value(Node, erlang:system_info(dist_ctrl), none).
