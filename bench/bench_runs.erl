%% Takes samples of loops. Trials first find the number of loops that fill the wanted time. Then each round takes one
%% sample of each run in random order. Runs that are compared with each other are adjacent in a round: a round takes
%% seconds, and a shorter disturbance by another program would affect only one side of the comparison.
-module(bench_runs).

-export([measure/3]).

-export_type([run/0]).

-type run() :: #{
    id := {Case :: atom(), Variant :: string(), X :: number() | none, bench_cases:subject()},
    take := fun((Times :: pos_integer()) -> bench_sample:sample()),
    workers := pos_integer(),
    measures := [per_loop | per_second, ...]
}.

%% Loops of the first trial. Each further trial has ?TRIAL_GROWTH times as many, until one takes a quarter of a sample.
-define(TRIAL_LOOPS, 2).
-define(TRIAL_GROWTH, 8).
%% This number of workers shares the time of one sample. More workers get a longer sample, so that start-up costs less.
-define(CROWD, 250).

-spec measure([run()], bench_cases:mode(), fun((iodata()) -> ok)) -> bench_results:results().
measure(Runs, #{rounds := Rounds, sample_ms := SampleMs}, Report) ->
    Compared = fun({#{id := {Case, Variant, _, _}}, _}) -> {Case, Variant} end,
    Groups = maps:values(maps:groups_from_list(Compared, [sized(Run, SampleMs * 1.0e6, Report) || Run <- Runs])),
    bench_rounds:play(Rounds, fun(Round) ->
        ok = Report(io_lib:format("loops of calls, round ~b of ~b", [Round, Rounds])),
        [
            Sample
         || Group <- bench_rounds:shuffle(Groups),
            {Run, Times} <- bench_rounds:shuffle(Group),
            Sample <- values(Run, Times, take(Run, Times))
        ]
    end).

%% The phases cannot take longer than the sample: detects a wrong unit or a wrong clock of a worker.
take(#{id := Id, take := Take}, Times) ->
    Start = erlang:monotonic_time(),
    Sample = Take(Times),
    Wall = erlang:convert_time_unit(erlang:monotonic_time() - Start, native, nanosecond),
    Phases = lists:sum([Ns || {_, Ns} <- Sample]),
    (Phases >= 0 andalso Phases =< Wall) orelse error({not_as_long_as_it_took, Id, Phases, Wall}),
    Sample.

%% The trials also warm the caches and pay the one-time costs of a subject.
sized(#{id := {Case, Variant, X, Subject}, workers := Workers} = Run, SampleNs, Report) ->
    ok = Report(io_lib:format("trials: ~s, ~ts, ~p, ~s", [Case, Variant, X, Subject])),
    {Run, loops(Run, SampleNs * max(1, Workers div ?CROWD), ?TRIAL_LOOPS)}.

loops(Run, SampleNs, Times) ->
    case lists:sum([Ns || {_, Ns} <- take(Run, Times)]) of
        Ns when Ns >= SampleNs / 4 -> max(1, round(Times * SampleNs / Ns));
        _ -> loops(Run, SampleNs, Times * ?TRIAL_GROWTH)
    end.

values(#{id := {Case, Variant, X, Subject}, workers := Workers, measures := Measures}, Times, Sample) ->
    [
        {{Case, Variant, X, Subject, Name}, Value}
     || {Kind, Ns} <- Sample,
        Measure <- Measures,
        {Name, Value} <- [value(Measure, Kind, Workers, Times, Ns)]
    ].

value(per_loop, Kind, _Workers, Times, Ns) -> {name(Kind), Ns / Times};
value(per_second, _Kind, Workers, Times, Ns) -> {per_second, Workers * Times / Ns * 1.0e9}.

%% The x axis shows the number of keys, so the measure is just a pair.
name(pair_of_many) -> pair;
name(Kind) -> Kind.
