%% The manager as an OTP process: sys, supervisor, release handler and observer work with it.
-module(canal_lock_sys_tests).

-include_lib("eunit/include/eunit.hrl").

-define(INTERVAL_MS, 20).

%% A pass over this many keys has hundreds of steps.
-define(MANY, 100_000).

sys_test_() ->
    test_setup:quietly([
        test_setup:tests([
            {"sys:get_status/1 shows a readable state without the handle", fun status/0},
            {"sys:get_state/1 returns the ETS table in element 2", fun state/0},
            {"sys statistics, log and trace work", fun debugging/0},
            {"process_info and ets show the manager and its table, which is read-only", fun observed/0}
        ]),
        test_setup:tests(without_manager, [
            {"P7: calls work while the manager is suspended; it sweeps when it is resumed", fun suspended/0},
            {"a manager that is suspended during a sweep continues it afterwards", fun suspended_in_a_sweep/0},
            {"sys:change_code/4: the manager continues in new code and leaves the old code", fun new_code/0},
            {"P10: a supervisor can terminate, restart, delete and start the manager",
                test_manager_crash:alone(fun supervised/0)}
        ])
    ]).

%%% Inspection

status() ->
    {_, {acquired, 1}} = test_worker:start(fun() -> canal_lock:acquire(db, 1, 1) end),
    Shown = #{
        role => manager, max_per => 3, keep_on_crash => false, sweep_interval_ms => 5000, max_waiting => 100_000,
        standbys => [], work => []
    },
    ?assertEqual({running, Shown}, shown()),
    ok = sys:suspend(canal_lock),
    ?assertEqual({suspended, Shown}, shown()),
    ok = sys:resume(canal_lock),
    ?assertEqual({running, Shown}, shown()).

shown() ->
    Manager = whereis(canal_lock),
    {status, Manager, {module, gen_server}, [_, Status, _, _, Parts]} = sys:get_status(canal_lock),
    [State] = [State || {data, [{"State", State}]} <- Parts],
    {Status, State}.

%% Users of the original read the table in this way.
state() ->
    State = sys:get_state(canal_lock),
    ?assertEqual([], ets:tab2list(element(2, State))),
    ?assertEqual(
        {canal_lock, whereis(canal_lock)}, {ets:info(element(2, State), name), ets:info(element(2, State), owner)}
    ),
    ?assertEqual(State, sys:replace_state(canal_lock, fun(Same) -> Same end)).

debugging() ->
    Manager = whereis(canal_lock),
    ok = sys:statistics(Manager, true),
    ok = sys:log(Manager, true),
    ok = canal_lock_manager:sweep(),
    {ok, Statistics} = sys:statistics(Manager, get),
    ?assert(proplists:get_value(messages_in, Statistics) >= 1),
    {ok, [_ | _]} = sys:log(Manager, get),
    %% The trace goes to the group leader of the manager.
    {group_leader, Leader} = process_info(Manager, group_leader),
    Test = self(),
    true = group_leader(spawn_link(fun() -> serve_io(Test) end), Manager),
    ok = sys:trace(Manager, true),
    ok = canal_lock_manager:sweep(),
    ok = sys:no_debug(Manager),
    true = group_leader(Leader, Manager),
    ?assertNotEqual(nomatch, string:find(test_await:answer(written), "sweep")),
    ok = canal_lock_manager:sweep(),
    ?assertEqual(Manager, whereis(canal_lock)).

%% A group leader, which answers each request to write.
serve_io(Test) ->
    receive
        {io_request, From, ReplyAs, {put_chars, _, Module, Function, Arguments}} ->
            Test ! {written, unicode:characters_to_list(apply(Module, Function, Arguments))},
            From ! {io_reply, ReplyAs, ok},
            serve_io(Test)
    end.

observed() ->
    {acquired, 1} = canal_lock:acquire(db, 1, 1),
    Manager = whereis(canal_lock),
    ?assertEqual({canal_lock_manager, init, 1}, proc_lib:translate_initial_call(Manager)),
    [{registered_name, canal_lock} | Items] = process_info(Manager, [
        registered_name, memory, message_queue_len, messages, links, monitors, dictionary, current_stacktrace
    ]),
    ?assertEqual([], proplists:get_value(messages, Items)),
    ?assert(lists:member(canal_lock, ets:all())),
    ?assertMatch([_ | _], ets:info(canal_lock)),
    Listed = [protection, owner, size, name, named_table],
    ?assertEqual([protected, Manager, 0, canal_lock, true], [ets:info(canal_lock, Item) || Item <- Listed]),
    ?assertEqual([], ets:tab2list(canal_lock)),
    %% Other processes can only read the table.
    ?assertError(badarg, ets:insert(canal_lock, {self(), db})),
    ?assertError(badarg, ets:delete(canal_lock)),
    ?assertEqual(full, canal_lock:acquire(db, 1, 1)),
    ok = canal_lock_manager:sweep().

%%% Operation

start(Options) ->
    {ok, Manager} = canal_lock:start_link(3, Options),
    Manager.

use(Keys) ->
    [{ok, done} = canal_lock:with_permit(Key, 1, 1, fun() -> done end) || Key <- Keys],
    used.

