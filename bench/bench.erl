%% Runs one program of the benchmark (permits, waiting, cluster or permits-cluster): measures its groups one after the
%% other, prints a report and writes it, and a summary of all figures, to files.
-module(bench).

-export([main/0]).

-export_type([program/0, mode/0, target/0]).

%% Numbers and durations: `full' for figures to publish, `quick' to see that the benchmark works.
-type mode() :: #{atom() => term()}.
-type program() :: #{
    mode := mode(),
    groups := [{Title :: string(), fun((mode()) -> bench_results:results())}, ...],
    %% The cases, the variants and the subjects in the order of the report. Other variants follow alphabetically.
    cases := [{Case :: atom(), Title :: string()}, ...],
    variants := [string()],
    subjects := [bench_results:subject(), ...],
    targets := [target()],
    facts := bench_machine:facts()
}.
%% Missed targets are printed and do not change the exit status, because load on a shared machine can cause them.
%% Targets without a bound are printed for comparison with their neighbors.
-type target() :: {bench_results:figure(), none | {at_most | at_least, number()}}.

-define(PROGRAMS, #{
    "permits" => fun bench_permits:program/1,
    "waiting" => fun bench_waiting:program/1,
    "cluster" => fun bench_cluster:program/1,
    "permits-cluster" => fun bench_cluster_permits:program/1
}).

%% A separate process, because many processes are linked to it: if one crashes, this one still stops the VM.
-spec main() -> no_return().
main() ->
    {Pid, Monitor} = spawn_monitor(fun() -> main(init:get_plain_arguments()) end),
    receive
        {'DOWN', Monitor, process, Pid, normal} ->
            halt(0);
        {'DOWN', Monitor, process, Pid, Reason} ->
            io:format(standard_error, "~nbench: ~tp~n", [Reason]),
            halt(1)
    end.

main([Name, ModeName, Folder, This | Other]) ->
    ok = bench_builds:define(This, Other),
    Program = #{facts := More} = (maps:get(Name, ?PROGRAMS))(ModeName),
    Facts = bench_machine:facts(Name, ModeName) ++ More ++ [{"other build", Library} || Library <- Other],
    Head = [io_lib:format("~-12ts~ts~n", Fact) || Fact <- [tuple_to_list(Fact) || Fact <- Facts]],
    io:put_chars(Head),
    {Results, Durations} = measured(Program),
    Text = bench_report:text(Program, Results),
    io:put_chars(Text),
    File = fun(Suffix) -> filename:join(Folder, lists:concat([Name, "-", ModeName, Suffix])) end,
    ok = file:write_file(File(".txt"), unicode:characters_to_binary([Head, Text])),
    ok = bench_results:write(File(".csv"), Facts, bench_report:in_order(Program, Results)),
    io:format("~nreport: ~ts~nsummary: ~ts~n~n", [File(".txt"), File(".csv")]),
    [io:format("~6b s  ~ts~n", [Seconds, Title]) || {Seconds, Title} <- lists:reverse(lists:sort(Durations))].

%% Each group with its duration in seconds.
measured(#{groups := Groups, mode := Mode}) ->
    Measure = fun({Number, {Title, Measure}}, {Results, Durations}) ->
        io:format("[~b/~b] ~ts~n", [Number, length(Groups), Title]),
        {Us, OfGroup} = timer:tc(Measure, [Mode]),
        {bench_results:merge(Results, OfGroup), [{Us div 1_000_000, Title} | Durations]}
    end,
    lists:foldl(Measure, {#{}, []}, lists:enumerate(Groups)).
