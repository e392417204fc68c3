%% P10: a manager without `keep_on_crash' may end in any way and at any moment. Its permits are void from then on, and
%% the next table does not know them.
-module(canal_lock_life_tests).

-include_lib("eunit/include/eunit.hrl").

-define(RESTARTS, 300).

-define(LINKED, 2000).
-define(RESTARTS_WITH_LINKS, 20).

%% This many workers of earlier managers stay alive, so they hold permits of many different tables.
-define(OLD_WORKERS, 12).

life_test_() ->
    test_manager_crash:tests([
        {"P10: killed and restarted 300 times while holders of old tables live on", fun restarts/0},
        {"P10: restarted before the old table has received the death of its manager", fun early_restarts/0},
        {"P10: stop/0 closes the table, and calls raise", fun stop/0},
        {"P10: the manager survives the normal end of its parent", fun parent_ends/0},
        {"P10: the manager dies with a parent that crashes, and calls raise", fun parent_crashes/0}
    ]).

acquire(Key) ->
    canal_lock:acquire(Key, 3, 1).

start() ->
    {ok, Manager} = canal_lock:start_link(3),
    Manager.

restarts() ->
    restarts(test_setup:times(?RESTARTS), start(), []).

restarts(0, Manager, [Youngest | Older]) ->
    %% The youngest worker dies last. Once its permit is released, the older deaths are handled too.
    {acquired, 1} = acquire(db),
    {acquired, 2} = test_worker:order(Youngest, fun() -> acquire(db) end),
    ok = test_worker:kill(Older),
    ok = test_worker:kill(Youngest),
    test_await:count(db, 1),
    ?assertMatch(#{permits := 1, holders := 1}, canal_lock:info()),
    kill(Manager);
restarts(Left, Manager, OldWorkers) ->
    ?assertMatch(#{keys := 0, permits := 0, holders := 0}, canal_lock:info()),
    %% Late releases, by this process and by workers of many tables.
    Release = fun() -> [canal_lock:release(db), canal_lock:release({app, 1})] end,
    NotHeld = {error, not_held},
    ?assertEqual(NotHeld, canal_lock:release(db)),
    [?assertEqual([NotHeld, NotHeld], test_worker:order(Old, Release)) || Old <- OldWorkers],
    {acquired, 1} = acquire(db),
    Acquire = fun() -> [acquire(db), acquire({app, 1})] end,
    {Worker, [{acquired, 2}, {acquired, 1}]} = test_worker:start(Acquire),
    {Remaining, Doomed} = lists:split(min(length(OldWorkers), ?OLD_WORKERS), OldWorkers),
    %% One worker holds permits of an earlier table and of this one.
    Both = lists:sublist(Remaining, 1),
    [?assertEqual([{acquired, 3}, {acquired, 2}], test_worker:order(Old, Acquire)) || Old <- Both],
    %% Late deaths.
    ok = test_worker:kill(Doomed),
    Out = 2 + length(Both),
    ?assertEqual([Out, Out - 1], [canal_lock:count(Key) || Key <- [db, {app, 1}]]),
    ?assertEqual(full, canal_lock:acquire(db, Out, 1)),
    kill(Manager),
    Next = start(),
    ?assertNotEqual(Manager, Next),
    restarts(Left - 1, Next, [Worker | Remaining]).

%% The VM reports a death to links first, so the next manager starts as early as possible.
kill(Manager) ->
    exit(Manager, kill),
    killed = test_await:exit_reason(Manager).

%% With 2000 links, the next table is nearly always open when the old table receives the death.
early_restarts() ->
    Linked = [test_worker:start() || _ <- lists:seq(1, ?LINKED)],
    [true = test_worker:order(Process, fun() -> not process_flag(trap_exit, true) end) || Process <- Linked],
    Last = lists:foldl(fun(_, Manager) ->
        [true = test_worker:order(Process, fun() -> link(Manager) end) || Process <- Linked],
        kill(Manager),
        Next = start(),
        {acquired, 1} = acquire(db),
        [killed = test_worker:order(Process, fun() -> test_await:exit_reason(Manager) end) || Process <- Linked],
        ?assertEqual({acquired, 2}, acquire(db)),
        Next
    end, start(), lists:seq(1, test_setup:times(?RESTARTS_WITH_LINKS))),
    kill(Last),
    ok = test_worker:kill(Linked).

stop() ->
    Manager = start(),
    {Holder, {acquired, 1}} = test_worker:start(fun() -> acquire(db) end),
    ?assertEqual(ok, canal_lock:stop()),
    ?assertNot(is_process_alive(Manager)),
    ?assertEqual(undefined, ets:info(canal_lock)),
    ok = test_manager_crash:calls_raise(),
    ?assertExit(noproc, canal_lock:stop()),
    _ = start(),
    ?assertEqual({error, not_held}, test_worker:order(Holder, fun() -> canal_lock:release(db) end)),
    ?assertEqual(0, canal_lock:count(db)),
    ok = canal_lock:stop().

%% The manager does not trap exits, so a normal exit signal does not reach it.
parent_ends() ->
    {Parent, Manager} = test_worker:start(fun start/0),
    {acquired, 1} = acquire(db),
    ok = test_worker:release_then_die(Parent, fun() -> done end),
    ?assertMatch(#{permits := 1}, canal_lock:info()),
    ?assertEqual({acquired, 2}, acquire(db)),
    ?assertEqual(Manager, whereis(canal_lock)).

parent_crashes() ->
    {Parent, Manager} = test_worker:start(fun start/0),
    {acquired, 1} = acquire(db),
    ok = test_worker:kill(Parent),
    test_await:down([Manager]),
    ok = test_manager_crash:await_closed().
