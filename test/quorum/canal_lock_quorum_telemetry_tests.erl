%% The totals of the quorum locks: what each event of a request or a lock adds, status/0, and the telemetry event.
-module(canal_lock_quorum_telemetry_tests).

-include_lib("eunit/include/eunit.hrl").

-define(EVENT, [canal_lock, quorum, totals]).
-define(LONG_MS, 60_000).

%% Between two events.
-define(INTERVAL_MS, 20).

telemetry_test_() ->
    Tests = [
        {"each request and each end of a lock is counted once", fun counts/0},
        {"a request without a quorum is counted", fun no_quorum/0},
        {"a lock that is at risk and then lost is counted", fun expires/0},
        {"locks that are lost with their agent are counted, and the totals go on", fun agent_dies/0},
        {"waits are added up, and the longest is that since the last event", fun waits/0},
        {"the event has the totals and the current numbers", fun event/0},
        {"without telemetry nothing is emitted, and the totals are counted", fun without/0},
        {"an agent that is not running stops no event after it", fun without_agent/0},
        {"a slow handler delays no lock", fun slow_handler/0},
        {"a failure of telemetry is reported once", fun failure/0}
    ],
    test_telemetry_app:tests(fun stop/0, Tests).

stop() ->
    ok = application:unset_env(canal_lock, answer_ms),
    whereis(canal_lock_quorum) =:= undefined orelse canal_lock_quorum:stop().

