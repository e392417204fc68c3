%% @private
%% Runs the voter of this node: passes the frames of agents to the voter's state machine in the native library, and
%% sends its answers.
%%
%% A step takes all frames that are in the mailbox, and sends each agent one answer for all of its frames.
%%
%% A voter starts when its life is stored (canal_lock_quorum_state_file). Until then this process only collects frames.
%% If this process is killed, the next one starts another voter.
-module(canal_lock_quorum_voter).

-behaviour(gen_server).

-export([start_link/1, state/0, clients/0, open/3, write/3]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, handle_continue/2]).

%% The maximum number of events in one step. A frame can be long, and a step should take less than a millisecond.
-define(MAX_EVENTS, 32).

%% The pause after a failed write to the state file. A full disk rarely recovers sooner.
-define(STORE_RETRY_MS, 1000).

%% A write that takes longer is reported: the disk may hang. Until the write returns, there is no other one.
-define(STORE_LATE_MS, 2000).

-record(state, {
    config :: canal_lock_quorum_config:config(),
    %% `none' until its life is stored.
    voter = none :: none | canal_lock_quorum_nif:voter(),
    %% The process that stores the life.
    opening = none :: none | reference(),
    %% 0, or a life of this node that another member knows: the next voter begins a later one.
    seen = 0 :: non_neg_integer(),
    %% The newest first.
    events = [] :: [canal_lock_quorum_nif:voter_event()],
    timer = none :: canal_lock_quorum_steps:timer(),
    %% Whether it voted for writers after the last step: its quarantine is over, it has fences to give, and no conflict.
    is_voting = false :: boolean(),
    %% Frames for busy connections.
    sending = #{} :: canal_lock_quorum_wire:sending(),
    reported = #{} :: canal_lock_quorum_log_limit:reported(),
    %% What the state file should contain, and what it contains. `none' without a file.
    wanted = none :: none | canal_lock_quorum_nif:state(),
    stored = none :: none | canal_lock_quorum_nif:state(),
    %% Whether the machine waits until it is stored that there may be guests. The file is written also if it says so: a
    %% write that failed may have changed it.
    awaits_guests = false :: boolean(),
    %% Since when (monotonic, ms) all members of this and of the earlier lists have this one.
    heard = none :: none | integer(),
    %% Whether it grants nothing new because of canal_lock_quorum_lists.
    is_misconfigured = false :: boolean(),
    %% The current write: the monitor of the process that writes, and what it writes. Or the timer of the next try.
    storing = none :: none | {reference(), canal_lock_quorum_nif:state() | retry}
}).

-spec start_link(canal_lock_quorum_config:config()) -> {ok, pid()} | {error, term()}.
start_link(Config) ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, Config, []).

%% Whether the voter votes, and the members that must answer before; whether it has neither votes nor waiting requests;
%% and how many requests wait.
-spec state() ->
    #{voting := boolean(), waits_for := [node()], empty := boolean(), queued := non_neg_integer()}.
state() ->
    canal_lock_quorum_steps:ask(?MODULE, state).

