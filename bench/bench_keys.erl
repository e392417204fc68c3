%% Pairs on keys picked at random among many that are in use: what a large table costs, when hardly anything that a
%% call touches is in a cache. Each number of keys has a VM of its own, with all subjects in it.
-module(bench_keys).

-export([measure/2]).
%% Called in the other VM.
-export([run/2]).

-define(SUBJECTS, [ours, ets, counters]).
%% A permit of each is held all the while, and nobody is ever refused.
-define(MAX_PER, 10).

-spec measure(bench_cases:mode(), fun((iodata()) -> ok)) -> bench_results:results().
measure(#{keys := Counts} = Mode, Tell) ->
    bench_results:merged([
        begin
            ok = Tell(io_lib:format("~b keys in use", [Keys])),
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

%% By another process: the sweep takes away what nobody holds.
in_use(Subject, Keys) ->
    ok = bench_subjects:start(Subject),
    bench_subjects:hold(Subject, [[{app, I} || I <- lists:seq(1, Keys)]], ?MAX_PER, 1).
