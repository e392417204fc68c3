%% Starts a separate router for each test and checks that nothing is left over afterwards.
-module(router_test_setup).

-export([tests/1, noisy/1, answer_ms/1, await_held/1, await_waiting/1, holder/1]).

-include_lib("eunit/include/eunit.hrl").

%% Only for tests that hang.
-define(TIMEOUT_S, 30).
%% Longer than any test; tests of the timeout set a shorter one.
-define(ANSWER_MS, 20000).

%% Runs each test in a separate process, so that its clients and dynos end with it. Then checks that all permits are
%% released, no request waits and no error was logged.
-spec tests([{Title :: string(), fun(() -> term())}]) -> term().
tests(Tests) ->
    foreach(Tests, fun() -> ?assertEqual([], test_log_listener:events()) end).

%% The same for tests whose kills are logged as errors.
-spec noisy([{Title :: string(), fun(() -> term())}]) -> term().
noisy(Tests) ->
    foreach(Tests, fun() -> ?assertMatch([_ | _], test_log_listener:events()) end).

foreach(Tests, Check) ->
    test_log_listener:tests(error,
        {foreach, fun start/0, fun stop/1, [
            {timeout, ?TIMEOUT_S, {Title, fun() -> test_log_listener:listening(fun() -> run(Test, Check) end) end}}
         || {Title, Test} <- Tests
        ]}
    ).

start() ->
    ok = application:load(router),
    ok = application:set_env(router, port, 0),
    ok = answer_ms(?ANSWER_MS),
    {ok, Router} = application:ensure_all_started(router),
    {ok, Clients} = application:ensure_all_started(inets),
    Router ++ Clients.

stop(Started) ->
    [ok = application:stop(Application) || Application <- lists:reverse(Started)],
    undefined = whereis(canal_lock),
    application:unload(router).

run(Test, Check) ->
    {Pid, Monitor} = spawn_monitor(fun() ->
        _ = Test(),
        exit(ended)
    end),
    ended = test_await:reason({Pid, Monitor}),
    check_all_released(),
    Check().

%% P4, and that no process released a permit that it did not hold.
check_all_released() ->
    await_info(0, waiting),
    test_await:permits(0),
    await_info(0, holders),
    ?assertEqual([], canal_lock:audit()),
    #{granted := Granted, released := Released, released_by_death := ByDeath} = Info = canal_lock:info(),
    ?assertMatch(#{not_held := 0}, Info),
    ?assertEqual(Granted, Released + ByDeath).

%% Sets the time limit for a dyno's answer.
-spec answer_ms(pos_integer()) -> ok.
answer_ms(Answer_ms) ->
    application:set_env(router, answer_ms, Answer_ms).

%% Waits until the app has this number of permits in use, and its dynos together the same number.
-spec await_held(non_neg_integer()) -> ok.
await_held(Permits) ->
    test_await:count(<<"shop">>, Permits),
    test_await:permits(2 * Permits).

%% Waits until this number of requests wait for the app.
-spec await_waiting(non_neg_integer()) -> ok.
await_waiting(Requests) ->
    test_await:value(Requests, fun() -> canal_lock:waiting(<<"shop">>) end).

await_info(Value, Name) ->
    test_await:value(Value, fun() -> maps:get(Name, canal_lock:info()) end).

%% Returns the process of the only open request.
-spec holder(router_apps:host()) -> pid().
holder(Host) ->
    [{Pid, 1}] = canal_lock:holders(Host),
    Pid.
