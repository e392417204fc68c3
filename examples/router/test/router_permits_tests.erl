%% Tests admission: no dyno gets more requests than its limit, even when the app changes. A request holds its permits
%% until its dyno has finished, whatever happens to the client, the dyno or the process of the request.
-module(router_permits_tests).

-include_lib("eunit/include/eunit.hrl").

-import(router_test_setup, [
    ask/1, await_held/1, closed/1, dyno/0, dyno/1, none_passed/0, open/1, passed/1, reply/1, reply/2,
    request/1, reset/1, set/2, status/1
]).

-define(SOON_MS, 300).
-define(ANSWER, "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok").

permits_test_() ->
    [
        router_test_setup:tests([
            {"a request above the capacity gets 503 immediately", fun full/0},
            {"a client that has its answer finds its permit free", fun free_at_once/0},
            {"without capacity every request is refused", fun no_capacity/0},
            {"two requests on two dynos with a limit of one use one dyno each", fun one_on_each/0},
            {"a dyno that is listed twice does not get more requests", fun named_twice/0},
            {"apps do not use each other's permits", fun two_apps/0},
            {"additional dynos get requests immediately", fun grow/0},
            {"after dynos are removed no request is admitted until enough are answered; none is aborted", fun shrink/0},
            {"an app may be deleted while requests are open", fun deleted/0},
            {"a client disconnects: the permits are held until the dyno has closed", fun client_dies/0},
            {"a client disconnects and the dyno does not close: released after the timeout", fun never_closes/0},
            {"a client that sends or reads slowly does not hold a permit", fun slow_client/0},
            {"a dyno dies: 502, and the permits are released", fun dyno_dies/0},
            {"a dyno does not answer, or does not read: 504, and the permits are released", fun silent/0},
            {"a dyno sends without end: 502, and the permits are released", fun endless/0}
        ]),
        router_test_setup:noisy([
            {"a killed process releases its permits and closes both connections", fun killed/0}
        ])
    ].

put_app(MaxPer, Dynos) ->
    router:put(<<"shop">>, MaxPer, Dynos, 0).

open_some(Count) ->
    [open(<<"/", (integer_to_binary(Number))/binary>>) || Number <- lists:seq(1, Count)].

answered({Client, Request}) ->
    ok = reply(Request),
    ?assertEqual(200, status(Client)).

refused() ->
    ?assertEqual({503, <<"full">>}, status(ask("/refused"))).

still_serves() ->
    answered(open(<<"/next">>)).

full() ->
    ok = put_app(2, [dyno()]),
    [First, Second] = open_some(2),
    refused(),
    answered(First),
    Third = open(<<"/third">>),
    refused(),
    [answered(Request) || Request <- [Second, Third]],
    none_passed().

