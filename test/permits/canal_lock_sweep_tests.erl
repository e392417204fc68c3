%% P8: keys that nobody holds any more cost nothing, and the sweep that sees to it does not disturb those that are in
%% use.
-module(canal_lock_sweep_tests).

-include_lib("eunit/include/eunit.hrl").

-define(CHEAP_KEYS, 1_000_000).
%% Of some kinds dirty schedulers read each key, twice, which takes long where others use the processors. If but their
%% nodes of 64 bytes stayed, it would be more than may stay.
-define(RARE_KEYS, 5_000).

%% What may stay of a burst: the slots of processes that have come since, some tens of kilobytes for a thousand of
%% them.
-define(MAX_LEFT_BYTES, 256 * 1024).

sweep_test_() ->
    [
        test_setup:tests(with_manager()),
        test_setup:tests(without_manager, [
            {"P8: the manager sweeps without being asked", fun regular_sweep/0}
        ])
    ].

with_manager() ->
    [
        {"P8: 1,000,000 one-shot keys of the cheap kinds", fun cheap_keys/0},
        {"P8: 5,000 one-shot keys of each rare kind", fun rare_keys/0},
        {"P8: keys left behind by the dead", fun keys_of_the_dead/0},
        {"P8: held keys survive", fun held_keys_survive/0},
        {"P8: a key comes back after it was reclaimed", fun comes_back/0},
        {"P1, P8: while the sweep goes on, no permit too many", fun one_at_a_time_while_sweeping/0},
        {"P1, P8: while the sweep goes on, no permit too few", fun never_refused_while_sweeping/0},
        {"P8: a pass that is under way does not count as one of those that are asked for", fun under_way/0}
    ].

cheap_keys() ->
    one_shot(?CHEAP_KEYS, fun
        (N) when N rem 4 =:= 0 -> N;
        (N) when N rem 4 =:= 1 -> <<"session-", N:64>>;
        (N) when N rem 4 =:= 2 -> integer_to_list(N);
        (N) -> {app, N}
    end).

