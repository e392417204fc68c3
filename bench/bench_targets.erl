%% The targets as data. A missed target is printed and does not change the exit status, because load on a shared machine
%% can cause it.
-module(bench_targets).

-export([targets/0, figure/2]).

-export_type([target/0, figure/0]).

-type target() :: #{
    text := string(),
    figure := figure(),
    %% Unit of the figure in the report.
    unit := string(),
    bound => {at_most | at_least, number()}
}.
%% Computed within each round, so that a disturbance that affects the whole round cancels out.
-type figure() ::
    {quotient, Dividend :: bench_results:id(), Divisor :: bench_results:id()}
    | {difference, bench_results:id(), bench_results:id()}
    | {value, bench_results:id()}.

-spec figure(figure(), bench_results:results()) -> {ok, [float(), ...]} | not_measured.
figure({value, Id}, Results) ->
    case Results of
        #{Id := Samples} -> {ok, [Value || {_, Value} <- Samples]};
        #{} -> not_measured
    end;
figure({How, A, B}, Results) ->
    case Results of
        #{A := As, B := Bs} -> {ok, [of_both(How, Pair) || Pair <- bench_results:by_round(As, Bs)]};
        #{} -> not_measured
    end.

of_both(quotient, {A, B}) -> A / B;
of_both(difference, {A, B}) -> A - B.

%% Entries without a bound are printed for comparison with their neighbors.
-spec targets() -> [target(), ...].
targets() ->
    lists:append([pairs(), two_processes(), flat(), large(), lifetimes(), memory(), latency()]).

pairs() ->
    Frequent = [{"atom", 1.4}, {"{app, 12345}", 1.4}, {"32-byte binary", 1.7}],
    Quotient = fun(Variant, A, B) -> {quotient, {pair, Variant, none, A, pair}, {pair, Variant, none, B, pair}} end,
    lists:append([
        [
            times("pair, " ++ Variant ++ ": ours / floor", Quotient(Variant, ours, floor), {at_most, Most})
         || {Variant, Most} <- Frequent
        ],
        [
            times("pair, " ++ Variant ++ ": ours / two atomics", Quotient(Variant, ours, atomics), {at_most, 2})
         || {Variant, _} <- Frequent
        ],
        [
            times(
                "pair, " ++ Variant ++ ": " ++ atom_to_list(Subject) ++ " / ours",
                Quotient(Variant, Subject, ours),
                {at_least, Least}
            )
         || {Subject, Least} <- [{ets, 30}, {counters, 3}],
            {Variant, _} <- Frequent
        ],
        [
            without_bound("pair, " ++ Variant ++ ": elixir / ours", Quotient(Variant, elixir, ours))
         || {Variant, _} <- Frequent
        ],
        %% At most two thirds of the time of the counters.
        [
            times("pair, " ++ Variant ++ ": counters / ours", Quotient(Variant, counters, ours), {at_least, 1.5})
         || {Variant, _} <- bench_cases:keys(), not lists:keymember(Variant, 1, Frequent)
        ]
    ]).

two_processes() ->
    Gain = fun(Subject) ->
        {quotient, {crowd, "distinct keys", 2, Subject, per_second}, {crowd, "distinct keys", 1, Subject, per_second}}
    end,
    [
        times("throughput, distinct keys, two processes / one: ours", Gain(ours), {at_least, 1.9}),
        %% The gain that the machine allows at that moment: two counters that share no cache line.
        without_bound("throughput, distinct keys, two processes / one: atomics", Gain(atomics)),
        times(
            "two processes on one key: ours / floor",
            {quotient, {crowd, "one key", 2, ours, pair}, {crowd, "one key", 2, floor, pair}},
            {at_most, 1.15}
        )
    ].

%% The cost must not change; 10 % is the tolerance for noise on a shared machine.
flat() ->
    Flat = fun(Text, Case, Variant, Many) ->
        times(Text, {quotient, {Case, Variant, Many, ours, pair}, {Case, Variant, 1, ours, pair}}, {at_most, 1.1})
    end,
    [
        Flat("above 1000 full buckets / 1: ours", buckets, "MaxPer 1", 1000),
        Flat("holding 100,000 permits of the key / 1: ours", held, "permits of the key", 100000),
        Flat("holding 100,000 permits of other keys / 1: ours", held, "permits of other keys", 100000)
    ].

large() ->
    Id = fun(Subject) -> {keys, "random keys", 1000000, Subject, pair} end,
    [
        plain("a key among 1,000,000: ours", {value, Id(ours)}, "ns", {at_most, 350}),
        times("a key among 1,000,000: ets / ours", {quotient, Id(ets), Id(ours)}, {at_least, 10})
    ].

%% Wall time while all schedulers are busy with lifetimes: with two, a lifetime takes twice that in processor time.
lifetimes() ->
    lists:append([
        [
            plain(
                "a lifetime (" ++ Variant ++ ") minus a bare one: ours",
                {difference, {lives, Variant, none, ours, per_life}, {lives, Variant, none, none, per_life}},
                "ns",
                {at_most, 350}
            )
         || Variant <- ["release and exit", "die holding"]
        ],
        %% The lower bound: the VM's monitor with a library that does nothing on a death.
        [
            times(
                "a lifetime (" ++ Variant ++ "): ours / monitored only",
                {quotient, {lives, Variant, none, ours, per_life}, {lives, Variant, none, floor, per_life}},
                {at_most, 1.1}
            )
         || Variant <- ["release and exit", "die holding"]
        ],
        [
            plain(
                "from the last of 200,000 deaths to all free: ours",
                {value, {die_off, "200,000 holders", none, ours, last_death_to_free}},
                "ms",
                {at_most, 1}
            )
        ]
    ]).

memory() ->
    OfHolder = fun(Measure) -> {value, {memory, "holder", none, ours, Measure}} end,
    lists:append([
        [
            plain(
                "memory of a key, " ++ Shape ++ ": ours",
                {value, {memory, Shape, none, ours, per_key}},
                "B",
                {at_most, 160}
            )
         || {Shape, _} <- bench_cases:shapes()
        ],
        %% This includes overhead of the allocator and partly used pages, which the library's own figure does not.
        [
            #{
                text => "resident memory of a key, " ++ Shape ++ ": ours",
                figure => {value, {memory, Shape, none, ours, per_key_os}},
                unit => "B"
            }
         || {Shape, _} <- bench_cases:shapes()
        ],
        [
            plain(
                "memory of a holder, beyond the slots: ours",
                OfHolder(per_holder),
                "B",
                {at_most, 64}
            ),
            without_bound("memory of a holder, with its slot: ours", OfHolder(per_holder_with_slots)),
            without_bound("memory of a holder, in the VM: ours", OfHolder(per_holder_vm))
        ]
    ]).

latency() ->
    At = fun(Percentile) -> {latency, "under load", Percentile, ours, acquire} end,
    [times("acquire under load, p99.9 / median: ours", {quotient, At(99.9), At(50)}, {at_most, 10})].

without_bound(Text, Figure) ->
    #{text => Text, figure => Figure, unit => ""}.

times(Text, Figure, Bound) ->
    plain(Text, Figure, "", Bound).

plain(Text, Figure, Unit, Bound) ->
    #{text => Text, figure => Figure, unit => Unit, bound => Bound}.
