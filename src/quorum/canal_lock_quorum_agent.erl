%% @private
%% Runs the agent of this node. This process passes the requests of local processes and the answers of voters to the
%% agent's state machine in the native library, sends its frames to the voters, and notifies holders. It monitors each
%% holder once per lock.
%%
%% A step takes all events that are in the mailbox, and sends one batch to each voter for them. When the mailbox is
%% empty, this process first yields once. So batches grow with the load, and no constant says how long to collect
%% events.
%%
%% If this process is killed, the locks of its node are lost: the native library ends the old agent before it opens
%% another one, and the next process notifies the holders. Callers waiting for a reply exit, as with any `gen_server'
%% that dies.
-module(canal_lock_quorum_agent).

-behaviour(gen_server).

-export([start_link/1]).
-export([lock/4, unlock/1, unlock_async/1, revoke/1, lease_ms/0, status/0, count/0, waiting/1, busiest/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, handle_continue/2, terminate/2]).

%% The maximum number of events in one step. A step should take less than a millisecond.
-define(MAX_EVENTS, 64).

%% How many bytes of the names of waiting requests one call counts: those of 10,000 requests with names of usual length,
%% in at most 5 ms. The time grows with the length of the names.
-define(MAX_COUNTED_BYTES, 500_000).

%% How many attempts a lease has: `attempt' in native/quorum/src/rules.rs.
-define(ATTEMPTS, 10).

-record(waiting, {
    from :: gen_server:from(),
    monitor :: reference(),
    %% `os:perf_counter()', which takes a third of the time of `erlang:monotonic_time()'.
    since :: integer(),
    mode :: canal_lock_quorum_lock:mode(),
    names :: [canal_lock_quorum_names:name(), ...]
}).

-record(state, {
    config :: canal_lock_quorum_config:config(),
    agent :: canal_lock_quorum_nif:agent(),
    %% The newest first.
    events = [] :: [canal_lock_quorum_nif:agent_event()],
    timer = none :: canal_lock_quorum_steps:timer(),
    next_request = 1 :: pos_integer(),
    %% Callers that wait for a lock, and callers that wait for an unlock, by the numbers of their requests.
    locking = #{} :: #{pos_integer() => #waiting{}},
    unlocking = #{} :: #{pos_integer() => gen_server:from()},
    %% The members of the view, or the nodes to ask while there is none.
    members :: [node()],
    %% Messages for busy connections.
    sending = #{} :: canal_lock_quorum_wire:sending(),
    reported = #{} :: canal_lock_quorum_log_limit:reported(),
    %% Members whose voters were silent after the last step.
    silent = [] :: [node()],
    %% Nodes on which canal_lock_quorum was stopped: they count as disconnected.
    stopped = [] :: [node()],
    %% Whether this process has yielded since the last step.
    has_yielded = false :: boolean(),
    %% Unlocks that more than half of the members have not executed.
    pending_unlocks = 0 :: non_neg_integer()
}).

-spec start_link(canal_lock_quorum_config:config()) -> {ok, pid()} | {error, term()}.
start_link(Config) ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, Config, []).

