%% P7: no acquire and no release sends a message, neither to the manager nor to another process.
-module(canal_lock_path_tests).

-include_lib("eunit/include/eunit.hrl").

-define(PROCESSES, 4).
-define(PAIRS, 25_000).

%% A release by a process that does not hold the key logs an error, at most once per second. A handler of the logger may
%% send a message then, so there is none here.
path_test_() ->
    test_setup:quietly(
        test_setup:tests([
            {"P7: the manager's mailbox stays empty under 100,000 acquires", fun mailbox_stays_empty/0},
            {"P7: all calls work while the manager is suspended, and its mailbox stays empty", fun suspended_manager/0},
            {"P7: callers send nothing", fun callers_send_nothing/0},
            {"P7: the manager receives nothing", fun manager_receives_nothing/0}
        ])
    ).

mailbox_stays_empty() ->
    ?assertEqual([], unexpected_while_busy()),
    ?assertEqual([], unexpected(whereis(canal_lock))).

%% A suspended manager removes nothing from its mailbox, so at the end it contains every message that was sent.
suspended_manager() ->
    ok = sys:suspend(canal_lock),
    {Holder, Answers} = test_worker:start(fun() ->
        [
            canal_lock:acquire(db, 1, 1),
            canal_lock:acquire(db, 1, 1),
            canal_lock:count(db),
            canal_lock:buckets(db, 1),
            canal_lock:release(db, 1, 1),
            canal_lock:release(db),
            canal_lock:acquire({new, key}, 1, 1)
        ]
    end),
    ?assertEqual([{acquired, 1}, full, 1, [1], ok, {error, not_held}, {acquired, 1}], Answers),
    ?assertEqual([], unexpected_while_busy()),
    ok = test_worker:kill(Holder),
    test_await:count({new, key}, 0),
    ?assertEqual([], unexpected(whereis(canal_lock))),
    ok = sys:resume(canal_lock).

%% The messages seen in the manager's mailbox while several processes acquire, release and die.
unexpected_while_busy() ->
    Workers = [spawn_monitor(fun() -> pairs(?PAIRS) end) || _ <- lists:seq(1, ?PROCESSES)],
    sample(whereis(canal_lock), Workers, []).

sample(_, [], Seen) ->
    Seen;
sample(Manager, [{Pid, Monitor} | Others] = Workers, Seen) ->
    receive
        {'DOWN', Monitor, process, Pid, Reason} ->
            ?assertEqual(normal, Reason),
            sample(Manager, Others, Seen)
    after 0 ->
        sample(Manager, Workers, unexpected(Manager) ++ Seen)
    end.

%% All but the message of the manager's own timer.
unexpected(Manager) ->
    {messages, Messages} = process_info(Manager, messages),
    [Message || Message <- Messages, Message =/= sweep].

%% Ends as a holder: its death is part of the load.
pairs(0) ->
    {acquired, _} = canal_lock:acquire(db, 1000, 1),
    ok;
pairs(Left) ->
    Key = {app, Left rem 100},
    {acquired, _} = canal_lock:acquire(Key, 1000, 1),
    _ = canal_lock:acquire(Key, 1, 1),
    ok = canal_lock:release(Key, 1000, 1),
    ok = canal_lock:release(unknown, 1000, 1),
    pairs(Left - 1).

callers_send_nothing() ->
    Worker = test_worker:start(),
    1 = erlang:trace(Worker, true, [send]),
    ok = test_worker:order(Worker, fun() -> pairs(1000) end),
    1 = erlang:trace(Worker, false, [send]),
    ?assertMatch([{trace, Worker, send, {_, ok}, _}], test_await:traced(Worker)).

manager_receives_nothing() ->
    Manager = whereis(canal_lock),
    1 = erlang:trace(Manager, true, ['receive']),
    {Worker, _} = test_worker:start(fun() -> pairs(1000) end),
    ok = test_worker:kill(Worker),
    test_await:count(db, 0),
    1 = erlang:trace(Manager, false, ['receive']),
    ?assertEqual([], [Message || {trace, _, 'receive', Message} <- test_await:traced(Manager), Message =/= sweep]).
