%% The quorum locks when their processes are killed, connections are cut, nodes are hidden, use TLS or have other
%% options: what they survive, and what happens to the locks otherwise.
-module(canal_lock_quorum_life_tests).

-include_lib("eunit/include/eunit.hrl").

-import(test_nodes, [call/2, worker/1, send_order/2]).
-import(test_quorum_cluster, [lock/3, held/2, unlock/2, unlock_async/2, await_status/3]).
-import(test_quorum_cluster, [messages/1, messages_until_lost/2]).
-import(test_worker, [caught/1]).

%% The timeout of a lock that is granted, and of one that must be refused.
-define(LONG_MS, 60_000).
-define(SHORT_MS, 300).

%% Locks that are contended at the same time.
-define(CONTENDED, 20).

%% Longer than any timeout: no lock becomes free because a lease expires, and no lease expires because the machine is
%% busy.
-define(LEASE_MS, 70_000).

processes_test_() ->
    tests(3, [], [
        {"Q1, Q4: locks survive when the voters are killed one after the other, without a wait", fun voters_killed/1},
        {"nodes reconnect after the process that connects them is killed", fun links_killed/1},
        {"requests of a node that is disconnected do not wait at a voter, and do again when it is back",
            fun disconnected_waiter/1},
        {"Q9: the locks of an agent end with its process, and the next agent frees their names", fun agent_killed/1},
        {"a node that shuts down cleanly unlocks at once", fun stopped/1},
        {"agents notice at once that a voter has stopped cleanly, and that it runs again", fun voters_stopped/1},
        {"a node that shuts down cancels its requests", fun stopped_with_a_waiter/1},
        {"without a quorum a request is refused at once", fun no_quorum/1},
        {"unknown messages change nothing", fun unknown_messages/1}
    ]).

ends_of_leases_test_() ->
    test_quorum_cluster:tests(3, [
        {"a caller that waits exits when the agent is killed", fun agent_killed_while_asked/1},
        {"Q1: a minority loses its locks, the majority goes on, and healed nodes reconnect", fun minority/1}
    ]).

%% No node passes a lock on, so each goes to the oldest request.
contended_test_() ->
    test_quorum_cluster:tests(3, [], fun(_, Nodes) -> options_without_runs(Nodes) end, [
        {"contended locks that were just granted survive a clean restart of a voter", fun just_granted/1}
    ]).

options_without_runs(Nodes) ->
    (test_quorum_cluster:options(Nodes))#{run => 1}.

hidden_test_() ->
    tests(3, ["-hidden"], [{"hidden nodes, which never connect by themselves", fun lock_everywhere/1}]).

usual_test_() ->
    tests(3, ["-connect_all", "true", "-kernel", "dist_auto_connect", "once"], [
        {"nodes that connect with all others", fun lock_everywhere/1}
    ]).

tls_test_() ->
    {setup, fun test_tls:files/0, fun test_tls:delete/1, fun(Files) ->
        tests(3, test_tls:arguments(Files), [{"distribution over TLS", fun lock_over_tls/1}])
    end}.

alone_test_() ->
    tests(1, [], [{"a single member is a quorum, and its locks survive the voter's process", fun alone/1}]).

renamed_test_() ->
    {timeout, 60, {"a node that gets another name refuses requests, and says why", fun renamed/0}}.

connections_test_() ->
    test_nodes:tests(2, [], [
        {"attempts to connect that fail at once become rare, until the other side connects", fun wrong_cookie/1},
        {"a member that never connects is logged once", fun never_connected/1}
    ]).

tests(Count, Arguments, Tests) ->
    Options = fun(_, Nodes) ->
        (test_quorum_cluster:options(Nodes))#{lease_ms := ?LEASE_MS}
    end,
    test_quorum_cluster:tests(Count, Arguments, Options, Tests).

%% The quarantines end early: by themselves they would last for longer than the test.
voters_killed([A, B, C] = Nodes) ->
    {Holder, Other} = {worker(A), worker(B)},
    {ok, _} = lock(Holder, x, ?LONG_MS),
    lists:foreach(fun(Node) ->
        kill(Node, canal_lock_quorum_voter),
        test_quorum_cluster:await_voting(Nodes)
    end, Nodes),
    ?assertMatch({ok, _}, lock(worker(C), y, ?LONG_MS)),
    ?assertEqual({error, timeout}, lock(Other, x, ?SHORT_MS)),
    ?assert(held(Holder, x)),
    ok = unlock(Holder, x),
    ?assertMatch({ok, _}, lock(Other, x, ?LONG_MS)),
    ?assertEqual([], messages(Holder)).

