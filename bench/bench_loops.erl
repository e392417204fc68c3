%% The timed loops: one function for each subject and kind. Macros generate them, because an indirect call of a module
%% or fun costs as much as some of the measured differences. Each result is matched, so that a subject that fails or
%% refuses cannot look fast.
-module(bench_loops).

-export([loop/2]).
%% Called by the loops of the subject `none', in place of an acquire and release.
-export([no_call/1]).

-export_type([loop/0]).

-type loop() ::
    fun((Place :: term(), MaxPer :: pos_integer(), Buckets :: pos_integer(), Times :: non_neg_integer()) -> ok).

-define(LOOP(Name, Calls),
    Name(_Key, _MaxPer, _Buckets, 0) ->
        ok;
    Name(Key, MaxPer, Buckets, Times) ->
        Calls,
        Name(Key, MaxPer, Buckets, Times - 1)
).

%% Uses the table of keys of bench_choices. At is the index of the next key.
-define(CHOICES_LOOP(Name, Calls),
    Name(_Choices, _At, _MaxPer, _Buckets, 0) ->
        ok;
    Name(Choices, At, MaxPer, Buckets, Times) ->
        Key = element(At, Choices),
        Calls,
        Name(Choices, At band (tuple_size(Choices) - 1) + 1, MaxPer, Buckets, Times - 1)
).

%% Uses {app, 1} to {app, Keys} at random, so that the processor cannot predict the order.
-define(MANY_LOOP(Name, Calls),
    Name(_Random, _Keys, _MaxPer, _Buckets, 0) ->
        ok;
    Name(Random, Keys, MaxPer, Buckets, Times) ->
        Key = {app, ?ONE_OF(Keys, Random)},
        Calls,
        Name(?NEXT_RANDOM(Random), Keys, MaxPer, Buckets, Times - 1)
).

-include("bench_random.hrl").

-spec loop(bench_cases:subject(), bench_cases:kind()) -> loop().
loop(ours, pair) -> fun ours_pair/4;
loop(elixir, pair) -> fun elixir_pair/4;
loop(ets, pair) -> fun ets_pair/4;
loop(counters, pair) -> fun counters_pair/4;
loop(atomics, pair) -> fun atomics_pair/4;
loop(floor, pair) -> fun floor_pair/4;
loop(ours, acquire) -> fun ours_acquire/4;
loop(ours, release) -> fun ours_release/4;
loop(ours, full) -> fun ours_full/4;
loop(ets, full) -> fun ets_full/4;
loop(counters, full) -> fun counters_full/4;
loop(floor, full) -> fun floor_full/4;
loop(ours, pair_of_choices) -> chosen(fun ours_pair_of_choices/5);
loop(ets, pair_of_choices) -> chosen(fun ets_pair_of_choices/5);
loop(counters, pair_of_choices) -> chosen(fun counters_pair_of_choices/5);
loop(atomics, pair_of_choices) -> chosen(fun atomics_pair_of_choices/5);
loop(ours, pair_of_many) -> at_random(fun ours_pair_of_many/5);
loop(ets, pair_of_many) -> at_random(fun ets_pair_of_many/5);
loop(counters, pair_of_many) -> at_random(fun counters_pair_of_many/5);
loop(none, pair_of_many) -> at_random(fun none_of_many/5);
loop(Subject, mix) -> bench_mix:loop(Subject).

%% Each lap of each process starts at a random index.
chosen(Loop) ->
    fun(Place, MaxPer, Buckets, Times) ->
        {Choices, At} = bench_choices:begin_at(Place),
        Loop(Choices, At, MaxPer, Buckets, Times)
    end.

at_random(Loop) ->
    fun(Keys, MaxPer, Buckets, Times) -> Loop(bench_choices:seed(), Keys, MaxPer, Buckets, Times) end.

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

?LOOP(ours_acquire, {acquired, _} = canal_lock:acquire(Key, MaxPer, Buckets)).

?LOOP(ours_release, ok = canal_lock:release(Key, MaxPer, Buckets)).

?LOOP(ours_full, full = canal_lock:acquire(Key, MaxPer, Buckets)).

?LOOP(ets_full, full = test_original:acquire(Key, MaxPer, Buckets)).

?LOOP(counters_full, full = bench_counters:acquire(Key, MaxPer, Buckets)).

?LOOP(floor_full, full = bench_floor_nif:floor_acquire(Key, MaxPer, Buckets)).

?CHOICES_LOOP(ours_pair_of_choices, ?PAIR(canal_lock)).

?CHOICES_LOOP(ets_pair_of_choices, ?PAIR(test_original)).

?CHOICES_LOOP(counters_pair_of_choices, ?PAIR(bench_counters)).

?CHOICES_LOOP(atomics_pair_of_choices, ?ATOMICS_PAIR).

?MANY_LOOP(ours_pair_of_many, ?PAIR(canal_lock)).

?MANY_LOOP(ets_pair_of_many, ?PAIR(test_original)).

?MANY_LOOP(counters_pair_of_many, ?PAIR(bench_counters)).

%% Without this call the compiler would not build the key.
?MANY_LOOP(none_of_many, begin
    ok = ?MODULE:no_call(Key)
end).

-spec no_call(term()) -> ok.
no_call(_) -> ok.
