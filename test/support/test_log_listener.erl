%% A handler of the logger that sends log events to one process, while the default handler is silent.
-module(test_log_listener).

-export([tests/2, listening/1, start/1, stop/0, event/0, events/0]).
-export([log/2]).

%% Tests with this handler: they can listen to the events of this level and above.
-spec tests(logger:level() | all, term()) -> term().
tests(Level, Tests) ->
    {setup,
        fun() ->
            {ok, #{level := DefaultLevel}} = logger:get_handler_config(default),
            ok = logger:set_handler_config(default, level, none),
            ok = logger:add_handler(?MODULE, ?MODULE, #{level => Level}),
            DefaultLevel
        end,
        fun(DefaultLevel) ->
            ok = logger:remove_handler(?MODULE),
            ok = logger:set_handler_config(default, level, DefaultLevel)
        end,
        Tests}.

%% Calls the function while this process receives the events.
-spec listening(fun(() -> Answer)) -> Answer.
listening(Do) ->
    true = register(?MODULE, self()),
    try
        Do()
    after
        unregister(?MODULE)
    end.

%% On a node that logs nothing: this process receives the events until `stop/0' or until it dies.
-spec start(logger:level()) -> ok.
start(Level) ->
    true = register(?MODULE, self()),
    ok = logger:set_handler_config(default, level, none),
    ok = logger:set_primary_config(level, Level),
    ok = logger:add_handler(?MODULE, ?MODULE, #{level => Level}).

-spec stop() -> ok.
stop() ->
    true = unregister(?MODULE),
    ok = logger:remove_handler(?MODULE),
    ok = logger:set_primary_config(level, none).

%% Waits for an event.
-spec event() -> logger:log_event().
event() ->
    receive {?MODULE, Event} -> Event end.

%% The events that this process has received since the last call.
-spec events() -> [logger:log_event()].
events() ->
    receive
        {?MODULE, Event} -> [Event | events()]
    after 0 -> []
    end.

%% The callback of logger. The process that logs calls it, so the event has arrived when that process goes on.
-spec log(logger:log_event(), logger:handler_config()) -> ok.
log(Event, _Config) ->
    case whereis(?MODULE) of
        undefined -> ok;
        Test -> Test ! {?MODULE, Event}
    end,
    ok.
