%% Tests how a dyno's answer reaches the client, and that the connection stays usable afterwards.
-module(router_answers_tests).

-include_lib("eunit/include/eunit.hrl").

%% Requests over one connection. Some may arrive between the end of the watch and the end of the answer.
-define(IN_A_ROW, 500).

answer_test_() ->
    router_test_setup:tests([
        {"status and headers are passed on, including repeated cookies", fun headers/0},
        {"headers about the dyno's connection are removed", fun hop_by_hop/0},
        {"Content-Length listed in Connection is kept", fun connection_length/0},
        {"a body with a length is passed on, in any pieces", fun lengths/0},
        {"data beyond the length is dropped", fun beyond/0},
        {"a body without a length is passed on in chunks", fun chunked/0},
        {"an HTTP/1.0 client gets a body without a length until the connection closes", fun closed/0},
        {"an answer without a body is passed on without one", fun no_body/0},
        {"a body of 5 MB is passed on", fun five_megabytes/0},
        {"a body of 5 MB is passed on to OTP's client", fun plain_client/0},
        {"a streamed body is passed on as it arrives", fun streamed/0},
        {"500 requests in a row over one connection succeed", fun in_a_row/0},
        {"a connection is closed when its client asks for it", fun client_closes/0},
        {"a status without a reason and lines that end with LF are accepted", fun terse/0}
    ]).

put_app() ->
    router:put(<<"shop">>, 1, [router_test_dyno:start()]).

%% Sends a request, answers it with these pieces one after the other, and returns what the client receives.
answered(Socket, Method, Pieces) ->
    ok = router_test_client:send(Socket, [atom_to_list(Method), " / HTTP/1.1\r\nHost: shop\r\n\r\n"]),
    {Connection, _} = router_test_dyno:request(),
    [ok = router_test_dyno:send(Connection, Piece) || Piece <- Pieces],
    ok = router_test_dyno:close(Connection),
    router_test_client:answer(Socket, Method).

