%% P8: the sweep reclaims idle keys and frees their memory, and does not disturb keys that are in use.
-module(canal_lock_sweep_tests).

-include_lib("eunit/include/eunit.hrl").

-define(CHEAP_KEYS, 1_000_000).
%% Fewer, because a dirty scheduler reads some of these keys, twice, which takes long on a busy machine. If only their
%% nodes of 64 bytes stayed, they would exceed the limit.
-define(RARE_KEYS, 5_000).

%% What may stay allocated: the slots of the processes that became holders, some 10 kB for a thousand of them.
-define(MAX_LEFT_BYTES, 256 * 1024).

sweep_test_() ->
    [
        test_setup:tests(with_manager()),
        test_setup:tests(without_manager, [{"P8: the manager sweeps at its interval", fun regular_sweep/0}])
    ].

with_manager() ->
    [
        {"P8: a sweep frees 1,000,000 one-shot keys of the cheap kinds", fun cheap_keys/0},
        {"P8: a sweep frees 5,000 one-shot keys of each rare kind", fun rare_keys/0},
        {"P8: a sweep does not reclaim held keys", fun held_keys_survive/0},
        {"P8: a reclaimed key can be acquired again", fun comes_back/0},
        {"P1, P8: no permit is granted beyond the capacity while sweeps run", fun one_at_a_time_while_sweeping/0},
        {"P1, P8: no permit is refused below the capacity while sweeps run", fun never_refused_while_sweeping/0},
        {"P8: a pass that is already running does not count as a requested pass", fun pass_is_running/0}
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
    acquire_and_release(test_setup:times(Count), Key),
    is_freed(Before).

is_freed(Before) ->
    ok = canal_lock_manager:sweep(),
    ?assertMatch(#{keys := 0, permits := 0}, canal_lock:info()),
    ?assertMatch(Left when Left < ?MAX_LEFT_BYTES, test_setup:info(memory) - Before).

acquire_and_release(0, _) ->
    ok;
acquire_and_release(Left, Key) ->
    OneShot = Key(Left),
    {acquired, 1} = canal_lock:acquire(OneShot, 1, 1),
    ok = canal_lock:release(OneShot, 1, 1),
    acquire_and_release(Left - 1, Key).

held_keys_survive() ->
    Held = [Key || N <- lists:seq(1, 5000), Key <- [{held, N}, #{held => N}]],
    Acquire = fun() -> lists:usort([canal_lock:acquire(Key, 2, 1) || Key <- Held]) end,
    {Holder, [{acquired, 1}]} = test_worker:start(Acquire),
    acquire_and_release(100_000, fun(N) -> {idle, N} end),
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

%% A former holder still has a record with the old address of the key.
comes_back() ->
    lists:foreach(fun({Name, Key}) ->
        {acquired, 1} = canal_lock:acquire(Key, 1, 1),
        ok = canal_lock:release(Key),
        ok = canal_lock_manager:sweep(),
        ?assertMatch({Name, #{keys := 0}}, {Name, canal_lock:info()}),
        ?assertEqual({Name, {error, not_held}}, {Name, canal_lock:release(Key)}),
        ?assertEqual({Name, 0}, {Name, canal_lock:count(Key)}),
        ?assertEqual({Name, {acquired, 1}}, {Name, canal_lock:acquire(Key, 1, 1)}),
        ?assertEqual({Name, full}, {Name, canal_lock:acquire(Key, 1, 1)}),
        ok = canal_lock:release(Key)
    end, test_key_terms:all()).

%% With 5000 keys, many stay idle for longer than a pass takes. Two workers of a pair use the same key at the same time,
%% before, during and after the visit of the sweep.
-define(KEYS, 5000).
-define(PAIRS, 3).
-define(SWEEPS, 150).

%% Counters of what the workers have seen, and the flag that stops them.
-define(GRANTED, 1).
-define(REFUSED, 2).
-define(TOO_MANY, 3).
-define(LOST, 4).
-define(STOP, 5).

one_at_a_time_while_sweeping() ->
    %% Until the workers of a pair have met.
    _ = use_while_sweeping(1, fun(Seen) -> counters:get(Seen, ?REFUSED) > 0 end),
    ok.

never_refused_while_sweeping() ->
    Seen = use_while_sweeping(2 * ?PAIRS, fun(_) -> true end),
    ?assertEqual(0, counters:get(Seen, ?REFUSED)).

use_while_sweeping(Capacity, Met) ->
    Keys = list_to_tuple([key(N) || N <- lists:seq(1, ?KEYS)]),
    acquire_and_release(?KEYS, fun(N) -> element(N, Keys) end),
    Held = atomics:new(?KEYS, []),
    Seen = counters:new(5, []),
    Use = fun(Seed) ->
        _ = rand:seed(exsss, Seed),
        use(Keys, Capacity, Held, Seen)
    end,
    Workers = [spawn_monitor(fun() -> Use(Pair) end) || Pair <- lists:seq(1, ?PAIRS), _ <- [one, other]],
    [ok = canal_lock_manager:sweep() || _ <- lists:seq(1, test_setup:times(?SWEEPS))],
    %% Until the sweep has reclaimed keys that the workers use.
    test_await:value(true, fun() ->
        ok = canal_lock_manager:sweep(),
        counters:get(Seen, ?GRANTED) > ?KEYS andalso test_setup:info(keys) < ?KEYS andalso Met(Seen)
    end),
    ok = counters:put(Seen, ?STOP, 1),
    [?assertEqual(normal, test_await:reason(Worker)) || Worker <- Workers],
    ?assertEqual([0, 0], [counters:get(Seen, Counter) || Counter <- [?TOO_MANY, ?LOST]]),
    ?assertMatch(#{permits := 0, holders := 0}, canal_lock:info()),
    ok = canal_lock_manager:sweep(),
    ?assertMatch(#{keys := 0}, canal_lock:info()),
    Seen.

key(N) when N rem 50 =:= 0 -> #{rare => N};
key(N) -> {app, N}.

use(Keys, Capacity, Held, Seen) ->
    Number = rand:uniform(?KEYS),
    Key = element(Number, Keys),
    case canal_lock:acquire(Key, Capacity, 1) of
        {acquired, _} ->
            counters:add(Seen, ?GRANTED, 1),
            atomics:add_get(Held, Number, 1) =< Capacity orelse counters:add(Seen, ?TOO_MANY, 1),
            %% The key must exist as long as it is held.
            canal_lock:count(Key) > 0 orelse counters:add(Seen, ?LOST, 1),
            Number rem 8 =:= 0 andalso erlang:yield(),
            ok = atomics:sub(Held, Number, 1),
            ok = canal_lock:release(Key);
        full ->
            counters:add(Seen, ?REFUSED, 1)
    end,
    counters:get(Seen, ?STOP) =:= 1 orelse use(Keys, Capacity, Held, Seen).

%% The pass has visited some keys, which are used again: only two more passes reclaim them.
pass_is_running() ->
    Use = fun() ->
        [{ok, ok} = canal_lock:with_permit({key, N}, 1, 1, fun() -> ok end) || N <- lists:seq(1, 20_000)]
    end,
    _ = Use(),
    ok = sys:suspend(canal_lock),
    First = gen_server:send_request(canal_lock, sweep),
    %% A step follows each message, so the pass has visited a part of the keys.
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
    acquire_and_release(10_000, fun(N) -> {idle, N} end),
    test_await:value(1, fun() -> test_setup:info(keys) end),
    ?assertMatch(#{reclaimed := 10_000}, canal_lock:info()),
    ?assertEqual(1, canal_lock:count(held)).
