%% top/0,1 of the quorum locks: pictures show the locks of this node and the state of the others, continue when
%% canal_lock_quorum stops, and leave nothing behind. canal_lock_screen_tests tests screens and input.
-module(canal_lock_quorum_top_tests).

-include_lib("eunit/include/eunit.hrl").

-import(test_terminal, [quick/0, slow/0, cells/1, shown/3]).
-import(test_worker, [caught/1]).

-define(LONG_MS, 60_000).
-define(NOT_STARTED,
    "canal_lock_quorum is not started on this node: "
    "call canal_lock_quorum:start_link/1, or start it in a supervisor"
).

top_test_() ->
    test_setup:quietly(test_terminal:tests([
        {foreach, fun start/0, fun stop/1, [
            {timeout, 60, {Title, Test}}
         || {Title, Test} <- [
                {"the first lines have the numbers of status/0", fun head/0},
                {"names are sorted by their waiting requests, and only while requests wait", fun busiest/0},
                {"a name has its holder of this node, the longest one, and the number of others",
                    fun holder_of_a_name/0},
                {"a request for several names waits for each of them", fun several_names/0},
                {"the longest wait is that of the oldest request", fun longest/0},
                {"of too many waiting requests some are counted", fun bounded/0},
                {"holders are sorted by their locks, with the age of the oldest one", fun holders/0},
                {"a holder of more locks than one piece has is one row", fun one_row/0},
                {"the locks of a fold do not change during it", fun fold/0},
                {"pictures continue when canal_lock_quorum stops and starts", fun stopped/0},
                {"pictures continue when the agent does not answer", fun no_answer/0},
                {"pictures continue when the agent dies while they are made", fun died/0},
                {"a wrong option is named", fun wrong_options/0}
            ]
        ]},
        {"before the start the call raises and requests no input", fun not_started/0}
    ])).

made_up_test_() ->
    [
        {"rates are per second since the last picture, and unknown after a restart", fun rates/0},
        {"the head says which names have a quorum and whether this node votes", fun quorum_and_votes/0},
        {"members that need attention come first", fun members/0},
        {"clients with most votes come first", fun clients/0}
    ].

