%% P6: each call brings its own capacity, so sizing up and down while permits are out needs no word to anybody.
-module(canal_lock_resize_tests).

-include_lib("eunit/include/eunit.hrl").

-define(MAX_PER, 5).

%% Whoever walks past them would take a hundred times as long for a thousand buckets; measured in bench/, it is 0.99.
-define(MANY, 1000).
-define(MAX_RATIO, 5).

resize_test_() ->
    canal_lock_stage:tests([
        {"P6: sizing down: refused until the sixth release", fun() -> down_from_10(fun by_release/1) end},
        {"P6: sizing down: refused until the sixth death", fun() -> down_from_10(fun by_death/1) end},
        {"P6: sizing down by releases and deaths in turn", fun by_both_in_turn/0},
        {"P6: sizing up admits at once; back down refuses still", fun up_from_5_of_5/0},
        {"P6: sizing up by death as by release", fun up_and_down_by_death/0},
        {"P3: a call costs the same for one bucket and for a thousand", fun cost_of_buckets/0},
        {"P4: who releases and then dies gives back one permit, not two", fun release_then_die/0},
        {"P4: each of several permits of one holder comes back once", fun several_of_one_holder/0}
    ]).

%% 10 holders on two buckets. One bucket is full until there are 4 of them left.
down_from_10(GoAway) ->
    Holders = holders(10, 2),
    {First, [Sixth | _]} = lists:split(5, Holders),
    [
        begin
            ok = GoAway(Holder),
            canal_lock_await:count(db, 10 - Gone),
            ?assertEqual({Gone, full}, {Gone, canal_lock:acquire(db, ?MAX_PER, 1)})
        end
     || {Gone, Holder} <- lists:zip(lists:seq(1, 5), First)
    ],
    ok = GoAway(Sixth),
    canal_lock_await:count(db, 4),
    ?assertEqual({acquired, 5}, canal_lock:acquire(db, ?MAX_PER, 1)),
    ?assertEqual(full, canal_lock:acquire(db, ?MAX_PER, 1)).

by_release(Holder) ->
    canal_lock_worker:order(Holder, fun() -> canal_lock:release(db, ?MAX_PER, 1) end).

by_death(Holder) ->
    canal_lock_worker:kill(Holder).

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
    ?assertEqual(full, canal_lock:acquire(db, ?MAX_PER, 1)),
    ?assertEqual({acquired, 6}, canal_lock:acquire(db, ?MAX_PER, 2)),
    ok = canal_lock:release(db),
    ?assertEqual(full, canal_lock:acquire(db, ?MAX_PER, 1)),
    ?assertEqual({acquired, 6}, canal_lock:acquire(db, ?MAX_PER, 2)).

up_and_down_by_death() ->
    [Victim | _] = holders(5, 1),
    {Sixth, {acquired, 6}} = canal_lock_worker:start(fun() -> canal_lock:acquire(db, ?MAX_PER, 2) end),
    ok = by_death(Sixth),
    canal_lock_await:count(db, 5),
    ?assertEqual(full, canal_lock:acquire(db, ?MAX_PER, 1)),
    ok = by_death(Victim),
    canal_lock_await:count(db, 4),
    ?assertEqual({acquired, 5}, canal_lock:acquire(db, ?MAX_PER, 1)).

release_then_die() ->
    [One, Two, Three] = holders(3, 1),
    Release = fun() -> canal_lock:release(db, ?MAX_PER, 1) end,
    ok = canal_lock_worker:release_then_die(One, Release),
    ok = canal_lock_worker:order(Two, Release),
    ok = canal_lock_worker:kill(Two),
    %% A second permit given back by either would show at the latest when the third holder has gone.
    canal_lock_await:count(db, 1),
    ?assertEqual({acquired, 2}, canal_lock:acquire(db, ?MAX_PER, 1)),
    ok = canal_lock_worker:kill(Three),
    canal_lock_await:count(db, 1),
    ?assertMatch(#{permits := 1, holders := 1}, canal_lock:info()).

several_of_one_holder() ->
    [Holder, Other] = holders(2, 1),
    {acquired, 3} = canal_lock_worker:order(Holder, fun() -> canal_lock:acquire(db, ?MAX_PER, 1) end),
    {acquired, 4} = canal_lock_worker:order(Holder, fun() -> canal_lock:acquire(db, ?MAX_PER, 1) end),
    ok = canal_lock_worker:order(Holder, fun() -> canal_lock:release(db) end),
    ?assertEqual(3, canal_lock:count(db)),
    ok = canal_lock_worker:kill(Holder),
    canal_lock_await:count(db, 1),
    ok = canal_lock_worker:kill(Other),
    canal_lock_await:count(db, 0).

holders(Count, Buckets) ->
    [
        begin
            {Holder, {acquired, N}} =
                canal_lock_worker:start(fun() -> canal_lock:acquire(db, ?MAX_PER, Buckets) end),
            Holder
        end
     || N <- lists:seq(1, Count)
    ].

cost_of_buckets() ->
    [One, Many] = [pairs_above(Buckets) || Buckets <- [1, ?MANY]],
    ?assertMatch({_, _, true}, {One, Many, Many < ?MAX_RATIO * One}).

%% Microseconds for a thousand pairs and refusals, with so many buckets full.
pairs_above(Full) ->
    Key = {full, Full},
    [{acquired, _} = canal_lock:acquire(Key, ?MAX_PER, Full) || _ <- lists:seq(1, Full * ?MAX_PER)],
    canal_lock_stage:fastest_us(fun() ->
        [
            begin
                full = canal_lock:acquire(Key, ?MAX_PER, Full),
                {acquired, _} = canal_lock:acquire(Key, ?MAX_PER, Full + 1),
                ok = canal_lock:release(Key, ?MAX_PER, Full + 1)
            end
         || _ <- lists:seq(1, 1000)
        ]
    end).
