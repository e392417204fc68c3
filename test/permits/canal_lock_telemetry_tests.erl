%% The event of the manager for `telemetry': the totals at the beginning of each sweep, and nothing without `telemetry'.
-module(canal_lock_telemetry_tests).

-include_lib("eunit/include/eunit.hrl").

-import(test_telemetry_app, [load/0, unload/0, start/1, load_and_start/0]).

-define(EVENT, [canal_lock, totals]).

-define(INTERVAL_MS, 20).

%% Longer than any test, so the timer of the sweep does not fire.
-define(NEVER_MS, 1_000_000_000).

%% The longest text of a report: a few lines of a terminal.
-define(MAX_CHARACTERS, 1600).

telemetry_test_() ->
    Tests = [
        {"the totals are emitted at the interval of the sweep", fun totals/0},
        {"the event has the longest wait since the last one", fun longest_wait/0},
        {"the longest wait is forgotten at each sweep without telemetry, too", fun longest_wait_without/0},
        {"acquires, releases, deaths and requested sweeps emit nothing", fun not_by_callers/0},
        {"without telemetry nothing is emitted, and no process is called", fun without/0},
        {"telemetry that is not running is not called", fun not_running/0},
        {"telemetry can start and stop while the manager runs", fun comes_and_goes/0},
        {"P9: a failure of telemetry is reported once, and the manager continues", fun failure_of_telemetry/0},
        {"a failure before the call of telemetry crashes the manager",
            test_manager_crash:alone(fun own_failure/0)},
        {"P7: a slow handler delays only the manager", fun slow_handler/0},
        {"P10: a restarted manager emits the event again", test_manager_crash:alone(fun next_manager/0)}
    ],
    Clean = [{Title, fun() -> clean(Test) end} || {Title, Test} <- Tests],
    test_log_listener:tests(warning, test_setup:tests(without_manager, Clean)).

%%% Set-up

%% Runs a test with no telemetry loaded before and after it.
clean(Test) ->
    false = code:is_loaded(telemetry),
    try
        test_log_listener:listening(Test)
    after
        test_telemetry_app:stop(),
        unload()
    end.

%% Attaches a handler that sends each event to this process.
attach(Id) ->
    Test = self(),
    attach(Id, fun(Event, Measurements, Metadata, Config) ->
        Test ! {Config, {Event, Measurements, Metadata, self(), now_ms()}}
    end).

attach(Id, Function) ->
    ok = telemetry:attach(Id, ?EVENT, Function, Id).

%% The next event.
event(Id) ->
    test_await:answer(Id).

%% An event with the current totals. The next event may have been emitted before this call, so it is skipped.
new_event(Id) ->
    flush(Id),
    _ = event(Id),
    event(Id).

%% Fails if an event has arrived.
no_event(Id) ->
    receive
        {Id, Event} -> error({unexpected, Event})
    after 0 -> ok
    end.

flush(Id) ->
    receive
        {Id, _} -> flush(Id)
    after 0 -> ok
    end.

