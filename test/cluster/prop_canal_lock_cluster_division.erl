%% CP1, CP4: how a limit is divided among nodes.
-module(prop_canal_lock_cluster_division).

-include_lib("eunit/include/eunit.hrl").

-import(proper_types, [list/1, range/2, oneof/1]).

-export([prop_within_the_limit/0, prop_fair/0]).

-define(CASES, 2000).
-define(TURN_MS, 20).
-define(NOW_MS, 100_000).

all_test_() ->
    {timeout, 120, [
        {"CP1: the targets are within the limit and the demands", fun() -> holds(prop_within_the_limit()) end},
        {"CP4: nodes that want more have the same, but for one permit", fun() -> holds(prop_fair()) end},
        {"CP4: the node that has waited longest gets the next turn", fun oldest_first/0},
        {"CP4: a node whose waiter needs more than its part gets that in its turn", fun starved/0},
        {"CP4: a turn lasts while it is reserved, except above a lower limit", fun reserved/0}
    ]}.

holds(Property) ->
    ?assert(proper:quickcheck(Property, [{numtests, test_setup:times(?CASES)}, quiet])).

prop_within_the_limit() ->
    proper:forall({range(0, 20), demands(range(0, 6))}, fun({Limit, Demands}) ->
        {Enough, Targets, Turns} = divide(Limit, Demands),
        Total = lists:sum([Demand || #{demand := Demand} <- Demands]),
        Sum = lists:sum(maps:values(Targets)),
        map_size(Targets) =:= length(Demands) andalso
            lists:all(fun(#{node := Node, demand := Demand}) -> maps:get(Node, Targets) =< Demand end, Demands) andalso
            lists:all(fun({Node, Reserved}) -> Reserved =:= maps:get(Node, Targets) end, maps:to_list(Turns)) andalso
            case Enough of
                enough -> Total =< Limit andalso Sum =:= Total andalso Turns =:= #{};
                short -> Total > Limit andalso Sum =< Limit
            end
    end).

%% All nodes want more, one permit at a time.
prop_fair() ->
    proper:forall({range(0, 20), demands(1)}, fun({Limit, All}) ->
        Demands = [D || D = #{demand := Demand, reserved := 0} <- All, Demand > 0],
        {_, Targets, _} = divide(Limit, Demands),
        Total = lists:sum([Demand || #{demand := Demand} <- Demands]),
        Lacking = [maps:get(Node, Targets) || #{node := Node, demand := D} <- Demands, maps:get(Node, Targets) < D],
        Largest = lists:max([0 | maps:values(Targets)]),
        lists:sum(maps:values(Targets)) =:= min(Limit, Total) andalso
            lists:all(fun(Target) -> Target + 1 >= Largest end, Lacking)
    end).

demands(Next) ->
    Row = {range(0, 8), Next, oneof([0, 0, 0, range(1, 8)]), range(0, ?NOW_MS)},
    proper_types:bind(proper_types:resize(8, list(Row)), fun(Rows) ->
        [
            #{node => Node, demand => Demand, next => min(Needs, Demand), reserved => Reserved, since => Since}
         || {Node, {Demand, Needs, Reserved, Since}} <- lists:zip(names(length(Rows)), Rows)
        ]
    end, false).

names(Count) ->
    [list_to_atom([$n, $0 + N]) || N <- lists:seq(1, Count)].

divide(Limit, Demands) ->
    canal_lock_cluster_division:divide(Limit, Demands, ?TURN_MS, ?NOW_MS).

node_(Node, Demand, Next, Reserved, Waited_ms) ->
    #{node => Node, demand => Demand, next => Next, reserved => Reserved, since => ?NOW_MS - Waited_ms}.

oldest_first() ->
    Demands = [node_(a, 3, 1, 0, 10), node_(b, 3, 1, 0, 30), node_(c, 3, 1, 0, 20)],
    ?assertEqual({short, #{a => 0, b => 1, c => 0}, #{b => 1}}, divide(1, Demands)),
    ?assertEqual({short, #{a => 1, b => 2, c => 2}, #{b => 2, c => 2}}, divide(5, Demands)),
    %% A node that only uses permits gets no turn: they go back.
    ?assertEqual(
        {short, #{a => 1, b => 0}, #{a => 1}}, divide(1, [node_(a, 1, 1, 0, 10), node_(b, 1, 0, 0, 90)])
    ).

starved() ->
    Others = [node_(b, 9, 1, 0, 50), node_(c, 9, 1, 0, 50)],
    ?assertEqual({short, #{a => 3, b => 1, c => 1}, #{a => 3}}, divide(5, [node_(a, 3, 3, 0, 60) | Others])),
    %% It has waited for a turn of each other node, or not.
    ?assertEqual({short, #{a => 3, b => 1, c => 0}, #{a => 3, b => 1}}, divide(4, [node_(a, 3, 3, 0, 60) | Others])),
    ?assertMatch({short, #{a := 1}, _}, divide(3, [node_(a, 3, 3, 0, 30) | Others])),
    ?assertEqual({short, #{a => 3, b => 0, c => 0}, #{}}, divide(3, [node_(a, 3, 3, 3, 0) | Others])).

reserved() ->
    Demands = [node_(a, 3, 1, 2, 0), node_(b, 3, 1, 0, 50)],
    ?assertEqual({short, #{a => 2, b => 1}, #{}}, divide(3, Demands)),
    ?assertMatch({short, #{a := 0, b := 1}, #{b := 1}}, divide(1, Demands)).
