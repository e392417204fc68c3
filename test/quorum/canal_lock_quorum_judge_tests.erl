%% test_quorum_history accepts possible histories. If one fact of a history is wrong, it reports only the promise that
%% this fact breaks.
-module(canal_lock_quorum_judge_tests).

-import(proper_types, [list/1, oneof/1, range/2, non_neg_integer/0]).

-include_lib("eunit/include/eunit.hrl").

%% Three clients on two nodes.
-define(A, {1, a}).
-define(B, {2, b}).
-define(C, {2, c}).

good_test_() ->
    [
        {Title, fun() -> ?assertEqual([], judged(Clients, Known)) end}
     || {Title, Clients, Known} <- [
            {"nothing happened", [], []},
            {"one writer after the other", [{?A, lock(1, 0, write, [x], 7)}, {?B, lock(1, 100, write, [x], 8)}], []},
            {"readers together", [{?A, lock(1, 0, read, [x], 7)}, {?B, lock(1, 10, read, [x], 7)}], []},
            {"writers of different names", [{?A, lock(1, 0, write, [x], 7)}, {?B, lock(1, 10, write, [y], 7)}], []},
            {"a lock that was lost before its client knew of the grant",
                [
                    {?A, [{asked, 0, 1, write, [x]}, {granted, 150, 1, 7}, {not_held, 151, 152, 1}, {lost, 153, 1}]},
                    {?B, lock(1, 100, write, [x], 8)}
                ],
                []},
            {"a refused request", [{?A, [{asked, 0, 1, write, [x]}, {refused, 9, 1, timeout}]}], []},
            {"lost in time", [{?A, lost(1, 0, 50)}], [{must_lose, 1, 20, 60}]},
            {"unlocked instead of lost", [{?A, lock(1, 0, write, [x], 7)}], [{must_lose, 1, 20, 60}]},
            {"a client that was killed first", [{?A, lists:sublist(lost(1, 0, 50), 3)}], [{must_lose, 1, 20, 60}]},
            {"a lock that another client of the node passes on",
                [
                    {{1, one}, lock(1, 0, write, [x], 7)},
                    {{1, other}, [{asked, 38, 1, write, [x]}, {granted, 60, 1, 8}]}
                ],
                [{no_grants, 1, 35, 99}]},
            {"a client of another node goes on", [{?B, lock(1, 0, write, [x], 7)}], [{no_grants, 1, 0, 99}]},
            {"a node that recovers", [{?A, lock(1, 0, write, [x], 7)}], [{recovers, 1, 0, 60}, {left, 1, []}]}
        ]
    ].

