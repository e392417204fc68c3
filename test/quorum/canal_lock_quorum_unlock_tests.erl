%% Tests asynchronous unlocks by the cases of architecture decision record (ADR) 15 of AtlasDB, sections Concurrency
%% Model and Consequences (https://palantir.github.io/atlasdb/html/, page
%% miscellaneous/doc/adr/0015-batch-asynchronous-post-transaction-unlock-calls.html).
%% canal_lock_quorum_unlock_failures_tests has the cases of failures and of the bound.
%%
%% The parts of the ADR, and the corresponding parts of canal_lock:
%%
%%   transaction that commits           a process that calls unlock_async/1
%%   token                              a lock, which also has a token in the agent
%%   set of tokens to be unlocked       the agent's mailbox, then an outbox for each voter
%%   set lock, in shared mode           none: processes can send messages at the same time
%%   to read the reference, and add     one native call, which marks the lock and sends the message
%%   `task scheduled', compare-and-set  the one unanswered batch to each voter: until it is answered no other is sent
%%   to swap the set for a new one      the outbox becomes the next batch when the last one is answered
%%   set lock, exclusive, and fair      none: the agent can read while processes send
%%   single-threaded executor           the agent's process, one for each node
%%   set of locks to refresh            the agent's table of locks; one request to each voter renews all of them
%%   lock service                       the voters: a quorum of them is enough
%%   a lock times out                   a voter drops the votes of an agent that is silent for voter_lease
-module(canal_lock_quorum_unlock_tests).

-include_lib("eunit/include/eunit.hrl").

-import(test_nodes, [worker/1, order/2]).
-import(test_quorum_cluster, [members/1]).
-import(test_quorum_unlock, [groups/2, names/1, lock_each/1, lock_one/1, lock_together/1]).
-import(test_quorum_unlock, [unlock_each/1, await_pending/1, suspend_voters/1, resume_voters/1, await_forgotten/2]).

-define(LOCKS, 1000).

%% Locks that each of several processes locks and unlocks, one after the other.
-define(ROUNDS, 200).

%% Timeout in ms of a lock that must be granted. It expires only if the test fails.
-define(LONG_MS, 60_000).

unlock_test_() ->
    test_quorum_unlock:tests(30_000, [
        {"unlock_async returns while the agent is suspended", fun agent_suspended/1},
        {"1,000 locks that 1,000 processes unlock are all unlocked", fun(Nodes) -> in_groups(1, Nodes) end},
        {"1,000 locks that processes unlock, seven each, are all unlocked", fun(Nodes) -> in_groups(7, Nodes) end},
        {"1,000 names in locks of seven names are all unlocked", fun of_seven_names/1},
        {"each member has at most one unanswered batch, also with many callers", fun one_batch/1},
        {"an unlock is sent immediately if no batch is unanswered", fun at_once/1},
        {"the next batch carries all unlocks that were requested since the last one", fun next_batch/1},
        {"locks that were not unlocked stay locked", fun nothing_else/1},
        {"a second unlock changes nothing, also a concurrent one, or one while another process holds the name",
            fun twice/1},
        {"unlocks complete while eight processes unlock continuously", fun unlocks_under_load/1},
        {"unlock_async ends the lock before the agent reads the request", fun ends_at_once/1},
        {"a lock request after an unlock_async of the same name is sent after the unlock, in one batch, and is sent "
            "only once", fun own_unlock/1},
        {"unlock_async returns without an answer from any member", fun no_round_trip/1},
        {"unlock_async of 200 locks takes less than half the messages of unlock", fun fewer_messages/1},
        {"1,000 pending unlocks start fewer than 20 processes", fun one_process/1},
        {"an unlock leaves no row and no monitor in the agent", fun nothing_left/1}
    ]).

agent_suspended([A | _] = Nodes) ->
    order(worker(A), fun() ->
        Locks = lock_each(names(100)),
        ok = sys:suspend(canal_lock_quorum_agent),
        unlock_each(Locks),
        ?assertEqual([], [Lock || Lock <- Locks, canal_lock_quorum:is_held(Lock)]),
        ok = sys:resume(canal_lock_quorum_agent)
    end),
    await_forgotten(Nodes, names(100)).

%% All processes start at the same moment.
in_groups(Size, [A | _] = Nodes) ->
    order(worker(A), fun() ->
        Gate = counters:new(1, []),
        Groups = groups(Size, lock_each(names(?LOCKS))),
        Unlocking = [spawn_monitor(fun() -> test_await:gate(Gate), unlock_each(Group) end) || Group <- Groups],
        counters:add(Gate, 1, 1),
        [normal = test_await:reason(Monitor) || Monitor <- Unlocking],
        await_pending(0)
    end),
    await_forgotten(Nodes, names(?LOCKS)).

of_seven_names([A | _] = Nodes) ->
    order(worker(A), fun() ->
        unlock_each([lock_together(Group) || Group <- groups(7, names(?LOCKS))]),
        await_pending(0)
    end),
    await_forgotten(Nodes, names(?LOCKS)).

one_batch([A | _]) ->
    {_, Frames} = order(worker(A), fun() ->
        test_quorum_frames:recorded(fun(_) ->
            Pairs = fun(Who) -> [unlock_each([lock_one({Who, Round})]) || Round <- lists:seq(1, ?ROUNDS)] end,
            Unlocking = [spawn_monitor(fun() -> Pairs(Who) end) || Who <- lists:seq(1, 8)],
            [normal = test_await:reason(Monitor) || Monitor <- Unlocking]
        end)
    end),
    ?assertEqual([], test_quorum_frames:unanswered(Frames)),
    %% Each round of a process needs separate batches to two of the three members. The number of batches to the third
    %% member depends on how fast it answers.
    Batches = maps:values(test_quorum_frames:batches(Frames)),
    ?assertMatch([_, _, _], Batches),
    ?assert(lists:sum([length(Sent) || Sent <- Batches]) >= 2 * ?ROUNDS).

%% One process locks these names and waits until all members have a vote for each of them. It then suspends all voters,
%% calls `Do', and resumes them. Returns the batches sent to each member since the suspension.
while_suspended([A | _] = Nodes, Names, Do) ->
    Members = members(Nodes),
    {Before, Frames} = order(worker(A), fun() ->
        test_quorum_frames:recorded(fun(FramesSoFar) ->
            Locks = lock_each(Names),
            await_answered(vote, length(Names), FramesSoFar),
            Before = length(FramesSoFar()),
            ok = suspend_voters(Members),
            Do(Locks),
            ok = resume_voters(Members),
            await_answered(unlock, length(Names), fun() -> lists:nthtail(Before, FramesSoFar()) end),
            Before
        end)
    end),
    maps:values(test_quorum_frames:batches(lists:nthtail(Before, Frames))).

