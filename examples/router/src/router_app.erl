%% The application and its supervisor: the manager of the permits, the table of apps, and the server for clients. Each
%% is restarted separately, because none depends on the state of another: the table of permits survives a crash of the
%% manager, and requests continue during its restart.
-module(router_app).

-behaviour(application).
-behaviour(supervisor).

-export([start/2, stop/1]).
-export([init/1, start_server/0]).

start(_Type, _Arguments) ->
    supervisor:start_link({local, router_sup}, ?MODULE, none).

stop(_State) ->
    ok.

init(none) ->
    ok = router:new(),
    Server = #{id => router_server, type => supervisor, start => {?MODULE, start_server, []}},
    {ok, {#{intensity => 10, period => 60}, [Server]}}.

%% Keeps the port that the system has chosen, so that a restarted server listens on the same one.
start_server() ->
    {ok, Wanted} = application:get_env(router, port),
    case router_server:start_link(Wanted, fun router_request:serve/1) of
        {ok, Server, Port} ->
            ok = application:set_env(router, port, Port),
            {ok, Server};
        {error, _} = Error ->
            Error
    end.
