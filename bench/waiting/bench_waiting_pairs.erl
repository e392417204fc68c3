%% Measures an acquire that finds a free permit, and its release, by one process: with acquire/3, with a timeout, with a
%% map of options, and with the other subjects.
%%
%% Options of the mode: rounds; sample_ms.
-module(bench_waiting_pairs).

-export([measure/1]).

-define(TIMEOUT_MS, 5000).
-define(PERMITS, 10).

-define(LOOP(Name, Acquire, Release),
    Name(_Place, _MaxPer, _Buckets, 0) ->
        ok;
    Name(Place, MaxPer, Buckets, Times) ->
        Acquire,
        Release,
        Name(Place, MaxPer, Buckets, Times - 1)
).

-spec measure(bench:mode()) -> bench_results:results().
measure(#{rounds := Rounds} = Mode) ->
    Ours = bench_builds:ours(),
    Variants = [
        {"acquire/3", fun three/4, Ours},
        {"acquire/4, timeout", fun timeout/4, Ours},
        {"acquire/4, map", fun map/4, Ours},
        {"with a timeout", fun of_others/4, bench_waiting_subjects:present() -- Ours}
    ],
    bench_builds:in_vms(fun(Vm) ->
        Run = fun(Variant, Loop, Subject) ->
            Workers = fun() -> [{Loop, place(Subject), ?PERMITS, 1}] end,
            bench_sample:run(Vm(Subject), {uncontended, Variant, none, Subject}, [pair], Workers, Mode)
        end,
        bench_rounds:play(Rounds, [
            [Run(Variant, Loop, Subject) || {Variant, Loop, Subjects} <- Variants, Subject <- Subjects]
        ])
    end).

place(Subject) ->
    case bench_waiting_subjects:open(Subject, ?PERMITS) of
        {ours, Key, _} -> Key;
        Other -> Other
    end.

?LOOP(three, {acquired, _} = canal_lock:acquire(Place, MaxPer, Buckets), ok = canal_lock:release(Place)).

?LOOP(timeout, {acquired, _} = canal_lock:acquire(Place, MaxPer, Buckets, ?TIMEOUT_MS), ok = canal_lock:release(Place)).

?LOOP(
    map,
    {acquired, _} = canal_lock:acquire(Place, MaxPer, Buckets, #{timeout_ms => ?TIMEOUT_MS}),
    ok = canal_lock:release(Place)
).

?LOOP(of_others, Permit = bench_waiting_subjects:acquire(Place), ok = bench_waiting_subjects:release(Place, Permit)).
