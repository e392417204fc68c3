%% The client side of an exchange: reads the request, sends the answer, and detects a disconnect.
-module(router_client).

-export([host/1, peer/1, read/1, request_line/1, headers/1, is_head/1]).
-export([socket/1, watch/1, unwatch/1, close/1]).
-export([answer/3, refuse/3, begin_answer/4, send/2, end_answer/1]).

-export_type([client/0, answer/0]).

-type client() :: term().
%% A request as mochiweb has read it.

-opaque answer() :: {plain, client()} | {chunked, Response :: term()}.
%% An answer whose head has been sent.

%% Time to read what a client still sends when the router closes its connection.
-define(LINGER_MS, 2000).

-spec host(client()) -> router_apps:host().
host(Client) ->
    case mochiweb_request:get_header_value("host", Client) of
        undefined -> <<>>;
        Host -> list_to_binary(string:lowercase(hd(string:split(Host, ":"))))
    end.

%% The address of the peer of this connection.
-spec peer(client()) -> string().
peer(Client) ->
    case inet:peername(socket(Client)) of
        {ok, {Address, _Port}} -> inet:ntoa(Address);
        {error, _} -> "unknown"
    end.

%% Returns the body, or the reason to refuse the request.
-spec read(client()) -> {ok, binary()} | {error, malformed | too_long}.
read(Client) ->
    %% Otherwise a client that does not read its answer would occupy a dyno without limit.
    {ok, Answer_ms} = application:get_env(router, answer_ms),
    _ = inet:setopts(socket(Client), [{send_timeout, Answer_ms}, {send_timeout_close, true}]),
    Headers = headers(Client),
    Sound = [
        %% No tunnels.
        mochiweb_request:get(method, Client) =/= "CONNECT",
        is_path(mochiweb_request:get(raw_path, Client)),
        router_headers:are_sound(Headers),
        %% mochiweb joins two Host headers with a comma, and the dyno might use the other one.
        not lists:any(fun(Host) -> lists:member($,, Host) end, router_headers:values("host", Headers))
    ],
    case lists:member(false, Sound) of
        true -> {error, malformed};
        false -> router_body:read(Client, Headers)
    end.

%% A path of this host, without a character that would end the request line.
is_path("/" ++ _ = Path) -> not router_headers:has_control_character(Path);
is_path(Path) -> Path =:= "*".

%% In HTTP/1.0, so that the answer needs no framing of its own.
-spec request_line(client()) -> iodata().
request_line(Client) ->
    Method = mochiweb_request:get(method, Client),
    [io_lib:format("~s", [Method]), " ", mochiweb_request:get(raw_path, Client), " HTTP/1.0\r\n"].

-spec headers(client()) -> router_headers:headers().
headers(Client) ->
    router_headers:normal(mochiweb_headers:to_list(mochiweb_request:get(headers, Client))).

-spec is_head(client()) -> boolean().
is_head(Client) ->
    mochiweb_request:get(method, Client) =:= 'HEAD'.

-spec socket(client()) -> gen_tcp:socket().
socket(Client) ->
    mochiweb_request:get(socket, Client).

%% Makes the process receive `{tcp_closed, socket(Client)}' (or `tcp_error') when the client disconnects. A client that
%% closes only its sending half counts as disconnected, as with most proxies.
-spec watch(client()) -> ok.
watch(Client) ->
    case inet:setopts(socket(Client), [{active, once}]) of
        ok ->
            ok;
        {error, _} ->
            self() ! {tcp_closed, socket(Client)},
            ok
    end.

%% Ends the watch. If the client has already sent its next request, the router has received the start of it as
%% `{tcp, socket(Client), _}'. The connection must then be closed after the answer, and the client sends the request
%% again (RFC 9112, section 9.3.2). It must also be closed if the client has disconnected.
-spec unwatch(client()) -> next | close.
unwatch(Client) ->
    Socket = socket(Client),
    _ = inet:setopts(Socket, [{active, false}]),
    receive
        {tcp, Socket, _} -> close;
        {tcp_closed, Socket} -> close;
        {tcp_error, Socket, _} -> close
    after 0 -> next
    end.

%% Closes the connection and exits the process. Reads what the client still sends: otherwise the connection would be
%% reset, and the client could lose part of the answer (RFC 9112, section 9.6).
-spec close(client()) -> no_return().
close(Client) ->
    _ = inet:setopts(socket(Client), [{active, false}]),
    _ = gen_tcp:shutdown(socket(Client), write),
    ok = linger(socket(Client), erlang:monotonic_time(millisecond) + ?LINGER_MS),
    ok = gen_tcp:close(socket(Client)),
    exit(normal).

linger(Socket, Deadline) ->
    case gen_tcp:recv(Socket, 0, max(0, Deadline - erlang:monotonic_time(millisecond))) of
        {ok, _} -> linger(Socket, Deadline);
        {error, _} -> ok
    end.

%% Sends a whole answer of the router itself.
-spec answer(client(), Status :: 100..999, {Reason :: string(), Sentence :: iodata()}) -> ok.
answer(Client, Status, {Reason, Sentence}) ->
    Headers = [{"Server", "router"}, {"Content-Type", "text/plain"}, {"X-Router-Reason", Reason}],
    _ = mochiweb_request:respond({Status, Headers, [Sentence, $\n]}, Client),
    ok.

%% Answers a request whose body has not been read, and closes the connection.
-spec refuse(client(), Status :: 400..499, {Reason :: string(), Sentence :: iodata()}) -> no_return().
refuse(Client, Status, Reason) ->
    %% Without the client's headers, because mochiweb cannot interpret all of them.
    [Method, Path, Version] = [mochiweb_request:get(What, Client) || What <- [method, raw_path, version]],
    Headers = mochiweb_headers:make([{"Connection", "close"}]),
    ok = answer(mochiweb_request:new(socket(Client), Method, Path, Version, Headers), Status, Reason),
    close(Client).

%% Sends the head of a dyno's answer. `chunked': the length of the body is unknown. Its end is marked by the last chunk
%% or, for HTTP/1.0 clients, by the end of the connection.
-spec begin_answer(client(), Status :: 100..999, router_headers:headers(), chunked | plain) ->
    {ok, answer()} | disconnected.
begin_answer(Client, Status, Headers, Framing) ->
    %% Without it mochiweb adds its own name.
    Named = Headers ++ [{"Server", "router"} || router_headers:values("server", Headers) =:= []],
    present(fun() ->
        case Framing of
            chunked ->
                {ok, {chunked, mochiweb_request:respond({Status, Named, chunked}, Client)}};
            plain ->
                _ = mochiweb_request:start_response({Status, Named}, Client),
                {ok, {plain, Client}}
        end
    end).

-spec send(answer(), binary()) -> ok | disconnected.
send(_Answer, <<>>) ->
    ok;
send({plain, Client}, Data) ->
    present(fun() -> mochiweb_request:send(Data, Client) end);
send({chunked, Response}, Data) ->
    present(fun() -> ok(mochiweb_response:write_chunk(Data, Response)) end).

-spec end_answer(answer()) -> ok | disconnected.
end_answer({plain, _Client}) ->
    ok;
end_answer({chunked, Response}) ->
    %% mochiweb sends an empty chunk as the last one.
    present(fun() -> ok(mochiweb_response:write_chunk(<<>>, Response)) end).

%% mochiweb exits the process when it cannot send, with a reason that depends on its version. The router must first
%% release the dyno.
present(Send) ->
    try
        Send()
    catch
        exit:_ -> disconnected
    end.

ok(_) -> ok.
