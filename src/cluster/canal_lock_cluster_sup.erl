%% @private
%% Supervises the cluster permits of a node: the quorum locks, unless they run, the allocator, the agent, and the
%% process that emits telemetry events. Each can be restarted alone.
-module(canal_lock_cluster_sup).

-behaviour(supervisor).

-export([start_link/1, stop/0, init/1]).

-define(NAME, canal_lock_cluster).

%% A process crashes only through a bug of canal_lock or an `exit(Pid, kill)' from outside. The allocator ends with its
%% lock, which takes a lease at least.
-define(RESTARTS, 10).
-define(WITHIN_S, 10).

%% Time for a clean shutdown to end the shares.
-define(SHUTDOWN_MS, 5000).

-spec start_link(canal_lock_quorum:options()) -> {ok, pid()} | {error, term()} | {raise, canal_lock_errors:cause()}.
start_link(Options) ->
    case whereis(?NAME) of
        undefined ->
            case canal_lock_quorum_sup:configure(Options) of
                {ok, _} -> supervisor:start_link({local, ?NAME}, ?MODULE, {Options, locks});
                {error, {already_started, _}} -> supervisor:start_link({local, ?NAME}, ?MODULE, {Options, no_locks});
                Other -> Other
            end;
        Pid ->
            {error, {already_started, Pid}}
    end.

-spec stop() -> ok.
stop() ->
    gen_server:stop(?NAME).

%% The agent ends before the allocator and the locks, so other nodes get its shares at once.
init({Options, Locks}) ->
    ok = canal_lock_cluster_totals:new(),
    Processes = [
        #{id => Module, start => {Module, start_link, [Options]}, shutdown => ?SHUTDOWN_MS}
     || Module <- [canal_lock_cluster_allocator, canal_lock_cluster_agent, canal_lock_cluster_telemetry]
    ],
    Quorum = [canal_lock_quorum:child_spec(Options) || Locks =:= locks],
    {ok, {#{strategy => one_for_one, intensity => ?RESTARTS, period => ?WITHIN_S}, Quorum ++ Processes}}.
