%% Tests what a dyno receives of a request: everything meant for it, and nothing about the client's connection.
-module(router_requests_tests).

-include_lib("eunit/include/eunit.hrl").

request_test_() ->
    router_test_setup:tests([
        {"method, path and query are passed on unchanged", fun lines/0},
        {"the methods of OTP's client are passed on", fun methods/0},
        {"a body with a length is passed on", fun body/0},
        {"a body in chunks is passed on with a length", fun chunks/0},
        {"a body of the maximum length is passed on", fun longest_body/0},
        {"headers are passed on, including repeated ones", fun headers/0},
        {"headers about the client's connection are removed", fun hop_by_hop/0},
        {"a client cannot set the router's own headers", fun own_headers/0},
        {"X-Forwarded-For and Via list the proxies of a request", fun forwarded/0},
        {"Host listed in Connection is kept", fun connection_host/0},
        {"the id of a request is unique and contains its process", fun ids/0},
        {"X-Router-Capacity is the app's capacity at admission", fun capacity/0},
        {"the router answers 100-continue", fun continue/0},
        {"the router does not send 100 Continue for a body that is too long", fun no_continue/0},
        {"Host is matched in any case and with a port", fun hosts/0}
    ]).

put_app(MaxPer) ->
    router:put(<<"shop">>, MaxPer, [router_test_dyno:start()]).

%% Answers the next request and returns it.
answered(Socket) ->
    {Connection, Request} = router_test_dyno:request(),
    ok = router_test_dyno:answer(Connection, "HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n"),
    ?assertEqual(200, router_test_client:status(Socket)),
    Request.

sent(Bytes) ->
    answered(router_test_client:request(Bytes)).

