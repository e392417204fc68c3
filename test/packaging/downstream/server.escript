#!/usr/bin/env escript
%% A server of archives on loopback, with faults. Prints its ports, those of http and https.
%%
%%     escript server.escript FOLDER
%%
%% The first part of the path selects the behavior; the last one is a file in the folder:
%%
%%   /files/FILE     sends the file
%%   /moved/FILE     redirects to /files/FILE
%%   /secure/FILE    redirects to the https port
%%   /missing/FILE   answers 404
%%   /cut/FILE       sends half of the file and closes the connection
%%   /damaged/FILE   sends the file with one more byte
%%   /hang/FILE      reads the request and never answers
%%
%% It also works as a proxy. The host of a request does not matter: it sends its own file, or connects to its https
%% port. That port has a certificate that no system trusts.

main([Folder]) ->
    {ok, _} = application:ensure_all_started(ssl),
    {ok, Plain} = gen_tcp:listen(0, options()),
    {ok, Secure} = ssl:listen(0, certificate() ++ options()),
    {ok, PlainPort} = inet:port(Plain),
    {ok, {_, SecurePort}} = ssl:sockname(Secure),
    io:format("~b ~b~n", [PlainPort, SecurePort]),
    spawn_link(fun() -> accept_secure(Secure) end),
    accept(Plain, {Folder, SecurePort}).

options() ->
    [binary, {ip, {127, 0, 0, 1}}, {active, false}, {packet, http_bin}, {reuseaddr, true}].

certificate() ->
    Key = [{digest, sha256}, {key, {namedCurve, {1, 2, 840, 10045, 3, 1, 7}}}],
    Chain = #{root => Key, intermediates => [], peer => Key},
    #{server_config := Config} = public_key:pkix_test_data(#{server_chain => Chain, client_chain => Chain}),
    Config.

accept_secure(Listening) ->
    {ok, Socket} = ssl:transport_accept(Listening),
    _ = ssl:handshake(Socket),
    accept_secure(Listening).

accept(Listening, Served) ->
    {ok, Socket} = gen_tcp:accept(Listening),
    Pid = spawn(fun() -> receive owner -> serve(Socket, Served) end end),
    ok = gen_tcp:controlling_process(Socket, Pid),
    Pid ! owner,
    accept(Listening, Served).

serve(Socket, Served) ->
    {ok, {http_request, Method, Uri, _}} = gen_tcp:recv(Socket, 0),
    ok = skip_headers(Socket),
    case Method of
        'GET' ->
            ["/", Behavior, File] = filename:split(path(Uri)),
            respond(Behavior, File, Served, Socket);
        <<"CONNECT">> ->
            connect(Socket, element(2, Served))
    end,
    gen_tcp:close(Socket).

connect(Socket, Port) ->
    {ok, Other} = gen_tcp:connect({127, 0, 0, 1}, Port, [binary, {active, true}]),
    ok = gen_tcp:send(Socket, "HTTP/1.1 200 Connection established\r\n\r\n"),
    ok = inet:setopts(Socket, [{packet, raw}, {active, true}]),
    relay(Socket, Other).

relay(One, Other) ->
    receive
        {tcp, One, Data} -> gen_tcp:send(Other, Data), relay(One, Other);
        {tcp, Other, Data} -> gen_tcp:send(One, Data), relay(One, Other);
        {tcp_closed, _} -> ok
    end.

path({abs_path, Path}) -> binary_to_list(Path);
path({absoluteURI, _, _, _, Path}) -> binary_to_list(Path).

skip_headers(Socket) ->
    case gen_tcp:recv(Socket, 0) of
        {ok, http_eoh} -> ok;
        {ok, _} -> skip_headers(Socket)
    end.

respond("files", File, {Folder, _}, Socket) ->
    {ok, Bytes} = file:read_file(filename:join(Folder, File)),
    send(Socket, "200 OK", "", Bytes, Bytes);
respond("moved", File, _, Socket) ->
    send(Socket, "302 Found", ["Location: /files/", File, "\r\n"], "", "");
respond("secure", File, {_, Port}, Socket) ->
    Location = ["Location: https://127.0.0.1:", integer_to_list(Port), "/", File, "\r\n"],
    send(Socket, "302 Found", Location, "", "");
respond("missing", _, _, Socket) ->
    send(Socket, "404 Not Found", "", "", "");
respond("cut", File, {Folder, _}, Socket) ->
    {ok, Bytes} = file:read_file(filename:join(Folder, File)),
    send(Socket, "200 OK", "", Bytes, binary:part(Bytes, 0, byte_size(Bytes) div 2));
respond("damaged", File, {Folder, _}, Socket) ->
    {ok, Bytes} = file:read_file(filename:join(Folder, File)),
    send(Socket, "200 OK", "", [Bytes, 0], [Bytes, 0]);
respond("hang", _, _, Socket) ->
    ok = inet:setopts(Socket, [{packet, raw}]),
    gen_tcp:recv(Socket, 0).

send(Socket, Status, Headers, Body, Sent) ->
    Length = integer_to_list(iolist_size(Body)),
    Head = ["HTTP/1.1 ", Status, "\r\n", Headers, "Content-Length: ", Length, "\r\nConnection: close\r\n\r\n"],
    ok = gen_tcp:send(Socket, [Head, Sent]).
