%% What the quorum locks survive, and what becomes of locks when they do not: their processes killed, their connections
%% cut, their nodes hidden or behind TLS, a node that believes in other members.
-module(canal_lock_quorum_life_tests).

-include_lib("eunit/include/eunit.hrl").

-import(canal_lock_quorum_cluster, [call/2, worker/1, order/2, send_order/2, lock/3, held/2, unlock/2, messages/1]).

processes_test_() ->
    canal_lock_quorum_cluster:tests(3, [
        {"Q1, Q4: the votes of a voter survive its process, also of all at once", fun voters_killed/1},
        {"Q9: what an agent held is lost with its process, which the holders are told", fun agent_killed/1},
        {"who waits for an agent that is killed, hears of it", fun agent_killed_while_asked/1},
        {"connections do not need the process that makes them", fun links_killed/1},
        {"a node that stops in order gives back at once", fun stopped/1},
        {"Q1: a minority loses its locks, the majority goes on, and cut nodes find each other again", fun minority/1},
        {"no quorum is said at once", fun no_quorum/1},
        {"a node of another configuration is not listened to, and that is logged", fun other_configuration/1},
        {"what is no message of ours harms nobody", fun unknown_messages/1}
    ]).

hidden_test_() ->
    canal_lock_quorum_cluster:tests(3, ["-hidden"], [
        {"hidden nodes, of which nobody is connected by itself", fun lock_everywhere/1}
    ]).

%% As nodes are when nobody has configured them.
usual_test_() ->
    canal_lock_quorum_cluster:tests(3, ["-connect_all", "true", "-kernel", "dist_auto_connect", "once"], [
        {"nodes that connect with everybody", fun lock_everywhere/1}
    ]).

tls_test_() ->
    {setup, fun canal_lock_quorum_tls:files/0, fun canal_lock_quorum_tls:delete/1, fun(Files) ->
        canal_lock_quorum_cluster:tests(3, canal_lock_quorum_tls:arguments(Files), [
            {"distribution over TLS", fun lock_over_tls/1}
        ])
    end}.

alone_test_() ->
    canal_lock_quorum_cluster:tests(1, [
        {"a single member: its own quorum, its votes survive their process", fun alone/1}
    ]).

voters_killed([A, B, C] = Nodes) ->
    {Holder, Other} = {worker(A), worker(B)},
    {ok, _} = lock(Holder, x, 5000),
    [killed(Node, canal_lock_quorum_voter) || Node <- Nodes],
    %% A voter that had forgotten would be in quarantine for a lease; and with a lock of all votes gone, it is lost.
    ?assertMatch({ok, _}, lock(worker(C), y, 800)),
    ?assertEqual({error, timeout}, lock(Other, x, 300)),
    ?assert(held(Holder, x)),
    ok = unlock(Holder, x),
    ?assertMatch({ok, _}, lock(Other, x, 5000)),
    ?assertEqual([], messages(Holder)).

agent_killed([A, B, _C]) ->
    {Holder, Other} = {worker(A), worker(B)},
    {ok, First} = lock(Holder, x, 5000),
    killed(A, canal_lock_quorum_agent),
    ?assertNot(held(Holder, x)),
    ?assertEqual([{lost, x}], messages(Holder)),
    ?assertEqual({error, not_held}, unlock(Holder, x)),
    %% When its lease is over.
    {ok, Next} = lock(Other, x, 5000),
    ?assert(Next > First).

agent_killed_while_asked([A, B, _C]) ->
    {ok, _} = lock(worker(B), x, 5000),
    Ref = send_order(worker(A), fun() -> catch canal_lock_quorum:lock(x, 60_000) end),
    call(A, fun() -> canal_lock_await:value(1, fun() -> maps:get(waiting, canal_lock_quorum:status()) end) end),
    killed(A, canal_lock_quorum_agent),
    ?assertEqual({'EXIT', {killed, {canal_lock_quorum, lock, [x, 60_000]}}}, canal_lock_await:answer(Ref)).

links_killed([A, B, _C] = Nodes) ->
    killed(A, canal_lock_quorum_links),
    canal_lock_nodes:cut(A, B),
    canal_lock_quorum_cluster:await_voting(Nodes),
    ?assertMatch({ok, _}, lock(worker(A), x, 5000)).

