%% Tests asynchronous unlocks under failures by the cases of architecture decision record (ADR) 15 of AtlasDB, section
%% TimeLock Failures. canal_lock_quorum_unlock_tests has the link and lists the parts of the ADR. Two groups are not in
%% the ADR: the bound of the pending unlocks, and the death of the agent.
-module(canal_lock_quorum_unlock_failures_tests).

-include_lib("eunit/include/eunit.hrl").

-import(test_nodes, [call/2, worker/1, order/2]).
-import(test_quorum_cluster, [members/1, lock/3, held/2]).
-import(test_quorum_unlock, [names/1, lock_each/1, lock_one/1, unlock_each/1, await_pending/1]).
-import(test_quorum_unlock, [suspend_voters/1, resume_voters/1, await_forgotten/2]).

%% A member is suspended for SUSPENDED_MS, which is longer than all leases. An unlock may take up to UNLOCK_MS.
-define(SUSPENDED_MS, test_setup:in_soak(30_000, 14_000)).
-define(UNLOCK_MS, 2000).

-define(ANSWERS_MS, 60_000).
-define(LONG_MS, 60_000).

%% `pending_unlocks' in native/quorum/src/rules.rs.
-define(BOUND, 4096).

%% A member of a separate cluster is suspended while the other tests run.
all_test_() ->
    {setup, fun suspend/0, fun stop/1, fun(Suspended) ->
        [
            failures(),
            deaths(),
            bound(),
            {timeout, 120,
                {"no unlock takes 2 s while a member is suspended for longer than all leases", fun() ->
                    long_suspension(Suspended)
                end}}
        ]
    end}.

failures() ->
    test_quorum_cluster:tests(3, [
        {"a voter that was stopped receives the unlocks after its restart", fun voter_down/1},
        {"a voter that was suspended receives the unlocks, and keeps no vote", fun voter_suspended/1},
        {"a voter that was killed with unread messages receives the unlocks", fun voter_killed/1},
        {"a voter that was disconnected receives the unlocks", fun voter_cut_off/1},
        {"silent members are logged, with the number of pending unlocks", fun logged/1},
        {"unlock_async, with_lock and unlock do not raise while members are silent", fun not_raised/1},
        {"a holder that unlocked gets no message that the lock is lost", fun no_lost_message/1},
        {"malformed frames of a member stop no unlock", fun malformed_frames/1},
        {"locks become free when their agent is killed before it reads their unlocks", fun agent_killed/1},
        {"an unlock is refused while no agent runs", fun agent_has_died/1},
        {"unlocks while agents die repeatedly are accepted or refused", fun agents_die/1}
    ]).

deaths() ->
    test_quorum_restarts:tests(3, [
        {"a node that was down receives the unlocks after its restart", fun node_down/1},
        {"a voter that was suspended forgets the unlocked votes of a node that is dead", fun agent_node_dead/1}
    ]).

bound() ->
    %% An unlock stays pending no longer than its lease. None ends while voters are suspended, on a busy machine too.
    test_quorum_unlock:tests(60_000, [
        {"above the bound a caller waits until a quorum answers", fun bound_waits/1},
        {"above the bound each caller has at most one pending unlock", fun bound_keeps/1},
        {"callers that are killed during unlocks leave no locks, waiters or votes", fun killed_during_unlock/1},
        {"a caller that waits at the bound continues when the agent dies", fun agent_dies_when_full/1}
    ]).

%%% A long suspension

%% Starts three nodes with the default lease and suspends one voter, which then neither reads nor answers.
suspend() ->
    Nodes = [A | _] = [test_nodes:start() || _ <- [1, 2, 3]],
    [test_nodes:connect(One, Other) || One <- Nodes, Other <- Nodes, One < Other],
    test_quorum_cluster:start_all([{Node, #{members => members(Nodes), clients => none}} || Node <- Nodes]),
    Suspended = lists:last(members(Nodes)),
    Since_ms = erlang:monotonic_time(millisecond),
    call(A, fun() ->
        ok = suspend_voters([Suspended]),
        spawn(fun() -> register(unlocker, self()), measure_unlocks(0, []) end)
    end),
    {Nodes, Since_ms}.

stop({Nodes, _}) ->
    [test_nodes:stop(Node) || Node <- Nodes].

%% Measures each unlock until the test requests the times.
measure_unlocks(Round, Times_us) ->
    Lock = lock_one({Round, suspended}),
    {Time_us, ok} = timer:tc(canal_lock_quorum, unlock_async, [Lock]),
    receive
        {times, From, Ref} -> From ! {Ref, [Time_us | Times_us]}
    after 20 -> measure_unlocks(Round + 1, [Time_us | Times_us])
    end.

long_suspension({[A, _, C] = Nodes, Since_ms}) ->
    %% The test needs the full length of the suspension.
    timer:sleep(max(0, Since_ms + ?SUSPENDED_MS - erlang:monotonic_time(millisecond))),
    Suspended = test_nodes:name(C),
    Times_us = call(A, fun() ->
        Silent = [Node || #{node := Node, answers := false} <- maps:get(members, canal_lock_quorum_agent:status())],
        ?assertEqual([Suspended], Silent),
        Ref = make_ref(),
        unlocker ! {times, self(), Ref},
        Times_us = test_await:answer(Ref),
        ok = resume_voters([Suspended]),
        Times_us
    end),
    ?assert(length(Times_us) > 100),
    ?assertEqual([], [Time_us || Time_us <- Times_us, Time_us > 1000 * ?UNLOCK_MS]),
    test_quorum_cluster:await_voting(Nodes),
    test_quorum_cluster:await_empty(Nodes).

%%% Every voter receives every unlock

%% The lock `stays' renews the lease of its node, so no voter forgets the other locks because the lease expires.
unlocked_during([A | _] = Nodes, Begin, End) ->
    Holder = worker(A),
    order(Holder, fun() ->
        put({lock, stays}, lock_one(stays)),
        put(locks, lock_each(names(100)))
    end),
    Begin(),
    order(Holder, fun() ->
        unlock_each(get(locks)),
        await_pending(0)
    end),
    End(),
    test_quorum_cluster:await_voting(Nodes),
    await_forgotten(Nodes, names(100)),
    ?assert(held(Holder, stays)).

