%% P10: with `keep_on_crash', permits survive a crash of the manager. Calls continue and deaths are handled without a
%% manager, and the next manager adopts the table unchanged. A clean shutdown closes the table.
-module(canal_lock_keep_tests).

-include_lib("eunit/include/eunit.hrl").

-import(test_setup, [info/1]).

-define(LINKED, 1000).
-define(ROUNDS, 10).

%% For a manager that must not sweep by itself during a test.
-define(NEVER_MS, 3_600_000).

%% Shorter than the default interval of the sweep (5 s), so a manager with that interval fails the test.
-define(DEADLINE_MS, 4000).

keep_test_() ->
    test_manager_crash:tests([
        {"P10: every kind of crash keeps the table", fun crashes/0},
        {"P10: a clean shutdown closes the table at once", fun clean_shutdowns/0},
        {"P10: the manager survives the normal end of a linked process", fun linked_process_ends/0},
        {"P10: only a manager with keep_on_crash traps exits", fun traps_exits/0},
        {"P10: the adopting manager uses its own options", fun options_of_the_next/0},
        {"P10, P13: the adopting manager ends the waits of an interrupted shutdown", fun interrupted_shutdown/0},
        {"P8, P10: each manager sweeps at its own interval, also after an adoption", fun sweeps/0},
        {"P8, P10: sweep/0 does not count a pass that the previous manager started",
            fun sweep_started_by_predecessor/0},
        {"P8, P10: once the old pass is complete, sweep/0 makes two passes", fun passes_after_adoption/0},
        {"P10: unknown messages start no timers and do not stop the manager", fun stray_messages/0}
    ]).

start_keeping() ->
    start_keeping(3, #{}).

start_keeping(MaxPer, Options) ->
    {ok, Manager} = canal_lock:start_link(MaxPer, Options#{keep_on_crash => true}),
    Manager.

acquire(Key, MaxPer) ->
    canal_lock:acquire(Key, MaxPer, 1).

holder(Keys) ->
    {Holder, _} = test_worker:start(fun() -> [{acquired, _} = acquire(Key, 99) || Key <- Keys] end),
    Holder.

%% One table passes from manager to manager. Each manager has a parent that is linked to it and does not trap exits.
crashes() ->
    Ways = [
        {"killed", fun(_, Manager) -> exit(Manager, kill) end},
        {"exit signal of an unrelated process", fun(_, Manager) -> exit(Manager, test_crash) end},
        {"exit signal of its parent", fun(Parent, Manager) -> ended_by(Parent, Manager, test_crash) end},
        {"its parent crashes", fun(Parent, _) -> exit(Parent, test_crash) end},
        {"its parent is killed", fun(Parent, _) -> exit(Parent, kill) end},
        {"a linked process crashes", fun(_, Manager) -> exit(linked_to(Manager), test_crash) end},
        {"a linked process is killed", fun(_, Manager) -> exit(linked_to(Manager), kill) end},
        {"a callback crashes", fun(_, Manager) -> test_manager_crash:in_a_callback(Manager) end},
        {"wrong state", fun(_, Manager) -> [sys:replace_state(Manager, fun(_) -> none end), Manager ! any] end},
        {"sys:terminate/2", fun(_, Manager) -> sys:terminate(Manager, test_crash) end}
    ],
    [crash(Name, Number, Crash) || {Number, {Name, Crash}} <- lists:enumerate(Ways)],
    _ = start_keeping(),
    Out = length(Ways),
    ?assertMatch(#{permits := Out, holders := Out, released_by_death := 0}, canal_lock:info()),
    ?assertEqual([], canal_lock:audit()).

crash(Name, Number, Crash) ->
    {Parent, Manager} = test_worker:start(fun start_keeping/0),
    ?assertEqual({Name, Number - 1}, {Name, canal_lock:count(db)}),
    _ = holder([db]),
    Monitor = monitor(process, Manager),
    _ = Crash(Parent, Manager),
    Reason = test_await:reason({Manager, Monitor}),
    ?assertNot(lists:member(Reason, [normal, shutdown, noproc])),
    ?assertEqual({Name, Number}, {Name, canal_lock:count(db)}).

%% Does not wait for an answer: the parent may die before it answers.
ended_by(Parent, Manager, Reason) ->
    test_worker:send_order(Parent, fun() -> exit(Manager, Reason) end).

linked_to(Manager) ->
    {Linked, true} = test_worker:start(fun() -> link(Manager) end),
    Linked.

clean_shutdowns() ->
    Ways = [
        {"stop/0", normal, fun(_, _) -> canal_lock:stop() end},
        {"exit signal of an unrelated process", shutdown, fun(_, Manager) -> exit(Manager, shutdown) end},
        {"exit signal with details", {shutdown, x}, fun(_, Manager) -> exit(Manager, {shutdown, x}) end},
        {"exit signal of its parent", shutdown, fun(Parent, Manager) -> ended_by(Parent, Manager, shutdown) end},
        {"normal end of its parent", normal, fun(Parent, _) ->
            test_worker:release_then_die(Parent, fun() -> done end)
        end},
        {"shutdown of its parent", shutdown, fun(Parent, _) -> exit(Parent, shutdown) end},
        {"shutdown of a linked process", shutdown, fun(_, Manager) -> exit(linked_to(Manager), shutdown) end},
        {"sys:terminate/2", {shutdown, x}, fun(_, Manager) -> sys:terminate(Manager, {shutdown, x}) end}
    ],
    lists:foreach(fun({Name, Reason, End}) ->
        {Parent, Manager} = test_worker:start(fun start_keeping/0),
        ?assertMatch({Name, #{keys := 0, granted := 0}}, {Name, canal_lock:info()}),
        Holder = holder([db]),
        {acquired, 2} = acquire(db, 3),
        Monitor = monitor(process, Manager),
        _ = End(Parent, Manager),
        ?assertEqual({Name, Reason}, {Name, test_await:reason({Manager, Monitor})}),
        ok = test_manager_crash:calls_raise(),
        %% The next table does not know the permits of the closed one.
        _ = start_keeping(),
        ?assertEqual({error, not_held}, test_worker:order(Holder, fun() -> canal_lock:release(db) end)),
        ?assertEqual({error, not_held}, canal_lock:release(db)),
        ok = canal_lock:stop()
    end, Ways).

%% A trace shows that the manager has received the exit signal.
linked_process_ends() ->
    Manager = start_keeping(),
    {acquired, 1} = acquire(db, 3),
    Linked = linked_to(Manager),
    1 = erlang:trace(Manager, true, ['receive']),
    ok = test_worker:release_then_die(Linked, fun() -> done end),
    receive {trace, Manager, 'receive', {'EXIT', Linked, normal}} -> ok end,
    1 = erlang:trace(Manager, false, ['receive']),
    ok = canal_lock_manager:sweep(),
    ?assertEqual(Manager, whereis(canal_lock)),
    ?assertEqual({acquired, 2}, acquire(db, 3)).

traps_exits() ->
    lists:foreach(fun({Traps, Start}) ->
        {ok, Manager} = Start(),
        ?assertEqual({trap_exit, Traps}, process_info(Manager, trap_exit)),
        ok = canal_lock:stop()
    end, [
        {false, fun() -> canal_lock:start_link(3) end},
        {false, fun() -> canal_lock:start_link(3, #{}) end},
        {false, fun() -> canal_lock:start_link(3, #{keep_on_crash => false}) end},
        {true, fun() -> canal_lock:start_link(3, #{keep_on_crash => true}) end}
    ]).

options_of_the_next() ->
    First = start_keeping(3, #{}),
    {acquired, 1} = acquire(db, 3),
    ok = test_manager_crash:kill(First),
    ?assertMatch(#{max_per := 3}, canal_lock:info()),
    Second = start_keeping(5, #{}),
    ?assertMatch(#{max_per := 5, permits := 1}, canal_lock:info()),
    ok = test_manager_crash:kill(Second),
    _ = start_keeping(1 bsl 80, #{}),
    ?assertMatch(#{max_per := 1 bsl 80, permits := 1}, canal_lock:info()),
    {waiting, Ref} = canal_lock:request(db, 1, 1),
    ok = canal_lock:cancel(Ref),
    ok = test_manager_crash:kill(whereis(canal_lock)),
    _ = start_keeping(3, #{max_waiting => 0}),
    ?assertEqual(full, canal_lock:request(db, 1, 1)).

%% A manager dies after the first step in which it ends waits. No request is granted then, and each gets its message.
interrupted_shutdown() ->
    Requests = 300,
    Open = fun() -> canal_lock_nif:open(1024, 3, true, 1000) end,
    {Dying, Handle} = test_worker:start(Open),
    {acquired, 1} = acquire(db, 1),
    Waits = [element(2, canal_lock:request(db, 1, 1)) || _ <- lists:seq(1, Requests)],
    more = canal_lock_nif:end_waits(Handle),
    ok = canal_lock:release(db),
    ok = test_worker:release_then_die(Dying, fun() -> done end),
    _ = start_keeping(),
    Ends = [receive {canal_lock, Ref, End} -> End end || Ref <- Waits],
    ?assertEqual([closed], lists:usort(Ends)),
    ?assertEqual({0, 0}, {canal_lock:waiting(db), canal_lock:count(db)}),
    {acquired, 1} = acquire(db, 1),
    ?assertMatch({waiting, _}, canal_lock:request(db, 1, 1)).

%% Idle keys are reclaimed without a request, sooner than with the default interval.
sweeps() ->
    Often = #{sweep_interval_ms => 10},
    First = start_keeping(3, Often),
    {acquired, 1} = acquire(held, 1),
    use(100),
    only_held_is_left(),
    ok = test_manager_crash:kill(First),
    use(100),
    ?assertMatch(#{keys := 101}, canal_lock:info()),
    Second = start_keeping(3, Often),
    only_held_is_left(),
    use(100),
    only_held_is_left(),
    %% The interval is that of the new manager: an hour.
    ok = test_manager_crash:kill(Second),
    Third = start_keeping(3, #{sweep_interval_ms => ?NEVER_MS}),
    use(100),
    ok = canal_lock_manager:sweep(),
    only_held_is_left(),
    ok = test_manager_crash:kill(Third),
    _ = start_keeping(3, Often),
    use(100),
    only_held_is_left(),
    ?assertEqual(1, canal_lock:count(held)).

%% Leaves this number of idle keys.
use(Keys) ->
    [{ok, N} = canal_lock:with_permit({idle, N}, 1, 1, fun() -> N end) || N <- lists:seq(1, Keys)].

only_held_is_left() ->
    test_await:value(1, fun() -> info(keys) end, ?DEADLINE_MS).

%% The pass of the first manager has visited keys that are then used again. Only two further passes reclaim them.
sweep_started_by_predecessor() ->
    Manager = start_keeping(3, #{sweep_interval_ms => ?NEVER_MS}),
    _ = use(2000),
    %% The third element of the state is the handle of the table.
    more = canal_lock_nif:sweep_step(element(3, sys:get_state(Manager)), 1000),
    _ = use(2000),
    ok = test_manager_crash:kill(Manager),
    _ = start_keeping(3, #{sweep_interval_ms => ?NEVER_MS}),
    ok = canal_lock_manager:sweep(),
    ?assertMatch(#{keys := 0}, canal_lock:info()).

%% Counts the steps that end a pass. The adopting manager first finishes the pass of its predecessor.
passes_after_adoption() ->
    _ = start_keeping(3, #{sweep_interval_ms => ?NEVER_MS}),
    use(100),
    ok = test_manager_crash:kill(whereis(canal_lock)),
    Next = start_keeping(3, #{sweep_interval_ms => ?NEVER_MS}),
    test_await:value([[]], fun() ->
        {status, _, _, [_, _, _, _, Status]} = sys:get_status(Next),
        [maps:get(work, State) || {data, [{"State", State}]} <- Status]
    end),
    1 = erlang:trace(Next, true, [call]),
    Trace = tracing({canal_lock_nif, sweep_step, 2}, [{'_', [], [{return_trace}]}], Next, fun() ->
        ok = canal_lock_manager:sweep()
    end),
    ?assertEqual(2, length([done || {trace, _, return_from, _, done} <- Trace])),
    ?assertMatch(#{keys := 0}, canal_lock:info()).

tracing(Function, Pattern, Tracee, Do) ->
    1 = erlang:trace_pattern(Function, Pattern, []),
    try
        ok = Do(),
        test_await:traced(Tracee)
    after
        erlang:trace_pattern(Function, false, [])
    end.

%% Traces the call that starts a timer. The timers of the manager itself are an hour away.
stray_messages() ->
    [stray_messages(Keep) || Keep <- [true, false]].

stray_messages(Keep) ->
    {ok, Manager} = canal_lock:start_link(3, #{keep_on_crash => Keep, sweep_interval_ms => ?NEVER_MS}),
    {acquired, 1} = acquire(db, 3),
    1 = erlang:trace(Manager, true, [call]),
    Calls = tracing({erlang, start_timer, 3}, true, Manager, fun() -> send_stray_messages(Manager) end),
    ?assertEqual([], Calls),
    ?assertEqual(Manager, whereis(canal_lock)),
    ?assertEqual({acquired, 2}, acquire(db, 3)),
    ok = canal_lock:stop().

send_stray_messages(Manager) ->
    Down = {'DOWN', make_ref(), process, self(), normal},
    Exit = {'EXIT', test_worker:start(), normal},
    Messages =
        [sweep, timeout, {timeout, make_ref(), sweep}, {timeout, none, sweep}, Down, Exit] ++
            [{acquire, self(), self(), {db, 3, 1}}, {system, nobody}, [unknown | message], sweep],
    [Manager ! Message || Message <- Messages, _ <- lists:seq(1, 10)],
    ok = gen_server:cast(Manager, {sweep, now}),
    [
        ?assertEqual({error, unknown_call}, gen_server:call(Manager, Request))
     || Request <- [{acquire, self(), self(), {db, 3, 1}}, {release, db}]
    ],
    canal_lock_manager:sweep().