values(Name, #{headers := Headers}) ->
    [Value || {Other, Value} <- Headers, Other =:= Name].

lines() ->
    ok = put_app(1),
    [
        ?assertMatch(
            #{method := Method, path := Path, version := <<"HTTP/1.0">>, body := <<>>},
            sent([Method, " ", Path, " HTTP/1.1\r\nHost: shop\r\n\r\n"])
        )
     || {Method, Path} <- [
            {<<"GET">>, <<"/">>},
            {<<"OPTIONS">>, <<"*">>},
            {<<"PATCH">>, <<"/a/../b//c%2Fd%00%">>},
            {<<"PROPFIND">>, <<"/?q=a+b&&c=%20;d#e">>},
            {<<"DELETE">>, <<"//other/?http://x">>},
            {<<"GET">>, <<"/", (binary:copy(<<"long">>, 1500))/binary>>}
        ]
    ].

%% Sent by OTP's HTTP client.
methods() ->
    ok = put_app(1),
    Test = self(),
    Url = lists:concat(["http://127.0.0.1:", router:port(), "/x?y=z"]),
    lists:foreach(fun({Method, Name, Body}) ->
        _ = spawn_link(fun() ->
            Request =
                case lists:member(Method, [put, post, patch]) of
                    true -> {Url, [{"host", "shop"}], "text/plain", Body};
                    false -> {Url, [{"host", "shop"}]}
                end,
            Test ! {Method, httpc:request(Method, Request, [], [{body_format, binary}])}
        end),
        {Connection, Request} = router_test_dyno:request(),
        ?assertMatch(#{method := Name, path := <<"/x?y=z">>, body := Body}, Request),
        ok = router_test_dyno:answer(Connection, "HTTP/1.1 207 Many\r\nContent-Length: 3\r\n\r\nabc"),
        receive
            {Method, Answer} -> ?assertMatch({ok, {{_, 207, _}, _, <<"abc">>}}, Answer)
        end
    end, [
        {get, <<"GET">>, <<>>},
        {options, <<"OPTIONS">>, <<>>},
        {delete, <<"DELETE">>, <<>>},
        {put, <<"PUT">>, <<"put">>},
        {post, <<"POST">>, <<"post">>},
        {patch, <<"PATCH">>, <<"patch">>}
    ]).

body() ->
    ok = put_app(1),
    Body = <<"a\r\n\r\nGET / HTTP/1.1\r\n\0", 255>>,
    Request = sent([
        "POST / HTTP/1.1\r\nHost: shop\r\ncontent-length: ", integer_to_list(byte_size(Body)), "\r\n\r\n", Body
    ]),
    ?assertMatch(#{body := Body}, Request),
    ?assertEqual([integer_to_binary(byte_size(Body))], values(<<"content-length">>, Request)).

chunks() ->
    ok = put_app(1),
    Socket = router_test_client:connect(),
    lists:foreach(fun({Coding, Chunks}) ->
        ok = router_test_client:send(Socket, [
            "POST / HTTP/1.1\r\nHost: shop\r\nTransfer-Encoding: ", Coding, "\r\n\r\n", Chunks
        ]),
        Request = answered(Socket),
        ?assertMatch(#{body := <<"shop and all">>}, Request),
        ?assertEqual([<<"12">>], values(<<"content-length">>, Request)),
        ?assertEqual([], values(<<"transfer-encoding">>, Request)),
        ?assertEqual([], values(<<"trailing">>, Request))
    end, [
        {"chunked", "4\r\nshop\r\n8\r\n and all\r\n0\r\n\r\n"},
        {"Chunked", "00c \r\nshop and all\r\n0\r\nTrailing: x\r\n\r\n"},
        {"chunked", "C;as=\"you like\"\r\nshop and all\r\n0;\r\n\r\n"}
    ]).

longest_body() ->
    ok = put_app(1),
    Body = binary:copy(<<"0123456789abcdef">>, 1024 * 64),
    Head = "PUT / HTTP/1.1\r\nHost: shop\r\n",
    ?assertMatch(#{body := Body}, sent([Head, "Content-Length: 1048576\r\n\r\n", Body])),
    ?assertMatch(#{body := Body}, sent([Head, "Transfer-Encoding: chunked\r\n\r\n100000\r\n", Body, "\r\n0\r\n\r\n"])).

headers() ->
    ok = put_app(1),
    Request = sent(
        "GET / HTTP/1.1\r\nHOST: Shop:80\r\nX-One:  a\tb \r\nX-Two: 1\r\nx-two: 2\r\nX-Empty:\r\n"
        "Cookie: c=d\r\nAuthorization: Basic x\r\nAccept: \351\r\n\r\n"
    ),
    [
        ?assertEqual(Values, values(Name, Request))
     || {Name, Values} <- [
            {<<"host">>, [<<"Shop:80">>]},
            {<<"x-one">>, [<<"a\tb">>]},
            %% Equivalent to both lines (RFC 9110, section 5.2).
            {<<"x-two">>, [<<"1, 2">>]},
            {<<"x-empty">>, [<<>>]},
            {<<"cookie">>, [<<"c=d">>]},
            {<<"authorization">>, [<<"Basic x">>]},
            {<<"accept">>, [<<233>>]},
            {<<"content-length">>, [<<"0">>]},
            {<<"connection">>, [<<"close">>]}
        ]
    ].

hop_by_hop() ->
    ok = put_app(1),
    Request = sent(
        "GET / HTTP/1.1\r\nHost: shop\r\nConnection: keep-alive, X-Mine ,\tx-YOURS\r\nConnection: x-third\r\n"
        "Keep-Alive: 1\r\nTE: x\r\nTrailer: x\r\nUpgrade: x\r\nProxy-Connection: x\r\nProxy-Authorization: x\r\n"
        "Proxy-Authenticate: x\r\nExpect: x\r\nx-mine: 1\r\nx-yours: 1\r\nX-Third: 1\r\nx-kept: 1\r\n\r\n"
    ),
    #{headers := Headers} = Request,
    ?assertEqual(
        [
            <<"connection">>, <<"content-length">>, <<"host">>, <<"via">>, <<"x-forwarded-for">>, <<"x-kept">>,
            <<"x-request-id">>, <<"x-router-capacity">>
        ],
        lists:sort([Name || {Name, _} <- Headers])
    ).

own_headers() ->
    ok = put_app(4),
    Request = sent(
        "GET / HTTP/1.1\r\nHost: shop\r\nX-Request-ID: mine\r\nx-router-CAPACITY: 99\r\n"
        "Connection: x-router-capacity, content-length, x-request-id\r\n\r\n"
    ),
    ?assertEqual([<<"4">>], values(<<"x-router-capacity">>, Request)),
    ?assertMatch([<<"0.", _/binary>>], values(<<"x-request-id">>, Request)),
    ?assertEqual([<<"0">>], values(<<"content-length">>, Request)).

forwarded() ->
    ok = put_app(1),
    First = sent("GET / HTTP/1.1\r\nHost: shop\r\n\r\n"),
    ?assertEqual([<<"127.0.0.1">>], values(<<"x-forwarded-for">>, First)),
    ?assertEqual([<<"1.1 router">>], values(<<"via">>, First)),
    Second = sent([
        "GET / HTTP/1.1\r\nHost: shop\r\nX-Forwarded-For: 10.0.0.1\r\nVia: 1.0 fred\r\n",
        "x-forwarded-for: 10.0.0.2\r\nConnection: via\r\n\r\n"
    ]),
    ?assertEqual([<<"10.0.0.1, 10.0.0.2, 127.0.0.1">>], values(<<"x-forwarded-for">>, Second)),
    ?assertEqual([<<"1.0 fred, 1.1 router">>], values(<<"via">>, Second)).

connection_host() ->
    ok = put_app(1),
    Request = sent("GET / HTTP/1.1\r\nHost: shop\r\nX-A: 1\r\nConnection: host, x-a, HOST\r\n\r\n"),
    ?assertEqual([<<"shop">>], values(<<"host">>, Request)),
    ?assertEqual([], values(<<"x-a">>, Request)).

ids() ->
    ok = put_app(1),
    Socket = router_test_client:connect(),
    Ids = lists:map(fun(_) ->
        ok = router_test_client:get(Socket, "/"),
        {Connection, Request} = router_test_dyno:request(),
        Holder = router_test_setup:holder(<<"shop">>),
        ok = router_test_dyno:answer(Connection, "HTTP/1.0 204 OK\r\n\r\n"),
        ?assertEqual(204, router_test_client:status(Socket)),
        [Id] = values(<<"x-request-id">>, Request),
        ?assertEqual(Holder, list_to_pid("<" ++ binary_to_list(hd(binary:split(Id, <<"-">>))) ++ ">")),
        Id
    end, lists:seq(1, 5)),
    ?assertEqual(5, length(lists:usort(Ids))).

capacity() ->
    Dynos = [router_test_dyno:start() || _ <- [1, 2, 3]],
    lists:foreach(fun({MaxPer, Count}) ->
        ok = router:put(<<"shop">>, MaxPer, lists:sublist(Dynos, Count)),
        Capacity = integer_to_binary(MaxPer * Count),
        ?assertEqual([Capacity], values(<<"x-router-capacity">>, sent("GET / HTTP/1.1\r\nHost: shop\r\n\r\n")))
    end, [{1, 1}, {7, 3}, {2, 2}]).

continue() ->
    ok = put_app(1),
    Socket = router_test_client:request(
        "POST / HTTP/1.1\r\nHost: shop\r\nExpect: 100-Continue\r\nContent-Length: 4\r\n\r\n"
    ),
    ?assertMatch(#{status := 100, headers := []}, router_test_client:answer(Socket)),
    ok = router_test_client:send(Socket, "body"),
    Request = answered(Socket),
    ?assertMatch(#{body := <<"body">>}, Request),
    ?assertEqual([], values(<<"expect">>, Request)).

no_continue() ->
    ok = put_app(1),
    Socket = router_test_client:request(
        "POST / HTTP/1.1\r\nHost: shop\r\nExpect: 100-continue\r\nContent-Length: 1048577\r\n\r\n"
    ),
    ?assertMatch(#{status := 413}, router_test_client:answer(Socket)),
    ok = router_test_dyno:no_request().

hosts() ->
    ok = router:put(<<"SHOP.example">>, 1, [router_test_dyno:start()]),
    [
        ?assertMatch(#{path := <<"/">>}, sent(["GET / HTTP/1.1\r\nHost: ", Host, "\r\n\r\n"]))
     || Host <- ["shop.example", "Shop.Example:8080", "SHOP.EXAMPLE:"]
    ],
    ok = router:delete(<<"Shop.example">>),
    Unknown = router_test_client:request("GET / HTTP/1.1\r\nHost: shop.example\r\n\r\n"),
    ?assertEqual(404, router_test_client:status(Unknown)).
