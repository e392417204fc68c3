%% @private
%% A process that emits an event of `telemetry' at an interval. Handlers run in it, so a slow handler delays nothing
%% else.
-module(canal_lock_telemetry_process).

-behaviour(gen_server).

-export([start_link/4]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-record(state, {
    interval_ms :: pos_integer(),
    emit :: fun(() -> ok | {failed, canal_lock_telemetry:failure()}),
    report :: fun((event_failed, canal_lock_telemetry:failure()) -> ok),
    %% Whether a failure of `telemetry' was reported.
    is_reported = false :: boolean()
}).

%% `Emit' may exit if what it reads does not run. Then there is no event.
-spec start_link(Name :: atom(), Interval_ms :: pos_integer(), Emit, Report) -> {ok, pid()} | {error, term()} when
    Emit :: fun(() -> ok | {failed, canal_lock_telemetry:failure()}),
    Report :: fun((event_failed, canal_lock_telemetry:failure()) -> ok).
start_link(Name, Interval_ms, Emit, Report) ->
    State = #state{interval_ms = Interval_ms, emit = Emit, report = Report},
    gen_server:start_link({local, Name}, ?MODULE, State, []).

init(State) ->
    ok = start_timer(State),
    {ok, State}.

start_timer(#state{interval_ms = Interval_ms}) ->
    _ = erlang:send_after(Interval_ms, self(), emit),
    ok.

handle_call(_Request, _From, State) ->
    {reply, {error, unknown_call}, State}.

handle_cast(_Request, State) ->
    {noreply, State}.

handle_info(emit, State = #state{emit = Emit, report = Report, is_reported = IsReported}) ->
    ok = start_timer(State),
    try Emit() of
        {failed, Failure} when not IsReported ->
            ok = Report(event_failed, Failure),
            {noreply, State#state{is_reported = true}};
        _ ->
            {noreply, State}
    catch
        exit:_ -> {noreply, State}
    end;
handle_info(_Message, State) ->
    {noreply, State}.
