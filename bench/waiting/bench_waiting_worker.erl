%% A worker of poolboy that does nothing: only its pid is needed, as a permit.
-module(bench_waiting_worker).

-export([start_link/1]).

-spec start_link(term()) -> {ok, pid()}.
start_link(_) ->
    {ok, spawn_link(fun() -> receive after infinity -> ok end end)}.