%% Waits until all members have answered.
await_answered(Kind, Count, Frames) ->
    test_await:value(true, fun() -> test_quorum_frames:is_answered(Kind, Count, Frames()) end).

unlocks(Batches) ->
    test_quorum_frames:operations(unlock, Batches).

at_once(Nodes) ->
    Sent = while_suspended(Nodes, names(1), fun(Locks) ->
        unlock_each(Locks),
        await_pending(1)
    end),
    %% While the voters are suspended, no answer can cause a batch.
    ?assertMatch([[1], [1], [1]], [unlocks(Batches) || Batches <- Sent]).

next_batch(Nodes) ->
    Sent = while_suspended(Nodes, names(100), fun([First | Others]) ->
        unlock_each([First]),
        await_pending(1),
        unlock_each(Others),
        await_pending(100)
    end),
    ?assertEqual(lists:duplicate(3, [1, 99]), [unlocks(Batches) || Batches <- Sent]).

%% The same process holds locks that it does not unlock.
nothing_else([A, B | _] = Nodes) ->
    order(worker(A), fun() ->
        Kept = lock_each([{stays, N} || N <- lists:seq(1, 200)]),
        unlock_each(lock_each(names(200))),
        await_pending(0),
        put(kept, Kept),
        ?assertEqual([], [Lock || Lock <- Kept, not canal_lock_quorum:is_held(Lock)]),
        ?assertEqual(200, canal_lock_quorum_agent:count())
    end),
    await_forgotten(Nodes, names(200)),
    order(worker(B), fun() ->
        Asking = [
            spawn_monitor(fun() -> exit(canal_lock_quorum:lock({stays, N}, 300)) end)
         || N <- lists:seq(1, 200)
        ],
        ?assertEqual([{error, timeout}], lists:usort([test_await:reason(Monitor) || Monitor <- Asking]))
    end).

