%% @private
%% Runs the voter of this node: hands it what comes from the agents, and sends what it answers.
%%
%% What is in the mailbox is handed over together, and one answer goes to each agent for all that it had sent. The
%% voter's memory is in the native library; if this process is killed, its successor goes on with it, and what is lost
%% are the messages that were under way, as any message may be.
-module(canal_lock_quorum_voter).

-behaviour(gen_server).

-export([start_link/1, state/0, write/2]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, handle_continue/2, terminate/2]).

%% No step takes more frames. One of them may be long, and a step should take less than a millisecond.
-define(MAX_EVENTS, 32).

%% Between two attempts to write to a disk that refuses.
-define(STORE_AGAIN_MS, 1000).

-record(state, {
    config :: canal_lock_quorum_config:config(),
    voter :: canal_lock_quorum_nif:voter(),
    %% The last one first.
    events = [] :: [canal_lock_quorum_nif:voter_event()],
    timer = none :: canal_lock_quorum_steps:timer(),
    is_voting = false :: boolean(),
    %% Who writes a mark to the disk, and which.
    storing = none :: none | {reference(), pos_integer()},
    %% The mark to be written next.
    to_store = none :: none | pos_integer(),
    unknown_nodes = #{} :: #{node() => reported}
}).

-spec start_link(canal_lock_quorum_config:config()) -> {ok, pid()} | {error, term()}.
start_link(Config) ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, Config, []).

%% Whether it votes, and whether it keeps nothing.
-spec state() -> #{voting := boolean(), empty := boolean()}.
state() ->
    gen_server:call(?MODULE, state).

init(Config = #{setup := Setup}) ->
    %% To say so when it ends in order.
    _ = process_flag(trap_exit, true),
    %% Under load the mailbox is long, and collecting garbage need not look at it.
    _ = process_flag(message_queue_data, off_heap),
    {Voter, _IsNew} = canal_lock_quorum_nif:voter_open(Setup, known_fences(Config)),
    {ok, #state{config = Config, voter = Voter}, {continue, step}}.

known_fences(#{fence_file := Path}) ->
    %% Higher than any fence that was given, if clocks are right: they grow by one a lock.
    Origin = max(0, erlang:system_time(microsecond)),
    case Path =/= none andalso canal_lock_quorum_nif:fence_read(Path) of
        false ->
            #{floor => nil, durable => false, origin => Origin};
        {ok, Floor} ->
            #{floor => Floor, durable => true, origin => Origin};
        {error, Why} ->
            ok = canal_lock_quorum_reports:report(no_fences, #{path => Path, why => Why}),
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
        not_a_member -> noreply(not_a_member(From, State));
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

%% In order: it has no successor, and its votes need not be kept.
terminate(Reason, #state{voter = Voter}) ->
    case canal_lock_quorum_steps:is_orderly(Reason) of
        true -> canal_lock_quorum_nif:voter_close(Voter);
        false -> ok
    end.

%% Steps are made when the mailbox is empty, or when there is enough for one.
add(Event, State = #state{events = Events}) ->
    case State#state{events = [Event | Events]} of
        Full when length(Events) + 1 >= ?MAX_EVENTS -> step(Full);
        NotFull -> noreply(NotFull)
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
output({bad_frame, Place, Why}, State = #state{config = #{members := Members}}) ->
    ok = canal_lock_quorum_reports:report(bad_frame, #{node => lists:nth(Place + 1, Members), why => Why}),
    State.

%% A disk may take its time, so another process waits for it. One at a time.
store(State = #state{storing = none, to_store = Mark, config = #{fence_file := Path}}) when Mark =/= none ->
    {_, Monitor} = spawn_monitor(?MODULE, write, [Path, Mark]),
    State#state{storing = {Monitor, Mark}, to_store = none};
store(State) ->
    State.

%% What comes of it is what it exits with.
-spec write(binary(), pos_integer()) -> no_return().
write(Path, Mark) ->
    exit(canal_lock_quorum_nif:fence_store(Path, Mark)).

stored(Mark, {ok, _}, State) ->
    add({stored, Mark}, store(State));
stored(Mark, Failure, State = #state{config = #{fence_file := Path}, to_store = Next}) ->
    Why = case Failure of {error, Sentence} -> Sentence; _ -> Failure end,
    ok = canal_lock_quorum_reports:report(not_stored, #{path => Path, why => Why}),
    _ = erlang:send_after(?STORE_AGAIN_MS, self(), store),
    noreply(State#state{to_store = case Next of none -> Mark; _ -> Next end}).

%% Once: it will go on.
not_a_member(Node, State = #state{unknown_nodes = Known}) when is_map_key(Node, Known) ->
    State;
not_a_member(Node, State = #state{unknown_nodes = Known}) ->
    ok = canal_lock_quorum_reports:report(not_a_member, #{node => Node}),
    State#state{unknown_nodes = Known#{Node => reported}}.
