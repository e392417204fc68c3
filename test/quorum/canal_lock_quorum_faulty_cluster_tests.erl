%% test_faulty_cluster: each fault has the effect on the nodes that its name says. Otherwise tests under faults would
%% pass without a fault. And: a healed cut ends soon for nodes that are started as docs/operating.md says.
-module(canal_lock_quorum_faulty_cluster_tests).

-include_lib("eunit/include/eunit.hrl").

-import(test_faulty_cluster, [call/3, call/4, name/2, cut_one_way/3, heal_one_way/3, heal_all/1]).

%% The longest time that a message takes on a busy machine; and how long a test waits for a message that must not
%% arrive, a hundred times what it takes.
-define(ARRIVES_MS, 120_000).
-define(STAYS_AWAY_MS, 300).

%% By default TCP sends again 0.2, 0.6, 1.4, 3, 6.2 and 12.6 seconds after the first time, or a little later: after a
%% cut of this length it sends nothing for four seconds more.
-define(CUT_MS, 8000).
-define(SOON_MS, 2500).

namespaces_test_() ->
    case test_network:possible() of
        true ->
            tests(namespaces, faults());
        {false, Why} ->
            test_setup:skipped("faults in network namespaces", Why)
    end.

proxies_test_() ->
    tests(proxies, [{"a message arrives after its sender is dead", fun held_back/1} | faults()]).

healed_test_() ->
    Title = "a connection that was cut carries data soon with the flags of docs/operating.md",
    case {test_network:possible(), test_network:mends_soon()} of
        {true, {true, Flags}} -> test_setup:quietly({timeout, 120, {Title, fun() -> healed(Flags) end}});
        {{false, Why}, _} -> test_setup:skipped(Title, Why);
        {true, {false, Why}} -> test_setup:skipped(Title, Why)
    end.

tests(Network, Tests) ->
    Options = #{nodes => 3, network => Network, clocks => os:type() =:= {unix, linux}},
    test_setup:quietly(
        {setup, fun() -> test_faulty_cluster:start(Options) end, fun test_faulty_cluster:stop/1, fun(Cluster) ->
            [
                {timeout, 120,
                    {lists:concat([Network, ": ", Title]), fun() ->
                        connect_all(Cluster),
                        Test(Cluster),
                        heal_all(Cluster)
                    end}}
             || {Title, Test} <- Tests
            ]
        end}
    ).

faults() ->
    [
        {"without a fault messages arrive", fun all_receive/1},
        {"a cut in one direction is silent and leaves the other direction open", fun one_way/1},
        {"messages that are sent during a cut in both directions arrive after it", fun both_ways/1},
        {"a suspended node does nothing until it is resumed", fun suspended/1},
        {"a killed node is dead, and has the same name after a restart", fun killed/1},
        {"one of two nodes closes their connection", fun disconnected/1},
        {"a wall clock jumps, and the clocks of leases and of histories do not", fun clock/1}
    ].

all_receive(Cluster) ->
    [?assert(receives(Cluster, From, To)) || From <- [1, 2, 3], To <- [1, 2, 3], From =/= To].

one_way(Cluster) ->
    cut_one_way(Cluster, 1, 2),
    Late = send(Cluster, 1, 2),
    ?assertNot(arrives(Cluster, 2, Late, ?STAYS_AWAY_MS)),
    ?assert(receives(Cluster, 1, 3)),
    ?assert(is_connected(Cluster, 1, 2) andalso is_connected(Cluster, 2, 1)),
    heal_one_way(Cluster, 1, 2),
    ?assert(arrives(Cluster, 2, Late, ?ARRIVES_MS)),
    cut_one_way(Cluster, 1, 2),
    ?assert(receives(Cluster, 2, 1)).

both_ways(Cluster) ->
    test_faulty_cluster:isolate(Cluster, 1),
    Sent = [{To, send(Cluster, From, To)} || {From, To} <- [{1, 2}, {2, 1}, {1, 3}, {3, 1}]],
    [?assertNot(arrives(Cluster, To, Message, ?STAYS_AWAY_MS)) || {To, Message} <- Sent],
    ?assert(receives(Cluster, 2, 3)),
    heal_all(Cluster),
    [?assert(arrives(Cluster, To, Message, ?ARRIVES_MS)) || {To, Message} <- Sent].