%% The clients that this voter knows. `not_known' while it starts.
-spec clients() -> [canal_lock_quorum:client_status()] | not_known.
clients() ->
    canal_lock_quorum_steps:ask(?MODULE, clients).

init(Config) ->
    ok = net_kernel:monitor_nodes(true, #{node_type => all}),
    %% Under load the mailbox is long, and garbage collection need not traverse it.
    _ = process_flag(message_queue_data, off_heap),
    {ok, #state{config = Config}, {continue, open}}.

%% A separate process reads and writes the file, because a disk can be slow.
open(State = #state{config = Config, seen = Seen}) ->
    State#state{opening = spawn_writer(open, [Config, Seen, canal_lock_quorum_state_file:number()])}.

spawn_writer(Function, Arguments) ->
    {_, Monitor} = spawn_monitor(?MODULE, Function, Arguments),
    _ = erlang:start_timer(?STORE_LATE_MS, self(), {late, Monitor}),
    Monitor.

%% The exit reason is the result: the voter's process receives it in the 'DOWN' message.
-spec open(canal_lock_quorum_config:config(), non_neg_integer(), pos_integer()) -> no_return().
open(Config, Seen, Number) ->
    exit(canal_lock_quorum_state_file:start(Config, Seen, Number)).

opened({ok, Started = #{start := Start, state := File}}, State) ->
    #state{config = Config = #{setup := Setup}} = State,
    ok = report_found(Started, Config),
    #{misconfigured := IsMisconfigured} = Start,
    Voter = canal_lock_quorum_nif:voter_open(Setup, Start),
    ok = say_hello(canal_lock_quorum_state_file:former(File)),
    Opened = State#state{voter = Voter, seen = 0, wanted = File, stored = File, is_misconfigured = IsMisconfigured},
    step(compare_lists(Opened));
opened(Failure, State) ->
    _ = erlang:send_after(?STORE_RETRY_MS, self(), open),
    noreply(report_not_stored(Failure, State)).

%% Not before the members of earlier lists are stored.
say_hello(Former) ->
    ok = canal_lock_quorum_lists:started(Former),
    canal_lock_quorum_connections:started().

report_found(#{found := {lost, Sentence}}, #{state_file := Path}) ->
    canal_lock_quorum_reports:report(file_lost, #{path => Path, why => Sentence});
report_found(#{list_changed := true, previous_members := Previous}, #{members := Members, state_file := Path}) ->
    canal_lock_quorum_reports:report(members_changed, #{path => Path, previous => Previous, now => Members});
report_found(_, _) ->
    ok.

%% Another member knows a later start of this voter than the state file had. The voter has stopped. The next one begins
%% a later life, and learns its fences from the others.
superseded(Life, State = #state{config = #{state_file := Path}}) ->
    _ = Path =/= none andalso canal_lock_quorum_reports:report(superseded, #{path => Path}),
    reopen(State#state{seen = Life}).

reopen(State = #state{storing = Storing, timer = Timer}) ->
    _ = case Storing of {Monitor, _} -> demonitor(Monitor, [flush]); none -> true end,
    _ = case Timer of {Reference, _} -> erlang:cancel_timer(Reference); none -> false end,
    Ended = State#state{voter = none, wanted = none, stored = none, storing = none, awaits_guests = false},
    open(Ended#state{heard = none, events = [], timer = none, is_voting = false}).

handle_call(state, From, State) ->
    #state{voter = Voter, is_voting = IsVoting, is_misconfigured = IsMisconfigured, config = Config} = State,
    #{members := Members} = Config,
    {IsEmpty, Queued, Places} =
        case Voter of
            none -> {true, 0, []};
            _ -> canal_lock_quorum_nif:voter_status(Voter)
        end,
    WaitsFor = [lists:nth(Place + 1, Members) || Place <- Places],
    %% A conflict that this process knows may not have reached the state machine yet.
    Votes = IsVoting andalso not IsMisconfigured,
    gen_server:reply(From, #{voting => Votes, waits_for => WaitsFor, empty => IsEmpty, queued => Queued}),
    noreply(State);
handle_call(clients, From, State = #state{voter = none}) ->
    gen_server:reply(From, not_known),
    noreply(State);
handle_call(clients, From, State = #state{voter = Voter}) ->
    Clients = canal_lock_quorum_nif:voter_clients(Voter),
    gen_server:reply(From, [
        #{node => binary_to_atom(Name, utf8), votes => Votes, waiting => Waiting, heard_ms => Heard_ms}
     || {Name, Votes, Waiting, Heard_ms} <- Clients
    ]),
    noreply(State);
handle_call(Request, From, State) ->
    ok = canal_lock_quorum_reports:report(unknown_message, #{process => voter, message => Request}),
    gen_server:reply(From, {error, unknown_call}),
    noreply(State).

handle_cast(lists_changed, State = #state{voter = none}) ->
    noreply(State);
handle_cast(lists_changed, State) ->
    noreply(compare_lists(State));
handle_cast(Request, State) ->
    ok = canal_lock_quorum_reports:report(unknown_message, #{process => voter, message => Request}),
    noreply(State).

handle_info({canal_lock_quorum, Fingerprint, From, Frame}, State = #state{config = Config}) ->
    case canal_lock_quorum_wire:received_by_voter(Fingerprint, From, Frame, Config) of
        ignored ->
            ok = canal_lock_quorum_connections:ignored(From),
            noreply(State);
        Event ->
            add(Event, State)
    end;
handle_info({{sent, Key}, _, process, _, _}, State = #state{config = Config, sending = Sending}) ->
    noreply(State#state{sending = canal_lock_quorum_wire:sent(Key, Config, Sending)});
handle_info({nodedown, Node, _}, State = #state{config = Config}) ->
    case Config of
        #{places := #{Node := Place}} -> add({down, Place}, State);
        #{} -> add({client_down, atom_to_binary(Node, utf8)}, State)
    end;
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
handle_info({'DOWN', Monitor, process, _, Outcome}, State = #state{storing = {Monitor, Content}}) ->
    stored(Content, Outcome, State#state{storing = none});
handle_info(open, State = #state{voter = none, opening = none}) ->
    noreply(open(State));
handle_info(waited, State = #state{voter = none}) ->
    noreply(State);
handle_info(waited, State) ->
    noreply(compare_lists(State));
handle_info({timeout, Timer, store}, State = #state{storing = {Timer, retry}}) ->
    noreply(store(State#state{storing = none}));
handle_info({timeout, _Replaced, store}, State) ->
    noreply(State);
handle_info({timeout, _, {late, Monitor}}, State = #state{opening = Opening, storing = Storing}) ->
    case Monitor =:= Opening orelse (is_tuple(Storing) andalso Monitor =:= element(1, Storing)) of
        true -> noreply(report_late(State));
        false -> noreply(State)
    end;
handle_info(Message, State) ->
    ok = canal_lock_quorum_reports:report(unknown_message, #{process => voter, message => Message}),
    noreply(State).

handle_continue(open, State) ->
    {noreply, open(State)}.

%% Frames that arrive before the voter: the first ones. An agent repeats what is lost.
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
    {Outputs, Wait, IsVoting} = canal_lock_quorum_nif:voter_step(Voter, lists:reverse(Events)),
    Waiting = canal_lock_quorum_steps:add_timer(Wait, Timer),
    Stepped = State#state{events = [], timer = Waiting, is_voting = IsVoting},
    {noreply, store(lists:foldl(fun output/2, with_lease(Stepped), Outputs))}.

output({send, Kind, To, Frame}, State = #state{config = Config, sending = Sending}) ->
    case canal_lock_quorum_wire:send(Kind, To, Frame, Config, Sending) of
        %% Usually. Then the state is not copied.
        Sending -> State;
        Changed -> State#state{sending = Changed}
    end;
output({store, Mark}, State = #state{wanted = Wanted}) ->
    State#state{wanted = canal_lock_quorum_state_file:with_mark(Mark, Wanted)};
output({guests, Guests}, State = #state{wanted = Wanted}) ->
    State#state{wanted = canal_lock_quorum_state_file:with_guests(Guests, Wanted), awaits_guests = Guests};
output({superseded, Life}, State) ->
    superseded(Life, State);
output({bad_frame, From, Why}, State = #state{config = Config}) ->
    Node = canal_lock_quorum_wire:node_of(From, Config),
    report(bad_frame, Node, #{node => Node, why => Why}, State).

%% A voter that votes has ended its quarantine: longer leases of earlier lives are over.
with_lease(State = #state{is_voting = true, wanted = Wanted = #{lease_ms := Longest_ms}, config = Config}) ->
    case maps:get(lease_ms, Config) of
        Lease_ms when Lease_ms < Longest_ms ->
            State#state{wanted = canal_lock_quorum_state_file:with_lease(Lease_ms, Wanted)};
        _ ->
            State
    end;
with_lease(State) ->
    State.

%% The voter votes when there is no conflict, and the file says that no member has an earlier list.
compare_lists(State = #state{config = Config, stored = Stored, is_misconfigured = Before}) ->
    Conflicts = canal_lock_quorum_lists:conflicts(Config),
    Former = canal_lock_quorum_state_file:former(Stored),
    Waits = Former =/= [],
    Compared =
        case Waits andalso canal_lock_quorum_lists:is_heard(Config, Former, Conflicts) of
            true -> heard(State);
            false -> State#state{heard = none}
        end,
    case Conflicts =/= [] orelse Waits of
        Before -> Compared;
        Now -> add_conflict(Now, Compared)
    end.

%% All members have this list. A client that has the earlier one can still count on votes of their earlier lives. So a
%% voter that may have clients waits until these votes have expired.
heard(State = #state{config = Config = #{may_have_clients := MayHaveClients}, wanted = Wanted, heard = Heard}) ->
    #{guests := Guests, lease_ms := Longest_ms} = Wanted,
    Now_ms = erlang:monotonic_time(millisecond),
    Lease_ms = max(Longest_ms, maps:get(lease_ms, Config)),
    case Guests orelse MayHaveClients of
        false ->
            State#state{wanted = canal_lock_quorum_state_file:agreed(Wanted)};
        true when Heard =:= none ->
            _ = erlang:send_after(Lease_ms, self(), waited),
            State#state{heard = Now_ms};
        true when Now_ms - Heard >= Lease_ms ->
            State#state{wanted = canal_lock_quorum_state_file:agreed(Wanted)};
        true ->
            State
    end.

add_conflict(IsMisconfigured, State = #state{events = Events}) ->
    State#state{is_misconfigured = IsMisconfigured, events = [{misconfigured, IsMisconfigured} | Events]}.

%% A separate process makes the write, because a disk can be slow. At most one write runs at a time.
store(State = #state{storing = none, wanted = Wanted, stored = Stored, awaits_guests = Awaits}) when
    Wanted =/= Stored orelse Awaits, Wanted =/= none
->
    #state{config = #{state_file := Path}} = State,
    %% Here and not in that process, which may begin after the next voter's process has written.
    Number = canal_lock_quorum_state_file:number(),
    State#state{storing = {spawn_writer(write, [Path, Wanted, Number]), Wanted}};
store(State) ->
    State.

%% As `open/3': the exit reason is the result.
-spec write(binary(), canal_lock_quorum_nif:state(), pos_integer()) -> no_return().
write(Path, Content, Number) ->
    exit(canal_lock_quorum_nif:state_store(Path, Content, Number)).

