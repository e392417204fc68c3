%% P10: the manager as others run it: a child of somebody's supervisor, and the application of its own.
-module(canal_lock_app_tests).

-behaviour(supervisor).

-include_lib("eunit/include/eunit.hrl").

-export([init/1]).

%% What the application's supervisor puts up with, within some seconds.
-define(RESTARTS, 10).

%% Shorter than one interval of the sweep that nobody has asked for.
-define(SOON_MS, 4000).

app_test_() ->
    test_setup:quietly(
        test_setup:tests(without_manager, [
            {Title, test_manager_crash:alone(fun() -> clean(Test) end)}
         || {Title, Test} <- [
                {"P10: a child of a supervisor keeps its table when it crashes", fun child_keeps/0},
                {"P10: a child with options", fun child_with_options/0},
                {"P10: a child that is not to keep its table does not", fun child_that_forgets/0},
                {"P10: a supervisor that gives up leaves the table to the next one", fun supervisor_gives_up/0},
                {"what is no child is refused", fun no_child/0},
                {"the application without max_per starts no manager", fun application_without_manager/0},
                {"P10: the application with max_per starts one that keeps its table", fun application_with_manager/0},
                {"P10: the application's environment has the options", fun application_with_options/0},
                {"P10: stopping the application closes the table", fun application_stops/0},
                {"P10: an application that has crashed goes on with its table when it is started", fun crashed/0},
                {"the application says what is wrong with its environment", fun bad_environment/0},
                {"P10: the application leaves somebody else's manager alone", fun somebody_elses_manager/0}
            ]
        ])
    ).

%%% As somebody's child

