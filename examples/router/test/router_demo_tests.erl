%% The demo as a whole, shorter: real sockets, real load, kills, hang-ups and a crash; and that it would tell if a
%% promise were broken.
-module(router_demo_tests).

%% For the VM that the demo ends.
-export([short/0, tamper/0]).

-include_lib("eunit/include/eunit.hrl").

demo_test_() ->
    {setup, fun start/0, fun stop/1, [
        {"keeps every promise", {timeout, 60, fun keeps/0}},
        {"tells when the limit is not kept", {timeout, 60, fun tells/0}},
        {"ends its load with itself", {timeout, 60, fun ends_load/0}}
    ]}.

%% As `make demo' runs it, in a VM of its own.
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

%% A sixth of the demo's times, and less of a load.
scenario() ->
    #{
        apps => [{<<"shop">>, 3, 24}, {<<"blog">>, 2, 4}],
        all_ms => 4000,
        events => [
            {0, {dynos, <<"blog">>, 2}},
            {0, {dynos, <<"shop">>, 1}},
            {300, {hang_up, <<"shop">>, 5}},
            {1000, {dynos, <<"shop">>, 3}},
            {2000, {dynos, <<"shop">>, 6}},
            {2500, crash},
            {3000, {dynos, <<"shop">>, 2}}
        ],
        manners => #{work_ms => 10, reset_one_of => 20},
        kill_every_ms => 20
    }.

keeps() ->
    {Verdict, Said} = router_demo_listener:listen(fun() -> router_demo:run(scenario(), lines) end),
    #{broken := Broken, phases := Phases, served := Served, reset := Reset, hung_up := HungUp} = Verdict,
    #{killed := Killed, at_the_end := #{given_back := GivenBack, refused := #{<<"shop">> := Refused}}} = Verdict,
    ?assertEqual([], Broken),
    ?assertMatch(
        [
            {<<"blog">>, 2, 4}, {<<"shop">>, 1, 3}, {<<"shop">>, 3, 9}, {<<"shop">>, 6, 18}, {<<"shop">>, 2, 6}
        ],
        [{Host, Dynos, Dynos * MaxPer} || #{host := Host, dynos := Dynos, max_per := MaxPer} <- Phases]
    ),
    %% More ask than are admitted, so all places are taken at some time.
    #{highest := 3} = lists:nth(2, Phases),
    ?assert(lists:all(fun(#{highest := H, dynos := D, max_per := M}) -> H > 0 andalso H =< D * M end, Phases)),
    ?assert(lists:all(fun(Number) -> Number > 0 end, [Served, Reset, HungUp, Killed, GivenBack, Refused])),
    [
        ?assertNotEqual(nomatch, string:find(Said, Expected))
     || Expected <- ["granted/s", "shop: 1 -> 3 dynos", "shop: 6 -> 2 dynos", "the manager is killed with "]
    ],
    ?assertMatch({match, _}, re:run(Said, "(shop|blog) +[0-9] \\[[1-3]")),
    ?assertEqual(nomatch, string:find(Said, "\e")).

%% Of which nothing is changed.
short() ->
    #{events := Events} = Scenario = scenario(),
    Scenario#{all_ms := 2000, events := [Event || {At, _} = Event <- Events, At =:= 0]}.

%% Lets the router admit more than the dynos are said to bear, as soon as it knows of them.
tamper() ->
    case ets:whereis(router_apps) =/= undefined andalso router_apps:find(<<"shop">>) of
        {ok, #{max_per := 3, dynos := Dynos}} -> router:put(<<"shop">>, 5, Dynos);
        _ -> erlang:yield(), tamper()
    end.

tells() ->
    Tamperer = spawn_link(fun tamper/0),
    {#{broken := Broken}, _Said} = router_demo_listener:listen(fun() -> router_demo:run(short(), lines) end),
    ?assertNot(is_process_alive(Tamperer)),
    [
        ?assertMatch([_], [Promise || Promise <- Broken, string:find(Promise, Expected) =/= nomatch])
     || Expected <- ["on a dyno that bears 3", "admitted to 5 instead of 3"]
    ].

status() ->
    {KeptStatus, Kept} = presented("router_demo:present(router_demo_tests:short(), lines)"),
    ?assertEqual({0, "All promises were kept."}, {KeptStatus, lists:last(Kept)}),
    {BrokenStatus, Broken} = presented(
        "spawn(fun router_demo_tests:tamper/0), router_demo:present(router_demo_tests:short(), lines)"
    ),
    ?assertMatch({1, "BROKEN  " ++ _}, {BrokenStatus, lists:last(Broken)}).

%% The status of a VM that evaluates this, and the lines that it has written.
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

%% wrk would go on for a minute.
ends_load() ->
    Book = router_demo_book:new(),
    Dyno = router_demo_dyno:start(<<"shop">>, Book, #{work_ms => 1, reset_one_of => never}),
    ok = router:put(<<"shop">>, 1, [router_demo_dyno:address(Dyno)]),
    Sockets = fun() -> mochiweb_socket_server:get(router_door, active_sockets) end,
    {Owner, Monitor} = spawn_monitor(fun() ->
        _ = router_demo_load:start(<<"shop">>, router:port(), 4, 60),
        receive
        after infinity -> ok
        end
    end),
    ok = test_await:value(4, Sockets),
    exit(Owner, kill),
    receive
        {'DOWN', Monitor, process, Owner, killed} -> ok
    end,
    ok = test_await:value(0, Sockets),
    ok = router_demo_dyno:stop(Dyno),
    ok = router:delete(<<"shop">>),
    ok = router_demo_book:delete(Book).