start() ->
    {ok, Pid} = canal_lock_quorum:start_link(#{members => [node()], max_waiting => 20_000}),
    true = unlink(Pid),
    ok = test_await:value(true, fun() -> maps:get(quorum, canal_lock_quorum:status()) end).

stop(_) ->
    ok = application:unset_env(canal_lock, answer_ms),
    _ = whereis(canal_lock_quorum) =:= undefined orelse canal_lock_quorum:stop(),
    ok.

terminal() -> #{columns => 120, rows => 60}.

%%% Numbers

head() ->
    _ = holder([a, b]),
    wait(3, a),
    Screen = top(slow()),
    [Title, Names, Numbers, _, _, Quorum, "" | _] = test_terminal:picture(Screen),
    Pattern = "^canal_lock_quorum on nonode@nohost, [0-2][0-9]:[0-5][0-9]:[0-5][0-9]; Enter ends this$",
    ?assertMatch({match, _}, re:run(Title, Pattern)),
    ?assertEqual(
        #{"held" => "2", "waiting" => "3", "pending" => "0"}, maps:from_list(lists:zip(cells(Names), cells(Numbers)))
    ),
    ?assertEqual("quorum: yes; this node votes; view 0", Quorum),
    test_terminal:quit(Screen).

%% Over two seconds. The counts begin at 0 again when the agent is restarted.
rates() ->
    Rates = fun(Less, More) ->
        [[_, _, Names, Rates | _] | _] =
            shown(canal_lock_quorum_top, {data(#{totals => totals(Less)}), 2.0}, data(#{totals => totals(More)})),
        ?assertEqual(["granted/s", "passed/s", "mean wait", "refused/s", "lost/s"], cells(Names)),
        cells(Rates)
    end,
    Before = #{granted => 10, wait_us => 1_000_000, refused_timeout => 1, refused_too_many_waiting => 5},
    lists:foreach(fun({Changes, Expected}) ->
        ?assertEqual(Expected, Rates(Before, maps:merge(Before, Changes)))
    end, [
        {#{}, ["0", "0", "-", "0", "0"]},
        {#{granted => 14, wait_us => 1_001_000, passed => 2}, ["2.0", "1.0", "0.25 ms", "0", "0"]},
        {#{granted => 11, wait_us => 3_500_000}, ["0.5", "0", "2.5 s", "0", "0"]},
        {#{refused_timeout => 2, refused_too_many_waiting => 8, refused_no_quorum => 16, lost => 6},
            ["0", "0", "-", "10", "3.0"]},
        {#{granted => 9, lost => 6}, ["-", "-", "-", "-", "-"]}
    ]),
    ?assertMatch([_, _, _, "            -            -            -            -            -" | _], head(none, #{})).

%%% Lists

busiest() ->
    Names = [{"first", 5}, {b, 2}, {a, 2}, {<<"last">>, 1}],
    _ = holder([Name || {Name, _} <- Names]),
    ?assertMatch([_, _], read(10)),
    Waiting = lists:append([wait(Count, Name) || {Name, Count} <- Names]),
    [[Headings | _], _, _] = read(10),
    ?assertEqual(["waiting", "longest", "wait", "holder", "here", "name"], string:lexemes(Headings, " ")),
    All = [["5", "\"first\""], ["2", "a"], ["2", "b"], ["1", "<<\"last\">>"]],
    [
        ?assertEqual(lists:sublist(All, Rows), [[Count, Name] || [Count, _, "ms", _, Name] <- waiting_rows(Rows)])
     || Rows <- [1, 3, 10]
    ],
    test_worker:kill(Waiting),
    ok = await_waiting(0),
    ?assertMatch([_, _], read(10)).

%% The writer waits for all readers, and the next reader for the writer.
holder_of_a_name() ->
    [First | _] = [reader(x) || _ <- [1, 2, 3]],
    Writer = holder([{y, [z]}]),
    wait(1, x),
    wait(2, {y, [z]}),
    ?assertEqual(
        [["2", pid_to_list(Writer), "{y,[z]}"], ["1", pid_to_list(First), "+2", "x"]],
        [[Count | Rest] || [Count, _, "ms" | Rest] <- waiting_rows(10)]
    ),
    %% A process of another node holds the name.
    Elsewhere = maps:put(busiest, [{x, 7, 5, none}], data(#{})),
    [[_, Row] | _] = sections(Elsewhere),
    ?assertEqual(["7", "5", "ms", "-", "x"], string:lexemes(Row, " ")).

several_names() ->
    _ = holder([a, b, c]),
    Holder = test_worker:start(),
    {ok, _} = test_worker:order(Holder, fun() -> canal_lock_quorum:lock_many([free, d, e], ?LONG_MS) end),
    [send_lock(Names) || Names <- [[a, b], [b, c], [b], [d, b], [e]]],
    ok = await_waiting(5),
    Held = pid_to_list(Holder),
    ?assertMatch(
        [["4", _, "b"], ["1", _, "a"], ["1", _, "c"], ["1", Held, "d"], ["1", Held, "e"]],
        [[Count | Rest] || [Count, _, "ms" | Rest] <- waiting_rows(10)]
    ).

longest() ->
    _ = holder([a]),
    Since_ms = erlang:monotonic_time(millisecond),
    [First] = wait(1, a),
    ok = test_await:value(true, fun() -> longest_wait() >= 100 end),
    Second_ms = erlang:monotonic_time(millisecond),
    wait(2, a),
    ?assert(longest_wait() >= 100),
    ?assert(longest_wait() =< erlang:monotonic_time(millisecond) - Since_ms + 1),
    test_worker:kill(First),
    ok = await_waiting(2),
    ?assert(longest_wait() =< erlang:monotonic_time(millisecond) - Second_ms + 1).

longest_wait() ->
    [[_, Ms, "ms", _, "a"]] = waiting_rows(10),
    list_to_integer(Ms).

%% Long names take longer to count. Usual ones are all counted.
bounded() ->
    Count = 1000,
    Long = binary:copy(<<"x">>, 900),
    _ = holder([Long, short]),
    Waiting = [send_lock([Name]) || _ <- lists:seq(1, Count), Name <- [Long, short]],
    ok = await_waiting(2 * Count),
    Counted = maps:from_list([{Name, N} || {Name, N, _} <- canal_lock_quorum_agent:busiest(10)]),
    #{Long := Some, short := Others} = Counted,
    ?assertMatch({true, true}, {Some > Count div 4 andalso Some < Count, Others > Count div 4}),
    test_worker:kill(Waiting),
    ok = await_waiting(0),
    _ = holder([{invoice, N} || N <- lists:seq(1, 10)]),
    _ = [send_lock([{invoice, N}]) || _ <- lists:seq(1, Count), N <- lists:seq(1, 10)],
    ok = await_waiting(10 * Count),
    ?assertEqual(
        [{{invoice, N}, Count} || N <- lists:seq(1, 10)],
        [{Name, N} || {Name, N, _} <- canal_lock_quorum_agent:busiest(100)]
    ).

holders() ->
    Since_ms = erlang:system_time(millisecond),
    One = holder([a]),
    Two = holder([b, c]),
    Other = holder([d]),
    true = register(canal_lock_quorum_top_holder, Two),
    Pause_ms = 20,
    ok = test_await:value(true, fun() -> erlang:system_time(millisecond) >= Since_ms + Pause_ms end),
    _ = test_worker:order(Other, fun() -> {ok, _} = canal_lock_quorum:lock(e, ?LONG_MS) end),
    [[Headings | _] | _] = read(10),
    Words = holder_rows(10),
    Most_ms = erlang:system_time(millisecond) - Since_ms,
    ?assertEqual(["locks", "oldest", "holder"], string:lexemes(Headings, " ")),
    ?assertEqual(lists:sublist([Locks || [Locks | _] <- Words], 2), [Locks || [Locks | _] <- holder_rows(2)]),
    %% Of two holders with as many locks, the one that has held one for longer is first.
    ?assertEqual(
        [["2", pid_to_list(Two)], ["2", pid_to_list(Other)], ["1", pid_to_list(One)]],
        [[Locks, Pid] || [Locks, _, "ms", Pid | _] <- Words]
    ),
    ?assertMatch([_, _, _, _, "canal_lock_quorum_top_holder"], hd(Words)),
    %% The oldest lock counts, not the newest one.
    [_, [_, OfOther | _], _] = Words,
    ?assertMatch({true, true}, {list_to_integer(OfOther) =< Most_ms, list_to_integer(OfOther) > 0}).

one_row() ->
    Many = holder([{many, N} || N <- lists:seq(1, 1500)]),
    One = holder([a]),
    ?assertEqual(
        [["1500", pid_to_list(Many)], ["1", pid_to_list(One)]],
        [[Locks, Pid] || [Locks, _, _, Pid | _] <- holder_rows(10)]
    ).

%% Locks of other processes come and go during the fold, and the table grows and shrinks.
fold() ->
    Names = [{kept, N} || N <- lists:seq(1, 2000)],
    Holder = holder(Names),
    Waited = [{kept, 1}, {kept, 2000}],
    Add = fun(Piece, {Locks, Found}) ->
        Other = holder([{other, Locks, N} || N <- lists:seq(1, 1000)]),
        test_worker:kill(Other),
        Mine = [Row || Row = {Pid, _, _} <- Piece, Pid =:= Holder],
        {Locks + length(Mine), lists:append([Has || {_, _, Has} <- Mine]) ++ Found}
    end,
    {Locks, Found} = canal_lock_quorum_lock_table:fold(Waited, Add, {0, []}),
    ?assertEqual({2000, Waited}, {Locks, lists:sort(Found)}),
    ?assertEqual(false, ets:info(canal_lock_quorum, safe_fixed)),
    canal_lock_quorum:stop(),
    ?assertExit(noproc, canal_lock_quorum_lock_table:fold([], Add, {0, []})),
    ?assertExit(noproc, canal_lock_quorum_lock_table:count()).

%%% Ends

stopped() ->
    Screen = top(quick()),
    _ = test_terminal:picture(Screen),
    canal_lock_quorum:stop(),
    ?assertMatch([_, ?NOT_STARTED, ""], test_terminal:next(Screen)),
    ?assertMatch([_, ?NOT_STARTED, ""], test_terminal:next(Screen)),
    start(),
    _ = holder([a, b]),
    [_, _, Numbers | _] = test_terminal:next(Screen),
    ?assertMatch(["2", "0", "0"], cells(Numbers)),
    test_terminal:quit(Screen).

no_answer() ->
    ok = sys:suspend(canal_lock_quorum_agent),
    ok = application:set_env(canal_lock, answer_ms, 1),
    Screen = top(quick()),
    ?assertMatch([_, "the agent or the voter of this node does not answer", ""], test_terminal:picture(Screen)),
    ok = application:unset_env(canal_lock, answer_ms),
    ok = sys:resume(canal_lock_quorum_agent),
    ?assertMatch([_, _, _, _, _, "quorum: yes" ++ _ | _], test_terminal:next(Screen)),
    %% Nothing is left of the call that was not answered.
    test_terminal:quit(Screen).

died() ->
    ok = sys:suspend(canal_lock_quorum_agent),
    Screen = top(quick()),
    Called = fun() -> process_info(whereis(canal_lock_quorum_agent), message_queue_len) end,
    ok = test_await:value({message_queue_len, 1}, Called),
    ok = test_quorum_cluster:kill_process(canal_lock_quorum_agent),
    ?assertMatch([_, "the agent or the voter of this node has stopped", ""], test_terminal:picture(Screen)),
    ?assertMatch([_, _, _, _, _, "quorum: " ++ _ | _], test_terminal:next(Screen)),
    test_terminal:quit(Screen).

%% (canal_lock_errors_tests has all options.)
wrong_options() ->
    Options = #{rows => 0},
    {'EXIT', {badarg, Stack = [{canal_lock_quorum, top, [Options], _} | _]}} =
        caught(fun() -> canal_lock_quorum:top(Options) end),
    #{1 := Explained} = canal_lock_quorum_errors:format_error(badarg, Stack),
    ?assertEqual(<<"the option rows must be a positive integer, got: 0">>, unicode:characters_to_binary(Explained)).

not_started() ->
    lists:foreach(fun(Arguments) ->
        Screen = test_terminal:start(
            fun() -> caught(fun() -> apply(canal_lock_quorum, top, Arguments) end) end, terminal()
        ),
        {'EXIT', {badarg, Stack = [{canal_lock_quorum, top, Arguments, _} | _]}} = test_terminal:await_result(Screen),
        ?assertEqual(#{general => <<?NOT_STARTED>>}, canal_lock_quorum_errors:format_error(badarg, Stack))
    end, [[], [#{}]]).

%%% Made-up readings

quorum_and_votes() ->
    lists:foreach(fun({Changes, Line}) ->
        ?assertEqual(Line, lists:nth(5, head(none, Changes)))
    end, [
        {#{voting => true}, "quorum: yes; this node votes; view 7"},
        {#{quorum => false}, "quorum: no; this node does not vote; view 7"},
        {#{view => none, quorum => false, waits_for => [a@host, b@host]},
            "quorum: no; this node does not vote, it waits for a@host, b@host; no view"},
        {#{role => client}, "quorum: yes; this node is a client; view 7"}
    ]).

members() ->
    Members = [
        member(a@host, true, true),
        member(b@host, false, false),
        member(c@host, true, false),
        member(d@host, true, false),
        member(node(), true, true),
        member(e@host, false, false)
    ],
    ?assertEqual(
        [
            "500 ms silent c@host",
            "500 ms silent d@host",
            "500 ms not connected b@host",
            "500 ms not connected e@host",
            "500 ms connected a@host",
            "500 ms connected nonode@nohost"
        ],
        [
            lists:flatten(lists:join(" ", string:lexemes(Row, " ")))
         || Row <- members_of(data(#{members => Members}))
        ]
    ).

clients() ->
    ?assertEqual(2, length(sections(data(#{})))),
    Client = fun(Node, Votes) -> #{node => Node, votes => Votes, waiting => 1, heard_ms => 1234} end,
    Clients = [Client(b@host, 2), Client(c@host, 30), Client(a@host, 2), Client(d@host, 0)],
    [_, _, [Headings | Rows]] = sections(data(#{clients => Clients})),
    ?assertEqual(["votes", "waiting", "heard", "client"], string:lexemes(Headings, " ")),
    ?assertEqual(
        [["30", "c@host"], ["2", "a@host"], ["2", "b@host"], ["0", "d@host"]],
        [[Votes, Node] || [Votes, "1", "1.2", "s", "ago", Node] <- [string:lexemes(Row, " ") || Row <- Rows]]
    ).

%% A reading of a node that is a member.
data(Changes) ->
    Status = #{
        role => member, view => #{number => 7, members => [node()], phase => starting, waiting_for => []},
        members => [member(node(), true, true)], clients => [], quorum => true, voting => false,
        waits_for => [], waiting => 0, held => 0, pending_unlocks => 0, totals => totals(#{})
    },
    #{status => maps:merge(Status, Changes), busiest => [], holders => []}.

member(Node, Connected, Answers) ->
    #{node => Node, connected => Connected, answers => Answers, valid_ms => 500}.

totals(Changes) ->
    maps:merge(canal_lock_quorum_totals:read(canal_lock_quorum_totals:new()), Changes).

head(Last, Changes) ->
    hd(shown(canal_lock_quorum_top, Last, data(Changes))).

%% The lines of each list.
sections(Data) ->
    tl(shown(canal_lock_quorum_top, none, Data)).

members_of(Data) ->
    [Rows] = [Rows || [Headings | Rows] <- sections(Data), lists:last(string:lexemes(Headings, " ")) =:= "member"],
    Rows.

%%% Helpers

top(Options) ->
    test_terminal:start(fun() -> canal_lock_quorum:top(Options) end, terminal()).

%% The lists of a reading.
read(Rows) ->
    {read, Data} = canal_lock_quorum_top:read(Rows),
    sections(Data).

%% The words of each row.
waiting_rows(Rows) -> words(Rows, "name").
holder_rows(Rows) -> words(Rows, "holder").

words(Rows, Heading) ->
    [Lines] = [Lines || [Headings | Lines] <- read(Rows), lists:last(string:lexemes(Headings, " ")) =:= Heading],
    [test_terminal:words(Line) || Line <- Lines].

%% A worker that has locked each of these names.
holder(Names) ->
    {Holder, _} = test_worker:start(fun() ->
        [{ok, _} = canal_lock_quorum:lock(Name, ?LONG_MS) || Name <- Names]
    end),
    Holder.

reader(Name) ->
    {Reader, {ok, _}} = test_worker:start(fun() -> canal_lock_quorum:rlock(Name, ?LONG_MS) end),
    Reader.

%% This many workers that wait for a name.
wait(Count, Name) ->
    #{waiting := Before} = canal_lock_quorum:status(),
    Pids = [send_lock([Name]) || _ <- lists:seq(1, Count)],
    ok = await_waiting(Before + Count),
    Pids.

send_lock(Names) ->
    Pid = test_worker:start(),
    _ = test_worker:send_order(Pid, fun() -> canal_lock_quorum:lock_many(Names, ?LONG_MS) end),
    Pid.

await_waiting(Count) ->
    test_await:value(Count, fun() -> maps:get(waiting, canal_lock_quorum:status()) end).