rare_keys() ->
    Deep = test_key_terms:deep(tuple, 30),
    <<131, Node/binary>> = term_to_binary(there@nowhere),
    Kinds = [
        fun(N) -> #{id => N, name => <<"map">>} end,
        fun(N) -> maps:from_list([{Key, N} || Key <- lists:seq(1, 40)]) end,
        fun(N) -> (1 bsl 70) + N end,
        fun(_) -> make_ref() end,
        fun(N) -> fun() -> N end end,
        fun(N) -> <<N:61>> end,
        fun(N) -> {Deep, N} end,
        fun(N) -> [N / 3, N / 7, 0.0] end,
        fun(N) -> [N | N] end,
        fun(N) -> list_to_tuple(lists:duplicate(20, N)) end,
        fun(N) -> <<N:64, 0:800>> end,
        fun(N) -> {N, #{key => [N | N]}, <<1:1>>} end,
        fun(N) -> binary_to_term(<<131, 88, Node/binary, N:32, 0:32, 1:32>>) end
    ],
    [one_shot(?RARE_KEYS, Kind) || Kind <- Kinds].

one_shot(Count, Key) ->
    #{keys := 0, memory := Before} = canal_lock:info(),
    take_and_give(test_setup:times(Count), Key),
    ok = canal_lock_manager:sweep(),
    ?assertMatch(#{keys := 0, permits := 0}, canal_lock:info()),
    ?assertMatch(Left when Left < ?MAX_LEFT_BYTES, maps:get(memory, canal_lock:info()) - Before).

take_and_give(0, _) ->
    ok;
take_and_give(Left, Key) ->
    OneShot = Key(Left),
    {acquired, 1} = canal_lock:acquire(OneShot, 1, 1),
    ok = canal_lock:release(OneShot, 1, 1),
    take_and_give(Left - 1, Key).

keys_of_the_dead() ->
    #{memory := Before} = canal_lock:info(),
    [
        begin
            Keys = [{Round, N} || N <- lists:seq(1, 1000)],
            {Holder, _} = test_worker:start(fun() -> [canal_lock:acquire(Key, 1, 1) || Key <- Keys] end),
            ok = test_worker:kill(Holder)
        end
     || Round <- lists:seq(1, 100)
    ],
    test_await:permits(0),
    ok = canal_lock_manager:sweep(),
    ?assertMatch(#{keys := 0}, canal_lock:info()),
    ?assertMatch(Left when Left < ?MAX_LEFT_BYTES, maps:get(memory, canal_lock:info()) - Before).

held_keys_survive() ->
    Held = [Key || N <- lists:seq(1, 5000), Key <- [{held, N}, #{held => N}]],
    Acquire = fun() -> lists:usort([canal_lock:acquire(Key, 2, 1) || Key <- Held]) end,
    {Holder, [{acquired, 1}]} = test_worker:start(Acquire),
    take_and_give(100_000, fun(N) -> {idle, N} end),
    ok = canal_lock_manager:sweep(),
    Keys = length(Held),
    ?assertMatch(#{keys := Keys, permits := Keys}, canal_lock:info()),
    ?assertEqual([], [Key || Key <- Held, canal_lock:count(Key) =/= 1]),
    ?assertEqual([{acquired, 2}], Acquire()),
    ?assertEqual([full], Acquire()),
    ok = test_worker:kill(Holder),
    test_await:permits(Keys),
    ok = canal_lock_manager:sweep(),
    ?assertEqual([ok], lists:usort([canal_lock:release(Key) || Key <- Held])),
    ok = canal_lock_manager:sweep(),
    ?assertMatch(#{keys := 0}, canal_lock:info()).

%% One that was its holder before has a record that names the key's old place in memory.
comes_back() ->
    [
        begin
            {acquired, 1} = canal_lock:acquire(Key, 1, 1),
            ok = canal_lock:release(Key),
            ok = canal_lock_manager:sweep(),
            ?assertMatch({Name, #{keys := 0}}, {Name, canal_lock:info()}),
            ?assertEqual({Name, {error, not_held}}, {Name, canal_lock:release(Key)}),
            ?assertEqual({Name, 0}, {Name, canal_lock:count(Key)}),
            ?assertEqual({Name, {acquired, 1}}, {Name, canal_lock:acquire(Key, 1, 1)}),
            ?assertEqual({Name, full}, {Name, canal_lock:acquire(Key, 1, 1)}),
            ok = canal_lock:release(Key)
        end
     || {Name, Key} <- test_key_terms:all()
    ].

%% There are so many keys that many are idle for longer than a pass takes, and workers in pairs come to the same key
%% at the same time: where the sweep has just been, is, or will be.
-define(KEYS, 5000).
-define(PAIRS, 3).
-define(SWEEPS, 150).

%% What the workers have seen, in counters; and whether they shall go on.
-define(GRANTED, 1).
-define(REFUSED, 2).
-define(TOO_MANY, 3).
-define(LOST, 4).
-define(STOP, 5).

one_at_a_time_while_sweeping() ->
    Seen = use_while_sweeping(1),
    %% They met each other.
    ?assertNotEqual(0, counters:get(Seen, ?REFUSED)).

never_refused_while_sweeping() ->
    Seen = use_while_sweeping(2 * ?PAIRS),
    ?assertEqual(0, counters:get(Seen, ?REFUSED)).

use_while_sweeping(Capacity) ->
    Keys = list_to_tuple([key(N) || N <- lists:seq(1, ?KEYS)]),
    take_and_give(?KEYS, fun(N) -> element(N, Keys) end),
    Held = atomics:new(?KEYS, []),
    Seen = counters:new(5, []),
    Use = fun(Seed) ->
        _ = rand:seed(exsss, Seed),
        use(Keys, Capacity, Held, Seen)
    end,
    Workers = [spawn_monitor(fun() -> Use(Pair) end) || Pair <- lists:seq(1, ?PAIRS), _ <- [one, other]],
    %% They met the sweep.
    ok = sweep_until_keys_are_gone(test_setup:times(?SWEEPS)),
    ok = counters:put(Seen, ?STOP, 1),
    [?assertEqual(normal, test_await:reason(Worker)) || Worker <- Workers],
    ?assert(counters:get(Seen, ?GRANTED) > ?KEYS),
    ?assertEqual([0, 0], [counters:get(Seen, What) || What <- [?TOO_MANY, ?LOST]]),
    ?assertMatch(#{permits := 0, holders := 0}, canal_lock:info()),
    ok = canal_lock_manager:sweep(),
    ?assertMatch(#{keys := 0}, canal_lock:info()),
    Seen.

key(N) when N rem 50 =:= 0 -> #{rare => N};
key(N) -> {app, N}.

sweep_until_keys_are_gone(Sweeps) ->
    [ok = canal_lock_manager:sweep() || _ <- lists:seq(1, Sweeps)],
    test_await:value(true, fun() ->
        ok = canal_lock_manager:sweep(),
        maps:get(keys, canal_lock:info()) < ?KEYS
    end).

use(Keys, Capacity, Held, Seen) ->
    Number = rand:uniform(?KEYS),
    Key = element(Number, Keys),
    case canal_lock:acquire(Key, Capacity, 1) of
        {acquired, _} ->
            counters:add(Seen, ?GRANTED, 1),
            atomics:add_get(Held, Number, 1) =< Capacity orelse counters:add(Seen, ?TOO_MANY, 1),
            %% The key must be there for as long as it is held.
            canal_lock:count(Key) > 0 orelse counters:add(Seen, ?LOST, 1),
            Number rem 8 =:= 0 andalso erlang:yield(),
            ok = atomics:sub(Held, Number, 1),
            ok = canal_lock:release(Key);
        full ->
            counters:add(Seen, ?REFUSED, 1)
    end,
    counters:get(Seen, ?STOP) =:= 1 orelse use(Keys, Capacity, Held, Seen).

%% Keys that the pass has gone by are used again, so that it takes two more to reclaim them.
under_way() ->
    Use = fun() ->
        [{ok, ok} = canal_lock:with_permit({key, N}, 1, 1, fun() -> ok end) || N <- lists:seq(1, 20_000)]
    end,
    _ = Use(),
    ok = sys:suspend(canal_lock),
    First = gen_server:send_request(canal_lock, sweep),
    %% Each message is followed by a step: a part of the keys has been gone by.
    ok = sys:resume(canal_lock),
    ok = sys:suspend(canal_lock),
    {status, _, _, [_, _, _, _, Parts]} = sys:get_status(canal_lock),
    [#{work := [sweep | _]}] = [State || {data, [{"State", State}]} <- Parts],
    _ = Use(),
    Second = gen_server:send_request(canal_lock, sweep),
    ok = sys:resume(canal_lock),
    ?assertEqual({reply, ok}, gen_server:receive_response(Second, infinity)),
    ?assertMatch(#{keys := 0}, canal_lock:info()),
    ?assertEqual({reply, ok}, gen_server:receive_response(First, infinity)).

regular_sweep() ->
    {ok, _} = canal_lock:start_link(3, #{sweep_interval_ms => 10}),
    {acquired, 1} = canal_lock:acquire(held, 1, 1),
    take_and_give(10_000, fun(N) -> {idle, N} end),
    test_await:value(1, fun() -> maps:get(keys, canal_lock:info()) end),
    ?assertMatch(#{reclaimed := 10_000}, canal_lock:info()),
    ?assertEqual(1, canal_lock:count(held)).
