%% @private
%% The supervisor of the application.
-module(canal_lock_sup).

-behaviour(supervisor).

-export([start_link/1, init/1]).

%% A manager crashes only through a bug of canal_lock or an `exit(Pid, kill)' from outside. A restart loses nothing, so
%% many restarts are allowed.
-define(RESTARTS, 10).
-define(WITHIN_S, 10).

-spec start_link([supervisor:child_spec()]) -> supervisor:startlink_ret().
start_link(Children) ->
    supervisor:start_link({local, ?MODULE}, ?MODULE, Children).

init(Children) ->
    {ok, {#{strategy => one_for_one, intensity => ?RESTARTS, period => ?WITHIN_S}, Children}}.
