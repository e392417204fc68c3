%% P10: several processes of a node start canal_lock. There is one table. It is open while one of them lives.
-module(canal_lock_starters_tests).

-include_lib("eunit/include/eunit.hrl").

-define(STARTERS, 4).
-define(STORM_ROUNDS, 100).
-define(LINKED, 2000).
-define(ROUNDS, 10).

%% For a manager that must not sweep by itself during a test.
-define(NEVER_MS, 3_600_000).

starters_test_() ->
    [
        test_manager_crash:tests([
            {"P10: two applications of a node each start canal_lock, and stop in any order", fun two_supervisors/0},
            {"P10: a child goes on when the application stops, and the application when a child stops",
                fun beside_the_application/0},
            {"P10: however the manager ends, a standby goes on with its table", fun ends/0},
            {"P10: a table without keep_on_crash ends with the last process that keeps it open", fun the_last_ends/0},
            {"P10: the table closes if all plain processes end at once", fun all_end/0},
            {"P10: the report of an earlier crash comes after the last process has ended", fun late_report/0},
            {"P10: two managers end before a standby takes over", fun two_managers_end/0},
            {"P10: a start that comes before the standby or the supervisor adopts the table", fun early_start/0},
            {"P10: stop/0 after a crash, and before a standby knows of it, ends all", fun stop_after_crash/0},
            {"a start does not hang while the manager is suspended, or its name is taken", fun no_answer/0},
            {"P10: stop/0 ends all, and only a start opens a table", fun stop/0},
            {"a standby answers unknown calls and ignores messages", fun stray_messages/0},
            {"P10: permits are held while starters are killed, stopped and started", fun storm/0}
        ]),
        test_log_listener:tests(
            warning,
            test_setup:tests(without_manager, [
                {"the first value of each option is in force, and another one is a warning", fun options/0}
            ])
        )
    ].

start(Options) ->
    {ok, Pid} = canal_lock:start_link(Options),
    Pid.

acquire() ->
    canal_lock:acquire(db, 99, 1).

%% A process that starts canal_lock and outlives it.
starter(Options) ->
    test_worker:start(fun() ->
        false = process_flag(trap_exit, true),
        start(Options)
    end).

