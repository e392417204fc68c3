%% P10: the manager may end in any way and at any moment. What was held is void from then on, and the next table knows
%% nothing of it.
-module(canal_lock_life_tests).

-behaviour(supervisor).

-include_lib("eunit/include/eunit.hrl").

-export([init/1]).

-define(RESTARTS, 300).

-define(FRIENDS, 2000).
-define(RESTARTS_WITH_FRIENDS, 20).

%% Workers of earlier managers that are kept alive; those of one round are of many different tables then.
-define(OLD_WORKERS, 12).

life_test_() ->
    test_setup:quietly(test_setup:tests(without_manager, [
        {"P10: killed and started again at once, 300 times, with old workers alive", fun restarts/0},
        {"P10: started again before the old table has been told of the death", fun restarts_before_the_callback/0},
        {"P10: the manager's name, and its table for people", fun seen_by_people/0},
        {"P10: a second start leaves the first alone", fun already_started/0},
        {"P10: stop/0 ends it, and calls raise", fun stop/0},
        {"P10: it survives a parent that ends normally", fun parent_ends/0},
        {"P10: it dies with a parent that crashes, and calls raise", fun parent_crashes/0},
        {"P10: an exit signal ends it, and calls raise", fun exit_signals/0},
        {"P10: under a supervisor", fun supervised/0}
    ])).

restarts() ->
    trapping_exits(fun() ->
        {ok, Manager} = canal_lock:start_link(3),
        restarts(test_setup:times(?RESTARTS), Manager, [])
    end).

