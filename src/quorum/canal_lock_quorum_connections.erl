%% @private Keeps this node connected to the members, and tells the other nodes when canal_lock_quorum stops on this
%% node, so that no request waits for its voter.
%%
%% The VM does not keep nodes connected: with the prevention of overlapping partitions (OTP 25) a node that loses one
%% connection can lose all, and with `dist_auto_connect never' a message does not reconnect.
%%
%% An attempt that fails at once costs a report of the VM, on both nodes if they have different cookies. So the pauses
%% between such attempts grow. A member that starts connects to the others by itself, which ends their pauses. It does
%% not know its clients, but it waits for them: for a lease, before it votes. So no pause is longer than a quarter of
%% that, and the locks of clients count on the member again before the next one may be restarted.
-module(canal_lock_quorum_connections).

-behaviour(gen_server).

-export([start_link/1, voter_started/0, connect/1, members/1, refuse/1, agent_started/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2]).

%% An attempt fails at once if it takes less than this. One to a machine that is down takes seconds.
-define(AT_ONCE_MS, 1000).

%% After attempts that fail at once, no pause is longer than this, and none is longer than this part of a lease.
-define(LONGEST_PAUSE_MS, 30_000).
-define(PARTS, 4).

-record(state, {
    config :: canal_lock_quorum_config:config(),
    %% Processes that are connecting to a node since then, by their monitors.
    connecting = #{} :: #{reference() => {node(), Since_ms :: integer()}},
    %% The members to which the last attempt failed at once.
    pauses = #{} :: #{node() => {Pause_ms :: pos_integer(), Until_ms :: integer()}},
    %% The members that have not been connected since the start.
    never_connected :: [node()],
    %% Those of the view.
    members = [] :: [node()],
    %% Whether the voter of this node has started, if it has one.
    has_started :: boolean(),
    %% Connected nodes on which canal_lock_quorum was stopped.
    stopped = [] :: [node()],
    %% Whether it was reported that this node has another name.
    is_renamed = false :: boolean(),
    reported = #{} :: canal_lock_quorum_log_limit:reported()
}).

-spec start_link(canal_lock_quorum_config:config()) -> {ok, pid()} | {error, term()}.
start_link(Config) ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, Config, []).

%% The voter of this node answers from now on.
-spec voter_started() -> ok.
voter_started() ->
    gen_server:cast(?MODULE, voter_started).

%% These nodes are to become members.
-spec connect([node(), ...]) -> ok.
connect(Nodes) ->
    gen_server:cast(?MODULE, {connect, Nodes}).

%% This node has a view with these members.
-spec members([node(), ...]) -> ok.
members(Members) ->
    gen_server:cast(?MODULE, {members, Members}).

%% The client may not lock here.
-spec refuse(node()) -> ok.
refuse(Node) ->
    send(Node, refused).

%% Another agent of this node asks for the nodes that have stopped.
-spec agent_started() -> ok.
agent_started() ->
    gen_server:cast(?MODULE, agent_started).

init(Config = #{members := Members, lease_ms := Lease_ms, has_voter := HasVoter}) ->
    %% So that terminate/2 runs at a clean shutdown.
    _ = process_flag(trap_exit, true),
    ok = net_kernel:monitor_nodes(true, #{node_type => all}),
    %% The voter and the agent start later than this process, unless it is a restarted one.
    HasStarted = not HasVoter orelse whereis(canal_lock_quorum_voter) =/= undefined,
    _ = [ok = send_all(started) || HasStarted],
    ok = gen_server:cast(canal_lock_quorum_agent, connections_started),
    self() ! connect,
    _ = erlang:send_after(Lease_ms, self(), report_never_connected),
    NeverConnected = (Members -- [node()]) -- nodes(connected),
    {ok, #state{config = Config, has_started = HasStarted, never_connected = NeverConnected}}.

handle_call(_Request, _From, State) ->
    {reply, {error, unknown_call}, State}.

handle_cast(voter_started, State) ->
    ok = send_all(started),
    {noreply, State#state{has_started = true}};
handle_cast({connect, Nodes}, State) ->
    {noreply, lists:foldl(fun connect/2, State, to_connect(Nodes, State#state{pauses = #{}}))};
handle_cast({members, Members}, State) ->
    {noreply, State#state{members = Members}};
handle_cast(agent_started, State = #state{stopped = Stopped}) ->
    _ = [tell_agent(stopped, Node) || Node <- Stopped],
    {noreply, State};
handle_cast(_Request, State) ->
    {noreply, State}.

handle_info(connect, State = #state{config = Config, members = Members, stopped = Stopped}) ->
    #{members := Given, reconnect_ms := Reconnect_ms} = Config,
    %% Random, so that two nodes do not connect to each other at the same moment and reject each other repeatedly.
    _ = erlang:send_after(Reconnect_ms div 2 + rand:uniform(Reconnect_ms), self(), connect),
    %% What they said when they started may be lost.
    _ = [send(Node, are_you_there) || Node <- Stopped],
    {noreply, lists:foldl(fun connect/2, renamed(State), to_connect(Given ++ Members, State))};
handle_info(report_never_connected, State = #state{never_connected = Nodes, config = #{lease_ms := Lease_ms}}) ->
    _ = [canal_lock_quorum_reports:report(never_connected, #{node => Node, after_ms => Lease_ms}) || Node <- Nodes],
    {noreply, State};
handle_info({?MODULE, From, What}, State) ->
    {noreply, told(What, From, State)};
handle_info({nodeup, Node, _}, State = #state{pauses = Pauses, never_connected = Never}) ->
    {noreply, State#state{pauses = maps:remove(Node, Pauses), never_connected = lists:delete(Node, Never)}};
handle_info({nodedown, Node, _}, State = #state{stopped = Stopped}) ->
    {noreply, State#state{stopped = lists:delete(Node, Stopped)}};
handle_info({'DOWN', Monitor, process, _, Outcome}, State = #state{connecting = Connecting}) ->
    {{Node, Since_ms}, Others} = maps:take(Monitor, Connecting),
    {noreply, attempted(Node, Since_ms, Outcome, State#state{connecting = Others})};
handle_info({'EXIT', _Pid, Reason}, State) when Reason =/= normal ->
    {stop, Reason, State};
handle_info(_Message, State) ->
    {noreply, State}.

%% It is the last process that ends: the voter of this node has ended.
terminate(Reason, _State) ->
    case canal_lock_exit:is_clean_shutdown(Reason) of
        true -> send_all(stopped);
        false -> ok
    end.

told(stopped, Node, State = #state{stopped = Stopped}) ->
    ok = tell_agent(stopped, Node),
    State#state{stopped = [Node | lists:delete(Node, Stopped)]};
told(started, Node, State = #state{stopped = Stopped}) ->
    _ = [tell_agent(started, Node) || lists:member(Node, Stopped)],
    State#state{stopped = lists:delete(Node, Stopped)};
told(are_you_there, Node, State = #state{has_started = HasStarted}) ->
    _ = [ok = send(Node, started) || HasStarted],
    State;
told(refused, Node, State = #state{reported = Reported}) ->
    State#state{reported = canal_lock_quorum_log_limit:report(refused, Node, #{node => Node}, Reported)};
told(_, _, State) ->
    State.

tell_agent(What, Node) ->
    gen_server:cast(canal_lock_quorum_agent, {What, Node}).

%% Also to nodes without canal_lock_quorum, which drop it: any node can be a client.
send_all(What) ->
    lists:foreach(fun(Node) -> send(Node, What) end, nodes(connected)).

%% Lost if the node is not connected or the connection is busy.
send(Node, What) ->
    _ = erlang:send({?MODULE, Node}, {?MODULE, node(), What}, [nosuspend, noconnect]),
    ok.

%% A node that is not distributed connects to no other members.
to_connect(Nodes, #state{connecting = Connecting, pauses = Pauses}) ->
    Now_ms = erlang:monotonic_time(millisecond),
    Paused = [Node || {Node, {_, Until_ms}} <- maps:to_list(Pauses), Until_ms > Now_ms],
    Busy = [Node || {Node, _} <- maps:values(Connecting)],
    [Node || is_alive(), Node <- ((lists:usort(Nodes) -- [node() | nodes(connected)]) -- Busy) -- Paused].

connect(Node, State = #state{connecting = Connecting}) ->
    {_, Monitor} = spawn_monitor(fun() -> net_kernel:connect_node(Node) =:= true orelse exit(not_connected) end),
    State#state{connecting = Connecting#{Monitor => {Node, erlang:monotonic_time(millisecond)}}}.

attempted(Node, Since_ms, Outcome, State = #state{pauses = Pauses, config = Config}) ->
    #{reconnect_ms := Reconnect_ms, lease_ms := Lease_ms} = Config,
    Now_ms = erlang:monotonic_time(millisecond),
    case Outcome =/= normal andalso Now_ms - Since_ms < ?AT_ONCE_MS of
        true ->
            {Before_ms, _} = maps:get(Node, Pauses, {Reconnect_ms div 2, none}),
            Longest_ms = min(?LONGEST_PAUSE_MS, Lease_ms div ?PARTS),
            Pause_ms = max(Reconnect_ms, min(2 * Before_ms, Longest_ms)),
            State#state{pauses = Pauses#{Node => {Pause_ms, Now_ms + Pause_ms}}};
        false ->
            State#state{pauses = maps:remove(Node, Pauses)}
    end.

%% No event says that this node has another name. Its messages do not reach its own voter then.
renamed(State = #state{config = #{node := Node}, is_renamed = false}) when Node =/= node() ->
    ok = canal_lock_quorum_reports:report(renamed, #{node => node(), name => Node}),
    State#state{is_renamed = true};
renamed(State) ->
    State.
