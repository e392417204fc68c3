%% The forms of a call with one limit, and with a capacity that is a function.
-module(canal_lock_capacity_tests).

-include_lib("eunit/include/eunit.hrl").

-define(ROUNDS, 2000).

capacity_test_() ->
    test_setup:tests([
        {"a call with a limit is a call with one bucket", fun limits/0},
        {"a call with a limit takes a long key, and the options of acquire/4", fun limits_and_options/0},
        {"the function is called before the attempt, and once more if the request waits", fun calls/0},
        {"a capacity that changes before the request waits reaches it, and no other", fun changed_before_the_wait/0},
        {"P13: an answer of the function that is late loses no waiter", fun late_evaluation/0},
        {"P13: a process that stores a capacity and then calls resize/3 misses no waiter", fun no_lost_waiter/0},
        {"an error of the function passes to the caller, which holds nothing", fun errors_of_the_function/0},
        {"a wrong answer of the function raises badarg", fun wrong_answers/0},
        {"with_permit/3 with a function releases as many permits as it has acquired", fun with_permit/0}
    ]).

limits() ->
    ?assertEqual([{acquired, 1}, {acquired, 2}, full], [canal_lock:acquire(db, 2) || _ <- [1, 2, 3]]),
    ?assertEqual({acquired, 3}, canal_lock:request(db, 3)),
    ok = canal_lock:release(db),
    ?assertEqual(full, canal_lock:with_permit(db, 2, fun() -> error(called) end)),
    ?assertEqual({ok, 3}, canal_lock:with_permit(db, 3, fun() -> canal_lock:count(db) end)),
    {waiting, Ref} = canal_lock:request(other, 0),
    ok = canal_lock:resize(other, 1),
    receive {canal_lock, Ref, Answer} -> ?assertEqual({acquired, 1}, Answer) end,
    ?assertError(thrown_by_fun, canal_lock:with_permit(db, 3, fun() -> error(thrown_by_fun) end)),
    ?assertEqual(2, canal_lock:count(db)).

