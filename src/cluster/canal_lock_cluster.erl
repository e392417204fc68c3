%% @doc Concurrency limits for a whole cluster. A limit is for the permits of a key that all nodes together have in use.
%%
%% Each node has a <em>share</em> of the limit of a key. A call acquires from the share of its node, without a message
%% to another node. If the share is used up, the node asks for more: the <em>allocator</em>, one of the members, divides
%% the limit among the nodes that want permits.
%%
%% ```
%% 1> {ok, _} = application:ensure_all_started(canal_lock), canal_lock_cluster:start_link(#{members => [node()]}).
%% {ok,<0.96.0>}
%% 2> canal_lock_cluster:acquire(api, 50, #{timeout_ms => 5000}).
%% {acquired,1}
%% 3> canal_lock_cluster:release(api).
%% ok
%% '''
%%
%% The table of canal_lock counts on each node, and releases the permits of a process that dies. The quorum locks
%% (canal_lock_quorum) decide which nodes are alive, and which one is the allocator. So a limit holds while less than
%% half of the members are down, and the permits of a dead node are free after the lease.
%%
%% == Sessions ==
%% A node holds a quorum lock while it is alive and reaches a quorum. That time is a <em>session</em>. Its permits are
%% <em>valid</em> in it. When a session ends, other nodes can get these permits. Then each holder gets the message
%% `{canal_lock_cluster, lost, Key}', once for each key, and calls answer `{error, no_quorum}' until the next session.
%% A holder of a lost permit releases it as any other. If it also holds valid permits of the key, the lost ones are
%% released first. A message for a key of which the process holds no permit is to be ignored. {@link session/0} is for
%% holders that must not rely on a message.
%%
%% == Limits ==
%% The limit of a key is the one that was declared last. A call declares its limit if the call before it on this node
%% has passed another one. If no node that uses the key passes the limit in force any more, it is the lowest one that is
%% passed. So nodes with two limits, such as those of two versions of a program, share one of them. If calls of one node
%% pass two limits in turn, it declares one of them each 100 ms, and calls with the other one can be refused. A limit
%% above 1,048,574 counts as that. If it becomes lower, permits in use stay, and none is granted until fewer are in use.
%%
%% == Errors ==
%% A wrong argument raises `badarg'. So does a call while the table of canal_lock is closed, or while this node has not
%% started canal_lock_cluster; {@link release/1}, {@link give/2} and {@link holders/1} need only the table. The shell
%% shows what is wrong (`error_info', EEP 54). A call that raises has changed nothing.
-module(canal_lock_cluster).

-define(ERRORS, canal_lock_cluster_errors).
-include("../canal_lock_errors.hrl").

%% A call without a session does not reach the table, which checks the arguments.
-define(ACQUIRED(Arguments, Call),
    case Call of
        {acquired, _} = Granted -> Granted;
        full -> full;
        Refused -> ?CHECKED(Arguments, ?ANSWER(Arguments, Refused))
    end
).

-export([start_link/1, child_spec/1, stop/0]).
-export([acquire/2, acquire/3, acquire/4, release/1, release/2, give/2, give/3]).
-export([with_permit/3, with_permit/4, with_permit/5]).
-export([session/0, holders/1, usage/1, status/0, top/0, top/1]).

-export_type([key/0, answer/0, usage/0, status/0, totals/0]).

-type key() :: canal_lock:key().
%% As of canal_lock. Cluster permits and local permits of the same key are separate.

-type answer() :: {acquired, N :: pos_integer()} | full | {error, no_quorum}.
%% `N' is the number of valid permits in use on this node, the new ones included.

-type usage() :: #{
    limit := non_neg_integer() | none,
    in_use := non_neg_integer(),
    waiting := non_neg_integer(),
    nodes := #{node() => #{share := non_neg_integer(), in_use := non_neg_integer(), waiting := non_neg_integer()}},
    silent := [node()]
}.
%% `limit': the limit in force, or `none' for a key that no node uses. `in_use' and `waiting': the permits in use, and
%% the requests that wait. `share': what a node may use. `silent': the nodes that do not answer the allocator. Their
%% permits can be missing while a new allocator learns them, and are not given to others.

