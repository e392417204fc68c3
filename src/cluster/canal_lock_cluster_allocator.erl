%% @private
%% The process of the allocator. On each member it waits for the lock of the allocator; the one that holds it divides
%% the limits, as canal_lock_cluster_ledger decides. When the lock is lost, the process ends, and its supervisor starts
%% another one. When the process ends, the lock does.
%%
%% The process also ends if it does not learn what all living nodes have, for example because it cannot reach one of
%% them: what it does not know is not given to others. Then the next member tries. If one node answers no allocator,
%% that goes on, and the nodes have what they had.
%%
%% It checks its lock after it has read a message and before it sends what follows from it. So what it sends after
%% another allocator has begun belongs to messages that it had read before, and nodes ignore it once they know the next
%% term.
-module(canal_lock_cluster_allocator).

-behaviour(gen_server).

-export([start_link/1, usage/2, waits_for/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, handle_continue/2]).

%% How long it waits for the lock until it checks again whether this node is a member, and serves the system.
-define(WAIT_MS, 2000).

%% How often nodes that do not answer are looked for in the list of held locks. The permits of a dead node must be free
%% within its lease and a second (CP3), on a busy machine too.
-define(LIST_MS, 250).

%% How long after a message that a busy connection has refused a node is asked again.
-define(AGAIN_MS, 1000).

%% The time to learn, in leases. The lock of a dead node ends after one.
-define(LEARNING_LEASES, 2).

-record(state, {
    lock :: canal_lock_quorum:lock(),
    ledger :: canal_lock_cluster_ledger:ledger(),
    %% When it must have learned.
    learned_ms :: integer(),
    %% Nodes to which a message was refused.
    refused = [] :: [node()],
    %% The process that asks for the list, and what was silent when it began.
    list = none :: none | {reference(), canal_lock_cluster_ledger:silent()},
    timer = none :: canal_lock_quorum_steps:timer()
}).

-spec start_link(canal_lock_quorum:options()) -> {ok, pid()} | {error, term()}.
start_link(_Options) ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

