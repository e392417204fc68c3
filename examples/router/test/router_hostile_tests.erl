%% Tests malicious and faulty clients: an ambiguous request reaches no dyno, and a slow client does not hold a permit.
-module(router_hostile_tests).

-include_lib("eunit/include/eunit.hrl").

-define(ANSWER, "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok").

hostile_test_() ->
    router_test_setup:tests([
        {"ambiguous header lines are refused", fun unsound_headers/0},
        {"invalid paths and tunnels are refused", fun paths/0},
        {"two Hosts are refused", fun two_hosts/0},
        {"a body with an ambiguous length is refused", fun framing/0},
        {"invalid chunks are refused", fun chunks/0},
        {"a body that is too long is refused", fun too_long/0},
        {"endless trailers are refused", fun endless_trailers/0},
        {"the second of two pipelined requests is not read as part of the first", fun pipelined/0},
        {"the second of two pipelined requests is not read if the dyno of the first fails", fun pipelined_failure/0},
        {"a client gets the whole first answer, however much it has sent after the request", fun pipelined_much/0},
        {"a slow head does not hold a permit", fun slow_head/0},
        {"a slow body does not hold a permit", fun slow_body/0},
        {"a client that disconnects in its body causes no request", fun half_a_body/0},
        {"a request for a whole URI is passed on as one for its path", fun absolute/0},
        {"an incomplete request is ignored", fun half_a_request/0}
    ]).

put_app() ->
    router:put(<<"shop">>, 1, [router_test_dyno:start()]).

