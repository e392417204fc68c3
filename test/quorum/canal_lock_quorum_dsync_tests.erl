%% The test cases of minio's dsync, with their names, and the tables of its README: how many nodes may be down. The case
%% that its README calls a known error passes here. Indexes are numbered as in that README.
-module(canal_lock_quorum_dsync_tests).

-include_lib("eunit/include/eunit.hrl").

-import(test_nodes, [call/2, order/2, send_order/2]).
-import(test_quorum_cluster, [lock/3, rlock/3, held/2, unlock/2, messages/1]).
-import(test_faulty_cluster, [node_at/2, indexes/1, kill/2, suspend/2, resume/2]).
-import(test_quorum_restarts, [worker/2, restart/2]).

%% The timeout of a lock that is granted, and of one that must be refused.
-define(LONG_MS, 60_000).
-define(SHORT_MS, 150).

%% The lease of up to 8 nodes, and how much longer a lock may take on a busy machine.
-define(LEASE_MS, 1000).
-define(BOUND_MS, 5000).

%% The tests mostly wait for leases and for nodes to start, so two clusters run at the same time.
all_test_() ->
    Sizes = [test_quorum_restarts:tests(Count, sizes(Count)) || Count <- [4, 12, 16]],
    {inparallel, 2, [{inorder, Tests} || Tests <- [test_quorum_restarts:tests(8, sizes(8) ++ chaos()) | Sizes]]}.

sizes(Count) ->
    [
        {lists:concat([Count, " nodes: ", Title]), Test}
     || {Title, Test} <- [
            {"as many nodes down as may be, and one more", fun tolerance/1},
            {"several servers down during a lock, its known error: Q1", fun over_quorum_down/1},
            {"the same, with a suspended agent of the holder: Q1, Q4, Q5", fun over_quorum_suspended/1}
        ]
    ].

chaos() ->
    [
        {"too few servers: requests are refused at once, until there are enough", fun too_few/1},
        {"servers go down while all nodes lock", fun going_down/1},
        {"a server is down during a lock, and up again", fun one_down/1},
        {"one stale lock: of a voter that was suspended during the unlock", fun one_stale/1},
        {"many stale locks: of nodes that are dead", fun many_stale/1},
        {"a node does not hold its locks after a restart", fun comes_back/1},
        {"writer crash", fun writer_crash/1},
        {"writer crash, while it waits: readers do not wait for it", fun waiting_writer_crash/1},
        {"readers crash", fun readers_crash/1},
        {"writer starvation: a writer gets the lock although readers lock without end", fun starvation/1}
    ].

quorum(Count) -> Count div 2 + 1.

count(Cluster) -> length(indexes(Cluster)).

%% The indexes of the nodes that may be down, the last ones.
spare(Cluster) ->
    lists:nthtail(quorum(count(Cluster)), indexes(Cluster)).

await_quorum(Cluster, Index, Whether) ->
    test_quorum_cluster:await_status(node_at(Cluster, Index), quorum, Whether).

await(Cluster, Index, Wanted, Ask) ->
    call(node_at(Cluster, Index), fun() -> test_await:value(Wanted, Ask) end).

%%% How many may be down

