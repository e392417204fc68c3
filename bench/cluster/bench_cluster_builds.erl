%% Compares this build of the quorum locks with another one, and with itself with three voters per name, in alternating
%% samples on clusters of 4 and 16 nodes. Each has nodes of its own, which idle while those of the others lock.
-module(bench_cluster_builds).

-export([main/0]).

-define(SIZES, [4, 16]).

-define(MODE, #{
    rounds => 5,
    sample_ms => 2000,
    warm_up_ms => 500,
    one_rounds => 5,
    one_ms => 5000,
    idle_ms => 10_000,
    idle_warm_up_ms => 3000,
    locks => 10_000
}).

-define(MEASURES, [
    {locks_per_s, "locks/s"}, {wait_p50_us, "wait p50"}, {frames_per_lock, "frames"}, {cpu_us_per_lock, "cpu"}
]).

-spec main() -> no_return().
main() ->
    [Name, Folder, Other] = init:get_plain_arguments(),
    Facts = [{"other build", Other} | bench_machine:facts(Name, ?MODE)],
    Head = [io_lib:format("~-12ts~ts~n", [Fact, Value]) || {Fact, Value} <- Facts],
    io:put_chars(Head),
    Measured = [measured(Size, Other) || Size <- ?SIZES],
    Text = [Head, [[bench_cluster_report:table(OfSize), ratios(OfSize)] || OfSize <- Measured]],
    ok = bench_cluster_report:write(Folder, Name, Facts, Text, lists:append(Measured)),
    halt(0).

measured(Size, Other) ->
    Clusters = [{Subject, bench_cluster_nodes:start(Size)} || Subject <- [other, this, three]],
    [OfOther, OfThis, OfThree] = [Nodes || {_, Nodes} <- Clusters],
    ok = bench_cluster_nodes:use(Other, OfOther),
    ok = bench_cluster_nodes:start_quorum(OfOther),
    ok = bench_cluster_nodes:start_quorum(OfThis),
    ok = bench_cluster_nodes:start_quorum(OfThree, #{replicas => 3}),
    Idle = [bench_cluster_idle:samples_with_locks(Size, Subject, Nodes, ?MODE) || {Subject, Nodes} <- Clusters],
    Subjects = [{Subject, try_unlock, Nodes} || {Subject, Nodes} <- Clusters],
    Samples = lists:append(Idle) ++ bench_cluster_rounds:samples(Size, Subjects, ?MODE),
    _ = [test_nodes:stop(Node) || {_, Nodes} <- Clusters, Node <- Nodes],
    io:put_chars([bench_cluster_report:table(Samples), ratios(Samples)]),
    Samples.

%% The processor time is measured on Linux only.
ratios(Samples = [#{size := Size} | _]) ->
    Has = fun(Measure) -> lists:any(fun(#{values := Values}) -> is_map_key(Measure, Values) end, Samples) end,
    Measures = [Titled || Titled = {Measure, _} <- ?MEASURES, Has(Measure)],
    [
        io_lib:format("  as multiples of the other build~n    ~-18ts~ts~n", ["", [
            io_lib:format("~24ts", [Title]) || {_, Title} <- Measures
        ]]),
        [
            io_lib:format("    ~-18ts~ts~n", [Case, [
                io_lib:format("~15.2f (~5.2f)", [
                    bench_cluster_report:ratio({Size, Case, Measure}, Subject, other, Samples)
                 || Subject <- [this, three]
                ])
             || {Measure, _} <- Measures
            ]])
         || Case <- [alone, own_1, own, own_50, readers, one]
        ],
        io_lib:format("    (in parentheses: with replicas => 3)~n", [])
    ].
