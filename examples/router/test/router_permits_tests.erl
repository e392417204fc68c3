%% Tests admission: no dyno gets more requests than its limit, even when the app changes.
-module(router_permits_tests).

-include_lib("eunit/include/eunit.hrl").

-define(CLIENTS, 200).
%% Of each kind of answer.
-define(IN_A_ROW, 100).
-define(ANSWER, "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok").

permits_test_() ->
    [
        router_test_setup:tests([
            {"a request above the capacity gets 503 immediately, until a permit is free", fun full/0},
            {"a client that has its answer finds its permit free", fun free_at_once/0},
            {"a refused client's connection stays usable", fun refused_still_usable/0},
            {"without capacity every request is refused", fun no_capacity/0},
            {"an unknown app: 404", fun unknown/0},
            {"a request without Host: 404", fun no_host/0},
            {"two requests on two dynos with a limit of one use one dyno each", fun one_on_each/0},
            {"a dyno that is listed twice does not get more requests", fun named_twice/0},
            {"no dyno ever gets more requests than its limit", fun many_clients/0},
            {"a wrong argument of put/3 is named and changes nothing", fun wrong_app/0},
            {"apps do not use each other's permits", fun two_apps/0},
            {"additional dynos get requests immediately", fun grow/0},
            {"after dynos are removed no request is admitted until enough are answered; none is aborted", fun shrink/0},
            {"after MaxPer is reduced no request is admitted until enough are answered", fun shrink_max_per/0},
            {"an app may be deleted while requests are open", fun deleted/0},
            {"statistics continue when an app is put again", fun statistics/0}
        ]),
        router_test_setup:noisy([
            {"P10: requests continue while the manager is restarted", fun manager_dies/0}
        ])
    ].

put_app(MaxPer, Dynos) ->
    router:put(<<"shop">>, MaxPer, Dynos).

