-module(downstream_app).

-behaviour(application).
-behaviour(supervisor).

-export([start/2, stop/1, init/1]).

%% The application canal_lock has started the manager, because its environment tells it so: see config/sys.config.
start(_Type, _Arguments) ->
    ok = downstream:use_library(),
    ok = init:stop(),
    supervisor:start_link(?MODULE, []).

stop(_State) ->
    ok.

init([]) ->
    {ok, {#{}, []}}.
