%% The archives of the native libraries, which `make dist' makes. build.escript compiles and loads this module if it
%% installs from an archive.
%%
%% An archive is used only if its SHA-256 is that in a checksum.term, under its name. For the archive of a release, that
%% is the checksum.term of the sources. For another archive it is the one beside it, which `make dist' writes.
%%
%% An archive of a release comes from an https:// or http:// address without the name of the file, or from a folder. A
%% downloaded archive is stored in the user's cache; later builds check it again and download nothing.
%%
%% Environment:
%%   CARGO_BUILD_TARGET                 Rust's name of the target; by default, that of the running VM
%%   CANAL_LOCK_PRECOMPILED_TIMEOUT_MS  the time limit of a download; by default 120000
%%   HTTPS_PROXY, HTTP_PROXY, NO_PROXY  the proxy, and the hosts without one; also in lower case
-module(archive).

-export([libraries/4]).

-define(TIMEOUT_MS, "120000").

%% The bytes of these libraries. The errors are for build.escript, which prints them.
-spec libraries(own | release, From :: string(), [Package], Root :: string()) -> [{Package, binary()}] when
    Package :: string().
libraries(Kind, From, Packages, Root) ->
    {ok, [{application, canal_lock, Keys}]} = file:consult(filename:join([Root, "src", "canal_lock.app.src"])),
    App = "canal_lock-" ++ proplists:get_value(vsn, Keys),
    {Source, Bytes} = verified(Kind, From, App, Root),
    %% In memory, so that paths in the archive cannot write files.
    {ok, Entries} = erl_tar:extract({binary, Bytes}, [compressed, memory]),
    [{Package, entry(Source, Entries, App ++ "/priv/" ++ Package ++ ".so")} || Package <- Packages].

entry(Source, Entries, Name) ->
    case lists:keyfind(Name, 1, Entries) of
        {Name, Bytes} -> Bytes;
        false -> stop("~ts does not contain ~ts.", [Source, Name])
    end.

-spec stop(string(), [term()]) -> no_return().
stop(Format, Values) ->
    throw({sentence, Format, Values}).

%% Where the archive is from, and its bytes.
verified(own, Path, App, _) ->
    %% A dependency is built in another working directory than that of the user.
    filename:pathtype(Path) =:= absolute orelse stop("CANAL_LOCK_ARCHIVE must be an absolute path, got: ~ts.", [Path]),
    Name = filename:basename(Path),
    lists:prefix(App ++ "-", Name) orelse
        stop("CANAL_LOCK_ARCHIVE: these sources are ~ts, but ~ts is no archive of them.", [App, Path]),
    {Path, in_file(Path, sum(filename:join(filename:dirname(Path), "checksum.term"), Name))};
verified(release, Address, App, Root) ->
    Name = App ++ "-" ++ target() ++ ".tar.gz",
    Sum = sum(filename:join(Root, "checksum.term"), Name),
    case {string:find(Address, "://"), filename:pathtype(Address)} of
        {nomatch, absolute} ->
            Path = filename:join(Address, Name),
            {Path, in_file(Path, Sum)};
        {nomatch, _} ->
            stop("CANAL_LOCK_PRECOMPILED_URL must be an address or the absolute path of a folder, got: ~ts.",
                 [Address]);
        _ ->
            Url = string:trim(Address, trailing, "/") ++ "/" ++ Name,
            {without_password(Url), downloaded(Url, Name, Sum)}
    end.

%% Rust's name of this VM's kind of machine. The VM's own is that of the C compiler, as "x86_64-pc-linux-gnu".
target() ->
    Architecture = erlang:system_info(system_architecture),
    case {os:getenv("CARGO_BUILD_TARGET", ""), string:lexemes(Architecture, "-")} of
        {[_ | _] = Given, _} -> Given;
        {"", [Machine | System]} -> machine(Machine) ++ "-" ++ system(lists:last(System), Architecture)
    end.

machine("amd64") -> "x86_64";
machine("arm64") -> "aarch64";
machine("arm") -> "aarch64";
machine(Other) -> Other.

system("gnu", _) -> "unknown-linux-gnu";
system("musl", _) -> "unknown-linux-musl";
system("darwin" ++ _, _) -> "apple-darwin";
system(_, Architecture) -> Architecture.

%%% Checksums

sum(File, Name) ->
    Sums = must("read", File, file:consult(File)),
    case {lists:keyfind(Name, 1, Sums), Sums} of
        {{Name, Sum}, _} ->
            Sum;
        {false, []} ->
            stop("there is no ~ts: ~ts is empty, because these sources are not a release. ~ts", [Name, File, remedy()]);
        {false, _} ->
            Names = lists:join(", ", [Other || {Other, _} <- Sums]),
            stop("there is no ~ts: ~ts has only ~ts. ~ts", [Name, File, Names, remedy()])
    end.

remedy() ->
    "To build from source, install Rust and set CANAL_LOCK_PRECOMPILED_URL to none.".

in_file(Path, Sum) ->
    verify(Path, must("read", Path, file:read_file(Path)), Sum).