%% On A, while requests of B wait for them. C restarts during the grants, or after them. On a busy machine, a request of
%% B may go first, because A is quiet; so B unlocks at once.
just_granted([A, B, C] = Nodes) ->
    Options = #{lease_ms := Lease_ms} = options_without_runs(Nodes),
    lists:foreach(fun({Round, When}) ->
        Names = [{Round, N} || N <- lists:seq(1, ?CONTENDED)],
        Locking = fun(Node) -> [{worker(Node), Name} || Name <- Names] end,
        [First, Granted, Waiting] = [Locking(Node) || Node <- [B, A, B]],
        Unlocked = fun(Name) -> ok = canal_lock_quorum:unlock(get({lock, Name})) end,
        [{ok, _} = lock(Worker, Name, ?LONG_MS) || {Worker, Name} <- First],
        [ToGrant, ToWait] = [
            [send_order(Worker, fun() -> lock_here(Name), Then(Name) end) || {Worker, Name} <- Of]
         || {Of, Then} <- [{Granted, fun(_) -> ok end}, {Waiting, Unlocked}]
        ],
        await_status(C, queued, ?CONTENDED),
        [ok = unlock_async(Worker, Name) || {Worker, Name} <- First],
        _ = [ok = test_await:answer(Ref) || When =:= after_them, Ref <- ToGrant],
        ok = test_quorum_cluster:stop(C),
        ok = test_quorum_cluster:start(C, Options),
        _ = [ok = test_await:answer(Ref) || When =:= during_them, Ref <- ToGrant],
        test_quorum_cluster:await_voting(Nodes),
        timer:sleep(2 * Lease_ms),
        ?assertEqual([], [Name || {Worker, Name} <- Granted, not held(Worker, Name)]),
        ?assertEqual([], lists:append([messages(Worker) || {Worker, _} <- Granted])),
        [ok = unlock(Worker, Name) || {Worker, Name} <- Granted],
        [ok = test_await:answer(Ref) || Ref <- ToWait]
    end, lists:enumerate([during_them, after_them, during_them, after_them])).

lock_here(Name) ->
    {ok, Lock} = canal_lock_quorum:lock(Name, ?LONG_MS),
    put({lock, Name}, Lock),
    ok.

agent_killed([A, B, _C]) ->
    {Holder, Other} = {worker(A), worker(B)},
    {ok, First} = lock(Holder, x, ?LONG_MS),
    kill(A, canal_lock_quorum_agent),
    ?assertNot(held(Holder, x)),
    _ = messages_until_lost(Holder, x),
    ?assertEqual({error, not_held}, unlock(Holder, x)),
    %% Long before the lease expires.
    {ok, Next} = lock(Other, x, ?LONG_MS),
    ?assert(Next > First).

agent_killed_while_asked([A, B, _C]) ->
    {ok, _} = lock(worker(B), x, ?LONG_MS),
    Ref = send_order(worker(A), fun() -> caught(fun() -> canal_lock_quorum:lock(x, 60_000) end) end),
    await_status(A, waiting, 1),
    kill(A, canal_lock_quorum_agent),
    ?assertEqual({'EXIT', {killed, {canal_lock_quorum, lock, [x, 60_000]}}}, test_await:answer(Ref)).

links_killed([A, B, _C] = Nodes) ->
    kill(A, canal_lock_quorum_connections),
    test_nodes:cut(A, B),
    test_quorum_cluster:await_voting(Nodes),
    ?assertMatch({ok, _}, lock(worker(A), x, ?LONG_MS)).

%% Long before the lease expires.
disconnected_waiter([A, B, C] = Nodes) ->
    Holder = worker(B),
    {ok, _} = lock(Holder, x, ?LONG_MS),
    Ref = send_order(worker(A), fun() -> canal_lock_quorum:lock(x, ?LONG_MS) end),
    await_status(C, queued, 1),
    ok = test_quorum_cluster:isolate(A, [C]),
    await_status(C, queued, 0),
    ok = test_quorum_cluster:heal(Nodes),
    await_status(C, queued, 1),
    ok = unlock(Holder, x),
    ?assertMatch({ok, _}, test_await:answer(Ref)).

