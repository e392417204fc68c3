%% @private
%% Runs the voter of this node: passes the frames of agents to the voter's state machine in the native library, and
%% sends its answers.
%%
%% A step takes all frames that are in the mailbox, and sends each agent one answer for all of its frames. If this
%% process is killed, the next one continues with the same state machine, and only the messages in its mailbox are lost.
-module(canal_lock_quorum_voter).

-behaviour(gen_server).

-export([start_link/1, state/0, write/2]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, handle_continue/2, terminate/2]).

%% The maximum number of events in one step. A frame can be long, and a step should take less than a millisecond.
-define(MAX_EVENTS, 32).

%% The pause after a failed write to the fence file. A full disk rarely recovers sooner.
-define(STORE_RETRY_MS, 1000).

%% As for `gen_server:call/2'.
-define(STATE_TIMEOUT_MS, 5000).

-record(state, {
    config :: canal_lock_quorum_config:config(),
    voter :: canal_lock_quorum_nif:voter(),
    %% The newest first.
    events = [] :: [canal_lock_quorum_nif:voter_event()],
    timer = none :: canal_lock_quorum_steps:timer(),
    is_voting = false :: boolean(),
    %% The current write: the monitor of the process that writes, and the mark (the highest fence that the voter may
    %% assign) that it stores.
    storing = none :: none | {reference(), pos_integer()},
    %% The mark to store next.
    to_store = none :: none | pos_integer(),
    %% Nodes that were reported because they are no members, or have other members or rules.
    mismatched_nodes = #{} :: #{node() => reported}
}).

-spec start_link(canal_lock_quorum_config:config()) -> {ok, pid()} | {error, term()}.
start_link(Config) ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, Config, []).

%% Whether the voter votes, and whether it has neither votes nor waiting requests.
-spec state() -> #{voting := boolean(), empty := boolean()}.
state() ->
    canal_lock_exit:call(?MODULE, state, ?STATE_TIMEOUT_MS).

init(Config = #{setup := Setup}) ->
    %% So that terminate/2 runs at a clean shutdown.
    _ = process_flag(trap_exit, true),
    %% Under load the mailbox is long, and garbage collection need not traverse it.
    _ = process_flag(message_queue_data, off_heap),
    {Voter, _IsNew} = canal_lock_quorum_nif:voter_open(Setup, known_fences(Config)),
    {ok, #state{config = Config, voter = Voter}, {continue, step}}.

known_fences(#{fence_file := Path}) ->
    %% The wall clock in microseconds. It is above every earlier fence if no clock was set back: fences grow by less
    %% than a million per second.
    Origin = max(0, erlang:system_time(microsecond)),
    case Path =/= none andalso canal_lock_quorum_nif:fence_read(Path) of
        false ->
            #{floor => nil, durable => false, origin => Origin};
        {ok, Floor} ->
            #{floor => Floor, durable => true, origin => Origin};
        {error, Reason} ->
            ok = canal_lock_quorum_reports:report(no_fences, #{path => Path, why => Reason}),
            #{floor => nil, durable => true, origin => Origin}
    end.

handle_call(state, From, State = #state{voter = Voter, is_voting = IsVoting}) ->
    gen_server:reply(From, #{voting => IsVoting, empty => canal_lock_quorum_nif:voter_is_empty(Voter)}),
    noreply(State);
handle_call(Request, From, State) ->
    ok = canal_lock_quorum_reports:report(unknown_message, #{process => voter, message => Request}),
    gen_server:reply(From, {error, unknown_call}),
    noreply(State).

handle_cast(Request, State) ->
    ok = canal_lock_quorum_reports:report(unknown_message, #{process => voter, message => Request}),
    noreply(State).

handle_info({canal_lock_quorum, Fingerprint, From, Frame}, State = #state{config = Config}) ->
    case canal_lock_quorum_wire:received(Fingerprint, From, Frame, Config) of
        not_a_member -> noreply(report_not_a_member(From, State));
        Event -> add(Event, State)
    end;
handle_info(timeout, State) ->
    step(State);
handle_info({timeout, Timer, step}, State = #state{timer = {Timer, _}}) ->
    step(State#state{timer = none});
handle_info({timeout, _Replaced, step}, State) ->
    noreply(State);
handle_info({'DOWN', Monitor, process, _, Outcome}, State = #state{storing = {Monitor, Mark}}) ->
    stored(Mark, Outcome, State#state{storing = none});
handle_info(store, State) ->
    noreply(store(State));
handle_info({'EXIT', _Pid, normal}, State) ->
    noreply(State);
handle_info({'EXIT', _Pid, Reason}, State) ->
    {stop, Reason, State};
handle_info(Message, State) ->
    ok = canal_lock_quorum_reports:report(unknown_message, #{process => voter, message => Message}),
    noreply(State).

handle_continue(step, State) ->
    step(State).

%% After a clean shutdown no process continues with the votes.
terminate(Reason, #state{voter = Voter}) ->
    case canal_lock_exit:is_clean_shutdown(Reason) of
        true -> canal_lock_quorum_nif:voter_close(Voter);
        false -> ok
    end.

%% A step runs when the mailbox is empty, or when MAX_EVENTS events have been collected.
add(Event, State = #state{events = Events}) ->
    case State#state{events = [Event | Events]} of
        Added when length(Events) + 1 >= ?MAX_EVENTS -> step(Added);
        Added -> noreply(Added)
    end.

noreply(State = #state{events = Events}) ->
    canal_lock_quorum_steps:noreply(Events, State).

step(State = #state{voter = Voter, events = Events, timer = Timer}) ->
    {Outputs, Wait, IsVoting} = canal_lock_quorum_nif:voter_step(Voter, lists:reverse(Events)),
    Waiting = canal_lock_quorum_steps:add_timer(Wait, Timer),
    {noreply, lists:foldl(fun output/2, State#state{events = [], timer = Waiting, is_voting = IsVoting}, Outputs)}.

output({send, To, Place, Frame}, State = #state{config = Config}) ->
    ok = canal_lock_quorum_wire:send(To, Place, Frame, Config),
    State;
output({store, Mark}, State) ->
    store(State#state{to_store = Mark});
output({bad_frame, Place, Reason}, State = #state{config = #{members := Members}}) ->
    ok = canal_lock_quorum_reports:report(bad_frame, #{node => lists:nth(Place + 1, Members), why => Reason}),
    State.

%% A separate process makes the write, because a disk can be slow. At most one write runs at a time.
store(State = #state{storing = none, to_store = Mark, config = #{fence_file := Path}}) when Mark =/= none ->
    {_, Monitor} = spawn_monitor(?MODULE, write, [Path, Mark]),
    State#state{storing = {Monitor, Mark}, to_store = none};
store(State) ->
    State.

%% The exit reason is the result: the voter's process receives it in the 'DOWN' message.
-spec write(binary(), pos_integer()) -> no_return().
write(Path, Mark) ->
    exit(canal_lock_quorum_nif:fence_store(Path, Mark)).

stored(Mark, {ok, _}, State) ->
    add({stored, Mark}, store(State));
stored(Mark, Failure, State = #state{config = #{fence_file := Path}, to_store = Next}) ->
    Reason = case Failure of {error, Sentence} -> Sentence; _ -> Failure end,
    ok = canal_lock_quorum_reports:report(not_stored, #{path => Path, why => Reason}),
    _ = erlang:send_after(?STORE_RETRY_MS, self(), store),
    noreply(State#state{to_store = case Next of none -> Mark; _ -> Next end}).

%% Reports each node once, because its agent sends frames repeatedly.
report_not_a_member(Node, State = #state{mismatched_nodes = Reported}) when is_map_key(Node, Reported) ->
    State;
report_not_a_member(Node, State = #state{mismatched_nodes = Reported, config = #{members := Members}}) ->
    ok = canal_lock_quorum_reports:report(not_a_member, #{node => Node, members => Members}),
    State#state{mismatched_nodes = Reported#{Node => reported}}.
