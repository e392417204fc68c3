%% A dyno that the test controls: it passes each request to the test and then follows commands.
%%
%% Each connection is a process. It reads one request, which the test receives with request/0,1, and reports when the
%% router has closed its side, which the test awaits with ended/1. It closes only on command or when the test ends.
-module(router_test_dyno).

-export([start/0, start/1, refusing/0]).
-export([request/0, request/1, no_request/0, ended/1]).
-export([send/2, send_all/2, close/1, reset/1, answer/2, answer_later/2]).

-export_type([connection/0, request/0]).

-type connection() :: pid().
-type request() :: #{
    dyno := router_dyno:address(),
    method := binary(),
    path := binary(),
    version := binary(),
    %% Names in lower case, in the order of the request.
    headers := [{binary(), binary()}],
    body := binary()
}.

-define(HOST, {127, 0, 0, 1}).
-define(DEADLINE_MS, 10000).
-define(OPTIONS, [
    binary, {ip, ?HOST}, {active, false}, {nodelay, true}, {reuseaddr, true}, {exit_on_close, false}, {backlog, 512}
]).

%% Starts a dyno that passes its requests to the caller.
-spec start() -> router_dyno:address().
start() ->
    Test = self(),
    start(fun(Request, Socket) ->
        Test ! {?MODULE, request, self(), Request},
        ok = inet:setopts(Socket, [{active, once}]),
        follow_commands(Socket, Test)
    end).

%% Starts a dyno that calls Serve in the process of each connection, and closes the connection afterwards.
-spec start(fun((request(), gen_tcp:socket()) -> term())) -> router_dyno:address().
start(Serve) ->
    Test = self(),
    Ref = make_ref(),
    _ = spawn_link(fun() ->
        {ok, Listener} = gen_tcp:listen(0, ?OPTIONS),
        {ok, Port} = inet:port(Listener),
        Test ! {Ref, {?HOST, Port}},
        _ = monitor(process, Test),
        accept(Listener, {?HOST, Port}, Serve, Test)
    end),
    test_await:answer(Ref).

%% Returns an address that refuses connections.
-spec refusing() -> router_dyno:address().
refusing() ->
    {ok, Listener} = gen_tcp:listen(0, ?OPTIONS),
    {ok, Port} = inet:port(Listener),
    ok = gen_tcp:close(Listener),
    {?HOST, Port}.

accept(Listener, Address, Serve, Test) ->
    receive
        {'DOWN', _, process, Test, _} -> ok
    after 0 ->
        case gen_tcp:accept(Listener, 100) of
            {ok, Socket} ->
                Connection = spawn(fun() -> serve(Address, Serve, Test) end),
                ok = gen_tcp:controlling_process(Socket, Connection),
                Connection ! Socket,
                accept(Listener, Address, Serve, Test);
            {error, timeout} ->
                accept(Listener, Address, Serve, Test)
        end
    end.

serve(Address, Serve, Test) ->
    _ = monitor(process, Test),
    receive
        Socket when is_port(Socket) ->
            case read(Socket, <<>>) of
                {ok, Request} -> Serve(Request#{dyno => Address}, Socket);
                %% The router closed the connection without a request.
                {error, _} -> ok
            end
    end.

read(Socket, Before) ->
    case binary:split(Before, <<"\r\n\r\n">>) of
        [Head, Rest] ->
            [Line | Lines] = binary:split(Head, <<"\r\n">>, [global]),
            [Method, Path, Version] = binary:split(Line, <<" ">>, [global]),
            Headers = [header(binary:split(Header, <<": ">>)) || Header <- Lines],
            Length = binary_to_integer(proplists:get_value(<<"content-length">>, Headers)),
            {ok, #{
                method => Method, path => Path, version => Version, headers => Headers,
                body => body(Socket, Rest, Length)
            }};
        [_] ->
            case gen_tcp:recv(Socket, 0) of
                {ok, Data} -> read(Socket, <<Before/binary, Data/binary>>);
                {error, _} = Error -> Error
            end
    end.

header([Name, Value]) -> {string:lowercase(Name), Value}.

body(_Socket, Rest, Length) when byte_size(Rest) >= Length ->
    %% Including data beyond the length, so that a test sees it.
    Rest;
body(Socket, Rest, Length) ->
    {ok, Data} = gen_tcp:recv(Socket, Length - byte_size(Rest)),
    <<Rest/binary, Data/binary>>.

follow_commands(Socket, Test) ->
    receive
        {tcp_closed, Socket} ->
            Test ! {?MODULE, ended, self()},
            follow_commands(Socket, Test);
        {tcp, Socket, Data} ->
            Test ! {?MODULE, more, self(), Data},
            follow_commands(Socket, Test);
        {send, Ref, Bytes} ->
            Test ! {Ref, gen_tcp:send(Socket, Bytes)},
            follow_commands(Socket, Test);
        {close, Ref, Options} ->
            %% setopts fails if the router has reset the connection.
            _ = inet:setopts(Socket, Options),
            Test ! {Ref, gen_tcp:close(Socket)};
        {'DOWN', _, process, Test, _} ->
            gen_tcp:close(Socket)
    end.

%%% Called by the test

-spec request() -> {connection(), request()}.
request() ->
    receive
        {?MODULE, request, Connection, Request} -> {Connection, Request}
    after ?DEADLINE_MS -> error(no_request)
    end.

%% Returns the next request for this path.
-spec request(binary()) -> {connection(), request()}.
request(Path) ->
    receive
        {?MODULE, request, Connection, #{path := Path} = Request} -> {Connection, Request}
    after ?DEADLINE_MS -> error({no_request, Path})
    end.

%% Checks that no request and no data after one has arrived.
-spec no_request() -> ok.
no_request() ->
    receive
        {?MODULE, request, _, Request} -> error({unexpected, Request});
        {?MODULE, more, _, Data} -> error({unexpected, Data})
    after 0 -> ok
    end.

%% Waits until the router has closed its side of the connection.
-spec ended(connection()) -> ok.
ended(Connection) ->
    receive
        {?MODULE, ended, Connection} -> ok
    after ?DEADLINE_MS -> error(still_open)
    end.

-spec send(connection(), iodata()) -> ok | {error, term()}.
send(Connection, Bytes) ->
    test_await:answer(send_all(Connection, Bytes)).

%% The result is sent as `{Reference, ok | {error, _}}'.
-spec send_all(connection(), iodata()) -> reference().
send_all(Connection, Bytes) ->
    Ref = make_ref(),
    Connection ! {send, Ref, Bytes},
    Ref.

-spec close(connection()) -> ok.
close(Connection) ->
    close(Connection, []).

-spec reset(connection()) -> ok.
reset(Connection) ->
    close(Connection, [{linger, {true, 0}}]).

close(Connection, Options) ->
    Ref = make_ref(),
    Connection ! {close, Ref, Options},
    test_await:answer(Ref).

%% Sends the bytes and closes the connection.
-spec answer(connection(), iodata()) -> ok.
answer(Connection, Bytes) ->
    ok = send(Connection, Bytes),
    close(Connection).

%% Like answer/2, but returns immediately, so that the test can read.
-spec answer_later(connection(), iodata()) -> ok.
answer_later(Connection, Bytes) ->
    _ = send_all(Connection, Bytes),
    Connection ! {close, make_ref(), []},
    ok.
