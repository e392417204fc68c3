%% P1 and P4 with many concurrent processes: the permits of a key never exceed the capacity, a call is refused only at
%% the capacity, and the VM releases all permits of dead processes.
-module(canal_lock_storms_tests).

-include_lib("eunit/include/eunit.hrl").

%% A small process table, so that the VM reuses pids quickly.
-define(FEW_PROCESSES, ["+P", "4096"]).

-import(test_setup, [concurrently/2, shuffled/1, spin/1]).

-define(ROUNDS, 30).
-define(PROCESSES, 100).
-define(CAPACITY, 7).

%% Claimants that are killed, one after the other, each at a random moment.
-define(DEATHS, 500).
-define(CLAIMANTS, 30).

%% Attempts to acquire by each of the eight processes.
-define(CALLS, 100_000).

storm_test_() ->
    test_setup:on_schedulers(?FEW_PROCESSES, [
        {Title, fun() -> test_storm:play(Capacities, Storm) end}
     || {Title, Capacities, Storm} <- [
            {"P1, P4: 100 processes on 5 keys, killed at random moments, lose and duplicate no permit",
                every_key(?CAPACITY), fun killed_at_random/0},
            {"P1, P4: the permits of living processes never exceed the capacity while others are killed",
                every_key(2), fun claimed/0},
            {"P1: 100 concurrent calls for 100 permits are all granted", #{}, fun all_granted/0},
            {"P1: of 100 concurrent calls for 7 permits, exactly 7 are granted", #{}, fun exactly_the_capacity/0},
            {"P1: the holders' own count never exceeds the capacity", #{db => 3}, fun counted_by_holders/0},
            {"P1: a call is never refused while a permit is free", #{db => 8},
                fun never_refused_below_capacity/0},
            {"P1, P6: a caller never gets a permit above the capacity of its own call, whatever capacities others use",
                #{db => 6}, fun mixed_capacities/0}
        ]
    ]).

every_key(Capacity) ->
    maps:from_list([{Key, Capacity} || Key <- keys()]).

keys() ->
    [db, {app, 12345}, <<"0123456789abcdef0123456789abcdef">>, #{rare => "map"}, 1 bsl 70].

%% Counters of the answers that the workers got.
-define(GRANTED, 1).
-define(REFUSED, 2).
-define(GRANTED_ABOVE, 3).

killed_at_random() ->
    Keys = keys(),
    Seen = counters:new(3, []),
    Rounds = test_setup:times(?ROUNDS),
    [killed_at_random(Keys, Seen) || _ <- lists:seq(1, Rounds)],
    ?assertEqual(0, counters:get(Seen, ?GRANTED_ABOVE)),
    %% The workers competed with each other.
    [
        ?assertMatch({_, Times} when Times > 10 * Rounds, {Counter, counters:get(Seen, Counter)})
     || Counter <- [?GRANTED, ?REFUSED]
    ].

killed_at_random(Keys, Seen) ->
    Workers = [spawn(fun() -> acquire_and_release(Keys, Seen) end) || _ <- lists:seq(1, ?PROCESSES)],
    [{ok, true} = {spin(rand:uniform(3000)), exit(Worker, kill)} || Worker <- shuffled(Workers)],
    test_await:down(Workers),
    [test_await:count(Key, 0) || Key <- Keys],
    %% No permit was lost, and none was released twice.
    [?assertEqual({acquired, N}, canal_lock:acquire(Key, ?CAPACITY, 1)) || Key <- Keys, N <- lists:seq(1, ?CAPACITY)],
    [?assertEqual(full, canal_lock:acquire(Key, ?CAPACITY, 1)) || Key <- Keys],
    test_storm:records_agree([{self(), every_key(?CAPACITY)}]),
    [?assertEqual(ok, canal_lock:release(Key)) || Key <- Keys, _ <- lists:seq(1, ?CAPACITY)].

acquire_and_release(Keys, Seen) ->
    Key = lists:nth(rand:uniform(length(Keys)), Keys),
    case rand:uniform(2) of
        1 ->
            case canal_lock:acquire(Key, ?CAPACITY, 1) of
                {acquired, N} when N =< ?CAPACITY -> counters:add(Seen, ?GRANTED, 1);
                full -> counters:add(Seen, ?REFUSED, 1);
                {acquired, _} -> counters:add(Seen, ?GRANTED_ABOVE, 1)
            end;
        2 ->
            canal_lock:release(Key)
    end,
    %% Some exit by themselves.
    rand:uniform(500) > 1 orelse exit(normal),
    acquire_and_release(Keys, Seen).

%% Each process records its claim after the acquire and deletes it before the release.
claimed() ->
    Claims = ets:new(claims, [public, {write_concurrency, true}]),
    Most = atomics:new(1, []),
    Observer = spawn_link(fun() -> observe_claims(Claims, Most) end),
    Claimants = [spawn_monitor(fun() -> claim(Claims) end) || _ <- lists:seq(1, ?CLAIMANTS)],
    Last = lists:foldl(fun(_, [First | Others]) ->
        kill_claimant(First),
        Others ++ [spawn_monitor(fun() -> claim(Claims) end)]
    end, Claimants, lists:seq(1, test_setup:times(?DEATHS))),
    %% Wait until the observer has seen the whole capacity in use.
    test_await:value(true, fun() -> atomics:get(Most, 1) >= 2 end),
    [kill_claimant(Claimant) || Claimant <- Last],
    %% It never saw more.
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

%% A claim that is in both copies existed between the two reads. If its process is alive now, it held the permit at that
%% time.
observe_claims(Claims, Most) ->
    Before = ets:tab2list(Claims),
    After = ets:tab2list(Claims),
    Held = [Key || {_, Pid, Key} = Claim <- Before, lists:member(Claim, After), is_process_alive(Pid)],
    Now = lists:max([length([same || Other <- Held, Other =:= Key]) || Key <- keys()]),
    ok = atomics:put(Most, 1, max(Now, atomics:get(Most, 1))),
    %% Claims of dead processes.
    [ets:delete(Claims, Ref) || {Ref, Pid, _} <- Before, not is_process_alive(Pid)],
    erlang:yield(),
    observe_claims(Claims, Most).

all_granted() ->
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

%% Concurrent acquires of a new key. Returns the granted numbers and then the refusals, sorted.
race(Processes, Key, Capacity) ->
    Sorted = lists:sort(concurrently(Processes, fun() -> canal_lock:acquire(Key, Capacity, 1) end)),
    [N || {acquired, N} <- Sorted] ++ [full || full <- Sorted].

%% The count in Held never exceeds the table's: it increases after the table's count and decreases before it.
counted_by_holders() ->
    Held = atomics:new(1, []),
    Most = concurrently(8, fun() -> most_held(Held, test_setup:times(?CALLS), 0) end),
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

%% Eight processes use eight permits, and each holds at most one. So a permit is free at each call.
never_refused_below_capacity() ->
    Refusals = concurrently(8, fun() ->
        Refused = fun() -> canal_lock:acquire(db, 8, 1) =:= full orelse canal_lock:release(db) =/= ok end,
        length([refused || _ <- lists:seq(1, test_setup:times(?CALLS)), Refused()])
    end),
    ?assertEqual(0, lists:sum(Refusals)).

mixed_capacities() ->
    Exceeded = concurrently(8, fun() ->
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

