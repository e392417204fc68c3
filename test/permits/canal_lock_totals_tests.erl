%% The totals of info/0 count each event once, in whichever process and on whichever thread it happens.
-module(canal_lock_totals_tests).

-include_lib("eunit/include/eunit.hrl").

-import(test_worker, [caught/1]).

-define(TOTALS, [
    granted, refused, released, released_by_death, not_held, reclaimed, handed_over, timed_out, transferred
]).

-define(WORKERS, 64).
-define(STEPS, 5_000).
-define(CAPACITY, 3).

totals_test_() ->
    test_setup:tests([
        {"the totals of a new table are 0", fun new_table/0},
        {"granted counts permits of new and of known keys", fun granted/0},
        {"refused counts calls that return `full'", fun refused/0},
        {"released counts the permits that each call releases", fun released/0},
        {"not_held counts releases of permits that the caller does not hold", fun not_held/0},
        {"released_by_death counts permits that deaths release", fun released_by_death/0},
        {"reclaimed counts keys that the sweep removes", fun reclaimed/0},
        {"handed_over counts requests that waited and were granted", fun handed_over/0},
        {"timed_out counts requests that waited until their timeout", fun timed_out/0},
        {"transferred counts permits that are given to another process", fun transferred/0},
        {"calls for several permits count each permit", fun several/0},
        {"the totals include permits of processes on other nodes", fun other_nodes/0},
        {"inspections and calls that raise count nothing", fun nothing/0},
        {"the totals are exact with many processes and sweeps at once", fun at_once/0},
        {"the totals include releases of processes that have died since", fun releases_of_the_dead/0}
    ]).

tables_test_() ->
    test_setup:quietly([
        test_setup:tests(without_manager, [
            {"P10: the totals of a kept table continue", fun kept/0},
            {"P10: the totals of any other table begin at 0", fun not_kept/0}
        ])
    ]).

new_table() ->
    ?assertEqual(zeros(), totals()).

zeros() ->
    maps:from_list([{Total, 0} || Total <- [permits | ?TOTALS]]).

