%% P4, P10: if a process, a connection or a node ends during a remote call, the permit is either held by a holder that
%% has received the answer, or released. The head of canal_lock_proxy says how.
-module(canal_lock_proxy_tests).

-include_lib("eunit/include/eunit.hrl").

-import(test_worker, [caught/1]).

-define(KEPT, #{keep_on_crash => true}).

manager_test_() ->
    tests(3, [
        {"P10: a crash of the manager changes nothing; the next manager uses the same proxies", fun manager_crashes/1}
    ]).

proxy_test_() ->
    tests(2, [
        {"P4: the holder dies while its request waits at the manager", fun dies_at_manager/1},
        {"P4: the holder dies while its request waits at the proxy", fun dies_at_proxy/1},
        {"P4: the connection is lost while a request waits at the manager", fun cut_at_manager/1},
        {"P4: the connection is lost while a request waits at the proxy", fun cut_at_proxy/1},
        {"P4: the connection is lost and restored before the proxy runs", fun cut_and_connected/1},
        {"P4: a proxy serves one connection; the next connection gets another proxy", fun another_connection/1},
        {"P4: the node of the holder is killed while its request waits", fun node_killed/1},
        {"P4: a killed proxy releases the permits, and its holder gets another proxy", fun proxy_killed/1},
        {"P4: a proxy is killed while its holder waits", fun proxy_killed_in_call/1},
        {"a proxy that exits while it is called is replaced", fun proxy_exits_in_call/1},
        {"a release is not repeated at another proxy", fun proxy_exits_in_release/1},
        {"P10: the manager crashes while a request waits for it", fun manager_killed_in_call/1},
        {"R1: a second proxy of a holder exits and names the first one", fun second_proxy/1},
        {"P10: a proxy of a closed table serves no request and exits", fun closed_table/1},
        {"P10: an idle proxy of a closed table exits", fun closed_and_idle/1},
        {"P10: a proxy exits when the table changes during its acquire", fun closed_in_call/1}
    ]).

%% Tests on one node.
single_node_test_() ->
    [
        test_setup:tests([
            {"R1: a process that represents another holder no longer represents the first", fun represents_another/0},
            {"R2: an inspection while a proxy dies shows its holder or nothing", fun inspected_while_dying/0}
        ]),
        test_setup:tests(without_manager, [
            {"a proxy that has exited before it is called is replaced, once", fun exited_before_the_call/0},
            {"P4: nothing is acquired for a holder that died before the manager answered", fun dead_when_answered/0}
        ])
    ].

tests(Nodes, Tests) ->
    test_setup:quietly(test_remote:tests(Nodes, ?KEPT, Tests)).

%% A holder of this many permits, and its proxy.
holder_and_proxy(There, Here, Permits) ->
    Holder = test_nodes:worker(Here),
    [{acquired, N} = test_remote:acquire(Holder, There, db) || N <- lists:seq(1, Permits)],
    {Holder, test_remote:proxy(Holder, There)}.

%% The holder has exactly one permit, and no other permit is held.
holds_one(Holder, There) ->
    ?assertEqual([ok, {error, not_held}], [test_remote:release(Holder, There, db) || _ <- [1, 2]]),
    test_remote:nothing_is_left(There).

new_manager(There) ->
    test_remote:kill_manager(There),
    test_remote:start_manager(There, ?KEPT).

manager_crashes([There, Here, Elsewhere]) ->
    Holder = test_nodes:worker(Here),
    Other = test_nodes:worker(Elsewhere),
    [{acquired, N} = test_remote:acquire(Holder, There, db) || N <- [1, 2]],
    {acquired, 3} = test_remote:acquire(Other, There, db),
    Proxies = lists:sort(test_remote:proxies(There)),
    test_remote:kill_manager(There),
    ?assertEqual(3, test_remote:count(There, db)),
    _ = test_remote:start_manager(There, ?KEPT),
    ?assertEqual(full, test_remote:acquire(Holder, There, db)),
    ?assertEqual(ok, test_remote:release(Holder, There, db)),
    ?assertEqual({acquired, 3}, test_remote:acquire(Other, There, db)),
    ?assertEqual(Proxies, lists:sort(test_remote:proxies(There))),
    ok = test_nodes:kill_worker(Holder),
    test_remote:await_count(There, db, 2),
    test_nodes:cut(Elsewhere, There),
    test_remote:nothing_is_left(There),
    ?assertMatch(#{granted := 4, released := 1, released_by_death := 3}, test_remote:info(There)).

%% A holder with a request that waits for the manager, and the reference of its outcome.
waits_at_manager(There, Here) ->
    Holder = test_nodes:worker(Here),
    test_remote:suspend_manager(There),
    Outcome = test_remote:send_acquire(Holder, There, db),
    test_remote:await_request(There),
    {Holder, Outcome}.

%% A holder of one permit with a request that waits for its proxy.
waits_at_proxy(There, Here) ->
    {Holder, Proxy} = holder_and_proxy(There, Here, 1),
    test_remote:suspend(There, Proxy),
    Outcome = test_remote:send_acquire(Holder, There, db),
    test_remote:await_request(There, Proxy),
    {Holder, Outcome, Proxy}.

dies_at_manager([There, Here]) ->
    {Holder, _} = waits_at_manager(There, Here),
    ok = test_nodes:kill_worker(Holder),
    test_remote:resume_manager(There),
    test_remote:nothing_is_left(There),
    ?assertMatch(#{granted := 0}, test_remote:info(There)).

dies_at_proxy([There, Here]) ->
    {Holder, _, Proxy} = waits_at_proxy(There, Here),
    ok = test_nodes:kill_worker(Holder),
    test_remote:resume(There, Proxy),
    test_remote:nothing_is_left(There).

cut_at_manager([There, Here]) ->
    {Holder, Outcome} = waits_at_manager(There, Here),
    test_nodes:cut(Here, There),
    exits_with({nodedown, test_nodes:name(There)}, There, Holder, Outcome),
    test_nodes:connect(Here, There),
    test_remote:resume_manager(There),
    test_remote:nothing_is_left(There),
    ?assertMatch(#{granted := 0}, test_remote:info(There)),
    ?assertEqual({acquired, 1}, test_remote:acquire(Holder, There, db)).

%% The call exits once and leaves no message in the mailbox of the holder.
exits_with(Reason, There, Holder, Outcome) ->
    Name = test_nodes:name(There),
    ?assertEqual({exit, {Reason, {canal_lock, acquire_on, [Name, db, 3, 1]}}}, test_await:answer(Outcome)),
    Messages = fun() -> process_info(self(), messages) end,
    ?assertEqual({messages, []}, test_nodes:order(Holder, Messages)).

cut_at_proxy([There, Here]) ->
    {Holder, Outcome, Proxy} = waits_at_proxy(There, Here),
    test_nodes:cut(There, Here),
    exits_with({nodedown, test_nodes:name(There)}, There, Holder, Outcome),
    test_remote:resume(There, Proxy),
    test_remote:nothing_is_left(There).

cut_and_connected([There, Here]) ->
    {Holder, Outcome, Proxy} = waits_at_proxy(There, Here),
    test_nodes:cut(Here, There),
    exits_with({nodedown, test_nodes:name(There)}, There, Holder, Outcome),
    test_nodes:connect(Here, There),
    %% The request uses the new connection. The old proxy has not handled any message yet.
    Again = test_remote:send_acquire(Holder, There, db),
    test_remote:await_requests(3, There, Proxy),
    test_remote:resume(There, Proxy),
    ?assertEqual({acquired, 1}, test_await:answer(Again)),
    ?assertNotEqual(Proxy, test_remote:proxy(Holder, There)),
    holds_one(Holder, There).

%% The state of the proxy is that before the 'DOWN' message of its connection.
another_connection([There, Here]) ->
    {Holder, Proxy} = holder_and_proxy(There, Here, 2),
    test_nodes:call(There, fun() ->
        _ = sys:replace_state(Proxy, fun(State) -> setelement(3, State, self()) end)
    end),
    ?assertEqual({acquired, 1}, test_remote:acquire(Holder, There, db)),
    ?assertNotEqual(Proxy, test_remote:proxy(Holder, There)),
    ?assertEqual([ok, {error, not_held}], [test_remote:release(Holder, There, db) || _ <- [1, 2]]),
    ?assertMatch(#{granted := 3, released_by_death := 2}, test_remote:info(There)),
    test_remote:nothing_is_left(There).

node_killed([There, _]) ->
    lists:foreach(fun({Wait, Resume}) ->
        Here = test_nodes:start(),
        test_nodes:connect(Here, There),
        Waits = Wait(Here),
        ok = test_nodes:kill(Here),
        Resume(Waits),
        test_remote:nothing_is_left(There)
    end, [
        {fun(Here) -> waits_at_manager(There, Here) end, fun(_) -> test_remote:resume_manager(There) end},
        {
            fun(Here) -> waits_at_proxy(There, Here) end,
            fun({_, _, Proxy}) -> test_remote:resume(There, Proxy) end
        }
    ]).

proxy_killed([There, Here]) ->
    {Holder, Proxy} = holder_and_proxy(There, Here, 2),
    kill(There, Proxy),
    test_remote:await_count(There, db, 0),
    ?assertEqual({error, not_held}, test_remote:release(Holder, There, db)),
    ?assertEqual({acquired, 1}, test_remote:acquire(Holder, There, db)),
    ?assertEqual(ok, test_remote:release(Holder, There, db)),
    test_remote:nothing_is_left(There).

kill(There, Proxy) ->
    test_nodes:call(There, fun() -> test_worker:kill(Proxy) end).

proxy_killed_in_call([There, Here]) ->
    {Holder, Outcome, Proxy} = waits_at_proxy(There, Here),
    kill(There, Proxy),
    exits_with(killed, There, Holder, Outcome),
    test_remote:nothing_is_left(There),
    ?assertEqual({acquired, 1}, test_remote:acquire(Holder, There, db)).

%% As if a new proxy had the pid of a dead one whose death is not handled yet.
represents_another() ->
    [First, Second] = Holders = [test_setup:remote_pid(Number) || Number <- [1, 2]],
    {Proxy, Shown} = test_worker:start(fun() ->
        [ok = canal_lock_nif:represent(Holder) || Holder <- Holders],
        {acquired, 1} = canal_lock:acquire(db, 1, 1),
        {[canal_lock_nif:proxy_of(Holder) || Holder <- Holders], canal_lock:holders(db)}
    end),
    ?assertEqual({[none, Proxy], [{Second, 1}]}, Shown),
    ?assertEqual({[], [{db, 1}]}, {canal_lock:held(First), canal_lock:held(Second)}),
    ok = test_worker:kill(Proxy),
    test_await:count(db, 0),
    ?assertEqual([none, none], [canal_lock_nif:proxy_of(Holder) || Holder <- Holders]).

%% All permits are in one piece of the answer. The proxy dies after some of them have been read.
inspected_while_dying() ->
    Holder = test_setup:remote_pid(1),
    lists:foreach(fun(Round) ->
        Proxy = test_worker:start(),
        {acquired, 1} = test_worker:order(Proxy, fun() ->
            ok = canal_lock_nif:represent(Holder),
            hd([canal_lock:acquire({key, N}, 1, 1) || N <- lists:seq(1, 1_000)])
        end),
        Reader = test_worker:start(),
        Sent = test_worker:send_order(Reader, fun() ->
            lists:usort([Pid || _ <- lists:seq(1, 20), {Pid, _, _} <- test_setup:permits()])
        end),
        spin_us(37 * Round rem 3_000),
        ok = test_worker:kill(Proxy),
        ?assertEqual([], test_await:answer(Sent) -- [Holder]),
        ok = test_worker:kill(Reader)
    end, lists:seq(1, 100)).

spin_us(Duration_us) ->
    End = erlang:monotonic_time(microsecond) + Duration_us,
    test_await:value(true, fun() -> erlang:monotonic_time(microsecond) >= End end).

%% A process in place of the manager returns these proxies. The first ones are dead.
exited_before_the_call() ->
    Dead = spawn(fun() -> ok end),
    ok = test_await:down([Dead]),
    Serve = fun(Answers) ->
        fun() ->
            true = register(canal_lock, self()),
            [receive {'$gen_call', From, _} -> gen_server:reply(From, Answer) end || Answer <- Answers],
            unregister(canal_lock)
        end
    end,
    Test = self(),
    Proxy = spawn_link(fun() ->
        receive {'$gen_call', From, {Test, {acquire, db, 3, 1, _}}} -> gen_server:reply(From, {acquired, 1}) end
    end),
    Call = fun(Answers) ->
        Manager = spawn(Serve(Answers)),
        ok = test_await:value(Manager, fun() -> whereis(canal_lock) end),
        Answer = caught(fun() -> canal_lock_remote:acquire(node(), db, 3, 1, canal_lock_wait:options(0)) end),
        ok = test_worker:kill(Manager),
        Answer
    end,
    ?assertEqual({acquired, 1}, Call([Dead, Proxy])),
    ?assertMatch({'EXIT', noproc}, Call([Dead, Dead])).

%% The test is in place of the manager and of the proxy.
dead_when_answered() ->
    true = register(canal_lock, self()),
    Holder = test_worker:start(),
    _ = test_worker:send_order(Holder, fun() ->
        canal_lock_remote:acquire(node(), db, 3, 1, canal_lock_wait:options(0))
    end),
    receive
        {'$gen_call', From = {Helper, _}, {proxy, _, Holder}} ->
            Monitor = monitor(process, Helper),
            ok = test_worker:kill(Holder),
            gen_server:reply(From, self()),
            ?assertEqual(normal, receive {'DOWN', Monitor, process, Helper, Reason} -> Reason; Request -> Request end)
    end,
    true = unregister(canal_lock).

%% A holder without permits, whose suspended proxy has its idle timeout in its mailbox before any request.
exiting_proxy(There, Here) ->
    Holder = test_nodes:worker(Here),
    {acquired, 1} = test_remote:acquire(Holder, There, db),
    ok = test_remote:release(Holder, There, db),
    Proxy = test_remote:proxy(Holder, There),
    test_remote:suspend(There, Proxy),
    test_nodes:call(There, fun() -> Proxy ! timeout end),
    {Holder, Proxy}.

proxy_exits_in_release([There = {_, Name}, Here]) ->
    lists:foreach(fun(End) ->
        {Holder, Proxy} = exiting_proxy(There, Here),
        Outcome = test_nodes:send_order(Holder, fun() -> canal_lock:release_on(Name, db) end),
        test_remote:await_requests(2, There, Proxy),
        End(There, Proxy),
        ?assertEqual({error, not_held}, test_await:answer(Outcome)),
        ?assertEqual([], test_remote:proxies(There))
    end, [fun test_remote:resume/2, fun kill/2]).

proxy_exits_in_call([There, Here]) ->
    {Holder, Proxy} = exiting_proxy(There, Here),
    Outcome = test_remote:send_acquire(Holder, There, db),
    test_remote:await_requests(2, There, Proxy),
    test_remote:resume(There, Proxy),
    ?assertEqual({acquired, 1}, test_await:answer(Outcome)),
    ?assertNotEqual(Proxy, test_remote:proxy(Holder, There)),
    ?assertEqual(ok, test_remote:release(Holder, There, db)),
    test_remote:nothing_is_left(There).

manager_killed_in_call([There, Here]) ->
    {Holder, Outcome} = waits_at_manager(There, Here),
    _ = new_manager(There),
    exits_with(killed, There, Holder, Outcome),
    test_remote:nothing_is_left(There),
    ?assertMatch(#{granted := 0}, test_remote:info(There)).

%% As if a manager had crashed while it started the first proxy.
second_proxy([There, Here]) ->
    {_, Pid} = Holder = test_nodes:worker(Here),
    [First, Second] = test_nodes:call(There, fun() ->
        [gen_server:start(canal_lock_proxy, Pid, []) || _ <- [1, 2]]
    end),
    {ok, Proxy} = First,
    ?assertEqual({error, {shutdown, Proxy}}, Second),
    ?assertEqual({acquired, 1}, test_remote:acquire(Holder, There, db)),
    ?assertEqual([{Pid, Proxy}], test_remote:proxies(There)),
    ok = test_nodes:kill_worker(Holder),
    test_remote:nothing_is_left(There).

another_table(There) ->
    test_nodes:call(There, fun canal_lock:stop/0),
    test_remote:start_manager(There, ?KEPT).

closed_table([There, Here]) ->
    {Holder, Proxy} = holder_and_proxy(There, Here, 2),
    _ = another_table(There),
    ?assertEqual({error, not_held}, test_remote:release(Holder, There, db)),
    ?assertMatch(#{not_held := 1}, test_remote:info(There)),
    ?assertEqual({acquired, 1}, test_remote:acquire(Holder, There, db)),
    %% A direct call, as by a holder that has received the pid from the previous manager.
    Ask = fun() -> test_remote:attempt(fun() -> gen_server:call(Proxy, {self(), {acquire, db, 3, 1}}) end) end,
    ?assertMatch({exit, {normal, _}}, test_nodes:order(Holder, Ask)),
    ?assertEqual(1, test_remote:count(There, db)),
    ok = test_nodes:kill_worker(Holder),
    test_remote:nothing_is_left(There).

closed_and_idle([There, Here]) ->
    {_, Proxy} = holder_and_proxy(There, Here, 1),
    Ask = fun() ->
        Monitor = monitor(process, Proxy),
        Proxy ! timeout,
        %% The proxy answers if it has not exited.
        Answer = test_remote:attempt(fun() -> sys:get_state(Proxy) end),
        demonitor(Monitor, [flush]),
        element(1, Answer)
    end,
    ?assertEqual(state, test_nodes:call(There, Ask)),
    test_nodes:call(There, fun canal_lock:stop/0),
    ?assertEqual(exit, test_nodes:call(There, Ask)),
    _ = test_remote:start_manager(There, ?KEPT).

%% The proxy has checked its table, and the table changes before it acquires.
closed_in_call([There, Here]) ->
    {Holder, Proxy} = holder_and_proxy(There, Here, 1),
    {Suspender, Outcome} = suspended_in_acquire(There, Holder, Proxy, 10_000_000),
    _ = another_table(There),
    test_nodes:order(Suspender, fun() -> erlang:resume_process(Proxy) end),
    ?assertEqual({acquired, 1}, test_await:answer(Outcome)),
    %% A proxy of the new table has acquired the permit.
    ?assertMatch(Next when is_pid(Next), test_remote:proxy(Holder, There)),
    ?assertNotEqual(Proxy, test_remote:proxy(Holder, There)),
    ?assertMatch(#{permits := 1}, test_remote:info(There)),
    ok = test_nodes:kill_worker(Holder),
    test_remote:nothing_is_left(There).

%% Suspends a proxy with one permit while it reads a long key for another one. If the proxy is too fast, tries again
%% with a longer key.
suspended_in_acquire(There, Holder, Proxy, Length) ->
    Suspender = test_nodes:worker(There),
    test_nodes:order(Suspender, fun() ->
        1 = erlang:trace(Proxy, true, [call]),
        1 = erlang:trace_pattern({canal_lock_nif, intern, 1}, true, [])
    end),
    Name = test_nodes:name(There),
    Key = fun() -> binary:copy(<<"x">>, Length) end,
    Outcome = test_nodes:send_order(Holder, fun() -> canal_lock:acquire_on(Name, Key(), 3, 1) end),
    Permits = test_nodes:order(Suspender, fun() ->
        receive {trace, Proxy, call, _} -> true = erlang:suspend_process(Proxy, [asynchronous]) end,
        %% The suspension takes effect after the native call.
        test_await:value({status, suspended}, fun() -> process_info(Proxy, status) end),
        1 = erlang:trace(Proxy, false, [call]),
        maps:get(permits, canal_lock:info())
    end),
    case Permits of
        1 ->
            {Suspender, Outcome};
        2 ->
            ok = test_nodes:kill_worker(Suspender),
            {acquired, 1} = test_await:answer(Outcome),
            ok = test_nodes:order(Holder, fun() -> canal_lock:release_on(Name, Key()) end),
            suspended_in_acquire(There, Holder, Proxy, 2 * Length)
    end.
