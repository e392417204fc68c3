%% Waiting for permits: acquire/4, request/3,4, cancel/1, resized/3 and waiting/1, and how waits end.
-module(canal_lock_wait_tests).

-include_lib("eunit/include/eunit.hrl").

-import(test_await, [messages/0]).

-define(NEVER_MS, 3_600_000).

%% Requests whose ends are more than one step of the manager.
-define(MANY, 1000).

answers_test_() ->
    test_setup:tests([
        {"a free permit is acquired at once, with each kind of the last argument", fun free_permit/0},
        {"a call on a full key waits, and gets the permit that is released", fun waits/0},
        {"a timeout answers full, leaves the queue and counts as timed_out", fun timeout/0},
        {"a timeout of 0 and max_waiting of 0 never wait", fun never_waits/0},
        {"a wait for what only the caller can release ends by its timeout and loses nothing", fun waits_for_itself/0},
        {"two processes that wait for each other get `full' and keep their permits", fun wait_for_each_other/0},
        {"a call with a long key waits", fun long_key/0},
        {"an unsatisfiable request waits for a new capacity", fun unsatisfiable/0},
        {"with_permit/5 waits, and releases all its permits", fun with_permit/0},
        {"messages that arrived before do not end a wait", fun full_mailbox/0},
        {"a wait does not search the messages that arrived before", fun long_mailbox/0}
    ]).

request_test_() ->
    test_setup:tests([
        {"P13: a request that waits gets one message", fun one_message/0},
        {"P13: cancel/1 of a waiting request answers ok, and no message comes", fun cancelled/0},
        {"P13: cancel/1 of a granted request answers the grant and removes its message", fun cancelled_late/0},
        {"P13: cancel/1 of anything else answers not_waiting and changes nothing", fun not_waiting/0},
        {"a process cancels only its own requests", fun not_own/0},
        {"requests are granted and cancelled after the node got a name", fun node_gets_a_name/0},
        {"waiting/1 and info/0 return the number of requests", fun waiting/0},
        {"max_waiting limits the queue of a key for each call", fun max_waiting/0},
        {"P2: a call that max_waiting refuses leaves no monitor and no memory", fun refused_by_max_waiting/0}
    ]).

order_test_() ->
    test_setup:tests([
        {"P11: waiters are granted in the order in which they began to wait", fun in_order/0},
        {"P11: a caller with the same or a smaller capacity does not overtake a waiter", fun no_overtaking/0},
        {"P6: a waiter whose smaller capacity is exceeded is passed over", fun passed_over/0},
        {"P6: resized/3 grants what the new capacity admits, the oldest first", fun resized/0},
        {"P6: resized/3 with a smaller capacity grants nothing and takes nothing away", fun resized_smaller/0},
        {"P6: resized/3 changes a thousand waiters", fun resized_many/0}
    ]).

death_test_() ->
    test_setup:quietly(
        test_setup:tests([
            {"P4: the death of a holder grants the next waiter, while the manager is suspended", fun holder_dies/0},
            {"P4: a waiter that dies leaves the queue", fun waiter_dies/0},
            {"P4: a grant that its process has not received is passed on when it dies", fun granted_waiter_dies/0}
        ])
    ).

closing_test_() ->
    test_setup:quietly(
        test_setup:tests(without_manager, [
            {"P10: waits of a closed table end: a call raises, a request gets `closed'", fun stopped/0},
            {"P10: a manager that is killed closes its table and ends the waits", fun killed/0},
            {"P10: waits of a kept table go on when the manager crashes", fun kept/0},
            {"P10: a kept table takes new waits after a manager died while it closed the table", fun reopened/0},
            {"P10: stop/0 ends a thousand waits", fun stopped_with_many/0},
            {"the option max_waiting limits all requests together", fun max_waiting_of_the_table/0},
            {"cancel/1 without a table answers not_waiting", fun cancel_without_table/0}
        ])
    ).

