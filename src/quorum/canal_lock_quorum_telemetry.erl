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

-export([start_link/1]).

-define(EVENT, [canal_lock, quorum, totals]).

%% @private
-spec start_link(canal_lock_quorum_config:config()) -> {ok, pid()} | {error, term()}.
start_link(#{totals := Totals, totals_interval_ms := Interval_ms}) ->
    %% No event while the agent is restarted.
    Emit = fun() -> canal_lock_telemetry:emit(?EVENT, fun() -> {measurements(Totals), #{}} end) end,
    canal_lock_telemetry_process:start_link(?MODULE, Interval_ms, Emit, fun canal_lock_quorum_reports:report/2).

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
