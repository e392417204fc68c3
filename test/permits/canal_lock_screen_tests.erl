%% The pictures of top/0,1 fit the screen, follow one another at the interval, and end with a line of input. What they
%% show is made up: a count and some lists, which each test sets. This module is the callback module.
-module(canal_lock_screen_tests).

-behaviour(canal_lock_screen).

-include_lib("eunit/include/eunit.hrl").

-import(test_terminal, [quick/0, slow/0]).

-export([title/0, read/1, explain/1, head/2, sections/2]).
%% For processes that tests spawn.
-export([hold/0]).

screen_test_() ->
    test_terminal:tests([
        {timeout, 60, {Title, Test}}
     || {Title, Test} <- [
            {"the first line says what is shown, where, when, and how to end it", fun first_line/0},
            {"a failed reading is one sentence, and pictures continue after it", fun failed_readings/0},
            {"by default each list has ten rows, and a picture comes each second", fun defaults/0},
            {"rates are per second since the last picture", fun rates/0},
            {"a rate is unknown after a count has decreased", fun decreased/0},
            {"a pause is at least three times as long as the reading before it", fun pauses/0},
            {"a process is described by its name, initial call or current function", fun purposes/0},
            {"terms with control characters, and terms of every kind", fun hostile/0},
            {"pictures fit screens of any size, also after a change of the size", fun screens/0},
            {"lists share a small screen, and a short one leaves its rows to the others", fun shares/0},
            {"terms are formatted by the caller's function, unless it fails", fun shown_by_the_caller/0},
            {"each picture replaces the one before", fun over_the_last/0},
            {"any line of input ends the call at once", fun any_line/0},
            {"the end of input ends the call, and so does the death of the group leader", fun no_more_input/0},
            {"without input there is one picture with rates, and one before it on a terminal", fun no_input/0},
            {"without a terminal pictures follow one another", fun no_terminal/0},
            {"a dumb terminal is treated as no terminal", fun dumb/0},
            {"a first reading that cannot be made raises, and requests no input", fun not_read/0}
        ]
    ]).

%%% What is shown

title() ->
    {"made_up", "; a note"}.

read(_Rows) ->
    Read = persistent_term:get(?MODULE),
    Read().

explain(Cause) ->
    ["explained: ", atom_to_list(Cause)].

