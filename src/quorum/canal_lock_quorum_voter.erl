%% @private
%% Runs the voter of this node: passes the messages of agents and of other voters to the voter's state machine in the
%% native library, and sends its answers.
%%
%% A step takes all messages that are in the mailbox, and sends each agent one answer for all of its batches.
%%
%% A voter starts when the state file is read (canal_lock_quorum_state_file). Until then this process only collects
%% messages. If this process is killed, the next one starts another voter.
-module(canal_lock_quorum_voter).

-behaviour(gen_server).

-export([start_link/1, state/0, clients/0, ask_names/2, change/2, open/1, write/3]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, handle_continue/2]).

%% The maximum number of events in one step. A frame can be long, and a step should take less than a millisecond.
-define(MAX_EVENTS, 32).

%% The pause after a failed write to the state file. A full disk rarely recovers sooner.
-define(STORE_RETRY_MS, 1000).

%% A write that takes longer is reported: the disk may hang. Until the write returns, there is no other one.
-define(STORE_LATE_MS, 2000).

-record(state, {
    config :: canal_lock_quorum_config:config(),
    %% `none' until the file is read.
    voter = none :: none | canal_lock_quorum_nif:voter(),
    %% The process that reads the file.
    opening = none :: none | reference(),
    %% The newest first.
    events = [] :: [canal_lock_quorum_nif:voter_event()],
    timer = none :: canal_lock_quorum_steps:timer(),
    %% Whether it voted for writers after the last step: its quarantine is over, and it has fences to give.
    is_voting = false :: boolean(),
    %% The view.
    number = none :: none | non_neg_integer(),
    members = [] :: [node()],
    %% Messages for busy connections.
    sending = #{} :: canal_lock_quorum_wire:sending(),
    reported = #{} :: canal_lock_quorum_log_limit:reported(),
    %% The last content of the state file that the machine wants, if it is not stored yet.
    wanted = none :: none | {N :: pos_integer(), Content :: binary()},
    %% The current write: the monitor of the process that writes, and what it writes. Or the timer of the next try.
    storing = none :: none | {reference(), N :: pos_integer() | retry},
    %% Whether its first write is complete: then it answers.
    has_started = false :: boolean(),
    %% Callers that change the members, by the numbers of their requests.
    next_request = 1 :: pos_integer(),
    changing = #{} :: #{pos_integer() => gen_server:from()}
}).

-spec start_link(canal_lock_quorum_config:config()) -> {ok, pid()} | {error, term()}.
start_link(Config) ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, Config, []).

%% Whether the voter votes; its view, and what it waits for; whether it has neither votes nor waiting requests; and how
%% many requests wait.
-spec state() ->
    #{
        voting := boolean(),
        view := none | {Number :: non_neg_integer(), [node()]},
        phase := voting | starting | client | none,
        waiting_for := [{node(), start | seal | settle | kept | lease | accept}],
        empty := boolean(),
        queued := non_neg_integer()
    }.
state() ->
    canal_lock_quorum_steps:ask(?MODULE, state).

%% The clients that this voter knows. `not_known' while it starts.
-spec clients() -> [canal_lock_quorum:client_status()] | not_known.
clients() ->
    canal_lock_quorum_steps:ask(?MODULE, clients).

%% Asks the voter of a node for the names with votes that begin with `Prefix'. The answer is as that of
%% canal_lock_quorum_nif:voter_names/2.
-spec ask_names(node(), Prefix :: binary()) -> gen_server:request_id().
ask_names(Node, Prefix) ->
    gen_server:send_request({?MODULE, Node}, {names, Prefix}).

%% Changes the members, or resets the cluster.
-spec change(change | reset, [node(), ...]) -> canal_lock_quorum:change_answer().
change(How, Members) ->
    canal_lock_exit:call(?MODULE, {How, Members}, infinity).

init(Config) ->
    ok = net_kernel:monitor_nodes(true, #{node_type => all}),
    %% Under load the mailbox is long, and garbage collection need not traverse it.
    _ = process_flag(message_queue_data, off_heap),
    {ok, #state{config = Config}, {continue, open}}.

%% A separate process reads the file, because a disk can be slow.
read_file(State = #state{config = #{state_file := Path}}) ->
    State#state{opening = spawn_io(open, [Path])}.

spawn_io(Function, Arguments) ->
    {_, Monitor} = spawn_monitor(?MODULE, Function, Arguments),
    _ = erlang:start_timer(?STORE_LATE_MS, self(), {late, Monitor}),
    Monitor.

opened({ok, Content, View}, State) ->
    opened_with(Content, with_view(View, State));
opened(nothing, State) ->
    opened_with(nil, State);
opened({lost, Sentence}, State = #state{config = #{state_file := Path}}) ->
    ok = canal_lock_quorum_reports:report(file_lost, #{path => Path, why => Sentence}),
    opened_with(nil, State);
opened(Failure, State) ->
    _ = erlang:send_after(?STORE_RETRY_MS, self(), open),
    noreply(report_not_stored(Failure, State)).

opened_with(Content, State = #state{config = #{setup := Setup, state_file := Path}}) ->
    Opened = State#state{voter = canal_lock_quorum_nif:voter_open(Setup, Content)},
    step(case Path of none -> started(Opened); _ -> Opened end).

started(State = #state{has_started = true}) ->
    State;
started(State) ->
    ok = canal_lock_quorum_connections:voter_started(),
    State#state{has_started = true}.

with_view(none, State) ->
    State;
with_view({Number, Members, _}, State = #state{config = #{members := Given}}) ->
    ok =
        case lists:sort(Members) of
            Given -> ok;
            _ -> canal_lock_quorum_reports:report(members_differ, #{given => Given, number => Number, now => Members})
        end,
    ok = canal_lock_quorum_connections:members(Members),
    State#state{number = Number, members = Members}.

handle_call(state, From, State = #state{voter = none}) ->
    gen_server:reply(From, #{
        voting => false, view => none, phase => none, waiting_for => [], empty => true, queued => 0
    }),
    noreply(State);
handle_call(state, From, State = #state{voter = Voter, is_voting = IsVoting}) ->
    {IsEmpty, Queued, View, Phase, WaitingFor} = canal_lock_quorum_nif:voter_status(Voter),
    gen_server:reply(From, #{
        voting => IsVoting,
        view => View,
        phase => Phase,
        waiting_for => WaitingFor,
        empty => IsEmpty,
        queued => Queued
    }),
    noreply(State);
handle_call(clients, From, State = #state{voter = none}) ->
    gen_server:reply(From, not_known),
    noreply(State);
handle_call(clients, From, State = #state{voter = Voter}) ->
    gen_server:reply(From, clients(canal_lock_quorum_nif:voter_clients(Voter))),
    noreply(State);
handle_call({names, _}, From, State = #state{voter = none}) ->
    gen_server:reply(From, none),
    noreply(State);
handle_call({names, Prefix}, From, State = #state{voter = Voter}) when is_binary(Prefix) ->
    gen_server:reply(From, canal_lock_quorum_nif:voter_names(Voter, Prefix)),
    noreply(State);
handle_call({How, _}, From, State = #state{voter = none}) when How =:= change; How =:= reset ->
    Why = {state_file, <<"the state file of this node is not read yet">>},
    gen_server:reply(From, {error, {not_ready, [{node(), Why}]}}),
    noreply(State);
handle_call({How, Members}, From, State) when How =:= change; How =:= reset ->
    #state{next_request = Request, changing = Changing} = State,
    ok = canal_lock_quorum_connections:connect(Members),
    add({How, Request, Members}, State#state{next_request = Request + 1, changing = Changing#{Request => From}});
handle_call(Request, From, State) ->
    ok = canal_lock_quorum_reports:report(unknown_message, #{process => voter, message => Request}),
    gen_server:reply(From, {error, unknown_call}),
    noreply(State).

clients(not_known) ->
    not_known;
clients(Clients) ->
    [
        #{node => Node, votes => Votes, waiting => Waiting, heard_ms => Heard_ms}
     || {Node, Votes, Waiting, Heard_ms} <- Clients
    ].

handle_cast(Request, State) ->
    ok = canal_lock_quorum_reports:report(unknown_message, #{process => voter, message => Request}),
    noreply(State).

handle_info(Message = {canal_lock_quorum, _, _, _}, State) ->
    case canal_lock_quorum_wire:received(Message) of
        ignored -> noreply(State);
        Event -> received(Event, State)
    end;
handle_info({{sent, Key}, _, process, _, _}, State = #state{sending = Sending}) ->
    noreply(State#state{sending = canal_lock_quorum_wire:sent(Key, Sending)});
handle_info({nodedown, Node, _}, State) ->
    add({down, Node}, State);
handle_info({nodeup, _Node, _}, State) ->
    noreply(State);
handle_info(timeout, State) ->
    step(State);
handle_info({timeout, Timer, step}, State = #state{timer = {Timer, _}}) ->
    step(State#state{timer = none});
handle_info({timeout, _Replaced, step}, State) ->
    noreply(State);
handle_info({'DOWN', Monitor, process, _, Outcome}, State = #state{opening = Monitor}) ->
    opened(Outcome, State#state{opening = none});
handle_info({'DOWN', Monitor, process, _, Outcome}, State = #state{storing = {Monitor, N}}) ->
    stored(N, Outcome, State#state{storing = none});
handle_info(open, State = #state{voter = none, opening = none}) ->
    noreply(read_file(State));
handle_info({timeout, Timer, store}, State = #state{storing = {Timer, retry}}) ->
    noreply(store(State#state{storing = none}));
handle_info({timeout, _, {late, Monitor}}, State = #state{opening = Opening, storing = Storing}) ->
    case Monitor =:= Opening orelse (is_tuple(Storing) andalso Monitor =:= element(1, Storing)) of
        true -> noreply(report_late(State));
        false -> noreply(State)
    end;
handle_info(Message, State) ->
    ok = canal_lock_quorum_reports:report(unknown_message, #{process => voter, message => Message}),
    noreply(State).

handle_continue(open, State) ->
    {noreply, read_file(State)}.

%% Batches of clients that may not lock here are dropped. One with another number only asks for the view.
received(Event = {frame, From, _, Number, Bytes}, State = #state{number = Number}) ->
    #state{members = Members, config = Config} = State,
    IsAllowed =
        not canal_lock_quorum_wire:is_batch(Bytes) orelse
            lists:member(From, Members) orelse canal_lock_quorum_config:is_client(From, Config),
    case IsAllowed of
        true -> add(Event, State);
        false -> noreply(refuse(From, State))
    end;
received(Event, State) ->
    add(Event, State).

refuse(Node, State) ->
    ok = canal_lock_quorum_connections:refuse(Node),
    report(not_allowed, Node, #{node => Node}, State).

%% Messages that arrive before the voter: the first ones. Others repeat what is lost.
add(_Event, State = #state{voter = none, events = Events}) when length(Events) >= ?MAX_EVENTS ->
    {noreply, State};
add(Event, State = #state{voter = none, events = Events}) ->
    {noreply, State#state{events = [Event | Events]}};
%% A step runs when the mailbox is empty, or when MAX_EVENTS events have been collected.
add(Event, State = #state{events = Events}) ->
    case State#state{events = [Event | Events]} of
        Added when length(Events) + 1 >= ?MAX_EVENTS -> step(Added);
        Added -> noreply(Added)
    end.

noreply(State = #state{voter = none}) ->
    {noreply, State};
noreply(State = #state{events = Events}) ->
    canal_lock_quorum_steps:noreply(Events, State).

step(State = #state{voter = none}) ->
    {noreply, State};
step(State = #state{voter = Voter, events = Events, timer = Timer}) ->
    Oldest_first = lists:reverse(Events),
    {Outputs, Wait, IsVoting} =
        case canal_lock_quorum_nif:voter_step(Voter, Oldest_first) of
            long -> canal_lock_quorum_nif:voter_long_step(Voter, Oldest_first);
            Short -> Short
        end,
    Waiting = canal_lock_quorum_steps:add_timer(Wait, Timer),
    Stepped = State#state{events = [], timer = Waiting, is_voting = IsVoting},
    {noreply, store(lists:foldl(fun output/2, Stepped, Outputs))}.

output(Post = {send, _, _, _, _, _}, State = #state{sending = Sending}) ->
    case canal_lock_quorum_wire:send(Post, Sending) of
        %% Usually. Then the state is not copied.
        Sending -> State;
        Changed -> State#state{sending = Changed}
    end;
output({store, N, Content}, State) ->
    State#state{wanted = {N, Content}};
output({took, Number, Members}, State) ->
    ok = canal_lock_quorum_reports:report(view, #{number => Number, members => Members}),
    ok = canal_lock_quorum_connections:members(Members),
    State#state{number = Number, members = Members};
output({answer, Request, Answer}, State = #state{changing = Changing}) ->
    {From, Others} = maps:take(Request, Changing),
    gen_server:reply(From, Answer),
    State#state{changing = Others};
output(lost, State = #state{config = #{state_file := Path}}) ->
    ok = canal_lock_quorum_reports:report(lost_member, #{path => Path}),
    State;
output({other_cluster, Node, _Cluster}, State) ->
    ok = canal_lock_quorum_reports:report(other_cluster, #{node => Node}),
    State;
output({other_list, Node}, State) ->
    ok = canal_lock_quorum_reports:report(other_list, #{node => Node}),
    State;
output({bad_frame, Node, Why}, State) ->
    report(bad_frame, Node, #{node => Node, why => Why}, State).

%% A separate process makes the write, because a disk can be slow. At most one write runs at a time.
store(State = #state{storing = none, wanted = {N, Content}, config = #{state_file := Path}}) ->
    %% Here and not in that process, which may begin after the next voter's process has written.
    Number = canal_lock_quorum_state_file:number(),
    State#state{storing = {spawn_io(write, [Path, Content, Number]), N}};
store(State) ->
    State.

%% The exit reason is the result: the voter's process receives it in the 'DOWN' message.
-spec open(none | binary()) -> no_return().
open(Path) ->
    exit(canal_lock_quorum_state_file:read(Path)).

-spec write(binary(), Content :: binary(), Number :: pos_integer()) -> no_return().
write(Path, Content, Number) ->
    exit(canal_lock_quorum_nif:state_store(Path, Content, Number)).

stored(N, {ok, true}, State = #state{wanted = Wanted}) ->
    IsLast = element(1, Wanted) =:= N,
    Left = case IsLast of true -> none; false -> Wanted end,
    add({stored, N}, store(started(State#state{wanted = Left})));
stored(_, Failure, State) ->
    %% Until then, no other write.
    Timer = erlang:start_timer(?STORE_RETRY_MS, self(), store),
    Reported = report_not_stored(Failure, State#state{storing = {Timer, retry}}),
    add({not_stored, sentence(Failure)}, Reported).

report_not_stored(Failure, State = #state{config = #{state_file := Path}}) ->
    Sentence = sentence(Failure),
    report(not_stored, Sentence, #{path => Path, why => Sentence}, State).

sentence({error, Sentence}) when is_binary(Sentence) -> Sentence;
sentence({ok, false}) -> <<"another process of this node has written it">>;
sentence(Failure) -> unicode:characters_to_binary(canal_lock_text:short(Failure, 200)).

report_late(State = #state{config = #{state_file := Path}}) ->
    report(store_late, Path, #{path => Path, after_ms => ?STORE_LATE_MS}, State).

report(What, Subject, Details, State = #state{reported = Reported}) ->
    State#state{reported = canal_lock_quorum_log_limit:report(What, Subject, Details, Reported)}.