tolerance(Cluster) ->
    [First, Second | _] = indexes(Cluster),
    {One, Other} = {worker(Cluster, First), worker(Cluster, Second)},
    Spare = spare(Cluster),
    {ok, _} = lock(One, x, ?LONG_MS),
    kill(Cluster, Spare),
    ?assert(held(One, x)),
    ?assertEqual({error, timeout}, lock(Other, x, ?SHORT_MS)),
    ok = unlock(One, x),
    ?assertMatch({ok, _}, lock(Other, x, ?LONG_MS)),
    [?assertMatch({ok, _}, rlock(Worker, y, ?LONG_MS)) || Worker <- [One, Other]],
    %% One more.
    Last = quorum(count(Cluster)),
    kill(Cluster, Last),
    await_quorum(Cluster, First, false),
    ?assertEqual({error, no_quorum}, lock(One, z, ?LONG_MS)),
    ?assertEqual({error, no_quorum}, rlock(One, y, ?LONG_MS)),
    %% A holder finds that its lock is lost, and gets a message.
    await(Cluster, Second, 0, fun canal_lock_quorum_agent:count/0),
    ?assertNot(held(Other, x)),
    ?assertEqual([{lost, x}, {lost, y}], lists:sort([Message || {lost, _} = Message <- messages(Other)])),
    %% They are up again.
    restart(Cluster, Last),
    [await_quorum(Cluster, Index, true) || Index <- [First, Second, Last]],
    ?assertMatch({ok, _}, lock(One, z, ?LONG_MS)),
    ?assertMatch({ok, _}, lock(worker(Cluster, Last), x, ?LONG_MS)).

%% The last nodes are down when the first one is granted its lock, by a bare quorum. Two voters of that quorum crash and
%% forget it. When all are up again they form a quorum that does not know of the lock.
over_quorum_down(Cluster) ->
    {Holder, Crashed, Down} = held_by_a_bare_quorum(Cluster, fun test_faulty_cluster:kill/2),
    Checking = send_order(Holder, fun() -> check(get({lock, x}), infinity) end),
    kill(Cluster, Crashed),
    restart(Cluster, Crashed ++ Down),
    Next = worker(Cluster, hd(Crashed)),
    Outcome = order(Next, fun() -> lock_and_check(2 * ?LEASE_MS) end),
    stop(Holder),
    First = test_await:answer(Checking),
    case Outcome of
        %% Its agent told them of the lock before they voted again.
        {error, timeout} ->
            ?assert(held(Holder, x)),
            ok = unlock(Holder, x),
            ?assertMatch({ok, _}, lock(Next, x, ?LONG_MS));
        %% The lock was lost before.
        {_Fence, Second} ->
            ?assert(is_apart(First, Second)),
            ?assert(held(Next, x))
    end.

%% The voters forget at once, and the agent of the holder is suspended: the holder counts on its lease.
over_quorum_suspended(Cluster) ->
    {Holder, Crashed, Down} = held_by_a_bare_quorum(Cluster, fun test_quorum_restarts:stop_locks/2),
    HolderFence = order(Holder, fun() -> canal_lock_quorum:fence(get({lock, x})) end),
    Checking = send_order(Holder, fun() -> check(get({lock, x}), infinity) end),
    call(node_at(Cluster, 1), fun() -> ok = sys:suspend(canal_lock_quorum_agent) end),
    test_quorum_restarts:stop_locks(Cluster, Crashed),
    test_quorum_restarts:start_locks(Cluster, Crashed ++ Down),
    Next = worker(Cluster, hd(Crashed)),
    {Fence, Second} = order(Next, fun() -> lock_and_check(?LONG_MS) end),
    First = test_await:answer(Checking),
    call(node_at(Cluster, 1), fun() -> ok = sys:resume(canal_lock_quorum_agent) end),
    ?assert(is_apart(First, Second)),
    ?assertNot(held(Holder, x)),
    ?assert(Fence > HolderFence),
    ?assert(held(Next, x)).

held_by_a_bare_quorum(Cluster, Stop) ->
    Down = spare(Cluster),
    Quorum = quorum(count(Cluster)),
    ok = Stop(Cluster, Down),
    Holder = worker(Cluster, 1),
    {ok, _} = lock(Holder, x, ?LONG_MS),
    ?assert(held(Holder, x)),
    {Holder, [Quorum - 1, Quorum], Down}.

