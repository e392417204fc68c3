%% @doc What the manager tells `telemetry', if your project has it.
%%
%% canal_lock does not depend on that library. If the application `telemetry' is running, the manager emits one event
%% each time that it begins to sweep, which is once in `sweep_interval_ms' (see {@link canal_lock:start_link/2}). There
%% is no other event: an acquire, a release or a death emits nothing.
%%
%% <dl>
%% <dt>`[canal_lock, totals]'</dt>
%% <dd>Measurements: all of {@link canal_lock:info/0} but `max_per'. `keys', `permits', `holders' and `memory' (in
%% bytes) are of now; `barriers_refused' counts from the start of the VM; `granted', `refused', `released',
%% `given_back', `not_held' and `reclaimed' count from the beginning of the table. Metadata: `#{max_per =>
%% pos_integer()}'.</dd>
%% </dl>
%%
%% ```
%% telemetry:attach(my_handler, [canal_lock, totals], fun my_metrics:handle_event/4, none).
%% '''
%%
%% With `Telemetry.Metrics' each of them is a `last_value("canal_lock.totals.permits")'. What counts is a sum already,
%% which never goes down in one table. Only `granted' may, a little, as {@link canal_lock:info/0} says: for rates take
%% `released' and `given_back', which are together what was granted and is not out any more.
%%
%% Handlers run in the manager, as those of any event do in the process that emits it. Local calls never wait for it,
%% but those of other nodes and the sweep do, so a handler should be quick, and must not call the manager
%% (`canal_lock:stop/0', say). One that raises is detached by `telemetry'. What gets through none the less is reported
%% to the logger, in the domain `[canal_lock]' and once for each manager, and the manager goes on.
-module(canal_lock_telemetry).

-export([emit/0]).

-export_type([failure/0]).

-type failure() :: #{
    event := [atom()],
    class := error | exit | throw,
    reason := term(),
    stacktrace := [term()]
}.

-define(EVENT, [canal_lock, totals]).

%% @private
%% Called by the manager, by nobody else.
-spec emit() -> ok | {failed, failure()}.
emit() ->
    emit(telemetry).

%% The name comes as an argument, or there would be a call of a module that may not exist: that is a warning of xref and
%% of Dialyzer, to all who check their project with this library in it.
%%
%% Both questions are look-ups in tables of the VM, so no process is asked. To attach a handler loads the module, so a
%% module that is not loaded has no handlers. If the application has not been started, each event would log a warning,
%% for a user who may not know that the library is there.
emit(Telemetry) ->
    IsLoaded = erlang:function_exported(Telemetry, execute, 3),
    case IsLoaded andalso application_controller:get_master(Telemetry) =/= undefined of
        true -> execute(Telemetry);
        false -> ok
    end.

%% The totals come from a dirty scheduler, for which the manager waits its turn. No local call waits for the manager.
%% What its handlers do is not to harm the manager. A failure of ours, before that, is no affair of theirs.
execute(Telemetry) ->
    {MaxPer, Totals} = maps:take(max_per, canal_lock_nif:info()),
    try Telemetry:execute(?EVENT, Totals, #{max_per => MaxPer}) of
        _ -> ok
    catch
        Class:Reason:Stacktrace ->
            {failed, #{event => ?EVENT, class => Class, reason => Reason, stacktrace => Stacktrace}}
    end.
