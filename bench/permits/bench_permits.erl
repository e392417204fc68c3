%% The program `permits': what acquire and release cost, in time and memory, beside other designs and lower bounds.
-module(bench_permits).

-export([program/1]).

-spec program(ModeName :: string()) -> bench:program().
program(ModeName) ->
    #{
        mode => mode(ModeName),
        groups => [
            {"loops of calls", fun bench_pairs:measure/1},
            {"many keys", fun bench_keys:measure/1},
            {"latency", fun bench_latency:measure/1},
            {"short-lived processes", fun bench_lives:measure/1},
            {"die-off", fun bench_die_off:measure/1},
            {"memory", fun bench_memory:measure/1}
        ],
        cases => [
            {pair, "acquire + release, one process"},
            {refused, "refusals while another process holds the only permit (full)"},
            {buckets, "acquire + release above X full buckets (MaxPer 1, other processes hold them)"},
            {keys, "acquire + release of a random key among X keys in use, one process"},
            {crowd, "acquire + release by X concurrent processes"},
            {held, "acquire + release by a process that holds X permits"},
            {latency, "duration of single calls (X is the percentile)"},
            {lives, "short-lived processes"},
            {die_off, "many holders killed at once"},
            {memory, "memory of a key in use, and of a holder"}
        ],
        variants => [Variant || {Variant, _} <- bench_pairs:keys()],
        subjects => [ours, other, elixir, ets, counters, atomics, floor, none],
        targets => lists:append([pairs(), two_processes(), flat(), large(), deaths(), memory(), latency()]),
        facts => []
    }.

mode("full") ->
    #{
        rounds => 21,
        sample_ms => 30,
        crowds => [1, 2, 10, 100, 1000],
        held => [1, 100000],
        keys => [1, 10, 100, 1000, 10000, 100000, 1000000],
        latency_rounds => 3,
        latency_calls => 300000,
        latency_keys => 500000,
        lives_rounds => 7,
        lives => 100000,
        die_off_rounds => 3,
        die_off_holders => 200000,
        memory_rounds => 1,
        memory_keys => 1000000,
        memory_holders => 100000
    };
mode("quick") ->
    #{
        rounds => 3,
        sample_ms => 5,
        crowds => [1, 2, 1000],
        held => [1, 100000],
        keys => [1, 100000],
        latency_rounds => 1,
        latency_calls => 30000,
        latency_keys => 100000,
        lives_rounds => 1,
        lives => 10000,
        die_off_rounds => 1,
        die_off_holders => 20000,
        memory_rounds => 1,
        memory_keys => 100000,
        memory_holders => 10000
    }.

pairs() ->
    Frequent = [{"atom", 1.4}, {"{app, 12345}", 1.4}, {"32-byte binary", 1.7}],
    Quotient = fun(Variant, A, B) -> {quotient, {pair, Variant, none, A, pair}, {pair, Variant, none, B, pair}} end,
    lists:append([
        [{"pair, " ++ Variant ++ ": ours / floor", Quotient(Variant, ours, floor), {at_most, Most}}
         || {Variant, Most} <- Frequent],
        [{"pair, " ++ Variant ++ ": ours / two atomics", Quotient(Variant, ours, atomics), {at_most, 2}}
         || {Variant, _} <- Frequent],
        [{"pair, " ++ Variant ++ ": ets / ours", Quotient(Variant, ets, ours), {at_least, 30}}
         || {Variant, _} <- Frequent],
        [{"pair, " ++ Variant ++ ": elixir / ours", Quotient(Variant, elixir, ours)} || {Variant, _} <- Frequent],
        %% 1.5: at most two thirds of the time of the counters.
        [{"pair, " ++ Variant ++ ": counters / ours", Quotient(Variant, counters, ours), {at_least, Least}}
         || {Variant, _} <- bench_pairs:keys(),
            Least <- [case lists:keymember(Variant, 1, Frequent) of true -> 3; false -> 1.5 end]]
    ]).

two_processes() ->
    Gain = fun(Subject) ->
        {quotient, {crowd, "distinct keys", 2, Subject, per_second}, {crowd, "distinct keys", 1, Subject, per_second}}
    end,
    OneKey = {quotient, {crowd, "one key", 2, ours, pair}, {crowd, "one key", 2, floor, pair}},
    [
        {"throughput, distinct keys, two processes / one: ours", Gain(ours), {at_least, 1.9}},
        %% The gain that the machine allows at that moment: two counters that share no cache line.
        {"throughput, distinct keys, two processes / one: atomics", Gain(atomics)},
        {"throughput, one key, two processes / one: ours",
            {quotient, {crowd, "one key", 2, ours, per_second}, {crowd, "one key", 1, ours, per_second}}},
        {"two processes on one key: ours / floor", OneKey, {at_most, 1.15}}
    ].

%% The cost must not change; 10 % is the tolerance for noise on a shared machine.
flat() ->
    Flat = fun(Text, Case, Variant, Many) ->
        {Text, {quotient, {Case, Variant, Many, ours, pair}, {Case, Variant, 1, ours, pair}}, {at_most, 1.1}}
    end,
    [
        Flat("above 1000 full buckets / 1: ours", buckets, "MaxPer 1", 1000),
        Flat("holding 100,000 permits of the key / 1: ours", held, "permits of the key", 100000),
        Flat("holding 100,000 permits of other keys / 1: ours", held, "permits of other keys", 100000)
    ].

large() ->
    Id = fun(Subject) -> {keys, "random keys", 1000000, Subject, pair} end,
    [
        {"a key among 1,000,000: ours", {value, Id(ours)}, {at_most, 350}},
        {"a key among 1,000,000: ets / ours", {quotient, Id(ets), Id(ours)}, {at_least, 10}}
    ].

%% Wall time while all schedulers are busy with lives: with two, a life takes twice that in processor time.
deaths() ->
    Id = fun(Variant, Subject) -> {lives, Variant, none, Subject, per_life} end,
    Variants = ["release and exit", "die holding"],
    lists:append([
        [{"a life (" ++ Variant ++ ") minus a bare one: ours",
            {difference, Id(Variant, ours), Id(Variant, none)}, {at_most, 350}} || Variant <- Variants],
        %% The lower bound: the VM's monitor with a library that does nothing on a death.
        [{"a life (" ++ Variant ++ "): ours / monitored only",
            {quotient, Id(Variant, ours), Id(Variant, floor)}, {at_most, 1.1}} || Variant <- Variants],
        [{"from the last of 200,000 deaths to all free: ours",
            {value, {die_off, bench_die_off:variant(200000), none, ours, last_death_to_free}}, {at_most, 1.0e6}}]
    ]).

memory() ->
    Value = fun(Variant, Measure) -> {value, {memory, Variant, none, ours, Measure}} end,
    lists:append([
        [{"memory of a key, " ++ Shape ++ ": ours", Value(Shape, per_key), {at_most, 160}}
         || {Shape, _} <- bench_memory:shapes()],
        %% This includes overhead of the allocator and partly used pages, which the library's own figure does not.
        [{"resident memory of a key, " ++ Shape ++ ": ours", Value(Shape, per_key_os)}
         || {Shape, _} <- bench_memory:shapes()],
        [{"memory of a holder, in the table: ours", Value("holder", per_holder), {at_most, 64}},
         {"memory of a holder, in the VM: ours", Value("holder", per_holder_vm)}]
    ]).

latency() ->
    At = fun(Percentile) -> {latency, "under load", Percentile, ours, acquire} end,
    [{"acquire under load, p99.9 / median: ours", {quotient, At(99.9), At(50)}, {at_most, 10}}].
