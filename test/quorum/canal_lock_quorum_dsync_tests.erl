%% The cases in which dsync of minio was tried, by their names, and those of the tables of its README: how many nodes
%% may be away. The one that it calls its known error passes here.
%%
%% Nodes are killed by the operating system and come back under their names. Places are numbered as in its README.
-module(canal_lock_quorum_dsync_tests).

-include_lib("eunit/include/eunit.hrl").

-import(test_quorum_cluster, [call/2, order/2, send_order/2, lock/3, rlock/3, held/2, unlock/2, messages/1]).
-import(test_quorum_restarts, [at/2, worker/2, kill/2, restart/2, freeze/2, thaw/2]).

%% What nobody waits for to its end.
-define(LONG_MS, 15_000).

%% That somebody does not get a lock.
-define(SHORT_MS, 150).

%% Of the leases of rules/0, and as much again for a machine that is busy with other things.
-define(LEASE_MS, 1000).
-define(BOUND_MS, 5000).

%% They wait for leases and for nodes to come up, most of the time; so two clusters wait together.
all_test_() ->
    Sizes = [test_quorum_restarts:tests(Count, sizes(Count)) || Count <- [4, 12, 16]],
    {inparallel, 2, [{inorder, Tests} || Tests <- [test_quorum_restarts:tests(8, sizes(8) ++ chaos()) | Sizes]]}.

sizes(Count) ->
    [
        {lists:concat([Count, " nodes: ", Title]), Test}
     || {Title, Test} <- [
            {"as many away as may be, and one more", fun tolerance/1},
            {"several servers down during a lock, its known error: Q1", fun over_quorum_down/1},
            {"the same, with a holder that hears of nothing: Q1, Q4, Q5", fun over_quorum_unheard/1}
        ]
    ].

chaos() ->
    [
        {"too few servers: that is said at once, and not for longer than it is so", fun too_few/1},
        {"servers going down while everybody locks", fun going_down/1},
        {"a server down during a lock, and up again", fun one_down/1},
        {"one stale lock: of a voter that was not there when it was given back", fun one_stale/1},
        {"many stale locks: of nodes that are no more", fun many_stale/1},
        {"a node that comes back does not hold what it held", fun comes_back/1},
        {"writer crash", fun writer_crash/1},
        {"writer crash, while it waits: readers do not wait for it", fun waiting_writer_crash/1},
        {"readers crash", fun readers_crash/1},
        {"writer starvation: readers without end let a writer in", fun starvation/1}
    ].

quorum(Count) -> Count div 2 + 1.

count(Cluster) -> length(test_quorum_restarts:places(Cluster)).

%% Places of as many as may be away, the last ones.
spare(Cluster) ->
    lists:nthtail(quorum(count(Cluster)), test_quorum_restarts:places(Cluster)).

await_no_quorum(Cluster, Place) ->
    await(Cluster, Place, false, fun() -> maps:get(quorum, canal_lock_quorum:status()) end).

await_quorum(Cluster, Place) ->
    await(Cluster, Place, true, fun() -> maps:get(quorum, canal_lock_quorum:status()) end).

await(Cluster, Place, Wanted, Ask) ->
    call(at(Cluster, Place), fun() -> test_await:value(Wanted, Ask) end).

%%% How many may be away

tolerance(Cluster) ->
    [First, Second | _] = test_quorum_restarts:places(Cluster),
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
    await_no_quorum(Cluster, First),
    ?assertEqual({error, no_quorum}, lock(One, z, ?LONG_MS)),
    ?assertEqual({error, no_quorum}, rlock(One, y, ?LONG_MS)),
    %% Who had a lock finds that it is lost, and is told.
    await(Cluster, Second, 0, fun canal_lock_quorum_agent:count/0),
    ?assertNot(held(Other, x)),
    ?assertMatch([{lost, x}, {lost, y}], lists:sort([Told || {lost, _} = Told <- messages(Other)])),
    %% They come back.
    restart(Cluster, Last),
    [await_quorum(Cluster, Place) || Place <- [First, Second, Last]],
    ?assertMatch({ok, _}, lock(One, z, ?LONG_MS)),
    ?assertMatch({ok, _}, lock(worker(Cluster, Last), x, ?LONG_MS)).