renamed() ->
    Name = 'canal_lock_renamed@127.0.0.1',
    passed = test_setup:in_a_vm(test_epmd:arguments(), fun() ->
        {ok, _} = canal_lock_quorum:start_link(#{members => [node()], reconnect_ms => 50}),
        test_await:value(true, fun() -> maps:get(voting, canal_lock_quorum:status()) end),
        {ok, _} = net_kernel:start([Name, longnames]),
        {error, timeout} = canal_lock_quorum:lock(x, 1000),
        ok = net_kernel:stop(),
        test_await:value(ok, fun() -> element(1, canal_lock_quorum:lock(x, ?LONG_MS)) end),
        passed
    end).

%% Node B does not try to connect to A. Without pauses, an attempt takes place every 150 ms at most.
wrong_cookie([A, B]) ->
    test_nodes:cut(A, B),
    NameB = test_nodes:name(B),
    Cookie = fun(Cookie) -> call(B, fun() -> true = erlang:set_cookie(Cookie) end) end,
    Cookie(other),
    ok = test_quorum_cluster:start(A, (test_quorum_cluster:options([A, B]))#{reconnect_ms := 100, lease_ms := 8000}),
    Watcher = worker(A),
    test_nodes:order(Watcher, fun() -> trace_attempts() end),
    Gap_ms = fun(Attempts) -> test_nodes:order(Watcher, fun() -> last_gap_ms(NameB, Attempts) end) end,
    ?assert(Gap_ms(6) >= 1000),
    Cookie(canal_lock),
    NameA = test_nodes:name(A),
    call(B, fun() -> test_await:value(true, fun() -> net_kernel:connect_node(NameA) end) end),
    Cookie(other),
    test_nodes:cut(A, B),
    ?assert(Gap_ms(2) < 1000),
    Cookie(canal_lock),
    ok = test_quorum_cluster:stop(A).

trace_attempts() ->
    _ = erlang:trace(new_processes, true, [call, monotonic_timestamp]),
    1 = erlang:trace_pattern({net_kernel, connect_node, 1}, true, [global]),
    ok.

%% The time between the last two of this many further attempts.
last_gap_ms(Node, Attempts) ->
    Times = [
        receive {trace_ts, _, call, {net_kernel, connect_node, [Node]}, Time} -> Time end
     || _ <- lists:seq(1, Attempts)
    ],
    [Last, Before | _] = lists:reverse(Times),
    erlang:convert_time_unit(Last - Before, native, millisecond).

never_connected([A, B]) ->
    ok = test_nodes:separate(A, B),
    Listener = worker(A),
    Never = fun() ->
        [Node || #{msg := {report, #{what := never_connected, node := Node}}} <- test_log_listener:events()]
    end,
    test_nodes:order(Listener, fun() -> test_log_listener:start(warning) end),
    ok = test_quorum_cluster:start(A, test_quorum_cluster:options([A, B])),
    test_nodes:order(Listener, fun() -> test_await:value([test_nodes:name(B)], Never) end),
    ok = test_quorum_cluster:stop(A),
    ?assertEqual([], test_nodes:order(Listener, Never)).

stopped([A, B, _C]) ->
    {Holder, Waiting} = {worker(A), worker(B)},
    {ok, _} = lock(Holder, x, ?LONG_MS),
    Ref = send_order(Waiting, fun() -> canal_lock_quorum:lock(x, ?LONG_MS) end),
    await_status(B, waiting, 1),
    ok = test_quorum_cluster:stop(A),
    ?assertMatch({ok, _}, test_await:answer(Ref)),
    ?assertNot(held(Holder, x)),
    ?assertEqual([{lost, x}], messages(Holder)).

%% While they only do not answer, a request waits until its timeout.
voters_stopped([A, B, C] = Nodes) ->
    Options = test_quorum_cluster:options(Nodes),
    [ok = test_quorum_cluster:stop(Node) || Node <- [B, C]],
    await_status(A, quorum, false),
    ?assertEqual({error, no_quorum}, lock(worker(A), x, ?LONG_MS)),
    [ok = test_quorum_cluster:start(Node, Options#{lease_ms := ?LEASE_MS}) || Node <- [B, C]],
    test_quorum_cluster:await_voting(Nodes),
    ?assertMatch({ok, _}, lock(worker(A), x, ?LONG_MS)).

%% Its lock is not passed on to a waiter of the same node, which would lose it at once.
stopped_with_a_waiter([A, B, _C]) ->
    {ok, _} = lock(worker(A), x, ?LONG_MS),
    Ref = send_order(worker(A), fun() ->
        test_worker:caught(fun() -> canal_lock_quorum:lock(x, ?LONG_MS) end)
    end),
    await_status(A, waiting, 1),
    ok = test_quorum_cluster:stop(A),
    ?assertMatch({'EXIT', _}, test_await:answer(Ref)),
    ?assertMatch({ok, _}, lock(worker(B), x, ?LONG_MS)).

minority([A, B, C] = Nodes) ->
    {Holder, Other} = {worker(A), worker(B)},
    %% The first fences are stored now. So the voters do not vote unasked, for less time, when they are.
    {ok, _} = lock(Holder, first, ?LONG_MS),
    ok = unlock(Holder, first),
    {ok, First} = lock(Holder, x, ?LONG_MS),
    ok = test_quorum_cluster:isolate(A, [B, C]),
    ?assertEqual({error, no_quorum}, lock(worker(A), y, ?LONG_MS)),
    {ok, Next} = lock(Other, x, ?LONG_MS),
    ?assert(Next > First),
    ?assertNot(held(Holder, x)),
    ?assertMatch([{at_risk, x} | _], messages_until_lost(Holder, x)),
    ok = test_quorum_cluster:heal(Nodes),
    ok = unlock(Other, x),
    ?assertMatch({ok, _}, lock(Holder, x, ?LONG_MS)).

no_quorum([A, B, C] = Nodes) ->
    ok = test_quorum_cluster:isolate(A, [B, C]),
    await_status(A, quorum, false),
    %% Also without a timeout, and without waiting for an hour.
    [?assertEqual({error, no_quorum}, lock(worker(A), x, Timeout_ms)) || Timeout_ms <- [0, 3_600_000]],
    ok = test_quorum_cluster:heal(Nodes).

unknown_messages([A | _]) ->
    Processes = [canal_lock_quorum_agent, canal_lock_quorum_voter, canal_lock_quorum_connections],
    Holder = worker(A),
    {ok, _} = lock(Holder, x, ?LONG_MS),
    call(A, fun() ->
        lists:foreach(fun(Name) ->
            Pid = whereis(Name),
            Name ! unknown,
            Name ! {canal_lock_quorum, {1, 1}, node(), <<>>},
            Name ! {canal_lock_quorum, 1, node(), <<>>},
            Name ! {canal_lock_quorum, {-1, 1}, node(), <<>>},
            gen_server:cast(Name, unknown),
            ?assertEqual({error, unknown_call}, gen_server:call(Name, unknown)),
            ?assertEqual(Pid, whereis(Name))
        end, Processes)
    end),
    ?assert(held(Holder, x)).

lock_everywhere(Nodes) ->
    lists:foldl(fun(Node, Before) ->
        Worker = worker(Node),
        {ok, Fence} = lock(Worker, x, ?LONG_MS),
        ?assert(Fence > Before),
        ok = unlock(Worker, x),
        Fence
    end, 0, Nodes ++ Nodes).

lock_over_tls([A | _] = Nodes) ->
    %% The connections really use TLS.
    ?assertMatch([_ | _], call(A, fun() -> supervisor:which_children(tls_dist_connection_sup) end)),
    lock_everywhere(Nodes).

alone([A]) ->
    {Holder, Other} = {worker(A), worker(A)},
    {ok, First} = lock(Holder, x, ?LONG_MS),
    kill(A, canal_lock_quorum_voter),
    ?assertEqual({error, timeout}, lock(Other, x, ?SHORT_MS)),
    ?assert(held(Holder, x)),
    ok = unlock(Holder, x),
    {ok, Next} = lock(Other, x, ?LONG_MS),
    ?assert(Next > First).

kill(Node, Name) ->
    call(Node, fun() -> test_quorum_cluster:kill_process(Name) end).
