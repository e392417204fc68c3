%% What top/0,1 shows of the table, that pictures survive changes of the table, and calls in a real shell, on another
%% node and without input. canal_lock_screen_tests has what the pictures of permits and of quorum locks have in common.
-module(canal_lock_top_tests).

-include_lib("eunit/include/eunit.hrl").

-import(test_terminal, [quick/0, cells/1, shown/3]).
-import(test_worker, [holder/1, take/1, caught/1]).

%% Limits for a test of a shell, and for expected output.
-define(TIMEOUT_S, 120).
-define(DEADLINE_MS, 120_000).
-define(NOT_STARTED,
    "canal_lock is not started on this node: start the application, or call canal_lock:start_link/0"
).

top_test_() ->
    test_terminal:tests([
        test_setup:tests([
            {"the requested number of rows are the ones with most permits", fun rows/0},
            {"holders are shown with the time that they have held permits", fun ages/0},
            {"a holder of more keys than one piece has is one row", fun one_row/0},
            {"a holder on another node is shown with its node", fun other_node/0},
            {"the keys with most waiting requests are listed while requests wait", fun waiting/0},
            {"the first lines have the numbers of info/0", fun head/0},
            {"a count that has decreased makes all rates unknown", fun rates/0},
            {"the table is closed, and another one is opened", fun closed_and_opened/0},
            {"a fold never mixes two tables", fun one_table/0}
        ]),
        test_setup:tests(without_manager, [
            {"before the start the call raises and requests no input", fun not_started/0},
            {"P10: pictures continue with a kept table", fun kept/0}
        ])
    ]).

nodes_test_() ->
    test_nodes:tests(2, [], [
        {"a call on another node is shown here, and ends with the connection", fun from_another_node/1}
    ]).

shells_test_() ->
    [
        {timeout, ?TIMEOUT_S, {"a call in the shell of a real terminal leaves nothing behind", fun real_terminal/0}},
        {timeout, ?TIMEOUT_S, {"without input there is one picture", fun no_input/0}}
    ].

%%% Figures

