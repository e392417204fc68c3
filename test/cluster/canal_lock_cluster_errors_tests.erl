%% Wrong calls of the cluster permits: the error, the explanation of each wrong argument, and that nothing has changed.
-module(canal_lock_cluster_errors_tests).

-include_lib("eunit/include/eunit.hrl").

-define(COUNT, "be a non-negative integer").
-define(OR_OPTIONS, ?COUNT ", or a map of options").
-define(TIMEOUT, "be a non-negative integer below 2^32 (milliseconds), infinity, or a map of options").
-define(POSITIVE, "be a positive integer").
-define(LOCAL_PID, "be a pid of this node").
-define(FUN, "be a function of arity 0").

errors_test_() ->
    test_log_listener:tests(warning,
        {foreach, fun start/0, fun stop/1, [
            {timeout, 60, {Title, Test}}
         || {Title, Test} <- [
                {"a wrong argument is named, and nothing has changed", fun wrong_arguments/0},
                {"a wrong argument is named without a session, too", fun without_session/0},
                {"a wrong argument is named before the start, too, and other calls are explained", fun not_started/0},
                {"calls with a closed table are explained, also when the session has ended", fun closed/0},
                {"a second start answers the supervisor of the first one", fun started_twice/0},
                {"a session that ends logs how many permits are lost", fun reported/0}
            ]
        ]}
    ).

start() ->
    {ok, _} = canal_lock:start_link(3),
    start_with([node()]),
    test_await:value(false, fun() -> canal_lock_cluster:session() =:= none end).

