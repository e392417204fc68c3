%% Nodes for tests with more than one: started, asked and stopped by a VM that need not be one of them, over their
%% standard input and output. So a test loses hold of none when the connection between two of them is cut.
%%
%% They connect when a test says so, and by themselves only where it allows it.
-module(test_nodes).

-export([tests/3, start/0, start/1, restart/2, stop/1, kill/1, shut_down/1, name/1, call/2]).
-export([connect/2, introduce/2, cut/2, connect_by_themselves/2]).
-export([worker/1, order/2, send_order/2, kill_worker/1, kill_workers/1]).

-export_type([a_node/0, worker/0]).

-type a_node() :: {Peer :: pid(), node()}.
-type worker() :: {a_node(), pid()}.

%% Nets for what hangs: a test, and one call.
-define(TIMEOUT_S, 120).
-define(TIMEOUT_MS, 60_000).

%% The process of a node that its workers live and die with.
-define(KEEPER, canal_lock_nodes_keeper).

-define(HOST, "127.0.0.1").

%% So long to answer on its way out.
-define(HALT_MS, 5000).

%% Tests on so many nodes with such arguments, connected with each other at first. A test gets a list of them; when it
%% is over, its workers are killed.
-spec tests(pos_integer(), [string()], [{Title :: string(), fun(([a_node()]) -> term())}]) -> term().
tests(Count, Arguments, Tests) ->
    Start = fun() -> [start(Arguments) || _ <- lists:seq(1, Count)] end,
    Timeout_s = test_setup:times(?TIMEOUT_S),
    {setup, Start, fun(Nodes) -> [stop(Node) || Node <- Nodes] end, fun(Nodes) ->
        [{timeout, Timeout_s, {Title, fun() -> run(Test, Nodes) end}} || {Title, Test} <- Tests]
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

%% With further arguments.
-spec start([string()]) -> a_node().
start(Arguments) ->
    boot(peer:random_name(canal_lock), Arguments).

%% One more life of a node that is dead, with the same name. It knows nobody, and nobody knows where it listens.
-spec restart(a_node(), [string()]) -> a_node().
restart({_, Name}, Arguments) ->
    [Short, ?HOST] = string:split(atom_to_list(Name), "@"),
    boot(Short, Arguments).

boot(Short, Arguments) ->
    Paths = [Path || Path <- code:get_path(), filelib:is_dir(Path)],
    {ok, Peer, Name} = peer:start(#{
        name => Short,
        host => ?HOST,
        longnames => true,
        connection => standard_io,
        shutdown => {halt, ?HALT_MS},
        args =>
            ["-setcookie", "canal_lock", "-connect_all", "false", "-kernel", "dist_auto_connect", "never"] ++
                ["-kernel", "logger_level", "none"] ++ test_epmd:arguments() ++ ["-pa" | Paths] ++ Arguments
    }),
    Node = {Peer, Name},
    call(Node, fun start_keeper/0),
    Node.

-spec stop(a_node()) -> ok.
stop({Peer, _}) ->
    case is_process_alive(Peer) of
        true -> peer:stop(Peer);
        false -> ok
    end.

%% The operating system ends it, without any last words.
-spec kill(a_node()) -> ok.
kill(Node = {Peer, _}) ->
    Process = call(Node, fun os:getpid/0),
    Monitor = monitor(process, Peer),
    [] = os:cmd("kill -9 " ++ Process),
    _ = test_await:reason({Peer, Monitor}),
    ok.

%% It ends in order, and its processes with it.
-spec shut_down(a_node()) -> ok.
shut_down(Node = {Peer, _}) ->
    Monitor = monitor(process, Peer),
    ok = call(Node, fun init:stop/0),
    _ = test_await:reason({Peer, Monitor}),
    ok.

-spec name(a_node()) -> node().
name({_, Name}) ->
    Name.

%% On the node, by a process that ends with it.
-spec call(a_node(), fun(() -> Answer)) -> Answer.
call({Peer, _}, Fun) ->
    peer:call(Peer, erlang, apply, [Fun, []], ?TIMEOUT_MS).

-spec connect(a_node(), a_node()) -> ok.
connect(One, Other) ->
    introduce(One, Other),
    introduce(Other, One),
    Name = name(Other),
    true = call(One, fun() -> net_kernel:connect_node(Name) end),
    see_each_other(One, Other, true).

%% The first one learns where the other one listens.
-spec introduce(a_node(), a_node()) -> ok.
introduce(Who, Whom) ->
    Name = name(Whom),
    Port = call(Whom, fun test_epmd:port/0),
    call(Who, fun() -> test_epmd:tell(Name, Port) end).

%% The first one knows at once, the second one when this returns.
-spec cut(a_node(), a_node()) -> ok.
cut(One, Other) ->
    Name = name(Other),
    _ = call(One, fun() -> erlang:disconnect_node(Name) end),
    see_each_other(One, Other, false).

see_each_other(One, Other, Whether) ->
    [
        call(Who, fun() -> test_await:value(Whether, fun() -> lists:member(Name, nodes(connected)) end) end)
     || {Who, {_, Name}} <- [{One, Other}, {Other, One}]
    ],
    ok.

%% Whether it makes a connection when it has something to send, as nodes usually do.
-spec connect_by_themselves(a_node(), boolean()) -> ok.
connect_by_themselves(Node, true) ->
    call(Node, fun() -> application:unset_env(kernel, dist_auto_connect) end);
connect_by_themselves(Node, false) ->
    call(Node, fun() -> application:set_env(kernel, dist_auto_connect, never) end).

%% A process that does what a test orders, as those of test_worker.
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

%% The answer comes as `{Ref, Answer}', or `{Ref, none}' if the worker dies first.
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

-spec kill_worker(worker()) -> ok.
kill_worker({Node, Pid}) ->
    call(Node, fun() -> test_worker:kill(Pid) end).

%% All of a node, if that is still there.
-spec kill_workers(a_node()) -> ok.
kill_workers(Node = {Peer, _}) ->
    case is_process_alive(Peer) of
        true ->
            call(Node, fun() ->
                Workers = [Pid || {links, Linked} <- [process_info(whereis(?KEEPER), links)], Pid <- Linked],
                test_worker:kill(Workers)
            end);
        false ->
            ok
    end.

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

%% Links, so that they can be found; the worker watches it by itself.
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
