%% Nodes on this machine, for tests, the cluster demo and the cluster benchmark. The VM that starts them controls them
%% over their standard input and output. So it need not be a node, and it keeps control of nodes that are disconnected
%% from each other. The nodes end when that VM ends.
%%
%% They connect when a test orders it, and by themselves only where a test allows it.
-module(test_nodes).

-export([tests/3, start/0, start/1, start/2, start/3, boot/1, restart/2]).
-export([stop/1, kill/1, shut_down/1, suspend/1, resume/1]).
-export([name/1, is_alive/1, call/2, call/3, call_all/2]).
-export([connect/2, introduce/1, cut/2, separate/2, connect_by_themselves/2]).
-export([worker/1, order/2, send_order/2, send/2, kill_worker/1, kill_workers/1]).

-export_type([a_node/0, worker/0, suspension/0]).

-type a_node() :: {Peer :: pid(), node()}.
-type worker() :: {a_node(), pid()}.
-opaque suspension() :: port().

%% The limit for a call that hangs.
-define(TIMEOUT_MS, 300_000).

%% The process of a node that is linked to all workers of the node.
-define(KEEPER, canal_lock_nodes_keeper).

-define(HOST, "127.0.0.1").

%% Stops an operating system process, which takes milliseconds on a busy machine. Continues it when standard input is
%% closed, which also happens when the VM that ordered this ends.
-define(SUSPEND,
    "kill -STOP \"$0\" || exit 1; "
    "while [ -r /proc/$0/status ] && ! grep -q '^State:.T' /proc/$0/status; do :; done; "
    "echo stopped; read -r _; kill -CONT \"$0\" 2>/dev/null"
).

%% Tests on this many nodes that are started with these arguments and connected with each other. Each test gets the list
%% of nodes. After each test its workers are killed. A test that fails when the machine stalls runs again.
-spec tests(pos_integer(), [string()], [{Title :: string(), fun(([a_node()]) -> term())}]) -> term().
tests(Count, Arguments, Tests) ->
    Start = fun() -> [start(Arguments) || _ <- lists:seq(1, Count)] end,
    {setup, Start, fun(Nodes) -> [stop(Node) || Node <- Nodes] end, fun(Nodes) ->
        [
            {timeout, test_setup:timeout_s(), {Title, fun() -> test_stalls:again(fun() -> run(Test, Nodes) end) end}}
         || {Title, Test} <- Tests
        ]
    end}.

run(Test, Nodes) ->
    [connect(One, Other) || One <- Nodes, Other <- Nodes, One < Other],
    try
        Test(Nodes)
    after
        [kill_workers(Node) || Node <- Nodes],
        [connect_by_themselves(Node, false) || Node <- Nodes]
    end.

-spec start() -> a_node().
start() ->
    start([]).

%% With additional command-line arguments.
-spec start([string()]) -> a_node().
start(Arguments) ->
    start(peer:random_name(canal_lock), Arguments).

