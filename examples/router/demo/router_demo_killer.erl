%% Kills processes that hold permits: one at a time, any of them, at any moment of its request.
-module(router_demo_killer).

-export([start/3, stop/1]).

%% Linked to the caller. Every_ms: on average.
-spec start(router_demo_book:book(), [router_apps:host()], Every_ms :: pos_integer()) -> pid().
start(Book, Hosts, Every_ms) ->
    spawn_link(fun() -> loop(Book, Hosts, Every_ms) end).

-spec stop(pid()) -> ok.
stop(Killer) ->
    Killer ! {stop, self()},
    receive
        {stopped, Killer} -> ok
    end.

loop(Book, Hosts, Every_ms) ->
    receive
        {stop, From} ->
            From ! {stopped, self()},
            ok
    after rand:uniform(2 * Every_ms) ->
        ok = kill(Book, canal_lock:holders(any_of(Hosts))),
        loop(Book, Hosts, Every_ms)
    end.

kill(_Book, []) ->
    ok;
kill(Book, Holders) ->
    {Pid, _} = any_of(Holders),
    ok = router_demo_book:kill(Book, Pid),
    true = exit(Pid, kill),
    ok.

any_of(List) ->
    lists:nth(rand:uniform(length(List)), List).
