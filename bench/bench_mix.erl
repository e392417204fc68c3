%% A mixed load: mostly pairs, and a few refusals, deaths of holders and calls with another number of buckets. Each
%% operation picks one of 1000 keys at random.
-module(bench_mix).

-export([prepare/1, loop/1]).

-include("bench_random.hrl").

%% The keys from 1 to ?FULL are full: another process holds the only permit. Refusals have separate keys, because the
%% ETS design miscounts when callers of one key use different limits.
-define(KEYS, 1000).
-define(FULL, 50).

%% Percentages of all operations; resizes are the rest.
-define(PAIRS, 90).
-define(REFUSALS, 5).
-define(DEATHS, 4).

-spec prepare(bench_cases:subject()) -> mix.
prepare(Subject) ->
    lists:foreach(fun(I) -> bench_subjects:prepare(Subject, {mix, I}) end, lists:seq(1, ?KEYS)),
    ok = bench_subjects:hold(Subject, [[{mix, I} || I <- lists:seq(1, ?FULL)]], 1, 1),
    mix.

-spec loop(bench_cases:subject()) -> bench_loops:loop().
loop(ours) -> fun ours/4;
loop(ets) -> fun ets/4.

%% One random number selects the operation, the next one the key.
-define(LOOP(Name, Module),
    Name(mix, MaxPer, Buckets, Times) ->
        Name(bench_choices:seed(), MaxPer, Buckets, Times);
    Name(_Random, _MaxPer, _Buckets, 0) ->
        ok;
    Name(Random, MaxPer, Buckets, Times) ->
        Next = ?NEXT_RANDOM(Random),
        case ?ONE_OF(100, Random) of
            Pair when Pair =< ?PAIRS ->
                Key = open_key(Next),
                {acquired, _} = Module:acquire(Key, MaxPer, Buckets),
                ok = Module:release(Key, MaxPer, Buckets);
            Refusal when Refusal =< ?PAIRS + ?REFUSALS ->
                full = Module:acquire({mix, ?ONE_OF(?FULL, Next)}, 1, 1);
            Death when Death =< ?PAIRS + ?REFUSALS + ?DEATHS ->
                Dead = open_key(Next),
                {_, Monitor} = spawn_monitor(fun() -> {acquired, _} = Module:acquire(Dead, MaxPer, Buckets) end),
                receive
                    {'DOWN', Monitor, process, _, Reason} -> normal = Reason
                end;
            _Resize ->
                Resized = open_key(Next),
                {acquired, _} = Module:acquire(Resized, MaxPer, Buckets + 1),
                ok = Module:release(Resized, MaxPer, Buckets + 1)
        end,
        Name(?NEXT_RANDOM(Next), MaxPer, Buckets, Times - 1)
).

?LOOP(ours, canal_lock).

?LOOP(ets, test_original).

open_key(Random) ->
    {mix, ?FULL + ?ONE_OF(?KEYS - ?FULL, Random)}.
