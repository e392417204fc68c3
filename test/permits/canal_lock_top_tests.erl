%% top/0,1: pictures show the state of the table, fit the screen for any key, survive changes of the table, and leave
%% nothing behind.
-module(canal_lock_top_tests).

-include_lib("eunit/include/eunit.hrl").

-import(test_terminal, [quick/0, slow/0, cells/1]).
-import(test_worker, [holder/1, take/1, caught/1]).

%% For processes that tests spawn.
-export([hold/2]).

-define(NOT_STARTED,
    "canal_lock is not started on this node: call canal_lock:start_link/1, or start it in a supervisor"
).

top_test_() ->
    test_terminal:tests([
        test_setup:tests([
            {"keys and holders are sorted by their permits", fun figures/0},
            {"equal rows are in the order of terms", fun ties/0},
            {"the requested number of rows are the ones with most permits", fun rows/0},
            {"a holder of more keys than one piece has is one row", fun one_row/0},
            {"without options there are ten rows of each", fun ten_rows/0},
            {"the first lines have the numbers of info/0", fun head/0},
            {"rates are per second since the last picture", fun rates/0},
            {"slow rates have a decimal, and the interval is kept", fun slow_rates/0},
            {"a pause is at least three times as long as the snapshot before it", fun pauses/0},
            {"the rate of not_held is shown after the first such release", fun not_held/0},
            {"waiting requests and their rates are shown after the first wait", fun waits/0},
            {"the keys with most waiting requests are listed while requests wait", fun waiting/0},
            {"the longest wait of a key is shown in milliseconds, then in seconds", fun longest/0},
            {"the table is closed, and another one is opened", fun closed_and_opened/0},
            {"another table replaces the table between two pictures", fun replaced/0},
            {"a holder is described by its name, initial call or current function", fun purposes/0},
            {"a holder on another node is shown with its node", fun other_node/0},
            {"keys with control characters, and keys of every kind", fun hostile/0},
            {"pictures fit screens of any size, also after a change of the size", fun screens/0},
            {"keys get half of a small screen, unless there are few", fun halves/0},
            {"each of three lists gets a third of a small screen, unless another one is short", fun thirds/0},
            {"keys are formatted by the caller's function, unless it fails", fun shown_by_the_caller/0},
            {"each picture replaces the one before", fun over_the_last/0},
            {"any line of input ends the call at once", fun any_line/0},
            {"the end of input ends the call, and so does the death of the group leader", fun no_more_input/0},
            {"without input there is one picture with rates, and one before it on a terminal", fun no_input/0},
            {"without a terminal pictures follow one another", fun no_terminal/0},
            {"a dumb terminal is treated as no terminal", fun dumb/0},
            {"a fold never mixes two tables", fun one_table/0}
        ]),
        test_setup:tests(without_manager, [
            {"before the start the call raises and requests no input", fun not_started/0},
            {"P10: pictures continue with a kept table", fun kept/0}
        ])
    ]).

terminal() -> #{columns => 100, rows => 50}.

%%% Figures

