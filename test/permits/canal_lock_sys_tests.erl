%% The manager under the hands of those who run systems: sys, a supervisor, a release handler, an observer.
-module(canal_lock_sys_tests).

-behaviour(supervisor).

-include_lib("eunit/include/eunit.hrl").

-export([init/1]).

-define(INTERVAL_MS, 20).

%% A pass of the sweep over so many keys has hundreds of steps.
-define(MANY, 100_000).

sys_test_() ->
    test_setup:quietly([
        test_setup:tests([
            {"get_status shows what a person can read, and no handle", fun status/0},
            {"get_state: the table of element 2", fun state/0},
            {"statistics, log and trace", fun debugging/0},
            {"it can be looked into as any process, and its table as any other", fun observed/0}
        ]),
        test_setup:tests(without_manager, [
            {"P7: suspended, it keeps nobody from anything, and sweeps when it is resumed", fun suspended/0},
            {"suspended in the middle of a sweep, it goes on from there", fun suspended_in_a_sweep/0},
            {"change_code: the manager goes on in new code, and is in no old code any more", fun new_code/0},
            {"P10: a supervisor terminates, restarts, deletes and starts the child",
                test_manager_crash:alone(fun supervised/0)}
        ])
    ]).

%%% What it shows

status() ->
    {_, {acquired, 1}} = test_worker:start(fun() -> canal_lock:acquire(db, 1, 1) end),
    Shown = #{
        max_per => 3,
        keep_on_crash => false,
        sweep_interval_ms => 5000,
        work => [],
        waiting_for_sweep => 0
    },
    ?assertEqual({running, Shown}, shown()),
    ok = sys:suspend(canal_lock),
    ?assertEqual({suspended, Shown}, shown()),
    ok = sys:resume(canal_lock),
    ?assertEqual({running, Shown}, shown()).

shown() ->
    Manager = whereis(canal_lock),
    {status, Manager, {module, gen_server}, [_, What, _, _, Parts]} = sys:get_status(canal_lock),
    [State] = [State || {data, [{"State", State}]} <- Parts],
    {What, State}.

%% What the original's users did with it.
state() ->
    State = sys:get_state(canal_lock),
    ?assertEqual([], ets:tab2list(element(2, State))),
    ?assertEqual(whereis(canal_lock), ets:info(element(2, State), owner)),
    ?assertEqual(State, sys:replace_state(canal_lock, fun(Same) -> Same end)).

debugging() ->
    Manager = whereis(canal_lock),
    ok = sys:statistics(Manager, true),
    ok = sys:log(Manager, true),
    ok = canal_lock_manager:sweep(),
    {ok, Statistics} = sys:statistics(Manager, get),
    ?assert(proplists:get_value(messages_in, Statistics) >= 1),
    {ok, Log} = sys:log(Manager, get),
    ?assertMatch([_ | _], [In || {in, {'$gen_call', _, sweep}} = In <- Log]),
    %% What is traced is written to where the manager writes.
    {group_leader, Leader} = process_info(Manager, group_leader),
    Test = self(),
    true = group_leader(spawn_link(fun() -> write_for(Test) end), Manager),
    ok = sys:trace(Manager, true),
    ok = canal_lock_manager:sweep(),
    ok = sys:no_debug(Manager),
    true = group_leader(Leader, Manager),
    ?assertNotEqual(nomatch, string:find(test_await:answer(written), "canal_lock got call sweep")),
    ok = canal_lock_manager:sweep(),
    ?assertEqual(Manager, whereis(canal_lock)).

%% A group leader, who has to answer whoever writes.
write_for(Test) ->
    receive
        {io_request, From, ReplyAs, {put_chars, _, Module, Function, Arguments}} ->
            Test ! {written, unicode:characters_to_list(apply(Module, Function, Arguments))},
            From ! {io_reply, ReplyAs, ok},
            write_for(Test)
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
    ?assertEqual([protected, Manager, 0], [ets:info(canal_lock, What) || What <- [protection, owner, size]]),
    ?assertEqual([], ets:tab2list(canal_lock)),
    %% It is for looking only.
    ?assertError(badarg, ets:insert(canal_lock, {self(), db})),
    ?assertError(badarg, ets:delete(canal_lock)),
    ?assertEqual(full, canal_lock:acquire(db, 1, 1)),
    ok = canal_lock_manager:sweep().

%%% What is done to it

start(Options) ->
    {ok, Manager} = canal_lock:start_link(3, Options),
    Manager.