%% Returns a request that has reached a dyno.
open(Path) ->
    Socket = router_test_client:get(Path),
    {Connection, #{dyno := Dyno}} = router_test_dyno:request(Path),
    {Socket, Connection, Dyno}.

open_some(Count) ->
    [open(<<"/", (integer_to_binary(Number))/binary>>) || Number <- lists:seq(1, Count)].

answer({Socket, Connection, _}) ->
    ok = router_test_dyno:answer(Connection, ?ANSWER),
    ?assertMatch(#{status := 200, body := <<"ok">>}, router_test_client:answer(Socket)).

reason(Socket) ->
    #{status := Status, headers := Headers} = router_test_client:answer(Socket),
    {Status, proplists:get_value(<<"x-router-reason">>, Headers)}.

refused() ->
    ?assertEqual({503, <<"full">>}, reason(router_test_client:get("/refused"))).

full() ->
    ok = put_app(2, [router_test_dyno:start()]),
    [First, Second] = open_some(2),
    refused(),
    answer(First),
    router_test_setup:await_held(1),
    Third = open(<<"/third">>),
    refused(),
    [answer(Request) || Request <- [Second, Third]],
    ok = router_test_dyno:no_request().

%% Each request on a new connection, with different ends of the answer.
free_at_once() ->
    Answers = #{
        <<"/length">> => ?ANSWER, <<"/close">> => "HTTP/1.0 200 OK\r\n\r\nok",
        <<"/empty">> => "HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", <<"/rubbish">> => "rubbish\r\n\r\n"
    },
    Dyno = router_test_dyno:start(fun(#{path := Path}, Socket) -> gen_tcp:send(Socket, maps:get(Path, Answers)) end),
    ok = put_app(1, [Dyno]),
    [
        ?assertEqual({Path, Status}, {Path, router_test_client:status(router_test_client:get(Path))})
     || _ <- lists:seq(1, ?IN_A_ROW),
        {Path, Status} <- [{<<"/length">>, 200}, {<<"/close">>, 200}, {<<"/empty">>, 200}, {<<"/rubbish">>, 502}]
    ].

refused_still_usable() ->
    ok = put_app(1, [router_test_dyno:start()]),
    Open = open(<<"/open">>),
    Socket = router_test_client:connect(),
    lists:foreach(fun(_) ->
        ok = router_test_client:send(Socket, "POST / HTTP/1.1\r\nHost: shop\r\nContent-Length: 4\r\n\r\nbody"),
        ?assertEqual({503, <<"full">>}, reason(Socket))
    end, [1, 2, 3]),
    answer(Open),
    router_test_setup:await_held(0),
    ok = router_test_client:get(Socket, "/then"),
    {Connection, _} = router_test_dyno:request(<<"/then">>),
    answer({Socket, Connection, none}).

no_capacity() ->
    lists:foreach(fun({MaxPer, Dynos}) ->
        ok = put_app(MaxPer, Dynos),
        refused()
    end, [{0, [router_test_dyno:start()]}, {3, []}, {0, []}]),
    ok = router_test_dyno:no_request().

unknown() ->
    Socket = router_test_client:get("/"),
    ?assertEqual({404, <<"unknown-app">>}, reason(Socket)),
    %% The connection stays usable.
    ok = put_app(1, [router_test_dyno:start()]),
    ok = router_test_client:get(Socket, "/"),
    {Connection, _} = router_test_dyno:request(),
    answer({Socket, Connection, none}).

no_host() ->
    [
        ?assertEqual({404, <<"unknown-app">>}, reason(router_test_client:request(["GET / HTTP/", Version, "\r\n\r\n"])))
     || Version <- ["1.1\r\nHost:", "1.1", "1.0"]
    ].

one_on_each() ->
    ok = put_app(1, [router_test_dyno:start(), router_test_dyno:start()]),
    lists:foreach(fun(_) ->
        [{_, _, One}, {_, _, Other}] = Requests = open_some(2),
        ?assertNotEqual(One, Other),
        refused(),
        [answer(Request) || Request <- Requests],
        router_test_setup:await_held(0)
    end, lists:seq(1, 20)).

named_twice() ->
    Dyno = router_test_dyno:start(),
    ok = put_app(1, [Dyno, Dyno]),
    Open = open(<<"/">>),
    refused(),
    answer(Open).

%% Each client retries until it is served.
many_clients() ->
    Busy = atomics:new(3, []),
    Most = [atomics:new(1, []) || _ <- [1, 2, 3]],
    Dynos = [router_test_dyno:start(serve_counting(Busy, Index, lists:nth(Index, Most))) || Index <- [1, 2, 3]],
    ok = put_app(2, Dynos),
    Gate = counters:new(1, []),
    Clients = [
        spawn_monitor(fun() ->
            Socket = router_test_client:connect(),
            ok = test_await:gate(Gate),
            ok = until_served(Socket)
        end)
     || _ <- lists:seq(1, ?CLIENTS)
    ],
    ok = counters:add(Gate, 1, 1),
    [normal = test_await:reason(Client) || Client <- Clients],
    [?assertMatch(Peak when Peak =:= 1; Peak =:= 2, atomics:get(Peaks, 1)) || Peaks <- Most].

serve_counting(Busy, Index, Most) ->
    fun(_Request, Socket) ->
        ok = peak(Most, atomics:add_get(Busy, Index, 1)),
        [erlang:yield() || _ <- lists:seq(1, 100)],
        ok = atomics:sub(Busy, Index, 1),
        ok = gen_tcp:send(Socket, ?ANSWER)
    end.

peak(Most, Now) ->
    case atomics:get(Most, 1) of
        Before when Before >= Now -> ok;
        Before ->
            _ = atomics:compare_exchange(Most, 1, Before, Now),
            peak(Most, Now)
    end.

until_served(Socket) ->
    ok = router_test_client:get(Socket, "/"),
    case router_test_client:answer(Socket) of
        #{status := 200} ->
            ok;
        #{status := 503, headers := Headers} ->
            <<"full">> = proplists:get_value(<<"x-router-reason">>, Headers),
            until_served(Socket)
    end.

wrong_app() ->
    Dyno = router_test_dyno:start(),
    ok = put_app(2, [Dyno]),
    [
        ?assertError({What, _}, router:put(Host, MaxPer, Dynos))
     || {What, Host, MaxPer, Dynos} <- [
            {not_a_host, "shop", 1, []},
            {not_a_host, <<"shop:80">>, 1, []},
            {not_a_number_of_requests, <<"shop">>, -1, []},
            {not_a_number_of_requests, <<"shop">>, 1.0, []},
            {not_a_list_of_dynos, <<"shop">>, 1, Dyno},
            {not_the_address_of_a_dyno, <<"shop">>, 1, [Dyno, {<<"127.0.0.1">>, 80}]},
            {not_the_address_of_a_dyno, <<"shop">>, 1, [{"", 80}]},
            {not_the_address_of_a_dyno, <<"shop">>, 1, [{{127, 0, 0, 1}, 0}]},
            {not_the_address_of_a_dyno, <<"shop">>, 1, [{localhost, 65536}]},
            {not_the_address_of_a_dyno, <<"shop">>, 1, [80]}
        ]
    ],
    ?assertMatch({ok, #{max_per := 2, dynos := [Dyno]}}, router_apps:find(<<"shop">>)),
    [ok = router:put(<<"other">>, 0, [{Host, 65535}]) || Host <- [localhost, "localhost", {0, 0, 0, 0, 0, 0, 0, 1}]].

two_apps() ->
    Dyno = router_test_dyno:start(),
    ok = put_app(1, [Dyno]),
    ok = router:put(<<"blog">>, 1, [Dyno]),
    Shop = open(<<"/">>),
    Socket = router_test_client:request("GET /blog HTTP/1.1\r\nHost: blog\r\n\r\n"),
    {Connection, _} = router_test_dyno:request(<<"/blog">>),
    refused(),
    [answer(Request) || Request <- [{Socket, Connection, Dyno}, Shop]].

grow() ->
    [First | _] = Dynos = [router_test_dyno:start() || _ <- [1, 2, 3]],
    ok = put_app(2, [First]),
    Two = open_some(2),
    refused(),
    ok = put_app(2, Dynos),
    Four = open_some(4),
    refused(),
    ?assertEqual([2, 2, 2], [length([x || {_, _, At} <- Two ++ Four, At =:= Dyno]) || Dyno <- Dynos]),
    [answer(Request) || Request <- Two ++ Four].

shrink() ->
    [First | _] = Dynos = [router_test_dyno:start() || _ <- [1, 2, 3]],
    ok = put_app(1, Dynos),
    Requests = open_some(3),
    ok = put_app(1, [First]),
    {[Kept], Others} = lists:partition(fun({_, _, Dyno}) -> Dyno =:= First end, Requests),
    %% The request on the remaining dyno is answered last.
    lists:foldl(
        fun(Request, Left) ->
            refused(),
            answer(Request),
            router_test_setup:await_held(Left - 1),
            Left - 1
        end,
        3,
        Others ++ [Kept]
    ),
    {_, _, First} = Next = open(<<"/next">>),
    refused(),
    answer(Next),
    ok = router_test_dyno:no_request().

shrink_max_per() ->
    Dynos = [router_test_dyno:start(), router_test_dyno:start()],
    ok = put_app(2, Dynos),
    [First, Second, Third, Fourth] = open_some(4),
    ok = put_app(1, Dynos),
    refused(),
    [answer(Request) || Request <- [First, Second]],
    router_test_setup:await_held(2),
    refused(),
    answer(Third),
    router_test_setup:await_held(1),
    {_, _, Busy} = Fourth,
    {_, _, Free} = Next = open(<<"/next">>),
    ?assertNotEqual(Busy, Free),
    [answer(Request) || Request <- [Fourth, Next]].

deleted() ->
    Dynos = [router_test_dyno:start()],
    ok = put_app(2, Dynos),
    [First, Second] = open_some(2),
    ok = router:delete(<<"shop">>),
    ?assertEqual({404, <<"unknown-app">>}, reason(router_test_client:get("/"))),
    answer(First),
    router_test_setup:await_held(1),
    %% Open requests count when the app is put again.
    ok = put_app(1, Dynos),
    refused(),
    answer(Second).

statistics() ->
    ok = put_app(1, [router_test_dyno:start()]),
    Open = open(<<"/">>),
    refused(),
    ok = put_app(1, [router_test_dyno:refusing()]),
    answer(Open),
    router_test_setup:await_held(0),
    ?assertEqual({502, <<"dyno-failed">>}, reason(router_test_client:get("/"))),
    router_test_setup:await_held(0),
    {ok, #{stats := Stats}} = router_apps:find(<<"shop">>),
    test_await:value([2, 1, 2, 1], fun() ->
        Reading = router_stats:read(Stats),
        [maps:get(Name, Reading) || Name <- [granted, refused, ended, failed]]
    end),
    #{times := Times} = router_stats:read(Stats),
    ?assertEqual(3, lists:sum([Acquires || {_, Acquires} <- Times])).

manager_dies() ->
    ok = put_app(3, [router_test_dyno:start(), router_test_dyno:start()]),
    Requests = open_some(4),
    Manager = whereis(canal_lock),
    ok = test_manager_crash:kill(Manager),
    %% A new manager may or may not have started.
    Fifth = open(<<"/fifth">>),
    _ = test_manager_crash:another(Manager),
    router_test_setup:await_held(5),
    Sixth = open(<<"/sixth">>),
    refused(),
    [answer(Request) || Request <- [Fifth | Requests]],
    router_test_setup:await_held(1),
    answer(Sixth).