lock_and_check(Timeout_ms) ->
    case canal_lock_quorum:lock(x, Timeout_ms) of
        {ok, Lock} ->
            put({lock, x}, Lock),
            {canal_lock_quorum:fence(Lock), check(Lock, 50)};
        %% The node has just been restarted and is not connected yet.
        {error, no_quorum} ->
            test_await:value(true, fun() -> maps:get(quorum, canal_lock_quorum:status()) end),
            lock_and_check(Timeout_ms);
        {error, timeout} ->
            {error, timeout}
    end.

%% Checks the lock this many times, until it is lost or the test stops it. Returns since when and until when it was
%% certainly held, by the clock that the nodes of a machine share.
check(Lock, Times) ->
    check(Lock, Times, none).

check(_Lock, 0, Held) ->
    Held;
check(Lock, Times, Held) ->
    Before = canal_lock_quorum_nif:now(),
    case canal_lock_quorum:is_held(Lock) of
        true ->
            Since =
                case Held of
                    none -> canal_lock_quorum_nif:now();
                    {From, _} -> From
                end,
            receive
                stop -> {Since, Before}
            after 1 -> check(Lock, fewer(Times), {Since, Before})
            end;
        false ->
            Held
    end.

fewer(infinity) -> infinity;
fewer(Times) -> Times - 1.

%% Whether the two times in which the locks were certainly held do not overlap.
is_apart(none, _) -> true;
is_apart({From, Until}, {OtherFrom, OtherUntil}) -> Until < OtherFrom orelse OtherUntil < From.

%% Stops a worker that does something until it gets this message.
stop(Worker) ->
    test_nodes:send(Worker, stop).

%%% Too few nodes

too_few(Cluster) ->
    [Last | _] = Spare = spare(Cluster),
    Missing = [Last - 1 | Spare],
    kill(Cluster, Missing),
    One = worker(Cluster, 1),
    await_quorum(Cluster, 1, false),
    {Took_us, Refused} = order(One, fun() -> timer:tc(fun() -> canal_lock_quorum:lock(x, ?LONG_MS) end) end),
    ?assertEqual({error, no_quorum}, Refused),
    ?assert(Took_us < 1000 * ?LONG_MS div 10),
    restart(Cluster, Last),
    await_quorum(Cluster, 1, true),
    ?assertMatch({ok, _}, lock(One, x, ?LONG_MS)),
    restart(Cluster, Missing -- [Last]),
    test_quorum_restarts:await_voting(Cluster),
    ?assertEqual({error, timeout}, lock(worker(Cluster, Last), x, ?SHORT_MS)),
    ?assert(held(One, x)).

%% The other nodes go on, with names of their own and with one that all want.
going_down(Cluster) ->
    Spare = spare(Cluster),
    Left = indexes(Cluster) -- Spare,
    Workers = [worker(Cluster, Index) || Index <- Left],
    Going = [send_order(Worker, fun() -> lock_until_stopped({own, node()}, 0) end) || Worker <- Workers],
    lists:foreach(fun(Index) ->
        kill(Cluster, Index),
        Name = test_faulty_cluster:name(Cluster, Index),
        [await(Cluster, Other, false, fun() -> lists:member(Name, nodes(connected)) end) || Other <- Left],
        [?assertMatch({ok, _}, lock_once(Cluster, Other, Index)) || Other <- Left]
    end, Spare),
    lists:foreach(fun stop/1, Workers),
    [?assert(test_await:answer(Locked) > 0) || Locked <- Going].

lock_once(Cluster, Index, Name) ->
    Worker = worker(Cluster, Index),
    Locked = lock(Worker, Name, ?LONG_MS),
    ok = unlock(Worker, Name),
    Locked.

lock_until_stopped(Own, Count) ->
    lists:foreach(fun(Name) ->
        {ok, Lock} = canal_lock_quorum:lock(Name, ?LONG_MS),
        true = canal_lock_quorum:is_held(Lock),
        ok = canal_lock_quorum:unlock_async(Lock)
    end, [Own, shared]),
    receive
        stop -> Count + 1
    after 0 -> lock_until_stopped(Own, Count + 1)
    end.

