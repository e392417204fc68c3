%% Permits on another node: what the tests do and see there, and what of a call can be seen where it comes from.
-module(canal_lock_there).

-export([tests/3, tests/4]).
-export([start_manager/2, kill_manager/1, suspend_manager/1, resume_manager/1]).
-export([acquire/3, acquire/4, send_acquire/3, release/3, attempt/1]).
-export([count/2, await_count/3, info/1, watched/1, unconfirmed/1, nothing_is_left/1]).
-export([await_request/1, call_of/1, calls/1]).

-type a_node() :: canal_lock_nodes:a_node().
-type worker() :: canal_lock_nodes:worker().
-type outcome() :: {acquired, pos_integer()} | full | ok | {error, not_held} | {exit | error, term()}.

%% Of all that the tests acquire, unless they say otherwise.
-define(CAPACITY, 3).

%% Tests on so many nodes, with a manager on the first one. Whatever a test has been about, in the end no process of
%% ours is left on any node.
-spec tests(pos_integer(), canal_lock:options(), [{Title :: string(), fun(([a_node()]) -> term())}]) -> term().
tests(Count, Options, Tests) ->
    tests(Count, Options, [], Tests).

%% With further arguments for the nodes.
-spec tests(pos_integer(), canal_lock:options(), [string()], [{Title, fun(([a_node()]) -> term())}]) -> term() when
    Title :: string().
tests(Count, Options, Arguments, Tests) ->
    canal_lock_nodes:tests(Count, Arguments, [
        {Title, fun(Nodes) -> run(Test, Options, Nodes) end}
     || {Title, Test} <- Tests
    ]).

run(Test, Options, Nodes = [There | _]) ->
    _ = start_manager(There, Options),
    try
        Test(Nodes)
    after
        stop_manager(There)
    end,
    [canal_lock_nodes:kill_workers(Node) || Node <- Nodes],
    [await(Node, [], fun calls_here/0) || Node <- Nodes],
    ok.

%% Its parent does not end with it, as a supervisor.
-spec start_manager(a_node(), canal_lock:options()) -> worker().
start_manager(There, Options) ->
    Parent = canal_lock_nodes:worker(There),
    canal_lock_nodes:order(Parent, fun() ->
        process_flag(trap_exit, true),
        {ok, _} = canal_lock:start_link(?CAPACITY, Options),
        ok
    end),
    Parent.

%% What an earlier one has left is closed with it.
stop_manager(There) ->
    canal_lock_nodes:call(There, fun() ->
        whereis(canal_lock) =:= undefined andalso canal_lock:start_link(1),
        canal_lock:stop()
    end).

-spec kill_manager(a_node()) -> ok.
kill_manager(There) ->
    canal_lock_nodes:call(There, fun() -> canal_lock_worker:kill(whereis(canal_lock)) end).

%% Requests wait from now on.
-spec suspend_manager(a_node()) -> ok.
suspend_manager(There) ->
    canal_lock_nodes:call(There, fun() -> sys:suspend(canal_lock) end).

-spec resume_manager(a_node()) -> ok.
resume_manager(There) ->
    canal_lock_nodes:call(There, fun() -> sys:resume(canal_lock) end).

-spec acquire(worker(), a_node(), canal_lock:key()) -> outcome().
acquire(Worker, There, Key) ->
    acquire(Worker, There, Key, ?CAPACITY).

-spec acquire(worker(), a_node(), canal_lock:key(), MaxPer :: non_neg_integer()) -> outcome().
acquire(Worker, There, Key, MaxPer) ->
    canal_lock_nodes:order(Worker, acquiring(There, Key, MaxPer)).

%% What comes of it, comes as `{Ref, Outcome}'.
-spec send_acquire(worker(), a_node(), canal_lock:key()) -> Ref :: reference().
send_acquire(Worker, There, Key) ->
    canal_lock_nodes:send_order(Worker, acquiring(There, Key, ?CAPACITY)).

acquiring({_, Name}, Key, MaxPer) ->
    fun() -> attempt(fun() -> canal_lock:acquire_on(Name, Key, MaxPer, 1) end) end.

-spec release(worker(), a_node(), canal_lock:key()) -> outcome().
release(Worker, {_, Name}, Key) ->
    canal_lock_nodes:order(Worker, fun() -> attempt(fun() -> canal_lock:release_on(Name, Key) end) end).

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
    canal_lock_nodes:call(There, fun() -> canal_lock:count(Key) end).

-spec await_count(a_node(), canal_lock:key(), non_neg_integer()) -> ok.
await_count(There, Key, Count) ->
    await(There, Count, fun() -> canal_lock:count(Key) end).

-spec info(a_node()) -> canal_lock:info().
info(There) ->
    canal_lock_nodes:call(There, fun canal_lock:info/0).

%% Whom the manager watches: the rows of its table, which are its monitors too; if not, both.
-spec watched(a_node()) -> [{pid(), holder | {call_of, pid()}}] | {differ, Rows :: list(), Monitors :: list()}.
watched(There) ->
    canal_lock_nodes:call(There, fun watched_here/0).

watched_here() ->
    %% It answers after what it has been sent before.
    _ = sys:get_state(canal_lock),
    Rows = lists:sort([{Pid, Why} || {Pid, _, Why} <- ets:tab2list(canal_lock)]),
    {monitors, Monitors} = process_info(whereis(canal_lock), monitors),
    case lists:sort([Pid || {process, Pid} <- Monitors]) =:= [Pid || {Pid, _} <- Rows] of
        true -> Rows;
        false -> {differ, Rows, Monitors}
    end.

%% The calls on record, each with whom it is for.
-spec unconfirmed(a_node()) -> [{Holder :: pid(), Call :: pid()}].
unconfirmed(There) ->
    canal_lock_nodes:call(There, fun() ->
        [{Holder, Call} || {Holder, _, Calls} <- remote_holders(), Call <- Calls]
    end).

remote_holders() ->
    canal_lock_nif:remote_holders(element(3, sys:get_state(canal_lock))).

%% Soon: not a permit, nobody who holds one or is on record as if, nobody who is watched.
-spec nothing_is_left(a_node()) -> ok.
nothing_is_left(There) ->
    await(There, {0, 0, [], [], []}, fun() ->
        #{permits := Permits, holders := Holders} = canal_lock:info(),
        {Permits, Holders, remote_holders(), watched_here(), canal_lock:audit()}
    end).

%% Until somebody's request waits for a manager that is suspended.
-spec await_request(a_node()) -> ok.
await_request(There) ->
    await(There, {message_queue_len, 1}, fun() -> process_info(whereis(canal_lock), message_queue_len) end).

%% The process that makes the call for a worker which is in the middle of one: it is monitored by the worker.
-spec call_of(worker()) -> worker().
call_of({Here, Pid}) ->
    [Call] = canal_lock_nodes:call(Here, fun() ->
        {monitors, Monitors} = process_info(Pid, monitors),
        [Call || Call <- calls_here(), lists:member({process, Call}, Monitors)]
    end),
    {Here, Call}.

%% All processes of a node that are in the middle of a call.
-spec calls(a_node()) -> [pid()].
calls(Here) ->
    canal_lock_nodes:call(Here, fun calls_here/0).

calls_here() ->
    [
        Pid
     || Pid <- processes(),
        {current_stacktrace, Stack} <- [process_info(Pid, current_stacktrace)],
        lists:keymember(canal_lock_remote, 1, Stack)
    ].

await(Node, Value, Ask) ->
    canal_lock_nodes:call(Node, fun() -> canal_lock_await:value(Value, Ask) end).
