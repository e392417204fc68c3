%% Permits of several keys, all or none.
-module(canal_lock_many_tests).

-include_lib("eunit/include/eunit.hrl").

-define(CALLERS, 8).
-define(CALLS, 300).

-define(TIMEOUT_MS, 300).
-define(HELD_MS, 100).

many_test_() ->
    test_setup:tests([
        {"P15: one permit of each key, in the order of the list", fun all/0},
        {"P15: if one key is full, none is held", fun none/0},
        {"the timeout is that of the whole call", fun one_timeout/0},
        {"P15: a call waits until all keys are free", fun waits/0},
        {"P15: callers never wait for each other in a circle, also with equal numbers as keys", fun no_circle/0},
        {"with_permits releases all, however the function ends", fun with_permits/0},
        {"P15: a call that raises holds nothing", fun raises/0},
        {"a wrong argument is named", fun wrong_arguments/0}
    ]).

all() ->
    Long = fun() -> key end,
    ?assertEqual({acquired, [1, 1, 1]}, canal_lock:acquire_many([{z, 9}, {Long, 1}, {{tenant, 7}, 1, 2}])),
    ?assertEqual({acquired, [2, 2, 1]}, canal_lock:acquire_many([{{tenant, 7}, 1, 2}, {z, 9}, {a, 1}], 0)),
    ?assertEqual({acquired, []}, canal_lock:acquire_many([])),
    ?assertEqual(lists:sort([{z, 2}, {a, 1}, {{tenant, 7}, 2}, {Long, 1}]), lists:sort(canal_lock:held())).

none() ->
    {acquired, 1} = canal_lock:acquire(m, 1),
    lists:foreach(fun(Options) ->
        ?assertEqual(full, canal_lock:acquire_many([{a, 1}, {m, 1}, {z, 1}], Options)),
        ?assertEqual([{m, 1}], canal_lock:held())
    end, [0, 1, #{}, #{timeout_ms => 1}, #{timeout_ms => infinity, max_waiting => 0}]),
    ?assertMatch(#{refused := 5}, canal_lock:info()).

%% Traces the timeout of each attempt.
one_timeout() ->
    {acquired, [1, 1]} = canal_lock:acquire_many([{a, 1}, {b, 1}]),
    Caller = test_worker:start(),
    1 = erlang:trace(Caller, true, [call]),
    1 = erlang:trace_pattern({canal_lock_wait, acquire, 4}, true, []),
    Call = test_worker:send_order(Caller, fun() -> canal_lock:acquire_many([{a, 1}, {b, 1}], ?TIMEOUT_MS) end),
    test_await:value(1, fun() -> canal_lock:waiting(a) end),
    timer:sleep(?HELD_MS),
    ok = canal_lock:release(a),
    ?assertEqual(full, test_await:answer(Call)),
    Timeouts = [Timeout_ms || {trace, _, call, {_, _, [_, _, _, {Timeout_ms, _, _}]}} <- test_await:traced(Caller)],
    1 = erlang:trace_pattern({canal_lock_wait, acquire, 4}, false, []),
    ?assertMatch([First, Second] when First =< ?TIMEOUT_MS andalso Second =< ?TIMEOUT_MS - ?HELD_MS, Timeouts),
    ?assertEqual([0, 1], [canal_lock:count(Key) || Key <- [a, b]]),
    ?assertMatch(#{refused := 1}, canal_lock:info()).

waits() ->
    {acquired, [1, 1]} = canal_lock:acquire_many([{a, 1}, {b, 1}]),
    Call = test_worker:send_order(test_worker:start(), fun() ->
        canal_lock:acquire_many([{b, 1}, {a, 1}], infinity)
    end),
    test_await:value(1, fun() -> canal_lock:waiting(a) end),
    ok = canal_lock:release(a),
    test_await:value(1, fun() -> canal_lock:waiting(b) end),
    ok = canal_lock:release(b),
    ?assertEqual({acquired, [1, 1]}, test_await:answer(Call)).

%% Each caller has the keys in an order of its own. 1 and 1.0 are equal in the order of terms.
no_circle() ->
    Keys = [1, 1.0, {2}, {2.0}, a, <<"b">>],
    Calls = test_setup:times(?CALLS),
    Answers = test_setup:concurrently(?CALLERS, fun() ->
        [
            canal_lock:with_permits([{Key, 1} || Key <- test_setup:shuffled(Keys)], infinity, fun erlang:yield/0)
         || _ <- lists:seq(1, Calls)
        ]
    end),
    ?assertEqual([{ok, true}], lists:usort(lists:append(Answers))),
    ?assertMatch(#{permits := 0, waiting := 0}, canal_lock:info()).

with_permits() ->
    Limits = [{b, 1}, {a, 1}],
    Held = fun() -> lists:sort(canal_lock:held()) end,
    ?assertEqual({ok, [{a, 1}, {b, 1}]}, canal_lock:with_permits(Limits, Held)),
    ?assertEqual({ok, [{a, 1}, {b, 1}]}, canal_lock:with_permits(Limits, #{timeout_ms => 5}, Held)),
    ?assertError(badarg, canal_lock:with_permits(Limits, fun() -> error(badarg) end)),
    ?assertThrow(thrown, canal_lock:with_permits(Limits, fun() -> throw(thrown) end)),
    ?assertEqual([], Held()),
    {acquired, 1} = canal_lock:acquire(b, 1),
    ?assertEqual(full, canal_lock:with_permits(Limits, fun() -> error(called) end)),
    %% The table is closed while the function runs.
    ?assertEqual({ok, ok}, canal_lock:with_permits([{c, 1}], fun canal_lock:stop/0)).

%% The second key closes the table while the call waits for it.
raises() ->
    {Holder, {acquired, 1}} = test_worker:start(fun() -> canal_lock:acquire(b, 1) end),
    Caller = test_worker:start(),
    Call = test_worker:send_order(Caller, fun() ->
        try canal_lock:acquire_many([{a, 1}, {b, 1}], infinity) catch error:Reason -> Reason end
    end),
    test_await:value(1, fun() -> canal_lock:waiting(b) end),
    ok = canal_lock:stop(),
    ?assertEqual(badarg, test_await:answer(Call)),
    {ok, _} = canal_lock:start_link(),
    ?assertEqual({acquired, [1, 1]}, canal_lock:acquire_many([{a, 1}, {b, 1}])),
    ok = test_worker:kill([Holder, Caller]).

wrong_arguments() ->
    Must = "Limits must be a list of {Key, Limit} and {Key, MaxPer, Buckets}, each key once, got: ",
    lists:foreach(fun({Limits, Got}) ->
        try
            canal_lock:acquire_many(Limits, 0),
            error(no_error)
        catch
            error:badarg:Stack ->
                #{1 := Text} = canal_lock_errors:format_error(badarg, Stack),
                ?assertEqual(iolist_to_binary([Must, Got]), Text)
        end
    end, [
        {[{a, 1}, {a, 2}], "[{a,1},{a,2}]"},
        {[{a, one}], "[{a,one}]"},
        {[{a, 1, -1}], "[{a,1,-1}]"},
        {[a], "[a]"},
        {[{a, 1} | b], "[{a,1}|b]"},
        {#{a => 1}, "#{a => 1}"}
    ]),
    ?assertError(badarg, canal_lock:acquire_many([{a, 1}], #{permits => 1})),
    ?assertError(badarg, canal_lock:acquire_many([{a, 1}], -1)),
    ?assertError(badarg, canal_lock:with_permits([{a, 1}], not_a_fun)),
    ?assertMatch(#{granted := 0, keys := 0}, canal_lock:info()).
