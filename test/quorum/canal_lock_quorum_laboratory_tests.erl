%% That the faults of the laboratory are what they are called, seen from the nodes that suffer them: without that a
%% test under faults would hold in their absence. And that a cut which is mended is over soon for those who start their
%% nodes as docs/cluster.md tells them to.
-module(canal_lock_quorum_laboratory_tests).

-include_lib("eunit/include/eunit.hrl").

-import(test_quorum_lab, [call/3, name/2, cut_one_way/3, heal_one_way/3, heal_all/1]).

%% What a message takes at most on a machine that is busy, and how long is waited for one that must not come: a
%% hundred times what it takes.
-define(COMES_MS, 20_000).
-define(STAYS_AWAY_MS, 300).

%% TCP sends again 0.2, 0.6, 1.4, 3, 6.2 and 12.6 seconds after the first time, or a little later: after a cut of this
%% length it stays silent for four seconds more, if it is not told otherwise.
-define(CUT_MS, 8000).
-define(SOON_MS, 2500).

namespaces_test_() ->
    case test_network:possible() of
        true ->
            laboratory(namespaces, fun faults/1);
        {false, Why} ->
            test_setup:skipped("faults in network namespaces", Why)
    end.

wires_test_() ->
    laboratory(wires, fun(Lab) -> faults(Lab) ++ faults_of_wires(Lab) end).

mended_test_() ->
    Title = "a connection that was cut carries again at once with the flags of docs/cluster.md",
    case {test_network:possible(), test_network:mends_soon()} of
        {true, {true, Flags}} -> test_setup:quietly({timeout, 120, {Title, fun() -> mended(Flags) end}});
        {{false, Why}, _} -> test_setup:skipped(Title, Why);
        {true, {false, Why}} -> test_setup:skipped(Title, Why)
    end.

