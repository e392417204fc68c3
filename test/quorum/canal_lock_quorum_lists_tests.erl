%% Nodes with different lists of members: Q13. Two lists never form two quorums at the same time.
%%
%% The first part searches all that can happen to a few nodes whose lists change, with the code that decides it
%% (canal_lock_quorum_lists). The second part changes the lists of real nodes.
-module(canal_lock_quorum_lists_tests).

-include_lib("eunit/include/eunit.hrl").

-import(test_nodes, [call/2, worker/1, name/1]).
-import(test_quorum_cluster, [lock/3, held/2, unlock_async/2, start/2, stop/1, await_status/3, await_voting/1]).

-define(TIMEOUT_S, 120).
-define(LONG_MS, 30_000).

%%% The search

%% Walks of this length, until one finds two quorums. Most members of the first list begin with the second one. Each
%% step restarts a node with one of the lists, or two nodes exchange hellos, or one of them hears the other.
-define(WALKS, 4000).
-define(STEPS, 60).

search_test_() ->
    [
        {timeout, ?TIMEOUT_S, {Title, fun() -> ?assertEqual(Found, search(Lists, Rule)) end}}
     || {Title, Lists, Rule, Found} <- [
            {"Q13: lists of three and of five never form two quorums", sizes(), correct, none},
            {"Q13: nor if voters vote although they know of another list", sizes(), deaf, none},
            {"control: the list in the file is ignored", sizes(), no_file, two_quorums},
            {"control: the earlier list stays in the file until the new one is agreed", sizes(), free_return,
                two_quorums}
        ]
    ].

%% The first and the second list, each with the size of its quorum.
sizes() -> {{three(), 2}, {five(), 3}}.

three() -> [node(), b, c].
five() -> three() ++ [d, e].

names({Members, _}) -> Members.

%% All nodes begin with the first list, except those that are only in the second one. Returns whether a quorum of each
%% list votes at the same time.
search(Lists, Rule) ->
    _ = rand:seed(exsss, {1, 2, 3}),
    walks(?WALKS, Lists, Rule).

walks(0, _, _) ->
    none;
walks(Left, Lists = {First, Second}, Rule) ->
    Begin = fun(Node) ->
        Config = config(case lists:member(Node, names(First)) of true -> First; false -> Second end),
        #{config => Config, file => file(Config, []), own => {{Node, 0}, []}, hellos => #{}}
    end,
    Nodes = maps:from_list([{Node, Begin(Node)} || Node <- names(Second)]),
    Restart = fun(Node, All) -> restart(Node, Second, Rule, {Left, begins}, All) end,
    Restarted = lists:foldl(Restart, Nodes, [Node || Node <- names(First), rand:uniform(4) > 1]),
    case walk(?STEPS, Lists, Rule, Restarted) of
        none -> walks(Left - 1, Lists, Rule);
        Found -> Found
    end.

walk(0, _, _, _) ->
    none;
walk(Left, Lists = {First, Second}, Rule, Nodes) ->
    Next = step(rand:uniform(10), Lists, Rule, Left, Nodes),
    case lists:all(fun(List) -> has_quorum(List, Rule, Next) end, [First, Second]) of
        true -> two_quorums;
        false -> walk(Left - 1, Lists, Rule, Next)
    end.

step(1, {First, Second}, Rule, Start, Nodes) ->
    restart(one_of(names(First)), one_of([First, Second]), Rule, Start, Nodes);
step(Action, {First, Second}, _, _, Nodes) ->
    [One, Other] = [one_of(names(List)) || List <- [First, Second]],
    Hear = fun({From, To}, Heard) -> hear(From, To, Heard) end,
    case Action of
        _ when One =:= Other -> Nodes;
        2 -> hear(One, Other, Nodes);
        3 -> hear(Other, One, Nodes);
        _ -> lists:foldl(Hear, Nodes, [{One, Other}, {Other, One}, {One, Other}])
    end.

