%% A cluster is upgraded node by node to a version that has one more version of frames and one more rule.
-module(canal_lock_quorum_upgrade_tests).

-include_lib("eunit/include/eunit.hrl").

-import(test_nodes, [call/2, worker/1, name/1, send_order/2]).
-import(test_quorum_cluster, [lock/3, held/2, messages/1, await_status/3, await_voting/1]).

-define(TIMEOUT_S, 240).
-define(LONG_MS, 30_000).

upgrade_test_() ->
    {setup, fun start/0, fun stop/1, fun({Folder, Next, Nodes}) ->
        Test = fun() -> upgraded(Folder, Next, Nodes) end,
        {timeout, test_setup:times(?TIMEOUT_S),
            {"an upgrade node by node loses no lock and no quorum, and a new rule needs all nodes", Test}}
    end}.

start() ->
    {canal_lock_quorum_state_tests:folder(), test_next_version:build(), [test_nodes:start() || _ <- [1, 2, 3]]}.

%% Upgraded nodes have ended, and end with this process if not.
stop({Folder, _, Nodes}) ->
    [test_nodes:stop(Node) || Node <- Nodes],
    canal_lock_quorum_state_tests:delete(Folder).

options(Folder, Node, Nodes) ->
    (test_quorum_cluster:options(Nodes))#{fence_file => filename:join(Folder, name(Node))}.

upgraded(Folder, Next, [A, B, C] = Nodes) ->
    ok = test_quorum_cluster:start_all([{Node, options(Folder, Node, Nodes)} || Node <- Nodes]),
    Locked = [locked(Node) || Node <- Nodes],
    Upgrade = fun(Old = {Node, _, _}, {New, [Old | Rest]}) ->
        Added = upgrade(Old, Next, options(Folder, Node, Nodes), {New, Rest}),
        {[Added | New], Rest}
    end,
    %% Each node holds a lock and locks names without a pause, until it is upgraded.
    {New, []} = lists:foldl(Upgrade, {[], Locked}, Locked),
    Upgraded = [Node || {Node, _, _} <- New],
    await_voting(Upgraded),
    [await_frames(Node, [3, 3, 3]) || Node <- Upgraded],
    Refused = [refused(Load) || {_, _, Load} <- New],
    ?assertEqual([[], [], []], Refused),
    ?assertEqual([true, true, true], [held(Holder, {held, name(Node)}) || {Node, Holder, _} <- New]),
    %% The new rule. The others do not have it yet.
    [One | Others] = Upgraded,
    Options = #{rules := Rules} = options(Folder, One, Nodes),
    ok = test_quorum_cluster:stop(One),
    ok = test_quorum_cluster:start(One, Options#{rules := Rules#{next => 2}}),
    [
        ?assertMatch(
            [#{differs := rules, rules := #{next := 2}}],
            call(Node, fun() -> test_await:value(true, fun has_conflict/0), conflict() end)
        )
     || Node <- Others
    ],
    [test_nodes:stop(Node) || Node <- Upgraded],
    ok = ended([A, B, C]).

has_conflict() -> conflict() =/= [].

conflict() ->
    #{conflict := Conflict} = canal_lock_quorum:status(),
    Conflict.

ended(Nodes) ->
    ?assertEqual([false, false, false], [test_nodes:is_alive(Node) || Node <- Nodes]),
    ok.

%% The node, a worker with a lock, and the order to lock names until it is told to stop.
locked(Node) ->
    Holder = worker(Node),
    {ok, _} = lock(Holder, {held, name(Node)}, ?LONG_MS),
    ok = all_have_answered(Node),
    Loader = worker(Node),
    Ref = send_order(Loader, fun() -> load(0, []) end),
    {Node, Holder, {Loader, Ref}}.

%% All voters have answered a message that the node sent after this call began, so they have answered the request for
%% the lock, too. Otherwise the lock can have exactly a quorum of votes, and the restart of one of these voters ends it.
all_have_answered(Node) ->
    #{holder_lease_ms := Lease_ms} = test_quorum_cluster:rules(),
    call(Node, fun() ->
        Start_ms = erlang:monotonic_time(millisecond),
        test_await:value(true, fun() ->
            #{members := Members} = canal_lock_quorum:status(),
            Rest_ms = Lease_ms - (erlang:monotonic_time(millisecond) - Start_ms),
            lists:all(fun(#{valid_ms := Valid_ms}) -> Valid_ms > Rest_ms end, Members)
        end)
    end).

%% Returns what was refused.
load(Count, Refused) ->
    receive
        stop when Count > 0 -> Refused
    after 0 ->
        Name = case Count rem 2 of 0 -> shared; 1 -> {own, node()} end,
        case canal_lock_quorum:lock(Name, ?LONG_MS) of
            {ok, Lock} ->
                ok = canal_lock_quorum:unlock_async(Lock),
                load(Count + 1, Refused);
            {error, Reason} ->
                load(Count + 1, [Reason | Refused])
        end
    end.

refused({Loader, Ref}) ->
    ok = test_nodes:send(Loader, stop),
    test_await:answer(Ref).

%% Of one node, while the other ones hold and lock.
upgrade({Old, _, Load}, Next, Options, {New, Rest}) ->
    Others = New ++ Rest,
    ?assertEqual([], refused(Load)),
    ok = test_nodes:shut_down(Old),
    Node = test_nodes:restart(Old, []),
    ok = test_next_version:use(Next, Node),
    Nodes = [Node | [Other || {Other, _, _} <- Others]],
    test_nodes:introduce(Nodes),
    ok = test_quorum_cluster:start(Node, Options),
    await_voting(Nodes),
    %% It sends old frames to old nodes.
    Versions = [
        case lists:member(Other, [name(Known) || {Known, _, _} <- Rest]) of true -> 2; false -> 3 end
     || Other <- lists:sort([name(Member) || Member <- Nodes])
    ],
    await_frames(Node, Versions),
    ?assertEqual([], lists:append([messages(Holder) || {_, Holder, _} <- Others])),
    [?assert(held(Holder, {held, name(Other)})) || {Other, Holder, _} <- Others],
    [await_status(Other, conflict, []) || Other <- Nodes],
    locked(Node).

await_frames(Node, Versions) ->
    call(Node, fun() ->
        test_await:value(Versions, fun() ->
            #{members := Members} = canal_lock_quorum:status(),
            [Version || #{frames := Version} <- Members]
        end)
    end).
