%% @private
%% The application. It opens the table of this node, unless `start' is `false' in its environment.
-module(canal_lock_app).

-behaviour(application).

-export([start/2, stop/1]).

%% What the application controller adds to the configured values, and the settings that mix.exs reads.
-define(OTHERS, [included_applications, precompiled_url, quorum]).

start(_Type, _Arguments) ->
    Environment = maps:without(?OTHERS, maps:from_list(application:get_all_env(canal_lock))),
    case canal_lock_errors:wrong_option(canal_lock_errors:environment(), Environment) of
        none ->
            {Start, Options} = maps:take(start, maps:merge(#{start => true}, Environment)),
            canal_lock_starter:start_link(canal_lock_sup, case Start of true -> Options; false -> none end);
        Wrong ->
            {error, {bad_environment, Environment, canal_lock_errors:option_text(Wrong, Environment)}}
    end.

stop(_State) ->
    ok.
