%% A handler of the logger: what is logged is heard by the test that listens, and the default handler is silent.
-module(test_log_listener).

-export([tests/2, listening/1, events/0]).
-export([log/2]).

%% The tests, with this handler: they can listen to what is logged at a level, and above it.
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

%% Does something while this process, by the name of this module, is the one that hears.
-spec listening(fun(() -> Answer)) -> Answer.
listening(Do) ->
    true = register(?MODULE, self()),
    try
        Do()
    after
        unregister(?MODULE)
    end.

%% What it has heard since it was last asked.
-spec events() -> [logger:log_event()].
events() ->
    receive
        {?MODULE, Event} -> [Event | events()]
    after 0 -> []
    end.

%% Of a handler. Called in the process that logs: what it has done is here when it goes on.
-spec log(logger:log_event(), logger:handler_config()) -> ok.
log(Event, _Config) ->
    case whereis(?MODULE) of
        undefined -> ok;
        Test -> Test ! {?MODULE, Event}
    end,
    ok.