head(Last, #{count := Count}) ->
    Growth = case Last of none -> #{}; {Before, _} -> canal_lock_screen:growth([count], Before, #{count => Count}) end,
    [["rate ", canal_lock_screen:rate(count, Growth, Last)]].

sections(#{lists := Lists}, Show) ->
    Row = fun(Pid) when is_pid(Pid) -> canal_lock_screen:described(Pid, Show); (Term) -> Show(Term) end,
    [{always, [], "a list", List, fun(Element) -> {[], Row(Element)} end} || List <- Lists].

show(Lists) ->
    show(Lists, 0).

show(Lists, Count) ->
    show_by(fun() -> {read, #{lists => Lists, count => Count}} end).

show_by(Read) ->
    persistent_term:put(?MODULE, Read).

terminal() -> #{columns => 100, rows => 50}.

top(Options) ->
    top(Options, terminal()).

top(Options, Settings) ->
    test_terminal:start(fun() -> canal_lock_screen:run(?MODULE, Options) end, Settings).

%% The rows of each list in the first picture.
lists(Options, Settings) ->
    Screen = top(Options, Settings),
    [_ | Lists] = test_terminal:sections(test_terminal:picture(Screen)),
    test_terminal:quit(Screen),
    [[Row || "  " ++ Row <- Rows] || ["  a list" | Rows] <- Lists].

rate([_Title, "rate " ++ Rate | _]) -> Rate.

now_us() ->
    erlang:monotonic_time(microsecond).

%%% Contents

first_line() ->
    show([]),
    Screen = top(slow()),
    [Title | _] = test_terminal:picture(Screen),
    Pattern = "^made_up on nonode@nohost, [0-2][0-9]:[0-5][0-9]:[0-5][0-9]; a note; Enter ends this$",
    ?assertMatch({match, _}, re:run(Title, Pattern)),
    test_terminal:quit(Screen).

failed_readings() ->
    show([]),
    Screen = top(quick()),
    _ = test_terminal:picture(Screen),
    lists:foreach(fun({Reading, Sentence}) ->
        show_by(fun() -> Reading end),
        ?assertMatch([_, Sentence, ""], test_terminal:next(Screen))
    end, [{{failed, "it failed"}, "it failed"}, {{raise, not_started}, "explained: not_started"}]),
    show([[a]]),
    ?assertMatch([_, "rate -", "", "  a list", "  a", ""], test_terminal:next(Screen)),
    ?assertEqual("0", rate(test_terminal:next(Screen))),
    test_terminal:quit(Screen).

%% Each reading counts one more. A slow rate has a decimal.
defaults() ->
    Counter = counters:new(1, []),
    show_by(fun() ->
        counters:add(Counter, 1, 1),
        {read, #{lists => [lists:seq(1, 12), lists:seq(1, 9)], count => counters:get(Counter, 1)}}
    end),
    Screen = top(#{}),
    [_, TenRows, NineRows, _] = test_terminal:sections(test_terminal:picture(Screen)),
    ?assertMatch({"  10", 11, 10}, {lists:last(TenRows), length(TenRows), length(NineRows)}),
    Begin = now_us(),
    Rate = list_to_float(rate(test_terminal:next(Screen))),
    ?assert(now_us() - Begin >= 1_000_000),
    ?assertMatch({true, true}, {Rate > 0.0, Rate =< 1.0}),
    test_terminal:quit(Screen).

%% The time between two readings is at least what the test does in between, and at most the time until the second
%% picture.
rates() ->
    Count = 100_000,
    show([], 5),
    Before = now_us(),
    Screen = top(quick()),
    ?assertEqual("-", rate(test_terminal:picture(Screen))),
    Begin = now_us(),
    show([], 5 + Count),
    test_await:value(true, fun() -> now_us() > Begin + 1000 end),
    End = now_us(),
    Rate = list_to_integer(rate(test_terminal:next(Screen))),
    {Least, Most} = {Count * 1_000_000 / (now_us() - Before), Count * 1_000_000 / (End - Begin)},
    ?assertMatch({_, true, true}, {{Least, Rate, Most}, Least - 1 =< Rate, Rate =< Most + 1}),
    ?assertEqual("0", rate(test_terminal:next(Screen))),
    test_terminal:quit(Screen).

decreased() ->
    show([], 5),
    Screen = top(quick()),
    _ = test_terminal:picture(Screen),
    ?assertEqual("0", rate(test_terminal:next(Screen))),
    show([], 4),
    ?assertEqual("-", rate(test_terminal:next(Screen))),
    ?assertEqual("0", rate(test_terminal:next(Screen))),
    test_terminal:quit(Screen).

%% The time of a reading is measured in whole milliseconds.
pauses() ->
    Test = self(),
    show_by(fun() ->
        Begin = now_us(),
        test_await:value(true, fun() -> now_us() > Begin + 12_000 end),
        Test ! {read, {Begin, now_us()}},
        {read, #{lists => [], count => 0}}
    end),
    Screen = top(quick()),
    _ = test_terminal:picture(Screen),
    {Begin, End} = test_await:answer(read),
    _ = test_terminal:next(Screen),
    {Next, _} = test_await:answer(read),
    ?assertMatch({_, _, true}, {End - Begin, Next - End, Next - End >= 3 * (End - Begin - 1000)}),
    test_terminal:quit(Screen).

purposes() ->
    Plain = waiting(spawn(?MODULE, hold, [])),
    Named = waiting(spawn(?MODULE, hold, [])),
    true = register('with a name', Named),
    Fun = waiting(spawn(fun() -> hold() end)),
    OfOtp = waiting(proc_lib:spawn(?MODULE, hold, [])),
    %% The heap is too large to copy its dictionary.
    Large = waiting(proc_lib:spawn_opt(?MODULE, hold, [], [{min_heap_size, 1_000_000}])),
    {initial_call, {Module, Function, Arity}} = process_info(Large, initial_call),
    Dead = spawn(fun() -> ok end),
    ok = test_await:down([Dead]),
    Remote = test_setup:remote_pid(1),
    Expected = [
        {Plain, "  fun canal_lock_screen_tests:hold/0"},
        {Named, "  'with a name'"},
        {Fun, "  in fun canal_lock_screen_tests:hold/0"},
        {OfOtp, "  fun canal_lock_screen_tests:hold/0"},
        {Large, lists:flatten(io_lib:format("  ~0tp", [fun Module:Function/Arity]))},
        {Dead, ""},
        {Remote, " on " ++ atom_to_list(node(Remote))}
    ],
    show([[Pid || {Pid, _} <- Expected]]),
    [Rows] = lists(slow(), terminal()),
    ?assertEqual([pid_to_list(Pid) ++ Purpose || {Pid, Purpose} <- Expected], Rows),
    test_worker:kill([Plain, Named, Fun, OfOtp, Large]).

hold() ->
    receive never -> ok end.

waiting(Pid) ->
    test_await:value({status, waiting}, fun() -> process_info(Pid, status) end),
    Pid.

%%% Screens

hostile() ->
    OfEveryKind = [Key || {_, Key} <- test_key_terms:all(), not is_pid(Key)],
    Escapes = ["\e[2J", "\e]0;title\a", "a\nb\r\tc", <<"\e[31m">>, '\e[H', {"\x{9b}2J", [<<"\n">> | '\n']}],
    Letters = ["\x{202e}txet", 'ж日\x{300}', <<"日本語"/utf8>>],
    Large = [test_key_terms:deep(tuple, 1_000_000), binary:copy(<<"x">>, 64 bsl 20), 1 bsl 4_000_000],
    Named = test_worker:start(),
    true = register('\e[2J', Named),
    show([OfEveryKind ++ Escapes ++ Letters ++ Large, [Named]]),
    lists:foreach(fun({Columns, Encoding}) ->
        Screen = top((slow())#{rows => 1000}, #{columns => Columns, rows => 5000, encoding => Encoding}),
        Raw = test_terminal:raw(Screen),
        "\e[H" ++ Rest = Raw,
        [_ | _] = Lines = string:split(Rest, "\e[K\n", all),
        ?assertEqual("\e[J", lists:last(Lines)),
        ?assert(length(Lines) > 300),
        ?assertEqual([], [Line || Line <- lists:droplast(Lines), not is_plain(Line, Columns, Encoding)]),
        test_terminal:quit(Screen)
    end, [{1000, unicode}, {80, unicode}, {80, latin1}]),
    ok = test_worker:kill(Named).

%% Whether a line has only printable characters and leaves the last column free.
is_plain(Line, Columns, Encoding) ->
    Limit = maps:get(Encoding, #{latin1 => $~, unicode => 16#d7a3}),
    Width = length(Line) + length([C || C <- Line, C > 16#1100]),
    Width < Columns andalso
        lists:all(fun(C) -> C >= $\s andalso C =< Limit andalso not (C > $~ andalso C =< 16#a0) end, Line) andalso
        re:run(Line, "[\\x{300}-\\x{36f}\\x{2000}-\\x{206f}]", [unicode]) =:= nomatch.

screens() ->
    Long = [lists:duplicate(10 * N, $x) || N <- lists:seq(1, 31)],
    show([Long, lists:reverse(Long)]),
    Screen = top((quick())#{rows => 100}),
    _ = test_terminal:picture(Screen),
    lists:foreach(fun({Columns, Rows}) ->
        test_terminal:resize(Screen, #{columns => Columns, rows => Rows}),
        Lines = test_terminal:next(Screen),
        ?assertEqual({Columns, Rows, true}, {Columns, Rows, length(Lines) =< Rows}),
        ?assertEqual({Columns, Rows, true}, {Columns, Rows, lists:max([length(Line) || Line <- Lines]) < Columns})
    end, [{Columns, Rows} || Columns <- [1, 2, 3, 4, 10, 40, 200], Rows <- [1, 2, 3, 5, 8, 9, 10, 11, 20, 200]]),
    %% A screen that does not report its size any more.
    test_terminal:resize(Screen, #{columns => none, rows => none}),
    Lines = test_terminal:next(Screen),
    ?assertEqual({24, 79}, {length(Lines), lists:max([length(Line) || Line <- Lines])}),
    test_terminal:quit(Screen).

%% Beside the lists, a picture has a title, a line of numbers, two lines before each list, and a free one at the bottom.
shares() ->
    lists:foreach(fun({Lengths, Expected}) ->
        show([lists:seq(1, Length) || Length <- Lengths]),
        Shown = fun(Free) ->
            Settings = (terminal())#{rows => 3 + 2 * length(Lengths) + Free},
            [length(Rows) || Rows <- lists((slow())#{rows => 100}, Settings)]
        end,
        ?assertEqual({Lengths, Expected}, {Lengths, [{Free, Shown(Free)} || {Free, _} <- Expected]})
    end, [
        {[30, 10], [{0, [0, 0]}, {1, [1, 0]}, {3, [2, 1]}, {20, [10, 10]}, {30, [20, 10]}, {50, [30, 10]}]},
        {[30, 10, 1], [{3, [1, 1, 1]}, {11, [5, 5, 1]}, {21, [10, 10, 1]}, {36, [25, 10, 1]}, {99, [30, 10, 1]}]},
        {[30, 10, 20], [
            {1, [1, 0, 0]}, {2, [1, 1, 0]}, {11, [4, 4, 3]}, {21, [7, 7, 7]}, {36, [13, 10, 13]}, {99, [30, 10, 20]}
        ]}
    ]).

shown_by_the_caller() ->
    show([[db, good, bad, wrong, worse, self()]]),
    Show = fun
        (good) -> [<<"as the caller says: ">>, [16#e6, "\e\n"]];
        (bad) -> error(bad);
        (wrong) -> {not_text};
        (worse) -> <<255>>;
        (Term) -> io_lib:format("<~p>", [Term])
    end,
    [Rows] = lists((slow())#{show => Show}, terminal()),
    {Terms, [Process]} = lists:split(5, Rows),
    ?assertEqual(["<db>", "as the caller says: æ\\x{1B}\\x{A}", "bad", "wrong", "worse"], Terms),
    ?assertMatch({0, _}, binary:match(list_to_binary(Process), list_to_binary("<" ++ pid_to_list(self()) ++ ">"))).

over_the_last() ->
    show([[a, b]]),
    Screen = top(quick()),
    First = test_terminal:raw(Screen),
    test_terminal:go(Screen),
    Second = test_terminal:raw(Screen),
    Pattern = "^\\e\\[H([^\\e\\n]*\\e\\[K\\n){6}\\e\\[J$",
    [?assertMatch({match, _}, re:run(Picture, Pattern)) || Picture <- [First, Second]],
    test_terminal:quit(Screen).

%%% Ends

any_line() ->
    show([]),
    lists:foreach(fun(Line) ->
        Screen = top(slow()),
        _ = test_terminal:picture(Screen),
        test_terminal:go(Screen),
        test_terminal:input(Screen, Line),
        ?assertEqual(ok, test_terminal:await_result(Screen))
    end, ["\n", <<"\n">>, "", "canal_lock:stop().\n", <<"q">>]).

no_more_input() ->
    show([]),
    lists:foreach(fun(NoLine) ->
        Screen = top(quick()),
        _ = test_terminal:picture(Screen),
        _ = test_terminal:next(Screen),
        test_await:value(true, fun() -> test_terminal:is_asked(Screen) end),
        test_terminal:input(Screen, NoLine),
        test_terminal:go(Screen),
        ?assertEqual(ok, test_terminal:await_result(Screen))
    end, [eof, {error, interrupted}, {error, terminated}]),
    {_, _, Leader} = Screen = top(slow()),
    _ = test_terminal:picture(Screen),
    test_terminal:go(Screen),
    test_await:value(true, fun() -> test_terminal:is_asked(Screen) end),
    exit(Leader, kill),
    ?assertEqual(ok, test_terminal:await_result(Screen)).

no_input() ->
    show([]),
    lists:foreach(fun({Settings, Count}) ->
        Screen = top(quick(), Settings),
        First = test_terminal:picture(Screen),
        Last = lists:foldl(fun(_, _) -> test_terminal:next(Screen) end, First, lists:seq(2, Count)),
        test_terminal:go(Screen),
        ?assertEqual(ok, test_terminal:await_result(Screen)),
        ?assertEqual("0", rate(Last))
    end, [
        {Settings#{input => Answer}, Count}
     || {Settings, Count} <- [{#{}, 1}, {terminal(), 2}], Answer <- [eof, {error, enotsup}]
    ]).

no_terminal() ->
    show([[lists:duplicate(200, $x) || _ <- lists:seq(1, 60)]]),
    lists:foreach(fun({Settings, Width}) ->
        Screen = top((quick())#{rows => 50}, Settings),
        Picture = [Title | _] = test_terminal:picture(Screen),
        ?assertEqual("0", rate(Picture)),
        %% A title, a rate, an empty line, a heading, 50 rows, and two line ends.
        ?assertEqual({4 + 50 + 2, Width}, {length(Picture), lists:max([length(Line) || Line <- Picture])}),
        ?assertEqual(["", ""], lists:nthtail(length(Picture) - 2, Picture)),
        ?assertEqual(nomatch, string:find(Title, "Enter")),
        test_terminal:go(Screen),
        ?assertEqual(nomatch, string:find(test_terminal:raw(Screen), "\e")),
        test_terminal:quit(Screen)
    end, [{#{}, 79}, {#{columns => 100}, 99}, {#{rows => 20}, 79}]).

dumb() ->
    show([]),
    os:putenv("TERM", "dumb"),
    Screen = top(quick()),
    Raw = test_terminal:raw(Screen),
    os:putenv("TERM", "xterm"),
    ?assertEqual(nomatch, string:find(Raw, "\e")),
    test_terminal:quit(Screen).

%% await_result/1 checks that nothing was printed.
not_read() ->
    show_by(fun() -> {raise, not_started} end),
    ?assertEqual({raise, not_started}, test_terminal:await_result(top(quick()))).
