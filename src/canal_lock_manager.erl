%% @private
%% The manager: it owns the life of the table, has idle keys reclaimed, and starts the proxies of holders on other
%% nodes. It decides no acquire and no release, and none passes through it.
%%
%% A plain manager does not trap exits: a gen_server that does ends with a parent that ends normally, and the
%% original's did not. If it goes without `terminate/2', the native library, which watches it, closes its table. One
%% with `keep_on_crash' has to tell an orderly end, which closes the table, from a crash, which leaves it to the next
%% one. So it traps exits, and ends with any process that it is linked to and that does not end normally, as others do.
-module(canal_lock_manager).

-behaviour(gen_server).

-export([start_link/2, stop/0, sweep/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, handle_continue/2, terminate/2, code_change/3]).
-export([format_status/1]).

-define(NAME, canal_lock).

%% An idle key is gone after two intervals of the sweep. Short enough that a burst of keys is not a matter of memory,
%% long enough that a pass over a million keys (about 0.2 s) is not a matter of time.
-define(DEFAULTS, #{keep_on_crash => false, sweep_interval_ms => 5000}).

%% Keys looked at, or freed, in one step of the sweep: 256 that are in no cache are about 0.1 ms. Each step counts as
%% the part of a timeslice that it takes.
-define(BUDGET, 256).

%% What is unlinked can be freed when the threads that may still look at it have gone on; they are there for
%% microseconds.
-define(WAIT_MS, 1).

%% Whoever stays longer than this is looking at statistics of many keys; the next manager frees what is left then.
-define(MAX_WAITS, 100).

-record(state, {
    %% The original counted in a table of this name, and its users give the second element to ets:tab2list/1. It is
    %% empty.
    table :: ets:tid() | atom(),
    handle :: canal_lock_nif:handle(),
    max_per :: pos_integer(),
    keep_on_crash :: boolean(),
    sweep_interval_ms :: pos_integer(),
    %% Of the next sweep.
    timer :: reference(),
    %% What is to be done a step at a time, the first one first.
    work :: [dismantle | sweep],
    %% Who waits for the end of a pass of the sweep, and of how many.
    waiting = [] :: [{gen_server:from(), pos_integer()}],
    %% What has been reported, and is not again: whoever does it in a loop would fill the logs.
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

%% Two passes of the sweep, beginning now: every key that is idle, and stays so, is gone when this returns.
-spec sweep() -> ok.
sweep() ->
    gen_server:call(?NAME, sweep, infinity).

init({MaxPer, #{keep_on_crash := Keep, sweep_interval_ms := Interval_ms}}) ->
    _ = process_flag(trap_exit, Keep),
    ok = canal_lock_reports:open(),
    Table = ets:new(?NAME, [named_table, protected]),
    Handle = canal_lock_nif:open(erlang:system_info(process_limit), MaxPer, Keep),
    dismantle(1),
    State = #state{
        table = Table,
        handle = Handle,
        max_per = MaxPer,
        keep_on_crash = Keep,
        sweep_interval_ms = Interval_ms,
        timer = schedule_sweep(Interval_ms),
        %% The table may be one whose last manager was in the middle of a pass: the rest of it must not count as one.
        work = [dismantle] ++ [sweep || Keep]
    },
    {ok, State, {continue, work}}.

handle_call(Request, {From, _Tag}, State) when node(From) =/= node() ->
    {reply, canal_lock_remote:answer(Request, From), State, {continue, work}};
handle_call(sweep, From, State = #state{work = Work, waiting = Waiting}) ->
    %% A pass that is under way has gone by some keys already: it does not count.
    Passes =
        case lists:member(sweep, Work) of
            true -> 3;
            false -> 2
        end,
    noreply(add(sweep, State#state{waiting = [{From, Passes} | Waiting]}));
handle_call(Request, _From, State) ->
    {reply, {error, unknown_call}, unknown(call, Request, State), {continue, work}}.

handle_cast(Request, State) ->
    noreply(unknown(cast, Request, State)).

handle_info({timeout, Timer, sweep}, State = #state{timer = Timer}) ->
    Next = schedule_sweep(State#state.sweep_interval_ms),
    noreply(add(sweep, add(dismantle, emit(State#state{timer = Next}))));
handle_info(timeout, State) ->
    work(State);
handle_info({'EXIT', _Pid, normal}, State = #state{keep_on_crash = true}) ->
    noreply(State);
handle_info({'EXIT', _Pid, Reason}, State = #state{keep_on_crash = true}) ->
    {stop, Reason, State};
handle_info(Message, State) ->
    noreply(unknown(info, Message, State)).

handle_continue(work, State) ->
    work(State).

terminate(Reason, State = #state{keep_on_crash = Keep}) ->
    case Keep andalso not canal_lock_exit:is_clean_shutdown(Reason) of
        true -> ok;
        false -> close(State)
    end.

%% A release handler suspends the manager, and asks for this when it has loaded the new code. Calls go on meanwhile.
code_change(_Old, State, _Extra) ->
    {ok, State}.

%% For people: what `sys:get_status/1' and a report of a crash show.
format_status(Status = #{state := State = #state{}}) ->
    Summary = #{
        max_per => State#state.max_per,
        keep_on_crash => State#state.keep_on_crash,
        sweep_interval_ms => State#state.sweep_interval_ms,
        work => State#state.work,
        waiting_for_sweep => length(State#state.waiting)
    },
    Status#{state := Summary};
format_status(Status) ->
    Status.

close(#state{handle = Handle}) ->
    ok = canal_lock_nif:close(Handle),
    %% Afterwards there is nobody to do it before the next one starts.
    dismantle(?MAX_WAITS),
    free_unused().

%% Mostly there is nothing, and no dirty scheduler need be waited for. A closed table takes a quarter of a second for
%% each million of its keys, in which the manager handles no message.
free_unused() ->
    case canal_lock_nif:has_unused() of
        true -> canal_lock_nif:free_unused();
        false -> ok
    end.

unknown(Kind, Message, State) ->
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

add(Task, State = #state{work = Work}) ->
    case lists:member(Task, Work) of
        true -> State;
        false -> State#state{work = Work ++ [Task]}
    end.

%% One step of what is to be done. Timeouts drive the steps, not messages of the manager to itself: its mailbox is
%% empty while it works, and whoever calls is served between two steps. And each message is followed by a step, so
%% that a mailbox that is never empty does not keep it from its work.
work(State = #state{work = []}) ->
    {noreply, State};
work(State = #state{work = [Task | Rest]}) ->
    case step(Task, State) of
        more -> {noreply, State, 0};
        waiting when Task =:= sweep -> {noreply, State, ?WAIT_MS};
        %% Somebody is looking at the statistics of a table that has been closed. There is time.
        waiting -> work(State#state{work = Rest});
        done ->
            ok = free_unused(),
            work(done(Task, State#state{work = Rest}))
    end.

step(dismantle, _State) -> canal_lock_nif:dismantle_step();
step(sweep, #state{handle = Handle}) -> canal_lock_nif:sweep_step(Handle, ?BUDGET).

done(dismantle, State) ->
    State;
done(sweep, State = #state{waiting = Waiting}) ->
    _ = [gen_server:reply(From, ok) || {From, 1} <- Waiting],
    case [{From, Passes - 1} || {From, Passes} <- Waiting, Passes > 1] of
        [] -> State#state{waiting = []};
        StillWaiting -> add(sweep, State#state{waiting = StillWaiting})
    end.

noreply(State) ->
    {noreply, State, {continue, work}}.

schedule_sweep(Interval_ms) ->
    erlang:start_timer(Interval_ms, self(), sweep).

%% Lets go the monitors of what has been closed, waiting at most this many times.
dismantle(0) ->
    ok;
dismantle(Waits) ->
    case canal_lock_nif:dismantle_step() of
        more ->
            dismantle(Waits);
        waiting ->
            timer:sleep(?WAIT_MS),
            dismantle(Waits - 1);
        done ->
            ok
    end.
