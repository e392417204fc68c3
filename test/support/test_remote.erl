%% Permits on another node: managers, calls by workers of other nodes, and the state there.
-module(test_remote).

-export([tests/3, tests/4]).
-export([start_manager/2, kill_manager/1, suspend_manager/1, resume_manager/1]).
-export([acquire/3, acquire/4, send_acquire/3, release/3, attempt/1]).
-export([count/2, await_count/3, info/1, nothing_is_left/1]).
-export([proxy/2, proxies/1, suspend/2, resume/2, await_request/1, await_request/2]).
-export([await_requests/3, await_helpers/2]).

-type a_node() :: test_nodes:a_node().
-type worker() :: test_nodes:worker().
-type outcome() :: {acquired, pos_integer()} | full | ok | {error, not_held} | {exit | error, term()}.

%% The default capacity of the tests.
-define(CAPACITY, 3).

%% On a busy machine, the answer of another node can take longer than users are willing to wait.
-define(GRACE_MS, 60_000).

%% Tests on this many nodes, with a manager on the first one. After each test no process of the library is left on any
%% node.
-spec tests(pos_integer(), canal_lock:options(), [{Title :: string(), fun(([a_node()]) -> term())}]) -> term().
tests(Count, Options, Tests) ->
    tests(Count, Options, [], Tests).

%% With additional command-line arguments of the nodes.
-spec tests(pos_integer(), canal_lock:options(), [string()], [{Title, fun(([a_node()]) -> term())}]) -> term() when
    Title :: string().
tests(Count, Options, Arguments, Tests) ->
    test_nodes:tests(Count, Arguments, [
        {Title, fun(Nodes) -> run(Test, Options, Nodes) end}
     || {Title, Test} <- Tests
    ]).

run(Test, Options, Nodes = [There | _]) ->
    [test_nodes:call(Node, fun() -> application:set_env(canal_lock, remote_grace_ms, ?GRACE_MS) end) || Node <- Nodes],
    _ = start_manager(There, Options),
    try
        Test(Nodes)
    after
        stop_manager(There)
    end,
    [test_nodes:kill_workers(Node) || Node <- Nodes],
    [await_helpers(Node, 0) || Node <- Nodes],
    await(There, [], fun idle_proxies/0).

%% Its parent survives it, as a supervisor does.
-spec start_manager(a_node(), canal_lock:options()) -> worker().
start_manager(There, Options) ->
    Parent = test_nodes:worker(There),
    test_nodes:order(Parent, fun() ->
        process_flag(trap_exit, true),
        {ok, _} = canal_lock:start_link(?CAPACITY, Options),
        ok
    end),
    Parent.

%% Also closes a table that an earlier manager has kept.
stop_manager(There) ->
    test_nodes:call(There, fun() ->
        whereis(canal_lock) =:= undefined andalso canal_lock:start_link(1),
        canal_lock:stop()
    end).

-spec kill_manager(a_node()) -> ok.
kill_manager(There) ->
    test_nodes:call(There, fun() -> test_worker:kill(whereis(canal_lock)) end).

%% From now on requests wait.
-spec suspend_manager(a_node()) -> ok.
suspend_manager(There) ->
    test_nodes:call(There, fun() -> sys:suspend(canal_lock) end).

-spec resume_manager(a_node()) -> ok.
resume_manager(There) ->
    test_nodes:call(There, fun() -> sys:resume(canal_lock) end).

-spec acquire(worker(), a_node(), canal_lock:key()) -> outcome().
acquire(Worker, There, Key) ->
    acquire(Worker, There, Key, ?CAPACITY).

-spec acquire(worker(), a_node(), canal_lock:key(), MaxPer :: non_neg_integer()) -> outcome().
acquire(Worker, There, Key, MaxPer) ->
    test_nodes:order(Worker, acquiring(There, Key, MaxPer)).

