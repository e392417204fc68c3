%% Clients: nodes that lock without being members, on real nodes. native/quorum/tests/all/scenarios/clients.rs has the
%% same rules step by step.
-module(canal_lock_quorum_clients_tests).

-include_lib("eunit/include/eunit.hrl").

-import(test_nodes, [call/2, worker/1, order/2, send_order/2]).
-import(test_quorum_cluster, [members/1, lock/3, rlock/3, held/2, unlock/2, await_status/3]).
-import(test_quorum_cluster, [messages_until_lost/2]).

-define(LONG_MS, 60_000).
-define(MEMBERS, 3).

cluster_test_() ->
    tests(#{}, #{}, [
        {"Q1, Q5: members and clients lock one after the other, and fences grow", fun in_turn/1},
        {"a client locks for reading, and several names", fun modes/1},
        {"a client that is killed during a lock unlocks it", fun holder_killed/1},
        {"status/0 of a member has the clients, that of a client none", fun status/1},
        {"locks/0, holder/1 and waiting/1 find clients, on all nodes", fun inspection/1},
        {"force_unlock/1 revokes the lock of a client, also by a client", fun force/1},
        {"a client stops, and its locks are free at once", fun stopped/1},
        {"a client whose agent was killed gets the names back after a round trip", fun agent_killed/1},
        {"a voter that restarts while there are guests waits for a lease, and keeps their locks", fun voter_restarts/1},
        {"a member whose file is lost comes back, and the lock of a client stays held", fun file_lost/1},
        {"a voter stores that there are no guests, and again that there are some", fun guests_end/1},
        {"locks/0 does not ignore members that may know more clients", fun unknown_clients/1},
        {"a client that is disconnected loses its lock in time, and the others get it", fun disconnected/1},
        {"bytes that are no frame, from a client, change nothing", fun bad_frames/1},
        {"a client that hangs delays no one, loses its lock in time, and locks again", fun hangs/1},
        {"a client that disappears while it sends long frames delays no one", fun vanishes/1}
    ]).

%% With leases that do not end during the test.
long_leases_test_() ->
    tests(#{lease_ms => 70_000}, #{lease_ms => 70_000}, [
        {"a client that was killed and is back gets its names after a round trip", fun is_back/1},
        {"requests of a client that is disconnected do not wait at a voter", fun disconnected_waiter/1}
    ]).