%% Acquires a lock of all names for the calling process. `Encoded' has the same names as bytes, in any order.
-spec lock(canal_lock_quorum_lock:mode(), [canal_lock_quorum_names:name(), ...], [binary(), ...], timeout()) ->
    {ok, canal_lock_quorum_lock:lock()} | {error, canal_lock_quorum:refusal()}.
lock(Mode, Names, Encoded, Timeout_ms) ->
    call({lock, Mode, Names, Encoded, Timeout_ms}).

%% A lock of another agent is not held.
-spec unlock(canal_lock_quorum_lock:id()) -> ok | {error, not_held | timeout}.
unlock(Id) ->
    call({unlock, Id}).

%% Unlocks without waiting for a quorum, when no more unlocks are pending than native/quorum/src/rules.rs allows.
-spec unlock_async(canal_lock_quorum_lock:id()) -> ok | {error, not_held}.
unlock_async(Id) ->
    call({unlock_async, Id}).

%% Revokes the locks of a name: of the name as bytes.
-spec revoke(binary()) -> ok.
revoke(Name) ->
    call({revoke, Name}).

%% The lease of a voter.
-spec lease_ms() -> pos_integer().
lease_ms() ->
    call(lease_ms).

-spec status() -> #{
    totals := canal_lock_quorum_totals:totals(),
    %% The number of the view.
    number := none | non_neg_integer(),
    members := [canal_lock_quorum:member_status()],
    quorum := boolean(),
    pending_unlocks := non_neg_integer(),
    waiting := non_neg_integer(),
    state_file := binary() | none,
    has_voter := boolean(),
    may_have_clients := boolean()
}.
status() ->
    call(status).

%% The number of locks that processes of this node hold.
-spec count() -> non_neg_integer().
count() ->
    canal_lock_quorum_lock_table:count().

%% The requests of this node for a name. Cost: the agent's process reads all waiting requests.
-spec waiting(canal_lock_quorum_names:name()) -> [canal_lock_quorum:waiting_info()].
waiting(Name) ->
    call({waiting, Name}).

%% The names that most requests of this node wait for, the busiest one first, each with the longest wait. If more
%% requests wait than this can count in time, it counts any of them. Exits with `timeout' if the agent's process hangs.
-spec busiest(Rows :: pos_integer()) ->
    [{canal_lock_quorum_names:name(), Waiting :: pos_integer(), Longest_ms :: non_neg_integer()}].
busiest(Rows) ->
    canal_lock_quorum_steps:ask(?MODULE, {busiest, Rows}).

call(Request) ->
    canal_lock_exit:call(?MODULE, Request, infinity).