stopped([A, B, _C]) ->
    {Holder, Waiting} = {worker(A), worker(B)},
    {ok, _} = lock(Holder, x, 5000),
    Since_ms = now_ms(),
    Ref = send_order(Waiting, fun() -> canal_lock_quorum:lock(x, 5000) end),
    call(B, fun() -> canal_lock_await:value(1, fun() -> maps:get(waiting, canal_lock_quorum:status()) end) end),
    ok = canal_lock_quorum_cluster:stop(A),
    ?assertMatch({ok, _}, canal_lock_await:answer(Ref)),
    %% Not by the end of a lease.
    #{voter_lease_ms := Lease_ms} = canal_lock_quorum_cluster:rules(),
    ?assert(now_ms() - Since_ms < Lease_ms),
    ?assertNot(held(Holder, x)),
    ?assertEqual([{lost, x}], messages(Holder)).

minority([A, B, C] = Nodes) ->
    {Holder, Other} = {worker(A), worker(B)},
    {ok, First} = lock(Holder, x, 5000),
    ok = canal_lock_quorum_cluster:isolate(A, [B, C]),
    ?assertEqual({error, no_quorum}, lock(worker(A), y, 5000)),
    {ok, Next} = lock(Other, x, 5000),
    ?assert(Next > First),
    ?assertNot(held(Holder, x)),
    ?assertEqual([{at_risk, x}, {lost, x}], messages(Holder)),
    ok = canal_lock_quorum_cluster:heal(Nodes),
    ok = unlock(Other, x),
    ?assertMatch({ok, _}, lock(Holder, x, 5000)).

no_quorum([A, B, C] = Nodes) ->
    ok = canal_lock_quorum_cluster:isolate(A, [B, C]),
    Asked_ms = now_ms(),
    ?assertEqual({error, no_quorum}, lock(worker(A), x, 60_000)),
    ?assert(now_ms() - Asked_ms < 10_000),
    ok = canal_lock_quorum_cluster:heal(Nodes).

other_configuration([A, B, C] = Nodes) ->
    [AName, _, CName] = canal_lock_quorum_cluster:members(Nodes),
    heard(A),
    canal_lock_quorum_cluster:stop(C),
    Options = canal_lock_quorum_cluster:options(Nodes),
    canal_lock_quorum_cluster:start(C, Options#{members => [AName, CName]}),
    ?assertMatch({error, timeout}, lock(worker(C), x, 300)),
    ?assertMatch({ok, _}, lock(worker(B), x, 5000)),
    call(A, fun() ->
        canal_lock_await:value(true, fun() ->
            lists:member({error, #{what => stranger, node => CName}}, [
                {Level, maps:with([what, node], Report)}
             || {heard, #{level := Level, msg := {report, Report}}} <- element(2, process_info(whereis(ear), messages))
            ])
        end)
    end),
    canal_lock_quorum_cluster:stop(C),
    canal_lock_quorum_cluster:start(C, Options),
    canal_lock_quorum_cluster:await_voting(Nodes).

%% What the logger of a node is told is in the mailbox of a process there.
heard(Node) ->
    Worker = worker(Node),
    order(Worker, fun() ->
        true = register(ear, self()),
        ok = logger:set_primary_config(level, notice),
        ok = logger:add_handler(ear, canal_lock_quorum_ear, #{})
    end).

unknown_messages([A | _]) ->
    Processes = [canal_lock_quorum_agent, canal_lock_quorum_voter, canal_lock_quorum_links],
    Holder = worker(A),
    {ok, _} = lock(Holder, x, 5000),
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
            {ok, Fence} = lock(Worker, x, 5000),
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
    {ok, _} = lock(Holder, x, 5000),
    killed(A, canal_lock_quorum_voter),
    ?assertEqual({error, timeout}, lock(Other, x, 100)),
    ?assert(held(Holder, x)),
    ok = unlock(Holder, x),
    ?assertMatch({ok, _}, lock(Other, x, 5000)).

%% And another one is there.
killed(Node, Name) ->
    call(Node, fun() ->
        Pid = whereis(Name),
        ok = canal_lock_worker:kill(Pid),
        canal_lock_await:value(true, fun() -> is_pid(whereis(Name)) andalso whereis(Name) =/= Pid end),
        _ = sys:get_state(Name),
        ok
    end).

now_ms() ->
    erlang:monotonic_time(millisecond).
