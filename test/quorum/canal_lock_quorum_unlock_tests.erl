%% Asynchronous unlocks: the cases of ADR 15 of AtlasDB, sections Concurrency Model and Consequences. The cases of
%% failures and of the bound are in canal_lock_quorum_unlock_failures_tests.
%%
%% The parts of the ADR, and what they are here:
%%
%%   transaction that commits           a process that calls try_unlock/1
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

-define(TOKENS, 1000).

%% Locks that each of several processes locks and unlocks, one after the other.
-define(TURNS, 200).

%% A limit for a lock that is never granted.
-define(LONG_MS, 15_000).

unlock_test_() ->
    test_quorum_unlock:tests(#{}, [
        {"to add a token waits for no process, not for the agent either", fun adding/1},
        {"1000 tokens, added by a process each, are all unlocked", fun(Nodes) -> in_groups(1, Nodes) end},
        {"1000 tokens, added by processes of seven each, are all unlocked", fun(Nodes) -> in_groups(7, Nodes) end},
        {"1000 names, in locks of seven each, are all unlocked", fun of_seven_names/1},
        {"at most one batch is under way to each member, also with many callers", fun one_batch/1},
        {"a token is sent at once if no batch is under way", fun at_once/1},
        {"the next batch carries all tokens that were added since", fun next_batch/1},
        {"a token that was not added is never unlocked", fun nothing_else/1},
        {"a second unlock changes nothing, also at the same moment or under another holder", fun twice/1},
        {"processes that add without end do not delay unlocks", fun no_starving/1},
        {"a lock is no longer renewed before any voter learns of the unlock", fun out_first/1},
        {"an unlock precedes a new lock of its process, which is not refused for it", fun own_unlock/1},
        {"try_unlock returns without an answer from any member", fun no_round_trip/1},
        {"there are fewer messages than unlocks", fun fewer_messages/1},
        {"pending unlocks start no processes", fun one_process/1},
        {"an unlock leaves no row and no monitor in the agent", fun nothing_left/1}
    ]).

adding([A | _] = Nodes) ->
    order(worker(A), fun() ->
        Locks = lock_each(names(100)),
        ok = sys:suspend(canal_lock_quorum_agent),
        unlock_each(Locks),
        ?assertEqual([], [Lock || Lock <- Locks, canal_lock_quorum:held(Lock)]),
        ok = sys:resume(canal_lock_quorum_agent)
    end),
    await_forgotten(Nodes, names(100)).

%% All processes start at the same moment.
in_groups(Size, [A | _] = Nodes) ->
    order(worker(A), fun() ->
        Gate = counters:new(1, []),
        Groups = groups(Size, lock_each(names(?TOKENS))),
        Adding = [spawn_monitor(fun() -> test_await:gate(Gate), unlock_each(Group) end) || Group <- Groups],
        counters:add(Gate, 1, 1),
        [normal = test_await:reason(Monitor) || Monitor <- Adding],
        await_pending(0)
    end),
    await_forgotten(Nodes, names(?TOKENS)).

of_seven_names([A | _] = Nodes) ->
    order(worker(A), fun() ->
        unlock_each([lock_together(Group) || Group <- groups(7, names(?TOKENS))]),
        await_pending(0)
    end),
    await_forgotten(Nodes, names(?TOKENS)).

one_batch([A | _]) ->
    {_, Frames} = order(worker(A), fun() ->
        test_quorum_frames:recorded(fun(_) ->
            Pairs = fun(Who) -> [unlock_each([lock_one({Who, Turn})]) || Turn <- lists:seq(1, ?TURNS)] end,
            Adding = [spawn_monitor(fun() -> Pairs(Who) end) || Who <- lists:seq(1, 8)],
            [normal = test_await:reason(Monitor) || Monitor <- Adding]
        end)
    end),
    ?assertEqual([], test_quorum_frames:unanswered(Frames)),
    %% Each turn of a process needs separate batches to two of the three members. The number of batches to the third
    %% member depends on how fast it answers.
    Batches = maps:values(test_quorum_frames:batches(Frames)),
    ?assertMatch([_, _, _], Batches),
    ?assert(lists:sum([length(Sent) || Sent <- Batches]) >= 2 * ?TURNS).

%% A process of the node holds locks of these names, and all members have answered all batches. Then all voters are
%% suspended while it calls the function with its locks. Returns the batches to each member from then on.
while_suspended([A | _] = Nodes, Names, Do) ->
    Members = members(Nodes),
    {Before, Frames} = order(worker(A), fun() ->
        test_quorum_frames:recorded(fun(FramesSoFar) ->
            Locks = lock_each(Names),
            await_answered(lock, length(Names), FramesSoFar),
            Before = length(FramesSoFar()),
            ok = suspend_voters(Members),
            Do(Locks),
            ok = resume_voters(Members),
            await_answered(unlock, length(Names), fun() -> lists:nthtail(Before, FramesSoFar()) end),
            Before
        end)
    end),
    maps:values(test_quorum_frames:batches(lists:nthtail(Before, Frames))).

%% Until all members have answered. The locks need only a quorum, so the third member may not have been asked yet.
await_answered(Kind, Count, Frames) ->
    test_await:value(true, fun() -> test_quorum_frames:is_answered(Kind, Count, Frames()) end).

