%% Clients that hang up or do not take what they asked for, dynos that do not end, and requests whose process is killed:
%% when the permits come back, and when not.
-module(router_hangup_tests).

-include_lib("eunit/include/eunit.hrl").

-define(SOON_MS, 500).
-define(FLOODS, 8).
%% In which a dyno that is given up after that, though it goes on sending, is given up on a busy machine, too.
-define(MUCH_LATER_MS, 2000).

hangup_test_() ->
    router_test_stage:tests([
        {"a client hangs up: the dyno is told, and has its place until it has closed", fun waits_for_the_dyno/0},
        {"the same in the middle of a body", fun in_the_body/0},
        {"the same by a client that has sent more than its request", fun ahead/0},
        {"the same by a reset", fun by_a_reset/0},
        {"who closes only the sending half has hung up", fun half_closed/0},
        {"a dyno that does not close is given up in time", fun never_closes/0},
        {"one that goes on sending, too", fun floods_nobody/0},
        {"a client that takes nothing is given up in time", fun takes_nothing/0},
        {"a client that is slow to take the last piece keeps nobody out", fun slow_to_take/0},
        {"a client that goes while the router waits for it to read", fun goes_while_blocked/0},
        {"an answer without an end is cut off in time", fun endless/0},
        {"a killed process gives back what it held, and ends both connections", fun killed/0}
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

%% The place is the dyno's until it has closed.
until_closed(Connection) ->
    ok = router_test_dyno:ended(Connection),
    refused(),
    router_test_stage:held(1),
    ok = router_test_dyno:close(Connection),
    router_test_stage:held(0),
    serves_on().

serves_on() ->
    Socket = router_test_client:get("/next"),
    {Connection, _} = router_test_dyno:request(<<"/next">>),
    ok = router_test_dyno:answer(Connection, "HTTP/1.0 204 OK\r\n\r\n"),
    ?assertEqual(204, router_test_client:status(Socket)).

waits_for_the_dyno() ->
    {Socket, Connection} = open(),
    ok = gen_tcp:close(Socket),
    until_closed(Connection).

in_the_body() ->
    [
        begin
            {Socket, Connection} = open(),
            ok = router_test_dyno:send(Connection, ["HTTP/1.0 200 OK\r\n", Length, "\r\nabc"]),
            {ok, _} = gen_tcp:recv(Socket, 0, 10000),
            ok = gen_tcp:close(Socket),
            ok = router_test_dyno:ended(Connection),
            %% What it still has to say interests nobody.
            ok = router_test_dyno:send(Connection, "def"),
            refused(),
            ok = router_test_dyno:reset(Connection),
            router_test_stage:held(0),
            serves_on()
        end
     || Length <- ["", "Content-Length: 100\r\n"]
    ].

%% Again and again, and it is listened to after each time.
ahead() ->
    {Socket, Connection} = open(),
    [
        begin
            ok = gen_tcp:send(Socket, Bytes),
            %% Until it has been read.
            test_await:value({ok, [{send_pend, 0}]}, fun() -> inet:getstat(Socket, [send_pend]) end)
        end
     || Bytes <- ["G", binary:copy(<<"more">>, 100000), "E"]
    ],
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
    ok = router_test_stage:answer_ms(?SOON_MS),
    {Socket, Connection} = open(),
    ok = gen_tcp:close(Socket),
    ok = router_test_dyno:ended(Connection),
    router_test_stage:held(0),
    ?assert(is_process_alive(Connection)),
    serves_on().

%% The head of an answer, and then for as long as somebody takes it.
flood(_Request, Socket) ->
    ok = gen_tcp:send(Socket, "HTTP/1.0 200 OK\r\n\r\n"),
    flood(Socket).

flood(Socket) ->
    case gen_tcp:send(Socket, binary:copy(<<"flood">>, 10000)) of
        ok -> flood(Socket);
        {error, _} -> ok
    end.

floods_nobody() ->
    ok = router_test_stage:answer_ms(?SOON_MS),
    ok = put_app(router_test_dyno:start(fun flood/2)),
    Socket = router_test_client:get("/"),
    {ok, _} = gen_tcp:recv(Socket, 0, 10000),
    ok = gen_tcp:close(Socket),
    given_up().

given_up() ->
    test_await:value(0, fun() -> canal_lock:count(<<"shop">>) end, ?MUCH_LATER_MS).

takes_nothing() ->
    ok = router_test_stage:answer_ms(?SOON_MS),
    ok = put_app(router_test_dyno:start(fun flood/2)),
    Socket = router_test_client:connect([{recbuf, 4096}]),
    ok = router_test_client:get(Socket, "/"),
    test_await:value(2, fun() -> maps:get(granted, canal_lock:info()) end),
    router_test_stage:held(0),
    ok = gen_tcp:close(Socket).

%% A head is one piece, if no body follows. Two as long as they may be are more than the systems keep for somebody who
%% does not read.
slow_to_take() ->
    ok = router_test_stage:answer_ms(60000),
    ok = put_app(router_test_dyno:start()),
    Socket = router_test_client:connect([{recbuf, 4096}]),
    Line = fun(Number) -> ["X-", integer_to_list(Number), ": ", binary:copy(<<"x">>, 16000), "\r\n"] end,
    Head = ["HTTP/1.0 200 OK\r\nContent-Length: 0\r\n", lists:map(Line, lists:seq(1, 199)), "\r\n"],
    [
        begin
            ok = router_test_client:get(Socket, "/"),
            {Connection, _} = router_test_dyno:request(),
            ok = router_test_dyno:send(Connection, Head),
            router_test_stage:held(0)
        end
     || _ <- [1, 2]
    ],
    serves_on(),
    router_test_client:reset(Socket).

%% Until it waits for a client that does not read, and does nothing any more.
blocked(Holder) ->
    test_await:value(true, fun() ->
        Before = process_info(Holder, reductions),
        [erlang:yield() || _ <- lists:seq(1, 1000)],
        process_info(Holder, [current_function, reductions]) =:=
            [{current_function, {prim_inet, send_recv_reply, 2}}, Before]
    end).

goes_while_blocked() ->
    ok = put_app(router_test_dyno:start()),
    Socket = router_test_client:connect([{recbuf, 4096}]),
    ok = router_test_client:get(Socket, "/"),
    {Connection, _} = router_test_dyno:request(),
    Sent = router_test_dyno:send_all(Connection, ["HTTP/1.0 200 OK\r\n\r\n", binary:copy(<<"large">>, 5000000)]),
    Holder = router_test_stage:holder(<<"shop">>),
    ok = blocked(Holder),
    ok = router_test_client:reset(Socket),
    %% The rest is taken from the dyno, and thrown away.
    ok = test_await:answer(Sent),
    until_closed(Connection).

%% Several, so that there is something to read for one of them whenever the router looks.
endless() ->
    ok = router_test_stage:answer_ms(?SOON_MS),
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
    %% Not by the last chunk.
    [receive {Reader, Last} -> ?assertEqual(nomatch, binary:match(Last, <<"\r\n0\r\n\r\n">>)) end || Reader <- Readers].

%% What comes last, read as fast as it comes.
last(Socket, Before) ->
    case gen_tcp:recv(Socket, 0, 10000) of
        {ok, Data} -> last(Socket, Data);
        {error, closed} -> Before
    end.

killed() ->
    {Socket, Connection} = open(),
    exit(router_test_stage:holder(<<"shop">>), kill),
    router_test_stage:held(0),
    ok = router_test_dyno:ended(Connection),
    ?assertEqual(<<>>, router_test_client:rest(Socket)),
    serves_on().
