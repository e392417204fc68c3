%% @private
%% The application: with `max_per' in its environment it starts a manager, otherwise only a supervisor of nobody, and
%% managers are started by whoever depends on it.
-module(canal_lock_app).

-behaviour(application).

-export([start/2, stop/1]).

start(_Type, _Arguments) ->
    %% The application controller adds included_applications to what somebody has set.
    Environment = maps:remove(included_applications, maps:from_list(application:get_all_env(canal_lock))),
    Options = maps:remove(max_per, Environment),
    %% Looked at without max_per, too: that may be what is misspelled.
    case canal_lock_errors:faults(start_link, [maps:get(max_per, Environment, 1), Options]) of
        Faults when map_size(Faults) > 0 -> {error, {bad_environment, Environment, hd(maps:values(Faults))}};
        _ when is_map_key(max_per, Environment) -> canal_lock_sup:start_link([child(Environment, Options)]);
        _ -> canal_lock_sup:start_link([])
    end.

child(#{max_per := MaxPer}, Options) ->
    canal_lock:child_spec({MaxPer, Options}).

stop(_State) ->
    ok.
