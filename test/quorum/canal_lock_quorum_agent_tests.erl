%% The agent's process: locks and messages of an agent that has died, callers that have died, messages for `sys',
%% yields, unlocks after the lease, the farewell of a clean shutdown, and the order of its messages to holders.
-module(canal_lock_quorum_agent_tests).

-include_lib("eunit/include/eunit.hrl").

-define(AGENT, canal_lock_quorum_agent).
-define(LONG_MS, 60_000).

%% `pending_unlocks' in native/quorum/src/rules.rs.
-define(BOUND, 4096).

%% Shorter than any lease.
-define(SHORT_MS, 3000).

%%% Locks of an earlier agent

%% Each agent numbers its locks from 1.
earlier_agent_test_() ->
    test_setup:quietly([
        {Title, {setup, fun start/0, fun(_) -> canal_lock_quorum:stop() end, fun(_) -> [{timeout, 60, Test}] end}}
     || {Title, Test} <- [
            {"an unlock that arrives after its agent has died ends no lock of the next agent", fun late_unlock/0},
            {"an unlock_async that waits for its agent, which dies, ends no lock of the next agent",
                fun late_unlock_async/0},
            {"messages about locks of an earlier agent end no lock", fun late_messages/0},
            {"a lock is not held, and its holder is notified, when the native library is loaded again", fun reloaded/0}
        ]
    ]).

start() ->
    start(#{}).

start(Options) ->
    {ok, Pid} = canal_lock_quorum:start_link(Options#{members => [node()]}),
    true = unlink(Pid),
    test_await:value(true, fun() -> maps:get(quorum, canal_lock_quorum:status()) end).

late_unlock() ->
    Old = lock_one(old),
    {Caller, Call} = called_while_no_agent_runs(fun() -> canal_lock_quorum:unlock(Old) end),
    is_refused_by_the_next_agent(Caller, Call).

%% The last unlock is above the bound, so its caller asks the agent.
late_unlock_async() ->
    [Last | Locks] = [lock_one({old, N}) || N <- lists:seq(0, ?BOUND)],
    {Caller, Call} = called_while_no_agent_runs(fun() ->
        [{error, not_held} = canal_lock_quorum:unlock_async(Lock) || Lock <- Locks],
        canal_lock_quorum:unlock_async(Last)
    end),
    is_refused_by_the_next_agent(Caller, Call).

%% The agent is killed before the call. The caller finds the test under the name of the agent: as if the agent were
%% killed after the caller has checked its lock. Returns the caller and its request; then the next agent runs.
called_while_no_agent_runs(Unlock) ->
    Agent = whereis(?AGENT),
    ok = sys:suspend(canal_lock_quorum),
    ok = test_worker:kill(Agent),
    true = register(?AGENT, self()),
    Caller = spawn_monitor(fun() -> exit(Unlock()) end),
    Call = receive {'$gen_call', _, _} = Message -> Message end,
    true = unregister(?AGENT),
    ok = sys:resume(canal_lock_quorum),
    await_another_agent(Agent),
    {Caller, Call}.

is_refused_by_the_next_agent(Caller, Call) ->
    ok = forget_lost(),
    Locks = [lock_one({new, N}) || N <- lists:seq(1, 10)],
    ?AGENT ! Call,
    ?assertEqual({error, not_held}, test_await:reason(Caller)),
    are_untouched(Locks).

late_messages() ->
    Old = lock_one(old),
    Id = {_, Token} = canal_lock_quorum_lock:id(Old),
    Agent = whereis(?AGENT),
    ok = test_worker:kill(Agent),
    await_another_agent(Agent),
    ok = forget_lost(),
    ?assertEqual(not_held, canal_lock_quorum_lock:id(Old)),
    Locks = [lock_one({new, N}) || N <- lists:seq(1, 10)],
    %% Otherwise the test shows nothing.
    ?assert(lists:member(Token, [element(2, canal_lock_quorum_lock:id(Lock)) || Lock <- Locks])),
    ?AGENT ! {unlock_async, Id, false},
    ?AGENT ! {{holder_down, Id}, make_ref(), process, self(), killed},
    are_untouched(Locks).

reloaded() ->
    Lock = lock_one(x),
    Agent = whereis(?AGENT),
    true = code:delete(canal_lock_quorum_nif),
    _ = code:purge(canal_lock_quorum_nif),
    {module, _} = code:load_file(canal_lock_quorum_nif),
    ?assertNot(canal_lock_quorum:is_held(Lock)),
    ?assertEqual({error, not_held}, canal_lock_quorum:unlock_async(Lock)),
    ?assertEqual({error, not_held}, canal_lock_quorum:unlock(Lock)),
    %% The agent crashes when it uses its state machine the next time.
    _ = test_worker:caught(fun() -> canal_lock_quorum:status() end),
    await_another_agent(Agent),
    receive {canal_lock_quorum, lost, Lock} -> ok end.

are_untouched(Locks) ->
    %% The agent has handled all earlier messages when it answers.
    ?assertMatch(#{held := 10}, canal_lock_quorum:status()),
    ?assertEqual([], [Lock || Lock <- Locks, not canal_lock_quorum:is_held(Lock)]),
    receive
        {canal_lock_quorum, lost, Lock} -> error({lost, Lock})
    after 0 -> ok
    end.

await_another_agent(Agent) ->
    test_await:value(true, fun() -> not lists:member(whereis(?AGENT), [undefined, Agent]) end).

lock_one(Name) ->
    {ok, Lock} = canal_lock_quorum:lock(Name, ?LONG_MS),
    Lock.

%% The next agent sends the messages before it answers its first request.
forget_lost() ->
    _ = canal_lock_quorum:status(),
    receive
        {canal_lock_quorum, lost, _} -> forget_lost()
    after 0 -> ok
    end.

%%% A caller that has died

%% The agent reads the votes, which grant the lock, before the death.
granted_to_the_dead_test_() ->
    {"a lock that is granted to a process that has died is unlocked",
        {setup, fun start/0, fun(_) -> canal_lock_quorum:stop() end, fun(_) ->
            {timeout, 60, fun granted_to_the_dead/0}
        end}}.

granted_to_the_dead() ->
    ok = sys:suspend(canal_lock_quorum_voter),
    {Caller, Monitor} = spawn_monitor(fun() -> canal_lock_quorum:lock(x, ?LONG_MS) end),
    await_message(canal_lock_quorum_voter, fun is_frame/1),
    ok = sys:suspend(?AGENT),
    ok = sys:resume(canal_lock_quorum_voter),
    await_message(?AGENT, fun is_frame/1),
    exit(Caller, kill),
    killed = test_await:reason({Caller, Monitor}),
    await_message(?AGENT, fun is_death/1),
    ok = sys:resume(?AGENT),
    ?assertMatch({ok, _}, canal_lock_quorum:lock(x, ?SHORT_MS)),
    ?assertMatch(#{held := 1, waiting := 0}, canal_lock_quorum:status()).

%% Until the mailbox has such a message.
await_message(Name, Is) ->
    test_await:value(true, fun() ->
        {messages, Messages} = process_info(whereis(Name), messages),
        lists:any(Is, Messages)
    end).

is_frame({canal_lock_quorum, _, _, _}) -> true;
is_frame(_) -> false.

is_death({{waiter_down, _}, _, process, _, _}) -> true;
is_death(_) -> false.

%%% A message for `sys'