%% What the nodes have of a key. `not_ready' if the node is not the allocator, or does not know the nodes yet. Exits if
%% it does not answer.
-spec usage(node(), canal_lock:key()) -> #{limit | nodes | silent := term()} | not_ready.
usage(Node, Key) ->
    canal_lock_exit:call({?MODULE, Node}, {usage, Key}, 5000).

%% The nodes that do not answer the allocator. As usage/2.
-spec waits_for(node()) -> [node()] | not_ready.
waits_for(Node) ->
    canal_lock_exit:call({?MODULE, Node}, waits_for, 5000).

init([]) ->
    {ok, waiting, {continue, wait}}.

handle_continue(wait, waiting) ->
    case canal_lock_cluster_locks:is_member() andalso
        canal_lock_cluster_locks:lock({canal_lock_cluster, allocator}, ?WAIT_MS)
    of
        {ok, Lock} ->
            ok = canal_lock_cluster_totals:add(takeovers, 1),
            Ledger = canal_lock_cluster_ledger:new(canal_lock_quorum:fence(Lock)),
            Learned_ms = now_ms() + ?LEARNING_LEASES * canal_lock_quorum_agent:lease_ms(),
            {noreply, list(#state{lock = Lock, ledger = Ledger, learned_ms = Learned_ms})};
        {error, timeout} ->
            self() ! wait,
            {noreply, waiting};
        _ ->
            _ = erlang:send_after(?WAIT_MS, self(), wait),
            {noreply, waiting}
    end.

handle_call(_, _From, waiting) ->
    {reply, not_ready, waiting};
handle_call(Request, _From, State = #state{ledger = Ledger}) ->
    {reply, answer(Request, canal_lock_cluster_ledger:silent(now_ms(), Ledger), Ledger), State}.

answer(_, all, _) -> not_ready;
answer(waits_for, Silent, _) -> [Node || {Node, _} <- Silent];
answer({usage, Key}, Silent, Ledger) ->
    (canal_lock_cluster_ledger:usage(Key, Ledger))#{silent => [Node || {Node, _} <- Silent]}.

handle_cast(_, State) ->
    {noreply, State}.

%% Agents repeat their greetings.
handle_info(wait, waiting) ->
    {noreply, waiting, {continue, wait}};
handle_info(_, waiting) ->
    {noreply, waiting};
handle_info({Kind, _, _} = Event, State) when Kind =:= hello; Kind =:= alive; Kind =:= over ->
    event(Event, State);
handle_info({Node, {have, Term, Session, Haves}}, State) ->
    event({have, Node, Term, Session, Haves}, State);
handle_info({Node, {report, Term, Session, Ask, Haves, IsLast}}, State) ->
    event({report, Node, Term, Session, Ask, Haves, IsLast}, State);
handle_info({again, Node}, State = #state{refused = Refused}) ->
    event({again, Node}, State#state{refused = lists:delete(Node, Refused)});
handle_info({listed, Monitor, process, _, Reason}, State = #state{list = {Monitor, Silent}}) ->
    _ = erlang:send_after(?LIST_MS, self(), list),
    case Reason of
        {ok, Nodes} -> listed(Silent, Nodes, State#state{list = none});
        _ -> {noreply, State#state{list = none}}
    end;
handle_info(list, State = #state{list = none}) ->
    {noreply, list(State)};
handle_info({canal_lock_quorum, lost, Lock}, State = #state{lock = Lock}) ->
    {stop, {shutdown, lost}, State};
handle_info({timeout, Timer, step}, State = #state{timer = {Timer, _}}) ->
    event(step, State#state{timer = none});
handle_info(_, State) ->
    {noreply, State}.

%% The list begins after what is silent is known.
list(State = #state{ledger = Ledger}) ->
    case canal_lock_cluster_ledger:silent(now_ms(), Ledger) of
        [] ->
            _ = erlang:send_after(?LIST_MS, self(), list),
            State;
        Silent ->
            {_, Monitor} = erlang:spawn_opt(fun exit_with_list/0, [{monitor, [{tag, listed}]}]),
            State#state{list = {Monitor, Silent}}
    end.

listed(Silent, Nodes, State = #state{learned_ms = Learned_ms}) ->
    Unknown = [Node || Silent =/= all, {Node, unknown} <- Silent],
    case now_ms() >= Learned_ms andalso lists:any(fun(Node) -> lists:member(Node, Nodes) end, Unknown) of
        true -> {stop, {shutdown, not_learned}, State};
        false -> event({listed, Silent, Nodes}, State)
    end.

-spec exit_with_list() -> no_return().
exit_with_list() ->
    exit(canal_lock_cluster_locks:live_nodes()).

event(Event, State = #state{ledger = Ledger, lock = Lock}) ->
    {Messages, Next} = canal_lock_cluster_ledger:handle(Event, now_ms(), Ledger),
    case canal_lock_quorum:is_held(Lock) of
        true -> noreply(wake(lists:foldl(fun send/2, State#state{ledger = Next}, Messages)));
        false -> {stop, {shutdown, lost}, State}
    end.

%% After the last key the heap is garbage, as in the agent.
noreply(State = #state{ledger = Ledger}) ->
    case canal_lock_cluster_ledger:keys(Ledger) of
        0 -> {noreply, State, hibernate};
        _ -> {noreply, State}
    end.

send({Node, Message}, State = #state{refused = Refused}) ->
    case canal_lock_cluster_wire:send(canal_lock_cluster_agent, Node, {node(), Message}) of
        refused ->
            %% One question for all messages that are refused until then.
            IsNew = not lists:member(Node, Refused),
            _ = [erlang:send_after(?AGAIN_MS, self(), {again, Node}) || IsNew],
            State#state{refused = [Node || IsNew] ++ Refused};
        ok ->
            State
    end.

wake(State = #state{ledger = Ledger, timer = Timer}) ->
    Wake_ms = canal_lock_cluster_ledger:wake_ms(now_ms(), Ledger),
    State#state{timer = canal_lock_quorum_steps:add_timer(Wake_ms, Timer)}.

now_ms() ->
    erlang:monotonic_time(millisecond).
