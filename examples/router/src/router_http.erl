%% Reads and writes HTTP/1.1 messages whose bodies have a Content-Length. The VM's parser, `erlang:decode_packet/3',
%% reads the lines. This module refuses what another program could read in another way.
%%
%% Messages are read whole, and each connection has one request. So a client that sends or reads slowly does not hold a
%% permit, and the process of a connection is that of its request.
-module(router_http).

-export([read_request/1, read_message/2, parse_answer/2, end_to_end/1, values/2]).
-export([watch/1, text/3, answer/3]).

-export_type([headers/0, request/0, answer/0]).

-type headers() :: [{LowerCaseName :: binary(), Value :: binary()}].
-type request() :: #{
    method := binary(), path := binary(), host := router:host(), headers := headers(), body => binary()
}.
-type answer() :: {Status :: 200..999, headers(), Body :: iodata()}.

-define(LONGEST_HEAD, 32768).
-define(LONGEST_BODY, 1048576).
%% Time to read what a client still sends when it has its answer.
-define(LINGER_MS, 2000).
%% Valid for one connection only (RFC 9110, section 7.6.1).
-define(HOP_BY_HOP, [
    <<"connection">>, <<"keep-alive">>, <<"proxy-authenticate">>, <<"proxy-authorization">>, <<"proxy-connection">>,
    <<"te">>, <<"trailer">>, <<"transfer-encoding">>, <<"upgrade">>
]).

%% `refused': the answer to a request that is not passed on. `closed': the client has closed the connection, or has not
%% sent a whole request in time.
-spec read_request(gen_tcp:socket()) -> {ok, request()} | {refused, answer()} | closed.
read_request(Socket) ->
    {ok, Read_ms} = application:get_env(router, read_ms),
    Deadline = now_ms() + Read_ms,
    try
        {Line, Headers, Received} = read_head(Socket, <<>>, Deadline),
        %% Before the body, because a client with `Expect' waits for an answer.
        Request = request(Line, Headers),
        {ok, Request#{body => read_body(Socket, Headers, Received, Deadline)}}
    catch
        throw:closed -> closed;
        throw:{Status, Sentence} -> {refused, text(Status, <<"bad-request">>, Sentence)}
    end.

%% A request as a dyno reads it. Throws `closed' or `{Status, Sentence}'.
-spec read_message(gen_tcp:socket(), Within_ms :: non_neg_integer()) -> {Line :: tuple(), headers(), Body :: binary()}.
read_message(Socket, Within_ms) ->
    Deadline = now_ms() + Within_ms,
    {Line, Headers, Received} = read_head(Socket, <<>>, Deadline),
    {Line, Headers, read_body(Socket, Headers, Received, Deadline)}.

read_head(Socket, Received, Deadline) ->
    case head(Received) of
        more when byte_size(Received) > ?LONGEST_HEAD -> throw({431, "The head is too long."});
        more -> read_head(Socket, <<Received/binary, (read(Socket, 0, Deadline))/binary>>, Deadline);
        Head -> Head
    end.

read_body(Socket, Headers, Received, Deadline) ->
    case content_length(Headers) of
        none -> <<>>;
        Length when Length > ?LONGEST_BODY -> throw({413, "The body is too long."});
        Length when Length =< byte_size(Received) -> binary:part(Received, 0, Length);
        Length -> <<Received/binary, (read(Socket, Length - byte_size(Received), Deadline))/binary>>
    end.

read(Socket, Length, Deadline) ->
    case gen_tcp:recv(Socket, Length, max(0, Deadline - now_ms())) of
        {ok, Data} -> Data;
        {error, _} -> throw(closed)
    end.

%% The whole answer to a request with this method, read until the other side closed the connection.
-spec parse_answer(binary(), Method :: binary()) -> {ok, answer()} | error.
parse_answer(Bytes, Method) ->
    try
        parse_answer_of(head(Bytes), Method)
    catch
        throw:{_Status, _Sentence} -> error
    end.

parse_answer_of({{http_response, _, Status, _}, Headers, Body}, Method) when Status >= 200, Status =< 999 ->
    Size = byte_size(Body),
    HasNoBody = Method =:= <<"HEAD">> orelse Status =:= 204 orelse Status =:= 304,
    case content_length(Headers) of
        _ when HasNoBody, Size =:= 0 -> {ok, {Status, Headers, <<>>}};
        none when not HasNoBody -> {ok, {Status, [length_of(Body) | Headers], Body}};
        Size when not HasNoBody -> {ok, {Status, Headers, Body}};
        _ -> error
    end;
parse_answer_of(_Incomplete, _Method) ->
    error.

head(Bytes) ->
    case erlang:decode_packet(http_bin, Bytes, []) of
        {more, _} -> more;
        {ok, {http_error, _}, _} -> throw({400, "The first line is not HTTP."});
        {ok, Line, Rest} -> headers(Line, Rest, [])
    end.

headers(Line, Bytes, Before) ->
    case erlang:decode_packet(httph_bin, Bytes, []) of
        {more, _} -> more;
        {ok, http_eoh, Rest} -> {Line, lists:reverse(Before), Rest};
        {ok, {http_header, _, _, Name, Value}, Rest} -> headers(Line, Rest, [header(Name, Value) | Before]);
        {ok, {http_error, _}, _} -> throw({400, "A header is malformed."})
    end.

