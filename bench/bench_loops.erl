%% The timed loops: one tight function for each subject and operation. A macro makes them: one loop that takes a
%% module or a fun would not do, because an indirect call costs as much as some of the differences that are measured
%% here. Each answer is matched, so that a subject that fails or refuses cannot look fast.
-module(bench_loops).

-export([loop/2]).

-export_type([loop/0]).

-type loop() ::
    fun((Key :: term(), MaxPer :: pos_integer(), Buckets :: pos_integer(), Times :: non_neg_integer()) -> ok).

-define(LOOP(Name, Calls),
    Name(_Key, _MaxPer, _Buckets, 0) ->
        ok;
    Name(Key, MaxPer, Buckets, Times) ->
        Calls,
        Name(Key, MaxPer, Buckets, Times - 1)
).

-spec loop(bench_cases:subject(), bench_cases:op()) -> loop().
loop(ours, pair) -> fun ours_pair/4;
loop(ours, acquire) -> fun ours_acquire/4;
loop(ours, release) -> fun ours_release/4;
loop(ours, full) -> fun ours_full/4;
loop(ets, pair) -> fun ets_pair/4;
loop(floor, pair) -> fun floor_pair/4;
loop(atomics, pair) -> fun atomics_pair/4.

?LOOP(ours_pair, begin
    {acquired, _} = canal_lock:acquire(Key, MaxPer, Buckets),
    ok = canal_lock:release(Key, MaxPer, Buckets)
end).

?LOOP(ours_acquire, {acquired, _} = canal_lock:acquire(Key, MaxPer, Buckets)).

?LOOP(ours_release, ok = canal_lock:release(Key, MaxPer, Buckets)).

?LOOP(ours_full, full = canal_lock:acquire(Key, MaxPer, Buckets)).

?LOOP(ets_pair, begin
    {acquired, _} = canal_lock_ets:acquire(Key, MaxPer, Buckets),
    ok = canal_lock_ets:release(Key, MaxPer, Buckets)
end).

?LOOP(floor_pair, begin
    {acquired, _} = bench_floor_nif:floor_acquire(Key, MaxPer, Buckets),
    ok = bench_floor_nif:floor_release(Key, MaxPer, Buckets)
end).

%% The key is the counter itself.
?LOOP(atomics_pair, begin
    _ = atomics:add_get(Key, 1, 1),
    ok = atomics:sub(Key, 1, 1)
end).
