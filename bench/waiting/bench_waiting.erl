%% The program `waiting': what it costs to wait for permits and to give them away, beside a gen_server queue and
%% poolboy.
-module(bench_waiting).

-export([program/1]).

-spec program(ModeName :: string()) -> bench:program().
program(ModeName) ->
    #{
        mode => mode(ModeName),
        groups => [
            {"free permits", fun bench_waiting_pairs:measure/1},
            {"hand-over", fun bench_waiting_hand_over:measure/1},
            {"many waiters", fun bench_waiting_queue:measure/1},
            {"overload", fun bench_waiting_overload:measure/1},
            {"memory of waiters", fun bench_waiting_memory:measure/1}
        ],
        cases => [
            {uncontended, "acquire of a free permit + release, one process"},
            {give, "give of a permit to another process"},
            {hand_over, "from the release to the instant when the waiter runs (X is the percentile)"},
            {queue, "a turn with X waiters on the key"},
            {overload, "1,000 clients and 100 permits"},
            {waiter, "memory of a waiter"}
        ],
        variants => ["two schedulers", "two schedulers, asleep", "one scheduler"],
        subjects => [ours, other, gen_server, poolboy, none],
        targets => lists:append([free_permits(), hand_over(), many_waiters(), memory(), overload()]),
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
        turns => 30000,
        memory_rounds => 3,
        memory_waiters => 50000,
        overload_rounds => 7,
        overload_ms => 1500,
        warm_up_ms => 300
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
        turns => 5000,
        memory_rounds => 1,
        memory_waiters => 10000,
        overload_rounds => 1,
        overload_ms => 300,
        warm_up_ms => 100
    }.

poolboy() ->
    case bench_waiting_subjects:poolboy() of
        none -> "not installed, so this subject is left out";
        Version -> Version
    end.

free_permits() ->
    Id = fun(Variant, Subject) -> {uncontended, Variant, none, Subject, pair} end,
    Of = fun(Variant, Subject) -> {quotient, Id(Variant, Subject), Id("acquire/3", ours)} end,
    [
        {"free permit: acquire/4 with a timeout / acquire/3", Of("acquire/4, timeout", ours), {at_most, 1.03}},
        {"free permit: acquire/4 with a map / acquire/3", Of("acquire/4, map", ours), {at_most, 1.1}},
        {"free permit: gen_server / acquire/3", Of("with a timeout", gen_server)},
        {"free permit: poolboy / acquire/3", Of("with a timeout", poolboy)},
        {"give to a known process", {value, {give, "to a known process", none, ours, give}}, {at_most, 300}}
    ].

hand_over() ->
    Id = fun(Variant, Percent, Subject) -> {hand_over, Variant, Percent, Subject, to_run} end,
    Of = fun(Variant, Other) -> {quotient, Id(Variant, 50, ours), Id(Variant, 50, Other)} end,
    Asleep = "two schedulers, asleep",
    lists:append([
        [
            {"hand-over, " ++ Variant ++ ": ours / gen_server", Of(Variant, gen_server), {at_most, 0.6}},
            {"hand-over, " ++ Variant ++ ": ours / poolboy", Of(Variant, poolboy), {at_most, 0.5}},
            {"hand-over, " ++ Variant ++ ": ours / a message", Of(Variant, none)},
            {"hand-over, " ++ Variant ++ ", p99.9: ours", {value, Id(Variant, 99.9, ours)}, {at_most, 50000}}
        ]
     || Variant <- ["two schedulers", "one scheduler"]
    ]) ++ [{lists:concat(["hand-over, ", Asleep, ": ours / ", S]), Of(Asleep, S)} || S <- [gen_server, poolboy]].

many_waiters() ->
    Of = fun(Variant, Subject) ->
        {quotient, {queue, Variant, 10000, Subject, turn}, {queue, Variant, 1, Subject, turn}}
    end,
    [
        {"10,000 waiters / 1, a hand-over, requests of one process", Of("hand-over, requests", ours), {at_most, 1.3}},
        {"10,000 waiters / 1, a hand-over, processes: ours", Of("hand-over, processes", ours), {at_most, 1.3}},
        {"10,000 waiters / 1, a hand-over, processes: gen_server", Of("hand-over, processes", gen_server)},
        {"10,000 waiters / 1, a hand-over, processes: poolboy", Of("hand-over, processes", poolboy)},
        {"10,000 processes / 1, a message to the next one", Of("hand-over, processes", none)},
        {"10,000 waiters / 1, a cancel and a new request", Of("cancel", ours), {at_most, 1.3}}
    ].

memory() ->
    [
        {Text, {value, {waiter, Variant, none, ours, Measure}}, {at_most, 1100}}
     || {Text, Variant, Measure} <- [
            {"memory of a request, table's account", "request", own},
            {"memory of a request, of the VM", "request", vm},
            {"memory of a waiting process beyond a bare one, of the VM", "process", vm}
        ]
    ].

overload() ->
    Id = fun(Variant, Subject, Measure) -> {overload, Variant, none, Subject, Measure} end,
    Of = fun(Variant, Subject) -> {quotient, Id(Variant, ours, per_second), Id(Variant, Subject, per_second)} end,
    [
        {"permits/s, holds of 1 ms: ours / no limit", Of("holds of 1 ms", none), {at_least, 0.95}},
        {"permits/s, holds of 1 ms: ours / gen_server", Of("holds of 1 ms", gen_server)},
        {"permits/s, holds of 1 ms: ours / poolboy", Of("holds of 1 ms", poolboy)},
        {"permits/s, holds of 5 us: ours / no limit", Of("holds of 5 us", none)},
        {"permits/s, holds of 5 us: ours / gen_server", Of("holds of 5 us", gen_server), {at_least, 3}},
        {"permits/s, holds of 5 us: ours / poolboy", Of("holds of 5 us", poolboy), {at_least, 3}}
        | [
            {"waits, " ++ Variant ++ ", p99.9 / median: ours",
                {quotient, Id(Variant, ours, wait_p999), Id(Variant, ours, wait_median)}, {at_most, 2}}
         || {Variant, _} <- bench_waiting_overload:loads()
        ]
    ].
