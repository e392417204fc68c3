%% What the tests of asynchronous unlocks do on a node, and to the voters of all.
-module(test_quorum_unlock).

-export([tests/2]).
-export([groups/2, names/1, take/1, take_one/1, take_all/1, give_back/1]).
-export([await_pending/1, hang/1, go_on/1, await_forgotten/2]).

-type a_node() :: test_nodes:a_node().

-define(LONG_MS, 15_000).

%% Leases are as in life, and no batch is taken for lost while a test holds its answer back.
-define(PATIENT, #{heartbeat_ms => 3500, attempt_ms => 3000, wait_ms => 5000}).

%% On three nodes that are started once, with these rules and such others. Who starts before the others waits until
%% its first batch to them is taken for lost, which would be too long for each test.
-spec tests(#{atom() => pos_integer()}, [{Title :: string(), fun(([a_node()]) -> term())}]) -> term().
tests(Rules, Tests) ->
    test_nodes:tests(3, [], [{Title, fun(Nodes) -> run(Test, Rules, Nodes) end} || {Title, Test} <- Tests]).

%% In the end all is empty, as test_quorum_cluster has it.
run(Test, Rules, Nodes) ->
    Options = test_quorum_cluster:options(Nodes),
    Supervisor = fun() -> whereis(canal_lock_quorum) end,
    Missing = [Node || Node <- Nodes, test_nodes:call(Node, Supervisor) =:= undefined],
    [test_quorum_cluster:start(Node, Options#{rules => maps:merge(?PATIENT, Rules)}) || Node <- Missing],
    try
        test_quorum_cluster:await_voting(Nodes),
        Test(Nodes),
        [test_nodes:kill_workers(Node) || Node <- Nodes],
        test_quorum_cluster:await_empty(Nodes)
    catch
        Class:Reason:Stack ->
            %% The next test begins anew.
            [test_quorum_cluster:stop(Node) || Node <- Nodes],
            erlang:raise(Class, Reason, Stack)
    end.

-spec names(pos_integer()) -> [canal_lock_quorum:name()].
names(Count) ->
    [{token, N} || N <- lists:seq(1, Count)].

%% Of such a size, but for the last one.
-spec groups(pos_integer(), [One]) -> [[One]].
groups(Size, All) when length(All) =< Size ->
    [All];
groups(Size, All) ->
    {Group, Rest} = lists:split(Size, All),
    [Group | groups(Size, Rest)].

%% For the calling process, on its node; here and below, but for the last.
-spec take([canal_lock_quorum:name()]) -> [canal_lock_quorum:lock()].
take(Names) ->
    [take_one(Name) || Name <- Names].

-spec take_one(canal_lock_quorum:name()) -> canal_lock_quorum:lock().
take_one(Name) ->
    {ok, Lock} = canal_lock_quorum:lock(Name, ?LONG_MS),
    Lock.

%% As one.
-spec take_all([canal_lock_quorum:name()]) -> canal_lock_quorum:lock().
take_all(Names) ->
    {ok, Lock} = canal_lock_quorum:lock_many(Names, ?LONG_MS),
    Lock.

-spec give_back([canal_lock_quorum:lock()]) -> ok.
give_back(Locks) ->
    lists:foreach(fun(Lock) -> ok = canal_lock_quorum:try_unlock(Lock) end, Locks).

%% That so many were given back, and no quorum has done it. Asks the agent alone, because voters may hang.
-spec await_pending(non_neg_integer()) -> ok.
await_pending(Count) ->
    test_await:value(Count, fun() -> maps:get(pending_unlocks, canal_lock_quorum_agent:status()) end).

%% The voters of these members neither read nor answer.
-spec hang([node()]) -> ok.
hang(Members) ->
    lists:foreach(fun(Member) -> ok = erpc:call(Member, sys, suspend, [canal_lock_quorum_voter]) end, Members).

-spec go_on([node()]) -> ok.
go_on(Members) ->
    lists:foreach(fun(Member) -> ok = erpc:call(Member, sys, resume, [canal_lock_quorum_voter]) end, Members).

%% No voter has a vote for these names any more: each of the three in turn hangs, and the two others, as a quorum, let
%% another node have them.
-spec await_forgotten([a_node()], [canal_lock_quorum:name()]) -> ok.
await_forgotten([_, Other, _] = Nodes, Names) ->
    lists:foreach(
        fun(Member) ->
            Worker = test_nodes:worker(Other),
            test_nodes:order(Worker, fun() ->
                ok = hang([Member]),
                give_back([take_all(Group) || Group <- groups(50, Names)]),
                ok = go_on([Member])
            end)
        end,
        test_quorum_cluster:members(Nodes)
    ).
