%% What has happened, as info/0 counts it: each thing once, whoever did it and on whichever thread.
-module(canal_lock_totals_tests).

-include_lib("eunit/include/eunit.hrl").

-define(TOTALS, [granted, refused, released, given_back, not_held, reclaimed]).

-define(WORKERS, 64).
-define(STEPS, 5_000).
-define(CAPACITY, 3).

totals_test_() ->
    test_setup:tests([
        {"a new table has seen nothing", fun new_table/0},
        {"granted: permits, of keys new and old", fun granted/0},
        {"refused: calls that were answered `full'", fun refused/0},
        {"released: permits, by whichever call", fun released/0},
        {"not_held: releases that released nothing", fun not_held/0},
        {"given_back: permits of the dead", fun given_back/0},
        {"reclaimed: keys that the sweep has taken out", fun reclaimed/0},
        {"permits of processes of other nodes", fun other_nodes/0},
        {"nothing is counted where nothing is done, or something raises", fun nothing/0},
        {"by many processes at once, while sweeps go on", fun at_once/0},
        {"of releases by processes that have died since", fun releases_of_the_dead/0}
    ]).

tables_test_() ->
    test_setup:quietly([
        test_setup:tests(without_manager, [
            {"P10: totals go on in a table that is kept", fun kept/0},
            {"P10: and begin at 0 in any other", fun not_kept/0}
        ])
    ]).

new_table() ->
    ?assertEqual(maps:from_list([{What, 0} || What <- [permits | ?TOTALS]]), totals()).

