%% Compares counts and quantiles of the statistics with those of a plain list.
%%
%% PropEr is called without its header file, because some installations do not have it.
-module(router_stats_tests).

-include_lib("eunit/include/eunit.hrl").

-import(proper_types, [bind/3, list/1, non_empty/1, range/2]).

-define(LARGEST_NS, (1 bsl 40)).

stats_test_() ->
    [
        {"a reading has all counts", fun counts/0},
        {"a new reading is empty", fun nothing/0},
        {"waits are counted separately from acquire times", fun waits/0},
        {"each time below 16 ns has its own class", fun small/0},
        {"classes are contiguous up to the last", fun classes/0},
        {"times beyond the range are in the last class", fun large/0},
        {"since/2 subtracts an earlier reading", fun since/0},
        {timeout, 60, {"a quantile exceeds the exact one by at most 1/8", fun quantiles/0}},
        {timeout, 60, {"since/2 yields what was added between two readings", fun since_any/0}}
    ].

with(Times) ->
    add(router_stats:new(), Times).

add(Stats, Times) ->
    [ok = router_stats:granted(Stats, Time) || Time <- Times],
    Stats.

below(Time) ->
    #{times := [{Below, 1}]} = router_stats:read(with([Time])),
    Below.

counts() ->
    Stats = with([1, 1, 100]),
    ok = router_stats:refused(Stats, 1),
    ok = router_stats:ended(Stats),
    ok = router_stats:ended(Stats),
    ok = router_stats:failed(Stats),
    ?assertEqual(
        #{granted => 3, refused => 1, ended => 2, failed => 1, times => [{2, 3}, {104, 1}], waits => []},
        router_stats:read(Stats)
    ).

waits() ->
    Stats = with([1]),
    [ok = router_stats:waited(Stats, Time) || Time <- [0, 100, 100, 1 bsl 60]],
    #{granted := 1, times := [{2, 1}], waits := Waits} = router_stats:read(Stats),
    ?assertEqual([{1, 1}, {104, 2}, {?LARGEST_NS, 1}], Waits),
    ?assertEqual(4, router_stats:total(Waits)).

nothing() ->
    Reading = router_stats:read(router_stats:new()),
    ?assertEqual(#{granted => 0, refused => 0, ended => 0, failed => 0, times => [], waits => []}, Reading),
    ?assertEqual([0, 0], [router_stats:quantile([], Thousandths) || Thousandths <- [1, 1000]]),
    ?assertEqual(Reading, router_stats:since(Reading, Reading)).

small() ->
    ?assertEqual(lists:seq(1, 16), [below(Time) || Time <- lists:seq(0, 15)]).

classes() ->
    Last = classes(0, []),
    ?assertEqual(?LARGEST_NS, hd(Last)),
    %% Eight per power of two, and eight for the times below 8 ns.
    ?assertEqual(8 * (40 - 2), length(Last)).

%% The lower bound of each class is the upper bound of the previous one.
classes(Lower, Before) ->
    Upper = below(Lower),
    ?assert(Upper > Lower),
    ?assert((Upper - Lower) * 8 =< max(8, Lower)),
    ?assertEqual(Upper, below(Upper - 1)),
    case Upper >= ?LARGEST_NS of
        true -> [Upper | Before];
        false -> classes(Upper, [Upper | Before])
    end.

large() ->
    [?assertEqual(?LARGEST_NS, below(Time)) || Time <- [?LARGEST_NS - 1, ?LARGEST_NS, 1 bsl 41, 1 bsl 64, 1 bsl 200]].

since() ->
    Stats = with([1, 5, 5]),
    ok = router_stats:ended(Stats),
    ok = router_stats:waited(Stats, 5),
    Earlier = router_stats:read(Stats),
    _ = add(Stats, [5, 9]),
    ok = router_stats:waited(Stats, 9),
    ok = router_stats:refused(Stats, 9),
    ok = router_stats:failed(Stats),
    ?assertEqual(
        #{granted => 2, refused => 1, ended => 0, failed => 1, times => [{6, 1}, {10, 2}], waits => [{10, 1}]},
        router_stats:since(Earlier, router_stats:read(Stats))
    ).

quantiles() ->
    ?assert(proper:quickcheck(quantile_property(), [quiet, {numtests, 500}])).

quantile_property() ->
    proper:forall({non_empty(list(time_ns())), range(1, 1000)}, fun({Times, Thousandths}) ->
        Quantile = router_stats:quantile(maps:get(times, router_stats:read(with(Times))), Thousandths),
        %% The smallest rank that covers this share.
        Rank = ceil(length(Times) * Thousandths / 1000),
        Exact = lists:nth(Rank, lists:sort(Times)),
        Quantile > Exact andalso 8 * (Quantile - Exact) =< max(8, Exact)
    end).

since_any() ->
    ?assert(proper:quickcheck(since_property(), [quiet, {numtests, 500}])).

since_property() ->
    proper:forall({list(time_ns()), list(time_ns())}, fun({Before, After}) ->
        Stats = with(Before),
        Earlier = router_stats:read(Stats),
        router_stats:since(Earlier, router_stats:read(add(Stats, After))) =:= router_stats:read(with(After))
    end).

%% Short and long times are equally frequent.
time_ns() ->
    bind(range(0, 39), fun(Power) -> range(0, (1 bsl (Power + 1)) - 1) end, false).
