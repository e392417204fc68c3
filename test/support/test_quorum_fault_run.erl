%% Runs clients of quorum locks on a cluster, causes one fault after the other, and judges what the clients recorded.
%% After each fault it waits until clients on all nodes get locks again. At the end no node may have a lock or a vote,
%% the histories must keep the promises (test_quorum_history), and the register must have lost nothing.
-module(test_quorum_fault_run).

-export([run/2]).

%% For the faults.
-export([start_clients/2, start_locks/2, recovery/4, recovered/4, lost_at/3, must_lose/3, bound_ms/2, part_ms/2]).
-export([members/1, is_quorum/2]).
-export([now_ns/0, ns/1, ms/1, notice_ms/0]).

-export_type([setting/0, run/0]).

-import(test_faulty_cluster, [call/3, file/3, folder/1, name/2, node_at/2, indexes/1]).

%% `clients': the nodes that are clients of the quorum locks. All others are members. (The processes that use locks are
%% called clients here, too: each node has some, `busy' of one kind. They check a lock at most once in `pause_ms'.)
%% `users': the module of these processes, which may use what is built on quorum locks.
%% `enough': how many locks these are granted after the last start of their nodes, and how many additions the register
%% takes, before the run ends.
-type setting() :: #{
    nodes := pos_integer(),
    clients => [index()],
    users => module(),
    busy => pos_integer(),
    pause_ms => pos_integer(),
    lease_ms := pos_integer(),
    enough => #{granted := non_neg_integer(), adds := non_neg_integer()},
    network => namespaces | proxies,
    clocks => boolean(),
    arguments => [string()]
}.

-type run() :: #{
    cluster := test_faulty_cluster:cluster(),
    clients := [index()],
    users := module(),
    busy := pos_integer(),
    pause_ms := non_neg_integer(),
    lease_ms := pos_integer(),
    register := file:filename()
}.

-type known() :: test_quorum_history:known().
-type index() :: test_faulty_cluster:index().

%% A client may receive the message that its lock is lost this long after the end of the lease.
-define(NOTICE_MS, 1000).

%% How long nodes that come back may take to connect and to schedule their processes.
-define(SLACK_MS, 5000).

-define(BUSY_CLIENTS, 3).

%% A limit for a run that hangs.
-define(ENOUGH_MS, 60_000).

%% What a node has at the end.
-define(EMPTY, #{voter_empty => true, held => 0, waiting => 0, pending_unlocks => 0}).

%% `seen': a description for each fault. `wrong': the promises that were broken.
-spec run(setting(), [test_quorum_faults:fault()]) ->
    #{
        seen := [{test_quorum_faults:fault(), string()}],
        counts := #{atom() => non_neg_integer()},
        wrong := [{Promise :: atom(), Details :: term()}]
    }.
