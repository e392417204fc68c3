%% @private
%% Keeps this node connected to the other members, and exchanges configurations with them (canal_lock_quorum_lists).
%%
%% The VM does not keep nodes connected: with the prevention of overlapping partitions (OTP 25) a node that loses one
%% connection can lose all, and with `dist_auto_connect never' a message does not reconnect.
%%
%% An attempt that fails at once costs a report of the VM, on both nodes if they have different cookies. So the pauses
%% between such attempts grow. A node that starts connects by itself, which ends the pauses of the others.
-module(canal_lock_quorum_connections).

-behaviour(gen_server).

-export([start_link/1, started/0, ignored/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2]).

%% An attempt fails at once if it takes less than this. One to a machine that is down takes seconds.
-define(AT_ONCE_MS, 1000).

%% The longest pause after attempts that fail at once.
-define(LONGEST_PAUSE_MS, 30_000).

-record(state, {
    config :: canal_lock_quorum_config:config(),
    %% Processes that are connecting to a node since then, by their monitors.
    connecting = #{} :: #{reference() => {node(), Since_ms :: integer()}},
    %% The members to which the last attempt failed at once.
    pauses = #{} :: #{node() => {Pause_ms :: pos_integer(), Until_ms :: integer()}},
    %% The members that have not been connected since the start.
    never_connected :: [node()],
    %% The last ones that were reported.
    conflicts = [] :: [canal_lock_quorum_lists:conflict()]
}).

-spec start_link(canal_lock_quorum_config:config()) -> {ok, pid()} | {error, term()}.
start_link(Config) ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, Config, []).

%% The voter of this node has started: its hello has changed.
-spec started() -> ok.
started() ->
    gen_server:cast(?MODULE, started).

%% This node has ignored a frame of the node, because their configurations differ.
-spec ignored(node()) -> ok.
ignored(Node) ->
    gen_server:cast(?MODULE, {ignored, Node}).

init(Config = #{is_member := IsMember, members := Members, lease_ms := Lease_ms}) ->
    %% So that terminate/2 runs at a clean shutdown.
    _ = process_flag(trap_exit, true),
    ok = net_kernel:monitor_nodes(true, #{node_type => all}),
    %% A client has no voter that starts.
    _ = IsMember orelse canal_lock_quorum_lists:started([]),
    self() ! connect,
    _ = erlang:send_after(Lease_ms, self(), report_never_connected),
    {ok, #state{config = Config, never_connected = (Members -- [node()]) -- nodes(connected)}}.

handle_call(_Request, _From, State) ->
    {reply, {error, unknown_call}, State}.

handle_cast(started, State) ->
    ok = ask(State),
    {noreply, changed(State)};
handle_cast({ignored, Node}, State) ->
    ok = say_hello(Node, State),
    {noreply, State};
handle_cast(_Request, State) ->
    {noreply, State}.

handle_info(connect, State = #state{config = #{reconnect_ms := Reconnect_ms}}) ->
    %% Random, so that two nodes do not connect to each other at the same moment and reject each other repeatedly.
    _ = erlang:send_after(Reconnect_ms div 2 + rand:uniform(Reconnect_ms), self(), connect),
    ok = ask(State),
    {noreply, lists:foldl(fun connect/2, renamed(State), to_connect(State))};
handle_info(report_never_connected, State = #state{never_connected = Nodes, config = #{lease_ms := Lease_ms}}) ->
    _ = [canal_lock_quorum_reports:report(never_connected, #{node => Node, after_ms => Lease_ms}) || Node <- Nodes],
    {noreply, State};
handle_info({canal_lock_quorum_hello, From, Hello}, State) ->
    ok = case canal_lock_quorum_lists:hear(From, Hello) of
        true -> say_hello(From, State);
        false -> ok
    end,
    {noreply, changed(State)};
handle_info({nodeup, Node, _}, State = #state{config = Config, pauses = Pauses, never_connected = Never}) ->
    ok = case lists:member(Node, canal_lock_quorum_lists:targets(Config)) of
        true -> say_hello(Node, State);
        false -> ok
    end,
    {noreply, State#state{pauses = maps:remove(Node, Pauses), never_connected = lists:delete(Node, Never)}};
handle_info({nodedown, Node, _}, State) ->
    case canal_lock_quorum_lists:gone(Node) of
        true -> {noreply, changed(State)};
        false -> {noreply, State}
    end;
handle_info({'DOWN', Monitor, process, _, Outcome}, State = #state{connecting = Connecting}) ->
    {{Node, Since_ms}, Others} = maps:take(Monitor, Connecting),
    {noreply, attempted(Node, Since_ms, Outcome, State#state{connecting = Others})};
handle_info({'EXIT', _Pid, Reason}, State) when Reason =/= normal ->
    {stop, Reason, State};
handle_info(_Message, State) ->
    {noreply, State}.

%% The voter of this node has ended, so this node is in no conflict with others. (It is the last process that ends.)
terminate(Reason, _State) ->
    case canal_lock_exit:is_clean_shutdown(Reason) of
        true -> say_bye(canal_lock_quorum_lists:bye());
        %% If the supervisor was killed, the table of the lists is gone, too.
        false -> ok
    end.

say_bye(none) -> ok;
say_bye({Nodes, Bye}) -> lists:foreach(fun(Node) -> send(Node, Bye) end, Nodes).

%% A node that is not distributed connects to no other members.
to_connect(#state{config = #{members := Members}, connecting = Connecting, pauses = Pauses}) ->
    Now_ms = erlang:monotonic_time(millisecond),
    Paused = [Node || {Node, {_, Until_ms}} <- maps:to_list(Pauses), Until_ms > Now_ms],
    Busy = [Node || {Node, _} <- maps:values(Connecting)],
    [Node || is_alive(), Node <- ((Members -- [node() | nodes(connected)]) -- Busy) -- Paused].

connect(Node, State = #state{connecting = Connecting}) ->
    {_, Monitor} = spawn_monitor(fun() -> net_kernel:connect_node(Node) =:= true orelse exit(not_connected) end),
    State#state{connecting = Connecting#{Monitor => {Node, erlang:monotonic_time(millisecond)}}}.

attempted(Node, Since_ms, Outcome, State = #state{pauses = Pauses, config = #{reconnect_ms := Reconnect_ms}}) ->
    Now_ms = erlang:monotonic_time(millisecond),
    case Outcome =/= normal andalso Now_ms - Since_ms < ?AT_ONCE_MS of
        true ->
            {Before_ms, _} = maps:get(Node, Pauses, {Reconnect_ms div 2, none}),
            Pause_ms = max(Reconnect_ms, min(2 * Before_ms, ?LONGEST_PAUSE_MS)),
            State#state{pauses = Pauses#{Node => {Pause_ms, Now_ms + Pause_ms}}};
        false ->
            State#state{pauses = maps:remove(Node, Pauses)}
    end.

%% Until they have answered.
ask(State = #state{config = Config}) ->
    lists:foreach(fun(Node) -> say_hello(Node, State) end, canal_lock_quorum_lists:targets(Config)).

say_hello(Node, #state{config = Config}) ->
    case canal_lock_quorum_lists:hello_for(Node, Config) of
        none -> ok;
        Hello -> send(Node, Hello)
    end.

%% Lost if the node is not connected or the connection is busy. Then it is repeated.
send(Node, Hello) ->
    _ = erlang:send({?MODULE, Node}, {canal_lock_quorum_hello, node(), Hello}, [nosuspend, noconnect]),
    ok.

%% No event says that this node has another name.
renamed(State = #state{config = Config, conflicts = Before}) ->
    case canal_lock_quorum_lists:conflicts(Config) of
        Before -> State;
        _ -> changed(State)
    end.

%% The agent and the voter read the conflicts themselves.
changed(State = #state{config = Config, conflicts = Before}) ->
    Conflicts = canal_lock_quorum_lists:conflicts(Config),
    _ = [gen_server:cast(Process, lists_changed) || Process <- [canal_lock_quorum_voter, canal_lock_quorum_agent]],
    _ = [report(Conflict, Config) || Conflict <- Conflicts -- Before],
    _ = [
        canal_lock_quorum_reports:report(agrees, #{node => Node})
     || #{node := Node} <- Before, not lists:any(fun(#{node := Other}) -> Other =:= Node end, Conflicts)
    ],
    State#state{conflicts = Conflicts}.

report(#{differs := not_heard}, _) ->
    %% The voter reports at its start that the list has changed.
    ok;
report(Conflict = #{differs := What}, _) when What =:= name; What =:= clients ->
    canal_lock_quorum_reports:report(conflict, Conflict);
report(Conflict = #{differs := What}, Config) ->
    canal_lock_quorum_reports:report(conflict, Conflict#{ours => maps:get(What, Config)}).
