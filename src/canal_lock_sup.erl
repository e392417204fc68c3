%% @private
-module(canal_lock_sup).

-behaviour(supervisor).

-export([start_link/1, init/1]).

%% A manager crashes by a bug of ours or by somebody's `exit(Pid, kill)'. While it comes back nothing is lost, so
%% nothing is gained by giving up soon.
-define(RESTARTS, 10).
-define(WITHIN_S, 10).

-spec start_link([supervisor:child_spec()]) -> supervisor:startlink_ret().
start_link(Children) ->
    supervisor:start_link({local, ?MODULE}, ?MODULE, Children).

init(Children) ->
    {ok, {#{strategy => one_for_one, intensity => ?RESTARTS, period => ?WITHIN_S}, Children}}.