%% More keys than one piece has, with more and fewer rows than keys. The expected rows come from keys/0 and all permits.
rows() ->
    _ = rand:seed(exsss, {1, 2, 3}),
    [holder(maps:from_list([{{H, N}, rand:uniform(30)} || N <- lists:seq(1, 40)])) || H <- lists:seq(1, 50)],
    AllKeys = [[integer_to_list(-P), format(K)] || {P, K} <- lists:sort([{-P, K} || {K, P} <- canal_lock:keys()])],
    Add = fun({Pid, _, P}, Sums) -> maps:update_with(Pid, fun({S, C}) -> {S + P, C + 1} end, {P, 1}, Sums) end,
    Sums = lists:foldl(Add, #{}, test_setup:permits()),
    AllHolders = [
        [integer_to_list(-S), integer_to_list(C), pid_to_list(Pid)]
     || {S, Pid, C} <- lists:sort([{-S, Pid, C} || {Pid, {S, C}} <- maps:to_list(Sums)])
    ],
    lists:foreach(fun(Rows) ->
        ?assertEqual({Rows, lists:sublist(AllKeys, Rows)}, {Rows, keys(Rows)}),
        ?assertEqual({Rows, lists:sublist(AllHolders, Rows)}, {Rows, holders(Rows)})
    end, [1, 2, 3, 10, 49, 50, 51, 600, 1999, 2000, 2001, 1 bsl 70]).

ages() ->
    Pid = self(),
    Shown = fun(Held_ms) ->
        [_, _, [Headings, Row]] = shown(canal_lock_top, none, (data(#{}))#{holders := [{Pid, 3, 2, Held_ms}]}),
        ?assertEqual(["permits", "keys", "for", "holder"], string:lexemes(Headings, " ")),
        ["3", "2", Age | _] = string:lexemes(Row, " "),
        Age
    end,
    Ages = [0, 999, 1000, 59_999, 60_000, 3_599_999, 3_600_000, 86_399_999, 86_400_000, 864_000_000],
    ?assertEqual(["0s", "0s", "1s", "59s", "1m", "59m", "1h", "23h", "1d", "10d"], [Shown(Ms) || Ms <- Ages]).

one_row() ->
    Many = holder(maps:from_list([{{key, N}, 1} || N <- lists:seq(1, 5_000)])),
    One = holder(#{db => 2}),
    ?assertEqual([["5000", "5000", pid_to_list(Many)], ["2", "1", pid_to_list(One)]], holders(10)).

%% A worker is made the proxy of a pid of another node that does not exist.
other_node() ->
    Remote = test_setup:remote_pid(1),
    Proxy = holder(#{db => 2, other => 1}),
    ok = test_worker:order(Proxy, fun() -> canal_lock_nif:represent(Remote) end),
    [_, [_Headings, Row]] = sections(10),
    ["3", "2", _Age | Holder] = string:lexemes(Row, " "),
    ?assertEqual([pid_to_list(Remote), "on", atom_to_list(node(Remote))], Holder).

%% The longest wait is that of the oldest request.
waiting() ->
    Since_ms = erlang:monotonic_time(millisecond),
    Waiting = [{b, 2}, {"first", 30}, {a, 2}, {{last}, 1}],
    Refs = [canal_lock:request(Key, 0, 1) || {Key, Requests} <- Waiting, _ <- lists:seq(1, Requests)],
    Queues = fun(Rows) ->
        [_, _, [Headings | Lines]] = sections(Rows),
        ?assertEqual(["waiting", "longest", "wait", "key"], string:lexemes(Headings, " ")),
        [{Count, Key, list_to_integer(Ms)} || [Count, Ms, "ms", Key] <- [test_terminal:words(Line) || Line <- Lines]]
    end,
    All = [{"30", "\"first\""}, {"2", "a"}, {"2", "b"}, {"1", "{last}"}],
    [?assertEqual(lists:sublist(All, Rows), [{N, Key} || {N, Key, _} <- Queues(Rows)]) || Rows <- [2, 10]],
    test_await:value(true, fun() -> [{_, _, Ms}] = Queues(1), Ms >= 100 end),
    Second_ms = erlang:monotonic_time(millisecond),
    {waiting, _} = canal_lock:request("first", 0, 1),
    [{"31", _, First_ms}] = Queues(1),
    ?assert(First_ms >= 100),
    ?assert(First_ms =< erlang:monotonic_time(millisecond) - Since_ms + 1),
    [ok = canal_lock:cancel(Ref) || {waiting, Ref} <- Refs],
    [{"1", "\"first\"", Last_ms}] = Queues(10),
    ?assert(Last_ms =< erlang:monotonic_time(millisecond) - Second_ms + 1),
    MadeUp = (data(#{}))#{queues := [{a, 2, 999}, {b, 1, 1060}]},
    [_, _, _, [_ | Rows]] = shown(canal_lock_top, none, MadeUp),
    ?assertEqual([["2", "999", "ms", "a"], ["1", "1.1", "s", "b"]], [string:lexemes(Row, " ") || Row <- Rows]).

head() ->
    holder(#{db => 2, {app, 1} => 1}),
    holder(#{db => 1}),
    Screen = test_terminal:start(fun canal_lock:top/0, #{columns => 100, rows => 50}),
    [Title, Names, Numbers | _] = test_terminal:picture(Screen),
    ?assertMatch("canal_lock on nonode@nohost, " ++ _, Title),
    ?assertEqual(["keys", "permits", "holders", "memory"], cells(Names)),
    ?assertMatch(["2", "4", "2", _], cells(Numbers)),
    test_terminal:quit(Screen),
    Shown = fun(Last, Changes) ->
        [Head | _] = shown(canal_lock_top, Last, data(Changes)),
        [cells(Line) || Line <- Head]
    end,
    Rates = #{granted => 9, refused => 6, released => 3, released_by_death => 1},
    lists:foreach(fun({Last, Changes, Expected}) -> ?assertEqual(Expected, Shown(Last, Changes)) end, [
        {none, #{keys => 1, permits => 2, holders => 3, memory => 4500}, [
            ["keys", "permits", "holders", "memory"],
            ["1", "2", "3", "4.5 kB"],
            ["granted/s", "refused/s", "released/s", "by death/s"],
            ["-", "-", "-", "-"]
        ]},
        {{data(#{}), 2.0}, Rates#{memory => 4_500_000}, [
            ["keys", "permits", "holders", "memory"],
            ["0", "0", "0", "4.5 MB"],
            ["granted/s", "refused/s", "released/s", "by death/s"],
            ["4.5", "3.0", "1.5", "0.5"]
        ]},
        %% After the first release by a process that did not hold the key, and after the first wait.
        {{data(#{not_held => 2}), 2.0}, #{not_held => 4, memory => 4_500_000_000}, [
            ["keys", "permits", "holders", "memory"],
            ["0", "0", "0", "4.5 GB"],
            ["granted/s", "refused/s", "released/s", "by death/s", "not held/s"],
            ["0", "0", "0", "0", "1.0"]
        ]}
    ]),
    lists:foreach(fun({Before, Changes, Expected}) ->
        Headings = ["waiting", "hand-overs/s", "timeouts/s", "average wait", "longest wait"],
        ?assertEqual(Headings, lists:nth(5, Shown({data(Before), 1.0}, Changes))),
        ?assertEqual(Expected, lists:nth(6, Shown({data(Before), 1.0}, Changes)))
    end, [
        {#{}, #{waiting => 3}, ["3", "0", "0", "-", "0.00 ms"]},
        {#{wait_us => 700}, #{handed_over => 20, timed_out => 30, wait_us => 17_700, longest_wait_us => 12_345},
            ["0", "20", "30", "0.34 ms", "12.35 ms"]},
        {#{}, #{timed_out => 2, wait_us => 5_000_000, longest_wait_us => 3_000_000},
            ["0", "0", "2.0", "2.5 s", "3.0 s"]},
        {#{timed_out => 1}, #{timed_out => 1}, ["0", "0", "0", "-", "0.00 ms"]}
    ]).

%% Then another table has replaced the table. Within one table only `granted' can decrease.
rates() ->
    Rates = fun(Less, More) ->
        [[_, _, _, Rates | _] | _] = shown(canal_lock_top, {data(Less), 1.0}, data(More)),
        lists:usort(cells(Rates))
    end,
    Decreasing = [refused, released, not_held, timed_out, handed_over, wait_us, released_by_death],
    [?assertEqual({Name, ["-"]}, {Name, Rates(#{Name => 2}, #{Name => 1, granted => 9})}) || Name <- Decreasing],
    ?assertEqual(["0"], Rates(#{granted => 9}, #{granted => 8})).

%%% Tables that come and go

closed_and_opened() ->
    take(#{db => 1}),
    Screen = top(),
    ?assertMatch([_, [_, _], [_, _] | _], test_terminal:sections(test_terminal:picture(Screen))),
    ok = canal_lock:stop(),
    lists:foreach(fun(_) ->
        [Title, Sentence, ""] = test_terminal:next(Screen),
        ?assertNotEqual(nomatch, string:find(Title, "; no manager runs")),
        ?assertEqual(?NOT_STARTED, Sentence)
    end, [1, 2, 3]),
    {ok, _} = canal_lock:start_link(3),
    take(#{new => 2}),
    ?assertMatch([[_, _, _, _, _], [_, "            2  new"] | _], test_terminal:sections(test_terminal:next(Screen))),
    test_terminal:quit(Screen).

kept() ->
    {ok, Manager} = canal_lock:start_link(3, #{keep_on_crash => true}),
    unlink(Manager),
    take(#{db => 1}),
    Screen = top(),
    [Title | _] = test_terminal:picture(Screen),
    ?assertEqual(nomatch, string:find(Title, "no manager")),
    test_worker:kill(Manager),
    take(#{db => 1000}),
    [TitleWithout, _, _, _, Rates | Without] = test_terminal:next(Screen),
    ?assertNotEqual(nomatch, string:find(TitleWithout, "; no manager runs")),
    ?assertMatch(["", _, "         1001  db" | _], Without),
    ?assert(list_to_integer(hd(cells(Rates))) > 0),
    {ok, _} = canal_lock:start_link(3, #{keep_on_crash => true}),
    [TitleWith | _] = test_terminal:next(Screen),
    ?assertEqual(nomatch, string:find(TitleWith, "no manager")),
    test_terminal:quit(Screen),
    %% The manager is linked to this process, and would exit with it during another test.
    ok = canal_lock:stop().

not_started() ->
    Screen = test_terminal:start(fun() -> caught(fun canal_lock:top/0) end, #{}),
    {'EXIT', {badarg, [{canal_lock, top, [], Info} | _]}} = test_terminal:await_result(Screen),
    ?assertMatch({error_info, #{cause := not_started}}, lists:keyfind(error_info, 1, Info)).

%% The pieces of the first table are dropped.
one_table() ->
    Keys = fun(Which) -> maps:from_list([{{Which, N}, 1} || N <- lists:seq(1, 2000)]) end,
    Fill = fun(Which) ->
        ok = canal_lock:stop(),
        {ok, _} = canal_lock:start_link(3),
        take(Keys(Which)),
        [{waiting, _} = canal_lock:request(Key, 0, 1) || Key <- maps:keys(Keys(Which))]
    end,
    Fill(none),
    lists:foreach(fun(Fold) ->
        Pieces = counters:new(1, []),
        Add = fun(Piece, Before) ->
            ok = counters:add(Pieces, 1, 1),
            _ = case counters:get(Pieces, 1) of
                1 -> Fill(Fold);
                _ -> no_change
            end,
            Piece ++ Before
        end,
        Told = [Key || Element <- canal_lock_view:Fold(Add, []), {_, _} = Key <- tuple_to_list(Element)],
        ?assertEqual({Fold, lists:sort(maps:keys(Keys(Fold)))}, {Fold, lists:sort(Told)})
    end, [fold_keys, fold_permits, fold_queues]).

%%% Shells and other nodes

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
    %% A picture can come between the line and the answer, and does not end with a newline.
    _ = until(Port, "ok\r\n"),
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

%%% Helpers

top() ->
    test_terminal:start(fun() -> canal_lock:top(quick()) end, #{columns => 100, rows => 50}).

%% The lists of a reading of the table.
sections(Rows) ->
    {read, Data} = canal_lock_top:read(Rows),
    [_Head | Sections] = shown(canal_lock_top, none, Data),
    Sections.

%% The words of each row.
keys(Rows) -> [string:lexemes(Row, " ") || Row <- tl(hd(sections(Rows)))].

%% Without what describes the holder.
holders(Rows) ->
    [[Permits, Keys, Pid] || [Permits, Keys, _Age, Pid | _] <- holder_rows(Rows)].

holder_rows(Rows) -> [string:lexemes(Row, " ") || Row <- tl(lists:nth(2, sections(Rows)))].

%% A made-up reading.
data(Changes) ->
    Info = maps:map(fun(_, _) -> 0 end, canal_lock:info()),
    #{info => maps:merge(Info, Changes), keys => [], holders => [], queues => []}.

format(Term) ->
    lists:flatten(io_lib:format("~0tp", [Term])).
