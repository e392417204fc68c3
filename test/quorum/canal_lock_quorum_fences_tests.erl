%% The file of fences, and voters that start with it or without it.
-module(canal_lock_quorum_fences_tests).

-include_lib("eunit/include/eunit.hrl").

-import(test_nodes, [call/2, worker/1]).
-import(test_quorum_cluster, [lock/3, try_unlock/2, start/2, stop/1]).

%% The number of processes that write the file at the same time, and of writes by each.
-define(WRITERS, 8).
-define(WRITES, 20).

%%% The file

file_test_() ->
    {foreach, fun folder/0, fun delete/1, [
        fun(Folder) -> {Title, fun() -> Test(path(Folder)) end} end
     || {Title, Test} <- [
            {"a stored mark is read again", fun read_again/1},
            {"a lower mark is not stored", fun never_lowered/1},
            {"with many writers, some of them killed, the highest mark stays and the file is whole", fun writers/1},
            {"a file without a mark is an error, and can be replaced", fun no_mark/1},
            {"a voter outlives its supervisor and stores if the next one has a file", fun stores_from_now_on/1},
            {"a file that cannot be written or read is an error with the reason", fun no_file/1}
        ]
    ]}.

folder() ->
    {ok, _} = application:ensure_all_started(crypto),
    ok = canal_lock_quorum_nif:load(),
    Name = "fences-" ++ binary_to_list(binary:encode_hex(crypto:strong_rand_bytes(8))),
    Folder = filename:join(filename:basedir(user_cache, "canal_lock"), Name),
    ok = filelib:ensure_dir(filename:join(Folder, "file")),
    Folder.

delete(Folder) ->
    ok = file:del_dir_r(Folder).

path(Folder) ->
    unicode:characters_to_binary(filename:join(Folder, "fences ä")).

read_again(Path) ->
    ?assertEqual({ok, nil}, canal_lock_quorum_nif:fence_read(Path)),
    ?assertEqual({ok, true}, canal_lock_quorum_nif:fence_store(Path, 17)),
    ?assertEqual({ok, 17}, canal_lock_quorum_nif:fence_read(Path)),
    %% No temporary file remains.
    {ok, [_]} = file:list_dir(filename:dirname(Path)).

never_lowered(Path) ->
    [{ok, _} = canal_lock_quorum_nif:fence_store(Path, Mark) || Mark <- [5, 9, 7]],
    ?assertEqual({ok, false}, canal_lock_quorum_nif:fence_store(Path, 9)),
    ?assertEqual({ok, 9}, canal_lock_quorum_nif:fence_read(Path)).

writers(Path) ->
    {ok, _} = canal_lock_quorum_nif:fence_store(Path, 1),
    Marks = [[rand:uniform(1 bsl 40) || _ <- lists:seq(1, ?WRITES)] || _ <- lists:seq(1, ?WRITERS)],
    Store = fun(Some) -> [{ok, _} = canal_lock_quorum_nif:fence_store(Path, Mark) || Mark <- Some] end,
    {Written, [Killed | _]} = lists:split(?WRITERS div 2, Marks),
    Victims = [spawn(fun() -> Store(Killed) end) || _ <- lists:seq(1, ?WRITERS div 2)],
    Writers = [spawn_monitor(fun() -> Store(Some) end) || Some <- Written],
    test_worker:kill(Victims),
    [?assertMatch({ok, _}, canal_lock_quorum_nif:fence_read(Path)) || _ <- lists:seq(1, ?WRITES)],
    [normal = test_await:reason(Writer) || Writer <- Writers],
    {ok, Highest} = canal_lock_quorum_nif:fence_read(Path),
    ?assert(Highest >= lists:max(lists:append(Written))),
    ?assert(lists:member(Highest, lists:append(Marks))).

no_mark(Path) ->
    lists:foreach(fun(Text) ->
        ok = file:write_file(Path, Text),
        ?assertEqual({error, <<"not a fence file, or an incomplete one">>}, canal_lock_quorum_nif:fence_read(Path))
    end, ["", "17\n", "canal_lock_quorum fences below 17", "canal_lock_quorum fences below x\n"]),
    ?assertEqual({ok, true}, canal_lock_quorum_nif:fence_store(Path, 17)),
    ?assertEqual({ok, 17}, canal_lock_quorum_nif:fence_read(Path)).

no_file(Path) ->
    Nowhere = <<Path/binary, "/nowhere">>,
    {error, Sentence} = canal_lock_quorum_nif:fence_store(Nowhere, 17),
    ?assertNotEqual(nomatch, string:find(Sentence, "No such file")),
    ok = file:make_dir(Path),
    ?assertMatch({error, _}, canal_lock_quorum_nif:fence_read(Path)),
    ?assertMatch({error, _}, canal_lock_quorum_nif:fence_store(Path, 17)).

