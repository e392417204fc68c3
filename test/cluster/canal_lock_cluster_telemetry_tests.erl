%% The totals of the cluster permits: what each call and each message of the allocator adds, and the telemetry event.
-module(canal_lock_cluster_telemetry_tests).

-include_lib("eunit/include/eunit.hrl").

-define(EVENT, [canal_lock, cluster, totals]).
-define(LONG_MS, 60_000).

%% More than the shortest time between two declarations of a node.
-define(DECLARE_MS, 200).

telemetry_test_() ->
    Tests = [
        {"each call that is not granted at once, and each permit that moves, is counted once", fun counts/0},
        {"a call without a quorum is counted", fun no_quorum/0},
        {"waits are added up, and the longest is that since the last event", fun waits/0},
        {"the event has the totals, the keys, the session and the allocator", fun event/0},
        {"a failure of telemetry is reported once", fun failure/0}
    ],
    test_telemetry_app:tests(fun stop/0, Tests).

stop() ->
    whereis(canal_lock_cluster) =:= undefined orelse canal_lock_cluster:stop(),
    canal_lock:stop().

%% The tests emit the events.
start() ->
    start_with([node()]),
    test_await:value(false, fun() -> canal_lock_cluster:session() =:= none end).

start_with(Members) ->
    {ok, _} = canal_lock:start_link(3),
    {ok, Pid} = canal_lock_cluster:start_link(#{members => Members, totals_interval_ms => 1_000_000}),
    true = unlink(Pid),
    ok.

emit() ->
    canal_lock_cluster_telemetry ! emit,
    _ = sys:get_state(canal_lock_cluster_telemetry),
    ok.

%%% Totals

counts() ->
    start(),
    counted(#{takeovers => 1}),
    {acquired, 5} = canal_lock_cluster:acquire(a, 5, #{permits => 5, timeout_ms => ?LONG_MS}),
    counted(#{granted => 1, received => 5}),
    full = canal_lock_cluster:acquire(a, 5),
    full = canal_lock_cluster:acquire(a, 5, 1, 10),
    full = canal_lock_cluster:acquire(a, 5, 1, 0),
    counted(#{refused => 3}),
    ok = canal_lock_cluster:release(a, #{permits => 2}),
    {acquired, 4} = canal_lock_cluster:acquire(a, 5),
    ok = canal_lock_cluster:release(a),
    {error, not_held} = canal_lock_cluster:release(a, #{permits => 4}),
    counted(#{}),
    %% A lower limit, which is declared at once after some time. One permit more than it is in use.
    timer:sleep(?DECLARE_MS),
    full = canal_lock_cluster:acquire(a, 2, 1, ?LONG_MS div 1000),
    test_await:value(2, fun() -> maps:get(returned, totals()) end),
    counted(#{refused => 1, recalled => 1, returned => 2}),
    ok = test_quorum_cluster:kill_process(canal_lock_cluster_agent),
    receive {canal_lock_cluster, lost, a} -> ok end,
    counted(#{lost => 3}).

no_quorum() ->
    start_with([node(), there@nowhere]),
    {error, no_quorum} = canal_lock_cluster:acquire(a, 1),
    {error, no_quorum} = canal_lock_cluster:with_permit(a, 1, 1, ?LONG_MS, fun() -> error(called) end),
    counted(#{no_quorum => 2}).

waits() ->
    test_telemetry_app:load_and_start(),
    attach(),
    start(),
    {acquired, 1} = canal_lock_cluster:acquire(a, 1, 1, ?LONG_MS),
    Waiter = test_worker:start(),
    Ref = test_worker:send_order(Waiter, fun() -> canal_lock_cluster:acquire(a, 1, 1, ?LONG_MS) end),
    test_await:value(1, fun() -> {ok, #{waiting := Waiting}} = canal_lock_cluster:usage(a), Waiting end),
    full = canal_lock_cluster:acquire(a, 1, 1, 50),
    ok = canal_lock_cluster:release(a),
    {acquired, 1} = test_await:answer(Ref),
    Waits = fun() -> maps:with([wait_us, longest_wait_us], totals()) end,
    #{wait_us := Sum_us, longest_wait_us := Longest_us} = Waits(),
    %% The call that was refused does not count.
    ?assert(Longest_us >= 50_000),
    ?assert(Sum_us >= Longest_us andalso Sum_us < 2 * Longest_us),
    ok = emit(),
    ?assertMatch({#{wait_us := Sum_us, longest_wait_us := Longest_us}, _}, next_event()),
    ?assertEqual(#{wait_us => Sum_us, longest_wait_us => 0}, Waits()).

%% The totals since the last call, except the times, are these and no others.
counted(Expected) ->
    Before = case get(totals) of undefined -> #{}; Totals -> Totals end,
    Now = maps:without([wait_us, longest_wait_us], totals()),
    put(totals, Now),
    Added = maps:map(fun(Total, Count) -> Count - maps:get(Total, Before, 0) end, Now),
    ?assertEqual(Expected, maps:filter(fun(_, Count) -> Count =/= 0 end, Added)).

totals() ->
    maps:get(totals, canal_lock_cluster:status()).

%%% The event

attach() ->
    test_telemetry_app:attach(?EVENT).

next_event() ->
    test_telemetry_app:next_event(?EVENT).

event() ->
    test_telemetry_app:load_and_start(),
    attach(),
    start(),
    {acquired, 1} = canal_lock_cluster:acquire(a, 1, 1, ?LONG_MS),
    Totals = totals(),
    ok = emit(),
    Session = canal_lock_quorum:fence(canal_lock_cluster:session()),
    ?assertEqual({Totals#{keys => 1}, #{session => Session, allocator => node()}}, next_event()).

%% (canal_lock_quorum_telemetry_tests has the other failures of the same process.)
failure() ->
    ok = test_telemetry_app:load_failing(exit, meant),
    ok = test_telemetry_app:start(test_telemetry_app),
    start(),
    Process = whereis(canal_lock_cluster_telemetry),
    [ok = emit() || _ <- [1, 2, 3]],
    ?assertEqual(Process, whereis(canal_lock_cluster_telemetry)),
    [#{level := error, msg := {report, Report}, meta := #{report_cb := Text}}] = test_log_listener:events(),
    ?assertMatch(#{what := event_failed, event := ?EVENT, class := exit, reason := meant}, Report),
    {Format, Values} = Text(Report),
    ?assertMatch(
        "canal_lock_cluster: telemetry failed to emit the event [canal_lock,cluster,totals]: exit: meant" ++ _,
        lists:flatten(io_lib:format(Format, Values))
    ).