voter_down([_, _, C] = Nodes) ->
    Options = test_quorum_cluster:options(Nodes),
    unlocked_during(
        Nodes,
        fun() -> test_quorum_cluster:stop(C) end,
        fun() -> test_quorum_cluster:start(C, Options) end
    ).

%% The voter is suspended until the batches to it have timed out.
voter_suspended([A, B, C] = Nodes) ->
    unlocked_during(
        Nodes,
        fun() -> call(C, fun() -> sys:suspend(canal_lock_quorum_voter) end) end,
        fun() ->
            Others = members([B]),
            call(A, fun() -> await_answers(Others) end),
            call(C, fun() -> sys:resume(canal_lock_quorum_voter) end)
        end
    ).

%% The suspended voter has unread messages when it is killed.
voter_killed([_, _, C] = Nodes) ->
    unlocked_during(
        Nodes,
        fun() -> call(C, fun() -> sys:suspend(canal_lock_quorum_voter) end) end,
        fun() -> call(C, fun() -> test_quorum_cluster:kill_process(canal_lock_quorum_voter) end) end
    ).

voter_cut_off([A, _, C] = Nodes) ->
    unlocked_during(
        Nodes,
        fun() -> test_quorum_cluster:isolate(C, [A]) end,
        fun() -> test_quorum_cluster:heal(Nodes) end
    ).

node_down(Cluster) ->
    Holder = test_quorum_restarts:worker(Cluster, 1),
    order(Holder, fun() ->
        put({lock, stays}, lock_one(stays)),
        put(locks, lock_each(names(100)))
    end),
    test_faulty_cluster:suspend(Cluster, 3),
    order(Holder, fun() -> unlock_each(get(locks)), await_pending(0) end),
    test_faulty_cluster:kill(Cluster, 3),
    test_quorum_restarts:restart(Cluster, 3),
    test_quorum_restarts:await_voting(Cluster),
    await_forgotten(test_faulty_cluster:nodes_of(Cluster), names(100)),
    ?assert(held(Holder, stays)).

