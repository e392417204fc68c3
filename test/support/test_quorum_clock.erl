%% Sets the wall clock of one VM (test_quorum_clock.c). Unlike libfaketime this needs no installation.
-module(test_quorum_clock).

-export([make/1, set/2, environment/2]).

%% Builds the library in this folder.
-spec make(file:filename()) -> ok.
make(Folder) ->
    test_preload:make(?MODULE_STRING, Folder).

%% Sets the wall clock of the VM that was started with this file ahead of the true time, or behind it.
-spec set(file:filename(), Ahead_ms :: integer()) -> ok.
set(File, Ahead_ms) ->
    %% The VM has mapped this file, so it must not be replaced by another.
    {ok, Open} = file:open(File, [read, write, raw, binary]),
    ok = file:pwrite(Open, 0, <<(Ahead_ms * 1_000_000):64/native>>),
    file:close(Open).

%% The environment variables of the VM.
-spec environment(Folder :: file:filename(), File :: file:filename()) -> [{string(), string()}].
environment(Folder, File) ->
    [test_preload:environment(?MODULE_STRING, Folder), {"CANAL_LOCK_CLOCK", File}].
