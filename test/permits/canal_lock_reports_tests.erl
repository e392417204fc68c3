%% Log reports: releases by processes that do not hold the key, and unknown messages to the manager.
-module(canal_lock_reports_tests).

-include_lib("eunit/include/eunit.hrl").

%% The limiter of the reports: the time of the last one, and the number of suppressed ones since then.
-define(LAST_MS, 1).
-define(LEFT_OUT, 2).
-define(INTERVAL_MS, 1000).

%% For a number of rounds that takes 0.5 s on a quiet machine.
-define(ROUNDS_MS, 10_000).

%% The longest text of a report: a few lines of a terminal.
-define(MAX_CHARACTERS, 1200).

reports_test_() ->
    test_log_listener:tests(all, [
        test_setup:tests([
            {"release/3 by a non-holder is reported with the holders", fun unexpected_release/0},
            {"no other event of a permit is reported", fun not_reported/0},
            {"1,000 mistakes in a row make one report, and the next report counts the others", fun limited/0},
            {"concurrent mistakes of many processes make one report", fun limited_for_all/0},
            {"at most one report per second", fun interval/0},
            {"P10: the next manager continues the count of suppressed reports", fun next_manager/0},
            {"release/3 answers ok while logging is disabled", fun logging_disabled/0},
            {"the text names no holder, one holder or ten holders", fun text/0},
            {"a report has a key of any kind and size, and a text of one short line", fun any_key/0},
            {"the manager reports its first unknown message only, and continues", fun unknown_messages/0}
        ]),
        test_setup:tests(without_manager, [
            {"the first mistake in a new VM is reported", fun first_report/0},
            {"P10: the report of a manager's crash contains a summary of its state", fun crash/0},
            {"a plain VM prints the reports of permits and of quorum locks", fun plain_vm/0},
            {"the filter of docs/operating.md drops the reports, and no other event", fun filter/0}
        ])
    ]).

