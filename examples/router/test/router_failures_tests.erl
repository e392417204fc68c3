%% Tests failures of dynos: the client gets an error or a closed connection, the permits are released, and nothing
%% crashes.
-module(router_failures_tests).

-include_lib("eunit/include/eunit.hrl").

-define(SOON_MS, 500).

failure_test_() ->
    router_test_setup:tests([
        {"a dyno closes before its head is complete: 502", fun() -> no_head(fun router_test_dyno:close/1) end},
        {"a dyno resets before its head is complete: 502", fun() -> no_head(fun router_test_dyno:reset/1) end},
        {"a dyno closes before its body is complete: the answer is cut", fun closes_in_the_body/0},
        {"a dyno resets in the body: the answer is cut", fun resets_in_the_body/0},
        {"a dyno refuses the connection: 502", fun refuses/0},
        {"an answer that is not HTTP: 502", fun not_http/0},
        {"invalid lengths and unrequested codings: 502", fun framing/0},
        {"ambiguous header lines: 502", fun unsound_headers/0},
        {"a head beyond the limits: 502", fun long_heads/0},
        {"a dyno does not answer in time: 504", fun silent/0},
        {"a dyno does not complete its answer in time: the answer is cut", fun half_silent/0},
        {"a dyno does not read the request: 504", fun does_not_read/0}
    ]).

put_app(Dyno) ->
    router:put(<<"shop">>, 1, [Dyno]).

open(Socket) ->
    ok = router_test_client:get(Socket, "/"),
    {Connection, _} = router_test_dyno:request(),
    Connection.

%% Expects an answer of the router itself.
failed(Socket) ->
    failed(Socket, {502, <<"dyno-failed">>}).

failed(Socket, Expected) ->
    #{status := Status, headers := Headers} = router_test_client:answer(Socket),
    ?assertEqual(Expected, {Status, proplists:get_value(<<"x-router-reason">>, Headers)}),
    router_test_setup:await_held(0).

