%% Parts of the tests of asynchronous unlocks.
-module(test_quorum_unlock).

-export([tests/2]).
-export([groups/2, names/1, lock_each/1, lock_one/1, lock_together/1, unlock_each/1]).
-export([await_pending/1, suspend_voters/1, resume_voters/1, await_forgotten/2]).

-type a_node() :: test_nodes:a_node().

-define(LONG_MS, 60_000).

%% On three nodes with this lease, so long that no batch times out while a test delays its answer. The locks are started
%% once for all tests: the first node to start waits until its first batches to the others time out, which would take
%% too long for each test.
-spec tests(Lease_ms :: pos_integer(), [{Title :: string(), fun(([a_node()]) -> term())}]) -> term().
tests(Lease_ms, Tests) ->
    test_nodes:tests(3, [], [{Title, fun(Nodes) -> run(Test, Lease_ms, Nodes) end} || {Title, Test} <- Tests]).

run(Test, Lease_ms, Nodes) ->
    Options = test_quorum_cluster:options(Nodes),
    Supervisor = fun() -> whereis(canal_lock_quorum) end,
    Missing = [Node || Node <- Nodes, test_nodes:call(Node, Supervisor) =:= undefined],
    [test_quorum_cluster:start(Node, Options#{lease_ms := Lease_ms}) || Node <- Missing],
    try
        test_quorum_cluster:await_voting(Nodes),
        Test(Nodes),
        [test_nodes:kill_workers(Node) || Node <- Nodes],
        test_quorum_cluster:await_empty(Nodes)
    catch
        Class:Reason:Stack ->
            %% So that the next test starts the locks again.
            [test_quorum_cluster:stop(Node) || Node <- Nodes],
            erlang:raise(Class, Reason, Stack)
    end.

-spec names(pos_integer()) -> [canal_lock_quorum:name()].
names(Count) ->
    [{token, N} || N <- lists:seq(1, Count)].

%% Groups of this size. The last one may be smaller.
-spec groups(pos_integer(), [One]) -> [[One]].
groups(Size, All) when length(All) =< Size ->
    [All];
groups(Size, All) ->
    {Group, Rest} = lists:split(Size, All),
    [Group | groups(Size, Rest)].

%%% For a process of the node that holds the locks

%% A lock for each name.
-spec lock_each([canal_lock_quorum:name()]) -> [canal_lock_quorum:lock()].
lock_each(Names) ->
    [lock_one(Name) || Name <- Names].

-spec lock_one(canal_lock_quorum:name()) -> canal_lock_quorum:lock().
lock_one(Name) ->
    {ok, Lock} = canal_lock_quorum:lock(Name, ?LONG_MS),
    Lock.

%% One lock of all names.
-spec lock_together([canal_lock_quorum:name()]) -> canal_lock_quorum:lock().
lock_together(Names) ->
    {ok, Lock} = canal_lock_quorum:lock_many(Names, ?LONG_MS),
    Lock.

-spec unlock_each([canal_lock_quorum:lock()]) -> ok.
unlock_each(Locks) ->
    lists:foreach(fun(Lock) -> ok = canal_lock_quorum:unlock_async(Lock) end, Locks).

%% Until this many locks are unlocked here and not yet by a quorum. Asks only the agent: voters may be suspended.
-spec await_pending(non_neg_integer()) -> ok.
await_pending(Count) ->
    test_await:value(Count, fun() -> maps:get(pending_unlocks, canal_lock_quorum_agent:status()) end).

%% The voters of these members neither read nor answer.
-spec suspend_voters([node()]) -> ok.
suspend_voters(Members) ->
    lists:foreach(fun(Member) -> ok = erpc:call(Member, sys, suspend, [canal_lock_quorum_voter]) end, Members).

-spec resume_voters([node()]) -> ok.
resume_voters(Members) ->
    lists:foreach(fun(Member) -> ok = erpc:call(Member, sys, resume, [canal_lock_quorum_voter]) end, Members).

%%% For the test

%% Checks that no voter has a vote for these names: while each of the three in turn is suspended, the two others, which
%% are a quorum, grant them to another node.
-spec await_forgotten([a_node()], [canal_lock_quorum:name()]) -> ok.
await_forgotten([_, Other, _] = Nodes, Names) ->
    lists:foreach(fun(Member) ->
        test_nodes:order(test_nodes:worker(Other), fun() ->
            ok = suspend_voters([Member]),
            unlock_each([lock_together(Group) || Group <- groups(50, Names)]),
            ok = resume_voters([Member])
        end)
    end, test_quorum_cluster:members(Nodes)).
