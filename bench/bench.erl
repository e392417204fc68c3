%% The benchmark: goes through its rooms, says how the figures stand to each other, and keeps them in files.
-module(bench).

-export([main/0]).

%% full: figures to publish, in less than ten minutes. quick: to see that nothing has broken, in less than one.
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
        live_rounds => 7,
        lives => 100000,
        die_off_rounds => 3,
        die_off_holders => 200000,
        sweep_rounds => 3,
        sweep_keys => 1000000,
        look_rounds => 3,
        look_keys => [1000, 100000, 1000000],
        look_holders => 200000,
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
        live_rounds => 1,
        lives => 10000,
        die_off_rounds => 1,
        die_off_holders => 20000,
        sweep_rounds => 1,
        sweep_keys => 100000,
        look_rounds => 1,
        look_keys => [1000, 100000],
        look_holders => 20000,
        memory_rounds => 1,
        memory_keys => 100000,
        memory_holders => 10000
    }
}).

%% In the order in which they are gone through, with the seconds that each takes in each mode: by these the time that
%% is left is estimated.
-define(ROOMS, [
    {bench_timed, "loops of calls", #{"full" => 180, "quick" => 6}},
    {bench_keys, "many keys", #{"full" => 35, "quick" => 2}},
    {bench_latency, "latency", #{"full" => 100, "quick" => 4}},
    {bench_lives, "short lives", #{"full" => 28, "quick" => 1}},
    {bench_die_off, "die-off", #{"full" => 25, "quick" => 2}},
    {bench_sweep, "sweep", #{"full" => 10, "quick" => 1}},
    {bench_looks, "looks", #{"full" => 28, "quick" => 2}},
    {bench_memory, "memory", #{"full" => 51, "quick" => 6}}
]).

%% In a process of its own: many are linked to it, and if one of them crashes, somebody must be left to end this VM.
-spec main() -> no_return().
main() ->
    {Pid, Monitor} = spawn_monitor(fun() -> exit({status, main(init:get_plain_arguments())}) end),
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
    run(Name, maps:get(Name, ?MODES), Folder, output(Output)),
    0;
main([Name | _]) ->
    io:format(standard_error, "no such mode: ~ts; there are ~ts~n", [Name, lists:join(", ", maps:keys(?MODES))]),
    2.

output("terminal") -> terminal;
output("lines") -> lines.

run(Name, Mode, Folder, Output) ->
    Facts = bench_machine:facts(Name, Mode),
    Head = [io_lib:format("~-12ts~ts~n", [Fact, Value]) || {Fact, Value} <- Facts],
    io:put_chars(Head),
    Results = bench_results:merged(measured(Name, Mode, Output)),
    Text = bench_report:text(Results),
    io:put_chars(Text),
    File = fun(Kind, Extension) -> filename:join(Folder, Kind ++ "-" ++ Name ++ Extension) end,
    ok = file:write_file(File("report", ".txt"), unicode:characters_to_binary([Head, Text])),
    ok = bench_results:write(File("samples", ".csv"), Facts, Results),
    ok = bench_results:write_summary(File("summary", ".csv"), Facts, Results),
    io:format("~nreport: ~ts~nsamples: ~ts~nsummary: ~ts~n", [
        File("report", ".txt"), File("samples", ".csv"), File("summary", ".csv")
    ]).

measured(Name, Mode, Output) ->
    Rooms = [{Room, Title, maps:get(Name, Seconds)} || {Room, Title, Seconds} <- ?ROOMS],
    Progress = bench_progress:start(Output, {length(Rooms), lists:sum([Seconds || {_, _, Seconds} <- Rooms])}),
    Results = [
        begin
            ok = bench_progress:room(Progress, Title, Seconds),
            Room:measure(Mode, fun(Text) -> bench_progress:tell(Progress, Text) end)
        end
     || {Room, Title, Seconds} <- Rooms
    ],
    ok = bench_progress:stop(Progress),
    Results.
