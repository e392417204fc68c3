%% Locks that are given back without waiting: what ADR 15 of AtlasDB says of its Concurrency Model, and of what it
%% gains and costs. Failures and the bound are canal_lock_quorum_unlock_failures_tests.
%%
%% What the parts of the ADR are here:
%%
%%   transaction that commits           a process that calls try_unlock/1
%%   token                              a lock; the agent knows it by a token, too
%%   set of tokens to be unlocked       the agent's mailbox, from there an outbox for each voter
%%   set lock, in shared mode           none: to send a message excludes nobody
%%   to read the reference, and add     `give_back', one call of the native library: marks the lock, sends the message
%%   `task scheduled', compare-and-set  the one unanswered batch to each voter: while there is one, no other is sent
%%   to swap the set for a new one      the outbox is moved to the next batch when that is answered
%%   set lock, exclusive, and fair      none: who sends does not keep the agent from reading
%%   single-threaded executor           the agent's process, one a node
%%   set of locks to refresh            the agent's table of locks; its voters are asked for all of them together
%%   lock service                       the voters: of them a quorum is enough
%%   a lock times out                   a voter drops the votes of an agent that is silent for voter_lease
-module(canal_lock_quorum_unlock_tests).

-include_lib("eunit/include/eunit.hrl").

-import(test_quorum_cluster, [worker/1, order/2, members/1]).
-import(test_quorum_unlock, [groups/2, names/1, take/1, take_one/1, take_all/1]).
-import(test_quorum_unlock, [give_back/1, await_pending/1, hang/1, go_on/1, await_forgotten/2]).

-define(TOKENS, 1000).

%% Locks that each of several processes takes and gives back, one after the other.
-define(TURNS, 200).

%% A net for what hangs.
-define(LONG_MS, 15_000).

unlock_test_() ->
    test_quorum_unlock:tests(#{}, [
        {"to add a token waits for nobody, not for whoever sends them either", fun adding/1},
        {"those who add do not exclude each other: 1000 tokens, each by a process of its own", fun singly/1},
        {"1000 tokens, by processes of seven each", fun in_groups/1},
        {"1000 names, in locks of seven each", fun of_seven_names/1},
        {"at most one batch is under way to each member, whoever adds", fun one_batch/1},
        {"if none is, a token goes at once", fun at_once/1},
        {"the next one carries all that came meanwhile, and no token waits for one after it", fun next_batch/1},
        {"a token that was not added is never unlocked", fun nothing_else/1},
        {"to unlock twice is harmless, also at the same moment, also when somebody else has the lock", fun twice/1},
        {"those who add without end do not keep tokens from being unlocked", fun no_starving/1},
        {"a lock is out of those that are renewed before it is told to anybody", fun out_first/1},
        {"a new lock is never refused for the unlock of one's own, which goes before it", fun own_unlock/1},
        {"the end of a transaction costs no round trip: nobody has to answer", fun no_round_trip/1},
        {"members are asked less often than locks are given back", fun fewer_messages/1},
        {"no process is made for it, however many wait", fun one_process/1},
        {"nothing is left of it at who sends: no row, no monitor", fun nothing_left/1}
    ]).

adding([A | _] = Nodes) ->
    order(worker(A), fun() ->
        Locks = take(names(100)),
        ok = sys:suspend(canal_lock_quorum_agent),
        give_back(Locks),
        ?assertEqual([], [Lock || Lock <- Locks, canal_lock_quorum:held(Lock)]),
        ok = sys:resume(canal_lock_quorum_agent)
    end),
    await_forgotten(Nodes, names(100)).

singly(Nodes) ->
    by_groups_of(1, Nodes).

in_groups(Nodes) ->
    by_groups_of(7, Nodes).

%% All at the same time, as near to it as can be.
by_groups_of(Size, [A | _] = Nodes) ->
    order(worker(A), fun() ->
        Gate = counters:new(1, []),
        Groups = groups(Size, take(names(?TOKENS))),
        Adding = [spawn_monitor(fun() -> test_await:gate(Gate), give_back(Group) end) || Group <- Groups],
        counters:add(Gate, 1, 1),
        [normal = test_await:reason(Monitor) || Monitor <- Adding],
        await_pending(0)
    end),
    await_forgotten(Nodes, names(?TOKENS)).

of_seven_names([A | _] = Nodes) ->
    order(worker(A), fun() ->
        give_back([take_all(Group) || Group <- groups(7, names(?TOKENS))]),
        await_pending(0)
    end),
    await_forgotten(Nodes, names(?TOKENS)).

