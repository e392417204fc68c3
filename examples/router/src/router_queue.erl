%% The permits of an app, and the requests that wait for one when the app is at its capacity. They wait in the queue of
%% canal_lock, which admits them in the order of their arrival.
%%
%% `canal_lock:acquire/4' would block the process, and a blocked process does not notice that its client disconnects. So
%% a request waits in a `receive' for whichever is first: the permit, the disconnect, or the deadline. If its process
%% exits or is killed, the VM removes the request from the queue.
%%
%% An app can change while requests wait. Three steps make sure that a request is admitted by the present capacity and
%% passed on to a present dyno:
%%
%%   - a change gives the requests that wait the new capacity (`resize/1');
%%   - a request that has begun to wait checks whether the app has changed since it was found, because that change may
%%     have missed it;
%%   - a request that has a permit finds the app again, and checks that the app is not above its present capacity. Then
%%     it could also acquire the permit now. Otherwise it has got the permit just before the change: it releases it,
%%     and waits again.
-module(router_queue).

-export([acquire/1, await/4, release/1, resize/1]).

-export_type([acquired/0]).

-type acquired() :: {acquired, pos_integer()} | {waiting, reference()} | full.

-spec acquire(router_apps:app()) -> acquired().
acquire(#{host := Host, max_per := MaxPer, dynos := Dynos, wait_ms := 0}) ->
    canal_lock:acquire(Host, MaxPer, length(Dynos));
acquire(#{host := Host, max_per := MaxPer, dynos := Dynos}) ->
    canal_lock:request(Host, MaxPer, length(Dynos)).

-spec release(router_apps:app()) -> ok.
release(#{host := Host, max_per := MaxPer, dynos := Dynos}) ->
    canal_lock:release(Host, MaxPer, length(Dynos)).

%% Waits until the deadline if the request has to wait, and returns the app with which it is admitted. `unknown': the
%% app was deleted during the wait. Exits the process if the client disconnects. Returns whether the client's
%% connection stays open. Begun_ns: the arrival of the request.
-spec await(acquired(), router_client:client(), router_apps:app(), Begun_ns :: integer()) ->
    {{acquired, router_apps:app()} | full | unknown, next | close}.
await({waiting, _} = Waiting, Client, #{stats := Stats, wait_ms := Wait_ms} = App, Begun_ns) ->
    ok = router_client:watch(Client),
    {Outcome, Next} = settle(Waiting, Client, App, Begun_ns + 1000000 * Wait_ms, next),
    ok = router_stats:waited(Stats, erlang:monotonic_time(nanosecond) - Begun_ns),
    case {Outcome, router_client:unwatch(Client)} of
        {disconnected, _} -> exit(normal);
        {_, close} -> {Outcome, close};
        {_, next} -> {Outcome, Next}
    end;
await(Acquired, Client, App, _Begun_ns) ->
    settle(Acquired, Client, App, none, next).

settle({waiting, Ref}, Client, #{host := Host} = App, Deadline_ns, Next) ->
    ok = case router_apps:find(Host) of {ok, App} -> ok; _ -> resize(Host) end,
    case wait(Ref, Client, Deadline_ns, Next) of
        {acquired, ThenNext} -> confirm(Client, App, Deadline_ns, ThenNext);
        Ended -> Ended
    end;
settle({acquired, _}, _Client, App, _Deadline_ns, Next) ->
    {{acquired, App}, Next};
settle(full, _Client, _App, _Deadline_ns, Next) ->
    {full, Next}.

confirm(Client, #{host := Host} = App, Deadline_ns, Next) ->
    case router_apps:find(Host) of
        {ok, Present} ->
            case canal_lock:count(Host) =< router_apps:capacity(Present) of
                true ->
                    {{acquired, Present}, Next};
                false ->
                    ok = release(App),
                    settle(acquire(Present), Client, Present, Deadline_ns, Next)
            end;
        error ->
            ok = release(App),
            {unknown, Next}
    end.

%% Checks the deadline first: the messages of a client that keeps sending would otherwise hide it.
wait(Ref, Client, Deadline_ns, Next) ->
    case Deadline_ns - erlang:monotonic_time(nanosecond) of
        %% Rounded up, so that no request is refused before its deadline.
        Left_ns when Left_ns > 0 -> wait(Ref, Client, Deadline_ns, Next, (Left_ns + 999999) div 1000000);
        _ -> {cancel(Ref), Next}
    end.

wait(Ref, Client, Deadline_ns, Next, Left_ms) ->
    Socket = router_client:socket(Client),
    receive
        {canal_lock, Ref, {acquired, _}} ->
            {acquired, Next};
        {canal_lock, Ref, closed} ->
            %% As canal_lock:acquire/3 raises without a table.
            error(table_closed);
        {tcp, Socket, _} ->
            %% The client has sent data before it has its answer: see `router_dyno'.
            ok = router_client:watch(Client),
            wait(Ref, Client, Deadline_ns, close);
        {tcp_closed, Socket} ->
            {disconnected, close};
        {tcp_error, Socket, _} ->
            {disconnected, close}
    after Left_ms ->
        {cancel(Ref), Next}
    end.

%% A permit that was granted just before is used.
cancel(Ref) ->
    case canal_lock:cancel(Ref) of
        ok -> full;
        {acquired, _} -> acquired
    end.

%% Gives the requests that wait the present capacity of the app. If the app changes at the same time, once more: of
%% several calls, the last one then gives the last capacity.
-spec resize(router_apps:host()) -> ok.
resize(Host) ->
    case router_apps:find(Host) of
        {ok, #{max_per := MaxPer, dynos := Dynos} = App} ->
            ok = canal_lock:resized(Host, MaxPer, length(Dynos)),
            case router_apps:find(Host) of
                {ok, App} -> ok;
                _ -> resize(Host)
            end;
        error ->
            ok
    end.