stores_from_now_on(Path) ->
    Options = #{members => [node()]},
    Supervisor = started(Options),
    %% The voter, which has no file yet, outlives the supervisor.
    Names = [canal_lock_quorum, canal_lock_quorum_agent, canal_lock_quorum_voter, canal_lock_quorum_links],
    test_worker:kill([Supervisor]),
    test_await:value([], fun() -> [Name || Name <- Names, whereis(Name) =/= undefined] end),
    _ = started(Options#{fence_file => Path}),
    {ok, Lock} = canal_lock_quorum:lock(x, 5000),
    ?assert(mark(Path) >= canal_lock_quorum:fence(Lock)),
    ok = canal_lock_quorum:stop().

%% Checks that there is a mark: an atom is greater than any number.
mark(Path) ->
    {ok, Mark} = canal_lock_quorum_nif:fence_read(Path),
    true = is_integer(Mark),
    Mark.

started(Options) ->
    {ok, Supervisor} = canal_lock_quorum:start_link(Options),
    true = unlink(Supervisor),
    test_await:value(true, fun() -> maps:get(voting, canal_lock_quorum:status()) end),
    Supervisor.

%%% Voters

voters_test_() ->
    [
        test_quorum_cluster:tests(3, [
            {"at the first start voting begins when all members are connected", fun first_start/1},
            {"Q5: a voter that restarts learns the fences from the others", fun one_restarts/1},
            {"Q5: if all restart, the clock makes fences grow", fun all_restart/1}
        ]),
        {setup, fun folder/0, fun delete/1, fun(Folder) ->
            test_quorum_cluster:tests(3, [], fun(Node, Nodes) -> with_file(Folder, Node, Nodes) end, [
                {Title, fun(Nodes) -> Test(Folder, Nodes) end}
             || {Title, Test} <- [
                    {"Q5: if all restart, their files make fences grow", fun restart_with_files/2},
                    {"a broken file is replaced when the others have told the fences", fun broken_file/2},
                    {"a write that fails is tried again", fun refusing_disk/2}
                ]
            ])
        end}
    ].

with_file(Folder, Node, Nodes) ->
    Options = test_quorum_cluster:options(Nodes),
    %% The test uses up several of these small blocks.
    Rules = (test_quorum_cluster:rules())#{fence_block => 8},
    Options#{fence_file => file_of(Folder, Node), rules => Rules}.

file_of(Folder, Node) ->
    filename:join(Folder, test_nodes:name(Node)).

first_start([A, B, C] = Nodes) ->
    Options = test_quorum_cluster:options(Nodes),
    [stop(Node) || Node <- Nodes],
    [start(Node, Options) || Node <- [A, B]],
    %% Longer than a quarantine.
    ?assertEqual({error, timeout}, lock(worker(A), x, 1500)),
    ?assertMatch(#{voting := false}, call(A, fun canal_lock_quorum:status/0)),
    start(C, Options),
    test_quorum_cluster:await_voting(Nodes),
    ?assertMatch({ok, _}, lock(worker(A), x, 5000)).

one_restarts([A, B, C] = Nodes) ->
    Before = fence(A),
    stop(C),
    start(C, test_quorum_cluster:options(Nodes)),
    test_quorum_cluster:await_voting(Nodes),
    %% It learned the fence from the others: the clock is far ahead.
    After = fence(C),
    ?assert(After > Before),
    ?assert(After - Before < 1000),
    %% Its vote counts: it forms a quorum of two with each of the others.
    stop(B),
    ?assert(fence(C) > After).

all_restart([A, B, _C] = Nodes) ->
    Before = fence(A),
    ?assert(Before > erlang:system_time(microsecond) - timer:minutes(10) * 1000),
    restart(Nodes, fun(_) -> test_quorum_cluster:options(Nodes) end),
    ?assert(fence(B) > Before).

restart_with_files(Folder, [A, B, _C] = Nodes) ->
    %% Several blocks.
    Before = lists:max([fence(A) || _ <- lists:seq(1, 30)]),
    %% Only a quorum has certainly stored the fence; the third member may be slower.
    Marked = fun(Node) -> call(Node, fun() -> mark(path_of(Folder, Node)) end) >= Before end,
    [test_await:value(true, fun() -> Marked(Node) end) || Node <- Nodes],
    %% Marks far ahead of the clock, so that the clock has no influence.
    restart(Nodes, fun(Node) ->
        {ok, true} = call(A, fun() -> canal_lock_quorum_nif:fence_store(path_of(Folder, Node), 1 bsl 60) end),
        with_file(Folder, Node, Nodes)
    end),
    ?assert(fence(B) > 1 bsl 60).

path_of(Folder, Node) ->
    unicode:characters_to_binary(file_of(Folder, Node)).

broken_file(Folder, [A, _B, C] = Nodes) ->
    Before = fence(A),
    stop(C),
    ok = file:write_file(file_of(Folder, C), "fences"),
    start(C, with_file(Folder, C, Nodes)),
    test_quorum_cluster:await_voting(Nodes),
    %% The voter writes the file later. Until then it grants nothing to writers.
    call(C, fun() ->
        test_await:value(true, fun() ->
            case canal_lock_quorum_nif:fence_read(path_of(Folder, C)) of
                {ok, Mark} when is_integer(Mark) -> Mark > Before;
                _ -> false
            end
        end)
    end).

refusing_disk(Folder, [A, B, C] = Nodes) ->
    Before = fence(A),
    stop(C),
    File = file_of(Folder, C),
    %% This file cannot be written, since its folder is a file.
    Options = (with_file(Folder, C, Nodes))#{fence_file => filename:join(File, "beneath")},
    start(C, Options),
    %% It votes for readers but not for writers, since it cannot store their fences.
    test_quorum_cluster:await_voting(Nodes),
    ?assert(fence(A) > Before),
    stop(B),
    ?assertEqual({error, timeout}, lock(worker(A), x, 1000)),
    ok = file:delete(File),
    ok = file:make_dir(File),
    ?assertMatch({ok, _}, lock(worker(A), x, 5000)).

%% The fence of a lock that is unlocked again.
fence(Node) ->
    Worker = worker(Node),
    {ok, Fence} = lock(Worker, x, 5000),
    ok = try_unlock(Worker, x),
    Fence.

restart(Nodes, Options) ->
    [stop(Node) || Node <- Nodes],
    test_quorum_cluster:start_all([{Node, Options(Node)} || Node <- Nodes]).
