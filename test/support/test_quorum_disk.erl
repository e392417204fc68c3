%% A node of its own disk: a folder whose faults a test decides. In a mount namespace the folder is a small file system
%% in memory. With a library that is loaded before the C library (test_quorum_disk.c), the disk can hang, and shows how
%% the node writes.
-module(test_quorum_disk).

-export([can_mount/0, start_mounted/1, fill/2, free/2, protect/2, unprotect/2]).
-export([start_preloaded/1, hang/2, resume/2, calls/1]).

-type a_node() :: test_nodes:a_node().
-type folder() :: file:filename().

-define(BYTES, (1 bsl 20)).

%% One normal scheduler: if a call to the disk blocked it, the node would do nothing else.
-define(ARGUMENTS, ["+S", "1:1"]).

%%% In a mount namespace. Its mounts end with the node.

-spec can_mount() -> true | {false, test_network:why()}.
can_mount() ->
    case os:type() of
        {unix, linux} ->
            case os:cmd("unshare -m mount -t tmpfs none /mnt 2>&1") of
                "" -> true;
                Output -> {false, {impossible, "this machine cannot mount in a namespace: " ++ string:trim(Output)}}
            end;
        _ ->
            {false, {impossible, "only Linux has mount namespaces"}}
    end.

-spec start_mounted(folder()) -> a_node().
start_mounted(Folder) ->
    Mount = lists:concat(["mount -t tmpfs -o size=", ?BYTES, " none \"$0\" && exec \"$@\""]),
    Erlexec = filename:join(os:getenv("BINDIR"), "erlexec"),
    Exec = {os:find_executable("unshare"), ["-m", "sh", "-c", Mount, Folder, Erlexec]},
    test_nodes:start(peer:random_name(canal_lock), ?ARGUMENTS, #{exec => Exec}).

-spec fill(a_node(), folder()) -> ok.
fill(Node, Folder) ->
    Fill = fun() -> file:write_file(filling(Folder), binary:copy(<<0>>, ?BYTES)) end,
    {error, enospc} = test_nodes:call(Node, Fill),
    ok.

-spec free(a_node(), folder()) -> ok.
free(Node, Folder) ->
    test_nodes:call(Node, fun() -> file:delete(filling(Folder)) end).

filling(Folder) ->
    filename:join(Folder, "filling").

%% Makes the disk read-only. The node has files open there, so the file system cannot be: a second mount of it is, which
%% hides the first.
-spec protect(a_node(), folder()) -> ok.
protect(Node, Folder) ->
    run(Node, ["mount --bind ", Folder, " ", Folder, " && mount -o remount,bind,ro ", Folder]).

-spec unprotect(a_node(), folder()) -> ok.
unprotect(Node, Folder) ->
    run(Node, ["umount ", Folder]).

run(Node, Command) ->
    "" = test_nodes:call(Node, fun() -> os:cmd(lists:flatten([Command, " 2>&1"])) end),
    ok.

%%% With a preloaded library

%% The folder must have no symbolic link in its path. The library is built beside it.
-spec start_preloaded(folder()) -> a_node().
start_preloaded(Folder) ->
    Beside = filename:dirname(Folder),
    ok = test_preload:make(?MODULE_STRING, Beside),
    Environment = [test_preload:environment(?MODULE_STRING, Beside), {"CANAL_LOCK_DISK", Folder}],
    test_nodes:start(peer:random_name(canal_lock), ?ARGUMENTS, #{env => Environment}).

%% From now on no sync in the folder returns.
-spec hang(a_node(), folder()) -> ok.
hang(_, Folder) ->
    file:write_file(Folder ++ ".hang", "").

-spec resume(a_node(), folder()) -> ok.
resume(_, Folder) ->
    file:delete(Folder ++ ".hang").

%% The calls that the node has made for files in the folder, in order. A file is named by its path in the folder.
-spec calls(folder()) -> [{write | sync | rename, string()}].
calls(Folder) ->
    {ok, Text} = file:read_file(Folder ++ ".calls"),
    [
        {list_to_existing_atom(Call), string:trim(lists:nthtail(length(Folder), Path), leading, "/")}
     || Line <- string:lexemes(unicode:characters_to_list(Text), "\n"), [Call, Path] <- [string:split(Line, " ")]
    ].
