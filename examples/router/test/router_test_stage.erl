%% What the tests of the router stand on: a router of their own each, of which nothing is left when they have ended.
-module(router_test_stage).

-export([tests/1, noisy/1, answer_ms/1, held/1, holder/1]).

-include_lib("eunit/include/eunit.hrl").

%% A net for what hangs.
-define(TIMEOUT_S, 30).
%% Longer than any test may take: those that wait for it set a shorter one.
-define(ANSWER_MS, 20000).

%% The tests, each in a process of its own, so that its clients and dynos end with it. Afterwards everything that was
%% taken is back, and nobody has reported an error.
-spec tests([{Title :: string(), fun(() -> term())}]) -> term().
tests(Tests) ->
    foreach(Tests, fun() -> ?assertEqual([], test_log_listener:events()) end).

%% The same for tests in which something is killed whose death others report.
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
    all_is_back(),
    Check().

%% P4, and that nothing was given back that nobody held.
all_is_back() ->
    test_await:permits(0),
    test_await:value(0, fun() -> maps:get(holders, canal_lock:info()) end),
    ?assertEqual([], canal_lock:audit()),
    #{granted := Granted, released := Released, given_back := GivenBack} = Info = canal_lock:info(),
    ?assertMatch(#{not_held := 0}, Info),
    ?assertEqual(Granted, Released + GivenBack).

%% How long a dyno may take from now on.
-spec answer_ms(pos_integer()) -> ok.
answer_ms(Answer_ms) ->
    application:set_env(router, answer_ms, Answer_ms).

%% Until the app has so many permits out, and its dynos together the same.
-spec held(non_neg_integer()) -> ok.
held(Permits) ->
    test_await:count(<<"shop">>, Permits),
    test_await:permits(2 * Permits).

%% The process of the one request that is open.
-spec holder(router_apps:host()) -> pid().
holder(Host) ->
    [{Pid, 1}] = canal_lock:holders(Host),
    Pid.
