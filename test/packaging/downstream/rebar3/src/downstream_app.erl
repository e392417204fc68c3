-module(downstream_app).

-behaviour(application).
-behaviour(supervisor).

-export([start/2, stop/1, init/1]).

start(_Type, _Arguments) ->
    {ok, Supervisor} = supervisor:start_link(?MODULE, []),
    ok = downstream:use_library(canal_lock),
    ok = init:stop(),
    {ok, Supervisor}.

stop(_State) ->
    ok.

init([]) ->
    {ok, {#{}, [canal_lock:child_spec(3)]}}.
