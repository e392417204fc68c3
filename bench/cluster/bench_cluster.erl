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
    ok = bench_cluster_report:write(Folder, Name, Facts, [Head, Tables, Targets], Samples),
    0.

%% On new nodes. Those of the size before have been stopped.
measured(Size, Mode) ->
    Nodes = bench_cluster_nodes:start(Size),
    Idle = idle(Size, Nodes, Mode),
    Loads = bench_cluster_rounds:samples(Size, [{Subject, Subject, Nodes} || Subject <- ?SUBJECTS], Mode),
    lists:foreach(fun test_nodes:stop/1, Nodes),
    Samples = Idle ++ Loads,
    io:put_chars(bench_cluster_report:table(Samples)),
    Samples.

idle(Size, Nodes, Mode) ->
    Without = bench_cluster_idle:samples(Size, without, Nodes, Mode),
    ok = bench_cluster_nodes:start_quorum(Nodes),
    With = bench_cluster_idle:samples(Size, with_none, Nodes, Mode),
    Without ++ With ++ bench_cluster_idle:samples_with_locks(Size, with_locks, Nodes, Mode).
