#!/usr/bin/env escript
%% Writes the docs that h(canal_lock) shows in a shell: chunks of documentation (EEP 48) of the public modules.
%%
%%     escript scripts/shell_docs.escript [FOLDER]
%%
%% Writes FOLDER/chunks/MODULE.chunk, where code:get_doc/1 and Elixir read them, unless the file is newer than the
%% source. FOLDER is `doc' of this project by default. rebar3 and mix call this script in each build, so a failure must
%% not fail the build: without EDoc there are no docs, and any other failure prints one line.

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
            io:format(standard_error, "canal_lock: cannot make docs for the shell: ~0tp ~0tP~n", [Class, Reason, 20])
    end.

%% The working directory of the caller does not matter.
project() ->
    filename:dirname(filename:dirname(filename:absname(escript:script_name()))).

%% Private modules begin with this line.
is_public(Source) ->
    {ok, Text} = file:read_file(Source),
    string:prefix(Text, "%% @private") =:= nomatch.

chunk(Folder, Source) ->
    filename:join([Folder, "chunks", filename:basename(Source, ".erl") ++ ".chunk"]).

%% A file that does not exist counts as older.
is_older(Chunk, Source) ->
    filelib:last_modified(Chunk) < filelib:last_modified(Source).

%% EDoc also lists the functions that the module does not export.
public(Chunk, Source) ->
    {ok, Forms} = epp:parse_file(Source, [{includes, [filename:dirname(Source)]}]),
    Exported = lists:append([Functions || {attribute, _, export, Functions} <- Forms]),
    Docs = binary_to_term(Chunk),
    Entries = [Entry || Entry <- element(7, Docs), is_public(Entry, Exported)],
    term_to_binary(setelement(7, Docs, Entries)).

is_public({{function, Name, Arity}, _, _, _, _}, Exported) -> lists:member({Name, Arity}, Exported);
is_public(_Type, _Exported) -> true.

%% By rename, so that an interrupted or concurrent build never leaves a partial file.
make(Source, Chunk) ->
    Temporary = lists:flatten([Chunk, ".", os:getpid(), ".tmp"]),
    ok = filelib:ensure_dir(filename:join(Temporary, "chunks")),
    try
        ok = edoc:files([Source], [
            {doclet, edoc_doclet_chunks}, {layout, edoc_layout_chunks}, {dir, Temporary}, {preprocess, true}
        ]),
        {ok, Made} = file:read_file(chunk(Temporary, Source)),
        ok = file:write_file(chunk(Temporary, Source), public(Made, Source)),
        ok = file:rename(chunk(Temporary, Source), Chunk)
    after
        file:del_dir_r(Temporary)
    end.
