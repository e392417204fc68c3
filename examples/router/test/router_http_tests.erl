%% Tests what passes the router: requests with one interpretation only, and the bytes of answers. Any other request gets
%% a clear status, and reaches no dyno.
-module(router_http_tests).

-include_lib("eunit/include/eunit.hrl").

-import(router_test_setup, [answer/1, answered/1, closed/1, dyno/0, open/1, passed/1, reply/2, request/1, status/1]).

http_test_() ->
    router_test_setup:tests([
        {"method, path and body are passed on", fun request/0},
        {"headers are passed on, but not those about the client's connection, and the router's own", fun headers/0},
        {"answers are passed on; without a whole head: 502", fun answers/0},
        {"a client that sends no whole request, in time or at all, is disconnected", fun half_a_request/0},
        {"a second request on a connection is ignored", fun pipelined/0},
        {"a refused client gets its answer, however much it still sends", fun lingers/0}
        | [{Title, fun() -> refused(Status, Bytes) end} || {Title, Status, Bytes} <- bad_requests()]
    ]).

put_app() ->
    router:put(<<"shop">>, 2, [dyno()], 0).

post(Headers, Body) ->
    ["POST / HTTP/1.1\r\nHost: shop\r\n", Headers, "\r\n\r\n", Body].

header(Header) ->
    ["GET / HTTP/1.1\r\nHost: shop\r\n", Header, "\r\n\r\n"].

line(Line) ->
    [Line, "\r\nHost: shop\r\n\r\n"].

%% Each row is a test.
bad_requests() ->
    Smuggled = "0\r\n\r\nGET / HTTP/1.1\r\nHost: shop\r\n\r\n",
    Long = binary:copy(<<"a">>, 40000),
    [
        {"not HTTP", 400, "rubbish\r\n\r\n"},
        {"an answer", 400, "HTTP/1.1 200 OK\r\n\r\n"},
        {"no path", 400, line("GET shop HTTP/1.1")},
        {"*", 400, line("OPTIONS * HTTP/1.1")},
        {"a whole URI", 400, line("GET http://shop/ HTTP/1.1")},
        {"CONNECT", 400, line("CONNECT shop:80 HTTP/1.1")},
        {"a control character in the path", 400, line("GET /a\1b HTTP/1.1")},
        {"HTTP/0.9", 505, line("GET /")},
        {"HTTP/2", 505, line("GET / HTTP/2.0")},
        {"no Host", 400, "GET / HTTP/1.1\r\n\r\n"},
        {"an empty Host", 400, "GET / HTTP/1.1\r\nHost:\r\n\r\n"},
        {"two Hosts", 400, header("Host: shop")},
        {"a Host with two names", 400, "GET / HTTP/1.1\r\nHost: shop:80, other\r\n\r\n"},
        {"a header without a colon", 400, header("no header")},
        {"a header without a name", 400, header(": x")},
        {"a space before the colon", 400, header("Content-Length : 5")},
        {"a header that is continued", 400, header("X-A: 1\r\n X-B: 2")},
        {"a carriage return in a header", 400, header("X-A: 1\rX-B: 2")},
        {"a null in a header", 400, header([<<"X-A: 1">>, 0])},
        {"a long line", 431, ["GET /", Long]},
        {"many headers", 431, ["GET / HTTP/1.1\r\n", lists:duplicate(10000, "X-A: x\r\n")]},
        {"Expect", 417, header("Expect: 100-continue\r\nContent-Length: 5")},
        {"chunks", 501, post("Transfer-Encoding: chunked", Smuggled)},
        {"a length and chunks", 501, post("Content-Length: 5\r\nTransfer-Encoding: chunked", Smuggled)},
        {"two lengths", 400, post("Content-Length: 5\r\nContent-Length: 5", Smuggled)},
        {"a list of lengths", 400, post("Content-Length: 5, 5", Smuggled)},
        {"a length with a sign", 400, post("Content-Length: +5", Smuggled)},
        {"an empty length", 400, post("Content-Length:", Smuggled)},
        {"a body of more than one megabyte", 413, post("Content-Length: 1048577", "")}
    ].

