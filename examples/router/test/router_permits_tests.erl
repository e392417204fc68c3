%% Who is admitted, and where to: no dyno gets more than it bears, whatever is changed meanwhile.
-module(router_permits_tests).

-include_lib("eunit/include/eunit.hrl").

-define(CLIENTS, 200).
%% Of each kind of answer.
-define(IN_A_ROW, 100).
-define(ANSWER, "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok").

permits_test_() ->
    [
        router_test_stage:tests([
            {"who comes when all places are taken hears it at once, until one is free", fun full/0},
            {"a client that has its answer finds the place free", fun free_at_once/0},
            {"a refused client's connection goes on", fun refused_goes_on/0},
            {"without capacity nobody is admitted", fun no_capacity/0},
            {"an app that nobody knows", fun unknown/0},
            {"a request without Host", fun no_host/0},
            {"two requests on two dynos are one on each", fun one_on_each/0},
            {"a dyno that is named twice bears no more", fun named_twice/0},
            {"no dyno ever gets more than it bears", fun many_clients/0},
            {"what cannot be an app is named, and changes nothing", fun wrong_app/0},
            {"apps do not take each other's places", fun two_apps/0},
            {"more dynos admit at once", fun grow/0},
            {"fewer dynos admit none until enough have been answered, and evict nobody", fun shrink/0},
            {"less for each dyno, too", fun shrink_max_per/0},
            {"an app that goes while requests are open", fun deleted/0},
            {"its statistics go on when an app is put again", fun statistics/0}
        ]),
        router_test_stage:noisy([
            {"P10: the manager may die while requests are open", fun manager_dies/0}
        ])
    ].

put_app(MaxPer, Dynos) ->
    router:put(<<"shop">>, MaxPer, Dynos).

%% A request that has come to a dyno.
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
    router_test_stage:held(1),
    Third = open(<<"/third">>),
    refused(),
    [answer(Request) || Request <- [Second, Third]],
    ok = router_test_dyno:none().

%% Each on a connection of its own, one after the other, whatever ends the answer.
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

refused_goes_on() ->
    ok = put_app(1, [router_test_dyno:start()]),
    Open = open(<<"/open">>),
    Socket = router_test_client:connect(),
    [
        begin
            ok = router_test_client:send(Socket, "POST / HTTP/1.1\r\nHost: shop\r\nContent-Length: 4\r\n\r\nbody"),
            ?assertEqual({503, <<"full">>}, reason(Socket))
        end
     || _ <- [1, 2, 3]
    ],
    answer(Open),
    router_test_stage:held(0),
    ok = router_test_client:get(Socket, "/then"),
    {Connection, _} = router_test_dyno:request(<<"/then">>),
    answer({Socket, Connection, none}).

no_capacity() ->
    [
        begin
            ok = put_app(MaxPer, Dynos),
            refused()
        end
     || {MaxPer, Dynos} <- [{0, [router_test_dyno:start()]}, {3, []}, {0, []}]
    ],
    ok = router_test_dyno:none().

unknown() ->
    Socket = router_test_client:get("/"),
    ?assertEqual({404, <<"unknown-app">>}, reason(Socket)),
    %% The connection goes on.
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
    [
        begin
            [{_, _, One}, {_, _, Other}] = Requests = open_some(2),
            ?assertNotEqual(One, Other),
            refused(),
            [answer(Request) || Request <- Requests],
            router_test_stage:held(0)
        end
     || _ <- lists:seq(1, 20)
    ].

named_twice() ->
    Dyno = router_test_dyno:start(),
    ok = put_app(1, [Dyno, Dyno]),
    Open = open(<<"/">>),
    refused(),
    answer(Open).

%% Each is served in the end, and tries again until then.
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
    %% The last to be answered is the one whose dyno stays.
    lists:foldl(
        fun(Request, Left) ->
            refused(),
            answer(Request),
            router_test_stage:held(Left - 1),
            Left - 1
        end,
        3,
        Others ++ [Kept]
    ),
    {_, _, First} = Next = open(<<"/next">>),
    refused(),
    answer(Next),
    ok = router_test_dyno:none().

shrink_max_per() ->
    Dynos = [router_test_dyno:start(), router_test_dyno:start()],
    ok = put_app(2, Dynos),
    [First, Second, Third, Fourth] = open_some(4),
    ok = put_app(1, Dynos),
    refused(),
    [answer(Request) || Request <- [First, Second]],
    router_test_stage:held(2),
    refused(),
    answer(Third),
    router_test_stage:held(1),
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
    router_test_stage:held(1),
    %% Those that are still there are counted when it comes back.
    ok = put_app(1, Dynos),
    refused(),
    answer(Second).

statistics() ->
    ok = put_app(1, [router_test_dyno:start()]),
    Open = open(<<"/">>),
    refused(),
    ok = put_app(1, [router_test_dyno:nobody()]),
    answer(Open),
    router_test_stage:held(0),
    ?assertEqual({502, <<"dyno-failed">>}, reason(router_test_client:get("/"))),
    router_test_stage:held(0),
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
    %% Whether another is there already or not.
    Fifth = open(<<"/fifth">>),
    _ = test_manager_crash:another(Manager),
    router_test_stage:held(5),
    Sixth = open(<<"/sixth">>),
    refused(),
    [answer(Request) || Request <- [Fifth | Requests]],
    router_test_stage:held(1),
    answer(Sixth).
