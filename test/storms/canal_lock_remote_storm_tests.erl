%% P1, P4 and P10 with many processes of other nodes at once, while managers, connections, holders and a node fail: the
%% records agree with what the holders know, and nothing is left when they are dead.
-module(canal_lock_remote_storm_tests).

-include_lib("eunit/include/eunit.hrl").

-define(KEPT, #{keep_on_crash => true}).
-define(CAPACITY, 4).
-define(KEYS, [db, {app, 1}, #{rare => "map"}]).

%% Per node.
-define(PROCESSES, 15).

%% Per node, all at once.
-define(HOLDERS, 5000).

-define(CRASHES, 100).
-define(FAULTS, 40).

%% Permits that are granted between two crashes or faults.
-define(GRANTS_BETWEEN, 25).

%% Indexes of the counters in which the processes of a node count their permits.
-define(OVER_ALLOCATED, 1).
-define(OF_KEY(N), (1 + N)).

storm_test_() ->
    test_setup:quietly([
        test_remote:tests(3, ?KEPT, test_setup:schedulers(Schedulers), [
            {Title ++ integer_to_list(Schedulers), Test}
         || {Title, Test} <- [
                {"P1, P4, P10: holders keep exactly their permits while the manager crashes often; schedulers: ",
                    fun crashes/1},
                {"P4, P10: managers, connections, holders and nodes fail, and nothing is left; schedulers: ",
                    fun everything_fails/1}
            ]
        ])
     || Schedulers <- test_setup:schedulers()
    ] ++ [
        test_remote:tests(3, ?KEPT, [
            {"P4: thousands of holders are killed, disconnected and connected again, and nothing is left", fun masses/1}
        ])
    ]).

crashes([There, Here | _]) ->
    Storm = start_storm(There, [Here]),
    crash(test_setup:times(?CRASHES), There),
    Known = lists:sort(stop_storm(Storm)),
    ?assert(length(Known) > 0),
    %% The deaths of some processes may not be handled yet.
    Recorded = fun() -> test_nodes:call(There, fun() -> lists:sort(test_setup:permits()) end) end,
    test_await:value(Known, Recorded),
    Counted = test_nodes:call(Here, fun() -> tuple_to_list(counted()) end),
    ?assertEqual([0 | [length([1 || {_, K, 1} <- Known, K =:= Key]) || Key <- ?KEYS]], Counted),
    test_nodes:kill_workers(Here),
    test_remote:nothing_is_left(There).

crash(0, _There) ->
    ok;
crash(Left, There) ->
    await_grants(There),
    test_remote:kill_manager(There),
    _ = test_remote:start_manager(There, ?KEPT),
    crash(Left - 1, There).

await_grants(There) ->
    test_nodes:call(There, fun() ->
        #{granted := Before} = canal_lock:info(),
        test_await:value(true, fun() -> maps:get(granted, canal_lock:info()) >= Before + ?GRANTS_BETWEEN end)
    end).

everything_fails([There, Here, Elsewhere]) ->
    Ends = [fun test_nodes:kill/1, fun test_nodes:shut_down/1],
    Doomed = [test_nodes:start() || _ <- Ends],
    [test_nodes:connect(Node, There) || Node <- Doomed],
    Nodes = [Here, Elsewhere | Doomed],
    [test_nodes:connect_by_themselves(Node, true) || Node <- [There | Nodes]],
    Storm = start_storm(There, Nodes),
    [cause_fault(There, [Here, Elsewhere]) || _ <- lists:seq(1, test_setup:times(?FAULTS))],
    lists:foreach(fun({End, Node}) ->
        await_grants(There),
        ok = End(Node)
    end, lists:zip(Ends, Doomed)),
    _ = stop_storm([Worker || {Node, _} = Worker <- Storm, not lists:member(Node, Doomed)]),
    Alive = lists:append([test_nodes:call(Node, fun processes/0) || Node <- [Here, Elsewhere]]),
    test_await:value([], fun() -> [Pid || {Pid, _} <- test_remote:proxies(There)] -- Alive end),
    ?assertEqual([], test_nodes:call(There, fun canal_lock:audit/0)),
    [test_nodes:kill_workers(Node) || Node <- [Here, Elsewhere]],
    test_remote:nothing_is_left(There).

masses([There, Here, Elsewhere]) ->
    Name = test_nodes:name(There),
    Count = ?HOLDERS,
    Start = fun(Node) -> test_nodes:call(Node, fun() -> holders(Name, Count) end) end,
    Held = fun() -> maps:get(permits, test_remote:info(There)) end,
    lists:foreach(fun(End) ->
        Holders = [Start(Here), Start(Elsewhere)],
        ?assertEqual(2 * Count, Held()),
        ok = End(Holders),
        test_remote:nothing_is_left(There),
        test_nodes:connect(Here, There)
    end, [
        fun([OfHere, OfElsewhere]) ->
            kill_all(Here, OfHere),
            kill_all(Elsewhere, OfElsewhere)
        end,
        fun([OfHere, OfElsewhere]) ->
            test_nodes:cut(Here, There),
            test_await:value(Count, Held),
            %% The holders are alive and acquire again over the next connection.
            test_nodes:connect(Here, There),
            again(Here, OfHere),
            ?assertEqual(2 * Count, Held()),
            kill_all(Elsewhere, OfElsewhere),
            test_nodes:cut(There, Here),
            kill_all(Here, OfHere)
        end
    ]).

%% Processes of a node that each acquire a permit, and another one on each request.
holders(Name, Count) ->
    Test = self(),
    Holders = [spawn(fun() -> hold(Test, Name, {key, N rem 100}) end) || N <- lists:seq(1, Count)],
    [receive {Holder, {acquired, _}} -> Holder end || Holder <- Holders].

hold(Test, Name, Key) ->
    Test ! {self(), canal_lock:acquire_on(Name, Key, 1_000_000, 1, infinity)},
    receive {again, Next} -> hold(Next, Name, Key) end.

again(Node, Holders) ->
    test_nodes:call(Node, fun() ->
        [Holder ! {again, self()} || Holder <- Holders],
        [receive {Holder, {acquired, _}} -> ok end || Holder <- Holders]
    end).

kill_all(Node, Holders) ->
    test_nodes:call(Node, fun() -> test_worker:kill(Holders) end).

cause_fault(There, Nodes) ->
    await_grants(There),
    Node = lists:nth(rand:uniform(length(Nodes)), Nodes),
    case rand:uniform(4) of
        1 -> hard_restart(There);
        2 -> disconnect(Node, There);
        3 -> disconnect(There, Node);
        4 -> disconnect(There, Node), hard_restart(There)
    end.

hard_restart(There) ->
    test_remote:kill_manager(There),
    test_remote:start_manager(There, ?KEPT).

disconnect(One, Other) ->
    Name = test_nodes:name(Other),
    test_nodes:call(One, fun() -> erlang:disconnect_node(Name) end).

%% Processes that acquire, release and kill others until they are stopped. Then each returns what it holds.
start_storm(There, Nodes) ->
    Name = test_nodes:name(There),
    [test_nodes:call(Node, fun count_from_0/0) || Node <- Nodes],
    Workers = [test_nodes:worker(Node) || Node <- Nodes, _ <- lists:seq(1, ?PROCESSES)],
    %% The order has no time limit, so the test does not wait for its answer.
    Order = fun(Pid) -> test_worker:send_order(Pid, fun() -> put(?MODULE, storm(Name, [])) end) end,
    [test_nodes:call(Node, fun() -> Order(Pid) end) || {Node, Pid} <- Workers],
    Workers.

stop_storm(Workers) ->
    [test_nodes:call(Node, fun() -> Pid ! stop_storm end) || {Node, Pid} <- Workers],
    lists:append([test_nodes:order(Worker, fun() -> get(?MODULE) end) || Worker <- Workers]).

count_from_0() ->
    persistent_term:put(?MODULE, atomics:new(?OF_KEY(length(?KEYS)), [])).

counted() ->
    Counters = persistent_term:get(?MODULE),
    list_to_tuple([atomics:get(Counters, N) || N <- lists:seq(1, ?OF_KEY(length(?KEYS)))]).

%% A process has at most one permit of a key, so it knows its permits after each answer and each exit.
storm(Node, Held) ->
    receive
        stop_storm -> [{self(), Key, 1} || Key <- Held]
    after 0 ->
        Key = lists:nth(rand:uniform(length(?KEYS)), ?KEYS),
        storm(Node, act(rand:uniform(10), Node, Key, Held))
    end.

act(1, Node, Key, Held) ->
    %% A child dies as a holder.
    {Child, Monitor} = spawn_monitor(fun() ->
        [subtract(K) || K <- acquire(Node, Key, [])],
        exit(kill)
    end),
    _ = test_await:reason({Child, Monitor}),
    Held;
act(2, Node, Key, Held) ->
    %% A child is killed at a random moment.
    {Child, Monitor} = spawn_monitor(fun() -> canal_lock:acquire_on(Node, Key, ?CAPACITY, 1) end),
    [erlang:yield() || _ <- lists:seq(1, rand:uniform(100))],
    exit(Child, kill),
    _ = test_await:reason({Child, Monitor}),
    Held;
act(_, Node, Key, Held) ->
    case lists:member(Key, Held) of
        true -> release(Node, Key, Held);
        false -> acquire(Node, Key, Held)
    end.

acquire(Node, Key, Held) ->
    case test_remote:attempt(fun() -> canal_lock:acquire_on(Node, Key, ?CAPACITY, 1) end) of
        {acquired, N} when N =< ?CAPACITY ->
            add(Key),
            [Key | Held];
        Refusal when Refusal =:= full; Refusal =:= {error, timeout} ->
            Held;
        {exit, Reason} ->
            after_exit(Reason, Held)
    end.

release(Node, Key, Held) ->
    subtract(Key),
    release_again(Node, Key, lists:delete(Key, Held)).

%% If no manager runs, nothing has changed.
release_again(Node, Key, Held) ->
    case test_remote:attempt(fun() -> canal_lock:release_on(Node, Key) end) of
        ok -> Held;
        {error, _} -> Held;
        {exit, Reason = {{nodedown, _}, _}} -> after_exit(Reason, Held);
        {exit, Reason} -> release_again(Node, Key, after_exit(Reason, Held))
    end.

%% Without a connection, all permits are void.
after_exit({{nodedown, _}, _}, Held) ->
    pause(),
    [subtract(Key) || Key <- Held],
    [];
after_exit(_, Held) ->
    pause(),
    Held.

%% Lets the processes run that restart the manager or the connection.
pause() ->
    receive after 1 -> ok end.

%% Counts only between grant and release, so the counter never exceeds the permits that are held.
add(Key) ->
    Counters = persistent_term:get(?MODULE),
    case atomics:add_get(Counters, index(Key), 1) of
        N when N =< ?CAPACITY -> ok;
        _ -> atomics:add(Counters, ?OVER_ALLOCATED, 1)
    end.

subtract(Key) ->
    atomics:sub(persistent_term:get(?MODULE), index(Key), 1).

index(Key) ->
    index(Key, ?KEYS, 1).

index(Key, [Key | _], N) -> ?OF_KEY(N);
index(Key, [_ | Keys], N) -> index(Key, Keys, N + 1).
