%% Runs the router under load, in both of its modes side by side. Two apps have equal dynos, clients and events. When
%% all dynos of an app are busy, one app refuses requests at once, and the other one lets them wait. Both scale from
%% one dyno to three, to six and back to two. Some clients disconnect, some dynos reset connections, request processes
%% are killed, and the manager crashes. Ends with the verdict on the records (`router_demo_log').
-module(router_demo).

-export([main/0, run/1]).

-export_type([scenario/0]).

-type scenario() :: #{
    %% Wait_ms: see router:put/4.
    apps := [{router:host(), MaxPer :: pos_integer(), Clients :: pos_integer(), Wait_ms :: non_neg_integer()}],
    total_ms := pos_integer(),
    %% What happens to all apps. Events at 0 happen before any load.
    events := [{At_ms :: non_neg_integer(), {dynos, non_neg_integer()} | crash}],
    %% See router_demo_dyno:start/4.
    work_ms := pos_integer(),
    reset_one_of := pos_integer(),
    %% A client disconnects in one of this number of requests.
    leave_one_of := pos_integer(),
    %% The mean interval.
    kill_every_ms := pos_integer(),
    %% How long after its deadline a wait may end: its process runs after the timer of the VM, the other processes that
    %% are ready, and the other threads of the machine.
    late_ms := pos_integer(),
    %% Time for the first requests between two changes, and for requests in progress when the load ends.
    end_ms := pos_integer()
}.

-record(demo, {
    scenario :: scenario(),
    log :: router_demo_log:log(),
    started_ms = now_ms() :: integer(),
    dynos = #{} :: #{router:host() => [router:address()]},
    %% Requests until the last change.
    begun = #{} :: #{router:host() => non_neg_integer()},
    %% Answers until the last output.
    shown = #{} :: #{{admitted | refused, router:host()} => non_neg_integer()}
}).

-define(SHOW_MS, 2000).
-define(REQUESTS, 10).
%% Time for a manager to start.
-define(RESTART_MS, 10000).
-define(HEADER, "          app  dynos buckets        busy queue admitted/s refused/s").
-define(ROW, "~-4ts ~5w ~-13ts ~5ts ~5w ~10w ~9w~n").

%% The scenario of `make demo'.
-spec main() -> no_return().
main() ->
    run(#{
        apps => [{<<"shop">>, 3, 50, 0}, {<<"blog">>, 3, 50, 500}],
        total_ms => 32000,
        events => [
            {0, {dynos, 1}}, {8000, {dynos, 3}}, {16000, {dynos, 6}}, {20000, crash}, {24000, {dynos, 2}}
        ],
        work_ms => 30,
        reset_one_of => 100,
        leave_one_of => 50,
        kill_every_ms => 100,
        late_ms => 250,
        end_ms => 10000
    }).

