%% The two programs in the README of minio's dsync: they print the same lines in the same order here. Another process
%% unlocks where another goroutine does there. It prints its line before it unlocks, so its line precedes that of the
%% process that waits. Each program also runs with each lock on another node. Where a program sleeps, the tests wait
%% until the next lock has been requested.
-module(canal_lock_quorum_dsync_readme_tests).

-include_lib("eunit/include/eunit.hrl").

-import(test_nodes, [worker/1, order/2, send_order/2]).
-import(test_quorum_cluster, [lock/3, rlock/3, await_status/3]).

-define(LONG_MS, 60_000).

programs_test_() ->
    test_quorum_cluster:tests(3, [
        {"an exclusive lock, in one process", fun([A | _]) ->
            Main = worker(A),
            exclusive(Main, Main, worker(A))
        end},
        {"an exclusive lock, on two nodes", fun([A, B | _]) ->
            First = worker(A),
            exclusive(First, worker(B), First)
        end},
        {"two read locks and a writer, in one process", fun([A | _]) ->
            Main = worker(A),
            readers_and_writer([Main, Main], Main, [worker(A), worker(A)])
        end},
        {"two read locks and a writer, on three nodes", fun([A, B, C]) ->
            Readers = [worker(A), worker(B)],
            readers_and_writer(Readers, worker(C), Readers)
        end}
    ]).

exclusive(First, Second, Unlocker) ->
    {ok, _} = lock(First, test, ?LONG_MS),
    Granted = order(First, fun() -> line("first lock granted") end),
    Lock = lock_of(First, test),
    Again = send_lock(Second, test, "about to lock same resource again...", "second lock granted"),
    Unlocked = unlock(Unlocker, Lock, "first lock unlocked"),
    ?assertEqual(
        ["first lock granted", "about to lock same resource again...", "first lock unlocked", "second lock granted"],
        in_order([Granted, Unlocked | test_await:answer(Again)])
    ).

readers_and_writer(Readers, Writer, Unlockers) ->
    {Acquired, Locks} = lists:unzip([
        begin
            {ok, _} = rlock(Reader, resource, ?LONG_MS),
            {order(Reader, fun() -> line(Number ++ " read lock acquired") end), lock_of(Reader, resource)}
        end
     || {Reader, Number} <- lists:zip(Readers, ["1st", "2nd"])
    ]),
    Writing = send_lock(Writer, resource, "trying to acquire write lock", "write lock acquired"),
    Released = [
        unlock(Unlocker, Lock, Number ++ " read lock released")
     || {Unlocker, Lock, Number} <- lists:zip3(Unlockers, Locks, ["1st", "2nd"])
    ],
    ?assertEqual(
        ["1st read lock acquired", "2nd read lock acquired", "trying to acquire write lock"] ++
            ["1st read lock released", "2nd read lock released", "write lock acquired"],
        in_order(Acquired ++ Released ++ test_await:answer(Writing))
    ).

lock_of(Worker, Name) ->
    order(Worker, fun() -> get({lock, Name}) end).

%% Returns when the worker waits for the lock.
send_lock(Worker = {Node, _}, Name, Before, After) ->
    Ref = send_order(Worker, fun() ->
        Asked = line(Before),
        {ok, _} = canal_lock_quorum:lock(Name, ?LONG_MS),
        [Asked, line(After)]
    end),
    await_status(Node, waiting, 1),
    Ref.

unlock(Worker, Lock, Line) ->
    order(Worker, fun() ->
        Printed = line(Line),
        ok = canal_lock_quorum:unlock(Lock),
        Printed
    end).

%% The nodes of a machine share this clock.
line(Line) ->
    {canal_lock_quorum_nif:now(), Line}.

in_order(Lines) ->
    [Line || {_, Line} <- lists:sort(Lines)].
