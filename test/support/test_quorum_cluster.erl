%% Clusters for tests of the quorum locks: nodes of test_nodes that connect by nobody but canal_lock_quorum
%% itself, with leases so short that a test can wait for their end.
-module(test_quorum_cluster).

-export([tests/2, tests/3, tests/4, rules/0, options/1]).
-export([members/1, start/2, start_all/1, stop/1, await_voting/1, await_quorum/1, is_empty/1, await_empty/1]).
-export([introduce/1, isolate/2, heal/1, call/2, worker/1, order/2, send_order/2]).
-export([lock/3, rlock/3, held/2, unlock/2, try_unlock/2, messages/1, messages_until_lost/2]).

-type a_node() :: test_nodes:a_node().
-type worker() :: test_nodes:worker().

-define(NOBODYS_PORT, 1).

%% A tenth of what clusters run with.
-spec rules() -> #{atom() => pos_integer()}.
rules() ->
    #{
        heartbeat_ms => 200,
        holder_lease_ms => 800,
        voter_lease_ms => 1000,
        quarantine_ms => 1000,
        attempt_ms => 200,
        retry_most_ms => 200,
        wait_ms => 600,
        keep_ms => 50,
        at_risk_ms => 400
    }.

%% Of a member of such nodes.
-spec options([a_node()]) -> canal_lock_quorum:options().
options(Nodes) ->
    #{members => members(Nodes), reconnect_ms => 100, rules => rules()}.

-spec members([a_node()]) -> [node()].
members(Nodes) ->
    [test_nodes:name(Node) || Node <- Nodes].

-spec tests(pos_integer(), [{Title :: string(), fun(([a_node()]) -> term())}]) -> term().
tests(Count, Tests) ->
    tests(Count, [], Tests).

-spec tests(pos_integer(), [string()], [{Title :: string(), fun(([a_node()]) -> term())}]) -> term().
tests(Count, Arguments, Tests) ->
    tests(Count, Arguments, fun(_, Nodes) -> options(Nodes) end, Tests).

%% Whatever a test has been about, in the end there is no vote and no lock on any node that is still there, once its
%% workers have died. Each member has options of its own, which agree in what has to be the same.
-spec tests(pos_integer(), [string()], Options, [{string(), fun()}]) -> term() when
    Options :: fun((a_node(), [a_node()]) -> canal_lock_quorum:options()).
tests(Count, Arguments, Options, Tests) ->
    test_nodes:tests(Count, Arguments, [
        {Title, fun(Nodes) -> run(Test, [{Node, Options(Node, Nodes)} || Node <- Nodes], Nodes) end}
     || {Title, Test} <- Tests
    ]).

run(Test, Members, Nodes) ->
    try
        ok = start_all(Members),
        Test(Nodes),
        [test_nodes:kill_workers(Node) || Node <- Nodes],
        await_empty([Node || Node <- Nodes, is_started(Node)])
    after
        [stop(Node) || Node <- Nodes]
    end.

%% And waits until all of them vote.
-spec start_all([{a_node(), canal_lock_quorum:options()}]) -> ok.
start_all(Members) ->
    Nodes = [Node || {Node, _} <- Members],
    introduce(Nodes),
    [start(Node, Options) || {Node, Options} <- Members],
    await_voting(Nodes).

%% Each learns where the others listen.
-spec introduce([a_node()]) -> ok.
introduce(Nodes) ->
    [test_nodes:introduce(One, Other) || One <- Nodes, Other <- Nodes, One =/= Other],
    ok.

%% Cuts the connections of a node with others; each tries again and again, and is told of a port where nobody listens.
-spec isolate(a_node(), [a_node()]) -> ok.
isolate(Node, Others) ->
    Pairs = [{Node, Other} || Other <- Others] ++ [{Other, Node} || Other <- Others],
    [call(One, fun() -> test_epmd:tell(Name, ?NOBODYS_PORT) end) || {One, {_, Name}} <- Pairs],
    [test_nodes:cut(Node, Other) || Other <- Others],
    ok.

%% When it returns they are connected by themselves, and vote.
-spec heal([a_node()]) -> ok.
heal(Nodes) ->
    introduce(Nodes),
    await_voting(Nodes).

%% Its parent does not end with it, as a supervisor.
-spec start(a_node(), canal_lock_quorum:options()) -> ok.
start(Node, Options) ->
    call(Node, fun() ->
        process_flag(trap_exit, true),
        {ok, Pid} = canal_lock_quorum:start_link(Options),
        unlink(Pid),
        ok
    end).

-spec stop(a_node()) -> ok.
stop(Node) ->
    is_started(Node) andalso call(Node, fun canal_lock_quorum:stop/0),
    ok.

is_started(Node = {Peer, _}) ->
    is_process_alive(Peer) andalso call(Node, fun() -> whereis(canal_lock_quorum) end) =/= undefined.

