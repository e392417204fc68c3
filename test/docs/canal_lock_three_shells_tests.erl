%% Types the first program of docs/cluster_permits.md into three shells, and compares what they show with the page.
-module(canal_lock_three_shells_tests).

-include_lib("eunit/include/eunit.hrl").

-define(PAGE, "docs/cluster_permits.md").
-define(TIMEOUT_S, 300).
-define(TIMEOUT_MS, 120_000).

%% As the page shows it.
-define(STARTING, "{error,no_quorum}").

the_first_program_test_() ->
    {timeout, ?TIMEOUT_S, fun the_first_program/0}.

the_first_program() ->
    {ok, Page} = file:read_file(?PAGE),
    {match, [[Start]]} = re:run(Page, "(?s)```erlang\n(\\{ok, _\\}.*?)\n```", [global, {capture, [1], list}]),
    Steps = steps(unicode:characters_to_list(Page)),
    Names = lists:usort([Name || {Name, _, _} <- Steps]),
    ?assertMatch([_, _, _], Names),
    ok = file:make_dir(folder()),
    Shells = maps:from_list([{Name, shell(Name)} || Name <- Names]),
    try
        introduce(Shells),
        [started(type(string:replace(Start, "\n", " ", all), Shell)) || Shell <- maps:to_list(Shells)],
        [step(Step, Shells) || Step <- Steps]
    after
        [end_shell(Port) || Port <- maps:values(Shells), erlang:port_info(Port) =/= undefined],
        ok = file:del_dir_r(folder())
    end.

started(Shown) ->
    ?assertEqual("started", string:trim(Shown)).

%% `{Name, Typed, Shown}' for each prompt with the name of a node.
steps(Page) ->
    {match, Found} = re:run(
        Page, "(?ms)^\\((\\w+@\\w+)\\)\\d+> ([^\n]*)\n(.*?)(?=^\\(|^```)", [global, {capture, all_but_first, list}]
    ),
    [{Name, Typed, Shown} || [Name, Typed, Shown] <- Found].

step({Name, "halt().", ""}, Shells) ->
    end_shell(maps:get(Name, Shells));
step({Name, Typed, Shown} = Step, Shells) ->
    case type(Typed, {Name, maps:get(Name, Shells)}) of
        %% The page says that the first calls are answered so.
        ?STARTING ++ _ -> step(Step, Shells);
        Got -> ?assertEqual({Typed, test_shown:value(Shown)}, {Typed, test_shown:value(Got)})
    end.

end_shell(Port) ->
    true = port_command(Port, "halt().\n"),
    receive {Port, {exit_status, Status}} -> ?assertEqual(0, Status) after ?TIMEOUT_MS -> error(timeout) end.

%% The nodes find each other without the port mapper daemon of this machine, so others can have the same names.
shell(Name) ->
    Erl = filename:join([code:root_dir(), "bin", "erl"]),
    Paths = [Path || Path <- code:get_path(), filelib:is_dir(Path)],
    Port = open_port({spawn_executable, Erl}, [
        {args, ["-sname", Name, "-setcookie", "canal_lock", "-kernel", "logger_level", "none"] ++
            test_epmd:arguments() ++ ["-pa" | Paths]},
        {env, [{"TERM", "dumb"}, {"XDG_DATA_HOME", folder()}]}, exit_status, use_stdio
    ]),
    _Greeting = shown(Name, Port, ""),
    Port.

introduce(Shells) ->
    Listening = [
        io_lib:format("test_epmd:set_port('~s', ~s), ", [Name, string:trim(type("test_epmd:port().", Shell))])
     || {Name, _} = Shell <- maps:to_list(Shells)
    ],
    [type([Listening, "ok."], Shell) || Shell <- maps:to_list(Shells)].

%% What the shell shows, without the next prompt.
type(Line, {Name, Port}) ->
    true = port_command(Port, [Line, $\n]),
    shown(Name, Port, "").

shown(Name, Port, Output) ->
    case re:run(Output, "^(.*?)\\(" ++ Name ++ "\\)\\d+> $", [dotall, {capture, all_but_first, list}]) of
        {match, [Shown]} ->
            Shown;
        nomatch ->
            receive
                {Port, {data, Data}} -> shown(Name, Port, Output ++ Data)
            after ?TIMEOUT_MS -> error({timeout, Output})
            end
    end.

%% Of the state files.
folder() ->
    Data = os:getenv("CANAL_LOCK_TEST_DATA", os:getenv("TMPDIR", "/tmp")),
    filename:join(Data, "canal_lock_shells_" ++ os:getpid()).
