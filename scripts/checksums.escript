#!/usr/bin/env escript
%% Writes FOLDER/checksum.term: the version, and for each archive of this version in the folder the target, the size in
%% bytes and the SHA-256. native/precompiled.escript reads the checksum.term of the sources, which is a copy.
%%
%%     escript scripts/checksums.escript FOLDER

main([Folder]) ->
    {ok, [{application, canal_lock, Keys}]} = file:consult("src/canal_lock.app.src"),
    {vsn, Version} = lists:keyfind(vsn, 1, Keys),
    Prefix = "canal_lock-" ++ Version ++ "-",
    Archives = [
        row(File, lists:nthtail(length(Prefix), filename:basename(File, ".tar.gz")))
     || File <- lists:sort(filelib:wildcard(filename:join(Folder, Prefix ++ "*.tar.gz")))
    ],
    Head = "%% The archives of `make dist': target, bytes, SHA-256. A release contains this file (CONTRIBUTING.md).\n",
    Term = io_lib:format("~p.~n", [{Version, Archives}]),
    ok = file:write_file(filename:join(Folder, "checksum.term"), [Head, Term]).

row(File, Target) ->
    {ok, Bytes} = file:read_file(File),
    Sum = [io_lib:format("~2.16.0b", [Byte]) || <<Byte>> <= crypto:hash(sha256, Bytes)],
    {Target, byte_size(Bytes), lists:flatten(Sum)}.
