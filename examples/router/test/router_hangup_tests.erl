%% Tests when the permits are released if a client disconnects or does not read, a dyno does not end, or the process of
%% a request is killed.
-module(router_hangup_tests).

-include_lib("eunit/include/eunit.hrl").

-define(SOON_MS, 500).
-define(FLOODS, 8).
%% Time in which the router must give up a dyno that continues to send, also on a busy machine.
-define(MUCH_LATER_MS, 2000).

hangup_test_() ->
    router_test_setup:tests([
        {"a client disconnects: the permits are held until the dyno has closed", fun waits_for_the_dyno/0},
        {"a client disconnects in the body: the permits are held until the dyno has closed", fun in_the_body/0},
        {"a client disconnects after excess data: the permits are held until the dyno has closed", fun excess_data/0},
        {"a client resets the connection: the permits are held until the dyno has closed", fun by_a_reset/0},
        {"a client that closes its sending half counts as disconnected", fun half_closed/0},
        {"a client disconnects and the dyno does not close: released after the timeout", fun never_closes/0},
        {"a client disconnects and the dyno keeps sending: released after the timeout", fun flood_after_disconnect/0},
        {"a client that does not read is given up after the timeout", fun client_does_not_read/0},
        {"a client that is slow to read the last piece does not hold a permit", fun slow_to_take/0},
        {"a client disconnects while the router waits to send", fun disconnects_while_blocked/0},
        {"an endless answer is cut after the timeout", fun endless/0},
        {"a killed process releases its permits and closes both connections", fun killed/0}
    ]).

put_app(Dyno) ->
    router:put(<<"shop">>, 1, [Dyno]).

open() ->
    ok = put_app(router_test_dyno:start()),
    Socket = router_test_client:get("/"),
    {Connection, _} = router_test_dyno:request(),
    {Socket, Connection}.

refused() ->
    ?assertEqual(503, router_test_client:status(router_test_client:get("/refused"))).

%% The permits are held until the dyno has closed.
until_closed(Connection) ->
    ok = router_test_dyno:ended(Connection),
    refused(),
    router_test_setup:await_held(1),
    ok = router_test_dyno:close(Connection),
    router_test_setup:await_held(0),
    still_serves().

still_serves() ->
    Socket = router_test_client:get("/next"),
    {Connection, _} = router_test_dyno:request(<<"/next">>),
    ok = router_test_dyno:answer(Connection, "HTTP/1.0 204 OK\r\n\r\n"),
    ?assertEqual(204, router_test_client:status(Socket)).

waits_for_the_dyno() ->
    {Socket, Connection} = open(),
    ok = gen_tcp:close(Socket),
    until_closed(Connection).

in_the_body() ->
    lists:foreach(fun(Length) ->
        {Socket, Connection} = open(),
        ok = router_test_dyno:send(Connection, ["HTTP/1.0 200 OK\r\n", Length, "\r\nabc"]),
        {ok, _} = gen_tcp:recv(Socket, 0, 10000),
        ok = gen_tcp:close(Socket),
        ok = router_test_dyno:ended(Connection),
        %% Later data of the dyno is discarded.
        ok = router_test_dyno:send(Connection, "def"),
        refused(),
        ok = router_test_dyno:reset(Connection),
        router_test_setup:await_held(0),
        still_serves()
    end, ["", "Content-Length: 100\r\n"]).

%% Several times: the router must detect the disconnect after each.
excess_data() ->
    {Socket, Connection} = open(),
    lists:foreach(fun(Bytes) ->
        ok = gen_tcp:send(Socket, Bytes),
        %% Waits until the router has read it.
        test_await:value({ok, [{send_pend, 0}]}, fun() -> inet:getstat(Socket, [send_pend]) end)
    end, ["G", binary:copy(<<"more">>, 100000), "E"]),
    ok = gen_tcp:close(Socket),
    until_closed(Connection).

by_a_reset() ->
    {Socket, Connection} = open(),
    ok = router_test_client:reset(Socket),
    until_closed(Connection).

half_closed() ->
    {Socket, Connection} = open(),
    ok = gen_tcp:shutdown(Socket, write),
    until_closed(Connection),
    ?assertEqual(<<>>, router_test_client:rest(Socket)).

never_closes() ->
    ok = router_test_setup:answer_ms(?SOON_MS),
    {Socket, Connection} = open(),
    ok = gen_tcp:close(Socket),
    ok = router_test_dyno:ended(Connection),
    router_test_setup:await_held(0),
    ?assert(is_process_alive(Connection)),
    still_serves().

%% Sends the head of an answer and then data until sending fails.
flood(_Request, Socket) ->
    ok = gen_tcp:send(Socket, "HTTP/1.0 200 OK\r\n\r\n"),
    flood(Socket).