%% The agent, or the voter, has a request in its mailbox, and behind it a message for `sys'. No timer starts a step
%% within an hour.
system_message_test_() ->
    Hours = #{lease_ms => 36_000_000},
    Start = fun() -> ok = start(Hours), await_late(whereis(canal_lock_quorum_voter)) end,
    {setup, Start, fun(_) -> canal_lock_quorum:stop() end, [
        {lists:concat([Name, " runs a step after a message for sys"]),
            {timeout, 60, fun() -> system_message(Name, Is) end}}
     || {Name, Is} <- [{?AGENT, fun is_call/1}, {canal_lock_quorum_voter, fun is_frame/1}]
    ]}.

%% Its check whether it was opened in time.
await_late(Voter) ->
    1 = erlang:trace(Voter, true, ['receive']),
    receive {trace, Voter, 'receive', {timeout, _, {late, _}}} -> ok end,
    1 = erlang:trace(Voter, false, ['receive']).

system_message(Name, Is) ->
    Process = whereis(Name),
    ok = test_worker:suspend(Process),
    Caller = spawn_monitor(fun() -> exit(canal_lock_quorum:lock(x, ?LONG_MS)) end),
    await_message(Name, Is),
    Ref = make_ref(),
    Process ! {system, {self(), Ref}, get_state},
    ok = test_worker:resume(Process),
    receive {Ref, _} -> ok end,
    ?assertMatch({ok, _}, test_await:reason(Caller)).

is_call({'$gen_call', _, _}) -> true;
is_call(_) -> false.

%%% Unlocks of locks whose lease has expired

expired_test_() ->
    Start = fun() -> ok = start(#{lease_ms => test_quorum_cluster:lease_ms()}) end,
    {setup, Start, fun(_) -> canal_lock_quorum:stop() end, [
        {"unlock_async/1 of a lock that has expired tells the agent so", fun expired/0},
        {"the holder gets the message `lost' if the agent executes its unlock_async/1 first", fun() ->
            lost(fun(Agent, Lock) -> Agent ! {unlock_async, canal_lock_quorum_lock:id(Lock), true} end)
        end},
        {"the holder gets the message `lost' if the agent executes its unlock/1 first", fun() ->
            lost(fun(Agent, Lock) -> Agent ! {'$gen_call', {self(), x}, {unlock, canal_lock_quorum_lock:id(Lock)}} end)
        end}
    ]}.

