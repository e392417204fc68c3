%% Loads and starts a substitute for the application `telemetry', and removes it.
-module(test_telemetry_app).

-behaviour(application).

-export([load/0, load_failing/2, unload/0, start/1, stop/0, load_and_start/0]).
-export([start/2, stop/1]).

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
