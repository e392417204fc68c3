%% The timed loops: one function for each subject and kind. Macros generate them (bench_loop.hrl). Each result is
%% matched, so that a subject that fails or refuses cannot look fast.
-module(bench_loops).

-include("../bench_loop.hrl").

-export([loop/2]).

-type kind() :: pair | full | pair_of_many.

%% Uses {app, 1} to {app, Keys} at random, so that the processor cannot predict the order. The numbers are of a 32-bit
%% LCG (Numerical Recipes) of which the upper bits are used: two multiplications and no heap. A call of `rand' costs as
%% much as a pair.
-define(MANY_LOOP(Name, Calls),
    Name(_Random, _Keys, _MaxPer, _Buckets, 0) ->
        ok;
    Name(Random, Keys, MaxPer, Buckets, Times) ->
        Key = {app, (Random * Keys) bsr 32 + 1},
        Calls,
        Name((Random * 1664525 + 1013904223) band 16#FFFFFFFF, Keys, MaxPer, Buckets, Times - 1)
).

%% The other build has the same functions, in another VM.
-spec loop(bench_results:subject(), kind()) -> bench_sample:loop().
loop(other, Kind) -> loop(ours, Kind);
loop(ours, pair) -> fun ours_pair/4;
loop(elixir, pair) -> fun elixir_pair/4;
loop(ets, pair) -> fun ets_pair/4;
loop(counters, pair) -> fun counters_pair/4;
loop(atomics, pair) -> fun atomics_pair/4;
loop(floor, pair) -> fun floor_pair/4;
loop(ours, full) -> fun ours_full/4;
loop(ets, full) -> fun ets_full/4;
loop(counters, full) -> fun counters_full/4;
loop(floor, full) -> fun floor_full/4;
loop(ours, pair_of_many) -> at_random(fun ours_pair_of_many/5);
loop(ets, pair_of_many) -> at_random(fun ets_pair_of_many/5);
loop(counters, pair_of_many) -> at_random(fun counters_pair_of_many/5).

at_random(Loop) ->
    fun(Keys, MaxPer, Buckets, Times) -> Loop(rand:uniform(1 bsl 32) - 1, Keys, MaxPer, Buckets, Times) end.

-define(PAIR(Module), begin
    {acquired, _} = Module:acquire(Key, MaxPer, Buckets),
    ok = Module:release(Key, MaxPer, Buckets)
end).

-define(FLOOR_PAIR, begin
    {acquired, _} = bench_floor_nif:floor_acquire(Key, MaxPer, Buckets),
    ok = bench_floor_nif:floor_release(Key, MaxPer, Buckets)
end).

%% Key is the counter itself. It is in the middle of an array, so that no two counters share a cache line.
-define(ATOMICS_PAIR, begin
    _ = atomics:add_get(Key, 16, 1),
    ok = atomics:sub(Key, 16, 1)
end).

?LOOP(ours_pair, ?PAIR(canal_lock)).
?LOOP(elixir_pair, ?PAIR('Elixir.CanalLock')).
?LOOP(ets_pair, ?PAIR(test_original)).
?LOOP(counters_pair, ?PAIR(bench_counters)).
?LOOP(atomics_pair, ?ATOMICS_PAIR).
?LOOP(floor_pair, ?FLOOR_PAIR).

?LOOP(ours_full, full = canal_lock:acquire(Key, MaxPer, Buckets)).
?LOOP(ets_full, full = test_original:acquire(Key, MaxPer, Buckets)).
?LOOP(counters_full, full = bench_counters:acquire(Key, MaxPer, Buckets)).
?LOOP(floor_full, full = bench_floor_nif:floor_acquire(Key, MaxPer, Buckets)).

?MANY_LOOP(ours_pair_of_many, ?PAIR(canal_lock)).
?MANY_LOOP(ets_pair_of_many, ?PAIR(test_original)).
?MANY_LOOP(counters_pair_of_many, ?PAIR(bench_counters)).
