%% Starts a separate router for each test, with clients and dynos that the test controls, and checks that nothing is
%% left over afterwards.
-module(router_test_setup).

-export([tests/1, noisy/1, set/2, await_held/1, await_waiting/1, holder/0]).
-export([ask/1, request/1, answer/1, status/1, closed/1, reset/1]).
-export([dyno/0, dyno/1, passed/0, passed/1, none_passed/0, reply/1, reply/2, open/1]).

-include_lib("eunit/include/eunit.hrl").

%% Only for tests that hang.
-define(TIMEOUT_S, 30).
-define(DEADLINE_MS, 120_000).

%% Runs each test in a separate process, so that its clients and dynos end with it. Then checks that all permits are
%% released, no request waits and no error was logged.
-spec tests([{Title :: string(), fun(() -> term())}]) -> term().
tests(Tests) ->
    foreach(Tests, fun() -> ?assertEqual([], test_log_listener:events()) end).

%% The same for tests whose kills are logged as errors.
-spec noisy([{Title :: string(), fun(() -> term())}]) -> term().
noisy(Tests) ->
    foreach(Tests, fun() -> ok end).

foreach(Tests, Check) ->
    test_log_listener:tests(error,
        {foreach, fun start/0, fun stop/1, [
            {timeout, ?TIMEOUT_S, {Title, fun() -> test_log_listener:listening(fun() -> run(Test, Check) end) end}}
         || {Title, Test} <- Tests
        ]}
    ).

start() ->
    ok = application:load(router),
    ok = set(port, 0),
    {ok, Started} = application:ensure_all_started(router),
    Started.

stop(Started) ->
    [ok = application:stop(Application) || Application <- lists:reverse(Started)],
    undefined = whereis(canal_lock),
    application:unload(router).

run(Test, Check) ->
    {Pid, Monitor} = spawn_monitor(fun() ->
        _ = Test(),
        exit(shutdown)
    end),
    shutdown = test_await:reason({Pid, Monitor}),
    await_info(0, waiting),
    test_await:permits(0),
    await_info(0, holders),
    ?assertEqual([], canal_lock:audit()),
    %% P4, and that no process released a permit that it did not hold.
    #{granted := Granted, released := Released, released_by_death := ByDeath} = Info = canal_lock:info(),
    ?assertMatch(#{not_held := 0}, Info),
    ?assertEqual(Granted, Released + ByDeath),
    Check().

%% Sets a parameter of the application.
-spec set(atom(), non_neg_integer()) -> ok.
set(Name, Value) ->
    application:set_env(router, Name, Value).

%% Waits until the app `shop' has this number of permits in use, and its dynos together the same number.
-spec await_held(non_neg_integer()) -> ok.
await_held(Permits) ->
    test_await:count(<<"shop">>, Permits),
    test_await:permits(2 * Permits).

%% Waits until this number of requests wait for the app.
-spec await_waiting(non_neg_integer()) -> ok.
await_waiting(Requests) ->
    test_await:value(Requests, fun() -> canal_lock:waiting(<<"shop">>) end).

await_info(Value, Name) ->
    test_await:value(Value, fun() -> maps:get(Name, canal_lock:info()) end).

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

%% The answer. Fails if the router resets the connection.
-spec answer(gen_tcp:socket()) -> router_http:answer().
answer(Socket) ->
    {ok, Answer} = router_http:parse_answer(read(Socket, <<>>), <<"GET">>),
    Answer.

read(Socket, Before) ->
    ok = inet:setopts(Socket, [{show_econnreset, true}]),
    case gen_tcp:recv(Socket, 0, ?DEADLINE_MS) of
        {ok, Data} -> read(Socket, <<Before/binary, Data/binary>>);
        {error, closed} -> gen_tcp:close(Socket), Before
    end.

%% Reason: the router's, if it is an answer of the router itself.
-spec status(gen_tcp:socket()) -> Status :: pos_integer() | {Status :: pos_integer(), Reason :: binary()}.
status(Socket) ->
    {Status, Headers, _} = answer(Socket),
    case router_http:values(<<"x-router-reason">>, Headers) of
        [] -> Status;
        [Reason] -> {Status, Reason}
    end.

%% Waits until the other side has closed the connection, without having sent anything.
-spec closed(gen_tcp:socket()) -> ok.
closed(Socket) ->
    {error, closed} = gen_tcp:recv(Socket, 0, ?DEADLINE_MS),
    ok.

-spec reset(gen_tcp:socket()) -> ok.
reset(Socket) ->
    ok = inet:setopts(Socket, [{linger, {true, 0}}]),
    gen_tcp:close(Socket).

%%% Dynos

%% Starts a dyno that passes its requests and their sockets to the caller.
-spec dyno() -> router:address().
dyno() ->
    Test = self(),
    dyno(fun(#{socket := Socket, path := Path} = Request) ->
        ok = gen_tcp:controlling_process(Socket, Test),
        Test ! {passed, Path, Request}
    end).

%% Starts a dyno that calls Serve in the process of each connection.
-spec dyno(fun((map()) -> term())) -> router:address().
dyno(Serve) ->
    {ok, _, Port} = router_server:start_link(0, fun(Socket) ->
        %% Otherwise it would close as soon as the router closes its sending half.
        ok = inet:setopts(Socket, [{exit_on_close, false}]),
        try router_http:read_message(Socket, ?DEADLINE_MS) of
            {{http_request, Method, {abs_path, Path}, {1, 0}}, Headers, Body} ->
                {ok, Address} = inet:sockname(Socket),
                Serve(#{
                    socket => Socket, dyno => Address, method => Method, path => Path, headers => Headers, body => Body
                })
        catch
            %% The router has closed the connection without a request.
            throw:closed -> ok
        end
    end),
    {{127, 0, 0, 1}, Port}.

%% The next request that a dyno of the test has got.
-spec passed() -> map().
passed() ->
    receive
        {passed, _, Request} -> Request
    after ?DEADLINE_MS -> error(not_passed)
    end.

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
-spec reply(map()) -> ok.
reply(Request) ->
    reply(Request, "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok").

-spec reply(map(), iodata()) -> ok.
reply(#{socket := Socket}, Bytes) ->
    ok = gen_tcp:send(Socket, Bytes),
    gen_tcp:close(Socket).

%% A request of a new client that has reached a dyno.
-spec open(Path :: binary()) -> {Client :: gen_tcp:socket(), Request :: map()}.
open(Path) ->
    Client = ask(Path),
    {Client, passed(Path)}.
