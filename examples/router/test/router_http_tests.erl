%% Tests what passes the router: requests and answers with one interpretation only. Anything else gets a clear status,
%% and reaches no dyno or client.
-module(router_http_tests).

-include_lib("eunit/include/eunit.hrl").

-import(router_test_setup, [answer/1, ask/1, closed/1, dyno/0, passed/0, reply/1, reply/2, request/1, set/2, status/1]).

http_test_() ->
    router_test_setup:tests([
        {"method, path, headers and body are passed on", fun request/0},
        {"headers about the client's connection, and the router's own, are not passed on", fun own_headers/0},
        {"the id of a request is its process", fun id/0},
        {"status, headers and body of an answer are passed on", fun answers/0},
        {"an answer to HEAD has no body", fun head/0},
        {"an answer to HTTP/1.0 is the same", fun old_client/0},
        {"a client that sends no whole request in time is disconnected", fun read_timeout/0},
        {"a client that disconnects in a request causes none", fun half_a_request/0},
        {"a second request on a connection is ignored", fun pipelined/0},
        {"a refused client gets its answer, however much it still sends", fun lingers/0},
        {"invalid and unsupported answers: 502", fun bad_answers/0}
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
        {"bytes", 400, [0, 1, 2, 255, "\r\n\r\n"]},
        {"no path", 400, line("GET shop HTTP/1.1")},
        {"*", 400, line("OPTIONS * HTTP/1.1")},
        {"a whole URI", 400, line("GET http://shop/ HTTP/1.1")},
        {"a control character in the path", 400, line("GET /a\1b HTTP/1.1")},
        {"a carriage return in the path", 400, line("GET /a\rb HTTP/1.1")},
        {"HTTP/0.9", 505, line("GET /")},
        {"HTTP/2", 505, line("GET / HTTP/2.0")},
        {"CONNECT", 501, line("CONNECT shop:80 HTTP/1.1")},
        {"no Host", 400, "GET / HTTP/1.1\r\n\r\n"},
        {"an empty Host", 400, "GET / HTTP/1.1\r\nHost:\r\n\r\n"},
        {"two Hosts", 400, header("Host: shop")},
        {"a Host with two names", 400, "GET / HTTP/1.1\r\nHost: shop:80, other\r\n\r\n"},
        {"a Host beyond ASCII", 400, "GET / HTTP/1.1\r\nHost: \351\r\n\r\n"},
        {"a header without a colon", 400, header("no header")},
        {"a header without a name", 400, header(": x")},
        {"a space before the colon", 400, header("Content-Length : 5")},
        {"a header that is continued", 400, header("X-A: 1\r\n X-B: 2")},
        {"a length that is continued", 400, header("X-A: 1\r\n\tContent-Length: 5")},
        {"a carriage return in a header", 400, header("X-A: 1\rX-B: 2")},
        {"a null in a header", 400, header([<<"X-A: 1">>, 0])},
        {"a long line", 431, ["GET /", Long]},
        {"a long header", 431, ["GET / HTTP/1.1\r\nX-A: ", Long]},
        {"many headers", 431, ["GET / HTTP/1.1\r\n", lists:duplicate(10000, "X-A: x\r\n")]},
        {"Expect", 417, header("Expect: 100-continue\r\nContent-Length: 5")},
        {"chunks", 501, post("Transfer-Encoding: chunked", Smuggled)},
        {"another coding", 501, post("Transfer-Encoding: identity", Smuggled)},
        {"a length and chunks", 501, post("Content-Length: 5\r\nTransfer-Encoding: chunked", Smuggled)},
        {"two lengths", 400, post("Content-Length: 5\r\nContent-Length: 6", Smuggled)},
        {"two equal lengths", 400, post("Content-Length: 5\r\nContent-Length: 5", Smuggled)},
        {"a list of lengths", 400, post("Content-Length: 5, 5", Smuggled)},
        {"a negative length", 400, post("Content-Length: -5", Smuggled)},
        {"a length with a sign", 400, post("Content-Length: +5", Smuggled)},
        {"a hexadecimal length", 400, post("Content-Length: 0x5", Smuggled)},
        {"an empty length", 400, post("Content-Length:", Smuggled)},
        {"a body of more than one megabyte", 413, post("Content-Length: 1048577", "")},
        {"a huge length", 413, post(["Content-Length: ", binary:copy(<<"9">>, 1000)], "")}
    ].

%% No permit was acquired.
refused(Status, Bytes) ->
    ok = put_app(),
    ?assertEqual({Status, <<"bad-request">>}, status(request(Bytes))),
    ?assertMatch(#{granted := 0}, canal_lock:info()).

answered(Client) ->
    Request = passed(),
    ok = reply(Request),
    ?assertEqual(200, status(Client)),
    Request.

values(Name, #{headers := Headers}) ->
    router_http:values(Name, Headers).

request() ->
    ok = put_app(),
    Megabyte = binary:copy(<<"0123456789abcdef">>, 1024 * 64),
    lists:foreach(fun({Method, Path, Body}) ->
        Length = integer_to_binary(byte_size(Body)),
        Request = answered(request([
            Method, " ", Path, " HTTP/1.1\r\nHOST: Shop:80\r\ncontent-length:", Length,
            "\r\nX-One: a\tb \r\nx-two: 1\r\nX-TWO: \351\r\nX-Empty:\r\n\r\n", Body
        ])),
        ?assertMatch(#{path := Path, body := Body}, Request),
        ?assertEqual(Method, iolist_to_binary(io_lib:format("~s", [maps:get(method, Request)]))),
        [
            ?assertEqual({Name, Values}, {Name, values(Name, Request)})
         || {Name, Values} <- [
                {<<"host">>, [<<"Shop:80">>]}, {<<"x-one">>, [<<"a\tb">>]}, {<<"x-two">>, [<<"1">>, <<233>>]},
                {<<"x-empty">>, [<<>>]}, {<<"content-length">>, [Length]}, {<<"connection">>, [<<"close">>]}
            ]
        ]
    end, [
        {<<"GET">>, <<"/">>, <<>>},
        {<<"POST">>, <<"/a/../b//c%2Fd%00%">>, <<"a\r\n\r\nGET / HTTP/1.1\r\n\0", 255>>},
        {<<"PROPFIND">>, <<"/?q=a+b&&c=%20;d#e">>, <<>>},
        {<<"PUT">>, <<"//other/?http://x">>, Megabyte}
    ]).

own_headers() ->
    ok = router:put(<<"shop">>, 2, [dyno(), dyno()], 0),
    #{headers := Headers} = Request = answered(request(header(
        "Connection: keep-alive, X-Mine ,\tx-YOURS, host, content-length\r\nConnection: x-third\r\nKeep-Alive: 1\r\n"
        "TE: x\r\nTrailer: x\r\nUpgrade: x\r\nProxy-Authorization: x\r\nx-mine: 1\r\nx-yours: 1\r\nX-Third: 1\r\n"
        "X-Request-ID: mine\r\nx-router-CAPACITY: 99\r\nX-Forwarded-For: 10.0.0.1\r\nx-kept: 1"
    ))),
    ?assertEqual(
        [
            <<"connection">>, <<"content-length">>, <<"host">>, <<"via">>, <<"x-forwarded-for">>, <<"x-forwarded-for">>,
            <<"x-kept">>, <<"x-request-id">>, <<"x-router-capacity">>
        ],
        lists:sort([Name || {Name, _} <- Headers])
    ),
    ?assertEqual([<<"4">>], values(<<"x-router-capacity">>, Request)),
    ?assertEqual([<<"10.0.0.1">>, <<"127.0.0.1">>], values(<<"x-forwarded-for">>, Request)).

id() ->
    ok = put_app(),
    Client = ask("/"),
    Request = passed(),
    [Id] = values(<<"x-request-id">>, Request),
    ?assertEqual(router_test_setup:holder(), list_to_pid("<" ++ binary_to_list(Id) ++ ">")),
    ok = reply(Request),
    200 = status(Client).

%% Sends a request, and answers it with these bytes.
answer_with(Bytes) ->
    Client = ask("/"),
    ok = reply(passed(), Bytes),
    answer(Client).

answers() ->
    ok = put_app(),
    Body = binary:copy(<<"0123456789">>, 500000),
    [
        ?assertMatch({Status, [{<<"connection">>, <<"close">>} | _], Expected}, answer_with(Bytes))
     || {Status, Expected, Bytes} <- [
            {200, <<"ok">>, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"},
            {200, <<"a\r\n0\r\n">>, "HTTP/1.0 200 OK\r\n\r\na\r\n0\r\n"},
            {200, <<>>, "HTTP/1.0 200 OK\r\n\r\n"},
            {599, <<"ok">>, "HTTP/1.1 599\ncontent-length:2\n\nok"},
            {200, Body, ["HTTP/1.1 200 OK\r\nContent-Length: 5000000\r\n\r\n", Body]},
            {204, <<>>, "HTTP/1.1 204 No Content\r\n\r\n"},
            {304, <<>>, "HTTP/1.1 304 Not Modified\r\nContent-Length: 17\r\n\r\n"}
        ]
    ],
    {302, Headers, <<>>} = answer_with([
        "HTTP/1.1 302 Found\r\nset-cookie: a=1\r\nSet-Cookie: b=2, 3\r\nConnection: x-mine\r\nX-Mine: 1\r\n",
        "Keep-Alive: 5\r\nX-One: \351 \r\nContent-Length: 0 \r\n\r\n"
    ]),
    ?assertEqual(
        [
            {<<"connection">>, <<"close">>}, {<<"content-length">>, <<"0">>}, {<<"set-cookie">>, <<"a=1">>},
            {<<"set-cookie">>, <<"b=2, 3">>}, {<<"x-one">>, <<233>>}
        ],
        lists:sort(Headers)
    ).

head() ->
    ok = put_app(),
    Client = request("HEAD / HTTP/1.1\r\nHost: shop\r\n\r\n"),
    ok = reply(passed(), "HTTP/1.1 200 OK\r\nContent-Length: 17\r\n\r\n"),
    Expected = <<"HTTP/1.1 200 \r\nconnection: close\r\ncontent-length: 17\r\n\r\n">>,
    ?assertEqual({ok, Expected}, gen_tcp:recv(Client, byte_size(Expected), 10000)),
    ok = closed(Client),
    Unknown = request("HEAD / HTTP/1.1\r\nHost: other\r\n\r\n"),
    {ok, <<"HTTP/1.1 404 ", Rest/binary>>} = gen_tcp:recv(Unknown, 0, 10000),
    ?assertMatch({_, 4}, {Rest, byte_size(Rest) - element(1, binary:match(Rest, <<"\r\n\r\n">>))}).

old_client() ->
    ok = put_app(),
    _ = answered(request("GET / HTTP/1.0\r\nHost: shop\r\n\r\n")).

read_timeout() ->
    ok = put_app(),
    ok = set(read_ms, 100),
    [ok = closed(request(Bytes)) || Bytes <- ["", "GET / HT", post("Content-Length: 4", "bod")]].

half_a_request() ->
    ok = put_app(),
    lists:foreach(fun(Half) ->
        Client = request(Half),
        ok = gen_tcp:shutdown(Client, write),
        ok = closed(Client)
    end, ["", "GET", "GET / HTTP/1.1\r\nHost: shop\r\n\r", post("Content-Length: 4", "bod")]),
    ?assertMatch(#{granted := 0}, canal_lock:info()).

pipelined() ->
    ok = put_app(),
    Request = header("X-A: 1"),
    [
        begin
            ?assertMatch(#{body := Body}, answered(request([First, lists:duplicate(Count, Request)]))),
            router_test_setup:none_passed()
        end
     || {First, Body} <- [{Request, <<>>}, {post("Content-Length: 4", "body"), <<"body">>}],
        Count <- [1, 100000]
    ].

lingers() ->
    refused(413, post("Content-Length: 20971520", binary:copy(<<"0123456789abcdef">>, 1310720))).

bad_answers() ->
    ok = put_app(),
    Ok = "HTTP/1.1 200 OK\r\n",
    lists:foreach(fun(Bytes) ->
        ?assertMatch({Bytes, {502, _, <<"The dyno failed: bad_answer.\n">>}}, {Bytes, answer_with(Bytes)})
    end, [
        "", "rubbish\r\n\r\n", "\r\n\r\n", "GET / HTTP/1.1\r\n\r\n", "HTTP/1.1 OK\r\n\r\n", "SSH-2.0-dyno\r\n",
        "HTTP/1.1 1000 OK\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 99 OK\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", [Ok, "no header\r\n\r\n"],
        [Ok, "Content-Length: -1\r\n\r\n"], [Ok, "Content-Length: 1, 1\r\n\r\na"],
        [Ok, "Content-Length: 1\r\nContent-Length: 1\r\n\r\na"], [Ok, "Content-Length: 1\r\n\r\n"],
        [Ok, "Content-Length: 1\r\n\r\nab"], [Ok, "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"],
        [Ok, "X-A: 1\r\n X-B: 2\r\n\r\n"], [Ok, "X-A: 1\rX-B: 2\r\n\r\n"], [Ok, ": x\r\n\r\n"],
        "HTTP/1.1 204 No Content\r\n\r\nbody"
    ]).
