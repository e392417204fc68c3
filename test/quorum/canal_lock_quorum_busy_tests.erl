%% Frames on busy connections: of a node that has sent another one more than it can take. A test suspends the receiving
%% node and fills the connection. When the node is resumed, the frames must arrive without the time that an agent waits
%% for an answer.
-module(canal_lock_quorum_busy_tests).

-include_lib("eunit/include/eunit.hrl").

-import(test_nodes, [call/2, worker/1, order/2, send_order/2]).

%% An agent waits for an answer for a tenth of the lease, and the tests wait less.
-define(LEASE_MS, 40_000).
-define(SOON_MS, 2500).

-define(LONG_MS, 60_000).

%% The size of a message that keeps a connection busy: more than the buffers of TCP take.
-define(BYTES, 64_000_000).

busy_test_() ->
    Options = fun(_, Nodes) ->
        (test_quorum_cluster:options(Nodes))#{lease_ms := ?LEASE_MS}
    end,
    test_quorum_cluster:tests(2, [], Options, [
        {"a request on a busy connection arrives when the connection is free", fun request/1},
        {"an answer on a busy connection arrives when the connection is free", fun answer/1},
        {"a node that shuts down sends its unlocks on a busy connection", fun farewell/1}
    ]).

frames_test_() ->
    test_nodes:tests(2, [], [
        {"a busy connection delivers the first and the last of several frames, in this order", fun first_and_last/1},
        {"frames for a disconnected node are dropped", fun disconnected/1}
    ]).

request([A, B]) ->
    Holder = quiet(A),
    {Suspension, Watcher} = fill(A, B),
    Asked = send_order(Holder, fun() -> canal_lock_quorum:lock(x, ?SOON_MS) end),
    ok = await_send(batch, Watcher),
    ok = test_nodes:resume(Suspension),
    ?assertMatch({ok, _}, test_await:answer(Asked)).

%% The voter reads the request when the connection is busy.
answer([A, B]) ->
    Holder = quiet(A),
    ok = call(B, fun() -> sys:suspend(canal_lock_quorum_voter) end),
    Asked = send_order(Holder, fun() -> canal_lock_quorum:lock(x, ?SOON_MS) end),
    call(B, fun() -> test_await:value(true, fun() -> unread(canal_lock_quorum_voter) > 0 end) end),
    {Suspension, Watcher} = fill(B, A),
    ok = call(B, fun() -> sys:resume(canal_lock_quorum_voter) end),
    ok = await_send(ack, Watcher),
    ok = test_nodes:resume(Suspension),
    ?assertMatch({ok, _}, test_await:answer(Asked)).

%% The voter of the other node must get the unlock of the lock.
farewell([A, B]) ->
    Holder = quiet(A),
    {ok, _} = test_quorum_cluster:lock(Holder, x, ?LONG_MS),
    {Suspension, Watcher} = fill(A, B),
    Stopping = spawn_monitor(fun() -> exit(test_quorum_cluster:stop(A)) end),
    ok = await_send(batch, Watcher),
    ok = test_nodes:resume(Suspension),
    ?assertEqual(ok, test_await:reason(Stopping)),
    call(B, fun() ->
        test_await:value(true, fun() -> maps:get(empty, canal_lock_quorum_voter:state()) end, ?SOON_MS)
    end).

%% A worker of a node whose agent waits for no answer and sends no heartbeat during the test: the last batch, an unlock,
%% has just been answered by both members.
quiet(Node) ->
    Worker = worker(Node),
    {ok, _} = test_quorum_cluster:lock(Worker, quiet, ?LONG_MS),
    ok = test_quorum_cluster:unlock(Worker, quiet),
    Worker.

unread(Name) ->
    {message_queue_len, Count} = process_info(whereis(Name), message_queue_len),
    Count.

%% Makes a connection busy by suspending its receiver. Returns a worker of the sender that learns of each frame that the
%% agent and the voter send from then on.
fill(From, To) ->
    Suspension = test_nodes:suspend(To),
    Watcher = worker(From),
    Name = test_nodes:name(To),
    order(Watcher, fun() ->
        make_busy(Name),
        {module, _} = code:ensure_loaded(canal_lock_quorum_wire),
        _ = erlang:trace_pattern({canal_lock_quorum_wire, send, '_'}, true, [global]),
        Senders = [canal_lock_quorum_agent, canal_lock_quorum_voter],
        [1 = erlang:trace(whereis(Sender), true, [call]) || Sender <- Senders]
    end),
    {Suspension, {Watcher, Name}}.

make_busy(Name) ->
    Bytes = binary:copy(<<0>>, ?BYTES),
    test_await:value(nosuspend, fun() -> erlang:send({unregistered, Name}, Bytes, [nosuspend]) end).

%% Until the node tries to send a frame of this kind to the suspended node.
await_send(Kind, {Watcher, Name}) ->
    order(Watcher, fun() ->
        receive {trace, _, call, {_, send, [{send, Kind, Name, _, _, _} | _]}} -> ok end
    end).

%%% The module that sends

first_and_last([A, B]) ->
    Receiver = receiver(B),
    Sender = worker(A),
    Suspension = test_nodes:suspend(B),
    Name = test_nodes:name(B),
    order(Sender, fun() ->
        make_busy(Name),
        put(sending, lists:foldl(fun(Frame, Sending) -> send(Name, Frame, Sending) end, #{}, [<<1>>, <<2>>, <<3>>]))
    end),
    ok = test_nodes:resume(Suspension),
    order(Sender, fun() ->
        ok = await_sent(get(sending)),
        {canal_lock_quorum_voter, Name} ! last,
        ok
    end),
    ?assertEqual([<<1>>, <<3>>], order(Receiver, fun frames/0)).

%% Also of those that wait.
disconnected([A, B]) ->
    Receiver = receiver(B),
    Suspension = test_nodes:suspend(B),
    Name = test_nodes:name(B),
    test_nodes:connect_by_themselves(A, true),
    order(worker(A), fun() ->
        make_busy(Name),
        Sending = send(Name, <<2>>, send(Name, <<1>>, #{})),
        true = erlang:disconnect_node(Name),
        ok = await_sent(Sending),
        ?assertEqual(#{}, send(Name, <<3>>, #{})),
        ?assertEqual([], nodes())
    end),
    ok = test_nodes:resume(Suspension),
    test_nodes:connect_by_themselves(A, false),
    test_nodes:connect(A, B),
    order(worker(A), fun() -> {canal_lock_quorum_voter, Name} ! last, ok end),
    ?assertEqual([], order(Receiver, fun frames/0) -- [<<1>>]).

%% A worker under the name of the voter.
receiver(Node) ->
    Receiver = worker(Node),
    order(Receiver, fun() -> true = register(canal_lock_quorum_voter, self()) end),
    Receiver.

frames() ->
    receive
        last -> [];
        {canal_lock_quorum, {17, 18}, _, Frame} -> [Frame | frames()]
    end.

send(Name, Frame, Sending) ->
    canal_lock_quorum_wire:send({send, batch, Name, 17, 18, Frame}, Sending).

await_sent(Sending) when map_size(Sending) =:= 0 ->
    ok;
await_sent(Sending) ->
    ?assertEqual(1, map_size(Sending)),
    receive
        {{sent, Key}, _, process, _, _} ->
            await_sent(canal_lock_quorum_wire:sent(Key, Sending))
    end.