limits_and_options() ->
    lists:foreach(fun(Key) ->
        Options = #{permits => 2},
        ?assertEqual({acquired, 2}, canal_lock:acquire(Key, 3, Options)),
        ?assertEqual({acquired, 3}, canal_lock:acquire(Key, 3)),
        ?assertEqual(full, canal_lock:acquire(Key, 3, #{timeout_ms => 1})),
        ?assertEqual(full, canal_lock:acquire(Key, 4, Options)),
        ?assertEqual(full, canal_lock:request(Key, 3, #{max_waiting => 0})),
        ?assertEqual({ok, 5}, canal_lock:with_permit(Key, 5, Options, fun() -> canal_lock:count(Key) end)),
        ?assertEqual({ok, 4}, canal_lock:with_permit(Key, 4, fun() -> canal_lock:count(Key) end)),
        {waiting, Ref} = canal_lock:request(Key, 3, #{}),
        ok = canal_lock:resize(Key, 4),
        receive {canal_lock, Ref, {acquired, 4}} -> ok end
    end, [db, {fun() -> ok end, "a key that is read by a dirty scheduler"}]).

%% A function that answers these capacities, one after the other, and the last one again.
answers(Answers) ->
    Next = counters:new(1, []),
    {Next, fun() ->
        ok = counters:add(Next, 1, 1),
        lists:nth(min(counters:get(Next, 1), length(Answers)), Answers)
    end}.

calls() ->
    {Free, OfFree} = answers([{1, 1}]),
    ?assertEqual({acquired, 1}, canal_lock:acquire(db, #{capacity => OfFree, timeout_ms => 5000})),
    ?assertEqual(1, counters:get(Free, 1)),
    {Never, OfNever} = answers([{1, 1}]),
    ?assertEqual(full, canal_lock:acquire(db, #{capacity => OfNever})),
    ?assertEqual(1, counters:get(Never, 1)),
    {Waits, OfWaits} = answers([{1, 1}]),
    ?assertEqual(full, canal_lock:acquire(db, #{capacity => OfWaits, timeout_ms => 1})),
    ?assertEqual(2, counters:get(Waits, 1)),
    {Requested, OfRequested} = answers([{1, 1}]),
    {waiting, Ref} = canal_lock:request(db, #{capacity => OfRequested}),
    ?assertEqual(2, counters:get(Requested, 1)),
    ok = canal_lock:release(db),
    receive {canal_lock, Ref, {acquired, 1}} -> ok end,
    ?assertMatch(#{refused := 2, timed_out := 1, handed_over := 1}, canal_lock:info()).

changed_before_the_wait() ->
    {waiting, Older} = canal_lock:request(db, 0, 1),
    {Calls, Grows} = answers([{0, 1}, {0, 2}, {0, 2}]),
    {waiting, Ref} = canal_lock:request(db, #{capacity => Grows}),
    ?assertEqual({3, 2}, {counters:get(Calls, 1), canal_lock:waiting(db)}),
    ok = canal_lock:cancel(Ref),
    %% Also with a key that is read by a dirty scheduler.
    [
        begin
            {_, Opens} = answers([{0, 1}, {1, 1}]),
            ?assertEqual({acquired, 1}, canal_lock:acquire(Key, #{capacity => Opens, timeout_ms => infinity}))
        end
     || Key <- [db, fun() -> db end]
    ],
    %% Requests of others keep their capacity.
    ok = canal_lock:release(db),
    ?assertEqual(1, canal_lock:waiting(db)),
    ok = canal_lock:cancel(Older).

%% Each of the first two answers of the function is old when it arrives.
late_evaluation() ->
    Stored = atomics:new(1, []),
    Set = fun(Capacity) ->
        ok = atomics:put(Stored, 1, Capacity),
        canal_lock:resize(db, Capacity, 1)
    end,
    Read = fun() -> {atomics:get(Stored, 1), 1} end,
    Test = self(),
    Calls = counters:new(1, []),
    Slow = fun() ->
        Capacity = Read(),
        ok = counters:add(Calls, 1, 1),
        case counters:get(Calls, 1) of
            Few when Few =< 2 ->
                Test ! {read, self()},
                receive go_on -> Capacity end;
            _ ->
                Capacity
        end
    end,
    ok = Set(1),
    {acquired, 1} = canal_lock:acquire(db, 1),
    Acquire = fun(Capacity) ->
        test_worker:send_order(test_worker:start(), fun() ->
            Answer = canal_lock:acquire(db, #{capacity => Capacity, timeout_ms => infinity}),
            ok = canal_lock:release(db),
            Answer
        end)
    end,
    Other = Acquire(Read),
    test_await:value(1, fun() -> canal_lock:waiting(db) end),
    Late = Acquire(Slow),
    lists:foreach(fun(Capacity) ->
        receive {read, Pid} -> ok = Set(Capacity), Pid ! go_on end
    end, [0, 1]),
    test_await:value(true, fun() -> counters:get(Calls, 1) >= 4 andalso canal_lock:waiting(db) =:= 2 end),
    ok = canal_lock:release(db),
    ?assertEqual([{acquired, 1}, {acquired, 1}], [test_await:answer(Call) || Call <- [Other, Late]]).

%% In each round, a waiter reads a capacity of 0 while another process stores 1.
no_lost_waiter() ->
    Stored = atomics:new(1, []),
    Waiter = test_worker:start(),
    lists:foreach(fun(Round) ->
        ok = atomics:put(Stored, 1, 0),
        Capacity = fun() -> {atomics:get(Stored, 1), 1} end,
        Acquired = test_worker:send_order(Waiter, fun() ->
            Answer = canal_lock:acquire(db, #{capacity => Capacity, timeout_ms => infinity}),
            ok = canal_lock:release(db),
            Answer
        end),
        ok = test_setup:spin(Round rem 500),
        ok = atomics:put(Stored, 1, 1),
        ok = canal_lock:resize(db, 1, 1),
        ?assertEqual({acquired, 1}, test_await:answer(Acquired))
    end, lists:seq(1, test_setup:times(?ROUNDS))),
    ok = test_worker:kill(Waiter).

errors_of_the_function() ->
    Raises = fun() -> error(badarg) end,
    Call = fun(Capacity) -> canal_lock:acquire(db, #{capacity => Capacity, timeout_ms => infinity}) end,
    ?assertError(badarg, Call(Raises)),
    Second = fun(First) ->
        fun() ->
            case put(called, true) of
                undefined -> First;
                true -> throw(second_call)
            end
        end
    end,
    ?assertThrow(second_call, Call(Second({0, 1}))),
    ?assertEqual([0, 0], [canal_lock:waiting(db), canal_lock:count(db)]),
    %% The request is granted before the second call raises.
    erase(called),
    Granted = fun() ->
        case put(called, true) of
            undefined ->
                {0, 1};
            true ->
                ok = canal_lock:resize(db, 9, 1),
                exit(second_call)
        end
    end,
    ?assertExit(second_call, canal_lock:acquire(db, #{capacity => Granted, timeout_ms => infinity, permits => 2})),
    ?assertEqual([0, 0], [canal_lock:waiting(db), canal_lock:count(db)]),
    ?assertEqual([], test_await:messages()).

wrong_answers() ->
    lists:foreach(fun(Wrong) ->
        try
            canal_lock:request(db, #{capacity => fun() -> Wrong end}),
            error(no_error)
        catch
            error:badarg:Stack ->
                #{2 := Text} = canal_lock_errors:format_error(badarg, Stack),
                Expected = io_lib:format(
                    "the function of the option capacity must return {MaxPer, Buckets}, two non-negative integers; it "
                    "returned ~0tp",
                    [Wrong]
                ),
                ?assertEqual(unicode:characters_to_binary(Expected), Text)
        end
    end, [3, {3, -1}, {1.0, 1}, {1, 2, 3}, full, undefined]),
    %% At the second call.
    {_, Worse} = answers([{0, 1}, none]),
    ?assertError(badarg, canal_lock:acquire(db, #{capacity => Worse, timeout_ms => infinity})),
    ?assertEqual(0, canal_lock:waiting(db)).

with_permit() ->
    Options = #{capacity => fun() -> {3, 1} end, permits => 2, timeout_ms => 1},
    ?assertEqual({ok, [{db, 2}]}, canal_lock:with_permit(db, Options, fun canal_lock:held/0)),
    ?assertError(thrown_by_fun, canal_lock:with_permit(db, Options, fun() -> error(thrown_by_fun) end)),
    ?assertEqual(0, canal_lock:count(db)),
    {acquired, 2} = canal_lock:acquire(db, 2, #{permits => 2}),
    ?assertEqual(full, canal_lock:with_permit(db, Options, fun() -> error(called) end)).