-type status() :: #{
    session := pos_integer() | none,
    allocator := node() | none,
    term := non_neg_integer(),
    waits_for := [node()] | unknown,
    keys := non_neg_integer(),
    totals := totals()
}.
%% `session': its number, or `none' while this node is cut off or starts. `allocator': the node that divides the limits,
%% as far as this node knows; `term' is its number, which grows with each allocator. `waits_for': the nodes that do not
%% answer it, or `unknown'. While a new allocator waits for a node, it gives only what the others return. `keys': how
%% many keys this node has a share of, or has used within the last seconds.

-type totals() :: canal_lock_cluster_totals:totals().
%% Counts of this node since canal_lock_cluster was started. Calls: `granted' after a wait or an answer of the
%% allocator, for `wait_us' microseconds in all, at most `longest_wait_us' since the last telemetry event; `refused'
%% with `full'; and `no_quorum'. A call that is granted at once is not counted here, but in {@link canal_lock:info/0},
%% which counts the permits of both kinds. Permits: `received' from the allocator, `returned' to it, and `lost' at the
%% end of a session. `recalled': how often the allocator has lowered what this node may use of a key. `takeovers': how
%% often this node has become the allocator.

%% @doc Starts the cluster permits of this node: a supervisor, linked to the caller and registered as
%% `canal_lock_cluster'. It starts the quorum locks with the same options, unless they run. The application canal_lock
%% must run, or its table must be open otherwise; until then calls raise.
%%
%% `Options' are those of {@link canal_lock_quorum:start_link/1}, for a member or for a client. With `#{members =>
%% [node()]}' it needs no other node and no distribution. Calls answer `{error, no_quorum}' until this node has a
%% session: after a start some milliseconds, and after a restart of members up to a lease.
%%
%% Answers the errors of {@link canal_lock_quorum:start_link/1}. Raises `badarg' if an option is wrong.
-spec start_link(canal_lock_quorum:options()) -> {ok, pid()} | {error, term()}.
start_link(Options) ->
    ?ANSWER([Options], canal_lock_cluster_sup:start_link(Options)).

%% @doc The child specification of the cluster permits, for a supervisor. In Erlang the child is
%% `canal_lock_cluster:child_spec(#{members => Members})', in Elixir `{CanalLock.Cluster, members: members}'. Raises
%% `badarg' if `Options' is not a map; {@link start_link/1} checks the options themselves.
-spec child_spec(canal_lock_quorum:options()) -> supervisor:child_spec().
child_spec(Options) ->
    ?CHECKED([Options], #{
        id => canal_lock_cluster,
        start => {canal_lock_cluster, start_link, [Options]},
        type => supervisor,
        shutdown => infinity
    }).

%% @doc Stops the cluster permits of this node, and the quorum locks if they were started with them. The session ends:
%% holders get the message, and other nodes get the permits at once. If it has a supervisor, the supervisor restarts it.
%% Exits with `noproc' if it does not run.
-spec stop() -> ok.
stop() ->
    canal_lock_cluster_sup:stop().

%% @doc Acquires a permit of `Key' for the calling process: {@link acquire/3} with `MaxPer = Limit' and `Buckets = 1'.
-spec acquire(key(), Limit :: non_neg_integer()) -> answer().
acquire(Key, Limit) ->
    ?ACQUIRED([Key, Limit], canal_lock_cluster_calls:acquire(Key, Limit, 1)).

%% @doc Acquires a permit of `Key' for the calling process, if fewer than `MaxPer * Buckets' are in use in the cluster.
%%
%% If the share of this node is used up, the call waits for an answer of the allocator, for at most 100 ms. After that
%% the demand <em>stands</em>: the allocator knows that this node wants more, and calls answer `full' at once, for as
%% long as one is refused each second. A call that must not wait at all is {@link acquire/4} with the timeout 0.
%%
%% With a map in the place of `Buckets', it is {@link acquire/4} with one bucket: `acquire(Key, Limit, #{timeout_ms =>
%% 200})'. Answers `{error, no_quorum}' if this node has no session. Raises as described for the module.
%%
%% Cost: 160 ns together with the release, while the share has a free permit and the limit is that of the call before on
%% this node; else one or two round trips.
-spec acquire(key(), MaxPer :: non_neg_integer(), Buckets :: non_neg_integer() | canal_lock:wait_options()) -> answer().
acquire(Key, Limit, Options) when is_map(Options) ->
    ?ACQUIRED([Key, Limit, Options], canal_lock_cluster_calls:acquire(Key, Limit, 1, canal_lock_wait:options(Options)));
