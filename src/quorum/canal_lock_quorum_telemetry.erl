%% @doc Emits the totals of the quorum locks of this node as an event of `telemetry', if the application `telemetry'
%% runs. canal_lock does not depend on `telemetry'.
%%
%% <dl>
%% <dt>`[canal_lock, quorum, totals]'</dt>
%% <dd>Once per `totals_interval_ms' (see {@link canal_lock_quorum:options()}). Measurements: the totals of {@link
%% canal_lock_quorum:status/0}, of which `longest_wait_us' counts from the last event, and the current numbers
%% `waiting', `held', `pending_unlocks', `queued', `members', `members_connected' and `members_silent' (connected, but
%% their voters do not answer). `queued' is left out on a client, and while the voter of this node does not answer.
%% Metadata: none.</dd>
%% </dl>
%%
%% Its handlers run in a process of their own, not in the agent, so a slow handler delays no lock.
-module(canal_lock_quorum_telemetry).

-behaviour(gen_server).

-export([start_link/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-define(EVENT, [canal_lock, quorum, totals]).

-record(state, {
    totals :: canal_lock_quorum_totals:ref(),
    interval_ms :: pos_integer(),
    %% Whether a failure of `telemetry' was reported.
    is_reported = false :: boolean()
}).

%% @private
-spec start_link(canal_lock_quorum_config:config()) -> {ok, pid()} | {error, term()}.
start_link(Config) ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, Config, []).

%% @private
init(#{totals := Totals, totals_interval_ms := Interval_ms}) ->
    State = #state{totals = Totals, interval_ms = Interval_ms},
    ok = start_timer(State),
    {ok, State}.

start_timer(#state{interval_ms = Interval_ms}) ->
    _ = erlang:send_after(Interval_ms, self(), emit),
    ok.

%% @private
handle_call(_Request, _From, State) ->
    {reply, {error, unknown_call}, State}.

%% @private
handle_cast(_Request, State) ->
    {noreply, State}.

%% @private
handle_info(emit, State) ->
    ok = start_timer(State),
    {noreply, emit(State)};
handle_info(_Message, State) ->
    {noreply, State}.

%% No event while the agent is restarted.
emit(State = #state{totals = Totals}) ->
    try canal_lock_telemetry:emit(?EVENT, fun() -> {measurements(Totals), #{}} end) of
        ok -> State;
        {failed, Failure} -> report_once(Failure, State)
    catch
        exit:_ -> State
    end.

measurements(Ref) ->
    #{members := Members, waiting := Waiting, pending_unlocks := Pending, totals := Totals} =
        canal_lock_quorum_agent:status(),
    ok = canal_lock_quorum_totals:reset_longest_wait(Ref),
    Of = maps:merge(Totals, queued()),
    Of#{
        waiting => Waiting,
        held => canal_lock_quorum_agent:count(),
        pending_unlocks => Pending,
        members => length(Members),
        members_connected => length([Node || #{node := Node, connected := true} <- Members]),
        members_silent => length([Node || #{node := Node, connected := true, answers := false} <- Members])
    }.

%% Left out on a client, and while the voter does not answer.
queued() ->
    try
        maps:with([queued], canal_lock_quorum_voter:state())
    catch
        exit:_ -> #{}
    end.

report_once(_Failure, State = #state{is_reported = true}) ->
    State;
report_once(Failure, State) ->
    ok = canal_lock_quorum_reports:report(event_failed, Failure),
    State#state{is_reported = true}.
