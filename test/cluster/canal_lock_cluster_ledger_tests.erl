%% What the allocator sends: how much, how soon, and to which node. (The simulation checks that the shares are right.)
-module(canal_lock_cluster_ledger_tests).

-include_lib("eunit/include/eunit.hrl").
-include("../../src/cluster/canal_lock_cluster.hrl").

-define(NOW_MS, 10_000).
-define(TERM, 7).

all_test_() ->
    [
        {"CP4: a free permit is given at once, and no more than is needed", fun given/0},
        {"CP4: unused shares stay while enough is free, and are recalled if not", fun recalled/0},
        {"CP1: shares above a lower limit are recalled at once", fun lowered/0},
        {"CP1: while shares are above a lower limit, no target rises", fun above/0},
        {"CP4: a recall ends when the permits are no longer needed elsewhere", fun recall_ends/0},
        {"CP4: nodes that have or need permits learn that the limit is not enough", fun contended/0},
        {"CP4: the nodes get a single permit in turns of 20 ms, in the order in which they asked", fun turns/0},
        {"CP4: a permit beside others stays for 100 ms", fun long_turns/0},
        {"CP5: while a node is silent, only what others return is given", fun learning/0},
        {"CP1: what was returned of a higher limit is not given below a lower one", fun lowered_while_learning/0},
        {"CP3: the share of a node that is not in the list is given at once", fun over/0},
        {"CP3: a session has nothing of the share of the one before", fun next_session/0},
        {"CP6: the share of an unknown session does not count", fun unknown/0},
        {"a limit that no node knows is forgotten", fun forgotten/0},
        {"a limit that no node passes any more is replaced", fun replaced/0},
        {"by the lowest one that is passed", fun lowest/0},
        {"while an allocator learns, no limit is replaced", fun not_replaced_while_learning/0},
        {"while no permit moves, turns get longer", fun idle_turns/0},
        {"nodes that greet before the list, or with a session that is not known, are asked", fun greetings/0}
    ].

%% Of an allocator to which these nodes have reported. Session 1 of each.
ledger(Nodes) ->
    lists:foldl(fun report/2, listed(Nodes), Nodes).

listed(Nodes) ->
    {Asked, Ledger} = handle({listed, all, Nodes}, canal_lock_cluster_ledger:new(?TERM)),
    ?assertEqual([{Node, {ask, ?TERM, N}} || {N, Node} <- lists:zip(lists:seq(1, length(Nodes)), Nodes)], Asked),
    Ledger.

report(Node, Ledger) -> report(Node, [], Ledger).

report(Node, Haves, Ledger) ->
    {Asked, Again} = handle({hello, Node, 1}, Ledger),
    [{Node, {ask, ?TERM, Ask}}] = Asked,
    {_, Reported} = handle({report, Node, ?TERM, 1, Ask, Haves, true}, Again),
    element(2, steps(Reported)).

handle(Event, Ledger) -> handle(Event, 0, Ledger).

handle(Event, After_ms, Ledger) ->
    canal_lock_cluster_ledger:handle(Event, ?NOW_MS + After_ms, Ledger).

%% The passes over all keys.
steps(Ledger) -> steps([], Ledger).

steps(Messages, Ledger) ->
    case canal_lock_cluster_ledger:wake_ms(?NOW_MS, Ledger) of
        0 ->
            {More, Next} = handle(step, Ledger),
            steps(Messages ++ More, Next);
        _ ->
            {Messages, Ledger}
    end.

%% A node confirms its last number, or reports what has changed.
have(Node, Fields, Ledger) -> have(Node, Fields, 0, Ledger).

have(Node, Fields, After_ms, Ledger) ->
    {Messages, Next} = handle({have, Node, ?TERM, 1, [row(Fields)]}, After_ms, Ledger),
    {sets(Messages), Next}.

row(Fields) ->
    Default = #{number => 0, share => 0, in_use => 0, need => 0, next => 0, waiting => 0, passed => none,
        declared => none, limit => 0, version => none},
    #{number := Number, share := Share, in_use := InUse, need := Need, next := Next, waiting := Waiting,
        passed := Passed, declared := Declared, limit := Limit, version := Version} = maps:merge(Default, Fields),
    #have{key = db, number = Number, share = Share, in_use = InUse, need = Need, next = Next, waiting = Waiting,
        passed = Passed, declared = Declared, limit = Limit, version = Version}.

