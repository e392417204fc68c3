#!/usr/bin/env escript
%% Gets the archive of the native libraries for this machine, and prints its SHA-256 and its path.
%%
%%     escript native/precompiled.escript ADDRESS
%%
%% ADDRESS is where a release has its archives (see `make dist'): an https:// or http:// address without the name of the
%% file, or the absolute path of a folder. checksum.term of the sources has the size and the SHA-256 of each archive. An
%% archive that differs is refused. A downloaded archive is stored in the user's cache; later builds verify it again and
%% download nothing. build.escript calls this file and installs from the archive.
%%
%% Standard output is one line. The exit status of a failure is 1, and standard error says why in one sentence.
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
    %% It would write to standard output.
    ok = logger:set_primary_config(level, none),
    try
        io:format("~ts ~ts~n", archive(Address))
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
    case string:find(Address, "://") of
        nomatch -> [Sum, in_folder(Address, Name, Size, Sum)];
        _ -> [Sum, downloaded(string:trim(Address, trailing, "/") ++ "/" ++ Name, Name, Size, Sum)]
    end.

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
        {"", 8, [Machine, _ | _] = Parts} -> lists:append([machine(Machine), "-", system(tl(Parts))]);
        {"", _, _} -> Architecture
    end.

machine("amd64") -> "x86_64";
machine("arm64") -> "aarch64";
machine("arm") -> "aarch64";
machine(Other) -> Other.

system(Parts) ->
    case {lists:last(Parts), [Part || Part <- Parts, lists:prefix("darwin", Part)]} of
        {_, [_]} -> "apple-darwin";
        {"gnu", _} -> "unknown-linux-gnu";
        {"musl", _} -> "unknown-linux-musl";
        _ -> lists:append(lists:join("-", Parts))
    end.

%%% From where

in_folder(Folder, Name, Size, Sum) ->
    filename:pathtype(Folder) =:= absolute orelse
        stop("CANAL_LOCK_PRECOMPILED_URL must be an address or the absolute path of a folder, got: ~ts.", [Folder]),
    File = filename:join(Folder, Name),
    case file:read_file(File) of
        {ok, Bytes} -> verify(File, Bytes, Size, Sum), File;
        {error, Reason} -> stop("cannot read ~ts: ~ts.", [File, file:format_error(Reason)])
    end.

downloaded(Url, Name, Size, Sum) ->
    Cached = filename:join([filename:basedir(user_cache, "canal_lock"), Sum, Name]),
    case file:read_file(Cached) of
        {ok, Bytes} when byte_size(Bytes) =:= Size -> sha256(Bytes) =:= Sum;
        _ -> false
    end orelse begin
        start_http(Url),
        Downloaded = download(Url, Size, ?TRIES),
        verify(without_password(Url), Downloaded, Size, Sum),
        store(Cached, Downloaded)
    end,
    Cached.

verify(From, Bytes, Size, Sum) ->
    case {byte_size(Bytes), sha256(Bytes)} of
        {Size, Sum} -> ok;
        {Size, Found} -> stop("~ts has the wrong checksum: expected ~ts, got ~ts. It is not installed.",
                              [From, Sum, Found]);
        {Other, _} -> stop("~ts has ~b bytes instead of ~b. It is not installed.", [From, Other, Size])
    end.

start_http(Url) ->
    [case application:ensure_all_started(Application) of
         {ok, _} -> ok;
         {error, _} -> stop("a download needs Erlang's application ~s, which this Erlang lacks: install it, or "
                            "download the archive and set CANAL_LOCK_PRECOMPILED_URL to its folder.", [Application])
     end || Application <- [inets, ssl]],
    Hosts = string:lexemes(variable("NO_PROXY"), ", "),
    case {proxy_address(Url), lists:member("*", Hosts)} of
        {#{host := Host, port := Port}, false} ->
            Option = case Url of "https" ++ _ -> https_proxy; _ -> proxy end,
            %% A host with its subdomains.
            Direct = [Form || Name <- Hosts, Bare <- [string:trim(Name, leading, "*.")], Form <- [Bare, "*." ++ Bare]],
            ok = httpc:set_options([{Option, {{Host, Port}, Direct}}]);
        _ ->
            ok
    end.

variable(Name) ->
    os:getenv(string:lowercase(Name), os:getenv(Name, "")).

%% The parts of the proxy's address, with its port; `none' without a proxy.
proxy_address(Url) ->
    Name = case Url of "https" ++ _ -> "HTTPS_PROXY"; _ -> "HTTP_PROXY" end,
    Value = variable(Name),
    Address = case string:find(Value, "://") of nomatch -> "http://" ++ Value; _ -> Value end,
    case uri_string:parse(Address) of
        _ when Value =:= "" -> none;
        #{host := [_ | _], scheme := Scheme} = Parts -> maps:merge(#{port => default_port(Scheme)}, Parts);
        _ -> stop("the environment variable ~ts is not the address of a proxy.", [Name])
    end.

default_port("https") -> 443;
default_port(_) -> 80.

%% For messages.
without_password(Url) ->
    re:replace(Url, "://[^/@]*@", "://", [{return, list}]).

%% A failure that may pass is tried again.
download(Url, Size, Tries) ->
    case answer(Url, Size) of
        {ok, Bytes} ->
            Bytes;
        {passing, _} when Tries > 1 ->
            timer:sleep(?BEFORE_NEXT_TRY_MS),
            download(Url, Size, Tries - 1);
        {passing, Why} ->
            stop("cannot download ~ts: ~ts (tried ~b times).", [without_password(Url), Why, ?TRIES]);
        {lasting, Why} ->
            stop("cannot download ~ts: ~ts.", [without_password(Url), Why])
    end.

answer(Url, Size) ->
    Timeout_ms = timeout_ms(),
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

timeout_ms() ->
    Text = os:getenv("CANAL_LOCK_PRECOMPILED_TIMEOUT_MS", ?TIMEOUT_MS),
    case string:to_integer(Text) of
        {Timeout_ms, ""} when Timeout_ms > 0 -> Timeout_ms;
        _ -> stop("CANAL_LOCK_PRECOMPILED_TIMEOUT_MS must be a number of milliseconds, got: ~ts.", [Text])
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

%% Also for http, which may redirect to https.
tls(Url) ->
    Certificates =
        try
            public_key:cacerts_get()
        catch
            error:_ ->
                lists:prefix("https", Url) andalso
                    stop("this system has no certificates to verify the server with: install them (on Debian, the "
                         "package ca-certificates).", []),
                []
        end,
    [{verify, verify_peer}, {cacerts, Certificates},
     {customize_hostname_check, [{match_fun, public_key:pkix_verify_hostname_match_fun(https)}]}].

proxy_auth(Url) ->
    case proxy_address(Url) of
        #{userinfo := User} ->
            [Login | Password] = string:split(User, ":"),
            [{proxy_auth, {uri_string:percent_decode(Login), uri_string:percent_decode(lists:append(Password))}}];
        _ ->
            []
    end.

%% The details of a failed connection contain the options, with all certificates.
reason({failed_connect, Details}) ->
    case [Reason || {_, _, Reason} <- Details] of
        [{tls_alert, {_, Text}} | _] -> ["TLS: ", string:trim(Text)];
        [timeout | _] -> "the server did not accept the connection in time";
        [Reason | _] when is_atom(Reason) -> inet:format_error(Reason);
        Reasons -> io_lib:format("~0tP", [Reasons, 20])
    end;
reason(Closed) when Closed =:= socket_closed_remotely; Closed =:= {shutdown, server_closed} ->
    "the server closed the connection";
reason(Reason) ->
    io_lib:format("~0tP", [Reason, 20]).

%%% Storing

%% By rename, because another build may store or read the same file.
store(File, Bytes) ->
    Temporary = lists:concat([File, ".", os:getpid(), ".tmp"]),
    must("make the folder of", File, filelib:ensure_dir(File)),
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
