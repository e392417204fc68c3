%% Runs the router under load, in both of its modes side by side. Two apps have equal dynos, clients and events. When
%% all dynos of an app are busy, one app refuses requests at once, and the other one lets them wait. Both scale from
%% one dyno to three, to six and back to two. Some clients disconnect, some dynos reset connections, request processes
%% are killed, and the manager crashes. Ends with the verdict on the records (`router_demo_log').
-module(router_demo).

-export([main/0, run/2]).

-record(demo, {
    log = router_demo_log:new() :: router_demo_log:log(),
    started_ms = now_ms() :: integer(),
    show_ms :: pos_integer(),
    dynos = #{} :: #{router:host() => [router:address()]},
    %% Requests until the last change.
    begun = #{} :: #{router:host() => non_neg_integer()},
    %% Answers until the last output.
    shown = #{} :: #{{admitted | refused, router:host()} => non_neg_integer()}
}).

%% {Host, Wait_ms}: see router:put/4.
-define(APPS, [{<<"shop">>, 0}, {<<"blog">>, 500}]).
%% What happens to both apps. Those at 0 happen before any load.
-define(EVENTS, [{0, {dynos, 1}}, {1, {dynos, 3}}, {2, {dynos, 6}}, {2.5, crash}, {3, {dynos, 2}}, {4, finished}]).
-define(SHOWS_PER_UNIT, 4).
%% Of each app.
-define(MAX_PER, 3).
-define(CLIENTS, 50).
%% The mean interval.
-define(KILL_EVERY_MS, 50).
%% A change waits for this number of requests since the one before.
-define(REQUESTS, 10).
%% Time for them, for requests in progress when the load ends, and for a manager to start.
-define(END_MS, 5000).
-define(HEADER, "          app  dynos buckets        busy queue admitted/s refused/s").
-define(ROW, "~-4ts ~5w ~-13ts ~5ts ~5w ~10w ~9w~n").

%% `make demo'.
-spec main() -> no_return().
main() ->
    run(8000, 250).

%% Runs the demo and prints the verdict. Stops the VM, with status 1 if a promise was broken. Unit_ms: a quarter of its
%% duration. Late_ms: how long after its deadline a wait may end: its process runs after the timer of the VM, the other
%% processes that are ready, and the other threads of the machine.
-spec run(Unit_ms :: pos_integer(), Late_ms :: pos_integer()) -> no_return().
run(Unit_ms, Late_ms) ->
    %% The deaths are part of the demo, so they are not logged.
    ok = logger:set_primary_config(level, none),
    {ok, _} = application:ensure_all_started(router),
    io:format("Requests through a router that limits each app to the capacity of its dynos.~n"),
    [io:format("~ts: a request waits for up to ~b ms.~n", [Host, Wait_ms]) || {Host, Wait_ms} <- ?APPS],
    io:format("(busy: requests on dynos, and the capacity of the app)~n~n~ts~n", [?HEADER]),
    Show_ms = Unit_ms div ?SHOWS_PER_UNIT,
    Events = [{round(At * Unit_ms), Event} || {At, Event} <- ?EVENTS],
    Shows = [{At_ms, show} || At_ms <- lists:seq(Show_ms, 4 * Unit_ms, Show_ms)],
    {Before, Later} = lists:partition(fun({At_ms, _}) -> At_ms =:= 0 end, lists:keysort(1, Events ++ Shows)),
    #demo{log = Log} = Ready = lists:foldl(fun happen/2, #demo{show_ms = Show_ms}, Before),
    Clients = [client(Host, Log) || {Host, _} <- ?APPS, _ <- lists:seq(1, ?CLIENTS)],
    Killer = spawn_link(fun() -> kill(Log) end),
    _ = lists:foldl(fun happen/2, Ready#demo{started_ms = now_ms()}, Later),
    lists:foreach(fun stop/1, [Killer | Clients]),
    finish(Log, Late_ms).

client(Host, Log) ->
    spawn_link(fun() -> router_demo_client:run(Host, Log) end).

stop(Pid) ->
    true = unlink(Pid),
    Monitor = monitor(process, Pid),
    true = exit(Pid, kill),
    receive
        {'DOWN', Monitor, process, Pid, _} -> ok
    end.

%% Kills processes of requests, one at a time, at random moments: those that hold permits, and those that wait.
kill(Log) ->
    timer:sleep(rand:uniform(2 * ?KILL_EVERY_MS)),
    {Host, Wait_ms} = any_of(?APPS),
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
    kill(Log).

any_of(List) ->
    lists:nth(rand:uniform(length(List)), List).

happen({At_ms, Event}, #demo{started_ms = Started_ms} = Demo) ->
    timer:sleep(max(0, Started_ms + At_ms - now_ms())),
    event(Event, Demo).

event({dynos, Count}, Demo) ->
    ok = await_requests(Demo),
    lists:foldl(fun(App, Before) -> scale(App, Count, Before) end, Demo, ?APPS);
event(crash, Demo) ->
    Manager = whereis(canal_lock),
    #{permits := Permits, waiting := Waiting} = canal_lock:info(),
    Begun_ns = erlang:monotonic_time(nanosecond),
    ok = stop(Manager),
    ok = await(fun() -> is_pid(whereis(canal_lock)) end, now_ms() + ?END_MS),
    %% The manager replies after it has adopted the table.
    _ = sys:get_state(canal_lock),
    Took_ms = (erlang:monotonic_time(nanosecond) - Begun_ns) / 1.0e6,
    say("the manager is killed: ~b permits, ~b waiters; its restart took ~.1f ms~n", [Permits, Waiting, Took_ms], Demo);
event(show, Demo) ->
    lists:foldl(fun show/2, Demo, ?APPS);
event(finished, Demo) ->
    ok = await_requests(Demo),
    Demo.

%% On a busy machine, a change waits until the previous one had an effect.
await_requests(#demo{log = Log, begun = Begun}) ->
    Since = fun({Host, Before}) -> router_demo_log:count(Log, begins, Host) - Before end,
    Enough = fun() -> lists:all(fun(App) -> Since(App) >= ?REQUESTS end, maps:to_list(Begun)) end,
    %% The verdict reports an app without requests.
    _ = await(Enough, now_ms() + ?END_MS),
    ok.

%% A dyno that is removed finishes its requests, and those that looked up the app just before.
scale({Host, Wait_ms}, Count, #demo{log = Log, dynos = Dynos, begun = Begun} = Demo) ->
    Before = maps:get(Host, Dynos, []),
    More = lists:seq(1, max(0, Count - length(Before))),
    All = Before ++ [router_demo_dyno:start(Host, Log) || _ <- More],
    ok = router_demo_log:note(Log, {scaled, Host, ?MAX_PER, Count}),
    ok = router:put(Host, ?MAX_PER, lists:sublist(All, Count), Wait_ms),
    Now = Begun#{Host => router_demo_log:count(Log, begins, Host)},
    say("~ts: ~b dynos~n", [Host, Count], Demo#demo{dynos = Dynos#{Host => All}, begun = Now}).

%% The figures since the last output.
show({Host, _}, #demo{log = Log, shown = Shown, show_ms = Show_ms} = Demo) ->
    {ok, #{dynos := Dynos} = App} = router:find(Host),
    Now = maps:from_list([{{Kind, Host}, router_demo_log:count(Log, Kind, Host)} || Kind <- [admitted, refused]]),
    Since = fun(Kind) -> maps:get({Kind, Host}, Now) - maps:get({Kind, Host}, Shown, 0) end,
    Busy = io_lib:format("~b/~b", [router_demo_log:at_work(Log, Host), router:capacity(App)]),
    Buckets = io_lib:format("~w", [canal_lock:buckets(Host, ?MAX_PER)]),
    Row = [Host, length(Dynos), Buckets, Busy, canal_lock:waiting(Host)] ++
        [1000 * Since(Kind) div Show_ms || Kind <- [admitted, refused]],
    say(?ROW, Row, Demo#demo{shown = maps:merge(Shown, Now)}).

say(Format, Arguments, #demo{started_ms = Started_ms} = Demo) ->
    io:format("~6.1f s  " ++ Format, [(now_ms() - Started_ms) / 1000 | Arguments]),
    Demo.

%% Waits until all requests have ended, counts what is left, and judges.
-spec finish(router_demo_log:log(), Late_ms :: pos_integer()) -> no_return().
finish(Log, Late_ms) ->
    AtWork = fun() -> lists:sum([router_demo_log:at_work(Log, Host) || {Host, _} <- ?APPS]) end,
    %% If requests remain, the verdict reports them.
    _ = await(fun() ->
        #{permits := Permits, waiting := Waiting} = canal_lock:info(),
        Permits + Waiting + AtWork() =:= 0
    end, now_ms() + ?END_MS),
    AtTheEnd = (canal_lock:info())#{
        differing => length(canal_lock:audit()),
        at_work => AtWork(),
        queued => lists:sum([canal_lock:waiting(Host) || {Host, _} <- ?APPS]),
        late_ms => Late_ms,
        clients => ?CLIENTS * length(?APPS),
        apps => maps:from_list(?APPS)
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