values(Name, #{headers := Headers}) ->
    proplists:get_all_values(Name, Headers).

headers() ->
    ok = put_app(),
    Socket = router_test_client:connect(),
    Statuses = [200, 302, 404, 500, 599],
    [?assertMatch(#{status := Status}, answered(Socket, 'GET', [status(Status)])) || Status <- Statuses],
    Answer = answered(Socket, 'GET', [
        "HTTP/1.1 200 OK\r\nset-cookie: a=1; Path=/\r\nX-One: \351, y  \r\nSet-Cookie: b=2, 3\r\nSet-Cookie: a=1\r\n"
        "Server: dyno\r\nDate: now\r\nX-Two: 1\r\nx-two: 2\r\nX-Router-Reason: mine\r\nContent-Length: 0 \r\n\r\n"
    ]),
    [
        ?assertEqual(Values, values(Name, Answer))
     || {Name, Values} <- [
            {<<"set-cookie">>, [<<"a=1; Path=/">>, <<"b=2, 3">>, <<"a=1">>]},
            {<<"x-one">>, [<<233, ", y">>]},
            {<<"server">>, [<<"dyno">>]},
            {<<"date">>, [<<"now">>]},
            {<<"x-two">>, [<<"1, 2">>]},
            {<<"content-length">>, [<<"0">>]}
        ]
    ].

status(Status) ->
    io_lib:format("HTTP/1.1 ~b Text\r\nContent-Length: 0\r\n\r\n", [Status]).

hop_by_hop() ->
    ok = put_app(),
    Answer = answered(router_test_client:connect(), 'GET', [
        "HTTP/1.1 200 OK\r\nConnection: close, x-mine\r\nX-Mine: 1\r\nKeep-Alive: 5\r\nUpgrade: x\r\nTrailer: x\r\n"
        "X-Kept: 1\r\nContent-Length: 0\r\n\r\n"
    ]),
    ?assertEqual(
        [<<"content-length">>, <<"date">>, <<"server">>, <<"x-kept">>],
        lists:sort([Name || {Name, _} <- maps:get(headers, Answer)])
    ).

connection_length() ->
    ok = put_app(),
    Socket = router_test_client:connect(),
    Answer = answered(Socket, 'GET', [
        "HTTP/1.1 200 OK\r\nConnection: content-length\r\nContent-Length: 2\r\n\r\nok"
    ]),
    ?assertMatch(#{body := <<"ok">>, ends := length}, Answer).

lengths() ->
    ok = put_app(),
    Socket = router_test_client:connect(),
    [
        ?assertMatch(#{status := 200, body := <<"abcdef">>, ends := length}, answered(Socket, 'GET', Pieces))
     || Pieces <- [
            ["HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nabcdef"],
            ["HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n", "abc", "d", "ef"],
            [[Byte] || Byte <- "HTTP/1.0 200 OK\r\nContent-Length: 6\r\n\r\nabcdef"]
        ]
    ].

beyond() ->
    ok = put_app(),
    Socket = router_test_client:connect(),
    [
        ?assertMatch(#{body := Body}, answered(Socket, Method, ["HTTP/1.1 200 OK\r\n", Rest]))
     || {Method, Body, Rest} <- [
            {'GET', <<"abc">>, "Content-Length: 3\r\n\r\nabc\r\nand more"},
            {'GET', <<>>, "Content-Length: 0\r\n\r\nabc"},
            {'HEAD', <<>>, "\r\nabc"},
            {'GET', <<"abc">>, "Content-Length: 3\r\n\r\nabc"}
        ]
    ].

chunked() ->
    ok = put_app(),
    Socket = router_test_client:connect(),
    lists:foreach(fun(Pieces) ->
        Answer = answered(Socket, 'GET', ["HTTP/1.1 200 OK\r\n\r\n" | Pieces]),
        Body = iolist_to_binary(Pieces),
        ?assertMatch(#{status := 200, body := Body, ends := chunks}, Answer),
        ?assertEqual([], values(<<"content-length">>, Answer))
    end, [["abc"], ["a", "\r\n0\r\n", "c"], []]).

closed() ->
    ok = put_app(),
    lists:foreach(fun(Header) ->
        Socket = router_test_client:request(["GET / HTTP/1.0\r\nHost: shop\r\n", Header, "\r\n"]),
        {Connection, _} = router_test_dyno:request(),
        ok = router_test_dyno:answer(Connection, "HTTP/1.0 200 OK\r\n\r\nabc"),
        Answer = router_test_client:answer(Socket),
        ?assertMatch(#{version := {1, 0}, body := <<"abc">>, ends := closed}, Answer),
        ?assertEqual([], values(<<"transfer-encoding">>, Answer))
    end, ["", "Connection: Keep-Alive\r\n"]).

no_body() ->
    ok = put_app(),
    Socket = router_test_client:connect(),
    lists:foreach(fun({Method, Status, Length, Lengths}) ->
        Answer = answered(Socket, Method, [["HTTP/1.1 ", Status, " Text\r\n", Length, "X-A: 1\r\n\r\n"]]),
        ?assertEqual([<<"1">>], values(<<"x-a">>, Answer)),
        ?assertEqual(Lengths, values(<<"content-length">>, Answer)),
        ?assertEqual([], values(<<"transfer-encoding">>, Answer))
    end, [
        {'HEAD', "200", "Content-Length: 17\r\n", [<<"17">>]},
        {'HEAD', "200", "", []},
        {'GET', "304", "Content-Length: 17\r\n", [<<"17">>]},
        {'GET', "304", "", []},
        {'GET', "204", "", []},
        {'GET', "200", "Content-Length: 0\r\n", [<<"0">>]}
    ]),
    Whole = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwhole",
    ?assertMatch(#{body := <<"whole">>}, answered(Socket, 'GET', [Whole])).

large() ->
    rand:bytes(5 * 1024 * 1024).

five_megabytes() ->
    ok = put_app(),
    Socket = router_test_client:connect(),
    Body = large(),
    lists:foreach(fun({Length, Ends}) ->
        ok = router_test_client:get(Socket, "/"),
        {Connection, _} = router_test_dyno:request(),
        ok = router_test_dyno:answer_later(Connection, ["HTTP/1.1 200 OK\r\n", Length, "\r\n", Body]),
        %% Without ?assertEqual, which would print the long body.
        #{ends := Ends, body := Passed} = router_test_client:answer(Socket),
        ?assert(Passed =:= Body)
    end, [{["Content-Length: ", integer_to_list(byte_size(Body)), "\r\n"], length}, {"", chunks}]).

plain_client() ->
    ok = put_app(),
    Test = self(),
    Body = large(),
    _ = spawn_link(fun() ->
        Url = lists:concat(["http://127.0.0.1:", router:port(), "/"]),
        Test ! httpc:request(get, {Url, [{"host", "shop"}]}, [], [{body_format, binary}])
    end),
    {Connection, _} = router_test_dyno:request(),
    ok = router_test_dyno:answer(Connection, ["HTTP/1.1 200 OK\r\n\r\n", Body]),
    receive
        {ok, {{_, 200, _}, _, Passed}} -> ?assert(Passed =:= Body)
    end.

streamed() ->
    ok = put_app(),
    lists:foreach(fun(Length) ->
        Socket = router_test_client:get("/"),
        {Connection, _} = router_test_dyno:request(),
        ok = router_test_dyno:send(Connection, ["HTTP/1.1 200 OK\r\n", Length, "\r\n"]),
        lists:foreach(fun(Piece) ->
            ok = router_test_dyno:send(Connection, Piece),
            ok = until(Socket, Piece, <<>>)
        end, ["first", "second"]),
        ok = router_test_dyno:close(Connection),
        %% The permits are released, so the next request is admitted.
        test_await:permits(0)
    end, ["", "Content-Length: 11\r\n"]).

%% Reads until the piece has arrived.
until(Socket, Piece, Before) ->
    case binary:match(Before, list_to_binary(Piece)) of
        nomatch ->
            {ok, Data} = gen_tcp:recv(Socket, 0, 10000),
            until(Socket, Piece, <<Before/binary, Data/binary>>);
        _ ->
            ok
    end.

in_a_row() ->
    Answers = [
        "HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\nbody", "HTTP/1.0 200 OK\r\n\r\nbody",
        "HTTP/1.0 204 OK\r\n\r\n", "HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n"
    ],
    Dyno = router_test_dyno:start(fun(#{path := <<"/", Number/binary>>}, Socket) ->
        ok = gen_tcp:send(Socket, lists:nth(binary_to_integer(Number), Answers))
    end),
    ok = router:put(<<"shop">>, 1, [Dyno]),
    Socket = router_test_client:connect(),
    lists:foreach(fun(Turn) ->
        ok = router_test_client:get(Socket, ["/", integer_to_list(Turn rem 4 + 1)]),
        Body = lists:nth(Turn rem 4 + 1, [<<"body">>, <<"body">>, <<>>, <<>>]),
        ?assertMatch(#{body := Body}, router_test_client:answer(Socket))
    end, lists:seq(1, ?IN_A_ROW)).

client_closes() ->
    ok = put_app(),
    Socket = router_test_client:request("GET / HTTP/1.1\r\nHost: shop\r\nConnection: close\r\n\r\n"),
    {Connection, _} = router_test_dyno:request(),
    ok = router_test_dyno:answer(Connection, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"),
    Answer = router_test_client:answer(Socket),
    ?assertMatch(#{body := <<"ok">>}, Answer),
    ?assertEqual([<<"close">>], values(<<"connection">>, Answer)),
    ?assertEqual(<<>>, router_test_client:rest(Socket)).

terse() ->
    ok = put_app(),
    Socket = router_test_client:connect(),
    ?assertMatch(
        #{status := 200, body := <<"ok">>},
        answered(Socket, 'GET', ["HTTP/1.1 200\ncontent-length:2\n\nok"])
    ).
