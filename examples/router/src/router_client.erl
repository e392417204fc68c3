%% The side of the client: what it asks for, how it is answered, and whether it is still there.
-module(router_client).

-export([host/1, peer/1, read/1, request_line/1, headers/1, is_head/1]).
-export([socket/1, watch/1, unwatch/1, close/1]).
-export([answer/3, refuse/3, begin_answer/4, send/2, end_answer/1]).

-export_type([client/0, answer/0]).

-type client() :: term().
%% A request as mochiweb has read it.

-opaque answer() :: {plain, client()} | {chunked, Response :: term()}.
%% One that has begun.

%% For what a client still sends when its connection is to end.
-define(LINGER_MS, 2000).

-spec host(client()) -> router_apps:host().
host(Client) ->
    case mochiweb_request:get_header_value("host", Client) of
        undefined -> <<>>;
        Host -> list_to_binary(string:lowercase(hd(string:split(Host, ":"))))
    end.

%% Its address, as far as this connection tells.
-spec peer(client()) -> string().
peer(Client) ->
    case inet:peername(socket(Client)) of
        {ok, {Address, _Port}} -> inet:ntoa(Address);
        {error, _} -> "unknown"
    end.

%% The body; or why there is none to go on with.
-spec read(client()) -> {ok, binary()} | {error, malformed | too_long}.
read(Client) ->
    %% Who does not take its answer would otherwise keep a dyno for ever.
    {ok, Answer_ms} = application:get_env(router, answer_ms),
    _ = inet:setopts(socket(Client), [{send_timeout, Answer_ms}, {send_timeout_close, true}]),
    Headers = headers(Client),
    Sound = [
        %% No tunnels.
        mochiweb_request:get(method, Client) =/= "CONNECT",
        is_path(mochiweb_request:get(raw_path, Client)),
        router_headers:are_sound(Headers),
        %% mochiweb makes one of two, with a comma; and the dyno might take the other.
        not lists:any(fun(Host) -> lists:member($,, Host) end, router_headers:values("host", Headers))
    ],
    case lists:member(false, Sound) of
        true -> {error, malformed};
        false -> router_body:read(Client, Headers)
    end.

%% Of this host, and none that would end the line that it stands in.
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

%% From now on the process hears `{tcp_closed, socket(Client)}' (or `tcp_error') when the client is gone. One that
%% closes only its sending half counts as gone, as with most proxies.
-spec watch(client()) -> ok.
watch(Client) ->
    case inet:setopts(socket(Client), [{active, once}]) of
        ok ->
            ok;
        {error, _} ->
            self() ! {tcp_closed, socket(Client)},
            ok
    end.

%% Not any more. A client that has sent its next request before it had this answer has sent it to us, as
%% `{tcp, socket(Client), _}': its connection is to be closed after the answer, and it will send it again (RFC 9112,
%% section 9.3.2). So is that of one that is gone.
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

%% Ends the connection, and with it the process. What the client has sent, and sends before it knows, is read: if it
%% were not, the connection would be reset, and what it has of the answer might be lost (RFC 9112, section 9.6).
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

%% The whole answer, of the router's own.
-spec answer(client(), Status :: 100..999, {Reason :: string(), Sentence :: iodata()}) -> ok.
answer(Client, Status, {Reason, Sentence}) ->
    Headers = [{"Server", "router"}, {"Content-Type", "text/plain"}, {"X-Router-Reason", Reason}],
    _ = mochiweb_request:respond({Status, Headers, [Sentence, $\n]}, Client),
    ok.

%% The same to a request that has not been read to its end: what the client still sends is none.
-spec refuse(client(), Status :: 400..499, {Reason :: string(), Sentence :: iodata()}) -> no_return().
refuse(Client, Status, Reason) ->
    %% Without the headers, of which mochiweb would not understand all.
    [Method, Path, Version] = [mochiweb_request:get(What, Client) || What <- [method, raw_path, version]],
    Headers = mochiweb_headers:make([{"Connection", "close"}]),
    ok = answer(mochiweb_request:new(socket(Client), Method, Path, Version, Headers), Status, Reason),
    close(Client).

%% The head of a dyno's answer. `chunked' if nothing in it says how long the body is: its end is shown by chunks then,
%% or, to clients that know none, by the end of the connection.
-spec begin_answer(client(), Status :: 100..999, router_headers:headers(), chunked | plain) ->
    {ok, answer()} | gone.
begin_answer(Client, Status, Headers, Framing) ->
    %% mochiweb would name itself.
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

-spec send(answer(), binary()) -> ok | gone.
send(_Answer, <<>>) ->
    ok;
send({plain, Client}, Data) ->
    present(fun() -> mochiweb_request:send(Data, Client) end);
send({chunked, Response}, Data) ->
    present(fun() -> ok(mochiweb_response:write_chunk(Data, Response)) end).

-spec end_answer(answer()) -> ok | gone.
end_answer({plain, _Client}) ->
    ok;
end_answer({chunked, Response}) ->
    %% To mochiweb an empty chunk is the last one.
    present(fun() -> ok(mochiweb_response:write_chunk(<<>>, Response)) end).

%% mochiweb ends the process when it cannot send, by a reason that depends on its version; here something has to be
%% done before.
present(Send) ->
    try
        Send()
    catch
        exit:_ -> gone
    end.

ok(_) -> ok.