flood(Socket) ->
    case gen_tcp:send(Socket, binary:copy(<<"flood">>, 10000)) of
        ok -> flood(Socket);
        {error, _} -> ok
    end.

flood_after_disconnect() ->
    ok = router_test_setup:answer_ms(?SOON_MS),
    ok = put_app(router_test_dyno:start(fun flood/2)),
    Socket = router_test_client:get("/"),
    {ok, _} = gen_tcp:recv(Socket, 0, 10000),
    ok = gen_tcp:close(Socket),
    given_up().

given_up() ->
    test_await:value(0, fun() -> canal_lock:count(<<"shop">>) end, ?MUCH_LATER_MS).

client_does_not_read() ->
    ok = router_test_setup:answer_ms(?SOON_MS),
    ok = put_app(router_test_dyno:start(fun flood/2)),
    Socket = router_test_client:connect([{recbuf, 4096}]),
    ok = router_test_client:get(Socket, "/"),
    test_await:value(2, fun() -> maps:get(granted, canal_lock:info()) end),
    router_test_setup:await_held(0),
    ok = gen_tcp:close(Socket).

%% A head without a body is sent as one piece. Two heads of the maximum size exceed the socket buffers of a client that
%% does not read.
slow_to_take() ->
    ok = router_test_setup:answer_ms(60000),
    ok = put_app(router_test_dyno:start()),
    Socket = router_test_client:connect([{recbuf, 4096}]),
    Line = fun(Number) -> ["X-", integer_to_list(Number), ": ", binary:copy(<<"x">>, 16000), "\r\n"] end,
    Head = ["HTTP/1.0 200 OK\r\nContent-Length: 0\r\n", lists:map(Line, lists:seq(1, 199)), "\r\n"],
    lists:foreach(fun(_) ->
        ok = router_test_client:get(Socket, "/"),
        {Connection, _} = router_test_dyno:request(),
        ok = router_test_dyno:send(Connection, Head),
        router_test_setup:await_held(0)
    end, [1, 2]),
    still_serves(),
    router_test_client:reset(Socket).

%% Waits until the process is blocked in a send.
blocked(Holder) ->
    test_await:value(true, fun() ->
        Before = process_info(Holder, reductions),
        [erlang:yield() || _ <- lists:seq(1, 1000)],
        [{current_function, {Module, Function, _}}, Reductions] = process_info(Holder, [current_function, reductions]),
        Module =:= prim_inet andalso lists:prefix("send", atom_to_list(Function)) andalso Reductions =:= Before
    end).

disconnects_while_blocked() ->
    ok = put_app(router_test_dyno:start()),
    Socket = router_test_client:connect([{recbuf, 4096}]),
    ok = router_test_client:get(Socket, "/"),
    {Connection, _} = router_test_dyno:request(),
    Sent = router_test_dyno:send_all(Connection, ["HTTP/1.0 200 OK\r\n\r\n", binary:copy(<<"large">>, 5000000)]),
    Holder = router_test_setup:holder(<<"shop">>),
    ok = blocked(Holder),
    ok = router_test_client:reset(Socket),
    %% The router reads the rest from the dyno and discards it.
    ok = test_await:answer(Sent),
    until_closed(Connection).

%% Several, so that the router always finds data of one of them.
endless() ->
    ok = router_test_setup:answer_ms(?SOON_MS),
    ok = router:put(<<"shop">>, ?FLOODS, [router_test_dyno:start(fun flood/2)]),
    Test = self(),
    Readers = [
        spawn_link(fun() ->
            Socket = router_test_client:get("/"),
            {ok, <<"HTTP/1.1 200", _/binary>>} = gen_tcp:recv(Socket, 0, 10000),
            Test ! {self(), begun},
            Test ! {self(), last(Socket, <<>>)}
        end)
     || _ <- lists:seq(1, ?FLOODS)
    ],
    [receive {Reader, begun} -> ok end || Reader <- Readers],
    given_up(),
    %% The answer must not end with the last chunk.
    [receive {Reader, Last} -> ?assertEqual(nomatch, binary:match(Last, <<"\r\n0\r\n\r\n">>)) end || Reader <- Readers].

%% Reads as fast as possible and returns the last data.
last(Socket, Before) ->
    case gen_tcp:recv(Socket, 0, 10000) of
        {ok, Data} -> last(Socket, Data);
        {error, closed} -> Before
    end.

killed() ->
    {Socket, Connection} = open(),
    exit(router_test_setup:holder(<<"shop">>), kill),
    router_test_setup:await_held(0),
    ok = router_test_dyno:ended(Connection),
    ?assertEqual(<<>>, router_test_client:rest(Socket)),
    still_serves().
