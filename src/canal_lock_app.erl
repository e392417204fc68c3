%% @private
%% The application: with `max_per' in its environment it starts a manager, otherwise only a supervisor of nobody, and
%% managers are started by whoever depends on it.
-module(canal_lock_app).

-behaviour(application).

-export([start/2, stop/1]).

start(_Type, _Arguments) ->
    case application:get_env(canal_lock, max_per) of
        undefined ->
            canal_lock_sup:start_link([]);
        {ok, MaxPer} ->
            Keys = [keep_on_crash, sweep_interval_ms],
            Given = [{Key, application:get_env(canal_lock, Key)} || Key <- Keys],
            Options = maps:from_list([{Key, Value} || {Key, {ok, Value}} <- Given]),
            case canal_lock_errors:faults(child_spec, [{MaxPer, Options}]) of
                #{1 := Fault} -> {error, {bad_environment, #{max_per => MaxPer, options => Options}, Fault}};
                #{} -> canal_lock_sup:start_link([canal_lock:child_spec({MaxPer, Options})])
            end
    end.

stop(_State) ->
    ok.
