%% Measures the quorum locks and OTP's `global' on the same nodes, in alternating samples. bench/README.md describes the
%% method. Prints a table for each size and whether the targets are met, and writes all samples to a file.
-module(bench_cluster).

-export([main/0]).

-define(SUBJECTS, [try_unlock, unlock, global]).

%% full: for published figures. quick: to check that the benchmark works.
-define(MODES, #{
    "full" => #{
        sizes => [4, 8, 16],
        rounds => 3,
        sample_ms => 2000,
        warm_up_ms => 500,
        %% A waiter of `global' sleeps for up to eight seconds between its attempts.
        one_rounds => 2,
        one_ms => 20_000,
        idle_ms => 10_000,
        idle_warm_up_ms => 3000,
        locks => 10_000
    },
    "quick" => #{
        sizes => [4],
        rounds => 2,
        sample_ms => 300,
        warm_up_ms => 200,
        one_rounds => 1,
        one_ms => 3000,
        idle_ms => 4000,
        idle_warm_up_ms => 1000,
        locks => 10_000
    }
}).

%% For each four nodes: a sample starts this much later, so that all nodes receive the order before.
-define(LEAD_NS, 100_000_000).
-spec main() -> no_return().
main() ->
    {Pid, Monitor} = spawn_monitor(fun() -> exit({status, main(init:get_plain_arguments())}) end),
    receive
        {'DOWN', Monitor, process, Pid, {status, Status}} ->
            halt(Status);
        {'DOWN', Monitor, process, Pid, Reason} ->
            io:format(standard_error, "~nbench-cluster: ~tp~n", [Reason]),
            halt(1)
    end.

main([Name, Folder]) ->
    Mode = #{sizes := Sizes} = maps:get(Name, ?MODES),
    Facts = bench_machine:facts(Name, Mode),
    Head = [io_lib:format("~-12ts~ts~n", [Fact, Value]) || {Fact, Value} <- Facts],
    io:put_chars(Head),
    Measured = [measured(Size, Mode) || Size <- Sizes],
    Samples = lists:append(Measured),
    Targets = bench_cluster_report:targets(Samples),
    io:put_chars(Targets),
    Tables = [bench_cluster_report:table(OfSize) || OfSize <- Measured],
    Report = filename:join(Folder, "cluster-report-" ++ Name ++ ".txt"),
    ok = file:write_file(Report, unicode:characters_to_binary([Head, Tables, Targets])),
    File = filename:join(Folder, "cluster-samples-" ++ Name ++ ".csv"),
    ok = bench_cluster_report:write(File, Facts, Samples),
    io:format("~nreport: ~ts~nsamples: ~ts~n", [Report, File]),
    0.

%% On new nodes. Those of the size before have been stopped.
measured(Size, Mode) ->
    Nodes = bench_cluster_nodes:start(Size),
    Idle = idle(Size, Nodes, Mode),
    Loads = lists:append([rounds(Size, Nodes, Case, Mode) || Case <- cases(Mode)]),
    lists:foreach(fun test_nodes:stop/1, Nodes),
    Samples = Idle ++ Loads,
    io:put_chars(bench_cluster_report:table(Samples)),
    Samples.

idle(Size, Nodes, Mode = #{locks := Locks}) ->
    Without = bench_cluster_idle:shares(Nodes, Mode),
    ok = bench_cluster_nodes:start_quorum(Nodes),
    With = bench_cluster_idle:shares(Nodes, Mode),
    Holding = bench_cluster_idle:with_locks(Nodes, Locks, fun() -> bench_cluster_idle:shares(Nodes, Mode) end),
    ok = bench_cluster_nodes:await_quiet(Nodes),
    [
        #{size => Size, 'case' => idle, subject => Subject, round => Place, values => #{core_percent => Share}}
     || {Subject, Shares} <- [{without, Without}, {with_none, With}, {with_locks, Holding}],
        Shares =/= unknown,
        {Place, Share} <- lists:zip(lists:seq(1, Size), Shares)
    ].

%% `alone': one loop on one node, while the others vote.
cases(#{rounds := Rounds, sample_ms := Sample_ms, one_rounds := OneRounds, one_ms := One_ms}) ->
    [
        {alone, #{names => own, loops => 1}, Rounds, Sample_ms},
        {own_1, #{names => own, loops => 1}, Rounds, Sample_ms},
        {own, #{names => own, loops => 5}, Rounds, Sample_ms},
        {own_50, #{names => own, loops => 50}, Rounds, Sample_ms},
        {readers, #{names => readers, loops => 5}, Rounds, Sample_ms},
        {one, #{names => one, loops => 5}, OneRounds, One_ms}
    ].

%% Each round has one sample of each subject. The order of the subjects rotates.
rounds(Size, Nodes, {Case, Work, Rounds, Window_ms}, Mode) ->
    [
        begin
            Values = sample(Nodes, Case, Work#{subject => Subject}, Window_ms, Mode),
            #{size => Size, 'case' => Case, subject => Subject, round => Round, values => Values}
        end
     || Round <- lists:seq(1, Rounds), Subject <- rotated(Round, ?SUBJECTS)
    ].

rotated(Round, Subjects) ->
    {Last, First} = lists:split(Round rem length(Subjects), Subjects),
    First ++ Last.

sample(Nodes = [Alone | _], Case, Work, Window_ms, #{warm_up_ms := WarmUp_ms}) ->
    Plan = #{
        starts_ns => os:system_time(nanosecond) + ?LEAD_NS * length(Nodes) div 4,
        warm_up_ms => WarmUp_ms,
        window_ms => Window_ms
    },
    Name = test_nodes:name(Alone),
    Done = test_nodes:call_all(Nodes, fun() ->
        case Case =:= alone andalso node() =/= Name of
            true -> bench_cluster_load:run(Work#{loops := 0}, Plan);
            false -> bench_cluster_load:run(Work, Plan)
        end
    end),
    ok = bench_cluster_nodes:await_quiet(Nodes),
    bench_cluster_report:values(Done, Window_ms).
