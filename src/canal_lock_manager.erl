%% @private
%% Manages the table: opens and closes it, reclaims idle keys, and starts the proxies of holders on other nodes. It
%% decides no local acquire or release.
%%
%% Without `keep_on_crash' the manager does not trap exits: as that of the original `canal_lock', it outlives a parent
%% that exits with `normal'. If it dies without `terminate/2', the native library, which monitors it, closes the table.
%% With `keep_on_crash' it traps exits, to distinguish a clean shutdown, which closes the table, from a crash, which
%% leaves the table to the next manager.
-module(canal_lock_manager).

-behaviour(gen_server).

-export([start_link/2, stop/0, sweep/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, handle_continue/2, terminate/2, code_change/3]).
-export([format_status/1]).

-define(NAME, canal_lock).

%% An idle key is reclaimed after two intervals of the sweep. The interval is short enough to free the memory of a burst
%% of keys soon, and long compared with a sweep of a million keys (about 0.2 s).
-define(DEFAULTS, #{keep_on_crash => false, sweep_interval_ms => 5000, max_waiting => 100_000}).

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

-record(state, {
    %% Empty. The original `canal_lock' counted in a table of this name, and its users pass the second element of the
    %% state to ets:tab2list/1.
    table :: ets:tid() | atom(),
    handle :: canal_lock_nif:handle(),
    max_per :: pos_integer(),
    keep_on_crash :: boolean(),
    sweep_interval_ms :: pos_integer(),
    %% Starts the next sweep.
    timer :: reference(),
    %% Tasks that are done step by step, in this order.
    work :: [dismantle | sweep | {answer, gen_server:from()}],
    %% The kinds of reports that this manager has made. It makes each once, because a process that sends messages in a
    %% loop could fill the logs with them.
    reported = [] :: [unknown_message | event_failed]
}).

-spec start_link(pos_integer(), canal_lock:options()) -> {ok, pid()} | {error, term()}.
start_link(MaxPer, Options) ->
    case canal_lock_library:ensure_loaded() of
        ok -> gen_server:start_link({local, ?NAME}, ?MODULE, {MaxPer, maps:merge(?DEFAULTS, Options)}, []);
        {error, Sentences} -> {error, {nif_not_loaded, Sentences}}
    end.

-spec stop() -> ok.
stop() ->
    gen_server:stop(?NAME).

%% Waits for two passes of the sweep. They reclaim every key that stays idle during the call.
-spec sweep() -> ok.
sweep() ->
    gen_server:call(?NAME, sweep, infinity).

init({MaxPer, #{keep_on_crash := Keep, sweep_interval_ms := Interval_ms, max_waiting := MaxWaiting}}) ->
    _ = process_flag(trap_exit, Keep),
    ok = canal_lock_reports:open(),
    Table = ets:new(?NAME, [named_table, protected]),
    ProcessLimit = erlang:system_info(process_limit),
    Handle = in_steps(fun() -> canal_lock_nif:open(ProcessLimit, MaxPer, Keep, min(MaxWaiting, ?NO_LIMIT)) end),
    %% From here to the answer nothing may raise: a handle that is collected before its process dies closes no table.
    State = #state{
        table = Table,
        handle = Handle,
        max_per = MaxPer,
        keep_on_crash = Keep,
        sweep_interval_ms = Interval_ms,
        timer = schedule_sweep(Interval_ms),
        %% The previous manager of an adopted table may have died during a pass. This task completes that pass, so that
        %% it does not count for callers of sweep/0.
        work = [dismantle] ++ [sweep || Keep]
    },
    {ok, State, {continue, work}}.

handle_call(Request, {From, _Tag}, State) when node(From) =/= node() ->
    {reply, canal_lock_remote:answer(Request, From), State, {continue, work}};
handle_call(sweep, From, State = #state{work = Work}) ->
    %% A pass that is in progress has already passed some keys, so it does not count.
    noreply(State#state{work = Work ++ [sweep, sweep, {answer, From}]});
handle_call(Request, _From, State) ->
    {reply, {error, unknown_call}, report_unknown(call, Request, State), {continue, work}}.

handle_cast(Request, State) ->
    noreply(report_unknown(cast, Request, State)).

handle_info({timeout, Timer, sweep}, State = #state{timer = Timer}) ->
    Next = schedule_sweep(State#state.sweep_interval_ms),
    noreply(add_task(sweep, add_task(dismantle, emit(State#state{timer = Next}))));
handle_info(timeout, State) ->
    work(State);
handle_info({'EXIT', _Pid, normal}, State = #state{keep_on_crash = true}) ->
    noreply(State);
handle_info({'EXIT', _Pid, Reason}, State = #state{keep_on_crash = true}) ->
    {stop, Reason, State};
handle_info(Message, State) ->
    noreply(report_unknown(info, Message, State)).

handle_continue(work, State) ->
    work(State).

terminate(Reason, State = #state{keep_on_crash = Keep}) ->
    case Keep andalso not canal_lock_exit:is_clean_shutdown(Reason) of
        true -> ok;
        false -> close(State)
    end.

%% Called by a release handler after it has suspended the manager and loaded new code. Local calls continue.
code_change(_Old, State, _Extra) ->
    {ok, State}.

%% The state as `sys:get_status/1' and crash reports show it.
format_status(Status = #{state := State = #state{}}) ->
    Summary = #{
        max_per => State#state.max_per,
        keep_on_crash => State#state.keep_on_crash,
        sweep_interval_ms => State#state.sweep_interval_ms,
        work => State#state.work
    },
    Status#{state := Summary};
format_status(Status) ->
    Status.

close(#state{handle = Handle}) ->
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

emit(State) ->
    case canal_lock_telemetry:emit() of
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

schedule_sweep(Interval_ms) ->
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