one_batch([A | _]) ->
    {_, Heard} = order(worker(A), fun() ->
        test_quorum_tap:listening(fun(_) ->
            Pairs = fun(Who) -> [give_back([take_one({Who, Turn})]) || Turn <- lists:seq(1, ?TURNS)] end,
            Adding = [spawn_monitor(fun() -> Pairs(Who) end) || Who <- lists:seq(1, 8)],
            [normal = test_await:reason(Monitor) || Monitor <- Adding]
        end)
    end),
    ?assertEqual([], test_quorum_tap:unanswered(Heard)),
    %% Each turn of a process needs batches of its own to two of the three members. How many the third one gets depends
    %% on how fast it answers.
    Batches = maps:values(test_quorum_tap:batches(Heard)),
    ?assertMatch([_, _, _], Batches),
    ?assert(lists:sum([length(Said) || Said <- Batches]) >= 2 * ?TURNS).

%% A process of the node holds locks of these names, and all members have answered everything. Then none of them does,
%% while it does something with its locks, until they go on. What was in each batch since, for each member.
while_hanging([A | _] = Nodes, Names, Do) ->
    Members = members(Nodes),
    {Before, Heard} = order(worker(A), fun() ->
        test_quorum_tap:listening(fun(Heard) ->
            Locks = take(Names),
            await_quiet(lock, length(Names), Heard),
            Before = length(Heard()),
            ok = hang(Members),
            Do(Locks),
            ok = go_on(Members),
            await_quiet(unlock, length(Names), fun() -> lists:nthtail(Before, Heard()) end),
            Before
        end)
    end),
    maps:values(test_quorum_tap:batches(lists:nthtail(Before, Heard))).

%% A quorum answers earlier than that: the third member may have been sent nothing yet.
await_quiet(Kind, Count, Heard) ->
    test_await:value(true, fun() -> test_quorum_tap:is_quiet(Kind, Count, Heard()) end).

unlocks(Batches) ->
    test_quorum_tap:done(unlock, Batches).

at_once(Nodes) ->
    Said = while_hanging(Nodes, names(1), fun(Locks) ->
        give_back(Locks),
        await_pending(1)
    end),
    %% There is no answer that could have caused it.
    ?assertMatch([[1], [1], [1]], [unlocks(Batches) || Batches <- Said]).

next_batch(Nodes) ->
    Said = while_hanging(Nodes, names(100), fun([First | Others]) ->
        give_back([First]),
        await_pending(1),
        give_back(Others),
        await_pending(100)
    end),
    ?assertEqual(lists:duplicate(3, [1, 99]), [unlocks(Batches) || Batches <- Said]).

