%% The API of cluster permits on one node without distribution.
-module(canal_lock_cluster_tests).

-include_lib("eunit/include/eunit.hrl").

-define(LONG_MS, 10_000).

%% More than the time after which another limit is declared, and a first one before.
-define(DECLARE_MS, 300).

%% More than the time after which a node without messages is silent.
-define(SILENT_MS, 2600).

all_test_() ->
    {foreach, fun start/0, fun stop/1, [
        {timeout, test_setup:timeout_s(), {Title, Test}}
     || {Title, Test} <- [
            {"CP1: no more permits than the limit, in all forms of acquire", fun acquire/0},
            {"CP2: a call that finds a free permit sends no message", fun local/0},
            {"several permits, all or none", fun several/0},
            {"CP3: the permits of a process that dies are free", fun death/0},
            {"CP4: waiters are granted in their order, and a timeout answers full", fun waiters/0},
            {"a call that may not wait is refused at once, and the next one is granted", fun at_once/0},
            {"with_permit releases however its function ends", fun with_permit/0},
            {"a permit can be given to another process", fun give/0},
            {"CP1: the limit is the one that was passed last", fun limits/0},
            {"limits above 1,048,574 count as that", fun large/0},
            {"CP3: a million keys leave no memory behind", fun many_keys/0},
            {"keys of every kind, apart from local permits", fun keys/0},
            {"usage and status", fun usage/0},
            {"CP3, CP6: when the session ends, holders and waiters are notified, and permits are free", fun lost/0},
            {"CP6: a session ends with its lock, with a message of the quorum locks and without", fun unlocked/0},
            {"CP3: at a stop the allocator is notified", fun stop_is_announced/0},
            {"CP6: a gift of a lost permit is notified", fun gift_of_a_lost_permit/0},
            {"CP6: a call checks the lock of the session after it was granted", fun check/0},
            {"CP1, CP6: all shares end with the session", fun all_shares/0},
            {"CP4: a share for many waiters grants all of them", fun many_waiters/0},
            {"CP5: an allocator ends with its lock, also without a message", fun allocator_lost/0},
            {"CP6: when the agent is killed, its holders are notified and its shares end", fun agent_killed/0},
            {"CP1: in a new table nothing is in use", fun new_table/0},
            {"CP5: without an allocator calls go on with the shares", fun without_allocator/0},
            {"not started, started twice, wrong options", fun starts/0},
            {"the quorum locks can run before", fun locks_run/0}
        ]
    ]}.

