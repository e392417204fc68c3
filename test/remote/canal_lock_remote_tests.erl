%% Permits for processes on other nodes: the same answers as for local processes, through the manager and proxies of the
%% table's node.
-module(canal_lock_remote_tests).

-include_lib("eunit/include/eunit.hrl").

-define(CYCLES, 300).
-define(PROCESSES, 40).

remote_test_() ->
    test_setup:quietly([
        test_remote:tests(3, #{}, [
            {"P1, P6: of many concurrent calls, as many are granted as the capacity allows", fun many_at_once/1},
            {"keys of every kind that belong to the node of the holder work", fun keys/1},
            {"both nodes see the same holders and permits", fun seen_on_both/1},
            {"a call for the own node does not use the manager", fun own_node/1},
            {"P7: local calls do not wait for the manager, remote ones do", fun waits_for_the_manager/1},
            {"P8: remote calls leave no proxies, monitors or messages behind", fun leaves_nothing_behind/1},
            {"a proxy without permits exits after its idle time", fun idle/1},
            {"P4: a live holder keeps several permits that it got after a wait", fun kept_after_a_wait/1},
            {"P4: a lost connection releases the permits of its holders, and no others", fun connection_lost/1},
            {"P9: system_limit of the remote manager is raised in the caller", fun raised/1},
            {"P9: forged requests change nothing", fun forged/1},
            {"calls between nodes with different versions raise version_mismatch", fun versions/1},
            {"the exit reason names the missing node or manager", fun exits/1}
        ]),
        test_remote:tests(1, #{}, [
            {"P4: permits are released when the node of their holder stops or is killed", fun nodes_end/1}
        ])
    ]).

many_at_once([There, Here, Elsewhere]) ->
    Workers = [test_nodes:worker(Node) || Node <- [Here, Elsewhere], _ <- lists:seq(1, ?PROCESSES)],
    Sent = [test_remote:send_acquire(Worker, There, db) || Worker <- Workers],
    Answers = lists:sort([test_await:answer(Ref) || Ref <- Sent]),
    ?assertEqual([{acquired, N} || N <- [1, 2, 3]], [Answer || Answer <- Answers, Answer =/= full]),
    ?assertEqual(2 * ?PROCESSES, length(test_remote:proxies(There))),
    ?assertMatch([_, _, _], test_nodes:call(There, fun() -> canal_lock:holders(db) end)),
    One = hd(Workers),
    [?assertEqual({MaxPer, full}, {MaxPer, test_remote:acquire(One, There, db, MaxPer)}) || MaxPer <- [0, 2, 3]],
    ?assertEqual({acquired, 4}, test_remote:acquire(One, There, db, 4)),
    ?assertEqual({acquired, 5}, test_remote:acquire(One, There, db, 1 bsl 200)),
    test_nodes:kill_workers(Here),
    test_nodes:kill_workers(Elsewhere),
    test_remote:nothing_is_left(There).

