%% What can happen to the nodes of a cluster that has quorum locks: each fault is brought about and ended here, says
%% what was seen of it, and what its history has to show, beside the promises that hold always.
-module(test_quorum_faults).

-export([all/0, bring_about/2, passes_on_at_once/1]).

-export_type([fault/0]).

-import(test_quorum_lab, [call/3, name/2, places/1]).
-import(test_quorum_trial, [recovery/4, recovered/4, lost_at/3, must_lose/3, bound_ms/2, rule/2]).
-import(test_quorum_trial, [begin_lives/2, start_locks/2, now_ns/0, ns/1, ms/1, news_ms/0]).

%% A net for what hangs. Each half of the time in which an attempt is over it is passed on, to any of the others.
-define(INHERIT_MS, 120_000).

-type fault() :: atom().
-type run() :: test_quorum_trial:run().

%% In this order, on one cluster. The last two are for wires, which let go of what they hold at a given moment.
-spec all() -> [fault()].
all() ->
    [
        none,
        cut_off_from_all,
        hears_nobody,
        is_heard_by_nobody,
        two_do_not_see_each_other,
        cut_flaps,
        connections_are_closed,
        stopped_for_longer_than_leases,
        all_are_stopped,
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

%% What was seen, for people, and what is known, for the judge of the history.
-spec bring_about(fault(), run()) -> {Seen :: string(), [test_quorum_history:known()]}.
bring_about(none, Run = #{lab := Lab}) ->
    recovered(Run, places(Lab), now_ns(), 0);
bring_about(cut_off_from_all, Run = #{lab := Lab}) ->
    cut_off(fun() -> test_quorum_lab:isolate(Lab, 1) end, 1, Run);
bring_about(hears_nobody, Run = #{lab := Lab}) ->
    cut_off(fun() -> [test_quorum_lab:cut_one_way(Lab, Other, 2) || Other <- others(Run, 2)] end, 2, Run);
bring_about(is_heard_by_nobody, Run = #{lab := Lab}) ->
    cut_off(fun() -> [test_quorum_lab:cut_one_way(Lab, 3, Other) || Other <- others(Run, 3)] end, 3, Run);
%% A third one sees both, so both have a quorum.
bring_about(two_do_not_see_each_other, Run = #{lab := Lab}) ->
    Began = now_ns(),
    test_quorum_lab:cut(Lab, 1, 2),
    {Took_ms, Known} = recovery(Run, places(Lab), now_ns(), bound_ms(0, Run)),
    outlast(Run),
    {Still_ms, Later} = recovery(Run, places(Lab), now_ns(), bound_ms(0, Run)),
    test_quorum_lab:heal_all(Lab),
    {Seen, Recovers} = recovered(Run, places(Lab), now_ns(), ms(now_ns() - Began)),
    {
        lists:concat(["all got locks within ", Took_ms, " ms of it, and ", Still_ms, " ms later; ", Seen]),
        Known ++ Later ++ Recovers
    };
bring_about(cut_flaps, Run = #{lab := Lab}) ->
    Began = now_ns(),
    Part_ms = rule(voter_lease_ms, Run) div 4,
    repeat(6, fun() ->
        test_quorum_lab:isolate(Lab, 1),
        timer:sleep(Part_ms),
        test_quorum_lab:heal_all(Lab),
        timer:sleep(Part_ms)
    end),
    {Seen, Known} = recovered(Run, places(Lab), now_ns(), Part_ms),
    {lists:concat(["six times ", Part_ms, " ms; ", lost_at(Run, 1, Began), " locks lost there; ", Seen]), Known};
%% By nodes that try to keep them.
bring_about(connections_are_closed, Run = #{lab := Lab}) ->
    Pairs = [{One, Other} || One <- places(Lab), Other <- places(Lab), One =/= Other],
    Tried = [Pair || _ <- lists:seq(1, 3), Pair <- Pairs],
    Closed = [yes || {One, Other} <- Tried, pause(Run), test_quorum_lab:disconnect(Lab, One, Other)],
    {Seen, Known} = recovered(Run, places(Lab), now_ns(), 0),
    {lists:concat([length(Closed), " of ", length(Tried), " were there to be closed; ", Seen]), Known};
bring_about(stopped_for_longer_than_leases, Run = #{lab := Lab}) ->
    await_keeper(1, Run),
    Began = now_ns(),
    test_quorum_lab:freeze(Lab, 1),
    {Took_ms, Others} = recovery(Run, others(Run, 1), now_ns(), bound_ms(0, Run)),
    outlast(Run),
    test_quorum_lab:thaw(Lab, 1),
    Thawed = now_ns(),
    {Seen, Recovers} = recovered(Run, places(Lab), Thawed, 0),
    {
        lists:concat([
            "stopped for ", ms(Thawed - Began), " ms; the others went on after ", Took_ms, " ms; ",
            lost_at(Run, 1, Began), " locks lost there; ", Seen
        ]),
        [{must_lose, 1, Began, Thawed + ns(news_ms())} | Others ++ Recovers]
    };
%% One after the other, so some hold leases of others when they come back.
bring_about(all_are_stopped, Run = #{lab := Lab}) ->
    [test_quorum_lab:freeze(Lab, Place) || Place <- places(Lab), pause(Run)],
    outlast(Run),
    [test_quorum_lab:thaw(Lab, Place) || Place <- places(Lab), pause(Run)],
    recovered(Run, places(Lab), now_ns(), 0);
bring_about(voter_dies, Run = #{lab := Lab}) ->
    Began = now_ns(),
    [kill_process(canal_lock_quorum_voter, Place, Run) || Place <- places(Lab), _ <- [1, 2], pause(Run)],
    Lost = lists:sum([lost_at(Run, Place, Began) || Place <- places(Lab)]),
    {Seen, Known} = recovered(Run, places(Lab), now_ns(), 0),
    {lists:concat(["each twice; ", Lost, " locks lost; ", Seen]), Known};
%% What the dead one held is nobody's until its lease ends, which is not to be seen as the next fault's doing.
bring_about(agent_dies, Run) ->
    Seen = end_at_once([1], fun() -> kill_process(canal_lock_quorum_agent, 1, Run) end, fun() -> ok end, Run),
    outlast(Run),
    Seen;
bring_about(links_die, Run = #{lab := Lab}) ->
    [kill_process(canal_lock_quorum_links, Place, Run) || Place <- [2, 3]],
    [test_quorum_lab:disconnect(Lab, Place, 1) || Place <- [2, 3]],
    recovered(Run, places(Lab), now_ns(), 0);
%% The voter forgets what it has voted for, while agents have votes of it.
bring_about(locks_are_stopped, Run) ->
    end_at_once([2], fun() -> stop_locks(2, Run) end, fun() -> start_locks(2, Run) end, Run);
%% A2: a holder has its votes of a bare quorum; it is cut off, and the others of them begin anew. What they have
%% forgotten is still held, and wanted by all the others.
bring_about(voters_forget_a_holder, Run = #{lab := Lab}) ->
    Began = now_ns(),
    {Near, Far} = lists:split(length(places(Lab)) div 2, others(Run, 1)),
    [test_quorum_lab:cut(Lab, 1, Place) || Place <- Far],
    inherit(1, Run),
    await_keeper(1, Run),
    test_quorum_lab:isolate(Lab, 1),
    Since = now_ns(),
    [stop_locks(Place, Run) || Place <- Near],
    [start_locks(Place, Run) || Place <- Near],
    {Took_ms, Others} = recovery(Run, others(Run, 1), now_ns(), bound_ms(0, Run)),
    outlast(Run),
    test_quorum_lab:heal_all(Lab),
    {Seen, Recovers} = recovered(Run, places(Lab), now_ns(), ms(now_ns() - Began)),
    Lost = lost_at(Run, 1, Since),
    {
        lists:concat(["the others went on after ", Took_ms, " ms; ", Lost, " locks lost there; ", Seen]),
        [must_lose(1, Since, Run) | Others ++ Recovers]
    };
%% The last ones that a holder hears before it is cut off are almost as old as they may be: its lease counts from when
%% it asked. On wires: TCP would take its time to send them again.
bring_about(answers_are_late, Run = #{lab := Lab}) ->
    inherit(1, Run),
    [test_quorum_lab:cut_one_way(Lab, Other, 1) || Other <- others(Run, 1)],
    timer:sleep(8 * rule(attempt_ms, Run) div 10),
    [test_quorum_lab:heal_one_way(Lab, Other, 1) || Other <- others(Run, 1)],
    timer:sleep(rule(attempt_ms, Run) div 10),
    cut_off(fun() -> test_quorum_lab:isolate(Lab, 1) end, 1, Run);
bring_about(unlocked_by_force, Run = #{lab := Lab}) ->
    Began = now_ns(),
    repeat(10, fun() ->
        call(Lab, 1, fun() -> canal_lock_quorum:force_unlock(contended_lock) end),
        pause(Run)
    end),
    {Seen, Known} = recovered(Run, places(Lab), now_ns(), 0),
    Lost = lists:sum([lost_at(Run, Place, Began) || Place <- places(Lab)]),
    {lists:concat(["ten times; ", Lost, " locks lost; ", Seen]), Known};
bring_about(one_is_killed, Run) ->
    kill_and_restart([1], Run);
bring_about(most_are_killed, Run = #{lab := Lab}) ->
    kill_and_restart(lists:seq(1, length(places(Lab)) div 2 + 1), Run);
bring_about(all_are_killed, Run = #{lab := Lab}) ->
    kill_and_restart(places(Lab), Run);
%% On the connection that frames go over, too.
bring_about(a_large_message, Run = #{lab := Lab}) ->
    test_quorum_lab:kind(Lab) =:= namespaces andalso test_quorum_lab:slow(Lab, 1, 200),
    Began = now_ns(),
    To = name(Lab, 2),
    Took = call(Lab, 1, fun() -> send_large(To) end),
    {Seen, Known} = recovered(Run, places(Lab), now_ns(), 0),
    test_quorum_lab:kind(Lab) =:= namespaces andalso test_quorum_lab:fast(Lab, 1),
    Lost = lists:sum([lost_at(Run, Place, Began) || Place <- places(Lab)]),
    {lists:concat(["64 MB in ", Took, " ms; ", Lost, " locks lost; ", Seen]), Known};
bring_about(wall_clocks_jump, Run = #{lab := Lab}) ->
    Began = now_ns(),
    Jumps = [{1, 3_600_000}, {2, -3_600_000}, {3, 86_400_000}, {1, -86_400_000}, {1, 0}, {2, 0}, {3, 0}],
    [test_quorum_lab:set_clock(Lab, Place, Wrong_ms) || {Place, Wrong_ms} <- Jumps, pause(Run)],
    Lost = lists:sum([lost_at(Run, Place, Began) || Place <- places(Lab)]),
    {Seen, Known} = recovered(Run, places(Lab), now_ns(), 0),
    {lists:concat([length(Jumps), " jumps, by an hour and a day; ", Lost, " locks lost; ", Seen]), Known};
%% B1: the first node hears nobody; what the second one has granted it is on its way when that forgets it and begins
%% anew; it comes when the third one, and the second one in its new life, have granted the same names to others.
bring_about(held_back_answers, Run = #{lab := Lab}) ->
    await_keeper(1, Run),
    Began = now_ns(),
    [test_quorum_lab:cut_one_way(Lab, Other, 1) || Other <- others(Run, 1)],
    Since = now_ns(),
    timer:sleep(rule(attempt_ms, Run)),
    stop_locks(2, Run),
    start_locks(2, Run),
    {Took_ms, Others} = recovery(Run, others(Run, 1), now_ns(), bound_ms(0, Run)),
    outlast(Run),
    Until = now_ns(),
    Held =
        case test_quorum_lab:kind(Lab) of
            wires -> lists:concat([test_quorum_lab:held(Lab, 2, 1), " bytes"]);
            namespaces -> "what TCP"
        end,
    test_quorum_lab:heal_one_way(Lab, 2, 1),
    timer:sleep(rule(attempt_ms, Run)),
    test_quorum_lab:heal_all(Lab),
    {Seen, Recovers} = recovered(Run, places(Lab), now_ns(), ms(now_ns() - Began)),
    {
        lists:concat([Held, " held back; the others went on after ", Took_ms, " ms of the restart; ", Seen]),
        [must_lose(1, Since, Run), {no_grants, 1, Since, Until} | Others ++ Recovers]
    }.

%% A fault that ends what is held at a place ends something.
await_keeper(Place, #{lab := Lab}) ->
    test_await:value(true, fun() -> call(Lab, Place, fun test_quorum_clients:is_kept/0) end).

%% Makes the contender of a place acquire the contended lock. The others hold it for up to two leases each, and a
%% contender that has waited too long asks again. So with five of them a contender may wait for minutes, unless a holder
%% releases early.
inherit(Place, Run = #{lab := Lab}) ->
    inherit(Place, call(Lab, Place, fun() -> erlang:system_time(millisecond) end), now_ns() + ns(?INHERIT_MS), Run).

inherit(Place, Since_ms, Until, Run = #{lab := Lab}) ->
    case call(Lab, Place, fun() -> test_quorum_clients:has_heirloom(Since_ms) end) of
        true ->
            ok;
        false ->
            now_ns() < Until orelse error({does_not_inherit, Place}),
            [call(Lab, Other, fun test_quorum_clients:pass_on/0) || Other <- others(Run, Place)],
            timer:sleep(rule(attempt_ms, Run) div 2),
            inherit(Place, Since_ms, Until, Run)
    end.

%% Some heartbeats.
pause(Run) ->
    timer:sleep(rule(heartbeat_ms, Run)),
    true.

%% How long until the other one says that it is there.
send_large(To) ->
    Began = now_ns(),
    Here = self(),
    Receiver = spawn(To, fun() ->
        receive
            Large -> Here ! {size, byte_size(Large)}
        end
    end),
    Receiver ! binary:copy(<<0>>, 64_000_000),
    receive
        {size, 64_000_000} -> ms(now_ns() - Began)
    end.

%% After this the next one has the name without waiting for the end of a lease, and a write of the one before may be
%% under way.
-spec passes_on_at_once(fault()) -> boolean().
passes_on_at_once(Fault) ->
    lists:member(Fault, [agent_dies, locks_are_stopped, unlocked_by_force]).

%%% Parts of faults

%% Longer than any lease.
outlast(Run) ->
    timer:sleep(longest_ms(Run)).

longest_ms(Run) ->
    rule(voter_lease_ms, Run) + rule(voter_lease_ms, Run) div 4.

others(#{lab := Lab}, Place) ->
    places(Lab) -- [Place].

%% The node at a place is cut off by some cuts, for longer than any lease.
cut_off(Cut, Place, Run = #{lab := Lab}) ->
    await_keeper(Place, Run),
    Began = now_ns(),
    Cut(),
    Since = now_ns(),
    {Inherited, Others} = recovery(Run, others(Run, Place), Since, bound_ms(0, Run)),
    outlast(Run),
    Until = now_ns(),
    test_quorum_lab:heal_all(Lab),
    Healed = now_ns(),
    {Seen, Recovers} = recovered(Run, places(Lab), Healed, ms(Healed - Began)),
    {
        lists:concat([
            "cut off for ", ms(Until - Since), " ms; the others went on after ", Inherited, " ms; ",
            lost_at(Run, Place, Began), " locks lost there; ", Seen
        ]),
        [must_lose(Place, Since, Run), {no_grants, Place, Since, Until} | Others ++ Recovers]
    }.

%% Something that ends what nodes hold at once.
end_at_once(Places, End, Begin, Run = #{lab := Lab}) ->
    [await_keeper(Place, Run) || Place <- Places],
    Began = now_ns(),
    End(),
    Ended = now_ns(),
    Begin(),
    {Seen, Recovers} = recovered(Run, places(Lab), now_ns(), ms(now_ns() - Began)),
    Lost = lists:sum([lost_at(Run, Place, Began) || Place <- Places]),
    MustLose = [{must_lose, Place, Began, Ended + ns(news_ms())} || Place <- Places],
    {lists:concat([Lost, " locks lost; ", Seen]), MustLose ++ Recovers}.

kill_and_restart(Places, Run = #{lab := Lab}) ->
    Survivors = places(Lab) -- Places,
    IsQuorum = 2 * length(Survivors) > length(places(Lab)),
    Began = now_ns(),
    [test_quorum_lab:kill(Lab, Place) || Place <- Places],
    Dead = now_ns(),
    {Meanwhile, Known} =
        case {IsQuorum, Survivors} of
            {true, _} ->
                {Took_ms, Going} = recovery(Run, Survivors, Dead, bound_ms(0, Run)),
                {lists:concat(["the others went on after ", Took_ms, " ms; "]), Going};
            {false, []} ->
                {"", []};
            {false, _} ->
                timer:sleep(rule(holder_lease_ms, Run) + news_ms()),
                Until = now_ns(),
                Lost = lists:sum([lost_at(Run, Place, Began) || Place <- Survivors]),
                {
                    lists:concat([Lost, " locks lost of those that lived; "]),
                    [must_lose(Place, Dead, Run) || Place <- Survivors] ++
                        [{no_grants, Place, Dead, Until} || Place <- Survivors]
                }
        end,
    test_quorum_lab:restart(Lab, Places),
    begin_lives(Run, Places),
    Back = now_ns(),
    {Seen, Recovers} = recovered(Run, places(Lab), Back, 0),
    {Meanwhile ++ "back after " ++ integer_to_list(ms(Back - Dead)) ++ " ms; " ++ Seen, Known ++ Recovers}.

%% The process of this name on a node.
kill_process(Name, Place, #{lab := Lab}) ->
    call(Lab, Place, fun() ->
        Pid = whereis(Name),
        Monitor = monitor(process, Pid),
        exit(Pid, kill),
        killed = test_await:reason({Pid, Monitor}),
        test_await:value(true, fun() -> is_pid(whereis(Name)) end)
    end).

stop_locks(Place, #{lab := Lab}) ->
    call(Lab, Place, fun canal_lock_quorum:stop/0).

repeat(Times, Do) ->
    lists:foreach(fun(_) -> Do() end, lists:seq(1, Times)).