use(Keys) ->
    [{ok, done} = canal_lock:with_permit(Key, 1, 1, fun() -> done end) || Key <- Keys],
    used.

keys() ->
    maps:get(keys, canal_lock:info()).

suspended() ->
    Manager = start(#{sweep_interval_ms => ?INTERVAL_MS}),
    ok = sys:suspend(Manager),
    used = use([idle]),
    {Holder, _} = test_worker:start(fun() -> [canal_lock:acquire({key, N}, 1, 1) || N <- lists:seq(1, 100)] end),
    {acquired, 1} = canal_lock:acquire(db, 1, 1),
    full = canal_lock:acquire({key, 1}, 1, 1),
    ok = test_worker:kill(Holder),
    test_await:permits(1),
    ?assertMatch(#{keys := 102, permits := 1, holders := 1, given_back := 100}, canal_lock:info()),
    %% Its own timer goes off, once.
    test_await:value({messages, 1}, fun() ->
        {messages, Messages} = process_info(Manager, messages),
        {messages, length([sweep || {timeout, _, sweep} <- Messages])}
    end),
    ?assertEqual(102, keys()),
    ok = sys:resume(Manager),
    test_await:value(1, fun keys/0),
    ?assertEqual([{db, 1}], canal_lock:held()),
    ok = canal_lock:stop().

suspended_in_a_sweep() ->
    Manager = start(#{sweep_interval_ms => 1_000_000}),
    used = use([{idle, N} || N <- lists:seq(1, ?MANY)]),
    Sweep = gen_server:send_request(Manager, sweep),
    ok = sys:suspend(Manager),
    {suspended, #{work := Work, waiting_for_sweep := 1}} = shown(),
    ?assert(lists:member(sweep, Work)),
    Reclaimed = maps:get(reclaimed, canal_lock:info()),
    ?assert(Reclaimed < ?MANY),
    used = use([{other, N} || N <- lists:seq(1, 1000)]),
    ?assertEqual(Reclaimed, maps:get(reclaimed, canal_lock:info())),
    ok = sys:resume(Manager),
    ?assertEqual({reply, ok}, gen_server:receive_response(Sweep, 20_000)),
    test_await:value(true, fun() -> maps:get(reclaimed, canal_lock:info()) >= ?MANY end),
    ok = canal_lock:stop().

%% As a release handler does it: suspended, loaded, changed, resumed, and the old code purged.
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
    test_await:value(1, fun keys/0),
    ok = canal_lock:stop().

%% Of the supervisor.
init(Children) ->
    {ok, {#{}, Children}}.

supervised() ->
    {ok, Supervisor} = supervisor:start_link(?MODULE, []),
    Spec = canal_lock:child_spec({3, #{sweep_interval_ms => ?INTERVAL_MS}}),
    {ok, First} = supervisor:start_child(Supervisor, Spec),
    ?assertEqual({error, {already_started, First}}, supervisor:start_child(Supervisor, Spec)),
    ?assertMatch({ok, #{id := canal_lock, restart := permanent}}, supervisor:get_childspec(Supervisor, canal_lock)),
    ?assertEqual({error, running}, supervisor:restart_child(Supervisor, canal_lock)),
    {acquired, 1} = canal_lock:acquire(db, 1, 1),
    %% In order, so the table goes, though it would be kept in a crash.
    ok = supervisor:terminate_child(Supervisor, canal_lock),
    test_manager_crash:calls_raise(),
    ?assertEqual([{canal_lock, undefined, worker, [canal_lock_manager]}], supervisor:which_children(Supervisor)),
    {ok, Second} = supervisor:restart_child(Supervisor, canal_lock),
    ?assertEqual(Second, whereis(canal_lock)),
    ?assertEqual({acquired, 1}, canal_lock:acquire(db, 1, 1)),
    ?assertEqual({error, running}, supervisor:delete_child(Supervisor, canal_lock)),
    ok = supervisor:terminate_child(Supervisor, canal_lock),
    ok = supervisor:delete_child(Supervisor, canal_lock),
    ?assertEqual([], supervisor:which_children(Supervisor)),
    {ok, _} = supervisor:start_child(Supervisor, canal_lock:child_spec(5)),
    ?assertMatch(#{max_per := 5, keys := 0}, canal_lock:info()),
    ok = gen_server:stop(Supervisor, shutdown, infinity),
    test_manager_crash:calls_raise().
