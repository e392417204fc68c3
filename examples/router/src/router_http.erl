%% Reads requests and sends answers, over connections with one request each. The VM's parser, `erlang:decode_packet/3',
%% reads the lines. This module refuses what another program could read in another way.
%%
%% Requests are read whole. So a client that sends slowly does not hold a permit.
-module(router_http).

-export([read_request/1, end_to_end/1, values/2, watch/1, text/2, answer/3]).

-export_type([headers/0, request/0, answer/0]).

-type headers() :: [{LowerCaseName :: binary(), Value :: binary()}].
-type request() :: #{
    method := atom() | binary(), path := binary(), version := {1, 0 | 1}, host := router:host(), headers := headers(),
    body => binary()
}.
%% The status line, and all that follows it.
-type answer() :: {iodata(), iodata()}.

-define(LONGEST_HEAD, 32768).
-define(LONGEST_BODY, 1048576).
%% Time to read what a client still sends when it has its answer.
-define(LINGER_MS, 2000).
%% Valid for one connection only (RFC 9110, section 7.6.1).
-define(HOP_BY_HOP, [
    <<"connection">>, <<"keep-alive">>, <<"proxy-authenticate">>, <<"proxy-authorization">>, <<"proxy-connection">>,
    <<"te">>, <<"trailer">>, <<"upgrade">>
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
        {ok, Request#{body => read_body(Socket, content_length(Headers), Received, Deadline)}}
    catch
        throw:closed -> closed;
        throw:{Status, Sentence} -> {refused, text(Status, Sentence)}
    end.

read_head(Socket, Received, Deadline) ->
    case head(http_bin, Received, []) of
        more when byte_size(Received) > ?LONGEST_HEAD -> throw({431, "The head is too long"});
        more -> read_head(Socket, <<Received/binary, (read(Socket, 0, Deadline))/binary>>, Deadline);
        {[Line | Headers], Rest} -> {Line, Headers, Rest}
    end.

read_body(_Socket, Length, Received, _Deadline) when Length =< byte_size(Received) ->
    binary:part(Received, 0, Length);
read_body(Socket, Length, Received, Deadline) ->
    <<Received/binary, (read(Socket, Length - byte_size(Received), Deadline))/binary>>.

read(Socket, Length, Deadline) ->
    case gen_tcp:recv(Socket, Length, max(0, Deadline - now_ms())) of
        {ok, Data} -> Data;
        {error, _} -> throw(closed)
    end.

head(Type, Bytes, Before) ->
    case erlang:decode_packet(Type, Bytes, []) of
        {more, _} -> more;
        {ok, http_eoh, Rest} -> {lists:reverse(Before), Rest};
        {ok, {http_request, _, _, _} = Line, Rest} -> head(httph_bin, Rest, [Line]);
        {ok, {http_header, _, _, Name, Value}, Rest} -> head(httph_bin, Rest, [header(Name, Value) | Before]);
        {ok, _, _} -> throw({400, "The request is malformed"})
    end.

%% The parser accepts an empty name, and control characters and line breaks in a value. Another program could read such
%% a value as two headers.
header(Name, Value) ->
    case re:run(Value, "^[ \t]*([^\\x00-\\x08\\x0a-\\x1f\\x7f]*?)[ \t]*$", [{capture, [1], binary}, dollar_endonly]) of
        {match, [Trimmed]} when Name =/= <<>> -> {string:lowercase(Name), Trimmed};
        _ -> throw({400, "A header is malformed"})
    end.

request({http_request, Method, {abs_path, Path}, {1, _} = Version}, Headers) ->
    re:run(Path, "[\\x00-\\x20\\x7f]") =:= nomatch orelse throw({400, "The path is malformed"}),
    values(<<"expect">>, Headers) =:= [] orelse throw({417, "Expect is not supported"}),
    values(<<"transfer-encoding">>, Headers) =:= [] orelse throw({501, "Transfer-Encoding is not supported"}),
    Host = host(values(<<"host">>, Headers)),
    #{method => Method, path => Path, version => Version, host => Host, headers => Headers};
request({http_request, _Method, _Target, {1, _}}, _Headers) ->
    throw({400, "The request must have a path of this host"});
request(_Line, _Headers) ->
    throw({505, "Only HTTP/1.1 and 1.0 are supported"}).

host(Hosts) ->
    case [re:run(Host, "^([A-Za-z0-9_.-]+)(:[0-9]*)?$", [{capture, [1], binary}, dollar_endonly]) || Host <- Hosts] of
        [{match, [Name]}] -> string:lowercase(Name);
        _ -> throw({400, "A request must have one valid Host"})
    end.

%% Several lengths, and a length with a sign, are wrong: programs read them in different ways.
content_length(Headers) ->
    case [{Value, re:run(Value, "^[0-9]+$", [dollar_endonly])} || Value <- values(<<"content-length">>, Headers)] of
        [] -> 0;
        [{Length, {match, _}}] -> at_most(?LONGEST_BODY, binary_to_integer(Length));
        _ -> throw({400, "A request must have one valid length"})
    end.

at_most(Most, Length) ->
    Length =< Most orelse throw({413, "The body is too long"}),
    Length.

%% The headers that are not hop-by-hop. `Connection' cannot name the one that identifies the app.
-spec end_to_end(headers()) -> headers().
end_to_end(Headers) ->
    Named = [string:lexemes(string:lowercase(Value), ", \t") || Value <- values(<<"connection">>, Headers)],
    Dropped = ?HOP_BY_HOP ++ lists:append(Named) -- [<<"host">>],
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

%% An answer of the router itself. It has no body, so it is valid for every method.
-spec text(Status :: 200..999, Sentence :: iodata()) -> answer().
text(Status, Sentence) ->
    {["HTTP/1.1 ", integer_to_list(Status), " ", Sentence], "Content-Length: 0\r\n\r\n"}.

%% Sends the answer with these headers, and closes the connection. Reads what the client still sends: otherwise the
%% connection would be reset, and the client could lose the answer (RFC 9112, section 9.6).
-spec answer(gen_tcp:socket(), [{iodata(), iodata()}], answer()) -> ok.
answer(Socket, Headers, {StatusLine, Rest}) ->
    _ = inet:setopts(Socket, [{active, false}]),
    Lines = [[Name, ": ", Value, "\r\n"] || {Name, Value} <- [{"Connection", "close"} | Headers]],
    _ = gen_tcp:send(Socket, [StatusLine, "\r\n", Lines, Rest]),
    _ = gen_tcp:shutdown(Socket, write),
    linger(Socket, now_ms() + ?LINGER_MS).

linger(Socket, Deadline) ->
    case gen_tcp:recv(Socket, 0, max(0, Deadline - now_ms())) of
        {ok, _} -> linger(Socket, Deadline);
        {error, _} -> gen_tcp:close(Socket)
    end.

now_ms() ->
    erlang:monotonic_time(millisecond).
