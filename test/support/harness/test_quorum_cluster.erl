%% Clusters with quorum locks, for tests. Only canal_lock_quorum connects the nodes. Leases are short, so a test can
%% wait until one expires.
-module(test_quorum_cluster).

-export([tests/2, tests/4, on/3, lease_ms/0, options/1]).
-export([members/1, client_options/1, start/2, start_all/1, stop/1, state/1, lose_file/1]).
-export([await_voting/1, await_view/2, await_status/3, await_empty/1]).
-export([isolate/2, heal/1, kill_process/1, kill_supervisor/0]).
-export([lock/3, rlock/3, held/2, unlock/2, unlock_async/2, messages/1, messages_until_lost/2]).

-import(test_nodes, [call/2, order/2]).

-type a_node() :: test_nodes:a_node().
-type worker() :: test_nodes:worker().
-type tests() :: [{Title :: string(), fun(([a_node()]) -> term())}].

%% The shortest one.
-spec lease_ms() -> pos_integer().
lease_ms() ->
    1000.

%% Of each member of a cluster of these nodes.
-spec options([a_node()]) -> canal_lock_quorum:options().
options(Nodes) ->
    #{members => members(Nodes), clients => none, reconnect_ms => 100, lease_ms => lease_ms()}.

%% Of a client of these members.
-spec client_options([a_node()]) -> canal_lock_quorum:options().
client_options(Members) ->
    (maps:remove(clients, options(Members)))#{voter => false}.

-spec members([a_node()]) -> [node()].
members(Nodes) ->
    [test_nodes:name(Node) || Node <- Nodes].

-spec tests(pos_integer(), tests()) -> term().
tests(Count, Tests) ->
    tests(Count, [], fun(_, Nodes) -> options(Nodes) end, Tests).

%% Each member has options of its own.
-spec tests(pos_integer(), [string()], Options, tests()) -> term() when
    Options :: fun((a_node(), [a_node()]) -> canal_lock_quorum:options()).
tests(Count, Arguments, Options, Tests) ->
    test_nodes:tests(Count, Arguments, [
        {Title, fun(Nodes) -> on(Nodes, Options, Test) end}
     || {Title, Test} <- Tests
    ]).

%% A test on these nodes. After it no vote and no lock remains on any node that is alive, once the workers of the test
%% are dead.
-spec on([a_node()], Options, fun(([a_node()]) -> term())) -> term() when
    Options :: fun((a_node(), [a_node()]) -> canal_lock_quorum:options()).
on(Nodes, Options, Test) ->
    try
        ok = start_all([{Node, Options(Node, Nodes)} || Node <- Nodes]),
        Test(Nodes),
        [test_nodes:kill_workers(Node) || Node <- Nodes],
        await_empty([Node || Node <- Nodes, is_started(Node)])
    after
        [begin stop(Node), lose_file(Node) end || Node <- Nodes]
    end.

%% Returns when all members vote, and answer on all nodes.
-spec start_all([{a_node(), canal_lock_quorum:options()}]) -> ok.
start_all(Members) ->
    Nodes = [Node || {Node, _} <- Members],
    test_nodes:introduce(Nodes),
    [start(Node, Options) || {Node, Options} <- Members],
    await_voting(Nodes).

%% Separates a node from others. The nodes keep trying to connect.
-spec isolate(a_node(), [a_node()]) -> ok.
isolate(Node, Others) ->
    lists:foreach(fun(Other) -> test_nodes:separate(Node, Other) end, Others).

%% Returns when canal_lock_quorum has connected these nodes, which are all members, and all vote.
-spec heal([a_node()]) -> ok.
heal(Nodes) ->
    test_nodes:introduce(Nodes),
    await_voting(Nodes).

%% The caller on the node ends, the locks go on.
-spec start(a_node(), canal_lock_quorum:options()) -> ok.
start(Node, Options) ->
    call(Node, fun() ->
        process_flag(trap_exit, true),
        {ok, Pid} = canal_lock_quorum:start_link(Options),
        unlink(Pid),
        ok
    end).

%% The member, which is stopped, loses its default state file. Its last write may still be running.
-spec lose_file(a_node()) -> ok.
lose_file(Node) ->
    _ = test_nodes:is_alive(Node) andalso call(Node, fun() ->
        Writes = fun() ->
            [P || P <- processes(), {_, {canal_lock_quorum_voter, write, _}} <- [process_info(P, initial_call)]]
        end,
        test_await:value([], Writes),
        file:delete(canal_lock_quorum_config:default_state_file())
    end),
    ok.

-spec stop(a_node()) -> ok.
stop(Node) ->
    is_started(Node) andalso call(Node, fun canal_lock_quorum:stop/0),
    ok.

is_started(Node) ->
    test_nodes:is_alive(Node) andalso call(Node, fun() -> whereis(canal_lock_quorum) end) =/= undefined.

%% The status of a node. `answering': how many members answer. `voter_empty': its voter has no vote and no request.
-spec state(a_node()) -> #{atom() => term()}.
state(Node) ->
    call(Node, fun state_here/0).