start_manager(Interval_ms) ->
    {ok, Manager} = canal_lock:start_link(3, #{sweep_interval_ms => Interval_ms}),
    Manager.

%% Waits until the timer has fired twice: an idle key is reclaimed after two passes of the sweep.
await_timer() ->
    ok = use(idle),
    test_await:value(0, fun() -> maps:get(keys, canal_lock:info()) end).

use(Key) ->
    {acquired, 1} = canal_lock:acquire(Key, 1, 1),
    ok = canal_lock:release(Key).

now_ms() ->
    erlang:monotonic_time(millisecond).

%%% The tests

totals() ->
    load_and_start(),
    attach(here),
    Manager = start_manager(?INTERVAL_MS),
    Events = [event(here) || _ <- lists:seq(0, 10)],
    [?assertMatch({?EVENT, #{permits := 0, granted := 0}, #{max_per := 3}, Manager, _}, Event) || Event <- Events],
    %% The first event may be late.
    Took_ms = element(5, lists:last(Events)) - element(5, hd(Events)),
    ?assert(Took_ms >= 9 * ?INTERVAL_MS),
    {Holder, _} = test_worker:start(fun() -> [canal_lock:acquire(Key, 9, 1) || Key <- [db, db, 1, 2, 3]] end),
    {acquired, 3} = canal_lock:acquire(db, 9, 1),
    full = canal_lock:acquire(db, 1, 1),
    {error, not_held} = canal_lock:release(other),
    full = canal_lock:acquire(db, 3, 1, 1),
    {waiting, Ref} = canal_lock:request(db, 3, 1),
    emits(#{permits => 6, holders => 2, keys => 4, granted => 6, refused => 2, not_held => 1}),
    emits(#{waiting => 1, timed_out => 1, handed_over => 0, transferred => 0}),
    ok = canal_lock:cancel(Ref),
    ok = test_worker:kill(Holder),
    test_await:permits(1),
    ok = canal_lock_manager:sweep(),
    emits(#{permits => 1, holders => 1, keys => 1, granted => 6, released_by_death => 5, released => 0}),
    ok = canal_lock:release(db),
    ok = canal_lock_manager:sweep(),
    emits(#{permits => 0, holders => 0, keys => 0, released => 1, reclaimed => 4}),
    ?assertEqual([], test_log_listener:events()).

%% The event has the totals of info/0, and these values among them.
emits(Some) ->
    {?EVENT, Measurements, Metadata, _, _} = new_event(here),
    ?assertEqual(Some, maps:with(maps:keys(Some), Measurements)),
    ?assertEqual([max_per], maps:keys(Metadata)),
    ?assertNot(is_map_key(max_per, Measurements)),
    %% The memory of reclaimed keys is freed a little later, so `memory' can differ.
    Comparable = fun(Info) -> Info#{memory := memory, longest_wait_us := longest_wait_us} end,
    ?assertEqual(Comparable(canal_lock:info()), Comparable(maps:merge(Measurements, Metadata))),
    ?assertMatch(#{memory := Bytes} when Bytes > 0, Measurements).

longest_wait() ->
    load_and_start(),
    attach(here),
    Longest = fun() -> {_, #{longest_wait_us := Longest_us}, _, _, _} = event(here), Longest_us end,
    {Longest_us, Resume} = wait_in_one_interval(),
    flush(here),
    Resume(),
    ?assertEqual([Longest_us, 0], [Longest(), Longest()]).

longest_wait_without() ->
    {_, Resume} = wait_in_one_interval(),
    #{wait_us := Wait_us} = canal_lock:info(),
    Resume(),
    test_await:value(0, fun() -> maps:get(longest_wait_us, canal_lock:info()) end),
    ?assertMatch(#{wait_us := Wait_us}, canal_lock:info()).

%% Two waits, and no sweep begins until the returned function is called.
wait_in_one_interval() ->
    Manager = start_manager(?INTERVAL_MS),
    ok = sys:suspend(Manager),
    full = canal_lock:acquire(db, 0, 1, 2),
    full = canal_lock:acquire(db, 0, 1, 1),
    #{wait_us := Wait_us, longest_wait_us := Longest_us} = canal_lock:info(),
    ?assert(Longest_us >= 2000),
    ?assert(Longest_us =< Wait_us - 1000),
    {Longest_us, fun() -> sys:resume(Manager) end}.

not_by_callers() ->
    load_and_start(),
    attach(here),
    Manager = start_manager(?NEVER_MS),
    {Holder, _} = test_worker:start(fun() -> [canal_lock:acquire(Key, 9, 1) || Key <- lists:seq(1, 100)] end),
    ok = use(db),
    full = canal_lock:acquire(1, 1, 1),
    {error, not_held} = canal_lock:release(db),
    {ok, done} = canal_lock:with_permit(db, 1, 1, fun() -> done end),
    ok = test_worker:kill(Holder),
    test_await:permits(0),
    ok = canal_lock_manager:sweep(),
    Manager ! {timeout, make_ref(), sweep},
    _ = sys:get_state(Manager),
    ok = canal_lock:stop(),
    no_event(here).

without() ->
    sends_nothing(start_manager(?INTERVAL_MS)),
    ?assertEqual(false, code:is_loaded(telemetry)).

%% A call of the code server, or of any other process, would need a message.
sends_nothing(Manager) ->
    1 = erlang:trace(Manager, true, [send]),
    [await_timer() || _ <- [1, 2]],
    1 = erlang:trace(Manager, false, [send]),
    ?assertEqual([], test_await:traced(Manager)),
    ?assertEqual([], test_log_listener:events()).

%% A call would log a warning each time.
not_running() ->
    ok = load(),
    Manager = start_manager(?INTERVAL_MS),
    sends_nothing(Manager),
    ok = telemetry:execute(?EVENT, #{}, #{}),
    ?assertMatch([#{level := warning}], test_log_listener:events()),
    ?assertEqual(Manager, whereis(canal_lock)).

comes_and_goes() ->
    Manager = start_manager(?INTERVAL_MS),
    await_timer(),
    ok = load(),
    await_timer(),
    between_events(Manager, fun() -> start(telemetry) end),
    attach(here),
    ?assertMatch({?EVENT, #{permits := 0}, _, Manager, _}, event(here)),
    between_events(Manager, fun test_telemetry_app:stop/0),
    flush(here),
    await_timer(),
    unload(),
    await_timer(),
    no_event(here),
    ?assertEqual([], test_log_listener:events()).

%% An event that is emitted while telemetry starts or stops makes telemetry log a warning.
between_events(Manager, Do) ->
    ok = sys:suspend(Manager),
    ok = Do(),
    ok = sys:resume(Manager).

%% With a telemetry that raises at every call.
failure_of_telemetry() ->
    Huge = lists:duplicate(10_000, huge),
    lists:foreach(fun({Class, Reason}) ->
        test_telemetry_app:load_failing(Class, Reason),
        ok = start(test_telemetry_app),
        Manager = start_manager(?INTERVAL_MS),
        ok = await_calls(3),
        [#{level := error, msg := {report, Report}, meta := Meta}] = test_log_listener:events(),
        ?assertMatch(
            #{what := event_failed, event := ?EVENT, class := Class, reason := Reason, pid := Manager},
            Report
        ),
        ?assertMatch(#{canal_lock := permits, report_cb := _}, Meta),
        #{report_cb := Callback} = Meta,
        {Format, Arguments} = Callback(Report),
        Said = unicode:characters_to_list(io_lib:format(Format, Arguments)),
        Begin = lists:concat(["canal_lock: telemetry failed to emit the event [canal_lock,totals]: ", Class, ": "]),
        ?assertEqual(Begin, lists:sublist(Said, length(Begin))),
        ?assertNotEqual(nomatch, string:find(Said, "Later failures are not logged")),
        ?assert(length(Said) =< ?MAX_CHARACTERS),
        %% An unknown message is another kind of report, so it is reported, too.
        Manager ! unknown,
        _ = sys:get_state(Manager),
        ?assertMatch([#{msg := {report, #{what := unknown_message}}}], test_log_listener:events()),
        ok = await_calls(2),
        ?assertEqual([], test_log_listener:events()),
        ?assertEqual(Manager, whereis(canal_lock)),
        await_timer(),
        ok = canal_lock:stop(),
        test_telemetry_app:stop(),
        unload()
    end, [{error, meant}, {exit, {meant, Huge}}, {throw, meant}]).

%% That would be a bug of canal_lock, so it crashes the manager.
own_failure() ->
    load_and_start(),
    Manager = start_manager(?INTERVAL_MS),
    ok = canal_lock_nif:close(element(3, sys:get_state(Manager))),
    test_await:value(undefined, fun() -> whereis(canal_lock) end),
    ?assertMatch({not_started, _}, test_await:exit_reason(Manager)),
    ?assertEqual([], [Event || #{msg := {report, #{what := event_failed}}} = Event <- test_log_listener:events()]).

%% Waits for this many new calls, and until the manager has handled the last one.
await_calls(Calls) ->
    receive
        {called, _} -> await_calls(Calls)
    after 0 ->
        [none = test_await:answer(called) || _ <- lists:seq(1, Calls)],
        _ = sys:get_state(canal_lock),
        ok
    end.

slow_handler() ->
    load_and_start(),
    Test = self(),
    attach(slow, fun(_, _, _, _) ->
        Test ! {slow, self()},
        receive go_on -> ok end
    end),
    Manager = start_manager(?INTERVAL_MS),
    Manager = test_await:answer(slow),
    {Holder, _} = test_worker:start(fun() -> [canal_lock:acquire(Key, 9, 1) || Key <- lists:seq(1, 100)] end),
    ok = use(db),
    ok = test_worker:kill(Holder),
    test_await:permits(0),
    ok = telemetry:detach(slow),
    Sweep = gen_server:send_request(Manager, sweep),
    Manager ! go_on,
    ?assertEqual({reply, ok}, gen_server:receive_response(Sweep, 20_000)),
    ?assertEqual([], test_log_listener:events()).

next_manager() ->
    load_and_start(),
    attach(here),
    Options = #{keep_on_crash => true, sweep_interval_ms => ?INTERVAL_MS},
    {ok, First} = canal_lock:start_link(3, Options),
    {acquired, 1} = canal_lock:acquire(db, 3, 1),
    {_, _, _, First, _} = event(here),
    exit(First, kill),
    killed = test_await:exit_reason(First),
    {ok, Second} = canal_lock:start_link(5, Options),
    ?assertMatch({?EVENT, #{permits := 1, granted := 1}, #{max_per := 5}, Second, _}, new_event(here)),
    ok = canal_lock:stop(),
    {ok, Third} = canal_lock:start_link(7, Options),
    ?assertMatch({?EVENT, #{permits := 0, granted := 0}, #{max_per := 7}, Third, _}, new_event(here)),
    ok = canal_lock:stop().
