%% Changes of the members under load: how long each takes, and the longest wait for a lock during it.
%%
%% Three of seven nodes are members, and all of them lock: five loops on each lock names of their own, and one process
%% on each holds a lock. A held lock that is lost ends the run with an error.
-module(bench_cluster_changes).

-export([variants/0, samples/1, targets/1]).

-import(test_nodes, [call/2, name/1]).

-define(ADD, "add one member").
-define(REMOVE, "remove one member").
-define(DEAD, "replace a dead member").
-define(ALL, "replace all three members").
-define(LOST, "a member lost its file").
-define(SUSPENDED, "replace a member, a client is suspended").

%% All nodes have the order before the load begins.
-define(LEAD_MS, 300).
%% The load begins so long before the change.
-define(BEFORE_MS, 300).

-spec variants() -> [string()].
variants() ->
    [?ADD, ?REMOVE, ?DEAD, ?ALL, ?LOST, ?SUSPENDED].

%% A round: each change once, in a new cluster.
-spec samples(bench:mode()) -> [{bench_results:id(), number()}].
samples(#{changes_lease_ms := Lease_ms} = Mode) ->
    [A, B, C, D, E, F, G] = Nodes = bench_cluster_nodes:start(7, ours),
    Options = #{members => test_quorum_cluster:members([A, B, C]), clients => all, lease_ms => Lease_ms},
    Start = fun(Node) -> test_quorum_cluster:start(Node, Options) end,
    ok = test_quorum_cluster:start_all([{Node, Options} || Node <- Nodes]),
    Holders = [holder(Node) || Node <- Nodes],
    Sample = fun(Lockers, Longest_ms, Change) -> sample(Lockers, Longest_ms, Change, Mode) end,
    Changed = fun(On, Members) -> fun() -> {ok, _} = change(On, Members) end end,
    Added = Sample(Nodes, 1000, Changed(A, [A, B, C, D])),
    Removed = Sample(Nodes, 1000, Changed(D, [A, B, C])),
    %% Its votes are over when it is replaced.
    ok = test_quorum_cluster:stop(C),
    timer:sleep(Lease_ms),
    Dead = Sample(Nodes -- [C], 1000, Changed(A, [A, B, D])),
    All = Sample(Nodes -- [C], 1000, Changed(A, [E, F, G])),
    Lost = [
        begin
            ok = test_quorum_cluster:stop(Node),
            ok = test_quorum_cluster:lose_file(Node),
            Came = Sample(Nodes -- [C | Losers], 2000, fun() -> Start(Node), await_member(Node) end),
            ok = test_quorum_cluster:await_voting([Node]),
            Came
        end
     || {Node, Losers} <- [{E, [E]}, {F, [E, F]}, {G, [E, F, G]}]
    ],
    ok = all_held(Holders, [C, E, F, G]),
    Suspended = Sample(Nodes -- [A, C], Lease_ms + 3000, fun() ->
        Suspension = test_nodes:suspend(A),
        {ok, _} = change(E, [D, E, F]),
        ok = test_nodes:resume(Suspension)
    end),
    ok = all_held(Holders, [A, C, E, F, G]),
    _ = [test_nodes:stop(Node) || Node <- Nodes],
    Rows = [
        {?ADD, Added}, {?REMOVE, Removed}, {?DEAD, Dead}, {?ALL, All}, {?LOST, worst(Lost)}, {?SUSPENDED, Suspended}
    ],
    [{{changes, Variant, 3, ours, Measure}, Value} || {Variant, Row} <- Rows, {Measure, Value} <- maps:to_list(Row)].

change(Node, Members) ->
    Names = test_quorum_cluster:members(Members),
    call(Node, fun() -> canal_lock_quorum:change_members(Names) end).

holder(Node) ->
    Worker = test_nodes:worker(Node),
    {ok, _} = test_quorum_cluster:lock(Worker, {held_on, name(Node)}, infinity),
    {Node, Worker}.

%% The locks of a node that was stopped or suspended ended.
all_held(Holders, Ended) ->
    [] = [
        name(Node)
     || {Node, Worker} <- Holders,
        not lists:member(Node, Ended),
        not test_quorum_cluster:held(Worker, {held_on, name(Node)})
    ],
    ok.

%% Waits until the node is a member with a new identity, and votes.
await_member(Node) ->
    call(Node, fun() ->
        test_await:value({member, true}, fun() ->
            #{role := Role, voting := Voting} = canal_lock_quorum:status(),
            {Role, Voting}
        end)
    end).

%% The load goes on for a while after the change should be over.
sample(Nodes, Longest_ms, Change, #{warm_up_ms := WarmUp_ms}) ->
    Starts_ns = os:system_time(nanosecond) + ?LEAD_MS * 1_000_000,
    Window_ms = ?BEFORE_MS + Longest_ms + 1000,
    Plan = #{starts_ns => Starts_ns, warm_up_ms => WarmUp_ms, window_ms => Window_ms},
    Work = #{calls => unlock_async, names => own, loops => 5},
    Self = self(),
    {Pid, Monitor} = spawn_monitor(fun() ->
        Self ! {self(), test_nodes:call_all(Nodes, fun() -> bench_cluster_load:run(Work, Plan) end)}
    end),
    timer:sleep(?LEAD_MS + WarmUp_ms + ?BEFORE_MS),
    {Took_us, _} = timer:tc(Change),
    receive
        {Pid, Done} ->
            true = demonitor(Monitor, [flush]),
            #{took => 1000 * Took_us, wait_longest => lists:max([Ns || #{longest_ns := Ns} <- Done])};
        {'DOWN', Monitor, process, Pid, Reason} ->
            error({load_failed, Reason})
    end.

worst([First | Samples]) ->
    Larger = fun(_, One, Other) -> max(One, Other) end,
    lists:foldl(fun(Sample, Worst) -> maps:merge_with(Larger, Sample, Worst) end, First, Samples).

-spec targets(Lease_ms :: pos_integer()) -> [bench:target()].
targets(Lease_ms) ->
    Bounds = fun
        (?LOST) -> [{took, 2000}, {wait_longest, 300}];
        (?SUSPENDED) -> [{took, Lease_ms + 3000}];
        (_) -> [{took, 1000}, {wait_longest, 300}]
    end,
    [
        {{value, {changes, Variant, 3, ours, Measure}}, {at_most, Bound_ms * 1.0e6}}
     || Variant <- variants(), {Measure, Bound_ms} <- Bounds(Variant)
    ].