two_supervisors() ->
    lists:foreach(fun(Order) ->
        Supervisors = [test_setup:supervise(1, [canal_lock:child_spec(Argument)]) || Argument <- [3, #{}]],
        {acquired, 1} = acquire(),
        [First, Second] = Order(Supervisors),
        ok = test_setup:stop_supervisor(First),
        await_manager(),
        ?assertEqual([{db, 1}], canal_lock:held()),
        ok = test_setup:stop_supervisor(Second),
        test_manager_crash:calls_raise()
    end, [fun(Pids) -> Pids end, fun lists:reverse/1]).

await_manager() ->
    test_await:value(true, fun() -> whereis(canal_lock) =/= undefined end),
    _ = sys:get_state(canal_lock),
    ok.

beside_the_application() ->
    ok = application:start(canal_lock),
    Child = test_setup:supervise(1, [canal_lock:child_spec(3)]),
    ?assertMatch(#{max_per := 3}, canal_lock:info()),
    {acquired, 1} = acquire(),
    ok = application:stop(canal_lock),
    await_manager(),
    ?assertEqual([{db, 1}], canal_lock:held()),
    ok = application:start(canal_lock),
    ok = test_setup:stop_supervisor(Child),
    await_manager(),
    ?assertEqual([{db, 1}], canal_lock:held()),
    ok = application:stop(canal_lock),
    test_manager_crash:calls_raise().

ends() ->
    Ways = [
        {"killed", fun(Manager) -> exit(Manager, kill) end},
        {"exit signal of a crash", fun(Manager) -> exit(Manager, test_crash) end},
        {"exit signal of a clean shutdown", fun(Manager) -> exit(Manager, shutdown) end},
        {"sys:terminate/2", fun(Manager) -> sys:terminate(Manager, normal) end},
        {"a callback crashes", fun test_manager_crash:in_a_callback/1}
    ],
    lists:foreach(fun({Name, End, Keep, KeepNext}) ->
        {_, First} = starter(#{keep_on_crash => Keep}),
        {_, Next} = starter(#{keep_on_crash => KeepNext}),
        {Holder, {acquired, 1}} = test_worker:start(fun acquire/0),
        {acquired, 2} = acquire(),
        {waiting, Ref} = canal_lock:request(full, 0, 1),
        Monitor = monitor(process, First),
        End(First),
        _ = test_await:reason({First, Monitor}),
        await_manager(),
        ?assertEqual({Name, Next}, {Name, whereis(canal_lock)}),
        ?assertEqual({Name, 2}, {Name, canal_lock:count(db)}),
        ok = test_worker:kill(Holder),
        test_await:count(db, 1),
        ok = canal_lock:resize(full, 1, 1),
        receive {canal_lock, Ref, Answer} -> ?assertEqual({acquired, 1}, Answer) end,
        ok = canal_lock_manager:sweep(),
        ok = canal_lock:stop()
    end, [{Name, End, Keep, Next} || {Name, End} <- Ways, Keep <- [true, false], Next <- [true, false]]).

the_last_ends() ->
    %% The manager goes on alone.
    {_, First} = starter(#{}),
    {_, Standby} = starter(#{}),
    ok = test_manager_crash:kill(Standby),
    {status, _, _, _} = sys:get_status(First),
    ok = test_manager_crash:kill(First),
    ok = test_manager_crash:await_closed(),
    %% The standby goes on alone.
    {_, Second} = starter(#{}),
    {_, Last} = starter(#{}),
    {acquired, 1} = acquire(),
    ok = test_manager_crash:kill(Second),
    await_manager(),
    ?assertEqual({acquired, 2}, acquire()),
    ok = test_manager_crash:kill(Last),
    ok = test_manager_crash:await_closed().

stop() ->
    Supervisors = [test_setup:supervise(1, [canal_lock:child_spec()]) || _ <- [1, 2]],
    {_, Plain} = starter(#{}),
    {acquired, 1} = acquire(),
    ok = canal_lock:stop(),
    test_await:down([Plain]),
    test_manager_crash:calls_raise(),
    ?assertEqual(undefined, whereis(canal_lock)),
    Children = [Child || Supervisor <- Supervisors, {_, Child, _, _} <- supervisor:which_children(Supervisor)],
    ?assertEqual([undefined, undefined], [
        Manager
     || Child <- Children, {_, Manager, _, _} <- supervisor:which_children(Child)
    ]),
    ?assertExit(noproc, canal_lock:stop()),
    _ = start(#{}),
    ?assertEqual(0, canal_lock:count(db)),
    ok = canal_lock:stop(),
    [ok = test_setup:stop_supervisor(Supervisor) || Supervisor <- Supervisors].

all_end() ->
    Ends = [
        fun(Pids) -> [exit(Pid, kill) || Pid <- Pids] end,
        fun(Pids) -> [exit(Pid, shutdown) || Pid <- Pids] end,
        fun(Pids) -> [exit(Pid, test_crash) || Pid <- lists:reverse(Pids)] end
    ],
    lists:foreach(fun(End) ->
        Pids = [Pid || {_, Pid} <- [starter(#{}) || _ <- [1, 2, 3]]],
        {acquired, 1} = acquire(),
        _ = End(Pids),
        test_await:down(Pids),
        ok = test_manager_crash:await_closed()
    end, Ends),
    Plain = #{id => plain, start => {canal_lock, start_link, [3]}},
    Supervisor = test_setup:supervise(1, [Plain, Plain#{id => other}]),
    {acquired, 1} = acquire(),
    ok = test_setup:stop_supervisor(Supervisor),
    ok = test_manager_crash:await_closed().

%% The VM reports a death to links first, so the table gets it late.
late_report() ->
    Linked = [test_worker:start() || _ <- lists:seq(1, ?LINKED)],
    [true = test_worker:order(Process, fun() -> not process_flag(trap_exit, true) end) || Process <- Linked],
    lists:foreach(fun(_) ->
        First = start(#{keep_on_crash => true}),
        [true = test_worker:order(Process, fun() -> link(First) end) || Process <- Linked],
        {acquired, 1} = acquire(),
        exit(First, kill),
        killed = test_await:exit_reason(First),
        Last = start(#{}),
        ?assertEqual([{db, 1}], canal_lock:held()),
        exit(Last, kill),
        killed = test_await:exit_reason(Last),
        ok = test_manager_crash:await_closed(),
        [killed = test_worker:order(Process, fun() -> test_await:exit_reason(First) end) || Process <- Linked],
        ok = test_manager_crash:calls_raise()
    end, lists:seq(1, test_setup:times(?ROUNDS))),
    ok = test_worker:kill(Linked).

%% The last one is suspended, so it does not know that the others end.
two_managers_end() ->
    lists:foreach(fun({Keep, Reason}) ->
        {_, First} = starter(#{}),
        {_, Second} = starter(#{keep_on_crash => Keep}),
        {_, Last} = starter(#{}),
        {acquired, 1} = acquire(),
        ok = test_worker:suspend(Last),
        ok = test_manager_crash:kill(First),
        test_await:value(Second, fun() -> whereis(canal_lock) end),
        exit(Second, Reason),
        test_await:down([Second]),
        ?assertEqual({acquired, 2}, acquire()),
        ok = test_worker:resume(Last),
        test_await:value(Last, fun() -> whereis(canal_lock) end),
        _ = sys:get_state(Last),
        ?assertEqual([{db, 2}], canal_lock:held()),
        ok = canal_lock:stop()
    end, [{false, kill}, {true, shutdown}, {true, kill}]).

early_start() ->
    %% Before a standby.
    {_, First} = starter(#{}),
    {_, Standby} = starter(#{}),
    {acquired, 1} = acquire(),
    ok = test_worker:suspend(Standby),
    ok = test_manager_crash:kill(First),
    {_, Early} = starter(#{}),
    ?assertEqual([{db, 1}], canal_lock:held()),
    ?assertEqual(Early, whereis(canal_lock)),
    ok = test_worker:resume(Standby),
    _ = sys:get_state(Standby),
    ok = test_manager_crash:kill(Early),
    test_await:value(Standby, fun() -> whereis(canal_lock) end),
    ?assertEqual([{db, 1}], canal_lock:held()),
    ok = canal_lock:stop(),
    %% Before a supervisor.
    Supervisor = test_setup:supervise(1, [canal_lock:child_spec()]),
    {acquired, 1} = acquire(),
    [{_, Child, _, _}] = supervisor:which_children(Supervisor),
    ok = test_worker:suspend(Child),
    ok = test_manager_crash:kill(whereis(canal_lock)),
    _ = starter(#{}),
    ?assertEqual([{db, 1}], canal_lock:held()),
    ok = test_worker:resume(Child),
    ok = test_setup:stop_supervisor(Supervisor),
    ?assertEqual([{db, 1}], canal_lock:held()),
    ok = canal_lock:stop().

%% A supervisor and a standby are suspended while the manager crashes and stop/0 is called.
stop_after_crash() ->
    [First, _] = [test_setup:supervise(1, [canal_lock:child_spec()]) || _ <- [1, 2]],
    {_, Standby} = starter(#{}),
    [{_, Child, _, _}] = supervisor:which_children(First),
    ok = test_worker:suspend(Child),
    ok = test_worker:suspend(Standby),
    Manager = whereis(canal_lock),
    ok = test_manager_crash:kill(Manager),
    _ = test_manager_crash:another(Manager),
    ok = canal_lock:stop(),
    ok = test_worker:resume(Child),
    ok = test_worker:resume(Standby),
    test_await:down([Standby]),
    ?assertMatch([{canal_lock, undefined, _, _}], supervisor:which_children(Child)),
    test_manager_crash:calls_raise().

no_answer() ->
    First = start(#{sweep_interval_ms => ?NEVER_MS}),
    ok = sys:suspend(First),
    Next = start(#{max_per => 5}),
    ?assertNotEqual(First, Next),
    ok = sys:resume(First),
    test_await:value(5, fun() -> maps:get(max_per, canal_lock:info()) end),
    %% It learns the options in force, although it has not waited for them.
    test_await:value(?NEVER_MS, fun() ->
        {status, _, _, [_, _, _, _, Status]} = sys:get_status(Next),
        [Interval_ms] = [Shown || {data, [{"State", #{sweep_interval_ms := Shown}}]} <- Status],
        Interval_ms
    end),
    ok = canal_lock:stop(),
    test_await:down([First, Next]),
    true = register(canal_lock, self()),
    try
        ?assertEqual({error, {already_started, self()}}, canal_lock:start_link())
    after
        unregister(canal_lock)
    end.

stray_messages() ->
    _ = start(#{}),
    Other = test_worker:start(),
    lists:foreach(fun(Keep) ->
        Standby = start(#{keep_on_crash => Keep}),
        [Standby ! Message || Message <- [stray, timeout, {timeout, make_ref(), sweep}, {'EXIT', Other, normal}]],
        ok = gen_server:cast(Standby, stray),
        ?assertEqual({error, unknown_call}, gen_server:call(Standby, stray)),
        ?assertMatch({status, _, _, _}, sys:get_status(Standby))
    end, [true, false]),
    ok = canal_lock:stop().

%% The last of the starters is never harmed.
storm() ->
    {_, _} = starter(#{keep_on_crash => true}),
    {acquired, 1} = acquire(),
    Rounds = test_setup:times(?STORM_ROUNDS),
    Workers = [test_worker:start() || _ <- lists:seq(1, ?STARTERS)],
    _ = test_await:in_parallel(fun(Worker) ->
        test_worker:order(Worker, fun() ->
            _ = process_flag(trap_exit, true),
            [start_and_end() || _ <- lists:seq(1, Rounds)]
        end)
    end, Workers),
    ?assertEqual([{db, 1}], canal_lock:held()),
    await_manager(),
    ok = canal_lock:stop(),
    test_manager_crash:calls_raise(),
    ok = test_worker:kill(Workers).

start_and_end() ->
    Pid = start(#{keep_on_crash => rand:uniform(2) =:= 1}),
    %% The permit of the test, at each moment.
    ?assertEqual(1, canal_lock:count(db)),
    exit(Pid, lists:nth(rand:uniform(3), [kill, shutdown, test_crash])),
    test_await:exit_reason(Pid).

options() ->
    test_log_listener:listening(fun() ->
        First = start(#{sweep_interval_ms => ?NEVER_MS}),
        Next = start(#{}),
        Second = start(#{max_per => 5, max_waiting => 1}),
        ?assertMatch(#{max_per := 5}, canal_lock:info()),
        {waiting, _} = canal_lock:request(db, 0, 1),
        ?assertEqual(full, canal_lock:request(db, 0, 1)),
        Third = start(#{max_per => 5}),
        ?assertEqual([], test_log_listener:events()),
        Fourth = start(#{max_per => 6, max_waiting => 2, sweep_interval_ms => ?NEVER_MS}),
        [Event] = test_log_listener:events(),
        #{level := warning, meta := Meta = #{canal_lock := permits}} = Event,
        ?assertNot(is_map_key(domain, Meta)),
        ?assertEqual(
            %% The name of this process.
            "canal_lock: this node has started canal_lock with max_per => 5, max_waiting => 1. Another start, by "
            "test_log_listener, with max_per => 6, max_waiting => 2 does not change that. Start it once, or with the "
            "same options",
            text(Event)
        ),
        %% The application is a process with a name.
        ok = application:set_env(canal_lock, max_per, 7),
        ok = application:start(canal_lock),
        [Named] = [Warning || Warning = #{level := warning} <- test_log_listener:events()],
        ?assertNotEqual(nomatch, string:find(text(Named), "by canal_lock_sup, with max_per => 7 does")),
        ok = application:stop(canal_lock),
        ok = application:unset_env(canal_lock, max_per),
        _ = test_log_listener:events(),
        %% The next manager has the same options, and does not warn again.
        _ = [unlink(Pid) andalso test_manager_crash:kill(Pid) || Pid <- [Second, Third, Fourth, First]],
        test_await:value(Next, fun() -> whereis(canal_lock) end),
        ?assertMatch(#{max_per := 5}, canal_lock:info()),
        ?assertEqual(full, canal_lock:request(db, 0, 1)),
        ?assertEqual([], test_log_listener:events()),
        ok = canal_lock:stop()
    end).

text(#{msg := {report, Report}, meta := #{report_cb := Format}}) ->
    {Text, Arguments} = Format(Report),
    lists:flatten(io_lib:format(Text, Arguments)).
