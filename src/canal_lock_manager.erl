%% @private
%% The manager: it owns the life of the table and has idle keys swept away. It decides no acquire and no release, and
%% none passes through it.
%%
%% The table lives and dies with this process: the native library watches it, and closes the table if it goes without
%% `terminate/2'. It does not trap exits: a gen_server that does ends with a parent that ends normally, and the
%% original's did not.
-module(canal_lock_manager).

-behaviour(gen_server).

-export([start_link/1, stop/0, max_per/0, sweep/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, handle_continue/2, terminate/2]).

-define(NAME, canal_lock).

%% An idle key is gone after two of these. Short enough that a burst of keys is not a matter of memory, long enough
%% that a pass over a million keys (about 0.2 s) is not a matter of time.
-define(SWEEP_INTERVAL_MS, 5000).

%% Keys looked at, or freed, in one native call: 256 that are in no cache are about 0.1 ms.
-define(BUDGET, 256).

%% What is unlinked can be freed when the threads that may still look at it have gone on; they are there for
%% microseconds.
-define(WAIT_MS, 1).

%% Whoever stays longer than this is looking at statistics of many keys; the next manager frees what is left then.
-define(MAX_WAITS, 100).

%% Before a manager begins, it frees what its predecessor has left, so that managers that are killed again and again
%% leave no more than one table behind. Not more than so many steps of it, though: whoever starts it waits for that.
%% An idle table takes about 130, one of a million keys 4,000.
-define(STEPS_BEFORE_START, 1000).

-record(state, {
    %% Second element: people give it to ets:tab2list/1.
    table :: ets:tid() | atom(),
    handle :: canal_lock_nif:handle(),
    max_per :: pos_integer(),
    %% What is to be done a step at a time, the first one first.
    work = [dismantle] :: [dismantle | sweep],
    %% Who waits for the end of a pass of the sweep, and of how many.
    waiting = [] :: [{gen_server:from(), pos_integer()}]
}).

-spec start_link(pos_integer()) -> {ok, pid()} | {error, term()}.
start_link(MaxPer) ->
    gen_server:start_link({local, ?NAME}, ?MODULE, MaxPer, []).

-spec stop() -> ok.
stop() ->
    gen_server:stop(?NAME).

-spec max_per() -> pos_integer().
max_per() ->
    gen_server:call(?NAME, max_per, infinity).

%% Two passes of the sweep, beginning now: every key that is idle, and stays so, is gone when this returns.
-spec sweep() -> ok.
sweep() ->
    gen_server:call(?NAME, sweep, infinity).

init(MaxPer) ->
    Table = ets:new(?NAME, [named_table, protected]),
    Handle = canal_lock_nif:open(erlang:system_info(process_limit)),
    dismantle(?STEPS_BEFORE_START, 1),
    schedule_sweep(),
    {ok, #state{table = Table, handle = Handle, max_per = MaxPer}, {continue, work}}.

handle_call(max_per, _From, State) ->
    reply(State#state.max_per, State);
handle_call(sweep, From, State = #state{work = Work, waiting = Waiting}) ->
    %% A pass that is under way has gone by some keys already: it does not count.
    Passes =
        case lists:member(sweep, Work) of
            true -> 3;
            false -> 2
        end,
    noreply(add(sweep, State#state{waiting = [{From, Passes} | Waiting]}));
handle_call(_Request, _From, State) ->
    reply({error, unknown_call}, State).

handle_cast(_Request, State) ->
    noreply(State).

handle_info(sweep, State) ->
    schedule_sweep(),
    noreply(add(sweep, add(dismantle, State)));
handle_info(timeout, State) ->
    work(State);
handle_info(_Message, State) ->
    noreply(State).

handle_continue(work, State) ->
    work(State).

terminate(_Reason, #state{handle = Handle}) ->
    ok = canal_lock_nif:close(Handle),
    %% Afterwards there is nobody to do it before the next one starts.
    dismantle(all, ?MAX_WAITS).

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
        done -> work(done(Task, State#state{work = Rest}))
    end.

step(dismantle, _State) -> canal_lock_nif:dismantle_step(?BUDGET);
step(sweep, #state{handle = Handle}) -> canal_lock_nif:sweep_step(Handle, ?BUDGET).

done(dismantle, State) ->
    State;
done(sweep, State = #state{waiting = Waiting}) ->
    _ = [gen_server:reply(From, ok) || {From, 1} <- Waiting],
    case [{From, Passes - 1} || {From, Passes} <- Waiting, Passes > 1] of
        [] -> State#state{waiting = []};
        StillWaiting -> add(sweep, State#state{waiting = StillWaiting})
    end.

reply(Answer, State = #state{work = []}) -> {reply, Answer, State};
reply(Answer, State) -> {reply, Answer, State, {continue, work}}.

noreply(State = #state{work = []}) -> {noreply, State};
noreply(State) -> {noreply, State, {continue, work}}.

schedule_sweep() ->
    _ = erlang:send_after(?SWEEP_INTERVAL_MS, self(), sweep),
    ok.

%% Frees what has been closed, in at most so many steps, waiting at most so many times.
dismantle(0, _Waits) ->
    ok;
dismantle(_Steps, 0) ->
    ok;
dismantle(Steps, Waits) ->
    case canal_lock_nif:dismantle_step(?BUDGET) of
        more ->
            dismantle(fewer(Steps), Waits);
        waiting ->
            timer:sleep(?WAIT_MS),
            dismantle(Steps, Waits - 1);
        done ->
            ok
    end.

fewer(all) -> all;
fewer(Steps) -> Steps - 1.