%% The last ones are away when the first one gets its lock, by the votes of a bare quorum; two of that crash and
%% forget, and all come back: they are a quorum that has heard of nothing.
over_quorum_down(Cluster) ->
    {Holder, Crashed, Down} = held_by_a_bare_quorum(Cluster, fun test_quorum_restarts:kill/2),
    Looking = send_order(Holder, fun() -> look(get({lock, x}), infinity) end),
    kill(Cluster, Crashed),
    restart(Cluster, Crashed ++ Down),
    Next = worker(Cluster, hd(Crashed)),
    Outcome = order(Next, fun() -> lock_and_look(2 * ?LEASE_MS) end),
    tell_stop(Holder),
    First = test_await:answer(Looking),
    case Outcome of
        %% Its agent has told them of the lock, before they voted again.
        {error, timeout} ->
            ?assert(held(Holder, x)),
            ok = unlock(Holder, x),
            ?assertMatch({ok, _}, lock(Next, x, ?LONG_MS));
        %% It was lost before.
        {_Fence, Second} ->
            ?assert(is_apart(First, Second)),
            ?assert(held(Next, x))
    end.

%% They forget at once, and the agent of the holder hears of nothing; so the holder lives on its lease, and looks.
over_quorum_unheard(Cluster) ->
    {Holder, Crashed, Down} = held_by_a_bare_quorum(Cluster, fun test_quorum_restarts:stop_locks/2),
    HolderFence = order(Holder, fun() -> canal_lock_quorum:fence(get({lock, x})) end),
    Looking = send_order(Holder, fun() -> look(get({lock, x}), infinity) end),
    call(at(Cluster, 1), fun() -> ok = sys:suspend(canal_lock_quorum_agent) end),
    test_quorum_restarts:stop_locks(Cluster, Crashed),
    test_quorum_restarts:start_locks(Cluster, Crashed ++ Down),
    Next = worker(Cluster, hd(Crashed)),
    {Fence, Second} = order(Next, fun() -> lock_and_look(?LONG_MS) end),
    First = test_await:answer(Looking),
    call(at(Cluster, 1), fun() -> ok = sys:resume(canal_lock_quorum_agent) end),
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

lock_and_look(Timeout_ms) ->
    case canal_lock_quorum:lock(x, Timeout_ms) of
        {ok, Lock} ->
            put({lock, x}, Lock),
            {canal_lock_quorum:fence(Lock), look(Lock, 50)};
        %% The node has just come back, and does not see the others yet.
        {error, no_quorum} ->
            timer:sleep(1),
            lock_and_look(Timeout_ms);
        {error, timeout} ->
            {error, timeout}
    end.

%% So often, until it is lost or somebody says stop. From when until when it was held for sure, by the clock that all
%% nodes of a machine have in common.
look(Lock, Times) ->
    look(Lock, Times, none).

look(_Lock, 0, Held) ->
    Held;
look(Lock, Times, Held) ->
    Before = canal_lock_quorum_nif:now(),
    case canal_lock_quorum:held(Lock) of
        true ->
            Since =
                case Held of
                    none -> canal_lock_quorum_nif:now();
                    {From, _} -> From
                end,
            receive
                stop -> {Since, Before}
            after 1 -> look(Lock, fewer(Times), {Since, Before})
            end;
        false ->
            Held
    end.

fewer(infinity) -> infinity;
fewer(Times) -> Times - 1.

%% If one was held until after the other one was, it was not held before that.
is_apart(none, _) -> true;
is_apart({From, Until}, {OtherFrom, OtherUntil}) -> Until < OtherFrom orelse OtherUntil < From.

%% To one that does something until it is told.
tell_stop({Node, Pid}) ->
    call(Node, fun() -> Pid ! stop end).

%%% Too few, and fewer and fewer

too_few(Cluster) ->
    [Last | _] = Spare = spare(Cluster),
    Missing = [Last - 1 | Spare],
    kill(Cluster, Missing),
    One = worker(Cluster, 1),
    await_no_quorum(Cluster, 1),
    {Took_us, Refused} = order(One, fun() -> timer:tc(fun() -> canal_lock_quorum:lock(x, ?LONG_MS) end) end),
    ?assertEqual({error, no_quorum}, Refused),
    ?assert(Took_us < 1000 * ?LONG_MS div 10),
    restart(Cluster, Last),
    await_quorum(Cluster, 1),
    ?assertMatch({ok, _}, lock(One, x, ?LONG_MS)),
    restart(Cluster, Missing -- [Last]),
    test_quorum_restarts:await_voting(Cluster),
    ?assertEqual({error, timeout}, lock(worker(Cluster, Last), x, ?SHORT_MS)),
    ?assert(held(One, x)).