acquire(Key, MaxPer, Buckets) ->
    ?ACQUIRED([Key, MaxPer, Buckets], canal_lock_cluster_calls:acquire(Key, MaxPer, Buckets)).

%% @doc Acquires permits of `Key', all or none, and waits for them if they are in use elsewhere.
%%
%% The last argument is a timeout in milliseconds or `infinity', or {@type canal_lock:wait_options()}. A request that
%% waits joins a queue of its node, first in, first out. Nodes that want permits take turns. After the timeout the
%% answer is `full'. It is `{error, no_quorum}' if the session ends while the call waits, at most a second later. A
%% request for more permits than the limit is refused at once. Otherwise as {@link acquire/3}.
-spec acquire(
    key(), MaxPer :: non_neg_integer(), Buckets :: non_neg_integer(), timeout() | canal_lock:wait_options()
) -> answer().
acquire(Key, MaxPer, Buckets, TimeoutOrOptions) ->
    ?ACQUIRED(
        [Key, MaxPer, Buckets, TimeoutOrOptions],
        canal_lock_cluster_calls:acquire(Key, MaxPer, Buckets, canal_lock_wait:options(TimeoutOrOptions))
    ).

%% @doc Releases one permit of `Key', if the calling process holds one, valid or lost. Raises as described for the
%% module. Cost: as {@link canal_lock:release/1}; no message, unless a process waits or the allocator needs the permit.
-spec release(key()) -> ok | {error, not_held}.
release(Key) ->
    ?ANSWER([Key], canal_lock_cluster_calls:release(Key)).

%% @doc Releases `permits' permits of `Key', all or none. Otherwise as {@link release/1}.
-spec release(key(), canal_lock:permits_options()) -> ok | {error, not_held}.
release(Key, Options) ->
    ?ANSWER([Key, Options], canal_lock_cluster_calls:release(Key, canal_lock_wait:permits(Options))).

%% @doc Gives a permit of the calling process to another process of this node: {@link canal_lock:give/2}.
-spec give(key(), pid()) -> ok | {error, not_held | not_alive}.
give(Key, Pid) ->
    ?ANSWER([Key, Pid], canal_lock_cluster_calls:give(Key, Pid, 1)).

%% @doc Gives `permits' permits, all or none. Otherwise as {@link give/2}.
-spec give(key(), pid(), canal_lock:permits_options()) -> ok | {error, not_held | not_alive}.
give(Key, Pid, Options) ->
    ?ANSWER([Key, Pid, Options], canal_lock_cluster_calls:give(Key, Pid, canal_lock_wait:permits(Options))).

%% @doc Calls `Fun' with a permit of `Key', and releases it afterwards: {@link with_permit/5} as {@link acquire/2}.
-spec with_permit(key(), Limit :: non_neg_integer(), fun(() -> Result)) -> {ok, Result} | full | {error, no_quorum}.
with_permit(Key, Limit, Fun) when is_function(Fun, 0) ->
    Acquired = ?ACQUIRED([Key, Limit, Fun], canal_lock_cluster_calls:acquire(Key, Limit, 1)),
    call_with(Acquired, Key, 1, Fun);
with_permit(Key, Limit, Fun) ->
    ?RAISE(badarg, [Key, Limit, Fun]).

