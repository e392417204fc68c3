%% Members change while locks are held, on real nodes. native/quorum/tests/all/scenarios has the same rules step by
%% step, and native/quorum_check searches for orders of events that break them.
-module(canal_lock_quorum_views_tests).

-include_lib("eunit/include/eunit.hrl").

-import(test_nodes, [call/2, worker/1, order/2, name/1]).
-import(test_quorum_cluster, [await_view/2, await_voting/1, held/2, isolate/2, lock/3, lose_file/1, members/1]).
-import(test_quorum_cluster, [messages/1, start/2, stop/1, unlock/2]).

-define(LONG_MS, 60_000).

%% What all loads lock. Beside it, each process locks a name of its own.
-define(SHARED, shared).

change_test_() ->
    tests(5, [
        {"PR5: a member is replaced while locks are held, and nothing is lost under load", fun replaced/1},
        {"members are added and removed under load: 1, 3, 5, 3, 1", fun grow_and_shrink/1},
        {"all members are replaced, and the last one of the old list may leave", fun all_replaced/1},
        {"1500 locks are held after changes, whose steps run on dirty schedulers", fun many_locks/1},
        {"the same members again: nothing changes", fun same_members/1},
        {"a node that does not run cannot become a member, and the answer names it", fun not_ready/1},
        {"a dead member is replaced", fun dead_replaced/1},
        {"a member moves with its state file, and stays the same one", fun moved/1},
        {"a client that is cut off during a change loses its lock, others keep theirs, it comes back", fun cut_off/1},
        {"two nodes change the members at the same time, and one view is the result", fun two_initiators/1},
        {"a change whose initiator is killed after any message leaves one view", fun initiator_killed/1},
        {"a member that is out and starts with its file follows the view, and is a client", fun starts_outside/1},
        {"a member that loses its file during a change comes back", fun loses_file_meanwhile/1},
        {"a client calls no change", fun no_voter/1}
    ]).

reset_test_() ->
    tests(3, [
        {"after most members are lost, one goes on alone, and its locks are lost", fun reset/1},
        {"a reset is refused while a member outside the list runs", fun reset_refused/1}
    ]).

%% Members that leave and return with the state files of the list that is in use again.
returning_test_() ->
    [
        {lists:concat([All, " members, ", Stay, ", and ", All, " again"]),
            tests(All, [
                {"fences grow", fun(Nodes) -> fences_after(Stay, stopped, Nodes) end}
            ])}
     || {All, Stay} <- [{8, 5}, {5, 3}, {4, 1}, {5, 2}, {3, 1}]
    ] ++ [
        tests(5, [
            {"those that return have the fences of those that stayed and are down then, 5 and 2",
                fun(Nodes) -> fences_down(2, Nodes) end},
            {"a member that missed the locks has their fences, 5 and 3", fun missed/1},
            {"fences grow if those that left go on as clients", fun(Nodes) -> fences_after(3, clients, Nodes) end},
            {"and if they return without their files", fun(Nodes) -> fences_after(3, without_files, Nodes) end},
            {"with one member in both lists, those of the old list get nothing", fun overlap_of_one/1},
            {"a client keeps its lock while members that left earlier return", fun client_overlap/1}
        ]),
        tests(3, [
            {"those that return have the fences of those that stayed and are down then, 3 and 1",
                fun(Nodes) -> fences_down(1, Nodes) end},
            {"Q13: members that left and do not hear the one that stayed get nothing",
                fun(Nodes) -> separated(keep, Nodes) end},
            {"nor do they without their files", fun(Nodes) -> separated(delete, Nodes) end}
        ])
    ].

tests(Count, Tests) ->
    test_nodes:tests(Count, [], [{Title, fun(Nodes) -> run(Nodes, Test) end} || {Title, Test} <- Tests]).

%% Afterwards, nothing is left of the cluster.
run(Nodes, Test) ->
    try
        Test(Nodes)
    after
        [begin stop(Node), lose_file(Node) end || Node <- Nodes, test_nodes:is_alive(Node)]
    end.

%% The first ones are the members, the others are nodes that may become members.
start_all(Nodes, Members) ->
    test_nodes:introduce(Nodes),
    [start(Node, options(Members)) || Node <- Nodes],
    ok = await_voting(Nodes).

options(Members) ->
    (test_quorum_cluster:options(Members))#{clients := all}.

change(Node, Members) ->
    Names = members(Members),
    call(Node, fun() -> canal_lock_quorum:change_members(Names) end).