%% The parser accepts an empty name, and control characters and line breaks in a value. Another program could read such
%% a value as two headers.
header(Name, Value) ->
    case re:run(Value, "^[ \t]*([^\\x00-\\x08\\x0a-\\x1f\\x7f]*?)[ \t]*$", [{capture, [1], binary}, dollar_endonly]) of
        {match, [Trimmed]} when Name =/= <<>> -> {string:lowercase(Name), Trimmed};
        _ -> throw({400, "A header is malformed."})
    end.

request({http_request, <<"CONNECT">>, _, _}, _Headers) ->
    throw({501, "CONNECT is not supported."});
request({http_request, Method, {abs_path, Path}, Version}, Headers) ->
    Version =:= {1, 1} orelse Version =:= {1, 0} orelse throw({505, "Only HTTP/1.1 and 1.0 are supported."}),
    re:run(Path, "[\\x00-\\x20\\x7f]") =:= nomatch orelse throw({400, "The path is malformed."}),
    values(<<"expect">>, Headers) =:= [] orelse throw({417, "Expect is not supported."}),
    #{
        method => method(Method),
        path => Path,
        host => host(values(<<"host">>, Headers)),
        headers => Headers
    };
request(_Line, _Headers) ->
    throw({400, "The request must have a path of this host."}).

method(Method) when is_atom(Method) -> atom_to_binary(Method);
method(Method) -> Method.

host([Host]) ->
    case re:run(Host, "^([A-Za-z0-9_.-]+)(:[0-9]*)?$", [{capture, [1], binary}, dollar_endonly]) of
        {match, [Name]} -> string:lowercase(Name);
        nomatch -> throw({400, "Host is malformed."})
    end;
host(_) ->
    throw({400, "A request must have one Host."}).

%% Several lengths, and a length with a sign, are wrong: programs read them in different ways.
content_length(Headers) ->
    values(<<"transfer-encoding">>, Headers) =:= [] orelse throw({501, "Transfer-Encoding is not supported."}),
    case values(<<"content-length">>, Headers) of
        [] ->
            none;
        [Length] ->
            re:run(Length, "^[0-9]+$", [dollar_endonly]) =/= nomatch orelse throw({400, "The length is malformed."}),
            binary_to_integer(Length);
        _ ->
            throw({400, "A message must have one length."})
    end.

%% The headers that are not hop-by-hop. `Connection' cannot name those that identify the app and the end of a message.
-spec end_to_end(headers()) -> headers().
end_to_end(Headers) ->
    Named = [string:lowercase(binary_to_list(Value)) || Value <- values(<<"connection">>, Headers)],
    Connection = [list_to_binary(Name) || Value <- Named, Name <- string:lexemes(Value, ", \t")],
    Dropped = ?HOP_BY_HOP ++ Connection -- [<<"host">>, <<"content-length">>],
    [Header || {Name, _} = Header <- Headers, not lists:member(Name, Dropped)].

-spec values(Name :: binary(), headers()) -> [binary()].
values(Name, Headers) ->
    [Value || {N, Value} <- Headers, N =:= Name].

%% The process gets the message `{tcp_closed, Socket}' or `{tcp_error, Socket, _}' when the client disconnects. A client
%% that closes only its sending half counts as disconnected, as with most proxies. If a client sends more than its
%% request, its disconnect is not noticed.
-spec watch(gen_tcp:socket()) -> ok.
watch(Socket) ->
    case inet:setopts(Socket, [{active, once}]) of
        ok ->
            ok;
        {error, _} ->
            self() ! {tcp_closed, Socket},
            ok
    end.

%% An answer of the router itself.
-spec text(Status :: 200..999, Reason :: binary(), Sentence :: iodata()) -> answer().
text(Status, Reason, Sentence) ->
    Body = [Sentence, $\n],
    {Status, [length_of(Body), {<<"content-type">>, <<"text/plain">>}, {<<"x-router-reason">>, Reason}], Body}.

length_of(Body) ->
    {<<"content-length">>, integer_to_binary(iolist_size(Body))}.

%% Sends the answer, with a status without words, as HTTP allows, and closes the connection. Reads what the client still
%% sends: otherwise the connection would be reset, and the client could lose the answer (RFC 9112, section 9.6).
-spec answer(gen_tcp:socket(), Method :: binary(), answer()) -> ok.
answer(Socket, Method, {Status, Headers, Body}) ->
    _ = inet:setopts(Socket, [{active, false}]),
    _ = gen_tcp:send(Socket, [
        ["HTTP/1.1 ", integer_to_list(Status), " \r\nconnection: close\r\n"],
        [[Name, ": ", Value, "\r\n"] || {Name, Value} <- Headers],
        "\r\n",
        [Body || Method =/= <<"HEAD">>]
    ]),
    _ = gen_tcp:shutdown(Socket, write),
    linger(Socket, now_ms() + ?LINGER_MS).

linger(Socket, Deadline) ->
    case gen_tcp:recv(Socket, 0, max(0, Deadline - now_ms())) of
        {ok, _} -> linger(Socket, Deadline);
        {error, _} -> gen_tcp:close(Socket)
    end.

now_ms() ->
    erlang:monotonic_time(millisecond).
