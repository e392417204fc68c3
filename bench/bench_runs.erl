%% Samples of loops that run for a while, of all that is to be compared: each is sized by trials, so that it fills the
%% wanted time, and then they are taken round by round, in an order of its own in each. What is compared with each other
%% stands together in it: a round takes seconds, and a neighbour that is busy for less would slow one side alone.
-module(bench_runs).

-export([measure/3]).

-export_type([run/0]).

-type run() :: #{
    id := {Case :: atom(), Variant :: string(), X :: number() | none, bench_cases:subject()},
    take := fun((Times :: pos_integer()) -> bench_sample:sample()),
    workers := pos_integer(),
    measures := [per_loop | per_second, ...]
}.

%% Loops of the first trial. The later ones have so many times as many, until they take a quarter of a sample.
-define(TRIAL_LOOPS, 2).
-define(TRIAL_GROWTH, 8).
%% Workers that share one sample's time; more have a longer one, so that it shows what they do and not how they begin.
-define(CROWD, 250).

-spec measure([run()], bench_cases:mode(), fun((iodata()) -> ok)) -> bench_results:results().
measure(Runs, #{rounds := Rounds, sample_ms := SampleMs}, Tell) ->
    Compared = fun({#{id := {Case, Variant, _, _}}, _}) -> {Case, Variant} end,
    Groups = maps:values(maps:groups_from_list(Compared, [sized(Run, SampleMs * 1.0e6, Tell) || Run <- Runs])),
    bench_rounds:play(Rounds, fun(Round) ->
        ok = Tell(io_lib:format("loops of calls, round ~b of ~b", [Round, Rounds])),
        [
            Sample
         || Group <- bench_rounds:shuffle(Groups),
            {Run, Times} <- bench_rounds:shuffle(Group),
            Sample <- values(Run, Times, take(Run, Times))
        ]
    end).

%% No phase can have taken longer than all of it: whoever mistakes a unit or a worker's clock hears of it here.
take(#{id := Id, take := Take}, Times) ->
    Start = erlang:monotonic_time(),
    Sample = Take(Times),
    Wall = erlang:convert_time_unit(erlang:monotonic_time() - Start, native, nanosecond),
    Phases = lists:sum([Ns || {_, Ns} <- Sample]),
    (Phases >= 0 andalso Phases =< Wall) orelse error({not_as_long_as_it_took, Id, Phases, Wall}),
    Sample.

%% The trials are also for caches, and for what a subject does only once.
sized(#{id := {Case, Variant, X, Subject}, workers := Workers} = Run, SampleNs, Tell) ->
    ok = Tell(io_lib:format("trials: ~s, ~ts, ~p, ~s", [Case, Variant, X, Subject])),
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

%% What is on the axis says whose pair it is.
name(pair_of_many) -> pair;
name(Kind) -> Kind.
