%% P1 and P4 with many processes at once: never more permits out than the capacity, never a refusal while fewer are,
%% and nothing left when they are dead.
-module(canal_lock_storm_tests).

-include_lib("eunit/include/eunit.hrl").

-define(ROUNDS, 200).
-define(PROCESSES, 100).
-define(CAPACITY, 7).

%% Of each of eight processes.
-define(CALLS, 100_000).

storm_test_() ->
    canal_lock_stage:tests([
        {"P1, P4: 200 rounds of 100 processes on 5 keys, killed at random moments", fun killed_at_random/0},
        {"P1: as many as the capacity are all admitted", fun all_admitted/0},
        {"P1: of more, exactly as many as the capacity", fun exactly_the_capacity/0},
        {"P1: what the holders themselves count never exceeds the capacity", fun counted_by_holders/0},
        {"P1: a free permit is never refused to the only one who asks", fun never_under_allocated/0},
        {"P1, P6: callers that disagree on the capacity", fun mixed_capacities/0}
    ]).

keys() ->
    [db, {app, 12345}, <<"0123456789abcdef0123456789abcdef">>, #{rare => "map"}, 1 bsl 70].

%% What the workers and the observer have seen, in counters.
-define(GRANTED, 1).
-define(REFUSED, 2).
-define(OVER_ALLOCATED, 3).
-define(LOOKED, 4).

killed_at_random() ->
    Keys = keys(),
    Seen = counters:new(4, []),
    Observer = canal_lock_worker:start(),
    Observed = canal_lock_worker:send_order(Observer, fun() -> observe(Keys, Seen) end),
    [killed_at_random(Keys, Seen) || _ <- lists:seq(1, canal_lock_stage:times(?ROUNDS))],
    Observer ! stop_observing,
    stopped = canal_lock_await:answer(Observed),
    ?assertEqual(0, counters:get(Seen, ?OVER_ALLOCATED)),
    %% They came as far as to get in each other's way, and the observer has seen it.
    [
        ?assertMatch({_, Times} when Times > 10 * ?ROUNDS, {What, counters:get(Seen, What)})
     || What <- [?GRANTED, ?REFUSED, ?LOOKED]
    ].

killed_at_random(Keys, Seen) ->
    Workers = [spawn(fun() -> take_and_give(Keys, Seen) end) || _ <- lists:seq(1, ?PROCESSES)],
    [
        begin
            spin(rand:uniform(3000)),
            exit(Worker, kill)
        end
     || Worker <- shuffled(Workers)
    ],
    canal_lock_await:down(Workers),
    [canal_lock_await:count(Key, 0) || Key <- Keys],
    %% Not one permit was lost, and not one is there twice.
    [?assertEqual({acquired, N}, canal_lock:acquire(Key, ?CAPACITY, 1)) || Key <- Keys, N <- lists:seq(1, ?CAPACITY)],
    [?assertEqual(full, canal_lock:acquire(Key, ?CAPACITY, 1)) || Key <- Keys],
    [?assertEqual(ok, canal_lock:release(Key)) || Key <- Keys, _ <- lists:seq(1, ?CAPACITY)].

take_and_give(Keys, Seen) ->
    Key = lists:nth(rand:uniform(length(Keys)), Keys),
    case rand:uniform(2) of
        1 ->
            case canal_lock:acquire(Key, ?CAPACITY, 1) of
                {acquired, N} when N =< ?CAPACITY -> counters:add(Seen, ?GRANTED, 1);
                full -> counters:add(Seen, ?REFUSED, 1);
                {acquired, _} -> counters:add(Seen, ?OVER_ALLOCATED, 1)
            end;
        2 ->
            canal_lock:release(Key)
    end,
    %% Some die by themselves.
    rand:uniform(500) > 1 orelse exit(normal),
    take_and_give(Keys, Seen).

observe(Keys, Seen) ->
    [counters:add(Seen, ?OVER_ALLOCATED, 1) || Key <- Keys, canal_lock:count(Key) > ?CAPACITY],
    counters:add(Seen, ?LOOKED, 1),
    receive
        stop_observing -> stopped
    after 0 -> observe(Keys, Seen)
    end.

shuffled(List) ->
    [Element || {_, Element} <- lists:sort([{rand:uniform(), Element} || Element <- List])].

spin(0) -> ok;
spin(Turns) -> spin(Turns - 1).

all_admitted() ->
    [
        ?assertEqual(lists:seq(1, ?PROCESSES), race(?PROCESSES, {Round, Key}, ?PROCESSES))
     || Round <- lists:seq(1, canal_lock_stage:times(20)), Key <- keys()
    ].

exactly_the_capacity() ->
    [
        ?assertEqual(
            lists:seq(1, ?CAPACITY) ++ lists:duplicate(?PROCESSES - ?CAPACITY, full),
            race(?PROCESSES, {Round, Key}, ?CAPACITY)
        )
     || Round <- lists:seq(1, canal_lock_stage:times(20)), Key <- keys()
    ].

%% All acquire one key that nobody has seen before, at one moment: what they are answered, sorted.
race(Processes, Key, Capacity) ->
    Gate = counters:new(1, []),
    Workers = [canal_lock_worker:start() || _ <- lists:seq(1, Processes)],
    Acquire = fun() ->
        wait_at(Gate),
        canal_lock:acquire(Key, Capacity, 1)
    end,
    Answers = [canal_lock_worker:send_order(Worker, Acquire) || Worker <- Workers],
    counters:add(Gate, 1, 1),
    Sorted = lists:sort([canal_lock_await:answer(Answer) || Answer <- Answers]),
    canal_lock_worker:kill(Workers),
    [N || {acquired, N} <- Sorted] ++ [full || full <- Sorted].

wait_at(Gate) ->
    case counters:get(Gate, 1) of
        0 ->
            erlang:yield(),
            wait_at(Gate);
        _ ->
            ok
    end.

%% The second count goes up after the first, and down before it: it can only be smaller.
counted_by_holders() ->
    Held = atomics:new(1, []),
    Most = together(8, fun() -> most_held(Held, canal_lock_stage:times(?CALLS), 0) end),
    ?assert(lists:max(Most) =< 3),
    ?assertEqual(0, atomics:get(Held, 1)),
    ?assertEqual(0, canal_lock:count(db)).

most_held(_, 0, Most) ->
    Most;
most_held(Held, Times, Most) ->
    case canal_lock:acquire(db, 3, 1) of
        {acquired, N} when N =< 3 ->
            Now = atomics:add_get(Held, 1, 1),
            Times rem 16 =:= 0 andalso erlang:yield(),
            ok = atomics:sub(Held, 1, 1),
            ok = canal_lock:release(db, 3, 1),
            most_held(Held, Times - 1, max(Most, Now));
        full ->
            most_held(Held, Times - 1, Most)
    end.

%% As many permits as processes, each of which takes one at a time: whoever asks finds one free.
never_under_allocated() ->
    Refusals = together(8, fun() ->
        Refused = fun() -> canal_lock:acquire(db, 8, 1) =:= full orelse canal_lock:release(db) =/= ok end,
        length([refused || _ <- lists:seq(1, canal_lock_stage:times(?CALLS)), Refused()])
    end),
    ?assertEqual(0, lists:sum(Refusals)).

mixed_capacities() ->
    Exceeded = together(8, fun() ->
        [
            {N, Capacity}
         || _ <- lists:seq(1, canal_lock_stage:times(?CALLS)),
            Buckets <- [rand:uniform(4) - 1],
            Capacity <- [2 * Buckets],
            {acquired, N} <- [canal_lock:acquire(db, 2, Buckets)],
            canal_lock:release(db) =/= ok orelse N > Capacity
        ]
    end),
    ?assertEqual([], lists:append(Exceeded)),
    ?assertEqual(0, canal_lock:count(db)).

together(Processes, Do) ->
    Workers = [canal_lock_worker:start() || _ <- lists:seq(1, Processes)],
    Answers = [canal_lock_worker:send_order(Worker, Do) || Worker <- Workers],
    [canal_lock_await:answer(Answer) || Answer <- Answers].