refused_test_() ->
    [
        tests(#{clients => none}, #{await => none}, [{"members may allow no clients", fun not_allowed/1}]),
        tests(#{clients => [other@host]}, #{await => none}, [
            {"only named clients are allowed", fun not_allowed/1}
        ]),
        tests(#{}, #{lease_ms => 2000}, [{"a client takes the lease of the members", fun other_options/1}]),
        tests(#{}, #{missing => true}, [{"a client learns of members from others", fun other_options/1}])
    ].

%% Three members and two clients. `Changes' to the options of members; `Setup' of the clients.
tests(Changes, Setup, Tests) ->
    test_nodes:tests(?MEMBERS + 2, [], [
        {Title, fun(Nodes) -> run(Nodes, Changes, Setup, Test) end}
     || {Title, Test} <- Tests
    ]).

run(Nodes, Changes, Setup, Test) ->
    {Members, Clients} = lists:split(?MEMBERS, Nodes),
    Folder = canal_lock_quorum_state_file_tests:folder(),
    Options = maps:from_list(
        [{Node, member_options(Node, Members, Folder, Changes)} || Node <- Members] ++
            [{Node, client_options(Members, Setup)} || Node <- Clients]
    ),
    test_nodes:introduce(Nodes),
    put(options, Options),
    try
        [start(Node) || Node <- Nodes],
        ok = test_quorum_cluster:await_voting(Members),
        _ = [ok = test_quorum_cluster:await_voting(Clients) || not is_map_key(await, Setup)],
        Test({Members, Clients}),
        [test_nodes:kill_workers(Node) || Node <- Nodes],
        test_quorum_cluster:await_empty(Nodes)
    after
        [test_quorum_cluster:stop(Node) || Node <- lists:reverse(Nodes)],
        %% The last write of a voter that was stopped may still be running.
        test_await:value(ok, fun() -> file:del_dir_r(Folder) end)
    end.

member_options(Node, Members, Folder, Changes) ->
    Options = test_quorum_cluster:options(Members),
    maps:merge((maps:remove(clients, Options))#{state_file => state_file(Folder, Node)}, Changes).

client_options(Members, Setup) ->
    Listed = case Setup of #{missing := true} -> tl(Members); _ -> Members end,
    maps:merge(test_quorum_cluster:client_options(Listed), maps:with([lease_ms], Setup)).

start(Node) ->
    test_quorum_cluster:start(Node, maps:get(Node, get(options))).

state_file(Folder, Node) ->
    unicode:characters_to_binary(filename:join(Folder, test_nodes:name(Node))).

%%% Locks

in_turn({[A | _], [X, Y]}) ->
    Workers = [worker(Node) || Node <- [A, X, Y, X]],
    Fences = [
        begin
            {ok, Fence} = lock(Worker, x, ?LONG_MS),
            ?assert(held(Worker, x)),
            ok = Unlock(Worker, x),
            Fence
        end
     || Unlock <- [fun test_quorum_cluster:unlock/2, fun test_quorum_cluster:unlock_async/2], Worker <- Workers
    ],
    ?assertEqual(lists:usort(Fences), Fences),
    %% One after the other while all of them wait.
    _ = [send_order(worker(Node), fun() -> count(20) end) || Node <- [A, X, Y]],
    test_await:value(60, fun() -> call(A, fun() -> persistent_term:get(counted, 0) end) + counted(X) + counted(Y) end).

counted(Node) ->
    call(Node, fun() -> persistent_term:get(counted, 0) end).

count(0) ->
    ok;
count(Left) ->
    {ok, Lock} = canal_lock_quorum:lock(counter, ?LONG_MS),
    persistent_term:put(counted, persistent_term:get(counted, 0) + 1),
    ok = canal_lock_quorum:unlock_async(Lock),
    count(Left - 1).

modes({[A | _], [X, Y]}) ->
    Readers = [worker(Node) || Node <- [A, X, Y]],
    [{ok, _} = rlock(Reader, x, ?LONG_MS) || Reader <- Readers],
    ?assertEqual({error, timeout}, lock(worker(X), x, 50)),
    [ok = unlock(Reader, x) || Reader <- Readers],
    order(worker(X), fun() ->
        {ok, Lock} = canal_lock_quorum:lock_many([p, q, r], ?LONG_MS),
        ?assertEqual({error, timeout}, canal_lock_quorum:lock(q, 50)),
        ok = canal_lock_quorum:unlock(Lock)
    end).

holder_killed({[A | _], [X, _]}) ->
    Holder = {_, Pid} = worker(X),
    {ok, _} = lock(Holder, x, ?LONG_MS),
    call(X, fun() -> exit(Pid, kill) end),
    Next = worker(A),
    {ok, _} = lock(Next, x, ?LONG_MS),
    ok = unlock(Next, x).

stopped({[A | _], [X, _]}) ->
    Holder = worker(X),
    {ok, _} = lock(Holder, x, ?LONG_MS),
    ok = test_quorum_cluster:stop(X),
    ?assertEqual([{lost, x}], messages_until_lost(Holder, x)),
    Next = worker(A),
    {ok, _} = lock(Next, x, lease_ms() div 2),
    ok = unlock(Next, x),
    start(X).

lease_ms() ->
    test_quorum_cluster:lease_ms().

agent_killed({[A | _], [X, _]}) ->
    Holder = worker(X),
    {ok, First} = lock(Holder, x, ?LONG_MS),
    call(X, fun() -> test_quorum_cluster:kill_process(canal_lock_quorum_agent) end),
    ?assertEqual([{lost, x}], messages_until_lost(Holder, x)),
    ?assertNot(held(Holder, x)),
    Next = worker(A),
    {ok, Second} = lock(Next, x, lease_ms() div 2),
    ?assert(Second > First),
    ok = unlock(Next, x).

%%% What shows them

status({[A | _] = Members, [X, Y]}) ->
    [NameX, NameY] = members([X, Y]),
    Holder = worker(X),
    {ok, _} = lock(Holder, x, ?LONG_MS),
    Waiting = worker(Y),
    send_order(Waiting, fun() -> canal_lock_quorum:lock(x, ?LONG_MS) end),
    test_await:value(true, fun() ->
        Statuses = [maps:get(clients, call(Node, fun canal_lock_quorum:status/0)) || Node <- Members],
        Of = fun(Name) -> [Client || Clients <- Statuses, Client = #{node := N} <- Clients, N =:= Name] end,
        length(Of(NameX)) =:= ?MEMBERS andalso
            length([one || #{votes := 1, waiting := 0} <- Of(NameX)]) =:= ?MEMBERS andalso
            [] =/= [one || #{votes := 0, waiting := 1} <- Of(NameY)]
    end),
    ?assert(lists:member(1, [maps:get(queued, call(Node, fun canal_lock_quorum:status/0)) || Node <- Members])),
    #{clients := [#{heard_ms := Heard_ms} | _]} = call(A, fun canal_lock_quorum:status/0),
    ?assert(Heard_ms =< lease_ms()),
    OfClient = call(X, fun canal_lock_quorum:status/0),
    ?assertMatch(#{clients := [], role := client, view := #{number := 0, phase := client}, quorum := true}, OfClient),
    ?assertMatch(#{voting := false, waits_for := [], queued := 0}, OfClient),
    ok = unlock(Holder, x).

inspection({[A, _, C], [X, Y]}) ->
    [Name] = members([X]),
    Holder = {_, Pid} = worker(X),
    {ok, Fence} = lock(Holder, x, ?LONG_MS),
    {_, WaitingPid} = Waiting = worker(Y),
    send_order(Waiting, fun() -> canal_lock_quorum:lock(x, ?LONG_MS) end),
    await_status(Y, waiting, 1),
    lists:foreach(fun(Node) ->
        Asked = fun(Function, Arguments) -> call(Node, fun() -> apply(canal_lock_quorum, Function, Arguments) end) end,
        {[Lock], []} = Asked(holder, [x]),
        ?assertMatch(#{node := Name, holder := Pid, fence := Fence, held := true}, Lock),
        ?assertEqual({[Lock], []}, Asked(locks, [])),
        ?assertMatch({[#{waiter := WaitingPid}], []}, Asked(waiting, [x]))
    end, [A, C, X, Y]),
    ok = unlock(Holder, x).

force({[A | _], [X, Y]}) ->
    lists:foreach(fun({From, Of}) ->
        Holder = worker(Of),
        {ok, _} = lock(Holder, x, ?LONG_MS),
        ?assertEqual(ok, call(From, fun() -> canal_lock_quorum:force_unlock(x) end)),
        ?assertEqual([{lost, x}], messages_until_lost(Holder, x)),
        ?assertNot(held(Holder, x))
    end, [{A, X}, {Y, X}, {X, A}]).

%%% Restarts

voter_restarts({Members, [X, _]}) ->
    Holder = worker(X),
    {ok, _} = lock(Holder, x, ?LONG_MS),
    %% Two voters are enough for the lock. The third one stores that there are guests soon after.
    ok = await_guests(Members, true),
    lists:foreach(fun(Node) ->
        ?assert(has_guests(Node)),
        Begin_ms = erlang:monotonic_time(millisecond),
        ok = test_quorum_cluster:stop(Node),
        ?assertNot(call(Node, fun canal_lock_quorum:ready/0)),
        start(Node),
        ?assertNot(call(Node, fun canal_lock_quorum:ready/0)),
        ok = test_await:value(true, fun() -> call(Node, fun canal_lock_quorum:ready/0) end),
        ?assert(erlang:monotonic_time(millisecond) - Begin_ms >= lease_ms()),
        ?assert(held(Holder, x)),
        ?assertEqual({error, timeout}, lock(worker(hd(Members)), x, 20))
    end, Members),
    ?assert(call(X, fun canal_lock_quorum:ready/0)),
    ok = unlock(Holder, x).

has_guests(Node) ->
    #{Node := #{state_file := File}} = get(options),
    {ok, Content, _} = call(Node, fun() -> canal_lock_quorum_nif:state_read(File, node()) end),
    canal_lock_quorum_state_file_tests:guests(Content).

await_guests(Members, Whether) ->
    test_await:value([Whether || _ <- Members], fun() -> [has_guests(Node) || Node <- Members] end).

guests_end({Members = [A | _], [X, _]}) ->
    [?assertNot(has_guests(Node)) || Node <- Members],
    lists:foreach(fun(Kill) ->
        Holder = worker(X),
        {ok, _} = lock(Holder, x, ?LONG_MS),
        ok = await_guests(Members, true),
        _ = Kill andalso call(A, fun() -> test_quorum_cluster:kill_process(canal_lock_quorum_voter) end),
        ?assert(has_guests(A)),
        ok = test_quorum_cluster:await_voting(Members),
        ?assert(held(Holder, x)),
        ok = unlock(Holder, x),
        ok = await_guests(Members, false)
    end, [false, true]).

file_lost({Members = [A, _, _], [X, _]}) ->
    Holder = worker(X),
    {ok, _} = lock(Holder, x, ?LONG_MS),
    ok = test_quorum_cluster:stop(A),
    #{A := #{state_file := File}} = get(options),
    ok = file:delete(File),
    start(A),
    ok = test_quorum_cluster:await_voting(Members),
    ?assertMatch(#{view := #{number := 1}}, call(A, fun canal_lock_quorum:status/0)),
    ?assert(held(Holder, x)),
    ok = unlock(Holder, x).

%% Two of three voters start, and only they know the client.
unknown_clients({[A, B, C], [X, _]}) ->
    [NameA, NameB] = members([A, B]),
    Holder = worker(X),
    {ok, _} = lock(Holder, x, ?LONG_MS),
    ok = test_quorum_cluster:isolate(X, [C]),
    test_await:value(0, fun() -> length(maps:get(clients, call(C, fun canal_lock_quorum:status/0))) - 1 end),
    %% The voter of A does not answer, and that of B cannot start: it cannot write its file.
    ok = call(A, fun() -> sys:suspend(canal_lock_quorum_voter) end),
    #{B := #{state_file := File}} = get(options),
    ok = test_quorum_cluster:stop(B),
    %% In place of the temporary file of a write.
    Obstacle = <<File/binary, ".new/file">>,
    test_await:value(ok, fun() -> filelib:ensure_dir(Obstacle) end),
    start(B),
    {Locks, Silent} = call(C, fun canal_lock_quorum:locks/0),
    ?assertEqual([], Locks),
    ?assertEqual([], lists:usort([NameA, NameB]) -- Silent),
    ok = file:del_dir(filename:dirname(Obstacle)),
    ok = call(A, fun() -> sys:resume(canal_lock_quorum_voter) end),
    test_nodes:introduce([X, C]),
    ok = test_quorum_cluster:await_voting([A, B, C]),
    _ = unlock(Holder, x),
    ok.

disconnected({Members = [A | _], [X, _]}) ->
    Holder = worker(X),
    {ok, _} = lock(Holder, x, ?LONG_MS),
    ok = test_quorum_cluster:isolate(X, Members),
    Next = worker(A),
    {ok, _} = lock(Next, x, ?LONG_MS),
    ?assertNot(held(Holder, x)),
    ?assertEqual(lost, element(1, lists:last(messages_until_lost(Holder, x)))),
    ok = unlock(Next, x),
    test_nodes:introduce([X | Members]),
    ok = test_quorum_cluster:await_voting([X]),
    {ok, _} = lock(Holder, x, ?LONG_MS),
    ok = unlock(Holder, x).

%%% What is not right

bad_frames({[A | _], [X, _]}) ->
    [Name] = members([A]),
    Holder = worker(X),
    {ok, _} = lock(Holder, x, ?LONG_MS),
    call(X, fun() ->
        [{canal_lock_quorum_voter, Name} ! {canal_lock_quorum, {17, 0}, node(), rand:bytes(Size)}
         || Size <- [0, 1, 10, 1000, 100_000]],
        ok
    end),
    #{clients := [_ | _]} = call(A, fun canal_lock_quorum:status/0),
    ?assert(held(Holder, x)),
    ok = unlock(Holder, x).

%% A third client, which the function may suspend or kill.
with_another(Members, Do) ->
    Node = test_nodes:start(),
    try
        start_another(Node, Members),
        Do(Node)
    after
        test_nodes:stop(Node)
    end.

start_another(Node, Members) ->
    test_nodes:introduce([Node | Members]),
    [Options | _] = [Of || Of = #{voter := false} <- maps:values(get(options))],
    test_quorum_cluster:start(Node, Options),
    ok = test_quorum_cluster:await_voting([Node]).

hangs({Members, [X, _]}) ->
    with_another(Members, fun(Hanging) ->
        Holder = worker(Hanging),
        {ok, _} = lock(Holder, x, ?LONG_MS),
        Suspension = test_nodes:suspend(Hanging),
        not_delayed(X),
        Next = worker(X),
        {ok, _} = lock(Next, x, ?LONG_MS),
        not_delayed(X),
        ok = test_nodes:resume(Suspension),
        ?assertEqual(lost, element(1, lists:last(messages_until_lost(Holder, x)))),
        ?assertNot(held(Holder, x)),
        ?assert(held(Next, x)),
        ok = unlock(Next, x),
        {ok, _} = lock(Holder, x, ?LONG_MS),
        ok = unlock(Holder, x)
    end).

%% No lock takes as long as a lease.
not_delayed(Node) ->
    order(worker(Node), fun() ->
        lists:foreach(fun(I) ->
            {ok, Lock} = canal_lock_quorum:lock({other, I}, lease_ms() div 2),
            ok = canal_lock_quorum:unlock(Lock)
        end, lists:seq(1, 50))
    end).

%% The VM sends a long frame in parts. It is killed after some of them.
vanishes({Members, [X, _]}) ->
    with_another(Members, fun(Vanishing) ->
        lists:foreach(fun(Number) ->
            _ = [send_order(worker(Vanishing), fun() -> lock_many_long({Number, I}) end) || I <- lists:seq(1, 8)],
            not_delayed(X)
        end, [1, 2]),
        ok = test_nodes:kill(Vanishing),
        not_delayed(X)
    end),
    [Name | _] = long_names({1, 1}),
    Next = worker(X),
    {ok, _} = lock(Next, Name, ?LONG_MS),
    ok = unlock(Next, Name),
    [?assertMatch(#{voting := true}, call(Node, fun canal_lock_quorum:status/0)) || Node <- Members].

lock_many_long(Prefix) ->
    {ok, Lock} = canal_lock_quorum:lock_many(long_names(Prefix), ?LONG_MS),
    ok = canal_lock_quorum:unlock_async(Lock),
    lock_many_long(Prefix).

%% 60 kB.
long_names(Prefix) ->
    [{Prefix, I, binary:copy(<<"x">>, 900)} || I <- lists:seq(1, 64)].

is_back({Members, [X, _]}) ->
    with_another(Members, fun(Killed) ->
        {ok, First} = lock(worker(Killed), x, ?LONG_MS),
        ok = test_nodes:kill(Killed),
        Back = test_nodes:restart(Killed, []),
        try
            start_another(Back, Members),
            Next = worker(X),
            {ok, Second} = lock(Next, x, ?LONG_MS),
            ?assert(Second > First),
            ok = unlock(Next, x)
        after
            test_nodes:stop(Back)
        end
    end).

disconnected_waiter({Members = [A, B, C], [X, Y]}) ->
    Holder = worker(Y),
    {ok, _} = lock(Holder, x, ?LONG_MS),
    Ref = send_order(worker(X), fun() -> canal_lock_quorum:lock(x, ?LONG_MS) end),
    [await_status(Node, queued, 1) || Node <- Members],
    ok = test_quorum_cluster:isolate(X, [C]),
    await_status(C, queued, 0),
    [?assertMatch(#{queued := 1}, call(Node, fun canal_lock_quorum:status/0)) || Node <- [A, B]],
    test_nodes:introduce([X | Members]),
    await_status(C, queued, 1),
    ok = unlock(Holder, x),
    ?assertMatch({ok, _}, test_await:answer(Ref)).

not_allowed({Members, [X | _]}) ->
    Listener = worker(X),
    order(Listener, fun() -> test_log_listener:start(warning) end),
    %% It has logged before that it is refused.
    ok = test_quorum_cluster:stop(X),
    start(X),
    ?assertEqual({error, timeout}, lock(worker(X), x, lease_ms())),
    ?assertMatch(#{quorum := false}, call(X, fun canal_lock_quorum:status/0)),
    Names = lists:sort(members(Members)),
    test_await:value(Names, fun() ->
        Events = order(Listener, fun test_log_listener:events/0),
        lists:usort([Node || #{msg := {report, #{what := refused, node := Node}}} <- Events])
    end),
    order(Listener, fun test_log_listener:stop/0),
    [?assertMatch(#{clients := []}, call(Node, fun canal_lock_quorum:status/0)) || Node <- Members],
    Worker = worker(hd(Members)),
    {ok, _} = lock(Worker, x, ?LONG_MS),
    ok = unlock(Worker, x).

other_options({Members, [X, _]}) ->
    Names = lists:sort(members(Members)),
    ?assertMatch(#{view := #{members := Names}}, call(X, fun canal_lock_quorum:status/0)),
    Holder = worker(X),
    {ok, _} = lock(Holder, x, ?LONG_MS),
    #{members := Statuses} = call(X, fun canal_lock_quorum:status/0),
    ?assertEqual([], [Valid_ms || #{valid_ms := Valid_ms} <- Statuses, Valid_ms > lease_ms()]),
    ok = unlock(Holder, x).