%% The reports of one kind that `Do' causes.
reports(What, Do) ->
    _ = test_log_listener:listening(Do),
    [Event || #{msg := {report, Report}} = Event <- test_log_listener:events(), is_of(What, Report)].

is_of(What, #{what := What}) -> true;
is_of(What, #{label := What}) -> true;
is_of(_, _) -> false.

%% Sets the limiter as if a second had passed without a suppressed report.
reset() ->
    ok = atomics:put(persistent_term:get(canal_lock_reports), ?LAST_MS, now_ms() - ?INTERVAL_MS),
    ok = atomics:put(persistent_term:get(canal_lock_reports), ?LEFT_OUT, 0).

a_second_later() ->
    ok = atomics:put(persistent_term:get(canal_lock_reports), ?LAST_MS, now_ms() - ?INTERVAL_MS).

now_ms() ->
    erlang:monotonic_time(millisecond).

unexpected_release() ->
    reset(),
    Take = fun(Permits) -> fun() -> [canal_lock:acquire(db, 9, 1) || _ <- lists:seq(1, Permits)] end end,
    {One, _} = test_worker:start(Take(1)),
    {Two, _} = test_worker:start(Take(2)),
    {_, _} = test_worker:start(fun() -> canal_lock:acquire(other, 9, 1) end),
    {Culprit, _} = test_worker:start(fun() -> canal_lock:acquire(its_own, 9, 1) end),
    [#{level := Level, msg := {report, Report}, meta := Meta}] = reports(unexpected_release, fun() ->
        ok = test_worker:order(Culprit, fun() -> canal_lock:release(db, 9, 1) end)
    end),
    ?assertEqual(error, Level),
    ?assertMatch(#{canal_lock := permits, pid := Culprit}, Meta),
    #{holders := Holders} = Report,
    ?assertEqual(lists:sort([{One, 1}, {Two, 2}]), lists:sort(Holders)),
    ?assertEqual(
        #{what => unexpected_release, key => db, pid => Culprit, left_out => 0},
        maps:remove(holders, Report)
    ),
    #{report_cb := Callback} = Meta,
    ?assertNotEqual(nomatch, string:find(said(Callback, Report), pid_to_list(Culprit))),
    ?assertEqual(3, canal_lock:count(db)).

%% In a VM whose limiter is unused.
first_report() ->
    Reports = test_setup:in_a_vm([], fun() ->
        ok = logger:set_primary_config(level, all),
        ok = logger:add_handler(test_log_listener, test_log_listener, #{}),
        {ok, _} = canal_lock:start_link(3),
        reports(unexpected_release, fun() -> ok = canal_lock:release(db, 3, 1) end)
    end),
    ?assertMatch([#{msg := {report, #{key := db, left_out := 0}}}], Reports).

not_reported() ->
    reset(),
    Reports = reports(unexpected_release, fun() ->
        {error, not_held} = canal_lock:release(db),
        {acquired, 1} = canal_lock:acquire(db, 1, 1),
        full = canal_lock:acquire(db, 1, 1),
        ok = canal_lock:release(db, 1, 1),
        {error, not_held} = canal_lock:release(db),
        {ok, ok} = canal_lock:with_permit(db, 1, 1, fun() -> canal_lock:release(db) end),
        [?assertError(badarg, canal_lock:release(db, Bad, 1)) || Bad <- [-1, one]],
        {Holder, _} = test_worker:start(fun() -> canal_lock:acquire(db, 1, 1) end),
        ok = test_worker:kill(Holder),
        test_await:count(db, 0),
        ok = canal_lock_manager:sweep()
    end),
    ?assertEqual([], Reports),
    %% No report was suppressed either.
    ?assertMatch([#{msg := {report, #{left_out := 0}}}], reports(unexpected_release, fun mistake/0)).

mistake() ->
    ok = canal_lock:release(db, 1, 1).

limited() ->
    reset(),
    Start_ms = now_ms(),
    Reports = reports(unexpected_release, fun() -> [mistake() || _ <- lists:seq(1, 1000)] end),
    ?assertMatch([#{msg := {report, #{left_out := 0}}} | _], Reports),
    ?assert(length(Reports) =< at_most_since(Start_ms)),
    a_second_later(),
    Next = reports(unexpected_release, fun mistake/0),
    ?assertMatch([_], Next),
    ?assertEqual(1000 - length(Reports), left_out(Reports ++ Next)),
    %% The suppressed reports have been counted.
    a_second_later(),
    ?assertEqual(0, left_out(reports(unexpected_release, fun mistake/0))).

%% More than one only if the machine is slow.
at_most_since(Start_ms) ->
    1 + (now_ms() - Start_ms) div ?INTERVAL_MS.

left_out(Reports) ->
    lists:sum([LeftOut || #{msg := {report, #{left_out := LeftOut}}} <- Reports]).

%% All workers start at one instant, so each of them sees an old time of the last report.
limited_for_all() ->
    %% Two processes of one scheduler never make their calls at the same time.
    Workers = [test_worker:start_on(Scheduler) || Scheduler <- lists:seq(1, erlang:system_info(schedulers_online))],
    limited_for_all(Workers, counters:new(1, []), now_ms() + ?ROUNDS_MS, test_setup:times(3000)).

limited_for_all(Workers, Gate, Until_ms, Rounds) ->
    Start_ms = now_ms(),
    reset(),
    ok = counters:put(Gate, 1, 0),
    Reports = reports(unexpected_release, fun() ->
        Orders = [test_worker:send_order(Worker, fun() -> mistake_at(Gate) end) || Worker <- Workers],
        ok = counters:put(Gate, 1, 1),
        [test_await:answer(Order) || Order <- Orders]
    end),
    ?assert(length(Reports) =< at_most_since(Start_ms)),
    a_second_later(),
    Next = reports(unexpected_release, fun mistake/0),
    ?assertEqual(length(Workers) - length(Reports), left_out(Reports ++ Next)),
    Rounds > 1 andalso Start_ms < Until_ms andalso limited_for_all(Workers, Gate, Until_ms, Rounds - 1).

mistake_at(Gate) ->
    case counters:get(Gate, 1) of
        0 -> mistake_at(Gate);
        1 -> mistake()
    end.

interval() ->
    a_second_later(),
    ?assertMatch([_], reports(unexpected_release, fun mistake/0)),
    ?assertEqual([], reports_after(?INTERVAL_MS div 2)),
    ?assertMatch([_], reports_after(?INTERVAL_MS)).

%% The reports of a mistake this long after the last report.
reports_after(Ago_ms) ->
    Last_ms = now_ms() - Ago_ms,
    ok = atomics:put(persistent_term:get(canal_lock_reports), ?LAST_MS, Last_ms),
    Reports = reports(unexpected_release, fun mistake/0),
    case now_ms() - Last_ms < Ago_ms + ?INTERVAL_MS div 4 of
        true -> Reports;
        %% The machine was too slow.
        false -> reports_after(Ago_ms)
    end.

next_manager() ->
    reset(),
    [_] = reports(unexpected_release, fun() -> [mistake() || _ <- lists:seq(1, 5)] end),
    ok = canal_lock:stop(),
    {ok, _} = canal_lock:start_link(3),
    a_second_later(),
    ?assertEqual(4, left_out(reports(unexpected_release, fun mistake/0))).

logging_disabled() ->
    #{level := Level} = logger:get_primary_config(),
    ok = logger:set_primary_config(level, none),
    try
        reset(),
        ?assertEqual([], reports(unexpected_release, fun mistake/0)),
        ?assertMatch(#{not_held := 1}, canal_lock:info())
    after
        ok = logger:set_primary_config(level, Level)
    end.

said(Callback, Report) ->
    {Format, Arguments} = Callback(Report),
    unicode:characters_to_list(io_lib:format(Format, Arguments)).

text() ->
    [First | _] = Pids = [test_worker:start() || _ <- lists:seq(1, 12)],
    Self = pid_to_list(self()),
    Says = fun(Key, Holders, LeftOut) ->
        said(fun canal_lock_reports:format/1, #{
            what => unexpected_release,
            key => Key,
            pid => self(),
            holders => Holders,
            left_out => LeftOut
        })
    end,
    Name = fun({Pid, Permits}) -> lists:concat([pid_to_list(Pid), " (", Permits, ")"]) end,
    Many = lists:zip(Pids, lists:seq(1, 12)),
    Ten = lists:concat(lists:join(", ", lists:map(Name, lists:sublist(Many, 10)))),
    [
        ?assertEqual(
            lists:append([
                "canal_lock: ", Self, " released key ", KeyText, " without holding a permit of it; holders: ", Holders,
                ". Only the holder of a permit can release it", Suffix
            ]),
            Text
        )
     || {Text, KeyText, Holders, Suffix} <- [
            {Says(db, [], 0), "db", "none", ""},
            {Says({app, "name"}, [{First, 3}], 0), "{app,\"name\"}", Name({First, 3}), ""},
            {Says('ключ', [], 17), "'ключ'", "none", " (17 similar reports suppressed)"},
            {Says(db, lists:sublist(Many, 10), 0), "db", Ten, ""},
            {Says(db, Many, 1), "db", Ten ++ " and 2 others", " (1 similar reports suppressed)"}
        ]
    ],
    %% The reported holders are the real ones.
    [test_worker:order(Pid, fun() -> {acquired, _} = canal_lock:acquire(db, 99, 1) end) || Pid <- Pids],
    reset(),
    [#{msg := {report, Report}, meta := #{report_cb := Callback}}] = reports(unexpected_release, fun mistake/0),
    ?assertNotEqual(nomatch, string:find(said(Callback, Report), " (1) and 2 others")).

any_key() ->
    Tree = lists:foldl(fun(_, Part) -> {Part, Part} end, leaf, lists:seq(1, 14)),
    Keys = [
        {string, lists:duplicate(100_000, $x)},
        {strings, lists:duplicate(100, lists:duplicate(100, $x))},
        {binary, binary:copy(<<"x">>, 100_000)},
        {bytes, binary:copy(<<255>>, 100_000)},
        {bits, <<0:100_001>>},
        {list, lists:seq(1, 100_000)},
        {improper_list, lists:seq(1, 100_000) ++ tail},
        {tuple, list_to_tuple(lists:seq(1, 100_000))},
        {map, maps:from_list([{N, N} || N <- lists:seq(1, 1000)])},
        {tree, Tree},
        {trees, [Tree, #{Tree => Tree}]},
        {integer, 1 bsl 10_000},
        {integers, lists:duplicate(100, 1 bsl 1000)},
        {deep_tuple, test_key_terms:deep(tuple, 100_000)},
        {deep_list, test_key_terms:deep(list, 100_000)},
        {deep_map, test_key_terms:deep(map_key, 100_000)},
        {atoms, lists:duplicate(100, binary_to_atom(binary:copy(<<"a">>, 255)))},
        {lines, lists:duplicate(100, $\n)}
    ],
    lists:foreach(fun({Name, Key}) ->
        reset(),
        [#{msg := {report, Report = #{key := Reported}}, meta := #{report_cb := Callback}}] =
            reports(unexpected_release, fun() -> ok = canal_lock:release(Key, 1, 1) end),
        ?assertEqual({Name, true}, {Name, Reported =:= Key}),
        Said = said(Callback, Report),
        ?assertNotEqual({Name, nomatch}, {Name, string:find(Said, "holders: none")}),
        Unknown = said(Callback, #{what => unknown_message, kind => cast, message => Key, pid => self()}),
        [
            ?assertMatch({Name, true, nomatch}, {Name, string:length(Text) =< ?MAX_CHARACTERS, string:find(Text, "\n")})
         || Text <- [Said, Unknown]
        ]
    end, Keys ++ test_key_terms:all()).

unknown_messages() ->
    Table = element(2, sys:get_state(canal_lock)),
    Manager = whereis(canal_lock),
    Ways = [
        {call, fun(Message) -> {error, unknown_call} = gen_server:call(canal_lock, Message) end},
        {cast, fun(Message) -> ok = gen_server:cast(canal_lock, Message) end},
        {info, fun(Message) -> canal_lock ! Message end}
    ],
    Unknown = [
        unknown,
        {acquire, self(), self(), {db, 1, 1}},
        {release, db},
        {acquire, db, 1, 1},
        {confirm, not_a_pid, self()},
        {timeout, make_ref(), sweep},
        {'EXIT', self(), normal},
        lists:seq(1, 1000)
    ],
    Reports = reports(unknown_message, fun() ->
        [Send(Message) || Message <- Unknown, {_, Send} <- Ways],
        Table = element(2, sys:get_state(canal_lock))
    end),
    ?assertMatch(
        [#{level := error, meta := #{canal_lock := permits}, msg := {report, #{kind := call, message := unknown}}}],
        Reports
    ),
    %% The manager is the same one and works.
    ?assertEqual(Manager, whereis(canal_lock)),
    {acquired, 1} = canal_lock:acquire(db, 1, 1),
    ok = canal_lock:release(db),
    ok = canal_lock_manager:sweep(),
    ?assertMatch(#{keys := 0, granted := 1}, canal_lock:info()),
    ?assertEqual({message_queue_len, 0}, process_info(Manager, message_queue_len)),
    %% Each manager reports its first unknown message, of any kind.
    lists:foreach(fun({Kind, Send}) ->
        ok = canal_lock:stop(),
        {ok, _} = canal_lock:start_link(3),
        [#{msg := {report, Report}, meta := #{report_cb := Callback}}] = reports(unknown_message, fun() ->
            [Send({unknown, N}) || N <- [1, 2, 3]],
            sys:get_state(canal_lock)
        end),
        ?assertMatch(#{kind := Kind, message := {unknown, 1}}, Report),
        ?assertEqual(
            "canal_lock: the manager ignored an unexpected message: {unknown,1}. "
            "Find the sender; later ones are not logged",
            said(Callback, Report)
        )
    end, Ways).

%% A pass of the sweep over this many keys has hundreds of steps. So it is not complete when the manager handles the
%% exit signal.
crash() ->
    {ok, Manager} = canal_lock:start_link(3, #{keep_on_crash => true}),
    true = unlink(Manager),
    [ok = use({key, N}) || N <- lists:seq(1, 100_000)],
    Reports = reports({gen_server, terminate}, fun() ->
        ok = sys:suspend(Manager),
        _ = gen_server:send_request(Manager, sweep),
        {_, true} = test_worker:start(fun() -> exit(Manager, meant) end),
        Monitor = monitor(process, Manager),
        ok = sys:resume(Manager),
        ?assertEqual(meant, test_await:reason({Manager, Monitor}))
    end),
    [#{msg := {report, #{state := State} = Report}}] = Reports,
    ?assertMatch(#{keep_on_crash := true, work := [sweep | _]}, State),
    ?assertMatch(Bytes when Bytes < 5000, erlang:external_size(Report)),
    {ok, _} = canal_lock:start_link(3),
    ok = canal_lock:stop().

use(Key) ->
    {acquired, 1} = canal_lock:acquire(Key, 1, 1),
    canal_lock:release(Key).

%% With the logger as `erl' configures it.
plain_vm() ->
    Calls =
        "{ok, _} = canal_lock:start_link(3), ok = canal_lock:release(db, 3, 1),"
        "{ok, _} = canal_lock_quorum:start_link(#{members => [node()]}),"
        "{error, unknown_call} = gen_server:call(canal_lock_quorum_voter, hello),"
        "ok = logger_std_h:filesync(default), halt().",
    Erl = filename:join([code:root_dir(), "bin", "erl"]),
    Ebin = filename:dirname(code:which(canal_lock)),
    Output = os:cmd(lists:concat(["'", Erl, "' -noinput -pa '", Ebin, "' -eval '", Calls, "' 2>&1"])),
    [
        ?assertMatch({_, [_ | _]}, {Output, string:find(Output, Text)})
     || Text <- ["released key db without holding a permit of it", "the voter ignored an unknown message: hello"]
    ].