%% No permit was acquired.
refused(Status, Bytes) ->
    ok = put_app(),
    ?assertEqual(Status, status(request(Bytes))),
    ?assertMatch(#{granted := 0}, canal_lock:info()).

%% Dynos are asked in HTTP/1.0.
request() ->
    ok = put_app(),
    Megabyte = binary:copy(<<"0123456789abcdef">>, 1024 * 64),
    lists:foreach(fun({Method, Version, Path, Body}) ->
        Length = integer_to_list(byte_size(Body)),
        Head = [Method, " ", Path, Version, "\r\nHOST: Shop:80\r\ncontent-length:", Length, "\r\n\r\n"],
        Client = request([Head, Body]),
        Request = passed(Path),
        ?assertMatch(#{version := {1, 0}, body := Body}, Request),
        ?assertEqual(Method, iolist_to_binary(io_lib:format("~s", [maps:get(method, Request)]))),
        answered({Client, Request})
    end, [
        {<<"GET">>, " HTTP/1.0", <<"/">>, <<>>},
        {<<"POST">>, " HTTP/1.1", <<"/a/../b//c%2Fd%00%">>, <<"a\r\n\r\nGET / HTTP/1.1\r\n\0", 255>>},
        {<<"PROPFIND">>, " HTTP/1.1", <<"/?q=a+b&&c=%20;d#e">>, <<>>},
        {<<"PUT">>, " HTTP/1.1", <<"//other/?http://x">>, Megabyte}
    ]).

%% X-Request-Id is the process of the request.
headers() ->
    ok = router:put(<<"shop">>, 2, [dyno(), dyno()], 0),
    Client = request(header(
        "Connection: keep-alive, X-Mine ,\tx-YOURS, host, content-length\r\nConnection: x-third\r\nKeep-Alive: 1\r\n"
        "TE: x\r\nTrailer: x\r\nUpgrade: x\r\nProxy-Authorization: x\r\nx-mine: 1\r\nx-yours: 1\r\nX-Third: 1\r\n"
        "X-Request-ID: mine\r\nx-router-CAPACITY: 99\r\nX-One: a\tb \r\nx-two: 1\r\nX-TWO: \351\r\nX-Empty:"
    )),
    #{headers := Headers} = Request = passed(<<"/">>),
    Id = list_to_binary(string:trim(pid_to_list(router_test_setup:holder()), both, "<>")),
    ?assertEqual([
        {<<"connection">>, <<"close">>}, {<<"content-length">>, <<"0">>}, {<<"host">>, <<"shop">>},
        {<<"via">>, <<"1.1 router">>}, {<<"x-empty">>, <<>>}, {<<"x-one">>, <<"a\tb">>}, {<<"x-request-id">>, Id},
        {<<"x-router-capacity">>, <<"4">>}, {<<"x-two">>, <<"1">>}, {<<"x-two">>, <<233>>}
    ], lists:sort(Headers)),
    answered({Client, Request}).

answers() ->
    ok = put_app(),
    Body = binary:copy(<<"0123456789">>, 500000),
    Failed = "HTTP/1.1 502 The dyno failed: bad_answer\r\nContent-Length: 0\r\n\r\n",
    PassedOn = [
        "HTTP/1.0 200 OK\r\n\r\n",
        "HTTP/1.1 599 \r\nset-cookie: a=1\r\nSet-Cookie: b=2, 3\r\nX-One: \351\r\n\r\na\r\n0\r\n\r\n",
        ["HTTP/1.1 200 OK\r\nContent-Length: 5000000\r\n\r\n", Body],
        "HTTP/1.1 304 Not Modified\r\nContent-Length: 17\r\n\r\n"
    ],
    Bad = ["", "rubbish\r\n\r\n", "SSH-2.0-dyno\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 17\r\n"],
    lists:foreach(fun({Expected, Bytes}) ->
        {Client, Request} = open(<<"/">>),
        ok = reply(Request, Bytes),
        [Line, Rest] = binary:split(iolist_to_binary(Expected), <<"\r\n">>),
        ?assertEqual(<<Line/binary, "\r\nConnection: close\r\n", Rest/binary>>, answer(Client))
    end, [{Bytes, Bytes} || Bytes <- PassedOn] ++ [{Failed, Bytes} || Bytes <- Bad]).

half_a_request() ->
    ok = put_app(),
    Halves = ["", "GET", "GET / HTTP/1.1\r\nHost: shop\r\n\r", post("Content-Length: 4", "bod")],
    lists:foreach(fun(Half) ->
        Client = request(Half),
        ok = gen_tcp:shutdown(Client, write),
        ok = closed(Client)
    end, Halves),
    ok = application:set_env(router, read_ms, 100),
    [ok = closed(request(Half)) || Half <- Halves],
    ?assertMatch(#{granted := 0}, canal_lock:info()).

pipelined() ->
    ok = put_app(),
    lists:foreach(fun(Count) ->
        Client = request([post("Content-Length: 4", "body"), lists:duplicate(Count, header("X-A: 1"))]),
        #{body := <<"body">>} = Request = passed(<<"/">>),
        answered({Client, Request}),
        router_test_setup:none_passed()
    end, [1, 100000]).

lingers() ->
    refused(413, post("Content-Length: 20971520", binary:copy(<<"0123456789abcdef">>, 1310720))).
