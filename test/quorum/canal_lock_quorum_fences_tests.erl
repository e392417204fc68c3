%% Voters that start with a state file or without it.
-module(canal_lock_quorum_fences_tests).

-include_lib("eunit/include/eunit.hrl").

-import(test_nodes, [call/2, worker/1, order/2]).
-import(test_quorum_cluster, [lock/3, unlock_async/2, start/2, stop/1, lose_file/1]).

file_test_() ->
    {foreach, fun folder/0, fun canal_lock_quorum_state_file_tests:delete/1, [
        fun(Folder) -> {Title, fun() -> Test(path(Folder)) end} end
     || {Title, Test} <- [
            {"a voter whose process was killed begins another life, and fences grow", fun next_life/1},
            {"a file in a missing folder is an error of the start, also if this VM has locked it", fun no_folder/1},
            {"another file is an error of the start that says what to do, and is not changed", fun other_files/1},
            {"a node without distribution has no file", fun without_file/1}
        ]
    ]}.

%% What a state file shows at a start is logged, unless it is the file of this node with the same members.
reports_test_() ->
    Folder = fun folder/0,
    Write = fun(Text) -> fun(Path) -> ok = file:write_file(Path, Text) end end,
    Own = fun(Path) -> ok = file:write_file(Path, canal_lock_quorum_state_file_tests:content(node())) end,
    test_log_listener:tests(notice, {foreach, Folder, fun canal_lock_quorum_state_file_tests:delete/1, [
        fun(In) -> {Title, fun() -> ?assertEqual(Reports, reports(Prepare, Members, path(In))) end} end
     || {Title, Reports, Prepare, Members} <- [
            {"a first start logs the members", [view], fun(_) -> ok end, [node()]},
            {"the own file logs nothing", [], Own, [node()]},
            {"an empty file is logged", [file_lost, view], Write(""), [node()]},
            {"a damaged file is logged", [file_lost, view], Write("canal_lock_quorum state 1\nnode"), [node()]},
            {"other members than in the file are logged", [members_differ], Own, [a@b, node()]}
        ]
    ]}).