one_down(Cluster) ->
    [Down | _] = lists:reverse(indexes(Cluster)),
    {Holder, Other} = {worker(Cluster, 1), worker(Cluster, 2)},
    {ok, First} = lock(Holder, x, ?LONG_MS),
    kill(Cluster, Down),
    ?assertEqual({error, timeout}, lock(Other, x, ?SHORT_MS)),
    ?assert(held(Holder, x)),
    restart(Cluster, Down),
    test_quorum_restarts:await_voting(Cluster),
    %% It knows of the lock and does not grant it.
    Restarted = worker(Cluster, Down),
    ?assertEqual({error, timeout}, lock(Restarted, x, ?SHORT_MS)),
    ?assert(held(Holder, x)),
    ok = unlock(Holder, x),
    {ok, Second} = lock(Restarted, x, ?LONG_MS),
    ?assert(Second > First).

%%% Stale locks

%% The lock is unlocked while the voter is suspended. Then a quorum needs that voter.
one_stale(Cluster) ->
    [Stale | _] = lists:reverse(spare(Cluster)),
    {Holder, Next} = {worker(Cluster, 1), worker(Cluster, 2)},
    {ok, _} = lock(Holder, x, ?LONG_MS),
    %% So that the lease of the holder's node continues.
    {ok, _} = lock(Holder, y, ?LONG_MS),
    suspend(Cluster, Stale),
    ok = unlock(Holder, x),
    resume(Cluster, Stale),
    kill(Cluster, lists:seq(3, 2 + length(spare(Cluster)))),
    ?assertMatch({ok, _}, lock(Next, x, ?LONG_MS)),
    ?assert(held(Holder, y)).

%% All nodes that may be down die while they hold locks.
many_stale(Cluster) ->
    Names = lists:seq(1, 100),
    Spare = spare(Cluster),
    Locking = [
        send_order(worker(Cluster, Index), fun() ->
            [{ok, _} = canal_lock_quorum:lock({Index, Name}, ?LONG_MS) || Name <- Names],
            done
        end)
     || Index <- Spare
    ],
    [done = test_await:answer(Ref) || Ref <- Locking],
    kill(Cluster, Spare),
    Took_ms = order(worker(Cluster, 1), fun() ->
        took_ms(fun() ->
            [{ok, _} = canal_lock_quorum:lock({Index, Name}, ?LONG_MS) || Index <- Spare, Name <- Names]
        end)
    end),
    ?assert(Took_ms < ?LEASE_MS + ?BOUND_MS).

took_ms(Do) ->
    {Took_us, _} = timer:tc(Do),
    Took_us div 1000.

comes_back(Cluster) ->
    [Index | _] = spare(Cluster),
    {ok, First} = lock(worker(Cluster, Index), x, ?LONG_MS),
    kill(Cluster, Index),
    restart(Cluster, Index),
    test_quorum_restarts:await_voting(Cluster),
    ?assertEqual({[], []}, call(node_at(Cluster, 1), fun canal_lock_quorum:locks/0)),
    {ok, Second} = lock(worker(Cluster, 2), x, ?LONG_MS),
    ?assert(Second > First).

%%% Crashes

writer_crash(Cluster) ->
    Last = count(Cluster),
    {Process, OfANode, Next} = {worker(Cluster, 1), worker(Cluster, Last), worker(Cluster, 2)},
    {ok, _} = lock(Process, x, ?LONG_MS),
    {ok, _} = lock(OfANode, y, ?LONG_MS),
    ok = test_nodes:kill_worker(Process),
    ?assertMatch({ok, _}, lock(Next, x, ?LONG_MS)),
    kill(Cluster, Last),
    Took_ms = order(Next, fun() -> took_ms(fun() -> {ok, _} = canal_lock_quorum:lock(y, ?LONG_MS) end) end),
    ?assert(Took_ms < ?LEASE_MS + ?BOUND_MS).

