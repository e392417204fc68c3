%% P13, P10: a node, a manager or a proxy that does not answer blocks no caller for longer than its time limit, and
%% keeps no permit that its holder does not know of.
-module(canal_lock_remote_timeout_tests).

-include_lib("eunit/include/eunit.hrl").

-define(KEPT, #{keep_on_crash => true}).

-define(TIMEOUT_MS, 200).

%% A call with that timeout takes 0.3 s. This allows for a busy machine, and is less than any other limit.
-define(SOON_MS, 4000).

%% Calls of each outcome that the storm makes.
-define(CALLS, 100).
-define(PROCESSES, 8).

timeout_test_() ->
    test_setup:quietly([
        test_remote:tests(2, ?KEPT, [
            {Title, fun(Nodes) -> with_default_grace(Test, Nodes) end}
         || {Title, Test} <- [
                {"calls to a stopped node, over a busy connection, return after their time limits", fun stopped_node/1},
                {"P13: a call to a suspended manager times out, and nothing is granted later", fun suspended_manager/1},
                {"P13: a late grant of a suspended proxy is released", fun suspended_proxy/1},
                {"P13: of a call that times out while it is answered, one side has the permit", fun any_time/1},
                {"P10: a release that timed out survives a crash of the manager", fun released_in_the_end/1},
                {"a release of a lost connection releases no permit of the next one", fun late_release/1}
            ]
        ]),
        test_remote:tests(2, ?KEPT, [
            {"the largest timeout is accepted", fun largest_timeout/1},
            {"the timeout includes the time at the manager", fun time_at_the_manager/1}
        ])
    ]).

with_default_grace(Test, Nodes = [_, Here]) ->
    ok = test_nodes:call(Here, fun() -> application:unset_env(canal_lock, remote_grace_ms) end),
    Test(Nodes).

%% The outcome of a call in the process of a worker that must return while nothing answers it.
soon(Worker, Call) ->
    {Time_us, Outcome} = test_nodes:order(Worker, fun() -> timer:tc(fun() -> test_remote:attempt(Call) end) end),
    ?assertMatch({_, Time_ms} when Time_ms < ?SOON_MS, {Outcome, Time_us div 1000}),
    ?assertEqual({messages, []}, test_nodes:order(Worker, fun() -> process_info(self(), messages) end)),
    Outcome.

%% A holder with this many permits.
holder(There, Here, Permits) ->
    Holder = test_nodes:worker(Here),
    [{acquired, _} = test_remote:acquire(Holder, There, db) || _ <- lists:seq(1, Permits)],
    Holder.

stopped_node([There = {_, Name}, Here]) ->
    {_, Pid} = Holder = holder(There, Here, 2),
    Releasing = holder(There, Here, 1),
    Acquiring = test_nodes:worker(Here),
    Suspension = test_nodes:suspend(There),
    try
        make_busy(Name, Here),
        %% 5 s each.
        Slow = [
            test_nodes:send_order(Worker, Call)
         || {Worker, Call} <- [
                {Releasing, fun() -> canal_lock:release_on(Name, db) end},
                {Acquiring, fun() -> canal_lock:acquire_on(Name, db, 9, 1) end}
            ]
        ],
        Waits = [?TIMEOUT_MS, #{timeout_ms => ?TIMEOUT_MS, permits => 2}],
        [
            ?assertEqual({error, timeout}, soon(Holder, Call))
         || Wait <- Waits,
            Call <- [
                fun() -> canal_lock:acquire_on(Name, db, 9, 1, Wait) end,
                fun() -> canal_lock:with_permit_on(Name, db, 9, 1, Wait, fun() -> self() ! called end) end
            ]
        ],
        ?assertEqual(ok, soon(Holder, fun() -> canal_lock:release_on_async(Name, db) end)),
        ?assertEqual([{error, timeout}, {error, timeout}], [test_await:answer(Ref) || Ref <- Slow]),
        %% Those of the two releases.
        test_remote:await_helpers(Here, 2)
    after
        ok = test_nodes:resume(Suspension)
    end,
    test_await:value([{Pid, 1}], fun() -> test_nodes:call(There, fun() -> canal_lock:holders(db) end) end),
    test_remote:await_helpers(Here, 0),
    ?assertMatch(#{permits := 1, granted := 3, released := 2, not_held := 0}, test_remote:info(There)).

%% From now on, a process that sends to the other node is suspended.
make_busy(Name, Here) ->
    {_, Pid} = Sender = test_nodes:worker(Here),
    Message = binary:copy(<<0>>, 1 bsl 20),
    Send = fun(_) -> {nobody, Name} ! Message end,
    _ = test_nodes:send_order(Sender, fun() -> lists:foreach(Send, lists:seq(1, 50)) end),
    IsSuspended = fun() -> process_info(Pid, status) =:= {status, suspended} end,
    test_nodes:call(Here, fun() -> test_await:value(true, IsSuspended) end).

suspended_manager([There = {_, Name}, Here]) ->
    Holder = holder(There, Here, 1),
    test_remote:suspend_manager(There),
    Acquire = fun() -> canal_lock:acquire_on(Name, db, 9, 1, ?TIMEOUT_MS) end,
    ?assertEqual({error, timeout}, soon(Holder, Acquire)),
    %% Many such calls leave no processes behind while the manager is suspended.
    test_remote:await_helpers(Here, 0),
    test_remote:resume_manager(There),
    ?assertEqual({acquired, 2}, test_remote:acquire(Holder, There, db)),
    ?assertMatch(#{granted := 2, released := 0}, test_remote:info(There)).

suspended_proxy([There = {_, Name}, Here]) ->
    Holder = holder(There, Here, 1),
    Proxy = test_remote:proxy(Holder, There),
    test_remote:suspend(There, Proxy),
    Acquire = fun() -> canal_lock:acquire_on(Name, db, 9, 1, #{timeout_ms => ?TIMEOUT_MS, permits => 2}) end,
    ?assertEqual({error, timeout}, soon(Holder, Acquire)),
    test_remote:await_request(There, Proxy),
    test_remote:resume(There, Proxy),
    test_remote:await_helpers(Here, 0),
    ?assertMatch(#{permits := 1, granted := 3, released := 2}, test_remote:info(There)),
    ?assertEqual([ok, {error, not_held}], [test_remote:release(Holder, There, db) || _ <- [1, 2]]).

%% Calls with time limits of about the time of two round trips. Each process counts the permits that it has got.
any_time([There = {_, Name}, Here]) ->
    Workers = [test_nodes:worker(Here) || _ <- lists:seq(1, ?PROCESSES)],
    Sent = [test_nodes:send_order(Worker, fun() -> call_at_any_time(Name, 0, 0) end) || Worker <- Workers],
    Held = lists:sum([test_await:answer(Ref) || Ref <- Sent]),
    test_remote:await_helpers(Here, 0),
    ?assertMatch(#{permits := Held, not_held := 0}, test_remote:info(There)),
    ?assertEqual(Held, test_remote:count(There, db)),
    [
        ?assertEqual({messages, []}, test_nodes:order(Worker, fun() -> process_info(self(), messages) end))
     || Worker <- Workers
    ],
    test_nodes:kill_workers(Here),
    test_remote:nothing_is_left(There).

call_at_any_time(_Name, Acquired, TimedOut) when Acquired >= ?CALLS, TimedOut >= ?CALLS ->
    Acquired;
call_at_any_time(Name, Acquired, TimedOut) ->
    Timeout_ms = 1,
    Limit_ms = lists:nth(rand:uniform(6), [0, 1, 1, 2, 3, 50]),
    ok = application:set_env(canal_lock, remote_grace_ms, Limit_ms - Timeout_ms),
    case canal_lock:acquire_on(Name, db, 1_000_000, 1, Timeout_ms) of
        {acquired, _} -> call_at_any_time(Name, Acquired + 1, TimedOut);
        {error, timeout} -> call_at_any_time(Name, Acquired, TimedOut + 1)
    end.

released_in_the_end([There = {_, Name}, Here]) ->
    Holder = holder(There, Here, 2),
    test_remote:suspend_manager(There),
    ?assertEqual(ok, soon(Holder, fun() -> canal_lock:release_on_async(Name, db) end)),
    ?assertEqual({error, timeout}, test_remote:release(Holder, There, db)),
    ?assertEqual(2, test_remote:count(There, db)),
    %% Both releases exit, and are repeated.
    test_remote:kill_manager(There),
    _ = test_remote:start_manager(There, ?KEPT),
    test_remote:await_count(There, db, 0),
    test_remote:await_helpers(Here, 0),
    ?assertMatch(#{released := 2, released_by_death := 0, not_held := 0}, test_remote:info(There)).

%% As if the process of a release ran only after the connection had been lost and restored.
late_release([There = {_, Name}, Here]) ->
    Holder = holder(There, Here, 1),
    Old = test_nodes:order(Holder, fun() -> canal_lock_proxy:connection(Name) end),
    test_nodes:cut(Here, There),
    test_nodes:connect(Here, There),
    test_remote:await_count(There, db, 0),
    ?assertEqual({acquired, 1}, test_remote:acquire(Holder, There, db)),
    Release = fun() ->
        Helper = spawn(canal_lock_remote, help, [self(), Name, {release, db, 1, Old}]),
        Monitor = monitor(process, Helper),
        Alias = alias(),
        Helper ! {answer_to, Alias},
        Answer = test_await:answer(Alias, Monitor),
        Helper ! taken,
        unalias(Alias),
        {Answer, test_await:reason({Helper, Monitor})}
    end,
    ?assertEqual({{error, not_held}, normal}, test_nodes:order(Holder, Release)),
    ?assertEqual([ok, {error, not_held}], [test_remote:release(Holder, There, db) || _ <- [1, 2]]).

largest_timeout([There = {_, Name}, Here]) ->
    Holder = test_nodes:worker(Here),
    Acquire = fun() -> canal_lock:acquire_on(Name, db, 9, 1, 16#ffffffff) end,
    ?assertEqual({acquired, 1}, test_nodes:order(Holder, Acquire)),
    ?assertEqual(ok, test_remote:release(Holder, There, db)).

time_at_the_manager([There = {_, Name}, Here]) ->
    Timeout_ms = 3_600_000,
    At_manager_ms = 300,
    Holder = test_nodes:worker(Here),
    Local = test_nodes:worker(There),
    {acquired, 1} = test_nodes:order(Local, fun() -> canal_lock:acquire(db, 1, 1) end),
    test_remote:suspend_manager(There),
    Ref = test_nodes:send_order(Holder, fun() -> canal_lock:acquire_on(Name, db, 1, 1, Timeout_ms) end),
    test_remote:await_request(There),
    %% A timeout that expires there: the request still waits, for 1 ms.
    Late = test_nodes:send_order(test_nodes:worker(Here), fun() -> canal_lock:acquire_on(Name, db, 1, 1, 1) end),
    test_remote:await_requests(2, There, canal_lock),
    Resumed_ms = erlang:monotonic_time(millisecond) + At_manager_ms,
    test_await:value(true, fun() -> erlang:monotonic_time(millisecond) >= Resumed_ms end),
    test_remote:resume_manager(There),
    ?assertEqual(full, test_await:answer(Late)),
    ?assertMatch(#{timed_out := 1}, test_remote:info(There)),
    test_nodes:call(There, fun() -> test_await:value(1, fun() -> canal_lock:waiting(db) end) end),
    Proxy = test_remote:proxy(Holder, There),
    Left_ms = test_nodes:call(There, fun() ->
        {state, _, _, _, _, Waits} = sys:get_state(Proxy),
        [{wait, _, _, Timer}] = maps:values(Waits),
        erlang:read_timer(Timer)
    end),
    ?assertMatch(Left when Left > Timeout_ms div 2, Left_ms),
    ?assertMatch(Left when Left =< Timeout_ms - At_manager_ms, Left_ms),
    ok = test_nodes:order(Local, fun() -> canal_lock:release(db) end),
    ?assertEqual({acquired, 1}, test_await:answer(Ref)).