%% Locks of the same node, of the same process, of the same age.
nothing_else([A, B | _] = Nodes) ->
    order(worker(A), fun() ->
        Pairs = lists:zip(take([{stays, N} || N <- lists:seq(1, 200)]), take(names(200))),
        give_back([Goes || {_, Goes} <- Pairs]),
        await_pending(0),
        put(stay, [Stays || {Stays, _} <- Pairs]),
        ?assertEqual([], [Lock || Lock <- get(stay), not canal_lock_quorum:held(Lock)]),
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
    Giver = worker(A),
    {_, Heard} = order(Giver, fun() ->
        test_quorum_tap:listening(fun(Heard) ->
            put(lock, Lock = take_one(x)),
            Gate = counters:new(1, []),
            Giving = [
                spawn_monitor(fun() -> test_await:gate(Gate), exit(canal_lock_quorum:try_unlock(Lock)) end)
             || _ <- lists:seq(1, 50)
            ],
            counters:add(Gate, 1, 1),
            Answers = [test_await:reason(Monitor) || Monitor <- Giving],
            ?assertEqual([ok], Answers -- lists:duplicate(49, {error, not_held})),
            await_quiet(unlock, 1, Heard)
        end)
    end),
    [?assertEqual([1], unlocks(Batches)) || Batches <- maps:values(test_quorum_tap:batches(Heard))],
    Next = worker(B),
    {ok, _} = test_quorum_cluster:lock(Next, x, 5000),
    order(Giver, fun() ->
        ?assertEqual({error, not_held}, canal_lock_quorum:try_unlock(get(lock))),
        ?assertEqual({error, not_held}, canal_lock_quorum:unlock(get(lock))),
        give_back([take_one(y)]),
        await_pending(0)
    end),
    ?assert(test_quorum_cluster:held(Next, x)),
    ?assertEqual({error, timeout}, test_quorum_cluster:lock(Giver, x, 100)).

%% Eight processes that never stop; meanwhile what is given back here comes to another node each time.
no_starving([A, B | _]) ->
    {Giver, Next} = {worker(A), worker(B)},
    order(Giver, fun() ->
        put(adding, [spawn_link(fun() -> add_without_end(Who, 1) end) || Who <- lists:seq(1, 8)])
    end),
    %% The giver lives on and renews what it holds, so a token that is not unlocked is never free.
    [
        begin
            ok = order(Giver, fun() -> give_back([take_one({x, Turn})]) end),
            ?assertMatch({ok, _}, test_quorum_cluster:lock(Next, {x, Turn}, ?LONG_MS))
        end
     || Turn <- lists:seq(1, 20)
    ],
    order(Giver, fun() ->
        %% They went on, and what they have added does not heap up.
        #{pending_unlocks := Pending} = canal_lock_quorum_agent:status(),
        ?assert(Pending < 100),
        [unlink(Pid) || Pid <- get(adding)],
        ok = test_worker:kill(get(adding))
    end).

add_without_end(Who, Turn) ->
    give_back([take_one({Who, Turn})]),
    add_without_end(Who, Turn + 1).

%% Nobody reads what was sent, so nothing but the call itself can have done it.
out_first([A | _]) ->
    order(worker(A), fun() ->
        Lock = take_one(x),
        ok = sys:suspend(canal_lock_quorum_agent),
        ?assert(canal_lock_quorum:held(Lock)),
        ok = canal_lock_quorum:try_unlock(Lock),
        ?assertNot(canal_lock_quorum:held(Lock)),
        ok = sys:resume(canal_lock_quorum_agent),
        test_await:value(0, fun canal_lock_quorum_agent:count/0)
    end).

own_unlock(Nodes) ->
    Main = fun([Y, X]) ->
        give_back([Y]),
        await_pending(1),
        give_back([X]),
        Locking = spawn_monitor(fun() -> exit(canal_lock_quorum:lock(x, 5000)) end),
        test_await:value(1, fun() -> maps:get(waiting, canal_lock_quorum_agent:status()) end),
        put(locking, Locking)
    end,
    Said = while_hanging(Nodes, [y, x], Main),
    %% Both go with one batch, in the order in which they were done.
    [?assertMatch([[{unlock, _}], [{unlock, _}, {lock, _} | _] | _], Batches) || Batches <- Said],
    %% And again and again, each time asked for once only.
    {Rounds, Heard} = order(worker(hd(Nodes)), fun() ->
        test_quorum_tap:listening(fun(_) ->
            Rounds = [give_back([take_one(x)]) || _ <- lists:seq(1, 200)],
            length(Rounds)
        end)
    end),
    [
        ?assert(lists:sum(test_quorum_tap:done(lock, Batches)) =< Rounds)
     || Batches <- maps:values(test_quorum_tap:batches(Heard))
    ].

%%% Consequences

no_round_trip([A | _] = Nodes) ->
    Members = members(Nodes),
    order(worker(A), fun() ->
        [First | Locks] = take(names(101)),
        ok = hang(Members),
        %% It waits for an answer, and so has not come back when the others have.
        {Waiting, Monitor} = spawn_monitor(fun() -> exit(canal_lock_quorum:unlock(First)) end),
        give_back(Locks),
        await_pending(101),
        ?assert(is_process_alive(Waiting)),
        ok = go_on(Members),
        ?assertEqual(ok, test_await:reason({Waiting, Monitor}))
    end).

fewer_messages([A | _]) ->
    Frames = fun(GiveBack) ->
        {Before, Heard} = order(worker(A), fun() ->
            test_quorum_tap:listening(fun(Heard) ->
                Locks = take(names(200)),
                await_quiet(lock, 200, Heard),
                Before = length(Heard()),
                GiveBack(Locks),
                await_pending(0),
                Before
            end)
        end),
        length(lists:nthtail(Before, Heard))
    end,
    Singly = Frames(fun(Locks) -> [ok = canal_lock_quorum:unlock(Lock) || Lock <- Locks] end),
    Together = Frames(fun test_quorum_unlock:give_back/1),
    %% To and from three members; the last answers of one may be missing.
    ?assert(Singly >= 200 * 2 * 2),
    ?assert(Together * 2 < Singly).

one_process([A | _] = Nodes) ->
    Members = members(Nodes),
    order(worker(A), fun() ->
        Locks = take(names(?TOKENS)),
        ok = hang(Members),
        Before = erlang:system_info(process_count),
        give_back(Locks),
        await_pending(?TOKENS),
        %% The node itself may start some.
        ?assert(erlang:system_info(process_count) < Before + 20),
        ok = go_on(Members),
        await_pending(0)
    end).

%% The process lives on.
nothing_left([A | _]) ->
    order(worker(A), fun() ->
        Monitors = fun() ->
            {monitors, All} = process_info(whereis(canal_lock_quorum_agent), monitors),
            length([self() || {process, Pid} <- All, Pid =:= self()])
        end,
        Locks = take(names(100)),
        ?assertEqual({100, 100}, {canal_lock_quorum_agent:count(), Monitors()}),
        give_back(Locks),
        await_pending(0),
        ?assertEqual({0, 0}, {canal_lock_quorum_agent:count(), Monitors()})
    end).