%% The second node needs the vote of the third one for a quorum.
agent_node_dead(Cluster) ->
    Holder = test_quorum_restarts:worker(Cluster, 1),
    order(Holder, fun() -> put(locks, lock_each(names(20))) end),
    test_faulty_cluster:suspend(Cluster, 3),
    order(Holder, fun() -> unlock_each(get(locks)), await_pending(0) end),
    test_faulty_cluster:kill(Cluster, 1),
    test_faulty_cluster:resume(Cluster, 3),
    Next = test_quorum_restarts:worker(Cluster, 2),
    order(Next, fun() -> put(locks, lock_each(names(20))) end).

%%% Failures are logged, not raised

logged([A, B, C]) ->
    Names = lists:sort(members([B, C])),
    Events = order(worker(A), fun() ->
        Lock = lock_one(x),
        test_log_listener:start(notice),
        ok = suspend_voters(Names),
        ok = canal_lock_quorum:unlock_async(Lock),
        await_answers([]),
        ok = resume_voters(Names),
        await_answers(Names),
        %% The agent logs before it answers the next request.
        _ = canal_lock_quorum_agent:status(),
        ok = test_log_listener:stop(),
        test_log_listener:events()
    end),
    Reports = [{Level, Report} || #{level := Level, msg := {report, #{what := _} = Report}} <- Events],
    Silent = [{Node, Pending} || {warning, #{what := silent, node := Node, pending_unlocks := Pending}} <- Reports],
    ?assertEqual([{Name, 1} || Name <- Names], lists:sort(Silent)),
    ?assertEqual(Names, lists:sort([Node || {notice, #{what := answers, node := Node}} <- Reports])),
    ?assertEqual([], [Report || {error, Report} <- Reports]).

%% Waits until exactly these other members answer. The deadline is shorter than that of the order, so the error names
%% them.
await_answers(Names) ->
    Answer = fun() ->
        #{members := Members} = canal_lock_quorum_agent:status(),
        lists:sort([Node || #{node := Node, answers := true} <- Members, Node =/= node()])
    end,
    test_await:value(Names, Answer, ?ANSWERS_MS).

not_raised([A, B, C]) ->
    Names = members([B, C]),
    order(worker(A), fun() ->
        [One, Other, Third] = lock_each([x, y, z]),
        put({lock, z}, Third),
        Suspend = fun(_) -> ok = suspend_voters(Names) end,
        ?assertEqual({ok, ok}, canal_lock_quorum:with_lock(w, ?LONG_MS, Suspend)),
        ?assertEqual(ok, canal_lock_quorum:unlock_async(One)),
        ?assertEqual({error, timeout}, canal_lock_quorum:unlock(Other)),
        ok = resume_voters(Names)
    end).

no_lost_message([A, B, C]) ->
    Names = members([B, C]),
    Worker = worker(A),
    [{ok, _} = lock(Worker, Name, ?LONG_MS) || Name <- [unlocked, kept]],
    order(Worker, fun() ->
        ok = suspend_voters(Names),
        unlock_each([get({lock, unlocked})]),
        test_await:value(0, fun canal_lock_quorum_agent:count/0),
        ok = resume_voters(Names)
    end),
    ?assertEqual([{at_risk, kept}, {lost, kept}], test_quorum_cluster:messages(Worker)).

%% The test sends the frames in the name of the member.
malformed_frames([A, B, _]) ->
    Name = test_nodes:name(B),
    order(worker(A), fun() ->
        {_, View, _, _} = a_message(),
        Send = fun(Frame) -> canal_lock_quorum_agent ! {canal_lock_quorum, View, Name, Frame} end,
        lists:foreach(fun(Byte) ->
            Lock = lock_one({x, Byte}),
            Send(<<Byte, "nonsense">>),
            unlock_each([Lock]),
            Send(<<1, 1, Byte>>)
        end, lists:seq(0, 255)),
        await_pending(0)
    end).

%% A message that the agent receives.
a_message() ->
    Agent = whereis(canal_lock_quorum_agent),
    1 = erlang:trace(Agent, true, ['receive']),
    unlock_each([lock_one(y)]),
    receive
        {trace, Agent, 'receive', {canal_lock_quorum, _, _, _} = Message} ->
            1 = erlang:trace(Agent, false, ['receive']),
            Message
    end.

%%% The agent dies

agent_killed([A, B, _]) ->
    order(worker(A), fun() ->
        Locks = lock_each(names(100)),
        ok = sys:suspend(canal_lock_quorum_agent),
        unlock_each(Locks),
        ok = test_worker:kill(whereis(canal_lock_quorum_agent))
    end),
    order(worker(B), fun() -> unlock_each(lock_each(names(100))) end).

%% The supervisor is suspended, so it does not start another agent.
agent_has_died([A | _]) ->
    order(worker(A), fun() ->
        [One, Other] = Locks = lock_each([x, y]),
        ok = sys:suspend(canal_lock_quorum),
        ok = test_worker:kill(whereis(canal_lock_quorum_agent)),
        ?assertEqual({error, not_held}, canal_lock_quorum:unlock_async(One)),
        ?assertNot(canal_lock_quorum:is_held(One)),
        ok = sys:resume(canal_lock_quorum),
        test_await:value(true, fun() -> is_pid(whereis(canal_lock_quorum_agent)) end),
        ?assertEqual({error, not_held}, canal_lock_quorum:unlock_async(Other)),
        ?assertEqual([], [Lock || Lock <- Locks, canal_lock_quorum:is_held(Lock)]),
        unlock_each(lock_each([x, y]))
    end).

%% Five times, because the supervisor stops after ten restarts in ten seconds.
agents_die([A | _]) ->
    order(worker(A), fun() ->
        lists:foreach(fun(Round) ->
            Agent = whereis(canal_lock_quorum_agent),
            %% New names in each round: those of the last round are free only after a lease.
            Locks = lock_each([{Round, Name} || Name <- names(50)]),
            Gate = counters:new(1, []),
            Unlocking = [
                spawn_monitor(fun() -> test_await:gate(Gate), exit(canal_lock_quorum:unlock_async(Lock)) end)
             || Lock <- Locks
            ],
            counters:add(Gate, 1, 1),
            exit(Agent, kill),
            Answers = [test_await:reason(Monitor) || Monitor <- Unlocking],
            ?assertEqual([], [Answer || Answer <- Answers, Answer =/= ok, Answer =/= {error, not_held}]),
            ?assertEqual([], [Lock || Lock <- Locks, canal_lock_quorum:is_held(Lock)]),
            await_another_agent(Agent)
        end, lists:seq(1, 5))
    end).

%%% The bound

bound_waits([A, B, C]) ->
    Names = members([B, C]),
    order(worker(A), fun() ->
        Locks = lock_each(names(?BOUND + 2)),
        {Some, Others} = lists:split(?BOUND, Locks),
        ok = suspend_voters(Names),
        unlock_each(Some),
        await_pending(?BOUND),
        Waiting = [spawn_monitor(fun() -> unlock_each([Lock]) end) || Lock <- Others],
        await_pending(?BOUND + 2),
        %% The callers wait, but their locks have ended.
        ?assertEqual([true, true], [is_process_alive(Pid) || {Pid, _} <- Waiting]),
        ?assertEqual([], [Lock || Lock <- Locks, canal_lock_quorum:is_held(Lock)]),
        ok = resume_voters(Names),
        [normal = test_await:reason(Monitor) || Monitor <- Waiting],
        await_pending(0)
    end).

bound_keeps([A, B, C]) ->
    Names = members([B, C]),
    {Before, Callers, Each} = {?BOUND - 20, 10, 50},
    order(worker(A), fun() ->
        Locks = [lock_each([{Caller, N} || N <- lists:seq(1, Each)]) || Caller <- lists:seq(1, Callers)],
        First = lock_each([{first, N} || N <- lists:seq(1, Before)]),
        ok = suspend_voters(Names),
        unlock_each(First),
        await_pending(Before),
        Unlocking = [spawn_monitor(fun() -> unlock_each(Some) end) || Some <- Locks],
        %% Each caller waits with one unlock.
        await_pending(?BOUND + Callers),
        Agent = whereis(canal_lock_quorum_agent),
        Memory = fun() ->
            true = erlang:garbage_collect(Agent),
            process_info(Agent, [message_queue_len, memory])
        end,
        [_, {memory, Bytes}] = Memory(),
        [?assert(is_process_alive(Pid)) || {Pid, _} <- Unlocking],
        #{pending_unlocks := Pending} = canal_lock_quorum_agent:status(),
        ?assertEqual(?BOUND + Callers, Pending),
        ?assertEqual(Before + Callers * Each - Pending, canal_lock_quorum_agent:count()),
        [{message_queue_len, 0}, {memory, After}] = Memory(),
        ?assert(After =< 2 * Bytes),
        ok = resume_voters(Names),
        [normal = test_await:reason(Monitor) || Monitor <- Unlocking],
        await_pending(0)
    end).

%% Callers are killed before the call, during it, while it waits at the bound, after it, and while they wait for another
%% lock. In every second round a quorum is suspended, and in every tenth the bound is reached.
killed_during_unlock([A, B, C] = Nodes) ->
    Names = members([B, C]),
    Rounds = test_setup:times(20),
    order(worker(A), fun() ->
        [killed_in_a_round(Round, Names) || Round <- lists:seq(1, Rounds)],
        await_pending(0)
    end),
    await_forgotten(Nodes, names(60)).

killed_in_a_round(Round, Names) ->
    Test = self(),
    More = lock_each([{more, N} || Round rem 10 =:= 0, N <- lists:seq(1, ?BOUND)]),
    Killed = [
        spawn_monitor(fun() ->
            Locks = lock_each([{token, 4 * Who + N} || N <- lists:seq(1, 4)]),
            Test ! {ready, self()},
            receive go -> unlock_each(Locks) end,
            %% All processes lock this name, so at least one always waits.
            unlock_each([lock_one({token, 0})]),
            unlock_each([lock_one({token, 0})])
        end)
     || Who <- lists:seq(0, 14)
    ],
    [
        receive {ready, Pid} -> ok end
     || {Pid, _} <- Killed
    ],
    IsSuspended = Round rem 2 =:= 0,
    IsSuspended andalso suspend_voters(Names),
    unlock_each(More),
    [Pid ! go || {Pid, _} <- Killed],
    _ = [erlang:yield() || _ <- lists:seq(1, 10 * Round)],
    [exit(Pid, kill) || {Pid, _} <- Killed],
    _ = [test_await:reason(Monitor) || Monitor <- Killed],
    IsSuspended andalso resume_voters(Names),
    test_await:value({0, 0}, fun() ->
        #{waiting := Waiting} = canal_lock_quorum_agent:status(),
        {canal_lock_quorum_agent:count(), Waiting}
    end).

agent_dies_when_full([A, B, C]) ->
    Names = members([B, C]),
    order(worker(A), fun() ->
        [Last | Locks] = lock_each(names(?BOUND + 1)),
        ok = suspend_voters(Names),
        unlock_each(Locks),
        await_pending(?BOUND),
        Waiting = spawn_monitor(fun() -> exit(canal_lock_quorum:unlock_async(Last)) end),
        await_pending(?BOUND + 1),
        Agent = whereis(canal_lock_quorum_agent),
        ok = test_worker:kill(Agent),
        ?assertEqual({error, not_held}, test_await:reason(Waiting)),
        ok = resume_voters(Names),
        await_another_agent(Agent)
    end).

await_another_agent(Agent) ->
    test_await:value(true, fun() -> not lists:member(whereis(canal_lock_quorum_agent), [undefined, Agent]) end).
