#!/usr/bin/env escript
%% Makes what h(canal_lock) shows in a shell: chunks of documentation (EEP 48) from the sources of the modules that have
%% any.
%%
%%     escript scripts/shell_docs.escript [FOLDER]
%%
%% They go below FOLDER, which is `doc' of this project unless told otherwise, to chunks/MODULE.chunk: where
%% code:get_doc/1 and Elixir look. One that is newer than its source is left alone. rebar3 and mix call this in each
%% build, so a failure must not be one of theirs: whoever has no EDoc builds without, and any other is told in a line.

main([]) ->
    main([filename:join(project(), "doc")]);
main([Folder]) ->
    Sources = filelib:wildcard(filename:join([project(), "src", "**", "*.erl"])),
    Chunks = [{Source, chunk(Folder, Source)} || Source <- Sources, is_public(Source)],
    Stale = [{Source, Chunk} || {Source, Chunk} <- Chunks, is_older(Chunk, Source)],
    HasEDoc = code:ensure_loaded(edoc) =:= {module, edoc},
    try
        [make(Source, Chunk) || {Source, Chunk} <- Stale, HasEDoc]
    catch
        Class:Reason ->
            io:format(standard_error, "canal_lock: no docs for the shell (~0tp ~0tP)~n", [Class, Reason, 20])
    end.

%% By this file's own place, because the caller's working directory may be anything.
project() ->
    filename:dirname(filename:dirname(filename:absname(escript:script_name()))).

%% The others begin with a line that says so.
is_public(Source) ->
    {ok, Text} = file:read_file(Source),
    string:prefix(Text, "%% @private") =:= nomatch.

chunk(Folder, Source) ->
    filename:join([Folder, "chunks", filename:basename(Source, ".erl") ++ ".chunk"]).

%% Or is not there.
is_older(Chunk, Source) ->
    filelib:last_modified(Chunk) < filelib:last_modified(Source).

%% By rename, so that a build that is stopped here, or another one at the same time, leaves no half of it.
make(Source, Chunk) ->
    Temporary = lists:flatten([Chunk, ".", os:getpid(), ".tmp"]),
    ok = filelib:ensure_dir(filename:join(Temporary, "chunks")),
    try
        ok = edoc:files([Source], [
            {doclet, edoc_doclet_chunks}, {layout, edoc_layout_chunks}, {dir, Temporary}, {preprocess, true}
        ]),
        ok = file:rename(chunk(Temporary, Source), Chunk)
    after
        file:del_dir_r(Temporary)
    end.
