%% That what locks protect is protected by fences, and that it is seen when something is lost without them.
-module(canal_lock_quorum_fenced_tests).

-include_lib("eunit/include/eunit.hrl").

-import(test_quorum_register, [connect/1, add_fenced/3, add_plain/3, result/1]).

register_test_() ->
    {foreach, fun start/0, fun stop/1, [
        fun({Register, _, One, Other}) -> {Title, fun() -> Test(Register, One, Other) end} end
     || {Title, Test} <- [
            {"a fence that is lower than one that was seen is refused", fun refused/3},
            {"who holds adds; who does not, does not", fun not_held/3},
            {"without fences, what is added meanwhile is lost, and missed", fun lost/3}
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
