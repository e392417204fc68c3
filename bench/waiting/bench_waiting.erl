%% The program `waiting': what it costs to wait for permits and to give them away, beside poolboy.
-module(bench_waiting).

-export([program/1]).

-spec program(ModeName :: string()) -> bench:program().
program(ModeName) ->
    #{
        mode => mode(ModeName),
        groups => [
            {"free permits", fun bench_waiting_pairs:measure/1},
            {"hand-over", fun bench_waiting_hand_over:measure/1},
            {"many waiters", fun bench_waiting_queue:measure/1}
        ],
        cases => [
            {uncontended, "acquire of a free permit + release, one process"},
            {hand_over, "from the release to the instant when the waiter runs (X is the percentile)"},
            {queue, "a turn with X waiters on the key"}
        ],
        variants => ["two schedulers", "two schedulers, asleep", "one scheduler"],
        subjects => [ours, other, poolboy, none],
        targets => targets(),
        facts => [{"poolboy", poolboy()}]
    }.

mode("full") ->
    #{
        rounds => 21,
        sample_ms => 30,
        hand_over_rounds => 9,
        hand_overs => 10000,
        slow_hand_overs => 200,
        queue_rounds => 11,
        waiters => [1, 100, 10000],
        turns => 30000
    };
mode("quick") ->
    #{
        rounds => 3,
        sample_ms => 5,
        hand_over_rounds => 1,
        hand_overs => 5000,
        slow_hand_overs => 100,
        queue_rounds => 1,
        waiters => [1, 10000],
        turns => 5000
    }.

poolboy() ->
    case bench_waiting_subjects:poolboy() of
        none -> "not installed, so this subject is left out";
        Version -> Version
    end.

targets() ->
    Ratio = fun bench_results:ratio/3,
    Free = fun(Variant, Subject) ->
        {quotient, {uncontended, Variant, none, Subject, pair}, {uncontended, "acquire/3", none, ours, pair}}
    end,
    HandOver = fun(Variant) -> {hand_over, Variant, 50, to_run} end,
    Queue = fun(Variant, Subject) ->
        {quotient, {queue, Variant, 10000, Subject, turn}, {queue, Variant, 1, Subject, turn}}
    end,
    [
        {Free("acquire/4, timeout", ours), {at_most, 1.03}},
        {Free("acquire/4, map", ours), {at_most, 1.1}},
        {Free("with a timeout", poolboy), none}
    ] ++
        [
            Target
         || Variant <- ["two schedulers", "one scheduler"],
            Target <- [
                {Ratio(HandOver(Variant), ours, poolboy), {at_most, 0.5}},
                {Ratio(HandOver(Variant), ours, none), none},
                {{value, {hand_over, Variant, 99.9, ours, to_run}}, {at_most, 50000}}
            ]
        ] ++
        [{Ratio(HandOver("two schedulers, asleep"), ours, Other), none} || Other <- [poolboy, none]] ++
        [
            {Queue(Variant, ours), {at_most, 1.3}}
         || Variant <- ["hand-over, requests", "hand-over, processes", "cancel"]
        ] ++
        [{Queue("hand-over, processes", poolboy), none}].