laboratory(Kind, Tests) ->
    test_setup:quietly(
        {setup, fun() -> test_quorum_lab:start(#{nodes => 3, kind => Kind, clocks => clocks()}) end,
            fun test_quorum_lab:stop/1, fun(Lab) ->
                [{timeout, 120, {atom_to_list(Kind) ++ ": " ++ Title, Test}} || {Title, Test} <- Tests(Lab)]
            end}
    ).

%% As the wall clock test needs them; it says so where they cannot be.
clocks() ->
    os:type() =:= {unix, linux}.

faults(Lab) ->
    [
        {"nodes hear each other", fun() -> all_hear(Lab) end},
        {"a cut in one direction is silent, and leaves the other", fun() -> one_way(Lab) end},
        {"a cut in both directions; what was sent comes after it", fun() -> both_ways(Lab) end},
        {"a stopped node does nothing until it may", fun() -> stopped(Lab) end},
        {"a killed node is gone, and has the same name in its next life", fun() -> killed(Lab) end},
        {"connections are closed by one of two", fun() -> disconnected(Lab) end},
        {"a wall clock jumps, and the clocks of leases and of histories do not", fun() -> clock(Lab) end}
    ].

faults_of_wires(Lab) ->
    [
        {"a message comes when its sender is dead", fun() -> held_back(Lab) end}
    ].

all_hear(Lab) ->
    connect_all(Lab),
    [?assert(hears(Lab, From, To)) || From <- [1, 2, 3], To <- [1, 2, 3], From =/= To].

one_way(Lab) ->
    connect_all(Lab),
    cut_one_way(Lab, 1, 2),
    Late = send(Lab, 1, 2),
    ?assertNot(has_come(Lab, 2, Late, ?STAYS_AWAY_MS)),
    ?assert(hears(Lab, 1, 3)),
    ?assert(sees(Lab, 1, 2) andalso sees(Lab, 2, 1)),
    heal_one_way(Lab, 1, 2),
    ?assert(has_come(Lab, 2, Late, ?COMES_MS)),
    cut_one_way(Lab, 1, 2),
    ?assert(hears(Lab, 2, 1)),
    heal_all(Lab).

both_ways(Lab) ->
    connect_all(Lab),
    test_quorum_lab:isolate(Lab, 1),
    Sent = [{To, send(Lab, From, To)} || {From, To} <- [{1, 2}, {2, 1}, {1, 3}, {3, 1}]],
    [?assertNot(has_come(Lab, To, Message, ?STAYS_AWAY_MS)) || {To, Message} <- Sent],
    ?assert(hears(Lab, 2, 3)),
    heal_all(Lab),
    [?assert(has_come(Lab, To, Message, ?COMES_MS)) || {To, Message} <- Sent].

%% The first one has connected with the second, which has accepted that: each has its own flag.
mended(Flags) ->
    Lab = test_quorum_lab:start(#{nodes => 2, kind => namespaces, arguments => Flags}),
    try
        connect_all(Lab),
        test_quorum_lab:isolate(Lab, 1),
        Sent = [{To, send(Lab, From, To)} || {From, To} <- [{1, 2}, {2, 1}]],
        timer:sleep(?CUT_MS),
        heal_all(Lab),
        [?assert(has_come(Lab, To, Message, ?SOON_MS)) || {To, Message} <- Sent]
    after
        test_quorum_lab:stop(Lab)
    end.

stopped(Lab) ->
    connect_all(Lab),
    test_quorum_lab:freeze(Lab, 2),
    Message = send(Lab, 1, 2),
    ?assertExit({timeout, _}, test_quorum_lab:call(Lab, 2, fun erlang:node/0, ?STAYS_AWAY_MS)),
    ?assert(sees(Lab, 1, 2)),
    test_quorum_lab:thaw(Lab, 2),
    ?assert(has_come(Lab, 2, Message, ?COMES_MS)).

killed(Lab) ->
    connect_all(Lab),
    [test_quorum_lab:kill(Lab, Place) || Place <- [2, 3]],
    test_await:value(false, fun() -> sees(Lab, 1, 2) orelse sees(Lab, 1, 3) end),
    ?assertNot(test_quorum_lab:alive(Lab, 2)),
    test_quorum_lab:restart(Lab, [2, 3]),
    ?assertEqual(name(Lab, 2), call(Lab, 2, fun erlang:node/0)),
    all_hear(Lab).

disconnected(Lab) ->
    connect_all(Lab),
    ?assert(test_quorum_lab:disconnect(Lab, 1, 2)),
    test_await:value(false, fun() -> sees(Lab, 1, 2) orelse sees(Lab, 2, 1) end),
    all_hear(Lab).

clock(Lab) ->
    ok = call(Lab, 1, fun canal_lock_quorum_nif:load/0),
    [
        begin
            test_quorum_lab:set_clock(Lab, 1, Wrong_ms),
            ?assert(is_near(Wrong_ms, fun() -> os:system_time(millisecond) end, Lab)),
            ?assert(is_near(0, fun() -> os:perf_counter(millisecond) end, Lab))
        end
     || Wrong_ms <- [3_600_000, -3_600_000, 0]
    ],
    %% The clock of leases.
    Before = lease_clock_ms(Lab),
    test_quorum_lab:set_clock(Lab, 1, 3_600_000),
    ?assert(lease_clock_ms(Lab) - Before < 60_000),
    test_quorum_lab:set_clock(Lab, 1, 0).

lease_clock_ms(Lab) ->
    call(Lab, 1, fun canal_lock_quorum_nif:now/0) div 1_000_000.

%% By how much the node's clock is ahead of ours, to a minute.
is_near(Ahead_ms, Clock, Lab) ->
    abs(call(Lab, 1, Clock) - Clock() - Ahead_ms) < 60_000.

held_back(Lab) ->
    connect_all(Lab),
    cut_one_way(Lab, 2, 1),
    Message = send(Lab, 2, 1),
    test_await:value(true, fun() -> test_quorum_lab:held(Lab, 2, 1) > 0 end),
    test_quorum_lab:kill(Lab, 2),
    test_quorum_lab:restart(Lab, 2),
    ?assertNot(has_come(Lab, 1, Message, ?STAYS_AWAY_MS)),
    heal_all(Lab),
    ?assert(has_come(Lab, 1, Message, ?COMES_MS)).

%% --- a message, and whether it comes -------------------------------------------------------------------------------

%% Those with lower places with those with higher ones.
connect_all(Lab) ->
    Places = test_quorum_lab:places(Lab),
    [call(Lab, Place, fun start_inbox/0) || Place <- Places],
    [
        test_await:value(true, fun() -> call(Lab, From, fun() -> net_kernel:connect_node(Name) end) end)
     || From <- Places, To <- Places, From < To, Name <- [name(Lab, To)]
    ].

hears(Lab, From, To) ->
    has_come(Lab, To, send(Lab, From, To), ?COMES_MS).

send(Lab, From, To) ->
    Name = name(Lab, To),
    Message = erlang:unique_integer(),
    call(Lab, From, fun() -> erlang:send({inbox, Name}, {put, Message}, [nosuspend]) end),
    Message.

has_come(Lab, To, Message, Within_ms) ->
    call(Lab, To, fun() ->
        Ref = make_ref(),
        inbox ! {tell, Message, self(), Ref},
        receive
            Ref -> true
        after Within_ms -> false
        end
    end).

sees(Lab, One, Other) ->
    Name = name(Lab, Other),
    call(Lab, One, fun() -> lists:member(Name, nodes()) end).

start_inbox() ->
    case whereis(inbox) of
        undefined -> register(inbox, spawn(fun() -> inbox([], []) end));
        _ -> true
    end.

inbox(Come, Waiting) ->
    receive
        {put, Message} ->
            [Who ! Ref || {Wanted, Who, Ref} <- Waiting, Wanted =:= Message],
            inbox([Message | Come], Waiting);
        {tell, Message, Who, Ref} ->
            [Who ! Ref || lists:member(Message, Come)],
            inbox(Come, [{Message, Who, Ref} | Waiting])
    end.