still_usable(Socket) ->
    ok = router_test_dyno:answer(open(Socket), "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok"),
    ?assertMatch(#{status := 200, body := <<"ok">>}, router_test_client:answer(Socket)),
    router_test_setup:await_held(0).

%% Each of these heads leads to 502, and the connection stays usable.
all_fail(Heads) ->
    ok = put_app(router_test_dyno:start()),
    Socket = router_test_client:connect(),
    lists:foreach(fun(Head) ->
        Connection = open(Socket),
        %% May fail, because the router closes as soon as the head is invalid.
        _ = router_test_dyno:send(Connection, Head),
        failed(Socket),
        ok = router_test_dyno:ended(Connection)
    end, Heads),
    still_usable(Socket).

no_head(End) ->
    ok = put_app(router_test_dyno:start()),
    Socket = router_test_client:connect(),
    lists:foreach(fun(Bytes) ->
        Connection = open(Socket),
        ok = router_test_dyno:send(Connection, Bytes),
        ok = End(Connection),
        failed(Socket)
    end, ["", "HTTP/1.1 200", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-A"]),
    still_usable(Socket).

closes_in_the_body() ->
    cut("Content-Length: 100\r\n", fun router_test_dyno:close/1).

resets_in_the_body() ->
    cut("Content-Length: 100\r\n", fun router_test_dyno:reset/1),
    cut("", fun router_test_dyno:reset/1).

cut(Length, End) ->
    ok = put_app(router_test_dyno:start()),
    Socket = router_test_client:connect(),
    Connection = open(Socket),
    ok = router_test_dyno:send(Connection, ["HTTP/1.1 200 OK\r\n", Length, "\r\nabc"]),
    %% Waits for the head, because a reset could overtake it.
    {ok, Head} = gen_tcp:recv(Socket, 0, 10000),
    ok = End(Connection),
    Rest = router_test_client:rest(Socket),
    ?assertMatch(<<"HTTP/1.1 200", _/binary>>, Head),
    %% The answer must not end with the last chunk.
    ?assertEqual(nomatch, binary:match(<<Head/binary, Rest/binary>>, <<"\r\n0\r\n\r\n">>)),
    router_test_setup:await_held(0),
    still_usable(router_test_client:connect()).

refuses() ->
    ok = put_app(router_test_dyno:refusing()),
    Socket = router_test_client:connect(),
    lists:foreach(fun(_) ->
        ok = router_test_client:get(Socket, "/"),
        failed(Socket)
    end, [1, 2, 3]).

not_http() ->
    all_fail([
        "rubbish\r\n\r\n",
        "\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
        "HTTP/1.1 OK\r\n\r\n",
        "HTTP/1.1 -200 OK\r\n\r\n",
        "HTTP/1.1 1000 OK\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 99 OK\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
        "HTTP/1.1 200 OK\r\nno header\r\n\r\n",
        [0, 1, 2, 255, $\r, $\n],
        "SSH-2.0-dyno\r\n"
    ]).

framing() ->
    all_fail([
        ["HTTP/1.1 200 OK\r\n", Headers, "\r\n\r\n"]
     || Headers <- [
            "Content-Length: -1", "Content-Length: +1", "Content-Length: 1x", "Content-Length: 0x1", "Content-Length:",
            "Content-Length: 1, 1", "Content-Length: 1\r\nContent-Length: 2", "Content-Length: 1\r\nContent-Length: 1",
            "Transfer-Encoding: chunked", "Transfer-Encoding: chunked\r\nContent-Length: 1",
            "Transfer-Encoding: identity"
        ]
    ]),
    %% Also for HEAD, where the length describes a body that is not sent.
    Socket = router_test_client:request("HEAD / HTTP/1.1\r\nHost: shop\r\n\r\n"),
    {Connection, _} = router_test_dyno:request(),
    ok = router_test_dyno:answer(Connection, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"),
    ?assertMatch(#{status := 502}, router_test_client:answer(Socket, 'HEAD')),
    router_test_setup:await_held(0).

unsound_headers() ->
    all_fail([
        ["HTTP/1.1 200 OK\r\nContent-Length: 0\r\n", Header, "\r\n\r\n"]
     || Header <- ["X-A: 1\r\n X-B: 2", "X-A: 1\rX-B: 2", [<<"X-A: ">>, 0], ": x"]
    ]).

long_heads() ->
    Lines = fun(Count) -> [["X-", integer_to_list(Number), ": x\r\n"] || Number <- lists:seq(1, Count)] end,
    all_fail([
        ["HTTP/1.1 200 OK\r\nX-A: ", binary:copy(<<"a">>, 100000), "\r\n\r\n"],
        ["HTTP/1.1 200 ", binary:copy(<<"a">>, 100000), "\r\n\r\n"],
        ["HTTP/1.1 200 OK\r\n", Lines(201), "\r\n"]
    ]),
    Socket = router_test_client:connect(),
    Connection = open(Socket),
    ok = router_test_dyno:answer(Connection, [
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-A: ", binary:copy(<<"a">>, 16000), "\r\n", Lines(198), "\r\n"
    ]),
    #{status := 200, headers := Headers} = router_test_client:answer(Socket),
    ?assertEqual(<<"x">>, proplists:get_value(<<"x-198">>, Headers)).

silent() ->
    ok = put_app(router_test_dyno:start()),
    Socket = router_test_client:connect(),
    ok = router_test_setup:answer_ms(?SOON_MS),
    lists:foreach(fun(Bytes) ->
        Connection = open(Socket),
        ok = router_test_dyno:send(Connection, Bytes),
        failed(Socket, {504, <<"dyno-timeout">>}),
        ok = router_test_dyno:ended(Connection)
    end, ["", "HTTP/1.1 200 OK\r\nX-"]),
    ok = router_test_setup:answer_ms(20000),
    still_usable(Socket).

half_silent() ->
    ok = put_app(router_test_dyno:start()),
    lists:foreach(fun(Length) ->
        ok = router_test_setup:answer_ms(?SOON_MS),
        Socket = router_test_client:connect(),
        Connection = open(Socket),
        ok = router_test_dyno:send(Connection, ["HTTP/1.1 200 OK\r\n", Length, "\r\nabc"]),
        ?assertMatch(#{status := 200, ends := cut}, router_test_client:answer(Socket)),
        ok = router_test_dyno:ended(Connection),
        router_test_setup:await_held(0),
        ok = router_test_setup:answer_ms(20000),
        still_usable(router_test_client:connect())
    end, ["", "Content-Length: 100\r\n"]).

%% The longest body does not fit into the socket buffers.
does_not_read() ->
    ok = router_test_setup:answer_ms(?SOON_MS),
    {ok, Listener} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}, {active, false}, {recbuf, 4096}]),
    {ok, Port} = inet:port(Listener),
    ok = put_app({{127, 0, 0, 1}, Port}),
    Socket = router_test_client:request([
        "POST / HTTP/1.1\r\nHost: shop\r\nContent-Length: 1000000\r\n\r\n", binary:copy(<<"0123456789">>, 100000)
    ]),
    failed(Socket, {504, <<"dyno-timeout">>}),
    ok = gen_tcp:close(Listener).
