%% Kills random processes of requests, one at a time, at random moments: those that hold permits, and those that wait.
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
        Holders = [Pid || {Pid, _} <- canal_lock:holders(any_of(Hosts))],
        ok = kill(Log, any_of([Holders, waiters()])),
        loop(Log, Hosts, Every_ms)
    end.

waiters() ->
    [Pid || Pid <- processes(), {_, {router_queue, _, _}} <- [process_info(Pid, current_function)]].

kill(_Log, []) ->
    ok;
kill(Log, Pids) ->
    Pid = any_of(Pids),
    ok = router_demo_log:kill(Log, Pid),
    true = exit(Pid, kill),
    ok.

any_of(List) ->
    lists:nth(rand:uniform(length(List)), List).
