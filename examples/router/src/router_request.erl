%% What becomes of a request, in the process of its connection:
%%
%%   read whole -> a permit of the app -> a place on one of its dynos -> that dyno's answer -> both given back
%%
%% Before the last piece of the answer is sent: a client that has it all, and asks again, finds the place free; and one
%% that is slow to take it keeps nobody out.
%%
%% There is no `try ... after' here and no code for ends that nobody foresaw: when the process dies, of whatever it be,
%% the VM gives back what it held.
-module(router_request).

-export([handle/1]).

%% Before a dyno with a free place is given up on. There is one at any time, see `place/3', but others may take it
%% between two looks.
-define(ROUNDS, 100).

-spec handle(router_client:client()) -> ok.
handle(Client) ->
    case router_client:read(Client) of
        {ok, Body} ->
            case router_apps:find(router_client:host(Client)) of
                {ok, App} -> admit(Client, Body, App);
                error -> router_client:answer(Client, 404, {"unknown-app", "There is no such app here."})
            end;
        {error, too_long} ->
            router_client:refuse(Client, 413, {"body-too-long", "The body is longer than is taken here."});
        {error, malformed} ->
            router_client:refuse(Client, 400, {"malformed", "The request cannot be passed on."})
    end.

admit(Client, Body, #{host := Host, max_per := MaxPer, dynos := Dynos, stats := Stats} = App) ->
    Begun_ns = erlang:monotonic_time(nanosecond),
    Acquired = canal_lock:acquire(Host, MaxPer, length(Dynos)),
    Took_ns = erlang:monotonic_time(nanosecond) - Begun_ns,
    case Acquired of
        {acquired, _} ->
            ok = router_stats:granted(Stats, Took_ns),
            {Outcome, Next} = pass_on(Client, Body, App),
            ok = canal_lock:release(Host, MaxPer, length(Dynos)),
            ok = ended(Outcome, Stats),
            case conclude(Outcome, Client) of
                gone -> router_client:close(Client);
                _ when Next =:= close -> router_client:close(Client);
                _ -> ok
            end;
        full ->
            ok = router_stats:refused(Stats, Took_ns),
            Sentence = io_lib:format("All ~b places are taken.", [MaxPer * length(Dynos)]),
            router_client:answer(Client, 503, {"full", Sentence})
    end.

pass_on(Client, Body, #{host := Host, max_per := MaxPer, dynos := Dynos}) ->
    case place(Host, MaxPer, Dynos) of
        {ok, Dyno} ->
            Outcome = router_dyno:pass_on(Dyno, Client, Body, MaxPer * length(Dynos)),
            ok = canal_lock:release({Host, Dyno}, MaxPer, 1),
            Outcome;
        none ->
            {no_place, next}
    end.

ended({answered, _}, Stats) ->
    router_stats:ended(Stats);
ended(_, Stats) ->
    ok = router_stats:failed(Stats),
    router_stats:ended(Stats).

conclude({answered, Last}, _Client) ->
    Last();
conclude(cut_short, _Client) ->
    %% It can only be told by the end of the connection.
    ok;
conclude(no_place, Client) ->
    router_client:answer(Client, 503, {"no-place", "No dyno had a place when it was asked."});
conclude(timeout, Client) ->
    router_client:answer(Client, 504, {"dyno-timeout", "The dyno has not answered in time."});
conclude(Failure, Client) ->
    router_client:answer(Client, 502, {"dyno-failed", io_lib:format("The dyno has failed: ~w.", [Failure])}).

%% A permit of the app says that there is room, not where: N of `{acquired, N}' is how many are out, and two requests
%% can hear the same one after the other. So each dyno is a key, too, of one bucket. All who hold one of these hold one
%% of the app's, and those are fewer than the places: so at any time one of the dynos has a place (but for a moment when
%% a holder dies, whose permits come back one after the other).
place(Host, MaxPer, Dynos) ->
    {Before, From} = lists:split(rand:uniform(length(Dynos)) - 1, Dynos),
    place(Host, MaxPer, From ++ Before, ?ROUNDS).

place(_Host, _MaxPer, _Dynos, 0) ->
    none;
place(Host, MaxPer, Dynos, Rounds) ->
    Take = fun(Dyno) -> canal_lock:acquire({Host, Dyno}, MaxPer, 1) =/= full end,
    case lists:search(Take, Dynos) of
        {value, Dyno} -> {ok, Dyno};
        false -> place(Host, MaxPer, Dynos, Rounds - 1)
    end.
