%% The register of the demo: whom it refuses.
-module(cluster_demo_register_tests).

-include_lib("eunit/include/eunit.hrl").

a_number_is_nothing_at_first_test() ->
    ?assertEqual([{ok, 0}], answers([{look, x, 0}])).

who_is_late_is_refused_test() ->
    ?assertEqual(
        [{ok, 0}, {ok, 1}, {refused, 7}, {refused, 7}, {refused, 7}, {ok, 1}],
        answers([{read, x, 7}, {write, x, 7, 1}, {write, x, 6, 1}, {read, x, 6}, {look, x, 6}, {look, x, 7}])
    ).

%% Before it has written anything.
who_has_read_keeps_late_ones_out_test() ->
    ?assertEqual([{ok, 0}, {ok, 0}, {refused, 8}], answers([{read, x, 7}, {read, x, 8}, {write, x, 7, 1}])).

who_only_looks_keeps_nobody_out_test() ->
    ?assertEqual([{ok, 0}, {ok, 1}], answers([{look, x, 8}, {write, x, 7, 1}])).

names_have_nothing_to_do_with_each_other_test() ->
    ?assertEqual([{ok, 1}, {ok, 2}], answers([{write, x, 7, 1}, {write, y, 6, 2}])),
    ?assertEqual(#{x => 1, y => 2}, cluster_demo_register:values(asked([{write, x, 7, 1}, {write, y, 6, 2}]))).

answers(Requests) ->
    [Answer || {me, _, Answer} <- cluster_demo_register:log(asked(Requests))].

asked(Requests) ->
    Ask = fun(Request, Register) -> element(2, cluster_demo_register:handle(me, Request, Register)) end,
    lists:foldl(Ask, cluster_demo_register:new(), Requests).