%% `{Node, Share, Target}' of all messages.
sets(Messages) ->
    [{Node, Set} || {Node, {set, ?TERM, 1, Sets}} <- Messages, Set <- Sets].

shares(Sets) ->
    lists:sort([{Node, Share, Target} || {Node, #set{share = Share, target = Target}} <- Sets]).

%% The nodes confirm these messages; each needs and uses what `Fields' says.
confirm(Sets, Fields, After_ms, Ledger) ->
    lists:foldl(
        fun({Node, #set{number = Number, share = Share, limit = Limit, version = Version}}, {Sent, To}) ->
            Row = #{number => Number, share => Share, limit => Limit, version => Version},
            {More, Next} = have(Node, maps:merge(Row, maps:get(Node, Fields, #{})), After_ms, To),
            {Sent ++ More, Next}
        end,
        {[], Ledger},
        Sets
    ).

declare(Node, Limit, Need, Ledger) ->
    have(Node, #{need => Need, next => 1, declared => {1, Limit}}, Ledger).

need(Node, Need, Ledger) ->
    have(Node, #{need => Need, next => 1}, Ledger).

given() ->
    {First, L1} = declare(a, 10, 3, ledger([a, b])),
    ?assertEqual([{a, 3, 3}], shares(First)),
    {Second, _} = need(b, 9, L1),
    ?assertEqual([{a, 3, 3}, {b, 7, 7}], shares(Second)).

%% A node with 8 of 10 permits, of which it uses 2.
idle() ->
    {Given, L1} = declare(a, 10, 8, ledger([a, b])),
    {[], L2} = confirm(Given, #{a => #{in_use => 2}}, 0, L1),
    L2.

recalled() ->
    {Enough, L3} = need(b, 2, idle()),
    ?assertEqual([{b, 2, 2}], shares(Enough)),
    {[], L4} = confirm(Enough, #{b => #{in_use => 2}}, 0, L3),
    {Recall, _} = have(b, maps:merge(seen(Enough, b), #{share => 2, in_use => 2, need => 3, next => 1}), L4),
    ?assertEqual([{a, 8, 2}], shares(Recall)).

seen(Sets, Node) ->
    {Node, #set{number = Number, limit = Limit, version = Version}} = lists:keyfind(Node, 1, Sets),
    #{number => Number, limit => Limit, version => Version}.

lowered() ->
    {Sets, _} = have(b, #{declared => {1, 5}}, idle()),
    ?assertEqual([{a, 8, 2}, {b, 0, 0}], shares(Sets)),
    ?assertMatch([5, 5], [Limit || {_, #set{limit = Limit}} <- Sets]).

recall_ends() ->
    {Recall, L3} = need(b, 5, idle()),
    ?assertEqual([{a, 8, 2}, {b, 2, 2}], shares(Recall)),
    %% The other node does not need them any more, and this one does.
    {_, L4} = confirm([lists:keyfind(b, 1, Recall)], #{b => #{in_use => 2}}, 0, L3),
    {Back, _} = have(a, maps:merge(seen(Recall, a), #{share => 8, in_use => 8, need => 0}), L4),
    ?assertEqual([{a, 8, 8}], shares(Back)).

contended() ->
    {Sets, _} = need(b, 9, idle()),
    ?assertMatch([{_, #set{contended = true}}, {_, #set{contended = true}}], Sets),
    {Given, L1} = declare(a, 4, 4, ledger([a, b])),
    {[], L2} = confirm(Given, #{a => #{in_use => 4}}, 0, L1),
    {News, _} = need(b, 1, L2),
    ?assertMatch([{a, #set{share = 4, contended = true}}], [Each || Each = {a, _} <- News]),
    %% It was not known that they are in use.
    {_, L3} = confirm(Given, #{}, 0, L1),
    {Recall, L4} = need(b, 1, L3),
    ?assertEqual([{a, 4, 0}, {b, 0, 0}], shares(Recall)),
    {_, L5} = confirm([lists:keyfind(b, 1, Recall)], #{b => #{need => 1}}, 0, L4),
    {Answer, _} = have(a, maps:merge(seen(Recall, a), #{share => 4, in_use => 4}), L5),
    ?assertMatch([#set{contended = true}], [Set || {b, Set} <- Answer]).

%% Three nodes want the only permit.
wanted() ->
    {Given, L1} = declare(a, 1, 2, ledger([a, b, c])),
    ?assertEqual([{a, 1, 1}], shares(Given)),
    {_, L2} = confirm(Given, #{a => #{in_use => 1, need => 1, next => 1}}, 0, L1),
    {[], L3} = have(b, #{need => 2, next => 1, limit => 1, version => version(Given)}, 1, L2),
    {[], L4} = have(c, #{need => 2, next => 1, limit => 1, version => version(Given)}, 2, L3),
    {[], L5} = have(b, #{need => 3, next => 1, limit => 1, version => version(Given)}, 3, L4),
    %% The turn of a begins.
    {[], L6} = handle(step, 5, L5),
    L6.

version([{_, #set{version = Version}} | _]) -> Version.

turns() ->
    {[], L5} = handle(step, 24, wanted()),
    {Recall, L6} = handle(step, 25, L5),
    ?assertMatch([{a, 1, 0}], shares(sets(Recall))),
    %% A node reports that its permit is free.
    {Second, L7} = confirm([{a, S#set{share = 0}} || {a, S} <- sets(Recall)], #{a => #{need => 2, next => 1}}, 31, L6),
    ?assertEqual([{b, 1, 1}], [Each || Each = {b, _, _} <- shares(Second)]),
    ?assertEqual([], [Each || Each = {_, 1, _} <- shares(Second), element(1, Each) =/= b]),
    {_, L8} = confirm([Each || Each = {b, _} <- Second], #{b => #{in_use => 1, need => 2, next => 1}}, 33, L7),
    {[], _} = handle(step, 52, L8),
    {Third, L9} = handle(step, 53, L8),
    {b, Return} = lists:keyfind(b, 1, sets(Third)),
    {Last, _} = confirm([{b, Return#set{share = 0}}], #{b => #{need => 2, next => 1}}, 60, L9),
    ?assertEqual([{c, 1, 1}], [Each || Each = {_, 1, 1} <- shares(Last)]).

%% Of 3 permits each node has one, and the third one goes round.
long_turns() ->
    {First, L1} = have(a, #{need => 9, next => 1, passed => 3, declared => {1, 3}}, ledger([a, b])),
    {[], L2} = confirm(First, #{a => #{in_use => 3, need => 9, next => 1}}, 0, L1),
    {Recall, L3} = need(b, 9, L2),
    {_, L4} = confirm([{a, S#set{share = 2}} || {a, S} <- Recall], #{a => #{in_use => 2, need => 9, next => 1}}, 1, L3),
    {[], L5} = handle(step, 99, L4),
    {Ended, _} = handle(step, 100, L5),
    ?assertEqual([{a, 2, 1}], shares(sets(Ended))).

%% Each of a and b holds one of 2 permits and waits for another one, and so does c. Nothing is released.
idle_turns() ->
    Uses = #{share => 1, in_use => 1, need => 1, next => 1},
    {First, L1} = have(a, #{need => 1, next => 1, passed => 2, declared => {1, 2}}, ledger([a, b, c])),
    {[], L2} = confirm(First, #{a => #{in_use => 1}}, 0, L1),
    {Second, L3} = need(b, 1, L2),
    {[], L4} = confirm(Second, #{b => #{in_use => 1}}, 0, L3),
    {Third, L5} = have(a, maps:merge(seen(First, a), Uses), L4),
    {Fourth, L6} = have(b, maps:merge(seen(Second, b), Uses), element(2, confirm_all(Third, 0, L5))),
    {Fifth, L7} = need(c, 1, element(2, confirm_all(Fourth, 0, L6))),
    {_, L8} = confirm_all(Fifth, 0, L7),
    {Sent, L9} = idle(0, 3000, L8),
    Times = lists:usort([At_ms || {At_ms, _} <- Sent]),
    ?assertEqual([20, 60, 140, 300, 620, 1260, 1900, 2540], lists:sublist(Times, 8)),
    %% Node a releases its permit, and c gets it. The next turn is as long as usual.
    Last = lists:last([Set || {_, {a, _} = Set} <- Sent]),
    {Given, L10} = have(a, (seen([Last], a))#{need => 1, next => 1}, 3000, L9),
    ?assertEqual([{c, 1, 1}], [Each || Each = {c, _, _} <- shares(Given)]),
    {_, L11} = confirm(Given, #{a => #{need => 1, next => 1}, b => Uses, c => Uses}, 3000, L10),
    ?assert(canal_lock_cluster_ledger:wake_ms(?NOW_MS + 3000, L11) =< 20).

%% The nodes confirm these messages and those that follow, and release nothing.
confirm_all([], _, Ledger) ->
    {[], Ledger};
confirm_all(Sets, At_ms, Ledger) ->
    Uses = #{share => 1, in_use => 1, need => 1, next => 1},
    {More, Next} = confirm(Sets, #{a => Uses, b => Uses, c => Uses#{share => 0, in_use => 0}}, At_ms, Ledger),
    {Others, Last} = confirm_all(More, At_ms, Next),
    {Sets ++ Others, Last}.

%% The messages until that time, each with its time.
idle(At_ms, Until_ms, Ledger) when At_ms >= Until_ms ->
    {[], Ledger};
idle(At_ms, Until_ms, Ledger) ->
    {Messages, Next} = handle(step, At_ms, Ledger),
    {Sets, Confirmed} = confirm_all(sets(Messages), At_ms, Next),
    Wake_ms = canal_lock_cluster_ledger:wake_ms(?NOW_MS + At_ms, Confirmed),
    {Later, Last} = idle(At_ms + max(1, Wake_ms), Until_ms, Confirmed),
    {[{At_ms, Set} || Set <- Sets] ++ Later, Last}.

learning() ->
    %% Of 10 permits, a has 4 and b 2. Node c is silent.
    Row = fun(Share) -> row(#{share => Share, in_use => Share, limit => 10, version => {3, 1}}) end,
    L1 = report(b, [Row(2)], report(a, [Row(4)], listed([a, b, c]))),
    {[], L2} = have(b, #{share => 2, in_use => 2, need => 3, next => 1, limit => 10, version => {3, 1}}, L1),
    {Given, L3} = have(a, #{share => 3, in_use => 3, limit => 10, version => {3, 1}}, L2),
    ?assertEqual([{b, 3, 3}], [Each || Each = {b, _, _} <- shares(Given)]),
    %% What was given is given once.
    {None, L4} = have(a, #{share => 3, in_use => 3, limit => 10, version => {3, 1}}, 10, L3),
    ?assertEqual([], shares(None)),
    {_, L5} = handle({listed, [{c, unknown}], [a, b]}, L4),
    ?assertMatch({[{b, 5, 5}], _}, {shares(sets(element(1, steps(L5)))), learned}).

over() ->
    {Given, L1} = declare(a, 4, 4, ledger([a, b])),
    {[], L2} = confirm(Given, #{a => #{in_use => 4}}, 0, L1),
    {_, L3} = need(b, 4, L2),
    {[], L4} = handle({alive, b, 1}, 100, L3),
    ?assertEqual([], canal_lock_cluster_ledger:silent(?NOW_MS + 2499, L4)),
    ?assertEqual([{a, 1}], canal_lock_cluster_ledger:silent(?NOW_MS + 2500, L4)),
    {_, L5} = handle({listed, [{a, 1}], [b]}, L4),
    {Messages, L6} = steps(L5),
    ?assertMatch([{b, 4, 4} | _], lists:reverse(shares(sets(Messages)))),
    ?assertEqual([], canal_lock_cluster_ledger:silent(?NOW_MS, L6)).

unknown() ->
    %% Node b was not in the list: its lock was not held.
    L1 = report(b, [row(#{share => 4, in_use => 4, limit => 4, version => {3, 1}})], ledger([a])),
    {Given, _} = declare(a, 4, 4, L1),
    ?assertEqual([{a, 4, 4}], [Each || Each = {a, _, _} <- shares(Given)]).

forgotten() ->
    {Given, L1} = declare(a, 4, 1, ledger([a])),
    {[], L2} = confirm([{a, S#set{share = 0}} || {a, S} <- Given], #{}, 0, L1),
    {[], _} = need(a, 1, L2).

%% Node b declares a lower limit, and is over.
replaced() ->
    {Given, L1} = have(a, #{need => 1, next => 1, passed => 10, declared => {1, 10}}, ledger([a, b])),
    {_, L2} = confirm(Given, #{a => #{in_use => 1, passed => 10}}, 0, L1),
    {Lowered, L3} = have(b, #{need => 1, next => 1, passed => 4, declared => {1, 4}}, L2),
    ?assertMatch(#{a := #set{limit = 4}}, maps:from_list(Lowered)),
    {_, L5} = handle({listed, [{b, 1}], [a]}, L3),
    {Messages, _} = steps(L5),
    ?assertMatch([{a, #set{limit = 10}}], sets(Messages)).

%% Node c declares 2, and is over.
lowest() ->
    Limits = [{a, 10}, {b, 4}, {c, 2}],
    L1 = lists:foldl(
        fun({Node, Limit}, L) ->
            element(2, have(Node, #{need => 1, next => 1, passed => Limit, declared => {1, Limit}}, L))
        end,
        ledger([a, b, c]),
        Limits
    ),
    {_, L2} = handle({listed, [{c, 1}], [a, b]}, L1),
    ?assertEqual([4], lists:usort([Limit || {_, #set{limit = Limit}} <- sets(element(1, steps(L2)))])).

greetings() ->
    {[], L1} = handle({hello, b, 1}, canal_lock_cluster_ledger:new(?TERM)),
    {Asked, L2} = handle({listed, all, [a]}, L1),
    ?assertMatch([{a, {ask, ?TERM, _}}, {b, {ask, ?TERM, _}}], lists:sort(Asked)),
    ?assertMatch({[{c, {ask, ?TERM, _}}], _}, handle({alive, c, 1}, L2)).

%% The silent c can pass the limit in force.
not_replaced_while_learning() ->
    Row = #{share => 2, in_use => 2, limit => 10, version => {3, 1}, passed => 5},
    L1 = report(a, [row(Row)], listed([a, c])),
    {[], L2} = have(a, Row, L1),
    {_, L3} = handle({listed, [{c, unknown}], [a]}, L2),
    ?assertMatch([{a, #set{limit = 5}}], sets(element(1, steps(L3)))).

%% Of 10 permits a and the silent c have 5 each. Node a returns its own, and lowers the limit to 5.
lowered_while_learning() ->
    Row = #{share => 5, in_use => 5, limit => 10, version => {3, 1}, passed => 10},
    L1 = report(a, [row(Row)], listed([a, c])),
    {_, L2} = have(a, Row#{share => 0, in_use => 0, passed => 5, declared => {1, 5}}, L1),
    {Given, _} = need(a, 5, L2),
    ?assertEqual([], [Each || Each = {_, Share, _} <- shares(Given), Share > 0]),
    %% The same in two steps.
    {Lowered, L3} = have(a, Row#{passed => 5, declared => {1, 5}}, L1),
    {_, L4} = confirm(Lowered, #{a => #{in_use => 5, passed => 5}}, 0, L3),
    Returned = (seen(Lowered, a))#{share => 0, need => 5, next => 1, passed => 5},
    {Again, _} = have(a, Returned, L4),
    ?assertEqual([], [Each || Each = {_, Share, _} <- shares(Again), Share > 0]).

next_session() ->
    {Given, L1} = declare(a, 4, 4, ledger([a, b])),
    {[], L2} = confirm(Given, #{a => #{in_use => 4}}, 0, L1),
    {_, L3} = need(b, 4, L2),
    {[{a, {ask, ?TERM, Ask}}], L4} = handle({hello, a, 2}, L3),
    {Messages, _} = handle({report, a, ?TERM, 2, Ask, [row(#{waiting => 1, need => 1, next => 1})], true}, L4),
    ?assertEqual([{b, 3}], [{b, Share} || {b, {set, ?TERM, 1, [#set{share = Share}]}} <- Messages]).

%% Two nodes have 2 permits, and the limit is 1 now. The turn of one ends before the other has returned anything.
above() ->
    Uses = #{in_use => 1, need => 3, next => 1, passed => 2},
    {One, L1} = have(a, #{need => 1, next => 1, passed => 2, declared => {1, 2}}, ledger([a, b])),
    {_, L2} = confirm(One, #{a => #{in_use => 1, passed => 2}}, 0, L1),
    {Other, L3} = have(b, #{need => 1, next => 1, passed => 2}, L2),
    {_, L4} = confirm([Each || Each = {b, _} <- Other], #{b => Uses}, 0, L3),
    {Lowered, L5} = have(a, Uses#{share => 1, passed => 1, declared => {2, 1}}, 1, L4),
    ?assertEqual([{a, 1, 0}, {b, 1, 1}], shares(Lowered)),
    {[], L6} = confirm([Each || Each = {b, _} <- Lowered], #{b => Uses}, 2, L5),
    {Turned, _} = handle(step, 40, L6),
    ?assertEqual([{b, 1, 0}], shares(sets(Turned))).
