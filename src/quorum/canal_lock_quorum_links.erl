%% @private
%% Keeps this node connected to the other members. The VM does not: with the prevention of overlapping partitions (OTP
%% 25) a node that loses one connection can lose all, and with `dist_auto_connect never' a message does not reconnect.
-module(canal_lock_quorum_links).

-behaviour(gen_server).

-export([start_link/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-record(state, {
    members :: [node()],
    reconnect_ms :: pos_integer(),
    %% Processes that are connecting to a member, by their monitors. An attempt takes seconds if the member is down.
    connecting = #{} :: #{reference() => node()}
}).

-spec start_link(canal_lock_quorum_config:config()) -> {ok, pid()} | {error, term()}.
start_link(Config) ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, Config, []).

init(#{members := Members, reconnect_ms := Reconnect_ms}) ->
    self() ! connect,
    {ok, #state{members = Members, reconnect_ms = Reconnect_ms}}.

handle_call(_Request, _From, State) ->
    {reply, {error, unknown_call}, State}.

handle_cast(_Request, State) ->
    {noreply, State}.

handle_info(connect, State = #state{members = Members, reconnect_ms = Reconnect_ms, connecting = Connecting}) ->
    %% Random, so that two nodes do not connect to each other at the same moment and reject each other repeatedly.
    _ = erlang:send_after(Reconnect_ms div 2 + rand:uniform(Reconnect_ms), self(), connect),
    Missing = ((Members -- [node()]) -- nodes(connected)) -- maps:values(Connecting),
    %% A node that is not distributed has no other members.
    {noreply, lists:foldl(fun connect/2, State, [Node || Node <- Missing, is_alive()])};
handle_info({'DOWN', Monitor, process, _, _}, State = #state{connecting = Connecting}) ->
    {noreply, State#state{connecting = maps:remove(Monitor, Connecting)}};
handle_info(_Message, State) ->
    {noreply, State}.

connect(Node, State = #state{connecting = Connecting}) ->
    {_, Monitor} = spawn_monitor(fun() -> net_kernel:connect_node(Node) end),
    State#state{connecting = Connecting#{Monitor => Node}}.
