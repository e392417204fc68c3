%% The workers of a node in the demo of cluster permits. This is what a program that uses cluster permits contains.
-module(cluster_permits_worker).

-export([start/4]).

-define(KEY, backend).
%% A worker whose call was refused tries again.
-define(TIMEOUT_MS, 1000).
-define(PAUSE_MS, 50).

%% Starts the cluster permits of this node, and its workers.
-spec start(canal_lock_quorum:options(), Name :: atom(), cluster_permits_backend:backend(), #{
    workers := pos_integer(), limit := pos_integer()
}) -> ok.
start(Options, Name, Backend, #{workers := Workers, limit := Limit}) ->
    {ok, _} = application:ensure_all_started(canal_lock),
    %% They go on when the caller ends.
    _ = process_flag(trap_exit, true),
    {ok, Permits} = canal_lock_cluster:start_link(Options),
    true = unlink(Permits),
    lists:foreach(
        fun(_) -> spawn(fun() -> work(cluster_permits_backend:connect(Backend, Name), Limit) end) end,
        lists:seq(1, Workers)
    ).

work(Socket, Limit) ->
    case canal_lock_cluster:acquire(?KEY, Limit, #{timeout_ms => ?TIMEOUT_MS}) of
        {acquired, _} ->
            %% When this node is cut off, the permit is lost. Then the request must end, because other nodes get the
            %% permit soon.
            ok = cluster_permits_backend:work(Socket, {canal_lock_cluster, lost, ?KEY}),
            ok = canal_lock_cluster:release(?KEY),
            ok = ignore_lost(),
            work(Socket, Limit);
        full ->
            work(Socket, Limit);
        {error, no_quorum} ->
            timer:sleep(?PAUSE_MS),
            work(Socket, Limit)
    end.

%% The permit can be lost while its request ends.
ignore_lost() ->
    receive
        {canal_lock_cluster, lost, ?KEY} -> ignore_lost()
    after 0 -> ok
    end.
