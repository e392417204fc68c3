%% P10: the manager as a child of the user's supervisor, and as the application canal_lock.
-module(canal_lock_app_tests).

-include_lib("eunit/include/eunit.hrl").

%% How many restarts of a manager its supervisor allows within a few seconds.
-define(RESTARTS, 10).

%% Shorter than one default interval of the sweep.
-define(SOON_MS, 4000).

app_test_() ->
    Tests = [
        {"P10: a child of a supervisor keeps its table when it crashes", fun child_keeps/0},
        {"P10: a child accepts options", fun child_with_options/0},
        {"P10: a child with keep_on_crash => false loses its table", fun child_without_keep/0},
        {"P10: a supervisor that gives up leaves the table to the next one", fun supervisor_gives_up/0},
        {"a manager that is killed does not use up the restarts of the user's supervisor", fun no_restarts_allowed/0},
        {"P10: the application opens a table, which a crash keeps", fun application_opens/0},
        {"the application with {start, false} opens no table", fun application_without_manager/0},
        {"P10: the application's environment sets the options", fun application_with_options/0},
        {"P10: stopping the application closes the table", fun application_stops/0},
        {"P10: a crashed application adopts its table when it starts again", fun application_crashes/0},
        {"the application's start error names the wrong environment value", fun wrong_environment/0}
    ],
    test_manager_crash:tests([{Title, fun() -> clean(Test) end} || {Title, Test} <- Tests]).

%%% A child of the user's supervisor

supervise(Argument) ->
    test_setup:supervise(3, [canal_lock:child_spec(Argument)]).

