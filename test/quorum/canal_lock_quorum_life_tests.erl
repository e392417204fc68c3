%% What the quorum locks survive, and what becomes of locks when they do not: their processes killed, their connections
%% cut, their nodes hidden or behind TLS, a node that believes in other members.
-module(canal_lock_quorum_life_tests).

-include_lib("eunit/include/eunit.hrl").

-import(test_quorum_cluster, [call/2, worker/1, order/2, send_order/2, lock/3, held/2, unlock/2]).
-import(test_quorum_cluster, [messages/1, messages_until_lost/2]).

%% How long a lock may take until a test fails; and how long a test waits for one that it must not get.
-define(LONG_MS, 15_000).
-define(SHORT_MS, 300).

%% Longer than any lock may take: what is free again was not freed by the end of a lease, and no lease ends because a
%% machine is busy.
-define(LEASES, #{
    holder_lease_ms => 60_000,
    at_risk_ms => 30_000,
    voter_lease_ms => 70_000,
    quarantine_ms => 70_000
}).

processes_test_() ->
    tests(3, [], [
        {"Q1, Q4: the votes of a voter survive its process, also of all at once", fun voters_killed/1},
        {"connections do not need the process that makes them", fun links_killed/1},
        {"a node that stops in order gives back at once", fun stopped/1},
        {"no quorum is said at once", fun no_quorum/1},
        {"what is no message of ours harms nobody", fun unknown_messages/1}
    ]).

ends_of_leases_test_() ->
    test_quorum_cluster:tests(3, [
        {"Q9: what an agent held is lost with its process, which the holders are told", fun agent_killed/1},
        {"who waits for an agent that is killed, hears of it", fun agent_killed_while_asked/1},
        {"Q1: a minority loses its locks, the majority goes on, and cut nodes find each other again", fun minority/1},
        {"a node of another configuration is not listened to, and that is logged", fun other_configuration/1}
    ]).

hidden_test_() ->
    tests(3, ["-hidden"], [
        {"hidden nodes, of which nobody is connected by itself", fun lock_everywhere/1}
    ]).

%% As nodes are when nobody has configured them.
usual_test_() ->
    tests(3, ["-connect_all", "true", "-kernel", "dist_auto_connect", "once"], [
        {"nodes that connect with everybody", fun lock_everywhere/1}
    ]).

tls_test_() ->
    {setup, fun test_tls:files/0, fun test_tls:delete/1, fun(Files) ->
        tests(3, test_tls:arguments(Files), [
            {"distribution over TLS", fun lock_over_tls/1}
        ])
    end}.

alone_test_() ->
    tests(1, [], [
        {"a single member: its own quorum, its votes survive their process", fun alone/1}
    ]).

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

%% Something is locked. Voters that had forgotten that would be in quarantine, and the agents, which could end it, do
%% nothing meanwhile.
kill_voters(Nodes) ->
    Remembers = #{voting => true, empty => false},
    [call(Node, fun() -> test_await:value(Remembers, fun canal_lock_quorum_voter:state/0) end) || Node <- Nodes],
    [ok = call(Node, fun() -> sys:suspend(canal_lock_quorum_agent) end) || Node <- Nodes],
    [killed(Node, canal_lock_quorum_voter) || Node <- Nodes],
    [?assertEqual(Remembers, call(Node, fun canal_lock_quorum_voter:state/0)) || Node <- Nodes],
    [ok = call(Node, fun() -> sys:resume(canal_lock_quorum_agent) end) || Node <- Nodes].

agent_killed([A, B, _C]) ->
    {Holder, Other} = {worker(A), worker(B)},
    {ok, First} = lock(Holder, x, ?LONG_MS),
    killed(A, canal_lock_quorum_agent),
    ?assertNot(held(Holder, x)),
    _ = messages_until_lost(Holder, x),
    ?assertEqual({error, not_held}, unlock(Holder, x)),
    %% When its lease is over.
    {ok, Next} = lock(Other, x, ?LONG_MS),
    ?assert(Next > First).

agent_killed_while_asked([A, B, _C]) ->
    {ok, _} = lock(worker(B), x, ?LONG_MS),
    Ref = send_order(worker(A), fun() -> catch canal_lock_quorum:lock(x, 60_000) end),
    call(A, fun() -> test_await:value(1, fun() -> maps:get(waiting, canal_lock_quorum:status()) end) end),
    killed(A, canal_lock_quorum_agent),
    ?assertEqual({'EXIT', {killed, {canal_lock_quorum, lock, [x, 60_000]}}}, test_await:answer(Ref)).

