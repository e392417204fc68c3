#!/usr/bin/env escript
%% Gets the archive of the native libraries for this machine, and prints its path.
%%
%%     escript native/precompiled.escript ADDRESS
%%
%% ADDRESS is where a release has its archives (see `make dist'): an https:// or http:// address without the name of the
%% file, or the absolute path of a folder. checksum.term of the sources has the size and the SHA-256 of each archive. An
%% archive that differs is refused. A verified archive is stored in the user's cache with its checksum beside it, and
%% later builds verify it again and download nothing. build.escript calls this file and installs from the archive.
%%
%% Standard output is the path. The exit status of a failure is 1, and standard error says why in one sentence.
%%
%% Environment:
%%   CARGO_BUILD_TARGET                 Rust's name of the target; by default, that of the running VM
%%   CANAL_LOCK_PRECOMPILED_TIMEOUT_MS  a download ends after this time without data; by default 30000
%%   HTTPS_PROXY, HTTP_PROXY, NO_PROXY  the proxy, and the hosts without one; also in lower case

-define(TRIES, 3).
-define(BEFORE_NEXT_TRY_MS, 500).
-define(TIMEOUT_MS, "30000").

main([Address]) ->
    [ok = io:setopts(Device, [{encoding, unicode}]) || Device <- [standard_io, standard_error]],
    try
        io:format("~ts~n", [archive(Address)])
    catch
        throw:{sentence, Format, Values} ->
            io:format(standard_error, "canal_lock: " ++ Format ++ "~n", Values),
            halt(1)
    end;
main(_) ->
    io:format(standard_error, "usage: escript precompiled.escript ADDRESS~n", []),
    halt(1).

-spec stop(string(), [term()]) -> no_return().
stop(Format, Values) ->
    throw({sentence, Format, Values}).

archive(Address) ->
    {Name, Size, Sum} = wanted(),
    Cached = filename:join([filename:basedir(user_cache, "canal_lock"), Sum, Name]),
    case file:read_file(Cached) of
        {ok, Bytes} when byte_size(Bytes) =:= Size -> sha256(Bytes) =:= Sum;
        _ -> false
    end orelse store(Cached, Sum, verified(Address, Name, Size, Sum)),
    Cached.

%%% Which archive

%% Its name, size and checksum.
wanted() ->
    Root = filename:dirname(filename:dirname(filename:absname(escript:script_name()))),
    check_otp(Root),
    Version = version(Root),
    Target = target(),
    Name = "canal_lock-" ++ Version ++ "-" ++ Target ++ ".tar.gz",
    Archives = checksums(filename:join(Root, "checksum.term"), Version),
    case lists:keyfind(Target, 1, Archives) of
        {Target, Size, Sum} ->
            {Name, Size, Sum};
        false ->
            stop("canal_lock ~ts has no archive for ~ts, only for ~ts: install Rust to build from source.",
                 [Version, Target, lists:join(", ", [Other || {Other, _, _} <- Archives])])
    end.

check_otp(Root) ->
    {ok, Terms} = file:consult(filename:join(Root, "rebar.config")),
    {minimum_otp_vsn, Oldest} = lists:keyfind(minimum_otp_vsn, 1, Terms),
    Found = erlang:system_info(otp_release),
    list_to_integer(Found) >= list_to_integer(Oldest) orelse
        stop("canal_lock needs Erlang/OTP ~ts or later, but this is ~ts.", [Oldest, Found]).

version(Root) ->
    {ok, [{application, canal_lock, Keys}]} = file:consult(filename:join([Root, "src", "canal_lock.app.src"])),
    {vsn, Version} = lists:keyfind(vsn, 1, Keys),
    Version.

checksums(File, Version) ->
    case file:consult(File) of
        {ok, [{Version, [_ | _] = Archives}]} ->
            Archives;
        {ok, _} ->
            stop("there are no archives of these sources, because they are not a release (~ts lists none of ~ts): "
                 "install Rust to build from source.", [File, Version]);
        {error, Reason} ->
            stop("cannot read ~ts: ~ts.", [File, file:format_error(Reason)])
    end.

%% Rust's name of this VM's kind of machine. The VM's own is that of the C compiler, as "x86_64-pc-linux-gnu".
target() ->
    Architecture = erlang:system_info(system_architecture),
    case {os:getenv("CARGO_BUILD_TARGET", ""), erlang:system_info(wordsize), string:lexemes(Architecture, "-")} of
        {[_ | _] = Given, _, _} -> Given;
        {"", 8, [Machine | System]} -> machine(Machine) ++ "-" ++ system(System, Architecture);
        {"", _, _} -> Architecture
    end.

machine("amd64") -> "x86_64";
machine("arm64") -> "aarch64";
machine("arm") -> "aarch64";
machine(Other) -> Other.

system(Parts, Architecture) ->
    case {lists:last(Parts), [Part || Part <- Parts, lists:prefix("darwin", Part)]} of
        {_, [_]} -> "apple-darwin";
        {"gnu", _} -> "unknown-linux-gnu";
        {"musl", _} -> "unknown-linux-musl";
        _ -> Architecture
    end.

%%% From where

verified(Address, Name, Size, Sum) ->
    {From, Bytes} = read(Address, Name, Size),
    case {byte_size(Bytes), sha256(Bytes)} of
        {Size, Sum} -> Bytes;
        {Size, Found} -> stop("~ts has the wrong checksum: expected ~ts, got ~ts. It is not installed.",
                              [From, Sum, Found]);
        {Other, _} -> stop("~ts has ~b bytes instead of ~b. It is not installed.", [From, Other, Size])
    end.

read(Address, Name, Size) ->
    case string:find(Address, "://") of
        nomatch ->
            filename:pathtype(Address) =:= absolute orelse
                stop("CANAL_LOCK_PRECOMPILED_URL must be an address or the absolute path of a folder, got: ~ts.",
                     [Address]),
            File = filename:join(Address, Name),
            case file:read_file(File) of
                {ok, Bytes} -> {File, Bytes};
                {error, Reason} -> stop("cannot read ~ts: ~ts.", [File, file:format_error(Reason)])
            end;
        _ ->
            Url = string:trim(Address, trailing, "/") ++ "/" ++ Name,
            start_http(),
            {Url, download(Url, Size, ?TRIES)}
    end.

start_http() ->
    [case application:ensure_all_started(Application) of
         {ok, _} -> ok;
         {error, _} -> stop("a download needs Erlang's application ~s, which this Erlang lacks: install it, or "
                            "download the archive and set CANAL_LOCK_PRECOMPILED_URL to its folder.", [Application])
     end || Application <- [inets, ssl]],
    Hosts = lists:append([["*" ++ string:trim(Host, leading, "*"), string:trim(Host, leading, "*.")]
                          || Host <- string:lexemes(variable("NO_PROXY"), ", ")]),
    [ok = httpc:set_options([{Option, {proxy(Address), Hosts}}])
     || {Option, Name} <- [{https_proxy, "HTTPS_PROXY"}, {proxy, "HTTP_PROXY"}],
        Address <- [variable(Name)], Address =/= ""].

variable(Name) ->
    os:getenv(string:lowercase(Name), os:getenv(Name, "")).

proxy(Address) ->
    case uri_string:parse(Address) of
        #{host := Host, port := Port} -> {Host, Port};
        #{host := Host, scheme := "https"} -> {Host, 443};
        #{host := Host} -> {Host, 80};
        _ -> stop("the proxy ~ts of the environment is not an address.", [Address])
    end.

%% A failure that may pass is tried again.
download(Url, Size, Tries) ->
    case answer(Url, Size) of
        {ok, Bytes} ->
            Bytes;
        {passing, _} when Tries > 1 ->
            timer:sleep(?BEFORE_NEXT_TRY_MS),
            download(Url, Size, Tries - 1);
        {passing, Why} ->
            stop("cannot download ~ts: ~ts (tried ~b times).", [Url, Why, ?TRIES]);
        {lasting, Why} ->
            stop("cannot download ~ts: ~ts.", [Url, Why])
    end.

answer(Url, Size) ->
    Timeout_ms = list_to_integer(os:getenv("CANAL_LOCK_PRECOMPILED_TIMEOUT_MS", ?TIMEOUT_MS)),
    HttpOptions = [{connect_timeout, Timeout_ms}, {ssl, tls(Url)} | proxy_auth(Url)],
    Options = [{sync, false}, {stream, self}, {body_format, binary}],
    case httpc:request(get, {Url, []}, HttpOptions, Options) of
        {ok, Request} ->
            Answer = parts(Request, Size, Timeout_ms, []),
            ok = httpc:cancel_request(Request),
            Answer;
        {error, Reason} ->
            {lasting, reason(Reason)}
    end.

%% The timeout is for each part, so a slow connection is no error. An archive that is too long is cut.
parts(Request, Size, Timeout_ms, Parts) ->
    receive
        {http, {Request, stream_start, _}} ->
            parts(Request, Size, Timeout_ms, Parts);
        {http, {Request, stream, Part}} when byte_size(Part) =< Size ->
            parts(Request, Size - byte_size(Part), Timeout_ms, [Parts, Part]);
        {http, {Request, stream, Part}} ->
            {ok, iolist_to_binary([Parts, Part])};
        {http, {Request, stream_end, _}} ->
            {ok, iolist_to_binary(Parts)};
        {http, {Request, {{_, Status, Phrase}, _, _}}} ->
            Why = io_lib:format("the server answered ~b ~ts", [Status, Phrase]),
            {case Status >= 500 orelse Status =:= 429 of true -> passing; false -> lasting end, Why};
        {http, {Request, {error, Reason}}} ->
            {passing, reason(Reason)}
    after Timeout_ms ->
        {passing, io_lib:format("the server sent nothing for ~b ms", [Timeout_ms])}
    end.

tls("https" ++ _) ->
    Certificates =
        try
            public_key:cacerts_get()
        catch
            error:_ -> stop("this system has no certificates to verify the server with: install them (on Debian, the "
                            "package ca-certificates).", [])
        end,
    [{verify, verify_peer}, {cacerts, Certificates},
     {customize_hostname_check, [{match_fun, public_key:pkix_verify_hostname_match_fun(https)}]}];
tls(_) ->
    [].

proxy_auth(Url) ->
    Name = case Url of "https" ++ _ -> "HTTPS_PROXY"; _ -> "HTTP_PROXY" end,
    case uri_string:parse(variable(Name)) of
        #{userinfo := User} ->
            [Login | Password] = string:split(User, ":"),
            [{proxy_auth, {uri_string:percent_decode(Login), uri_string:percent_decode(lists:append(Password))}}];
        _ ->
            []
    end.

reason({failed_connect, Details}) ->
    case [Reason || {Family, _, Reason} <- Details, Family =:= inet orelse Family =:= inet6] of
        [{tls_alert, {_, Text}} | _] -> ["TLS: ", string:trim(Text)];
        [Reason | _] when is_atom(Reason) -> inet:format_error(Reason);
        _ -> io_lib:format("~0tp", [Details])
    end;
reason(Closed) when Closed =:= socket_closed_remotely; Closed =:= {shutdown, server_closed} ->
    "the server closed the connection";
reason(Reason) ->
    io_lib:format("~0tp", [Reason]).

%%% Storing

%% By rename, because another build may store or read the same file. The checksum comes first: an archive without one is
%% refused.
store(File, Sum, Bytes) ->
    must("make the folder of", File, filelib:ensure_dir(File)),
    replace(File ++ ".sha256", [Sum, "  ", filename:basename(File), "\n"]),
    replace(File, Bytes).

replace(File, Bytes) ->
    Temporary = lists:concat([File, ".", os:getpid(), ".tmp"]),
    must("write", Temporary, file:write_file(Temporary, Bytes)),
    must("write", File, file:rename(Temporary, File)).

must(_, _, ok) -> ok;
must(What, Path, {error, Reason}) -> stop("cannot ~ts ~ts: ~ts.", [What, Path, file:format_error(Reason)]).

sha256(Bytes) ->
    case code:ensure_loaded(crypto) of
        {module, _} ->
            lists:flatten([io_lib:format("~2.16.0b", [Byte]) || <<Byte>> <= crypto:hash(sha256, Bytes)]);
        {error, _} ->
            stop("a precompiled archive is verified by Erlang's application crypto, which this Erlang lacks.", [])
    end.