restart(Node, List, Rule, Start, Nodes) ->
    #{Node := #{file := File}} = Nodes,
    Config = config(List),
    Former = case Rule of no_file -> []; _ -> canal_lock_quorum_lists:former_after(File, Config) end,
    Stored = case {Rule, Former} of {free_return, [_ | _]} -> File; _ -> file(Config, Former) end,
    agree(Node, Nodes#{Node := #{config => Config, own => {{Node, Start}, Former}, hellos => #{}, file => Stored}}).

one_of(List) ->
    lists:nth(rand:uniform(length(List)), List).

config({Members, _}) ->
    #{
        node => node(), members => lists:sort(Members), list => term_to_binary(Members), lease_ms => 1000,
        frame_version => 1, forget => [], is_member => true, clients => none
    }.

file(#{members := Members, list := List}, Former) ->
    #{members => Members, list => List, former => Former}.

hear(From, To, Nodes) ->
    #{From := #{config := Config, own := {Id, _}, hellos := Known}, To := Receiver} = Nodes,
    #{members := Members} = Config,
    Heard = case Known of #{To := #{id := TheirId}} -> TheirId; _ -> none end,
    Hello = hello(Id, Members, Heard),
    #{hellos := Hellos} = Receiver,
    agree(To, Nodes#{To := Receiver#{hellos := Hellos#{From => Hello}}}).

hello(Id, Members, Heard) ->
    #{
        id => Id, members => Members, frame_version => 1, lease_ms => 1000, heard => Heard, ask => false,
        is_client => false, allows => false
    }.

agree(Node, Nodes) ->
    #{Node := State = #{config := Config, own := {Id, Former}}} = Nodes,
    case Former =/= [] andalso canal_lock_quorum_lists:is_heard(Config, Former, conflicts(Node, State)) of
        true -> Nodes#{Node := State#{own := {Id, []}, file := file(Config, [])}};
        false -> Nodes
    end.

%% canal_lock_quorum_lists computes those of this node. So that node exchanges its name with this one.
conflicts(Node, #{config := Config, own := {Id, Former}, hellos := Hellos}) ->
    Seen = maps:from_list([{swap(Other, Node), swap_members(Hello, Node)} || {Other, Hello} <- maps:to_list(Hellos)]),
    Own = {Id, [swap(Other, Node) || Other <- Former]},
    Conflicts = canal_lock_quorum_lists:conflicts(swap_members(Config, Node), Own, Seen),
    [Conflict#{node := swap(Other, Node)} || Conflict = #{node := Other} <- Conflicts].

swap_members(Map = #{members := Members}, Node) ->
    Map#{members := lists:sort([swap(Member, Node) || Member <- Members])}.

swap(Node, Node) -> node();
swap(Other, Node) -> case node() of Other -> Node; _ -> Other end.

has_quorum(List = {_, Quorum}, Rule, Nodes) ->
    #{list := Id} = config(List),
    Voting = [
        Node
     || {Node, State = #{config := #{list := Of}, own := {_, []}}} <- maps:to_list(Nodes),
        Of =:= Id, Rule =:= deaf orelse conflicts(Node, State) =:= []
    ],
    length(Voting) >= Quorum.

%% What counts as heard, for a node whose list has changed.
heard_test_() ->
    Config = #{members := Members} = config({[node(), b], 2}),
    Hello = hello(1, Members, now),
    NotHeard = #{node => b, differs => not_heard},
    [
        {Title, fun() ->
            ?assertEqual(Conflicts, canal_lock_quorum_lists:conflicts(Changed, {now, Former}, Hellos))
        end}
     || {Title, Changed, Former, Hellos, Conflicts} <- [
            {"the same list", Config, [b], #{b => Hello}, []},
            {"nothing", Config, [b], #{}, [NotHeard]},
            {"an answer to an earlier start", Config, [b], #{b => Hello#{heard := before}}, [NotHeard]},
            {"a former member with a list of its own", Config, [c],
                #{b => Hello, c => Hello#{members := [c, d]}}, [#{node => c, differs => not_heard}]},
            {"a former member that is forgotten", Config#{forget := [c]}, [b, c], #{b => Hello}, []},
            {"a node that is no member and does not have this node", Config, [], #{d => Hello#{members := [d, e]}}, []},
            {"a node that is no member and has this node", Config, [], #{d => Hello#{members := [d, node()]}},
                [#{node => d, differs => members, members => [d, node()]}]},
            {"the same members with another lease", Config#{lease_ms := 2000}, [b], #{b => Hello},
                [#{node => b, differs => lease_ms, lease_ms => 1000}]},
            {"the same members and lease", Config#{lease_ms := 2000}, [b], #{b => Hello#{lease_ms := 2000}}, []},
            {"another version of frames", Config, [], #{b => Hello#{frame_version := 2}},
                [#{node => b, differs => frame_version, frame_version => 2}]},
            {"a client with another version of frames", Config, [],
                #{d => Hello#{is_client := true, frame_version := 2}}, []}
        ]
    ].

%%% The process of the connections

%% When the supervisor is killed, the table of the lists is gone before this process ends.
no_table_test() ->
    ?assertEqual(undefined, whereis(canal_lock_quorum)),
    ?assertEqual(ok, canal_lock_quorum_connections:terminate(killed, none)).

%%% Nodes

nodes_test_() ->
    [
        cluster(3, [
            {"Q13: a member with another list stops the others, and each says which list the other has", fun stray/1},
            {"members restart after a node with another list was killed", fun killed_stray/1},
            {"a list that is taken back has to be agreed again", fun taken_back/1},
            {"members with another lease are in conflict, and with another run not", fun other_lease/1},
            {"a member with another version of frames stops the others, which report it", fun other_version/1},
            {"a restarted process does not forget a conflict", fun processes_killed/1},
            {"members that are connected again say their lists at once", fun connected_again/1}
        ]),
        cluster(5, [
            {"Q1, Q13: a list of three meets a list of five, and no name has two holders", fun three_and_five/1},
            {"Q1, Q13: separated nodes with a new list wait for those with the old one", fun separated/1},
            {"Q5: fences grow if a quorum of the members leaves", fun quorum_leaves/1}
        ]),
        cluster(4, [
            {"a dead member is replaced", fun replaced/1},
            {"a voter whose life another process has passed begins a later one", fun passed_life/1},
            {"a node of the list that runs as a client stops the members until it is gone", fun listed_client/1},
            {"a member moves to another machine with its name and its state file", fun moved/1}
        ])
    ].

%% The first three nodes are the members. Each node has a state file.
cluster(Count, Tests) ->
    {setup, fun folder/0, fun canal_lock_quorum_state_file_tests:delete/1, fun(Folder) ->
        test_nodes:tests(Count, [], [
            {Title, fun(Nodes) -> run(Test, In, Nodes) end}
         || {Title, Test} <- Tests, In <- [filename:join(Folder, Title)]
        ])
    end}.

run(Test, Folder, Nodes) ->
    ok = filelib:ensure_dir(filename:join(Folder, "file")),
    put(folder, Folder),
    Three = lists:sublist(Nodes, 3),
    try
        ok = test_quorum_cluster:start_all([{Node, options(Node, Three)} || Node <- Three]),
        test_nodes:introduce(Nodes),
        Test(Nodes)
    after
        [stop(Node) || Node <- Nodes]
    end.

options(Node, Members) ->
    (test_quorum_cluster:options(Members))#{state_file => filename:join(get(folder), name(Node))}.

restart(Node, Members) ->
    restart(Node, Members, #{}).

restart(Node, Members, Changes) ->
    stop(Node),
    start(Node, maps:merge(options(Node, Members), Changes)).

listen(Node) ->
    Listener = worker(Node),
    test_nodes:order(Listener, fun() -> test_log_listener:start(notice) end),
    Listener.

%% Until this was reported.
await_report(Listener, Report) ->
    test_nodes:order(Listener, fun() ->
        test_await:value(true, fun() ->
            Reports = [Reported || #{msg := {report, Reported}} <- test_log_listener:events()],
            lists:member(Report, [maps:with(maps:keys(Report), Reported) || Reported <- Reports])
        end)
    end).

members(Nodes) -> lists:sort([name(Node) || Node <- Nodes]).

differs(Node, Members) ->
    #{node => name(Node), differs => members, members => members(Members)}.

not_heard(Nodes) ->
    [#{node => Node, differs => not_heard} || Node <- members(Nodes)].

%% The fence of a lock that is unlocked again.
fence(Node) ->
    Worker = worker(Node),
    {ok, Fence} = lock(Worker, x, ?LONG_MS),
    ok = unlock_async(Worker, x),
    Fence.

%% A member that has just been restarted may not have said hello yet.
is_refused(Node) ->
    Refused = fun() -> {error, _} = lock(worker(Node), y, ?LONG_MS) end,
    test_await:value({error, misconfigured}, Refused).

stray([A, B, C] = Nodes) ->
    [Listening, Straying] = [listen(Node) || Node <- [A, C]],
    Holder = worker(B),
    {ok, _} = lock(Holder, x, ?LONG_MS),
    ok = restart(C, [A, C]),
    [await_status(Node, conflict, [differs(C, [A, C])]) || Node <- [A, B]],
    await_report(Listening, (differs(C, [A, C]))#{what => conflict, ours => members(Nodes)}),
    await_report(Straying, (differs(A, Nodes))#{what => conflict, ours => members([A, C])}),
    [await_status(Node, voting, false) || Node <- Nodes],
    [is_refused(Node) || Node <- Nodes],
    ?assertMatch(#{totals := #{refused_misconfigured := 1}}, call(A, fun canal_lock_quorum:status/0)),
    %% B's lock has the votes of A and B, which are renewed.
    timer:sleep(2 * test_quorum_cluster:lease_ms()),
    ?assert(held(Holder, x)),
    ok = test_quorum_cluster:unlock(Holder, x),
    %% When it has stopped, it is in no conflict.
    stop(C),
    [await_status(Node, conflict, []) || Node <- [A, B]],
    await_report(Listening, #{what => agrees, node => name(C)}),
    _ = fence(A),
    %% B has the list of three.
    ok = restart(C, Nodes),
    await_voting(Nodes),
    [ok = test_nodes:order(Listener, fun test_log_listener:stop/0) || Listener <- [Listening, Straying]].

listed_client([A, B, C, Client] = Four) ->
    Three = [A, B, C],
    Listening = listen(A),
    ok = start(Client, test_quorum_cluster:client_options(Three)),
    [ok = restart(Node, Four, #{forget => [name(Client)]}) || Node <- Three],
    [await_status(Node, conflict, [differs(Client, Three)]) || Node <- Three],
    is_refused(A),
    ok = test_quorum_cluster:isolate(Client, Three),
    await_report(Listening, #{what => agrees, node => name(Client)}),
    [await_status(Node, voting, true) || Node <- Three].

%% It has not said that it has stopped.
killed_stray([A, B, C] = Nodes) ->
    ok = restart(C, [A, C]),
    [await_status(Node, conflict, [differs(C, [A, C])]) || Node <- [A, B]],
    call(C, fun test_quorum_cluster:kill_supervisor/0),
    is_refused(A),
    [ok = restart(Node, Nodes) || Node <- [A, B]],
    [await_status(Node, conflict, []) || Node <- [A, B]],
    _ = fence(A),
    ok = restart(C, Nodes),
    await_voting(Nodes).

taken_back([A, B, C] = Nodes) ->
    ok = test_quorum_cluster:isolate(A, [B, C]),
    %% A member that does not exist.
    Typed = options(A, Nodes),
    #{members := Members} = Typed,
    stop(A),
    ok = start(A, Typed#{members := ['nobody@nowhere' | Members]}),
    NotHeard = lists:sort([#{node => 'nobody@nowhere', differs => not_heard} | not_heard([B, C])]),
    await_status(A, conflict, NotHeard),
    ok = restart(A, Nodes),
    await_status(A, conflict, NotHeard),
    test_nodes:introduce(Nodes),
    await_status(A, conflict, [#{node => 'nobody@nowhere', differs => not_heard}]),
    _ = fence(B),
    ok = restart(A, Nodes, #{forget => ['nobody@nowhere']}),
    await_voting(Nodes),
    %% The option is needed once.
    ok = restart(A, Nodes),
    await_voting(Nodes).

%% As if a process that was killed had begun another life in the meantime. The voter finds it at its next write.
passed_life([A, B, C, _]) ->
    Path = unicode:characters_to_binary(filename:join(get(folder), name(A))),
    [stop(Node) || Node <- [A, B, C]],
    Pair = fun(Node) -> start(Node, (options(Node, [A, B]))#{forget => [name(C)]}) end,
    ok = Pair(A),
    await_status(A, conflict, not_heard([B])),
    Later = call(A, fun() ->
        {ok, State = #{life := Life}} = canal_lock_quorum_nif:state_read(Path),
        {ok, true} = canal_lock_quorum_state_file:store(Path, State#{life := Life + 10}),
        Life + 10
    end),
    ok = Pair(B),
    await_voting([A, B]),
    {ok, #{life := Now}} = call(A, fun() -> canal_lock_quorum_nif:state_read(Path) end),
    ?assert(Now > Later).

%% Neither of them connects by itself.
connected_again([A, B, C]) ->
    stop(C),
    ok = test_quorum_cluster:isolate(A, [B]),
    Changes = #{forget => [name(C)], reconnect_ms => 3_600_000},
    [ok = restart(Node, [A, B], Changes) || Node <- [A, B]],
    [await_status(Node, conflict, not_heard([Other])) || {Node, Other} <- [{A, B}, {B, A}]],
    test_nodes:introduce([A, B]),
    call(A, fun() -> true = net_kernel:connect_node(name(B)) end),
    await_voting([A, B]).

other_lease([A, B, C] = Nodes) ->
    lists:foreach(fun(Node) ->
        ok = restart(Node, Nodes, #{run => 3}),
        await_voting(Nodes)
    end, [A, B]),
    Longer = #{lease_ms => 2000},
    ok = restart(C, Nodes, Longer),
    [await_status(Node, conflict, [#{node => name(C), differs => lease_ms, lease_ms => 2000}]) || Node <- [A, B]],
    [is_refused(Node) || Node <- Nodes],
    [ok = restart(Node, Nodes, Longer) || Node <- [A, B]],
    await_voting(Nodes).

%% The test sends the hellos of a member that runs another version.
other_version([A, B, C] = Nodes) ->
    Listening = listen(A),
    Differs = #{node => name(B), differs => frame_version, frame_version => 2},
    Options = options(B, Nodes),
    Hellos = call(B, fun() ->
        Config = canal_lock_quorum_config:make(Options),
        [{Node, canal_lock_quorum_lists:hello_for(Node, Config)} || Node <- [name(A), name(C)]]
    end),
    stop(B),
    call(B, fun() ->
        [
            {canal_lock_quorum_connections, Node} ! {canal_lock_quorum_hello, node(), Hello#{frame_version := 2}}
         || {Node, Hello} <- Hellos
        ]
    end),
    [await_status(Node, conflict, [Differs]) || Node <- [A, C]],
    await_report(Listening, Differs#{what => conflict, ours => 1}),
    ok = test_nodes:order(Listening, fun test_log_listener:stop/0),
    [is_refused(Node) || Node <- [A, C]],
    ok = start(B, options(B, Nodes)),
    await_voting(Nodes).

%% The others ignore the frames of B, so its agent must know that they differ.
processes_killed([A, B, C] = Nodes) ->
    [ok = restart(Node, [A, C]) || Node <- [A, C]],
    Conflict = [differs(Node, [A, C]) || Node <- lists:sort(fun(X, Y) -> name(X) =< name(Y) end, [A, C])],
    await_status(B, conflict, Conflict),
    [
        begin
            call(B, fun() -> test_quorum_cluster:kill_process(Process) end),
            await_status(B, voting, false),
            await_status(B, conflict, Conflict),
            is_refused(B)
        end
     || Process <- [canal_lock_quorum_connections, canal_lock_quorum_voter, canal_lock_quorum_agent]
    ],
    %% The next supervisor begins without hellos.
    call(B, fun() -> test_quorum_cluster:kill_supervisor() end),
    ok = start(B, options(B, Nodes)),
    await_status(B, conflict, Conflict),
    [ok = restart(Node, Nodes) || Node <- [A, C]],
    await_voting(Nodes).

three_and_five([A, B, C, D, E] = Five) ->
    Three = [A, B, C],
    Holder = worker(A),
    {ok, First} = lock(Holder, x, ?LONG_MS),
    [ok = start(Node, options(Node, Five)) || Node <- [D, E]],
    [await_status(Node, conflict, lists:sort([differs(D, Five), differs(E, Five)])) || Node <- Three],
    [await_status(Node, conflict, lists:sort([differs(Other, Three) || Other <- Three])) || Node <- [D, E]],
    [is_refused(Node) || Node <- Five],
    ?assert(held(Holder, x)),
    lists:foreach(fun(Node) ->
        ok = restart(Node, Five),
        [is_refused(Other) || Other <- Five]
    end, [B, C]),
    %% It has lost its votes.
    ?assertEqual({error, misconfigured}, lock(worker(D), x, ?LONG_MS)),
    ok = restart(A, Five),
    ?assertNot(held(Holder, x)),
    await_voting(Five),
    [await_status(Node, conflict, []) || Node <- Five],
    ?assert(fence(D) > First),
    %% The new list is stored: a member restarts although two others are down.
    [stop(Node) || Node <- [D, E]],
    ok = restart(A, Five),
    await_status(A, voting, true),
    _ = fence(A).

separated([A, B, C, D, E] = Five) ->
    [ok = test_quorum_cluster:isolate(Node, [A, B]) || Node <- [C, D, E]],
    [ok = restart(Node, Five) || Node <- [C, D, E]],
    %% D and E have no file, so they also wait for fences.
    await_status(C, conflict, not_heard([A, B])),
    _ = fence(A),
    Stopped = fun(Node) -> call(Node, fun canal_lock_quorum:status/0) end,
    ?assertMatch([#{voting := false}, #{voting := false}, #{voting := false}], [Stopped(Node) || Node <- [C, D, E]]),
    ?assertMatch({error, _}, lock(worker(D), x, 3000)),
    Before = fence(B),
    test_nodes:introduce(Five),
    [await_status(Node, voting, false) || Node <- Five],
    [ok = restart(Node, Five) || Node <- [A, B]],
    await_voting(Five),
    ?assert(fence(D) > Before).

quorum_leaves(Five) ->
    [ok = restart(Node, Five) || Node <- Five],
    await_voting(Five),
    {Leaving, Staying} = lists:split(3, Five),
    Fences = [fence(hd(Staying)) || _ <- lists:seq(1, 200)],
    [stop(Node) || Node <- Five],
    Forget = #{forget => members(Leaving)},
    [ok = restart(Node, Staying, Forget) || Node <- Staying],
    await_voting(Staying),
    ?assert(fence(hd(Staying)) > lists:max(Fences)).

replaced([A, B, C, D]) ->
    New = [A, B, D],
    Before = fence(C),
    [ok = test_quorum_cluster:isolate(C, [Node]) || Node <- [A, B, D]],
    ok = start(D, options(D, New)),
    ok = restart(A, New),
    await_status(A, conflict, [differs(B, [A, B, C]) | not_heard([C])]),
    [ok = restart(Node, New, #{forget => [name(C)]}) || Node <- [A, B]],
    await_voting(New),
    ?assert(fence(D) > Before),
    %% The option is needed once.
    [
        begin
            ok = restart(Node, New),
            await_voting(New)
        end
     || Node <- [A, B]
    ],
    %% C is not dead. It has the earlier list and no quorum.
    test_nodes:introduce([A, B, C, D]),
    [await_status(Node, conflict, [differs(C, [A, B, C])]) || Node <- [A, B]],
    is_refused(C),
    stop(C),
    await_voting(New),
    _ = fence(A).

%% Another VM with the same name, whose state file is a copy at another path.
moved([A, B | Others]) ->
    Old = test_nodes:start(),
    Three = [A, B, Old],
    [stop(Node) || Node <- [A, B | Others]],
    Options = #{state_file := File} = options(Old, Three),
    %% This is no change of the list: the others forget their old one.
    [ok = file:delete(maps:get(state_file, options(Node, Three))) || Node <- [A, B]],
    ok = test_quorum_cluster:start_all([{Node, options(Node, Three)} || Node <- Three]),
    Before = fence(Old),
    ok = test_nodes:shut_down(Old),
    Moved = File ++ ".moved",
    ok = file:rename(File, Moved),
    New = test_nodes:restart(Old, []),
    try
        test_nodes:introduce([A, B, New]),
        ok = start(New, Options#{state_file => Moved}),
        await_voting([A, B, New]),
        stop(B),
        After = fence(New),
        ?assert(After > Before)
    after
        test_nodes:stop(New)
    end.

folder() ->
    canal_lock_quorum_state_file_tests:folder().
