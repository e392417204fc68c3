%% Kills random holders of permits, one at a time, at random moments.
-module(router_demo_killer).

-export([start/3, stop/1]).

%% Linked to the caller. Every_ms is the mean interval.
-spec start(router_demo_log:log(), [router_apps:host()], Every_ms :: pos_integer()) -> pid().
start(Log, Hosts, Every_ms) ->
    spawn_link(fun() -> loop(Log, Hosts, Every_ms) end).

-spec stop(pid()) -> ok.
stop(Killer) ->
    Killer ! {stop, self()},
    receive
        {stopped, Killer} -> ok
    end.

loop(Log, Hosts, Every_ms) ->
    receive
        {stop, From} ->
            From ! {stopped, self()},
            ok
    after rand:uniform(2 * Every_ms) ->
        ok = kill(Log, canal_lock:holders(any_of(Hosts))),
        loop(Log, Hosts, Every_ms)
    end.

kill(_Book, []) ->
    ok;
kill(Log, Holders) ->
    {Pid, _} = any_of(Holders),
    ok = router_demo_log:kill(Log, Pid),
    true = exit(Pid, kill),
    ok.

any_of(List) ->
    lists:nth(rand:uniform(length(List)), List).
