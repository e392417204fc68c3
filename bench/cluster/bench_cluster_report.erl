%% Formats the results of the samples: a table for each size, the targets, and a file with all samples.
-module(bench_cluster_report).

-export([values/2, table/1, targets/1, ratio/4, write/5]).

-export_type([sample/0]).

-type sample() :: #{
    size := pos_integer(), 'case' := atom(), subject := atom(), round := pos_integer(), values := #{atom() => number()}
}.

-define(CASES, [
    {alone, "one loop in the cluster, different names"},
    {own_1, "1 loop per node, different names"},
    {own, "5 loops per node, different names"},
    {own_50, "50 loops per node, different names"},
    {readers, "5 loops per node, ten names, 9 of 10 are readers"},
    {one, "5 loops per node, one name"}
]).

-define(SUBJECTS, [
    {try_unlock, "lock + try_unlock"},
    {unlock, "lock + unlock"},
    {global, "global"},
    {other, "other build"},
    {this, "this build"},
    {three, "replicas => 3"}
]).

-define(IDLE, [
    {without, "without the quorum locks"},
    {with_none, "none held"},
    {with_locks, "all hold locks"},
    {other, "other build, all hold"},
    {this, "this build, all hold"},
    {three, "replicas => 3, all hold"}
]).

-define(MEASURES, [
    {locks_per_s, "locks/s", 1},
    {wait_p50_us, "wait p50 ms", 1000},
    {wait_p99_us, "wait p99 ms", 1000},
    {wait_longest_us, "longest ms", 1000},
    {end_p50_us, "unlock p50 ms", 1000},
    {end_p99_us, "unlock p99 ms", 1000},
    {frames_per_lock, "frames/lock", 1},
    {cpu_us_per_lock, "cpu us/lock", 1},
    {most_to_least, "most/least", 1}
]).

