%% A substitute for the library `telemetry', which the tests cannot fetch. test_telemetry_app loads it under the name
%% `telemetry'. Under that name it is on no code path.
%%
%% It behaves as telemetry 1.x documents it (src/telemetry.erl there):
%% - an event name is a non-empty list of atoms, measurements and metadata are maps; anything else raises;
%% - the handlers of an event run in the process that emits it, one after the other;
%% - a handler that raises, exits or throws is detached, which emits an event and logs an error;
%% - an event that is emitted while the application is stopped only logs a warning.
-module(test_telemetry).

-behaviour(application).

-export([attach/4, detach/1, execute/3]).
-export([start/2, stop/1]).

-include_lib("kernel/include/logger.hrl").

attach(Id, Event = [_ | _], Function, Config) when is_function(Function, 4) ->
    case ets:insert_new(?MODULE, {Id, Event, Function, Config}) of
        true -> ok;
        false -> {error, already_exists}
    end.

detach(Id) ->
    case ets:take(?MODULE, Id) of
        [_] -> ok;
        [] -> {error, not_found}
    end.

execute([_ | _] = Event, Measurements, Metadata) when is_map(Measurements), is_map(Metadata) ->
    lists:foreach(fun(Handler) -> handle(Handler, Measurements, Metadata) end, handlers(Event)).

handlers(Event) ->
    try
        ets:match_object(?MODULE, {'_', Event, '_', '_'})
    catch
        error:badarg ->
            ?LOG_WARNING("Failed to look up handlers: telemetry has not been started"),
            []
    end.

handle({Id, Event, Function, Config}, Measurements, Metadata) ->
    try
        Function(Event, Measurements, Metadata, Config)
    catch
        Class:Reason ->
            _ = detach(Id),
            Failure = #{event_name => Event, handler_id => Id, kind => Class, reason => Reason},
            execute([telemetry, handler, failure], #{monotonic_time => erlang:monotonic_time()}, Failure),
            ?LOG_ERROR("Handler ~p has failed and has been detached: ~p:~p", [Id, Class, Reason])
    end.

%% The application callback. Any process can attach and detach handlers; the real library has a process for it.
start(normal, _) ->
    Starter = self(),
    Owner = spawn_link(fun() ->
        ?MODULE = ets:new(?MODULE, [named_table, public]),
        Starter ! {self(), ready},
        receive
        after infinity -> ok
        end
    end),
    receive {Owner, ready} -> {ok, Owner} end.

stop(_) ->
    ok.
