%% A client that sends the given bytes and reads one answer at a time.
-module(router_test_client).

-export([connect/0, connect/1, send/2, get/1, get/2, request/1]).
-export([answer/1, answer/2, status/1, rest/1, reset/1]).

-export_type([answer/0]).

-type answer() :: #{
    status := pos_integer(),
    version := {0..1, 0..9},
    %% Names in lower case.
    headers := [{binary(), binary()}],
    body := binary(),
    %% How the end of the body was determined; `cut' if the connection closed before.
    ends := length | chunks | closed | cut
}.

-define(DEADLINE_MS, 10000).

-spec connect() -> gen_tcp:socket().
connect() ->
    connect([]).

-spec connect([gen_tcp:connect_option()]) -> gen_tcp:socket().
connect(Options) ->
    {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, router:port(), [binary, {active, false}, {nodelay, true} | Options]),
    Socket.

-spec send(gen_tcp:socket(), iodata()) -> ok.
send(Socket, Bytes) ->
    ok = gen_tcp:send(Socket, Bytes).

%% Sends a GET on a new connection.
-spec get(iodata()) -> gen_tcp:socket().
get(Path) ->
    Socket = connect(),
    ok = get(Socket, Path),
    Socket.

-spec get(gen_tcp:socket(), iodata()) -> ok.
get(Socket, Path) ->
    send(Socket, ["GET ", Path, " HTTP/1.1\r\nHost: shop\r\n\r\n"]).

%% Sends these bytes on a new connection.
-spec request(iodata()) -> gen_tcp:socket().
request(Bytes) ->
    Socket = connect(),
    ok = send(Socket, Bytes),
    Socket.

-spec status(gen_tcp:socket()) -> pos_integer().
status(Socket) ->
    #{status := Status} = answer(Socket),
    Status.

-spec answer(gen_tcp:socket()) -> answer().
answer(Socket) ->
    answer(Socket, 'GET').

%% Reads the answer to a request with this method.
-spec answer(gen_tcp:socket(), atom()) -> answer().
answer(Socket, Method) ->
    ok = inet:setopts(Socket, [{packet, http_bin}, {packet_size, 65536}]),
    {ok, {http_response, Version, Status, _}} = gen_tcp:recv(Socket, 0, ?DEADLINE_MS),
    Headers = headers(Socket),
    ok = inet:setopts(Socket, [{packet, raw}]),
    {Ends, Body} = body(Socket, Method, Status, Headers),
    #{version => Version, status => Status, headers => Headers, body => Body, ends => Ends}.

headers(Socket) ->
    case gen_tcp:recv(Socket, 0, ?DEADLINE_MS) of
        {ok, {http_header, _, Name, _, Value}} when is_atom(Name) ->
            [{string:lowercase(atom_to_binary(Name)), Value} | headers(Socket)];
        {ok, {http_header, _, Name, _, Value}} ->
            [{string:lowercase(Name), Value} | headers(Socket)];
        {ok, http_eoh} ->
            []
    end.

body(_, 'HEAD', _, _) ->
    {length, <<>>};
body(_, _, Status, _) when Status < 200; Status =:= 204; Status =:= 304 ->
    {length, <<>>};
body(Socket, _, _, Headers) ->
    case [proplists:get_all_values(Name, Headers) || Name <- [<<"transfer-encoding">>, <<"content-length">>]] of
        [[<<"chunked">>], []] -> chunks(Socket, []);
        [[], [<<"0">>]] -> {length, <<>>};
        [[], [Length]] -> piece(Socket, binary_to_integer(Length));
        [[], []] -> {closed, rest(Socket)}
    end.

piece(Socket, Length) ->
    case gen_tcp:recv(Socket, Length, ?DEADLINE_MS) of
        {ok, Data} -> {length, Data};
        {error, closed} -> {cut, <<>>}
    end.

chunks(Socket, Before) ->
    ok = inet:setopts(Socket, [{packet, line}]),
    Line = gen_tcp:recv(Socket, 0, ?DEADLINE_MS),
    ok = inet:setopts(Socket, [{packet, raw}]),
    case Line of
        {ok, <<"0\r\n">>} ->
            {ok, <<"\r\n">>} = gen_tcp:recv(Socket, 2, ?DEADLINE_MS),
            {chunks, iolist_to_binary(lists:reverse(Before))};
        {ok, Size} ->
            {ok, Chunk} = gen_tcp:recv(Socket, binary_to_integer(string:trim(Size), 16), ?DEADLINE_MS),
            {ok, <<"\r\n">>} = gen_tcp:recv(Socket, 2, ?DEADLINE_MS),
            chunks(Socket, [Chunk | Before]);
        {error, closed} ->
            {cut, iolist_to_binary(lists:reverse(Before))}
    end.

%% Reads until the router closes the connection. Fails after a reset.
-spec rest(gen_tcp:socket()) -> binary().
rest(Socket) ->
    _ = inet:setopts(Socket, [{show_econnreset, true}]),
    rest(Socket, []).

rest(Socket, Before) ->
    case gen_tcp:recv(Socket, 0, ?DEADLINE_MS) of
        {ok, Data} -> rest(Socket, [Data | Before]);
        {error, closed} -> iolist_to_binary(lists:reverse(Before))
    end.

-spec reset(gen_tcp:socket()) -> ok.
reset(Socket) ->
    ok = inet:setopts(Socket, [{linger, {true, 0}}]),
    gen_tcp:close(Socket).