bad_test_() ->
    [
        {Title, fun() -> ?assertEqual(found(Promise), lists:usort([P || {P, _} <- judged(Clients, Known)])) end}
     || {Title, Promise, Clients, Known} <- [
            {"Q1: two writers", q1_alone, together(write, write, 8), []},
            {"Q1: a reader with a writer", q1_alone, together(write, read, 6), []},
            {"Q1: a writer with a reader", q1_alone, together(read, write, 8), []},
            {"Q1: a writer with a reader, and a reader that was granted later", q1_alone,
                [{?B, lock(1, 25, read, [x], 7)} | together(read, write, 8)], []},
            {"Q1: a writer with a reader that outlasts another reader", q1_alone,
                [
                    {?A, [{asked, 0, 1, read, [x]}, {granted, 1, 1, 6}, {held, 2, 500, 1}]},
                    {?C, lock(1, 10, read, [x], 6)},
                    {?B, lock(1, 100, write, [x], 7)}
                ],
                []},
            {"Q1: a writer during the time of another", q1_alone,
                [
                    {?A, [{asked, 0, 1, write, [x]}, {granted, 1, 1, 7}, {held, 2, 500, 1}]},
                    {?B, lock(1, 100, write, [x], 8)}
                ],
                []},
            {"Q1: on one node", q1_alone, [{?C, lock(1, 0, write, [x], 7)}, {?B, lock(1, 15, write, [x], 8)}], []},
            {"Q5: a fence decreases", q5_fences_grow, after_each_other(write, 6), []},
            {"Q5: two writers have the same fence", q5_fences_grow, after_each_other(write, 7), []},
            {"Q5: a reader's fence decreases", q5_fences_grow, after_each_other(read, 6), []},
            {"Q5: a fence decreases after others", q5_fences_grow,
                [{?A, lock(1, 0, write, [x], 7)}, {?C, lock(1, 100, write, [x], 9) ++ lock(2, 200, write, [x], 8)}],
                []},
            {"Q5: a fence decreases, and the later lock was requested first", q5_fences_grow,
                [
                    {?A, [{asked, 0, 1, write, [x]}, {granted, 60, 1, 6}, {held, 61, 70, 1}]},
                    {?B, lock(1, 10, write, [x], 7)}
                ],
                []},
            {"Q5: two locks with the same fence at the same time", q5_fences_grow,
                [{Who, [{asked, 0, 1, write, [x]}, {granted, 90, 1, 7}]} || Who <- [?A, ?B]], []},
            {"Q8: held after unlock", q8_unlock_is_final, [{?A, lock(1, 0, write, [x], 7) ++ [{held, 60, 61, 1}]}], []},
            {"Q11: several names, one of which is locked", q11_all_or_nothing,
                [{?A, lock(1, 0, write, [x], 7)}, {?B, lock(1, 15, write, [x, y], 8)}], []},
            {"held after it was lost", lost_is_final, [{?A, lost(1, 0, 50) ++ [{held, 60, 61, 1}]}], []},
            {"held after it was not held", lost_is_final,
                [{?A, lists:sublist(lock(1, 0, write, [x], 7), 3) ++ [{not_held, 45, 46, 1}, {held, 47, 48, 1}]}], []},
            {"the message of the loss is late", lost_in_time, [{?A, lost(1, 0, 70)}], [{must_lose, 1, 20, 60}]},
            {"the message of the loss is missing", lost_in_time, [{?A, holding(100)}], [{must_lose, 1, 20, 60}]},
            {"a lock without a quorum", no_quorum_no_lock, [{?A, lock(1, 5, write, [x], 7)}], [{no_grants, 1, 0, 99}]},
            {"a lock without a quorum, after one with another fence", no_quorum_no_lock,
                [
                    {{1, one}, lock(1, 0, write, [x], 7)},
                    {{1, other}, [{asked, 38, 1, write, [x]}, {granted, 60, 1, 9}]}
                ],
                [{no_grants, 1, 35, 99}]},
            {"a lock without a quorum, asked for after the one before it", no_quorum_no_lock,
                [
                    {{1, one}, lock(1, 0, write, [x], 7)},
                    {{1, other}, [{asked, 55, 1, write, [x]}, {granted, 60, 1, 8}]}
                ],
                [{no_grants, 1, 35, 99}]},
            {"no lock in time", bounded_recovery, [{?A, lock(1, 70, write, [x], 7)}], [{recovers, 1, 0, 60}]},
            {"another node has a lock", bounded_recovery, [{?B, lock(1, 7, write, [x], 7)}], [{recovers, 1, 0, 60}]},
            {"Q9: something is left", q9_nothing_stays, [], [{left, 1, [a_vote]}]}
        ]
    ].

%% When two clients hold a name at the same time, each of them got it before the other one unlocked. So one of their
%% fences is wrong, too.
found(Both) when Both =:= q1_alone; Both =:= q11_all_or_nothing -> [Both, q5_fences_grow];
found(One) -> [One].

