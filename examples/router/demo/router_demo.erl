%% Runs the router under load, in both of its modes side by side. Two apps have equal dynos, clients and events. When
%% all dynos of an app are busy, one app refuses requests at once, and the other one lets them wait. Both scale from
%% one dyno to three, to six and back to two. Clients run in separate processes, and some disconnect. Dynos reset
%% connections, request processes are killed, and the manager crashes. Ends with the verdict on the log of the dynos.
-module(router_demo).

-export([main/1, present/2, run/2, scenario/0]).

-export_type([scenario/0, event/0]).

-type scenario() :: #{
    %% Connections: of clients. Wait_ms: see router:put/4.
    apps := [
        {router_apps:host(), MaxPer :: pos_integer(), Connections :: pos_integer(), Wait_ms :: non_neg_integer()}
    ],
    total_ms := pos_integer(),
    %% Sorted by time. Events at 0 happen before any load.
    events := [{At_ms :: non_neg_integer(), event()}],
    behavior := router_demo_dyno:behavior(),
    kill_every_ms := pos_integer()
}.

-type event() ::
    {dynos, router_apps:host(), non_neg_integer()}
    %% Clients on additional connections send requests for a second and disconnect.
    | {hang_up, router_apps:host(), Connections :: pos_integer()}
    | crash.

-record(show, {
    scenario :: scenario(),
    log :: router_demo_log:log(),
    screen :: router_demo_screen:screen(),
    events :: [{non_neg_integer(), event()}],
    started_ms = erlang:monotonic_time(millisecond) :: integer(),
    dynos = #{} :: #{router_apps:host() => [router_demo_dyno:dyno()]},
    loads = [] :: [router_demo_load:load()],
    readings = #{} :: #{router_apps:host() => reading()},
    killer = none :: none | pid()
}).

-type reading() :: {At_ms :: integer(), router_stats:reading()}.

-define(REFRESH_MS, 500).
%% A request that looked up the old list of dynos has connected to its dyno by then.
-define(DRAIN_MS, 500).
%% Time for requests in progress when the load ends.
-define(END_MS, 10000).

