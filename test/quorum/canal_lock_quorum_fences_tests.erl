%% The file of fences, and voters that start with it or without it.
-module(canal_lock_quorum_fences_tests).

-include_lib("eunit/include/eunit.hrl").

-import(test_nodes, [call/2, worker/1, order/2]).
-import(test_quorum_cluster, [lock/3, held/2, try_unlock/2, start/2, stop/1]).

file_test_() ->
    {foreach, fun canal_lock_quorum_state_tests:folder/0, fun canal_lock_quorum_state_tests:delete/1, [
        fun(Folder) -> {Title, fun() -> Test(path(Folder)) end} end
     || {Title, Test} <- [
            {"a voter that outlived its supervisor is not continued with a file", fun stores_from_now_on/1},
            {"a voter that outlived its supervisor is not continued with other members", fun other_members/1},
            {"a voter that outlived its supervisor tells the others its list", fun says_hello_again/1},
            {"a voter whose process died stores what it needs, and continues its life", fun same_life/1},
            {"a file in a missing folder is an error of the start, also if this VM has locked it", fun no_folder/1},
            {"without a file, two starts within a second have different lives", fun equal_lives/1}
        ]
    ]}.

%% What a state file shows at a start is logged, unless it is the file of this node with the same members.
reports_test_() ->
    Folder = fun canal_lock_quorum_state_tests:folder/0,
    Me = atom_to_binary(node(), utf8),
    #{list := List} = canal_lock_quorum_config:make(#{members => [node()]}),
    State = #{
        node => Me, members => [Me], list => List, former => [], clients => [], life => 7, lease_ms => 1, below => 17
    },
    Broken = fun(Path) -> ok = file:write_file(Path, "fences") end,
    Store = fun(Changes) ->
        fun(Path) -> {ok, true} = canal_lock_quorum_state:store(Path, maps:merge(State, Changes)) end
    end,
    test_log_listener:tests(notice, {foreach, Folder, fun canal_lock_quorum_state_tests:delete/1, [
        fun(In) -> {Title, fun() -> ?assertEqual(Reports, reports(Prepare, path(In))) end} end
     || {Title, Reports, Prepare} <- [
            {"a first start logs nothing", [], fun(_) -> ok end},
            {"the own file logs nothing", [], Store(#{})},
            {"a broken file is logged", [no_fences], Broken},
            {"the file of another node is logged", [other_node], Store(#{node => <<"a@b">>})},
            {"other members are logged", [members_changed], Store(#{members => [<<"a@b">>, Me], list => <<"other">>})},
            {"the same members with other voters are logged", [voters_changed], Store(#{list => <<"other">>})}
        ]
    ]}).

reports(Prepare, Path) ->
    Prepare(Path),
    test_log_listener:listening(fun() ->
        ok = started(#{members => [node()], fence_file => Path, forget => [a@b]}),
        ok = canal_lock_quorum:stop(),
        [What || #{msg := {report, #{what := What}}} <- test_log_listener:events(), What =/= old_vm]
    end).

path(Folder) ->
    unicode:characters_to_binary(filename:join(Folder, "fences ä")).

no_folder(Path) ->
    Missing = filename:join(Path, "fences"),
    IsRefused = fun(Text) ->
        {error, {fence_file_not_writable, Missing, Why}} =
            canal_lock_quorum:start_link(#{members => [node()], fence_file => Missing}),
        ?assertNotEqual({Why, nomatch}, {Why, string:prefix(Why, Text)}),
        ?assertEqual(undefined, whereis(canal_lock_quorum))
    end,
    IsRefused("No such file or directory"),
    ok = file:write_file(Path, "no folder"),
    IsRefused("Not a directory"),
    ok = file:delete(Path),
    ok = file:make_dir(Path),
    ok = started(#{members => [node()], fence_file => Missing}),
    ok = canal_lock_quorum:stop(),
    ok = file:del_dir_r(Path),
    IsRefused("No such file or directory").

stores_from_now_on(Path) ->
    Options = #{members => [node()]},
    %% The voter, which has no file yet, outlives the supervisor.
    ok = started(Options),
    ok = test_quorum_cluster:kill_supervisor(),
    ok = started(Options#{fence_file => Path}),
    {ok, Lock} = canal_lock_quorum:lock(x, 5000),
    ?assert(mark(Path) >= canal_lock_quorum:fence(Lock)),
    ok = canal_lock_quorum:stop().

%% The next supervisor has another table of hellos.
says_hello_again(Path) ->
    Options = #{members => [node()], fence_file => Path},
    ok = started(Options),
    ok = test_quorum_cluster:kill_supervisor(),
    ok = started(Options),
    ?assertMatch(#{}, canal_lock_quorum_lists:hello_for(there@host, canal_lock_quorum_config:make(Options))),
    ok = canal_lock_quorum:stop().

other_members(Path) ->
    Options = #{fence_file => Path, rules => test_quorum_cluster:rules()},
    Members = fun(Other) -> canal_lock_quorum_config:make(Options#{members => [node(), Other]}) end,
    #{setup := Setup} = Config = Members('zz@nowhere'),
    #{setup := SetupOfOther} = Members('zzz@nowhere'),
    {ok, #{start := Start}} = canal_lock_quorum_state:start(Config, 0),
    Voter = canal_lock_quorum_nif:voter_open(Setup, Start),
    ?assertEqual(nil, canal_lock_quorum_nif:voter_adopt(SetupOfOther)),
    #{setup := SetupWithoutFile} = canal_lock_quorum_config:make(
        Options#{members => [node(), 'zz@nowhere'], fence_file => none}),
    ?assertEqual(nil, canal_lock_quorum_nif:voter_adopt(SetupWithoutFile)),
    #{life := Life, quarantine_ms := Quarantine_ms} = Start,
    ?assertMatch({_, Life, Quarantine_ms, []}, canal_lock_quorum_nif:voter_adopt(Setup)),
    ok = canal_lock_quorum_nif:voter_close(Voter).

same_life(Path) ->
    ok = started(#{members => [node()], fence_file => Path, rules => #{fence_block => 8}}),
    {ok, Before = #{life := Life}} = canal_lock_quorum_nif:state_read(Path),
    test_quorum_cluster:kill_process(canal_lock_quorum_voter),
    %% Several blocks.
    lists:foreach(fun(_) ->
        {ok, Lock} = canal_lock_quorum:lock(x, 5000),
        ?assert(mark(Path) >= canal_lock_quorum:fence(Lock)),
        ok = canal_lock_quorum:unlock(Lock)
    end, lists:seq(1, 30)),
    {ok, After = #{life := Life}} = canal_lock_quorum_nif:state_read(Path),
    ?assertEqual(maps:remove(below, Before), maps:remove(below, After)),
    ok = canal_lock_quorum:stop().

equal_lives(_Path) ->
    _ = [begin ok = started(#{members => [node()]}), ok = canal_lock_quorum:stop() end || _ <- lists:seq(1, 3)].

%% Checks that there is a mark.
mark(Path) ->
    {ok, #{below := Mark}} = canal_lock_quorum_nif:state_read(Path),
    true = is_integer(Mark),
    Mark.

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
            {"Q5: a voter that restarts learns the fences from the others", fun one_restarts/1},
            {"Q5: if all restart, the clock makes fences grow", fun all_restart/1}
        ]),
        {setup, fun canal_lock_quorum_state_tests:folder/0, fun canal_lock_quorum_state_tests:delete/1, fun(Folder) ->
            test_quorum_cluster:tests(3, [], fun(Node, Nodes) -> with_file(Folder, Node, Nodes) end, [
                {Title, fun(Nodes) -> Test(Folder, Nodes) end}
             || {Title, Test} <- [
                    {"Q5: if all restart, their files make fences grow", fun restart_with_files/2},
                    {"a broken file is replaced when the others have told the fences", fun broken_file/2},
                    {"two members cannot have one file", fun shared_file/2},
                    {"the file of another member is not used, and is replaced", fun copied_file/2},
                    {"Q14: a file that is older than the last start gives no fence", fun old_file/2},
                    {"Q1: leases are shortened node by node, and no name has two holders", fun shorter_leases/2},
                    {"a voter that cannot store its life does not start until it can", fun no_life/2},
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
    %% In units of 16 ns.
    ?assert(Before > erlang:system_time(nanosecond) div 16 - timer:minutes(10) * 1000000 div 16),
    ?assert(Before < erlang:system_time(nanosecond) div 16),
    restart(Nodes, fun(_) -> test_quorum_cluster:options(Nodes) end),
    ?assert(fence(B) > Before).

restart_with_files(Folder, [A, B, _C] = Nodes) ->
    %% Several blocks.
    Before = lists:max([fence(A) || _ <- lists:seq(1, 30)]),
    %% A quorum has stored the fence. The third member is asked only if one of these is late.
    Marks = [call(Node, fun() -> mark(path_of(Folder, Node)) end) || Node <- Nodes],
    ?assertMatch([_, _ | _], [Mark || Mark <- Marks, Mark >= Before]),
    %% Marks far ahead of the clock, so that the clock has no influence.
    restart(Nodes, fun(Node) ->
        call(A, fun() -> store_mark(path_of(Folder, Node), 1 bsl 60) end),
        with_file(Folder, Node, Nodes)
    end),
    ?assert(fence(B) > 1 bsl 60).

store_mark(Path, Mark) ->
    {ok, State} = canal_lock_quorum_nif:state_read(Path),
    {ok, true} = canal_lock_quorum_state:store(Path, State#{below := Mark}).

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
            case canal_lock_quorum_nif:state_read(path_of(Folder, C)) of
                {ok, #{below := Mark}} when is_integer(Mark) -> Mark >= Before;
                _ -> false
            end
        end)
    end).

shared_file(Folder, [A, _B, C] = Nodes) ->
    stop(C),
    Options = (with_file(Folder, C, Nodes))#{fence_file => file_of(Folder, A)},
    Path = path_of(Folder, A),
    Start = fun() -> canal_lock_quorum:start_link(Options) end,
    ?assertEqual({error, {fence_file_in_use, Path}}, call(C, Start)),
    ?assertEqual(undefined, call(C, fun() -> whereis(canal_lock_quorum) end)),
    %% A keeps the file although it does not run now: a process of it may still write.
    stop(A),
    ?assertEqual({error, {fence_file_in_use, Path}}, call(C, Start)).

copied_file(Folder, [A, _B, C] = Nodes) ->
    Before = fence(A),
    stop(C),
    {ok, _} = file:copy(file_of(Folder, A), file_of(Folder, C)),
    %% If it were used, C would continue with this fence.
    call(C, fun() -> store_mark(path_of(Folder, C), 1 bsl 61) end),
    start(C, with_file(Folder, C, Nodes)),
    test_quorum_cluster:await_voting(Nodes),
    Name = atom_to_binary(test_nodes:name(C), utf8),
    ?assertMatch({ok, #{node := Name}}, call(C, fun() -> canal_lock_quorum_nif:state_read(path_of(Folder, C)) end)),
    After = fence(C),
    ?assert(After > Before andalso After < 1 bsl 61).

old_file(Folder, [A, B, _C] = Nodes) ->
    %% With the fences of this life, and an early life.
    _ = fence(A),
    Old = 1000,
    restart(Nodes, fun(Node) -> (with_file(Folder, Node, Nodes))#{fence_file => none} end),
    Before = fence(B),
    stop(A),
    call(A, fun() ->
        Path = path_of(Folder, A),
        {ok, State} = canal_lock_quorum_nif:state_read(Path),
        ok = file:delete(Path),
        {ok, true} = canal_lock_quorum_state:store(Path, State#{life := Old, below := 17})
    end),
    start(A, with_file(Folder, A, Nodes)),
    test_quorum_cluster:await_voting(Nodes),
    %% The first voter was superseded by the life without a file.
    {ok, #{life := Life}} = call(A, fun() -> canal_lock_quorum_nif:state_read(path_of(Folder, A)) end),
    ?assert(Life > Old + 1),
    ?assert(fence(A) > Before).

%% Without the leases in the files, B and C would vote after the quarantine of the new rules, while A counts on their
%% votes by the old ones.
shorter_leases(Folder, [A, B, C] = Nodes) ->
    Short = test_quorum_cluster:rules(),
    Long = Short#{holder_lease_ms => 3000, voter_lease_ms => 4000, quarantine_ms => 4000},
    Options = fun(Node, Rules) -> (with_file(Folder, Node, Nodes))#{rules => Rules} end,
    restart(Nodes, fun(Node) -> Options(Node, Long) end),
    Holder = worker(A),
    {ok, _} = lock(Holder, x, 5000),
    %% If they heard A, they would not vote while its leases differ.
    ok = test_quorum_cluster:isolate(A, [B, C]),
    lists:foreach(fun(Node) ->
        stop(Node),
        start(Node, Options(Node, Short))
    end, [B, C]),
    ?assert(held(Holder, x)),
    {ok, _} = lock_when_agreed(worker(B)),
    ?assertNot(held(Holder, x)),
    stop(A),
    test_nodes:introduce(Nodes),
    start(A, Options(A, Short)),
    test_quorum_cluster:await_voting(Nodes),
    %% The quarantines are over, and with them the old leases.
    [
        test_await:value(1000, fun() ->
            call(Node, fun() ->
                {ok, #{lease_ms := Lease_ms}} = canal_lock_quorum_nif:state_read(path_of(Folder, Node)),
                Lease_ms
            end)
        end)
     || Node <- Nodes
    ].

%% B learns shortly after the restart of C that their leases are the same.
lock_when_agreed(Worker) ->
    case lock(Worker, x, 10000) of
        {error, misconfigured} -> lock_when_agreed(Worker);
        Answer -> Answer
    end.

no_life(Folder, [A, B, C] = Nodes) ->
    Before = fence(A),
    stop(C),
    Obstacle = obstacle(Folder, C),
    ok = filelib:ensure_dir(Obstacle),
    start(C, with_file(Folder, C, Nodes)),
    %% Its voter does not start before it has stored its life.
    ?assert(fence(A) > Before),
    ?assertMatch(#{voting := false}, call(C, fun canal_lock_quorum:status/0)),
    stop(B),
    ?assertEqual({error, timeout}, lock(worker(A), x, 1000)),
    ok = file:del_dir(filename:dirname(Obstacle)),
    start(B, with_file(Folder, B, Nodes)),
    test_quorum_cluster:await_voting(Nodes),
    ?assertMatch({ok, _}, lock(worker(A), x, 5000)).

refusing_disk(Folder, [A, B, C] = Nodes) ->
    Listener = worker(C),
    order(Listener, fun() -> test_log_listener:start(error) end),
    Obstacle = obstacle(Folder, C),
    %% A write may be in progress.
    test_await:value(ok, fun() -> filelib:ensure_dir(Obstacle) end),
    stop(B),
    %% The voter grants writers what is left of its block.
    test_await:value({error, timeout}, fun() -> lock_and_unlock(worker(A)) end),
    test_quorum_cluster:await_status(C, voting, false),
    test_await:value(true, fun() -> call(C, fun has_suppressed_reports/0) end),
    Events = order(Listener, fun test_log_listener:events/0),
    ?assertMatch([#{suppressed := 0}], [Report || #{msg := {report, Report = #{what := not_stored}}} <- Events]),
    order(Listener, fun test_log_listener:stop/0),
    ok = file:del_dir(filename:dirname(Obstacle)),
    ?assertMatch({ok, _}, lock(worker(A), x, 5000)),
    start(B, with_file(Folder, B, Nodes)),
    test_quorum_cluster:await_voting(Nodes).

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
    ok = try_unlock(Worker, x),
    Fence.

lock_and_unlock(Worker) ->
    case lock(Worker, x, 1000) of
        {ok, _} -> try_unlock(Worker, x);
        Error -> Error
    end.

restart(Nodes, Options) ->
    [stop(Node) || Node <- Nodes],
    test_quorum_cluster:start_all([{Node, Options(Node)} || Node <- Nodes]).