-spec await_voting([a_node()]) -> ok.
await_voting(Nodes) ->
    Told = fun() -> maps:with([voting, quorum], canal_lock_quorum:status()) end,
    [call(Node, fun() -> test_await:value(#{voting => true, quorum => true}, Told) end) || Node <- Nodes],
    [await_answers(Node, length(Nodes)) || Node <- Nodes],
    ok.

%% From so many members.
await_answers(Node, Count) ->
    call(Node, fun() ->
        test_await:value(Count, fun() ->
            #{members := Members} = canal_lock_quorum:status(),
            length([Name || #{node := Name, answers := true} <- Members])
        end)
    end).

-spec await_quorum(a_node()) -> ok.
await_quorum(Node) ->
    call(Node, fun() -> test_await:value(true, fun() -> maps:get(quorum, canal_lock_quorum:status()) end) end).

-spec is_empty(a_node()) -> boolean().
is_empty(Node) ->
    call(Node, fun is_empty_here/0).

is_empty_here() ->
    #{empty := NoVotes} = canal_lock_quorum_voter:state(),
    NoVotes andalso maps:with([held, waiting, pending_unlocks], canal_lock_quorum:status()) =:=
        #{held => 0, waiting => 0, pending_unlocks => 0}.

%% No vote and no place in a line, no lock and no request.
-spec await_empty([a_node()]) -> ok.
await_empty(Nodes) ->
    [call(Node, fun() -> test_await:value(true, fun is_empty_here/0) end) || Node <- Nodes],
    ok.

-spec call(a_node(), fun(() -> Answer)) -> Answer.
call(Node, Fun) ->
    test_nodes:call(Node, Fun).

-spec worker(a_node()) -> worker().
worker(Node) ->
    test_nodes:worker(Node).

-spec order(worker(), fun(() -> Answer)) -> Answer.
order(Worker, Fun) ->
    test_nodes:order(Worker, Fun).

-spec send_order(worker(), fun(() -> term())) -> Ref :: reference().
send_order(Worker, Fun) ->
    test_nodes:send_order(Worker, Fun).

%%% What workers do. Locks have a meaning on their node alone, so they stay there, under a name that the test gives.

-spec lock(worker(), term(), non_neg_integer()) -> {ok, Fence :: pos_integer()} | {error, timeout | no_quorum}.
lock(Worker, Name, Timeout_ms) ->
    order(Worker, locking(lock, Name, Timeout_ms)).

-spec rlock(worker(), term(), non_neg_integer()) -> {ok, Fence :: non_neg_integer()} | {error, timeout | no_quorum}.
rlock(Worker, Name, Timeout_ms) ->
    order(Worker, locking(rlock, Name, Timeout_ms)).

locking(Function, Name, Timeout_ms) ->
    fun() ->
        case canal_lock_quorum:Function(Name, Timeout_ms) of
            {ok, Lock} ->
                put({lock, Name}, Lock),
                {ok, canal_lock_quorum:fence(Lock)};
            {error, Why} ->
                {error, Why}
        end
    end.

-spec held(worker(), term()) -> boolean().
held(Worker, Name) ->
    order(Worker, fun() -> canal_lock_quorum:held(get({lock, Name})) end).

-spec unlock(worker(), term()) -> ok | {error, term()}.
unlock(Worker, Name) ->
    order(Worker, fun() -> canal_lock_quorum:unlock(get({lock, Name})) end).

-spec try_unlock(worker(), term()) -> ok | {error, term()}.
try_unlock(Worker, Name) ->
    order(Worker, fun() -> canal_lock_quorum:try_unlock(get({lock, Name})) end).

%% What the worker was told of its locks, by their names, the first one first.
-spec messages(worker()) -> [{at_risk | lost, term()}].
messages(Worker) ->
    order(Worker, fun() -> told(names_of_locks()) end).

names_of_locks() ->
    maps:from_list([{Lock, Name} || {{lock, Name}, Lock} <- get()]).

%% The same, up to the one that says that a lock is lost. It may come a little later than the lock is not held any more.
-spec messages_until_lost(worker(), term()) -> [{at_risk | lost, term()}].
messages_until_lost(Worker, Name) ->
    order(Worker, fun() -> told_until({lost, Name}, names_of_locks()) end).

told_until(Last, Names) ->
    receive
        {canal_lock_quorum, What, Lock} when is_map_key(Lock, Names) ->
            case {What, maps:get(Lock, Names)} of
                Last -> [Last];
                Other -> [Other | told_until(Last, Names)]
            end
    end.

told(Names) ->
    receive
        {canal_lock_quorum, What, Lock} when is_map_key(Lock, Names) -> [{What, maps:get(Lock, Names)} | told(Names)]
    after 0 -> []
    end.
