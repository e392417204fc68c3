%% Singletons on real nodes. After each test, a witness that knows nothing of the locks must have seen one copy at a
%% time: while processes and nodes are killed, cut off, suspended and shut down.
-module(canal_lock_quorum_singleton_tests).

-include_lib("eunit/include/eunit.hrl").

-import(test_nodes, [call/2, worker/1, order/2]).

-export([start_and_die/0]).

%% For tests in which no lease may expire: a copy that starts within half of it starts because a lock was released.
-define(LEASE_MS, 30_000).

%% For those in which leases expire. A child that can stop does so in three tenths of it, also on a busy machine.
-define(SHORT_LEASE_MS, 3000).

%% For one in which a child is killed a tenth of it before it expires, which must be enough also on a busy machine.
-define(DEFAULT_LEASE_MS, 10_000).

%% Longer than the next node needs to start its child when it gets the locks.
-define(SLOW_MS, 2000).

released_test_() ->
    tests(?LEASE_MS, [
        {"a clean shutdown stops the child before the next node starts it", fun shut_down/1},
        {"a child that does not stop in its time is killed before the next node starts it", fun slow_shut_down/1},
        {"whichever process of a singleton is killed, one copy runs at a time, and one runs again", fun killed/1},
        {"the same while the child starts", fun killed_at_start/1},
        {"the agent is killed under a copy", fun agent_killed/1},
        {"canal_lock_quorum stops under a copy, and starts again", fun locks_stopped/1},
        {"force_unlock/1 moves the child", fun forced/1},
        {"a child that crashes is restarted on its node; too often, and another node starts it", fun crashes/1},
        {"the singleton process ends with the reason for which its child does not run", fun reasons/1},
        {"a child that ends and is not restarted runs on no other node", fun ends/1},
        {"a function gets the lock, and the fences of copies grow", fun fences/1},
        {"unknown messages change nothing", fun unknown_messages/1}
    ]).

expired_test_() ->
    tests(?SHORT_LEASE_MS, [
        {"one copy runs, and whereis/1 finds it from each node", fun found/1},
        {"a node is cut off, and its child stops before another node starts it", fun cut_off/1},
        {"the agent hangs, and the child is killed before another node starts it", fun agent_hangs/1},
        {"a node is suspended, and its child ends when it continues", fun suspended/1}
    ]).

default_lease_test_() ->
    tests(?DEFAULT_LEASE_MS, [
        {"a process of a child that ignores its shutdown is killed before the lease ends", fun ignores_shutdown/1}
    ]).

client_test_() ->
    tests(4, ?SHORT_LEASE_MS, [{"a client is a node as others are", fun found/1}]).

dead_node_test_() ->
    test_quorum_restarts:tests(3, [{"a node is killed, and another one starts the child", fun node_killed/1}]).

tests(Lease_ms, Tests) ->
    tests(3, Lease_ms, Tests).

%% Three members; any more are clients. With a folder for the witness.
tests(Count, Lease_ms, Tests) ->
    test_nodes:tests(Count, [], [{Title, fun(Nodes) -> run(Nodes, Lease_ms, Test) end} || {Title, Test} <- Tests]).

