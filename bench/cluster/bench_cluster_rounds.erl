%% The samples of all cases: in each round one sample of each subject, in an order that rotates.
-module(bench_cluster_rounds).

-export([samples/3]).

-export_type([subject/0, mode/0]).

%% Its name in the report, the functions that it calls, and its nodes, which may be those of other subjects too.
-type subject() :: {atom(), bench_cluster_load:subject(), [test_nodes:a_node(), ...]}.
-type mode() :: #{
    rounds := pos_integer(),
    sample_ms := pos_integer(),
    warm_up_ms := pos_integer(),
    %% Of the case `one'.
    one_rounds := pos_integer(),
    one_ms := pos_integer(),
    _ => _
}.

%% For each four nodes: a sample starts this much later, so that all nodes receive the order before.
-define(LEAD_NS, 100_000_000).

-spec samples(Size :: pos_integer(), [subject()], mode()) -> [bench_cluster_report:sample()].
samples(Size, Subjects, Mode) ->
    [
        #{size => Size, 'case' => Case, subject => Subject, round => Round, values => Values}
     || {Case, Work, Rounds, Window_ms} <- cases(Mode),
        Round <- lists:seq(1, Rounds),
        {Subject, Calls, Nodes} <- rotated(Round, Subjects),
        Values <- [sample(Nodes, Case, Work#{subject => Calls}, Window_ms, Mode)]
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
