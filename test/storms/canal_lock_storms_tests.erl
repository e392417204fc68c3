%% P1 and P4 with many processes at once: never more permits out than the capacity, never a refusal while fewer are,
%% and nothing left when they are dead.
-module(canal_lock_storms_tests).

-include_lib("eunit/include/eunit.hrl").

%% Few processes, so that their numbers return soon.
-define(FEW_PROCESSES, ["+P", "4096"]).

-define(ROUNDS, 30).
-define(PROCESSES, 100).
-define(CAPACITY, 7).

%% Who dies, one after the other, while they say what they hold.
-define(DEATHS, 500).
-define(CLAIMANTS, 30).

%% Of each of eight processes.
-define(CALLS, 100_000).

storm_test_() ->
    test_setup:on_schedulers(?FEW_PROCESSES, [
        {Title, fun() -> test_storm:play(Capacities, Storm) end}
     || {Title, Capacities, Storm} <- [
            {"P1, P4: 30 rounds of 100 processes on 5 keys, killed at random moments", every_key(?CAPACITY),
                fun killed_at_random/0},
            {"P1, P4: what those who live know of never exceeds the capacity, while others are killed",
                every_key(2), fun claimed/0},
            {"P1: as many as the capacity are all admitted", #{}, fun all_admitted/0},
            {"P1: of more, exactly as many as the capacity", #{}, fun exactly_the_capacity/0},
            {"P1: what the holders themselves count never exceeds the capacity", #{db => 3}, fun counted_by_holders/0},
            {"P1: a free permit is never refused to the only one who asks", #{db => 8}, fun never_under_allocated/0},
            {"P1, P6: callers that disagree on the capacity", #{db => 6}, fun mixed_capacities/0}
        ]
    ]).

every_key(Capacity) ->
    maps:from_list([{Key, Capacity} || Key <- keys()]).

keys() ->
    [db, {app, 12345}, <<"0123456789abcdef0123456789abcdef">>, #{rare => "map"}, 1 bsl 70].

%% What the workers have seen, in counters.
-define(GRANTED, 1).
-define(REFUSED, 2).
-define(OVER_ALLOCATED, 3).

killed_at_random() ->
    Keys = keys(),
    Seen = counters:new(3, []),
    Rounds = test_setup:times(?ROUNDS),
    [killed_at_random(Keys, Seen) || _ <- lists:seq(1, Rounds)],
    ?assertEqual(0, counters:get(Seen, ?OVER_ALLOCATED)),
    %% They came as far as to get in each other's way.
    [
        ?assertMatch({_, Times} when Times > 10 * Rounds, {What, counters:get(Seen, What)})
     || What <- [?GRANTED, ?REFUSED]
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
    test_await:down(Workers),
    [test_await:count(Key, 0) || Key <- Keys],
    %% Not one permit was lost, and not one is there twice.
    [?assertEqual({acquired, N}, canal_lock:acquire(Key, ?CAPACITY, 1)) || Key <- Keys, N <- lists:seq(1, ?CAPACITY)],
    [?assertEqual(full, canal_lock:acquire(Key, ?CAPACITY, 1)) || Key <- Keys],
    test_storm:records_agree([{self(), every_key(?CAPACITY)}]),
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

%% Each says what it has after it has got it, and takes that back before it gives it back.
claimed() ->
    Claims = ets:new(claims, [public, {write_concurrency, true}]),
    Most = atomics:new(1, []),
    Observer = spawn_link(fun() -> observe_claims(Claims, Most) end),
    Claimants = [spawn_monitor(fun() -> claim(Claims) end) || _ <- lists:seq(1, ?CLAIMANTS)],
    Last = lists:foldl(
        fun(_, [First | Others]) ->
            kill_claimant(First),
            Others ++ [spawn_monitor(fun() -> claim(Claims) end)]
        end,
        Claimants,
        lists:seq(1, test_setup:times(?DEATHS))
    ),
    %% They were seen to hold as much as there is, and no more.
    test_await:value(true, fun() -> atomics:get(Most, 1) >= 2 end),
    [kill_claimant(Claimant) || Claimant <- Last],
    ?assertEqual(2, atomics:get(Most, 1)),
    unlink(Observer),
    test_worker:kill(Observer).

kill_claimant({Claimant, _} = Monitored) ->
    spin(rand:uniform(3000)),
    exit(Claimant, kill),
    killed = test_await:reason(Monitored).

claim(Claims) ->
    Key = lists:nth(rand:uniform(length(keys())), keys()),
    case canal_lock:acquire(Key, 2, 1) of
        {acquired, _} ->
            Claim = {make_ref(), self(), Key},
            ets:insert(Claims, Claim),
            rand:uniform(4) > 1 orelse erlang:yield(),
            ets:delete(Claims, element(1, Claim)),
            ok = canal_lock:release(Key);
        full ->
            erlang:yield()
    end,
    claim(Claims).

%% What stands in two lists stood at the moment between them; and who lives after that, lived then.
observe_claims(Claims, Most) ->
    Before = ets:tab2list(Claims),
    Stands = ets:tab2list(Claims),
    Held = [Key || {_, Pid, Key} = Claim <- Before, lists:member(Claim, Stands), is_process_alive(Pid)],
    Now = lists:max([length([same || Other <- Held, Other =:= Key]) || Key <- keys()]),
    ok = atomics:put(Most, 1, max(Now, atomics:get(Most, 1))),
    %% Of the dead.
    [ets:delete(Claims, Ref) || {Ref, Pid, _} <- Before, not is_process_alive(Pid)],
    erlang:yield(),
    observe_claims(Claims, Most).

shuffled(List) ->
    [Element || {_, Element} <- lists:sort([{rand:uniform(), Element} || Element <- List])].

spin(0) -> ok;
spin(Turns) -> spin(Turns - 1).

all_admitted() ->
    [
        ?assertEqual(lists:seq(1, ?PROCESSES), race(?PROCESSES, {Round, Key}, ?PROCESSES))
     || Round <- lists:seq(1, test_setup:times(20)), Key <- keys()
    ].

exactly_the_capacity() ->
    [
        ?assertEqual(
            lists:seq(1, ?CAPACITY) ++ lists:duplicate(?PROCESSES - ?CAPACITY, full),
            race(?PROCESSES, {Round, Key}, ?CAPACITY)
        )
     || Round <- lists:seq(1, test_setup:times(20)), Key <- keys()
    ].

%% All acquire one key that nobody has seen before, at one moment: what they are answered, sorted.
race(Processes, Key, Capacity) ->
    Gate = counters:new(1, []),
    Workers = [test_worker:start() || _ <- lists:seq(1, Processes)],
    Acquire = fun() ->
        test_await:gate(Gate),
        canal_lock:acquire(Key, Capacity, 1)
    end,
    Answers = [test_worker:send_order(Worker, Acquire) || Worker <- Workers],
    counters:add(Gate, 1, 1),
    Sorted = lists:sort([test_await:answer(Answer) || Answer <- Answers]),
    test_worker:kill(Workers),
    [N || {acquired, N} <- Sorted] ++ [full || full <- Sorted].

%% The second count goes up after the first, and down before it: it can only be smaller.
counted_by_holders() ->
    Held = atomics:new(1, []),
    Most = together(8, fun() -> most_held(Held, test_setup:times(?CALLS), 0) end),
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
        length([refused || _ <- lists:seq(1, test_setup:times(?CALLS)), Refused()])
    end),
    ?assertEqual(0, lists:sum(Refusals)).

mixed_capacities() ->
    Exceeded = together(8, fun() ->
        [
            {N, Capacity}
         || _ <- lists:seq(1, test_setup:times(?CALLS)),
            Buckets <- [rand:uniform(4) - 1],
            Capacity <- [2 * Buckets],
            {acquired, N} <- [canal_lock:acquire(db, 2, Buckets)],
            canal_lock:release(db) =/= ok orelse N > Capacity
        ]
    end),
    ?assertEqual([], lists:append(Exceeded)),
    ?assertEqual(0, canal_lock:count(db)).

together(Processes, Do) ->
    Workers = [test_worker:start() || _ <- lists:seq(1, Processes)],
    Orders = [test_worker:send_order(Worker, Do) || Worker <- Workers],
    Answers = [test_await:answer(Order) || Order <- Orders],
    test_worker:kill(Workers),
    Answers.