%% The values of all nodes together.
-spec values([bench_cluster_load:done()], Window_ms :: pos_integer()) -> #{atom() => number()}.
values(Done, Window_ms) ->
    Waits = bench_cluster_waits:all([Filled || #{waits := Filled} <- Done]),
    Ends = bench_cluster_waits:all([Filled || #{ends := Filled} <- Done]),
    Locks = bench_cluster_waits:count(Waits),
    Locks > 0 orelse error(no_lock_in_a_sample),
    Cpu_ns = [Ns || #{cpu_ns := Ns} <- Done],
    OfNodes = [bench_cluster_waits:count(Filled) || #{waits := Filled} <- Done],
    Least = lists:min(OfNodes),
    Known = #{
        locks_per_s => 1000 * Locks / Window_ms,
        wait_p50_us => bench_cluster_waits:percentile(50, Waits) / 1000,
        wait_p99_us => bench_cluster_waits:percentile(99, Waits) / 1000,
        wait_longest_us => lists:max([Ns || #{longest_ns := Ns} <- Done]) / 1000,
        end_p50_us => bench_cluster_waits:percentile(50, Ends) / 1000,
        end_p99_us => bench_cluster_waits:percentile(99, Ends) / 1000,
        frames_per_lock => lists:sum([Frames || #{frames := Frames} <- Done]) / Locks
    },
    Measured = [{most_to_least, lists:max(OfNodes) / Least} || Least > 0] ++
        [{cpu_us_per_lock, lists:sum(Cpu_ns) / Locks / 1000} || not lists:member(unknown, Cpu_ns)],
    maps:merge(Known, maps:from_list(Measured)).

%% Medians over the rounds. The longest wait is the longest of all rounds.
-spec table([sample()]) -> iolist().
table(Samples = [#{size := Size} | _]) ->
    [line("~n~b nodes~n", [Size]), idle(Size, Samples), [of_case(Case, Size, Samples) || Case <- ?CASES]].

idle(Size, Samples) ->
    Rows = [
        line("    ~-26ts~8.2f ~8.2f~n", [Title, float(median(Shares)), float(lists:max(Shares))])
     || {Subject, Title} <- ?IDLE, Shares <- [of_rounds(Size, idle, Subject, core_percent, Samples)], Shares =/= []
    ],
    [
        line("  idle, percent of a core: median and maximum of all nodes~n", []),
        case Rows of [] -> line("    not measured on this system~n", []); _ -> Rows end
    ].

of_case({Case, Title}, Size, Samples) ->
    Subjects = lists:usort([Subject || #{'case' := C, subject := Subject} <- Samples, C =:= Case]),
    [
        line("  ~ts~n    ~-18ts~ts~n", [Title, "", [line("~15ts", [Column]) || {_, Column, _} <- ?MEASURES]]),
        [
            line("    ~-18ts~ts~n", [Name, [cell(Size, Case, Subject, Measure, Samples) || Measure <- ?MEASURES]])
         || {Subject, Name} <- ?SUBJECTS, lists:member(Subject, Subjects)
        ]
    ].

cell(Size, Case, Subject, {Measure, _, Divisor}, Samples) ->
    case of_rounds(Size, Case, Subject, Measure, Samples) of
        [] -> line("~15ts", ["-"]);
        Values -> line("~15ts", [number(over_rounds(Measure, Values) / Divisor)])
    end.

over_rounds(wait_longest_us, Values) -> lists:max(Values);
over_rounds(_, Values) -> median(Values).

-spec targets([sample()]) -> iolist().
targets(Samples) ->
    Sizes = lists:usort([Size || #{size := Size} <- Samples]),
    [
        line("~ntargets (for lock + try_unlock; in parentheses: for lock + unlock)~n", []),
        [
            [
                target(line("~b nodes, ~ts: locks/s, as a multiple of global's", [Size, Title]), at_least, 5, [
                    ratio({Size, Case, locks_per_s}, Subject, global, Samples)
                 || Subject <- [try_unlock, unlock]
                ]),
                target(line("~b nodes, ~ts: wait p50, as a multiple of global's", [Size, Title]), at_most, 0.5, [
                    ratio({Size, Case, wait_p50_us}, Subject, global, Samples)
                 || Subject <- [try_unlock, unlock]
                ])
            ]
         || Size <- Sizes, {Case, Title} <- [{own, "different names"}, {readers, "readers"}, {one, "one name"}]
        ],
        [
            target(
                line("~b nodes, one name: longest wait in s (global's ~.1f)", [
                    Size, longest_s(Size, global, Samples)
                ]),
                at_most, 1.0, [longest_s(Size, Subject, Samples) || Subject <- [try_unlock, unlock]]
            )
         || Size <- Sizes
        ],
        [
            target(line("~b nodes, all hold locks: percent of a core, maximum of all nodes", [Size]), at_most, 1.0, [
                float(lists:max(Shares))
            ])
         || Size <- Sizes, Shares <- [of_rounds(Size, idle, with_locks, core_percent, Samples)], Shares =/= []
        ]
    ].

target(Text, Which, Bound, Values = [Value | _]) ->
    {Sign, IsMet} =
        case Which of
            at_least -> {">=", Value >= Bound};
            at_most -> {"=<", Value =< Bound}
        end,
    Verdict = case IsMet of true -> "met"; false -> "missed" end,
    Others = [line("(~.2f)", [Other]) || Other <- tl(Values)],
    line("  ~-66ts~9.2f ~-9ts ~s ~-4ts~s~n", [Text, Value, Others, Sign, line("~p", [Bound]), Verdict]).

longest_s(Size, Subject, Samples) ->
    lists:max(of_rounds(Size, one, Subject, wait_longest_us, Samples)) / 1_000_000.

%% The median of the ratios of two subjects, which are formed within each round.
-spec ratio({Size :: pos_integer(), Case :: atom(), Measure :: atom()}, atom(), atom(), [sample()]) -> float().
ratio({Size, Case, Measure}, Subject, Base, Samples) ->
    [Values, BaseValues] = [of_rounds(Size, Case, Who, Measure, Samples) || Who <- [Subject, Base]],
    median(lists:zipwith(fun erlang:'/'/2, Values, BaseValues)).

%% In the order of the rounds.
of_rounds(Size, Case, Subject, Measure, Samples) ->
    Found = [
        {Round, Value}
     || #{size := S, 'case' := C, subject := Who, round := Round, values := #{Measure := Value}} <- Samples,
        {S, C, Who} =:= {Size, Case, Subject}
    ],
    [Value || {_, Value} <- lists:sort(Found)].

median(Values) ->
    #{median := Median} = bench_results:spread(Values),
    Median.

number(Value) when Value < 10 -> line("~.3f", [float(Value)]);
number(Value) -> bench_report:number(float(Value)).

%% Writes the report, and a file with every value of every sample.
-spec write(file:filename(), ModeName :: string(), bench_results:facts(), iolist(), [sample()]) -> ok.
write(Folder, Name, Facts, Text, Samples) ->
    Rows = [
        line("~b,~s,~s,~s,~b,~p~n", [Size, Case, Subject, Measure, Round, Value])
     || #{size := Size, 'case' := Case, subject := Subject, round := Round, values := Values} <- Samples,
        {Measure, Value} <- lists:sort(maps:to_list(Values))
    ],
    Head = [["# ", Fact, ": ", Value, $\n] || {Fact, Value} <- Facts],
    Report = filename:join(Folder, "cluster-report-" ++ Name ++ ".txt"),
    ok = file:write_file(Report, unicode:characters_to_binary(Text)),
    File = filename:join(Folder, "cluster-samples-" ++ Name ++ ".csv"),
    ok = file:write_file(File, unicode:characters_to_binary([Head, "nodes,case,subject,measure,round,value\n", Rows])),
    io:format("~nreport: ~ts~nsamples: ~ts~n", [Report, File]).

line(Format, Arguments) ->
    io_lib:format(Format, Arguments).