%% The first node made the connection, the second accepted it: there is a flag for each.
healed(Flags) ->
    Cluster = test_faulty_cluster:start(#{nodes => 2, network => namespaces, arguments => Flags}),
    try
        connect_all(Cluster),
        test_faulty_cluster:isolate(Cluster, 1),
        Sent = [{To, send(Cluster, From, To)} || {From, To} <- [{1, 2}, {2, 1}]],
        %% The length of the cut decides for how long TCP would be silent.
        timer:sleep(?CUT_MS),
        heal_all(Cluster),
        [?assert(arrives(Cluster, To, Message, ?SOON_MS)) || {To, Message} <- Sent]
    after
        test_faulty_cluster:stop(Cluster)
    end.

suspended(Cluster) ->
    test_faulty_cluster:suspend(Cluster, 2),
    Message = send(Cluster, 1, 2),
    ?assertExit({timeout, _}, call(Cluster, 2, fun erlang:node/0, ?STAYS_AWAY_MS)),
    ?assert(is_connected(Cluster, 1, 2)),
    test_faulty_cluster:resume(Cluster, 2),
    ?assert(arrives(Cluster, 2, Message, ?ARRIVES_MS)).

killed(Cluster) ->
    test_faulty_cluster:kill(Cluster, [2, 3]),
    test_await:value(false, fun() -> is_connected(Cluster, 1, 2) orelse is_connected(Cluster, 1, 3) end),
    ?assertEqual([2, 3], test_faulty_cluster:indexes(Cluster, dead)),
    test_faulty_cluster:restart(Cluster, [2, 3]),
    ?assertEqual(name(Cluster, 2), call(Cluster, 2, fun erlang:node/0)),
    connect_all(Cluster),
    all_receive(Cluster).

disconnected(Cluster) ->
    ?assert(test_faulty_cluster:disconnect(Cluster, 1, 2)),
    test_await:value(false, fun() -> is_connected(Cluster, 1, 2) orelse is_connected(Cluster, 2, 1) end),
    connect_all(Cluster),
    all_receive(Cluster).

clock(Cluster) ->
    ok = call(Cluster, 1, fun canal_lock_quorum_nif:load/0),
    lists:foreach(fun(Ahead_ms) ->
        test_faulty_cluster:set_clock(Cluster, 1, Ahead_ms),
        ?assert(is_near(Ahead_ms, fun() -> os:system_time(millisecond) end, Cluster)),
        ?assert(is_near(0, fun() -> os:perf_counter(millisecond) end, Cluster))
    end, [3_600_000, -3_600_000, 0]),
    Before = lease_clock_ms(Cluster),
    test_faulty_cluster:set_clock(Cluster, 1, 3_600_000),
    ?assert(lease_clock_ms(Cluster) - Before < 60_000),
    test_faulty_cluster:set_clock(Cluster, 1, 0).

lease_clock_ms(Cluster) ->
    call(Cluster, 1, fun canal_lock_quorum_nif:now/0) div 1_000_000.

%% Whether the node's clock is ahead of the test's clock by this time, to a minute.
is_near(Ahead_ms, Clock, Cluster) ->
    abs(call(Cluster, 1, Clock) - Clock() - Ahead_ms) < 60_000.

held_back(Cluster) ->
    cut_one_way(Cluster, 2, 1),
    Message = send(Cluster, 2, 1),
    test_await:value(true, fun() -> test_faulty_cluster:bytes_held_back(Cluster, 2, 1) > 0 end),
    test_faulty_cluster:kill(Cluster, 2),
    test_faulty_cluster:restart(Cluster, 2),
    ?assertNot(arrives(Cluster, 1, Message, ?STAYS_AWAY_MS)),
    heal_all(Cluster),
    ?assert(arrives(Cluster, 1, Message, ?ARRIVES_MS)).

%% --- messages ------------------------------------------------------------------------------------------------------

%% The node with the lower index opens the connection.
connect_all(Cluster) ->
    Indexes = test_faulty_cluster:indexes(Cluster),
    [call(Cluster, Index, fun start_inbox/0) || Index <- Indexes],
    [
        test_await:value(true, fun() -> call(Cluster, From, fun() -> net_kernel:connect_node(Name) end) end)
     || From <- Indexes, To <- Indexes, From < To, Name <- [name(Cluster, To)]
    ].

receives(Cluster, From, To) ->
    arrives(Cluster, To, send(Cluster, From, To), ?ARRIVES_MS).

send(Cluster, From, To) ->
    Name = name(Cluster, To),
    Message = erlang:unique_integer(),
    call(Cluster, From, fun() -> erlang:send({inbox, Name}, {put, Message}, [nosuspend]) end),
    Message.

arrives(Cluster, To, Message, Within_ms) ->
    call(Cluster, To, fun() ->
        Ref = make_ref(),
        inbox ! {await, Message, self(), Ref},
        receive
            Ref -> true
        after Within_ms -> false
        end
    end).

is_connected(Cluster, One, Other) ->
    Name = name(Cluster, Other),
    call(Cluster, One, fun() -> lists:member(Name, nodes()) end).

start_inbox() ->
    case whereis(inbox) of
        undefined -> register(inbox, spawn(fun() -> inbox([], []) end));
        _ -> true
    end.

inbox(Received, Waiting) ->
    receive
        {put, Message} ->
            [From ! Ref || {Wanted, From, Ref} <- Waiting, Wanted =:= Message],
            inbox([Message | Received], Waiting);
        {await, Message, From, Ref} ->
            [From ! Ref || lists:member(Message, Received)],
            inbox(Received, [{Message, From, Ref} | Waiting])
    end.
