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
            {"die-off", fun bench_die_off:measure/1},
            {"memory", fun bench_memory:measure/1}
        ],
        cases => [
            {pair, "acquire + release, one process"},
            {refused, "refusals while another process holds the only permit (full)"},
            {buckets, "acquire + release above X full buckets (MaxPer 1, other processes hold them)"},
            {keys, "acquire + release of a random key among X keys in use, one process"},
            {crowd, "acquire + release by X concurrent processes"},
            {die_off, "many holders killed at once"},
            {memory, "memory of a key in use, and of a holder"}
        ],
        variants => [Variant || {Variant, _} <- bench_pairs:keys()],
        subjects => [ours, other, elixir, ets, counters, atomics, floor, none],
        targets => targets(),
        facts => []
    }.

mode("full") ->
    #{
        rounds => 21,
        sample_ms => 30,
        keys => [1, 10, 100, 1000, 10000, 100000, 1000000],
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
        keys => [1, 100000],
        die_off_rounds => 1,
        die_off_holders => 20000,
        memory_rounds => 1,
        memory_keys => 100000,
        memory_holders => 10000
    }.

targets() ->
    Ratio = fun bench_results:ratio/3,
    Frequent = [{"atom", 1.4}, {"{app, 12345}", 1.4}, {"32-byte binary", 1.7}],
    Pair = fun(Variant) -> {pair, Variant, none, pair} end,
    Crowd = fun(Variant, Processes, Subject) -> {crowd, Variant, Processes, Subject, per_second} end,
    Buckets = fun(Full) -> {buckets, "MaxPer 1", Full, ours, pair} end,
    Memory = fun(Variant, Measure) -> {value, {memory, Variant, none, ours, Measure}} end,
    Shapes = [Shape || {Shape, _} <- bench_memory:shapes()],
    lists:append([
        [{Ratio(Pair(Variant), ours, floor), {at_most, Most}} || {Variant, Most} <- Frequent],
        [{Ratio(Pair(Variant), ours, atomics), {at_most, 2}} || {Variant, _} <- Frequent],
        [{Ratio(Pair(Variant), ets, ours), {at_least, 30}} || {Variant, _} <- Frequent],
        [{Ratio(Pair(Variant), elixir, ours), none} || {Variant, _} <- Frequent],
        %% 1.5: at most two thirds of the time of the counters.
        [
            {Ratio(Pair(Variant), counters, ours), {at_least, Least}}
         || {Variant, _} <- bench_pairs:keys(),
            Least <- [case lists:keymember(Variant, 1, Frequent) of true -> 3; false -> 1.5 end]
        ],
        %% With `atomics', the gain that the machine allows at that moment: two counters that share no cache line.
        [
            {{quotient, Crowd(Variant, 2, Subject), Crowd(Variant, 1, Subject)}, Bound}
         || {Variant, Subject, Bound} <- [
                {"distinct keys", ours, {at_least, 1.9}},
                {"distinct keys", atomics, none},
                {"one key", ours, none},
                {"one key", floor, none},
                {"one key", atomics, none}
            ]
        ],
        [{Ratio({crowd, "one key", 2, pair}, ours, floor), {at_most, 1.15}}],
        %% The cost must not change; 10 % is the tolerance for noise on a shared machine.
        [{{quotient, Buckets(1000), Buckets(1)}, {at_most, 1.1}}],
        [{{value, {keys, "random keys", 1000000, ours, pair}}, {at_most, 350}}],
        [{Ratio({keys, "random keys", 1000000, pair}, ets, ours), {at_least, 10}}],
        [{{value, {die_off, bench_die_off:variant(200000), none, ours, last_death_to_free}}, {at_most, 1.0e6}}],
        [{Memory(Shape, per_key), {at_most, 160}} || Shape <- Shapes],
        %% This includes overhead of the allocator and partly used pages, which the library's own figure does not.
        [{Memory(Shape, per_key_os), none} || Shape <- Shapes],
        [{Memory("holder", per_holder), {at_most, 64}}, {Memory("holder", per_holder_vm), none}]
    ]).
