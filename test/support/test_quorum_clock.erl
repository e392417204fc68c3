%% Sets the wall clock of one VM (test_quorum_clock.c). Unlike libfaketime this needs no installation.
-module(test_quorum_clock).

-export([make/1, set/2, environment/2]).

%% Builds the library in this folder. It needs Linux and a C compiler.
-spec make(file:filename()) -> ok | {error, Reason :: string()}.
make(Folder) ->
    Source = filename:join(source_folder(), ?MODULE_STRING ++ ".c"),
    Command = ["cc -O2 -shared -fPIC -o '", library(Folder), "' '", Source, "' -ldl 2>&1"],
    case {os:type(), os:cmd(lists:flatten(Command))} of
        {{unix, linux}, ""} -> ok;
        {{unix, linux}, Output} -> {error, Output};
        _ -> {error, "LD_PRELOAD needs Linux"}
    end.

%% The folder of the sources: rebar3 does not copy C files.
source_folder() ->
    filename:dirname(proplists:get_value(source, ?MODULE:module_info(compile))).

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
    [{"LD_PRELOAD", library(Folder)}, {"CANAL_LOCK_CLOCK", File}].

library(Folder) ->
    filename:join(Folder, ?MODULE_STRING ++ ".so").
