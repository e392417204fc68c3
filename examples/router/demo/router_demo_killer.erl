%% Kills processes that hold permits: one at a time, any of them, at any moment of its request.
-module(router_demo_killer).

-export([start/3, stop/1]).

%% Linked to the caller. Every_ms: on average.
-spec start(router_demo_book:book(), [router_apps:host()], Every_ms :: pos_integer()) -> pid().
start(Book, Hosts, Every_ms) ->
    spawn_link(fun() -> loop(Book, Hosts, Every_ms, 0) end).

%% How many it has killed.
-spec stop(pid()) -> non_neg_integer().
stop(Killer) ->
    Killer ! {stop, self()},
    receive
        {Killer, Killed} -> Killed
    end.

loop(Book, Hosts, Every_ms, Killed) ->
    receive
        {stop, From} ->
            From ! {self(), Killed},
            ok
    after rand:uniform(2 * Every_ms) ->
        Holders = canal_lock:holders(any_of(Hosts)),
        loop(Book, Hosts, Every_ms, Killed + kill(Book, Holders))
    end.

kill(_Book, []) ->
    0;
kill(Book, Holders) ->
    {Pid, _} = any_of(Holders),
    ok = router_demo_book:kill(Book, Pid),
    exit(Pid, kill),
    1.

any_of(List) ->
    lists:nth(rand:uniform(length(List)), List).