run(Nodes, Lease_ms, Test) ->
    Folder = canal_lock_quorum_state_file_tests:folder(),
    {Members, Clients} = lists:split(3, Nodes),
    Options = maps:from_list(
        [{Node, (test_quorum_cluster:options(Members))#{clients => all}} || Clients =/= [], Node <- Members] ++
            [{Node, test_quorum_cluster:options(Members)} || Clients =:= [], Node <- Members] ++
            [{Node, test_quorum_cluster:client_options(Members)} || Node <- Clients]
    ),
    put(folder, Folder),
    put(options, maps:map(fun(_, Of) -> Of#{lease_ms := Lease_ms} end, Options)),
    try
        test_quorum_cluster:on(Nodes, fun(Node, _) -> maps:get(Node, get(options)) end, fun(_) ->
            Test(Nodes),
            [test_nodes:kill_workers(Node) || Node <- Nodes],
            ?assertEqual([], test_singleton_witness:overlaps(Folder))
        end)
    after
        ok = file:del_dir_r(Folder)
    end.

%%% What tests do

%% Starts a supervisor with the singleton on each of these nodes.
start_all(Nodes, Options) ->
    maps:from_list([{Node, start(Node, test_singleton_witness:child(get(folder), Options))} || Node <- Nodes]).

start(Node, Child) ->
    order(worker(Node), fun() ->
        test_setup:supervise(10, [canal_lock_quorum_singleton:child_spec(#{name => one, child => Child})])
    end).

%% When this many copies have started: the node of the last one.
await_copy(Count, Nodes) ->
    Names = fun() -> [Name || {_, _, Name, _} <- test_singleton_witness:runs(get(folder))] end,
    ok = test_await:value(true, fun() -> length(Names()) >= Count end),
    {Count, Last} = {length(Names()), lists:last(Names())},
    [Node] = [Node || Node <- Nodes, test_nodes:name(Node) =:= Last],
    Node.

%% The same for a copy that started because the previous one had released its locks.
await_released(Count, Nodes) ->
    Node = await_copy(Count, Nodes),
    [{From, _, _, _}, {_, Until, _, _} | _] = lists:reverse(test_singleton_witness:runs(get(folder))),
    ?assert((From - Until) div 1_000_000 < ?LEASE_MS div 2),
    Node.

%% When its start is over.
await_child(Node) ->
    ok = test_await:value(true, fun() -> is_pid(whereis_one(Node)) end),
    whereis_one(Node).

whereis_one(Node) ->
    call(Node, fun() -> canal_lock_quorum_singleton:whereis(one) end).

stop(Node, Supervisor) ->
    call(Node, fun() -> gen_server:stop(Supervisor, shutdown, infinity) end).

kill(Node, Pid) ->
    call(Node, fun() -> test_worker:kill(Pid) end).

singleton(Node, Supervisor) ->
    [{_, Singleton, _, _}] = call(Node, fun() -> supervisor:which_children(Supervisor) end),
    Singleton.

%% The processes of the singleton whose copy runs or starts on this node.
processes(Node, Supervisor) ->
    Singleton = singleton(Node, Supervisor),
    call(Node, fun() ->
        [One, Two] = [
            hd([Guard || #{holder := Guard} <- element(1, canal_lock_quorum:holder(Name))])
         || Name <- [{canal_lock_quorum_singleton, one}, {canal_lock_quorum_singleton, one, 2}]
        ],
        Copy = gen_server:call(One, copy),
        #{supervisor => Supervisor, singleton => Singleton, copy => Copy, guard_1 => One, guard_2 => Two}
    end).

%%% Wrong calls

wrong_calls_test_() ->
    Name = "be the name of a lock, of at most 900 bytes",
    Child = "be a child specification or a function of arity 1",
    Right = #{name => one, child => #{id => it, start => {?MODULE, start_and_die, []}}},
    Wrong = fun(Option, Must, Value) ->
        Text = lists:flatten(io_lib:format("the option ~s must ~s, got: ~0tp", [Option, Must, Value])),
        {Right#{Option := Value}, Text}
    end,
    [
        {Text, ?_assertEqual({badarg, Function, #{1 => Text}}, raised(Function, [Argument]))}
     || {Functions, Argument, Text} <- [
            {[whereis], 1.0, "Name must " ++ Name ++ ", got: 1.0"}
            | [
                {[start_link, child_spec], Options, Text}
             || {Options, Text} <- [
                    {[], "Options must be a map, got: []"},
                    {#{}, "the option name is missing; it must " ++ Name},
                    {#{name => one}, "the option child is missing; it must " ++ Child},
                    {Right#{id => 1}, "unknown option id; the options are name, child"},
                    Wrong(name, Name, #{}),
                    Wrong(child, Child, one),
                    Wrong(child, Child, fun erlang:node/0)
                ]
            ]
        ],
        Function <- Functions
    ].

raised(Function, Arguments) ->
    try apply(canal_lock_quorum_singleton, Function, Arguments) of
        Answer -> {answered, Answer}
    catch
        error:Reason:Stack ->
            [{canal_lock_quorum_singleton, Raising, _, Info} | _] = Stack,
            #{module := Module} = proplists:get_value(error_info, Info),
            Texts = Module:format_error(Reason, Stack),
            {Reason, Raising, maps:map(fun(_, Text) -> unicode:characters_to_list(Text) end, Texts)}
    end.

long_name_test() ->
    Of = fun(Bytes) -> #{name => binary:copy(<<"x">>, Bytes), child => {it, {m, f, []}, permanent, 1, worker, [m]}} end,
    ?assertMatch(#{id := _}, canal_lock_quorum_singleton:child_spec(Of(894))),
    ?assertMatch({badarg, child_spec, #{1 := "the option name must " ++ _}}, raised(child_spec, [Of(895)])).

not_started_test() ->
    Child = #{id => it, start => {?MODULE, start_and_die, []}},
    {badarg, start_link, #{general := Text}} = raised(start_link, [#{name => one, child => Child}]),
    ?assertEqual("canal_lock_quorum is not started on this node", hd(string:split(Text, ":"))),
    ?assertError(badarg, canal_lock_quorum_singleton:whereis(one)).

%%% A lock is released

found(Nodes) ->
    Supervisors = start_all(Nodes, #{}),
    First = await_copy(1, Nodes),
    Second = found_and_stopped(First, Supervisors, Nodes),
    Third = found_and_stopped(Second, Supervisors, Nodes),
    ?assertEqual(length(lists:usort([First, Second, Third])), 3),
    _ = [found_and_stopped(Third, Supervisors, Nodes) || length(Nodes) > 3],
    ok.

found_and_stopped(Node, Supervisors, Nodes) ->
    Child = await_child(Node),
    ?assertEqual([Child], lists:usort([whereis_one(Each) || Each <- Nodes])),
    ?assertEqual({[Child], undefined}, call(Node, fun() ->
        {[Pid || Pid <- [Child], is_process_alive(Pid)], canal_lock_quorum_singleton:whereis(other)}
    end)),
    Count = length(test_singleton_witness:runs(get(folder))),
    stop(Node, maps:get(Node, Supervisors)),
    await_copy(Count + 1, Nodes).

shut_down(Nodes) ->
    Supervisors = start_all(Nodes, #{stop_ms => ?SLOW_MS}),
    First = await_copy(1, Nodes),
    stop(First, maps:get(First, Supervisors)),
    ?assertNotEqual(First, await_released(2, Nodes)).

slow_shut_down(Nodes) ->
    Supervisors = start_all(Nodes, #{stop_ms => infinity, shutdown => 100}),
    First = await_copy(1, Nodes),
    stop(First, maps:get(First, Supervisors)),
    ?assertNotEqual(First, await_released(2, Nodes)).

killed(Nodes) ->
    Supervisors = start_all(Nodes, #{stop_ms => ?SLOW_MS}),
    Node = await_copy(1, Nodes),
    lists:foldl(fun kill_one/2, {1, Node, Supervisors}, [singleton, copy, guard_1, guard_2, child, supervisor]).

kill_one(Which, {Count, Node, Supervisors}) ->
    Child = await_child(Node),
    Processes = processes(Node, maps:get(Node, Supervisors)),
    kill(Node, maps:get(Which, Processes#{child => Child})),
    Next = await_released(Count + 1, maps:keys(Supervisors)),
    ?assert(Which =/= child orelse Next =:= Node),
    ?assert(Which =/= supervisor orelse Next =/= Node),
    {Count + 1, Next, Supervisors}.

%% A copy that starts does not stop before its start is over.
killed_at_start(Nodes) ->
    Supervisors = start_all(Nodes, #{init_ms => ?SLOW_MS div 2, stop_ms => ?SLOW_MS div 2}),
    Start = fun(Which, Count) ->
        Node = await_copy(Count, Nodes),
        kill(Node, maps:get(Which, processes(Node, maps:get(Node, Supervisors)))),
        _ = await_released(Count + 1, Nodes),
        Count + 1
    end,
    lists:foldl(Start, 1, [singleton, copy, guard_1, guard_2]).

agent_killed(Nodes) ->
    _ = start_all(Nodes, #{stop_ms => ?SLOW_MS}),
    First = await_copy(1, Nodes),
    call(First, fun() -> test_quorum_cluster:kill_process(canal_lock_quorum_agent) end),
    await_released(2, Nodes).

locks_stopped(Nodes) ->
    Supervisors = start_all(Nodes, #{stop_ms => ?SLOW_MS}),
    First = await_copy(1, Nodes),
    ok = test_quorum_cluster:stop(First),
    Second = await_released(2, Nodes),
    ?assertNotEqual(First, Second),
    ok = await_pause(First, maps:get(First, Supervisors)),
    test_quorum_cluster:start(First, maps:get(First, get(options))),
    ok = test_quorum_cluster:await_voting(Nodes),
    %% The two others end in the order in which no copy starts in between.
    [Third] = Nodes -- [First, Second],
    [stop(Node, maps:get(Node, Supervisors)) || Node <- [Third, Second]],
    ?assertEqual(First, await_released(3, Nodes)).

%% Between two requests of its guard.
await_pause(Node, Supervisor) ->
    Singleton = singleton(Node, Supervisor),
    call(Node, fun() ->
        test_await:value([{current_function, {timer, sleep, 1}}], fun() ->
            {links, Linked} = process_info(Singleton, links),
            [process_info(Guard, current_function) || Guard <- Linked -- [Supervisor]]
        end)
    end).

%% The end of a lock costs no restart of the supervisor.
forced(Nodes) ->
    Supervisors = start_all(Nodes, #{stop_ms => ?SLOW_MS}),
    First = await_copy(1, Nodes),
    Supervisor = maps:get(First, Supervisors),
    Singleton = singleton(First, Supervisor),
    _ = call(First, fun() -> canal_lock_quorum:force_unlock({canal_lock_quorum_singleton, one}) end),
    _ = await_released(2, Nodes),
    ?assertEqual(Singleton, singleton(First, Supervisor)).

crashes(Nodes) ->
    _ = start_all(Nodes, #{}),
    First = await_copy(1, Nodes),
    Crash = fun(Count) ->
        kill(First, await_child(First)),
        await_released(Count + 1, Nodes)
    end,
    ?assertEqual([First, First, First], [Crash(Count) || Count <- [1, 2, 3]]),
    ?assertNotEqual(First, Crash(4)).

reasons([Node | _]) ->
    Spec = fun(Start) -> #{id => it, start => Start} end,
    Dies = Spec({?MODULE, start_and_die, []}),
    lists:foreach(fun({Child, Is}) -> ?assert(Is(reason(Node, Child))) end, [
        {Dies, fun(Reason) -> Reason =:= reached_max_restart_intensity end},
        {fun(_) -> Dies end, fun(Reason) -> Reason =:= reached_max_restart_intensity end},
        {Spec({erlang, error, [oops]}), fun({failed_to_start_child, it, {'EXIT', {oops, _}}}) -> true end},
        {fun(_) -> error(oops) end, fun({oops, _}) -> true end},
        {fun(_) -> none end, fun({start_spec, _}) -> true end}
    ]).

reason(Node, Child) ->
    order(worker(Node), fun() ->
        _ = process_flag(trap_exit, true),
        {ok, Singleton} = canal_lock_quorum_singleton:start_link(#{name => one, child => Child}),
        test_await:exit_reason(Singleton)
    end).

start_and_die() ->
    {ok, spawn_link(fun() -> exit(oops) end)}.

ends([A | _] = Nodes) ->
    Supervisors = start_all(Nodes, #{restart => transient}),
    First = await_copy(1, Nodes),
    Child = await_child(First),
    call(First, fun() -> gen_server:cast(Child, end_it), test_await:down([Child]) end),
    ok = test_await:value(undefined, fun() -> whereis_one(A) end),
    Name = {canal_lock_quorum_singleton, one},
    ?assertMatch({[#{held := true}], []}, call(A, fun() -> canal_lock_quorum:holder(Name) end)),
    ok = test_await:value(2, fun() -> length(element(1, call(A, fun() -> canal_lock_quorum:waiting(Name) end))) end),
    ?assertEqual(First, await_copy(1, Nodes)),
    stop(First, maps:get(First, Supervisors)),
    ?assertNotEqual(First, await_copy(2, Nodes)).

%% A fence is the id of its child.
fences(Nodes) ->
    Child = test_singleton_witness:child(get(folder), #{}),
    Get = fun(Lock) ->
        true = canal_lock_quorum:is_held(Lock),
        Child#{id := canal_lock_quorum:fence(Lock)}
    end,
    Supervisors = maps:from_list([{Node, start(Node, Get)} || Node <- Nodes]),
    Fence = fun(Count) ->
        Node = await_copy(Count, Nodes),
        _ = await_child(Node),
        Supervisor = maps:get(Node, Supervisors),
        #{copy := Copy} = processes(Node, Supervisor),
        [{Fence, _, _, _}] = call(Node, fun() -> supervisor:which_children(Copy) end),
        stop(Node, Supervisor),
        Fence
    end,
    Fences = [Fence(Count) || Count <- [1, 2, 3]],
    ?assertEqual(lists:usort(Fences), Fences).

unknown_messages([A | _] = Nodes) ->
    Supervisors = start_all([A], #{}),
    Child = await_child(await_copy(1, Nodes)),
    Supervisor = maps:get(A, Supervisors),
    #{singleton := Singleton, guard_1 := Guard} = processes(A, Supervisor),
    call(A, fun() ->
        lists:foreach(fun(Pid) ->
            Pid ! unknown,
            gen_server:cast(Pid, unknown)
        end, [Singleton, Guard]),
        ?assertEqual({error, unknown_call}, gen_server:call(Singleton, unknown)),
        test_await:down([spawn(fun() -> link(Singleton), link(Guard), exit(oops) end)])
    end),
    ?assertEqual(Child, whereis_one(A)),
    ?assertMatch(#{singleton := Singleton}, processes(A, Supervisor)).

%%% A lease ends

node_killed(Cluster) ->
    put(folder, filename:join(test_faulty_cluster:folder(Cluster), "witness")),
    ok = file:make_dir(get(folder)),
    Nodes = test_faulty_cluster:nodes_of(Cluster),
    _ = start_all(Nodes, #{}),
    First = await_copy(1, Nodes),
    [Index] = [Index || Index <- [1, 2, 3], test_faulty_cluster:node_at(Cluster, Index) =:= First],
    test_faulty_cluster:kill(Cluster, Index),
    ?assertNotEqual(First, await_copy(2, Nodes)),
    ?assertEqual([], test_singleton_witness:overlaps(get(folder))).

cut_off(Nodes) ->
    _ = start_all(Nodes, #{}),
    First = await_copy(1, Nodes),
    ok = test_quorum_cluster:isolate(First, Nodes -- [First]),
    Second = await_copy(2, Nodes),
    ?assertNotEqual(First, Second),
    ?assertMatch([{_, _, _, true}, {_, _, _, false}], test_singleton_witness:runs(get(folder))),
    ok = test_quorum_cluster:heal(Nodes),
    ?assertEqual(await_child(Second), await_child(First)).

%% The child is a supervisor, which waits for its process.
ignores_shutdown([A | Others] = Nodes) ->
    Child = test_singleton_witness:child(get(folder), #{is_tree => true, stop_ms => infinity, shutdown => infinity}),
    _ = start(A, fun(Lock) ->
        note_whether_held_at_the_end(Lock),
        Child
    end),
    A = await_copy(1, Nodes),
    _ = start_all(Others, #{}),
    ok = test_quorum_cluster:isolate(A, Others),
    ?assertNotEqual(A, await_copy(2, Nodes)),
    ?assertEqual(true, call(A, fun() -> persistent_term:get(?MODULE) end)),
    ok = test_quorum_cluster:heal(Nodes).

%% Of the copy that calls this.
note_whether_held_at_the_end(Lock) ->
    Copy = self(),
    _ = spawn(fun() ->
        ok = test_await:down([Copy]),
        persistent_term:put(?MODULE, canal_lock_quorum:is_held(Lock))
    end),
    ok.

agent_hangs(Nodes) ->
    _ = start_all(Nodes, #{}),
    First = await_copy(1, Nodes),
    ok = call(First, fun() -> sys:suspend(canal_lock_quorum_agent) end),
    ?assertNotEqual(First, await_copy(2, Nodes)),
    ok = call(First, fun() -> sys:resume(canal_lock_quorum_agent) end).

suspended(Nodes) ->
    _ = start_all(Nodes, #{}),
    First = await_copy(1, Nodes),
    Child = await_child(First),
    Suspension = test_nodes:suspend(First),
    ?assertNotEqual(First, await_copy(2, Nodes)),
    ok = test_nodes:resume(Suspension),
    ok = call(First, fun() -> test_await:down([Child]) end),
    %% What no lock can prevent.
    ok = test_singleton_witness:forget(get(folder), test_nodes:name(First)).
