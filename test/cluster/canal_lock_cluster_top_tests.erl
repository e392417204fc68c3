%% top/0,1 of the cluster permits: pictures show the keys of this node and the allocator, and continue when
%% canal_lock_cluster stops. canal_lock_screen_tests tests screens and input.
-module(canal_lock_cluster_top_tests).

-include_lib("eunit/include/eunit.hrl").

-import(test_terminal, [quick/0, slow/0, cells/1, shown/3]).

-define(LONG_MS, 60_000).
-define(NOT_STARTED,
    "canal_lock_cluster is not started on this node, or the table of canal_lock is closed: "
    "start the application canal_lock, and canal_lock_cluster in a supervisor"
).

top_test_() ->
    test_setup:quietly(test_terminal:tests([
        {foreach, fun start/0, fun stop/1, [
            {timeout, 60, {Title, Test}}
         || {Title, Test} <- [
                {"the first lines have the session and the allocator, and the busiest keys follow", fun picture/0},
                {"pictures continue when canal_lock_cluster stops and starts", fun stopped/0},
                {"pictures continue when the agent dies while they are made", fun died/0}
            ]
        ]},
        {"rates are per second since the last picture, and unknown after a restart", fun rates/0},
        {"the head tells what is missing: a session, an allocator, answers of nodes", fun missing/0},
        {"before the start the call raises and requests no input", fun not_started/0}
    ])).

start() ->
    {ok, _} = canal_lock:start_link(3),
    start_cluster().

start_cluster() ->
    {ok, Pid} = canal_lock_cluster:start_link(#{members => [node()]}),
    true = unlink(Pid),
    test_await:value(false, fun() -> canal_lock_cluster:session() =:= none end).

stop(_) ->
    _ = whereis(canal_lock_cluster) =:= undefined orelse canal_lock_cluster:stop(),
    canal_lock:stop().

top(Arguments) ->
    test_terminal:start(fun() -> apply(canal_lock_cluster, top, Arguments) end, #{columns => 200, rows => 60}).

picture() ->
    %% More keys than one native call reads.
    [acquire(Key, 1) || Key <- lists:seq(1, 150)],
    [acquire(Key, 5) || Key <- [c, {a, "b"}]],
    ok = canal_lock_cluster:release(c, #{permits => 2}),
    ok = canal_lock_cluster:release({a, "b"}, #{permits => 3}),
    Screen = top([(slow())#{rows => 2}]),
    [Title, Names, Numbers, _, _, Session, "", Headings | Rows] = test_terminal:picture(Screen),
    Pattern = "^canal_lock_cluster on nonode@nohost, [0-2][0-9]:[0-5][0-9]:[0-5][0-9]; Enter ends this$",
    ?assertMatch({match, _}, re:run(Title, Pattern)),
    ?assertEqual({"keys", "152"}, {hd(cells(Names)), hd(cells(Numbers))}),
    #{session := Number, term := Term} = canal_lock_cluster:status(),
    ?assertEqual(
        lists:concat(["session ", Number, "; allocator nonode@nohost (term ", Term, ")"]), Session
    ),
    ?assertEqual(["in", "use", "here", "share", "key"], string:lexemes(Headings, " ")),
    ?assertEqual([["3", "5", "c"], ["2", "5", "{a,\"b\"}"], []], [string:lexemes(Row, " ") || Row <- Rows]),
    test_terminal:quit(Screen).

acquire(Key, Permits) ->
    {acquired, _} = canal_lock_cluster:acquire(Key, 5, #{permits => Permits, timeout_ms => ?LONG_MS}).

stopped() ->
    Screen = top([quick()]),
    _ = test_terminal:picture(Screen),
    ok = canal_lock_cluster:stop(),
    ?assertMatch([_, ?NOT_STARTED, ""], test_terminal:next(Screen)),
    start_cluster(),
    [_, _, _, _, _, "session " ++ _ | _] = test_terminal:next(Screen),
    test_terminal:quit(Screen).

died() ->
    ok = sys:suspend(canal_lock_cluster_agent),
    Screen = top([quick()]),
    Called = fun() -> process_info(whereis(canal_lock_cluster_agent), message_queue_len) end,
    test_await:value(true, fun() -> {message_queue_len, Length} = Called(), Length > 0 end),
    ok = test_quorum_cluster:kill_process(canal_lock_cluster_agent),
    ?assertMatch([_, "the agent of this node does not answer", ""], test_terminal:picture(Screen)),
    [_, _, _, _, _, _ | _] = test_terminal:next(Screen),
    test_terminal:quit(Screen).

%%% Made-up readings

%% Over two seconds.
rates() ->
    Before = #{granted => 10, refused => 1, received => 5, returned => 0, lost => 0, wait_us => 1_000_000},
    lists:foreach(fun({Changes, Calls, Permits}) ->
        Now = data(#{totals => maps:merge(Before, Changes)}),
        [[NamesOfCalls, Calls1, NamesOfPermits, Permits1 | _] | _] =
            shown(canal_lock_cluster_top, {data(#{totals => Before}), 2.0}, Now),
        ?assertEqual(["keys", "asked/s", "mean wait", "refused/s"], cells(NamesOfCalls)),
        ?assertEqual(["received/s", "returned/s", "lost/s"], cells(NamesOfPermits)),
        ?assertEqual({["7" | Calls], Permits}, {cells(Calls1), cells(Permits1)})
    end, [
        {#{}, ["0", "-", "0"], ["0", "0", "0"]},
        {#{granted => 14, wait_us => 1_001_000, refused => 2}, ["2.0", "0.25 ms", "0.5"], ["0", "0", "0"]},
        {#{received => 45, returned => 3, lost => 2}, ["0", "-", "0"], ["20", "1.5", "1.0"]},
        {#{granted => 9}, ["-", "-", "-"], ["-", "-", "-"]}
    ]).

missing() ->
    lists:foreach(fun({Changes, Line}) ->
        ?assertEqual(Line, lists:last(hd(shown(canal_lock_cluster_top, none, data(Changes)))))
    end, [
        {#{session => none, allocator => none, waits_for => unknown},
            "no session: calls answer no_quorum; no allocator"},
        {#{waits_for => unknown}, "session 4; allocator a@host (term 9), which does not answer"},
        {#{waits_for => [b@host, c@host]}, "session 4; allocator a@host (term 9), which waits for b@host, c@host"}
    ]).

data(Changes) ->
    Status = #{session => 4, allocator => a@host, term => 9, waits_for => [], keys => 7, totals => #{}},
    #{status => maps:merge(Status, Changes), keys => []}.

%%% Not started

not_started() ->
    Screen = test_terminal:start(fun() -> test_worker:caught(fun canal_lock_cluster:top/0) end, #{}),
    {'EXIT', {badarg, Stack = [{canal_lock_cluster, top, _, _} | _]}} = test_terminal:await_result(Screen),
    ?assertEqual(#{general => <<?NOT_STARTED>>}, canal_lock_cluster_errors:format_error(badarg, Stack)).