links_killed([A, B, _C] = Nodes) ->
    killed(A, canal_lock_quorum_links),
    test_nodes:cut(A, B),
    test_quorum_cluster:await_voting(Nodes),
    ?assertMatch({ok, _}, lock(worker(A), x, ?LONG_MS)).

stopped([A, B, _C]) ->
    {Holder, Waiting} = {worker(A), worker(B)},
    {ok, _} = lock(Holder, x, ?LONG_MS),
    Ref = send_order(Waiting, fun() -> canal_lock_quorum:lock(x, ?LONG_MS) end),
    call(B, fun() -> test_await:value(1, fun() -> maps:get(waiting, canal_lock_quorum:status()) end) end),
    ok = test_quorum_cluster:stop(A),
    ?assertMatch({ok, _}, test_await:answer(Ref)),
    ?assertNot(held(Holder, x)),
    ?assertEqual([{lost, x}], messages(Holder)).

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
    call(A, fun() -> test_await:value(false, fun() -> maps:get(quorum, canal_lock_quorum:status()) end) end),
    %% Without any time for it, and without taking an hour.
    [?assertEqual({error, no_quorum}, lock(worker(A), x, Timeout_ms)) || Timeout_ms <- [0, 3_600_000]],
    ok = test_quorum_cluster:heal(Nodes).

other_configuration([A, B, C] = Nodes) ->
    [AName, _, CName] = test_quorum_cluster:members(Nodes),
    heard(A),
    test_quorum_cluster:stop(C),
    Options = test_quorum_cluster:options(Nodes),
    test_quorum_cluster:start(C, Options#{members => [AName, CName]}),
    ?assertMatch({error, timeout}, lock(worker(C), x, ?SHORT_MS)),
    ?assertMatch({ok, _}, lock(worker(B), x, ?LONG_MS)),
    call(A, fun() ->
        test_await:value(true, fun() ->
            lists:member({error, #{what => not_a_member, node => CName}}, [
                {Level, maps:with([what, node], Report)}
             || {heard, #{level := Level, msg := {report, Report}}} <- element(2, process_info(whereis(ear), messages))
            ])
        end)
    end),
    test_quorum_cluster:stop(C),
    test_quorum_cluster:start(C, Options),
    test_quorum_cluster:await_voting(Nodes).

%% What the logger of a node is told is in the mailbox of a process there.
heard(Node) ->
    Worker = worker(Node),
    order(Worker, fun() ->
        true = register(ear, self()),
        ok = logger:set_primary_config(level, notice),
        ok = logger:add_handler(ear, test_log_forwarder, #{})
    end).

unknown_messages([A | _]) ->
    Processes = [canal_lock_quorum_agent, canal_lock_quorum_voter, canal_lock_quorum_links],
    Holder = worker(A),
    {ok, _} = lock(Holder, x, ?LONG_MS),
    call(A, fun() ->
        [
            begin
                Pid = whereis(Name),
                Name ! unknown,
                Name ! {canal_lock_quorum, 1, node(), <<>>},
                gen_server:cast(Name, unknown),
                ?assertEqual({error, unknown_call}, gen_server:call(Name, unknown)),
                ?assertEqual(Pid, whereis(Name))
            end
         || Name <- Processes
        ]
    end),
    ?assert(held(Holder, x)).

lock_everywhere(Nodes) ->
    lists:foldl(
        fun(Node, Before) ->
            Worker = worker(Node),
            {ok, Fence} = lock(Worker, x, ?LONG_MS),
            ?assert(Fence > Before),
            ok = unlock(Worker, x),
            Fence
        end,
        0,
        Nodes ++ Nodes
    ).

lock_over_tls([A | _] = Nodes) ->
    %% It is what it says it is.
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

%% And another one is there.
killed(Node, Name) ->
    call(Node, fun() ->
        Pid = whereis(Name),
        ok = test_worker:kill(Pid),
        test_await:value(true, fun() -> is_pid(whereis(Name)) andalso whereis(Name) =/= Pid end),
        _ = sys:get_state(Name),
        ok
    end).
