%% @private
%% Holds permits in the table of this node for one process of another node, the holder.
%%
%% A proxy monitors its holder, acquires and releases by the local calls, and exits when the holder dies or the
%% connection is lost. So the VM releases the permits, whatever happens to the holder, the connection or the manager.
%% The native library records which process the proxy represents. A manager starts a proxy and finds it again by that
%% record; no proxy is linked to a manager.
%%
%% A late 'DOWN' of an old connection cannot release a permit of a new one. A proxy belongs to the connection over which
%% it was started, and exits when it gets a request over another one. The holder then asks the manager for another
%% proxy. If the connection changes while an answer is on its way, the holder's call fails before the answer can arrive.
-module(canal_lock_proxy).

-behaviour(gen_server).

-export([find_or_start/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-export_type([request/0]).

%% A holder's request to its proxy.
-type request() ::
    {acquire, canal_lock:key(), MaxPer :: non_neg_integer(), Buckets :: non_neg_integer()}
    | {release, canal_lock:key()}.

%% After this time without a message, a proxy without permits exits, and a proxy with permits checks its connection and
%% its table.
-define(IDLE_MS, 5000).

-record(state, {
    holder :: pid(),
    %% Identifies one connection to the node of the holder.
    connection :: port() | pid(),
    monitor :: reference(),
    permits = 0 :: non_neg_integer()
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
    Connection = connection(Holder),
    Monitor = monitor(process, Holder),
    %% If the connection did not change, the monitor uses it. Otherwise the proxy stops.
    case connection(Holder) of
        Connection when Connection =/= none ->
            represent(#state{holder = Holder, connection = Connection, monitor = Monitor});
        _ ->
            {stop, {shutdown, none}}
    end.

represent(State = #state{holder = Holder}) ->
    try canal_lock_nif:represent(Holder) of
        ok -> {ok, State, ?IDLE_MS};
        Proxy -> {stop, {shutdown, Proxy}}
    catch
        error:Cause -> {stop, {shutdown, {raise, Cause}}}
    end.

handle_call(Request, {Holder, _Tag}, State = #state{holder = Holder}) ->
    case is_current(State) of
        true -> serve(Request, State);
        false -> {stop, normal, State}
    end;
handle_call(_Request, _From, State) ->
    {reply, {error, unknown_call}, State, ?IDLE_MS}.

%% If the table was replaced during the request, the exit of the proxy releases the new permit.
serve(Request, State = #state{permits = Permits}) ->
    Answer = answer(Request),
    Next = State#state{permits = Permits + change(Answer)},
    case is_current(Next) of
        true -> {reply, Answer, Next, ?IDLE_MS};
        false -> {stop, normal, Next}
    end.

answer({acquire, Key, MaxPer, Buckets}) ->
    canal_lock_interned:answer(fun canal_lock_nif:acquire/3, [Key, MaxPer, Buckets]);
answer({release, Key}) ->
    canal_lock_interned:answer(fun canal_lock_nif:release/1, [Key]);
answer(_) ->
    {raise, version_mismatch}.

%% How an answer changes the number of permits.
change({acquired, _}) -> 1;
change(ok) -> -1;
change(_) -> 0.

handle_cast(_Message, State) ->
    {noreply, State, ?IDLE_MS}.

handle_info({'DOWN', Monitor, process, Holder, _Reason}, State = #state{monitor = Monitor, holder = Holder}) ->
    {stop, normal, State};
handle_info(timeout, State = #state{permits = Permits}) ->
    case Permits > 0 andalso is_current(State) of
        true -> {noreply, State, ?IDLE_MS};
        false -> {stop, normal, State}
    end;
handle_info(_Message, State) ->
    {noreply, State, ?IDLE_MS}.

%% Whether the proxy still represents its holder: over the same connection, in the open table.
is_current(#state{holder = Holder, connection = Connection}) ->
    connection(Holder) =:= Connection andalso is_represented(Holder).

is_represented(Holder) ->
    try
        canal_lock_nif:proxy_of(Holder) =:= self()
    catch
        error:not_started -> false
    end.

connection(Pid) ->
    proplists:get_value(node(Pid), erlang:system_info(dist_ctrl), none).