-spec start(Name :: string() | atom(), [string()]) -> a_node().
start(Name, Arguments) ->
    start(Name, Arguments, #{}).

%% With further options of `peer'.
-spec start(Name :: string() | atom(), [string()], map()) -> a_node().
start(Name, Arguments, Options) ->
    Silent = ["-connect_all", "false", "-kernel", "dist_auto_connect", "never", "-kernel", "logger_level", "none"],
    boot(Options#{name => Name, args => Silent ++ test_epmd:arguments() ++ Arguments}).

%% With exactly these options of `peer', apart from those that all nodes need.
-spec boot(map()) -> a_node().
boot(Options = #{args := Arguments}) ->
    %% Nodes inherit it, and keep their state files there, not in the folder of the user.
    true = os:putenv("XDG_DATA_HOME", data_home()),
    Paths = [Path || Path <- code:get_path(), filelib:is_dir(Path)],
    Defaults = #{host => ?HOST, longnames => true, connection => standard_io, wait_boot => ?TIMEOUT_MS},
    {ok, Peer, Name} = peer:start(
        maps:merge(Defaults, Options#{args := ["-setcookie", "canal_lock"] ++ Arguments ++ ["-pa" | Paths]})
    ),
    call({Peer, Name}, fun start_keeper/0),
    {Peer, Name}.

%% For the state files of nodes: in memory, if scripts/eunit.sh says where. Benchmarks and demos use a disk.
data_home() ->
    Folder = os:getenv("CANAL_LOCK_TEST_DATA", os:getenv("TMPDIR", "/tmp")),
    filename:join(Folder, "canal_lock_tests_" ++ os:getpid()).

%% Starts a dead node again under its name. It knows no other node, and no other node knows its port.
-spec restart(a_node(), [string()]) -> a_node().
restart({_, Name}, Arguments) ->
    start(hd(string:split(atom_to_list(Name), "@")), Arguments).

-spec stop(a_node()) -> ok.
stop(Node = {Peer, Name}) ->
    _ = is_alive(Node) andalso peer:stop(Peer),
    _ = [file:delete(File) || File <- filelib:wildcard(filename:join([data_home(), "*", atom_to_list(Name) ++ "*"]))],
    %% After the last node.
    _ = [file:del_dir(Folder) || Folder <- [filename:join(data_home(), "canal_lock"), data_home()]],
    ok.

%% Sends SIGKILL, also to a node that is suspended. Returns when the node is dead.
-spec kill(a_node()) -> ok.
kill(Node) ->
    ended(Node, fun() -> [] = os:cmd("kill -9 " ++ os_process(Node)) end).

%% The node shuts down cleanly. Returns when the node is dead.
-spec shut_down(a_node()) -> ok.
shut_down(Node) ->
    ended(Node, fun() -> ok = call(Node, fun init:stop/0) end).

ended({Peer, _}, End) ->
    Monitor = monitor(process, Peer),
    _ = End(),
    _ = test_await:reason({Peer, Monitor}),
    ok.

%% Stops the operating system process of a node until `resume/1', or until the caller ends. When it returns the node is
%% stopped.
-spec suspend(a_node()) -> suspension().
suspend(Node) ->
    Port = open_port({spawn_executable, "/bin/sh"}, [{args, ["-c", ?SUSPEND, os_process(Node)]}, {line, 80}]),
    receive {Port, {data, {eol, "stopped"}}} -> Port end.

%% It is already resumed if the process that suspended it has ended.
-spec resume(suspension()) -> ok.
resume(Port) ->
    _ = [port_close(Port) || erlang:port_info(Port) =/= undefined],
    ok.

%% Without asking the node, which may be suspended. The programs that start a VM replace themselves by it.
os_process({Peer, _}) ->
    {links, Links} = process_info(Peer, links),
    [Process] = [Process || Port <- Links, is_port(Port), {os_pid, Process} <- [erlang:port_info(Port, os_pid)]],
    integer_to_list(Process).

-spec name(a_node()) -> node().
name({_, Name}) ->
    Name.

-spec is_alive(a_node()) -> boolean().
is_alive({Peer, _}) ->
    is_process_alive(Peer).

%% Calls a function on the node, in a process that ends after the call.
-spec call(a_node(), fun(() -> Answer)) -> Answer.
call(Node, Fun) ->
    call(Node, Fun, ?TIMEOUT_MS).

-spec call(a_node(), fun(() -> Answer), Within_ms :: pos_integer()) -> Answer.
call({Peer, _}, Fun, Within_ms) ->
    peer:call(Peer, erlang, apply, [Fun, []], Within_ms).

%% On all nodes at the same time.
-spec call_all([a_node()], fun(() -> Answer)) -> [Answer].
call_all(Nodes, Fun) ->
    test_await:in_parallel(fun(Node) -> call(Node, Fun, ?TIMEOUT_MS) end, Nodes).

-spec connect(a_node(), a_node()) -> ok.
connect(One, Other) ->
    introduce([One, Other]),
    Name = name(Other),
    true = call(One, fun() -> net_kernel:connect_node(Name) end),
    await_connected(One, Other, true).

%% Each of these nodes learns the ports of the others.
-spec introduce([a_node()]) -> ok.
introduce(Nodes) ->
    Ports = [{Name, call(Node, fun test_epmd:port/0)} || Node = {_, Name} <- Nodes],
    Introduce = fun() -> [test_epmd:set_port(Name, Port) || {Name, Port} <- Ports, Name =/= node()] end,
    lists:foreach(fun(Node) -> call(Node, Introduce) end, Nodes).

%% Disconnects them. They may connect again.
-spec cut(a_node(), a_node()) -> ok.
cut(One, Other) ->
    Name = name(Other),
    _ = call(One, fun() -> erlang:disconnect_node(Name) end),
    await_connected(One, Other, false).

%% Disconnects them until they are introduced again.
-spec separate(a_node(), a_node()) -> ok.
separate(One, Other) ->
    _ = [call(Node, fun() -> test_epmd:forget(Name) end) || {Node, {_, Name}} <- [{One, Other}, {Other, One}]],
    cut(One, Other).

await_connected(One, Other, Whether) ->
    _ = [
        call(Node, fun() -> test_await:value(Whether, fun() -> lists:member(Name, nodes(connected)) end) end)
     || {Node, {_, Name}} <- [{One, Other}, {Other, One}]
    ],
    ok.

%% Whether the node connects when it has a message to send, as nodes do by default.
-spec connect_by_themselves(a_node(), boolean()) -> ok.
connect_by_themselves(Node, true) ->
    call(Node, fun() -> application:unset_env(kernel, dist_auto_connect) end);
connect_by_themselves(Node, false) ->
    call(Node, fun() -> application:set_env(kernel, dist_auto_connect, never) end).

%% A process of the node that executes orders, as those of test_worker.
-spec worker(a_node()) -> worker().
worker(Node) ->
    Start = fun() ->
        Ref = make_ref(),
        ?KEEPER ! {start, self(), Ref},
        test_await:answer(Ref)
    end,
    {Node, call(Node, Start)}.

-spec order(worker(), fun(() -> Answer)) -> Answer.
order({Node, Pid}, Order) ->
    call(Node, fun() -> test_worker:order(Pid, Order) end).

%% The answer arrives as the message `{Ref, Answer}', or `{Ref, none}' if the worker dies first.
-spec send_order(worker(), fun(() -> term())) -> Ref :: reference().
send_order(Worker, Order) ->
    Test = self(),
    Ref = make_ref(),
    _ = spawn_link(fun() -> Test ! {Ref, answer(Worker, Order)} end),
    Ref.

answer(Worker, Order) ->
    try
        order(Worker, Order)
    catch
        _:_ -> none
    end.

%% A message to a worker that executes an order.
-spec send(worker(), term()) -> ok.
send({Node, Pid}, Message) ->
    _ = call(Node, fun() -> Pid ! Message end),
    ok.

-spec kill_worker(worker()) -> ok.
kill_worker({Node, Pid}) ->
    call(Node, fun() -> test_worker:kill(Pid) end).

%% All workers of a node, if the node is alive.
-spec kill_workers(a_node()) -> ok.
kill_workers(Node) ->
    is_alive(Node) andalso
        call(Node, fun() ->
            Workers = [Pid || {links, Linked} <- [process_info(whereis(?KEEPER), links)], Pid <- Linked],
            test_worker:kill(Workers)
        end),
    ok.

start_keeper() ->
    Test = self(),
    Ref = make_ref(),
    _ = spawn(fun() ->
        true = register(?KEEPER, self()),
        process_flag(trap_exit, true),
        Test ! {Ref, started},
        keep()
    end),
    started = test_await:answer(Ref),
    ok.

%% The links are the list of workers. Each worker monitors the keeper and ends with it.
keep() ->
    receive
        {start, From, Ref} ->
            Worker = test_worker:start(),
            link(Worker),
            From ! {Ref, Worker},
            keep();
        {'EXIT', _, _} ->
            keep()
    end.
