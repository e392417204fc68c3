#!/usr/bin/env escript
%% Writes FOLDER/checksum.term: the name and the SHA-256 of each archive of this version in the folder.
%% native/archive.erl reads it, and the checksum.term of the sources, which is a copy.
%%
%%     escript scripts/checksums.escript FOLDER

main([Folder]) ->
    {ok, [{application, canal_lock, Keys}]} = file:consult("src/canal_lock.app.src"),
    {vsn, Version} = lists:keyfind(vsn, 1, Keys),
    Archives = lists:sort(filelib:wildcard(filename:join(Folder, "canal_lock-" ++ Version ++ "-*.tar.gz"))),
    Head = "%% The archives of `make dist' and their SHA-256. A release contains this file (CONTRIBUTING.md).\n",
    ok = file:write_file(filename:join(Folder, "checksum.term"), [Head | [row(Archive) || Archive <- Archives]]).

row(Archive) ->
    {ok, Bytes} = file:read_file(Archive),
    Sum = [io_lib:format("~2.16.0b", [Byte]) || <<Byte>> <= crypto:hash(sha256, Bytes)],
    io_lib:format("~p.~n", [{filename:basename(Archive), lists:flatten(Sum)}]).