%% The outcome arrives as the message `{Ref, Outcome}'.
-spec send_acquire(worker(), a_node(), canal_lock:key()) -> Ref :: reference().
send_acquire(Worker, There, Key) ->
    test_nodes:send_order(Worker, acquiring(There, Key, ?CAPACITY)).

acquiring({_, Name}, Key, MaxPer) ->
    fun() -> attempt(fun() -> canal_lock:acquire_on(Name, Key, MaxPer, 1) end) end.

-spec release(worker(), a_node(), canal_lock:key()) -> outcome().
release(Worker, {_, Name}, Key) ->
    test_nodes:order(Worker, fun() -> attempt(fun() -> canal_lock:release_on(Name, Key) end) end).

-spec attempt(fun(() -> Answer)) -> Answer | {exit | error, term()}.
attempt(Fun) ->
    try
        Fun()
    catch
        exit:Reason -> {exit, Reason};
        error:Reason -> {error, Reason}
    end.

-spec count(a_node(), canal_lock:key()) -> non_neg_integer().
count(There, Key) ->
    test_nodes:call(There, fun() -> canal_lock:count(Key) end).

-spec await_count(a_node(), canal_lock:key(), non_neg_integer()) -> ok.
await_count(There, Key, Count) ->
    await(There, Count, fun() -> canal_lock:count(Key) end).

-spec info(a_node()) -> canal_lock:info().
info(There) ->
    test_nodes:call(There, fun canal_lock:info/0).

%% The proxy of a worker on another node.
-spec proxy(worker(), a_node()) -> pid() | none.
proxy({_, Holder}, There) ->
    test_nodes:call(There, fun() -> canal_lock_nif:proxy_of(Holder) end).

%% All proxies of the open table, with the processes that they represent.
-spec proxies(a_node()) -> [{Holder :: pid(), Proxy :: pid()}].
proxies(There) ->
    test_nodes:call(There, fun() ->
        [
            {Holder, Proxy}
         || Proxy <- proxies_here(), {state, Holder, _, _, _, _} <- [sys:get_state(Proxy)],
            canal_lock_nif:proxy_of(Holder) =:= Proxy
        ]
    end).

proxies_here() ->
    [Pid || Pid <- processes(), proc_lib:translate_initial_call(Pid) =:= {canal_lock_proxy, init, 1}].

%% All proxies that remain after each has received its idle timeout.
idle_proxies() ->
    [Proxy ! timeout || Proxy <- proxies_here()],
    proxies_here().

-spec suspend(a_node(), pid()) -> ok.
suspend(There, Process) ->
    test_nodes:call(There, fun() -> sys:suspend(Process) end).

-spec resume(a_node(), pid()) -> ok.
resume(There, Process) ->
    test_nodes:call(There, fun() -> sys:resume(Process) end).

%% Until there is no permit, no holder and no proxy.
-spec nothing_is_left(a_node()) -> ok.
nothing_is_left(There) ->
    await(There, {0, 0, [], []}, fun() ->
        #{permits := Permits, holders := Holders} = canal_lock:info(),
        {Permits, Holders, idle_proxies(), canal_lock:audit()}
    end).

%% Until a request waits for a manager or a proxy that is suspended.
-spec await_request(a_node()) -> ok.
await_request(There) ->
    await_request(There, canal_lock).

-spec await_request(a_node(), canal_lock | pid()) -> ok.
await_request(There, Server) ->
    await_requests(1, There, Server).

-spec await_requests(pos_integer(), a_node(), canal_lock | pid()) -> ok.
await_requests(Count, There, Server) ->
    await(There, {message_queue_len, Count}, fun() ->
        Pid = if is_pid(Server) -> Server; true -> whereis(Server) end,
        process_info(Pid, message_queue_len)
    end).

%% Waits until this node has this number of helpers, the processes that make calls to other nodes.
-spec await_helpers(a_node(), non_neg_integer()) -> ok.
await_helpers(Node, Count) ->
    await(Node, Count, fun() ->
        length([
            Pid
         || Pid <- processes(), {initial_call, {canal_lock_remote, _, _}} <- [process_info(Pid, initial_call)]
        ])
    end).

await(Node, Value, Ask) ->
    test_nodes:call(Node, fun() -> test_await:value(Value, Ask) end).
