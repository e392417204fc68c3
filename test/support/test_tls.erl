%% Distribution over TLS for test nodes: creates a key and a certificate.
-module(test_tls).

-export([files/0, arguments/1, delete/1]).

%% OTP 27 refuses the short keys and the SHA-1 signatures that this function makes by default.
-define(KEY, [{digest, sha256}, {key, {namedCurve, {1, 2, 840, 10045, 3, 1, 7}}}]).

-type files() :: Folder :: file:filename().

%% Files in a new folder.
-spec files() -> files().
files() ->
    {ok, _} = application:ensure_all_started(ssl),
    Folder = filename:join(filename:basedir(user_cache, "canal_lock"), "tls-" ++ os:getpid()),
    ok = filelib:ensure_dir(filename:join(Folder, "options")),
    Chain = #{root => ?KEY, intermediates => [], peer => ?KEY},
    #{server_config := Config} = public_key:pkix_test_data(#{server_chain => Chain, client_chain => Chain}),
    {KeyType, Key} = proplists:get_value(key, Config),
    ok = write(Folder, "key.pem", [{KeyType, Key, not_encrypted}]),
    ok = write(Folder, "cert.pem", [{'Certificate', proplists:get_value(cert, Config), not_encrypted}]),
    Side = [{certfile, path(Folder, "cert.pem")}, {keyfile, path(Folder, "key.pem")}, {verify, verify_none}],
    Options = [{server, Side}, {client, Side}],
    ok = file:write_file(path(Folder, "options"), io_lib:format("~p.~n", [Options])),
    Folder.

write(Folder, Name, Entries) ->
    file:write_file(path(Folder, Name), public_key:pem_encode(Entries)).

path(Folder, Name) ->
    filename:join(Folder, Name).

%% The command-line arguments of a node.
-spec arguments(files()) -> [string()].
arguments(Folder) ->
    ["-proto_dist", "inet_tls", "-ssl_dist_optfile", path(Folder, "options")].

-spec delete(files()) -> ok.
delete(Folder) ->
    ok = file:del_dir_r(Folder).
