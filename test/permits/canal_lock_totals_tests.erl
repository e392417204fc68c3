%% The totals of info/0 count each event once, in whichever process and on whichever thread it happens.
%% (prop_canal_lock_model has the total that each call changes.)
-module(canal_lock_totals_tests).

-include_lib("eunit/include/eunit.hrl").

-define(TOTALS, [
    granted, refused, released, released_by_death, not_held, reclaimed, handed_over, timed_out, transferred
]).

-define(WORKERS, 64).
-define(STEPS, 5_000).
-define(CAPACITY, 3).

totals_test_() ->
    test_setup:tests([
        {"the totals are exact with many processes and sweeps at once", fun at_once/0},
        {"the totals include releases of processes that have died since", fun releases_of_the_dead/0},
        {"each answer `full' counts as refused once, and no other end of a wait does", fun refused/0},
        {"requests that are granted and time out count with the time that they waited", fun wait_us/0},
        {"sums over processes stay at 2^64 - 1", fun saturated/0}
    ]).

zeros() ->
    maps:from_list([{Total, 0} || Total <- [permits | ?TOTALS]]).

%% Each worker counts the answers that it gets.
at_once() ->
    Steps = test_setup:times(?STEPS),
    Workers = [test_worker:start() || _ <- lists:seq(1, ?WORKERS)],
    Orders = [test_worker:send_order(Worker, fun() -> work(Steps, zeros()) end) || Worker <- Workers],
    [ok = canal_lock_manager:sweep() || _ <- lists:seq(1, 20)],
    Counts = lists:foldl(fun add/2, zeros(), [test_await:answer(Order) || Order <- Orders]),
    [?assertNotEqual({Total, 0}, {Total, maps:get(Total, Counts)}) || Total <- [granted, refused, released, not_held]],
    Held = maps:get(granted, Counts) - maps:get(released, Counts),
    ?assertEqual(Counts#{permits := Held}, (totals())#{reclaimed := 0}),
    {Doomed, Others} = lists:split(?WORKERS div 2, Workers),
    First = lists:sum([Permits || Worker <- Doomed, {_, Permits} <- canal_lock:held(Worker)]),
    does(#{released_by_death => First, permits => -First}, fun() -> test_worker:kill(Doomed) end),
    does(#{released_by_death => Held - First, permits => First - Held}, fun() -> test_worker:kill(Others) end),
    ok = canal_lock_manager:sweep(),
    ?assertMatch(#{keys := 0}, canal_lock:info()).

add(Counts, Sums) ->
    maps:map(fun(Total, Sum) -> Sum + maps:get(Total, Counts) end, Sums).

work(0, Counts) ->
    Counts;
work(Left, Counts) ->
    Key = key(rand:uniform(2 * ?WORKERS div ?CAPACITY)),
    Total =
        case rand:uniform(2) of
            1 -> maps:get(canal_lock:acquire(Key, ?CAPACITY, 1), #{full => refused}, granted);
            2 -> maps:get(canal_lock:release(Key), #{ok => released}, not_held)
        end,
    work(Left - 1, maps:update_with(Total, fun(Count) -> Count + 1 end, Counts)).

key(N) when N rem 4 =:= 0 -> {key, N};
key(N) when N rem 4 =:= 1 -> integer_to_list(N);
key(N) when N rem 4 =:= 2 -> #{key => N};
key(N) -> <<"key", N:64>>.

%% Some processes use new slots and some use slots of earlier processes. All of them are dead at the end.
releases_of_the_dead() ->
    does(#{granted => 3000, released => 3000}, fun() ->
        Workers = [test_worker:start() || _ <- lists:seq(1, 1000)],
        [
            test_worker:send_order(Worker, fun() -> [ok = use(Key) || Key <- [db, {own, self()}, "string"]] end)
         || Worker <- Workers
        ],
        ok = test_await:value(3000, fun() -> test_setup:info(released) end),
        test_worker:kill(Workers)
    end).

refused() ->
    Long = {long, binary:copy(<<"x">>, 100_000), fun refused/0},
    true = test_setup:is_long_key(Long),
    _ = [{acquired, 1} = canal_lock:acquire(Key, 1, 1) || Key <- [db, Long]],
    NotCalled = fun() -> error(called) end,
    NoQueue = #{timeout_ms => infinity, max_waiting => 0},
    AtOnce = [
        [fun() -> canal_lock:acquire(Key, 1, 1) end, fun() -> canal_lock:with_permit(Key, 1, 1, NotCalled) end] ++
            [fun() -> canal_lock:request(Key, 1, 1, maps:remove(timeout_ms, NoQueue)) end] ++
            [
                Call
             || Options <- [0, #{}, #{permits => 2}, #{timeout_ms => 0}, NoQueue, NoQueue#{permits => 2}],
                Call <- [
                    fun() -> canal_lock:acquire(Key, 1, 1, Options) end,
                    fun() -> canal_lock:with_permit(Key, 1, 1, Options, NotCalled) end
                ]
            ]
     || Key <- [db, Long]
    ],
    [full = does(#{refused => 1}, Call) || Call <- lists:append(AtOnce)],
    full = does(#{refused => 1}, fun() -> canal_lock:acquire(new, 0, 1) end),
    [
        full = does(#{refused => 1, timed_out => 1}, fun() -> canal_lock:acquire(Key, 1, 1, Options) end)
     || Key <- [db, Long], Options <- [1, #{timeout_ms => 1, permits => 2}]
    ],
    does(#{granted => 1, handed_over => 1, released => 1}, fun() ->
        {waiting, Granted} = canal_lock:request(db, 1, 1),
        {waiting, Cancelled} = canal_lock:request(db, 1, 1),
        ok = canal_lock:release(db),
        receive {canal_lock, Granted, {acquired, 1}} -> ok end,
        ok = canal_lock:cancel(Cancelled)
    end),
    does(#{granted => 1, handed_over => 1, released => 1}, fun() ->
        Waits = fun() -> canal_lock:acquire(db, 1, 1, infinity) end,
        Order = test_worker:send_order(test_worker:start(), Waits),
        ok = test_await:value(1, fun() -> canal_lock:waiting(db) end),
        ok = canal_lock:release(db),
        {acquired, 1} = test_await:answer(Order)
    end).

wait_us() ->
    Total = fun() -> test_setup:info(wait_us) end,
    Begun_us = erlang:monotonic_time(microsecond),
    {acquired, 1} = canal_lock:acquire(db, 1, 1),
    {waiting, Granted} = canal_lock:request(db, 1, 1),
    {waiting, Cancelled} = canal_lock:request(db, 1, 1),
    ?assertEqual(0, Total()),
    full = canal_lock:acquire(db, 1, 1, 10),
    TimedOut_us = Total(),
    ?assert(TimedOut_us >= 10_000),
    ok = canal_lock:cancel(Cancelled),
    ?assertEqual(TimedOut_us, Total()),
    ok = canal_lock:release(db),
    receive {canal_lock, Granted, {acquired, 1}} -> ok end,
    Both_us = Total(),
    ?assert(Both_us - TimedOut_us >= TimedOut_us),
    {Dying, _} = test_worker:start(fun() -> canal_lock:request(db, 1, 1) end),
    ok = test_worker:kill(Dying),
    test_await:value(0, fun() -> canal_lock:waiting(db) end),
    ?assertEqual(Both_us, Total()),
    ?assert(Both_us =< 2 * (erlang:monotonic_time(microsecond) - Begun_us)).

%% Seventeen processes with the largest number of permits of a key have more than 2^64.
saturated() ->
    Most = (1 bsl 60) - 1,
    Sum = (1 bsl 64) - 1,
    Acquire = fun() -> {acquired, Most} = canal_lock:acquire({own, self()}, Most, 1, #{permits => Most}) end,
    Release = fun() -> ok = canal_lock:release({own, self()}, #{permits => Most}) end,
    Workers = [Worker || _ <- lists:seq(1, 17), {Worker, _} <- [test_worker:start(Acquire)]],
    ?assertMatch(#{permits := Sum, granted := Sum, holders := 17}, canal_lock:info()),
    [ok = test_worker:order(Worker, Release) || Worker <- Workers],
    ?assertMatch(#{permits := 0, granted := Sum, released := Sum, holders := 0}, canal_lock:info()).

use(Key) ->
    {acquired, _} = canal_lock:acquire(Key, 1 bsl 30, 1),
    canal_lock:release(Key).

%% The totals change by exactly this, and the counts of the keys agree with the permits. Waits, because the library
%% counts a death a little after the test has seen it.
does(Changes, Do) ->
    Before = totals(),
    Answer = Do(),
    Wanted = maps:merge_with(fun(_, Count, Change) -> Count + Change end, Before, Changes),
    test_await:value(Wanted, fun totals/0),
    ?assertEqual(lists:sum([Permits || {_, Permits} <- canal_lock:keys()]), maps:get(permits, Wanted)),
    Answer.

totals() ->
    Totals = maps:with([permits | ?TOTALS], canal_lock:info()),
    #{granted := Granted, released := Released, released_by_death := ByDeath, permits := Permits} = Totals,
    ?assertEqual(Granted, Released + ByDeath + Permits),
    Totals.