twice([A, B | _]) ->
    Holder = worker(A),
    {_, Frames} = order(Holder, fun() ->
        test_quorum_frames:recorded(fun(FramesSoFar) ->
            Lock = lock_one(x),
            put(lock, Lock),
            await_answered(vote, 1, FramesSoFar),
            Answers = test_setup:concurrently(50, fun() -> canal_lock_quorum:unlock_async(Lock) end),
            ?assertEqual([ok], Answers -- lists:duplicate(49, {error, not_held})),
            await_answered(unlock, 1, FramesSoFar)
        end)
    end),
    [?assertEqual([1], unlocks(Batches)) || Batches <- maps:values(test_quorum_frames:batches(Frames))],
    Next = worker(B),
    {ok, _} = test_quorum_cluster:lock(Next, x, 5000),
    order(Holder, fun() ->
        ?assertEqual({error, not_held}, canal_lock_quorum:unlock_async(get(lock))),
        ?assertEqual({error, not_held}, canal_lock_quorum:unlock(get(lock))),
        unlock_each([lock_one(y)]),
        await_pending(0)
    end),
    ?assert(test_quorum_cluster:held(Next, x)),
    ?assertEqual({error, timeout}, test_quorum_cluster:lock(Holder, x, 100)).

%% While eight processes lock and unlock continuously, another node gets each lock that this process unlocks.
unlocks_under_load([A, B | _]) ->
    {Holder, Next} = {worker(A), worker(B)},
    order(Holder, fun() ->
        put(unlocking, [spawn_link(fun() -> unlock_continuously(Who, 1) end) || Who <- lists:seq(1, 8)])
    end),
    %% The node renews its locks, so a lock that is not unlocked never becomes free.
    lists:foreach(fun(Round) ->
        ok = order(Holder, fun() -> unlock_each([lock_one({x, Round})]) end),
        ?assertMatch({ok, _}, test_quorum_cluster:lock(Next, {x, Round}, ?LONG_MS))
    end, lists:seq(1, 20)),
    order(Holder, fun() ->
        %% The pending unlocks of the eight processes do not accumulate.
        #{pending_unlocks := Pending} = canal_lock_quorum_agent:status(),
        ?assert(Pending < 100),
        [unlink(Pid) || Pid <- get(unlocking)],
        ok = test_worker:kill(get(unlocking))
    end).

unlock_continuously(Who, Round) ->
    unlock_each([lock_one({Who, Round})]),
    unlock_continuously(Who, Round + 1).

%% The suspended agent does not read the request, so the call itself ends the lock.
ends_at_once([A | _]) ->
    order(worker(A), fun() ->
        Lock = lock_one(x),
        ok = sys:suspend(canal_lock_quorum_agent),
        ?assert(canal_lock_quorum:is_held(Lock)),
        ok = canal_lock_quorum:unlock_async(Lock),
        ?assertNot(canal_lock_quorum:is_held(Lock)),
        ok = sys:resume(canal_lock_quorum_agent),
        test_await:value(0, fun canal_lock_quorum_agent:count/0)
    end).

