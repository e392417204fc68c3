%% Formats the results of the samples: a table for each size, the targets, and a file with all samples.
-module(bench_cluster_report).

-export([values/2, table/1, targets/1, write/3]).

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

-define(SUBJECTS, [{try_unlock, "lock + try_unlock"}, {unlock, "lock + unlock"}, {global, "global"}]).

-define(IDLE, [
    {without, "without the quorum locks"}, {with_none, "none held"}, {with_locks, "all hold locks"}
]).

-define(MEASURES, [
    {locks_per_s, "locks/s", 1},
    {wait_p50_us, "wait p50 ms", 1000},
    {wait_p99_us, "wait p99 ms", 1000},
    {wait_longest_us, "longest ms", 1000},
    {end_p50_us, "unlock p50 ms", 1000},
    {end_p99_us, "unlock p99 ms", 1000},
    {frames_per_lock, "frames/lock", 1},
    {cpu_us_per_lock, "cpu us/lock", 1}
]).

%% The values of all nodes together.
-spec values([bench_cluster_load:done()], Window_ms :: pos_integer()) -> #{atom() => number()}.
values(Done, Window_ms) ->
    Waits = bench_cluster_waits:all([Filled || #{waits := Filled} <- Done]),
    Ends = bench_cluster_waits:all([Filled || #{ends := Filled} <- Done]),
    Locks = bench_cluster_waits:count(Waits),
    Locks > 0 orelse error(no_lock_in_a_sample),
    Cpu_ns = [Ns || #{cpu_ns := Ns} <- Done],
    Known = #{
        locks_per_s => 1000 * Locks / Window_ms,
        wait_p50_us => bench_cluster_waits:percentile(50, Waits) / 1000,
        wait_p99_us => bench_cluster_waits:percentile(99, Waits) / 1000,
        wait_longest_us => lists:max([Ns || #{longest_ns := Ns} <- Done]) / 1000,
        end_p50_us => bench_cluster_waits:percentile(50, Ends) / 1000,
        end_p99_us => bench_cluster_waits:percentile(99, Ends) / 1000,
        frames_per_lock => lists:sum([Frames || #{frames := Frames} <- Done]) / Locks
    },
    case lists:member(unknown, Cpu_ns) of
        true -> Known;
        false -> Known#{cpu_us_per_lock => lists:sum(Cpu_ns) / Locks / 1000}
    end.

%% Medians over the rounds. The longest wait is the longest of all rounds.
-spec table([sample()]) -> iolist().
table(Samples = [#{size := Size} | _]) ->
    [line("~n~b nodes~n", [Size]), idle(Size, Samples), [of_case(Case, Size, Samples) || Case <- ?CASES]].

idle(Size, Samples) ->
    [
        line("  idle, percent of a core: median and maximum of all nodes~n", []),
        [
            line("    ~-26ts~ts~n", [
                Title,
                case of_rounds(Size, idle, Subject, core_percent, Samples) of
                    [] -> "not measured on this system";
                    Shares -> line("~8.2f ~8.2f", [float(median(Shares)), float(lists:max(Shares))])
                end
            ])
         || {Subject, Title} <- ?IDLE
        ]
    ].

of_case({Case, Title}, Size, Samples) ->
    [
        line("  ~ts~n    ~-18ts~ts~n", [Title, "", [line("~15ts", [Column]) || {_, Column, _} <- ?MEASURES]]),
        [
            line("    ~-18ts~ts~n", [Name, [cell(Size, Case, Subject, Measure, Samples) || Measure <- ?MEASURES]])
         || {Subject, Name} <- ?SUBJECTS
        ]
    ].

cell(Size, Case, Subject, {Measure, _, Divisor}, Samples) ->
    case of_rounds(Size, Case, Subject, Measure, Samples) of
        [] -> line("~15ts", ["-"]);
        Values -> line("~15ts", [number(over_rounds(Measure, Values) / Divisor)])
    end.

over_rounds(wait_longest_us, Values) -> lists:max(Values);
over_rounds(_, Values) -> median(Values).

%% Ratios are formed within each round.
-spec targets([sample()]) -> iolist().
targets(Samples) ->
    Sizes = lists:usort([Size || #{size := Size} <- Samples]),
    [
        line("~ntargets (for lock + try_unlock; in parentheses: for lock + unlock)~n", []),
        [
            [
                target(line("~b nodes, ~ts: locks/s, as a multiple of global's", [Size, Title]), at_least, 5, [
                    median(ratios(Size, Case, Subject, locks_per_s, Samples))
                 || Subject <- [try_unlock, unlock]
                ]),
                target(line("~b nodes, ~ts: wait p50, as a multiple of global's", [Size, Title]), at_most, 0.5, [
                    median(ratios(Size, Case, Subject, wait_p50_us, Samples))
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

ratios(Size, Case, Subject, Measure, Samples) ->
    lists:zipwith(
        fun erlang:'/'/2,
        of_rounds(Size, Case, Subject, Measure, Samples),
        of_rounds(Size, Case, global, Measure, Samples)
    ).

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

%% Every value of every sample.
-spec write(file:filename(), bench_results:facts(), [sample()]) -> ok | {error, term()}.
write(File, Facts, Samples) ->
    Rows = [
        line("~b,~s,~s,~s,~b,~p~n", [Size, Case, Subject, Measure, Round, Value])
     || #{size := Size, 'case' := Case, subject := Subject, round := Round, values := Values} <- Samples,
        {Measure, Value} <- lists:sort(maps:to_list(Values))
    ],
    Head = [["# ", Name, ": ", Value, $\n] || {Name, Value} <- Facts],
    file:write_file(File, unicode:characters_to_binary([Head, "nodes,case,subject,measure,round,value\n", Rows])).

line(Format, Arguments) ->
    io_lib:format(Format, Arguments).
