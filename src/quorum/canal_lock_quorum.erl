%% @doc Read/write locks of names across nodes: at any time a name has one writer, or any number of readers.
%%
%% The <em>members</em> are up to 16 nodes, which {@link change_members/1} changes. Other nodes can be
%% <em>clients</em>, which lock and do not vote. A <em>lock</em> is held while a quorum votes for it: more than half of
%% the members. So there is no master, and up to `(N - 1) div 2' of `N' members may be down or unreachable. Without a
%% quorum no lock is granted, and holders get `lost' after at most 8 s. Each vote has a lease: two nodes that cannot
%% reach each other never both hold a name as writers. Readers can hold it together.
%%
%% ```
%% 1> {ok, _Pid} = canal_lock_quorum:start_link(#{members => [node()]}).
%% {ok,<0.84.0>}
%% 2> {ok, Lock} = canal_lock_quorum:lock({invoice, 17}, 5000), canal_lock_quorum:is_held(Lock).
%% true
%% 3> canal_lock_quorum:unlock_async(Lock).
%% ok
%% '''
%%
%% A <em>name</em> is a binary, an atom, an integer, or a tuple or list of names, of at most 1024 bytes in the external
%% term format. Tuples that begin with `canal_lock_cluster' are reserved: calls with such a name raise `badarg'. The
%% <em>holder</em> of a lock is the process that asked for it. It gets messages:
%%
%% <ul>
%% <li>`{canal_lock_quorum, at_risk, Lock}': for 4 s, too few voters have confirmed the lock. It is still held, but may
%% be lost soon.</li>
%% <li>`{canal_lock_quorum, lost, Lock}': the lock is not held any more. Too few voters could be reached, or
%% {@link force_unlock/1} was called for a name, or canal_lock_quorum was stopped or has crashed on this node.</li>
%% </ul>
%%
%% When the holder dies, its locks are unlocked. Any process of the holder's node may unlock a lock.
%%
%% A holder can be suspended after it has checked its lock, and go on after the lock is lost. Only the resource can
%% reject its writes then. Send {@link fence/1} with each write, and let the resource reject a fence that is lower than
%% the highest one it has seen. `docs/cluster.md' describes how to start and operate quorum locks, `docs/quorum.md' the
%% protocol and its limits. Times in seconds are those of the default lease.
%%
%% == Errors ==
%% A wrong argument raises `badarg'. So does any call while canal_lock_quorum is not started on this node. The shell
%% shows which argument is wrong, and why (`error_info', EEP 54). A call that raises has changed nothing. If the process
%% that serves a call is killed, the call exits as `gen_server:call/2' does.
-module(canal_lock_quorum).

-define(ERRORS, canal_lock_quorum_errors).
-include("../canal_lock_errors.hrl").

-export([start_link/1, child_spec/1, stop/0]).
-export([lock/2, rlock/2, lock_many/2, rlock_many/2, with_lock/3, with_rlock/3]).
-export([is_held/1, fence/1, unlock/1, unlock_async/1]).
-export([change_members/1, reset_members/1]).
-export([ready/0, status/0, locks/0, holder/1, waiting/1, force_unlock/1, top/0, top/1]).

-export_type([name/0, lock/0, refusal/0, options/0, lock_info/0, waiting_info/0, status/0, member_status/0,
    client_status/0, view/0, change_answer/0, view_record/0, why/0, totals/0]).

%% How long locks/0, holder/1 and waiting/1 wait for the other nodes.
-define(ASK_MS, 5000).

%% Turns the exit of a call to a process that is not started into `{raise, not_started}'.
-define(STARTED(Call),
    try
        Call
    catch
        exit:noproc -> {raise, not_started}
    end
).

-type name() :: canal_lock_quorum_names:name().
%% What a lock locks. Names are compared with `=:='.

-type lock() :: canal_lock_quorum_lock:lock().
%% A lock that is or was held. It can be compared, and sent to other processes of its node. Other nodes cannot use it.

-type refusal() :: timeout | no_quorum | too_many_waiting.
%% Why a lock was refused: not granted within the timeout; less than a quorum of the members is connected; `max_waiting'
%% requests of this node wait already.

-type options() :: canal_lock_quorum_config:options().
%% `members' (required): 1 to 16 nodes, in any order. At the first start of a cluster these are its members; all of them
%% must be started with the same list. Later they only say whom to ask for the members, which the state file has and
%% {@link change_members/1} changes. So this node may be missing: it is a client until it becomes a member. `voter'
%% (default `true'): `false' on a node that is always a <em>client</em>: it locks, is no member, and has no state file.
%% Its `members' are nodes to ask, without this node, and it takes `reconnect_ms', `lease_ms', `run', `max_waiting' and
%% `totals_interval_ms' besides. `clients' (default `all'): the clients that a member allows: `none', `all', or a list
%% of nodes. `state_file' (default: `NODE.canal_lock' in the folder `filename:basedir(user_data, "canal_lock")', which
%% is created): the file in which this node stores what it must know after a restart: the members, and its fences. Each
%% node needs a file of its own, in an existing folder ("The state file" in `docs/cluster.md'). A node without
%% distribution has no file by default: its fences begin anew each time. `reconnect_ms' (default 1000): the average
%% interval, in milliseconds, between attempts to connect to members that are not connected; up to a quarter of
%% `lease_ms' while these fail at once. `lease_ms' (default 10000, at least 1000): for how many milliseconds a voter
%% keeps votes without a message of their node, and how long a restarted voter grants nothing; the same on all members,
%% and fixed at the first start. A client takes that of the members. A lock is lost when too few of its votes have been
%% renewed for four fifths of it. `run' (1 to 255, default 16): how many processes of this node may hold a name one
%% after the other while other nodes wait. `max_waiting' (default 10000): the largest number of requests of this node
%% that wait for a lock at a time. `totals_interval_ms' (default 5000): how often the totals of {@link status/0} are
%% emitted as an event, if `telemetry' runs ({@link canal_lock_quorum_telemetry}).

-type lock_info() :: #{
    node := node(),
    holder := pid(),
    names := [name(), ...],
    mode := read | write,
    fence := non_neg_integer(),
    since_ms := integer(),
    held := boolean()
}.
%% A lock: its node, holder and names, and the time it was granted by the wall clock of its node
%% (`erlang:system_time(millisecond)').

-type waiting_info() :: #{
    node := node(),
    waiter := pid(),
    names := [name(), ...],
    mode := read | write,
    waited_ms := non_neg_integer()
}.
%% A request that waits for a lock: its node and process, and for how long it has waited.

-type member_status() :: #{
    node := node(), connected := boolean(), answers := boolean(), valid_ms := non_neg_integer()
}.
%% A member as this node sees it: whether it is connected, whether its voter answers, and for how many milliseconds its
%% votes stay valid without another answer.

-type client_status() :: #{
    node := node(), votes := non_neg_integer(), waiting := non_neg_integer(), heard_ms := non_neg_integer()
}.
%% A client as the voter of this node sees it: how many votes and waiting requests it has here, and the time
%% since its last frame. A client that has sent none for a lease is removed.

-type status() :: #{
    role := member | client,
    view := view() | none,
    members := [member_status()],
    clients := [client_status()],
    quorum := boolean(),
    voting := boolean(),
    waits_for := [node()],
    waiting := non_neg_integer(),
    queued := non_neg_integer(),
    held := non_neg_integer(),
    pending_unlocks := non_neg_integer(),
    state_file := binary() | none,
    totals := totals()
}.
%% The cluster as this node sees it. `role': whether the view has this node. `view': see {@type view()}; `none' before
%% the first one is known. `members': see {@type member_status()}. `clients': see {@type client_status()}; empty on a
%% client. `quorum': whether a quorum of members votes for writers, as this node sees it. A member that is connected and
%% answers does not always vote. `voting': whether the voter of this node votes for writers; `false' on a client. It
%% does not for up to a lease after its start or after a change of the members, or while its disk stores nothing and its
%% fences are used up. `waits_for': while it does not vote, the other nodes whose answers it waits for; `[]' also while
%% it waits for a lease. `queued': how many requests of all nodes wait at the voter of this node. For this node: the
%% number of requests that wait for a lock, of locks that are held, and of unlocks that more than half of the members
%% have not executed yet, and the totals. `state_file': its path, or `none' on a client and on a node without
%% distribution that was given none.

-type view() :: #{
    number := non_neg_integer(),
    members := [node(), ...],
    phase := voting | starting | client,
    waiting_for := [{node(), start | seal | settle | kept | lease | accept}]
}.
%% The members at a time, and the number of changes before. `phase': whether the voter of this node votes in it. Before
%% that, `waiting_for' says what it waits for: that a node starts (`start'), that a member of the view before stores
%% this one (`seal'), that a member stores the view of a reset (`accept'), that an agent has asserted its locks
%% (`settle'), that a lease passes (`lease'). While it votes: that no lock of an agent relies on the view before
%% (`kept'); until then the members cannot be changed again.

-type view_record() :: #{number := non_neg_integer(), members := [node(), ...]}.
%% A view.

-type why() ::
    down
    | {lease_ms, pos_integer()}
    | {state_file, Reason :: binary()}
    | {other_cluster, non_neg_integer()}
    | {no_answer_of_agents, [node(), ...]}.
%% Why a node cannot take part in a change: it does not answer; it has another lease; it cannot write its state file; it
%% is a member of another cluster; the agents of these nodes have votes there, and do not answer (the votes of a dead
%% one end within a lease).

-type change_answer() ::
    {ok, Number :: non_neg_integer()}
    | {error, {not_ready, [{node(), why()}]}}
    | {error, {changing | unknown | starting, view_record()}}
    | {error, {running, [node(), ...]}}.
%% See {@link change_members/1} and {@link reset_members/1}.

-type totals() :: canal_lock_quorum_totals:totals().
%% Counts of this node since canal_lock_quorum was started. Requests: `granted', of which `passed' got the lock
%% from another process of the node without a message; `refused_timeout', `refused_no_quorum' and
%% `refused_too_many_waiting'; and `canceled', whose callers have died.
%% Ends of locks: `unlocked' by a call or by the death of the holder, `lost', and `revoked'; `granted' is the sum of
%% these and of the held locks. `at_risk': messages to holders. `wait_us': the time in microseconds that the granted
%% requests waited; `longest_wait_us': the longest wait since the last telemetry event, or since the start. `recalled':
%% how often a request gave its votes back, because an older one of another node waited for them.

%% @doc Starts the quorum locks of this node: a supervisor, linked to the caller and registered as `canal_lock_quorum'.
%%
%% `Options' is a map; see {@type options()}. At the first start of a cluster, all members must be started with the same
%% `members' and `lease_ms': a node waits for the others, and {@link status/0} names those. A node that has a state file
%% goes on with the members in it.
%%
%% A member that starts votes after a lease, or earlier, when all agents have answered and no client had votes there. A
%% node without the state file that it had as a member proposes itself as a new member, and votes when the others have
%% taken it.
%%
%% Answers `{error, {already_started, Pid}}' if it runs, `{error, {nif_not_loaded, Text}}' if the native library does
%% not load (`Text' is a binary), `{error, {state_file_in_use, Path}}' if another node on this machine has used the
%% file and still runs, `{error, {state_file_not_writable, Path, Text}}' if its folder does not exist or cannot be
%% written, `{error, {state_file_not_usable, Path, Text}}' if it is that of another node, or no state file; then it is
%% not changed; and `{error, {lease_ms, Given, Stored}}' if the members have another `lease_ms', which is in the file.
%% Raises `badarg' if an option is wrong. Logs a warning if the VM can lose the wakeup of a process: OTP 25 before
%% 25.3.2.10, and OTP 26 before 26.2.3.
-spec start_link(options()) -> {ok, pid()} | {error, term()}.
start_link(Options) ->
    ?ANSWER([Options], canal_lock_quorum_sup:start_link(Options)).

%% @doc The child specification of the quorum locks, for a supervisor.
%%
%% In Erlang the child is `canal_lock_quorum:child_spec(#{members => Members})', in Elixir
%% `{CanalLock.Quorum, members: members}'. Raises `badarg' if `Options' is not a map; {@link start_link/1} checks the
%% options themselves.
-spec child_spec(options()) -> supervisor:child_spec().
child_spec(Options) ->
    ?CHECKED([Options], #{
        id => canal_lock_quorum,
        start => {canal_lock_quorum, start_link, [Options]},
        type => supervisor,
        shutdown => infinity
    }).

%% @doc Stops the quorum locks of this node. Its locks are lost and unlocked, the holders are notified, and its voter
%% forgets its votes. If it has a supervisor, the supervisor restarts it. Exits with `noproc' if it does not run.
-spec stop() -> ok.
stop() ->
    canal_lock_quorum_sup:stop().

%% @doc Locks `Name' for the calling process, exclusively.
%%
%% Waits for at most `Timeout_ms' milliseconds, or without a limit if it is `infinity'. Then answers `{error, timeout}'.
%% With a timeout of 0 it <em>tries</em>: it waits only for the answers of the members, for two round trips or 0.1 s,
%% whichever is longer, and answers `{error, timeout}' if too few of them vote for it now. Of two nodes that try at the
%% same time, both may get this answer. Answers `{error, no_quorum}' at once if less than a quorum of the members is
%% connected, and `{error, too_many_waiting}' at once if as many requests of this node wait as the option `max_waiting'
%% allows. The members get no message of such a request. A process that locks a name twice waits for itself. Raises as
%% described for the module.
%%
%% Nodes get the name about in the order of their requests; no order is guaranteed. Up to 16 processes of a node then
%% hold it one after the other (the option `run'). The last of them gets it at most 50 ms after another node has asked
%% for it.
%%
%% Cost: a round trip to a quorum of voters, and one more while nodes contend for the name. No round trip if another
%% process of this node passes the lock on.
-spec lock(name(), Timeout_ms :: timeout()) -> {ok, lock()} | {error, refusal()}.
lock(Name, Timeout_ms) ->
    ?ANSWER_OR_EXIT([Name, Timeout_ms], ?STARTED(lock(write, [Name], Timeout_ms))).

%% @doc Locks `Name' for the calling process, together with other readers. A waiting writer keeps new readers out.
%% Otherwise as {@link lock/2}.
-spec rlock(name(), Timeout_ms :: timeout()) -> {ok, lock()} | {error, refusal()}.
rlock(Name, Timeout_ms) ->
    ?ANSWER_OR_EXIT([Name, Timeout_ms], ?STARTED(lock(read, [Name], Timeout_ms))).

%% @doc Locks all of 1 to 64 `Names' for the calling process, exclusively, or none of them. They are one lock, which
%% needs one quorum. Two processes that lock some of the same names never deadlock. Otherwise as {@link lock/2}.
-spec lock_many([name(), ...], Timeout_ms :: timeout()) -> {ok, lock()} | {error, refusal()}.
lock_many(Names, Timeout_ms) ->
    ?ANSWER_OR_EXIT([Names, Timeout_ms], ?STARTED(lock(write, Names, Timeout_ms))).

%% @doc Locks all of 1 to 64 `Names' as {@link rlock/2}, or none of them. Otherwise as {@link lock_many/2}.
-spec rlock_many([name(), ...], Timeout_ms :: timeout()) -> {ok, lock()} | {error, refusal()}.
rlock_many(Names, Timeout_ms) ->
    ?ANSWER_OR_EXIT([Names, Timeout_ms], ?STARTED(lock(read, Names, Timeout_ms))).

lock(Mode, Names, Timeout_ms) when ?IS_TIMEOUT(Timeout_ms) ->
    case canal_lock_quorum_names:encode_all(Names) of
        {ok, Bytes} -> canal_lock_quorum_agent:lock(Mode, Names, Bytes, Timeout_ms);
        {error, _} -> {raise, badarg}
    end;
lock(_, _, _) ->
    {raise, badarg}.

%% @doc Calls `Fun', a function of one argument, with a lock of `Name'.
%%
%% The lock is unlocked as by {@link unlock_async/1} when `Fun' returns (then the answer is `{ok, Result}'), when it
%% throws, exits or raises (which passes to the caller), and when the process is killed. The lock can be lost while
%% `Fun' runs: `Fun' can check it with {@link is_held/1}, the resource with {@link fence/1}.
%% Otherwise as {@link lock/2}.
-spec with_lock(name(), Timeout_ms :: timeout(), fun((lock()) -> Result)) -> {ok, Result} | {error, refusal()}.
with_lock(Name, Timeout_ms, Fun) when is_function(Fun, 1) ->
    call_with(?ANSWER_OR_EXIT([Name, Timeout_ms, Fun], ?STARTED(lock(write, [Name], Timeout_ms))), Fun);
with_lock(Name, Timeout_ms, Fun) ->
    ?RAISE(badarg, [Name, Timeout_ms, Fun]).

%% @doc Calls `Fun', a function of one argument, with a reader's lock of `Name'. As {@link with_lock/3} and {@link
%% rlock/2}.
-spec with_rlock(name(), Timeout_ms :: timeout(), fun((lock()) -> Result)) -> {ok, Result} | {error, refusal()}.
with_rlock(Name, Timeout_ms, Fun) when is_function(Fun, 1) ->
    call_with(?ANSWER_OR_EXIT([Name, Timeout_ms, Fun], ?STARTED(lock(read, [Name], Timeout_ms))), Fun);
with_rlock(Name, Timeout_ms, Fun) ->
    ?RAISE(badarg, [Name, Timeout_ms, Fun]).

call_with({ok, Lock}, Fun) ->
    try
        {ok, Fun(Lock)}
    after
        unlock_async(Lock)
    end;
call_with({error, Reason}, _) ->
    {error, Reason}.

%% @doc Whether the lock is held. `true' means that it was held at an instant of this call, and that no process of
%% another node held the name at that instant, except as a reader if this is a reader's lock. Raises `badarg' if `Lock'
%% is not a lock of this node. Cost: reads a few words of memory and the clock, less than a microsecond; no message.
-spec is_held(lock()) -> boolean().
is_held(Lock) ->
    ?ANSWER([Lock], canal_lock_quorum_lock:is_held(Lock)).

%% @doc The fence of a lock: a number for the resource to check.
%%
%% The fences of the writers of a name always grow. The fence of a reader is at least that of the last writer before it,
%% and can be higher than that of the next writer. So a resource must store the fences of writers only. Raises `badarg'
%% if `Lock' is not a lock.
-spec fence(lock()) -> non_neg_integer().
fence(Lock) ->
    ?ANSWER([Lock], canal_lock_quorum_lock:fence(Lock)).

%% @doc Unlocks a lock and waits until a quorum has confirmed it. If another process of this node waits for the name,
%% the lock is passed on to it without a wait.
%%
%% Answers `{error, not_held}' if the lock was lost or unlocked before. Answers `{error, timeout}' if no quorum has
%% confirmed within `lease_ms'. The lock is unlocked in this case, too: members that cannot be reached drop
%% their votes when the lease expires. Raises `badarg' if `Lock' is not a lock of this node. Cost: a round trip to a
%% quorum of voters.
-spec unlock(lock()) -> ok | {error, not_held | timeout}.
unlock(Lock) ->
    ?ANSWER_OR_EXIT([Lock], ?STARTED(unlock_by_id(canal_lock_quorum_lock:id(Lock)))).

unlock_by_id(not_held) -> {error, not_held};
unlock_by_id({raise, Cause}) -> {raise, Cause};
unlock_by_id(Id) -> canal_lock_quorum_agent:unlock(Id).

%% @doc Unlocks a lock without a wait. The lock is not held any more when the call returns. The members are notified in
%% the background. A later lock by the caller never fails because of the old one.
%%
%% A failure to notify the members is logged, and each of them drops its vote when the lease expires. The call waits
%% only while more than 4096 unlocks are pending (see {@link status/0}). If the lock was
%% lost or unlocked before, answers `{error, not_held}'. Raises `badarg' if `Lock' is not a lock of this node. Cost: a
%% message to a process of this node, 1 to 7 microseconds.
-spec unlock_async(lock()) -> ok | {error, not_held}.
unlock_async(Lock) ->
    ?ANSWER([Lock], unlock_by_handle(Lock)).

unlock_by_handle(Lock) ->
    case canal_lock_quorum_lock:unlock_async(Lock) of
        not_held -> {error, not_held};
        full -> unlock_async_by_id(canal_lock_quorum_lock:id(Lock));
        Answer -> Answer
    end.

unlock_async_by_id(not_held) ->
    {error, not_held};
unlock_async_by_id(Id) ->
    %% If the agent dies during the call, the lock is lost with it.
    try
        canal_lock_quorum_agent:unlock_async(Id)
    catch
        exit:_ -> {error, not_held}
    end.

%% @doc Replaces the list of members: `Members' are 1 to 16 nodes that run. Call it on any member. Held locks stay held.
%% New locks wait for some round trips and writes to the disk, or for a lease if a node dies or is cut off during the
%% change.
%%
%% Answers `{ok, Number}' when a quorum of the new members votes and no lock needs the old ones. Nodes that left the
%% list can then be stopped permanently. Until they are stopped, they are clients. If the list does not change, the call
%% answers when the last change is over. A step that takes two leases ends the call with an error:
%%
%% <ul>
%% <li>`{error, {not_ready, [{Node, Why}]}}': nothing was changed; see {@type why()}.</li>
%% <li>`{error, {changing, Record}}': another change is not over, or was made instead.</li>
%% <li>`{error, {unknown, Record}}': too few of the old members answered. They may still decide on the change.</li>
%% <li>`{error, {starting, Record}}': it is decided, and too few of the new members vote yet. It goes on by itself.</li>
%% </ul>
%%
%% Call it again to wait for the end. Raises `badarg' if `Members' is no such list, and as described for the module.
-spec change_members([node(), ...]) -> change_answer().
change_members(Members) ->
    ?ANSWER_OR_EXIT([Members], ?STARTED(change(change, Members))).

%% @doc Makes a new cluster of `Members' after more than half of the old ones were lost permanently. Call it on one of
%% `Members', all of which must run. All locks are lost. New locks wait for a lease, and their fences begin 2^40 above
%% those that `Members' know. After an earlier reset, `Members' must have one that took part in it: the others know only
%% lower fences.
%%
%% <em>Old members outside the list must never run again with their state files.</em> If more than half of the old ones
%% do, they are the old cluster, and two processes can hold a name.
%%
%% Answers `{ok, 0}' when all of `Members' have taken it; `{error, {running, Nodes}}' if these members outside the list
%% answer; `{error, {not_ready, [{Node, Why}]}}' if some of `Members' cannot; `{error, {changing, Record}}' while
%% another reset is made; and `{error, {starting, Record}}' if some have taken it and others do not answer: start these.
%% Raises `badarg' if `Members' is no list of 1 to 16 nodes with this one, and as described for the module.
-spec reset_members([node(), ...]) -> change_answer().
reset_members(Members) ->
    ?ANSWER_OR_EXIT([Members], ?STARTED(change(reset, Members))).

change(How, Members) ->
    case canal_lock_quorum_config:wrong_members(Members) =:= none of
        true when How =:= change -> change_on_member(How, Members);
        true -> reset(lists:member(node(), Members), Members);
        false -> {raise, badarg}
    end.

reset(true, Members) -> change_on_member(reset, Members);
reset(false, _) -> {raise, badarg}.

change_on_member(How, Members) ->
    case canal_lock_quorum_agent:status() of
        #{has_voter := true} -> canal_lock_quorum_voter:change(How, Members);
        #{has_voter := false} -> {raise, no_voter}
    end.

%% @doc Whether this node does its part: a member votes, a client reaches a quorum of members that vote. For readiness
%% probes: of several members, restart the next one when this one is ready. `false' also while canal_lock_quorum is not
%% started, or does not answer. Cost: as {@link status/0}.
-spec ready() -> boolean().
ready() ->
    try canal_lock_quorum_status:read() of
        #{voting := true} -> true;
        #{role := Role, view := View, quorum := Quorum} -> Role =:= client andalso View =/= none andalso Quorum
    catch
        exit:_ -> false
    end.

%% @doc The members and the locks of this node, as this node sees them: {@type status()}. Raises as described for the
%% module. Cost: a call to two processes of this node.
-spec status() -> status().
status() ->
    ?ANSWER_OR_EXIT([], ?STARTED(canal_lock_quorum_status:read())).

%% @doc The locks of all members and clients, and those nodes that did not answer within five seconds. Raises as
%% described for the module. Cost: a call to each of these nodes, which copies all of its locks. Where clients are
%% allowed, another call to each member before.
-spec locks() -> {[lock_info()], Silent :: [node()]}.
locks() ->
    Ask = fun() -> canal_lock_quorum_members:ask_all(canal_lock_quorum_lock_table, {infos, []}, ?ASK_MS) end,
    ?ANSWER_OR_EXIT([], ?STARTED(Ask())).

%% @doc The locks of `Name', of a writer or of readers, and the nodes that did not answer within five seconds. Such a
%% node can have more. Raises as described for the module. Cost: as {@link locks/0}, but each node copies the locks of
%% this name only. It searches all of its locks: about 20 ms for 100,000 of them.
-spec holder(name()) -> {[lock_info()], Silent :: [node()]}.
holder(Name) ->
    ?ANSWER_OR_EXIT([Name], ?STARTED(ask_for(Name, canal_lock_quorum_lock_table, infos))).

%% @doc The requests that wait for `Name', the longest wait first, and the nodes that did not answer within five
%% seconds. They do not get the lock in this order. Raises as described for the module. Cost: as {@link locks/0}; the
%% agent's process of each node reads all its waiting requests: about a millisecond for 10,000 of them.
-spec waiting(name()) -> {[waiting_info()], Silent :: [node()]}.
waiting(Name) ->
    {Infos, Silent} = ?ANSWER_OR_EXIT([Name], ?STARTED(ask_for(Name, canal_lock_quorum_agent, waiting))),
    {lists:sort(fun(#{waited_ms := One}, #{waited_ms := Other}) -> One >= Other end, Infos), Silent}.

ask_for(Name, Module, Function) ->
    case canal_lock_quorum_names:encode(Name) of
        {ok, _} -> canal_lock_quorum_members:ask_all(Module, {Function, [Name]}, ?ASK_MS);
        {error, _} -> {raise, badarg}
    end.

%% @doc Revokes all locks of `Name', of a writer or of all readers. Their holders get `lost'.
%%
%% Answers `ok' when the request is on its way to the members that this node is connected to; a quorum of them is
%% enough. {@link holder/1} shows whether a lock is left: call it, and this function again if needed.
%%
%% Other processes can lock the name when the holder's node has confirmed the revocation, or after `lease_ms' of
%% silence. So there are never two writers. Requests that wait for the name are not refused. Raises as described for the
%% module. Cost: a call of a process of this node.
-spec force_unlock(name()) -> ok.
force_unlock(Name) ->
    ?ANSWER_OR_EXIT([Name], ?STARTED(revoke(Name))).

revoke(Name) ->
    case canal_lock_quorum_names:encode(Name) of
        {ok, Bytes} -> canal_lock_quorum_agent:revoke(Bytes);
        {error, _} -> {raise, badarg}
    end.

%% @equiv top(#{})
-spec top() -> ok.
top() ->
    ?ANSWER([], canal_lock_screen:run(canal_lock_quorum_top, #{})).

%% @doc Shows the quorum locks as this node sees them in a shell, as text, until Enter is pressed.
%%
%% The first lines are numbers of this node: locks that are held, requests that wait, and unlocks that are pending; then
%% rates per second since the last refresh: locks granted, those of them that another process of this node has passed
%% on, the mean wait of the granted ones, requests refused for any reason, and locks lost. A number is `-' at first and
%% after canal_lock_quorum was started again. The next line says whether a quorum of voters answers and whether this
%% node votes, and the number of the view.
%%
%% Then follow the names that most requests of this node wait for, if any wait, each with the longest wait and its
%% holder on this node; of several readers, the one that has held it longest, and how many more there are. Then the
%% processes of this node that hold most locks, with the age of the oldest one and what identifies the process, as in
%% {@link canal_lock:top/1}; the members, those that need attention first, and how long their votes stay valid; and on a
%% member the clients that it knows, those with most votes here first. {@type status()} explains these.
%%
%% If canal_lock_quorum stops, or its agent or voter does not answer for five seconds, the screen says so, until it does
%% again. Options, input, output and end are those of {@link canal_lock:top/1}.
%%
%% Raises as described for the module, if canal_lock_quorum is not started at the time of the call. Cost: each refresh
%% takes one {@link status/0}, and at most 5 ms of the agent's process to count waiting requests; of more than about
%% 10,000 requests, it counts some. Then it reads the held locks in pieces of 0.1 ms, which the agent may have to wait
%% for; all of 100,000 locks take 50 ms. The pause that follows is at least three times as long as the refresh took.
-spec top(canal_lock:view_options()) -> ok.
top(Options) ->
    ?CHECKED([Options], ?ANSWER([Options], canal_lock_screen:run(canal_lock_quorum_top, Options))).