%% Many times, and with different ends of the answer.
free_at_once() ->
    Answers = #{<<"/ok">> => ?ANSWER, <<"/close">> => "HTTP/1.0 200 OK\r\n\r\nok", <<"/rubbish">> => "rubbish\r\n\r\n"},
    ok = put_app(1, [dyno(fun(#{path := Path} = Request) -> reply(Request, maps:get(Path, Answers)) end)]),
    [
        ?assertEqual({Path, Status}, {Path, status(ask(Path))})
     || _ <- lists:seq(1, 50),
        {Path, Status} <- [{<<"/ok">>, 200}, {<<"/close">>, 200}, {<<"/rubbish">>, {502, <<"dyno-failed">>}}]
    ].

no_capacity() ->
    lists:foreach(fun({MaxPer, Dynos}) ->
        ok = put_app(MaxPer, Dynos),
        refused()
    end, [{0, [dyno()]}, {3, []}, {0, []}]),
    none_passed().

one_on_each() ->
    ok = put_app(1, [dyno(), dyno()]),
    lists:foreach(fun(_) ->
        [{_, #{dyno := One}}, {_, #{dyno := Other}}] = Requests = open_some(2),
        ?assertNotEqual(One, Other),
        refused(),
        [answered(Request) || Request <- Requests]
    end, lists:seq(1, 20)).

named_twice() ->
    Dyno = dyno(),
    ok = put_app(1, [Dyno, Dyno]),
    Open = open(<<"/">>),
    refused(),
    answered(Open).

two_apps() ->
    Dyno = dyno(),
    ok = put_app(1, [Dyno]),
    ok = router:put(<<"BLOG.example">>, 1, [Dyno], 0),
    Shop = open(<<"/">>),
    Client = request("GET /blog HTTP/1.1\r\nHost: Blog.Example:8080\r\n\r\n"),
    Blog = {Client, passed(<<"/blog">>)},
    refused(),
    [answered(Request) || Request <- [Blog, Shop]].

grow() ->
    [First | _] = Dynos = [dyno(), dyno(), dyno()],
    ok = put_app(2, [First]),
    Two = open_some(2),
    refused(),
    ok = put_app(2, Dynos),
    Four = open_some(4),
    refused(),
    ?assertEqual(lists:sort(Dynos ++ Dynos), lists:sort([Dyno || {_, #{dyno := Dyno}} <- Two ++ Four])),
    [answered(Request) || Request <- Two ++ Four].

shrink() ->
    [First | _] = Dynos = [dyno(), dyno(), dyno()],
    ok = put_app(2, Dynos),
    Requests = open_some(6),
    ok = put_app(1, [First]),
    {Kept, Others} = lists:partition(fun({_, #{dyno := Dyno}}) -> Dyno =:= First end, Requests),
    %% The requests on the remaining dyno are answered last.
    lists:foreach(fun(Request) ->
        refused(),
        answered(Request)
    end, Others ++ Kept),
    {_, #{dyno := First}} = Next = open(<<"/next">>),
    refused(),
    answered(Next),
    none_passed().

deleted() ->
    Dynos = [dyno()],
    ok = put_app(2, Dynos),
    [First, Second] = open_some(2),
    ok = router:delete(<<"Shop">>),
    ?assertEqual({404, <<"unknown-app">>}, status(ask("/"))),
    answered(First),
    %% Open requests count when the app is put again.
    ok = put_app(1, Dynos),
    refused(),
    answered(Second).

client_dies() ->
    ok = put_app(1, [dyno()]),
    lists:foreach(fun(Die) ->
        {Client, #{socket := Socket}} = open(<<"/">>),
        ok = Die(Client),
        ok = closed(Socket),
        refused(),
        await_held(1),
        %% Later data of the dyno is discarded.
        ok = gen_tcp:send(Socket, ?ANSWER),
        refused(),
        ok = gen_tcp:close(Socket),
        await_held(0)
    end, [fun gen_tcp:close/1, fun router_test_setup:reset/1, fun(Client) -> gen_tcp:shutdown(Client, write) end]),
    still_serves().

never_closes() ->
    ok = put_app(1, [dyno()]),
    ok = set(answer_ms, ?SOON_MS),
    {Client, #{socket := Socket}} = open(<<"/">>),
    ok = gen_tcp:close(Client),
    await_held(0),
    ok = closed(Socket).

%% The answer is larger than the socket buffers.
slow_client() ->
    ok = put_app(1, [dyno()]),
    Slow = request("POST /slow HTTP/1.1\r\nHo"),
    still_serves(),
    ok = gen_tcp:send(Slow, "st: shop\r\nContent-Length: 4\r\n\r\nbo"),
    still_serves(),
    ok = gen_tcp:send(Slow, "dy"),
    #{body := <<"body">>} = Request = passed(<<"/slow">>),
    ok = inet:setopts(Slow, [{recbuf, 4096}]),
    ok = reply(Request, ["HTTP/1.0 200 OK\r\n\r\n", binary:copy(<<0>>, 8000000)]),
    await_held(0),
    still_serves(),
    ok = reset(Slow).

dyno_dies() ->
    ok = put_app(1, [dyno()]),
    [
        begin
            {Client, #{socket := Socket}} = open(<<"/">>),
            ok = gen_tcp:send(Socket, Bytes),
            ok = Die(Socket),
            ?assertEqual({502, <<"dyno-failed">>}, status(Client)),
            still_serves()
        end
     || Die <- [fun gen_tcp:close/1, fun router_test_setup:reset/1],
        Bytes <- ["", "HTTP/1.0 200 OK\r\nContent-Len", "HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\ncut"]
    ],
    {ok, Listener} = gen_tcp:listen(0, []),
    {ok, Port} = inet:port(Listener),
    ok = gen_tcp:close(Listener),
    ok = put_app(1, [{{127, 0, 0, 1}, Port}]),
    [?assertEqual({502, <<"dyno-failed">>}, status(ask("/"))) || _ <- [1, 2]].

%% The longest body does not fit into the socket buffers of a dyno that does not read.
silent() ->
    ok = set(answer_ms, ?SOON_MS),
    {ok, Listener} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}, {active, false}, {recbuf, 4096}]),
    {ok, Port} = inet:port(Listener),
    ok = put_app(1, [{{127, 0, 0, 1}, Port}]),
    Long = ["Content-Length: 1000000\r\n\r\n", binary:copy(<<0>>, 1000000)],
    [
        ?assertEqual({504, <<"dyno-timeout">>}, status(request(["PUT / HTTP/1.1\r\nHost: shop\r\n", Rest])))
     || Rest <- ["\r\n", Long]
    ].

endless() ->
    ok = put_app(1, [dyno(fun(#{socket := Socket}) -> flood(Socket) end)]),
    ?assertEqual({502, <<"dyno-failed">>}, status(ask("/"))),
    ok = gen_tcp:close(ask("/")),
    await_held(0).

flood(Socket) ->
    case gen_tcp:send(Socket, binary:copy(<<"HTTP/1.0 200 OK\r\n\r\n">>, 10000)) of
        ok -> flood(Socket);
        {error, _} -> ok
    end.

killed() ->
    ok = put_app(1, [dyno()]),
    {Client, #{socket := Socket}} = open(<<"/">>),
    exit(router_test_setup:holder(), kill),
    await_held(0),
    ok = closed(Socket),
    ok = closed(Client),
    still_serves().