figures() ->
    One = holder(#{db => 3, {app, 1} => 2}),
    Two = holder(#{db => 1, "other" => 5}),
    {Keys, Holders} = shown(slow(), terminal()),
    ?assertEqual([["5", "\"other\""], ["4", "db"], ["2", "{app,1}"]], Keys),
    ?assertEqual([["6", "2", pid_to_list(Two)], ["5", "2", pid_to_list(One)]], without_purpose(Holders)).

%% With two keys that are `==' but not `=:='.
ties() ->
    Keys = [c, {b}, 2, 1, "a", <<"d">>],
    Pids = [holder(#{Key => 2}) || Key <- Keys],
    Screen = top((quick())#{rows => 6}, terminal()),
    Expected = {
        [["2", format(Key)] || Key <- lists:sort(Keys)],
        [["2", "1", pid_to_list(Pid)] || Pid <- lists:sort(Pids)]
    },
    Shown = fun(Picture) ->
        {_, ShownKeys, Holders} = sections(Picture),
        {ShownKeys, without_purpose(Holders)}
    end,
    ?assertEqual(Expected, Shown(test_terminal:picture(Screen))),
    ?assertEqual(Expected, Shown(test_terminal:next(Screen))),
    test_terminal:quit(Screen),
    take(#{1.0 => 2}),
    {WithBoth, _} = shown((slow())#{rows => 7}, terminal()),
    ?assertEqual([["2", "1"], ["2", "1.0"]], lists:sort(lists:sublist(WithBoth, 2))).

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
        {ShownKeys, Holders} = shown((slow())#{rows => Rows}, (terminal())#{rows => 5000}),
        ?assertEqual({Rows, lists:sublist(AllKeys, Rows)}, {Rows, ShownKeys}),
        ?assertEqual({Rows, lists:sublist(AllHolders, Rows)}, {Rows, without_purpose(Holders)})
    end, [1, 2, 3, 10, 49, 50, 51, 600, 1999, 2000, 2001, 1 bsl 70]).

one_row() ->
    Many = holder(maps:from_list([{{key, N}, 1} || N <- lists:seq(1, 5_000)])),
    One = holder(#{db => 2}),
    {_, Holders} = shown(slow(), terminal()),
    ?assertEqual([["5000", "5000", pid_to_list(Many)], ["2", "1", pid_to_list(One)]], without_purpose(Holders)).

ten_rows() ->
    [holder(#{{key, N} => N}) || N <- lists:seq(1, 12)],
    Screen = test_terminal:start(fun canal_lock:top/0, terminal()),
    {_, Keys, Holders} = sections(test_terminal:picture(Screen)),
    ?assertEqual([[integer_to_list(N), format({key, N})] || N <- lists:seq(12, 3, -1)], Keys),
    ?assertEqual(10, length(Holders)),
    test_terminal:quit(Screen).

head() ->
    holder(#{db => 2, {app, 1} => 1}),
    holder(#{db => 1}),
    #{memory := Bytes} = canal_lock:info(),
    Screen = top(slow(), terminal()),
    [Title, Names, Numbers | _] = test_terminal:picture(Screen),
    Pattern = "^canal_lock on nonode@nohost, [0-2][0-9]:[0-5][0-9]:[0-5][0-9]; Enter ends this$",
    ?assertMatch({match, _}, re:run(Title, Pattern)),
    ?assertEqual(["keys", "permits", "holders", "memory"], string:lexemes(Names, " ")),
    ["2", "4", "2", Memory, "kB"] = string:lexemes(Numbers, " "),
    ?assert(abs(Bytes / 1000 - list_to_float(Memory)) < 0.1),
    test_terminal:quit(Screen).

%% The time between two snapshots is at least what the test does in between, and at most the time until the second
%% picture.
rates() ->
    take(#{db => 1000}),
    Before = now_us(),
    Screen = top(quick(), terminal()),
    ?assertEqual(#{"granted/s" => "-", "refused/s" => "-", "released/s" => "-", "by death/s" => "-"}, rates(Screen)),
    Begin = now_us(),
    Mortal = holder(#{other => 700}),
    [full = canal_lock:acquire(db, 1, 1) || _ <- lists:seq(1, 3000)],
    [ok = canal_lock:release(db) || _ <- lists:seq(1, 500)],
    test_worker:kill(Mortal),
    test_await:value(700, fun() -> maps:get(released_by_death, canal_lock:info()) end),
    End = now_us(),
    test_terminal:go(Screen),
    Rates = rates(Screen),
    After = now_us(),
    lists:foreach(fun({Name, Times}) ->
        Rate = list_to_integer(maps:get(Name, Rates)),
        Least = Times * 1_000_000 / (After - Before),
        Most = Times * 1_000_000 / (End - Begin),
        ?assertMatch({_, true, true}, {{Name, Least, Rate, Most}, Least - 1 =< Rate, Rate =< Most + 1})
    end, [{"granted/s", 700}, {"refused/s", 3000}, {"released/s", 500}, {"by death/s", 700}]),
    test_terminal:go(Screen),
    ?assertEqual(["0"], lists:usort(maps:values(rates(Screen)))),
    test_terminal:quit(Screen).

%% At a rate of a few per second a decimal is shown.
slow_rates() ->
    Interval_ms = 300,
    Screen = top(#{interval_ms => Interval_ms}, terminal()),
    _ = rates(Screen),
    take(#{db => 2}),
    Begin = now_us(),
    test_terminal:go(Screen),
    #{"granted/s" := Rate} = rates(Screen),
    ?assert(now_us() - Begin >= 1000 * Interval_ms),
    ?assert(list_to_float(Rate) =< 2 * 1000 / Interval_ms + 0.1),
    ?assert(list_to_float(Rate) > 0.0),
    test_terminal:quit(Screen).

%% Adds keys until a snapshot takes more than 10 ms, because its time is measured in whole milliseconds.
pauses() ->
    Screen = top(quick(), terminal()),
    _ = test_terminal:picture(Screen),
    pauses(1, Screen),
    test_terminal:quit(Screen).

pauses(Thousands, Screen) ->
    take(maps:from_list([{{key, Thousands, N}, 1} || N <- lists:seq(1, 1000 * Thousands)])),
    {Took, Pause} = snapshot_and_pause(Screen),
    Ms = erlang:convert_time_unit(1, millisecond, native),
    ?assertMatch({_, _, true}, {Took, Pause, Pause >= 3 * (Took - Ms)}),
    Took > 10 * Ms orelse pauses(2 * Thousands, Screen).

%% The time of a snapshot, from its first native call to its last one, and the time until the next snapshot.
snapshot_and_pause({Caller, _, _} = Screen) ->
    1 = erlang:trace(Caller, true, [call, monotonic_timestamp]),
    Natives = [{canal_lock_nif, info, 0}, {canal_lock_nif, keys, 3}, {canal_lock_nif, permits, 2}],
    [1 = erlang:trace_pattern(Native, true, []) || Native <- Natives],
    _ = test_terminal:next(Screen),
    _ = test_terminal:next(Screen),
    1 = erlang:trace(Caller, false, [all]),
    [1 = erlang:trace_pattern(Native, false, []) || Native <- Natives],
    _ = test_await:traced(Caller),
    [{info, _}, {keys, Begin} | Calls] = calls(Caller),
    {Others, [{info, Next} | _]} = lists:splitwith(fun({Function, _}) -> Function =/= info end, Calls),
    {permits, End} = lists:last(Others),
    {End - Begin, Next - End}.

calls(Caller) ->
    receive
        {trace_ts, Caller, call, {_, Function, _}, At} -> [{Function, At} | calls(Caller)]
    after 0 -> []
    end.

not_held() ->
    Screen = top(quick(), terminal()),
    ?assertNot(maps:is_key("not held/s", rates(Screen))),
    [{error, not_held} = canal_lock:release(db) || _ <- lists:seq(1, 1000)],
    test_terminal:go(Screen),
    #{"not held/s" := Rate, "released/s" := "0"} = rates(Screen),
    ?assert(list_to_integer(Rate) > 0),
    test_terminal:go(Screen),
    ?assertMatch(#{"not held/s" := "0"}, rates(Screen)),
    test_terminal:quit(Screen).

%% Requests that are cancelled, or granted or refused at once, are no waits.
waits() ->
    take(#{db => 1}),
    {acquired, 2} = canal_lock:acquire(db, 2, 1, 1),
    full = canal_lock:acquire(db, 2, 1, 0),
    Screen = top(quick(), terminal()),
    {Head, _, _} = sections(test_terminal:picture(Screen)),
    ?assertEqual(5, length(Head)),
    full = canal_lock:acquire(db, 2, 1, 1),
    Refs = [Ref || _ <- [1, 2, 3], {waiting, Ref} <- [canal_lock:request(db, 2, 1)]],
    test_terminal:go(Screen),
    ?assertMatch(#{"waiting" := "3", "hand-overs/s" := "0"}, waits_of(test_terminal:picture(Screen))),
    ok = canal_lock:release(db),
    test_terminal:go(Screen),
    #{"waiting" := "2", "hand-overs/s" := HandOvers, "timeouts/s" := "0"} = waits_of(test_terminal:picture(Screen)),
    ?assertNotEqual("0", HandOvers),
    full = canal_lock:acquire(db, 2, 1, 1),
    [_ = canal_lock:cancel(Ref) || Ref <- Refs],
    test_terminal:go(Screen),
    Picture = test_terminal:picture(Screen),
    #{"waiting" := "0", "hand-overs/s" := "0", "timeouts/s" := Timeouts} = waits_of(Picture),
    ?assertNotEqual("0", Timeouts),
    %% The list is gone.
    ?assertMatch([_, _, _, []], test_terminal:sections(Picture)),
    test_terminal:quit(Screen).

waits_of([_Title, _, _, _, _, Names, Numbers | _]) ->
    maps:from_list(lists:zip(cells(Names), cells(Numbers))).

waiting() ->
    Waiting = [{b, 2}, {"first", 30}, {a, 2}, {{last}, 1}],
    [{waiting, _} = canal_lock:request(Key, 0, 1) || {Key, Requests} <- Waiting, _ <- lists:seq(1, Requests)],
    lists:foreach(fun({Rows, Expected}) ->
        Screen = top((slow())#{rows => Rows}, terminal()),
        Picture = test_terminal:picture(Screen),
        [_, _, _, [Names | Lines] | _] = test_terminal:sections(Picture),
        ?assertEqual(["waiting", "longest", "wait", "key"], string:lexemes(Names, " ")),
        ?assertEqual(Expected, [[N, Key] || [N, _, "ms", Key] <- [string:lexemes(Line, " ") || Line <- Lines]]),
        test_terminal:quit(Screen)
    end, [
        {10, [["30", "\"first\""], ["2", "a"], ["2", "b"], ["1", "{last}"]]},
        {2, [["30", "\"first\""], ["2", "a"]]}
    ]).

longest() ->
    Since = erlang:monotonic_time(millisecond),
    {waiting, First} = canal_lock:request(db, 0, 1),
    Screen = top(quick(), terminal()),
    _ = test_terminal:picture(Screen),
    %% The wait of the oldest request, not of this one. Shown seconds have one decimal, so they can be 50 ms off.
    {waiting, _} = canal_lock:request(db, 0, 1),
    test_await:value(true, fun() ->
        Least_ms = erlang:monotonic_time(millisecond) - Since,
        {Shown_ms, Unit} = longest_wait(Screen),
        Most_ms = erlang:monotonic_time(millisecond) - Since,
        ?assertMatch({true, true}, {Shown_ms >= Least_ms - 60, Shown_ms =< Most_ms + 60}),
        ?assertEqual(Shown_ms >= 1000, Unit =:= "s"),
        Unit =:= "s"
    end),
    ok = canal_lock:cancel(First),
    {Ms, _} = longest_wait(Screen),
    ?assert(Ms =< erlang:monotonic_time(millisecond) - Since + 60),
    test_terminal:quit(Screen).

%% Of the picture after the next one.
longest_wait(Screen) ->
    test_terminal:go(Screen),
    [_, _, _, [_, Line] | _] = test_terminal:sections(test_terminal:picture(Screen)),
    case string:lexemes(Line, " ") of
        [_, Ms, "ms", "db"] -> {list_to_integer(Ms), "ms"};
        [_, Seconds, "s", "db"] -> {round(1000 * list_to_float(Seconds)), "s"}
    end.

purposes() ->
    Held = fun(Pid) ->
        {_, Holders} = shown(slow(), terminal()),
        [Words] = [Words || [_, _, Shown | Words] <- Holders, Shown =:= pid_to_list(Pid)],
        lists:flatten(lists:join(" ", Words))
    end,
    Test = self(),
    Plain = held(spawn(?MODULE, hold, [Test, plain])),
    ?assertEqual("fun canal_lock_top_tests:hold/2", Held(Plain)),
    Fun = held(spawn(fun() -> hold(Test, 'fun') end)),
    ?assertEqual("in fun canal_lock_top_tests:hold/2", Held(Fun)),
    OfOtp = held(proc_lib:spawn(?MODULE, hold, [Test, of_otp])),
    ?assertEqual("fun canal_lock_top_tests:hold/2", Held(OfOtp)),
    %% The heap is too large to copy its dictionary.
    Large = held(proc_lib:spawn_opt(?MODULE, hold, [Test, large], [{min_heap_size, 1_000_000}])),
    {initial_call, {Module, Function, Arity}} = process_info(Large, initial_call),
    ?assertEqual(format(fun Module:Function/Arity), Held(Large)),
    true = register('with a name', Plain),
    ?assertEqual("'with a name'", Held(Plain)),
    [exit(Pid, kill) || Pid <- [Plain, Fun, OfOtp, Large]].

hold(Test, Key) ->
    {acquired, 1} = canal_lock:acquire(Key, 1, 1),
    Test ! {held, self()},
    receive {never, Test} -> ok end.

held(Pid) ->
    receive {held, Pid} -> Pid end,
    %% It waits in the receive of hold/2.
    test_await:value({status, waiting}, fun() -> process_info(Pid, status) end),
    Pid.

%% A worker is made the proxy of a pid of another node that does not exist.
other_node() ->
    #{from_other_nodes := Terms} = maps:from_list(test_key_terms:by_kind()),
    [Remote | _] = [Pid || Pid <- Terms, is_pid(Pid)],
    Proxy = test_worker:holder(#{db => 2, other => 1}),
    ok = test_worker:order(Proxy, fun() -> canal_lock_nif:represent(Remote) end),
    {_, Holders} = shown(slow(), terminal()),
    ?assertEqual([["3", "2", pid_to_list(Remote), "on", atom_to_list(node(Remote))]], Holders).

%%% Tables that come and go

closed_and_opened() ->
    take(#{db => 1}),
    Screen = top(quick(), terminal()),
    ?assertMatch({_, [["1", "db"]], [_]}, sections(test_terminal:picture(Screen))),
    ok = canal_lock:stop(),
    lists:foreach(fun(_) ->
        [Title, Sentence, ""] = test_terminal:next(Screen),
        ?assertNotEqual(nomatch, string:find(Title, "; no manager runs")),
        ?assertEqual(?NOT_STARTED, Sentence)
    end, [1, 2, 3]),
    {ok, _} = canal_lock:start_link(3),
    take(#{new => 2}),
    test_terminal:go(Screen),
    ?assertEqual(["-"], lists:usort(maps:values(rates(Screen)))),
    Picture = test_terminal:next(Screen),
    ?assertMatch({_, [["2", "new"]], [_]}, sections(Picture)),
    ?assertEqual(["0"], lists:usort(maps:values(rates_of(Picture)))),
    test_terminal:quit(Screen).

%% In each case one counter is less in the new table.
replaced() ->
    Screen = top(quick(), terminal()),
    _ = test_terminal:picture(Screen),
    lists:foreach(fun({What, Change}) ->
        take(#{new => 1}),
        Change(),
        _ = test_terminal:next(Screen),
        another_table(#{new => 1000}),
        test_terminal:go(Screen),
        ?assertEqual({What, ["-"]}, {What, lists:usort(maps:values(rates(Screen)))})
    end, [
        {refused, fun() -> full = canal_lock:acquire(new, 0, 1) end},
        {released, fun() -> ok = canal_lock:release(new) end},
        {not_held, fun() -> {error, not_held} = canal_lock:release(nothing) end},
        {timed_out, fun() -> full = canal_lock:acquire(new, 0, 1, 1) end},
        {handed_over, fun() ->
            {waiting, Ref} = canal_lock:request(new, 0, 1),
            ok = canal_lock:resized(new, 1 bsl 30, 1),
            {acquired, _} = canal_lock:cancel(Ref)
        end},
        {released_by_death, fun() ->
            test_worker:kill(holder(#{mortal => 1})),
            test_await:value(1, fun() -> maps:get(released_by_death, canal_lock:info()) end)
        end}
    ]),
    test_terminal:quit(Screen).

another_table(Permits) ->
    ok = canal_lock:stop(),
    {ok, _} = canal_lock:start_link(3),
    take(Permits).

kept() ->
    {ok, Manager} = canal_lock:start_link(3, #{keep_on_crash => true}),
    unlink(Manager),
    take(#{db => 1}),
    Screen = top(quick(), terminal()),
    [Title | _] = test_terminal:picture(Screen),
    ?assertEqual(nomatch, string:find(Title, "no manager")),
    test_worker:kill(Manager),
    take(#{db => 1000}),
    [TitleWithout | _] = Without = test_terminal:next(Screen),
    ?assertNotEqual(nomatch, string:find(TitleWithout, "; no manager runs")),
    ?assertMatch({_, [["1001", "db"]], [_]}, sections(Without)),
    ?assert(list_to_integer(maps:get("granted/s", rates_of(Without))) > 0),
    {ok, _} = canal_lock:start_link(3, #{keep_on_crash => true}),
    [TitleWith | _] = test_terminal:next(Screen),
    ?assertEqual(nomatch, string:find(TitleWith, "no manager")),
    test_terminal:quit(Screen),
    %% The manager is linked to this process, and would exit with it during another test.
    ok = canal_lock:stop().

not_started() ->
    Screen = test_terminal:start(fun() -> caught(fun canal_lock:top/0) end, terminal()),
    {'EXIT', {badarg, [{canal_lock, top, [], Info} | _]}} = test_terminal:await_result(Screen),
    ?assertMatch({error_info, #{cause := not_started}}, lists:keyfind(error_info, 1, Info)).

%% The pieces of the first table are dropped.
one_table() ->
    Keys = fun(Which) -> maps:from_list([{{Which, N}, 1} || N <- lists:seq(1, 2000)]) end,
    Fill = fun(Which) ->
        another_table(Keys(Which)),
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

%%% Screens

hostile() ->
    OfEveryKind = [Key || {_, Key} <- test_key_terms:all()],
    Escapes = ["\e[2J", "\e]0;title\a", "a\nb\r\tc", <<"\e[31m">>, '\e[H', {"\x{9b}2J", [<<"\n">> | '\n']}],
    Letters = ["\x{202e}txet", 'ж日\x{300}', <<"日本語"/utf8>>],
    Large = [test_key_terms:deep(tuple, 1_000_000), binary:copy(<<"x">>, 64 bsl 20), 1 bsl 4_000_000],
    take(maps:from_list([{Key, 1} || Key <- OfEveryKind ++ Escapes ++ Letters ++ Large])),
    true = register('\e[2J', holder(#{db => 1})),
    lists:foreach(fun({Columns, Encoding}) ->
        Screen = top((slow())#{rows => 1000}, #{columns => Columns, rows => 5000, encoding => Encoding}),
        Raw = test_terminal:raw(Screen),
        "\e[H" ++ Rest = Raw,
        [_ | _] = Lines = string:split(Rest, "\e[K\n", all),
        ?assertEqual("\e[J", lists:last(Lines)),
        ?assert(length(Lines) > 300),
        ?assertEqual([], [Line || Line <- lists:droplast(Lines), not is_plain(Line, Columns, Encoding)]),
        test_terminal:quit(Screen)
    end, [{1000, unicode}, {80, unicode}, {80, latin1}]).

%% Whether a line has only printable characters and leaves the last column free.
is_plain(Line, Columns, Encoding) ->
    Limit = maps:get(Encoding, #{latin1 => $~, unicode => 16#d7a3}),
    Width = length(Line) + length([C || C <- Line, C > 16#1100]),
    Width < Columns andalso
        lists:all(fun(C) -> C >= $\s andalso C =< Limit andalso not (C > $~ andalso C =< 16#a0) end, Line) andalso
        re:run(Line, "[\\x{300}-\\x{36f}\\x{2000}-\\x{206f}]", [unicode]) =:= nomatch.

screens() ->
    [holder(#{{key, N} => N, lists:duplicate(10 * N, $x) => 1}) || N <- lists:seq(1, 30)],
    holder(#{lists:duplicate(300, $x) => 100}),
    Screen = top((quick())#{rows => 100}, terminal()),
    _ = test_terminal:picture(Screen),
    lists:foreach(fun({Columns, Rows}) ->
        test_terminal:resize(Screen, #{columns => Columns, rows => Rows}),
        test_terminal:go(Screen),
        Lines = test_terminal:picture(Screen),
        ?assertEqual({Columns, Rows, true}, {Columns, Rows, length(Lines) =< Rows}),
        ?assertEqual({Columns, Rows, true}, {Columns, Rows, lists:max([length(Line) || Line <- Lines]) < Columns})
    end, [{Columns, Rows} || Columns <- [1, 2, 3, 4, 10, 40, 200], Rows <- [1, 2, 3, 5, 8, 9, 10, 11, 20, 200]]),
    %% A screen that does not report its size any more.
    test_terminal:resize(Screen, #{columns => none, rows => none}),
    Lines = test_terminal:next(Screen),
    ?assertEqual({24, 79}, {length(Lines), lists:max([length(Line) || Line <- Lines])}),
    test_terminal:quit(Screen).

halves() ->
    [holder(maps:from_list([{{H, N}, 1} || N <- lists:seq(1, 3)])) || H <- lists:seq(1, 10)],
    Shown = fun(Rows) ->
        {Keys, Holders} = shown((slow())#{rows => 100}, (terminal())#{rows => Rows}),
        {length(Keys), length(Holders)}
    end,
    %% Ten rows are used: a title, four rows of numbers, two before each list, and a free one at the bottom.
    ?assertEqual(
        [{1, 0}, {1, 1}, {2, 1}, {10, 10}, {20, 10}, {30, 10}],
        [Shown(10 + Free) || Free <- [1, 2, 3, 20, 30, 50]]
    ).

thirds() ->
    Screens = fun(Requests) ->
        [{waiting, _} = canal_lock:request({waiting, N}, 0, 1) || N <- Requests],
        [shown_rows(6 + 8 + Free) || Free <- [0, 1, 2, 3, 11, 21, 36, 99]]
    end,
    [holder(maps:from_list([{{H, N}, 1} || N <- lists:seq(1, 3)])) || H <- lists:seq(1, 10)],
    ?assertEqual(
        [[0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1], [5, 5, 1], [10, 10, 1], [25, 10, 1], [30, 10, 1]],
        Screens([1])
    ),
    ?assertEqual(
        [[0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1], [4, 4, 3], [7, 7, 7], [13, 10, 13], [30, 10, 20]],
        Screens(lists:seq(2, 20))
    ).

%% How many rows of each list a screen of this height shows, which has a free row at the bottom.
shown_rows(Rows) ->
    Screen = top((slow())#{rows => 100}, (terminal())#{rows => Rows}),
    [_ | Lists] = test_terminal:sections(test_terminal:picture(Screen)),
    test_terminal:quit(Screen),
    [length(Lines) - 1 || Lines <- Lists, Lines =/= [], Lines =/= [""]].

shown_by_the_caller() ->
    take(#{db => 5, good => 4, bad => 3, wrong => 2, worse => 1}),
    Show = fun
        (good) -> [<<"as the caller says: ">>, [16#e6, "\e\n"]];
        (bad) -> error(bad);
        (wrong) -> {not_text};
        (worse) -> <<255>>;
        (Term) -> io_lib:format("<~p>", [Term])
    end,
    Screen = top((slow())#{show => Show}, terminal()),
    Picture = test_terminal:picture(Screen),
    ?assertEqual(
        ["<db>", "as the caller says: æ\\x{1B}\\x{A}", "bad", "wrong", "worse"],
        [string:trim(string:slice(Line, 13)) || Line <- lists:sublist(lists:nthtail(7, Picture), 5)]
    ),
    ?assertNotEqual(nomatch, string:find(lists:last(lists:droplast(Picture)), "<" ++ pid_to_list(self()) ++ ">")),
    test_terminal:quit(Screen).

over_the_last() ->
    take(#{db => 1}),
    Screen = top(quick(), terminal()),
    First = test_terminal:raw(Screen),
    test_terminal:go(Screen),
    Second = test_terminal:raw(Screen),
    Pattern = "^\\e\\[H([^\\e\\n]*\\e\\[K\\n){11}\\e\\[J$",
    [?assertMatch({match, _}, re:run(Picture, Pattern)) || Picture <- [First, Second]],
    test_terminal:quit(Screen).

%%% Ends

any_line() ->
    lists:foreach(fun(Line) ->
        Screen = top(slow(), terminal()),
        _ = test_terminal:picture(Screen),
        test_terminal:go(Screen),
        test_terminal:input(Screen, Line),
        ?assertEqual(ok, test_terminal:await_result(Screen))
    end, ["\n", <<"\n">>, "", "canal_lock:stop().\n", <<"q">>]).

no_more_input() ->
    lists:foreach(fun(NoLine) ->
        Screen = top(quick(), terminal()),
        _ = test_terminal:picture(Screen),
        _ = test_terminal:next(Screen),
        test_await:value(true, fun() -> test_terminal:is_asked(Screen) end),
        test_terminal:input(Screen, NoLine),
        test_terminal:go(Screen),
        ?assertEqual(ok, test_terminal:await_result(Screen))
    end, [eof, {error, interrupted}, {error, terminated}]),
    {_, _, Leader} = Screen = top(slow(), terminal()),
    _ = test_terminal:picture(Screen),
    test_terminal:go(Screen),
    test_await:value(true, fun() -> test_terminal:is_asked(Screen) end),
    exit(Leader, kill),
    ?assertEqual(ok, test_terminal:await_result(Screen)).

no_input() ->
    lists:foreach(fun({Settings, Count}) ->
        Screen = top(quick(), Settings),
        First = test_terminal:picture(Screen),
        Last = lists:foldl(fun(_, _) -> test_terminal:next(Screen) end, First, lists:seq(2, Count)),
        test_terminal:go(Screen),
        ?assertEqual(ok, test_terminal:await_result(Screen)),
        ?assertEqual(["0"], lists:usort(maps:values(rates_of(Last))))
    end, [
        {Settings#{input => Answer}, Count}
     || {Settings, Count} <- [{#{}, 1}, {terminal(), 2}], Answer <- [eof, {error, enotsup}]
    ]).

no_terminal() ->
    Many = [holder(#{lists:duplicate(200, $x) ++ [N] => 1}) || N <- lists:seq(1, 60)],
    lists:foreach(fun({Settings, Width}) ->
        Screen = top((quick())#{rows => 50}, Settings),
        Picture = test_terminal:picture(Screen),
        ?assertEqual(["0"], lists:usort(maps:values(rates_of(Picture)))),
        ?assertEqual({50, 50}, {length(element(2, sections(Picture))), length(element(3, sections(Picture)))}),
        ?assertEqual(Width, lists:max([length(Line) || Line <- Picture])),
        ?assertEqual(["", ""], lists:nthtail(length(Picture) - 2, Picture)),
        ?assertEqual(nomatch, string:find(hd(Picture), "Enter")),
        test_terminal:go(Screen),
        ?assertEqual(nomatch, string:find(test_terminal:raw(Screen), "\e")),
        test_terminal:quit(Screen)
    end, [{#{}, 79}, {#{columns => 100}, 99}, {#{rows => 20}, 79}]),
    test_worker:kill(Many).

dumb() ->
    os:putenv("TERM", "dumb"),
    Screen = top(quick(), terminal()),
    Raw = test_terminal:raw(Screen),
    os:putenv("TERM", "xterm"),
    ?assertEqual(nomatch, string:find(Raw, "\e")),
    test_terminal:quit(Screen).

%%% Helpers

top(Options, Settings) ->
    test_terminal:start(fun() -> canal_lock:top(Options) end, Settings).

%% The keys and the holders of the first picture.
shown(Options, Settings) ->
    Screen = top(Options, Settings),
    {_, Keys, Holders} = sections(test_terminal:picture(Screen)),
    test_terminal:quit(Screen),
    {Keys, Holders}.

%% The words of each line, by sections.
sections(Lines) ->
    [Head, Keys, Holders | _] = test_terminal:sections(Lines),
    {Head, rows_of(Keys), rows_of(Holders)}.

%% Without the line of headings.
rows_of([_ | Rows]) ->
    [string:lexemes(Row, " ") || Row <- Rows].

rates(Screen) ->
    rates_of(test_terminal:picture(Screen)).

without_purpose(Holders) ->
    [lists:sublist(Words, 3) || Words <- Holders].

rates_of([_Title, _, _, Names, Rates | _]) ->
    maps:from_list(lists:zip(cells(Names), cells(Rates))).

format(Term) ->
    lists:flatten(io_lib:format("~0tp", [Term])).

now_us() ->
    erlang:monotonic_time(microsecond).