start() ->
    start(#{}).

start(Options) ->
    start_without_quorum(Options),
    test_await:value(true, fun() -> maps:get(quorum, canal_lock_quorum:status()) end).

start_without_quorum(Options) ->
    Default = #{members => [node()], totals_interval_ms => ?INTERVAL_MS},
    {ok, Pid} = canal_lock_quorum:start_link(maps:merge(Default, Options)),
    true = unlink(Pid).

%%% Totals

counts() ->
    start(#{max_waiting => 2}),
    counted([]),
    {ok, First} = canal_lock_quorum:lock(x, ?LONG_MS),
    {ok, Reader} = canal_lock_quorum:rlock(y, ?LONG_MS),
    {ok, Many} = canal_lock_quorum:lock_many([a, b, c], ?LONG_MS),
    counted([{granted, 3}]),
    {error, timeout} = canal_lock_quorum:lock(x, 10),
    counted([{refused_timeout, 1}]),
    %% Two waiters. Each gets the lock without a message.
    Waiters = [waiter(x, fun(Lock) -> ok = canal_lock_quorum:unlock(Lock) end) || _ <- [1, 2]],
    await(waiting, 2),
    {error, too_many_waiting} = canal_lock_quorum:lock(z, ?LONG_MS),
    counted([{refused_too_many_waiting, 1}]),
    ok = canal_lock_quorum:unlock(First),
    [normal = test_await:reason(Waiter) || Waiter <- Waiters],
    counted([{granted, 2}, {passed, 2}, {unlocked, 3}]),
    ok = canal_lock_quorum:unlock_async(Reader),
    await(held, 1),
    {error, not_held} = canal_lock_quorum:unlock_async(Reader),
    {error, not_held} = canal_lock_quorum:unlock(Reader),
    counted([{unlocked, 1}]),
    %% By the death of the holder, and of a waiter.
    {Holder, _} = HolderDown = waiter(x, fun(_) -> test_setup:hold_forever() end),
    await(held, 2),
    {Waiting, _} = WaitingDown = waiter(x, fun(_) -> ok end),
    await(waiting, 1),
    exit(Waiting, kill),
    killed = test_await:reason(WaitingDown),
    await(waiting, 0),
    counted([{granted, 1}, {canceled, 1}]),
    exit(Holder, kill),
    killed = test_await:reason(HolderDown),
    await(held, 1),
    counted([{unlocked, 1}]),
    ok = canal_lock_quorum:force_unlock(b),
    receive {canal_lock_quorum, lost, Many} -> ok end,
    counted([{revoked, 1}]).

no_quorum() ->
    start_without_quorum(#{members => [node(), there@nowhere]}),
    {error, no_quorum} = canal_lock_quorum:lock(x, ?LONG_MS),
    counted([{refused_no_quorum, 1}]).

expires() ->
    start(#{lease_ms => test_quorum_cluster:lease_ms()}),
    {ok, Lock} = canal_lock_quorum:lock(x, ?LONG_MS),
    ok = sys:suspend(canal_lock_quorum_voter),
    receive {canal_lock_quorum, at_risk, Lock} -> ok end,
    receive {canal_lock_quorum, lost, Lock} -> ok end,
    ok = sys:resume(canal_lock_quorum_voter),
    counted([{granted, 1}, {at_risk, 1}, {lost, 1}]).

agent_dies() ->
    start(),
    {ok, _} = canal_lock_quorum:lock(x, ?LONG_MS),
    {ok, _} = canal_lock_quorum:lock(y, ?LONG_MS),
    test_quorum_cluster:kill_process(canal_lock_quorum_agent),
    counted([{granted, 2}, {lost, 2}]).

waits() ->
    start(#{totals_interval_ms => 1_000_000}),
    Waits = fun() -> maps:with([wait_us, longest_wait_us], totals()) end,
    {ok, Lock} = canal_lock_quorum:lock(x, ?LONG_MS),
    Waiter = waiter(x, fun canal_lock_quorum:unlock/1),
    await(waiting, 1),
    {error, timeout} = canal_lock_quorum:lock(x, 50),
    ok = canal_lock_quorum:unlock(Lock),
    normal = test_await:reason(Waiter),
    {ok, _} = canal_lock_quorum:lock(z, ?LONG_MS),
    #{wait_us := Sum_us, longest_wait_us := Longest_us} = Waits(),
    ?assert(Longest_us >= 50_000),
    %% The other locks did not wait for long, and the one that timed out does not count.
    ?assert(Sum_us >= Longest_us),
    ?assert(Sum_us < Longest_us + 50_000),
    test_telemetry_app:load_and_start(),
    attach(),
    canal_lock_quorum_telemetry ! emit,
    ?assertMatch(#{wait_us := Sum_us, longest_wait_us := Longest_us}, next_event()),
    ?assertEqual(#{wait_us => Sum_us, longest_wait_us => 0}, Waits()),
    {ok, _} = canal_lock_quorum:lock(y, ?LONG_MS),
    #{wait_us := Later_us, longest_wait_us := Last_us} = Waits(),
    ?assertEqual(Sum_us + Last_us, Later_us).

%% The totals since the last call, except the times, are these and no others.
counted(Expected) ->
    Zero = maps:map(fun(_, _) -> 0 end, canal_lock_quorum_totals:read(canal_lock_quorum_totals:new())),
    Before = case get(totals) of undefined -> Zero; Totals -> Totals end,
    Now = totals(),
    put(totals, Now),
    Counts = maps:without([wait_us, longest_wait_us], Now),
    Added = maps:map(fun(Total, Count) -> Count - maps:get(Total, Before) end, Counts),
    ?assertEqual(maps:from_list(Expected), maps:filter(fun(_, Count) -> Count =/= 0 end, Added)),
    #{granted := Granted, unlocked := Unlocked, lost := Lost, revoked := Revoked} = Now,
    ?assertEqual(Granted, Unlocked + Lost + Revoked + maps:get(held, canal_lock_quorum:status())).

totals() ->
    maps:get(totals, canal_lock_quorum:status()).

await(What, Count) ->
    test_await:value(Count, fun() -> maps:get(What, canal_lock_quorum:status()) end).

waiter(Name, Do) ->
    spawn_monitor(fun() ->
        {ok, Lock} = canal_lock_quorum:lock(Name, ?LONG_MS),
        Do(Lock)
    end).

%%% The event

attach() ->
    test_telemetry_app:attach(?EVENT).

next_event() ->
    {Measurements, Metadata} = test_telemetry_app:next_event(?EVENT),
    ?assertEqual(#{}, Metadata),
    Measurements.

event() ->
    test_telemetry_app:load_and_start(),
    attach(),
    start(#{lease_ms => test_quorum_cluster:lease_ms()}),
    {ok, _} = canal_lock_quorum:rlock(x, ?LONG_MS),
    {error, timeout} = canal_lock_quorum:lock(x, 0),
    Expected = #{
        refused_timeout => 1, members => 1, members_connected => 1, members_silent => 0, held => 1, waiting => 0,
        pending_unlocks => 0
    },
    Answers = Expected#{queued => 0},
    await_event(Answers),
    ok = sys:suspend(canal_lock_quorum_voter),
    ok = application:set_env(canal_lock, answer_ms, 1),
    await_event((maps:remove(held, Expected))#{members_silent := 1}),
    ?assertNot(is_map_key(queued, next_event())),
    ok = application:unset_env(canal_lock, answer_ms),
    ok = sys:resume(canal_lock_quorum_voter),
    await_event(maps:remove(held, Answers)),
    Totals = maps:keys(totals()),
    ?assertEqual(lists:sort(Totals ++ maps:keys(Answers) -- [refused_timeout]), lists:sort(maps:keys(next_event()))).

await_event(Expected) ->
    test_await:value(Expected, fun() -> maps:with(maps:keys(Expected), next_event()) end).

without() ->
    start(),
    Process = whereis(canal_lock_quorum_telemetry),
    1 = erlang:trace(Process, true, [send, 'receive']),
    [receive {trace, Process, 'receive', emit} -> ok end || _ <- [1, 2, 3]],
    1 = erlang:trace(Process, false, [send, 'receive']),
    ?assertEqual([], [Sent || {trace, _, send, _, _} = Sent <- test_await:traced(Process)]),
    {ok, _} = canal_lock_quorum:lock(x, ?LONG_MS),
    counted([{granted, 1}]).

without_agent() ->
    test_telemetry_app:load_and_start(),
    attach(),
    start(),
    _ = next_event(),
    Process = whereis(canal_lock_quorum_telemetry),
    ok = sys:suspend(canal_lock_quorum),
    ok = test_worker:kill(whereis(canal_lock_quorum_agent)),
    Process ! emit,
    _ = sys:get_state(Process),
    ok = sys:resume(canal_lock_quorum),
    ok = flush_events(),
    _ = next_event(),
    ?assertEqual(Process, whereis(canal_lock_quorum_telemetry)).

flush_events() ->
    receive
        {event, _} -> flush_events()
    after 0 -> ok
    end.

slow_handler() ->
    test_telemetry_app:load_and_start(),
    start(),
    Test = self(),
    ok = telemetry:attach(slow, ?EVENT, fun(_, _, _, _) ->
        Test ! {slow, self()},
        receive go_on -> ok end
    end, none),
    Handler = test_await:answer(slow),
    {ok, Lock} = canal_lock_quorum:lock(x, ?LONG_MS),
    ok = canal_lock_quorum:unlock(Lock),
    counted([{granted, 1}, {unlocked, 1}]),
    ok = telemetry:detach(slow),
    Handler ! go_on.

failure() ->
    ok = test_telemetry_app:load_failing(exit, meant),
    ok = test_telemetry_app:start(test_telemetry_app),
    start(),
    Process = whereis(canal_lock_quorum_telemetry),
    [begin Process ! emit, _ = sys:get_state(Process) end || _ <- [1, 2, 3]],
    ?assertEqual(Process, whereis(canal_lock_quorum_telemetry)),
    ?assertMatch(
        [#{level := error, msg := {report, #{what := event_failed, event := ?EVENT, class := exit, reason := meant}}}],
        test_log_listener:events()
    ).
