%% The application and its supervisor: the manager of the permits, the table of apps, and the door for clients. They
%% are restarted one by one, for none of them needs another to be the same as before: a manager that crashes keeps its
%% table, and requests go on without it meanwhile.
-module(router_app).

-behaviour(application).
-behaviour(supervisor).

-export([start/2, stop/1]).
-export([init/1]).

start(_Type, _Arguments) ->
    {ok, Port} = application:get_env(router, port),
    supervisor:start_link({local, router_sup}, ?MODULE, Port).

stop(_State) ->
    ok.

init(Port) ->
    ok = router_apps:new(),
    {ok, {#{intensity => 10, period => 60}, [canal_lock:child_spec(1), door(Port)]}}.

%% Each connection has a process, and each of its requests is handled by that process.
door(Port) ->
    Options = [
        {name, router_door}, {port, Port}, {backlog, 1024}, {nodelay, true}, {loop, {router_request, handle}}
    ],
    #{id => router_door, start => {mochiweb_http, start_link, [Options]}}.
