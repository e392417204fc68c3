%% @private
%% Runs the voter of this node: passes the frames of agents to the voter's state machine in the native library, and
%% sends its answers.
%%
%% A step takes all frames that are in the mailbox, and sends each agent one answer for all of its frames. If this
%% process is killed, the next one continues with the same state machine, and only the messages in its mailbox are lost.
%%
%% A new voter starts when its life is stored (canal_lock_quorum_state). Until then this process only collects frames.
%%
%% A client that sends more than it should gets no more of this process's time than others: of its frames in one step,
%% only the last ones count.
-module(canal_lock_quorum_voter).

-behaviour(gen_server).

-export([start_link/1, state/0, clients/0, open/3, write/3]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, handle_continue/2, terminate/2]).

%% The maximum number of events in one step. A frame can be long, and a step should take less than a millisecond.
-define(MAX_EVENTS, 32).

%% The number of frames of a client in one step. An agent has one batch in flight, and another one after a second if it
%% gets no answer.
-define(MAX_FRAMES, 4).

%% The number of messages after which a step runs, even if most of their frames do not count.
-define(MAX_MESSAGES, 1000).

%% The pause after a failed write to the fence file. A full disk rarely recovers sooner.
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
    %% How many frames of each client these have, and how many frames of clients were left out.
    frames = #{} :: #{canal_lock_quorum_nif:client() => pos_integer()},
    left_out = 0 :: non_neg_integer(),
    timer = none :: canal_lock_quorum_steps:timer(),
    %% Whether it voted for writers after the last step: its quarantine is over, it has fences to give, and no conflict.
    is_voting = false :: boolean(),
    %% Frames for busy connections.
    sending = #{} :: canal_lock_quorum_wire:sending(),
    reported = #{} :: canal_lock_quorum_repeated:reported(),
    %% What the state file should contain, and what it contains. `none' without a file.
    wanted = none :: none | canal_lock_quorum_nif:state(),
    stored = none :: none | canal_lock_quorum_nif:state(),
    %% The clients of which the machine waits until they are stored. The file is written also if it has them already.
    registering = [] :: [canal_lock_quorum_nif:client()],
    %% Since when (monotonic, ms) all members of this and of the earlier lists have this one.
    heard = none :: none | integer(),
    %% Whether it grants nothing new because of canal_lock_quorum_lists.
    is_conflicted = false :: boolean(),
    %% The current write: the monitor of the process that writes, and what it writes. Or the timer of the next try.
    storing = none :: none | {reference(), canal_lock_quorum_nif:state() | retry}
}).

-spec start_link(canal_lock_quorum_config:config()) -> {ok, pid()} | {error, term()}.
start_link(Config) ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, Config, []).

%% Whether the voter votes; whether it has neither votes nor waiting requests; how many requests wait; and how many in
%% the partition of names in which most wait.
-spec state() -> #{
    voting := boolean(), empty := boolean(), queued := non_neg_integer(), longest_queue := non_neg_integer()
}.
state() ->
    canal_lock_quorum_steps:ask(?MODULE, state).

%% The clients that this voter knows. `not_known' while it starts.
-spec clients() -> [canal_lock_quorum:client_status()] | not_known.
clients() ->
    canal_lock_quorum_steps:ask(?MODULE, clients).