restarts(0, Manager, OldWorkers) ->
    %% The youngest dies last. When its permit is back, what the older deaths might have done is done.
    {Last, Older} = lists:split(1, OldWorkers),
    {acquired, 1} = canal_lock:acquire(db, 3, 1),
    {acquired, 2} = test_worker:order(hd(Last), fun() -> canal_lock:acquire(db, 3, 1) end),
    ok = test_worker:kill(Older),
    ok = test_worker:kill(Last),
    test_await:count(db, 1),
    ?assertMatch(#{permits := 1, holders := 1}, canal_lock:info()),
    kill_and_wait(Manager);
restarts(Left, Manager, OldWorkers) ->
    ?assertMatch(#{keys := 0, permits := 0, holders := 0}, canal_lock:info()),
    %% Late releases: by this process, and by workers of many tables.
    Release = fun() -> [canal_lock:release(db), canal_lock:release({app, 1})] end,
    NotHeld = {error, not_held},
    ?assertEqual(NotHeld, canal_lock:release(db)),
    [?assertEqual([NotHeld, NotHeld], test_worker:order(Old, Release)) || Old <- OldWorkers],
    {acquired, 1} = canal_lock:acquire(db, 3, 1),
    Take = fun() -> [canal_lock:acquire(db, 3, 1), canal_lock:acquire({app, 1}, 3, 1)] end,
    {Worker, [{acquired, 2}, {acquired, 1}]} = test_worker:start(Take),
    {Remaining, Doomed} = lists:split(min(length(OldWorkers), ?OLD_WORKERS), OldWorkers),
    %% One that held in the table before holds in this one too.
    Both = lists:sublist(Remaining, 1),
    [?assertEqual([{acquired, 3}, {acquired, 2}], test_worker:order(Old, Take)) || Old <- Both],
    %% Late deaths.
    ok = test_worker:kill(Doomed),
    Out = 2 + length(Both),
    ?assertEqual([Out, Out - 1], [canal_lock:count(Key) || Key <- [db, {app, 1}]]),
    ?assertEqual(full, canal_lock:acquire(db, Out, 1)),
    kill_and_wait(Manager),
    {ok, Next} = canal_lock:start_link(3),
    ?assertNotEqual(Manager, Next),
    restarts(Left - 1, Next, [Worker | Remaining]).

%% With very many links the VM takes so long to tell of the death that the next table is nearly always open when the
%% old one hears of it.
restarts_before_the_callback() ->
    Friends = [test_worker:start() || _ <- lists:seq(1, ?FRIENDS)],
    [true = test_worker:order(Friend, fun() -> not process_flag(trap_exit, true) end) || Friend <- Friends],
    trapping_exits(fun() ->
        {ok, First} = canal_lock:start_link(3),
        Last = lists:foldl(
            fun(_, Manager) ->
                [true = test_worker:order(Friend, fun() -> link(Manager) end) || Friend <- Friends],
                kill_and_wait(Manager),
                {ok, Next} = canal_lock:start_link(3),
                {acquired, 1} = canal_lock:acquire(db, 3, 1),
                Heard = fun() ->
                    receive
                        {'EXIT', Manager, killed} -> killed
                    end
                end,
                [killed = test_worker:order(Friend, Heard) || Friend <- Friends],
                ?assertEqual({acquired, 2}, canal_lock:acquire(db, 3, 1)),
                Next
            end,
            First,
            lists:seq(1, test_setup:times(?RESTARTS_WITH_FRIENDS))
        ),
        kill_and_wait(Last)
    end),
    ok = test_worker:kill(Friends).

%% Links are the first to be told of a death, so whoever starts the next manager now is as early as one can be.
kill_and_wait(Manager) ->
    exit(Manager, kill),
    receive
        {'EXIT', Manager, killed} -> ok
    end.

trapping_exits(Test) ->
    false = process_flag(trap_exit, true),
    try
        Test()
    after
        process_flag(trap_exit, false)
    end.

seen_by_people() ->
    {ok, Manager} = canal_lock:start_link(3),
    ?assertEqual(Manager, whereis(canal_lock)),
    {acquired, 1} = canal_lock:acquire(db, 3, 1),
    Table = element(2, sys:get_state(canal_lock)),
    ?assertEqual([], ets:tab2list(Table)),
    ?assertMatch([_ | _], ets:info(canal_lock)),
    ?assertEqual(
        [Manager, protected, canal_lock, true],
        [ets:info(Table, Item) || Item <- [owner, protection, name, named_table]]
    ).

already_started() ->
    {ok, Manager} = canal_lock:start_link(3),
    {acquired, 1} = canal_lock:acquire(db, 3, 1),
    ?assertEqual({error, {already_started, Manager}}, canal_lock:start_link(5)),
    {_, FromAnother} = test_worker:start(fun() -> canal_lock:start_link(5) end),
    ?assertEqual({error, {already_started, Manager}}, FromAnother),
    ?assertMatch(#{max_per := 3, permits := 1}, canal_lock:info()),
    ?assertEqual({acquired, 2}, canal_lock:acquire(db, 3, 1)).

stop() ->
    {ok, Manager} = canal_lock:start_link(3),
    {Holder, {acquired, 1}} = test_worker:start(fun() -> canal_lock:acquire(db, 3, 1) end),
    ?assertEqual(ok, canal_lock:stop()),
    ?assertNot(is_process_alive(Manager)),
    ?assertEqual(undefined, ets:info(canal_lock)),
    ok = test_manager_crash:calls_raise(),
    ?assertExit(noproc, canal_lock:stop()),
    {ok, _} = canal_lock:start_link(3),
    ?assertEqual({error, not_held}, test_worker:order(Holder, fun() -> canal_lock:release(db) end)),
    ?assertEqual(0, canal_lock:count(db)),
    ok = canal_lock:stop().

%% Links say nothing of normal ends to those that trap no exits.
parent_ends() ->
    Parent = test_worker:start(),
    {ok, Manager} = test_worker:order(Parent, fun() -> canal_lock:start_link(3) end),
    {acquired, 1} = canal_lock:acquire(db, 3, 1),
    ok = test_worker:release_then_die(Parent, fun() -> done end),
    ?assertMatch(#{permits := 1}, canal_lock:info()),
    ?assertEqual({acquired, 2}, canal_lock:acquire(db, 3, 1)),
    ?assertEqual(Manager, whereis(canal_lock)).

parent_crashes() ->
    Parent = test_worker:start(),
    {ok, Manager} = test_worker:order(Parent, fun() -> canal_lock:start_link(3) end),
    {acquired, 1} = canal_lock:acquire(db, 3, 1),
    ok = test_worker:kill(Parent),
    test_await:down([Manager]),
    ok = test_manager_crash:await_closed().

exit_signals() ->
    trapping_exits(fun() ->
        [
            begin
                {ok, Manager} = canal_lock:start_link(3),
                {acquired, 1} = canal_lock:acquire(db, 3, 1),
                exit(Manager, Reason),
                receive
                    {'EXIT', Manager, _} -> ok
                end,
                ok = test_manager_crash:await_closed()
            end
         || Reason <- [kill, shutdown, {shutdown, meant}, meant]
        ]
    end).

supervised() ->
    trapping_exits(fun() ->
        Child = #{id => canal_lock, start => {canal_lock, start_link, [3]}},
        {ok, Supervisor} = supervisor:start_link(?MODULE, {#{}, [Child]}),
        {Holder, {acquired, 1}} = test_worker:start(fun() -> canal_lock:acquire(db, 1, 1) end),
        Manager = whereis(canal_lock),
        exit(Manager, kill),
        test_await:value(true, fun() -> not lists:member(whereis(canal_lock), [undefined, Manager]) end),
        %% It answers when it has begun, and has its name before.
        _ = sys:get_state(canal_lock),
        ?assertEqual({acquired, 1}, canal_lock:acquire(db, 1, 1)),
        ok = test_worker:kill(Holder),
        ?assertEqual(full, canal_lock:acquire(db, 1, 1)),
        exit(Supervisor, shutdown),
        receive
            {'EXIT', Supervisor, shutdown} -> ok
        end,
        ok = test_manager_crash:await_closed()
    end).

%% Of the supervisor.
init(Specification) ->
    {ok, Specification}.