suspended() ->
    Manager = start(#{sweep_interval_ms => ?INTERVAL_MS}),
    ok = sys:suspend(Manager),
    used = use([idle]),
    {Holder, _} = test_worker:start(fun() -> [canal_lock:acquire({key, N}, 1, 1) || N <- lists:seq(1, 100)] end),
    {acquired, 1} = canal_lock:acquire(db, 1, 1),
    full = canal_lock:acquire({key, 1}, 1, 1),
    ok = test_worker:kill(Holder),
    test_await:permits(1),
    ?assertMatch(#{keys := 102, permits := 1, holders := 1, released_by_death := 100}, canal_lock:info()),
    %% The manager's timer expires, once.
    test_await:value({messages, 1}, fun() ->
        {messages, Messages} = process_info(Manager, messages),
        {messages, length([sweep || {timeout, _, sweep} <- Messages])}
    end),
    ?assertEqual(102, test_setup:info(keys)),
    ok = sys:resume(Manager),
    test_await:value(1, fun() -> test_setup:info(keys) end),
    ?assertEqual([{db, 1}], canal_lock:held()),
    ok = canal_lock:stop().

suspended_in_a_sweep() ->
    Manager = start(#{sweep_interval_ms => 1_000_000}),
    used = use([{idle, N} || N <- lists:seq(1, ?MANY)]),
    Sweep = gen_server:send_request(Manager, sweep),
    ok = sys:suspend(Manager),
    ?assertMatch({suspended, #{work := [sweep | _]}}, shown()),
    Reclaimed = test_setup:info(reclaimed),
    ?assert(Reclaimed < ?MANY),
    used = use([{other, N} || N <- lists:seq(1, 1000)]),
    ?assertEqual(Reclaimed, test_setup:info(reclaimed)),
    ok = sys:resume(Manager),
    ?assertEqual({reply, ok}, gen_server:receive_response(Sweep, 20_000)),
    test_await:value(true, fun() -> test_setup:info(reclaimed) >= ?MANY end),
    ok = canal_lock:stop().

%% The steps of a release handler: suspend, load, change, resume, and purge the old code.
new_code() ->
    Manager = start(#{keep_on_crash => true, sweep_interval_ms => ?INTERVAL_MS}),
    {Holder, {acquired, 1}} = test_worker:start(fun() -> canal_lock:acquire(db, 2, 1) end),
    State = sys:get_state(Manager),
    {canal_lock_manager, Beam, File} = code:get_object_code(canal_lock_manager),
    true = code:soft_purge(canal_lock_manager),
    ok = sys:suspend(Manager),
    {module, canal_lock_manager} = code:load_binary(canal_lock_manager, File, Beam),
    ok = sys:change_code(Manager, canal_lock_manager, "0.0.0", []),
    {acquired, 2} = canal_lock:acquire(db, 2, 1),
    ok = sys:resume(Manager),
    ok = canal_lock_manager:sweep(),
    ?assertEqual(true, code:soft_purge(canal_lock_manager)),
    ?assertEqual(Manager, whereis(canal_lock)),
    ?assertEqual(element(3, State), element(3, sys:get_state(Manager))),
    ?assertEqual(2, canal_lock:count(db)),
    ok = test_worker:kill(Holder),
    test_await:count(db, 1),
    used = use([idle]),
    test_await:value(1, fun() -> test_setup:info(keys) end),
    ok = canal_lock:stop().

supervised() ->
    Supervisor = test_setup:supervise(1, []),
    Spec = canal_lock:child_spec({3, #{sweep_interval_ms => ?INTERVAL_MS}}),
    {ok, First} = supervisor:start_child(Supervisor, Spec),
    ?assertEqual({error, {already_started, First}}, supervisor:start_child(Supervisor, Spec)),
    ?assertMatch({ok, #{id := canal_lock, restart := permanent}}, supervisor:get_childspec(Supervisor, canal_lock)),
    ?assertEqual({error, running}, supervisor:restart_child(Supervisor, canal_lock)),
    {acquired, 1} = canal_lock:acquire(db, 1, 1),
    %% A clean shutdown, so the table is closed. A crash would keep it.
    ok = supervisor:terminate_child(Supervisor, canal_lock),
    test_manager_crash:calls_raise(),
    ?assertEqual([{canal_lock, undefined, supervisor, [canal_lock_starter]}], supervisor:which_children(Supervisor)),
    {ok, _} = supervisor:restart_child(Supervisor, canal_lock),
    ?assertEqual({acquired, 1}, canal_lock:acquire(db, 1, 1)),
    ?assertEqual({error, running}, supervisor:delete_child(Supervisor, canal_lock)),
    ok = supervisor:terminate_child(Supervisor, canal_lock),
    ok = supervisor:delete_child(Supervisor, canal_lock),
    ?assertEqual([], supervisor:which_children(Supervisor)),
    {ok, _} = supervisor:start_child(Supervisor, canal_lock:child_spec(5)),
    ?assertMatch(#{max_per := 5, keys := 0}, canal_lock:info()),
    ok = gen_server:stop(Supervisor, shutdown, infinity),
    test_manager_crash:calls_raise().