start_with(Members) ->
    {ok, Pid} = canal_lock_cluster:start_link(#{members => Members}),
    true = unlink(Pid),
    ok.

stop(_) ->
    _ = whereis(canal_lock_cluster) =:= undefined orelse canal_lock_cluster:stop(),
    _ = whereis(canal_lock) =:= undefined orelse canal_lock:stop(),
    ok.

%%% Wrong arguments

wrong_arguments() ->
    {acquired, 1} = canal_lock_cluster:acquire(a, 2, 1, 60_000),
    are_explained(wrong_calls()),
    ?assertEqual([{self(), 1}], canal_lock_cluster:holders(a)),
    ok = canal_lock_cluster:release(a).

%% A node that reaches no quorum.
without_session() ->
    ok = canal_lock_cluster:stop(),
    start_with([node(), there@nowhere]),
    are_explained(wrong_calls()),
    [
        ?assertEqual({Function, {error, no_quorum}}, {Function, apply(canal_lock_cluster, Function, Arguments)})
     || {Function, Arguments} <- [{usage, [a]} | acquires()]
    ],
    ?assertMatch(
        #{session := none, allocator := none, waits_for := unknown, keys := 0}, canal_lock_cluster:status()
    ).

are_explained(Calls) ->
    lists:foreach(fun({Function, Arguments, Expected}) ->
        Texts = maps:map(fun(_, Text) -> unicode:characters_to_binary(Text) end, Expected),
        ?assertEqual({Function, Arguments, Texts}, {Function, Arguments, explained(Function, Arguments)})
    end, Calls).

%% The explanations, by the position of the argument.
wrong_calls() ->
    Fun = fun() -> error(called) end,
    Remote = test_setup:remote_pid(1),
    Unknown = "unknown option capacity; the options are timeout_ms, permits, max_waiting",
    [
        {child_spec, [[node()]], #{1 => must("Options", "be a map", [node()])}},
        {acquire, [a, -1], #{2 => must("Limit", ?COUNT, -1)}},
        {acquire, [a, #{capacity => Fun}], #{2 => must("Limit", ?COUNT, #{capacity => Fun})}},
        {acquire, [a, 1.0, b], #{2 => must("MaxPer", ?COUNT, 1.0), 3 => must("Buckets", ?OR_OPTIONS, b)}},
        {acquire, [a, b, #{permits => 0}],
            #{2 => must("Limit", ?COUNT, b), 3 => must("the option permits", ?POSITIVE, 0)}},
        {acquire, [a, 1, #{capacity => Fun}], #{3 => Unknown}},
        {acquire, [a, b, -1, 1 bsl 32],
            #{2 => must("MaxPer", ?COUNT, b), 3 => must("Buckets", ?COUNT, -1),
                4 => must("TimeoutOrOptions", ?TIMEOUT, 1 bsl 32)}},
        {release, [a, #{permits => 0}], #{2 => must("the option permits", ?POSITIVE, 0)}},
        {release, [a, 1], #{2 => must("Options", "be a map", 1)}},
        {give, [a, Remote], #{2 => must("Pid", ?LOCAL_PID, Remote)}},
        {give, [a, b, []], #{2 => must("Pid", ?LOCAL_PID, b), 3 => must("Options", "be a map", [])}},
        {with_permit, [a, b, c], #{2 => must("Limit", ?COUNT, b), 3 => must("Fun", ?FUN, c)}},
        {with_permit, [a, -1, Fun], #{2 => must("Limit", ?COUNT, -1)}},
        {with_permit, [a, b, -1, c],
            #{2 => must("MaxPer", ?COUNT, b), 3 => must("Buckets", ?OR_OPTIONS, -1), 4 => must("Fun", ?FUN, c)}},
        {with_permit, [a, 1, #{max_waiting => -1}, Fun],
            #{3 => must("the option max_waiting", ?COUNT " or infinity", -1)}},
        {with_permit, [a, -1, 1, 0, Fun], #{2 => must("MaxPer", ?COUNT, -1)}},
        {with_permit, [a, 1, 1, never, none],
            #{4 => must("TimeoutOrOptions", ?TIMEOUT, never), 5 => must("Fun", ?FUN, none)}},
        {top, [#{rows => 0}], #{1 => must("the option rows", ?POSITIVE, 0)}}
    ].

must(Name, Must, Value) ->
    io_lib:format("~ts must ~ts, got: ~0tp", [Name, Must, Value]).

%% What the shell shows. The function is on top of the stack trace.
explained(Function, Arguments) ->
    try apply(canal_lock_cluster, Function, Arguments) of
        Answer -> {answered, Answer}
    catch
        error:badarg:Stack ->
            [{canal_lock_cluster, Function, _, Info} | _] = Stack,
            #{module := Module} = proplists:get_value(error_info, Info),
            Module:format_error(badarg, Stack)
    end.

%%% Without a start or a table

not_started() ->
    ok = canal_lock_cluster:stop(),
    are_explained([
        {start_link, [[]], #{1 => must("Options", "be a map", [])}},
        {start_link, [#{}], #{1 => "the option members is missing; it must be a list of 1 to 16 nodes"}}
        | wrong_calls()
    ]),
    are_not_started([{usage, [a]}, {status, []}, {top, []} | acquires()]),
    ?assertEqual(none, canal_lock_cluster:session()),
    %% These need only the table.
    ?assertEqual([], canal_lock_cluster:holders(a)),
    [?assertEqual({error, not_held}, Call()) || Call <- [
        fun() -> canal_lock_cluster:release(a) end,
        fun() -> canal_lock_cluster:release(a, #{permits => 2}) end,
        fun() -> canal_lock_cluster:give(a, self()) end
    ]],
    ?assertExit(noproc, canal_lock_cluster:stop()).

closed() ->
    Before = canal_lock_quorum:fence(canal_lock_cluster:session()),
    ok = canal_lock:stop(),
    Calls = [{release, [a]}, {release, [a, #{}]}, {give, [a, self()]}, {give, [a, self(), #{}]}, {holders, [a]}],
    are_not_started(Calls ++ acquires()),
    test_await:value(none, fun canal_lock_cluster:session/0),
    are_not_started(Calls ++ acquires()),
    %% The next table has a session of its own.
    {ok, _} = canal_lock:start_link(3),
    test_await:value(false, fun() -> canal_lock_cluster:session() =:= none end),
    ?assert(canal_lock_quorum:fence(canal_lock_cluster:session()) > Before),
    ?assertEqual({acquired, 1}, canal_lock_cluster:acquire(a, 1, 1, 60_000)).

acquires() ->
    Fun = fun() -> error(called) end,
    [
        {acquire, [a, 1]}, {acquire, [a, 1, 1]}, {acquire, [a, 1, #{}]}, {acquire, [a, 1, 1, infinity]},
        {with_permit, [a, 1, Fun]}, {with_permit, [a, 1, 1, Fun]}, {with_permit, [a, 1, #{permits => 2}, Fun]},
        {with_permit, [a, 1, 1, 0, Fun]}
    ].

are_not_started(Calls) ->
    Text =
        <<"canal_lock_cluster is not started on this node, or the table of canal_lock is closed: "
          "start the application canal_lock, and canal_lock_cluster in a supervisor">>,
    [
        ?assertEqual({Function, #{general => Text}}, {Function, explained(Function, Arguments)})
     || {Function, Arguments} <- Calls
    ].

started_twice() ->
    Pid = whereis(canal_lock_cluster),
    ?assertEqual({error, {already_started, Pid}}, canal_lock_cluster:start_link(#{members => [node()]})),
    #{start := {Module, Function, Arguments}} = canal_lock_cluster:child_spec(#{members => [node()]}),
    ?assertEqual({error, {already_started, Pid}}, apply(Module, Function, Arguments)).

%%% Reports

reported() ->
    {acquired, 3} = canal_lock_cluster:acquire(a, 3, #{permits => 3, timeout_ms => 60_000}),
    Events = test_log_listener:listening(fun() ->
        ok = canal_lock_cluster:stop(),
        test_log_listener:events()
    end),
    [#{msg := {report, Report}, meta := #{canal_lock := cluster, report_cb := Text}}] = Events,
    ?assertMatch(#{what := lost, session := 1, permits := 3}, Report),
    {Format, Values} = Text(Report),
    ?assertMatch(
        "canal_lock_cluster: session 1 of this node has ended, and 3 permits are lost: " ++ _,
        lists:flatten(io_lib:format(Format, Values))
    ),
    ?assertEqual({canal_lock_cluster, lost, a}, receive Message -> Message end).
