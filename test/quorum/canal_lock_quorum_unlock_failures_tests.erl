%% Locks that are given back without waiting, when something is wrong: what ADR 15 of AtlasDB says under TimeLock
%% Failures, and of its queue that no token is left behind. The head of canal_lock_quorum_unlock_tests says what its
%% parts are here. Two things of these tests the ADR does without: a bound, and the death of the one that sends.
-module(canal_lock_quorum_unlock_failures_tests).

-include_lib("eunit/include/eunit.hrl").

-import(test_quorum_cluster, [call/2, worker/1, order/2, members/1, lock/3, held/2]).
-import(test_quorum_unlock, [names/1, take/1, take_one/1, give_back/1, await_pending/1]).
-import(test_quorum_unlock, [hang/1, go_on/1, await_forgotten/2]).

%% A member hangs so long, beyond all leases, and an enqueue takes so long at most.
-define(HANG_MS, test_setup:in_soak(30_000, 14_000)).
-define(ENQUEUE_MS, 2000).

-define(ANSWERS_MS, 10_000).
-define(LONG_MS, 15_000).

%% The rule pending_unlocks where the bound is tried.
-define(BOUND, 20).

%% The hang goes on while the other tests run, on nodes of its own.
all_test_() ->
    {setup, fun begin_hang/0, fun end_hang/1, fun(Hang) ->
        [
            failures(),
            deaths(),
            bound(),
            {timeout, 120, {"a member hangs beyond all leases, and no enqueue takes 2 s", fun() -> long_hang(Hang) end}}
        ]
    end}.

failures() ->
    test_quorum_cluster:tests(3, [
        {"a voter that was down is told when it is there again", fun voter_down/1},
        {"a voter that hung is told, and does not keep a lock that nobody renews", fun voter_hung/1},
        {"a voter whose process was killed is told", fun voter_killed/1},
        {"a voter that could not be reached is told", fun voter_cut_off/1},
        {"what goes wrong is logged, with the member and how many unlocks wait", fun logged/1},
        {"no caller sees it: try_unlock and with_lock are as ever, and unlock says it in a value", fun not_raised/1},
        {"who has given a lock back is not told that it is lost", fun not_told/1},
        {"a member that sends nonsense stops nobody", fun nonsense/1},
        {"locks given back to an agent that is killed are free", fun agent_killed/1},
        {"to give back what an agent held that has just died harms nobody", fun agent_has_died/1},
        {"the same, while agents die again and again", fun agents_die/1}
    ]).

deaths() ->
    test_quorum_restarts:tests(3, [
        {"a node that was down is told when it is there again", fun node_down/1},
        {"given back while one hangs, by a node that dies: the one that hung forgets by itself", fun nobody_to_tell/1}
    ]).

bound() ->
    %% With leases half as long as in life: a test waits for the end of one.
    Leases = #{
        heartbeat_ms => 1500,
        holder_lease_ms => 4000,
        at_risk_ms => 2000,
        voter_lease_ms => 5000,
        quarantine_ms => 5000
    },
    test_quorum_unlock:tests(Leases#{pending_unlocks => ?BOUND}, [
        {"past the bound a caller waits, and goes on when a quorum answers", fun bound_waits/1},
        {"past the bound nothing is kept but what the callers themselves are", fun bound_keeps/1},
        {"who is killed in the middle of it leaves nothing behind", fun killed_in_the_middle/1},
        {"who waits for room when the agent dies goes on", fun agent_dies_when_full/1}
    ]).

%%% A long hang