%% In a VM of its own, with the configuration of the default handler, but a module that records events.
filter() ->
    {ok, Page} = file:read_file("docs/operating.md"),
    {match, [Line]} = re:run(Page, "^logger:add_handler_filter\\(.*\\)\\.$", [multiline, {capture, first, list}]),
    Of = [
        fun() -> canal_lock_reports:report(#{what => unknown_message, message => hello}) end,
        fun() -> canal_lock_quorum_reports:report(unknown_message, #{process => voter, message => hello}) end,
        fun() -> logger:error(#{what => other}) end
    ],
    ?assertEqual({[1, 1, 1], ok, [0, 0, 1]}, test_setup:in_a_vm([], fun() -> with_and_without_filter(Line, Of) end)).

with_and_without_filter(Line, Of) ->
    {ok, Default} = logger:get_handler_config(default),
    ok = logger:remove_handler(default),
    ok = logger:add_handler(default, test_log_listener, maps:with([level, filters, filter_default], Default)),
    ok = logger:set_primary_config(level, notice),
    Counts = fun() ->
        [length(test_log_listener:listening(fun() -> Log(), test_log_listener:events() end)) || Log <- Of]
    end,
    Without = Counts(),
    {ok, Tokens, _} = erl_scan:string(Line),
    {ok, Expressions} = erl_parse:parse_exprs(Tokens),
    {value, Added, _} = erl_eval:exprs(Expressions, []),
    {Without, Added, Counts()}.
