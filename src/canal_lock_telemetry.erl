%% @doc Emits the totals of the permits as an event of `telemetry', if the application `telemetry' runs. {@link
%% canal_lock_quorum_telemetry} describes the event of the quorum locks.
%%
%% canal_lock does not depend on `telemetry'. The manager emits one event at the beginning of each sweep, once per
%% `sweep_interval_ms' (see {@link canal_lock:start_link/2}). Acquires, releases and deaths emit no event.
%%
%% <dl>
%% <dt>`[canal_lock, totals]'</dt>
%% <dd>Measurements: all numbers of {@link canal_lock:info/0} except `max_per'. `keys', `permits', `holders', `waiting'
%% and `memory' (in bytes) are current values; `longest_wait_us' is that of the time since the last event;
%% `barriers_refused' counts from the start of the VM; `granted', `refused', `released', `released_by_death',
%% `not_held', `reclaimed', `handed_over', `timed_out', `wait_us' and `transferred' count from the opening of the
%% table. Metadata: `#{max_per => pos_integer() | undefined}'.</dd>
%% </dl>
%%
%% ```
%% telemetry:attach(my_handler, [canal_lock, totals], fun my_metrics:handle_event/4, none).
%% '''
%%
%% With `Telemetry.Metrics' use a metric like `last_value("canal_lock.totals.permits")'. The counters are running
%% totals, which never decrease within one table, except that `granted' can decrease slightly (see {@type
%% canal_lock:info()}). For rates use `released' and `released_by_death'; their sum is the number of permits granted and
%% no longer held. The average wait of an interval is the growth of `wait_us', divided by that of `handed_over' plus
%% `timed_out'.
%%
%% Handlers run in the manager. Local calls never wait for the manager, but calls from other nodes and the sweep do. So
%% a handler should be fast, and must not call the manager (for example `canal_lock:stop/0'). `telemetry' detaches a
%% handler that raises. If `telemetry' itself raises, the failure is logged once per manager, and the manager continues.
-module(canal_lock_telemetry).

-export([emit/1, emit/2]).

-export_type([failure/0]).

-type failure() :: #{
    event := [atom()],
    class := error | exit | throw,
    reason := term(),
    stacktrace := [term()]
}.

-define(EVENT, [canal_lock, totals]).

%% @private
%% The totals of the permits, and the longest wait of the interval that ends. Called by the manager only.
-spec emit(LongestWait_us :: non_neg_integer()) -> ok | {failed, failure()}.
emit(LongestWait_us) ->
    emit(?EVENT, fun() ->
        {MaxPer, Totals} = maps:take(max_per, canal_lock_nif:info()),
        {Totals#{longest_wait_us := LongestWait_us}, #{max_per => MaxPer}}
    end).

%% @private
%% `Read' returns the measurements and the metadata. It is called only if the event is emitted.
-spec emit([atom(), ...], fun(() -> {map(), map()})) -> ok | {failed, failure()}.
emit(Event, Read) ->
    emit(telemetry, Event, Read).

%% The module name is an argument, because a direct call of a module that may not exist is a warning of xref and
%% Dialyzer in every project that depends on canal_lock.
%%
%% Both checks read tables of the VM and call no process. Attaching a handler loads the module, so a module that is not
%% loaded has no handlers. If the application is not started, `telemetry' would log a warning for each event.
emit(Telemetry, Event, Read) ->
    IsLoaded = erlang:function_exported(Telemetry, execute, 3),
    case IsLoaded andalso application_controller:get_master(Telemetry) =/= undefined of
        true ->
            %% A failure of `telemetry' must not crash the caller. A failure of canal_lock, in this line, must.
            {Measurements, Metadata} = Read(),
            try Telemetry:execute(Event, Measurements, Metadata) of
                _ -> ok
            catch
                Class:Reason:Stacktrace ->
                    {failed, #{event => Event, class => Class, reason => Reason, stacktrace => Stacktrace}}
            end;
        false ->
            ok
    end.