unlocks(Batches) ->
    test_quorum_frames:operations(unlock, Batches).

at_once(Nodes) ->
    Sent = while_suspended(Nodes, names(1), fun(Locks) ->
        unlock_each(Locks),
        await_pending(1)
    end),
    %% No answer arrived that could have caused the batch.
    ?assertMatch([[1], [1], [1]], [unlocks(Batches) || Batches <- Sent]).

next_batch(Nodes) ->
    Sent = while_suspended(Nodes, names(100), fun([First | Others]) ->
        unlock_each([First]),
        await_pending(1),
        unlock_each(Others),
        await_pending(100)
    end),
    ?assertEqual(lists:duplicate(3, [1, 99]), [unlocks(Batches) || Batches <- Sent]).

%% The other locks belong to the same process and are as old.
nothing_else([A, B | _] = Nodes) ->
    order(worker(A), fun() ->
        Kept = lock_each([{stays, N} || N <- lists:seq(1, 200)]),
        unlock_each(lock_each(names(200))),
        await_pending(0),
        put(kept, Kept),
        ?assertEqual([], [Lock || Lock <- Kept, not canal_lock_quorum:held(Lock)]),
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
            put(lock, Lock = lock_one(x)),
            Gate = counters:new(1, []),
            Giving = [
                spawn_monitor(fun() -> test_await:gate(Gate), exit(canal_lock_quorum:try_unlock(Lock)) end)
             || _ <- lists:seq(1, 50)
            ],
            counters:add(Gate, 1, 1),
            Answers = [test_await:reason(Monitor) || Monitor <- Giving],
            ?assertEqual([ok], Answers -- lists:duplicate(49, {error, not_held})),
            await_answered(unlock, 1, FramesSoFar)
        end)
    end),
    [?assertEqual([1], unlocks(Batches)) || Batches <- maps:values(test_quorum_frames:batches(Frames))],
    Next = worker(B),
    {ok, _} = test_quorum_cluster:lock(Next, x, 5000),
    order(Holder, fun() ->
        ?assertEqual({error, not_held}, canal_lock_quorum:try_unlock(get(lock))),
        ?assertEqual({error, not_held}, canal_lock_quorum:unlock(get(lock))),
        unlock_each([lock_one(y)]),
        await_pending(0)
    end),
    ?assert(test_quorum_cluster:held(Next, x)),
    ?assertEqual({error, timeout}, test_quorum_cluster:lock(Holder, x, 100)).

%% While eight processes never stop, each lock that is unlocked here is granted to another node.
no_starving([A, B | _]) ->
    {Holder, Next} = {worker(A), worker(B)},
    order(Holder, fun() ->
        put(adding, [spawn_link(fun() -> add_without_end(Who, 1) end) || Who <- lists:seq(1, 8)])
    end),
    %% The node renews its locks, so a token that is not unlocked never becomes free.
    [
        begin
            ok = order(Holder, fun() -> unlock_each([lock_one({x, Turn})]) end),
            ?assertMatch({ok, _}, test_quorum_cluster:lock(Next, {x, Turn}, ?LONG_MS))
        end
     || Turn <- lists:seq(1, 20)
    ],
    order(Holder, fun() ->
        %% The tokens of the eight processes do not pile up.
        #{pending_unlocks := Pending} = canal_lock_quorum_agent:status(),
        ?assert(Pending < 100),
        [unlink(Pid) || Pid <- get(adding)],
        ok = test_worker:kill(get(adding))
    end).

add_without_end(Who, Turn) ->
    unlock_each([lock_one({Who, Turn})]),
    add_without_end(Who, Turn + 1).

%% The agent does not read the message, so only the call itself can have ended the lock.
out_first([A | _]) ->
    order(worker(A), fun() ->
        Lock = lock_one(x),
        ok = sys:suspend(canal_lock_quorum_agent),
        ?assert(canal_lock_quorum:held(Lock)),
        ok = canal_lock_quorum:try_unlock(Lock),
        ?assertNot(canal_lock_quorum:held(Lock)),
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
    %% One batch has both, in the order of the calls.
    [?assertMatch([[{unlock, _}], [{unlock, _}, {lock, _} | _] | _], Batches) || Batches <- Sent],
    %% In many rounds each lock is requested only once.
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
        %% `unlock' waits for an answer, so it has not returned when the asynchronous unlocks have.
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
                await_answered(lock, 200, FramesSoFar),
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
    %% To and from at least two of three members.
    ?assert(Singly >= 200 * 2 * 2),
    ?assert(Together * 2 < Singly).

one_process([A | _] = Nodes) ->
    Members = members(Nodes),
    order(worker(A), fun() ->
        Locks = lock_each(names(?TOKENS)),
        ok = suspend_voters(Members),
        Before = erlang:system_info(process_count),
        unlock_each(Locks),
        await_pending(?TOKENS),
        %% The node itself may start a few.
        ?assert(erlang:system_info(process_count) < Before + 20),
        ok = resume_voters(Members),
        await_pending(0)
    end).

%% While the process that unlocks is alive.
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
