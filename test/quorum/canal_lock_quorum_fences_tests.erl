%% Voters that start with a state file or without it.
-module(canal_lock_quorum_fences_tests).

-include_lib("eunit/include/eunit.hrl").

-import(test_nodes, [call/2, worker/1, order/2]).
-import(test_quorum_cluster, [lock/3, held/2, unlock_async/2, start/2, stop/1, lose_file/1]).

file_test_() ->
    {foreach, fun folder/0, fun canal_lock_quorum_state_file_tests:delete/1, [
        fun(Folder) -> {Title, fun() -> Test(path(Folder)) end} end
     || {Title, Test} <- [
            {"a voter whose process was killed begins another life, and fences grow", fun next_life/1},
            {"a file in a missing folder is an error of the start, also if this VM has locked it", fun no_folder/1},
            {"another file is an error of the start that says what to do, and is not changed", fun other_files/1},
            {"a node without distribution has no file, and two starts within a second have different lives",
                fun equal_lives/1}
        ]
    ]}.

%% What a state file shows at a start is logged, unless it is the file of this node with the same members.
reports_test_() ->
    Folder = fun folder/0,
    Me = atom_to_binary(node(), utf8),
    #{list := List} = canal_lock_quorum_config:make(#{members => [node()]}),
    State = #{
        node => Me, members => [Me], list => List, former => [], guests => false, life => 7, lease_ms => 1, mark => 17
    },
    Write = fun(Text) -> fun(Path) -> ok = file:write_file(Path, Text) end end,
    Store = fun(Changes) ->
        fun(Path) -> {ok, true} = canal_lock_quorum_state_file:store(Path, maps:merge(State, Changes)) end
    end,
    test_log_listener:tests(notice, {foreach, Folder, fun canal_lock_quorum_state_file_tests:delete/1, [
        fun(In) -> {Title, fun() -> ?assertEqual(Reports, reports(Prepare, path(In))) end} end
     || {Title, Reports, Prepare} <- [
            {"a first start logs nothing", [], fun(_) -> ok end},
            {"the own file logs nothing", [], Store(#{})},
            {"an empty file is logged", [file_lost], Write("")},
            {"a damaged file is logged", [file_lost], Write("canal_lock_quorum state 1\nnode")},
            {"other members are logged", [members_changed], Store(#{members => [<<"a@b">>, Me], list => <<"other">>})}
        ]
    ]}).

reports(Prepare, Path) ->
    Prepare(Path),
    test_log_listener:listening(fun() ->
        ok = started(#{members => [node()], state_file => Path, forget => [a@b]}),
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
    {ok, #{life := Life}} = canal_lock_quorum_nif:state_read(Path),
    Before = fence_of_a_lock(),
    test_quorum_cluster:kill_process(canal_lock_quorum_voter),
    ?assert(fence_of_a_lock() > Before),
    ?assertMatch({ok, #{life := Next}} when Next =:= Life + 1, canal_lock_quorum_nif:state_read(Path)),
    ok = canal_lock_quorum:stop().

fence_of_a_lock() ->
    {ok, Lock} = canal_lock_quorum:lock(x, 5000),
    ok = canal_lock_quorum:unlock(Lock),
    canal_lock_quorum:fence(Lock).

other_files(Path) ->
    {ok, true} = canal_lock_quorum_state_file:store(Path, #{
        node => <<"a@b">>, members => [<<"a@b">>], list => <<"00">>, former => [], guests => false, life => 7,
        lease_ms => 1, mark => 17
    }),
    {ok, OfOtherNode} = file:read_file(Path),
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

equal_lives(_Path) ->
    ok = started(#{members => [node()]}),
    ?assertMatch(#{state_file := none}, canal_lock_quorum:status()),
    ok = canal_lock_quorum:stop(),
    _ = [begin ok = started(#{members => [node()]}), ok = canal_lock_quorum:stop() end || _ <- lists:seq(1, 3)].

%% Checks that there is a mark.
mark(Path) ->
    {ok, #{mark := Mark}} = canal_lock_quorum_nif:state_read(Path),
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
            {"Q5: if all restart, the clock makes fences grow", fun all_restart/1},
            {"by default the file has the name of the node, in a folder that the start makes", fun default_file/1}
        ]),
        {setup, fun folder/0, fun canal_lock_quorum_state_file_tests:delete/1, fun(Folder) ->
            test_quorum_cluster:tests(3, [], fun(Node, Nodes) -> with_file(Folder, Node, Nodes) end, [
                {Title, fun(Nodes) -> Test(Folder, Nodes) end}
             || {Title, Test} <- [
                    {"Q5: if all restart, their files make fences grow", fun restart_with_files/2},
                    {"a damaged file is replaced when the others have told the fences", fun damaged_file/2},
                    {"two members cannot have one file", fun shared_file/2},
                    {"the file of another member is refused", fun copied_file/2},
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
    Options#{state_file => file_of(Folder, Node)}.

file_of(Folder, Node) ->
    filename:join(Folder, test_nodes:name(Node)).

first_start([A, B, C] = Nodes) ->
    Options = test_quorum_cluster:options(Nodes),
    [begin stop(Node), lose_file(Node) end || Node <- Nodes],
    [start(Node, Options) || Node <- [A, B]],
    %% Longer than a quarantine.
    ?assertEqual({error, timeout}, lock(worker(A), x, 1500)),
    %% Both answer, and neither votes.
    #{members := Members} = Status = call(A, fun canal_lock_quorum:status/0),
    [NameC] = test_quorum_cluster:members([C]),
    ?assertMatch(#{voting := false, quorum := false, waits_for := [NameC]}, Status),
    ?assertEqual(2, length([Node || #{node := Node, answers := true} <- Members])),
    start(C, Options),
    test_quorum_cluster:await_voting(Nodes),
    ?assertMatch(#{waits_for := []}, call(A, fun canal_lock_quorum:status/0)),
    ?assertMatch({ok, _}, lock(worker(A), x, 5000)).

one_restarts([A, B, C] = Nodes) ->
    Before = fence(A),
    stop(C),
    lose_file(C),
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
    restart(Nodes, fun(Node) ->
        ok = lose_file(Node),
        test_quorum_cluster:options(Nodes)
    end),
    ?assert(fence(B) > Before).

default_file([A | _]) ->
    #{state_file := Path} = call(A, fun canal_lock_quorum:status/0),
    ?assertEqual(atom_to_list(test_nodes:name(A)) ++ ".canal_lock", filename:basename(binary_to_list(Path))),
    ?assertEqual("canal_lock", filename:basename(filename:dirname(binary_to_list(Path)))),
    Name = atom_to_binary(test_nodes:name(A)),
    ?assertMatch({ok, #{node := Name}}, call(A, fun() -> canal_lock_quorum_nif:state_read(Path) end)).

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
    {ok, true} = canal_lock_quorum_state_file:store(Path, State#{mark := Mark}).

path_of(Folder, Node) ->
    unicode:characters_to_binary(file_of(Folder, Node)).

damaged_file(Folder, [A, _B, C] = Nodes) ->
    Before = fence(A),
    stop(C),
    lose_file(C),
    ok = file:write_file(file_of(Folder, C), "canal_lock_quorum state 1\n"),
    start(C, with_file(Folder, C, Nodes)),
    test_quorum_cluster:await_voting(Nodes),
    %% The voter writes the file later. Until then it grants nothing to writers.
    call(C, fun() ->
        test_await:value(true, fun() ->
            case canal_lock_quorum_nif:state_read(path_of(Folder, C)) of
                {ok, #{mark := Mark}} when is_integer(Mark) -> Mark >= Before;
                _ -> false
            end
        end)
    end).

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
    lose_file(C),
    {ok, _} = file:copy(file_of(Folder, A), Path),
    {ok, Bytes} = file:read_file(Path),
    {error, {state_file_not_usable, Path, Text}} = call(C, fun() -> canal_lock_quorum:start_link(Options) end),
    ?assertNotEqual({Text, nomatch}, {Text, string:find(Text, atom_to_list(test_nodes:name(A)))}),
    ?assertEqual({ok, Bytes}, file:read_file(Path)),
    %% Without it, C learns the fences.
    ok = file:delete(Path),
    start(C, Options),
    test_quorum_cluster:await_voting(Nodes).

old_file(Folder, [A, B, _C] = Nodes) ->
    %% With the fences of this life, and an early life.
    _ = fence(A),
    Old = 1000,
    restart(Nodes, fun(Node) -> (with_file(Folder, Node, Nodes))#{state_file => file_of(Folder, Node) ++ "-2"} end),
    Before = fence(B),
    stop(A),
    call(A, fun() ->
        Path = path_of(Folder, A),
        {ok, State} = canal_lock_quorum_nif:state_read(Path),
        ok = file:delete(Path),
        {ok, true} = canal_lock_quorum_state_file:store(Path, State#{life := Old, mark := 17})
    end),
    start(A, with_file(Folder, A, Nodes)),
    test_quorum_cluster:await_voting(Nodes),
    %% The first voter was superseded by the life of the other file.
    {ok, #{life := Life}} = call(A, fun() -> canal_lock_quorum_nif:state_read(path_of(Folder, A)) end),
    ?assert(Life > Old + 1),
    ?assert(fence(A) > Before).

%% Without the leases in the files, B and C would vote after the quarantine of the new lease, while A counts on their
%% votes by the old one.
shorter_leases(Folder, [A, B, C] = Nodes) ->
    Options = fun(Node, Lease_ms) -> (with_file(Folder, Node, Nodes))#{lease_ms => Lease_ms} end,
    restart(Nodes, fun(Node) -> Options(Node, 4000) end),
    Holder = worker(A),
    {ok, _} = lock(Holder, x, 5000),
    %% If they heard A, they would not vote while its leases differ.
    ok = test_quorum_cluster:isolate(A, [B, C]),
    lists:foreach(fun(Node) ->
        stop(Node),
        start(Node, Options(Node, 1000))
    end, [B, C]),
    ?assert(held(Holder, x)),
    {ok, _} = lock_when_agreed(worker(B)),
    ?assertNot(held(Holder, x)),
    stop(A),
    test_nodes:introduce(Nodes),
    start(A, Options(A, 1000)),
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
    ?assertEqual({error, no_quorum}, lock(worker(A), x, 1000)),
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
    %% The voter stores its first mark when it grants the first lock.
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
    ok = unlock_async(Worker, x),
    Fence.

lock_and_unlock(Worker) ->
    case lock(Worker, x, 1000) of
        {ok, _} -> unlock_async(Worker, x);
        Error -> Error
    end.

restart(Nodes, Options) ->
    [stop(Node) || Node <- Nodes],
    test_quorum_cluster:start_all([{Node, Options(Node)} || Node <- Nodes]).

folder() ->
    canal_lock_quorum_state_file_tests:folder().