%% @doc {@link with_permit/5} as {@link acquire/3}. With a map in the place of `Buckets', these are options.
-spec with_permit(
    key(), MaxPer :: non_neg_integer(), Buckets :: non_neg_integer() | canal_lock:wait_options(), fun(() -> Result)
) -> {ok, Result} | full | {error, no_quorum}.
with_permit(Key, Limit, Options, Fun) when is_map(Options), is_function(Fun, 0) ->
    Checked = canal_lock_wait:options(Options),
    Acquired = ?ACQUIRED([Key, Limit, Options, Fun], canal_lock_cluster_calls:acquire(Key, Limit, 1, Checked)),
    call_with(Acquired, Key, permits(Checked), Fun);
with_permit(Key, MaxPer, Buckets, Fun) when is_function(Fun, 0) ->
    Acquired = ?ACQUIRED([Key, MaxPer, Buckets, Fun], canal_lock_cluster_calls:acquire(Key, MaxPer, Buckets)),
    call_with(Acquired, Key, 1, Fun);
with_permit(Key, MaxPer, Buckets, Fun) ->
    ?RAISE(badarg, [Key, MaxPer, Buckets, Fun]).

%% @doc Calls `Fun', a function without arguments, with permits of `Key'.
%%
%% They are released when `Fun' returns (then the answer is `{ok, Result}'), and when it throws, exits or raises, which
%% passes to the caller. The answers `full' and `{error, no_quorum}' mean that `Fun' was not called. If the permits are
%% lost while `Fun' runs, the answer is `{ok, Result}', too: `Fun' can check {@link session/0}. Acquires and raises as
%% {@link acquire/4}.
-spec with_permit(
    key(),
    MaxPer :: non_neg_integer(),
    Buckets :: non_neg_integer(),
    timeout() | canal_lock:wait_options(),
    fun(() -> Result)
) -> {ok, Result} | full | {error, no_quorum}.
with_permit(Key, MaxPer, Buckets, TimeoutOrOptions, Fun) when is_function(Fun, 0) ->
    Options = canal_lock_wait:options(TimeoutOrOptions),
    Arguments = [Key, MaxPer, Buckets, TimeoutOrOptions, Fun],
    Acquired = ?ACQUIRED(Arguments, canal_lock_cluster_calls:acquire(Key, MaxPer, Buckets, Options)),
    call_with(Acquired, Key, permits(Options), Fun);
with_permit(Key, MaxPer, Buckets, TimeoutOrOptions, Fun) ->
    ?RAISE(badarg, [Key, MaxPer, Buckets, TimeoutOrOptions, Fun]).

permits({_, Permits, _}) -> Permits.

call_with({acquired, _}, Key, Permits, Fun) ->
    try
        {ok, Fun()}
    after
        canal_lock_cluster_calls:release(Key, Permits)
    end;
call_with(Refusal, _, _, _) ->
    Refusal.

%% @doc The lock of the session of this node, or `none'. Read before an acquire, {@link canal_lock_quorum:is_held/1}
%% tells later whether the permit is still valid.
-spec session() -> canal_lock_quorum:lock() | none.
session() ->
    canal_lock_cluster_agent:session().

%% @doc The processes of this node that hold permits of `Key', valid or lost, each with their number. Raises as
%% described for the module. A snapshot, as {@link canal_lock:holders/1}.
-spec holders(key()) -> [{pid(), Permits :: pos_integer()}].
holders(Key) ->
    ?ANSWER([Key], ?CAUGHT(canal_lock_view:holders(shared, Key))).

%% @doc How the limit of `Key' is used in the cluster. Answers `{error, no_quorum}' if this node knows no allocator, or
%% it does not answer. A snapshot: the nodes answer one after the other; of one that does not answer within 1 s, the
%% numbers are those of its last report. Cost: a call to the allocator, and one to each node that has a share.
-spec usage(key()) -> {ok, usage()} | {error, no_quorum}.
usage(Key) ->
    ?ANSWER_OR_EXIT([Key], canal_lock_cluster_status:usage(Key)).

%% @doc The cluster permits as this node sees them. Cost: a call to the agent of this node and to the allocator.
-spec status() -> status().
status() ->
    ?ANSWER_OR_EXIT([], canal_lock_cluster_status:read()).

%% @equiv top(#{})
-spec top() -> ok.
top() ->
    top(#{}).

%% @doc Shows the busiest keys of this node until Enter is pressed, as {@link canal_lock:top/1}: the share of the node,
%% the permits in use, and the rates of what moved.
-spec top(canal_lock:view_options()) -> ok.
top(Options) ->
    ?ANSWER_OR_EXIT([Options], ?CHECKED([Options], canal_lock_screen:run(canal_lock_cluster_top, Options))).
