#!/usr/bin/env escript
%% Makes what h(canal_lock) shows in a shell: a chunk of documentation (EEP 48) from the source of the public module.
%%
%%     escript scripts/shell_docs.escript [FOLDER]
%%
%% It goes below FOLDER, which is `doc' of this project unless told otherwise, to chunks/canal_lock.chunk: where
%% code:get_doc/1 and Elixir look. Nothing is done when it is newer than the source. rebar3 and mix call this in each
%% build, so a failure must not be one of theirs: whoever has no EDoc builds without, and any other is told in a line.

-define(MODULE_NAME, "canal_lock").

main([]) ->
    main([filename:join(project(), "doc")]);
main([Folder]) ->
    Source = filename:join([project(), "src", ?MODULE_NAME ++ ".erl"]),
    Chunk = filename:join([Folder, "chunks", ?MODULE_NAME ++ ".chunk"]),
    HasEDoc = code:ensure_loaded(edoc) =:= {module, edoc},
    IsThere = filelib:last_modified(Chunk) >= filelib:last_modified(Source),
    try IsThere orelse not HasEDoc orelse make(Source, Chunk) of
        _ -> ok
    catch
        Class:Reason ->
            io:format(standard_error, "canal_lock: no docs for the shell (~0tp ~0tP)~n", [Class, Reason, 20])
    end.

%% By this file's own place, because the caller's working directory may be anything.
project() ->
    filename:dirname(filename:dirname(filename:absname(escript:script_name()))).

%% By rename, so that a build that is stopped here, or another one at the same time, leaves no half of it.
make(Source, Chunk) ->
    Temporary = lists:flatten([Chunk, ".", os:getpid(), ".tmp"]),
    ok = filelib:ensure_dir(filename:join(Temporary, "chunks")),
    ok = edoc:files([Source], [
        {doclet, edoc_doclet_chunks}, {layout, edoc_layout_chunks}, {dir, Temporary}, {preprocess, true}
    ]),
    ok = file:rename(filename:join([Temporary, "chunks", filename:basename(Chunk)]), Chunk),
    ok = file:del_dir_r(Temporary).
