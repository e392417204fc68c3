%% The register of test_quorum_register: fences protect its numbers, and it reports additions that are lost otherwise.
-module(canal_lock_quorum_fenced_tests).

-include_lib("eunit/include/eunit.hrl").

-import(test_quorum_register, [connect/1, add_fenced/3, add_plain/3, result/1]).

requests_test_() ->
    [
        {Title, fun() -> ?assertEqual(Answers, answers(Requests)) end}
     || {Title, Answers, Requests} <- [
            {"a number is 0 at first", [{ok, 0}], [{look, x, 0}]},
            {"a lower fence is refused", [{ok, 0}, {ok, 1}, {refused, 7}, {refused, 7}, {refused, 7}, {ok, 1}],
                [{read, x, 7}, {write, x, 7, 1}, {write, x, 6, 1}, {read, x, 6}, {look, x, 6}, {look, x, 7}]},
            {"a read refuses later writes with a lower fence", [{ok, 0}, {ok, 0}, {refused, 8}],
                [{read, x, 7}, {read, x, 8}, {write, x, 7, 1}]},
            {"a look refuses no later request", [{ok, 0}, {ok, 1}], [{look, x, 8}, {write, x, 7, 1}]},
            {"names do not affect each other", [{ok, 1}, {ok, 2}], [{write, x, 7, 1}, {write, y, 6, 2}]}
        ]
    ].

values_test() ->
    {_, Register} = lists:mapfoldl(fun test_quorum_register:handle/2, #{}, [{write, x, 7, 1}, {write, y, 6, 2}]),
    ?assertEqual(#{x => 1, y => 2}, test_quorum_register:values(Register)).

answers(Requests) ->
    {Answers, _} = lists:mapfoldl(fun test_quorum_register:handle/2, #{}, Requests),
    Answers.

server_test_() ->
    {foreach, fun start/0, fun stop/1, [
        fun({Register, _, One, Other}) -> {Title, fun() -> Test(Register, One, Other) end} end
     || {Title, Test} <- [
            {"the server refuses a fence that is lower than one before", fun refused/3},
            {"a client that holds its lock adds, another one does not", fun not_held/3},
            {"without fences an addition between read and write is lost, and reported", fun lost/3}
        ]
    ]}.

start() ->
    Path = filename:join(os:getenv("TMPDIR", "/tmp"), lists:concat(["canal_lock_register_", os:getpid()])),
    _ = file:delete(Path),
    Register = test_quorum_register:start(Path),
    {Register, Path, connect(Path), connect(Path)}.

stop({Register, Path, _, _}) ->
    test_quorum_register:stop(Register),
    ok = file:delete(Path).

refused(Register, One, Other) ->
    ok = add_fenced(One, x, 7),
    ok = add_fenced(Other, x, 8),
    ok = add_fenced(Other, x, 8),
    ?assertEqual(refused, add_fenced(One, x, 7)),
    ok = add_fenced(One, y, 7),
    ?assertMatch(#{lost := [], adds := 4, refused_by_fence := 1}, result(Register)).

not_held(Register, One, Other) ->
    ok = add_plain(One, x, fun() -> true end),
    ?assertEqual(not_held, add_plain(Other, x, fun() -> false end)),
    ?assertMatch(#{lost := [], adds := 1}, result(Register)).

lost(Register, One, Other) ->
    ok = add_plain(One, x, fun() -> ok =:= add_plain(Other, x, fun() -> true end) end),
    ?assertMatch(#{lost := [{plain, x, 2, 1}], adds := 2}, result(Register)).