number(Node) ->
    #{view := #{number := Number}} = call(Node, fun canal_lock_quorum:status/0),
    Number.

%% The nodes of the view.
is_list(Node, Members) ->
    Names = lists:sort(members(Members)),
    #{view := #{members := Names}} = call(Node, fun canal_lock_quorum:status/0),
    ok.

%%% Changes

replaced([A, B, C, D, _] = Nodes) ->
    ok = start_all(Nodes, [A, B, C]),
    Holders = [worker(Node) || Node <- [A, C, D]],
    Names = lists:zip(Holders, [a, c, d]),
    [{ok, _} = lock(Holder, Name, ?LONG_MS) || {Holder, Name} <- Names],
    Loads = [begin_load(Node) || Node <- Nodes],
    ?assertEqual({ok, 1}, change(A, [A, B, D])),
    [is_list(Node, [A, B, D]) || Node <- [A, B, D]],
    ok = await_voting([A, B, D]),
    [end_load(Load) || Load <- Loads],
    [?assertEqual({Name, true}, {Name, held(Holder, Name)}) || {Holder, Name} <- Names],
    %% C is not needed any more.
    ok = stop(C),
    Next = worker(B),
    ?assertEqual({error, timeout}, lock(Next, d, 50)),
    ok = unlock(lists:last(Holders), d),
    ?assertMatch({ok, _}, lock(Next, d, ?LONG_MS)).

grow_and_shrink([A, B, C, D, E] = Nodes) ->
    ok = start_all(Nodes, [A]),
    Holder = worker(E),
    {ok, First} = lock(Holder, x, ?LONG_MS),
    Loads = [begin_load(Node) || Node <- Nodes],
    Lists = [[A, B, C], Nodes, [C, D, E], [E]],
    [?assertEqual({ok, Number}, change(A, List)) || {Number, List} <- lists:enumerate(Lists)],
    [end_load(Load) || Load <- Loads],
    ?assert(held(Holder, x)),
    ok = await_view(4, Nodes),
    [ok = stop(Node) || Node <- [A, B, C, D]],
    ok = unlock(Holder, x),
    {ok, Last} = lock(worker(E), x, ?LONG_MS),
    ?assert(Last > First).

all_replaced([A, B, C, D, E] = Nodes) ->
    ok = start_all(Nodes, [A, B]),
    {Stays, Leaves} = {worker(D), worker(A)},
    {ok, First} = lock(Stays, x, ?LONG_MS),
    {ok, _} = lock(Leaves, y, ?LONG_MS),
    ?assertEqual({ok, 1}, change(A, [C, D, E])),
    ?assert(held(Stays, x)),
    ?assert(held(Leaves, y)),
    [ok = stop(Node) || Node <- [A, B]],
    ?assertEqual([{lost, y}], messages(Leaves)),
    ok = unlock(Stays, x),
    Next = worker(E),
    {ok, Last} = lock(Next, x, ?LONG_MS),
    ?assert(Last > First),
    ?assertMatch({ok, _}, lock(Next, y, ?LONG_MS)).

%% More than 1000 locks or votes make a step long, at the agent and at the voters.
many_locks([A, B | _]) ->
    ok = start_all([A, B], [A]),
    Holder = worker(A),
    Names = lists:seq(1, 1500),
    [{ok, _} = lock(Holder, Name, ?LONG_MS) || Name <- Names],
    ?assertEqual({ok, 1}, change(A, [B])),
    ?assertEqual({ok, 2}, change(B, [A])),
    ?assertEqual([], [Name || Name <- Names, not held(Holder, Name)]),
    [ok = unlock(Holder, Name) || Name <- Names].

same_members([A, B, C | _]) ->
    ok = start_all([A, B, C], [A, B, C]),
    ?assertEqual({ok, 0}, change(B, [C, B, A])),
    ?assertEqual({ok, 1}, change(B, [A, B])),
    %% Also from a node that left.
    ?assertEqual({ok, 1}, change(C, [A, B])).

