%% P6: each call passes its own capacity, so a caller can raise and lower it while permits are held.
-module(canal_lock_resize_tests).

-include_lib("eunit/include/eunit.hrl").

-define(MAX_PER, 5).

-define(MANY, 1000).

resize_test_() ->
    test_setup:tests([
        {"P6: a lower capacity refuses until the sixth release", fun() -> down_from_10(fun by_release/1) end},
        {"P6: a lower capacity refuses until the sixth death", fun() -> down_from_10(fun by_death/1) end},
        {"P6: a lower capacity refuses until the sixth release or death, in turn", fun by_both_in_turn/0},
        {"P6: a higher capacity admits at once; back to the lower one, calls are refused", fun up_from_5_of_5/0},
        {"P6: a death makes the same space as a release", fun up_and_down_by_death/0},
        {"P3: a thousand buckets take no more memory than one", fun memory_of_buckets/0},
        {"P4: a holder that releases and then dies releases one permit, not two", fun release_then_die/0}
    ]).

%% Ten holders on two buckets. A call with one bucket is refused until only 4 of them are left.
down_from_10(Remove) ->
    Holders = holders(10, 2),
    {First, [Sixth | _]} = lists:split(5, Holders),
    lists:foreach(fun({Removed, Holder}) ->
        ok = Remove(Holder),
        test_await:count(db, 10 - Removed),
        ?assertEqual({Removed, full}, {Removed, acquire(1)})
    end, lists:enumerate(First)),
    ok = Remove(Sixth),
    test_await:count(db, 4),
    ?assertEqual({acquired, 5}, acquire(1)),
    ?assertEqual(full, acquire(1)).

acquire(Buckets) ->
    canal_lock:acquire(db, ?MAX_PER, Buckets).

by_release(Holder) ->
    test_worker:order(Holder, fun() -> canal_lock:release(db, ?MAX_PER, 1) end).

by_death(Holder) ->
    test_worker:kill(Holder).

by_both_in_turn() ->
    Turn = counters:new(1, []),
    down_from_10(fun(Holder) ->
        ok = counters:add(Turn, 1, 1),
        case counters:get(Turn, 1) rem 2 of
            0 -> by_release(Holder);
            1 -> by_death(Holder)
        end
    end).

up_from_5_of_5() ->
    _ = holders(5, 1),
    ?assertEqual(full, acquire(1)),
    ?assertEqual({acquired, 6}, acquire(2)),
    ok = canal_lock:release(db),
    ?assertEqual(full, acquire(1)),
    ?assertEqual({acquired, 6}, acquire(2)).

up_and_down_by_death() ->
    [Victim | _] = holders(5, 1),
    {Sixth, {acquired, 6}} = test_worker:start(fun() -> acquire(2) end),
    ok = by_death(Sixth),
    test_await:count(db, 5),
    ?assertEqual(full, acquire(1)),
    ok = by_death(Victim),
    test_await:count(db, 4),
    ?assertEqual({acquired, 5}, acquire(1)).

release_then_die() ->
    [One, Two, Three] = holders(3, 1),
    Release = fun() -> canal_lock:release(db, ?MAX_PER, 1) end,
    ok = test_worker:release_then_die(One, Release),
    ok = test_worker:order(Two, Release),
    ok = test_worker:kill(Two),
    %% A second release by either holder would show once the third one is dead.
    test_await:count(db, 1),
    ?assertEqual({acquired, 2}, acquire(1)),
    ok = test_worker:kill(Three),
    test_await:count(db, 1),
    ?assertMatch(#{permits := 1, holders := 1}, canal_lock:info()).

holders(Count, Buckets) ->
    Start = fun(N) ->
        {Holder, {acquired, N}} = test_worker:start(fun() -> acquire(Buckets) end),
        Holder
    end,
    [Start(N) || N <- lists:seq(1, Count)].

%% The table stores nothing per bucket, so calls have nothing to walk over. The case `buckets' of bench/ measures the
%% cost of calls.
memory_of_buckets() ->
    Fill = fun(Bucket) -> [{acquired, _} = acquire(Bucket) || _ <- lists:seq(1, ?MAX_PER)] end,
    Fill(1),
    #{memory := One} = canal_lock:info(),
    lists:foreach(Fill, lists:seq(2, ?MANY)),
    ?assertMatch(#{memory := One, permits := ?MANY * ?MAX_PER}, canal_lock:info()),
    ?assertEqual(full, acquire(?MANY)),
    ?assertEqual({acquired, ?MANY * ?MAX_PER + 1}, acquire(?MANY + 1)).