state_here() ->
    #{members := Members} = Status = canal_lock_quorum:status(),
    #{empty := IsEmpty} =
        case whereis(canal_lock_quorum_voter) of
            undefined -> #{empty => true};
            _ -> canal_lock_quorum_voter:state()
        end,
    (maps:with([voting, quorum, held, waiting, pending_unlocks], Status))#{
        answering => length([Name || #{node := Name, answers := true} <- Members]),
        voter_empty => IsEmpty
    }.

%% Until the state of each of these nodes, members or clients, says that it votes and that all members answer.
-spec await_voting([a_node()]) -> ok.
await_voting(Nodes) ->
    lists:foreach(fun(Node) ->
        call(Node, fun() ->
            test_await:value(
                #{voting => is_member(canal_lock_quorum:status()), quorum => true, silent => []},
                fun() ->
                    #{voting := Voting, quorum := Quorum, members := Members} = canal_lock_quorum:status(),
                    Silent = [Name || #{node := Name, answers := false} <- Members],
                    #{voting => Voting, quorum => Quorum, silent => Silent}
                end
            )
        end)
    end, Nodes).

%% Until these nodes have a view with this number or a higher one.
-spec await_view(non_neg_integer(), [a_node()]) -> ok.
await_view(Number, Nodes) ->
    lists:foreach(fun(Node) ->
        call(Node, fun() ->
            test_await:value(true, fun() ->
                case canal_lock_quorum:status() of
                    #{view := #{number := Now}} -> Now >= Number;
                    #{view := none} -> false
                end
            end)
        end)
    end, Nodes).

is_member(#{role := Role}) -> Role =:= member.

%% Until the nodes have no vote, no lock and no request.
-spec await_empty([a_node()]) -> ok.
await_empty(Nodes) ->
    await_states(#{voter_empty => true, held => 0, waiting => 0, pending_unlocks => 0}, Nodes).

await_states(Wanted, Nodes) ->
    Await = fun() -> test_await:value(Wanted, fun() -> maps:with(maps:keys(Wanted), state_here()) end) end,
    lists:foreach(fun(Node) -> call(Node, Await) end, Nodes).

%% Until an element of the status of a node has this value.
-spec await_status(a_node(), atom(), term()) -> ok.
await_status(Node, Key, Value) ->
    call(Node, fun() -> test_await:value(Value, fun() -> maps:get(Key, canal_lock_quorum:status()) end) end).

%% Kills the process of this name on the calling node. Returns when its supervisor has started another.
-spec kill_process(atom()) -> ok.
kill_process(Name) ->
    Pid = whereis(Name),
    ok = test_worker:kill(Pid),
    test_await:value(true, fun() -> is_pid(whereis(Name)) andalso whereis(Name) =/= Pid end),
    _ = sys:get_state(Name),
    ok.

%% Kills the supervisor on the calling node. Returns when its processes have ended.
-spec kill_supervisor() -> ok.
kill_supervisor() ->
    Names = [canal_lock_quorum, canal_lock_quorum_agent, canal_lock_quorum_voter, canal_lock_quorum_connections],
    ok = test_worker:kill(whereis(canal_lock_quorum)),
    _ = test_await:value([], fun() -> [Name || Name <- Names, whereis(Name) =/= undefined] end),
    ok.

%%% What workers do. A lock is valid only on its node, so the worker keeps it in its process dictionary.

-spec lock(worker(), term(), timeout()) -> {ok, Fence :: pos_integer()} | {error, timeout | no_quorum}.
lock(Worker, Name, Timeout_ms) ->
    order(Worker, locking(lock, Name, Timeout_ms)).

-spec rlock(worker(), term(), timeout()) -> {ok, Fence :: non_neg_integer()} | {error, timeout | no_quorum}.
rlock(Worker, Name, Timeout_ms) ->
    order(Worker, locking(rlock, Name, Timeout_ms)).

locking(Function, Name, Timeout_ms) ->
    fun() ->
        case canal_lock_quorum:Function(Name, Timeout_ms) of
            {ok, Lock} ->
                put({lock, Name}, Lock),
                {ok, canal_lock_quorum:fence(Lock)};
            {error, Reason} ->
                {error, Reason}
        end
    end.

-spec held(worker(), term()) -> boolean().
held(Worker, Name) ->
    order(Worker, fun() -> canal_lock_quorum:is_held(get({lock, Name})) end).

-spec unlock(worker(), term()) -> ok | {error, term()}.
unlock(Worker, Name) ->
    order(Worker, fun() -> canal_lock_quorum:unlock(get({lock, Name})) end).

-spec unlock_async(worker(), term()) -> ok | {error, term()}.
unlock_async(Worker, Name) ->
    order(Worker, fun() -> canal_lock_quorum:unlock_async(get({lock, Name})) end).

%% The messages that the worker received about its locks, by their names, the first one first.
-spec messages(worker()) -> [{at_risk | lost, term()}].
messages(Worker) ->
    order(Worker, fun() -> received(names_of_locks(), none, 0) end).

%% The same up to the message that this lock is lost, which may arrive shortly after the lock is no longer held.
-spec messages_until_lost(worker(), term()) -> [{at_risk | lost, term()}].
messages_until_lost(Worker, Name) ->
    order(Worker, fun() -> received(names_of_locks(), {lost, Name}, infinity) end).

names_of_locks() ->
    maps:from_list([{Lock, Name} || {{lock, Name}, Lock} <- get()]).

received(Names, Last, Timeout_ms) ->
    receive
        {canal_lock_quorum, Event, Lock} when is_map_key(Lock, Names) ->
            case {Event, maps:get(Lock, Names)} of
                Last -> [Last];
                Other -> [Other | received(Names, Last, Timeout_ms)]
            end
    after Timeout_ms -> []
    end.
