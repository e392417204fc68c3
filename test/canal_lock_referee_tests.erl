%% The referee is itself tested: it answers what the text of the original says, and has the defects its header lists,
%% those that canal_lock_conformance does not show anyway. And it does no more work than the text asks for: "the
%% original" of the benchmark must not be slower than it has to be.
-module(canal_lock_referee_tests).

-include_lib("eunit/include/eunit.hrl").

transcript_test() ->
    with_manager(3, fun() ->
        [
            ?assertEqual(Answer, canal_lock_ets:Call(db, 3, Buckets))
         || {Call, Buckets, Answer} <- canal_lock_seed_cases:transcript()
        ]
    end).

resize_timeline_test() ->
    with_manager(3, fun() ->
        [
            ?assertMatch({_, Answer}, start_holder(app, 3, Buckets))
         || {_Who, Buckets, Answer} <- canal_lock_seed_cases:resize_timeline()
        ],
        ?assertEqual([4, 1], [count(app, Bucket) || Bucket <- [1, 2]])
    end).

death_gives_back_each_permit_test() ->
    with_manager(3, fun() ->
        {_, {acquired, 1}} = start_holder(db, 3, 1),
        {Holder, {acquired, 2}} = start_holder(db, 3, 1),
        {acquired, 3} = canal_lock_worker:order(Holder, fun() -> canal_lock_ets:acquire(db, 3, 1) end),
        full = canal_lock_ets:acquire(db, 3, 1),
        exit(Holder, kill),
        wait_for_count(1, db)
    end).

what_is_released_is_not_given_back_by_death_test() ->
    with_manager(3, fun() ->
        {_, {acquired, 1}} = start_holder(db, 3, 1),
        {Holder, {acquired, 2}} = start_holder(db, 3, 1),
        {acquired, 3} = canal_lock_worker:order(Holder, fun() -> canal_lock_ets:acquire(db, 3, 1) end),
        [ok = canal_lock_worker:order(Holder, fun() -> canal_lock_ets:release(db, 3, 1) end) || _ <- [1, 2]],
        ?assertEqual({monitored_by, []}, process_info(Holder, monitored_by)),
        ?assertEqual(1, count(db, 1))
    end).

d1_anybody_releases_test() ->
    with_manager(2, fun() ->
        {Holder, {acquired, 1}} = start_holder(db, 2, 1),
        {_, {acquired, 2}} = start_holder(db, 2, 1),
        ok = canal_lock_ets:release(db, 2, 1),
        exit(Holder, kill),
        wait_for_count(0, db)
    end).

d7_zero_buckets_are_granted_test() ->
    with_manager(1, fun() ->
        ?assertEqual([{acquired, N} || N <- [1, 2, 3]], [canal_lock_ets:acquire(db, 1, 0) || _ <- [1, 2, 3]])
    end).

d8_second_bucket_before_highest_is_known_test() ->
    with_manager(1, fun() ->
        {acquired, 1} = canal_lock_ets:acquire(db, 1, 1),
        %% The state between the two writes of whoever makes the first bucket.
        true = ets:delete(canal_lock_ets, {db, highest}),
        ?assertError(badarg, canal_lock_ets:acquire(db, 1, 2))
    end).

release_of_what_is_not_out_test() ->
    with_manager(1, fun() ->
        ?assertError(badarg, canal_lock_ets:release(db, 1, 1)),
        {acquired, 1} = canal_lock_ets:acquire(db, 1, 1),
        ok = canal_lock_ets:release(db, 1, 1),
        ?assertEqual({error, out_of_buckets}, canal_lock_ets:release(db, 1, 1)),
        ?assertEqual(0, count(db, 1))
    end).

a_pair_does_what_the_text_asks_for_and_no_more_test() ->
    with_manager(3, fun() ->
        {_, {acquired, 1}} = start_holder(db, 3, 1),
        Caller = [
            {ets, update_counter, 3},
            {send, acquired},
            {ets, lookup_element, 3},
            {ets, update_counter, 3},
            {send, released}
        ],
        Manager = [
            {erlang, monitor, 2},
            {ets, insert, 2},
            {ets, insert, 2},
            {ets, lookup, 2},
            {erlang, demonitor, 1},
            {ets, delete, 2},
            {ets, delete, 2},
            answer
        ],
        Pair = fun() ->
            {acquired, 2} = canal_lock_ets:acquire(db, 3, 1),
            ok = canal_lock_ets:release(db, 3, 1)
        end,
        ?assertEqual({Caller, Manager}, work(canal_lock_worker:start(), whereis(canal_lock_ets), Pair))
    end).

%% What a worker and the manager do while the worker obeys: costly calls, and messages between the two.
work(Worker, Manager, Order) ->
    Functions = [{ets, '_', '_'}, {erlang, monitor, '_'}, {erlang, demonitor, '_'}],
    [erlang:trace_pattern(Function, true, []) || Function <- Functions],
    [1 = erlang:trace(Pid, true, [call, send, arity]) || Pid <- [Worker, Manager]],
    ok = canal_lock_worker:order(Worker, Order),
    [1 = erlang:trace(Pid, false, [call, send, arity]) || Pid <- [Worker, Manager]],
    [erlang:trace_pattern(Function, false, []) || Function <- Functions],
    Delivered = erlang:trace_delivered(all),
    Traced = receive {trace_delivered, all, Delivered} -> traced() end,
    {[Work || {By, Work} <- Traced, By =:= Worker], [Work || {By, Work} <- Traced, By =:= Manager]}.

traced() ->
    receive
        {trace, By, call, Function} -> [{By, Function} | traced()];
        {trace, By, send, {What, By, _}, _To} -> [{By, {send, What}} | traced()];
        {trace, By, send, {What, By, _, _}, _To} -> [{By, {send, What}} | traced()];
        {trace, By, send, Answer, _To} when is_reference(Answer) -> [{By, answer} | traced()];
        {trace, _, send, _ToTheTest, _To} -> traced()
    after 0 -> []
    end.

with_manager(MaxPer, Test) ->
    {ok, _} = canal_lock_ets:start_link(MaxPer),
    try
        Test()
    after
        canal_lock_ets:stop()
    end.

count(Key, Bucket) ->
    ets:lookup_element(canal_lock_ets, {Key, Bucket}, 2).

start_holder(Key, MaxPer, Buckets) ->
    canal_lock_worker:start(fun() -> canal_lock_ets:acquire(Key, MaxPer, Buckets) end).

wait_for_count(Count, Key) ->
    canal_lock_await:value(Count, fun() -> count(Key, 1) end).
