%% Runs all benchmark groups, prints a report and writes the results to files.
-module(bench).

-export([main/0]).
%% For bench/waiting.
-export([halt_after/1, run/2]).

-export_type([suite/0]).

-type suite() :: #{
    %% In the order of execution. The seconds are the expected time in each mode, for the estimate of the time left.
    groups := [{module(), Title :: string(), #{ModeName :: string() => number()}}, ...],
    targets := [bench_targets:target()],
    %% Before the names of the files.
    prefix := string(),
    facts := bench_results:facts()
}.

%% full: figures to publish, in less than ten minutes. quick: a check that the benchmark works, in less than one.
-define(MODES, #{
    "full" => #{
        rounds => 21,
        sample_ms => 30,
        crowds => [1, 2, 10, 100, 1000],
        held => [1, 2, 3, 10, 100, 1000, 10000, 100000],
        keys => [1, 10, 100, 1000, 10000, 100000, 1000000],
        latency_rounds => 3,
        latency_calls => 100000,
        first_acquires => 2500,
        latency_pairs => 300000,
        latency_keys => 1000000,
        lifetime_rounds => 7,
        lifetimes => 100000,
        die_off_rounds => 3,
        die_off_holders => 200000,
        sweep_rounds => 3,
        sweep_keys => 1000000,
        inspection_rounds => 3,
        inspection_keys => [1000, 100000, 1000000],
        inspection_holders => 200000,
        memory_rounds => 1,
        memory_keys => 1000000,
        memory_holders => 100000
    },
    "quick" => #{
        rounds => 3,
        sample_ms => 5,
        crowds => [1, 2, 10, 100, 1000],
        held => [1, 10, 1000, 100000],
        keys => [1, 1000, 100000],
        latency_rounds => 1,
        latency_calls => 10000,
        first_acquires => 300,
        latency_pairs => 30000,
        latency_keys => 100000,
        lifetime_rounds => 1,
        lifetimes => 10000,
        die_off_rounds => 1,
        die_off_holders => 20000,
        sweep_rounds => 1,
        sweep_keys => 100000,
        inspection_rounds => 1,
        inspection_keys => [1000, 100000],
        inspection_holders => 20000,
        memory_rounds => 1,
        memory_keys => 100000,
        memory_holders => 10000
    }
}).

-define(GROUPS, [
    {bench_scenarios, "loops of calls", #{"full" => 180, "quick" => 6}},
    {bench_keys, "many keys", #{"full" => 35, "quick" => 2}},
    {bench_latency, "latency", #{"full" => 100, "quick" => 4}},
    {bench_lifetimes, "short-lived processes", #{"full" => 28, "quick" => 1}},
    {bench_die_off, "die-off", #{"full" => 25, "quick" => 2}},
    {bench_sweep, "sweep", #{"full" => 10, "quick" => 1}},
    {bench_inspection, "inspection", #{"full" => 28, "quick" => 2}},
    {bench_memory, "memory", #{"full" => 51, "quick" => 6}}
]).

-spec main() -> no_return().
main() ->
    halt_after(fun() -> main(init:get_plain_arguments()) end).

%% A separate process, because many processes are linked to it: if one crashes, this one still stops the VM.
-spec halt_after(fun(() -> Status :: non_neg_integer())) -> no_return().
halt_after(Main) ->
    {Pid, Monitor} = spawn_monitor(fun() -> exit({status, Main()}) end),
    receive
        {'DOWN', Monitor, process, Pid, {status, Status}} ->
            halt(Status);
        {'DOWN', Monitor, process, Pid, Reason} ->
            io:format(standard_error, "~nbench: ~tp~n", [Reason]),
            halt(1)
    end.

main(["compare", Old, New]) ->
    io:put_chars(bench_compare:text(Old, New)),
    0;
main([Name, Folder, Output]) when is_map_key(Name, ?MODES) ->
    Suite = #{groups => ?GROUPS, targets => bench_targets:targets(), prefix => "", facts => []},
    run(Suite, {Name, maps:get(Name, ?MODES), Folder, Output}),
    0;
main([Name | _]) ->
    io:format(standard_error, "bench: unknown mode ~ts; use ~ts~n", [Name, lists:join(" or ", maps:keys(?MODES))]),
    2.

output("terminal") -> terminal;
output("lines") -> lines.

-spec run(suite(), {ModeName :: string(), bench_cases:mode(), file:filename(), Output :: string()}) -> ok.
run(#{targets := Targets, prefix := Prefix, facts := More} = Suite, {Name, Mode, Folder, Output}) ->
    Facts = bench_machine:facts(Name, Mode) ++ More,
    Head = [io_lib:format("~-12ts~ts~n", [Fact, Value]) || {Fact, Value} <- Facts],
    io:put_chars(Head),
    Results = bench_results:merged(measured(Suite, Name, Mode, output(Output))),
    Text = bench_report:text(Results, Targets),
    io:put_chars(Text),
    File = fun(Kind, Extension) -> filename:join(Folder, Prefix ++ Kind ++ "-" ++ Name ++ Extension) end,
    ok = file:write_file(File("report", ".txt"), unicode:characters_to_binary([Head, Text])),
    ok = bench_results:write(File("samples", ".csv"), Facts, Results),
    ok = bench_results:write_summary(File("summary", ".csv"), Facts, Results),
    io:format("~nreport: ~ts~nsamples: ~ts~nsummary: ~ts~n", [
        File("report", ".txt"), File("samples", ".csv"), File("summary", ".csv")
    ]).

measured(#{groups := All}, Name, Mode, Output) ->
    Groups = [{Group, Title, maps:get(Name, Seconds)} || {Group, Title, Seconds} <- All],
    Progress = bench_progress:start(Output, {length(Groups), lists:sum([Seconds || {_, _, Seconds} <- Groups])}),
    Results = [
        begin
            ok = bench_progress:begin_group(Progress, Title, Seconds),
            Group:measure(Mode, fun(Text) -> bench_progress:report(Progress, Text) end)
        end
     || {Group, Title, Seconds} <- Groups
    ],
    ok = bench_progress:stop(Progress),
    Results.
