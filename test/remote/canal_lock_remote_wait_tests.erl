%% Processes of other nodes wait, and hold several permits: in one queue with the processes of the table's node.
-module(canal_lock_remote_wait_tests).

-include_lib("eunit/include/eunit.hrl").

-define(NEVER_MS, 3_600_000).

remote_wait_test_() ->
    test_setup:quietly([
        test_remote:tests(2, #{}, [
            {"a remote wait ends by its timeout, which is counted", fun timeout/1},
            {"max_waiting limits remote waits, too", fun max_waiting/1},
            {"P4: a remote waiter that dies, or whose connection is lost, leaves the queue", fun waiter_ends/1},
            {"P4: a grant that a dead remote waiter does not get is passed on", fun granted_then_dead/1},
            {"P10: a remote wait of a closed table raises", fun closed/1},
            {"P10: a remote wait that was granted by a table that closes raises", fun granted_then_closed/1},
            {"P10: a remote wait that ends before its table closes raises", fun ended_before_close/1},
            {"P13: a grant at the time of a remote timeout is the answer, and no timeout", fun granted_late/1},
            {"a remote wait that ends leaves no timer", fun no_timer/1},
            {"a proxy whose holder waits does not exit when it is idle", fun idle/1}
        ])
    ]).

timeout([There, Here]) ->
    _ = hold(There),
    Worker = test_nodes:worker(Here),
    ?assertEqual([full, full], [test_nodes:order(Worker, acquiring(There, Timeout)) || Timeout <- [20, 0]]),
    ?assertMatch(#{timed_out := 1, refused := 2, waiting := 0, permits := 1}, test_remote:info(There)),
    {_, Ref} = waiter(There, Here, 100, 1),
    ?assertEqual(full, test_await:answer(Ref)).

max_waiting([There, Here]) ->
    _ = hold(There),
    {_, _} = waiter(There, Here, infinity, 1),
    Worker = test_nodes:worker(Here),
    Refused = acquiring(There, #{timeout_ms => 1, max_waiting => 1}),
    ?assertEqual(full, test_nodes:order(Worker, Refused)),
    %% It has not waited.
    ?assertMatch(#{timed_out := 0, refused := 1, waiting := 1}, test_remote:info(There)).

waiter_ends([There, Here]) ->
    Holder = hold(There),
    {Dying, _} = waiter(There, Here, infinity, 1),
    {_, Ref} = waiter(There, Here, infinity, 2),
    ok = test_nodes:kill_worker(Dying),
    ok = await_waiting(There, 1),
    ok = test_nodes:cut(There, Here),
    ?assertMatch({exit, {{nodedown, _}, {canal_lock, acquire_on, _}}}, test_await:answer(Ref)),
    ok = await_waiting(There, 0),
    ok = test_nodes:kill_worker(Holder),
    test_remote:nothing_is_left(There).

granted_then_dead([There, Here]) ->
    Holder = hold(There),
    {Dying, _} = waiter(There, Here, infinity, 1),
    Proxy = test_remote:proxy(Dying, There),
    {_, Ref} = waiter(There, Here, infinity, 2),
    ok = test_remote:suspend(There, Proxy),
    ?assertEqual(ok, test_nodes:order(Holder, fun() -> canal_lock:release(db) end)),
    ok = test_nodes:kill_worker(Dying),
    ok = test_remote:resume(There, Proxy),
    ?assertEqual({acquired, 1}, test_await:answer(Ref)).

closed([There, Here]) ->
    _ = hold(There),
    {_, Ref} = waiter(There, Here, infinity, 1),
    ok = test_nodes:call(There, fun canal_lock:stop/0),
    ?assertEqual({error, badarg}, test_await:answer(Ref)),
    %% The same if another manager starts at once: the request is not repeated in its table.
    _ = test_remote:start_manager(There, #{}),
    _ = hold(There),
    {_, Second} = waiter(There, Here, infinity, 1),
    true = test_nodes:call(There, fun() ->
        ok = canal_lock:stop(),
        {ok, Manager} = canal_lock:start_link(1),
        unlink(Manager)
    end),
    ?assertEqual({error, badarg}, test_await:answer(Second)).

%% The proxy gets the grant after the table has closed, where the permit is void.
granted_then_closed([There, Here]) ->
    Holder = hold(There),
    {Worker, Ref} = waiter(There, Here, infinity, 1),
    Proxy = test_remote:proxy(Worker, There),
    ok = test_remote:suspend(There, Proxy),
    ok = test_nodes:order(Holder, fun() -> canal_lock:release(db) end),
    ok = test_nodes:call(There, fun canal_lock:stop/0),
    ok = test_remote:resume(There, Proxy),
    ?assertEqual({error, badarg}, test_await:answer(Ref)).

%% The manager ends the waits first. The table is open until all of them have ended.
ended_before_close([There, Here]) ->
    _ = hold(There),
    {_, Ref} = waiter(There, Here, infinity, 1),
    done = test_nodes:call(There, fun() -> canal_lock_nif:end_waits(element(3, sys:get_state(canal_lock))) end),
    ?assertEqual({error, badarg}, test_await:answer(Ref)).

%% The message of the timer is in the mailbox of the proxy when the permit is released.
granted_late([There, Here]) ->
    Holder = hold(There),
    {Worker, Ref} = waiter(There, Here, ?NEVER_MS, 1),
    Proxy = test_remote:proxy(Worker, There),
    {Request, Timer} = request(There, Proxy),
    ok = test_remote:suspend(There, Proxy),
    test_nodes:call(There, fun() -> Proxy ! {timeout, Timer, Request} end),
    ok = test_remote:await_request(There, Proxy),
    ok = test_nodes:order(Holder, fun() -> canal_lock:release(db) end),
    ok = test_remote:resume(There, Proxy),
    ?assertEqual({acquired, 1}, test_await:answer(Ref)),
    ?assertMatch(#{timed_out := 0, refused := 0, handed_over := 1, permits := 1}, test_remote:info(There)).

no_timer([There, Here]) ->
    Holder = hold(There),
    {Worker, Ref} = waiter(There, Here, ?NEVER_MS, 1),
    {_, Timer} = request(There, test_remote:proxy(Worker, There)),
    Left_ms = fun() -> test_nodes:call(There, fun() -> erlang:read_timer(Timer) end) end,
    ?assert(is_integer(Left_ms())),
    ok = test_nodes:kill_worker(Holder),
    ?assertEqual({acquired, 1}, test_await:answer(Ref)),
    ?assertEqual(false, Left_ms()).

%% The only request of a proxy that waits, and its timer.
request(There, Proxy) ->
    test_nodes:call(There, fun() ->
        {state, _, _, _, _, Waits} = sys:get_state(Proxy),
        [{Request, {wait, _, _, Timer}}] = maps:to_list(Waits),
        {Request, Timer}
    end).

idle([There, Here]) ->
    Holder = hold(There),
    {Worker, Ref} = waiter(There, Here, infinity, 1),
    Proxy = test_remote:proxy(Worker, There),
    test_nodes:call(There, fun() -> Proxy ! timeout, sys:get_state(Proxy), ok end),
    ok = test_nodes:kill_worker(Holder),
    ?assertEqual({acquired, 1}, test_await:answer(Ref)).

%% A local process with the only permit.
hold(There) ->
    Holder = test_nodes:worker(There),
    {acquired, 1} = test_nodes:order(Holder, fun() -> canal_lock:acquire(db, 1, 1) end),
    Holder.

%% A process that waits, as the one with this number, and the reference of its answer.
waiter(There, Here, Timeout, Number) ->
    Worker = test_nodes:worker(Here),
    Ref = test_nodes:send_order(Worker, acquiring(There, Timeout)),
    ok = await_waiting(There, Number),
    {Worker, Ref}.

acquiring({_, Name}, Timeout) ->
    fun() -> test_remote:attempt(fun() -> canal_lock:acquire_on(Name, db, 1, 1, Timeout) end) end.

await_waiting(There, Number) ->
    test_nodes:call(There, fun() -> test_await:value(Number, fun() -> canal_lock:waiting(db) end) end).
