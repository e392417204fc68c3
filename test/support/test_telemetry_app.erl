%% Loads and starts a substitute for the application `telemetry', and removes it.
-module(test_telemetry_app).

-export([load/0, load/1, unload/0, start/1, stop/0, load_and_start/0]).

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

%% Loads a module `telemetry' with this code.
-spec load([erl_parse:abstract_form()]) -> ok.
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

%% Starts an application `telemetry' with this callback module.
-spec start(module()) -> ok.
start(Callbacks) ->
    ok = application:load({application, telemetry, [{vsn, "1"}, {modules, [telemetry]}, {mod, {Callbacks, []}}]}),
    ok = application:start(telemetry).

-spec stop() -> ok.
stop() ->
    _ = application:stop(telemetry),
    _ = application:unload(telemetry),
    ok.
