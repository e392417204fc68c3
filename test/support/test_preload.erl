%% Libraries that replace functions of the C library in one VM (LD_PRELOAD): the C files of this folder.
-module(test_preload).

-export([possible/0, make/2, environment/2]).

-spec possible() -> true | {false, test_network:why()}.
possible() ->
    case {os:type(), os:find_executable("cc")} of
        {{unix, linux}, false} -> {false, {missing, "the program cc is not installed"}};
        {{unix, linux}, _} -> true;
        _ -> {false, {impossible, "LD_PRELOAD needs Linux"}}
    end.

%% Builds NAME.c in this folder.
-spec make(Name :: string(), Folder :: file:filename()) -> ok.
make(Name, Folder) ->
    Source = filename:join(source_folder(), Name ++ ".c"),
    Command = ["cc -O2 -shared -fPIC -o '", library(Name, Folder), "' '", Source, "' -ldl 2>&1"],
    "" = os:cmd(lists:flatten(Command)),
    ok.

%% The folder of the sources: rebar3 does not copy C files.
source_folder() ->
    filename:dirname(proplists:get_value(source, ?MODULE:module_info(compile))).

%% The environment variable of a VM that loads it.
-spec environment(Name :: string(), Folder :: file:filename()) -> {string(), string()}.
environment(Name, Folder) ->
    {"LD_PRELOAD", library(Name, Folder)}.

library(Name, Folder) ->
    filename:join(Folder, Name ++ ".so").
