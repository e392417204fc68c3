%% The benchmark group of loops: runs the scenarios of bench_cases with new or resident processes in one VM.
-module(bench_scenarios).

-export([measure/2]).

-spec measure(bench_cases:mode(), fun((iodata()) -> ok)) -> bench_results:results().
measure(Mode, Report) ->
    Scenarios = bench_cases:scenarios(Mode),
    Subjects = lists:usort(lists:append([Subjects || #{subjects := Subjects} <- Scenarios])),
    [ok = bench_subjects:start(Subject) || Subject <- Subjects],
    Runs = [prepared(Scenario, Subject, Report) || #{subjects := Of} = Scenario <- Scenarios, Subject <- Of],
    bench_runs:measure(Runs, Mode, Report).

prepared(#{id := {Case, Variant, X}, keys := Keys, measures := Measures} = Scenario, Subject, Report) ->
    ok = Report(io_lib:format("setting up: ~s, ~ts, ~p, ~s", [Case, Variant, X, Subject])),
    Places = maps:from_list([{Key, place(Subject, Key)} || Key <- lists:usort(Keys)]),
    ok = hold(Scenario, Subject),
    Workers = [worker(Scenario, Subject, maps:get(Key, Places)) || Key <- Keys],
    #{
        id => {Case, Variant, X, Subject},
        take => taking(Scenario, Subject, Workers),
        workers => length(Workers),
        measures => Measures
    }.

place(Subject, {key, Key}) -> bench_subjects:prepare(Subject, Key);
place(Subject, {zipf, Keys}) -> bench_choices:zipf(Subject, Keys);
place(Subject, mix) -> bench_mix:prepare(Subject).

worker(#{phases := Phases, max_per := MaxPer, buckets := Buckets}, Subject, Place) ->
    [{Kind, bench_loops:loop(Subject, Kind), Place, MaxPer, Buckets} || Kind <- Phases].

taking(#{workers := fresh}, _Subject, Workers) ->
    fun(Times) -> bench_sample:take(Workers, Times) end;
taking(#{workers := {resident, Beside}}, Subject, [Worker]) ->
    Resident = bench_resident:start(Subject, Worker, Beside),
    fun(Times) -> bench_resident:take(Resident, Times) end.

%% Starts one process per permit. Each holds its permit until the VM stops.
hold(#{held := 0}, _Subject) ->
    ok;
hold(#{held := Held, keys := [{key, Key}], max_per := MaxPer, buckets := Buckets}, Subject) ->
    bench_subjects:hold(Subject, lists:duplicate(Held, [Key]), MaxPer, Buckets).
