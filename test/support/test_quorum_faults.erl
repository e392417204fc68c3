%% The faults of a cluster with quorum locks. Each one is caused and ended here. It returns a description of what
%% happened, and what the histories of the clients must show in addition to the promises that always hold.
-module(test_quorum_faults).

-export([all/0, cause/2, grants_at_once/1]).

-export_type([fault/0]).

-import(test_faulty_cluster, [call/3, name/2, node_at/2, indexes/1]).
-import(test_quorum_fault_run, [recovery/4, recovered/4, lost_at/3, must_lose/3, bound_ms/2, part_ms/2]).
-import(test_quorum_fault_run, [start_clients/2, start_locks/2, members/1, is_quorum/2, now_ns/0, ns/1, ms/1]).
-import(test_quorum_fault_run, [notice_ms/0]).

%% A limit for a wait that hangs. The holder releases the lock after each half of an attempt, to any of the contenders.
-define(CONTENDED_MS, 120_000).

%% How many connections are closed. Between three nodes, each three times in both directions.
-define(CLOSED, 18).

-type fault() :: atom().
-type run() :: test_quorum_fault_run:run().

%% In this order, on one cluster. The last two are for proxies, which let bytes go at a given moment.
-spec all() -> [fault()].
all() ->
    [
        none,
        cut_off_from_all,
        receives_nothing,
        sends_nothing,
        two_are_cut_from_each_other,
        cut_flaps,
        connections_are_closed,
        suspended_for_longer_than_leases,
        all_are_suspended,
        voter_dies,
        agent_dies,
        links_die,
        locks_are_stopped,
        voters_forget_a_holder,
        unlocked_by_force,
        one_is_killed,
        most_are_killed,
        all_are_killed,
        a_large_message,
        wall_clocks_jump,
        answers_are_late,
        held_back_answers
    ].

-spec cause(fault(), run()) -> {Seen :: string(), [test_quorum_history:known()]}.
cause(none, Run) ->
    recovered_now(Run, 0);
