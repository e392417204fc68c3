%% @private
%% The process of the agent of a node: executes the effects of canal_lock_cluster_node in the permit table, and keeps
%% the lock of the node.
%%
%% A <em>session</em> is the time for which that lock is held. In its order:
%%
%% <ul>
%% <li>the shares of all keys are set to 0, and the holders of cluster permits get a message that these are lost. They
%% stay on record until they are released, and are not in use any more;</li>
%% <li>the lock is acquired;</li>
%% <li>when an allocator has asked, the lock is published: calls acquire then, and check it after that.</li>
%% </ul>
%%
%% So no call is granted from a share of an earlier session, and each holder of an earlier permit gets the message. The
%% session ends with the lock, with the table, and with this process.
-module(canal_lock_cluster_agent).

-behaviour(gen_server).

-export([start_link/1, session/0, stands/1, ask/4, notify/3, uses/2, status/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, handle_continue/2, terminate/2]).

%% What calls read: `{{stands, Key}}' if the allocator knows that this node needs more of the key, and `{{sent, Key}}'
%% while the message of a call is in the mailbox of this process.
-define(KEYS, canal_lock_cluster_keys).

%% Between two looks at a lock that is found not held.
-define(LOOK_AGAIN_MS, 10).

%% For the answers of all nodes.
-define(USES_MS, 1000).

%% How often this process asks for the lock while it has none; and else checks the lock and the table, and sends a
%% message to the allocator, or greets all nodes while no allocator has asked.
-define(AGAIN_MS, 1000).

-record(state, {
    node = canal_lock_cluster_node:new() :: canal_lock_cluster_node:state(),
    lock = none :: canal_lock_quorum:lock() | none,
    %% Of the table of this session.
    serial = 0 :: canal_lock_nif:serial(),
    %% Whether the table was found closed, or the lock not held.
    is_over = false :: boolean(),
    %% Of the process of the allocator.
    monitor = none :: reference() | none,
    timer = none :: canal_lock_quorum_steps:timer()
}).

-spec start_link(canal_lock_quorum:options()) -> {ok, pid()} | {error, term()}.
start_link(_Options) ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

%% The lock of the session, if an allocator knows it. It may not be held any more.
-spec session() -> canal_lock_quorum:lock() | none.
session() ->
    persistent_term:get(?MODULE, none).

%% Whether the allocator knows that this node needs more of a key. True also while no agent runs.
-spec stands(canal_lock:key()) -> boolean().
stands(Key) ->
    try
        ets:member(?KEYS, {stands, Key})
    catch
        error:badarg -> true
    end.

%% Asks the allocator for permits, or with 0 permits passes it another capacity only, and waits for its answer for at
%% most this time.
-spec ask(canal_lock:key(), non_neg_integer(), non_neg_integer(), pos_integer()) -> ok | ended.
ask(Key, Capacity, Permits, Timeout_ms) ->
    try
        gen_server:call(?MODULE, {want, Key, Capacity, Permits}, Timeout_ms)
    catch
        exit:{timeout, _} -> ok;
        exit:_ -> ended
    end.

%% The same without an answer. At most one message for each key is in the mailbox.
-spec notify(canal_lock:key(), non_neg_integer(), non_neg_integer()) -> ok.
notify(Key, Capacity, Permits) ->
    try ets:insert_new(?KEYS, {{sent, Key}}) of
        true -> gen_server:cast(?MODULE, {want, Key, Capacity, Permits});
        false -> ok
    catch
        error:badarg -> ok
    end.

%% What the nodes use of a key, of those that answer.
-spec uses([node()], canal_lock:key()) ->
    #{node() => #{in_use := non_neg_integer(), waiting := non_neg_integer()}}.
uses(Nodes, Key) ->
    {Answers, _} = gen_server:multi_call(Nodes, ?MODULE, {use, Key}, ?USES_MS),
    maps:from_list(Answers).