waiting_writer_crash(Cluster) ->
    [Reader, Writer, Next] = [worker(Cluster, Index) || Index <- [1, 2, 3]],
    {ok, _} = rlock(Reader, x, ?LONG_MS),
    Waiting = send_order(Writer, fun() -> canal_lock_quorum:lock(x, 10 * ?LONG_MS) end),
    await(Cluster, 2, 1, fun() -> maps:get(waiting, canal_lock_quorum:status()) end),
    %% When the node of the readers knows of its request, it excludes them until it dies.
    test_await:value({error, timeout}, fun() -> rlock_and_unlock(Next, x) end),
    ok = test_nodes:kill_worker(Writer),
    none = test_await:answer(Waiting),
    ?assertMatch({ok, _}, rlock(Next, x, ?LONG_MS)),
    ?assert(held(Reader, x)).

rlock_and_unlock(Worker, Name) ->
    case rlock(Worker, Name, ?LEASE_MS) of
        {ok, _} -> unlock(Worker, Name);
        Refused -> Refused
    end.

readers_crash(Cluster) ->
    [Last, LastButOne | _] = lists:reverse(indexes(Cluster)),
    Readers = [Stays | Die] = [worker(Cluster, Index) || Index <- [1, 2, 3, 3, LastButOne, Last]],
    [{ok, _} = rlock(Reader, x, ?LONG_MS) || Reader <- Readers],
    Writer = worker(Cluster, 4),
    kill(Cluster, [LastButOne, Last]),
    [ok = test_nodes:kill_worker(Reader) || {Node, _} = Reader <- Die, test_nodes:is_alive(Node)],
    %% One reader excludes the writer, also when the leases of the others have expired.
    ?assertEqual({error, timeout}, lock(Writer, x, 2 * ?LEASE_MS)),
    ?assert(held(Stays, x)),
    ok = test_nodes:kill_worker(Stays),
    ?assertMatch({ok, _}, lock(Writer, x, ?LONG_MS)).

%%% Starvation

%% There are two readers on each node, and each holds its lock longer than it pauses. So there is almost always one.
starvation(Cluster) ->
    Indexes = indexes(Cluster),
    Readers = [worker(Cluster, Index) || Index <- Indexes ++ Indexes],
    Reading = [send_order(Reader, fun() -> read_until_stopped(0) end) || Reader <- Readers],
    await(Cluster, 1, true, fun() -> canal_lock_quorum_agent:count() > 0 end),
    Waits_ms = lists:map(fun(Index) ->
        await(Cluster, Index, true, fun is_read/0),
        Writer = worker(Cluster, Index),
        Took_ms = order(Writer, fun() -> took_ms(fun() -> {ok, _} = write_once() end) end),
        %% The readers go on.
        await(Cluster, 1, true, fun() -> canal_lock_quorum_agent:count() > 0 end),
        Took_ms
    end, [1, 5, 8]),
    lists:foreach(fun stop/1, Readers),
    [?assert(test_await:answer(Read) > 0) || Read <- Reading],
    ?assertEqual([], [Wait_ms || Wait_ms <- Waits_ms, Wait_ms > ?BOUND_MS]).

%% Whether a reader of this node holds a lock.
is_read() ->
    {Locks, []} = canal_lock_quorum:locks(),
    [read || #{mode := read, held := true} <- Locks] =/= [].

write_once() ->
    canal_lock_quorum:with_lock(x, ?LONG_MS, fun(_) -> written end).

read_until_stopped(Count) ->
    {ok, Lock} = canal_lock_quorum:rlock(x, ?LONG_MS),
    receive
        stop ->
            ok = canal_lock_quorum:unlock_async(Lock),
            Count + 1
    after 30 ->
        ok = canal_lock_quorum:unlock_async(Lock),
        read_until_stopped(Count + 1)
    end.
