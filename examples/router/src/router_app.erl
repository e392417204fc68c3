%% The application and its supervisor: the manager of the permits, the table of apps, and the HTTP listener. Each is
%% restarted separately, because none depends on the state of another: the table of permits survives a crash of the
%% manager, and requests continue during its restart.
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
    {ok, {#{intensity => 10, period => 60}, [canal_lock:child_spec(1), listener(Port)]}}.

%% Each connection has a process, which handles all its requests.
listener(Port) ->
    Options = [
        {name, router_listener}, {port, Port}, {backlog, 1024}, {nodelay, true}, {loop, {router_request, handle}}
    ],
    #{id => router_listener, start => {mochiweb_http, start_link, [Options]}}.
