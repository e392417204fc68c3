%% @doc Emits the totals of the cluster permits of this node as an event of `telemetry', if the application `telemetry'
%% runs. canal_lock does not depend on `telemetry'.
%%
%% <dl>
%% <dt>`[canal_lock, cluster, totals]'</dt>
%% <dd>Once per `totals_interval_ms' (see {@link canal_lock_quorum:options()}). Measurements: the totals of {@link
%% canal_lock_cluster:status/0}, of which `longest_wait_us' counts from the last event, and the current number
%% `keys'. Metadata: the `session' and the `allocator' of the status.</dd>
%% </dl>
%%
%% Its handlers run in a process of their own, so a slow handler delays no permit.
-module(canal_lock_cluster_telemetry).

-export([start_link/1]).

-define(EVENT, [canal_lock, cluster, totals]).

%% @private
-spec start_link(canal_lock_quorum:options()) -> {ok, pid()} | {error, term()}.
start_link(Options) ->
    Interval_ms = canal_lock_quorum_config:totals_interval_ms(Options),
    %% No event while the agent is restarted.
    Emit = fun() -> canal_lock_telemetry:emit(?EVENT, fun read/0) end,
    canal_lock_telemetry_process:start_link(?MODULE, Interval_ms, Emit, fun canal_lock_cluster_reports:report/2).

read() ->
    Status = #{keys := Keys} = canal_lock_cluster_agent:status(),
    Totals = canal_lock_cluster_totals:read(),
    ok = canal_lock_cluster_totals:reset_longest_wait(),
    {Totals#{keys => Keys}, maps:with([session, allocator], Status)}.
