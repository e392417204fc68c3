%% Tests of the referee, test_original: it answers what the text of the original says, and it has defects that its
%% header lists. It does no more work than the text requires, because the benchmark compares with it as "the original".
%% (canal_lock_tests and prop_canal_lock_referee compare its answers.)
-module(canal_lock_referee_tests).

-include_lib("eunit/include/eunit.hrl").

d1_a_process_without_a_permit_releases_test() ->
    with_manager(2, fun() ->
        {Holder, {acquired, 1}} = start_holder(db, 2, 1),
        {_, {acquired, 2}} = start_holder(db, 2, 1),
        ok = test_original:release(db, 2, 1),
        exit(Holder, kill),
        test_await:value(0, fun() -> ets:lookup_element(test_original, {db, 1}, 2) end)
    end).

d7_zero_buckets_are_granted_test() ->
    with_manager(1, fun() ->
        ?assertEqual([{acquired, N} || N <- [1, 2, 3]], [test_original:acquire(db, 1, 0) || _ <- [1, 2, 3]])
    end).

d8_second_bucket_before_highest_is_known_test() ->
    with_manager(1, fun() ->
        {acquired, 1} = test_original:acquire(db, 1, 1),
        %% The state between the two writes of the process that creates the first bucket.
        true = ets:delete(test_original, {db, highest}),
        ?assertError(badarg, test_original:acquire(db, 1, 2))
    end).

a_pair_does_no_more_than_the_text_requires_test() ->
    with_manager(3, fun() ->
        {_, {acquired, 1}} = start_holder(db, 3, 1),
        Caller = [{ets, update_counter, 3}, {send, acquired}, {ets, lookup_element, 3}] ++
            [{ets, update_counter, 3}, {send, released}],
        Manager = [{erlang, monitor, 2}, {ets, insert, 2}, {ets, insert, 2}] ++
            [{ets, lookup, 2}, {erlang, demonitor, 1}, {ets, delete, 2}, {ets, delete, 2}, answer],
        Pair = fun() ->
            {acquired, 2} = test_original:acquire(db, 3, 1),
            ok = test_original:release(db, 3, 1)
        end,
        ?assertEqual({Caller, Manager}, work(test_worker:start(), whereis(test_original), Pair))
    end).

%% The costly calls of a worker and the manager, and the messages between them, while the worker executes an order.
work(Worker, Manager, Order) ->
    Functions = [{ets, '_', '_'}, {erlang, monitor, '_'}, {erlang, demonitor, '_'}],
    [erlang:trace_pattern(Function, true, []) || Function <- Functions],
    [1 = erlang:trace(Pid, true, [call, send, arity]) || Pid <- [Worker, Manager]],
    ok = test_worker:order(Worker, Order),
    [1 = erlang:trace(Pid, false, [call, send, arity]) || Pid <- [Worker, Manager]],
    [erlang:trace_pattern(Function, false, []) || Function <- Functions],
    Traced = lists:append([event(Message) || Message <- test_await:traced(all)]),
    {[Work || {By, Work} <- Traced, By =:= Worker], [Work || {By, Work} <- Traced, By =:= Manager]}.

event({trace, By, call, Function}) -> [{By, Function}];
event({trace, By, send, {Name, By, _}, _To}) -> [{By, {send, Name}}];
event({trace, By, send, {Name, By, _, _}, _To}) -> [{By, {send, Name}}];
event({trace, By, send, Answer, _To}) when is_reference(Answer) -> [{By, answer}];
event({trace, _, send, _ToTheTest, _To}) -> [].

with_manager(MaxPer, Test) ->
    {ok, _} = test_original:start_link(MaxPer),
    try
        Test()
    after
        test_original:stop()
    end.

start_holder(Key, MaxPer, Buckets) ->
    test_worker:start(fun() -> test_original:acquire(Key, MaxPer, Buckets) end).