%% Exits with `timeout' if the process hangs.
-spec status() -> #{
    session := pos_integer() | none,
    term := non_neg_integer(),
    allocator := node() | none,
    keys := non_neg_integer()
}.
status() ->
    canal_lock_exit:call(?MODULE, status, 5000).

init([]) ->
    _ = process_flag(trap_exit, true),
    ok = net_kernel:monitor_nodes(true, #{node_type => all}),
    ?KEYS = ets:new(?KEYS, [named_table, public, {read_concurrency, true}, {write_concurrency, true}]),
    _ = erlang:send_after(?AGAIN_MS, self(), again),
    %% What a killed agent has left.
    _ = [end_shares() || persistent_term:get(?MODULE, erased) =/= erased],
    {ok, #state{}, {continue, lock}}.

handle_continue(lock, State) ->
    noreply(lock(State)).

handle_call({want, Key, Capacity, Permits}, From, State) ->
    noreply(event({want, Key, Capacity, Permits, From}, State));
handle_call({use, Key}, From, State = #state{serial = Serial}) ->
    Use = canal_lock_cluster_table:use(Serial, Key),
    gen_server:reply(From, case Use of
        {_, _, InUse, Waiting, _, _, _} -> #{in_use => InUse, waiting => Waiting};
        _ -> #{in_use => 0, waiting => 0}
    end),
    noreply(used(Key, Use, State));
handle_call(status, _From, State = #state{node = Node}) ->
    Status = #{
        session => canal_lock_cluster_node:session(Node),
        term => canal_lock_cluster_node:term(Node),
        allocator => canal_lock_cluster_node:allocator(Node),
        keys => canal_lock_cluster_node:keys(Node)
    },
    {reply, Status, State}.

handle_cast({want, Key, Capacity, Permits}, State) ->
    true = ets:delete(?KEYS, {sent, Key}),
    noreply(event({want, Key, Capacity, Permits, none}, State)).

%% Messages of the allocator.
handle_info({Node, {ask, Term, Ask}}, State) ->
    case Term >= canal_lock_cluster_node:term(State#state.node) of
        true -> noreply(event({ask, Node, Term, Ask}, publish(watch(Node, State))));
        false -> {noreply, State}
    end;
handle_info({_, {set, _, _, _} = Set}, State) ->
    noreply(event(Set, State));
handle_info({{allocator, Node}, Monitor, process, _, _}, State = #state{monitor = Monitor}) ->
    noreply(event({ended, Node}, State#state{monitor = none}));
handle_info({canal_lock_quorum, lost, Lock}, State = #state{lock = Lock}) ->
    {noreply, end_session(State), {continue, lock}};
handle_info({nodeup, Node, _}, State) ->
    ok = hello([Node], State),
    {noreply, State};
handle_info({timeout, Timer, step}, State = #state{timer = {Timer, _}}) ->
    noreply(event(step, State#state{timer = none}));
handle_info(again, State) ->
    _ = erlang:send_after(?AGAIN_MS, self(), again),
    again(State);
handle_info({'EXIT', _, Reason}, State) when Reason =/= normal ->
    {stop, Reason, State};
handle_info(_, State) ->
    {noreply, State}.

%% At a clean stop the shares are free at once.
terminate(_Reason, State) ->
    end_session(State).

again(State = #state{lock = none}) ->
    {noreply, State, {continue, lock}};
again(State = #state{node = Node, serial = Serial}) ->
    case canal_lock_cluster_node:allocator(Node) of
        none ->
            ok = hello([node() | nodes(connected)], State);
        To ->
            Alive = {alive, node(), canal_lock_cluster_node:session(Node)},
            canal_lock_cluster_wire:send(canal_lock_cluster_allocator, To, Alive)
    end,
    IsOver = not is_held(State#state.lock) orelse not canal_lock_cluster_table:is_open(Serial),
    noreply(State#state{is_over = IsOver}).

%% The lock can end without a message: when it is unlocked, or when the supervisor of the quorum locks is killed. It can
%% be found not held for some microseconds.
is_held(Lock) ->
    canal_lock_quorum_lock:is_held(Lock) =:= true orelse
        begin
            receive
            after ?LOOK_AGAIN_MS -> ok
            end,
            canal_lock_quorum_lock:is_held(Lock) =:= true
        end.

noreply(State = #state{is_over = true}) ->
    {noreply, end_session(State), {continue, lock}};
noreply(State = #state{node = Node, timer = Timer}) ->
    Wake_ms = canal_lock_cluster_node:wake_ms(now_ms(), Node),
    Next = State#state{timer = canal_lock_quorum_steps:add_timer(Wake_ms, Timer)},
    %% After the last key, which can be the last of a million, the heap is garbage. A process without work has no
    %% other reason to collect it.
    case canal_lock_cluster_node:keys(Node) of
        0 -> {noreply, Next, hibernate};
        _ -> {noreply, Next}
    end.

now_ms() ->
    erlang:monotonic_time(millisecond).

%%% Sessions

%% Waits for the lock. Calls ask this process only in a session.
lock(State = #state{lock = none}) ->
    Serial = canal_lock_cluster_table:serial(),
    case Serial =/= closed andalso canal_lock_cluster_locks:lock({canal_lock_cluster, node, node()}, ?AGAIN_MS) of
        {ok, Lock} ->
            Session = canal_lock_quorum:fence(Lock),
            Begun = event({session, Session}, State#state{lock = Lock, serial = Serial, is_over = false}),
            ok = hello([node() | nodes(connected)], Begun),
            Begun;
        _ ->
            State
    end;
lock(State) ->
    State.

%% No other node gets what this one had before the unlock.
end_session(State = #state{lock = none}) ->
    State#state{is_over = false};
end_session(State = #state{lock = Lock, node = Node}) ->
    Lost = end_shares(),
    _ = [report_lost(Lock, Lost) || Lost > 0],
    Ended = event(lost, State),
    _ = canal_lock_quorum:unlock_async(Lock),
    Over = {over, node(), canal_lock_quorum:fence(Lock)},
    _ = [
        canal_lock_cluster_wire:send(canal_lock_cluster_allocator, Allocator, Over)
     || Allocator <- [canal_lock_cluster_node:allocator(Node)], Allocator =/= none
    ],
    Ended#state{lock = none, is_over = false}.

%% From the first line on no call begins in the session, and until the last one a next agent would end the shares.
end_shares() ->
    ok = persistent_term:put(?MODULE, none),
    Lost = canal_lock_cluster_table:end_shares(),
    _ = persistent_term:erase(?MODULE),
    Lost.

report_lost(Lock, Lost) ->
    canal_lock_cluster_reports:report(lost, #{session => canal_lock_quorum:fence(Lock), permits => Lost}).

publish(State = #state{lock = none}) ->
    State;
publish(State = #state{lock = Lock}) ->
    ok = persistent_term:put(?MODULE, Lock),
    State.

watch(Node, State = #state{monitor = Monitor}) ->
    _ = Monitor =/= none andalso erlang:demonitor(Monitor, [flush]),
    New = erlang:monitor(process, {canal_lock_cluster_allocator, Node}, [{tag, {allocator, Node}}]),
    State#state{monitor = New}.

hello(Nodes, #state{node = Node}) ->
    case canal_lock_cluster_node:session(Node) of
        none ->
            ok;
        Session ->
            Hello = {hello, node(), Session},
            lists:foreach(fun(To) -> canal_lock_cluster_wire:send(canal_lock_cluster_allocator, To, Hello) end, Nodes)
    end.

%%% Events

event(Event, State) ->
    {Effects, Node} = canal_lock_cluster_node:handle(Event, now_ms(), State#state.node),
    lists:foldl(fun effect/2, State#state{node = Node}, Effects).

effect({send, Node, Message}, State) ->
    case canal_lock_cluster_wire:send(canal_lock_cluster_allocator, Node, {node(), Message}) of
        ok -> State;
        refused -> event({ended, Node}, State)
    end;
effect({reply, From}, State) ->
    ok = gen_server:reply(From, ok),
    State;
effect({stands, Key, true}, State) ->
    true = ets:insert(?KEYS, {{stands, Key}}),
    State;
effect({stands, Key, false}, State) ->
    true = ets:delete(?KEYS, {stands, Key}),
    State;
effect({count, Total, Count}, State) ->
    ok = canal_lock_cluster_totals:add(Total, Count),
    State;
effect({read, Key}, State) ->
    use(Key, State);
effect({set_share, Key, Share, Limit, Passed}, State = #state{serial = Serial}) ->
    case canal_lock_cluster_table:set_share(Serial, Key, Share, Limit, Passed) of
        ok -> use(Key, State);
        changed -> State#state{is_over = true}
    end.

use(Key, State = #state{serial = Serial}) ->
    used(Key, canal_lock_cluster_table:use(Serial, Key), State).

used(_, changed, State) -> State#state{is_over = true};
used(Key, Use, State) -> event({use, Key, Use}, State).
