%% For how long a process has held permits: holder_info/1.
%% (native/permit_table/tests/all/histories.rs has sequences of all calls.)
-module(canal_lock_age_tests).

-include_lib("eunit/include/eunit.hrl").

%% The unit of the times in the native library.
-define(UNIT_MS, 100).

%% Longer than any test, so the timer of the sweep does not fire. The tests advance the clock themselves.
-define(NEVER_MS, 1_000_000_000).

age_test_() ->
    test_setup:tests(without_manager, [
        {"holder_info/1 has the permits, the keys and the time of a process", managed(?NEVER_MS, fun figures/1)},
        {"the time is 0 until the next sweep, and too small by at most one interval", managed(?NEVER_MS, fun bounds/1)},
        {"the manager advances the clock at each sweep", managed(?UNIT_MS, fun by_the_manager/1)},
        {"the time begins with the first permit, however the process gets it", managed(?NEVER_MS, fun ways/1)},
        {"the time begins again after the last permit was released", managed(?NEVER_MS, fun again/1)},
        {"a process on another node has the time of its proxy", managed(?NEVER_MS, fun proxy/1)},
        {"P10: the clock goes on when a manager adopts the table", test_manager_crash:alone(fun adopted/0)}
    ]).

managed(Interval_ms, Test) ->
    fun() ->
        {ok, Manager} = canal_lock:start_link(3, #{sweep_interval_ms => Interval_ms}),
        Test(Manager),
        ok = canal_lock:stop()
    end.

%% Processes that begin to hold permits begin now. The answer is a time before that.
advance(Manager) ->
    Handle = element(3, sys:get_state(Manager)),
    Now_ms = now_ms(),
    ok = canal_lock_nif:advance_clock(Handle, 0),
    Now_ms.

now_ms() ->
    erlang:monotonic_time(millisecond).

%% The time that the process has held permits is at most that since `Begun_ms'.
began_after(Begun_ms, Pid) ->
    #{held_ms := Held_ms} = canal_lock:holder_info(Pid),
    ?assert(Held_ms =< now_ms() - Begun_ms + 1),
    Held_ms.

%% Waits until the process has held permits for that long.
await_age(Ms, Pid) ->
    test_await:value(true, fun() -> maps:get(held_ms, canal_lock:holder_info(Pid)) >= Ms end).

%%% The tests

figures(Manager) ->
    Begun_ms = advance(Manager),
    ?assertEqual(none, canal_lock:holder_info(self())),
    {acquired, 1} = canal_lock:acquire(db, 9, 1),
    ?assertMatch(#{permits := 1, keys := 1}, canal_lock:holder_info(self())),
    {acquired, 3} = canal_lock:acquire(db, 9, 1, #{permits => 2}),
    [{acquired, 1} = canal_lock:acquire({key, N}, 9, 1) || N <- lists:seq(1, 2000)],
    ?assertMatch(#{permits := 2003, keys := 2001}, canal_lock:holder_info(self())),
    await_age(2 * ?UNIT_MS, self()),
    _ = began_after(Begun_ms, self()),
    Worker = test_worker:start(),
    ?assertEqual(none, canal_lock:holder_info(Worker)),
    {Dead, _} = test_worker:start(fun() -> canal_lock:acquire(db, 9, 1) end),
    ok = test_worker:kill(Dead),
    test_await:value(none, fun() -> canal_lock:holder_info(Dead) end).

bounds(Manager) ->
    {Early, _} = test_worker:start(fun() -> canal_lock:acquire(db, 9, 1) end),
    Before_ms = advance(Manager),
    {Holder, _} = test_worker:start(fun() -> canal_lock:acquire(db, 9, 1) end),
    After_ms = now_ms(),
    await_age(3 * ?UNIT_MS, Holder),
    Elapsed_ms = now_ms() - After_ms,
    ?assert(began_after(Before_ms, Holder) >= Elapsed_ms - ?UNIT_MS),
    ?assertMatch(#{held_ms := 0}, canal_lock:holder_info(Early)).

by_the_manager(_Manager) ->
    {First, _} = test_worker:start(fun() -> canal_lock:acquire(db, 9, 1) end),
    After_ms = now_ms(),
    await_age(3 * ?UNIT_MS, First),
    %% The interval is one unit, and the clock has 0.2 s.
    Elapsed_ms = now_ms() - After_ms,
    #{held_ms := Held_ms} = canal_lock:holder_info(First),
    ?assert(Held_ms >= Elapsed_ms - 3 * ?UNIT_MS),
    %% The clock that a process got is that of the last sweep. A late manager has not swept yet.
    test_await:value(true, fun() ->
        {Second, _} = test_worker:start(fun() -> canal_lock:acquire(db, 9, 9) end),
        #{held_ms := First_ms} = canal_lock:holder_info(First),
        #{held_ms := Second_ms} = canal_lock:holder_info(Second),
        ok = test_worker:kill(Second),
        Second_ms + ?UNIT_MS < First_ms
    end).

%% Each function gives the worker a permit.
ways(Manager) ->
    Acquire = fun(Key, Permits) -> {acquired, _} = canal_lock:acquire(Key, 9, 1, #{permits => Permits}) end,
    Ways = [
        fun(Worker) -> test_worker:order(Worker, fun() -> Acquire(db, 1) end) end,
        fun(Worker) ->
            test_worker:order(Worker, fun() -> Acquire({own, self()}, 2), [Acquire({N, self()}, 1) || N <- "abcde"] end)
        end,
        fun(Worker) ->
            Acquire({handed_over, Worker}, 9),
            Ask = fun() -> canal_lock:request({handed_over, Worker}, 9, 1) end,
            {waiting, _} = test_worker:order(Worker, Ask),
            ok = canal_lock:release({handed_over, Worker})
        end,
        fun(Worker) ->
            Acquire({collected, Worker}, 8),
            Ask = fun() -> canal_lock:request({collected, Worker}, 9, 1, #{permits => 2}) end,
            {waiting, _} = test_worker:order(Worker, Ask)
        end,
        fun(Worker) ->
            Acquire({given, Worker}, 1),
            ok = canal_lock:give({given, Worker}, Worker)
        end
    ],
    Begun_ms = advance(Manager),
    Both = [{Way, Held, test_worker:start()} || Way <- Ways, Held <- [holds, overflows, has_held, was_given, new]],
    Prepare = fun
        (holds, Worker) -> test_worker:order(Worker, fun() -> Acquire(first, 1) end);
        (overflows, Worker) -> test_worker:order(Worker, fun() -> [Acquire({N, first}, 1) || N <- "abc"] end);
        (has_held, Worker) ->
            test_worker:order(Worker, fun() -> Acquire(first, 1), ok = canal_lock:release(first) end);
        (was_given, Worker) ->
            Acquire(first, 1),
            ok = canal_lock:give(first, Worker),
            ok = test_worker:order(Worker, fun() -> canal_lock:release(first) end);
        (new, _) -> ok
    end,
    [Prepare(Held, Worker) || {_, Held, Worker} <- Both],
    Timer = test_worker:start(),
    test_worker:order(Timer, fun() -> Acquire(timer, 1) end),
    await_age(4 * ?UNIT_MS, Timer),
    Then_ms = advance(Manager),
    [Way(Worker) || {Way, _, Worker} <- Both],
    [
        case lists:member(Held, [holds, overflows]) of
            true -> ?assert(began_after(Begun_ms, Worker) >= 3 * ?UNIT_MS);
            false -> began_after(Then_ms, Worker)
        end
     || {_, Held, Worker} <- Both
    ],
    [await_age(?UNIT_MS, Worker) || {_, _, Worker} <- Both].

again(Manager) ->
    Keys = [{key, N} || N <- lists:seq(1, 5)],
    First_ms = advance(Manager),
    [{acquired, 1} = canal_lock:acquire(Key, 1, 1) || Key <- Keys],
    await_age(3 * ?UNIT_MS, self()),
    [ok = canal_lock:release(Key) || Key <- tl(Keys)],
    [{acquired, 1} = canal_lock:acquire(Key, 1, 1) || Key <- tl(Keys)],
    ok = canal_lock:release(hd(Keys)),
    ?assert(began_after(First_ms, self()) >= 3 * ?UNIT_MS),
    [ok = canal_lock:release(Key) || Key <- tl(Keys)],
    ?assertEqual(none, canal_lock:holder_info(self())),
    Again_ms = advance(Manager),
    {acquired, 1} = canal_lock:acquire(hd(Keys), 1, 1),
    _ = began_after(Again_ms, self()),
    await_age(?UNIT_MS, self()).

proxy(Manager) ->
    Remote = test_setup:remote_pid(1),
    ?assertEqual(none, canal_lock:holder_info(Remote)),
    _ = advance(Manager),
    {Proxy, ok} = test_worker:start(fun() -> canal_lock_nif:represent(Remote) end),
    ?assertEqual(none, canal_lock:holder_info(Remote)),
    {acquired, 1} = test_worker:order(Proxy, fun() -> canal_lock:acquire(db, 3, 1) end),
    await_age(?UNIT_MS, Remote),
    ?assertMatch(#{permits := 1, keys := 1}, canal_lock:holder_info(Remote)).

adopted() ->
    Options = #{keep_on_crash => true, sweep_interval_ms => ?NEVER_MS},
    {ok, First} = canal_lock:start_link(3, Options),
    unlink(First),
    Begun_ms = advance(First),
    {Old, _} = test_worker:start(fun() -> canal_lock:acquire(db, 9, 1) end),
    await_age(3 * ?UNIT_MS, Old),
    ok = test_worker:kill(First),
    {ok, _} = canal_lock:start_link(3, Options),
    ?assert(began_after(Begun_ms, Old) >= 3 * ?UNIT_MS),
    %% The new manager has advanced the clock, by its interval.
    {New, _} = test_worker:start(fun() -> canal_lock:acquire(db, 9, 1) end),
    ?assertMatch(#{held_ms := 0}, canal_lock:holder_info(New)),
    await_age(5 * ?UNIT_MS, Old),
    ?assertMatch(#{held_ms := 0}, canal_lock:holder_info(New)),
    ok = canal_lock:stop().
