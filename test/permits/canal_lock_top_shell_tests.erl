%% top/0,1 in the shell of a terminal, on another node, and without input.
-module(canal_lock_top_shell_tests).

-include_lib("eunit/include/eunit.hrl").

%% Limits for a test of a shell, and for expected output.
-define(TIMEOUT_S, 120).
-define(DEADLINE_MS, 120_000).

nodes_test_() ->
    test_nodes:tests(2, [], [
        {"a call on another node is shown here, and ends with the connection", fun from_another_node/1}
    ]).

shells_test_() ->
    [
        {timeout, ?TIMEOUT_S, {"a call in the shell of a real terminal leaves nothing behind", fun real_terminal/0}},
        {timeout, ?TIMEOUT_S, {"without input there is one picture", fun no_input/0}}
    ].

from_another_node([Remote, Local]) ->
    Node = test_nodes:name(Remote),
    _ = test_nodes:call(Remote, fun() -> spawn(fun keep_started/0) end),
    Started = fun() -> whereis(canal_lock) =/= undefined end,
    test_nodes:call(Remote, fun() -> test_await:value(true, Started) end),
    Callers = fun() -> length([Pid || Pid <- processes(), is_in_top(Pid)]) end,
    Start = fun(Options) ->
        os:putenv("TERM", "xterm"),
        test_terminal:start(fun() -> erpc:call(Node, canal_lock, top, [Options]) end, #{columns => 100, rows => 50})
    end,
    ok = test_nodes:call(Local, fun() ->
        Screen = Start(#{interval_ms => 1}),
        [Title | _] = test_terminal:picture(Screen),
        ?assertNotEqual(nomatch, string:find(Title, "canal_lock on " ++ atom_to_list(Node) ++ ",")),
        test_terminal:go(Screen),
        ?assertMatch("\e[H" ++ _, test_terminal:raw(Screen)),
        test_terminal:quit(Screen)
    end),
    test_nodes:call(Remote, fun() -> test_await:value(0, Callers) end),
    Worker = test_nodes:worker(Local),
    test_nodes:order(Worker, fun() ->
        Screen = Start(#{interval_ms => 16#ffffffff}),
        _ = test_terminal:picture(Screen),
        test_terminal:go(Screen)
    end),
    test_nodes:call(Remote, fun() -> test_await:value(1, Callers) end),
    test_nodes:cut(Remote, Local),
    test_nodes:call(Remote, fun() -> test_await:value(0, Callers) end).

keep_started() ->
    {ok, _} = canal_lock:start_link(3),
    receive never -> ok end.

is_in_top(Pid) ->
    case process_info(Pid, current_stacktrace) of
        {_, Frames} -> lists:keymember(canal_lock_screen, 1, Frames);
        undefined -> false
    end.

%% The shell does not read the line that ends the call, but reads the next one. `script' is part of Debian.
real_terminal() ->
    case os:find_executable("script") of
        false ->
            ok;
        Script ->
            Erl = filename:join([code:root_dir(), "bin", "erl"]),
            Command = lists:flatten(["stty rows 20 cols 60 && exec ", Erl, " -pa '", ebin(), "'"]),
            Port = open_port({spawn_executable, Script}, [
                {args, ["-qec", Command, "/dev/null"]}, {env, [{"TERM", "xterm"}]}, exit_status, binary
            ]),
            try
                in_real_terminal(Port)
            after
                %% So the shell exits even if the test fails.
                hang_up(Port)
            end
    end.

in_real_terminal(Port) ->
    Typed = [
        "{ok, _} = canal_lock:start_link(3), {acquired, 1} = canal_lock:acquire(\"a key\\e[2J\", 3, 1).\n",
        "Before = processes().\n",
        "canal_lock:top(#{interval_ms => 20}).\n"
    ],
    _ = until(Port, "1> "),
    [true = port_command(Port, Line) || Line <- Typed],
    %% Waits for the second picture, which has rates.
    Shown = until(Port, [[lists:duplicate(12, $\s), $0] || _ <- [granted, refused, released, released_by_death]]),
    [
        ?assertNotEqual(nomatch, binary:match(Shown, Part))
     || Part <- [<<"\e[H">>, <<"\"a key\\e[2J\"">>, <<"the caller">>]
    ],
    true = port_command(Port, "canal_lock:stop().\n"),
    _ = until(Port, "\r\nok\r\n"),
    true = port_command(Port, "{whereis(canal_lock) =/= undefined, processes() -- Before, io:columns()}.\n"),
    _ = until(Port, "{true,[],{ok,60}}"),
    true = port_command(Port, "halt(7).\n"),
    ?assertEqual(7, status(Port)).

hang_up(Port) ->
    case erlang:port_info(Port, os_pid) of
        {os_pid, Process} -> os:cmd(lists:concat(["kill ", Process]));
        undefined -> ok
    end.

no_input() ->
    lists:foreach(fun(Flag) ->
        Erl = filename:join([code:root_dir(), "bin", "erl"]),
        Eval = "{ok, _} = canal_lock:start_link(3), ok = canal_lock:top(#{interval_ms => 1}), halt(7).",
        Command = lists:flatten([Erl, " ", Flag, " -pa '", ebin(), "' -eval '", Eval, "' </dev/null"]),
        Port = open_port({spawn, "sh -c \"" ++ Command ++ "\""}, [exit_status, binary]),
        Output = until(Port, "holder\n\n"),
        ?assertEqual(1, length(binary:matches(Output, <<"canal_lock on ">>))),
        ?assertEqual(7, status(Port))
    end, ["-noinput", "-noshell"]).

ebin() ->
    filename:dirname(code:which(canal_lock)).

%% The output up to an expected text.
until(Port, Expected) ->
    until(Port, iolist_to_binary(Expected), <<>>, erlang:monotonic_time(millisecond) + ?DEADLINE_MS).

%% The deadline is absolute, because pictures keep coming.
until(Port, Expected, Before, Deadline_ms) ->
    case binary:match(Before, Expected) of
        nomatch ->
            receive
                {Port, {data, Data}} ->
                    until(Port, Expected, <<Before/binary, Data/binary>>, Deadline_ms);
                {Port, {exit_status, Status}} ->
                    error({ended, Status, Before, without, Expected})
            after max(0, Deadline_ms - erlang:monotonic_time(millisecond)) -> error({still, Before, without, Expected})
            end;
        _ ->
            Before
    end.

status(Port) ->
    receive
        {Port, {data, _}} -> status(Port);
        {Port, {exit_status, Status}} -> Status
    end.
