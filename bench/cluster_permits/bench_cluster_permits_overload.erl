%% Four nodes in overload: calls that do not wait arrive ten times as fast as the limit allows, each in a process of its
%% own. Most are refused. Measures how long a refusal takes, and the frames that the nodes send because of the key.
-module(bench_cluster_permits_overload).

-export([measure/1, targets/0]).

-define(NODES, 4).
-define(LIMIT, 10).
-define(HOLD_MS, 10).
-define(TIMES, 10).
-define(CALLS_PER_S, (?TIMES * ?LIMIT * 1000 div ?HOLD_MS div ?NODES)).
-define(TICK_MS, 2).
-define(VARIANT, "limit 10, 10 ms, 10,000 calls a second").

-spec measure(bench:mode()) -> bench_results:results().
measure(#{load_rounds := Rounds, load := Load, lease_ms := Lease_ms}) ->
    Nodes = bench_cluster_permits_nodes:start(?NODES, Lease_ms),
    Results = bench_rounds:play(Rounds, [[fun() -> sample(Nodes, Load) end]]),
    ok = bench_cluster_permits_nodes:stop(Nodes),
    Results.

sample(Nodes, #{window_ms := Window_ms} = Load) ->
    Idle = test_nodes:call_all(Nodes, fun() -> frames(fun() -> timer:sleep(Window_ms) end) end),
    Plan = Load#{starts_ns => bench_cluster_permits_load:starts_ns()},
    Done = test_nodes:call_all(Nodes, fun() -> run(Plan) end),
    Work = #{calls => ours, key => overload, limit => ?LIMIT, callers => 0, hold_ms => ?HOLD_MS},
    #{use := Use, most := Most} = bench_cluster_permits_load:judge(Work, Plan, [
        Of#{waits => [{1, 1}], longest_ns => 0, in_use => 0.0} || Of <- Done
    ]),
    Refused = bench_times:all([Times || #{refused := Times} <- Done]),
    PerNode = fun(Count) -> 1000 * Count / Window_ms / length(Nodes) end,
    Frames = [OfKey - OfNothing || {#{frames := OfKey}, {OfNothing, _}} <- lists:zip(Done, Idle)],
    [
        {{overload, ?VARIANT, ?NODES, ours, Measure}, Value}
     || {Measure, Value} <- [
            {use, Use},
            {most, Most},
            {refused_per_second, 1000 * bench_times:count(Refused) / Window_ms},
            {refused_p50, bench_times:percentile(50, Refused)},
            {refused_p99, bench_times:percentile(99, Refused)},
            {frames, PerNode(lists:sum(Frames))},
            {frames_of_busiest_node, 1000 * lists:max(Frames) / Window_ms},
            {frames_idle, PerNode(lists:sum([OfNothing || {OfNothing, _} <- Idle]))}
        ]
    ].

%% The packets that this node sends while the function runs.
frames(Fun) ->
    Before = bench_cluster_nodes:frames_sent(),
    Result = Fun(),
    {bench_cluster_nodes:frames_sent() - Before, Result}.

run(#{starts_ns := Starts, warm_up_ms := WarmUp_ms, window_ms := Window_ms}) ->
    Times = bench_times:new(),
    Begins = Starts + WarmUp_ms * 1_000_000,
    Ends = Begins + Window_ms * 1_000_000,
    Self = self(),
    Call = fun() -> call(Begins, Times, Self) end,
    ok = calls(Call, Starts, Begins, 0),
    {Frames, ok} = frames(fun() -> calls(Call, Begins, Ends, 0) end),
    #{frames => Frames, refused => bench_times:filled(Times), held => held(Begins)}.

%% As many as are due.
calls(Call, Begins, Ends, Made) ->
    Now = os:perf_counter(nanosecond),
    Due = max(0, min(Now, Ends) - Begins) * ?CALLS_PER_S div 1_000_000_000,
    lists:foreach(fun(_) -> spawn(Call) end, lists:seq(Made + 1, Due)),
    case Now >= Ends of
        true ->
            ok;
        false ->
            timer:sleep(?TICK_MS),
            calls(Call, Begins, Ends, max(Made, Due))
    end.

call(Begins, Times, Parent) ->
    Asked = os:perf_counter(nanosecond),
    Answer = canal_lock_cluster:acquire(overload, ?LIMIT, 1),
    Got = os:perf_counter(nanosecond),
    case Answer of
        full when Asked >= Begins ->
            bench_times:note(Times, Got - Asked);
        full ->
            ok;
        {acquired, _} ->
            timer:sleep(?HOLD_MS),
            Held = os:perf_counter(nanosecond),
            ok = canal_lock_cluster:release(overload),
            Parent ! {held, Got, Held}
    end.

held(Begins) ->
    receive
        {held, Got, Held} when Held > Begins -> [{max(Got, Begins), Held} | held(Begins)];
        {held, _, _} -> held(Begins)
    after 10 * ?HOLD_MS -> []
    end.

-spec targets() -> [bench:target()].
targets() ->
    [
        {{value, {overload, ?VARIANT, ?NODES, ours, Measure}}, Bound}
     || {Measure, Bound} <- [
            {refused_p50, {at_most, 1000}}, {frames, {at_most, 50}}, {frames_of_busiest_node, none},
            {most, {at_most, ?LIMIT}}, {use, none}
        ]
    ].
