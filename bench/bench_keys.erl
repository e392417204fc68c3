%% Measures pairs on random keys among many keys in use: the cost of a large table, where most accesses miss the caches.
%% Each number of keys has its own VM, with all subjects in it.
-module(bench_keys).

-export([measure/2]).
%% Called in the other VM.
-export([run/2]).

-define(SUBJECTS, [ours, ets, counters]).
%% One permit of each key is held during the measurement, and no call is refused.
-define(MAX_PER, 10).

-spec measure(bench_cases:mode(), fun((iodata()) -> ok)) -> bench_results:results().
measure(#{keys := Counts} = Mode, Report) ->
    bench_results:merged([
        begin
            ok = Report(io_lib:format("~b keys in use", [Keys])),
            bench_vm:call(ours, ?MODULE, run, [Mode, Keys])
        end
     || Keys <- Counts
    ]).

-spec run(bench_cases:mode(), Keys :: pos_integer()) -> bench_results:results().
run(Mode, Keys) ->
    [in_use(Subject, Keys) || Subject <- ?SUBJECTS],
    Runs = [
        #{
            id => {keys, "random keys", Keys, Subject},
            take => fun(Times) -> bench_sample:take([Worker], Times) end,
            workers => 1,
            measures => [per_loop]
        }
     || Subject <- [none | ?SUBJECTS],
        Worker <- [[{pair_of_many, bench_loops:loop(Subject, pair_of_many), Keys, ?MAX_PER, 1}]]
    ],
    bench_runs:measure(Runs, Mode, fun(_) -> ok end).

%% Another process holds the keys, because the sweep reclaims keys without holders.
in_use(Subject, Keys) ->
    ok = bench_subjects:start(Subject),
    bench_subjects:hold(Subject, [[{app, I} || I <- lists:seq(1, Keys)]], ?MAX_PER, 1).