%% Whoever is left goes on, with names of its own and with one that all fight over.
going_down(Cluster) ->
    Spare = spare(Cluster),
    Left = test_quorum_restarts:places(Cluster) -- Spare,
    Workers = [worker(Cluster, Place) || Place <- Left],
    Going = [send_order(Worker, fun() -> lock_on_and_on({own, node()}, 0) end) || Worker <- Workers],
    lists:foreach(
        fun(Place) ->
            kill(Cluster, Place),
            Name = test_quorum_restarts:name(Cluster, Place),
            [await(Cluster, Who, false, fun() -> lists:member(Name, nodes(connected)) end) || Who <- Left],
            %% They go on without it.
            [?assertMatch({ok, _}, lock_once(Cluster, Who, Place)) || Who <- Left]
        end,
        Spare
    ),
    lists:foreach(fun tell_stop/1, Workers),
    [?assert(test_await:answer(Locked) > 0) || Locked <- Going].

lock_once(Cluster, Place, Name) ->
    Worker = worker(Cluster, Place),
    Locked = lock(Worker, Name, ?LONG_MS),
    ok = unlock(Worker, Name),
    Locked.

lock_on_and_on(Own, Count) ->
    [
        begin
            {ok, Lock} = canal_lock_quorum:lock(Name, ?LONG_MS),
            true = canal_lock_quorum:held(Lock),
            ok = canal_lock_quorum:try_unlock(Lock)
        end
     || Name <- [Own, shared]
    ],
    receive
        stop -> Count + 1
    after 0 -> lock_on_and_on(Own, Count + 1)
    end.

one_down(Cluster) ->
    [Down | _] = lists:reverse(test_quorum_restarts:places(Cluster)),
    {Holder, Other} = {worker(Cluster, 1), worker(Cluster, 2)},
    {ok, First} = lock(Holder, x, ?LONG_MS),
    kill(Cluster, Down),
    ?assertEqual({error, timeout}, lock(Other, x, ?SHORT_MS)),
    ?assert(held(Holder, x)),
    restart(Cluster, Down),
    test_quorum_restarts:await_voting(Cluster),
    %% It has heard of the lock, and whoever asks there does not get it.
    Returned = worker(Cluster, Down),
    ?assertEqual({error, timeout}, lock(Returned, x, ?SHORT_MS)),
    ?assert(held(Holder, x)),
    ok = unlock(Holder, x),
    {ok, Second} = lock(Returned, x, ?LONG_MS),
    ?assert(Second > First).

%%% Stale locks

%% While the voter hangs, the lock is given back; then it is needed for a quorum.
one_stale(Cluster) ->
    [Stale | _] = lists:reverse(spare(Cluster)),
    {Holder, Next} = {worker(Cluster, 1), worker(Cluster, 2)},
    {ok, _} = lock(Holder, x, ?LONG_MS),
    %% So that its lease there goes on.
    {ok, _} = lock(Holder, y, ?LONG_MS),
    freeze(Cluster, Stale),
    ok = unlock(Holder, x),
    thaw(Cluster, Stale),
    kill(Cluster, lists:seq(3, 2 + length(spare(Cluster)))),
    ?assertMatch({ok, _}, lock(Next, x, ?LONG_MS)),
    ?assert(held(Holder, y)).

%% As many nodes as may be away die with locks; nobody can give them back.
many_stale(Cluster) ->
    Names = lists:seq(1, 100),
    Spare = spare(Cluster),
    Locking = [
        send_order(worker(Cluster, Place), fun() ->
            [{ok, _} = canal_lock_quorum:lock({Place, Name}, ?LONG_MS) || Name <- Names],
            done
        end)
     || Place <- Spare
    ],
    [done = test_await:answer(Ref) || Ref <- Locking],
    kill(Cluster, Spare),
    Took_ms = order(worker(Cluster, 1), fun() ->
        took_ms(fun() ->
            [{ok, _} = canal_lock_quorum:lock({Place, Name}, ?LONG_MS) || Place <- Spare, Name <- Names]
        end)
    end),
    ?assert(Took_ms < ?LEASE_MS + ?BOUND_MS).