own_unlock(Nodes) ->
    Main = fun([Y, X]) ->
        unlock_each([Y]),
        await_pending(1),
        unlock_each([X]),
        Locking = spawn_monitor(fun() -> exit(canal_lock_quorum:lock(x, 5000)) end),
        test_await:value(1, fun() -> maps:get(waiting, canal_lock_quorum_agent:status()) end),
        put(locking, Locking)
    end,
    Sent = while_suspended(Nodes, [y, x], Main),
    %% One batch has both requests, in the order of the calls.
    [?assertMatch([[{unlock, _}], [{unlock, _}, {lock, _} | _] | _], Batches) || Batches <- Sent],
    %% In 200 rounds each lock is requested only once.
    {Rounds, Frames} = order(worker(hd(Nodes)), fun() ->
        test_quorum_frames:recorded(fun(_) ->
            Rounds = [unlock_each([lock_one(x)]) || _ <- lists:seq(1, 200)],
            length(Rounds)
        end)
    end),
    [
        ?assert(lists:sum(test_quorum_frames:operations(lock, Batches)) =< Rounds)
     || Batches <- maps:values(test_quorum_frames:batches(Frames))
    ].

%%% Consequences

no_round_trip([A | _] = Nodes) ->
    Members = members(Nodes),
    order(worker(A), fun() ->
        [First | Locks] = lock_each(names(101)),
        ok = suspend_voters(Members),
        %% `unlock' waits for an answer, so it has not returned when the calls of `unlock_async' have returned.
        {Waiting, Monitor} = spawn_monitor(fun() -> exit(canal_lock_quorum:unlock(First)) end),
        unlock_each(Locks),
        await_pending(101),
        ?assert(is_process_alive(Waiting)),
        ok = resume_voters(Members),
        ?assertEqual(ok, test_await:reason({Waiting, Monitor}))
    end).

fewer_messages([A | _]) ->
    FramesOf = fun(Unlock) ->
        {Before, Frames} = order(worker(A), fun() ->
            test_quorum_frames:recorded(fun(FramesSoFar) ->
                Locks = lock_each(names(200)),
                await_answered(vote, 200, FramesSoFar),
                Before = length(FramesSoFar()),
                Unlock(Locks),
                await_pending(0),
                Before
            end)
        end),
        length(lists:nthtail(Before, Frames))
    end,
    Singly = FramesOf(fun(Locks) -> [ok = canal_lock_quorum:unlock(Lock) || Lock <- Locks] end),
    Together = FramesOf(fun test_quorum_unlock:unlock_each/1),
    %% `unlock' sends a message to each member, and two of them answer before it returns.
    ?assert(Singly >= 200 * 2 * 2),
    ?assert(Together * 2 < Singly).

one_process([A | _] = Nodes) ->
    Members = members(Nodes),
    order(worker(A), fun() ->
        Locks = lock_each(names(?LOCKS)),
        ok = suspend_voters(Members),
        Before = erlang:system_info(process_count),
        unlock_each(Locks),
        await_pending(?LOCKS),
        %% The node itself may start up to 19 processes for other reasons.
        ?assert(erlang:system_info(process_count) < Before + 20),
        ok = resume_voters(Members),
        await_pending(0)
    end).

%% Checks the agent while the process that unlocks is alive.
nothing_left([A | _]) ->
    order(worker(A), fun() ->
        Monitors = fun() ->
            {monitors, All} = process_info(whereis(canal_lock_quorum_agent), monitors),
            length([self() || {process, Pid} <- All, Pid =:= self()])
        end,
        Locks = lock_each(names(100)),
        ?assertEqual({100, 100}, {canal_lock_quorum_agent:count(), Monitors()}),
        unlock_each(Locks),
        await_pending(0),
        ?assertEqual({0, 0}, {canal_lock_quorum_agent:count(), Monitors()})
    end).