init(Config = #{setup := Setup}) ->
    %% So that terminate/2 runs at a clean shutdown.
    _ = process_flag(trap_exit, true),
    %% Under load the mailbox is long, and garbage collection need not traverse it.
    _ = process_flag(message_queue_data, off_heap),
    case canal_lock_quorum_nif:voter_adopt(Setup) of
        nil ->
            {ok, #state{config = Config}, {continue, open}};
        {Voter, Life, Quarantine_ms, Clients} ->
            State = canal_lock_quorum_state:adopted(Config, Life, Quarantine_ms, Clients),
            ok = say_hello(same),
            %% The file may lack some of the clients. The machine says again of which it waits.
            Adopted = #state{config = Config, voter = Voter, wanted = State, stored = State},
            {ok, compare_lists(Adopted), {continue, step}}
    end.

%% A separate process reads and writes the file, because a disk can be slow.
open(State = #state{config = Config, seen = Seen}) ->
    State#state{opening = spawn_writer(open, [Config, Seen, canal_lock_quorum_state:number()])}.

spawn_writer(Function, Arguments) ->
    {_, Monitor} = spawn_monitor(?MODULE, Function, Arguments),
    _ = erlang:start_timer(?STORE_LATE_MS, self(), {late, Monitor}),
    Monitor.

%% The exit reason is the result: the voter's process receives it in the 'DOWN' message.
-spec open(canal_lock_quorum_config:config(), non_neg_integer(), pos_integer()) -> no_return().
open(Config, Seen, Number) ->
    exit(canal_lock_quorum_state:start(Config, Seen, Number)).

opened({ok, Started = #{start := Start, state := File}}, State) ->
    #state{config = Config = #{setup := Setup}} = State,
    ok = report_found(Started, Config),
    #{conflicted := IsConflicted} = Start,
    Voter = canal_lock_quorum_nif:voter_open(Setup, Start),
    ok = say_hello(canal_lock_quorum_state:former(File)),
    Opened = State#state{voter = Voter, seen = 0, wanted = File, stored = File, is_conflicted = IsConflicted},
    step(compare_lists(Opened));
opened(Failure, State) ->
    _ = erlang:send_after(?STORE_RETRY_MS, self(), open),
    noreply(report_not_stored(Failure, State)).

%% Not before the members of earlier lists are stored.
say_hello(Former) ->
    ok = canal_lock_quorum_lists:started(Former),
    canal_lock_quorum_links:started().

report_found(#{found := {other_node, Node}}, #{fence_file := Path}) ->
    canal_lock_quorum_reports:report(other_node, #{path => Path, node => Node});
report_found(#{found := {unreadable, Sentence}}, #{fence_file := Path}) ->
    canal_lock_quorum_reports:report(no_fences, #{path => Path, why => Sentence});
report_found(#{list_changed := true, previous_members := Previous}, Config) ->
    #{members := Members, fence_file := Path} = Config,
    case [atom_to_binary(Member, utf8) || Member <- Members] of
        Previous ->
            #{setup := #{count := Count, replicas := Replicas}} = Config,
            canal_lock_quorum_reports:report(voters_changed, #{path => Path, replicas => Replicas, count => Count});
        _ ->
            canal_lock_quorum_reports:report(members_changed, #{path => Path, previous => Previous, now => Members})
    end;
report_found(_, _) ->
    ok.

%% Another member knows a later start of this voter than the state file had. The voter has stopped. The next one begins
%% a later life, and learns its fences from the others.
superseded(Life, State = #state{config = #{fence_file := Path}}) ->
    _ = Path =/= none andalso canal_lock_quorum_reports:report(superseded, #{path => Path}),
    reopen(State#state{seen = Life}).

reopen(State = #state{storing = Storing, timer = Timer}) ->
    _ = case Storing of {Monitor, _} -> demonitor(Monitor, [flush]); none -> true end,
    _ = case Timer of {Reference, _} -> erlang:cancel_timer(Reference); none -> false end,
    Ended = State#state{voter = none, wanted = none, stored = none, storing = none, registering = []},
    open(Ended#state{heard = none, events = [], frames = #{}, left_out = 0, timer = none, is_voting = false}).

handle_call(state, From, State = #state{voter = Voter, is_voting = IsVoting, is_conflicted = IsConflicted}) ->
    {IsEmpty, Queued, Longest} =
        case Voter of
            none -> {true, 0, 0};
            _ -> canal_lock_quorum_nif:voter_load(Voter)
        end,
    %% A conflict that this process knows may not have reached the state machine yet.
    Votes = IsVoting andalso not IsConflicted,
    gen_server:reply(From, #{voting => Votes, empty => IsEmpty, queued => Queued, longest_queue => Longest}),
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
            ok = canal_lock_quorum_links:ignored(From),
            noreply(State);
        Event = {client_frame, Client, _} ->
            add(Event, limited(Client, State));
        Event ->
            add(Event, State)
    end;
handle_info({{sent, Key}, _, process, _, _}, State = #state{config = Config, sending = Sending}) ->
    noreply(State#state{sending = canal_lock_quorum_wire:sent(Key, Config, Sending)});
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
handle_info({'EXIT', _Pid, normal}, State) ->
    noreply(State);
handle_info({'EXIT', _Pid, Reason}, State) ->
    {stop, Reason, State};
handle_info(Message, State) ->
    ok = canal_lock_quorum_reports:report(unknown_message, #{process => voter, message => Message}),
    noreply(State).

handle_continue(open, State) ->
    {noreply, open(State)};
handle_continue(step, State) ->
    step(State).

%% After a clean shutdown no process continues with the votes.
terminate(_Reason, #state{voter = none}) ->
    ok;
terminate(Reason, #state{voter = Voter}) ->
    case canal_lock_exit:is_clean_shutdown(Reason) of
        true -> canal_lock_quorum_nif:voter_close(Voter);
        false -> ok
    end.

%% Counts a frame of a client, and leaves out the first one that it has in this step if it has too many.
limited(Client, State = #state{frames = Frames}) ->
    case Frames of
        #{Client := Count} when Count >= ?MAX_FRAMES ->
            #state{events = Events, left_out = LeftOut} = State,
            State#state{events = without_first(Client, Events), left_out = LeftOut + 1};
        _ ->
            State#state{frames = maps:update_with(Client, fun(Count) -> Count + 1 end, 1, Frames)}
    end.

%% The newest event comes first.
without_first(Client, Events) ->
    IsOther = fun({client_frame, From, _}) -> From =/= Client; (_) -> true end,
    {Before, From} = lists:splitwith(IsOther, lists:reverse(Events)),
    lists:reverse(Before ++ lists:nthtail(min(1, length(From)), From)).

%% Frames that arrive before the voter: the first ones. An agent repeats what is lost.
add(_Event, State = #state{voter = none, events = Events}) when length(Events) >= ?MAX_EVENTS ->
    {noreply, State};
add(Event, State = #state{voter = none, events = Events}) ->
    {noreply, State#state{events = [Event | Events]}};
%% A step runs when the mailbox is empty, or when MAX_EVENTS events have been collected.
add(Event, State = #state{events = Events}) ->
    case State#state{events = [Event | Events]} of
        Added = #state{left_out = LeftOut} when length(Events) + 1 >= ?MAX_EVENTS; LeftOut >= ?MAX_MESSAGES ->
            step(Added);
        Added ->
            noreply(Added)
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
    Stepped = State#state{events = [], frames = #{}, left_out = 0, timer = Waiting, is_voting = IsVoting},
    {noreply, store(lists:foldl(fun output/2, with_lease(Stepped), Outputs))}.

output({send, Kind, To, Frame}, State = #state{config = Config, sending = Sending}) ->
    case canal_lock_quorum_wire:send(Kind, To, Frame, Config, Sending) of
        %% Usually. Then the state is not copied.
        Sending -> State;
        Changed -> State#state{sending = Changed}
    end;
output({store, Mark}, State = #state{wanted = Wanted}) ->
    State#state{wanted = canal_lock_quorum_state:with_mark(Mark, Wanted)};
output({register, Client}, State = #state{wanted = Wanted, registering = Registering}) ->
    case canal_lock_quorum_state:register(Client, Wanted) of
        {ok, More} -> State#state{wanted = More, registering = [Client | Registering]};
        bad_name -> report(bad_client, Client, #{node => Client}, State)
    end;
output({unregister, Client}, State = #state{wanted = Wanted, registering = Registering}) ->
    Others = [Other || Other <- Registering, Other =/= Client],
    State#state{wanted = canal_lock_quorum_state:unregister(Client, Wanted), registering = Others};
output({superseded, Life}, State) ->
    superseded(Life, State);
output({bad_frame, From, Why}, State = #state{config = Config}) ->
    Node = canal_lock_quorum_wire:node_of(From, Config),
    report(bad_frame, Node, #{node => Node, why => Why}, State).

%% A voter that votes has ended its quarantine: longer leases of earlier lives are over.
with_lease(State = #state{is_voting = true, wanted = Wanted = #{lease_ms := Longest_ms}, config = Config}) ->
    case canal_lock_quorum_config:voter_lease_ms(Config) of
        Lease_ms when Lease_ms < Longest_ms ->
            State#state{wanted = canal_lock_quorum_state:with_lease(Lease_ms, Wanted)};
        _ ->
            State
    end;
with_lease(State) ->
    State.

%% The voter votes when there is no conflict, and the file says that no member has an earlier list.
compare_lists(State = #state{config = Config, stored = Stored, is_conflicted = Before}) ->
    Conflicts = canal_lock_quorum_lists:conflicts(Config),
    Former = canal_lock_quorum_state:former(Stored),
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

%% All members have this list. A client that has the earlier one can still count on votes of their earlier lives, which
%% no register of this list has. So a voter that may have clients waits until these votes have expired.
heard(State = #state{config = Config, wanted = Wanted, heard = Heard}) ->
    #{clients := Clients, lease_ms := Longest_ms} = Wanted,
    #{clients := Allowed} = Config,
    Now_ms = erlang:monotonic_time(millisecond),
    Lease_ms = max(Longest_ms, canal_lock_quorum_config:voter_lease_ms(Config)),
    case Allowed =:= none andalso Clients =:= [] of
        true ->
            State#state{wanted = canal_lock_quorum_state:agreed(Wanted)};
        false when Heard =:= none ->
            _ = erlang:send_after(Lease_ms, self(), waited),
            State#state{heard = Now_ms};
        false when Now_ms - Heard >= Lease_ms ->
            State#state{wanted = canal_lock_quorum_state:agreed(Wanted)};
        false ->
            State
    end.

add_conflict(IsConflicted, State = #state{events = Events}) ->
    State#state{is_conflicted = IsConflicted, events = [{conflict, IsConflicted} | Events]}.

%% A separate process makes the write, because a disk can be slow. At most one write runs at a time.
store(State = #state{storing = none, wanted = Wanted, stored = Stored, registering = Registering}) when
    Wanted =/= Stored orelse Registering =/= [], Wanted =/= none
->
    #state{config = #{fence_file := Path}} = State,
    %% Here and not in that process, which may begin after the next voter's process has written.
    Number = canal_lock_quorum_state:number(),
    State#state{storing = {spawn_writer(write, [Path, Wanted, Number]), Wanted}};
store(State) ->
    State.

%% As `open/3': the exit reason is the result.
-spec write(binary(), canal_lock_quorum_nif:state(), pos_integer()) -> no_return().
write(Path, Content, Number) ->
    exit(canal_lock_quorum_nif:state_store(Path, Content, Number)).

stored(Content = #{below := Mark, former := Former, clients := Clients}, {ok, true}, State) ->
    _ = Former =:= [] andalso canal_lock_quorum_lists:agreed(),
    Compared = #state{events = Events, registering = Registering} = compare_lists(State#state{stored = Content}),
    {Registered, Left} = lists:partition(fun(Client) -> lists:member(Client, Clients) end, Registering),
    case [{stored, Mark} || Mark =/= nil] ++ [{registered, Registered} || Registered =/= []] of
        [] -> noreply(store(Compared));
        [Event | More] -> add(Event, Compared#state{registering = Left, events = More ++ Events})
    end;
stored(_, {ok, false}, State) ->
    %% A process that was killed has begun a later life since.
    noreply(reopen(State));
stored(_, Failure, State) ->
    %% Until then, no other write.
    Timer = erlang:start_timer(?STORE_RETRY_MS, self(), store),
    noreply(report_not_stored(Failure, State#state{storing = {Timer, retry}})).

report_not_stored(Failure, State = #state{config = #{fence_file := Path}}) ->
    Why = case Failure of {error, Sentence} -> Sentence; _ -> Failure end,
    report(not_stored, Why, #{path => Path, why => Why}, State).

report_late(State = #state{config = #{fence_file := Path}}) ->
    report(store_late, Path, #{path => Path, after_ms => ?STORE_LATE_MS}, State).

report(What, Subject, Details, State = #state{reported = Reported}) ->
    State#state{reported = canal_lock_quorum_repeated:report(What, Subject, Details, Reported)}.