init(Config = #{setup := Setup}) ->
    %% So that terminate/2 runs at a clean shutdown.
    _ = process_flag(trap_exit, true),
    %% Under load the mailbox is long, and garbage collection need not traverse it.
    _ = process_flag(message_queue_data, off_heap),
    %% From here on the locks of the previous agent are not held.
    Agent = canal_lock_quorum_nif:agent_open(Setup),
    ok = notify_holders_of_the_previous_agent(Config),
    ok = net_kernel:monitor_nodes(true, #{node_type => all}),
    ok = canal_lock_quorum_connections:agent_started(),
    #{members := Given} = Config,
    Events = [{up, Node} || Node <- [node() | nodes(connected)]],
    {ok, #state{config = Config, agent = Agent, events = Events, members = Given}, {continue, step}}.

notify_holders_of_the_previous_agent(#{totals := Totals}) ->
    case canal_lock_quorum_lock_table:take_all() of
        [] ->
            ok;
        Rows ->
            ok = notify(lost, Rows),
            ok = canal_lock_quorum_totals:add(Totals, lost, length(Rows)),
            canal_lock_quorum_reports:report(agent_died, #{lost => length(Rows)})
    end.

handle_call({lock, _, _, _, _}, From, State = #state{locking = Locking, config = #{max_waiting := Max}}) when
    map_size(Locking) >= Max
->
    ok = count(refused_too_many_waiting, State),
    gen_server:reply(From, {error, too_many_waiting}),
    noreply(State);
handle_call({lock, Mode, Names, Bytes, Timeout_ms}, From = {Pid, _}, State) ->
    {Request, Numbered = #state{locking = Locking}} = number(State),
    Monitor = erlang:monitor(process, Pid, [{tag, {waiter_down, Request}}]),
    Since = os:perf_counter(),
    Waiting = #waiting{from = From, monitor = Monitor, since = Since, mode = Mode, names = Names},
    add({lock, Request, Mode, Bytes, Timeout_ms}, Numbered#state{locking = Locking#{Request => Waiting}});
handle_call({How, Id}, From, State) when How =:= unlock; How =:= unlock_async ->
    unlock_for(From, How, Id, State);
handle_call({revoke, Name}, From, State) ->
    gen_server:reply(From, ok),
    add({revoke, Name}, State);
handle_call(lease_ms, From, State = #state{config = #{lease_ms := Lease_ms}}) ->
    gen_server:reply(From, Lease_ms),
    noreply(State);
handle_call({waiting, Name}, From, State) ->
    gen_server:reply(From, waiting(Name, State)),
    noreply(State);
handle_call({busiest, Rows}, From, State) ->
    gen_server:reply(From, busiest(Rows, State)),
    noreply(State);
handle_call(status, From, State) ->
    gen_server:reply(From, status(State)),
    noreply(State);
handle_call(Request, From, State) ->
    ok = canal_lock_quorum_reports:report(unknown_message, #{process => agent, message => Request}),
    gen_server:reply(From, {error, unknown_call}),
    noreply(State).

status(#state{agent = Agent, config = Config, pending_unlocks = Pending, locking = Locking}) ->
    #{totals := Totals, has_voter := HasVoter, state_file := StateFile, may_have_clients := MayHaveClients} = Config,
    {Number, Members} = canal_lock_quorum_nif:agent_status(Agent),
    #{
        totals => canal_lock_quorum_totals:read(Totals),
        number => Number,
        members => [
            #{node => Node, connected => Connected, answers => Answers, valid_ms => Valid_ms}
         || {Node, Connected, Answers, Valid_ms} <- Members
        ],
        quorum => canal_lock_quorum_nif:agent_has_quorum(Agent),
        pending_unlocks => Pending,
        waiting => map_size(Locking),
        state_file => StateFile,
        has_voter => HasVoter,
        may_have_clients => MayHaveClients orelse not HasVoter
    }.

waiting(Name, #state{locking = Locking}) ->
    Now = os:perf_counter(),
    [
        #{
            node => node(),
            waiter => Pid,
            names => Names,
            mode => Mode,
            waited_ms => erlang:convert_time_unit(Now - Since, perf_counter, millisecond)
        }
     || #waiting{from = {Pid, _}, names = Names, mode = Mode, since = Since} <- maps:values(Locking),
        lists:member(Name, Names)
    ].

busiest(Rows, #state{locking = Locking}) ->
    Counted = count_names(maps:next(maps:iterator(Locking)), ?MAX_COUNTED_BYTES, #{}),
    Add = fun(Name, {Waiting, Since}, Ranking) -> canal_lock_ranking:add({-Waiting, Name, Since}, Ranking) end,
    Ranking = maps:fold(Add, canal_lock_ranking:new(Rows), Counted),
    Now = os:perf_counter(),
    [
        {Name, -Negative, erlang:convert_time_unit(Now - Since, perf_counter, millisecond)}
     || {Negative, Name, Since} <- canal_lock_ranking:least(Ranking)
    ].

%% How many requests wait for each name, and since when the first of them.
count_names({_, #waiting{names = Names, since = Since}, Next}, Left, Counted) when Left > 0 ->
    Add = fun(Name, Before) ->
        maps:update_with(Name, fun({Count, First}) -> {Count + 1, min(First, Since)} end, {1, Since}, Before)
    end,
    count_names(maps:next(Next), Left - erlang:external_size(Names), lists:foldl(Add, Counted, Names));
count_names(_, _, Counted) ->
    Counted.

handle_cast(connections_started, State = #state{members = Members}) ->
    ok = canal_lock_quorum_connections:members(Members),
    noreply(State);
handle_cast({What, Node}, State) when What =:= stopped; What =:= started ->
    stopped(What, Node, State);
handle_cast(Request, State) ->
    ok = canal_lock_quorum_reports:report(unknown_message, #{process => agent, message => Request}),
    noreply(State).

handle_info(Message = {canal_lock_quorum, _, _, _}, State) ->
    case canal_lock_quorum_wire:received(Message) of
        ignored -> noreply(State);
        Event -> add(Event, State)
    end;
handle_info({{sent, Key}, _, process, _, _}, State) ->
    noreply(sent(Key, State));
handle_info({unlock_async, Id, IsExpired}, State) ->
    _ = [ok = end_lost(Id, lost, State) || IsExpired],
    unlock(unlock_marked, Id, State);
handle_info({{holder_down, Id}, _, process, _, _}, State) ->
    unlock(unlock_async, Id, State);
handle_info({{waiter_down, Request}, _, process, _, _}, State = #state{locking = Locking}) ->
    case maps:take(Request, Locking) of
        {_, Others} ->
            ok = count(canceled, State),
            add({cancel, Request}, State#state{locking = Others});
        error ->
            noreply(State)
    end;
handle_info(timeout, State = #state{has_yielded = false}) ->
    %% Lets other processes send their requests first: a step costs about as much for many requests as for one.
    true = erlang:yield(),
    noreply(State#state{has_yielded = true});
handle_info(timeout, State) ->
    step(State);
handle_info({timeout, Timer, step}, State = #state{timer = {Timer, _}}) ->
    step(State#state{timer = none});
handle_info({timeout, _Replaced, step}, State) ->
    noreply(State);
handle_info({nodeup, Node, _}, State) ->
    connection(Node, up, State);
handle_info({nodedown, Node, _}, State = #state{stopped = Stopped}) ->
    connection(Node, down, State#state{stopped = lists:delete(Node, Stopped)});
handle_info({'EXIT', _Pid, normal}, State) ->
    noreply(State);
handle_info({'EXIT', _Pid, Reason}, State) ->
    {stop, Reason, State};
handle_info(Message, State) ->
    ok = canal_lock_quorum_reports:report(unknown_message, #{process => agent, message => Message}),
    noreply(State).

handle_continue(step, State) ->
    step(State).

%% At a clean shutdown the agent unlocks all locks, so that other nodes do not wait until the leases expire.
terminate(Reason, State = #state{agent = Agent}) ->
    case canal_lock_exit:is_clean_shutdown(Reason) of
        true ->
            ok = unlock_all(State),
            canal_lock_quorum_nif:agent_close(Agent);
        false ->
            ok
    end.

unlock_all(State = #state{events = Events, locking = Locking, config = #{lease_ms := Lease_ms}}) ->
    Rows = canal_lock_quorum_lock_table:take_all(),
    _ = erlang:start_timer(Lease_ms div ?ATTEMPTS, self(), shutdown_timeout),
    %% Cancels all requests: no waiter may get a lock now, and some waiters may be dead. The unlocks have the request
    %% number 1, because no caller waits for their answers.
    Canceled = [{cancel, Request} || Request <- maps:keys(Locking)],
    Unlocked = [{unlock_async, Id, 1} || {Id, _, _, _, _} <- Rows],
    Stepped = step(lists:reverse(Events) ++ Canceled ++ Unlocked, State#state{events = []}),
    %% After the step: a lock must not be held any more when its holder is notified.
    ok = notify(lost, Rows),
    await_unlocked(Stepped).

notify(Event, Rows) ->
    lists:foreach(fun({_, Holder, _, Lock, _}) -> Holder ! {canal_lock_quorum, Event, Lock} end, Rows).

%% Until all voters that answer have executed the unlocks, for at most one attempt. A quorum is not enough: the voter of
%% this node ends next, and each lock that another voter keeps blocks its names there until the lease expires. A voter
%% that has not answered an earlier batch gets the unlocks after its answer, so this processes frames.
await_unlocked(State = #state{agent = Agent}) ->
    case canal_lock_quorum_nif:agent_unlocks_arrived(Agent) of
        true -> ok;
        false -> await_frame(State)
    end.

await_frame(State) ->
    receive
        Message = {canal_lock_quorum, _, _, _} ->
            case canal_lock_quorum_wire:received(Message) of
                ignored -> await_frame(State);
                Event -> await_unlocked(step([Event], State))
            end;
        {{sent, Key}, _, process, _, _} ->
            await_frame(sent(Key, State));
        {timeout, _, shutdown_timeout} ->
            ok
    end.

number(State = #state{next_request = Request}) ->
    {Request, State#state{next_request = Request + 1}}.

connection(Node, Change, State = #state{members = Members}) ->
    _ = [ok = canal_lock_quorum_reports:report(Change, #{node => Node}) || lists:member(Node, Members)],
    add({Change, Node}, State).

%% A voter that has stopped counts as disconnected: no request waits for it.
stopped(What, Node, State = #state{members = Members, stopped = Before}) ->
    _ = [ok = canal_lock_quorum_reports:report(What, #{node => Node}) || lists:member(Node, Members)],
    case What of
        stopped -> add({down, Node}, State#state{stopped = [Node | lists:delete(Node, Before)]});
        started -> add({up, Node}, State#state{stopped = lists:delete(Node, Before)})
    end.

%% Replies to `From' when the unlock is confirmed (`unlock') or accepted (`unlock_async'). Of two callers that unlock at
%% the same time, one gets `not_held'.
unlock_for(From, How, Id, State) ->
    Locks = [Lock || {_, _, _, Lock, _} <- canal_lock_quorum_lock_table:lookup(Id)],
    Held = [{Lock, canal_lock_quorum_lock:is_held(Lock)} || Lock <- Locks],
    case [IsHeld || {Lock, IsHeld} <- Held, canal_lock_quorum_lock:mark_unlocked(Lock)] of
        [IsHeld] ->
            _ = [ok = end_lost(Id, lost, State) || not IsHeld],
            #state{next_request = Request, unlocking = Unlocking} = State,
            unlock(How, Id, State#state{unlocking = Unlocking#{Request => From}});
        [] ->
            gen_server:reply(From, {error, not_held}),
            noreply(State)
    end.

%% Also if the lease has expired before the unlock, and no step has noticed that yet.
end_lost(Id, How, State) ->
    ok = notify(lost, canal_lock_quorum_lock_table:lookup(Id)),
    forget(Id, How, State).

unlock(How, Id, State) ->
    {Request, Numbered} = number(State),
    ok = forget(Id, unlocked, State),
    add({How, Id, Request}, Numbered).

%% A lock has ended.
forget(Id, How, State) ->
    case canal_lock_quorum_lock_table:remove(Id) of
        {ok, Monitor} ->
            %% A 'DOWN' that was already sent has no effect: the agent no longer knows the lock.
            _ = erlang:demonitor(Monitor),
            count(How, State);
        not_held ->
            ok
    end.

count(What, #state{config = #{totals := Totals}}) ->
    canal_lock_quorum_totals:add(Totals, What).

%%% Steps: when the mailbox is empty, or when MAX_EVENTS events have been collected

add(Event, State = #state{events = Events}) ->
    case State#state{events = [Event | Events]} of
        Added when length(Events) + 1 >= ?MAX_EVENTS -> step(Added);
        Added -> noreply(Added)
    end.

noreply(State = #state{events = Events}) ->
    canal_lock_quorum_steps:noreply(Events, State).

step(State = #state{events = Events}) ->
    noreply(step(lists:reverse(Events), State#state{events = [], has_yielded = false})).

step(Events, State = #state{agent = Agent, timer = Timer}) ->
    {Outputs, Wait, Silent, Pending} =
        case canal_lock_quorum_nif:agent_step(Agent, Events) of
            long -> canal_lock_quorum_nif:agent_long_step(Agent, Events);
            Short -> Short
        end,
    Waiting = canal_lock_quorum_steps:add_timer(Wait, Timer),
    Stepped = lists:foldl(fun output/2, State#state{timer = Waiting, pending_unlocks = Pending}, Outputs),
    silent(Silent, Stepped).

output(Post = {send, _, _, _, _, _}, State = #state{sending = Sending}) ->
    case canal_lock_quorum_wire:send(Post, Sending) of
        %% Usually. Then the state is not copied.
        Sending -> State;
        Changed -> State#state{sending = Changed}
    end;
output({granted, Request, Id, Fence, Handle, Path}, State = #state{locking = Locking, events = Events}) ->
    case maps:take(Request, Locking) of
        {Waiting = #waiting{since = Since}, Others} ->
            #state{config = #{totals := Totals}} = State,
            ok = canal_lock_quorum_totals:granted(Totals, Since, Path),
            ok = granted(Waiting, Id, Fence, Handle),
            State#state{locking = Others};
        error ->
            %% The caller has died.
            {Number, Numbered} = number(State),
            Numbered#state{events = [{unlock_async, Id, Number} | Events]}
    end;
output({refused, Request, Reason}, State = #state{locking = Locking}) ->
    case maps:take(Request, Locking) of
        {#waiting{from = From, monitor = Monitor}, Others} ->
            _ = erlang:demonitor(Monitor),
            ok = count(refused(Reason), State),
            gen_server:reply(From, {error, Reason}),
            State#state{locking = Others};
        error ->
            State
    end;
output({unlocked, Request, true}, State) ->
    answer(Request, ok, State);
output({unlocked, Request, false}, State) ->
    answer(Request, {error, timeout}, State);
output({accepted, Request}, State) ->
    answer(Request, ok, State);
output({missing, Request}, State) ->
    answer(Request, {error, not_held}, State);
output(recalled, State) ->
    ok = count(recalled, State),
    State;
output({at_risk, Id}, State) ->
    Rows = canal_lock_quorum_lock_table:lookup(Id),
    ok = notify(at_risk, Rows),
    _ = [count(at_risk, State) || _ <- Rows],
    State;
output({lost, Id, Reason}, State) ->
    ok = end_lost(Id, lost(Reason), State),
    State;
output({adopted, _Number, Members}, State) ->
    ok = canal_lock_quorum_connections:members(Members),
    State#state{members = Members};
%% The voter reports it.
output({other_cluster, _}, State = #state{config = #{has_voter := true}}) ->
    State;
output({other_cluster, Node}, State) ->
    ok = canal_lock_quorum_reports:report(other_cluster, #{node => Node}),
    State;
output({bad_frame, Node, Why}, State = #state{reported = Reported}) ->
    Details = #{node => Node, why => Why},
    State#state{reported = canal_lock_quorum_log_limit:report(bad_frame, Node, Details, Reported)}.

refused(timeout) -> refused_timeout;
refused(no_quorum) -> refused_no_quorum.

lost(quorum) -> lost;
lost(revoked) -> revoked.

granted(#waiting{from = From = {Pid, _}, monitor = Monitor, mode = Mode, names = Names}, Id, Fence, Handle) ->
    Lock = canal_lock_quorum_lock:new(Handle, Fence, Mode, Names),
    %% If the holder is already dead, the monitor reports it.
    Holding = erlang:monitor(process, Pid, [{tag, {holder_down, Id}}]),
    _ = erlang:demonitor(Monitor),
    ok = canal_lock_quorum_lock_table:add(Id, Pid, Holding, Lock),
    gen_server:reply(From, {ok, Lock}).

sent(Key, State = #state{sending = Sending}) ->
    State#state{sending = canal_lock_quorum_wire:sent(Key, Sending)}.

%% Answers the caller, if one waits for this request.
answer(Request, Answer, State = #state{unlocking = Unlocking}) ->
    case maps:take(Request, Unlocking) of
        {From, Others} ->
            gen_server:reply(From, Answer),
            State#state{unlocking = Others};
        error ->
            State
    end.

%% No call can report that a voter does not answer, so it is logged. If it is the voter of this node, it logs the cause.
silent(Silent, State = #state{silent = Silent}) ->
    State;
silent(Silent, State = #state{silent = Before, pending_unlocks = Pending, stopped = Stopped}) ->
    _ = [
        canal_lock_quorum_reports:report(silent, #{node => Node, pending_unlocks => Pending})
     || Node <- Silent -- Before, Node =/= node()
    ],
    %% A disconnected member leaves the silent ones, too. That is no answer, so it is not reported.
    _ = [
        canal_lock_quorum_reports:report(answers, #{node => Node})
     || Node <- Before -- Silent, Node =/= node(), is_connected(Node), not lists:member(Node, Stopped)
    ],
    State#state{silent = Silent}.

is_connected(Node) ->
    lists:member(Node, nodes(connected)).