counts_test() ->
    Counts = test_quorum_history:counts(#{
        clients => [{?A, [{asked, 0, 1, read, [x]}, {granted, 7_000_000, 1, 7}, {lost, 8_000_000, 1}]}], known => []
    }),
    ?assertEqual(#{asked => 1, granted => 1, lost => 1, longest_wait_ms => 7}, Counts).

%% Holders of one lock follow each other at random times, with possible fences. Then one holder starts too early or has
%% a low fence. PropEr is called by its functions, since some installations lack the header with its macros.
random_test_() ->
    {timeout, 120, fun() ->
        Times = test_setup:times(200),
        ?assert(proper:quickcheck(possible(), [quiet, {numtests, Times}])),
        ?assert(proper:quickcheck(impossible(), [quiet, {numtests, Times}]))
    end}.

possible() ->
    proper:forall(list(turn()), fun(Turns) -> [] =:= judged(clients(holders(Turns)), []) end).

impossible() ->
    Case = {[turn(), turn() | list(turn())], non_neg_integer(), oneof([early, low])},
    proper:forall(Case, fun({Turns, Which, How}) ->
        Writers = [setelement(1, Turn, write) || Turn <- Turns],
        Holders = holders(Writers),
        Victim = 2 + Which rem (length(Holders) - 1),
        {Before, [Wrong | After]} = lists:split(Victim - 1, Holders),
        [] =/= judged(clients(Before ++ [with_error(How, lists:last(Before), Wrong) | After]), [])
    end).

%% The lock is granted before the holder before it has unlocked it, or with the same fence.
with_error(early, #{until := Until}, Holder) -> Holder#{asked => Until - 3, from => Until - 1};
with_error(low, #{fence := Fence}, Holder) -> Holder#{fence => Fence}.

%% The mode, the node, how long the holder waits and holds, and how much higher its fence is.
turn() ->
    {oneof([read, write]), range(1, 3), range(0, 30), range(2, 20), range(1, 3)}.

holders(Turns) ->
    {Holders, _} = lists:mapfoldl(
        fun(Turn, {Now, Fence, Number}) -> holder(Turn, Now, Fence, Number) end,
        {10, 1, 1},
        Turns
    ),
    Holders.

holder({Mode, Index, Wait, Hold, Skip}, Now, Fence, Number) ->
    Own =
        case Mode of
            write -> Fence + Skip;
            read -> Fence
        end,
    Times = #{asked => Now - Wait, from => Now + 1, until => Now + 1 + Hold},
    Holder = Times#{index => Index, mode => Mode, fence => Own, number => Number},
    {Holder, {Now + Hold + 2, Own, Number + 1}}.

clients(Holders) ->
    [
        {{Index, Number}, [
            {asked, Asked, Number, Mode, [x]},
            {granted, From, Number, Fence},
            {held, From, Until, Number},
            {unlocking, Until + 1, Number, unlock},
            {unlocked, Until + 2, Number, ok}
        ]}
     || Holder = #{index := Index, number := Number, mode := Mode, fence := Fence} <- Holders,
        #{asked := Asked, from := From, until := Until} <- [Holder]
    ].

%%% Parts of histories

judged(Clients, Known) ->
    test_quorum_history:violations(#{clients => Clients, known => Known}).

%% Held from 10 to 40 after `At', unlocked at 50.
lock(Number, At, Mode, Names, Fence) ->
    [
        {asked, At, Number, Mode, Names},
        {granted, At + 10, Number, Fence},
        {held, At + 11, At + 40, Number},
        {unlocking, At + 41, Number, unlock},
        {unlocked, At + 50, Number, ok}
    ].

lost(Number, At, Lost) ->
    [
        {asked, At, Number, write, [x]},
        {granted, At + 10, Number, 7},
        {held, At + 11, At + 40, Number},
        {lost, Lost, Number},
        {asked, Lost + 50, Number + 1, write, [x]}
    ].

holding(Until) ->
    [{asked, 0, 1, write, [x]}, {granted, 10, 1, 7}, {held, 11, Until, 1}].

together(One, Other, Fence) ->
    [{?A, lock(1, 0, One, [x], 7)}, {?B, lock(1, 20, Other, [x], Fence)}].

after_each_other(Mode, Fence) ->
    [{?A, lock(1, 0, write, [x], 7)}, {?B, lock(1, 100, Mode, [x], Fence)}].