granted() ->
    does(#{granted => 1, permits => 1}, fun() -> take(db, 1) end),
    does(#{granted => 4, permits => 4}, fun() -> take(db, 4) end),
    %% Of each of the ways that a key is stored, new and known; in the places for few keys and for many.
    [does(#{granted => 3, permits => 3}, fun() -> take(Key, 3) end) || Key <- keys(), _ <- [new, known]],
    {Worker, _} = does(#{granted => 5, permits => 5}, fun() -> test_worker:start(fun() -> take(db, 5) end) end),
    does(#{granted => 1, permits => 1}, fun() -> test_worker:order(Worker, fun() -> take(db, 1) end) end).

refused() ->
    Known = keys(),
    [take(Key, 2) || Key <- Known],
    does(#{refused => length(Known)}, fun() -> [full = canal_lock:acquire(Key, 2, 1) || Key <- Known] end),
    does(#{refused => 3}, fun() -> [full = canal_lock:acquire(Key, 0, 9) || Key <- [unknown, "unknown", #{}]] end),
    does(#{refused => 1}, fun() -> full = canal_lock:with_permit(db, 1, 1, fun() -> not_called end) end),
    does(#{refused => 1}, fun() -> test_worker:start(fun() -> full = canal_lock:acquire(db, 1, 1) end) end).

released() ->
    Keys = keys(),
    [take(Key, 4) || Key <- Keys],
    Calls = [
        fun canal_lock:release/1,
        fun(Key) -> canal_lock:release(Key, 1, 1) end
    ],
    [
        does(#{released => 1, permits => -1}, fun() -> ok = Release(Key) end)
     || Key <- Keys ++ lists:reverse(Keys), Release <- Calls
    ],
    does(#{granted => 1, released => 1}, fun() ->
        {ok, done} = canal_lock:with_permit(db, 9, 1, fun() -> done end)
    end),
    does(#{granted => 1, released => 1}, fun() ->
        thrown = (catch canal_lock:with_permit(new, 9, 1, fun() -> throw(thrown) end))
    end).

not_held() ->
    take(held, 1),
    does(#{not_held => length(keys())}, fun() -> [{error, not_held} = canal_lock:release(Key) || Key <- keys()] end),
    does(#{not_held => length(keys())}, fun() -> [ok = canal_lock:release(Key, 1, 1) || Key <- keys()] end),
    {Other, _} = test_worker:start(fun() -> take(db, 1) end),
    does(#{not_held => 1}, fun() -> {error, not_held} = canal_lock:release(db) end),
    does(#{not_held => 1}, fun() ->
        {error, not_held} = test_worker:order(Other, fun() -> canal_lock:release(held) end)
    end),
    %% A process that has never held anything.
    does(#{not_held => 1}, fun() -> test_worker:start(fun() -> canal_lock:release(db) end) end),
    does(#{released => 1, permits => -1, not_held => 1}, fun() ->
        [ok, {error, not_held}] = [canal_lock:release(held) || _ <- [first, second]]
    end).

given_back() ->
    take(db, 1),
    [
        begin
            {Holder, _} = test_worker:start(fun() -> [take(Key, Permits) || {Key, Permits} <- Held] end),
            All = lists:sum([Permits || {_, Permits} <- Held]),
            does(#{given_back => All, permits => -All}, fun() -> test_worker:kill(Holder) end)
        end
     || Held <- [
            [],
            [{db, 1}],
            [{db, 7}],
            [{db, 1}, {other, 2}, {"string", 3}, {#{}, 4}, {{a, b}, 5}],
            [{{key, N}, 1} || N <- lists:seq(1, 1000)]
        ]
    ],
    {Half, _} = test_worker:start(fun() -> take(db, 4) end),
    does(#{released => 2, given_back => 2, permits => -4}, fun() ->
        test_worker:release_then_die(Half, fun() -> [ok = canal_lock:release(db) || _ <- [1, 2]] end)
    end).

reclaimed() ->
    Idle = [{idle, N} || N <- lists:seq(1, 5000)] ++ [#{idle => N} || N <- lists:seq(1, 50)],
    Held = [{held, N} || N <- lists:seq(1, 100)],
    [take(Key, 1) || Key <- Held ++ Idle],
    [ok = canal_lock:release(Key) || Key <- Idle],
    does(#{reclaimed => length(Idle)}, fun canal_lock_manager:sweep/0),
    does(#{}, fun canal_lock_manager:sweep/0),
    %% What comes again goes again.
    does(#{granted => 10, released => 10, reclaimed => 10}, fun() ->
        [ok = use({idle, N}) || N <- lists:seq(1, 10)],
        canal_lock_manager:sweep()
    end),
    {Holder, _} = test_worker:start(fun() -> [take({of_the_dead, N}, 1) || N <- lists:seq(1, 10)] end),
    does(#{given_back => 10, permits => -10}, fun() -> test_worker:kill(Holder) end),
    does(#{reclaimed => 10}, fun canal_lock_manager:sweep/0),
    ?assertMatch(#{keys := 100}, canal_lock:info()).

%% By their proxies, which are local processes.
other_nodes() ->
    #{from_other_nodes := Terms} = maps:from_list(test_key_terms:by_kind()),
    [Holder | _] = [Pid || Pid <- Terms, is_pid(Pid)],
    {Proxy, ok} = test_worker:start(fun() -> canal_lock_nif:represent(Holder) end),
    Acquire = fun() -> test_worker:order(Proxy, fun() -> canal_lock:acquire(db, 3, 1) end) end,
    does(#{granted => 3, permits => 3}, fun() -> [{acquired, N} = Acquire() || N <- [1, 2, 3]] end),
    does(#{refused => 1}, fun() -> full = Acquire() end),
    does(#{released => 1, permits => -1}, fun() ->
        ok = test_worker:order(Proxy, fun() -> canal_lock:release(db) end)
    end),
    does(#{given_back => 2, permits => -2}, fun() -> ok = test_worker:kill(Proxy) end).

nothing() ->
    take(db, 1),
    does(#{}, fun() ->
        [?assertError(badarg, canal_lock:Call(db, -1, 1)) || Call <- [acquire, release]],
        ?assertError(badarg, canal_lock:with_permit(db, 1, 1, not_a_fun)),
        ?assertError(badarg, canal_lock:acquire_on('no such node', db, 1, one)),
        [canal_lock:Look() || Look <- [keys, held, info, audit]],
        [canal_lock:Look(db) || Look <- [holders, count]],
        canal_lock:buckets(unknown, 3),
        canal_lock:held(self())
    end).

%% Every worker counts for itself what it was answered.
at_once() ->
    Steps = test_setup:times(?STEPS),
    Workers = [test_worker:start() || _ <- lists:seq(1, ?WORKERS)],
    Orders = [test_worker:send_order(Worker, fun() -> work(Steps, counts()) end) || Worker <- Workers],
    [ok = canal_lock_manager:sweep() || _ <- lists:seq(1, 20)],
    Counts = lists:foldl(fun add/2, counts(), [test_await:answer(Order) || Order <- Orders]),
    [?assertNotEqual({What, 0}, {What, maps:get(What, Counts)}) || What <- [granted, refused, released, not_held]],
    Held = maps:get(granted, Counts) - maps:get(released, Counts),
    ?assertEqual(Counts#{permits := Held}, maps:without([reclaimed], totals())),
    {Doomed, Others} = lists:split(?WORKERS div 2, Workers),
    Theirs = lists:sum([Permits || Worker <- Doomed, {_, Permits} <- canal_lock:held(Worker)]),
    does(#{given_back => Theirs, permits => -Theirs}, fun() -> test_worker:kill(Doomed) end),
    does(#{given_back => Held - Theirs, permits => Theirs - Held}, fun() -> test_worker:kill(Others) end),
    ok = canal_lock_manager:sweep(),
    ?assertMatch(#{keys := 0}, canal_lock:info()).

counts() ->
    maps:from_list([{What, 0} || What <- [permits | ?TOTALS] -- [reclaimed]]).

add(Counts, Sums) ->
    maps:map(fun(What, Sum) -> Sum + maps:get(What, Counts) end, Sums).

work(0, Counts) ->
    Counts;
work(Left, Counts) ->
    Key = key(rand:uniform(2 * ?WORKERS div ?CAPACITY)),
    What =
        case rand:uniform(2) of
            1 ->
                case canal_lock:acquire(Key, ?CAPACITY, 1) of
                    {acquired, _} -> granted;
                    full -> refused
                end;
            2 ->
                case canal_lock:release(Key) of
                    ok -> released;
                    {error, not_held} -> not_held
                end
        end,
    work(Left - 1, maps:update_with(What, fun(Count) -> Count + 1 end, Counts)).

key(N) when N rem 4 =:= 0 -> {key, N};
key(N) when N rem 4 =:= 1 -> integer_to_list(N);
key(N) when N rem 4 =:= 2 -> #{key => N};
key(N) -> <<"key", N:64>>.

%% Each on a place of its own or one that was used before, and all of them gone.
releases_of_the_dead() ->
    does(#{granted => 3000, released => 3000}, fun() ->
        Workers = [test_worker:start() || _ <- lists:seq(1, 1000)],
        [
            test_worker:send_order(Worker, fun() -> [ok = use(Key) || Key <- [db, {own, self()}, "string"]] end)
         || Worker <- Workers
        ],
        ok = test_await:value(3000, fun() -> maps:get(released, canal_lock:info()) end),
        test_worker:kill(Workers)
    end).

kept() ->
    {ok, Manager} = canal_lock:start_link(3, #{keep_on_crash => true}),
    true = unlink(Manager),
    something(),
    Before = totals(),
    exit(Manager, kill),
    test_await:value(undefined, fun() -> whereis(canal_lock) end),
    does(#{granted => 1, released => 1}, fun() -> use(db) end),
    {ok, _} = canal_lock:start_link(5, #{keep_on_crash => true}),
    does(#{granted => 2, refused => 1, permits => 2}, fun() ->
        take(db, 2),
        full = canal_lock:acquire(db, 1, 1)
    end),
    #{granted := Granted, released := Released, refused := Refused} = Before,
    ?assertEqual(
        maps:merge(Before, #{
            permits => 2 + maps:get(permits, Before),
            granted => Granted + 3,
            released => Released + 1,
            refused => Refused + 1
        }),
        totals()
    ),
    ok = canal_lock:stop().

not_kept() ->
    {ok, _} = canal_lock:start_link(3),
    something(),
    ok = canal_lock:stop(),
    {ok, _} = canal_lock:start_link(3),
    new_table().

something() ->
    take(db, 3),
    full = canal_lock:acquire(db, 1, 1),
    ok = canal_lock:release(db),
    {error, not_held} = canal_lock:release(other),
    {Holder, _} = test_worker:start(fun() -> take(db, 2) end),
    does(#{given_back => 2, permits => -2}, fun() -> test_worker:kill(Holder) end),
    ok = use(idle),
    does(#{reclaimed => 1}, fun canal_lock_manager:sweep/0),
    ?assertEqual([], [What || {What, 0} <- maps:to_list(totals())]).

%% One for each way to store a key, and more of them than there is room for in a process's slot.
keys() ->
    [db, {app, 1}, <<"binary">>, "string", [list | improper], {1, {2, [3]}}, #{map => 1}, 1 bsl 70, make_ref(), 1.5].

take(Key, Permits) ->
    [{acquired, _} = canal_lock:acquire(Key, 1 bsl 30, 1) || _ <- lists:seq(1, Permits)],
    taken.

use(Key) ->
    {acquired, _} = canal_lock:acquire(Key, 1 bsl 30, 1),
    canal_lock:release(Key).

%% Just this happens, and the permits are those that the keys have counted, wherever their holders have them on record.
%% Deaths are counted a little after they are seen.
does(Changes, Do) ->
    Before = totals(),
    Answer = Do(),
    Wanted = maps:merge_with(fun(_, Count, Change) -> Count + Change end, Before, Changes),
    test_await:value(Wanted, fun totals/0),
    ?assertEqual(lists:sum([Permits || {_, Permits} <- canal_lock:keys()]), maps:get(permits, Wanted)),
    Answer.

totals() ->
    Totals = maps:with([permits | ?TOTALS], canal_lock:info()),
    #{granted := Granted, released := Released, given_back := GivenBack, permits := Permits} = Totals,
    ?assertEqual(Granted, Released + GivenBack + Permits),
    Totals.