child_keeps() ->
    Supervisor = supervise(3),
    ?assertMatch([{canal_lock, _, supervisor, [canal_lock_starter]}], supervisor:which_children(Supervisor)),
    keeps_on_crash(),
    ?assertMatch(#{max_per := 3}, canal_lock:info()),
    ok = test_setup:stop_supervisor(Supervisor),
    test_manager_crash:calls_raise().

%% Permits stay held while no manager runs, and after the next one starts.
keeps_on_crash() ->
    {Holder, {acquired, 1}} = test_worker:start(fun acquire/0),
    {acquired, 2} = acquire(),
    Manager = whereis(canal_lock),
    ok = test_manager_crash:kill(Manager),
    ?assertEqual({acquired, 3}, acquire()),
    _ = test_manager_crash:another(Manager),
    ?assertEqual(full, acquire()),
    ?assertEqual([{db, 2}], canal_lock:held()),
    ok = test_worker:kill(Holder),
    test_await:count(db, 2),
    [ok = canal_lock:release(db) || _ <- [1, 2]],
    ?assertMatch(#{permits := 0, released_by_death := 1}, canal_lock:info()).

acquire() ->
    canal_lock:acquire(db, 3, 1).

child_with_options() ->
    Supervisor = supervise({5, #{sweep_interval_ms => 10}}),
    ?assertMatch(#{max_per := 5}, canal_lock:info()),
    idle_key_is_reclaimed(),
    keeps_on_crash(),
    idle_key_is_reclaimed(),
    ok = test_setup:stop_supervisor(Supervisor),
    Same = supervise({5, #{keep_on_crash => true}}),
    keeps_on_crash(),
    ok = test_setup:stop_supervisor(Same).

idle_key_is_reclaimed() ->
    {ok, idle} = canal_lock:with_permit(idle, 1, 1, fun() -> idle end),
    test_await:value(0, fun() -> test_setup:info(keys) end, ?SOON_MS).

child_without_keep() ->
    Supervisor = supervise({3, #{keep_on_crash => false}}),
    {Holder, {acquired, 1}} = test_worker:start(fun acquire/0),
    {acquired, 2} = acquire(),
    _ = kill_and_await_next(whereis(canal_lock)),
    ?assertEqual({error, not_held}, canal_lock:release(db)),
    is_new_table(),
    %% The death of a holder of the closed table changes nothing.
    {acquired, 1} = canal_lock:acquire(db, 1, 1),
    ok = test_worker:kill(Holder),
    ?assertEqual(full, canal_lock:acquire(db, 1, 1)),
    ok = test_setup:stop_supervisor(Supervisor),
    test_manager_crash:calls_raise().

is_new_table() ->
    ?assertMatch(#{keys := 0, granted := 0}, canal_lock:info()).

supervisor_gives_up() ->
    Supervisor = test_setup:supervise(0, [canal_lock:child_spec(3)]),
    {acquired, 1} = acquire(),
    ok = test_manager_crash:kill(kill_and_await_next(?RESTARTS, whereis(canal_lock))),
    shutdown = test_await:exit_reason(Supervisor),
    %% The manager did not shut down cleanly, so its table stays, as after any crash.
    ?assertEqual(undefined, whereis(canal_lock)),
    ?assertEqual({acquired, 2}, acquire()),
    Next = supervise(3),
    ?assertEqual([{db, 2}], canal_lock:held()),
    ok = test_setup:stop_supervisor(Next),
    test_manager_crash:calls_raise().

no_restarts_allowed() ->
    Supervisor = test_setup:supervise(0, [canal_lock:child_spec()]),
    keeps_on_crash(),
    ok = test_setup:stop_supervisor(Supervisor).

kill_and_await_next(Manager) ->
    kill_and_await_next(1, Manager).

kill_and_await_next(0, Manager) ->
    Manager;
kill_and_await_next(Times, Manager) ->
    ok = test_manager_crash:kill(Manager),
    kill_and_await_next(Times - 1, test_manager_crash:another(Manager)).

%%% The application

%% The test starts and ends with the application stopped and its environment unchanged.
clean(Test) ->
    WasLoaded = application:load(canal_lock) =/= ok,
    Before = application:get_all_env(canal_lock),
    try
        Test()
    after
        _ = application:stop(canal_lock),
        set_environment(Before),
        WasLoaded orelse application:unload(canal_lock)
    end.

set_environment(Environment) ->
    _ = [application:unset_env(canal_lock, Key) || {Key, _} <- application:get_all_env(canal_lock)],
    ok = application:set_env([{canal_lock, Environment}]).

start(Environment) ->
    set_environment(Environment),
    application:start(canal_lock).

application_without_manager() ->
    lists:foreach(fun(Options) ->
        ?assertEqual(ok, start([{start, false} | Options])),
        ?assertEqual([], supervisor:which_children(canal_lock_sup)),
        ?assertEqual(undefined, whereis(canal_lock)),
        ok = test_manager_crash:calls_raise(),
        %% An application that depends on canal_lock can start its own manager.
        {ok, _} = canal_lock:start_link(3),
        {acquired, 1} = acquire(),
        ok = application:stop(canal_lock),
        ?assertEqual({acquired, 2}, acquire()),
        ok = canal_lock:stop()
    end, [[], [{max_per, 3}]]).

application_opens() ->
    ?assertEqual(ok, start([])),
    Manager = whereis(canal_lock),
    ?assertMatch([{canal_lock, Manager, worker, _}], supervisor:which_children(canal_lock_sup)),
    ?assertMatch(#{max_per := undefined}, canal_lock:info()),
    %% All names that the application lists are registered, once the quorum locks and cluster permits are started too.
    {ok, Names} = application:get_key(canal_lock, registered),
    {ok, _} = canal_lock_cluster:start_link(#{members => [node()]}),
    ?assertEqual([], [Name || Name <- Names, whereis(Name) =:= undefined]),
    ok = canal_lock_cluster:stop(),
    keeps_on_crash(),
    ok = application:stop(canal_lock),
    ?assertEqual(ok, start([{max_per, 4}])),
    ?assertMatch(#{max_per := 4}, canal_lock:info()).

application_with_options() ->
    ?assertEqual(ok, start([{max_per, 4}, {sweep_interval_ms, 10}, {keep_on_crash, true}])),
    idle_key_is_reclaimed(),
    keeps_on_crash(),
    ok = application:stop(canal_lock),
    ?assertEqual(ok, start([{max_per, 4}, {max_waiting, 1}])),
    {waiting, _} = canal_lock:request(db, 0, 1),
    ?assertEqual(full, canal_lock:request(other, 0, 1)),
    ok = application:stop(canal_lock),
    ?assertEqual(ok, start([{max_per, 4}, {keep_on_crash, false}])),
    {acquired, 1} = acquire(),
    _ = kill_and_await_next(whereis(canal_lock)),
    is_new_table(),
    ?assertMatch(#{max_per := 4}, canal_lock:info()).

application_stops() ->
    ?assertEqual(ok, start([{max_per, 4}])),
    {Holder, {acquired, 1}} = test_worker:start(fun acquire/0),
    ?assertEqual(ok, application:stop(canal_lock)),
    ok = test_manager_crash:calls_raise(),
    ?assertEqual(ok, start([{max_per, 4}])),
    is_new_table(),
    ?assertEqual({error, not_held}, test_worker:order(Holder, fun() -> canal_lock:release(db) end)),
    %% After stop/0 only another start opens a table.
    {acquired, 1} = acquire(),
    ok = canal_lock:stop(),
    ?assertMatch([{canal_lock, undefined, worker, _}], supervisor:which_children(canal_lock_sup)),
    ok = test_manager_crash:calls_raise(),
    {ok, undefined} = supervisor:restart_child(canal_lock_sup, canal_lock),
    ok = test_manager_crash:calls_raise(),
    ok = application:stop(canal_lock),
    ok = application:start(canal_lock),
    is_new_table().

%% First its supervisor is killed; then the manager crashes more often than the supervisor allows.
application_crashes() ->
    ?assertEqual(ok, start([{max_per, 4}])),
    {acquired, 1} = acquire(),
    Manager = whereis(canal_lock),
    exit(whereis(canal_lock_sup), kill),
    ok = test_await:down([Manager]),
    await_application_stopped(),
    ?assertEqual({acquired, 2}, acquire()),
    ?assertEqual(ok, start([{max_per, 4}])),
    ?assertEqual([{db, 2}], canal_lock:held()),
    Last = kill_and_await_next(?RESTARTS, whereis(canal_lock)),
    ?assertEqual([{db, 2}], canal_lock:held()),
    ok = test_manager_crash:kill(Last),
    await_application_stopped(),
    ?assertEqual({acquired, 3}, acquire()),
    ?assertEqual(ok, start([{max_per, 4}])),
    ?assertEqual([{db, 3}], canal_lock:held()),
    ok = application:stop(canal_lock),
    test_manager_crash:calls_raise().

await_application_stopped() ->
    test_await:value(false, fun() -> lists:keymember(canal_lock, 1, application:which_applications()) end).

wrong_environment() ->
    Text = fun(Parts) -> iolist_to_binary(Parts) end,
    Positive = fun(Got) -> Text(["the option max_per must be a positive integer, got: ", Got]) end,
    Interval = fun(Got) ->
        Text(["the option sweep_interval_ms must be a positive integer below 2^32 (milliseconds), got: ", Got])
    end,
    Unknown = fun(Name) ->
        Options = "start, max_per, keep_on_crash, sweep_interval_ms, max_waiting",
        Text(["unknown option ", Name, "; the options are ", Options])
    end,
    lists:foreach(fun({Environment, Expected}) ->
        {error, {{bad_environment, Given, Reason}, {canal_lock_app, start, _}}} = start(Environment),
        ?assertEqual({Environment, Expected}, {Environment, Reason}),
        ?assertEqual(maps:from_list(Environment), Given),
        ?assertEqual([undefined, undefined], [whereis(Name) || Name <- [canal_lock, canal_lock_sup]]),
        ok = test_manager_crash:calls_raise()
    end, [
        {[{max_per, 0}], Positive("0")},
        {[{max_per, many}], Positive("many")},
        {[{start, no}], <<"the option start must be true or false, got: no">>},
        {[{max_per, {3, #{}}}], Positive("{3,#{}}")},
        {[{max_per, 3}, {keep_on_crsh, true}], Unknown("keep_on_crsh")},
        {[{max_pre, 3}], Unknown("max_pre")},
        {[{sweep_interval_ms, soon}], Interval("soon")},
        {[{max_waiting, infinity}], <<"the option max_waiting must be a non-negative integer, got: infinity">>},
        {[{max_per, 3}, {keep_on_crash, yes}], <<"the option keep_on_crash must be true or false, got: yes">>},
        {[{max_per, 3}, {sweep_interval_ms, 0}], Interval("0")},
        {[{max_per, 3}, {sweep_interval_ms, 1 bsl 32}, {keep_on_crash, false}], Interval("4294967296")}
    ]),
    ?assertEqual(ok, start([{max_per, 3}])).
