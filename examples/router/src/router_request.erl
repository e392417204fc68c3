%% Handles a request in the process of its connection:
%%
%%   read the body -> a permit of the app, after a wait if it is at its capacity (`router_queue')
%%     -> a permit of one of its dynos -> the dyno's answer -> release both
%%
%% The permits are released before the last piece of the answer is sent. So a client that has its answer finds the
%% permit free for its next request, and a client that reads slowly does not hold one.
%%
%% There is no `try ... after' and no cleanup code: if the process dies for any reason, the VM releases its permits.
-module(router_request).

-export([handle/1]).

%% How often all dynos are tried. One of them always has a free permit (see `acquire_dyno/3'), but another request may
%% acquire it first.
-define(ATTEMPTS, 100).

-spec handle(router_client:client()) -> ok.
handle(Client) ->
    case router_client:read(Client) of
        {ok, Body} ->
            case router_apps:find(router_client:host(Client)) of
                {ok, App} -> admit(Client, Body, App);
                error -> unknown(Client)
            end;
        {error, too_long} ->
            router_client:refuse(Client, 413, {"body-too-long", "The body exceeds the maximum length."});
        {error, malformed} ->
            router_client:refuse(Client, 400, {"malformed", "The request is invalid or ambiguous."})
    end.

admit(Client, Body, #{stats := Stats} = App) ->
    Begun_ns = erlang:monotonic_time(nanosecond),
    Acquired = router_queue:acquire(App),
    Took_ns = erlang:monotonic_time(nanosecond) - Begun_ns,
    case router_queue:await(Acquired, Client, App, Begun_ns) of
        {{acquired, Present}, Next} ->
            ok = router_stats:granted(Stats, Took_ns),
            {Outcome, ThenNext} = pass_on(Client, Body, Present),
            ok = router_queue:release(Present),
            ok = ended(Outcome, Stats),
            case conclude(Outcome, Client) of
                disconnected -> router_client:close(Client);
                _ when ThenNext =:= close -> router_client:close(Client);
                _ -> next(Next, Client)
            end;
        {full, Next} ->
            ok = router_stats:refused(Stats, Took_ns),
            Sentence = io_lib:format("The app is at its capacity of ~b requests.", [router_apps:capacity(App)]),
            ok = router_client:answer(Client, 503, {"full", Sentence}),
            next(Next, Client);
        {unknown, Next} ->
            ok = unknown(Client),
            next(Next, Client)
    end.

unknown(Client) ->
    router_client:answer(Client, 404, {"unknown-app", "No app is configured for this Host."}).

next(next, _Client) -> ok;
next(close, Client) -> router_client:close(Client).

pass_on(Client, Body, #{host := Host, max_per := MaxPer, dynos := Dynos} = App) ->
    case acquire_dyno(Host, MaxPer, Dynos) of
        {ok, Dyno} ->
            Outcome = router_dyno:pass_on(Dyno, Client, Body, router_apps:capacity(App)),
            ok = canal_lock:release({Host, Dyno}, MaxPer, 1),
            Outcome;
        none ->
            {no_dyno, next}
    end.

ended({answered, _}, Stats) ->
    router_stats:ended(Stats);
ended(_, Stats) ->
    ok = router_stats:failed(Stats),
    router_stats:ended(Stats).

conclude({answered, Last}, _Client) ->
    Last();
conclude(cut_short, _Client) ->
    %% Only the end of the connection can tell the client.
    ok;
conclude(no_dyno, Client) ->
    router_client:answer(Client, 503, {"no-dyno", "No dyno had a free permit."});
conclude(timeout, Client) ->
    router_client:answer(Client, 504, {"dyno-timeout", "The dyno did not answer in time."});
conclude(Failure, Client) ->
    router_client:answer(Client, 502, {"dyno-failed", io_lib:format("The dyno failed: ~w.", [Failure])}).

%% A permit of the app does not select a dyno: N of `{acquired, N}' is a count, and two requests can get the same N one
%% after the other. So each dyno is also a key with one bucket. Each holder of a dyno's permit also holds one of the
%% app's permits, of which there are no more than the sum over the dynos. So a request with a permit of the app always
%% finds a free dyno (except for a moment when a holder dies, whose permits the VM releases one after the other).
acquire_dyno(Host, MaxPer, Dynos) ->
    {Before, From} = lists:split(rand:uniform(length(Dynos)) - 1, Dynos),
    acquire_dyno(Host, MaxPer, From ++ Before, ?ATTEMPTS).

acquire_dyno(_Host, _MaxPer, _Dynos, 0) ->
    none;
acquire_dyno(Host, MaxPer, Dynos, Left) ->
    Acquire = fun(Dyno) -> canal_lock:acquire({Host, Dyno}, MaxPer, 1) =/= full end,
    case lists:search(Acquire, Dynos) of
        {value, Dyno} -> {ok, Dyno};
        false -> acquire_dyno(Host, MaxPer, Dynos, Left - 1)
    end.
