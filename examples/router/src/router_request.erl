%% Handles a request in the process of its connection:
%%
%%   read the whole request -> a permit of the app, after a wait if it is at its capacity
%%     -> a permit of one of its dynos -> the dyno's whole answer -> release both -> send the answer
%%
%% The permits are released before the answer is sent. So a client that has its answer finds the permit free for its
%% next request, and a client that reads slowly does not hold one.
%%
%% There is no `try ... after' and no cleanup code: if the process dies for any reason, the VM releases its permits and
%% removes its request from the queue of canal_lock.
%%
%% `canal_lock:acquire/4' would block the process, and a blocked process does not notice that its client disconnects. So
%% a request waits in a `receive' for whichever is first: the permit, the disconnect, or the deadline.
%%
%% An app can change while requests wait. Three steps make sure that a request is admitted by the present capacity and
%% passed on to a present dyno:
%%
%%   - a change gives the requests that wait the new capacity (`router:resize/1');
%%   - a request that has begun to wait checks whether the app has changed since it was found, because that change may
%%     have missed it;
%%   - a request that has a permit finds the app again, and checks that the app is not above its present capacity. Then
%%     it could also acquire the permit now. Otherwise it has got the permit just before the change: it releases it,
%%     and waits again.
-module(router_request).

-export([serve/1, acquire/1, await/4, release/1]).

-export_type([acquired/0]).

-type acquired() :: {acquired, pos_integer()} | {waiting, reference()} | full.

%% How often all dynos are tried. One of them always has a free permit (see `acquire_dyno/2'), but another request may
%% acquire it first.
-define(ATTEMPTS, 100).

-spec serve(gen_tcp:socket()) -> ok.
serve(Client) ->
    case router_http:read_request(Client) of
        {ok, Request} ->
            ok = router_http:watch(Client),
            {Headers, Answer} = answer(Client, Request),
            router_http:answer(Client, Headers, Answer);
        {refused, Answer} ->
            router_http:answer(Client, [], Answer);
        closed ->
            gen_tcp:close(Client)
    end.

answer(Client, #{host := Host} = Request) ->
    Begun_ns = erlang:monotonic_time(nanosecond),
    case router:find(Host) of
        {ok, App} ->
            Acquired = acquire(App),
            Admitted = await(Acquired, Client, App, Begun_ns),
            %% Microseconds in the queue, for the client.
            Waited_us = (erlang:monotonic_time(nanosecond) - Begun_ns) div 1000,
            Headers = [{"X-Router-Waited-Us", integer_to_list(Waited_us)} || {waiting, _} <- [Acquired]],
            {Headers, admitted(Admitted, Client, Request)};
        error ->
            {[], admitted(unknown, Client, Request)}
    end.

admitted({acquired, App}, Client, Request) ->
    Answer =
        case acquire_dyno(App, ?ATTEMPTS) of
            {ok, Dyno} ->
                Passed = router_dyno:pass_on(Dyno, Client, Request, router:capacity(App)),
                ok = release_dyno(App, Dyno),
                Passed;
            none ->
                router_http:text(500, "No dyno had a free permit")
        end,
    ok = release(App),
    Answer;
admitted(full, _Client, _Request) ->
    router_http:text(503, "The app is at its capacity");
admitted(unknown, _Client, _Request) ->
    router_http:text(404, "No app is configured for this Host").

-spec acquire(router:app()) -> acquired().
acquire(#{host := Host, max_per := MaxPer, dynos := Dynos, wait_ms := 0}) ->
    canal_lock:acquire(Host, MaxPer, length(Dynos));
acquire(#{host := Host, max_per := MaxPer, dynos := Dynos}) ->
    canal_lock:request(Host, MaxPer, length(Dynos)).

-spec release(router:app()) -> ok.
release(#{host := Host, max_per := MaxPer, dynos := Dynos}) ->
    canal_lock:release(Host, MaxPer, length(Dynos)).

%% Waits until the deadline if the request has to wait, and returns the app with which it is admitted. `unknown': the
%% app was deleted during the wait. Exits the process if the client disconnects. Begun_ns: the arrival of the request.
-spec await(acquired(), gen_tcp:socket(), router:app(), Begun_ns :: integer()) ->
    {acquired, router:app()} | full | unknown.
await({waiting, Ref}, Client, #{host := Host, wait_ms := Wait_ms} = App, Begun_ns) ->
    ok = case router:find(Host) of {ok, App} -> ok; _ -> router:resize(Host) end,
    case wait(Ref, Client, Begun_ns + 1000000 * Wait_ms) of
        acquired -> confirm(Client, App, Begun_ns);
        full -> full
    end;
await({acquired, _}, _Client, App, _Begun_ns) ->
    {acquired, App};
await(full, _Client, _App, _Begun_ns) ->
    full.

%% Rounded up, so that no request is refused before its deadline.
wait(Ref, Client, Deadline_ns) ->
    Left_ms = (Deadline_ns - erlang:monotonic_time(nanosecond) + 999999) div 1000000,
    receive
        {canal_lock, Ref, {acquired, _}} ->
            acquired;
        {canal_lock, Ref, closed} ->
            %% As canal_lock:acquire/3 raises without a table.
            error(table_closed);
        {tcp_closed, Client} ->
            exit(normal);
        {tcp_error, Client, _} ->
            exit(normal)
    after max(0, Left_ms) ->
        case canal_lock:cancel(Ref) of
            ok -> full;
            %% A permit that was granted just before is used.
            {acquired, _} -> acquired
        end
    end.

confirm(Client, #{host := Host, wait_ms := Wait_ms} = App, Begun_ns) ->
    case router:find(Host) of
        {ok, Present} ->
            case canal_lock:count(Host) =< router:capacity(Present) of
                true ->
                    {acquired, Present};
                false ->
                    ok = release(App),
                    %% With the deadline with which it began.
                    Again = Present#{wait_ms := Wait_ms},
                    await(acquire(Again), Client, Again, Begun_ns)
            end;
        error ->
            ok = release(App),
            unknown
    end.

%% A permit of the app does not select a dyno: N of `{acquired, N}' is a count, and two requests can get the same N one
%% after the other. So each dyno is also a key with one bucket. Each holder of a dyno's permit also holds one of the
%% app's permits, of which there are no more than the sum over the dynos. So a request with a permit of the app always
%% finds a free dyno. There are two short exceptions: the permits of a holder that has died are released one after the
%% other, and an app may just have changed.
acquire_dyno(_App, 0) ->
    none;
acquire_dyno(#{host := Host, max_per := MaxPer, dynos := Dynos} = App, Left) ->
    {Before, From} = lists:split(rand:uniform(length(Dynos)) - 1, Dynos),
    Acquire = fun(Dyno) -> canal_lock:acquire({Host, Dyno}, MaxPer, 1) =/= full end,
    case lists:search(Acquire, From ++ Before) of
        {value, Dyno} -> {ok, Dyno};
        %% On a busy machine, the thread that releases the permits of a dead holder may have to wait for its turn.
        false -> timer:sleep(1), acquire_dyno(App, Left - 1)
    end.

release_dyno(#{host := Host, max_per := MaxPer}, Dyno) ->
    canal_lock:release({Host, Dyno}, MaxPer, 1).