run(Setting = #{lease_ms := Lease_ms}, Faults) ->
    Cluster = test_faulty_cluster:start(maps:with([nodes, network, clocks, arguments], Setting)),
    Path = filename:join(folder(Cluster), "register"),
    Register = test_quorum_register:start(Path),
    try
        Run = #{
            cluster => Cluster,
            clients => maps:get(clients, Setting, []),
            users => maps:get(users, Setting, test_quorum_clients),
            busy => maps:get(busy, Setting, ?BUSY_CLIENTS),
            pause_ms => maps:get(pause_ms, Setting, 0),
            lease_ms => Lease_ms,
            register => Path
        },
        start_clients(Run, indexes(Cluster)),
        {_, Start} = recovery(Run, indexes(Cluster), now_ns(), bound_ms(0, Run)),
        Caused = [{Fault, test_quorum_faults:cause(Fault, Run)} || Fault <- Faults],
        await_enough(maps:get(enough, Setting, #{granted => 0, adds => 0}), Register, Run),
        Left = stop_clients(Run),
        Clients = test_facts:read(folder(Cluster)),
        Known = Start ++ lists:append([Its || {_, {_, Its}} <- Caused]) ++ Left,
        History = #{clients => Clients, known => Known},
        Result = #{lost := Lost} = test_quorum_register:result(Register),
        #{
            seen => [{Fault, Seen} || {Fault, {Seen, _}} <- Caused],
            counts => maps:merge(test_quorum_history:counts(History), maps:remove(lost, Result)),
            wrong => (maps:get(users, Run)):violations(History, Lease_ms) ++ lost(Lost, Result, Faults, Run)
        }
    after
        test_quorum_register:stop(Register),
        test_faulty_cluster:stop(Cluster)
    end.

%% A number without fences is correct only if no client paused for long between the check of its lock and the write.
%% After a pause, or a busy scheduler, the lock may have expired, and only a fence protects the number.
lost(Lost, #{slowest_ms := Slowest_ms}, Faults, Run) ->
    Paused = Slowest_ms > (part_ms(lease, Run) - part_ms(holder_lease, Run)) div 2,
    AtOnce = lists:any(fun test_quorum_faults:grants_at_once/1, Faults),
    [{nothing_lost, Of} || Of <- Lost, element(1, Of) =:= fenced orelse (not Paused andalso not AtOnce)].

%% Starts locks and clients on nodes that have none.
-spec start_clients(run(), [index()]) -> ok.
start_clients(Run = #{cluster := Cluster, users := Users, register := Register}, Indexes) ->
    [start_locks(Index, Run) || Index <- Indexes],
    Options = #{
        start => erlang:unique_integer([positive]),
        folder => folder(Cluster),
        register => Register,
        busy => maps:get(busy, Run),
        pause_ms => maps:get(pause_ms, Run),
        lease_ms => part_ms(lease, Run)
    },
    [call(Cluster, Index, fun() -> Users:start(Options#{index => Index}) end) || Index <- Indexes],
    ok.

await_enough(#{granted := Granted, adds := Adds}, Register, Run = #{cluster := Cluster}) ->
    IsEnough = fun() ->
        #{adds := Added} = test_quorum_register:result(Register),
        Added >= Adds andalso lists:sum([granted(Run, Index) || Index <- indexes(Cluster)]) >= Granted
    end,
    test_await:value(true, IsEnough, ?ENOUGH_MS).

%% What is left on the nodes when all clients have ended and the leases of their locks are over.
stop_clients(Run = #{cluster := Cluster, users := Users}) ->
    Stop = fun(Call) -> test_await:in_parallel(fun(Index) -> call(Cluster, Index, Call) end, indexes(Cluster)) end,
    _ = Stop(fun Users:stop/0),
    _ = Stop(fun Users:shut_down/0),
    Until = now_ns() + ns(bound_ms(0, Run)),
    [
        {left, Index, test_await:last_value([], fun() -> left(Index, Run) end, ms(Until - now_ns()))}
     || Index <- indexes(Cluster)
    ].

left(Index, Run = #{cluster := Cluster}) ->
    Empty = maps:put(voting, lists:member(Index, members(Run)), ?EMPTY),
    State = test_quorum_cluster:state(node_at(Cluster, Index)),
    maps:to_list(maps:with(maps:keys(Empty), State)) -- maps:to_list(Empty).

-spec start_locks(index(), run()) -> ok.
start_locks(Index, Run = #{cluster := Cluster, clients := Clients, lease_ms := Lease_ms}) ->
    Options = #{members => [name(Cluster, Member) || Member <- members(Run)], lease_ms => Lease_ms},
    OfRole =
        case {lists:member(Index, Clients), Clients} of
            {true, _} -> #{voter => false};
            {false, []} -> #{state_file => file(Cluster, state, Index), clients => none};
            {false, _} -> #{state_file => file(Cluster, state, Index)}
        end,
    test_quorum_cluster:start(node_at(Cluster, Index), maps:merge(Options, OfRole)).

%% The nodes that vote.
-spec members(run()) -> [index()].
members(#{cluster := Cluster, clients := Clients}) ->
    indexes(Cluster) -- Clients.

%% Whether more than half of the members are among these nodes.
-spec is_quorum([index()], run()) -> boolean().
is_quorum(Indexes, Run) ->
    Members = members(Run),
    2 * length([Index || Index <- Indexes, lists:member(Index, Members)]) > length(Members).

%% Waits until clients of all these nodes are granted a lock. How long it took, and by when it had to be.
-spec recovery(run(), [index()], From_ns :: integer(), Within_ms :: integer()) -> {Took_ms :: integer(), [known()]}.
recovery(Run, Indexes, From, Within_ms) ->
    Before = [{Index, granted(Run, Index)} || Index <- Indexes],
    %% The judge finds what takes longer than `Within_ms'.
    Until = From + 3 * ns(Within_ms),
    [
        test_await:last_value(true, fun() -> granted(Run, Index) > Granted end, ms(Until - now_ns()))
     || {Index, Granted} <- Before
    ],
    {ms(now_ns() - From), [{recovers, Index, From, From + ns(Within_ms)} || Index <- Indexes]}.

granted(#{cluster := Cluster, users := Users}, Index) ->
    call(Cluster, Index, fun Users:granted/0).

%% The recovery of all nodes after a fault of this length, and a description of it.
-spec recovered(run(), [index()], From_ns :: integer(), Fault_ms :: integer()) -> {Seen :: string(), [known()]}.
recovered(Run, Indexes, From, Fault_ms) ->
    {Took_ms, Known} = recovery(Run, Indexes, From, bound_ms(Fault_ms, Run)),
    {lists:concat(["locks on all nodes after ", Took_ms, " ms"]), Known}.

%% The number of clients on these nodes that got a message since then that their lock is lost.
-spec lost_at(run(), [index()], Since_ns :: integer()) -> non_neg_integer().
lost_at(#{cluster := Cluster}, Indexes, Since) ->
    length([
        Request
     || {{Index, _}, Facts} <- test_facts:read(folder(Cluster)),
        lists:member(Index, Indexes),
        {lost, At, Request} <- Facts,
        At > Since
    ]).

%% When a lease has expired, the clients of a node get messages that the locks they had are lost.
-spec must_lose(index(), Since_ns :: integer(), run()) -> known().
must_lose(Index, Since, Run) ->
    {must_lose, Index, Since, Since + ns(part_ms(holder_lease, Run) + ?NOTICE_MS)}.

%% How long a cluster may take to recover from a fault of this length: leases expire, voters are in quarantine, and TCP,
%% which doubles its intervals, sends again.
-spec bound_ms(Fault_ms :: integer(), run()) -> integer().
bound_ms(Fault_ms, Run) ->
    2 * (part_ms(lease, Run) + Fault_ms) + ?SLACK_MS.

%% A time of native/quorum/src/rules.rs.
-spec part_ms(lease | holder_lease | heartbeat | attempt, run()) -> pos_integer().
part_ms(lease, #{lease_ms := Lease_ms}) -> Lease_ms;
part_ms(holder_lease, #{lease_ms := Lease_ms}) -> Lease_ms * 4 div 5;
part_ms(heartbeat, #{lease_ms := Lease_ms}) -> Lease_ms div 5;
part_ms(attempt, #{lease_ms := Lease_ms}) -> Lease_ms div 10.

-spec now_ns() -> integer().
now_ns() ->
    test_facts:now_ns().

-spec ns(integer()) -> integer().
ns(Ms) -> Ms * 1_000_000.

-spec ms(integer()) -> integer().
ms(Ns) -> Ns div 1_000_000.

-spec notice_ms() -> pos_integer().
notice_ms() ->
    ?NOTICE_MS.