reports(Prepare, Members, Path) ->
    Prepare(Path),
    test_log_listener:listening(fun() ->
        ok = started(#{members => Members, state_file => Path, reconnect_ms => 60_000}),
        ok = canal_lock_quorum:stop(),
        [What || #{msg := {report, #{what := What}}} <- test_log_listener:events(), What =/= old_vm]
    end).

path(Folder) ->
    unicode:characters_to_binary(filename:join(Folder, "fences ä")).

no_folder(Path) ->
    Missing = filename:join(Path, "fences"),
    IsRefused = fun(Text) ->
        {error, {state_file_not_writable, Missing, Why}} =
            canal_lock_quorum:start_link(#{members => [node()], state_file => Missing}),
        ?assertNotEqual({Why, nomatch}, {Why, string:prefix(Why, Text)}),
        ?assertEqual(undefined, whereis(canal_lock_quorum))
    end,
    IsRefused("No such file or directory"),
    ok = file:write_file(Path, "no folder"),
    IsRefused("Not a directory"),
    ok = file:delete(Path),
    ok = file:make_dir(Path),
    ok = started(#{members => [node()], state_file => Missing}),
    ok = canal_lock_quorum:stop(),
    ok = file:del_dir_r(Path),
    IsRefused("No such file or directory").

next_life(Path) ->
    ok = started(#{members => [node()], state_file => Path}),
    Before = fence_of_a_lock(),
    test_quorum_cluster:kill_process(canal_lock_quorum_voter),
    ?assert(fence_of_a_lock() > Before),
    ok = canal_lock_quorum:stop().

fence_of_a_lock() ->
    {ok, Lock} = canal_lock_quorum:lock(x, 5000),
    ok = canal_lock_quorum:unlock(Lock),
    canal_lock_quorum:fence(Lock).

other_files(Path) ->
    OfOtherNode = canal_lock_quorum_state_file_tests:content(a@b),
    IsRefused = fun(Words) ->
        {error, {state_file_not_usable, Path, Text}} =
            canal_lock_quorum:start_link(#{members => [node()], state_file => Path}),
        [?assertNotEqual({Text, nomatch}, {Text, string:find(Text, Part)}) || Part <- [Words, "option state_file"]],
        ?assertEqual(undefined, whereis(canal_lock_quorum))
    end,
    lists:foreach(fun({Bytes, Words}) ->
        ok = file:write_file(Path, Bytes),
        IsRefused(Words),
        ?assertEqual({ok, Bytes}, file:read_file(Path))
    end, [
        {OfOtherNode, "file of node a@b"},
        {<<"my notes">>, "not a state file of canal_lock"},
        {<<255, 0, 7>>, "not a state file of canal_lock"},
        {<<"canal_lock_quorum state 2\n">>, "another version of canal_lock"}
    ]),
    ok = file:delete(Path),
    ok = file:make_dir(Path),
    IsRefused("directory").

%% So its fences begin anew with each start.
without_file(_Path) ->
    _ = [
        begin
            ok = started(#{members => [node()]}),
            ?assertMatch(#{state_file := none}, canal_lock_quorum:status()),
            ?assertEqual(1, fence_of_a_lock()),
            ok = canal_lock_quorum:stop()
        end
     || _ <- [1, 2, 3]
    ].

started(Options) ->
    {ok, Supervisor} = canal_lock_quorum:start_link(Options),
    true = unlink(Supervisor),
    test_await:value(true, fun() -> maps:get(voting, canal_lock_quorum:status()) end),
    ok.

%%% Voters

voters_test_() ->
    [
        test_quorum_cluster:tests(3, [
            {"at the first start voting begins when all members are connected", fun first_start/1},
            {"Q5: a member whose file is lost comes back as a new one, and fences grow", fun one_restarts/1},
            {"three members lose their files one after the other, and fences grow", fun each_loses_its_file/1},
            {"by default the file has the name of the node, in a folder that the start makes", fun default_file/1}
        ]),
        {setup, fun folder/0, fun canal_lock_quorum_state_file_tests:delete/1, fun(Folder) ->
            test_quorum_cluster:tests(3, [], fun(Node, Nodes) -> with_file(Folder, Node, Nodes) end, [
                {Title, fun(Nodes) -> Test(Folder, Nodes) end}
             || {Title, Test} <- [
                    {"Q5: if all restart, their files make fences grow", fun restart_with_files/2},
                    {"a member with a damaged file comes back as a new one", fun damaged_file/2},
                    {"two members cannot have one file", fun shared_file/2},
                    {"the file of another member is refused", fun copied_file/2},
                    {"Q14: a file that is older than the last start gives no fence", fun old_file/2},
                    {"a member does not start with another lease than that in its file", fun other_lease/2},
                    {"a voter that cannot store its life tries again, and does not start until it can", fun no_life/2}
                ]
            ])
        end}
    ].

with_file(Folder, Node, Nodes) ->
    Options = test_quorum_cluster:options(Nodes),
    Options#{state_file => file_of(Folder, Node)}.

file_of(Folder, Node) ->
    filename:join(Folder, test_nodes:name(Node)).

first_start([A, B, C] = Nodes) ->
    Options = test_quorum_cluster:options(Nodes),
    [begin stop(Node), lose_file(Node) end || Node <- Nodes],
    [start(Node, Options) || Node <- [A, B]],
    %% Longer than a quarantine.
    ?assertEqual({error, timeout}, lock(worker(A), x, 1500)),
    [NameC] = test_quorum_cluster:members([C]),
    test_quorum_cluster:await_status(A, waits_for, [NameC]),
    ?assertMatch(
        #{role := member, view := none, voting := false, quorum := false}, call(A, fun canal_lock_quorum:status/0)
    ),
    start(C, Options),
    test_quorum_cluster:await_voting(Nodes),
    ?assertMatch(#{waits_for := [], view := #{number := 0}}, call(A, fun canal_lock_quorum:status/0)),
    ?assertMatch({ok, _}, lock(worker(A), x, 5000)).

one_restarts([A, B, C] = Nodes) ->
    Before = fence(A),
    stop(C),
    lose_file(C),
    start(C, test_quorum_cluster:options(Nodes)),
    test_quorum_cluster:await_voting(Nodes),
    After = fence(C),
    ?assert(After > Before),
    %% Its vote counts: it forms a quorum of two with each of the others.
    stop(B),
    ?assert(fence(C) > After).

each_loses_its_file([A | _] = Nodes) ->
    Options = test_quorum_cluster:options(Nodes),
    Holder = worker(A),
    lists:foldl(fun(Node, Before) ->
        Other = hd(Nodes -- [Node]),
        {ok, _} = lock(worker(Other), {kept_by, test_nodes:name(Node)}, 5000),
        stop(Node),
        lose_file(Node),
        start(Node, Options),
        test_quorum_cluster:await_voting(Nodes),
        Fence = fence(Node),
        ?assert(Fence > Before),
        Fence
    end, fence(A), Nodes),
    ?assertMatch({ok, _}, lock(Holder, y, 5000)).

default_file([A | _]) ->
    #{state_file := Path} = call(A, fun canal_lock_quorum:status/0),
    ?assertEqual(atom_to_list(test_nodes:name(A)) ++ ".canal_lock", filename:basename(binary_to_list(Path))),
    ?assertEqual("canal_lock", filename:basename(filename:dirname(binary_to_list(Path)))),
    ?assertMatch({ok, _, {0, [_, _, _], _}}, read(A, Path)).

read(Node, Path) ->
    call(Node, fun() -> canal_lock_quorum_nif:state_read(Path, node()) end).

%% Two times: the fences are also stored when the block of the first start is used up.
restart_with_files(Folder, [A, B, _C] = Nodes) ->
    Before = lists:max([fence(A) || _ <- lists:seq(1, 30)]),
    restart(Nodes, fun(Node) -> with_file(Folder, Node, Nodes) end),
    %% A quorum has stored the fence.
    Contents = [Content || Node <- Nodes, {ok, Content, _} <- [read(Node, path_of(Folder, Node))]],
    Marks = [canal_lock_quorum_state_file_tests:mark(Content) || Content <- Contents],
    ?assertMatch([_, _ | _], [Mark || Mark <- Marks, Mark >= Before]),
    Between = fence(B),
    ?assert(Between > Before),
    restart(Nodes, fun(Node) -> with_file(Folder, Node, Nodes) end),
    ?assert(fence(A) > Between).

path_of(Folder, Node) ->
    unicode:characters_to_binary(file_of(Folder, Node)).

damaged_file(Folder, [A, B, C] = Nodes) ->
    Before = fence(A),
    stop(C),
    ok = file:write_file(file_of(Folder, C), "canal_lock_quorum state 1\n"),
    start(C, with_file(Folder, C, Nodes)),
    test_quorum_cluster:await_voting(Nodes),
    stop(B),
    ?assert(fence(C) > Before).

shared_file(Folder, [A, _B, C] = Nodes) ->
    stop(C),
    Options = (with_file(Folder, C, Nodes))#{state_file => file_of(Folder, A)},
    Path = path_of(Folder, A),
    Start = fun() -> canal_lock_quorum:start_link(Options) end,
    ?assertEqual({error, {state_file_in_use, Path}}, call(C, Start)),
    ?assertEqual(undefined, call(C, fun() -> whereis(canal_lock_quorum) end)),
    %% A keeps the file although it does not run now: a process of it may still write.
    stop(A),
    ?assertEqual({error, {state_file_in_use, Path}}, call(C, Start)).

copied_file(Folder, [A, _B, C] = Nodes) ->
    Options = with_file(Folder, C, Nodes),
    Path = path_of(Folder, C),
    stop(C),
    {ok, _} = file:copy(file_of(Folder, A), Path),
    {ok, Bytes} = file:read_file(Path),
    {error, {state_file_not_usable, Path, Text}} = call(C, fun() -> canal_lock_quorum:start_link(Options) end),
    ?assertNotEqual({Text, nomatch}, {Text, string:find(Text, atom_to_list(test_nodes:name(A)))}),
    ?assertEqual({ok, Bytes}, file:read_file(Path)),
    %% Without it, C comes back as a new member.
    ok = file:delete(Path),
    start(C, Options),
    test_quorum_cluster:await_voting(Nodes).

old_file(Folder, [A, B, _C] = Nodes) ->
    stop(A),
    {ok, Old} = file:read_file(file_of(Folder, A)),
    %% With fences of the next life.
    start(A, with_file(Folder, A, Nodes)),
    test_quorum_cluster:await_voting(Nodes),
    Before = fence(B),
    #{view := #{number := Number}} = call(A, fun canal_lock_quorum:status/0),
    stop(A),
    ok = file:write_file(file_of(Folder, A), Old),
    start(A, with_file(Folder, A, Nodes)),
    %% The others know a later life, so it comes back as a new member.
    test_quorum_cluster:await_view(Number + 1, Nodes),
    test_quorum_cluster:await_voting(Nodes),
    ?assert(fence(A) > Before).

other_lease(Folder, [A, _B, _C] = Nodes) ->
    stop(A),
    Options = with_file(Folder, A, Nodes),
    Refused = {error, {lease_ms, 2000, test_quorum_cluster:lease_ms()}},
    ?assertEqual(Refused, call(A, fun() -> canal_lock_quorum:start_link(Options#{lease_ms => 2000}) end)),
    start(A, Options),
    test_quorum_cluster:await_voting(Nodes).

no_life(Folder, [A, B, C] = Nodes) ->
    Before = fence(A),
    stop(C),
    Obstacle = obstacle(Folder, C),
    %% When a write that was in progress is over.
    test_await:value(ok, fun() -> filelib:ensure_dir(Obstacle) end),
    Listener = worker(C),
    order(Listener, fun() -> test_log_listener:start(error) end),
    start(C, with_file(Folder, C, Nodes)),
    %% Its voter does not start before it has stored its life.
    ?assert(fence(A) > Before),
    ?assertMatch(#{voting := false}, call(C, fun canal_lock_quorum:status/0)),
    stop(B),
    ?assertEqual({error, no_quorum}, lock(worker(A), x, 1000)),
    %% It tries again and again, and logs that once.
    test_await:value(true, fun() -> call(C, fun has_suppressed_reports/0) end),
    Events = order(Listener, fun test_log_listener:events/0),
    ?assertMatch([#{suppressed := 0}], [Report || #{msg := {report, Report = #{what := not_stored}}} <- Events]),
    order(Listener, fun test_log_listener:stop/0),
    ok = file:del_dir(filename:dirname(Obstacle)),
    start(B, with_file(Folder, B, Nodes)),
    test_quorum_cluster:await_voting(Nodes),
    ?assertMatch({ok, _}, lock(worker(A), x, 5000)).

%% A path whose folder has the name of the temporary file of a write.
obstacle(Folder, Node) ->
    filename:join(lists:concat([file_of(Folder, Node), ".new"]), "file").

%% Whether the voter has counted a failed write that it did not log.
has_suppressed_reports() ->
    Maps = [Map || Map <- tuple_to_list(sys:get_state(canal_lock_quorum_voter)), is_map(Map)],
    [ok || Map <- Maps, {{not_stored, _}, {_, Count}} <- maps:to_list(Map), Count > 0] =/= [].

%% The fence of a lock that is unlocked again.
fence(Node) ->
    Worker = worker(Node),
    {ok, Fence} = lock(Worker, x, 5000),
    ok = unlock_async(Worker, x),
    Fence.

restart(Nodes, Options) ->
    [stop(Node) || Node <- Nodes],
    test_quorum_cluster:start_all([{Node, Options(Node)} || Node <- Nodes]).

folder() ->
    canal_lock_quorum_state_file_tests:folder().
