%% @private
%% The application and its supervisor, `canal_lock_sup'. If `max_per' is in the environment of the application, the
%% supervisor starts a manager. Otherwise it has no children, and the applications that depend on canal_lock start
%% managers themselves.
-module(canal_lock_app).

-behaviour(application).
-behaviour(supervisor).

-export([start/2, stop/1, init/1]).

%% What the application controller adds to the configured values, and the settings that mix.exs reads.
-define(OTHERS, [included_applications, precompiled_url, quorum]).

%% A manager crashes only through a bug of canal_lock or an `exit(Pid, kill)' from outside. A restart loses nothing, so
%% many restarts are allowed.
-define(RESTARTS, 10).
-define(WITHIN_S, 10).

start(_Type, _Arguments) ->
    Environment = maps:without(?OTHERS, maps:from_list(application:get_all_env(canal_lock))),
    %% Checked without max_per, too: it may be max_per that is misspelled.
    case canal_lock_errors:wrong_option([{max_per, positive} | canal_lock_errors:start_options()], Environment) of
        none -> supervisor:start_link({local, canal_lock_sup}, ?MODULE, children(Environment));
        Wrong -> {error, {bad_environment, Environment, canal_lock_errors:option_text(Wrong, Environment)}}
    end.

children(#{max_per := MaxPer} = Environment) -> [canal_lock:child_spec({MaxPer, maps:remove(max_per, Environment)})];
children(_) -> [].

init(Children) ->
    {ok, {#{strategy => one_for_one, intensity => ?RESTARTS, period => ?WITHIN_S}, Children}}.

stop(_State) ->
    ok.