stored(Content = #{mark := Mark, former := Former, guests := Guests}, {ok, true}, State) ->
    _ = Former =:= [] andalso canal_lock_quorum_lists:agreed(),
    Compared = #state{events = Events, awaits_guests = Awaits} = compare_lists(State#state{stored = Content}),
    case [{stored, Mark} || Mark =/= nil] ++ [guests_stored || Awaits, Guests] of
        [] -> noreply(store(Compared));
        [Event | More] -> add(Event, Compared#state{awaits_guests = Awaits andalso not Guests, events = More ++ Events})
    end;
stored(_, {ok, false}, State) ->
    %% A process that was killed has begun a later life since.
    noreply(reopen(State));
stored(_, Failure, State) ->
    %% Until then, no other write.
    Timer = erlang:start_timer(?STORE_RETRY_MS, self(), store),
    noreply(report_not_stored(Failure, State#state{storing = {Timer, retry}})).

report_not_stored(Failure, State = #state{config = #{state_file := Path}}) ->
    Why = case Failure of {error, Sentence} -> Sentence; _ -> Failure end,
    report(not_stored, Why, #{path => Path, why => Why}, State).

report_late(State = #state{config = #{state_file := Path}}) ->
    report(store_late, Path, #{path => Path, after_ms => ?STORE_LATE_MS}, State).

report(What, Subject, Details, State = #state{reported = Reported}) ->
    State#state{reported = canal_lock_quorum_log_limit:report(What, Subject, Details, Reported)}.
