%% Keys that are used once: an acquire and a release of each of X keys, on a single node. Measures the time of a pair,
%% the memory of the VM right after that, and what of it is left later. In bytes per key.
-module(bench_cluster_permits_once).

-export([measure/1, targets/0]).

-define(VARIANT, "single node, 20 processes").
-define(PROCESSES, 20).

-spec measure(bench:mode()) -> bench_results:results().
measure(#{once_keys := Keys, once_after_ms := After_ms, lease_ms := Lease_ms}) ->
    bench_rounds:play(1, [[fun() -> bench_builds:once(ours, fun() -> sample(Keys, After_ms, Lease_ms) end) end]]).

sample(Keys, After_ms, Lease_ms) ->
    File = filename:join(os:getenv("TMPDIR", "/tmp"), "canal_lock_bench_" ++ os:getpid()),
    ok = bench_cluster_permits_nodes:start_here(#{members => [node()], lease_ms => Lease_ms, state_file => File}),
    Before = erlang:memory(total),
    {Took_us, _} = timer:tc(fun() ->
        test_await:in_parallel(fun(From) -> use(From, Keys) end, lists:seq(1, ?PROCESSES))
    end),
    Used = erlang:memory(total) - Before,
    timer:sleep(After_ms),
    Left = erlang:memory(total) - Before,
    #{keys := Known} = canal_lock_cluster:status(),
    ok = canal_lock_cluster:stop(),
    _ = file:delete(File),
    [
        {{once, ?VARIANT, Keys, ours, Measure}, Value}
     || {Measure, Value} <- [
            {pair, 1000 * Took_us * ?PROCESSES / Keys},
            {per_second, 1.0e6 * Keys / Took_us},
            {bytes_at_once, Used / Keys},
            {bytes_later, Left / Keys},
            {keys_later, Known}
        ]
    ].

use(Key, Keys) when Key > Keys ->
    ok;
use(Key, Keys) ->
    {acquired, 1} = canal_lock_cluster:acquire({once, Key}, 1, 1, infinity),
    ok = canal_lock_cluster:release({once, Key}),
    use(Key + ?PROCESSES, Keys).

%% Memory is back: of a hundred bytes, one may be left.
-spec targets() -> [bench:target()].
targets() ->
    Keys = 1_000_000,
    Later = {once, ?VARIANT, Keys, ours, bytes_later},
    [
        {{quotient, Later, setelement(5, Later, bytes_at_once)}, {at_most, 0.01}},
        {{value, setelement(5, Later, keys_later)}, {at_most, 0}},
        {{value, setelement(5, Later, per_second)}, none}
    ].