answered(Socket) ->
    {Connection, Request} = router_test_dyno:request(),
    ok = router_test_dyno:answer(Connection, ?ANSWER),
    ?assertMatch(#{status := 200, body := <<"ok">>}, router_test_client:answer(Socket)),
    Request.

%% The answer is the last of its connection and says so, and no dyno gets a request.
refused(Bytes) ->
    refused(Bytes, {400, <<"malformed">>}).

refused(Bytes, Expected) ->
    Socket = router_test_client:request(Bytes),
    #{status := Status, headers := Headers} = router_test_client:answer(Socket),
    ?assertEqual(Expected, {Status, proplists:get_value(<<"x-router-reason">>, Headers)}),
    ?assertEqual(<<"close">>, proplists:get_value(<<"connection">>, Headers)),
    ?assertEqual(<<>>, router_test_client:rest(Socket)),
    ok = gen_tcp:close(Socket),
    ?assertMatch(#{granted := 0}, canal_lock:info()),
    router_test_dyno:no_request().

unsound_headers() ->
    ok = put_app(),
    [
        refused(["GET / HTTP/1.1\r\nHost: shop\r\n", Header, "\r\n\r\n"])
     || Header <- [
            "X-A: 1\r\n X-B: 2", "X-A: 1\r\n\tContent-Length: 5", "X-A: 1\rX-B: 2", [<<"X-A: 1">>, 0], "X-A: \e[2J",
            "X-A: \177", ": x"
        ]
    ].

paths() ->
    ok = put_app(),
    [
        refused([Line, " HTTP/1.1\r\nHost: shop\r\n\r\n"])
     || Line <- [
            "GET /a\1b", "GET /a\rb", ["GET /a", 0], "GET /a\177", "CONNECT shop:80", "CONNECT /", "GET shop",
            "GET ftp:x/y", "GET **"
        ]
    ].

two_hosts() ->
    ok = put_app(),
    [
        refused(["GET / HTTP/1.1\r\n", Hosts, "\r\n\r\n"])
     || Hosts <- ["Host: shop:80\r\nHost: other", "Host: shop\r\nHost: shop", "Host: shop:80, other"]
    ].

framing() ->
    ok = put_app(),
    [
        refused(["POST / HTTP/1.1\r\nHost: shop\r\n", Headers, "\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: shop\r\n\r\n"])
     || Headers <- [
            "Content-Length: 5\r\nTransfer-Encoding: chunked", "Transfer-Encoding: chunked\r\nContent-Length: 5",
            "Content-Length: 5\r\nContent-Length: 6", "Content-Length: 5\r\nContent-Length: 5", "Content-Length: 5, 5",
            "Content-Length: -5", "Content-Length: +5", "Content-Length: 0x5", "Content-Length: five",
            "Content-Length:", "Content-Length: \"5\"", "Content-Length: 5 5",
            "Transfer-Encoding: gzip, chunked", "Transfer-Encoding: chunked, chunked",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", "Transfer-Encoding: identity",
            "Transfer-Encoding:", "Transfer-Encoding: xchunked"
        ]
    ].

chunks() ->
    ok = put_app(),
    [
        refused(["POST / HTTP/1.1\r\nHost: shop\r\nTransfer-Encoding: chunked\r\n\r\n", Chunks])
     || Chunks <- [
            "\r\n", "x\r\n", "-1\r\n", "+1\r\na\r\n", "0x1\r\na\r\n", "1 1\r\na\r\n", "123456789\r\n", "1\na\r\n",
            "1\r\nabc\r\n0\r\n\r\n", "1\r\nabc0\r\n\r\n", binary:copy(<<"1">>, 10000)
        ]
    ].

too_long() ->
    ok = put_app(),
    Head = "POST / HTTP/1.1\r\nHost: shop\r\n",
    Megabyte = binary:copy(<<"0123456789abcdef">>, 1024 * 64),
    TooLong = {413, <<"body-too-long">>},
    %% A client that sends more than the socket buffers before it reads must still get the answer.
    refused([Head, "Content-Length: 20971520\r\n\r\n", lists:duplicate(20, Megabyte)], TooLong),
    refused([Head, "Content-Length: 1048577\r\n\r\n"], TooLong),
    refused([Head, "Content-Length: ", binary:copy(<<"9">>, 1000), "\r\n\r\n"], TooLong),
    refused([Head, "Transfer-Encoding: chunked\r\n\r\n100001\r\n", Megabyte], TooLong),
    refused([Head, "Transfer-Encoding: chunked\r\n\r\nffffffff\r\n"], TooLong),
    refused([Head, "Transfer-Encoding: chunked\r\n\r\n100000\r\n", Megabyte, "\r\n1\r\nx\r\n0\r\n\r\n"], TooLong).

endless_trailers() ->
    ok = put_app(),
    refused(
        [
            "POST / HTTP/1.1\r\nHost: shop\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n",
            lists:duplicate(1000, "X-A: 1\r\n")
        ],
        {413, <<"body-too-long">>}
    ).

pipelined() ->
    ok = put_app(),
    Second = "GET /second HTTP/1.1\r\nHost: shop\r\n\r\n",
    lists:foreach(fun({First, Body}) ->
        Socket = router_test_client:request([First, Second]),
        ?assertMatch(#{path := <<"/first">>, body := Body}, answered(Socket)),
        ?assertEqual(<<>>, router_test_client:rest(Socket)),
        router_test_setup:await_held(0),
        ok = router_test_dyno:no_request()
    end, [
        {"GET /first HTTP/1.1\r\nHost: shop\r\n\r\n", <<>>},
        {"POST /first HTTP/1.1\r\nHost: shop\r\nContent-Length: 4\r\n\r\nbody", <<"body">>},
        {
            "POST /first HTTP/1.1\r\nHost: shop\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
            <<"body">>
        }
    ]).

pipelined_failure() ->
    ok = put_app(),
    Request = "GET / HTTP/1.1\r\nHost: shop\r\n\r\n",
    Socket = router_test_client:request([Request, Request]),
    {Connection, _} = router_test_dyno:request(),
    ok = router_test_dyno:answer(Connection, "rubbish\r\n\r\n"),
    ?assertEqual(502, router_test_client:status(Socket)),
    ?assertEqual(<<>>, router_test_client:rest(Socket)),
    router_test_dyno:no_request().

pipelined_much() ->
    ok = put_app(),
    Socket = router_test_client:connect(),
    ok = router_test_client:send(Socket, [
        "GET /first HTTP/1.1\r\nHost: shop\r\n\r\n", binary:copy(<<"GET / HTTP/1.1\r\n\r\n">>, 10000)
    ]),
    ?assertMatch(#{path := <<"/first">>}, answered(Socket)),
    ?assertEqual(<<>>, router_test_client:rest(Socket)),
    router_test_dyno:no_request().

slow_head() ->
    ok = put_app(),
    Slow = router_test_client:request("GET /slow HTTP/1.1\r\nHo"),
    other_request_is_served(),
    [ok = router_test_client:send(Slow, [Byte]) || Byte <- "st: shop\r\nX-A: 1\r\n\r"],
    other_request_is_served(),
    ok = router_test_client:send(Slow, "\n"),
    ?assertMatch(#{path := <<"/slow">>}, answered(Slow)).

slow_body() ->
    ok = put_app(),
    Slow = router_test_client:request("POST /slow HTTP/1.1\r\nHost: shop\r\nContent-Length: 4\r\n\r\nbo"),
    other_request_is_served(),
    ok = router_test_client:send(Slow, "d"),
    other_request_is_served(),
    ok = router_test_client:send(Slow, "y"),
    ?assertMatch(#{path := <<"/slow">>, body := <<"body">>}, answered(Slow)).

%% The capacity is one, so the slow request cannot hold a permit.
other_request_is_served() ->
    ?assertMatch(#{path := <<"/other">>}, answered(router_test_client:get("/other"))),
    router_test_setup:await_held(0).

half_a_body() ->
    ok = put_app(),
    lists:foreach(fun(Half) ->
        Socket = router_test_client:request(["POST / HTTP/1.1\r\nHost: shop\r\n", Half]),
        ok = gen_tcp:shutdown(Socket, write),
        ?assertEqual(<<>>, router_test_client:rest(Socket)),
        other_request_is_served()
    end, [
        "Content-Length: 4\r\n\r\nbo", "Transfer-Encoding: chunked\r\n\r\n4\r\nbo",
        "Transfer-Encoding: chunked\r\n\r\n4", "Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\nX"
    ]).

%% mochiweb drops the host of the URI; the header decides.
absolute() ->
    ok = put_app(),
    Socket = router_test_client:request("GET http://shop/a?b HTTP/1.1\r\nHost: shop\r\n\r\n"),
    ?assertMatch(#{path := <<"/a?b">>}, answered(Socket)).

half_a_request() ->
    ok = put_app(),
    lists:foreach(fun(Half) ->
        Socket = router_test_client:request(Half),
        ok = gen_tcp:shutdown(Socket, write),
        ?assertEqual(<<>>, router_test_client:rest(Socket)),
        router_test_dyno:no_request()
    end, ["", "GET", "GET / HTTP/1.1\r\nHost: shop\r\n", "GET / HTTP/1.1\r\nHost: shop\r\n\r"]).