verify(Source, Bytes, Sum) ->
    case sha256(Bytes) of
        Sum -> Bytes;
        Found -> stop("~ts has the wrong checksum: expected ~ts, got ~ts. It is not installed.", [Source, Sum, Found])
    end.

sha256(Bytes) ->
    start(crypto),
    lists:flatten([io_lib:format("~2.16.0b", [Byte]) || <<Byte>> <= crypto:hash(sha256, Bytes)]).

%% Minimal installations of Erlang lack some applications.
start(Application) ->
    case application:ensure_all_started(Application) of
        {ok, _} -> ok;
        {error, _} -> stop("an archive needs Erlang's application ~s, which this Erlang lacks: install it.",
                           [Application])
    end.

%%% Downloads

downloaded(Url, Name, Sum) ->
    Cached = filename:join([filename:basedir(user_cache, "canal_lock"), Sum, Name]),
    case [Bytes || {ok, Bytes} <- [file:read_file(Cached)], sha256(Bytes) =:= Sum] of
        [Bytes] -> Bytes;
        [] -> store(Cached, verify(without_password(Url), download(Url), Sum))
    end.

%% By rename, because another build may store or read the same file.
store(File, Bytes) ->
    Temporary = File ++ "." ++ os:getpid() ++ ".tmp",
    must("make the folder of", File, filelib:ensure_dir(File)),
    must("write", Temporary, file:write_file(Temporary, Bytes)),
    must("write", File, file:rename(Temporary, File)),
    Bytes.

download(Url) ->
    %% It would write to standard output.
    ok = logger:set_primary_config(level, none),
    [start(Application) || Application <- [inets, ssl]],
    Timeout_ms = timeout_ms(),
    Options = [{timeout, Timeout_ms}, {connect_timeout, Timeout_ms}, {ssl, tls(Url)} | proxy(Url)],
    case httpc:request(get, {Url, []}, Options, [{body_format, binary}]) of
        {ok, {{_, 200, _}, _, Bytes}} -> Bytes;
        {ok, {{_, Status, Phrase}, _, _}} ->
            stop("cannot download ~ts: the server answered ~b ~ts.", [without_password(Url), Status, Phrase]);
        {error, Reason} ->
            stop("cannot download ~ts: ~ts.", [without_password(Url), reason(Reason)])
    end.

without_password(Url) ->
    re:replace(Url, "://[^/@]*@", "://", [{return, list}]).

timeout_ms() ->
    Text = os:getenv("CANAL_LOCK_PRECOMPILED_TIMEOUT_MS", ?TIMEOUT_MS),
    case string:to_integer(Text) of
        {Timeout_ms, ""} when Timeout_ms > 0 -> Timeout_ms;
        _ -> stop("CANAL_LOCK_PRECOMPILED_TIMEOUT_MS must be a number of milliseconds, got: ~ts.", [Text])
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

%% Sets the proxy of the environment. Returns the options of the request: the user name and password for the proxy.
proxy(Url) ->
    {Name, Option} = case Url of "https" ++ _ -> {"HTTPS_PROXY", https_proxy}; _ -> {"HTTP_PROXY", proxy} end,
    Value = variable(Name),
    Address = case string:find(Value, "://") of nomatch -> "http://" ++ Value; _ -> Value end,
    case uri_string:parse(Address) of
        _ when Value =:= "" ->
            [];
        #{host := [_ | _] = Host} = Parts ->
            %% A host with its subdomains.
            Direct = [Form || Other <- string:lexemes(variable("NO_PROXY"), ", "),
                              Bare <- [string:trim(Other, leading, "*.")], Form <- [Bare, "*." ++ Bare]],
            ok = httpc:set_options([{Option, {{Host, maps:get(port, Parts, 80)}, Direct}}]),
            [{proxy_auth, {uri_string:percent_decode(Login), uri_string:percent_decode(lists:append(Password))}}
             || #{userinfo := User} <- [Parts], [Login | Password] <- [string:split(User, ":")]];
        _ ->
            stop("the environment variable ~ts is not the address of a proxy.", [Name])
    end.

variable(Name) ->
    os:getenv(string:lowercase(Name), os:getenv(Name, "")).

%% The details of a failed connection contain the options, with all certificates.
reason({failed_connect, Details}) ->
    case [Reason || {_, _, Reason} <- Details] of
        [{tls_alert, {_, Text}} | _] -> ["TLS: ", string:trim(Text)];
        [timeout | _] -> reason(timeout);
        [Reason | _] when is_atom(Reason) -> inet:format_error(Reason);
        Reasons -> io_lib:format("~0tP", [Reasons, 20])
    end;
reason(timeout) ->
    "it took too long";
reason(Closed) when Closed =:= socket_closed_remotely; Closed =:= {shutdown, server_closed} ->
    "the server closed the connection";
reason(Reason) ->
    io_lib:format("~0tP", [Reason, 20]).

must(_, _, ok) -> ok;
must(_, _, {ok, Value}) -> Value;
must(What, Path, {error, Reason}) -> stop("cannot ~ts ~ts: ~ts.", [What, Path, file:format_error(Reason)]).