%% The scenario of `make demo'.
-spec scenario() -> scenario().
scenario() ->
    #{
        apps => [{<<"shop">>, 3, 50, 0}, {<<"blog">>, 3, 50, 500}],
        total_ms => 32000,
        events => [
            {0, {dynos, <<"shop">>, 1}},
            {0, {dynos, <<"blog">>, 1}},
            {5000, {hang_up, <<"shop">>, 10}},
            {5000, {hang_up, <<"blog">>, 10}},
            {8000, {dynos, <<"shop">>, 3}},
            {8000, {dynos, <<"blog">>, 3}},
            {16000, {dynos, <<"shop">>, 6}},
            {16000, {dynos, <<"blog">>, 6}},
            {20000, crash},
            {24000, {dynos, <<"shop">>, 2}},
            {24000, {dynos, <<"blog">>, 2}}
        ],
        behavior => #{work_ms => 30, reset_one_of => 100},
        kill_every_ms => 100
    }.

%% Called from the command line with the width of the terminal, or 0 without a terminal.
-spec main([string()]) -> no_return().
main(["0"]) -> present(scenario(), lines);
main([Columns]) -> present(scenario(), {terminal, list_to_integer(Columns)}).

%% Runs the scenario and prints the verdict. Stops the VM, with status 1 if a promise was broken.
-spec present(scenario(), router_demo_screen:output()) -> no_return().
present(Scenario, Output) ->
    %% The deaths are part of the demo, so they are not logged.
    ok = logger:set_primary_config(level, none),
    {ok, _} = application:ensure_all_started(router),
    Verdict = run(Scenario, Output),
    io:put_chars([[Line, $\n] || Line <- router_demo_verdict:lines(Verdict)]),
    case Verdict of
        #{broken := []} -> halt(0);
        _ -> halt(1)
    end.

%% The router must be running, and no other process may hold permits.
-spec run(scenario(), router_demo_screen:output()) -> router_demo_verdict:verdict().
run(#{apps := Apps, events := Events, kill_every_ms := Every_ms} = Scenario, Output) ->
    Log = router_demo_log:new(),
    Prepared = due(0, #show{
        scenario = Scenario, log = Log, screen = router_demo_screen:new(Output), events = Events
    }),
    Loads = [load(Host, Connections, Scenario) || {Host, _, Connections, _} <- Apps],
    Killer = router_demo_killer:start(Log, hosts(Scenario), Every_ms),
    Last = loop(Prepared#show{loads = Loads, killer = Killer, started_ms = now_ms()}),
    finish(Last).

load(Host, Connections, #{total_ms := Total_ms}) ->
    router_demo_load:start(Host, router:port(), Connections, (Total_ms + 999) div 1000).

hosts(#{apps := Apps}) ->
    [Host || {Host, _, _, _} <- Apps].

loop(#show{scenario = #{total_ms := Total_ms}} = Show) ->
    case elapsed_ms(Show) of
        Elapsed_ms when Elapsed_ms >= Total_ms -> Show;
        Elapsed_ms -> loop(wait(picture(due(Elapsed_ms, Show))))
    end.

wait(#show{events = Events} = Show) ->
    Until = [At - elapsed_ms(Show) || {At, _} <- Events],
    timer:sleep(max(0, lists:min([?REFRESH_MS | Until]))),
    Show.

%% Applies the events that are due.
due(Elapsed_ms, #show{events = [{At, Event} | Rest], screen = Screen} = Show) when At =< Elapsed_ms ->
    {Text, After} = apply_event(Event, Show#show{events = Rest}),
    due(Elapsed_ms, After#show{screen = router_demo_screen:add_event({Elapsed_ms, Text}, Screen)});
due(_Elapsed_ms, Show) ->
    Show.

apply_event({dynos, Host, Count}, #show{log = Log, dynos = Dynos, scenario = Scenario} = Show) ->
    #{apps := Apps, behavior := Behavior} = Scenario,
    {Host, MaxPer, _, Wait_ms} = lists:keyfind(Host, 1, Apps),
    Present = maps:get(Host, Dynos, []),
    {Kept, Leaving} = lists:split(min(Count, length(Present)), Present),
    New = Kept ++ [router_demo_dyno:start(Host, Log, Behavior) || _ <- lists:seq(length(Kept) + 1, Count)],
    ok = router_demo_log:scaling(Log, Host, MaxPer, Count, maps:get(refused, stats(Host))),
    ok = router:put(Host, MaxPer, [router_demo_dyno:address(Dyno) || Dyno <- New], Wait_ms),
    lists:foreach(fun stop_when_idle/1, Leaving),
    {io_lib:format("~ts: ~b -> ~b dynos", [Host, length(Present), Count]), Show#show{dynos = Dynos#{Host => New}}};
apply_event({hang_up, Host, Connections}, #show{loads = Loads} = Show) ->
    Load = router_demo_load:start(Host, router:port(), Connections, 1),
    {io_lib:format("~ts: ~b more clients, which disconnect after a second", [Host, Connections]), Show#show{
        loads = [Load | Loads]
    }};
apply_event(crash, Show) ->
    Manager = whereis(canal_lock),
    Monitor = monitor(process, Manager),
    #{permits := Permits, waiting := Waiting} = canal_lock:info(),
    Begun_ns = erlang:monotonic_time(nanosecond),
    exit(Manager, kill),
    receive
        {'DOWN', Monitor, process, Manager, _} -> ok
    end,
    ok = await(fun() -> is_pid(whereis(canal_lock)) end),
    %% The manager replies after it has adopted the table.
    _ = sys:get_state(canal_lock),
    Took_ns = erlang:monotonic_time(nanosecond) - Begun_ns,
    Format = "the manager is killed: ~b permits, ~b waiters; its restart took ~.1f ms",
    {io_lib:format(Format, [Permits, Waiting, Took_ns / 1.0e6]), Show}.

%% Stops a dyno when it has no connections left.
stop_when_idle(Dyno) ->
    spawn_link(fun() ->
        timer:sleep(?DRAIN_MS),
        ok = await(fun() -> mochiweb_socket_server:get(Dyno, active_sockets) =:= 0 end),
        router_demo_dyno:stop(Dyno)
    end).

picture(#show{scenario = #{total_ms := Total_ms} = Scenario, log = Log, screen = Screen} = Show) ->
    {Rows, Readings} = lists:unzip([row(Host, Show) || Host <- hosts(Scenario)]),
    Picture = #{
        elapsed_ms => elapsed_ms(Show), total_ms => Total_ms, killed => router_demo_log:killed(Log), rows => Rows
    },
    Show#show{screen = router_demo_screen:show(Picture, Screen), readings = maps:from_list(Readings)}.

%% The figures since the last picture.
row(Host, #show{log = Log, readings = Readings} = Show) ->
    {ok, #{max_per := MaxPer, dynos := Dynos, wait_ms := Wait_ms, stats := Stats} = App} = router_apps:find(Host),
    Reading = router_stats:read(Stats),
    None = {Show#show.started_ms, router_stats:read(router_stats:new())},
    {Last_ms, Last} = maps:get(Host, Readings, None),
    Now_ms = now_ms(),
    Seconds = max(1, Now_ms - Last_ms) / 1000,
    #{granted := Granted, refused := Refused, times := Times, waits := Waits} = router_stats:since(Last, Reading),
    Row = #{
        host => Host,
        dynos => length(Dynos),
        capacity => router_apps:capacity(App),
        wait_ms => Wait_ms,
        buckets => canal_lock:buckets(Host, MaxPer),
        at_work => router_demo_log:at_work(Log, Host),
        waiting => canal_lock:waiting(Host),
        granted_s => Granted / Seconds,
        refused_s => Refused / Seconds,
        waited_s => router_stats:total(Waits) / Seconds,
        acquire_p99_ns => router_stats:quantile(Times, 990),
        wait_p99_ns => router_stats:quantile(Waits, 990)
    },
    {Row, {Host, {Now_ms, Reading}}}.

%% Stops the load, waits until all requests have ended, and counts what is left.
finish(#show{scenario = Scenario, log = Log, loads = Loads, killer = Killer, screen = Screen, dynos = Dynos}) ->
    #{apps := Apps} = Scenario,
    ok = router_demo_killer:stop(Killer),
    lists:foreach(fun router_demo_load:stop/1, Loads),
    AtWork = fun() -> lists:sum([router_demo_log:at_work(Log, Host) || Host <- hosts(Scenario)]) end,
    AtRest = fun() ->
        #{permits := Permits, waiting := Waiting} = canal_lock:info(),
        Permits + Waiting + AtWork() =:= 0
    end,
    %% If requests remain, the verdict reports them.
    _ = await(AtRest),
    AtTheEnd = (canal_lock:info())#{
        differing => length(canal_lock:audit()),
        at_work => AtWork(),
        queued => lists:sum([canal_lock:waiting(Host) || Host <- hosts(Scenario)]),
        %% The table also counts refusals of single dynos, so the verdict uses the router's own counts.
        apps => maps:from_list([{Host, {Wait_ms, stats(Host)}} || {Host, _, _, Wait_ms} <- Apps])
    },
    Verdict = router_demo_verdict:judge(router_demo_log:record(Log), AtTheEnd),
    lists:foreach(fun router_demo_dyno:stop/1, lists:append(maps:values(Dynos))),
    lists:foreach(fun router:delete/1, hosts(Scenario)),
    ok = router_demo_log:delete(Log),
    ok = router_demo_screen:close(Screen),
    Verdict.

stats(Host) ->
    case router_apps:find(Host) of
        {ok, #{stats := Stats}} -> router_stats:read(Stats);
        error -> router_stats:read(router_stats:new())
    end.

%% Waits until the condition is true, at most ?END_MS.
await(Condition) ->
    await(Condition, now_ms() + ?END_MS).

await(Condition, Until_ms) ->
    case {Condition(), now_ms() < Until_ms} of
        {true, _} ->
            ok;
        {false, true} ->
            timer:sleep(1),
            await(Condition, Until_ms);
        {false, false} ->
            timeout
    end.

elapsed_ms(#show{started_ms = Started_ms}) ->
    now_ms() - Started_ms.

now_ms() ->
    erlang:monotonic_time(millisecond).
