%% @private
%% The application. If `max_per' is in its environment, it starts a manager. Otherwise it starts a supervisor without
%% children, and the applications that depend on canal_lock start managers themselves.
-module(canal_lock_app).

-behaviour(application).

-export([start/2, stop/1]).

%% What the application controller adds to the configured values, and the settings that mix.exs reads.
-define(OTHERS, [included_applications, precompiled_url, quorum]).

start(_Type, _Arguments) ->
    Environment = maps:without(?OTHERS, maps:from_list(application:get_all_env(canal_lock))),
    %% Checked without max_per, too: it may be max_per that is misspelled.
    case canal_lock_errors:wrong_option([{max_per, positive} | canal_lock_errors:start_options()], Environment) of
        none -> canal_lock_sup:start_link(children(Environment));
        Wrong -> {error, {bad_environment, Environment, canal_lock_errors:option_text(Wrong, Environment)}}
    end.

children(#{max_per := MaxPer} = Environment) -> [canal_lock:child_spec({MaxPer, maps:remove(max_per, Environment)})];
children(_) -> [].

stop(_State) ->
    ok.
