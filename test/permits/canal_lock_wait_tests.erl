%% Waiting for permits: acquire/4, request/3,4, cancel/1, resize/3 and waiting/1, and how waits end.
%% (prop_canal_lock_model has all calls in sequence: in which order requests are granted, and what ends them.)
-module(canal_lock_wait_tests).

-include_lib("eunit/include/eunit.hrl").

-import(test_await, [messages/0]).

-define(NEVER_MS, 3_600_000).

%% Requests whose ends are more than one step of the manager.
-define(MANY, 1000).

answers_test_() ->
    test_setup:tests([
        {"a free permit is acquired at once, with each kind of the last argument", fun free_permit/0},
        {"a timeout of 0 and max_waiting of 0 never wait", fun never_waits/0},
        {"a call with a long key waits", fun long_key/0},
        {"with_permit/5 waits, and releases all its permits", fun with_permit/0},
        {"messages that arrived before do not end a wait", fun full_mailbox/0},
        {"a wait does not search the messages that arrived before", fun long_mailbox/0},
        {"P13: cancel/1 of anything else answers not_waiting and changes nothing", fun not_waiting/0},
        {"requests are granted and cancelled after the node got a name", fun node_gets_a_name/0},
        {"P2: a call that max_waiting refuses leaves no monitor and no memory", fun refused_by_max_waiting/0},
        {"P6: resize/3 changes a thousand waiters", fun resized_many/0},
        {"P6, P12: the caller of resize/3 makes one native call, or another process makes all", fun resized_at_once/0}
    ]).

closing_test_() ->
    test_setup:quietly(
        test_setup:tests(without_manager, [
            {"P10: waits of a closed table end: a call raises, a request gets `closed'", fun stopped/0},
            {"P10: a kept table takes new waits after a manager died while it closed the table", fun reopened/0},
            {"P10: stop/0 ends a thousand waits", fun stopped_with_many/0},
            {"P10: resize/3 of many waiters raises if the table closes during the call", fun closed_during_resize/0},
            {"the option max_waiting limits all requests together", fun max_waiting_of_the_table/0},
            {"cancel/1 without a table answers not_waiting", fun cancel_without_table/0}
        ])
    ).

