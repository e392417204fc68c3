%% The quorum locks when their processes are killed, connections are cut, nodes are hidden, use TLS or have other
%% options: what they survive, and what happens to the locks otherwise.
-module(canal_lock_quorum_life_tests).

-include_lib("eunit/include/eunit.hrl").

-import(test_nodes, [call/2, worker/1, send_order/2]).
-import(test_quorum_cluster, [lock/3, held/2, unlock/2, await_status/3, messages/1, messages_until_lost/2]).
-import(test_worker, [caught/1]).

%% The timeout of a lock that is granted, and of one that must be refused.
-define(LONG_MS, 60_000).
-define(SHORT_MS, 300).

%% Longer than any timeout: no lock becomes free because a lease expires, and no lease expires because the machine is
%% busy.
-define(LEASES, #{
    holder_lease_ms => 60_000,
    at_risk_ms => 30_000,
    voter_lease_ms => 70_000,
    quarantine_ms => 70_000
}).

processes_test_() ->
    tests(3, [], [
        {"Q1, Q4: the votes of a voter survive its process, also when all voters are killed", fun voters_killed/1},
        {"nodes reconnect after the process that connects them is killed", fun links_killed/1},
        {"Q9: the locks of an agent end with its process, and the next agent frees their names", fun agent_killed/1},
        {"a node that shuts down cleanly unlocks at once", fun stopped/1},
        {"a node that shuts down cancels its requests", fun stopped_with_a_waiter/1},
        {"without a quorum a request is refused at once", fun no_quorum/1},
        {"unknown messages change nothing", fun unknown_messages/1}
    ]).

ends_of_leases_test_() ->
    test_quorum_cluster:tests(3, [
        {"a caller that waits exits when the agent is killed", fun agent_killed_while_asked/1},
        {"Q1: a minority loses its locks, the majority goes on, and healed nodes reconnect", fun minority/1}
    ]).

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
    tests(1, [], [{"a single member is a quorum, and its votes survive the voter's process", fun alone/1}]).

tests(Count, Arguments, Tests) ->
    Options = fun(_, Nodes) ->
        Options = #{rules := Rules} = test_quorum_cluster:options(Nodes),
        Options#{rules := maps:merge(Rules, ?LEASES)}
    end,
    test_quorum_cluster:tests(Count, Arguments, Options, Tests).

voters_killed([A, B, C] = Nodes) ->
    {Holder, Other} = {worker(A), worker(B)},
    {ok, _} = lock(Holder, x, ?LONG_MS),
    kill_voters(Nodes),
    ?assertMatch({ok, _}, lock(worker(C), y, ?LONG_MS)),
    ?assertEqual({error, timeout}, lock(Other, x, ?SHORT_MS)),
    ?assert(held(Holder, x)),
    ok = unlock(Holder, x),
    ?assertMatch({ok, _}, lock(Other, x, ?LONG_MS)),
    ?assertEqual([], messages(Holder)).

%% Some lock is held. A voter that forgets its votes would be in quarantine. The agents, which could end a quarantine,
%% are suspended.
kill_voters(Nodes) ->
    Remembers = #{voting => true, empty => false, queued => 0, longest_queue => 0},
    [call(Node, fun() -> test_await:value(Remembers, fun canal_lock_quorum_voter:state/0) end) || Node <- Nodes],
    [ok = call(Node, fun() -> sys:suspend(canal_lock_quorum_agent) end) || Node <- Nodes],
    [kill(Node, canal_lock_quorum_voter) || Node <- Nodes],
    [?assertEqual(Remembers, call(Node, fun canal_lock_quorum_voter:state/0)) || Node <- Nodes],
    [ok = call(Node, fun() -> sys:resume(canal_lock_quorum_agent) end) || Node <- Nodes].

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
    kill(A, canal_lock_quorum_links),
    test_nodes:cut(A, B),
    test_quorum_cluster:await_voting(Nodes),
    ?assertMatch({ok, _}, lock(worker(A), x, ?LONG_MS)).

stopped([A, B, _C]) ->
    {Holder, Waiting} = {worker(A), worker(B)},
    {ok, _} = lock(Holder, x, ?LONG_MS),
    Ref = send_order(Waiting, fun() -> canal_lock_quorum:lock(x, ?LONG_MS) end),
    await_status(B, waiting, 1),
    ok = test_quorum_cluster:stop(A),
    ?assertMatch({ok, _}, test_await:answer(Ref)),
    ?assertNot(held(Holder, x)),
    ?assertEqual([{lost, x}], messages(Holder)).

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
    await_status(A, quorum, none),
    %% Also without a timeout, and without waiting for an hour.
    [?assertEqual({error, no_quorum}, lock(worker(A), x, Timeout_ms)) || Timeout_ms <- [0, 3_600_000]],
    ok = test_quorum_cluster:heal(Nodes).

unknown_messages([A | _]) ->
    Processes = [canal_lock_quorum_agent, canal_lock_quorum_voter, canal_lock_quorum_links],
    Holder = worker(A),
    {ok, _} = lock(Holder, x, ?LONG_MS),
    call(A, fun() ->
        lists:foreach(fun(Name) ->
            Pid = whereis(Name),
            Name ! unknown,
            Name ! {canal_lock_quorum, 1, node(), <<>>},
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
    {ok, _} = lock(Holder, x, ?LONG_MS),
    kill_voters([A]),
    ?assertEqual({error, timeout}, lock(Other, x, ?SHORT_MS)),
    ?assert(held(Holder, x)),
    ok = unlock(Holder, x),
    ?assertMatch({ok, _}, lock(Other, x, ?LONG_MS)).

kill(Node, Name) ->
    call(Node, fun() -> test_quorum_cluster:kill_process(Name) end).
