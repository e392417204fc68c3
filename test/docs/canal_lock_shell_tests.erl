%% The shell of `make shell': the commands in its greeting work and have the effect that the greeting states.
-module(canal_lock_shell_tests).

-include_lib("eunit/include/eunit.hrl").

greeting_test_() ->
    {timeout, 60, fun greeting/0}.

greeting() ->
    Lines = lines(shell(["q()."])),
    ?assertEqual("q().", lists:last(Lines)),
    Shown = shell([Typed || Line <- Lines, Typed <- typed(Line)]),
    [
        ?assertNotEqual({Expected, nomatch}, {Expected, re:run(Shown, Expected, [multiline])})
     || Expected <- [
            "{acquired,1}$",
            "^\\d+> \\[1\\]$",
            "^\\d+> ok$",
            "\\[{<0\\.\\d+\\.0>,1}\\]$",
            "granted",
            %% OTP 27 underlines on any terminal.
            "Acquires a permit of (\\e\\[[0-9;]*m)?Key"
        ]
    ],
    ?assertEqual(nomatch, re:run(Shown, "\\*\\* ")).

%% The commands of the greeting: two blanks, an expression, then its description.
lines(Greeting) ->
    {match, Found} = re:run(Greeting, "^  ([a-zA-Z].*?\\.)(?:  +.*)?$", [global, multiline, {capture, [1], list}]),
    lists:append(Found).

%% Waits for the effect as a user does: until the spawned process holds a permit, or until top/0 has printed.
typed("spawn(" ++ _ = Line) -> [Line, "(fun Wait() -> canal_lock:count(db) > 0 orelse Wait() end)()."];
typed("canal_lock:top(" ++ _ = Line) -> [Line, {when_shown, "holder\n"}, ""];
typed(Line) -> [Line].

%% Runs the steps; the last one ends the shell.
shell(Steps) ->
    Libraries = filename:dirname(code:lib_dir(canal_lock)),
    Port = open_port({spawn_executable, "scripts/shell.sh"}, [
        {args, [Libraries]}, {env, [{"TERM", "dumb"}]}, exit_status
    ]),
    WhenStarted = "(fun Wait() -> is_pid(whereis(canal_lock)) orelse Wait() end)().",
    lists:foldl(fun(Step, Output) -> step(Step, Port, Output) end, "", [WhenStarted | Steps] ++ [ended]).

step({when_shown, Text}, Port, Output) ->
    case string:find(Output, Text) of
        nomatch -> step({when_shown, Text}, Port, output(Port, Output));
        _ -> Output
    end;
step(ended, Port, Output) ->
    case output(Port, Output) of
        {ended, All} -> All;
        More -> step(ended, Port, More)
    end;
step(Line, Port, Output) ->
    true = port_command(Port, [Line, $\n]),
    Output.

output(Port, Output) ->
    receive
        {Port, {data, Data}} -> Output ++ Data;
        {Port, {exit_status, 0}} -> {ended, Output}
    end.