%% What other libraries of the BEAM got wrong. (native/permit_table/tests/all/waiting.rs has more such reports.)
others_test_() ->
    test_setup:tests([
        {"P6, P12: all requests that a new capacity admits are granted, also if the caller is killed",
            fun killed_during_resize/0},
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

never_waits() ->
    {acquired, 1} = canal_lock:acquire(db, 1, 1),
    Never = [0, #{}, #{timeout_ms => 0}, #{timeout_ms => infinity, max_waiting => 0}],
    [?assertEqual(full, canal_lock:acquire(db, 1, 1, Argument)) || Argument <- Never],
    ?assertEqual(full, canal_lock:request(db, 1, 1, #{max_waiting => 0})),
    NotCalled = fun() -> error(called) end,
    Once = #{timeout_ms => 1, max_waiting => 0},
    [?assertEqual(full, canal_lock:with_permit(db, 1, 1, Argument, NotCalled)) || Argument <- [0, #{}, Once]],
    ?assertMatch(#{timed_out := 0}, canal_lock:info()).

long_key() ->
    Key = {long, binary:copy(<<"x">>, 100_000), fun long_key/0},
    true = test_setup:is_long_key(Key),
    {acquired, 1} = canal_lock:acquire(Key, 1, 1, 1000),
    ?assertEqual(full, canal_lock:acquire(Key, 1, 1, 1)),
    Worker = waiter(Key, 1, ?NEVER_MS),
    {waiting, Ref} = canal_lock:request(Key, 1, 1),
    ?assertEqual(2, canal_lock:waiting(Key)),
    ?assertEqual(ok, canal_lock:give(Key, pid(Worker))),
    ok = canal_lock:resize(Key, 2, 1),
    ?assertEqual({acquired, 2}, answer(Worker)),
    ?assertEqual(ok, canal_lock:cancel(Ref)),
    ?assertEqual({error, not_held}, canal_lock:release(Key, #{permits => 1})),
    Release = fun() -> canal_lock:release(Key, #{permits => 2}) end,
    ?assertEqual(ok, test_worker:order(pid(Worker), Release)).

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
    %% A scheduler that calls for the first time allocates its record.
    #{memory := After} = canal_lock:info(),
    ?assert(After - Before < 32_000).

resized_many() ->
    Refs = [Ref || _ <- lists:seq(1, ?MANY), {waiting, Ref} <- [canal_lock:request(app, 3, 0)]],
    ok = canal_lock:resize(app, 1, ?MANY - 1),
    Granted = [{canal_lock, Ref, {acquired, N}} || {N, Ref} <- lists:zip(lists:seq(1, ?MANY), Refs), N < ?MANY],
    ?assertEqual(Granted, messages()),
    ?assertEqual(1, canal_lock:waiting(app)),
    ?assertEqual([], canal_lock:audit()).

%% Between two native calls, the caller can be killed. Each request has another capacity, which takes most steps.
resized_at_once() ->
    lists:foreach(fun(Requests) ->
        Capacities = lists:seq(0, Requests - 1),
        Waits = [canal_lock:request({app, Requests}, N, 1, #{permits => N + 1}) || N <- Capacities],
        ?assertEqual(Requests, length([Ref || {waiting, Ref} <- Waits])),
        Caller = test_worker:start(),
        1 = erlang:trace(Caller, true, [call]),
        1 = erlang:trace_pattern({canal_lock_nif, settle, 2}, true, []),
        ?assertEqual(ok, test_worker:order(Caller, fun() -> canal_lock:resize({app, Requests}, 1 bsl 40, 1) end)),
        1 = erlang:trace_pattern({canal_lock_nif, settle, 2}, false, []),
        ?assertEqual({Requests, []}, {Requests, test_await:traced(Caller)}),
        ?assertEqual(Requests, length(messages())),
        ok = test_worker:kill(Caller)
    end, lists:seq(10, 250, 10)).

%%% The end of a table

stopped() ->
    {ok, _} = canal_lock:start_link(3),
    {acquired, 1} = canal_lock:acquire(db, 1, 1),
    {waiting, Ref} = canal_lock:request(db, 1, 1),
    {waiting, Late} = canal_lock:request(db, 1, 1),
    Worker = test_worker:start(),
    Wait = fun() -> canal_lock:acquire(db, 1, 1, infinity) end,
    Order = test_worker:send_order(Worker, fun() -> test_worker:caught(Wait) end),
    ok = test_await:value(3, fun() -> canal_lock:waiting(db) end),
    ok = canal_lock:stop(),
    ?assertMatch({'EXIT', {badarg, [{canal_lock, acquire, [db, 1, 1, infinity], _} | _]}}, answer({Worker, Order})),
    ?assertEqual(closed, received(Ref)),
    ok = test_await:value({messages, [{canal_lock, Late, closed}]}, fun() -> process_info(self(), messages) end),
    ?assertEqual(ok, canal_lock:cancel(Late)),
    ?assertEqual([], messages()),
    ?assertError(badarg, canal_lock:request(db, 1, 1)),
    ok.

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

%% The answer of the process that makes the calls is its exit reason. It starts after the end of the table.
closed_during_resize() ->
    {_, Monitor} = spawn_monitor(canal_lock_wait, exit_after_resize, [db, 1, 1]),
    receive {'DOWN', Monitor, process, _, Answer} -> ?assertEqual({raise, not_started}, Answer) end.

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

%% The caller is killed when the first request is granted. By then it has made one piece of the grants.
killed_during_resize() ->
    Requests = 20_000,
    Waits = [element(2, canal_lock:request(db, 0, 1)) || _ <- lists:seq(1, Requests)],
    Caller = test_worker:start(),
    _ = test_worker:send_order(Caller, fun() -> canal_lock:resize(db, Requests, 1) end),
    receive {canal_lock, First, {acquired, 1}} when First =:= hd(Waits) -> ok end,
    ok = test_worker:kill([Caller]),
    ok = test_await:value(0, fun() -> canal_lock:waiting(db) end),
    ?assertEqual(Requests, canal_lock:count(db)).

poolboy_70() ->
    {acquired, 1} = canal_lock:acquire(db, 1, 1),
    Worker = test_worker:start(),
    Ref = test_worker:send_order(Worker, fun() -> canal_lock:acquire(db, 1, 1, 50) end),
    ok = test_await:value(1, fun() -> canal_lock:waiting(db) end),
    ok = test_worker:suspend(Worker),
    ok = canal_lock:release(db),
    %% Its timeout expires before it can read the message.
    timer:sleep(100),
    ok = test_worker:resume(Worker),
    ?assertEqual({acquired, 1}, answer({Worker, Ref})),
    ?assertEqual({message_queue_len, 0}, process_info(Worker, message_queue_len)),
    ?assertEqual([{Worker, 1}], canal_lock:holders(db)),
    %% It is a grant, not a timeout.
    ?assertMatch(#{timed_out := 0, handed_over := 1}, canal_lock:info()).

nimble_pool_27() ->
    {acquired, 1} = canal_lock:acquire(db, 1, 1),
    full = canal_lock:acquire(db, 1, 1, 1),
    #{memory := Before} = canal_lock:info(),
    Requests = [canal_lock:request(db, 1, 1) || _ <- lists:seq(1, 10_000)],
    #{memory := During} = canal_lock:info(),
    ?assert(During > Before + 10_000 * 64),
    [ok = canal_lock:cancel(Ref) || {waiting, Ref} <- Requests],
    ?assertEqual(0, canal_lock:waiting(db)),
    %% A cancel by the caller is no timeout.
    #{memory := After, timed_out := 1} = canal_lock:info(),
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