expired() ->
    {ok, Lock} = canal_lock_quorum:lock(expired, ?LONG_MS),
    Agent = whereis(?AGENT),
    ok = test_worker:suspend(Agent),
    test_await:value(false, fun() -> canal_lock_quorum:is_held(Lock) end),
    ?assertEqual({error, not_held}, canal_lock_quorum:unlock_async(Lock)),
    await_message(?AGENT, fun is_of_expired/1),
    ok = test_worker:resume(Agent),
    test_await:value(0, fun() -> maps:get(held, canal_lock_quorum:status()) end).

is_of_expired({unlock_async, _, IsExpired}) -> IsExpired;
is_of_expired(_) -> false.

%% The lease expires after the message is sent, and before the agent receives it or a timer.
lost(Send) ->
    #{totals := #{lost := Before}} = canal_lock_quorum:status(),
    {ok, Lock} = canal_lock_quorum:lock(lost, ?LONG_MS),
    Agent = whereis(?AGENT),
    ok = test_worker:suspend(Agent),
    Send(Agent, Lock),
    test_await:value(false, fun() -> canal_lock_quorum:is_held(Lock) end),
    ok = test_worker:resume(Agent),
    #{held := 0, totals := #{lost := After}} = canal_lock_quorum:status(),
    ?assertEqual(1, After - Before),
    ?assertEqual([lost], [Event || {canal_lock_quorum, Event, Of} <- test_await:messages(), Of =:= Lock]).

%%% Yields

%% With one scheduler, each yield of the agent lets this process send one more event. Without a yield, a step would have
%% one event. If the agent yielded as long as events came, it would have 64.
yields_test_() ->
    Options = fun(_, Nodes) -> test_quorum_cluster:options(Nodes) end,
    test_quorum_cluster:tests(1, ["+S", "1"], Options, [
        {"the agent yields to processes that send requests, once before each step", fun yields/1}
    ]).

yields([A]) ->
    test_nodes:call(A, fun() ->
        Agent = whereis(?AGENT),
        1 = erlang:trace_pattern({canal_lock_quorum_nif, agent_step, 2}, true, [global]),
        1 = erlang:trace(Agent, true, [call]),
        Send = fun(_) -> Agent ! {unlock_async, {0, 0}, false}, true = erlang:yield() end,
        lists:foreach(Send, lists:seq(1, 1000)),
        _ = sys:get_state(Agent),
        Steps = steps(Agent),
        ?assert(lists:max(Steps) >= 2),
        ?assert(lists:max(Steps) =< 4)
    end).

%% The numbers of events of the steps.
steps(Agent) ->
    receive
        {trace, Agent, call, {_, agent_step, [_, Events]}} -> [length(Events) | steps(Agent)]
    after 0 -> []
    end.

%%% A clean shutdown

%% One voter reads nothing for a while, and the agent waits for its answer to an earlier batch.
farewell_test_() ->
    Options = fun(_, Nodes) ->
        (test_quorum_cluster:options(Nodes))#{lease_ms := 70_000}
    end,
    test_quorum_cluster:tests(3, [], Options, [
        {"a node that shuts down waits until its unlocks have arrived at all voters that answer", fun farewell/1}
    ]).