%% With the rules of life, and a member that neither reads nor answers.
begin_hang() ->
    Nodes = [A | _] = [test_nodes:start() || _ <- [1, 2, 3]],
    [test_nodes:connect(One, Other) || One <- Nodes, Other <- Nodes, One < Other],
    test_quorum_cluster:start_all([{Node, #{members => members(Nodes)}} || Node <- Nodes]),
    Hangs = lists:last(members(Nodes)),
    Since_ms = erlang:monotonic_time(millisecond),
    call(A, fun() ->
        ok = hang([Hangs]),
        spawn(fun() -> register(enqueuer, self()), enqueue(0, []) end)
    end),
    {Nodes, Since_ms}.

end_hang({Nodes, _}) ->
    [test_nodes:stop(Node) || Node <- Nodes].

%% A lock, and gives it back: how long that has taken. Now and then, and at last a hundred of them.
enqueue(Turn, Times_us) ->
    Lock = take_one({Turn, hang}),
    {Time_us, ok} = timer:tc(canal_lock_quorum, try_unlock, [Lock]),
    receive
        {tell, Whom, Ref} -> Whom ! {Ref, [Time_us | Times_us]}
    after 20 -> enqueue(Turn + 1, [Time_us | Times_us])
    end.

long_hang({[A, _, C] = Nodes, Since_ms}) ->
    timer:sleep(max(0, Since_ms + ?HANG_MS - erlang:monotonic_time(millisecond))),
    Hangs = test_nodes:name(C),
    Times_us = call(A, fun() ->
        Silent = [Node || #{node := Node, answers := false} <- maps:get(members, canal_lock_quorum_agent:status())],
        ?assertEqual([Hangs], Silent),
        Ref = make_ref(),
        enqueuer ! {tell, self(), Ref},
        Times_us = test_await:answer(Ref),
        ok = go_on([Hangs]),
        Times_us
    end),
    ?assert(length(Times_us) > 100),
    ?assertEqual([], [Time_us || Time_us <- Times_us, Time_us > 1000 * ?ENQUEUE_MS]),
    test_quorum_cluster:await_voting(Nodes),
    test_quorum_cluster:await_empty(Nodes).

%%% Every token is unlocked in the end

%% The lock `stays' keeps the lease of its node, so no voter forgets the others by itself.
given_back_while([A | _] = Nodes, Begin, End) ->
    Holder = worker(A),
    order(Holder, fun() ->
        put({lock, stays}, take_one(stays)),
        put(locks, take(names(100)))
    end),
    Begin(),
    order(Holder, fun() ->
        give_back(get(locks)),
        await_pending(0)
    end),
    End(),
    test_quorum_cluster:await_voting(Nodes),
    await_forgotten(Nodes, names(100)),
    ?assert(held(Holder, stays)).

voter_down([_, _, C] = Nodes) ->
    Options = test_quorum_cluster:options(Nodes),
    given_back_while(
        Nodes,
        fun() -> test_quorum_cluster:stop(C) end,
        fun() -> test_quorum_cluster:start(C, Options) end
    ).

%% For so long that what was sent to it is taken for lost.
voter_hung([A, B, C] = Nodes) ->
    given_back_while(
        Nodes,
        fun() -> call(C, fun() -> sys:suspend(canal_lock_quorum_voter) end) end,
        fun() ->
            Others = members([B]),
            call(A, fun() -> await_answers(Others) end),
            call(C, fun() -> sys:resume(canal_lock_quorum_voter) end)
        end
    ).

%% With what it has not read yet.
voter_killed([_, _, C] = Nodes) ->
    given_back_while(
        Nodes,
        fun() -> call(C, fun() -> sys:suspend(canal_lock_quorum_voter) end) end,
        fun() ->
            call(C, fun() ->
                Voter = whereis(canal_lock_quorum_voter),
                ok = test_worker:kill(Voter),
                test_await:value(true, fun() -> is_another(whereis(canal_lock_quorum_voter), Voter) end)
            end)
        end
    ).

is_another(Pid, Before) ->
    is_pid(Pid) andalso Pid =/= Before.

voter_cut_off([A, _, C] = Nodes) ->
    given_back_while(
        Nodes,
        fun() -> test_quorum_cluster:isolate(C, [A]) end,
        fun() -> test_quorum_cluster:heal(Nodes) end
    ).

node_down(Cluster) ->
    Nodes = [test_quorum_restarts:at(Cluster, Place) || Place <- test_quorum_restarts:places(Cluster)],
    Holder = test_quorum_restarts:worker(Cluster, 1),
    order(Holder, fun() ->
        put({lock, stays}, take_one(stays)),
        put(locks, take(names(100)))
    end),
    test_quorum_restarts:freeze(Cluster, 3),
    order(Holder, fun() -> give_back(get(locks)), await_pending(0) end),
    test_quorum_restarts:kill(Cluster, 3),
    test_quorum_restarts:restart(Cluster, 3),
    test_quorum_restarts:await_voting(Cluster),
    [One, Other, _] = Nodes,
    await_forgotten([One, Other, test_quorum_restarts:at(Cluster, 3)], names(100)),
    ?assert(held(Holder, stays)).

%% A quorum needs the one that hung.
nobody_to_tell(Cluster) ->
    Giver = test_quorum_restarts:worker(Cluster, 1),
    order(Giver, fun() -> put(locks, take(names(20))) end),
    test_quorum_restarts:freeze(Cluster, 3),
    order(Giver, fun() -> give_back(get(locks)), await_pending(0) end),
    test_quorum_restarts:kill(Cluster, 1),
    test_quorum_restarts:thaw(Cluster, 3),
    Next = test_quorum_restarts:worker(Cluster, 2),
    order(Next, fun() -> put(locks, take(names(20))) end).

%%% Failures are logged, not raised

logged([A, B, C]) ->
    Names = members([B, C]),
    Events = order(worker(A), fun() ->
        Lock = take_one(x),
        ok = logger:set_handler_config(default, level, none),
        ok = logger:set_primary_config(level, notice),
        ok = logger:add_handler(test_log_listener, test_log_listener, #{level => notice}),
        test_log_listener:listening(fun() ->
            ok = hang(Names),
            ok = canal_lock_quorum:try_unlock(Lock),
            await_answers([]),
            ok = go_on(Names),
            await_answers(Names),
            %% What is logged is logged by the process that was asked.
            _ = canal_lock_quorum_agent:status()
        end),
        Events = test_log_listener:events(),
        ok = logger:remove_handler(test_log_listener),
        ok = logger:set_primary_config(level, none),
        Events
    end),
    Reports = [{Level, Report} || #{level := Level, msg := {report, #{what := _} = Report}} <- Events],
    Silent = [{Node, Pending} || {warning, #{what := silent, node := Node, pending_unlocks := Pending}} <- Reports],
    ?assertEqual([{Name, 1} || Name <- Names], lists:sort(Silent)),
    ?assertEqual(Names, lists:sort([Node || {notice, #{what := answers, node := Node}} <- Reports])),
    ?assertEqual([], [Report || {error, Report} <- Reports]).

%% Of the other members, those that do. Sooner than whoever has ordered it gives up: so it is told who does not.
await_answers(Names) ->
    Answer = fun() ->
        #{members := Members} = canal_lock_quorum_agent:status(),
        lists:sort([Node || #{node := Node, answers := true} <- Members, Node =/= node()])
    end,
    test_await:value(Names, Answer, ?ANSWERS_MS).

not_raised([A, B, C]) ->
    Names = members([B, C]),
    order(worker(A), fun() ->
        [One, Other, Third] = take([x, y, z]),
        put({lock, z}, Third),
        ?assertEqual({ok, done}, canal_lock_quorum:with_lock(w, ?LONG_MS, fun(_) -> ok = hang(Names), done end)),
        ?assertEqual(ok, canal_lock_quorum:try_unlock(One)),
        ?assertEqual({error, timeout}, canal_lock_quorum:unlock(Other)),
        ok = go_on(Names)
    end).

not_told([A, B, C]) ->
    Names = members([B, C]),
    Worker = worker(A),
    [{ok, _} = lock(Worker, Name, ?LONG_MS) || Name <- [given_back, kept]],
    order(Worker, fun() ->
        ok = hang(Names),
        give_back([get({lock, given_back})]),
        test_await:value(0, fun canal_lock_quorum_agent:count/0),
        ok = go_on(Names)
    end),
    ?assertEqual([{at_risk, kept}, {lost, kept}], test_quorum_cluster:messages(Worker)).

%% As if from the member, by whoever.
nonsense([A, B, _]) ->
    Name = test_nodes:name(B),
    order(worker(A), fun() ->
        {_, _, Fingerprint, _} = a_message(),
        Send = fun(Frame) -> canal_lock_quorum_agent ! {canal_lock_quorum, Fingerprint, Name, Frame} end,
        [
            begin
                Lock = take_one({x, Byte}),
                Send(<<Byte, "nonsense">>),
                give_back([Lock]),
                Send(<<1, 1, Byte>>)
            end
         || Byte <- lists:seq(0, 255)
        ],
        await_pending(0)
    end).

%% One that the agent gets.
a_message() ->
    Agent = whereis(canal_lock_quorum_agent),
    1 = erlang:trace(Agent, true, ['receive']),
    give_back([take_one(y)]),
    receive
        {trace, Agent, 'receive', {canal_lock_quorum, _, _, _} = Message} ->
            1 = erlang:trace(Agent, false, ['receive']),
            Message
    end.

%%% Who sends dies

agent_killed([A, B, _]) ->
    order(worker(A), fun() ->
        Locks = take(names(100)),
        ok = sys:suspend(canal_lock_quorum_agent),
        give_back(Locks),
        ok = test_worker:kill(whereis(canal_lock_quorum_agent))
    end),
    order(worker(B), fun() -> give_back(take(names(100))) end).

%% Nobody starts it again meanwhile.
agent_has_died([A | _]) ->
    order(worker(A), fun() ->
        [One, Other] = Locks = take([x, y]),
        ok = sys:suspend(canal_lock_quorum),
        ok = test_worker:kill(whereis(canal_lock_quorum_agent)),
        ?assertEqual({error, not_held}, canal_lock_quorum:try_unlock(One)),
        ?assertNot(canal_lock_quorum:held(One)),
        ok = sys:resume(canal_lock_quorum),
        test_await:value(true, fun() -> is_pid(whereis(canal_lock_quorum_agent)) end),
        ?assertEqual({error, not_held}, canal_lock_quorum:try_unlock(Other)),
        ?assertEqual([], [Lock || Lock <- Locks, canal_lock_quorum:held(Lock)]),
        give_back(take([x, y]))
    end).

%% Five times: a supervisor gives up after ten in as many seconds.
agents_die([A | _]) ->
    order(worker(A), fun() ->
        [
            begin
                Agent = whereis(canal_lock_quorum_agent),
                %% The names of the turn before are free after a lease.
                Locks = take([{Turn, Name} || Name <- names(50)]),
                Gate = counters:new(1, []),
                Giving = [
                    spawn_monitor(fun() -> test_await:gate(Gate), exit(canal_lock_quorum:try_unlock(Lock)) end)
                 || Lock <- Locks
                ],
                counters:add(Gate, 1, 1),
                exit(Agent, kill),
                Answers = [test_await:reason(Monitor) || Monitor <- Giving],
                ?assertEqual([], [Answer || Answer <- Answers, Answer =/= ok, Answer =/= {error, not_held}]),
                ?assertEqual([], [Lock || Lock <- Locks, canal_lock_quorum:held(Lock)]),
                test_await:value(true, fun() -> is_another(whereis(canal_lock_quorum_agent), Agent) end)
            end
         || Turn <- lists:seq(1, 5)
        ]
    end).

%%% The bound

bound_waits([A, B, C]) ->
    Names = members([B, C]),
    order(worker(A), fun() ->
        Locks = take(names(?BOUND + 2)),
        {Room, [OneMore, Another]} = lists:split(?BOUND, Locks),
        ok = hang(Names),
        give_back(Room),
        Waiting = [spawn_monitor(fun() -> give_back([Lock]) end) || Lock <- [OneMore, Another]],
        await_pending(?BOUND + 2),
        %% They wait, though their locks are given back as all others.
        ?assertEqual([true, true], [is_process_alive(Pid) || {Pid, _} <- Waiting]),
        ?assertEqual([], [Lock || Lock <- Locks, canal_lock_quorum:held(Lock)]),
        ok = go_on(Names),
        [normal = test_await:reason(Monitor) || Monitor <- Waiting],
        await_pending(0)
    end).

bound_keeps([A, B, C]) ->
    Names = members([B, C]),
    {Callers, Each} = {10, 50},
    order(worker(A), fun() ->
        Locks = [take([{Caller, N} || N <- lists:seq(1, Each)]) || Caller <- lists:seq(1, Callers)],
        ok = hang(Names),
        Giving = [spawn_monitor(fun() -> give_back(Some) end) || Some <- Locks],
        %% Each has one that it waits for.
        await_pending(?BOUND + Callers),
        Agent = whereis(canal_lock_quorum_agent),
        Memory = fun() ->
            true = erlang:garbage_collect(Agent),
            process_info(Agent, [message_queue_len, memory])
        end,
        [_, {memory, Before}] = Memory(),
        [?assert(is_process_alive(Pid)) || {Pid, _} <- Giving],
        #{pending_unlocks := Pending} = canal_lock_quorum_agent:status(),
        ?assertEqual(?BOUND + Callers, Pending),
        ?assertEqual(Callers * Each - Pending, canal_lock_quorum_agent:count()),
        [{message_queue_len, 0}, {memory, After}] = Memory(),
        ?assert(After =< 2 * Before),
        ok = go_on(Names),
        [normal = test_await:reason(Monitor) || Monitor <- Giving],
        await_pending(0)
    end).

%% At any moment of it: before, in the call, while it waits for room, after, and while it waits for another lock.
%% Every other time a quorum hangs.
killed_in_the_middle([A, B, C] = Nodes) ->
    Names = members([B, C]),
    Turns = test_setup:times(20),
    order(worker(A), fun() ->
        [killed_in_a_turn(Turn, Names) || Turn <- lists:seq(1, Turns)],
        await_pending(0)
    end),
    await_forgotten(Nodes, names(60)).

killed_in_a_turn(Turn, Names) ->
    Test = self(),
    Killed = [
        spawn_monitor(fun() ->
            Locks = take([{token, 4 * Who + N} || N <- lists:seq(1, 4)]),
            Test ! {ready, self()},
            receive
                go -> give_back(Locks)
            end,
            %% For the name of all: there are always some that wait for it.
            give_back([take_one({token, 0})]),
            give_back([take_one({token, 0})])
        end)
     || Who <- lists:seq(0, 14)
    ],
    [
        receive
            {ready, Pid} -> ok
        end
     || {Pid, _} <- Killed
    ],
    IsHung = Turn rem 2 =:= 0,
    IsHung andalso hang(Names),
    [Pid ! go || {Pid, _} <- Killed],
    _ = [erlang:yield() || _ <- lists:seq(1, 10 * Turn)],
    [exit(Pid, kill) || {Pid, _} <- Killed],
    _ = [test_await:reason(Monitor) || Monitor <- Killed],
    IsHung andalso go_on(Names),
    test_await:value({0, 0}, fun() ->
        #{waiting := Waiting} = canal_lock_quorum_agent:status(),
        {canal_lock_quorum_agent:count(), Waiting}
    end).

agent_dies_when_full([A, B, C]) ->
    Names = members([B, C]),
    order(worker(A), fun() ->
        [Last | Locks] = take(names(?BOUND + 1)),
        ok = hang(Names),
        give_back(Locks),
        Waiting = spawn_monitor(fun() -> exit(canal_lock_quorum:try_unlock(Last)) end),
        await_pending(?BOUND + 1),
        Agent = whereis(canal_lock_quorum_agent),
        ok = test_worker:kill(Agent),
        ?assertEqual({error, not_held}, test_await:reason(Waiting)),
        ok = go_on(Names),
        test_await:value(true, fun() -> is_another(whereis(canal_lock_quorum_agent), Agent) end)
    end).
