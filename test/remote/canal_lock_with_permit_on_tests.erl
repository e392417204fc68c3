%% with_permit_on/5,6: a function runs with a permit of another node, which is released however the function ends.
-module(canal_lock_with_permit_on_tests).

-include_lib("eunit/include/eunit.hrl").

-define(KEPT, #{keep_on_crash => true}).

with_permit_on_test_() ->
    test_setup:quietly([
        test_remote:tests(2, ?KEPT, [
            {"the function runs with the permits, which are released afterwards", fun returns/1},
            {"the permit is released when the function throws, exits or raises, and the caller lives on", fun fails/1},
            {"P4: the permit is released when the caller is killed", fun killed/1},
            {"without a permit the function is not called", fun not_called/1},
            {"it waits for a permit as acquire_on/5", fun waits/1},
            {"with the own node it is with_permit", fun own_node/1},
            {"P10: the permit is released while there is no manager", fun without_manager/1},
            {"a permit of a lost connection is not released a second time", fun connection_lost/1},
            {"an exit of the acquire names the call, one of the function does not", fun exits/1}
        ])
    ]).

%% The outcome of a call in the process of a worker.
outcome(Worker, Call) ->
    test_nodes:order(Worker, fun() -> test_worker:caught(Call) end).

returns([There = {_, Name}, Here]) ->
    Worker = test_nodes:worker(Here),
    Count = fun() -> erpc:call(Name, canal_lock, count, [db]) end,
    Nested = fun() -> canal_lock:with_permit_on(Name, db, 3, 1, Count) end,
    lists:foreach(fun({Counted, Call}) ->
        ?assertEqual({ok, Counted}, outcome(Worker, Call)),
        test_remote:await_helpers(Here, 0),
        ?assertEqual(0, test_remote:count(There, db))
    end, [
        {1, fun() -> canal_lock:with_permit_on(Name, db, 3, 1, Count) end},
        {{ok, 2}, fun() -> canal_lock:with_permit_on(Name, db, 3, 1, Nested) end},
        {1, fun() -> canal_lock:with_permit_on(Name, db, 3, 1, infinity, Count) end},
        {2, fun() -> canal_lock:with_permit_on(Name, db, 3, 1, #{permits => 2}, Count) end},
        {3, fun() -> canal_lock:with_permit_on(Name, db, 3, 1, #{permits => 3, timeout_ms => 60_000}, Count) end}
    ]),
    ?assertMatch(#{granted := 9, released := 9}, test_remote:info(There)).

fails([There = {_, Name}, Here]) ->
    Worker = test_nodes:worker(Here),
    lists:foreach(fun({Ended, Fun}) ->
        ?assertMatch({Ended, Ended}, {Ended, reason(outcome(Worker, fun() -> call(Name, Fun) end))}),
        test_remote:await_count(There, db, 0)
    end, [
        {thrown, fun() -> throw(thrown) end}, {exited, fun() -> exit(exited) end}, {raised, fun() -> error(raised) end}
    ]),
    ?assertMatch(#{released := 3, released_by_death := 0}, test_remote:info(There)).

reason({'EXIT', {Reason, _Stack}}) -> Reason;
reason({'EXIT', Reason}) -> Reason;
reason(Thrown) -> Thrown.

call(Name, Fun) ->
    canal_lock:with_permit_on(Name, db, 3, 1, Fun).

%% A worker in the function, which ends with the message `go'.
inside(There = {_, Name}, Here, Then) ->
    Worker = test_nodes:worker(Here),
    Sent = test_nodes:send_order(Worker, fun() -> call(Name, fun() -> receive go -> Then() end end) end),
    test_remote:await_count(There, db, 1),
    {Worker, Sent}.

killed([There, Here]) ->
    {Worker, _} = inside(There, Here, fun() -> ok end),
    ok = test_nodes:kill_worker(Worker),
    test_remote:nothing_is_left(There),
    ?assertMatch(#{released := 0, released_by_death := 1}, test_remote:info(There)).

not_called([{_, Name}, Here]) ->
    Worker = test_nodes:worker(Here),
    Fun = fun() -> self() ! called end,
    Calls = [
        fun() -> canal_lock:with_permit_on(Name, db, 0, 1, Fun) end,
        fun() -> canal_lock:with_permit_on(Name, db, 0, 1, 1, Fun) end,
        fun() -> canal_lock:with_permit_on(Name, db, 3, 1, #{permits => 4}, Fun) end
    ],
    [?assertEqual(full, outcome(Worker, Call)) || Call <- Calls],
    ?assertEqual({messages, []}, outcome(Worker, fun() -> process_info(self(), messages) end)).

waits([There = {_, Name}, Here]) ->
    {Worker, First} = inside(There, Here, fun() -> first end),
    Waiter = test_nodes:worker(Here),
    Second = test_nodes:send_order(Waiter, fun() ->
        canal_lock:with_permit_on(Name, db, 1, 1, infinity, fun() -> second end)
    end),
    test_nodes:call(There, fun() -> test_await:value(1, fun() -> canal_lock:waiting(db) end) end),
    test_nodes:send(Worker, go),
    ?assertEqual([{ok, first}, {ok, second}], [test_await:answer(Ref) || Ref <- [First, Second]]),
    test_remote:nothing_is_left(There).

own_node([There = {_, Name} | _]) ->
    Worker = test_nodes:worker(There),
    Count = fun() -> canal_lock:count(db) end,
    test_remote:suspend_manager(There),
    ?assertEqual({ok, 1}, outcome(Worker, fun() -> call(Name, Count) end)),
    ?assertEqual(0, test_remote:count(There, db)),
    With = fun() -> canal_lock:with_permit_on(Name, db, 3, 1, #{permits => 2}, Count) end,
    ?assertEqual({ok, 2}, outcome(Worker, With)),
    ?assertEqual(0, test_remote:count(There, db)),
    ?assertEqual([], test_remote:proxies(There)),
    test_remote:resume_manager(There).

without_manager([There, Here]) ->
    {Worker, Sent} = inside(There, Here, fun() -> done end),
    test_remote:kill_manager(There),
    test_nodes:send(Worker, go),
    ?assertEqual({ok, done}, test_await:answer(Sent)),
    test_remote:await_count(There, db, 0),
    ?assertMatch(#{released := 1}, test_remote:info(There)).

connection_lost([There = {_, Name}, Here]) ->
    {Worker, Sent} = inside(There, Here, fun() -> canal_lock:acquire_on(Name, db, 3, 1) end),
    test_nodes:cut(Here, There),
    test_remote:await_count(There, db, 0),
    test_nodes:connect(Here, There),
    test_nodes:send(Worker, go),
    ?assertEqual({ok, {acquired, 1}}, test_await:answer(Sent)),
    test_remote:await_helpers(Here, 0),
    ?assertEqual([ok, {error, not_held}], [test_remote:release(Worker, There, db) || _ <- [1, 2]]).

exits([{_, Name}, Here]) ->
    Worker = test_nodes:worker(Here),
    Unknown = 'nobody@127.0.0.1',
    Fun = fun() -> exit(noproc) end,
    ?assertEqual(
        {'EXIT', {{nodedown, Unknown}, {canal_lock, with_permit_on, [Unknown, db, 3, 1, Fun]}}},
        outcome(Worker, fun() -> call(Unknown, Fun) end)
    ),
    ?assertEqual({'EXIT', noproc}, outcome(Worker, fun() -> call(Name, Fun) end)).
