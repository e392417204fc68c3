%% A TCP server with a process for each connection. Some processes wait for a connection. One that gets it has the
%% supervisor start another, and serves its own. A process of a connection that crashes or is killed ends only its
%% connection.
-module(router_server).

-behaviour(supervisor).

-export([start_link/2]).
-export([init/1, start_connection/3, accept/3]).

-define(ACCEPTORS, 4).
%% After an error such as too many open files.
-define(PAUSE_MS, 100).
%% A client that does not read its answer is disconnected after this time. It holds no permit.
-define(SEND_MS, 30000).

%% Serve is called in the process of a connection, and owns the socket: binary, passive and raw. Returns the port.
-spec start_link(inet:port_number(), fun((gen_tcp:socket()) -> term())) ->
    {ok, pid(), inet:port_number()} | {error, term()}.
start_link(Wanted, Serve) ->
    Options = [
        binary, {active, false}, {nodelay, true}, {reuseaddr, true}, {backlog, 1024}, {send_timeout, ?SEND_MS},
        {send_timeout_close, true}
    ],
    case gen_tcp:listen(Wanted, Options) of
        {ok, Listener} ->
            {ok, Server} = supervisor:start_link(?MODULE, {Listener, Serve}),
            ok = gen_tcp:controlling_process(Listener, Server),
            {ok, Port} = inet:port(Listener),
            _ = [{ok, _} = supervisor:start_child(Server, [Server]) || _ <- lists:seq(1, ?ACCEPTORS)],
            {ok, Server, Port};
        {error, _} = Error ->
            Error
    end.

init({Listener, Serve}) ->
    Connection = #{
        id => connection, start => {?MODULE, start_connection, [Listener, Serve]}, restart => temporary,
        shutdown => brutal_kill
    },
    {ok, {#{strategy => simple_one_for_one}, [Connection]}}.

start_connection(Listener, Serve, Server) ->
    {ok, proc_lib:spawn_link(?MODULE, accept, [Listener, Serve, Server])}.

accept(Listener, Serve, Server) ->
    case gen_tcp:accept(Listener) of
        {ok, Socket} ->
            {ok, _} = supervisor:start_child(Server, [Server]),
            Serve(Socket);
        {error, closed} ->
            ok;
        {error, _} ->
            timer:sleep(?PAUSE_MS),
            accept(Listener, Serve, Server)
    end.
