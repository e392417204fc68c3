%% Loads and starts a substitute for the application `telemetry', and removes it.
-module(test_telemetry_app).

-behaviour(application).

-export([load/0, load_failing/2, unload/0, start/1, stop/0, load_and_start/0]).
-export([tests/2, attach/1, next_event/1]).
-export([start/2, stop/1]).

%% Each test in a process of its own, with its own messages and reports, and with no telemetry loaded after it.
%% `Stop': what stops what the test has started.
-spec tests(fun(() -> term()), [{Title :: string(), fun(() -> term())}]) -> term().
tests(Stop, Tests) ->
    test_log_listener:tests(error, [
        {spawn, {timeout, 60, {Title, fun() -> clean(Test, Stop) end}}} || {Title, Test} <- Tests
    ]).

clean(Test, Stop) ->
    try
        test_log_listener:listening(Test)
    after
        Stop(),
        stop(),
        unload()
    end.

%% Sends each event to this process.
-spec attach([atom(), ...]) -> ok.
attach(Event) ->
    Test = self(),
    Send = fun(_, Measurements, Metadata, _) -> Test ! {event, {Event, Measurements, Metadata}} end,
    (telemetry()):attach(here, Event, Send, none).

%% What the next event has measured, and its metadata.
-spec next_event([atom(), ...]) -> {map(), map()}.
next_event(Event) ->
    {Event, Measurements, Metadata} = test_await:answer(event),
    {Measurements, Metadata}.

telemetry() -> telemetry.

-spec load_and_start() -> ok.
load_and_start() ->
    ok = load(),
    ok = start(telemetry).

%% Loads test_telemetry under the name `telemetry'.
-spec load() -> ok.
load() ->
    File = code:which(test_telemetry),
    {ok, {_, [{abstract_code, {_, Forms}}]}} = beam_lib:chunks(File, [abstract_code]),
    load([renamed(Form) || Form <- Forms]).

renamed({attribute, Line, module, _}) -> {attribute, Line, module, telemetry};
renamed(Form) -> Form.

%% Loads a module `telemetry' that reports each call to the process test_log_listener, and raises.
-spec load_failing(error | exit | throw, Reason :: term()) -> ok.
load_failing(Class, Reason) ->
    Raise = io_lib:format("erlang:raise(~p, ~p, [])", [Class, Reason]),
    load([
        form(Text)
     || Text <- [
            "-module(telemetry).",
            "-export([execute/3]).",
            lists:flatten(["execute(_, _, _) -> test_log_listener ! {called, none}, ", Raise, "."])
        ]
    ]).

form(Text) ->
    {ok, Tokens, _} = erl_scan:string(Text),
    {ok, Form} = erl_parse:parse_form(Tokens),
    Form.

load(Forms) ->
    {ok, telemetry, Beam} = compile:forms(Forms),
    {module, telemetry} = code:load_binary(telemetry, "telemetry.erl", Beam),
    ok.

-spec unload() -> ok.
unload() ->
    _ = code:purge(telemetry),
    _ = code:delete(telemetry),
    _ = code:purge(telemetry),
    ok.

%% Starts an application `telemetry' with this callback module: `telemetry', if it is loaded, or this one.
-spec start(module()) -> ok.
start(Callbacks) ->
    ok = application:load({application, telemetry, [{vsn, "1"}, {modules, [telemetry]}, {mod, {Callbacks, []}}]}),
    ok = application:start(telemetry).

%% The callbacks of an application that is nothing but a process.
start(normal, _) ->
    {ok, spawn_link(fun test_setup:hold_forever/0)}.

stop(_) ->
    ok.

-spec stop() -> ok.
stop() ->
    _ = application:stop(telemetry),
    _ = application:unload(telemetry),
    ok.