granted() ->
    does(#{granted => 1, permits => 1}, fun() -> acquire(db, 1) end),
    does(#{granted => 4, permits => 4}, fun() -> acquire(db, 4) end),
    %% Keys of each form, new and known. A holder stores its first keys in its slot and the others in a table.
    [does(#{granted => 3, permits => 3}, fun() -> acquire(Key, 3) end) || Key <- keys(), _ <- [new, known]],
    {Worker, _} = does(#{granted => 5, permits => 5}, fun() -> test_worker:start(fun() -> acquire(db, 5) end) end),
    does(#{granted => 1, permits => 1}, fun() -> test_worker:order(Worker, fun() -> acquire(db, 1) end) end).

refused() ->
    Known = keys(),
    [acquire(Key, 2) || Key <- Known],
    does(#{refused => length(Known)}, fun() -> [full = canal_lock:acquire(Key, 2, 1) || Key <- Known] end),
    does(#{refused => 3}, fun() -> [full = canal_lock:acquire(Key, 0, 9) || Key <- [unknown, "unknown", #{}]] end),
    does(#{refused => 1}, fun() -> full = canal_lock:with_permit(db, 1, 1, fun() -> not_called end) end),
    does(#{refused => 1}, fun() -> test_worker:start(fun() -> full = canal_lock:acquire(db, 1, 1) end) end).

released() ->
    Keys = keys(),
    [acquire(Key, 4) || Key <- Keys],
    Calls = [fun canal_lock:release/1, fun(Key) -> canal_lock:release(Key, 1, 1) end],
    [
        does(#{released => 1, permits => -1}, fun() -> ok = Release(Key) end)
     || Key <- Keys ++ lists:reverse(Keys), Release <- Calls
    ],
    does(#{granted => 1, released => 1}, fun() ->
        {ok, done} = canal_lock:with_permit(db, 9, 1, fun() -> done end)
    end),
    does(#{granted => 1, released => 1}, fun() ->
        thrown = caught(fun() -> canal_lock:with_permit(new, 9, 1, fun() -> throw(thrown) end) end)
    end).

not_held() ->
    acquire(held, 1),
    does(#{not_held => length(keys())}, fun() -> [{error, not_held} = canal_lock:release(Key) || Key <- keys()] end),
    does(#{not_held => length(keys())}, fun() -> [ok = canal_lock:release(Key, 1, 1) || Key <- keys()] end),
    {Other, _} = test_worker:start(fun() -> acquire(db, 1) end),
    does(#{not_held => 1}, fun() -> {error, not_held} = canal_lock:release(db) end),
    does(#{not_held => 1}, fun() ->
        {error, not_held} = test_worker:order(Other, fun() -> canal_lock:release(held) end)
    end),
    %% A process that has never held a permit.
    does(#{not_held => 1}, fun() -> test_worker:start(fun() -> canal_lock:release(db) end) end),
    does(#{released => 1, permits => -1, not_held => 1}, fun() ->
        [ok, {error, not_held}] = [canal_lock:release(held) || _ <- [first, second]]
    end).

released_by_death() ->
    acquire(db, 1),
    lists:foreach(fun(Held) ->
        {Holder, _} = test_worker:start(fun() -> [acquire(Key, Permits) || {Key, Permits} <- Held] end),
        All = lists:sum([Permits || {_, Permits} <- Held]),
        does(#{released_by_death => All, permits => -All}, fun() -> test_worker:kill(Holder) end)
    end, [
        [],
        [{db, 1}],
        [{db, 7}],
        [{db, 1}, {other, 2}, {"string", 3}, {#{}, 4}, {{a, b}, 5}],
        [{{key, N}, 1} || N <- lists:seq(1, 1000)]
    ]),
    {Half, _} = test_worker:start(fun() -> acquire(db, 4) end),
    does(#{released => 2, released_by_death => 2, permits => -4}, fun() ->
        test_worker:release_then_die(Half, fun() -> [ok = canal_lock:release(db) || _ <- [1, 2]] end)
    end).

reclaimed() ->
    Idle = [{idle, N} || N <- lists:seq(1, 5000)] ++ [#{idle => N} || N <- lists:seq(1, 50)],
    Held = [{held, N} || N <- lists:seq(1, 100)],
    [acquire(Key, 1) || Key <- Held ++ Idle],
    [ok = canal_lock:release(Key) || Key <- Idle],
    does(#{reclaimed => length(Idle)}, fun canal_lock_manager:sweep/0),
    does(#{}, fun canal_lock_manager:sweep/0),
    %% Keys that are used again are reclaimed again.
    does(#{granted => 10, released => 10, reclaimed => 10}, fun() ->
        [ok = use({idle, N}) || N <- lists:seq(1, 10)],
        canal_lock_manager:sweep()
    end),
    {Holder, _} = test_worker:start(fun() -> [acquire({dead_holder, N}, 1) || N <- lists:seq(1, 10)] end),
    does(#{released_by_death => 10, permits => -10}, fun() -> test_worker:kill(Holder) end),
    does(#{reclaimed => 10}, fun canal_lock_manager:sweep/0),
    ?assertMatch(#{keys := 100}, canal_lock:info()).

%% A request that waits was refused before.
handed_over() ->
    acquire(db, 2),
    Wait = fun() ->
        {waiting, Ref} = canal_lock:request(db, 2, 1),
        Ref
    end,
    [First, Second] = does(#{refused => 2}, fun() -> [Wait(), Wait()] end),
    does(#{released => 1, granted => 1, handed_over => 1}, fun() -> ok = canal_lock:release(db) end),
    does(#{}, fun() -> {acquired, 2} = canal_lock:cancel(First) end),
    does(#{granted => 1, permits => 1, handed_over => 1}, fun() -> ok = canal_lock:resized(db, 3, 1) end),
    does(#{}, fun() -> {acquired, 3} = canal_lock:cancel(Second) end),
    %% One request of two permits.
    {waiting, Third} = does(#{refused => 1}, fun() -> canal_lock:request(db, 3, 1, #{permits => 2}) end),
    does(#{released => 3, granted => 2, permits => -1, handed_over => 1}, fun() ->
        ok = canal_lock:release(db, #{permits => 3})
    end),
    {acquired, 2} = canal_lock:cancel(Third),
    %% The death of the holder grants the waiter.
    {Holder, _} = test_worker:start(fun() -> acquire(other, 1) end),
    {waiting, Fourth} = canal_lock:request(other, 1, 1),
    does(#{released_by_death => 1, granted => 1, handed_over => 1}, fun() -> test_worker:kill(Holder) end),
    {acquired, 1} = canal_lock:cancel(Fourth).

timed_out() ->
    acquire(db, 1),
    does(#{refused => 1, timed_out => 1}, fun() -> full = canal_lock:acquire(db, 1, 1, 1) end),
    does(#{refused => 1, timed_out => 1}, fun() -> full = canal_lock:acquire(db, 1, 1, #{timeout_ms => 1}) end),
    does(#{refused => 1, timed_out => 1}, fun() ->
        full = canal_lock:with_permit(db, 1, 1, 1, fun() -> not_called end)
    end),
    does(#{refused => 2}, fun() ->
        full = canal_lock:acquire(db, 1, 1, 0),
        full = canal_lock:acquire(db, 1, 1, #{timeout_ms => infinity, max_waiting => 0})
    end),
    %% A request that is cancelled, or whose process dies, has no timeout.
    does(#{refused => 1}, fun() ->
        {waiting, Ref} = canal_lock:request(db, 1, 1),
        ok = canal_lock:cancel(Ref)
    end),
    does(#{refused => 1}, fun() ->
        {Waiter, {waiting, _}} = test_worker:start(fun() -> canal_lock:request(db, 1, 1) end),
        test_worker:kill(Waiter)
    end),
    test_await:value(0, fun() -> test_setup:info(waiting) end).

transferred() ->
    {Other, _} = test_worker:start(fun() -> acquire(other, 1) end),
    does(#{granted => 5, permits => 5}, fun() -> acquire(db, 5) end),
    does(#{transferred => 1}, fun() -> ok = canal_lock:give(db, Other) end),
    does(#{transferred => 2}, fun() -> ok = canal_lock:give(db, Other, #{permits => 2}) end),
    does(#{}, fun() -> {error, not_held} = canal_lock:give(db, Other, #{permits => 3}) end),
    does(#{released => 1, permits => -1}, fun() ->
        ok = test_worker:order(Other, fun() -> canal_lock:release(db) end)
    end),
    does(#{released_by_death => 3, permits => -3}, fun() -> test_worker:kill(Other) end),
    does(#{}, fun() -> {error, not_alive} = canal_lock:give(db, Other) end).

several() ->
    does(#{granted => 3, permits => 3}, fun() -> {acquired, 3} = canal_lock:acquire(db, 5, 1, #{permits => 3}) end),
    does(#{refused => 1}, fun() -> full = canal_lock:acquire(db, 5, 1, #{permits => 3}) end),
    does(#{refused => 1}, fun() -> full = canal_lock:request(db, 5, 1, #{permits => 3, max_waiting => 0}) end),
    does(#{not_held => 1}, fun() -> {error, not_held} = canal_lock:release(db, #{permits => 4}) end),
    does(#{released => 2, permits => -2}, fun() -> ok = canal_lock:release(db, #{permits => 2}) end),
    does(#{granted => 4, released => 4}, fun() ->
        {ok, done} = canal_lock:with_permit(db, 5, 1, #{permits => 4}, fun() -> done end)
    end).

%% Their proxies, which are local processes, hold the permits.
other_nodes() ->
    {Proxy, ok} = test_worker:start(fun() -> canal_lock_nif:represent(test_setup:remote_pid(1)) end),
    Acquire = fun() -> test_worker:order(Proxy, fun() -> canal_lock:acquire(db, 3, 1) end) end,
    does(#{granted => 3, permits => 3}, fun() -> [{acquired, N} = Acquire() || N <- [1, 2, 3]] end),
    does(#{refused => 1}, fun() -> full = Acquire() end),
    does(#{released => 1, permits => -1}, fun() ->
        ok = test_worker:order(Proxy, fun() -> canal_lock:release(db) end)
    end),
    does(#{released_by_death => 2, permits => -2}, fun() -> ok = test_worker:kill(Proxy) end).

nothing() ->
    acquire(db, 1),
    does(#{}, fun() ->
        [?assertError(badarg, canal_lock:Call(db, -1, 1)) || Call <- [acquire, release, request, resized]],
        ?assertError(badarg, canal_lock:acquire(db, 1, 1, soon)),
        ?assertError(badarg, canal_lock:release(db, #{permits => 0})),
        ?assertError(badarg, canal_lock:give(db, me)),
        ?assertError(badarg, canal_lock:with_permit(db, 1, 1, not_a_fun)),
        ?assertError(badarg, canal_lock:acquire_on('no such node', db, 1, one)),
        [canal_lock:Call() || Call <- [keys, held, info, audit]],
        [canal_lock:Call(db) || Call <- [holders, count, waiting]],
        ok = canal_lock:resized(db, 1, 1),
        {error, not_waiting} = canal_lock:cancel(make_ref()),
        canal_lock:buckets(unknown, 3),
        canal_lock:held(self())
    end).

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
        acquire(db, 2),
        full = canal_lock:acquire(db, 1, 1)
    end),
    Changes = #{permits => 2, granted => 3, released => 1, refused => 1},
    ?assertEqual(maps:merge_with(fun(_, Count, Change) -> Count + Change end, Before, Changes), totals()),
    ok = canal_lock:stop().

not_kept() ->
    {ok, _} = canal_lock:start_link(3),
    something(),
    ok = canal_lock:stop(),
    {ok, _} = canal_lock:start_link(3),
    new_table().

something() ->
    acquire(db, 3),
    full = canal_lock:acquire(db, 1, 1),
    ok = canal_lock:release(db),
    {error, not_held} = canal_lock:release(other),
    {Holder, _} = test_worker:start(fun() -> acquire(db, 2) end),
    does(#{released_by_death => 2, permits => -2}, fun() -> test_worker:kill(Holder) end),
    ok = use(idle),
    does(#{reclaimed => 1}, fun canal_lock_manager:sweep/0),
    does(#{refused => 1, timed_out => 1}, fun() -> full = canal_lock:acquire(db, 1, 1, 1) end),
    {waiting, Ref} = canal_lock:request(db, 2, 1),
    does(#{released => 1, granted => 1, handed_over => 1}, fun() -> ok = canal_lock:release(db) end),
    {acquired, 2} = canal_lock:cancel(Ref),
    {Receiver, _} = test_worker:start(fun() -> acquire(given, 1) end),
    does(#{transferred => 1}, fun() -> ok = canal_lock:give(db, Receiver) end),
    does(#{released_by_death => 2, permits => -2}, fun() -> test_worker:kill(Receiver) end),
    ?assertEqual([], [Total || {Total, 0} <- maps:to_list(totals())]).

%% One key for each form in which keys are stored, and more keys than fit into a slot.
keys() ->
    [db, {app, 1}, <<"binary">>, "string", [list | improper], {1, {2, [3]}}, #{map => 1}, 1 bsl 70, make_ref(), 1.5].

acquire(Key, Permits) ->
    [{acquired, _} = canal_lock:acquire(Key, 1 bsl 30, 1) || _ <- lists:seq(1, Permits)],
    acquired.

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
