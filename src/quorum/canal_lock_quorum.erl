%% @doc Locks of names across nodes: one writer, or readers, at a time, on all nodes together.
%%
%% The <em>members</em> are up to 16 nodes, the same list on each. A <em>lock</em> is held when more than half of them
%% have a vote for it. So no member is a master, and up to `(N - 1) div 2' of `N' may be down or out of reach; with less
%% than a quorum nobody gets a lock, and who has one is told that it is lost. A lock is kept by a lease: two nodes that
%% cannot reach each other never both hold a name.
%%
%% ```
%% 1> {ok, _Pid} = canal_lock_quorum:start_link(#{members => [node()]}).
%% {ok,<0.84.0>}
%% 2> {ok, Lock} = canal_lock_quorum:lock({invoice, 17}, 5000), canal_lock_quorum:held(Lock).
%% true
%% 3> canal_lock_quorum:try_unlock(Lock).
%% ok
%% '''
%%
%% A <em>name</em> is a binary, an atom, an integer, or a tuple or list of names; of at most 1024 bytes in the external
%% term format. The <em>holder</em> of a lock is the process that asked for it. It gets messages:
%%
%% <ul>
%% <li>`{canal_lock, at_risk, Lock}': voters have not answered for half of the lease; it may be lost soon.</li>
%% <li>`{canal_lock, lost, Lock}': it is not held any more. Voters could not be reached, or the name was unlocked by
%% force, or canal_lock_quorum was stopped or has crashed here.</li>
%% </ul>
%%
%% When the holder dies, its locks are given back. Any process of its node may give a lock back.
%%
%% What a paused holder does after its lock is lost only the resource can refuse: give it {@link fence/1}, and let it
%% refuse a lower one than it has seen. `docs/quorum.md' says how it all works, and what it cannot promise.
%%
%% == Errors ==
%% A wrong argument raises `badarg', and so does any call while canal_lock_quorum is not started on this node. The shell
%% says which argument it is, and why (`error_info', EEP 54). When something raises, nothing has changed. If the process
%% that answers is killed meanwhile, a call exits as `gen_server:call/2' does.
-module(canal_lock_quorum).

-export([start_link/1, child_spec/1, stop/0]).
-export([lock/2, rlock/2, lock_many/2, with_lock/3]).
-export([held/1, fence/1, unlock/1, try_unlock/1]).
-export([status/0, locks/0, force_unlock/1]).

-export_type([name/0, lock/0, options/0, lock_info/0, status/0]).

%% How long other nodes may take to tell what they hold.
-define(TELL_MS, 5000).

%% Macros: the function that raises is the one that is shown. What is wrong with the arguments is found out again then,
%% by canal_lock_quorum_errors; the calls themselves only see that something is, and answer `wrong'.
-define(RAISE(Cause, Arguments),
    error(badarg, Arguments, [{error_info, #{module => canal_lock_quorum_errors, cause => Cause}}])
).

-define(CHECKED(Arguments, Call),
    case Call of
        wrong -> ?RAISE(badarg, Arguments);
        Checked -> Checked
    end
).

%% A call of a process of ours.
-define(CALLED(Arguments, Call),
    try
        Call
    catch
        exit:{noproc, _} -> ?RAISE(not_started, Arguments);
        exit:{Reason, _} -> exit({Reason, {?MODULE, ?FUNCTION_NAME, Arguments}})
    end
).

%% What a lock of another node's, or of an earlier life, raises.
-define(OF_THIS_NODE(Arguments, Call),
    try
        Call
    catch
        error:badarg -> ?RAISE(not_of_this_node, Arguments);
        error:not_loaded -> ?RAISE(not_started, Arguments)
    end
).

-define(IS_MS(Ms), is_integer(Ms), Ms >= 0, Ms < 1 bsl 32).

-type name() :: canal_lock_quorum_names:name().
%% What is locked. Names are compared with `=:='.

-type lock() :: canal_lock_quorum_lock:lock().
%% A lock that is or was held. Of use on its node alone; it may be compared, and sent to other processes there.

-type options() :: canal_lock_quorum_config:options().
%% `members': all nodes that vote, this one among them, in any order. `fence_file' (none): where to keep how far fences
%% have gone, so that they grow on when the node restarts; the file of this node alone, in a folder that is there.
%% `reconnect_ms' (1000): about how often to try to connect with members that are not connected. `rules': the constants
%% of the protocol, which have to be the same on all members; `docs/cluster.md' says what each does.

-type lock_info() :: #{
    node := node(),
    holder := pid(),
    names := [name(), ...],
    mode := read | write,
    fence := non_neg_integer(),
    since_ms := integer(),
    held := boolean()
}.
%% Who holds what where, and since when by the wall clock there (`erlang:system_time(millisecond)').

-type status() :: #{
    members := [#{node := node(), connected := boolean(), answers := boolean(), valid_ms := non_neg_integer()}],
    quorum := boolean(),
    voting := boolean(),
    waiting := non_neg_integer(),
    held := non_neg_integer(),
    pending_unlocks := non_neg_integer()
}.
%% As this node sees it. Of each member: whether it is connected, whether its voter answers, and for how many
%% milliseconds its votes count if it says nothing more. `quorum': whether enough of them answer for a lock.
%% `voting': whether the voter of this node votes, or is still finding out what is held. Of this node: requests that
%% wait for a lock, locks that are held, and locks given back of which a quorum has not heard yet.

%% @doc Starts the quorum locks of this node: a supervisor, linked to the caller and registered as `canal_lock_quorum'.
%%
%% See {@type options()}. All members have to be started with the same `members' and `rules'; nodes that differ do not
%% listen to each other, and log it. To change them, stop canal_lock_quorum on all nodes for longer than the lease of a
%% voter (10 s), and start it anew.
%%
%% The first time, and after a loss of the fences of more members than a quorum can do without, voting begins when all
%% members have been there once.
%%
%% `{error, {already_started, Pid}}' if it is; `{error, {nif_not_loaded, Sentences}}' if the native library does not
%% load.
-spec start_link(options()) -> {ok, pid()} | {error, term()}.
start_link(Options) ->
    case canal_lock_quorum_nif:load() of
        ok -> ?CHECKED([Options], start(Options));
        {error, Sentences} -> {error, {nif_not_loaded, Sentences}}
    end.

start(Options) ->
    case canal_lock_quorum_config:fault(Options) of
        none -> canal_lock_quorum_sup:start_link(canal_lock_quorum_config:make(Options));
        _ -> wrong
    end.

%% @doc For a supervisor. In Erlang the child is `canal_lock_quorum:child_spec(#{members => Members})', in Elixir
%% `{CanalLock.Quorum, members: members}'.
-spec child_spec(options()) -> supervisor:child_spec().
child_spec(Options) ->
    ?CHECKED([Options], child(Options)).

child(Options) when is_map(Options) ->
    #{
        id => canal_lock_quorum,
        start => {canal_lock_quorum, start_link, [Options]},
        type => supervisor,
        shutdown => infinity
    };
child(_) ->
    wrong.

%% @doc Stops the quorum locks of this node. Its locks are lost, which the holders are told, and given back; its voter
%% forgets what it has voted for.
%%
%% Exits with `noproc' if there is none. A supervisor starts it again.
-spec stop() -> ok.
stop() ->
    canal_lock_quorum_sup:stop().

%% @doc Locks `Name' for the calling process, alone.
%%
%% Waits for at most `Timeout_ms' milliseconds: `{error, timeout}'. `{error, no_quorum}' comes at once when less than a
%% quorum of members is connected. A process that locks a name twice waits for itself. Who waits is served roughly in
%% the order of coming, on all nodes; but when the turn of a node comes, up to 16 of its processes have the name one
%% after the other, for 50 ms or little more (the rules `run' and `run_ms'). No order is promised.
%%
%% Cost: a round trip to a quorum of members, and one more while other nodes fight for the name. No round trip for those
%% that have it from another process of this node.
-spec lock(name(), Timeout_ms :: non_neg_integer()) -> {ok, lock()} | {error, timeout | no_quorum}.
lock(Name, Timeout_ms) ->
    ?CHECKED([Name, Timeout_ms], ?CALLED([Name, Timeout_ms], locked(write, [Name], Timeout_ms))).

%% @doc Locks `Name' for the calling process, with other readers. A writer that waits keeps new readers out.
%%
%% Otherwise as {@link lock/2}.
-spec rlock(name(), Timeout_ms :: non_neg_integer()) -> {ok, lock()} | {error, timeout | no_quorum}.
rlock(Name, Timeout_ms) ->
    ?CHECKED([Name, Timeout_ms], ?CALLED([Name, Timeout_ms], locked(read, [Name], Timeout_ms))).

%% @doc Locks all of 1 to 64 `Names' for the calling process, alone, or none of them: they are one lock. Two processes
%% that lock some of the same names never wait for each other in a circle.
%%
%% Otherwise as {@link lock/2}.
-spec lock_many([name(), ...], Timeout_ms :: non_neg_integer()) -> {ok, lock()} | {error, timeout | no_quorum}.
lock_many(Names, Timeout_ms) ->
    ?CHECKED([Names, Timeout_ms], ?CALLED([Names, Timeout_ms], locked(write, Names, Timeout_ms))).

locked(Mode, Names, Timeout_ms) when ?IS_MS(Timeout_ms) ->
    case canal_lock_quorum_names:encode_all(Names) of
        {ok, Bytes} -> canal_lock_quorum_agent:lock(Mode, Names, Bytes, Timeout_ms);
        {error, _} -> wrong
    end;
locked(_, _, _) ->
    wrong.

%% @doc Calls `Fun' with a lock of `Name', which is given back ({@link try_unlock/1}) however `Fun' ends: when it
%% returns (`{ok, Result}'), when it throws, exits or raises (which goes on to the caller), and when the process is
%% killed.
%%
%% The lock may be lost while `Fun' runs: it is for `Fun' to look ({@link held/1}), and for the resource to check
%% ({@link fence/1}). Otherwise as {@link lock/2}.
-spec with_lock(name(), Timeout_ms :: non_neg_integer(), fun((lock()) -> Result)) ->
    {ok, Result} | {error, timeout | no_quorum}.
with_lock(Name, Timeout_ms, Fun) when is_function(Fun, 1) ->
    case ?CHECKED([Name, Timeout_ms, Fun], ?CALLED([Name, Timeout_ms, Fun], locked(write, [Name], Timeout_ms))) of
        {ok, Lock} ->
            try
                {ok, Fun(Lock)}
            after
                try_unlock(Lock)
            end;
        {error, Why} ->
            {error, Why}
    end;
with_lock(Name, Timeout_ms, Fun) ->
    ?RAISE(badarg, [Name, Timeout_ms, Fun]).

%% @doc Whether the lock is held, now. If so, it was so at a moment of this call, and no other node found the name held
%% then, but as a reader if this is one.
%%
%% Cost: reads some words of memory and the clock; no message, no call.
-spec held(lock()) -> boolean().
held(Lock) ->
    ?CHECKED([Lock], ?OF_THIS_NODE([Lock], canal_lock_quorum_lock:held(Lock))).

%% @doc A number for the resource to check. Those of the writers of a name always grow. That of a reader is at least
%% that of the last writer before it, and may be higher than that of the next one: resources remember those of writers
%% alone.
-spec fence(lock()) -> non_neg_integer().
fence(Lock) ->
    ?CHECKED([Lock], canal_lock_quorum_lock:fence(Lock)).

%% @doc Gives a lock back, and waits until a quorum has forgotten it; or does not wait, if another process of this node
%% waits for the name and has it next.
%%
%% `{error, not_held}' if it was lost or given back before. `{error, timeout}' if no quorum has answered for the length
%% of a lease: it is given back all the same, and members that cannot be reached forget it by themselves.
%%
%% Cost: a round trip to a quorum of members.
-spec unlock(lock()) -> ok | {error, not_held | timeout}.
unlock(Lock) ->
    case ?CHECKED([Lock], ?OF_THIS_NODE([Lock], canal_lock_quorum_lock:token(Lock))) of
        not_held -> {error, not_held};
        Token -> ?CALLED([Lock], canal_lock_quorum_agent:unlock(Token))
    end.

%% @doc Gives a lock back, and does not wait: it is not held from now on, and the members are told by and by, together
%% with what else there is to tell. What the caller locks next is never refused because of it.
%%
%% Whether members could be told is not the caller's concern: what goes wrong is logged, and each member forgets the
%% lock in the end. Waits only while more than 4096 (the rule `pending_unlocks') have been given back and no quorum has
%% heard of it. `{error, not_held}' if it was lost or given back before.
%%
%% Cost: a message to a process of this node.
-spec try_unlock(lock()) -> ok | {error, not_held}.
try_unlock(Lock) ->
    case ?CHECKED([Lock], ?OF_THIS_NODE([Lock], canal_lock_quorum_lock:give_back(Lock))) of
        ok -> ok;
        not_held -> {error, not_held};
        full -> wait_for_room(canal_lock_quorum_lock:token(Lock))
    end.

wait_for_room(not_held) ->
    {error, not_held};
wait_for_room(Token) ->
    %% If the agent dies meanwhile, the lock is lost with it.
    try
        canal_lock_quorum_agent:try_unlock(Token)
    catch
        exit:_ -> {error, not_held}
    end.

%% @doc How the members are, as this node sees it: {@type status()}.
-spec status() -> status().
status() ->
    ?CALLED([], told()).

told() ->
    Status = #{members := Members} = canal_lock_quorum_agent:status(),
    #{voting := Voting} = canal_lock_quorum_voter:state(),
    Answering = [Node || #{node := Node, connected := true, answers := true} <- Members],
    Status#{
        voting => Voting,
        quorum => length(Answering) > length(Members) div 2,
        held => canal_lock_quorum_agent:count()
    }.

%% @doc Who holds what on all members, and the members that did not tell within five seconds.
-spec locks() -> {[lock_info()], Silent :: [node()]}.
locks() ->
    #{members := Members} = ?CALLED([], canal_lock_quorum_agent:status()),
    Nodes = [Node || #{node := Node} <- Members],
    Told = lists:zip(Nodes, erpc:multicall(Nodes, canal_lock_quorum_agent, infos, [], ?TELL_MS)),
    {
        lists:append([Locks || {_, {ok, Locks}} <- Told]),
        [Node || {Node, Outcome} <- Told, element(1, Outcome) =/= ok]
    }.

%% @doc Has whoever holds `Name' give it up: the holder is told that its lock is lost.
%%
%% Others get the name when the holder's node has confirmed it, or after ten seconds (the rule `voter_lease_ms') of
%% silence, so there are never two holders. Members that this node is not connected with do not hear of it; a quorum is
%% enough.
-spec force_unlock(name()) -> ok.
force_unlock(Name) ->
    ?CHECKED([Name], ?CALLED([Name], revoked(Name))).

revoked(Name) ->
    case canal_lock_quorum_names:encode(Name) of
        {ok, Bytes} -> canal_lock_quorum_agent:revoke(Bytes);
        {error, _} -> wrong
    end.