not_ready([A, B, C, D, _]) ->
    ok = start_all([A, B, C], [A, B, C]),
    [NameD] = members([D]),
    ?assertEqual({error, {not_ready, [{NameD, down}]}}, change(A, [A, B, D])),
    ?assertEqual({error, {not_ready, [{there@nowhere, down}]}}, change_names(A, members([A, B]) ++ [there@nowhere])),
    %% In a cluster of its own.
    isolate(D, [A, B, C]),
    start(D, options([D])),
    ok = await_voting([D]),
    test_nodes:introduce([A, B, C, D]),
    ?assertMatch({error, {not_ready, [{NameD, {other_cluster, _}}]}}, change(A, [A, B, D])),
    stop(D),
    lose_file(D),
    start(D, (options([A, B, C]))#{lease_ms := 2000}),
    ?assertEqual({error, {not_ready, [{NameD, {lease_ms, 2000}}]}}, change(A, [A, B, D])),
    ?assertEqual(0, number(A)),
    ?assertMatch({ok, _}, lock(worker(A), x, ?LONG_MS)).

change_names(Node, Names) ->
    call(Node, fun() -> canal_lock_quorum:change_members(Names) end).

dead_replaced([A, B, C, D, _]) ->
    ok = start_all([A, B, C, D], [A, B, C]),
    Holder = worker(D),
    {ok, _} = lock(Holder, x, ?LONG_MS),
    ok = stop(C),
    isolate(C, [A, B, D]),
    ?assertEqual({ok, 1}, change(B, [A, B, D])),
    ?assert(held(Holder, x)),
    %% It returns, and is a client.
    start(C, options([A, B, C])),
    test_nodes:introduce([A, B, C, D]),
    ok = await_view(1, [C]),
    ok = await_voting([A, B, C, D]),
    ?assertMatch(#{role := client, voting := false}, call(C, fun canal_lock_quorum:status/0)),
    ?assertMatch({ok, _}, lock(worker(C), y, ?LONG_MS)),
    ok = unlock(Holder, x).

%% As to another machine: its file is at another place then.
moved([A, B, C | _]) ->
    Nodes = [A, B, C],
    ok = start_all(Nodes, Nodes),
    Holder = worker(A),
    {ok, _} = lock(Holder, x, ?LONG_MS),
    #{state_file := File} = call(C, fun canal_lock_quorum:status/0),
    ok = stop(C),
    Moved = <<File/binary, ".moved">>,
    ok = call(C, fun() -> file:rename(File, Moved) end),
    start(C, (options(Nodes))#{state_file => Moved}),
    ok = await_voting(Nodes),
    ?assertEqual([0, 0, 0], [number(Node) || Node <- Nodes]),
    ?assert(held(Holder, x)).

%% It has votes, so the voters of the new list wait for a lease.
cut_off([A, B, C, D, X] = Nodes) ->
    ok = start_all(Nodes, [A, B, C]),
    {CutOff, Other} = {worker(X), worker(D)},
    {ok, _} = lock(CutOff, x, ?LONG_MS),
    {ok, _} = lock(Other, y, ?LONG_MS),
    Suspension = test_nodes:suspend(X),
    Answer = change(A, [A, B, D]),
    %% If it has votes at the beginning, nothing is changed: they end within a lease.
    Second = case Answer of {ok, 1} -> Answer; {error, {not_ready, _}} -> change(A, [A, B, D]) end,
    ?assertEqual({ok, 1}, Second),
    ?assert(held(Other, y)),
    Next = worker(B),
    {ok, _} = lock(Next, x, ?LONG_MS),
    ok = test_nodes:resume(Suspension),
    ?assertNot(held(CutOff, x)),
    ?assert(held(Next, x)),
    ok = unlock(Next, x),
    ok = await_view(1, [X]),
    ?assertMatch({ok, _}, lock(CutOff, x, ?LONG_MS)),
    ok = unlock(Other, y).

two_initiators([A, B, C, D, E] = Nodes) ->
    ok = start_all(Nodes, [A, B, C]),
    Holder = worker(C),
    {ok, _} = lock(Holder, x, ?LONG_MS),
    Lists = [{A, [A, C, D]}, {B, [B, C, E]}],
    Orders = [test_nodes:send_order(worker(Node), changing(List)) || {Node, List} <- Lists],
    Answers = [test_await:answer(Order) || Order <- Orders],
    [
        ?assertMatch({_, true}, {Answer, is_answer(Answer)})
     || Answer <- Answers
    ],
    ok = await_view(1, Nodes),
    ?assert(held(Holder, x)),
    %% One after the other, both succeed.
    [{ok, _} = change_until_over(Node, List) || {Node, List} <- Lists],
    ok = await_view(number(B), Nodes),
    [is_list(Node, [B, C, E]) || Node <- Nodes],
    ?assert(held(Holder, x)).

changing(List) ->
    Names = members(List),
    fun() -> canal_lock_quorum:change_members(Names) end.

is_answer({ok, _}) -> true;
is_answer({error, {What, #{number := _, members := _}}}) -> lists:member(What, [changing, unknown, starting]);
is_answer({error, {not_ready, [_ | _]}}) -> true;
is_answer(_) -> false.

%% Another change may not be over.
change_until_over(Node, List) ->
    case change(Node, List) of
        {ok, Number} -> {ok, Number};
        {error, _} -> change_until_over(Node, List)
    end.

%% The voter's process of the initiator is killed when it sends the first message, the second one, and so on, until a
%% change ends before.
initiator_killed([A, B, C, D, _]) ->
    Nodes = [A, B, C, D],
    ok = start_all(Nodes, [A, B, C]),
    Holder = worker(B),
    {ok, _} = lock(Holder, x, ?LONG_MS),
    kill_at_each_message(1, A, Nodes, [{[A, B, D], [A, B, C]}, {[A, B, C], [A, B, D]}], Holder).

kill_at_each_message(Message, A, Nodes, [{List, Before} | Next], Holder) ->
    Names = members(List),
    Answer = order(worker(A), fun() -> killed_at(Message, Names) end),
    %% The old list or the new one, by itself.
    ok = await_one_view(Nodes, [List, Before]),
    {ok, _} = change_until_over(A, List),
    ok = await_voting(List),
    ?assertMatch({true, _}, {held(Holder, x), {List, Message, Answer}}),
    Other = worker(lists:last(List)),
    {ok, _} = lock(Other, y, ?LONG_MS),
    ok = unlock(Other, y),
    case Answer of
        {ok, _} -> ?assert(Message > 8);
        killed -> kill_at_each_message(Message + 1, A, Nodes, Next ++ [{List, Before}], Holder)
    end.

%% `killed', if the change sends as many messages about views to others.
killed_at(Message, Names) ->
    Voter = whereis(canal_lock_quorum_voter),
    Killer = spawn(fun() ->
        1 = erlang:trace(Voter, true, [call]),
        _ = erlang:trace_pattern({canal_lock_quorum_wire, send, 2}, true, [global]),
        kill_after(Message, Voter)
    end),
    test_await:value(true, fun() -> erlang:trace_info(Voter, flags) =/= {flags, []} end),
    Changing = spawn_monitor(fun() -> exit(canal_lock_quorum:change_members(Names)) end),
    Answer = test_await:reason(Changing),
    true = exit(Killer, kill),
    _ = test_await:value(true, fun() -> is_pid(whereis(canal_lock_quorum_voter)) end),
    case Answer of
        {ok, Number} -> {ok, Number};
        _ -> killed
    end.

kill_after(0, Voter) ->
    exit(Voter, kill);
kill_after(Left, Voter) ->
    receive
        {trace, Voter, call, {_, send, [{send, view_voter, To, _, _, _} | _]}} when To =/= node() ->
            kill_after(Left - 1, Voter);
        {trace, _, _, _} ->
            kill_after(Left, Voter)
    end.

%% All nodes have the same view, with one of these lists.
await_one_view(Nodes, Lists) ->
    Wanted = [lists:sort(members(List)) || List <- Lists],
    test_await:value(true, fun() ->
        Views = [maps:get(view, call(Node, fun canal_lock_quorum:status/0)) || Node <- Nodes],
        case lists:usort([{Number, Members} || #{number := Number, members := Members} <- Views]) of
            [{_, Members}] -> lists:member(Members, Wanted);
            _ -> false
        end
    end).

starts_outside([A, B, C, D, E]) ->
    ok = start_all([A, B, C, D, E], [C, D, E]),
    ok = stop(E),
    ?assertEqual({ok, 1}, change(C, [A, B, C])),
    isolate(D, [A, B, C]),
    stop(D),
    %% They do not hear the others. The voter of D or E knows that its view is over, or it has no quorum.
    [start(Node, options([C, D, E])) || Node <- [D, E]],
    isolate(E, [A, B, C]),
    test_nodes:introduce([D, E]),
    ?assertMatch({error, _}, lock(worker(D), x, 3 * test_quorum_cluster:lease_ms())),
    test_nodes:introduce([A, B, C, D, E]),
    ok = await_view(1, [D, E]),
    ok = await_voting([A, B, C, D, E]),
    [?assertMatch(#{role := client}, call(Node, fun canal_lock_quorum:status/0)) || Node <- [D, E]],
    ?assertMatch({ok, _}, lock(worker(D), x, ?LONG_MS)).

loses_file_meanwhile([A, B, C, D, _]) ->
    ok = start_all([A, B, C, D], [A, B, C]),
    Holder = worker(A),
    {ok, _} = lock(Holder, x, ?LONG_MS),
    Changing = test_nodes:send_order(worker(A), changing([A, B, C, D])),
    ok = stop(C),
    lose_file(C),
    start(C, options([A, B, C])),
    ?assertMatch({_, true}, {changed, is_answer(test_await:answer(Changing))}),
    {ok, _} = change_until_over(A, [A, B, C, D]),
    ok = await_voting([A, B, C, D]),
    ?assert(held(Holder, x)),
    ok = stop(B),
    ok = unlock(Holder, x),
    ?assertMatch({ok, _}, lock(worker(C), x, ?LONG_MS)).

no_voter([A, X | _]) ->
    ok = start_all([A], [A]),
    test_nodes:introduce([A, X]),
    start(X, test_quorum_cluster:client_options([A])),
    ok = await_voting([X]),
    Change = fun() ->
        try
            canal_lock_quorum:change_members([a@b])
        catch
            error:Reason -> {raised, Reason}
        end
    end,
    ?assertEqual({raised, badarg}, call(X, Change)).

%%% Resets

reset([A, B, C] = Nodes) ->
    ok = start_all(Nodes, Nodes),
    Holder = worker(A),
    {ok, First} = lock(Holder, x, ?LONG_MS),
    [ok = stop(Node) || Node <- [B, C]],
    ?assertEqual({ok, 0}, call(A, fun() -> canal_lock_quorum:reset_members([node()]) end)),
    test_await:value(false, fun() -> held(Holder, x) end),
    {ok, Next} = lock(worker(A), x, ?LONG_MS),
    ?assert(Next > First).

reset_refused([A, B, C] = Nodes) ->
    ok = start_all(Nodes, Nodes),
    [NameB] = members([B]),
    ok = stop(C),
    Reset = fun() -> call(A, fun() -> canal_lock_quorum:reset_members([node()]) end) end,
    ?assertEqual({error, {running, [NameB]}}, Reset()),
    ?assertMatch({ok, _}, lock(worker(A), x, ?LONG_MS)).

%%% Members that return

fences_after(Few, Left, All) ->
    {_, _, Between} = returned(Few, Left, All),
    are_higher(fences(lists:last(All)), Between).

%% As many as the list tolerates are down then.
fences_down(Few, All) ->
    {Stay, Leave, Between} = returned(Few, stopped, All),
    [ok = stop(Node) || Node <- Stay],
    are_higher(fences(hd(Leave)), Between).

%% Some leave, and are members again. Returns the fences of those that stayed.
returned(Few, Left, All) ->
    {Stay, Leave} = lists:split(Few, All),
    ok = start_all(All, All),
    Before = fences(hd(All)),
    {ok, 1} = change(hd(All), Stay),
    _ = [ok = stop(Node) || Left =/= clients, Node <- Leave],
    _ = [ok = lose_file(Node) || Left =:= without_files, Node <- Leave],
    Between = fences(hd(Stay)),
    are_higher(Between, Before),
    _ = [start(Node, options(All)) || Left =/= clients, Node <- Leave],
    {ok, 2} = change(hd(Stay), All),
    ok = await_voting(All),
    {Stay, Leave, Between}.

%% C is down while A and B lock. Later A and B are down.
missed([A, B, C, D, E] = All) ->
    ok = start_all(All, All),
    Before = fences(A),
    {ok, 1} = change(A, [A, B, C]),
    [ok = stop(Node) || Node <- [C, D, E]],
    Between = lists:last([fences(A) || _ <- lists:seq(1, 20)]),
    [start(Node, options(All)) || Node <- [C, D, E]],
    {ok, 2} = change(A, All),
    ok = await_voting(All),
    [ok = stop(Node) || Node <- [A, B]],
    After = fences(D),
    are_higher(Between, Before),
    are_higher(After, Between).

overlap_of_one([A, B, C, D, E]) ->
    ok = start_all([A, B, C, D, E], [C, D, E]),
    {ok, 1} = change(C, [A, B, C]),
    Holder = worker(A),
    {ok, _} = lock(Holder, x, ?LONG_MS),
    [ok = stop(Node) || Node <- [C, D, E]],
    %% They hear A and B, or they do not.
    [start(Node, options([C, D, E])) || Node <- [D, E]],
    ?assertMatch({error, timeout}, lock(worker(D), x, 3 * test_quorum_cluster:lease_ms())),
    ?assert(held(Holder, x)),
    ok = unlock(Holder, x).

%% A client has a lock by the votes of three. Two members that left earlier return, and all five are members again.
client_overlap([A, B, C, D, E] = All) ->
    X = test_nodes:start(),
    try
        ok = start_all(All, All),
        {ok, 1} = change(A, [A, B, C]),
        [ok = stop(Node) || Node <- [D, E]],
        test_nodes:introduce([X | All]),
        start(X, test_quorum_cluster:client_options([A, B, C])),
        ok = await_voting([X]),
        Holder = worker(X),
        {ok, First} = lock(Holder, x, ?LONG_MS),
        [start(Node, options(All)) || Node <- [D, E]],
        {ok, 2} = change(A, All),
        ok = await_voting(All),
        ?assert(held(Holder, x)),
        Next = worker(D),
        ?assertEqual({error, timeout}, lock(Next, x, 2 * test_quorum_cluster:lease_ms())),
        ?assert(held(Holder, x)),
        ok = unlock(Holder, x),
        {ok, Last} = lock(Next, x, ?LONG_MS),
        ?assert(Last > First)
    after
        test_nodes:stop(X)
    end.

%% A goes on alone. The others return with the list of three, and do not hear A.
separated(Files, [A, B, C] = All) ->
    ok = start_all(All, All),
    {ok, 1} = change(A, [A]),
    Holder = worker(A),
    {ok, _} = lock(Holder, x, ?LONG_MS),
    [begin ok = stop(Node), isolate(Node, [A]) end || Node <- [B, C]],
    _ = [lose_file(Node) || Files =:= delete, Node <- [B, C]],
    [start(Node, options(All)) || Node <- [B, C]],
    test_nodes:introduce([B, C]),
    ?assertMatch({error, _}, lock(worker(B), x, 3 * test_quorum_cluster:lease_ms())),
    ?assert(held(Holder, x)),
    test_nodes:introduce(All),
    ok = await_view(1, [B, C]),
    ok = await_voting(All),
    ok = unlock(Holder, x),
    ?assertMatch({ok, _}, lock(worker(B), x, ?LONG_MS)).

%% The fences of many names.
fences(Node) ->
    order(worker(Node), fun() ->
        lists:map(fun(Name) ->
            {ok, Lock} = canal_lock_quorum:lock({name, Name}, ?LONG_MS),
            ok = canal_lock_quorum:unlock_async(Lock),
            canal_lock_quorum:fence(Lock)
        end, lists:seq(1, 100))
    end).

are_higher(After, Before) ->
    ?assertEqual([], [{One, Other} || {One, Other} <- lists:zip(Before, After), One >= Other]).

%%% Load

begin_load(Node) ->
    [begin_locks(worker(Node), {Own, name(Node)}) || Own <- [one, other]].

begin_locks(Worker, Own) ->
    {Worker, test_nodes:send_order(Worker, fun() -> test_worker:caught(fun() -> locks(Own, 0) end) end)}.

end_load(Orders) ->
    lists:foreach(fun({Worker, Ref}) ->
        test_nodes:send(Worker, stop),
        ?assertMatch(N when is_integer(N), test_await:answer(Ref))
    end, Orders).

%% Until `stop', and once at least. Returns how many locks it has had, or the first thing that went wrong.
locks(Own, Count) ->
    receive
        stop when Count > 0 -> Count;
        %% A lock of votes that were given unasked is, for a moment.
        {canal_lock_quorum, at_risk, _} -> locks(Own, Count);
        Message when Message =/= stop -> {Count, Message}
    after 0 ->
        case lock_once(lists:nth(1 + Count rem 2, [?SHARED, Own])) of
            ok -> locks(Own, Count + 1);
            Wrong -> {Count, Own, Wrong}
        end
    end.

lock_once(Name) ->
    case canal_lock_quorum:lock(Name, ?LONG_MS) of
        {ok, Lock} ->
            true = canal_lock_quorum:is_held(Lock),
            canal_lock_quorum:unlock_async(Lock);
        {error, Why} ->
            Why
    end.