%% The holder creates the terms, the other node compares them, and the holder compares the terms that the views return.
keys([There, Here | _]) ->
    Name = test_nodes:name(There),
    Holder = test_nodes:worker(Here),
    Acquire = fun() ->
        Keys = [Key || {_, Key} <- test_key_terms:all()],
        Permits = lists:foldl(fun(Key, Sums) -> maps:update_with(Key, fun(N) -> N + 1 end, 1, Sums) end, #{}, Keys),
        [{acquired, _} = canal_lock:acquire_on(Name, Copy, 9, 1) || Key <- Keys, Copy <- both(Key)],
        Differing = fun(Held) ->
            [Key || {Key, N} <- maps:to_list(Permits), maps:get(Key, Held, 0) =/= 2 * N]
        end,
        {[], []} = {Differing(maps:from_list(erpc:call(Name, canal_lock, held, [self()]))), Differing(counts(Name))},
        [ok = canal_lock:release_on(Name, Copy) || Key <- Keys, Copy <- both(Key)],
        [{error, not_held} = canal_lock:release_on(Name, Key) || Key <- Keys],
        length(Keys)
    end,
    ?assertMatch(Keys when Keys > 500, test_nodes:order(Holder, Acquire)),
    test_remote:nothing_is_left(There).

%% The same term twice, built in two ways.
both(Key) ->
    Copies = test_key_terms:copies(Key),
    [hd(Copies), lists:last(Copies)].

counts(Name) ->
    maps:from_list(erpc:call(Name, canal_lock, keys, [])).

seen_on_both([There, Here, Elsewhere]) ->
    Name = test_nodes:name(There),
    {_, Pid} = Holder = test_nodes:worker(Here),
    {_, Other} = Second = test_nodes:worker(Elsewhere),
    Key = {db, Pid},
    [{acquired, N} = test_remote:acquire(Holder, There, Key) || N <- [1, 2]],
    {acquired, 3} = test_remote:acquire(Second, There, Key),
    {acquired, 1} = test_remote:acquire(Second, There, app),
    Views = fun() -> {canal_lock:holders(Key), [canal_lock:held(P) || P <- [Pid, Other]], canal_lock:held()} end,
    Sorted = fun({Holders, Held, Own}) -> {lists:sort(Holders), lists:map(fun lists:sort/1, Held), Own} end,
    Wanted = {lists:sort([{Pid, 2}, {Other, 1}]), [[{Key, 2}], [{app, 1}, {Key, 1}]], []},
    ?assertEqual(Wanted, Sorted(test_nodes:call(There, Views))),
    %% The holders themselves get the same answer.
    Ask = fun() -> Sorted(erpc:call(Name, Views)) end,
    [?assertEqual(Wanted, test_nodes:order(Worker, Ask)) || Worker <- [Holder, Second]],
    %% A process without a call has no permits.
    {_, Idle} = test_nodes:worker(Here),
    ?assertEqual([], test_nodes:call(There, fun() -> canal_lock:held(Idle) end)),
    %% held/1 also accepts the pid of the proxy.
    [Proxy] = [Its || {Represented, Its} <- test_remote:proxies(There), Represented =:= Pid],
    ?assertEqual([{Key, 2}], test_nodes:call(There, fun() -> canal_lock:held(Proxy) end)).

own_node([There | _]) ->
    Name = test_nodes:name(There),
    {_, Pid} = Holder = test_nodes:worker(There),
    test_remote:suspend_manager(There),
    ?assertEqual({acquired, 1}, test_remote:acquire(Holder, There, db)),
    ?assertEqual({acquired, 2}, test_remote:acquire(Holder, There, db)),
    ?assertEqual(ok, test_remote:release(Holder, There, db)),
    test_remote:resume_manager(There),
    ?assertEqual([], test_remote:proxies(There)),
    ?assertEqual([{Pid, 1}], test_nodes:call(There, fun() -> canal_lock:holders(db) end)),
    Wrong = fun() -> test_remote:attempt(fun() -> canal_lock:acquire_on(Name, db, -1, 1) end) end,
    ?assertEqual({error, badarg}, test_nodes:order(Holder, Wrong)),
    %% The same holds in a VM that is not a node.
    {ok, _} = canal_lock:start_link(3),
    ?assertEqual({acquired, 1}, canal_lock:acquire_on(node(), db, 3, 1)),
    ?assertEqual([ok, {error, not_held}], [canal_lock:release_on(node(), db) || _ <- [1, 2]]),
    ?assertEqual({exit, {{nodedown, Name}, {canal_lock, release_on, [Name, db]}}},
        test_remote:attempt(fun() -> canal_lock:release_on(Name, db) end)),
    ok = canal_lock:stop().

waits_for_the_manager([There, Here | _]) ->
    Holder = test_nodes:worker(Here),
    {acquired, 1} = test_remote:acquire(Holder, There, db),
    test_remote:suspend_manager(There),
    Waiting = test_remote:send_acquire(Holder, There, db),
    test_remote:await_request(There),
    Local = test_nodes:worker(There),
    ?assertEqual({acquired, 2}, test_nodes:order(Local, fun() -> canal_lock:acquire(db, 2, 1) end)),
    ?assertEqual(full, test_nodes:order(Local, fun() -> canal_lock:acquire(db, 2, 1) end)),
    ?assertEqual(2, test_remote:count(There, db)),
    test_remote:resume_manager(There),
    ?assertEqual({acquired, 3}, test_await:answer(Waiting)).

leaves_nothing_behind([There, Here | _]) ->
    {_, Pid} = Holder = test_nodes:worker(Here),
    Name = test_nodes:name(There),
    Cycles = fun() ->
        lists:foreach(fun(N) ->
            [{acquired, _} = canal_lock:acquire_on(Name, Key, 2, 1) || Key <- [db, {app, N}, db]],
            full = canal_lock:acquire_on(Name, db, 2, 1),
            [ok = canal_lock:release_on(Name, Key) || Key <- [db, db, {app, N}]],
            {error, not_held} = canal_lock:release_on(Name, db)
        end, lists:seq(1, ?CYCLES)),
        process_info(self(), [messages, message_queue_len])
    end,
    Before = monitors(Holder),
    NoMessages = [{messages, []}, {message_queue_len, 0}],
    ?assertEqual(NoMessages, test_nodes:order(Holder, Cycles)),
    ?assertMatch([{Pid, _}], test_remote:proxies(There)),
    test_remote:nothing_is_left(There),
    test_await:value(Before, fun() -> monitors(Holder) end),
    %% While a permit is held, exactly one process monitors the holder.
    {acquired, 1} = test_remote:acquire(Holder, There, held),
    [{Pid, Proxy}] = test_remote:proxies(There),
    ?assertEqual(NoMessages, test_nodes:order(Holder, Cycles)),
    ?assertEqual([{Pid, Proxy}], test_remote:proxies(There)),
    test_await:value([Proxy], fun() -> hd([Monitors || {monitored_by, Monitors} <- monitors(Holder)]) end),
    ?assertEqual(ok, test_remote:release(Holder, There, held)),
    test_remote:nothing_is_left(There),
    ?assertEqual({message_queue_len, 0}, test_nodes:call(There, fun() ->
        process_info(whereis(canal_lock), message_queue_len)
    end)).

idle([There, Here | _]) ->
    test_nodes:call(There, fun() -> application:set_env(canal_lock, proxy_idle_ms, 50) end),
    Holder = test_nodes:worker(Here),
    {acquired, 1} = test_remote:acquire(Holder, There, db),
    Proxy = test_remote:proxy(Holder, There),
    ok = test_remote:release(Holder, There, db),
    ?assertEqual(normal, test_nodes:call(There, fun() ->
        test_await:reason({Proxy, monitor(process, Proxy)})
    end)),
    ?assertEqual(none, test_remote:proxy(Holder, There)),
    test_nodes:call(There, fun() -> application:unset_env(canal_lock, proxy_idle_ms) end).

%% The proxy counts each of the permits, so it does not exit after its idle time.
kept_after_a_wait([There, Here | _]) ->
    Name = test_nodes:name(There),
    Local = test_nodes:worker(There),
    {acquired, 3} = test_nodes:order(Local, fun() -> canal_lock:acquire(db, 3, 1, #{permits => 3}) end),
    Holder = test_nodes:worker(Here),
    Wait = fun() -> canal_lock:acquire_on(Name, db, 3, 1, #{permits => 3, timeout_ms => infinity}) end,
    Sent = test_nodes:send_order(Holder, Wait),
    test_nodes:call(There, fun() -> test_await:value(1, fun() -> canal_lock:waiting(db) end) end),
    ok = test_nodes:order(Local, fun() -> canal_lock:release(db, #{permits => 3}) end),
    ?assertEqual({acquired, 3}, test_await:answer(Sent)),
    Proxy = test_remote:proxy(Holder, There),
    ?assertEqual(ok, test_remote:release(Holder, There, db)),
    test_nodes:call(There, fun() ->
        Proxy ! timeout,
        _ = sys:get_state(Proxy),
        ok
    end),
    ?assertEqual(2, test_remote:count(There, db)),
    ?assertEqual(ok, test_nodes:order(Holder, fun() -> canal_lock:release_on(Name, db, #{permits => 2}) end)),
    test_remote:nothing_is_left(There).

monitors({Node, Pid}) ->
    test_nodes:call(Node, fun() -> process_info(Pid, [monitors, monitored_by, links]) end).

%% The processes that have a proxy.
represented(There) ->
    [Holder || {Holder, _} <- test_remote:proxies(There)].

connection_lost([There, Here, Elsewhere]) ->
    Name = test_nodes:name(There),
    {_, Pid} = Holder = test_nodes:worker(Here),
    {_, Other} = Unaffected = test_nodes:worker(Elsewhere),
    [{acquired, _} = test_remote:acquire(Worker, There, db) || Worker <- [Holder, Unaffected, Holder]],
    {acquired, 1} = test_remote:acquire(Holder, There, app),
    test_nodes:cut(Here, There),
    test_remote:await_count(There, db, 1),
    test_remote:await_count(There, app, 0),
    test_await:value([Other], fun() -> represented(There) end),
    ?assertEqual(
        {exit, {{nodedown, Name}, {canal_lock, acquire_on, [Name, db, 3, 1]}}},
        test_remote:acquire(Holder, There, db)
    ),
    ?assertEqual(
        {exit, {{nodedown, Name}, {canal_lock, release_on, [Name, db]}}},
        test_remote:release(Holder, There, db)
    ),
    test_nodes:connect(Here, There),
    ?assertEqual({error, not_held}, test_remote:release(Holder, There, db)),
    Again = [test_remote:acquire(Holder, There, db) || _ <- [1, 2, 3]],
    ?assertEqual([{acquired, 2}, {acquired, 3}, full], Again),
    ?assertEqual(lists:sort([Pid, Other]), lists:sort(represented(There))),
    %% The other node disconnects. With automatic connections, the next call reconnects.
    test_nodes:cut(There, Here),
    test_remote:await_count(There, db, 1),
    test_nodes:connect_by_themselves(Here, true),
    ?assertEqual({acquired, 2}, test_remote:acquire(Holder, There, db)),
    ok = test_nodes:kill_worker(Holder),
    test_remote:await_count(There, db, 1),
    ?assertEqual(ok, test_remote:release(Unaffected, There, db)),
    test_remote:nothing_is_left(There),
    ?assertMatch(#{released_by_death := 6, released := 1}, test_remote:info(There)).

%% A process in place of the manager answers that it is out of memory.
raised([_, Here, Elsewhere]) ->
    [?assertEqual({error, system_limit}, Answer) || Answer <- answered_by({raise, system_limit}, Here, Elsewhere)].

%% What remote calls return or raise if a process in place of the manager answers this. That process survives.
answered_by(Reply, Here, Elsewhere) ->
    {_, Pid} = Server = test_nodes:worker(Elsewhere),
    test_nodes:order(Server, fun() -> register(canal_lock, self()) end),
    Holder = test_nodes:worker(Here),
    Answers = lists:map(fun({Function, Arguments}) ->
        _ = test_nodes:send_order(Server, fun() ->
            receive {'$gen_call', From, _} -> gen_server:reply(From, Reply) end
        end),
        Call = fun() -> apply(canal_lock, Function, [test_nodes:name(Elsewhere) | Arguments]) end,
        test_nodes:order(Holder, fun() -> test_remote:attempt(Call) end)
    end, [{acquire_on, [db, 3, 1]}, {release_on, [db]}]),
    ?assert(test_nodes:call(Elsewhere, fun() -> is_process_alive(Pid) end)),
    Answers.

forged([There, Here, Elsewhere]) ->
    {_, Pid} = Holder = test_nodes:worker(Here),
    {acquired, 1} = test_remote:acquire(Holder, There, db),
    Proxy = test_remote:proxy(Holder, There),
    %% Only a process of the holder's node may request a proxy, and send requests to it.
    Local = test_nodes:worker(There),
    Far = test_nodes:worker(Elsewhere),
    Manager = {canal_lock, test_nodes:name(There)},
    Port = test_nodes:call(Here, fun() -> hd(erlang:ports()) end),
    ?assertEqual({error, unknown_call}, asked(Local, Manager, {proxy, 4, Pid})),
    [
        ?assertEqual({Worker, {raise, version_mismatch}}, {Worker, asked(Worker, Manager, {proxy, 4, Other})})
     || {Worker, Other} <- [{Far, Pid}, {Holder, element(2, Far)}, {Holder, Port}, {Holder, test_nodes:name(Here)}]
    ],
    Requests = [acquiring(db, 3, 1), {release, db, 1}],
    [
        ?assertEqual({Request, {error, unknown_call}}, {Request, asked(Worker, Proxy, {Named, Request})})
     || {Worker, Named} <- [{Local, Pid}, {Far, Pid}, {Far, element(2, Far)}, {Holder, self()}], Request <- Requests
    ],
    [?assertEqual({error, unknown_call}, asked(Holder, Proxy, Request)) || Request <- [nonsense | Requests]],
    Wrong =
        [acquiring(k, MaxPer, Buckets) || {MaxPer, Buckets} <- [{-1, 1}, {1, x}, {1.0, 1}]] ++
            [{release, db, Permits} || Permits <- [0, -1, x]],
    [?assertEqual({Request, {raise, badarg}}, {Request, asked(Holder, Proxy, {Pid, Request})}) || Request <- Wrong],
    [
        ?assertEqual({Request, {raise, version_mismatch}}, {Request, asked(Holder, Proxy, {Pid, Request})})
     || Request <- [{acquire, k, 1}, {acquire, k, 3, 1}, {release, db}]
    ],
    test_nodes:call(There, fun() ->
        Proxy ! nonsense,
        Proxy ! {'DOWN', make_ref(), process, Pid, noproc},
        gen_server:cast(Proxy, nonsense)
    end),
    ?assertEqual({acquired, 2}, asked(Holder, Proxy, {Pid, acquiring(db, 3, 1)})),
    ?assertEqual([{Pid, Proxy}], test_remote:proxies(There)),
    ?assertEqual([0, 2], [test_remote:count(There, Key) || Key <- [k, db]]),
    ok = test_nodes:kill_worker(Holder),
    test_remote:nothing_is_left(There).

acquiring(Key, MaxPer, Buckets) ->
    {acquire, Key, MaxPer, Buckets, canal_lock_wait:options(0)}.

asked(Worker, Server, Request) ->
    test_nodes:order(Worker, fun() -> gen_server:call(Server, Request) end).

%% The requests of other versions, the first of which had no proxies, and the answer that its manager gives to unknown
%% requests.
versions([There, Here, Elsewhere]) ->
    Holder = test_nodes:worker(Here),
    {_, Pid} = Holder,
    Manager = {canal_lock, test_nodes:name(There)},
    [
        ?assertEqual({Request, {raise, version_mismatch}}, {Request, asked(Holder, Manager, Request)})
     || Request <- [{acquire, Pid, Pid, {db, 3, 1}}, {confirm, Pid, Pid}, {release, db}, {proxy, 3}, {proxy, 5, Pid}]
    ],
    Answers = answered_by({error, unknown_call}, Here, Elsewhere),
    ?assertEqual([{error, version_mismatch}, {error, version_mismatch}], Answers),
    ?assertMatch(#{granted := 0, not_held := 0}, test_remote:info(There)).

exits([There, Here, Elsewhere]) ->
    Holder = test_nodes:worker(Here),
    Call = fun(Node) ->
        test_nodes:order(Holder, fun() ->
            {exit, Reason} = test_remote:attempt(fun() -> canal_lock:acquire_on(Node, db, 3, 1) end),
            {exit, Reason1} = test_remote:attempt(fun() -> canal_lock:release_on(Node, db) end),
            {Reason, Reason1}
        end)
    end,
    Exits = fun(Node, Reason) ->
        {{Reason, {canal_lock, acquire_on, [Node, db, 3, 1]}}, {Reason, {canal_lock, release_on, [Node, db]}}}
    end,
    Unknown = 'nobody@127.0.0.1',
    lists:foreach(fun(ByThemselves) ->
        test_nodes:connect_by_themselves(Here, ByThemselves),
        ?assertEqual(Exits(Unknown, {nodedown, Unknown}), Call(Unknown))
    end, [false, true]),
    Without = test_nodes:name(Elsewhere),
    ?assertEqual(Exits(Without, noproc), Call(Without)),
    %% The manager is killed while a call waits for it.
    Name = test_nodes:name(There),
    test_remote:suspend_manager(There),
    Waiting = test_remote:send_acquire(Holder, There, db),
    test_remote:await_request(There),
    test_remote:kill_manager(There),
    ?assertEqual({exit, {killed, {canal_lock, acquire_on, [Name, db, 3, 1]}}}, test_await:answer(Waiting)),
    ?assertEqual([{messages, []}], test_nodes:order(Holder, fun() -> process_info(self(), [messages]) end)).

nodes_end([There]) ->
    lists:foreach(fun(End) ->
        Here = test_nodes:start(),
        test_nodes:connect(Here, There),
        [{acquired, _} = test_remote:acquire(test_nodes:worker(Here), There, Key) || Key <- [db, app, db]],
        3 = length(test_remote:proxies(There)),
        ok = End(Here),
        test_remote:nothing_is_left(There)
    end, [fun test_nodes:stop/1, fun test_nodes:kill/1]).
