%% The side of the client: what it asks for, how it is answered, and whether it is still there.
-module(router_client).

-export([host/1, read/1, request_line/1, headers/1, is_head/1]).
-export([socket/1, watch/1, unwatch/1, close/1]).
-export([answer/3, begin_answer/4, send/2, end_answer/1]).

-export_type([client/0, answer/0]).

-type client() :: term().
%% A request as mochiweb has read it.

-opaque answer() :: {plain, client()} | {chunked, Response :: term()}.
%% One that has begun.

%% Longer bodies are refused: they are read whole before anybody is asked for a permit, so that a client that sends
%% slowly keeps nobody else out.
-define(LONGEST_BODY, 1024 * 1024).

-spec host(client()) -> router_apps:host().
host(Client) ->
    case mochiweb_request:get_header_value("host", Client) of
        undefined -> <<>>;
        Host -> list_to_binary(string:lowercase(hd(string:split(Host, ":"))))
    end.

%% The body; or why there is none to go on with.
-spec read(client()) -> {ok, binary()} | {error, malformed | too_long}.
read(Client) ->
    %% Who does not take its answer would otherwise keep a dyno for ever.
    {ok, Answer_ms} = application:get_env(router, answer_ms),
    _ = inet:setopts(socket(Client), [{send_timeout, Answer_ms}, {send_timeout_close, true}]),
    Texts = [mochiweb_request:get(raw_path, Client) | [Value || {_, Value} <- headers(Client)]],
    case lists:any(fun has_control_character/1, Texts) of
        %% Taken over as it is, a line within a header would be one of ours.
        true -> {error, malformed};
        false -> read_body(Client)
    end.

read_body(Client) ->
    try mochiweb_request:recv_body(?LONGEST_BODY, Client) of
        undefined -> {ok, <<>>};
        Body -> {ok, Body}
    catch
        exit:{body_too_large, _} -> {error, too_long};
        exit:{unknown_transfer_encoding, _} -> {error, malformed}
    end.

has_control_character(Text) ->
    lists:any(fun(Character) -> Character < $\s andalso Character =/= $\t orelse Character =:= 127 end, Text).

%% In HTTP/1.0, so that the answer needs no framing of its own.
-spec request_line(client()) -> iodata().
request_line(Client) ->
    Method = mochiweb_request:get(method, Client),
    [io_lib:format("~s", [Method]), " ", mochiweb_request:get(raw_path, Client), " HTTP/1.0\r\n"].

-spec headers(client()) -> [{Name :: string(), Value :: string()}].
headers(Client) ->
    [{name(Name), Value} || {Name, Value} <- mochiweb_headers:to_list(mochiweb_request:get(headers, Client))].

name(Name) when is_atom(Name) -> atom_to_list(Name);
name(Name) -> Name.

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

%% Not any more. A client that has sent its next request before it had this answer has sent it to us: its connection is
%% to be closed after the answer, and it will send it again (RFC 9112, section 9.3.2). So is that of one that is gone.
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

%% Ends the connection, and with it the process.
-spec close(client()) -> no_return().
close(Client) ->
    ok = gen_tcp:close(socket(Client)),
    exit(normal).

%% The whole answer, of the router's own.
-spec answer(client(), Status :: 100..999, {Reason :: string(), Sentence :: iodata()}) -> ok.
answer(Client, Status, {Reason, Sentence}) ->
    Headers = [{"Server", "router"}, {"Content-Type", "text/plain"}, {"X-Router-Reason", Reason}],
    _ = mochiweb_request:respond({Status, Headers, [Sentence, $\n]}, Client),
    ok.

%% The head of a dyno's answer. `chunked' if nothing in it says how long the body is: its end is shown by chunks then,
%% or, to clients that know none, by the end of the connection.
-spec begin_answer(client(), Status :: 100..999, [{Name :: string(), Value :: string()}], chunked | plain) ->
    {ok, answer()} | gone.
begin_answer(Client, Status, Headers, chunked) ->
    present(fun() -> {ok, {chunked, mochiweb_request:respond({Status, Headers, chunked}, Client)}} end);
begin_answer(Client, Status, Headers, plain) ->
    present(fun() ->
        _ = mochiweb_request:start_response({Status, Headers}, Client),
        {ok, {plain, Client}}
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

%% mochiweb ends the process when it cannot send; here something has to be done before.
present(Send) ->
    try
        Send()
    catch
        exit:{shutdown, _} -> gone
    end.

ok(_) -> ok.
