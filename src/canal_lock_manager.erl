%% @private
%% The manager: it owns the life of the table and has idle keys swept away. It decides no acquire and no release, and
%% none passes through it.
%%
%% The table lives and dies with this process: the native library watches it, and closes the table if it goes without
%% `terminate/2'. It does not trap exits, so that it dies with a parent that ends normally.
-module(canal_lock_manager).

-behaviour(gen_server).

-export([start_link/1, stop/0, max_per/0, sweep/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2]).

-define(NAME, canal_lock).

%% An idle key is gone after two of these. Short enough that a burst of keys is not a matter of memory, long enough
%% that a pass over a million keys (about 0.2 s) is not a matter of time.
-define(SWEEP_INTERVAL_MS, 5000).

%% Keys looked at in one native call: 256 that are not in any cache and have to be freed are about 0.1 ms.
-define(SWEEP_BUDGET, 256).

%% What is unlinked can be freed when the threads that may still look at it have gone on; they are there for
%% microseconds.
-define(SWEEP_WAIT_MS, 1).

%% A thread that stays longer than this is looking at statistics of many keys; the next manager frees what is left
%% then.
-define(DISMANTLE_WAITS, 100).

-record(state, {
    %% Second element: people give it to ets:tab2list/1.
    table :: ets:tid() | atom(),
    handle :: canal_lock_nif:handle(),
    max_per :: pos_integer(),
    sweep = idle :: idle | running,
    %% Who waits for the end of a pass, and of how many.
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
    schedule_sweep(),
    {ok, #state{table = Table, handle = Handle, max_per = MaxPer}}.

handle_call(max_per, _From, State) ->
    reply(State#state.max_per, State);
handle_call(sweep, From, State = #state{sweep = running, waiting = Waiting}) ->
    %% The running pass has gone by some keys already: it does not count.
    noreply(State#state{waiting = [{From, 3} | Waiting]});
handle_call(sweep, From, State = #state{waiting = Waiting}) ->
    noreply(State#state{sweep = running, waiting = [{From, 2} | Waiting]});
handle_call(_Request, _From, State) ->
    reply({error, unknown_call}, State).

handle_cast(_Request, State) ->
    noreply(State).

handle_info(sweep, State) ->
    schedule_sweep(),
    noreply(State#state{sweep = running});
handle_info(timeout, State = #state{sweep = running}) ->
    sweep_step(State);
handle_info(_Message, State) ->
    noreply(State).

terminate(_Reason, #state{handle = Handle}) ->
    ok = canal_lock_nif:close(Handle),
    dismantle(Handle, ?DISMANTLE_WAITS).

%% One step of the pass. A timeout of the server drives it, not a message to itself: its mailbox is empty while it
%% works, and whoever calls is served between two steps.
sweep_step(State = #state{handle = Handle}) ->
    case canal_lock_nif:sweep_step(Handle, ?SWEEP_BUDGET) of
        more -> noreply(State);
        waiting -> {noreply, State, ?SWEEP_WAIT_MS};
        done -> noreply(pass_done(State))
    end.

pass_done(State = #state{waiting = Waiting}) ->
    Left = [{From, Passes - 1} || {From, Passes} <- Waiting],
    {Served, StillWaiting} = lists:partition(fun({_, Passes}) -> Passes =:= 0 end, Left),
    lists:foreach(fun({From, 0}) -> gen_server:reply(From, ok) end, Served),
    Next =
        case StillWaiting of
            [] -> idle;
            _ -> running
        end,
    State#state{sweep = Next, waiting = StillWaiting}.

reply(Answer, State) ->
    {reply, Answer, State, timeout(State)}.

noreply(State) ->
    {noreply, State, timeout(State)}.

timeout(#state{sweep = running}) -> 0;
timeout(#state{sweep = idle}) -> infinity.

schedule_sweep() ->
    _ = erlang:send_after(?SWEEP_INTERVAL_MS, self(), sweep),
    ok.

%% Frees the closed table before the manager is gone: afterwards there is nobody to do it before the next one starts.
dismantle(_Handle, 0) ->
    ok;
dismantle(Handle, Waits) ->
    case canal_lock_nif:sweep_step(Handle, ?SWEEP_BUDGET) of
        more ->
            dismantle(Handle, Waits);
        waiting ->
            timer:sleep(?SWEEP_WAIT_MS),
            dismantle(Handle, Waits - 1);
        done ->
            ok
    end.
