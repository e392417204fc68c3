%% Members restart one after the other, each when the one before is ready, while processes of all nodes lock: no lock is
%% lost, and no request fails.
-module(canal_lock_quorum_rolling_tests).

-include_lib("eunit/include/eunit.hrl").

-import(test_nodes, [call/2, worker/1]).

-define(MEMBERS, 5).
-define(LONG_MS, 60_000).

%% Longer than the test: nothing becomes free because a lease ends.
-define(LEASE_MS, 70_000).

%% Between two restarts.
-define(PAUSE_MS, 300).

%% What all nodes lock. Beside it, each process locks a name of its own.
-define(SHARED, shared).

rolling_test_() ->
    [
        {timeout, test_setup:timeout_s(), {Title, fun() -> roll(Restarted) end}}
     || {Title, Restarted} <- [
            {"locks survive when the members restart one after the other", fun restarted/2},
            {"locks survive when the members are killed one after the other", fun killed/2}
        ]
    ].

options(Nodes) ->
    (test_quorum_cluster:options(Nodes))#{lease_ms := ?LEASE_MS}.

roll(Restarted) ->
    Nodes = [test_nodes:start() || _ <- lists:seq(1, ?MEMBERS)],
    ok = test_quorum_cluster:start_all([{Node, options(Nodes)} || Node <- Nodes]),
    Loads = [begin_load(Node) || Node <- Nodes],
    Last = lists:foldl(fun(Node, Running) -> restart_one(Restarted, Node, Running) end, Loads, Nodes),
    [end_load(Load) || Load <- Last],
    [test_nodes:stop(Node) || {Node, _} <- Last].

%% The processes of the node end before it, because a lock of a killed node is free only when it is back.
restart_one(Restarted, Node, Loads) ->
    timer:sleep(?PAUSE_MS),
    {value, Load, Others} = lists:keytake(Node, 1, Loads),
    end_load(Load),
    Again = Restarted(Node, [Node | [Other || {Other, _} <- Others]]),
    call(Again, fun() -> test_await:value(true, fun canal_lock_quorum:ready/0) end),
    Others ++ [begin_load(Again)].

restarted(Node, Nodes) ->
    ok = test_quorum_cluster:stop(Node),
    ok = test_quorum_cluster:start(Node, options(Nodes)),
    Node.

killed(Node, Nodes) ->
    ok = test_nodes:kill(Node),
    Again = test_nodes:restart(Node, []),
    test_nodes:introduce([Again | Nodes -- [Node]]),
    ok = test_quorum_cluster:start(Again, options(Nodes)),
    Again.

begin_load(Node) ->
    {Node, [begin_locks(worker(Node), Own) || Own <- [one, other]]}.

begin_locks(Worker, Own) ->
    {Worker, test_nodes:send_order(Worker, fun() -> test_worker:caught(fun() -> locks(Own, 0) end) end)}.

end_load({_, Orders}) ->
    lists:foreach(fun({Worker, Ref}) ->
        test_nodes:send(Worker, stop),
        Locks = test_await:answer(Ref),
        ?assertMatch(N when is_integer(N) andalso N > 0, Locks)
    end, Orders).

%% Until `stop'. Returns how many locks it has had, or the first thing that went wrong.
locks(Own, Count) ->
    receive
        stop -> Count;
        Message -> {Count, Message}
    after 0 ->
        Name = lists:nth(1 + Count rem 2, [?SHARED, {Own, node()}]),
        case lock_once(Name) of
            ok -> locks(Own, Count + 1);
            Wrong -> {Count, Name, Wrong}
        end
    end.

lock_once(Name) ->
    case canal_lock_quorum:lock(Name, ?LONG_MS) of
        {ok, Lock} ->
            timer:sleep(1),
            canal_lock_quorum:unlock_async(Lock);
        {error, Why} ->
            Why
    end.
