%% Measures pairs on random keys among many keys in use: the cost of a large table, where most accesses miss the caches.
%% Each number of keys has VMs of its own.
%%
%% Options of the mode: rounds; sample_ms; keys.
-module(bench_keys).

-export([measure/1]).

-define(SUBJECTS, [ours, ets, counters]).
%% One permit of each key is held during the measurement, and no call is refused.
-define(MAX_PER, 10).

-spec measure(bench:mode()) -> bench_results:results().
measure(#{keys := Counts} = Mode) ->
    lists:foldl(fun(Keys, Results) -> bench_results:merge(Results, among(Keys, Mode)) end, #{}, Counts).

among(Keys, #{rounds := Rounds} = Mode) ->
    bench_builds:in_vms(fun(Vm) ->
        Run = fun(Subject) ->
            Workers = fun() -> workers(Subject, Keys) end,
            bench_sample:run(Vm(Subject), {keys, "random keys", Keys, Subject}, [pair], Workers, Mode)
        end,
        bench_rounds:play(Rounds, [[Run(Subject) || Subject <- bench_builds:with_ours(?SUBJECTS)]])
    end).

%% Another process holds the keys, because the sweep reclaims keys without holders.
workers(Subject, Keys) ->
    ok = bench_subjects:start(Subject),
    ok = bench_subjects:hold(Subject, [[{app, I} || I <- lists:seq(1, Keys)]], ?MAX_PER, 1),
    [{bench_loops:loop(Subject, pair_of_many), Keys, ?MAX_PER, 1}].
