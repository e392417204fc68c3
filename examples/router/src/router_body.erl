%% Reads the body of a request. The whole body is read before the request needs a permit, so that a slow client does not
%% occupy one.
%%
%% This module replaces mochiweb's reader, which ignores the body if there are two lengths (and then reads it as the
%% next request), crashes on a chunk without a size, and reads an unlimited number of trailers.
-module(router_body).

-export([read/2]).

%% Longer bodies are refused.
-define(LONGEST, 1024 * 1024).
%% For the whole body.
-define(READ_MS, 60000).
-define(MOST_TRAILERS, 100).

-record(reading, {client :: router_client:client(), deadline :: integer(), left = ?LONGEST :: integer()}).

%% Exits the process if the client does not send the whole body in time.
-spec read(router_client:client(), router_headers:headers()) -> {ok, binary()} | {error, malformed | too_long}.
read(Client, Headers) ->
    Reading = #reading{client = Client, deadline = erlang:monotonic_time(millisecond) + ?READ_MS},
    Codings = [string:lowercase(Coding) || Coding <- router_headers:values("transfer-encoding", Headers)],
    %% A request with both a length and chunks is ambiguous (RFC 9112, section 6.1).
    case {router_headers:body_length(Headers), Codings} of
        {none, []} ->
            {ok, <<>>};
        {0, []} ->
            {ok, <<>>};
        {Length, []} when is_integer(Length), Length =< ?LONGEST ->
            ok = continue(Client, Headers),
            {ok, bytes(Length, Reading)};
        {Length, []} when is_integer(Length) ->
            {error, too_long};
        {none, ["chunked"]} ->
            ok = continue(Client, Headers),
            chunks(Reading, []);
        _ ->
            {error, malformed}
    end.

%% Some clients wait for this before they send the body.
continue(Client, Headers) ->
    Expected = [string:lowercase(Value) || Value <- router_headers:values("expect", Headers)],
    case mochiweb_request:get(version, Client) >= {1, 1} andalso lists:member("100-continue", Expected) of
        true -> mochiweb_request:send(<<"HTTP/1.1 100 Continue\r\n\r\n">>, Client);
        false -> ok
    end.

chunks(#reading{left = Left} = Reading, Chunks) ->
    case size_of_chunk(line(Reading)) of
        0 -> trailers(Reading, ?MOST_TRAILERS, Chunks);
        Size when is_integer(Size), Size =< Left -> chunk(Reading, Size, Chunks);
        Size when is_integer(Size) -> {error, too_long};
        wrong -> {error, malformed}
    end.

chunk(#reading{left = Left} = Reading, Size, Chunks) ->
    case bytes(Size + 2, Reading) of
        <<Chunk:Size/binary, "\r\n">> -> chunks(Reading#reading{left = Left - Size}, [Chunk | Chunks]);
        _ -> {error, malformed}
    end.

%% Trailers are dropped, which RFC 9112 allows (section 7.1.2).
trailers(_Reading, 0, _Chunks) ->
    {error, too_long};
trailers(Reading, Most, Chunks) ->
    case line(Reading) of
        <<"\r\n">> -> {ok, iolist_to_binary(lists:reverse(Chunks))};
        _ -> trailers(Reading, Most - 1, Chunks)
    end.

%% Chunk extensions after the size are ignored.
size_of_chunk(Line) ->
    case re:run(Line, "^([0-9A-Fa-f]{1,8})[ \t]*(;[^\r\n]*)?\r\n$", [{capture, [1], binary}, dollar_endonly]) of
        {match, [Size]} -> binary_to_integer(Size, 16);
        nomatch -> wrong
    end.

%% A line longer than the socket's buffer is returned without its end.
line(#reading{client = Client} = Reading) ->
    _ = inet:setopts(router_client:socket(Client), [{packet, line}]),
    Line = bytes(0, Reading),
    _ = inet:setopts(router_client:socket(Client), [{packet, raw}]),
    Line.

bytes(Length, #reading{client = Client, deadline = Deadline}) ->
    mochiweb_request:recv(Length, max(0, Deadline - erlang:monotonic_time(millisecond)), Client).