took_ms(Do) ->
    {Took_us, _} = timer:tc(Do),
    Took_us div 1000.

comes_back(Cluster) ->
    [Place | _] = spare(Cluster),
    {ok, First} = lock(worker(Cluster, Place), x, ?LONG_MS),
    kill(Cluster, Place),
    restart(Cluster, Place),
    test_quorum_restarts:await_voting(Cluster),
    ?assertEqual({[], []}, call(at(Cluster, 1), fun canal_lock_quorum:locks/0)),
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
    [Reader, Writer, Next] = [worker(Cluster, Place) || Place <- [1, 2, 3]],
    {ok, _} = rlock(Reader, x, ?LONG_MS),
    Waiting = send_order(Writer, fun() -> canal_lock_quorum:lock(x, 10 * ?LONG_MS) end),
    await(Cluster, 2, 1, fun() -> maps:get(waiting, canal_lock_quorum:status()) end),
    %% It keeps them out, until it dies.
    ?assertEqual({error, timeout}, rlock(Next, x, ?LEASE_MS)),
    ok = test_nodes:kill_worker(Writer),
    none = test_await:answer(Waiting),
    ?assertMatch({ok, _}, rlock(Next, x, ?LONG_MS)),
    ?assert(held(Reader, x)).

readers_crash(Cluster) ->
    [Last, LastButOne | _] = lists:reverse(test_quorum_restarts:places(Cluster)),
    Readers = [Stays | Die] = [worker(Cluster, Place) || Place <- [1, 2, 3, 3, LastButOne, Last]],
    [{ok, _} = rlock(Reader, x, ?LONG_MS) || Reader <- Readers],
    Writer = worker(Cluster, 4),
    kill(Cluster, [LastButOne, Last]),
    [ok = test_nodes:kill_worker(Reader) || {Node, _} = Reader <- Die, is_process_alive(element(1, Node))],
    %% One of them is enough to keep the writer out, also when the leases of the others are over.
    ?assertEqual({error, timeout}, lock(Writer, x, 2 * ?LEASE_MS)),
    ?assert(held(Stays, x)),
    ok = test_nodes:kill_worker(Stays),
    ?assertMatch({ok, _}, lock(Writer, x, ?LONG_MS)).

%%% Starvation

%% Two on each node, so there is a reader nearly always; with each its lock is longer than it is away.
starvation(Cluster) ->
    Places = test_quorum_restarts:places(Cluster),
    Readers = [worker(Cluster, Place) || Place <- Places ++ Places],
    Reading = [send_order(Reader, fun() -> read_on_and_on(0) end) || Reader <- Readers],
    await(Cluster, 1, true, fun() -> canal_lock_quorum_agent:count() > 0 end),
    Waits_ms = [
        begin
            {Locks, []} = call(at(Cluster, Place), fun canal_lock_quorum:locks/0),
            ?assertMatch([_ | _], [Lock || #{mode := read, held := true} = Lock <- Locks]),
            Writer = worker(Cluster, Place),
            Took_ms = order(Writer, fun() -> took_ms(fun() -> {ok, _} = write_once() end) end),
            %% They have gone on since.
            await(Cluster, 1, true, fun() -> canal_lock_quorum_agent:count() > 0 end),
            Took_ms
        end
     || Place <- [1, 5, 8]
    ],
    lists:foreach(fun tell_stop/1, Readers),
    [?assert(test_await:answer(Read) > 0) || Read <- Reading],
    ?assertEqual([], [Wait_ms || Wait_ms <- Waits_ms, Wait_ms > ?BOUND_MS]).

write_once() ->
    canal_lock_quorum:with_lock(x, ?LONG_MS, fun(_) -> written end).

read_on_and_on(Count) ->
    {ok, Lock} = canal_lock_quorum:rlock(x, ?LONG_MS),
    receive
        stop ->
            ok = canal_lock_quorum:try_unlock(Lock),
            Count + 1
    after 30 ->
        ok = canal_lock_quorum:try_unlock(Lock),
        read_on_and_on(Count + 1)
    end.
