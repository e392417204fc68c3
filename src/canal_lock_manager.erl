%% @private
%% The processes that keep the table of this node open. The one that is registered as `canal_lock' is the manager: it
%% opens the table, reclaims idle keys, and starts the proxies of holders on other nodes. It decides no local acquire or
%% release. The others are its standbys. When the manager ends, one of them takes over, with the same table.
%%
%% ```
%%   start_link ---- the name is free ----> manager <---- the name is free, and the table open ----.
%%        |                                                                                        |
%%        '--------- the name is taken ---> standby ---- 'DOWN' of the manager --------------------'
%%                                             '-------- 'DOWN', and the table closed by stop/0 ---> ends
%% '''
%%
%% The native library knows all of them, and monitors them. It closes the table when the last one ends, unless that
%% crashes with `keep_on_crash'. Without this option the process does not trap exits: as the manager of the original
%% `canal_lock', it outlives a parent that exits with `normal'. With it, the process traps exits, to distinguish a clean
%% shutdown from a crash.
-module(canal_lock_manager).

-behaviour(gen_server).

-export([start_link/1, start_link/2, stops/0, stop/0, sweep/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, handle_continue/2, terminate/2, code_change/3]).
-export([format_status/1]).

-define(NAME, canal_lock).

%% An idle key is reclaimed after two intervals of the sweep. The interval is short enough to free the memory of a burst
%% of keys soon, and long compared with a sweep of a million keys (about 0.2 s).
-define(DEFAULTS, #{max_per => undefined, sweep_interval_ms => 5000, max_waiting => 100_000}).

%% Keys that one step of the sweep checks or frees: 0.05 to 0.1 ms, depending on the CPU caches. The VM counts each
%% step as a part of the timeslice.
-define(BUDGET, 256).

%% The pause before the next attempt to free memory that a thread may still read. Most reads take microseconds.
-define(WAIT_MS, 1).

%% Attempts to free the table that this manager closes. Only an inspection of many keys reads for longer than their
%% pauses (100 ms). The next manager then frees the rest.
-define(MAX_WAITS, 100).

%% More processes than any VM has.
-define(NO_LIMIT, (1 bsl 60)).

%% While the manager opens or closes the table, another process cannot join it. It tries again after a pause, up to
%% this many times (5 s). Closing a million keys takes 0.3 s.
-define(RETRY_MS, 1).
-define(MAX_RETRIES, 5000).

%% How long a standby waits until the manager, which may be suspended, has its options.
-define(JOIN_MS, 5000).

%% Counts the calls of stop/0.
-define(STOPS, {?MODULE, stops}).

%% A process that is not the manager.
-record(standby, {
    keep_on_crash :: boolean(),
    handle = none :: canal_lock_nif:handle() | none,
    %% Of the manager.
    monitor = none :: reference() | none,
    %% The options in force, and before it has joined a manager, its own.
    options :: canal_lock:options()
}).

-record(state, {
    %% Empty. The original `canal_lock' counted in a table of this name, and its users pass the second element of the
    %% state to ets:tab2list/1.
    table :: ets:tid() | atom(),
    handle :: canal_lock_nif:handle(),
    keep_on_crash :: boolean(),
    %% The options in force, without defaults: of each option, the first value that a start has given.
    options :: canal_lock:options(),
    standbys = #{} :: #{Monitor :: reference() => pid()},
    %% stop/0 closes the table, although others keep it open.
    is_stopped = false :: boolean(),
    %% Starts the next sweep.
    timer :: reference(),
    %% Tasks that are done step by step, in this order.
    work :: [dismantle | sweep | {answer, gen_server:from()}],
    %% The kinds of reports that this manager has made. It makes each once, because a process that sends messages in a
    %% loop could fill the logs with them.
    reported = [] :: [unknown_message | event_failed]
}).

%% Whether a state is that of a process with keep_on_crash.
-define(KEEPS(State),
    (is_record(State, standby) andalso State#standby.keep_on_crash orelse
        is_record(State, state) andalso State#state.keep_on_crash)
).

-spec start_link(canal_lock:options()) -> {ok, pid()} | {error, term()}.
start_link(Options) ->
    case canal_lock_library:ensure_loaded() of
        ok -> gen_server:start_link(?MODULE, Options, []);
        {error, Sentences} -> {error, {nif_not_loaded, Sentences}}
    end.

%% The same for a supervisor, which has read `stops/0' when it started: it does not start a process again after stop/0.
-spec start_link(canal_lock:options(), Stops :: non_neg_integer()) -> {ok, pid()} | ignore | {error, term()}.
start_link(Options, Stops) ->
    case stops() of
        Stops -> start_link(Options);
        _ -> ignore
    end.

%% How often this node has called stop/0.
-spec stops() -> non_neg_integer().
stops() ->
    case persistent_term:get(?STOPS, none) of
        none -> 0;
        Counter -> counters:get(Counter, 1)
    end.

%% Only the manager calls it, so there is one counter.
count_stop() ->
    _ = [persistent_term:put(?STOPS, counters:new(1, [])) || persistent_term:get(?STOPS, none) =:= none],
    counters:add(persistent_term:get(?STOPS), 1, 1).

%% Closes the table and ends the manager; its standbys end after it. When it returns, the manager has ended. Exits with
%% the reason of a manager that could not close the table.
-spec stop() -> ok.
stop() ->
    Monitor = monitor(process, ?NAME),
    ok = canal_lock_exit:call(?NAME, stop, infinity),
    receive
        {'DOWN', Monitor, process, _, normal} -> ok;
        {'DOWN', Monitor, process, _, Reason} -> exit(Reason)
    end.

%% Waits for two passes of the sweep. They reclaim every key that stays idle during the call.
-spec sweep() -> ok.
sweep() ->
    gen_server:call(?NAME, sweep, infinity).

init(Options) ->
    {Keep, Others} = maps:take(keep_on_crash, maps:merge(#{keep_on_crash => false}, Options)),
    _ = process_flag(trap_exit, Keep),
    start(#standby{keep_on_crash = Keep, options = Others}, ?MAX_RETRIES).

%% Becomes the manager if there is none, or a standby of it.
start(Standby = #standby{keep_on_crash = Keep}, Retries) ->
    case is_registered() orelse canal_lock_nif:join(Keep) of
        true ->
            {ok, manage(Standby), {continue, work}};
        none when Retries > 0 ->
            timer:sleep(?RETRY_MS),
            start(Standby, Retries - 1);
        none ->
            {stop, {already_started, whereis(?NAME)}};
        Handle ->
            {ok, follow(Standby#standby{handle = Handle}), {continue, work}}
    end.

is_registered() ->
    try
        register(?NAME, self())
    catch
        error:badarg -> false
    end.

%% If the manager has just ended, the monitor reports it.
follow(Standby = #standby{options = Options}) ->
    Monitor = monitor(process, ?NAME),
    InForce =
        try
            gen_server:call(?NAME, {join, Options, starter()}, ?JOIN_MS)
        catch
            exit:_ -> Options
        end,
    Standby#standby{monitor = Monitor, options = InForce}.

%% The manager has ended.
take_over(Standby = #standby{handle = Handle}) ->
    case canal_lock_nif:is_open(Handle) andalso is_registered() andalso manage(Standby) of
        State = #state{} -> {noreply, State, {continue, work}};
        false -> take_over_or_end(canal_lock_nif:is_open(Handle), Standby);
        closed -> {stop, normal, Standby}
    end.

take_over_or_end(true, Standby) -> {noreply, follow(Standby)};
take_over_or_end(false, Standby) -> {stop, normal, Standby}.

%% The nearest supervisor or other ancestor of this process that has a name, or its parent.
starter() ->
    [Parent | _] = Ancestors = get('$ancestors'),
    hd([Named || Named <- Ancestors, is_atom(Named)] ++ [Parent]).

manage(#standby{keep_on_crash = Keep, handle = Joined, options = Options}) ->
    ok = canal_lock_reports:open(),
    #{max_per := MaxPer, sweep_interval_ms := Interval_ms, max_waiting := MaxWaiting} = with_defaults(Options),
    case open(Joined, MaxPer, Keep, MaxWaiting) of
        closed ->
            closed;
        Handle ->
            %% From here on nothing may raise: a handle that is collected before its process dies closes no table.
            #state{
                table = ets:new(?NAME, [named_table, protected]),
                handle = Handle,
                keep_on_crash = Keep,
                options = Options,
                timer = schedule_sweep(Handle, Interval_ms),
                %% The previous manager of an adopted table may have died during a pass. This task completes that pass,
                %% so that it does not count for callers of sweep/0.
                work = [dismantle, sweep]
            }
    end.

open(none, MaxPer, Keep, MaxWaiting) ->
    ProcessLimit = erlang:system_info(process_limit),
    in_steps(fun() -> canal_lock_nif:open(ProcessLimit, MaxPer, Keep, MaxWaiting) end);
open(Handle, MaxPer, _Keep, MaxWaiting) ->
    case in_steps(fun() -> canal_lock_nif:adopt(Handle, MaxPer, MaxWaiting) end) of
        ok -> Handle;
        closed -> closed
    end.

%% More processes than any VM has are no limit for the native library.
with_defaults(Options) ->
    Merged = #{max_waiting := MaxWaiting} = maps:merge(?DEFAULTS, Options),
    Merged#{max_waiting := min(MaxWaiting, ?NO_LIMIT)}.

%% Options that no earlier start has given come into force. Others stay as they are, with a warning.
join(Standby, Given, Starter, State = #state{handle = Handle, options = InForce, standbys = Standbys}) ->
    Ignored = maps:filter(fun(Option, Value) -> maps:get(Option, InForce, Value) =/= Value end, Given),
    Report = #{what => options_ignored, ignored => Ignored, in_force => InForce, starter => Starter},
    _ = [canal_lock_reports:warn(Report) || Ignored =/= #{}],
    Options = maps:merge(Given, InForce),
    %% To the new one, too: it may have stopped waiting for the answer.
    _ = [Each ! {canal_lock, options, Options} || Each <- [Standby | maps:values(Standbys)]],
    #{max_per := MaxPer, max_waiting := MaxWaiting} = with_defaults(Options),
    ok = canal_lock_nif:configure(Handle, MaxPer, MaxWaiting),
    State#state{options = Options, standbys = Standbys#{monitor(process, Standby) => Standby}}.

handle_call(Request, {From, _Tag}, State) when node(From) =/= node() ->
    {reply, canal_lock_remote:answer(Request, node(From)), State, {continue, work}};
handle_call({join, Options, Starter}, {Standby, _Tag}, State = #state{}) ->
    Next = join(Standby, Options, Starter, State),
    {reply, Next#state.options, Next, {continue, work}};
handle_call(stop, _From, State = #state{}) ->
    ok = count_stop(),
    {stop, normal, ok, State#state{is_stopped = true}};
handle_call(sweep, From, State = #state{work = Work}) ->
    %% A pass that is in progress has already passed some keys, so it does not count.
    noreply(State#state{work = Work ++ [sweep, sweep, {answer, From}]});
handle_call(_Request, _From, State = #standby{}) ->
    {reply, {error, unknown_call}, State};
handle_call(Request, _From, State) ->
    {reply, {error, unknown_call}, report_unknown(call, Request, State), {continue, work}}.

handle_cast(_Request, State = #standby{}) ->
    {noreply, State};
handle_cast(Request, State) ->
    noreply(report_unknown(cast, Request, State)).

handle_info({'EXIT', _Pid, Reason}, State) when ?KEEPS(State) ->
    case Reason of
        normal -> {noreply, State, {continue, work}};
        _ -> {stop, Reason, State}
    end;
handle_info(Message, State = #standby{}) ->
    standby(Message, State);
handle_info({'DOWN', Monitor, process, _, _}, State = #state{standbys = Standbys}) when is_map_key(Monitor, Standbys) ->
    noreply(State#state{standbys = maps:remove(Monitor, Standbys)});
handle_info({timeout, Timer, sweep}, State = #state{timer = Timer, handle = Handle}) ->
    #{sweep_interval_ms := Interval_ms} = with_defaults(State#state.options),
    Next = schedule_sweep(Handle, Interval_ms),
    noreply(add_task(sweep, add_task(dismantle, emit(State#state{timer = Next}))));
handle_info(timeout, State) ->
    work(State);
handle_info(Message, State) ->
    noreply(report_unknown(info, Message, State)).

%% Messages to a standby.
standby({'DOWN', Monitor, process, _, _}, State = #standby{monitor = Monitor}) ->
    take_over(State);
standby({canal_lock, options, Options}, State) ->
    {noreply, State#standby{options = Options}};
standby(_Message, State) ->
    {noreply, State}.

handle_continue(work, State = #standby{}) ->
    {noreply, State};
handle_continue(work, State) ->
    work(State).

terminate(_Reason, #state{handle = Handle, is_stopped = true}) ->
    close(Handle);
terminate(Reason, #state{handle = Handle, keep_on_crash = Keep}) ->
    leave(Reason, Handle, Keep);
terminate(Reason, #standby{handle = Handle, keep_on_crash = Keep}) ->
    leave(Reason, Handle, Keep).

leave(Reason, Handle, Keep) ->
    case Keep andalso not canal_lock_exit:is_clean_shutdown(Reason) of
        %% The native library notices the crash.
        true -> ok;
        false -> close_if_last(canal_lock_nif:leave(Handle), Handle)
    end.

close_if_last(last, Handle) -> close(Handle);
close_if_last(others, _Handle) -> ok.

%% Called by a release handler after it has suspended the manager and loaded new code. Local calls continue.
code_change(_Old, State, _Extra) ->
    {ok, State}.

%% The state as `sys:get_status/1' and crash reports show it.
format_status(Status = #{state := State = #state{}}) ->
    Summary = with_defaults(State#state.options),
    Status#{
        state := Summary#{
            role => manager,
            keep_on_crash => State#state.keep_on_crash,
            standbys => maps:values(State#state.standbys),
            work => State#state.work
        }
    };
format_status(Status = #{state := #standby{keep_on_crash = Keep, options = Options}}) ->
    Status#{state := (with_defaults(Options))#{role => standby, keep_on_crash => Keep}};
format_status(Status) ->
    Status.

close(Handle) ->
    done = in_steps(fun() -> canal_lock_nif:end_waits(Handle) end),
    ok = canal_lock_nif:close(Handle),
    %% Not left to the next manager, which may start late or never.
    dismantle(?MAX_WAITS),
    free_unused().

%% Makes a native call until it has no more to do. Ending the waits of a table takes 1 ms for some thousand processes.
in_steps(Step) ->
    case Step() of
        more -> in_steps(Step);
        Answer -> Answer
    end.

%% The check avoids a call on a dirty scheduler in the usual case. A closed table takes 0.25 s per million keys. The
%% manager handles no message during that time.
free_unused() ->
    case canal_lock_nif:has_unused() of
        true -> canal_lock_nif:free_unused();
        false -> ok
    end.

report_unknown(Kind, Message, State) ->
    report_once(#{what => unknown_message, kind => Kind, message => Message, pid => self()}, State).

emit(State = #state{handle = Handle}) ->
    case canal_lock_telemetry:emit(canal_lock_nif:take_longest_wait(Handle)) of
        ok -> State;
        {failed, Failure} -> report_once(Failure#{what => event_failed, pid => self()}, State)
    end.

report_once(Report = #{what := What}, State = #state{reported = Reported}) ->
    case lists:member(What, Reported) of
        true ->
            State;
        false ->
            ok = canal_lock_reports:report(Report),
            State#state{reported = [What | Reported]}
    end.

add_task(Task, State = #state{work = Work}) ->
    case lists:member(Task, Work) of
        true -> State;
        false -> State#state{work = Work ++ [Task]}
    end.

%% Does one step of the first task. A timeout of 0 starts the next step when the mailbox is empty, so callers are served
%% between two steps. Each message is also followed by a step, so a mailbox that is never empty does not stop the work.
work(State = #state{work = []}) ->
    {noreply, State};
work(State = #state{work = [{answer, From} | Rest]}) ->
    gen_server:reply(From, ok),
    work(State#state{work = Rest});
work(State = #state{work = [Task | Rest]}) ->
    case step(Task, State) of
        more -> {noreply, State, 0};
        waiting when Task =:= sweep -> {noreply, State, ?WAIT_MS};
        %% A process still reads statistics of a closed table. The next interval tries again.
        waiting -> work(State#state{work = Rest});
        done ->
            ok = free_unused(),
            work(State#state{work = Rest})
    end.

step(dismantle, _State) -> canal_lock_nif:dismantle_step();
step(sweep, #state{handle = Handle}) -> canal_lock_nif:sweep_step(Handle, ?BUDGET).

noreply(State) ->
    {noreply, State, {continue, work}}.

%% Holders that begin before the next sweep are shown as if they began with it.
schedule_sweep(Handle, Interval_ms) ->
    ok = canal_lock_nif:advance_clock(Handle, Interval_ms),
    erlang:start_timer(Interval_ms, self(), sweep).

%% Removes the monitors of closed tables. Waits at most `Waits' times.
dismantle(0) ->
    ok;
dismantle(Waits) ->
    case in_steps(fun canal_lock_nif:dismantle_step/0) of
        waiting ->
            timer:sleep(?WAIT_MS),
            dismantle(Waits - 1);
        done ->
            ok
    end.