%% Of the supervisor.
init(Children) ->
    {ok, {#{intensity => 3, period => 60}, Children}}.

supervise(Argument) ->
    {ok, Supervisor} = supervisor:start_link(?MODULE, [canal_lock:child_spec(Argument)]),
    Supervisor.

end_supervisor(Supervisor) ->
    exit(Supervisor, shutdown),
    receive
        {'EXIT', Supervisor, shutdown} -> ok
    end.

child_keeps() ->
    Supervisor = supervise(3),
    ?assertMatch([{canal_lock, _, worker, [canal_lock_manager]}], supervisor:which_children(Supervisor)),
    keeps_on_crash(),
    ?assertMatch(#{max_per := 3}, canal_lock:info()),
    ok = end_supervisor(Supervisor),
    test_manager_crash:calls_raise().

%% Permits that are held when the manager dies are held for as long as no other is there, and after.
keeps_on_crash() ->
    {Holder, {acquired, 1}} = test_worker:start(fun() -> canal_lock:acquire(db, 3, 1) end),
    {acquired, 2} = canal_lock:acquire(db, 3, 1),
    Manager = whereis(canal_lock),
    ok = test_manager_crash:kill(Manager),
    ?assertEqual({acquired, 3}, canal_lock:acquire(db, 3, 1)),
    _ = test_manager_crash:another(Manager),
    ?assertEqual(full, canal_lock:acquire(db, 3, 1)),
    ?assertEqual([{db, 2}], canal_lock:held()),
    ok = test_worker:kill(Holder),
    test_await:count(db, 2),
    [ok = canal_lock:release(db) || _ <- [1, 2]],
    ?assertMatch(#{permits := 0, given_back := 1}, canal_lock:info()).

child_with_options() ->
    Supervisor = supervise({5, #{sweep_interval_ms => 10}}),
    ?assertMatch(#{max_per := 5}, canal_lock:info()),
    idle_keys_go(),
    keeps_on_crash(),
    idle_keys_go(),
    ok = end_supervisor(Supervisor),
    Same = supervise({5, #{keep_on_crash => true}}),
    keeps_on_crash(),
    ok = end_supervisor(Same).

idle_keys_go() ->
    {ok, idle} = canal_lock:with_permit(idle, 1, 1, fun() -> idle end),
    test_await:value(0, fun() -> maps:get(keys, canal_lock:info()) end, ?SOON_MS).

child_that_forgets() ->
    Supervisor = supervise({3, #{keep_on_crash => false}}),
    {acquired, 1} = canal_lock:acquire(db, 3, 1),
    Manager = whereis(canal_lock),
    ok = test_manager_crash:kill(Manager),
    _ = test_manager_crash:another(Manager),
    ?assertEqual({error, not_held}, canal_lock:release(db)),
    ?assertMatch(#{keys := 0, granted := 0}, canal_lock:info()),
    ok = end_supervisor(Supervisor),
    test_manager_crash:calls_raise().

supervisor_gives_up() ->
    Supervisor = supervise(3),
    {acquired, 1} = canal_lock:acquire(db, 3, 1),
    Last = lists:foldl(fun(_, Manager) -> crash_and_return(Manager) end, whereis(canal_lock), [1, 2, 3]),
    ok = test_manager_crash:kill(Last),
    receive
        {'EXIT', Supervisor, shutdown} -> ok
    end,
    %% That was no end of the manager in order, so it is as after any crash.
    ?assertEqual(undefined, whereis(canal_lock)),
    ?assertEqual({acquired, 2}, canal_lock:acquire(db, 3, 1)),
    Next = supervise(3),
    ?assertEqual([{db, 2}], canal_lock:held()),
    ok = end_supervisor(Next),
    test_manager_crash:calls_raise().

crash_and_return(Manager) ->
    ok = test_manager_crash:kill(Manager),
    test_manager_crash:another(Manager).

no_child() ->
    [
        ?assertError(badarg, canal_lock:child_spec(Argument))
     || Argument <- [
            0,
            -1,
            3.0,
            three,
            [],
            {0, #{}},
            {3, []},
            {3, #{}, more},
            {3, #{keep_on_crash => maybe}},
            {3, #{sweep_interval_ms => 0}},
            {3, #{unknown => true}}
        ]
    ].

%%% The application

%% Nothing of it runs when the test begins, and nothing stays.
clean(Test) ->
    WasLoaded = application:load(canal_lock) =/= ok,
    Before = application:get_all_env(canal_lock),
    try
        Test()
    after
        _ = application:stop(canal_lock),
        _ = [application:unset_env(canal_lock, Key) || {Key, _} <- application:get_all_env(canal_lock)],
        ok = application:set_env([{canal_lock, Before}]),
        WasLoaded orelse application:unload(canal_lock)
    end.

start(Environment) ->
    _ = [application:unset_env(canal_lock, Key) || {Key, _} <- application:get_all_env(canal_lock)],
    ok = application:set_env([{canal_lock, Environment}]),
    application:start(canal_lock).

application_without_manager() ->
    %% Options are of no use to nobody.
    [
        begin
            ?assertEqual(ok, start(Environment)),
            ?assertEqual([], supervisor:which_children(canal_lock_sup)),
            ?assertEqual(undefined, whereis(canal_lock)),
            ok = test_manager_crash:calls_raise(),
            %% Whoever depends on it starts one.
            {ok, _} = canal_lock:start_link(3),
            {acquired, 1} = canal_lock:acquire(db, 3, 1),
            ok = application:stop(canal_lock),
            ?assertEqual({acquired, 2}, canal_lock:acquire(db, 3, 1)),
            ok = canal_lock:stop()
        end
     || Environment <- [[], [{keep_on_crash, false}]]
    ].

application_with_manager() ->
    ?assertEqual(ok, start([{max_per, 4}])),
    Manager = whereis(canal_lock),
    ?assertMatch([{canal_lock, Manager, worker, _}], supervisor:which_children(canal_lock_sup)),
    %% Names that it takes, once the quorum locks are started, too.
    {ok, Names} = application:get_key(canal_lock, registered),
    {ok, _} = canal_lock_quorum:start_link(#{members => [node()]}),
    ?assertEqual([], [Name || Name <- Names, whereis(Name) =:= undefined]),
    ok = canal_lock_quorum:stop(),
    keeps_on_crash(),
    ?assertMatch(#{max_per := 4}, canal_lock:info()).

application_with_options() ->
    ?assertEqual(ok, start([{max_per, 4}, {sweep_interval_ms, 10}, {keep_on_crash, true}])),
    idle_keys_go(),
    keeps_on_crash(),
    ok = application:stop(canal_lock),
    ?assertEqual(ok, start([{max_per, 4}, {keep_on_crash, false}])),
    {acquired, 1} = canal_lock:acquire(db, 3, 1),
    _ = crash_and_return(whereis(canal_lock)),
    ?assertMatch(#{keys := 0, granted := 0, max_per := 4}, canal_lock:info()).

application_stops() ->
    ?assertEqual(ok, start([{max_per, 4}])),
    {Holder, {acquired, 1}} = test_worker:start(fun() -> canal_lock:acquire(db, 3, 1) end),
    ?assertEqual(ok, application:stop(canal_lock)),
    ok = test_manager_crash:calls_raise(),
    ?assertEqual(ok, start([{max_per, 4}])),
    ?assertMatch(#{keys := 0, granted := 0}, canal_lock:info()),
    ?assertEqual({error, not_held}, test_worker:order(Holder, fun() -> canal_lock:release(db) end)),
    %% stop/0 is not the way to stop it: the supervisor starts another one, with an empty table.
    {acquired, 1} = canal_lock:acquire(db, 3, 1),
    Manager = whereis(canal_lock),
    ok = canal_lock:stop(),
    _ = test_manager_crash:another(Manager),
    ?assertMatch(#{keys := 0, granted := 0}, canal_lock:info()).

%% By its supervisor's death, and by more crashes of the manager than that one puts up with.
crashed() ->
    ?assertEqual(ok, start([{max_per, 4}])),
    {acquired, 1} = canal_lock:acquire(db, 3, 1),
    Supervisor = whereis(canal_lock_sup),
    Manager = whereis(canal_lock),
    exit(Supervisor, kill),
    ok = test_await:down([Manager]),
    application_ends(),
    ?assertEqual({acquired, 2}, canal_lock:acquire(db, 3, 1)),
    ?assertEqual(ok, start([{max_per, 4}])),
    ?assertEqual([{db, 2}], canal_lock:held()),
    Turns = lists:seq(1, ?RESTARTS),
    Last = lists:foldl(fun(_, Alive) -> crash_and_return(Alive) end, whereis(canal_lock), Turns),
    ?assertEqual([{db, 2}], canal_lock:held()),
    ok = test_manager_crash:kill(Last),
    application_ends(),
    ?assertEqual({acquired, 3}, canal_lock:acquire(db, 3, 1)),
    ?assertEqual(ok, start([{max_per, 4}])),
    ?assertEqual([{db, 3}], canal_lock:held()),
    ok = application:stop(canal_lock),
    test_manager_crash:calls_raise().

application_ends() ->
    test_await:value(false, fun() ->
        lists:keymember(canal_lock, 1, application:which_applications())
    end).

bad_environment() ->
    Text = fun(Parts) -> iolist_to_binary(Parts) end,
    Positive = fun(Got) -> Text(["the option max_per must be a positive integer, got: ", Got]) end,
    Interval = fun(Got) ->
        Text(["the option sweep_interval_ms must be a positive integer below 2^32 (milliseconds), got: ", Got])
    end,
    Unknown = fun(Name) ->
        Text(["unknown option ", Name, "; the options are max_per, keep_on_crash, sweep_interval_ms"])
    end,
    [
        begin
            {error, {{bad_environment, Given, Fault}, {canal_lock_app, start, _}}} = start(Environment),
            ?assertEqual({Environment, Faulty}, {Environment, Fault}),
            %% And with what.
            ?assertEqual(maps:from_list(Environment), Given),
            ?assertEqual([undefined, undefined], [whereis(Name) || Name <- [canal_lock, canal_lock_sup]]),
            ok = test_manager_crash:calls_raise()
        end
     || {Environment, Faulty} <- [
            {[{max_per, 0}], Positive("0")},
            {[{max_per, many}], Positive("many")},
            {[{max_per, {3, #{}}}], Positive("{3,#{}}")},
            {[{max_per, 3}, {keep_on_crsh, true}], Unknown("keep_on_crsh")},
            {[{max_pre, 3}], Unknown("max_pre")},
            {[{sweep_interval_ms, soon}], Interval("soon")},
            {[{max_per, 3}, {keep_on_crash, yes}], <<"the option keep_on_crash must be true or false, got: yes">>},
            {[{max_per, 3}, {sweep_interval_ms, 0}], Interval("0")},
            {[{max_per, 3}, {sweep_interval_ms, 1 bsl 32}, {keep_on_crash, false}], Interval("4294967296")}
        ]
    ],
    ?assertEqual(ok, start([{max_per, 3}])).

somebody_elses_manager() ->
    {ok, Manager} = canal_lock:start_link(3),
    {acquired, 1} = canal_lock:acquire(db, 3, 1),
    {error, {{shutdown, {failed_to_start_child, canal_lock, Why}}, {canal_lock_app, start, _}}} =
        start([{max_per, 4}]),
    ?assertEqual({already_started, Manager}, Why),
    ?assertMatch(#{max_per := 3, permits := 1}, canal_lock:info()).