cause(cut_off_from_all, Run = #{cluster := Cluster}) ->
    cut_off(fun() -> test_faulty_cluster:isolate(Cluster, 1) end, 1, Run);
cause(receives_nothing, Run = #{cluster := Cluster}) ->
    cut_off(fun() -> [test_faulty_cluster:cut_one_way(Cluster, Other, 2) || Other <- others(Run, 2)] end, 2, Run);
cause(sends_nothing, Run = #{cluster := Cluster}) ->
    cut_off(fun() -> [test_faulty_cluster:cut_one_way(Cluster, 3, Other) || Other <- others(Run, 3)] end, 3, Run);
%% A third node is connected with both, so both have a quorum.
cause(two_are_cut_from_each_other, Run = #{cluster := Cluster}) ->
    Began = now_ns(),
    test_faulty_cluster:cut(Cluster, 1, 2),
    {Took_ms, Known} = recovery(Run, indexes(Cluster), now_ns(), bound_ms(0, Run)),
    outlast_leases(Run),
    {Still_ms, Later} = recovery(Run, indexes(Cluster), now_ns(), bound_ms(0, Run)),
    test_faulty_cluster:heal_all(Cluster),
    {Seen, Recovers} = recovered_now(Run, ms(now_ns() - Began)),
    {
        lists:concat(["locks on all nodes within ", Took_ms, " ms of it, and ", Still_ms, " ms later; ", Seen]),
        Known ++ Later ++ Recovers
    };
cause(cut_flaps, Run = #{cluster := Cluster}) ->
    Part_ms = part_ms(lease, Run) div 4,
    {Lost, {Seen, Known}} = count_lost([1], Run, Part_ms, fun() ->
        repeat(6, fun() ->
            test_faulty_cluster:isolate(Cluster, 1),
            last_for(Part_ms),
            test_faulty_cluster:heal_all(Cluster),
            last_for(Part_ms)
        end)
    end),
    {lists:concat(["six times ", Part_ms, " ms; ", Lost, " locks lost there; ", Seen]), Known};
%% By nodes that keep trying to connect.
cause(connections_are_closed, Run = #{cluster := Cluster}) ->
    Pairs = [{One, Other} || One <- indexes(Cluster), Other <- indexes(Cluster), One =/= Other],
    Tried = lists:sublist(test_setup:shuffled([Pair || _ <- lists:seq(1, 3), Pair <- Pairs]), ?CLOSED),
    Closed = [yes || {One, Other} <- Tried, heartbeat(Run), test_faulty_cluster:disconnect(Cluster, One, Other)],
    {Seen, Known} = recovered_now(Run, 0),
    {lists:concat([length(Closed), " of ", length(Tried), " connections were open and closed; ", Seen]), Known};
cause(suspended_for_longer_than_leases, Run = #{cluster := Cluster}) ->
    await_kept(1, Run),
    Began = now_ns(),
    test_faulty_cluster:suspend(Cluster, 1),
    {Took_ms, Others} = recovery(Run, others(Run, 1), now_ns(), bound_ms(0, Run)),
    outlast_leases(Run),
    test_faulty_cluster:resume(Cluster, 1),
    Resumed = now_ns(),
    {Seen, Recovers} = recovered(Run, indexes(Cluster), Resumed, 0),
    {
        lists:concat([
            "suspended for ", ms(Resumed - Began), " ms; the others continued after ", Took_ms, " ms; ",
            lost_at(Run, [1], Began), " locks lost there; ", Seen
        ]),
        [{must_lose, 1, Began, Resumed + ns(notice_ms())} | Others ++ Recovers]
    };
%% One after the other, so some have leases of others when they are resumed.
cause(all_are_suspended, Run = #{cluster := Cluster}) ->
    [test_faulty_cluster:suspend(Cluster, Index) || Index <- indexes(Cluster), heartbeat(Run)],
    outlast_leases(Run),
    [test_faulty_cluster:resume(Cluster, Index) || Index <- indexes(Cluster), heartbeat(Run)],
    recovered_now(Run, 0);
cause(voter_dies, Run) ->
    losing("each twice", Run, fun() ->
        [kill_process(canal_lock_quorum_voter, Index, Run) || Index <- members(Run), _ <- [1, 2], heartbeat(Run)]
    end);
%% A voter that its next agent does not reach keeps the locks of the dead agent until the lease expires. The next fault
%% must not cause that.
cause(agent_dies, Run) ->
    Seen = end_locks(1, fun() -> kill_process(canal_lock_quorum_agent, 1, Run) end, fun() -> ok end, Run),
    outlast_leases(Run),
    Seen;
cause(links_die, Run = #{cluster := Cluster}) ->
    [kill_process(canal_lock_quorum_connections, Index, Run) || Index <- [2, 3]],
    [test_faulty_cluster:disconnect(Cluster, Index, 1) || Index <- [2, 3]],
    recovered_now(Run, 0);
%% The voter forgets its votes while agents count on them.
cause(locks_are_stopped, Run) ->
    end_locks(2, fun() -> stop_locks(2, Run) end, fun() -> start_locks(2, Run) end, Run);
%% A2: a holder has the votes of a bare quorum. It is cut off, and the other voters of that quorum forget their votes,
%% while clients on all other nodes want the lock.
cause(voters_forget_a_holder, Run = #{cluster := Cluster}) ->
    Began = now_ns(),
    Near = near(Run),
    [test_faulty_cluster:cut(Cluster, 1, Index) || Index <- others(Run, 1) -- Near],
    await_contended(1, Run),
    await_kept(1, Run),
    test_faulty_cluster:isolate(Cluster, 1),
    Since = now_ns(),
    [stop_locks(Index, Run) || Index <- Near -- [1]],
    [start_locks(Index, Run) || Index <- Near -- [1]],
    {Took_ms, Others} = recovery(Run, others(Run, 1), now_ns(), bound_ms(0, Run)),
    outlast_leases(Run),
    test_faulty_cluster:heal_all(Cluster),
    {Seen, Recovers} = recovered_now(Run, ms(now_ns() - Began)),
    Lost = lost_at(Run, [1], Since),
    {
        lists:concat(["the others continued after ", Took_ms, " ms; ", Lost, " locks lost there; ", Seen]),
        [must_lose(1, Since, Run) | Others ++ Recovers]
    };
%% The last answers that a holder receives before it is cut off are almost as old as they may be: its lease counts from
%% when it asked. On proxies, since TCP would delay them further.
cause(answers_are_late, Run = #{cluster := Cluster}) ->
    await_contended(1, Run),
    [test_faulty_cluster:cut_one_way(Cluster, Other, 1) || Other <- others(Run, 1)],
    last_for(8 * part_ms(attempt, Run) div 10),
    [test_faulty_cluster:heal_one_way(Cluster, Other, 1) || Other <- others(Run, 1)],
    last_for(part_ms(attempt, Run) div 10),
    cut_off(fun() -> test_faulty_cluster:isolate(Cluster, 1) end, 1, Run);
cause(unlocked_by_force, Run = #{cluster := Cluster}) ->
    losing("ten times", Run, fun() ->
        repeat(10, fun() ->
            call(Cluster, 1, fun() -> canal_lock_quorum:force_unlock(contended_lock) end),
            heartbeat(Run)
        end)
    end);
cause(one_is_killed, Run) ->
    kill_and_restart([1], Run);
cause(most_are_killed, Run = #{cluster := Cluster}) ->
    kill_and_restart(lists:seq(1, length(indexes(Cluster)) div 2 + 1), Run);
cause(all_are_killed, Run = #{cluster := Cluster}) ->
    kill_and_restart(indexes(Cluster), Run);
%% On the connection that also carries the frames.
cause(a_large_message, Run = #{cluster := Cluster}) ->
    IsSlow = test_faulty_cluster:network(Cluster) =:= namespaces,
    IsSlow andalso test_faulty_cluster:slow(Cluster, 1, 200),
    To = name(Cluster, 2),
    Began = now_ns(),
    Took_ms = call(Cluster, 1, fun() -> send_large(To) end),
    {Seen, Known} = recovered_now(Run, 0),
    IsSlow andalso test_faulty_cluster:fast(Cluster, 1),
    Lost = lost_at(Run, indexes(Cluster), Began),
    {lists:concat(["64 MB in ", Took_ms, " ms; ", Lost, " locks lost; ", Seen]), Known};
cause(wall_clocks_jump, Run = #{cluster := Cluster}) ->
    Jumps = [{1, 3_600_000}, {2, -3_600_000}, {3, 86_400_000}, {1, -86_400_000}, {1, 0}, {2, 0}, {3, 0}],
    losing(lists:concat([length(Jumps), " jumps, by an hour and a day"]), Run, fun() ->
        [test_faulty_cluster:set_clock(Cluster, Index, Ahead_ms) || {Index, Ahead_ms} <- Jumps, heartbeat(Run)]
    end);
%% CE3: node 1 receives nothing. A grant of node 2 is on its way to node 1 when the voter of node 2 forgets it. The
%% grant arrives after node 3 and the new voter of node 2 have granted the same names to others.
cause(held_back_answers, Run = #{cluster := Cluster}) ->
    await_kept(1, Run),
    Began = now_ns(),
    [test_faulty_cluster:cut_one_way(Cluster, Other, 1) || Other <- others(Run, 1)],
    Since = now_ns(),
    last_for(part_ms(attempt, Run)),
    stop_locks(2, Run),
    start_locks(2, Run),
    {Took_ms, Others} = recovery(Run, others(Run, 1), now_ns(), bound_ms(0, Run)),
    outlast_leases(Run),
    Until = now_ns(),
    Held =
        case test_faulty_cluster:network(Cluster) of
            proxies -> lists:concat([test_faulty_cluster:bytes_held_back(Cluster, 2, 1), " bytes"]);
            namespaces -> "the data of TCP"
        end,
    test_faulty_cluster:heal_one_way(Cluster, 2, 1),
    last_for(part_ms(attempt, Run)),
    test_faulty_cluster:heal_all(Cluster),
    {Seen, Recovers} = recovered_now(Run, ms(now_ns() - Began)),
    {
        lists:concat([Held, " held back; the others continued ", Took_ms, " ms after the restart; ", Seen]),
        [must_lose(1, Since, Run), {no_grants, 1, Since, Until} | Others ++ Recovers]
    }.

%% After these faults another client gets the lock before the old lease ends, so a write of the old holder may be late.
-spec grants_at_once(fault()) -> boolean().
grants_at_once(Fault) ->
    lists:member(Fault, [agent_dies, locks_are_stopped, unlocked_by_force]).

%%% Parts of faults

recovered_now(Run = #{cluster := Cluster}, Fault_ms) ->
    recovered(Run, indexes(Cluster), now_ns(), Fault_ms).

%% Causes a fault of this length. Returns the number of locks that clients of these nodes lost, and the recovery.
count_lost(Indexes, Run, Fault_ms, Cause) ->
    Began = now_ns(),
    Cause(),
    Recovered = recovered_now(Run, Fault_ms),
    {lost_at(Run, Indexes, Began), Recovered}.

losing(Description, Run = #{cluster := Cluster}, Cause) ->
    {Lost, {Seen, Known}} = count_lost(indexes(Cluster), Run, 0, Cause),
    {lists:concat([Description, "; ", Lost, " locks lost; ", Seen]), Known}.

%% The keeper of a node holds a lock, so a fault that ends locks on this node ends at least one.
await_kept(Index, #{cluster := Cluster, users := Users}) ->
    call(Cluster, Index, fun() -> test_await:value(true, fun Users:is_kept/0) end).

%% Makes the contender of a node lock the contended name. The others hold it for up to two leases each, and a
%% contender that has waited too long asks again. So with five of them a contender may wait for minutes, unless a holder
%% releases early.
await_contended(Index, Run = #{cluster := Cluster, users := Users}) ->
    Since_ms = call(Cluster, Index, fun() -> erlang:system_time(millisecond) end),
    Has = fun() ->
        call(Cluster, Index, fun() -> Users:has_contended(Since_ms) end) orelse
            begin
                [call(Cluster, Other, fun Users:release_contended/0) || Other <- others(Run, Index)],
                Wait_ms = part_ms(attempt, Run) div 2,
                call(Cluster, Index, fun() ->
                    test_await:last_value(true, fun() -> Users:has_contended(Since_ms) end, Wait_ms)
                end)
            end
    end,
    test_await:value(true, Has, ?CONTENDED_MS).

%% A bare quorum. Node 1 is not cut off from its own voter.
near(Run) ->
    Members = members(Run),
    lists:sublist(Members, length(Members) div 2 + 1).

%% How long a fault lasts is part of the fault.
last_for(Ms) ->
    timer:sleep(Ms).

heartbeat(Run) ->
    ok = last_for(part_ms(heartbeat, Run)),
    true.

%% The fault lasts longer than any lease.
outlast_leases(Run) ->
    last_for(part_ms(lease, Run) + part_ms(lease, Run) div 4).

%% How long until the other node says that it received the message.
send_large(To) ->
    Began = now_ns(),
    Here = self(),
    Receiver = spawn(To, fun() ->
        receive Large -> Here ! {size, byte_size(Large)} end
    end),
    Receiver ! binary:copy(<<0>>, 64_000_000),
    receive {size, 64_000_000} -> ms(now_ns() - Began) end.

others(#{cluster := Cluster}, Index) ->
    indexes(Cluster) -- [Index].

%% Cuts a node off for longer than any lease.
cut_off(Cut, Index, Run = #{cluster := Cluster}) ->
    await_kept(Index, Run),
    Began = now_ns(),
    Cut(),
    Since = now_ns(),
    {Took_ms, Others} = recovery(Run, others(Run, Index), Since, bound_ms(0, Run)),
    outlast_leases(Run),
    Until = now_ns(),
    test_faulty_cluster:heal_all(Cluster),
    {Seen, Recovers} = recovered_now(Run, ms(now_ns() - Began)),
    {
        lists:concat([
            "cut off for ", ms(Until - Since), " ms; the others continued after ", Took_ms, " ms; ",
            lost_at(Run, [Index], Began), " locks lost there; ", Seen
        ]),
        [must_lose(Index, Since, Run), {no_grants, Index, Since, Until} | Others ++ Recovers]
    }.

%% Ends the locks of a node at once.
end_locks(Index, End, Restart, Run) ->
    await_kept(Index, Run),
    Began = now_ns(),
    End(),
    Ended = now_ns(),
    Restart(),
    {Seen, Recovers} = recovered_now(Run, ms(now_ns() - Began)),
    Lost = lost_at(Run, [Index], Began),
    {lists:concat([Lost, " locks lost; ", Seen]), [{must_lose, Index, Began, Ended + ns(notice_ms())} | Recovers]}.

kill_and_restart(Indexes, Run = #{cluster := Cluster}) ->
    Survivors = indexes(Cluster) -- Indexes,
    Began = now_ns(),
    test_faulty_cluster:kill(Cluster, Indexes),
    Dead = now_ns(),
    {During, Known} =
        case {is_quorum(Survivors, Run), Survivors} of
            {true, _} ->
                {Took_ms, Continue} = recovery(Run, Survivors, Dead, bound_ms(0, Run)),
                {lists:concat(["the others continued after ", Took_ms, " ms; "]), Continue};
            {false, []} ->
                {"", []};
            {false, _} ->
                last_for(part_ms(holder_lease, Run) + notice_ms()),
                Until = now_ns(),
                {
                    lists:concat([lost_at(Run, Survivors, Began), " locks of the others lost; "]),
                    [must_lose(Index, Dead, Run) || Index <- Survivors] ++
                        [{no_grants, Index, Dead, Until} || Index <- Survivors]
                }
        end,
    test_faulty_cluster:restart(Cluster, Indexes),
    start_clients(Run, Indexes),
    Back = now_ns(),
    {Seen, Recovers} = recovered(Run, indexes(Cluster), Back, 0),
    {lists:concat([During, "restarted after ", ms(Back - Dead), " ms; ", Seen]), Known ++ Recovers}.

kill_process(Name, Index, #{cluster := Cluster}) ->
    call(Cluster, Index, fun() -> test_quorum_cluster:kill_process(Name) end).

stop_locks(Index, #{cluster := Cluster}) ->
    test_quorum_cluster:stop(node_at(Cluster, Index)).

repeat(Times, Do) ->
    lists:foreach(fun(_) -> Do() end, lists:seq(1, Times)).
