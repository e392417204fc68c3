%% Members restart one after the other, each when the one before is ready, while processes of members or of clients
%% lock: no lock is lost, and no request fails.
-module(canal_lock_quorum_rolling_tests).

-include_lib("eunit/include/eunit.hrl").

-import(test_nodes, [call/2, worker/1]).

-define(LONG_MS, 60_000).

%% Longer than the test: nothing becomes free because a lease ends.
-define(LEASE_MS, 70_000).

%% A member that may have votes of clients votes again after a lease.
-define(LEASE_WITH_CLIENTS_MS, 3000).

%% The pauses between attempts to connect would be longer than a lease.
-define(DOWN_MS, 6800).

%% Between two restarts.
-define(PAUSE_MS, 300).

%% What all nodes lock. Beside it, each process locks a name of its own.
-define(SHARED, shared).

rolling_test_() ->
    [
        {timeout, test_setup:timeout_s(), {Title, fun() -> test_stalls:again(fun() -> Roll(Restarted) end) end}}
     || {Title, Roll, Restarted} <- [
            {"locks survive when the members restart one after the other", fun roll/1, fun restarted/3},
            {"locks survive when the members are killed one after the other", fun roll/1, fun killed/3},
            {"locks of clients survive when the members restart", fun roll_under_clients/1, fun restarted/3},
            {"locks of clients survive when the members are killed", fun roll_under_clients/1, fun killed/3},
            {"a lock of a client survives when a member was down for long before", fun roll_slowly/1, fun killed/3}
        ]
    ].

%% Five members that lock.
roll(Restarted) ->
    Nodes = [test_nodes:start() || _ <- lists:seq(1, 5)],
    Options = (test_quorum_cluster:options(Nodes))#{lease_ms := ?LEASE_MS},
    ok = test_quorum_cluster:start_all([{Node, Options} || Node <- Nodes]),
    Loads = [begin_load(Node) || Node <- Nodes],
    Last = lists:foldl(fun(Node, Running) ->
        {value, Load, Others} = lists:keytake(Node, 1, Running),
        %% The processes of the node end before it, because a lock of a killed node is free only when it is back.
        end_load(Load),
        Again = restart_one(Restarted, Node, [Other || {Other, _} <- Others], Options),
        Others ++ [begin_load(Again)]
    end, Loads, Nodes),
    [end_load(Load) || Load <- Last],
    [test_nodes:stop(Node) || {Node, _} <- Last].

%% Three members, and two clients that lock.
roll_under_clients(Restarted) ->
    {Members, Clients} = lists:split(3, [test_nodes:start() || _ <- lists:seq(1, 5)]),
    Options = (test_quorum_cluster:options(Members))#{clients := all, lease_ms := ?LEASE_WITH_CLIENTS_MS},
    Of_client = (test_quorum_cluster:client_options(Members))#{lease_ms := ?LEASE_WITH_CLIENTS_MS},
    ok = test_quorum_cluster:start_all(
        [{Node, Options} || Node <- Members] ++ [{Node, Of_client} || Node <- Clients]
    ),
    %% The readers hold one lock all the time.
    Readers = [worker(Node) || Node <- Clients],
    [{ok, _} = test_quorum_cluster:rlock(Reader, held, ?LONG_MS) || Reader <- Readers],
    Loads = [begin_load(Node) || Node <- Clients],
    Last = lists:foldl(fun(Node, Running) ->
        Others = lists:delete(Node, Running),
        Others ++ [restart_one(Restarted, Node, Others ++ Clients, Options)]
    end, Members, Members),
    [end_load(Load) || Load <- Loads],
    ?assertEqual([true || _ <- Readers], [test_quorum_cluster:held(Reader, held) || Reader <- Readers]),
    [test_nodes:stop(Node) || Node <- Last ++ Clients].

%% The client has tried to connect again and again. A member does not know its clients, so it waits for them.
roll_slowly(Killed) ->
    {Members = [First, Second, Third], [Client]} = lists:split(3, [test_nodes:start() || _ <- lists:seq(1, 4)]),
    Options = (test_quorum_cluster:options(Members))#{clients := all, lease_ms := ?LEASE_WITH_CLIENTS_MS},
    Of_client = (test_quorum_cluster:client_options(Members))#{lease_ms := ?LEASE_WITH_CLIENTS_MS},
    ok = test_quorum_cluster:start_all([{Node, Options} || Node <- Members] ++ [{Client, Of_client}]),
    Holder = worker(Client),
    {ok, _} = test_quorum_cluster:lock(Holder, held, ?LONG_MS),
    ok = test_nodes:kill(First),
    timer:sleep(?DOWN_MS),
    Again = restart_one(Killed, First, [Second, Third, Client], Options),
    ok = test_nodes:kill(Second),
    timer:sleep(?LEASE_WITH_CLIENTS_MS),
    ?assert(test_quorum_cluster:held(Holder, held)),
    [test_nodes:stop(Node) || Node <- [Again, Second, Third, Client]].

restart_one(Restarted, Node, Others, Options) ->
    timer:sleep(?PAUSE_MS),
    Again = Restarted(Node, Others, Options),
    call(Again, fun() -> test_await:value(true, fun canal_lock_quorum:ready/0) end),
    Again.

restarted(Node, _, Options) ->
    ok = test_quorum_cluster:stop(Node),
    ok = test_quorum_cluster:start(Node, Options),
    Node.

killed(Node, Others, Options) ->
    _ = test_nodes:is_alive(Node) andalso test_nodes:kill(Node),
    Again = test_nodes:restart(Node, []),
    test_nodes:introduce([Again | Others]),
    ok = test_quorum_cluster:start(Again, Options),
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

%% Until `stop', and once at least. Returns how many locks it has had, or the first thing that went wrong.
locks(Own, Count) ->
    receive
        stop when Count > 0 -> Count;
        Message when Message =/= stop -> {Count, Message}
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
