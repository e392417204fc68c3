%% Starts a separate router for each test, with clients and dynos that the test controls, and checks that nothing is
%% left over afterwards.
-module(router_test_setup).

-export([tests/1, await_held/1, await_waiting/1, holder/0]).
-export([ask/1, request/1, answer/1, status/1, closed/1, ways_to_leave/0]).
-export([dyno/0, passed/1, none_passed/0, reply/2, open/1, answered/1]).

-include_lib("eunit/include/eunit.hrl").

%% Only for tests that hang.
-define(TIMEOUT_S, 30).
-define(DEADLINE_MS, 120_000).

%% Runs each test in a separate process, so that its clients and dynos end with it. Then checks that all permits are
%% released, no request waits and no error was logged.
-spec tests([{Title :: string(), fun(() -> term())}]) -> term().
tests(Tests) ->
    test_log_listener:tests(error,
        {foreach, fun start/0, fun stop/1, [
            {timeout, ?TIMEOUT_S, {Title, fun() -> test_log_listener:listening(fun() -> run(Test) end) end}}
         || {Title, Test} <- Tests
        ]}
    ).

start() ->
    ok = application:load(router),
    ok = application:set_env(router, port, 0),
    {ok, Started} = application:ensure_all_started(router),
    Started.

stop(Started) ->
    [ok = application:stop(Application) || Application <- lists:reverse(Started)],
    undefined = whereis(canal_lock),
    application:unload(router).

run(Test) ->
    {Pid, Monitor} = spawn_monitor(fun() ->
        _ = Test(),
        exit(shutdown)
    end),
    shutdown = test_await:reason({Pid, Monitor}),
    test_await:value(0, fun() -> maps:get(waiting, canal_lock:info()) end),
    test_await:permits(0),
    test_await:nothing_held(),
    ?assertEqual([], canal_lock:audit()),
    %% P4, and that no process released a permit that it did not hold.
    #{granted := Granted, released := Released, released_by_death := ByDeath} = Info = canal_lock:info(),
    ?assertMatch(#{not_held := 0}, Info),
    ?assertEqual(Granted, Released + ByDeath),
    %% Of an error of a process, and not that the test killed it.
    Texts = [lists:flatten(io_lib:format("~p", [Event])) || Event <- test_log_listener:events()],
    ?assertEqual([], [Text || Text <- Texts, string:find(Text, "{reason,killed}") =:= nomatch]).

%% Waits until the app `shop' has this number of permits in use, and its dynos together the same number.
-spec await_held(non_neg_integer()) -> ok.
await_held(Permits) ->
    test_await:count(<<"shop">>, Permits),
    test_await:permits(2 * Permits).

%% Waits until this number of requests wait for the app.
-spec await_waiting(non_neg_integer()) -> ok.
await_waiting(Requests) ->
    test_await:value(Requests, fun() -> canal_lock:waiting(<<"shop">>) end).

%% The process of the only open request.
-spec holder() -> pid().
holder() ->
    [{Pid, 1}] = canal_lock:holders(<<"shop">>),
    Pid.

%%% Clients

%% Sends a request for this path.
-spec ask(Path :: iodata()) -> gen_tcp:socket().
ask(Path) ->
    request(["GET ", Path, " HTTP/1.1\r\nHost: shop\r\n\r\n"]).

%% Sends these bytes on a new connection.
-spec request(iodata()) -> gen_tcp:socket().
request(Bytes) ->
    {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, router:port(), [binary, {active, false}, {nodelay, true}]),
    ok = gen_tcp:send(Socket, Bytes),
    Socket.

%% The bytes of the answer. Fails if the router resets the connection.
-spec answer(gen_tcp:socket()) -> binary().
answer(Socket) ->
    ok = inet:setopts(Socket, [{show_econnreset, true}]),
    read(Socket, <<>>).

read(Socket, Before) ->
    case gen_tcp:recv(Socket, 0, ?DEADLINE_MS) of
        {ok, Data} -> read(Socket, <<Before/binary, Data/binary>>);
        {error, closed} -> gen_tcp:close(Socket), Before
    end.

-spec status(gen_tcp:socket()) -> pos_integer().
status(Socket) ->
    <<"HTTP/1.", _, " ", Status:3/binary, " ", _/binary>> = answer(Socket),
    binary_to_integer(Status).

%% Waits until the other side has closed the connection, without having sent anything.
-spec closed(gen_tcp:socket()) -> ok.
closed(Socket) ->
    {error, closed} = gen_tcp:recv(Socket, 0, ?DEADLINE_MS),
    ok.

%% A client closes its connection, resets it, or closes its sending half.
-spec ways_to_leave() -> [fun((gen_tcp:socket()) -> ok)].
ways_to_leave() ->
    Reset = fun(Socket) ->
        ok = inet:setopts(Socket, [{linger, {true, 0}}]),
        gen_tcp:close(Socket)
    end,
    [fun gen_tcp:close/1, Reset, fun(Socket) -> gen_tcp:shutdown(Socket, write) end].

%%% Dynos

%% Starts a dyno that passes its requests and their sockets to the caller.
-spec dyno() -> router:address().
dyno() ->
    Test = self(),
    {ok, _, Port} = router_server:start_link(0, fun(Socket) ->
        %% Otherwise it would close as soon as the router closes its sending half.
        ok = inet:setopts(Socket, [{exit_on_close, false}]),
        case router_http:read_request(Socket) of
            {ok, #{path := Path} = Request} ->
                {ok, Address} = inet:sockname(Socket),
                ok = gen_tcp:controlling_process(Socket, Test),
                Test ! {passed, Path, Request#{socket => Socket, dyno => Address}};
            %% The router has closed the connection without a request.
            closed ->
                ok
        end
    end),
    {{127, 0, 0, 1}, Port}.

%% The request with this path that a dyno of the test has got.
-spec passed(Path :: binary()) -> map().
passed(Path) ->
    receive
        {passed, Path, Request} -> Request
    after ?DEADLINE_MS -> error({not_passed, Path})
    end.

-spec none_passed() -> ok.
none_passed() ->
    receive
        {passed, Path, _} -> error({passed, Path})
    after 0 -> ok
    end.

%% The dyno answers and closes.
-spec reply(map(), iodata()) -> ok.
reply(#{socket := Socket}, Bytes) ->
    ok = gen_tcp:send(Socket, Bytes),
    gen_tcp:close(Socket).

%% A request of a new client that has reached a dyno.
-spec open(Path :: binary()) -> {Client :: gen_tcp:socket(), Request :: map()}.
open(Path) ->
    Client = ask(Path),
    {Client, passed(Path)}.

%% Has the dyno answer. Returns whether the request has waited.
-spec answered({Client :: gen_tcp:socket(), Request :: map()}) -> boolean().
answered({Client, Request}) ->
    ok = reply(Request, "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok"),
    <<"HTTP/1.0 200 OK\r\n", Rest/binary>> = answer(Client),
    binary:match(Rest, <<"\r\nX-Router-Waited-Us: ">>) =/= nomatch.
