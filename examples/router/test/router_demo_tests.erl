%% Runs a shorter demo with real sockets, load, kills, disconnects and a crash, and checks that it reports a broken
%% promise.
-module(router_demo_tests).

%% Called in the VM that the demo stops.
-export([short/0, tamper/0]).

-include_lib("eunit/include/eunit.hrl").

demo_test_() ->
    {setup, fun start/0, fun stop/1, [
        {"the demo keeps every promise", {timeout, 60, fun keeps_promises/0}},
        {"the demo reports a router that exceeds the limit", {timeout, 60, fun reports_violations/0}},
        {"the demo reports an app in the wrong mode", {timeout, 60, fun reports_wrong_modes/0}},
        {"the demo reports waits beyond the deadline, and waiters that are left", {timeout, 60, fun reports_waits/0}},
        {"the load stops when its owner dies", {timeout, 60, fun ends_load/0}}
    ]}.

%% The exit status, in a separate VM as with `make demo'.
status_test_() ->
    {timeout, 60, fun status/0}.

start() ->
    Level = maps:get(level, logger:get_primary_config()),
    ok = logger:set_primary_config(level, none),
    ok = application:load(router),
    ok = application:set_env(router, port, 0),
    {ok, Started} = application:ensure_all_started(router),
    {Level, Started}.

stop({Level, Started}) ->
    lists:foreach(fun application:stop/1, lists:reverse(Started)),
    ok = application:unload(router),
    ok = logger:set_primary_config(level, Level).

%% An eighth of the demo's duration, with less load.
scenario() ->
    #{
        apps => [{<<"shop">>, 3, 24, 0}, {<<"blog">>, 3, 24, 200}],
        total_ms => 4000,
        events => [
            {0, {dynos, <<"shop">>, 1}},
            {0, {dynos, <<"blog">>, 1}},
            {300, {hang_up, <<"shop">>, 5}},
            {300, {hang_up, <<"blog">>, 5}},
            {1000, {dynos, <<"shop">>, 3}},
            {1000, {dynos, <<"blog">>, 3}},
            {2000, {dynos, <<"shop">>, 6}},
            {2000, {dynos, <<"blog">>, 6}},
            {2500, crash},
            {3000, {dynos, <<"shop">>, 2}},
            {3000, {dynos, <<"blog">>, 2}}
        ],
        behavior => #{work_ms => 10, reset_one_of => 20},
        kill_every_ms => 20
    }.

keeps_promises() ->
    {Verdict, Output} = router_demo_output:capture(fun() -> router_demo:run(scenario(), lines) end),
    #{broken := Broken, phases := Phases, served := Served, reset := Reset, disconnected := Disconnected} = Verdict,
    #{killed := Killed, at_the_end := #{released_by_death := ByDeath, apps := Apps}} = Verdict,
    #{<<"shop">> := {0, #{refused := Refused, waits := []}}, <<"blog">> := {200, #{waits := Waits}}} = Apps,
    ?assertEqual([], Broken),
    ?assertMatch(
        [
            {<<"blog">>, 1, 3}, {<<"blog">>, 3, 9}, {<<"blog">>, 6, 18}, {<<"blog">>, 2, 6},
            {<<"shop">>, 1, 3}, {<<"shop">>, 3, 9}, {<<"shop">>, 6, 18}, {<<"shop">>, 2, 6}
        ],
        [{Host, Dynos, Dynos * MaxPer} || #{host := Host, dynos := Dynos, max_per := MaxPer} <- Phases]
    ),
    %% There are more clients than permits, so the capacity is used completely at some time.
    [#{highest := 3} = lists:nth(First, Phases) || First <- [1, 5]],
    ?assert(lists:all(fun(#{highest := H, dynos := D, max_per := M}) -> H > 0 andalso H =< D * M end, Phases)),
    ?assert(lists:all(fun(Number) -> Number > 0 end, [
        Served, Reset, Disconnected, Killed, ByDeath, Refused, router_stats:total(Waits)
    ])),
    [
        ?assertNotEqual(nomatch, string:find(Output, Expected))
     || Expected <- ["granted/s", "shop: 1 -> 3 dynos", "shop: 6 -> 2 dynos", "the manager is killed: "]
    ],
    ?assertMatch({match, _}, re:run(Output, "(shop|blog) +[0-9] \\[[1-3]")),
    ?assertEqual(nomatch, string:find(Output, "\e")).

%% A scenario without changes after the start.
short() ->
    #{events := Events} = Scenario = scenario(),
    Scenario#{total_ms := 2000, events := [Event || {At, _} = Event <- Events, At =:= 0]}.

%% Raises the limit in the router without a record of it, as soon as the router knows the app.
tamper() ->
    case ets:whereis(router_apps) =/= undefined andalso router_apps:find(<<"shop">>) of
        {ok, #{max_per := 3, dynos := Dynos}} -> router:put(<<"shop">>, 5, Dynos);
        _ -> erlang:yield(), tamper()
    end.

reports_violations() ->
    reports(fun tamper/0, short(), ["on a dyno with a limit of 3", "admitted with capacity 5 instead of 3"]).

reports(Tamper, Scenario, AllExpected) ->
    {Tamperer, Monitor} = spawn_monitor(Tamper),
    {#{broken := Broken}, _Output} = router_demo_output:capture(fun() -> router_demo:run(Scenario, lines) end),
    true = exit(Tamperer, kill),
    _ = test_await:reason({Tamperer, Monitor}),
    [
        ?assertMatch({_, [_], _}, {Expected, [Line || Line <- Broken, string:find(Line, Expected) =/= nomatch], Broken})
     || Expected <- AllExpected
    ].

%% Exchanges the modes of the two apps as soon as the router knows both.
reports_wrong_modes() ->
    Tamper = fun() ->
        ok = test_await:value(true, fun() -> router_apps:find(<<"blog">>) =/= error end),
        [set_wait_ms(Host, Wait_ms) || {Host, Wait_ms} <- [{<<"shop">>, 200}, {<<"blog">>, 0}]]
    end,
    reports(Tamper, short(), [
        "requests waited, although it refuses at once", "refused, but only ", "blog: no request waited"
    ]).

set_wait_ms(Host, Wait_ms) ->
    {ok, #{max_per := MaxPer, dynos := Dynos}} = router_apps:find(Host),
    router:put(Host, MaxPer, Dynos, Wait_ms).

%% The dyno is so slow, and kills are so rare, that clients wait for longer than the deadline and what the verdict adds.
reports_waits() ->
    Tamper = fun() ->
        ok = test_await:value(true, fun() -> canal_lock:waiting(<<"blog">>) > 0 end),
        ok = set_wait_ms(<<"blog">>, 5000),
        %% More permits than the app ever has.
        {waiting, _} = canal_lock:request(<<"blog">>, 0, 0, #{permits => 100}),
        timer:sleep(infinity)
    end,
    reports(Tamper, (short())#{behavior := #{work_ms => 150, reset_one_of => never}, kill_every_ms := 1000}, [
        "ms instead of at most 200", "1 requests that still wait", "1 requests in the queues of the apps"
    ]).

status() ->
    {KeptStatus, Kept} = presented("router_demo:present(router_demo_tests:short(), lines)"),
    ?assertEqual({0, "All promises were kept."}, {KeptStatus, lists:last(Kept)}),
    {BrokenStatus, Broken} = presented(
        "spawn(fun router_demo_tests:tamper/0), router_demo:present(router_demo_tests:short(), lines)"
    ),
    ?assertMatch({1, "BROKEN  " ++ _}, {BrokenStatus, lists:last(Broken)}).

%% Returns the exit status and the output lines of a VM that evaluates the expression.
presented(Expression) ->
    Paths = [filename:dirname(code:which(Module)) || Module <- [router, router_demo_tests, canal_lock]],
    Port = open_port({spawn_executable, filename:join([code:root_dir(), "bin", "erl"])}, [
        {args, ["-noinput", "-router", "port", "0", "-pa"] ++ Paths ++ ["-eval", Expression ++ "."]}, exit_status
    ]),
    presented(Port, "").

presented(Port, Output) ->
    receive
        {Port, {data, Data}} -> presented(Port, Output ++ Data);
        {Port, {exit_status, Status}} -> {Status, string:lexemes(Output, "\n")}
    end.

%% wrk would run for a minute.
ends_load() ->
    Log = router_demo_log:new(),
    Dyno = router_demo_dyno:start(<<"shop">>, Log, #{work_ms => 1, reset_one_of => never}),
    ok = router:put(<<"shop">>, 1, [router_demo_dyno:address(Dyno)]),
    Sockets = fun() -> mochiweb_socket_server:get(router_listener, active_sockets) end,
    {Pid, _} = Owner = spawn_monitor(fun() ->
        _ = router_demo_load:start(<<"shop">>, router:port(), 4, 60),
        timer:sleep(infinity)
    end),
    ok = test_await:value(4, Sockets),
    exit(Pid, kill),
    killed = test_await:reason(Owner),
    ok = test_await:value(0, Sockets),
    ok = router_demo_dyno:stop(Dyno),
    ok = router:delete(<<"shop">>),
    ok = router_demo_log:delete(Log).