farewell([A, B, C]) ->
    Holder = test_nodes:worker(A),
    {ok, _} = test_quorum_cluster:lock(Holder, x, ?LONG_MS),
    ok = test_nodes:call(B, fun() -> sys:suspend(canal_lock_quorum_voter) end),
    {ok, _} = test_quorum_cluster:lock(Holder, y, ?LONG_MS),
    Stop = spawn_monitor(fun() -> exit(test_quorum_cluster:stop(A)) end),
    test_nodes:call(A, fun() -> test_await:value(true, fun says_farewell/0) end),
    ok = test_nodes:call(B, fun() -> sys:resume(canal_lock_quorum_voter) end),
    ok = test_await:reason(Stop),
    %% The lock needs both votes.
    [?assertMatch({ok, _}, test_quorum_cluster:lock(test_nodes:worker(C), Name, ?SHORT_MS)) || Name <- [x, y]].

%% Or is done with it.
says_farewell() ->
    Agent = whereis(?AGENT),
    Agent =:= undefined orelse
        case process_info(Agent, current_function) of
            {current_function, {?AGENT, await_frame, 1}} -> true;
            {current_function, _} -> false;
            undefined -> true
        end.

%% A holder that gets the message must not find the lock held.
lost_after_the_step_test() ->
    _ = start(),
    Lock = lock_one(x),
    Id = canal_lock_quorum_lock:id(Lock),
    Agent = whereis(?AGENT),
    Step = {canal_lock_quorum_nif, agent_step, 2},
    1 = erlang:trace_pattern(Step, [{'_', [], [{return_trace}]}], [global]),
    1 = erlang:trace(Agent, true, [call, send]),
    ok = canal_lock_quorum:stop(),
    Traced = test_await:traced(Agent),
    _ = erlang:trace_pattern(Step, false, [global]),
    Unlocks = fun
        ({trace, _, call, {_, agent_step, [_, Events]}}) -> lists:keymember(Id, 2, Events);
        (_) -> false
    end,
    {_, [_ | AfterTheCall]} = lists:splitwith(fun(Message) -> not Unlocks(Message) end, Traced),
    {_, AfterTheStep} = lists:splitwith(fun(Message) -> element(3, Message) =/= return_from end, AfterTheCall),
    IsLost = fun
        ({trace, _, send, Message, _}) -> Message =:= {canal_lock_quorum, lost, Lock};
        (_) -> false
    end,
    ?assertMatch({[_], [_]}, {lists:filter(IsLost, Traced), lists:filter(IsLost, AfterTheStep)}).

%%% The state machine

%% The native agent alone, with the native voter of a cluster of one member.
foreign_lock_test() ->
    ok = canal_lock_quorum_nif:load(),
    #{setup := Setup} = canal_lock_quorum_config:make(#{members => [node()]}),
    Voter = canal_lock_quorum_nif:voter_open(Setup, nil),
    Agent = canal_lock_quorum_nif:agent_open(Setup),
    {granted, 1, {Incarnation, Token}, _, Handle, asked} =
        granted(Agent, Voter, [{up, node()}, {lock, 1, write, [<<"x">>], ?LONG_MS}]),
    Foreign = {Incarnation bxor 1, Token},
    lists:foreach(fun(How) ->
        {Outputs, _, _, _} = canal_lock_quorum_nif:agent_step(Agent, [{How, Foreign, 2}]),
        ?assertEqual([{missing, 2}], Outputs),
        ?assert(canal_lock_quorum_nif:is_held(Handle))
    end, [unlock, unlock_async]),
    ok = canal_lock_quorum_nif:agent_close(Agent).

%% Passes messages between them until a lock is granted.
granted(Agent, Voter, Events) ->
    {Outputs, _, _, _} = canal_lock_quorum_nif:agent_step(Agent, Events),
    case lists:keyfind(granted, 1, Outputs) of
        false ->
            {Answers, _, _} = canal_lock_quorum_nif:voter_step(Voter, events(Outputs)),
            granted(Agent, Voter, events(Answers));
        Granted ->
            Granted
    end.

events(Outputs) ->
    [{frame, node(), Cluster, Number, Bytes} || {send, _, _, Cluster, Number, Bytes} <- Outputs].
