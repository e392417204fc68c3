%% The targets of waiting, as data. A missed target is printed and does not change the exit status.
-module(bench_waiting_targets).

-export([targets/0]).

-spec targets() -> [bench_targets:target(), ...].
targets() ->
    lists:append([free_permits(), hand_over(), many_waiters(), overload(), order(), give(), death()]).

free_permits() ->
    Id = fun(Subject, Measure) -> {uncontended, "acquire + release", none, Subject, Measure} end,
    Of = fun(Subject, Measure) -> {quotient, Id(Subject, Measure), Id(ours, 'acquire/3')} end,
    [
        target("free permit: acquire/4 with a timeout / acquire/3", Of(ours, 'acquire/4 timeout'), {at_most, 1.03}),
        target("free permit: acquire/4 with a map / acquire/3", Of(ours, 'acquire/4 map'), {at_most, 1.1}),
        target("free permit: gen_server / acquire/3", Of(gen_server, 'with timeout')),
        target("free permit: poolboy / acquire/3", Of(poolboy, 'with timeout'))
    ].

hand_over() ->
    Id = fun(Variant, Percent, Subject) -> {hand_over, Variant, Percent, Subject, to_run} end,
    Of = fun(Variant, Other) -> {quotient, Id(Variant, 50, ours), Id(Variant, 50, Other)} end,
    lists:append([
        [
            target("hand-over, " ++ Variant ++ ": ours / gen_server", Of(Variant, gen_server), {at_most, 0.6}),
            target("hand-over, " ++ Variant ++ ": ours / poolboy", Of(Variant, poolboy), {at_most, 0.5}),
            in_ns("hand-over, " ++ Variant ++ ", p99.9: ours", {value, Id(Variant, 99.9, ours)}, {at_most, 50000})
        ]
     || Variant <- ["two schedulers", "one scheduler"]
    ]) ++
        [
            target(lists:concat(["hand-over, ", Variant, ": ours / ", Name]), Of(Variant, Other))
         || {Variant, Others} <- [
                {"two schedulers, asleep", [gen_server, poolboy, none]},
                {"two schedulers", [none]},
                {"one scheduler", [none]}
            ],
            Other <- Others,
            Name <- [case Other of none -> "a message"; _ -> Other end]
        ].

many_waiters() ->
    Id = fun(Variant, Waiters, Subject) -> {queue, Variant, Waiters, Subject, turn} end,
    Of = fun(Variant, Subject) -> {quotient, Id(Variant, 10000, Subject), Id(Variant, 1, Subject)} end,
    [
        target(
            "10,000 waiters / 1, a hand-over, requests of one process",
            Of("hand-over, requests", ours),
            {at_most, 1.3}
        ),
        target("10,000 waiters / 1, a hand-over, processes: ours", Of("hand-over, processes", ours), {at_most, 1.3}),
        target("10,000 waiters / 1, a hand-over, processes: gen_server", Of("hand-over, processes", gen_server)),
        target("10,000 waiters / 1, a hand-over, processes: poolboy", Of("hand-over, processes", poolboy)),
        target("10,000 processes / 1, a message to the next one", Of("hand-over, processes", none)),
        target("10,000 waiters / 1, a cancel", Of("cancel", ours), {at_most, 1.3})
        | [
            (target(Text, {value, {waiter, Variant, none, ours, Measure}}, {at_most, 1100}))#{unit => "B"}
         || {Text, Variant, Measure} <- [
                {"memory of a request, table's account", "request", own},
                {"memory of a request, of the VM", "request", vm},
                {"memory of a waiting process beyond a bare one, of the VM", "process", vm}
            ]
        ]
    ].

overload() ->
    Id = fun(Variant, Subject, Measure) -> {overload, Variant, none, Subject, Measure} end,
    Of = fun(Variant, Subject) -> {quotient, Id(Variant, ours, per_second), Id(Variant, Subject, per_second)} end,
    Bound = {quotient, Id("holds of 5 us", none, per_second), Id("holds of 5 us", gen_server, per_second)},
    [
        target("permits/s, holds of 1 ms: ours / no limit", Of("holds of 1 ms", none), {at_least, 0.95}),
        target("permits/s, holds of 1 ms: ours / gen_server", Of("holds of 1 ms", gen_server)),
        target("permits/s, holds of 1 ms: ours / poolboy", Of("holds of 1 ms", poolboy)),
        target("permits/s, holds of 5 us: ours / no limit", Of("holds of 5 us", none)),
        target("permits/s, holds of 5 us: ours / gen_server", Of("holds of 5 us", gen_server), {at_least, 3}),
        target("permits/s, holds of 5 us: ours / poolboy", Of("holds of 5 us", poolboy), {at_least, 3}),
        target("permits/s, holds of 5 us: no limit / gen_server", Bound)
        | [
            target(
                "waits, " ++ Variant ++ ", p99.9 / median: ours",
                {quotient, Id(Variant, ours, wait_p999), Id(Variant, ours, wait_median)},
                {at_most, 2}
            )
         || {Variant, _} <- bench_waiting_overload:loads()
        ]
    ].

order() ->
    [
        target(
            "overtaking requests, " ++ Variant,
            {value, {order, Variant, none, ours, overtaking}},
            {at_most, 0}
        )
     || Variant <- ["1,000 processes" | ["one process, " ++ Load || {Load, _} <- bench_waiting_overload:loads()]]
    ].

give() ->
    Id = fun(Variant) -> {value, {give, Variant, none, ours, give}} end,
    [
        in_ns("give to a known process", Id("to a known process"), {at_most, 300}),
        (target("give to a process that never had anything", Id("to a new process")))#{unit => "ns"}
    ].

death() ->
    Id = fun(Variant) -> {death, Variant, none, ours, per_life} end,
    Figure = {difference, Id("one has waited"), Id("no process has waited")},
    [in_ns("a death, once any process has waited", Figure, {at_most, 30})].

target(Text, Figure) ->
    #{text => Text, figure => Figure, unit => ""}.

target(Text, Figure, Bound) ->
    (target(Text, Figure))#{bound => Bound}.

in_ns(Text, Figure, Bound) ->
    (target(Text, Figure, Bound))#{unit => "ns"}.