start() ->
    {ok, _} = canal_lock:start_link(#{sweep_interval_ms => 1000}),
    start_cluster().

start_cluster() ->
    Path = filename:join(os:getenv("CANAL_LOCK_TEST_DATA", "/tmp"), "cluster_permits_" ++ os:getpid()),
    {ok, Pid} = canal_lock_cluster:start_link(#{members => [node()], state_file => Path}),
    await_session(),
    {Pid, Path}.

await_session() ->
    test_await:value(true, fun() -> canal_lock_cluster:session() =/= none end).

stop({_, Path}) ->
    _ = [canal_lock_cluster:stop() || whereis(canal_lock_cluster) =/= undefined],
    _ = [canal_lock:stop() || whereis(canal_lock) =/= undefined],
    _ = file:delete(Path),
    ok.

%% After this the node keeps a share of this many permits for some seconds. So calls that do not wait are granted.
grow(Key, Limit, Permits) ->
    {acquired, Permits} = canal_lock_cluster:acquire(Key, Limit, #{permits => Permits, timeout_ms => ?LONG_MS}),
    canal_lock_cluster:release(Key, #{permits => Permits}).

acquire() ->
    ok = grow(db, 4, 4),
    ?assertEqual({acquired, 1}, canal_lock_cluster:acquire(db, 4)),
    ?assertEqual({acquired, 2}, canal_lock_cluster:acquire(db, 2, 2)),
    ?assertEqual({acquired, 3}, canal_lock_cluster:acquire(db, 4, #{timeout_ms => ?LONG_MS})),
    ?assertEqual({acquired, 4}, canal_lock_cluster:acquire(db, 1, 4, 0)),
    ?assertEqual(full, canal_lock_cluster:acquire(db, 4)),
    %% The allocator knows that now.
    Refused = fun() -> canal_lock_cluster:acquire(db, 4) end,
    ?assertEqual({full, []}, sent(Refused)),
    ?assertEqual(full, canal_lock_cluster:acquire(db, 4, 1, 50)),
    [?assertEqual(ok, canal_lock_cluster:release(db)) || _ <- [1, 2, 3, 4]],
    ?assertEqual({error, not_held}, canal_lock_cluster:release(db)).

local() ->
    ok = grow(db, 4, 3),
    {acquired, 1} = canal_lock_cluster:acquire(db, 4),
    Calls = fun() ->
        [
            begin
                {acquired, 2} = canal_lock_cluster:acquire(db, 2, 2),
                {acquired, 3} = canal_lock_cluster:acquire(db, 4, 1, 0),
                ok = canal_lock_cluster:release(db),
                ok = canal_lock_cluster:release(db)
            end
         || _ <- lists:seq(1, 1000)
        ]
    end,
    ?assertMatch({_, []}, sent(Calls)).

%% The answer of the function, and the messages that it sends. A process cannot trace itself.
sent(Fun) ->
    Test = self(),
    Tracer = test_worker:start(fun() -> erlang:trace(Test, true, [send]) end),
    Answer = Fun(),
    1 = erlang:trace(self(), false, [send]),
    {Answer, test_worker:order(element(1, Tracer), fun() -> test_await:traced(Test) end)}.

several() ->
    Three = #{permits => 3},
    ?assertEqual({acquired, 3}, canal_lock_cluster:acquire(db, 4, Three#{timeout_ms => ?LONG_MS})),
    ?assertEqual(full, canal_lock_cluster:acquire(db, 4, #{permits => 2, timeout_ms => 20})),
    ?assertEqual({acquired, 4}, canal_lock_cluster:acquire(db, 4, 1, ?LONG_MS)),
    ?assertEqual(ok, canal_lock_cluster:release(db, Three)),
    ?assertEqual({error, not_held}, canal_lock_cluster:release(db, Three)),
    %% More than the limit: at once, although it may wait.
    ?assertEqual(full, canal_lock_cluster:acquire(db, 4, #{permits => 5, timeout_ms => infinity})),
    [full = canal_lock_cluster:acquire(new, 4, #{permits => 5, timeout_ms => Timeout}) || Timeout <- [0, infinity]],
    {ok, #{nodes := Nodes}} = canal_lock_cluster:usage(new),
    ?assertEqual([], [Share || #{share := Share} <- maps:values(Nodes), Share > 0]).

death() ->
    {Holder, {acquired, 2}} = test_worker:start(fun() ->
        canal_lock_cluster:acquire(db, 2, #{permits => 2, timeout_ms => ?LONG_MS})
    end),
    ?assertEqual([{Holder, 2}], canal_lock_cluster:holders(db)),
    ok = test_worker:kill(Holder),
    ?assertMatch({acquired, 2}, canal_lock_cluster:acquire(db, 2, #{permits => 2, timeout_ms => ?LONG_MS})).

waiters() ->
    {acquired, 1} = canal_lock_cluster:acquire(db, 1, 1, ?LONG_MS),
    Workers = [test_worker:start() || _ <- [1, 2, 3]],
    Waiting = [
        begin
            Ref = test_worker:send_order(Worker, fun() -> canal_lock_cluster:acquire(db, 1, 1, ?LONG_MS) end),
            test_await:value(N, fun() -> waiting(db) end),
            {Worker, Ref}
        end
     || {N, Worker} <- lists:enumerate(Workers)
    ],
    ok = canal_lock_cluster:release(db),
    lists:foreach(fun({Worker, Ref}) ->
        ?assertEqual({acquired, 1}, test_await:answer(Ref)),
        ok = test_worker:order(Worker, fun() -> canal_lock_cluster:release(db) end)
    end, Waiting).

waiting(Key) ->
    {_, _, _, Waiting, _, _, _} = canal_lock_cluster_table:use(canal_lock_cluster_table:serial(), Key),
    Waiting.

at_once() ->
    AtOnce = fun() -> canal_lock_cluster:acquire(db, 2, 1, 0) end,
    %% The node has no share yet, and asks for one.
    ?assertEqual(full, AtOnce()),
    test_await:value({acquired, 1}, AtOnce),
    %% Then calls send at most one message for each key at a time.
    {acquired, 2} = canal_lock_cluster:acquire(db, 2, 1, ?LONG_MS),
    ok = sys:suspend(canal_lock_cluster_agent),
    [full = AtOnce() || _ <- lists:seq(1, 1000)],
    {message_queue_len, Length} = process_info(whereis(canal_lock_cluster_agent), message_queue_len),
    ok = sys:resume(canal_lock_cluster_agent),
    ?assert(Length < 10),
    %% The next call sends one again.
    test_await:value({acquired, 3}, fun() -> canal_lock_cluster:acquire(db, 3, 1, 0) end).

with_permit() ->
    ok = grow(db, 3, 3),
    Use = fun() -> canal_lock_cluster:holders(db) end,
    ?assertEqual({ok, [{self(), 1}]}, canal_lock_cluster:with_permit(db, 3, Use)),
    ?assertEqual({ok, [{self(), 1}]}, canal_lock_cluster:with_permit(db, 1, 3, Use)),
    ?assertEqual({ok, [{self(), 2}]}, canal_lock_cluster:with_permit(db, 3, #{permits => 2, timeout_ms => 100}, Use)),
    ?assertEqual({ok, [{self(), 1}]}, canal_lock_cluster:with_permit(db, 3, 1, infinity, Use)),
    ?assertError(meant, canal_lock_cluster:with_permit(db, 3, fun() -> error(meant) end)),
    ?assertThrow(meant, canal_lock_cluster:with_permit(db, 3, fun() -> throw(meant) end)),
    ?assertEqual([], Use()),
    ?assertEqual(full, canal_lock_cluster:with_permit(db, 0, fun() -> error(called) end)).

give() ->
    {acquired, _} = canal_lock_cluster:acquire(db, 2, 1, ?LONG_MS),
    Worker = test_worker:start(),
    ?assertEqual(ok, canal_lock_cluster:give(db, Worker)),
    ?assertEqual({error, not_held}, canal_lock_cluster:give(db, Worker, #{permits => 1})),
    ?assertEqual([{Worker, 1}], canal_lock_cluster:holders(db)).

limits() ->
    {acquired, 1} = canal_lock_cluster:acquire(db, 1, 1, ?LONG_MS),
    ?assertEqual({acquired, 2}, canal_lock_cluster:acquire(db, 3, 1, ?LONG_MS)),
    %% A lower limit: nothing is granted until fewer permits are in use.
    timer:sleep(?DECLARE_MS),
    ?assertEqual(full, canal_lock_cluster:acquire(db, 1)),
    test_await:value(1, fun() -> {ok, #{limit := Limit}} = canal_lock_cluster:usage(db), Limit end),
    ok = canal_lock_cluster:release(db),
    ?assertEqual(full, canal_lock_cluster:acquire(db, 1)),
    ok = canal_lock_cluster:release(db),
    ?assertEqual({acquired, 1}, canal_lock_cluster:acquire(db, 1, 1, ?LONG_MS)),
    %% The limit 0.
    timer:sleep(?DECLARE_MS),
    ?assertEqual(full, canal_lock_cluster:acquire(db, 0)),
    test_await:value(0, fun() -> {ok, #{limit := Limit}} = canal_lock_cluster:usage(db), Limit end),
    ?assertEqual(full, canal_lock_cluster:acquire(new, 0)),
    ?assertEqual({full, []}, sent(fun() -> canal_lock_cluster:acquire(new, 0) end)).

large() ->
    All = #{permits => 1_048_574, timeout_ms => ?LONG_MS},
    ?assertEqual({acquired, 1_048_574}, canal_lock_cluster:acquire(all, 1 bsl 20, All)),
    ?assertEqual(full, canal_lock_cluster:acquire(all, 1 bsl 20)),
    Limit = 1 bsl 70,
    ?assertEqual({acquired, 1}, canal_lock_cluster:acquire(db, Limit, Limit, ?LONG_MS)),
    ?assertMatch({ok, #{limit := 1_048_574}}, canal_lock_cluster:usage(db)),
    ?assertEqual({acquired, 2}, canal_lock_cluster:acquire(db, 1 bsl 80, 1, ?LONG_MS)).

many_keys() ->
    Count = test_setup:in_soak(1_000_000, 20_000),
    Keys = fun() -> maps:get(keys, canal_lock_cluster:status()) end,
    #{memory := Before} = canal_lock:info(),
    [{ok, _} = canal_lock_cluster:with_permit({key, N}, 5, 1, ?LONG_MS, fun() -> ok end) || N <- lists:seq(1, Count)],
    test_await:value(0, Keys, 60_000),
    test_await:value(true, fun() -> maps:get(memory, canal_lock:info()) =< 2 * Before + 1_000_000 end, 60_000),
    test_await:value([], fun() -> canal_lock_view:fold_shares(fun lists:append/2, []) end, 20_000),
    ?assertEqual(0, map_size(element(8, element(3, sys:get_state(canal_lock_cluster_allocator))))),
    Memory = fun() ->
        [
            element(2, process_info(whereis(Name), memory)) < 100_000
         || Name <- [canal_lock_cluster_agent, canal_lock_cluster_allocator]
        ]
    end,
    test_await:value([true, true], Memory).

keys() ->
    lists:foreach(fun({_, Key}) ->
        ?assertEqual({acquired, 1}, canal_lock:acquire(Key, 1)),
        Holders = fun() -> canal_lock_cluster:holders(Key) end,
        ?assertEqual({ok, [{self(), 1}]}, canal_lock_cluster:with_permit(Key, 2, 1, ?LONG_MS, Holders)),
        ?assertEqual({acquired, 2}, canal_lock_cluster:acquire(Key, 2, #{permits => 2, timeout_ms => ?LONG_MS})),
        ?assertEqual(full, canal_lock_cluster:acquire(Key, 2, #{timeout_ms => 10})),
        ?assertEqual(ok, canal_lock_cluster:release(Key, #{permits => 2})),
        ?assertEqual(ok, canal_lock:release(Key))
    end, test_key_terms:all()).

usage() ->
    Nothing = #{limit => none, in_use => 0, waiting => 0, nodes => #{}, silent => []},
    ?assertEqual({ok, Nothing}, canal_lock_cluster:usage(db)),
    {acquired, 2} = canal_lock_cluster:acquire(db, 5, #{permits => 2, timeout_ms => ?LONG_MS}),
    test_await:value(
        {ok, #{
            limit => 5, in_use => 2, waiting => 0, silent => [],
            nodes => #{node() => #{share => 2, in_use => 2, waiting => 0}}
        }},
        fun() -> canal_lock_cluster:usage(db) end
    ),
    Here = node(),
    #{session := Session, allocator := Here, term := Term, waits_for := [], keys := 1, totals := Totals} =
        canal_lock_cluster:status(),
    ?assert(Session > 0 andalso Term > 0),
    ?assertMatch(#{granted := 1, refused := 0, takeovers := 1, longest_wait_us := Us} when Us > 0, Totals),
    full = canal_lock_cluster:acquire(db, 5, #{permits => 4, timeout_ms => 10}),
    %% What was not used for some time goes back.
    ok = canal_lock_cluster:release(db, #{permits => 2}),
    test_await:value(0, fun() -> maps:get(keys, canal_lock_cluster:status()) end, 20_000),
    #{totals := After} = canal_lock_cluster:status(),
    ?assertMatch(#{returned := Same, received := Same, refused := 1} when Same >= 2, After),
    %% A node that uses nothing does not become silent.
    timer:sleep(?SILENT_MS),
    test_await:value([], fun() -> maps:get(waits_for, canal_lock_cluster:status()) end).

lost() ->
    {Holder, {acquired, 3}} = test_worker:start(fun() ->
        [{acquired, 1} = canal_lock_cluster:acquire(Key, 1, 1, ?LONG_MS) || Key <- [1 bsl 2000, a]],
        canal_lock_cluster:acquire(c, 3, #{permits => 3, timeout_ms => ?LONG_MS})
    end),
    Waiter = test_worker:start(),
    Ref = test_worker:send_order(Waiter, fun() -> canal_lock_cluster:acquire(a, 1, 1, infinity) end),
    test_await:value(1, fun() -> waiting(a) end),
    %% The allocator does not answer this one.
    ok = sys:suspend(canal_lock_cluster_allocator),
    New = test_worker:send_order(test_worker:start(), fun() -> canal_lock_cluster:acquire(new, 1, 1, infinity) end),
    Session = canal_lock_cluster:session(),
    %% The lock of the node ends as if the node had been cut off.
    ok = test_quorum_cluster:kill_process(canal_lock_quorum_agent),
    [?assertEqual({error, no_quorum}, test_await:answer(Each)) || Each <- [Ref, New]],
    ok = sys:resume(canal_lock_cluster_allocator),
    Messages = fun() -> [receive {canal_lock_cluster, lost, Key} -> Key end || _ <- [1, 2, 3]] end,
    ?assertEqual([1 bsl 2000, a, c], lists:sort(test_worker:order(Holder, Messages))),
    ?assertNot(canal_lock_quorum:is_held(Session)),
    await_session(),
    ?assertMatch(#{totals := #{lost := 5}}, canal_lock_cluster:status()),
    %% So that the next call declares its capacity.
    ?assertMatch({0, none, 0, 0, _, _, _}, canal_lock_cluster_table:use(canal_lock_cluster_table:serial(), c)),
    %% Lost permits are on record until they are released, and take nothing from the limit.
    ?assertEqual([{Holder, 3}], canal_lock_cluster:holders(c)),
    ?assertMatch({acquired, 3}, canal_lock_cluster:acquire(c, 3, #{permits => 3, timeout_ms => ?LONG_MS})),
    ?assertEqual(full, canal_lock_cluster:acquire(c, 3, 1, 20)),
    %% They are released first.
    ok = canal_lock_cluster:release(c),
    Again = fun() -> canal_lock_cluster:acquire(c, 3, 1, ?LONG_MS) end,
    ?assertEqual({acquired, 3}, test_worker:order(Holder, Again)),
    ?assertEqual(ok, test_worker:order(Holder, fun() -> canal_lock_cluster:release(c, #{permits => 3}) end)),
    ?assertEqual(full, canal_lock_cluster:acquire(c, 3, 1, 20)),
    ?assertEqual(ok, test_worker:order(Holder, fun() -> canal_lock_cluster:release(c) end)),
    ?assertEqual({acquired, 3}, canal_lock_cluster:acquire(c, 3, 1, ?LONG_MS)),
    ?assertEqual([], test_worker:order(Holder, fun() -> test_await:messages() end)).

unlocked() ->
    {acquired, 1} = canal_lock_cluster:acquire(db, 1, 1, ?LONG_MS),
    Session = canal_lock_cluster:session(),
    ok = canal_lock_quorum:unlock(Session),
    receive {canal_lock_cluster, lost, db} -> ok end,
    test_await:value(true, fun() -> not lists:member(canal_lock_cluster:session(), [none, Session]) end),
    ok = canal_lock_cluster:release(db),
    ?assertEqual({acquired, 1}, canal_lock_cluster:acquire(db, 1, 1, ?LONG_MS)),
    canal_lock_cluster_agent ! {canal_lock_quorum, lost, canal_lock_cluster:session()},
    receive {canal_lock_cluster, lost, db} -> ok end.

stop_is_announced() ->
    Fence = canal_lock_quorum:fence(canal_lock_cluster:session()),
    Agent = whereis(canal_lock_cluster_agent),
    1 = erlang:trace(Agent, true, [send]),
    ok = canal_lock_cluster:stop(),
    Sent = [Message || {trace, _, send, Message, _} <- test_await:traced(Agent)],
    ?assert(lists:member({over, node(), Fence}, Sent)).

gift_of_a_lost_permit() ->
    {acquired, 1} = canal_lock_cluster:acquire(db, 1, 1, ?LONG_MS),
    ok = canal_lock_cluster:stop(),
    receive {canal_lock_cluster, lost, db} -> ok end,
    Worker = test_worker:start(),
    ?assertEqual(ok, canal_lock_cluster:give(db, Worker)),
    Lost = fun() -> receive {canal_lock_cluster, lost, db} -> ok end end,
    ?assertEqual(ok, test_worker:order(Worker, Lost)).

%% The agent does not learn that the lock has ended.
check() ->
    ok = grow(db, 4, 4),
    ok = sys:suspend(canal_lock_cluster_agent),
    ok = canal_lock_quorum:unlock(canal_lock_cluster:session()),
    ?assertEqual({error, no_quorum}, canal_lock_cluster:acquire(db, 4)),
    ?assertEqual([], canal_lock_cluster:holders(db)),
    ok = sys:resume(canal_lock_cluster_agent).

%% More keys than one native call reads.
all_shares() ->
    [{acquired, 1} = canal_lock_cluster:acquire({key, N}, 1, 1, ?LONG_MS) || N <- lists:seq(1, 250)],
    Shares = fun() -> canal_lock_view:fold_shares(fun(Keys, To) -> [Share || {_, Share, _} <- Keys] ++ To end, []) end,
    ?assertEqual(lists:duplicate(250, 1), Shares()),
    ok = canal_lock_cluster:stop(),
    ?assertEqual(lists:duplicate(250, 0), Shares()).

%% More than one native call grants, and more than one reads the holders.
many_waiters() ->
    Count = 5000,
    ok = grow(db, Count, 1),
    ok = sys:suspend(canal_lock_cluster_agent),
    Test = self(),
    Waiter = fun() ->
        Test ! canal_lock_cluster:acquire(db, Count, 1, infinity),
        receive stop -> ok end
    end,
    Waiters = [spawn_link(Waiter) || _ <- lists:seq(1, Count)],
    test_await:value(Count - 1, fun() -> waiting(db) end),
    ok = sys:resume(canal_lock_cluster_agent),
    [receive {acquired, _} -> ok end || _ <- Waiters],
    ok = canal_lock_quorum:unlock(canal_lock_cluster:session()),
    All = fun() -> canal_lock_cluster:acquire(db, Count, #{permits => Count, timeout_ms => ?LONG_MS}) end,
    test_await:value({acquired, Count}, All),
    ?assertMatch(#{totals := #{lost := Count}}, canal_lock_cluster:status()),
    [Pid ! stop || Pid <- Waiters],
    ok.

allocator_lost() ->
    Lock = fun() -> element(2, sys:get_state(canal_lock_cluster_allocator)) end,
    IsReady = fun() -> is_list(maps:get(waits_for, canal_lock_cluster:status())) end,
    lists:foreach(fun(Lose) ->
        test_await:value(true, IsReady),
        Monitor = monitor(process, canal_lock_cluster_allocator),
        Lose(Lock()),
        receive {'DOWN', Monitor, process, _, Reason} -> ?assertEqual({shutdown, lost}, Reason) end
    end, [
        fun canal_lock_quorum:unlock/1,
        fun(Held) -> canal_lock_cluster_allocator ! {canal_lock_quorum, lost, Held} end
    ]).

agent_killed() ->
    {acquired, 1} = canal_lock_cluster:acquire(db, 3, 1, ?LONG_MS),
    Session = canal_lock_cluster:session(),
    ok = test_quorum_cluster:kill_process(canal_lock_cluster_agent),
    receive {canal_lock_cluster, lost, db} -> ok end,
    test_await:value(true, fun() -> not lists:member(canal_lock_cluster:session(), [none, Session]) end),
    ?assertEqual({acquired, 1}, canal_lock_cluster:acquire(db, 3, 1, ?LONG_MS)),
    ?assertEqual([], test_await:messages()).

new_table() ->
    {acquired, 3} = canal_lock_cluster:acquire(db, 3, #{permits => 3, timeout_ms => ?LONG_MS}),
    ok = canal_lock:stop(),
    ?assertError(badarg, canal_lock_cluster:acquire(db, 3)),
    {ok, _} = canal_lock:start_link(),
    %% The old session goes on until the agent has looked.
    test_await:value({acquired, 3}, fun() ->
        canal_lock_cluster:acquire(db, 3, #{permits => 3, timeout_ms => 1000})
    end),
    ?assertEqual([{self(), 3}], canal_lock_cluster:holders(db)).

without_allocator() ->
    {acquired, 2} = canal_lock_cluster:acquire(db, 4, #{permits => 2, timeout_ms => ?LONG_MS}),
    ok = sys:suspend(canal_lock_cluster_allocator),
    ok = canal_lock_cluster:release(db),
    ?assertEqual({acquired, 2}, canal_lock_cluster:acquire(db, 4)),
    ?assertEqual(full, canal_lock_cluster:acquire(db, 4)),
    ok = sys:resume(canal_lock_cluster_allocator),
    #{term := Term} = canal_lock_cluster:status(),
    ok = test_quorum_cluster:kill_process(canal_lock_cluster_allocator),
    ?assertEqual({acquired, 4}, canal_lock_cluster:acquire(db, 4, #{permits => 2, timeout_ms => ?LONG_MS})),
    test_await:value(true, fun() -> maps:get(term, canal_lock_cluster:status()) > Term end).

starts() ->
    Options = #{members => [node()]},
    ?assertMatch({error, {already_started, _}}, canal_lock_cluster:start_link(Options)),
    ok = canal_lock_cluster:stop(),
    ?assertEqual(undefined, whereis(canal_lock_quorum)),
    ?assertError(badarg, canal_lock_cluster:acquire(db, 3)),
    ?assertError(badarg, canal_lock_cluster:status()),
    ?assertError(badarg, canal_lock_cluster:usage(db)),
    ?assertError(badarg, canal_lock_cluster:start_link(#{members => []})),
    ?assertEqual({error, not_held}, canal_lock_cluster:release(db)),
    ?assertMatch({error, {state_file_not_writable, _, _}},
        canal_lock_cluster:start_link(Options#{state_file => "/no/such/folder/file"})).

locks_run() ->
    ok = canal_lock_cluster:stop(),
    Options = #{members => [node()]},
    {ok, _} = canal_lock_quorum:start_link(Options),
    {ok, _} = canal_lock_cluster:start_link(Options),
    await_session(),
    ?assertEqual({acquired, 1}, canal_lock_cluster:acquire(db, 3, 1, ?LONG_MS)),
    ok = canal_lock_cluster:stop(),
    receive {canal_lock_cluster, lost, db} -> ok end,
    ?assertEqual(ok, canal_lock_cluster:release(db)),
    ok = canal_lock_quorum:stop(),
    _ = file:delete(canal_lock_quorum_config:default_state_file()),
    ok.