%% What other libraries of the BEAM got wrong. (native/permit_table/tests/all/waiting.rs has more such reports.)
others_test_() ->
    test_setup:tests([
        {"poolboy#70, hackney#420: a grant at the time of the timeout is the answer", fun poolboy_70/0},
        {"nimble_pool#27: requests on a full key leave nothing", fun nimble_pool_27/0}
    ]).

%%% Answers

free_permit() ->
    Arguments = [0, 1, 5000, infinity, #{}, #{timeout_ms => 0}, #{timeout_ms => 10}, #{timeout_ms => infinity}],
    [?assertEqual({Argument, {acquired, 1}}, {Argument, canal_lock:acquire(Argument, 1, 1, Argument)})
     || Argument <- Arguments],
    ?assertEqual({acquired, 2}, canal_lock:acquire(db, 2, 1, #{timeout_ms => 10, permits => 2})),
    ?assertMatch(#{refused := 0, handed_over := 0}, canal_lock:info()),
    ?assertEqual(full, canal_lock:acquire(db, 2, 1, #{timeout_ms => ?NEVER_MS, max_waiting => 0})),
    ?assertError(badarg, canal_lock:acquire(db, 3, 1, #{timeout_ms => 10, unknown => 1})).

waits() ->
    {acquired, 1} = canal_lock:acquire(db, 1, 1),
    Worker = waiter(db, 1, ?NEVER_MS),
    ?assertMatch(#{waiting := 1, refused := 1, holders := 1}, canal_lock:info()),
    ?assertEqual(ok, canal_lock:release(db)),
    ?assertEqual({acquired, 1}, answer(Worker)),
    ?assertEqual([{pid(Worker), 1}], canal_lock:holders(db)),
    ?assertEqual([{db, 1}], canal_lock:held(pid(Worker))),
    ?assertMatch(#{waiting := 0, handed_over := 1, granted := 2, released := 1, permits := 1}, canal_lock:info()),
    ?assertEqual([], canal_lock:audit()),
    ?assertEqual(ok, test_worker:order(pid(Worker), fun() -> canal_lock:release(db) end)),
    ?assertMatch(#{granted := 2, released := 2, permits := 0, holders := 0}, canal_lock:info()).

timeout() ->
    {acquired, 1} = canal_lock:acquire(db, 1, 1),
    [?assertEqual(full, canal_lock:acquire(db, 1, 1, Timeout)) || Timeout <- [1, #{timeout_ms => 5}]],
    ?assertEqual(0, canal_lock:waiting(db)),
    ?assertMatch(#{waiting := 0, refused := 2, timed_out := 2}, canal_lock:info()),
    ?assertEqual({message_queue_len, 0}, process_info(self(), message_queue_len)).

never_waits() ->
    {acquired, 1} = canal_lock:acquire(db, 1, 1),
    Never = [0, #{}, #{timeout_ms => 0}, #{timeout_ms => infinity, max_waiting => 0}],
    [?assertEqual(full, canal_lock:acquire(db, 1, 1, Argument)) || Argument <- Never],
    ?assertEqual(full, canal_lock:request(db, 1, 1, #{max_waiting => 0})),
    ?assertMatch(#{timed_out := 0}, canal_lock:info()).

waits_for_itself() ->
    {acquired, 2} = canal_lock:acquire(db, 2, 1, #{permits => 2}),
    [?assertEqual(full, canal_lock:acquire(db, 2, 1, #{timeout_ms => 5, permits => K})) || K <- [1, 2, 3]],
    ?assertEqual([{db, 2}], canal_lock:held()),
    ?assertMatch(#{waiting := 0, permits := 2}, canal_lock:info()),
    ?assertEqual(ok, canal_lock:release(db, #{permits => 2})),
    ?assertEqual({acquired, 1}, canal_lock:acquire(db, 2, 1, 5)).

wait_for_each_other() ->
    [{One, {acquired, 1}}, {Two, {acquired, 1}}] =
        [test_worker:start(fun() -> canal_lock:acquire(Key, 1, 1) end) || Key <- [a, b]],
    Orders = [
        {Pid, test_worker:send_order(Pid, fun() -> canal_lock:acquire(Key, 1, 1, 50) end)}
     || {Pid, Key} <- [{One, b}, {Two, a}]
    ],
    ?assertEqual([full, full], [answer(Order) || Order <- Orders]),
    ?assertEqual([[{One, 1}], [{Two, 1}]], [canal_lock:holders(Key) || Key <- [a, b]]),
    ?assertMatch(#{waiting := 0, timed_out := 2}, canal_lock:info()).

long_key() ->
    Key = {long, binary:copy(<<"x">>, 100_000), fun long_key/0},
    true = test_setup:is_long_key(Key),
    {acquired, 1} = canal_lock:acquire(Key, 1, 1, 1000),
    ?assertEqual(full, canal_lock:acquire(Key, 1, 1, 1)),
    Worker = waiter(Key, 1, ?NEVER_MS),
    {waiting, Ref} = canal_lock:request(Key, 1, 1),
    ?assertEqual(2, canal_lock:waiting(Key)),
    ?assertEqual(ok, canal_lock:give(Key, pid(Worker))),
    ok = canal_lock:resized(Key, 2, 1),
    ?assertEqual({acquired, 2}, answer(Worker)),
    ?assertEqual(ok, canal_lock:cancel(Ref)),
    ?assertEqual({error, not_held}, canal_lock:release(Key, #{permits => 1})),
    Release = fun() -> canal_lock:release(Key, #{permits => 2}) end,
    ?assertEqual(ok, test_worker:order(pid(Worker), Release)).

unsatisfiable() ->
    {waiting, None} = canal_lock:request(app, 3, 0),
    {waiting, Many} = canal_lock:request(app, 2, 1, #{permits => 3}),
    %% They block no one.
    ?assertEqual({acquired, 1}, canal_lock:acquire(app, 1, 1, 0)),
    ?assertEqual(ok, canal_lock:release(app)),
    ?assertEqual(0, canal_lock:count(app)),
    ok = canal_lock:resized(app, 3, 1),
    ?assertEqual({acquired, 1}, received(None)),
    ok = canal_lock:resized(app, 4, 1),
    ?assertEqual({acquired, 4}, received(Many)),
    ?assertEqual([{app, 4}], canal_lock:held()).

with_permit() ->
    Count = fun() -> canal_lock:count(db) end,
    ?assertEqual({ok, 1}, canal_lock:with_permit(db, 3, 1, 1000, Count)),
    ?assertEqual({ok, 3}, canal_lock:with_permit(db, 3, 1, #{permits => 3}, Count)),
    ?assertEqual(full, canal_lock:with_permit(db, 3, 1, #{permits => 4}, Count)),
    ?assertError(reason, canal_lock:with_permit(db, 3, 1, #{permits => 2}, fun() -> error(reason) end)),
    ?assertEqual(0, canal_lock:count(db)),
    {acquired, 1} = canal_lock:acquire(db, 1, 1),
    Worker = test_worker:start(),
    Ref = test_worker:send_order(Worker, fun() -> canal_lock:with_permit(db, 1, 1, infinity, Count) end),
    ok = test_await:value(1, fun() -> canal_lock:waiting(db) end),
    ok = canal_lock:release(db),
    ?assertEqual({ok, 1}, answer({Worker, Ref})),
    ?assertEqual(0, canal_lock:count(db)).

full_mailbox() ->
    [self() ! {canal_lock, make_ref(), {acquired, N}} || N <- lists:seq(1, 1000)],
    {acquired, 1} = canal_lock:acquire(db, 1, 1),
    ?assertEqual(full, canal_lock:acquire(db, 1, 1, 1)),
    ?assertEqual({message_queue_len, 1000}, process_info(self(), message_queue_len)),
    _ = [receive {canal_lock, _, {acquired, N}} -> ok end || N <- lists:seq(1, 1000)],
    ok.

%% The VM counts a reduction for each message that it searches. The first wait also counts those that it fetches.
long_mailbox() ->
    Messages = 10_000,
    [self() ! N || N <- lists:seq(1, Messages)],
    {acquired, 1} = canal_lock:acquire(db, 1, 1),
    full = canal_lock:acquire(db, 1, 1, 1),
    Before = reductions(),
    full = canal_lock:acquire(db, 1, 1, 1),
    Searched = reductions() - Before,
    ?assertMatch({_, true}, {Searched, Searched < Messages div 2}),
    %% What a search costs.
    self() ! last,
    receive last -> ok end,
    ?assert(reductions() - Before - Searched > Messages div 2),
    ?assertEqual(lists:seq(1, Messages), messages()).

reductions() ->
    {reductions, Reductions} = process_info(self(), reductions),
    Reductions.

%%% Requests

one_message() ->
    {acquired, 1} = canal_lock:acquire(db, 1, 1),
    {waiting, Ref} = canal_lock:request(db, 1, 1),
    ok = canal_lock:release(db),
    ?assertEqual([{canal_lock, Ref, {acquired, 1}}], messages()),
    ?assertEqual({error, not_waiting}, canal_lock:cancel(Ref)),
    ?assertEqual(ok, canal_lock:release(db)),
    ?assertEqual({acquired, 1}, canal_lock:request(db, 1, 1)),
    ?assertEqual([], messages()).

cancelled() ->
    {acquired, 1} = canal_lock:acquire(db, 1, 1),
    Refs = [Ref || _ <- lists:seq(1, 10), {waiting, Ref} <- [canal_lock:request(db, 1, 1)]],
    [?assertEqual(ok, canal_lock:cancel(Ref)) || Ref <- test_setup:shuffled(Refs)],
    [?assertEqual({error, not_waiting}, canal_lock:cancel(Ref)) || Ref <- Refs],
    ok = canal_lock:release(db),
    ?assertEqual([], messages()),
    ?assertMatch(#{waiting := 0, handed_over := 0, timed_out := 0, permits := 0}, canal_lock:info()).

cancelled_late() ->
    {acquired, 1} = canal_lock:acquire(db, 1, 1),
    {waiting, Ref} = canal_lock:request(db, 1, 1),
    ok = canal_lock:release(db),
    ?assertEqual({acquired, 1}, canal_lock:cancel(Ref)),
    ?assertEqual([], messages()),
    ?assertEqual(ok, canal_lock:release(db)).

not_waiting() ->
    {acquired, 1} = canal_lock:acquire(db, 1, 1),
    {waiting, Ref} = canal_lock:request(db, 1, 1),
    %% The same identifier on another node.
    Local = term_to_binary(Ref),
    Id = binary_part(Local, byte_size(Local), -12),
    Remote = binary_to_term(<<131, $Z, 3:16, 119, 7, "other@a", 1:32, Id/binary>>),
    Others = [make_ref(), monitor(process, self()), Remote],
    [?assertEqual({error, not_waiting}, canal_lock:cancel(Other)) || Other <- Others],
    ?assertEqual(1, canal_lock:waiting(db)),
    ?assertEqual(ok, canal_lock:cancel(Ref)).

not_own() ->
    {acquired, 1} = canal_lock:acquire(db, 1, 1),
    {waiting, Ref} = canal_lock:request(db, 1, 1),
    {_, Answer} = test_worker:start(fun() -> canal_lock:cancel(Ref) end),
    ?assertEqual({error, not_waiting}, Answer),
    ?assertEqual(ok, canal_lock:cancel(Ref)).

%% A reference of the unnamed node, in a binary, is then one of another node.
node_gets_a_name() ->
    passed = test_setup:in_a_vm(test_epmd:arguments(), fun() ->
        {ok, _} = canal_lock:start_link(1),
        {acquired, 1} = canal_lock:acquire(db, 1, 1),
        [Early, Granted, Late, Waiting] = [element(2, {waiting, _} = canal_lock:request(db, 1, 1)) || _ <- "1234"],
        ok = canal_lock:release(db),
        ?assertEqual([{canal_lock, Early, {acquired, 1}}], messages()),
        Stored = term_to_binary(Waiting),
        {ok, _} = net_kernel:start(['canal_lock_named@127.0.0.1', longnames]),
        ?assertEqual({error, not_waiting}, canal_lock:cancel(binary_to_term(Stored))),
        ok = canal_lock:release(db),
        ?assertEqual([{canal_lock, Granted, {acquired, 1}}], messages()),
        ok = canal_lock:release(db),
        ?assertEqual({acquired, 1}, canal_lock:cancel(Late)),
        ?assertEqual({1, ok, 0}, {canal_lock:waiting(db), canal_lock:cancel(Waiting), canal_lock:waiting(db)}),
        ?assertEqual([], messages()),
        passed
    end).

waiting() ->
    {acquired, 1} = canal_lock:acquire(db, 1, 1),
    Counts = [{canal_lock:request(db, Max, 1, #{permits => 2}), canal_lock:waiting(db)} || Max <- [1, 2, 2]],
    ?assertMatch([{{waiting, _}, 1}, {{waiting, _}, 2}, {{waiting, _}, 3}], Counts),
    ?assertEqual(0, canal_lock:waiting(other)),
    ?assertMatch(#{waiting := 3}, canal_lock:info()),
    [ok = canal_lock:cancel(Ref) || {{waiting, Ref}, _} <- Counts],
    ?assertEqual(0, canal_lock:waiting(db)).

max_waiting() ->
    {acquired, 1} = canal_lock:acquire(db, 1, 1),
    Request = fun(Max) -> canal_lock:request(db, 1, 1, #{max_waiting => Max}) end,
    {waiting, _} = Request(1),
    ?assertEqual(full, Request(1)),
    ?assertEqual(full, canal_lock:acquire(db, 1, 1, #{timeout_ms => infinity, max_waiting => 1})),
    {waiting, _} = Request(2),
    {waiting, _} = Request(infinity),
    ?assertEqual(3, canal_lock:waiting(db)).

refused_by_max_waiting() ->
    {acquired, 1} = canal_lock:acquire(db, 1, 1),
    {waiting, _} = canal_lock:request(db, 1, 1),
    #{memory := Before} = canal_lock:info(),
    Refused = fun() ->
        full = canal_lock:acquire(db, 1, 1, #{timeout_ms => 1000, max_waiting => 1}),
        process_info(self(), monitored_by)
    end,
    Test = self(),
    %% The test monitors each worker, and nothing else does.
    Answers = [Answer || _ <- lists:seq(1, 2000), {_, Answer} <- [test_worker:start(Refused)]],
    ?assertEqual([{monitored_by, [Test]}], lists:usort(Answers)),
    ?assertMatch(#{memory := Before}, canal_lock:info()).

%%% Order

in_order() ->
    {acquired, 1} = canal_lock:acquire(db, 1, 1),
    Waiters = [waiter(db, 1, infinity) || _ <- lists:seq(1, 20)],
    ok = canal_lock:release(db),
    lists:foreach(fun(Waiter) ->
        ?assertEqual({acquired, 1}, answer(Waiter)),
        ?assertEqual([{pid(Waiter), 1}], canal_lock:holders(db)),
        ok = test_worker:order(pid(Waiter), fun() -> canal_lock:release(db) end)
    end, Waiters).

no_overtaking() ->
    {acquired, 1} = canal_lock:acquire(db, 1, 1),
    Waiter = waiter(db, 1, infinity),
    ok = canal_lock:release(db),
    ?assertEqual([full, full], [canal_lock:acquire(db, Max, 1) || Max <- [1, 0]]),
    ?assertEqual({acquired, 1}, answer(Waiter)),
    ?assertEqual({acquired, 2}, canal_lock:acquire(db, 2, 1)).

passed_over() ->
    [{acquired, N} = canal_lock:acquire(db, 4, 1) || N <- [1, 2, 3, 4]],
    {waiting, Small} = canal_lock:request(db, 2, 1),
    {waiting, Large} = canal_lock:request(db, 4, 1),
    ok = canal_lock:release(db),
    ?assertEqual([{canal_lock, Large, {acquired, 4}}], messages()),
    [ok = canal_lock:release(db) || _ <- [1, 2]],
    ?assertEqual([], messages()),
    ok = canal_lock:release(db),
    ?assertEqual([{canal_lock, Small, {acquired, 2}}], messages()).

resized() ->
    {acquired, 1} = canal_lock:acquire(app, 1, 1),
    Refs = [Ref || Buckets <- [1, 0, 1, 1], {waiting, Ref} <- [canal_lock:request(app, 1, Buckets)]],
    ?assertEqual(ok, canal_lock:resized(app, 1, 1)),
    ?assertEqual([], messages()),
    ?assertEqual(ok, canal_lock:resized(app, 1, 3)),
    [First, Second | Others] = Refs,
    ?assertEqual([{canal_lock, First, {acquired, 2}}, {canal_lock, Second, {acquired, 3}}], messages()),
    ?assertEqual(full, canal_lock:acquire(app, 1, 3)),
    ?assertEqual(ok, canal_lock:resized(other, 1, 3)),
    [ok = canal_lock:cancel(Ref) || Ref <- Others].

resized_smaller() ->
    [{acquired, N} = canal_lock:acquire(app, 4, 1) || N <- [1, 2, 3, 4]],
    {waiting, Ref} = canal_lock:request(app, 4, 1, #{permits => 2}),
    %% It collects one permit.
    ok = canal_lock:release(app),
    ?assertEqual({4, [{app, 4}], []}, {canal_lock:count(app), canal_lock:held(), canal_lock:audit()}),
    ok = canal_lock:resized(app, 1, 1),
    ?assertEqual({3, [{app, 3}], []}, {canal_lock:count(app), canal_lock:held(), canal_lock:audit()}),
    ok = canal_lock:resized(app, 5, 1),
    ?assertEqual([{canal_lock, Ref, {acquired, 5}}], messages()).

resized_many() ->
    Refs = [Ref || _ <- lists:seq(1, ?MANY), {waiting, Ref} <- [canal_lock:request(app, 3, 0)]],
    ok = canal_lock:resized(app, 1, ?MANY - 1),
    Granted = [{canal_lock, Ref, {acquired, N}} || {N, Ref} <- lists:zip(lists:seq(1, ?MANY), Refs), N < ?MANY],
    ?assertEqual(Granted, messages()),
    ?assertEqual(1, canal_lock:waiting(app)),
    ?assertEqual([], canal_lock:audit()).

%%% Deaths

holder_dies() ->
    Holder = test_worker:holder(#{db => 1}),
    Waiter = waiter(db, 1, infinity),
    ok = sys:suspend(canal_lock),
    ok = test_worker:kill(Holder),
    ?assertEqual({acquired, 1}, answer(Waiter)),
    ok = sys:resume(canal_lock),
    ?assertMatch(#{released_by_death := 1, handed_over := 1, granted := 2}, canal_lock:info()).

waiter_dies() ->
    {acquired, 1} = canal_lock:acquire(db, 1, 1),
    First = waiter(db, 1, infinity),
    Second = waiter(db, 1, infinity),
    ok = test_worker:kill(pid(First)),
    ok = test_await:value(1, fun() -> canal_lock:waiting(db) end),
    ok = canal_lock:release(db),
    ?assertEqual({acquired, 1}, answer(Second)),
    %% The one that waits for several permits, and has collected some.
    {acquired, 2} = canal_lock:acquire(db, 2, 1),
    Collector = waiter(db, 2, #{timeout_ms => infinity, permits => 2}),
    ok = canal_lock:release(db),
    ?assertEqual(2, canal_lock:count(db)),
    ok = test_worker:kill(pid(Collector)),
    ok = test_await:count(db, 1),
    ?assertEqual([], canal_lock:audit()).

granted_waiter_dies() ->
    {acquired, 1} = canal_lock:acquire(db, 1, 1),
    Worker = test_worker:start(),
    {waiting, _} = test_worker:order(Worker, fun() -> canal_lock:request(db, 1, 1) end),
    Next = waiter(db, 1, infinity),
    ok = canal_lock:release(db),
    ?assertEqual([{Worker, 1}], canal_lock:holders(db)),
    ok = test_worker:kill(Worker),
    ?assertEqual({acquired, 1}, answer(Next)).

%%% The end of a table

stopped() ->
    {ok, _} = canal_lock:start_link(3),
    ok = with_waits(fun() -> ok = canal_lock:stop() end).

killed() ->
    {Parent, {ok, _}} = test_worker:start(fun() -> canal_lock:start_link(3) end),
    ok = with_waits(fun() -> exit(Parent, kill) end),
    ok = test_await:value(undefined, fun() -> whereis(canal_lock) end).

with_waits(End) ->
    {acquired, 1} = canal_lock:acquire(db, 1, 1),
    {waiting, Ref} = canal_lock:request(db, 1, 1),
    {waiting, Late} = canal_lock:request(db, 1, 1),
    Worker = test_worker:start(),
    Wait = fun() -> canal_lock:acquire(db, 1, 1, infinity) end,
    Order = test_worker:send_order(Worker, fun() -> test_worker:caught(Wait) end),
    ok = test_await:value(3, fun() -> canal_lock:waiting(db) end),
    End(),
    ?assertMatch({'EXIT', {badarg, [{canal_lock, acquire, [db, 1, 1, infinity], _} | _]}}, answer({Worker, Order})),
    ?assertEqual(closed, received(Ref)),
    ok = test_await:value({messages, [{canal_lock, Late, closed}]}, fun() -> process_info(self(), messages) end),
    ?assertEqual(ok, canal_lock:cancel(Late)),
    ?assertEqual([], messages()),
    ?assertError(badarg, canal_lock:request(db, 1, 1)),
    ok.

kept() ->
    process_flag(trap_exit, true),
    Supervisor = test_setup:supervise(1, [canal_lock:child_spec(3)]),
    {acquired, 1} = canal_lock:acquire(db, 1, 1),
    {waiting, Ref} = canal_lock:request(db, 1, 1),
    Waiter = waiter(db, 1, infinity),
    Manager = whereis(canal_lock),
    exit(Manager, kill),
    ok = test_await:value(true, fun() -> is_pid(whereis(canal_lock)) andalso whereis(canal_lock) =/= Manager end),
    ?assertEqual(2, canal_lock:waiting(db)),
    ?assertEqual([], messages()),
    ok = canal_lock:release(db),
    ?assertEqual({acquired, 1}, received(Ref)),
    ok = canal_lock:release(db),
    ?assertEqual({acquired, 1}, answer(Waiter)),
    ok = test_setup:stop_supervisor(Supervisor).

reopened() ->
    Test = self(),
    {Opener, Monitor} = spawn_monitor(fun() ->
        Handle = canal_lock_nif:open(1024, 3, true, 10),
        {waiting, _} = canal_lock:request(db, 0, 1),
        done = canal_lock_nif:end_waits(Handle),
        Test ! {self(), test_worker:caught(fun() -> canal_lock:request(db, 0, 1) end)}
    end),
    receive {Opener, Refused} -> ?assertMatch({'EXIT', {badarg, _}}, Refused) end,
    receive {'DOWN', Monitor, process, _, _} -> ok end,
    {ok, _} = canal_lock:start_link(3, #{keep_on_crash => true}),
    {waiting, Ref} = canal_lock:request(db, 0, 1),
    ?assertEqual(ok, canal_lock:cancel(Ref)),
    ok = canal_lock:stop().

stopped_with_many() ->
    {ok, _} = canal_lock:start_link(3),
    Keys = [{app, N rem 10} || N <- lists:seq(1, ?MANY)],
    Refs = [Ref || Key <- Keys, {waiting, Ref} <- [canal_lock:request(Key, 0, 1)]],
    ok = canal_lock:stop(),
    ?assertEqual(lists:sort([{canal_lock, Ref, closed} || Ref <- Refs]), lists:sort(messages())).

max_waiting_of_the_table() ->
    {ok, _} = canal_lock:start_link(3, #{max_waiting => 2}),
    {waiting, Ref} = canal_lock:request(a, 0, 1),
    {waiting, _} = canal_lock:request(b, 0, 1),
    ?assertEqual(full, canal_lock:request(c, 0, 1)),
    ?assertEqual(full, canal_lock:acquire(a, 0, 1, infinity)),
    ?assertMatch(#{waiting := 2}, canal_lock:info()),
    ok = canal_lock:cancel(Ref),
    {waiting, _} = canal_lock:request(c, 0, 1),
    ok = canal_lock:stop(),
    {ok, _} = canal_lock:start_link(3, #{max_waiting => 1 bsl 100}),
    {waiting, _} = canal_lock:request(c, 0, 1),
    ok = canal_lock:stop(),
    [{canal_lock, _, closed} = Message || Message <- messages()],
    ok.

cancel_without_table() ->
    ?assertEqual({error, not_waiting}, canal_lock:cancel(make_ref())).

%%% Reports about other libraries

poolboy_70() ->
    {acquired, 1} = canal_lock:acquire(db, 1, 1),
    Worker = test_worker:start(),
    Ref = test_worker:send_order(Worker, fun() -> canal_lock:acquire(db, 1, 1, 50) end),
    ok = test_await:value(1, fun() -> canal_lock:waiting(db) end),
    true = erlang:suspend_process(Worker),
    ok = canal_lock:release(db),
    %% Its timeout expires before it can read the message.
    timer:sleep(100),
    true = erlang:resume_process(Worker),
    ?assertEqual({acquired, 1}, answer({Worker, Ref})),
    ?assertEqual({message_queue_len, 0}, process_info(Worker, message_queue_len)),
    ?assertEqual([{Worker, 1}], canal_lock:holders(db)).

nimble_pool_27() ->
    {acquired, 1} = canal_lock:acquire(db, 1, 1),
    full = canal_lock:acquire(db, 1, 1, 1),
    #{memory := Before} = canal_lock:info(),
    Requests = [canal_lock:request(db, 1, 1) || _ <- lists:seq(1, 10_000)],
    #{memory := During} = canal_lock:info(),
    ?assert(During > Before + 10_000 * 64),
    [ok = canal_lock:cancel(Ref) || {waiting, Ref} <- Requests],
    ?assertEqual(0, canal_lock:waiting(db)),
    #{memory := After} = canal_lock:info(),
    %% Lists keep up to 2 KB when they are empty.
    ?assert(After =< Before + 3 * 2048).

%%% Waiters

%% A worker that waits in acquire/4, and the reference of its answer.
waiter(Key, Capacity, Timeout) ->
    Before = canal_lock:waiting(Key),
    Worker = test_worker:start(),
    Ref = test_worker:send_order(Worker, fun() -> canal_lock:acquire(Key, Capacity, 1, Timeout) end),
    ok = test_await:value(Before + 1, fun() -> canal_lock:waiting(Key) end),
    {Worker, Ref}.

pid({Worker, _}) -> Worker.

answer({_, Ref}) -> test_await:answer(Ref).

received(Ref) ->
    receive
        {canal_lock, Ref, Answer} -> Answer
    after 5000 -> timeout
    end.