%% Runs the scenario and prints the verdict. Stops the VM, with status 1 if a promise was broken.
-spec run(scenario()) -> no_return().
run(#{apps := Apps, events := Events, total_ms := Total_ms} = Scenario) ->
    %% The deaths are part of the demo, so they are not logged.
    ok = logger:set_primary_config(level, none),
    {ok, _} = application:ensure_all_started(router),
    io:format("Requests through a router that limits each app to the capacity of its dynos.~n"),
    [io:format("~ts: a request waits for up to ~b ms.~n", [Host, Wait_ms]) || {Host, _, _, Wait_ms} <- Apps],
    io:format("(busy: requests on dynos, and the capacity of the app)~n~n~ts~n", [?HEADER]),
    Log = router_demo_log:new(),
    {Before, Later} = lists:partition(fun({At_ms, _}) -> At_ms =:= 0 end, Events),
    Ready = lists:foldl(fun happen/2, #demo{scenario = Scenario, log = Log}, Before),
    Clients = [client(Host, Scenario, Log) || {Host, _, Count, _} <- Apps, _ <- lists:seq(1, Count)],
    Killer = spawn_link(fun() -> kill(Log, Scenario) end),
    Shows = [{At_ms, show} || At_ms <- lists:seq(?SHOW_MS, Total_ms, ?SHOW_MS)],
    Timeline = lists:keysort(1, Later ++ Shows ++ [{Total_ms, finished}]),
    Last = lists:foldl(fun happen/2, Ready#demo{started_ms = now_ms()}, Timeline),
    lists:foreach(fun stop/1, [Killer | Clients]),
    finish(Last).

client(Host, #{leave_one_of := OneOf}, Log) ->
    spawn_link(fun() -> router_demo_client:run(Host, OneOf, Log) end).

stop(Pid) ->
    true = unlink(Pid),
    Monitor = monitor(process, Pid),
    true = exit(Pid, kill),
    receive
        {'DOWN', Monitor, process, Pid, _} -> ok
    end.

%% Kills processes of requests, one at a time, at random moments: those that hold permits, and those that wait.
kill(Log, #{apps := Apps, kill_every_ms := Every_ms} = Scenario) ->
    timer:sleep(rand:uniform(2 * Every_ms)),
    {Host, _, _, Wait_ms} = any_of(Apps),
    Holders = [Pid || {Pid, _} <- canal_lock:holders(Host)],
    Waiting = {current_function, {router_request, wait, 3}},
    Waiters = [Pid || Wait_ms > 0, Pid <- processes(), process_info(Pid, current_function) =:= Waiting],
    case any_of([Holders, Waiters]) of
        [] ->
            ok;
        Pids ->
            Pid = any_of(Pids),
            ok = router_demo_log:note(Log, {killed, Host, Pid}),
            exit(Pid, kill)
    end,
    kill(Log, Scenario).

any_of(List) ->
    lists:nth(rand:uniform(length(List)), List).

happen({At_ms, Event}, #demo{started_ms = Started_ms} = Demo) ->
    timer:sleep(max(0, Started_ms + At_ms - now_ms())),
    event(Event, Demo).

event({dynos, Count}, #demo{scenario = #{apps := Apps}} = Demo) ->
    ok = await_requests(Demo),
    lists:foldl(fun(App, Before) -> scale(App, Count, Before) end, Demo, Apps);
event(crash, Demo) ->
    Manager = whereis(canal_lock),
    #{permits := Permits, waiting := Waiting} = canal_lock:info(),
    Begun_ns = erlang:monotonic_time(nanosecond),
    ok = stop(Manager),
    ok = await(fun() -> is_pid(whereis(canal_lock)) end, now_ms() + ?RESTART_MS),
    %% The manager replies after it has adopted the table.
    _ = sys:get_state(canal_lock),
    Took_ms = (erlang:monotonic_time(nanosecond) - Begun_ns) / 1.0e6,
    say("the manager is killed: ~b permits, ~b waiters; its restart took ~.1f ms~n", [Permits, Waiting, Took_ms], Demo);
event(show, #demo{scenario = #{apps := Apps}} = Demo) ->
    lists:foldl(fun show/2, Demo, Apps);
event(finished, Demo) ->
    ok = await_requests(Demo),
    Demo.

%% On a busy machine, a change waits until the previous one had an effect.
await_requests(#demo{scenario = #{end_ms := End_ms}, log = Log, begun = Begun}) ->
    Since = fun({Host, Before}) -> router_demo_log:count(Log, begins, Host) - Before end,
    Enough = fun() -> lists:all(fun(App) -> Since(App) >= ?REQUESTS end, maps:to_list(Begun)) end,
    %% The verdict reports an app without requests.
    _ = await(Enough, now_ms() + End_ms),
    ok.

%% A dyno that is removed finishes its requests, and those that looked up the app just before.
scale({Host, MaxPer, _, Wait_ms}, Count, #demo{log = Log, dynos = Dynos, begun = Begun, scenario = Scenario} = Demo) ->
    #{work_ms := Work_ms, reset_one_of := OneOf} = Scenario,
    Before = maps:get(Host, Dynos, []),
    More = max(0, Count - length(Before)),
    All = Before ++ [router_demo_dyno:start(Host, Log, Work_ms, OneOf) || _ <- lists:seq(1, More)],
    ok = router_demo_log:note(Log, {scaled, Host, MaxPer, Count}),
    ok = router:put(Host, MaxPer, lists:sublist(All, Count), Wait_ms),
    Now = Begun#{Host => router_demo_log:count(Log, begins, Host)},
    say("~ts: ~b dynos~n", [Host, Count], Demo#demo{dynos = Dynos#{Host => All}, begun = Now}).

%% The figures since the last output.
show({Host, MaxPer, _, _}, #demo{log = Log, shown = Shown} = Demo) ->
    {ok, #{dynos := Dynos} = App} = router:find(Host),
    Now = maps:from_list([{{Kind, Host}, router_demo_log:count(Log, Kind, Host)} || Kind <- [admitted, refused]]),
    Since = fun(Kind) -> maps:get({Kind, Host}, Now) - maps:get({Kind, Host}, Shown, 0) end,
    Busy = io_lib:format("~b/~b", [router_demo_log:at_work(Log, Host), router:capacity(App)]),
    Buckets = io_lib:format("~w", [canal_lock:buckets(Host, MaxPer)]),
    Row = [Host, length(Dynos), Buckets, Busy, canal_lock:waiting(Host)] ++
        [1000 * Since(Kind) div ?SHOW_MS || Kind <- [admitted, refused]],
    say(?ROW, Row, Demo#demo{shown = maps:merge(Shown, Now)}).

say(Format, Arguments, #demo{started_ms = Started_ms} = Demo) ->
    io:format("~6.1f s  " ++ Format, [(now_ms() - Started_ms) / 1000 | Arguments]),
    Demo.

%% Waits until all requests have ended, counts what is left, and judges.
-spec finish(#demo{}) -> no_return().
finish(#demo{scenario = #{apps := Apps, end_ms := End_ms, late_ms := Late_ms}, log = Log}) ->
    AtWork = fun() -> lists:sum([router_demo_log:at_work(Log, Host) || {Host, _, _, _} <- Apps]) end,
    %% If requests remain, the verdict reports them.
    _ = await(fun() ->
        #{permits := Permits, waiting := Waiting} = canal_lock:info(),
        Permits + Waiting + AtWork() =:= 0
    end, now_ms() + End_ms),
    AtTheEnd = (canal_lock:info())#{
        differing => length(canal_lock:audit()),
        at_work => AtWork(),
        queued => lists:sum([canal_lock:waiting(Host) || {Host, _, _, _} <- Apps]),
        late_ms => Late_ms,
        clients => lists:sum([Clients || {_, _, Clients, _} <- Apps]),
        apps => maps:from_list([{Host, Wait_ms} || {Host, _, _, Wait_ms} <- Apps])
    },
    {Summary, Broken} = router_demo_verdict:judge(router_demo_log:events(Log), AtTheEnd),
    io:put_chars(["\n", Summary, "\n"] ++ [["BROKEN  ", Promise, $\n] || Promise <- Broken]),
    io:put_chars([["All promises were kept.\n"] || Broken =:= []]),
    halt(min(1, length(Broken))).

%% Waits until the condition is true, at most until this time.
await(Condition, Until_ms) ->
    case Condition() of
        true ->
            ok;
        false ->
            now_ms() < Until_ms andalso timer:sleep(1) =:= ok andalso await(Condition, Until_ms)
    end.

now_ms() ->
    erlang:monotonic_time(millisecond).
