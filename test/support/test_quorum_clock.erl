%% The wall clock of one VM, set by a test: see test_quorum_clock.c. libfaketime would have to be installed.
-module(test_quorum_clock).

-export([make/1, set/2, environment/2]).

%% In this folder. Says why not where that cannot be, as without a C compiler or beyond Linux.
-spec make(file:filename()) -> ok | {error, Why :: string()}.
make(Folder) ->
    Source = filename:join(source_folder(), ?MODULE_STRING ++ ".c"),
    Command = ["cc -O2 -shared -fPIC -o '", library(Folder), "' '", Source, "' -ldl 2>&1"],
    case {os:type(), os:cmd(lists:flatten(Command))} of
        {{unix, linux}, ""} -> ok;
        {{unix, linux}, Said} -> {error, Said};
        _ -> {error, "a library cannot be put before the C library here"}
    end.

%% Where this was compiled from: rebar3 leaves sources that are no Erlang where they are.
source_folder() ->
    filename:dirname(proplists:get_value(source, ?MODULE:module_info(compile))).

%% The wall clock of what runs with this file is wrong by so much from now on.
-spec set(file:filename(), Wrong_ms :: integer()) -> ok.
set(File, Wrong_ms) ->
    %% In its place: the file is mapped.
    {ok, Open} = file:open(File, [read, write, raw, binary]),
    ok = file:pwrite(Open, 0, <<(Wrong_ms * 1_000_000):64/native>>),
    file:close(Open).

%% What a VM has to be started with.
-spec environment(Folder :: file:filename(), File :: file:filename()) -> [{string(), string()}].
environment(Folder, File) ->
    [{"LD_PRELOAD", library(Folder)}, {"CANAL_LOCK_CLOCK", File}].

library(Folder) ->
    filename:join(Folder, ?MODULE_STRING ++ ".so").
