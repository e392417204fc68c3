%% @doc Per-key concurrency limits (permits) for the processes of the BEAM.
%%
%% A <em>key</em> is what permits are counted for: any term. A key has a number of <em>buckets</em>, and each bucket has
%% `MaxPer' <em>permits</em>. The product of both is the <em>capacity</em>. Each call passes both numbers; the table
%% stores no capacity. A process that acquires a permit is a <em>holder</em>. If it dies for any reason, the VM releases
%% its permits.
%%
%% ```
%% 1> {ok, _Pid} = canal_lock:start_link(3).
%% {ok,<0.84.0>}
%% 2> canal_lock:acquire(db, 3, 1).
%% {acquired,1}
%% 3> canal_lock:release(db).
%% ok
%% '''
%%
%% {@link acquire/3} and {@link release/1} send no message and wait for no process. The <em>manager</em>, a process
%% registered as `canal_lock', opens and closes the table of permits, reclaims idle keys, and starts the proxies of
%% holders on other nodes. No local call goes through it.
%%
%% == Snapshots ==
%% Calls that read more than one key or holder are exact while no permit is acquired or released. In a busy table they
%% answer an approximate snapshot. Other calls are not delayed.
%%
%% == Errors ==
%% A wrong argument raises `badarg'. So does a call while this node has no open table, except {@link stop/0},
%% {@link acquire_on/4} and {@link release_on/2}, which exit if there is no manager. The shell shows which argument is
%% wrong, and why (`error_info', EEP 54). A call that raises has changed nothing.
-module(canal_lock).

-define(ERRORS, canal_lock_errors).
-include("canal_lock_errors.hrl").

-export([start_link/1, start_link/2, child_spec/1, stop/0]).
-export([acquire/3, release/1, release/3, with_permit/4]).
-export([acquire_on/4, release_on/2]).
-export([count/1, buckets/2, holders/1, held/0, held/1, keys/0, info/0, audit/0]).
-export([top/0, top/1]).

-export_type([key/0, options/0, info/0, view_options/0]).

-type key() :: term().
%% What permits are counted for. Keys are compared with `=:=': `1' and `1.0' are two keys. A key that contains a
%% reference or a fun is copied as the VM copies a message: a small part of a large binary in it keeps the whole binary
%% in memory until the key is reclaimed.

-type options() :: #{keep_on_crash => boolean(), sweep_interval_ms => pos_integer()}.
%% `keep_on_crash' (default `false'): if the manager crashes, the table stays open, with its counts and holders and
%% their monitors. The next manager that is started with this option adopts it. `sweep_interval_ms' (default 5000): the
%% interval of the sweep, in milliseconds. An idle key is reclaimed after two intervals.

-type info() :: #{
    max_per := pos_integer(),
    keys := non_neg_integer(),
    permits := non_neg_integer(),
    holders := non_neg_integer(),
    memory := non_neg_integer(),
    barriers_refused := non_neg_integer(),
    granted := non_neg_integer(),
    refused := non_neg_integer(),
    released := non_neg_integer(),
    released_by_death := non_neg_integer(),
    not_held := non_neg_integer(),
    reclaimed := non_neg_integer()
}.
%% The state of the table: `max_per', the `MaxPer' that the manager was started with; `keys' in the table, including
%% idle keys that are not reclaimed yet; `permits' in use, of all keys together; `holders', the processes that
%% hold them; and `memory', the bytes allocated by the table, without the records of proxies. `barriers_refused' counts
%% the memory barriers that the operating system has refused since the VM started. Each one delays the freeing of
%% memory; the number should be 0.
%%
%% Events since the table was opened: permits `granted'; calls `refused' with `full'; permits `released' by calls;
%% permits `released_by_death' because the holder died or its connection was lost; releases by callers that did not hold
%% the key (`not_held'); and idle keys `reclaimed'.
%%
%% `granted' is the sum of `permits', `released' and `released_by_death'. The numbers are not read at one instant: in a
%% busy table `granted' can differ from the sum by the events during the call, and can be less than in the call before.
%% `permits' is summed holder by holder, so a permit that moves from one holder to another during the call can be
%% counted twice or not at all. Only {@link count/1} is exact at any time.

-type view_options() :: #{
    interval_ms => pos_integer(),
    rows => pos_integer(),
    show => fun((term()) -> unicode:chardata())
}.
%% `interval_ms' (default 1000): the pause between two refreshes, in milliseconds. `rows' (default 10): the largest
%% number of keys, and of holders, to show. `show': formats a key, a pid, a name or a function. Without it, or if it
%% fails, terms are formatted as by `~p' of `io:format/2'.

%% @equiv start_link(MaxPer, #{})
-spec start_link(MaxPer :: pos_integer()) -> {ok, pid()} | {error, term()}.
start_link(MaxPer) ->
    ?CHECKED([MaxPer], canal_lock_manager:start_link(MaxPer, #{})).

%% @doc Starts the manager, linked to the caller and registered as `canal_lock'.
%%
%% `MaxPer', a positive integer, is the number of permits of a bucket. It is shown by {@link info/0} and limits nothing:
%% each call passes its own. `Options' is a map; see {@type options()}.
%%
%% The table is empty at first, unless `keep_on_crash' is `true' and a manager with this option has crashed. Then the
%% new manager adopts its table. In any other case, the permits of an earlier manager are void: a death or a late
%% release of their holders changes nothing.
%%
%% The table is closed when the manager shuts down cleanly (`stop/0', or an exit with `normal', `shutdown' or
%% `{shutdown, _}'), and when a manager without `keep_on_crash' crashes. A manager without `keep_on_crash' does not trap
%% exits, so it outlives a parent that exits with `normal'. A manager with `keep_on_crash' traps exits and exits with
%% its parent. While a kept table has no manager, local calls work, calls from other nodes exit with `noproc', and idle
%% keys are not reclaimed.
%%
%% Answers `{error, {already_started, Pid}}' if a manager runs, and leaves its table alone. Answers
%% `{error, {nif_not_loaded, Text}}' if the native library does not load. `Text', a binary, names the file, the reason,
%% and the command that builds it. Raises `badarg' if an argument is wrong.
-spec start_link(MaxPer :: pos_integer(), options()) -> {ok, pid()} | {error, term()}.
start_link(MaxPer, Options) ->
    ?CHECKED([MaxPer, Options], canal_lock_manager:start_link(MaxPer, Options)).

%% @doc The child specification of a manager, for a supervisor. The manager is always restarted, and keeps its table
%% when it crashes unless the options set `keep_on_crash' to `false'.
%%
%% In Erlang the child is `canal_lock:child_spec(3)', in Elixir `{CanalLock, max_per: 3}'. With options, the argument is
%% `{3, #{sweep_interval_ms => 1000}}'. Raises `badarg' if it is wrong.
-spec child_spec(MaxPer | {MaxPer, options()}) -> supervisor:child_spec() when MaxPer :: pos_integer().
child_spec(Argument) ->
    ?CHECKED([Argument], child(Argument)).

child({MaxPer, Options}) ->
    #{
        id => canal_lock,
        start => {canal_lock, start_link, [MaxPer, maps:merge(#{keep_on_crash => true}, Options)]},
        modules => [canal_lock_manager]
    };
child(MaxPer) ->
    child({MaxPer, #{}}).

%% @doc Stops the manager and closes the table. All permits are void, and calls raise until the next start. If the
%% manager has a supervisor, the supervisor restarts it with an empty table. Exits with `noproc' if no manager runs; a
%% kept table stays open then.
-spec stop() -> ok.
stop() ->
    canal_lock_manager:stop().

%% @doc Acquires a permit of `Key' for the calling process, if fewer than `MaxPer * Buckets' are in use.
%%
%% `MaxPer' (permits per bucket) and `Buckets' are non-negative integers of any size. If their product is 0, the answer
%% is `full'. `N' is the number of permits in use, this one included. A process can hold several permits, of one key and
%% of many.
%%
%% Raises `badarg' as described for the module. Raises `system_limit' if memory is exhausted, or if the key is larger
%% than half a gigabyte, where shared parts count each time that they occur.
%%
%% Cost: 20 to 100 ns for short keys in the processor's cache, plus the time to read a longer key. It does not depend on
%% `Buckets' or on the permits in use. The first permit of a process also creates a monitor. A dirty scheduler reads a
%% key that is longer than 64 KiB, or that contains a fun, a native record, a bitstring or an integer
%% beyond 1024 bits.
-spec acquire(key(), MaxPer :: non_neg_integer(), Buckets :: non_neg_integer()) ->
    {acquired, N :: pos_integer()} | full.
acquire(Key, MaxPer, Buckets) ->
    %% The native call returns the arguments with a cause, so the VM need not keep them across the call.
    case canal_lock_nif:acquire(Key, MaxPer, Buckets) of
        {raise, First, Arguments} ->
            ?ANSWER(Arguments, canal_lock_interned:retry(First, fun canal_lock_nif:acquire/3, Arguments));
        Answer ->
            Answer
    end.

%% @doc Releases one permit of `Key', if the calling process holds one.
%%
%% `MaxPer' and `Buckets' are checked as in {@link acquire/3} and have no other effect. If the caller holds no permit of
%% `Key', the answer is `ok' and nothing changes. Such a call is a mistake in the caller. The library logs it, at most
%% once per second, with the key and its holders. Use {@link release/1} if the caller needs to know. Raises and costs as
%% {@link acquire/3}. A report costs milliseconds.
-spec release(key(), MaxPer :: non_neg_integer(), Buckets :: non_neg_integer()) -> ok.
release(Key, MaxPer, Buckets) when MaxPer bor Buckets >= 0 ->
    %% The guard is true for two non-negative integers and for nothing else, in one test. Arguments: as in acquire/3.
    case canal_lock_nif:release(Key, MaxPer, Buckets) of
        ok ->
            ok;
        {raise, First, Arguments} ->
            case canal_lock_interned:retry(First, fun canal_lock_nif:release/3, Arguments) of
                ok -> ok;
                {raise, not_held} -> canal_lock_reports:unexpected_unlock(hd(Arguments));
                {raise, Cause} -> ?RAISE(Cause, Arguments)
            end
    end;
release(Key, MaxPer, Buckets) ->
    ?RAISE(badarg, [Key, MaxPer, Buckets]).

%% @doc Releases one permit of `Key'. Answers `{error, not_held}' if the calling process holds none. Raises and costs as
%% {@link acquire/3}.
-spec release(key()) -> ok | {error, not_held}.
release(Key) ->
    case canal_lock_nif:release(Key) of
        {raise, First, Arguments} ->
            ?ANSWER(Arguments, canal_lock_interned:retry(First, fun canal_lock_nif:release/1, Arguments));
        Answer ->
            Answer
    end.

%% @doc Calls `Fun', a function of arity 0, while the caller holds a permit of `Key'.
%%
%% The permit is released when `Fun' returns (then the answer is `{ok, Result}'), when it throws, exits or raises (which
%% passes to the caller), and when the process is killed. If no permit is free, the answer is `full' and `Fun' is not
%% called. Calls can be nested; each acquires a permit of its own. `Fun' must not release the permit. If the table is
%% closed while `Fun' runs, the permit is void, and the call still returns the result of `Fun'. Raises and costs as
%% {@link acquire/3} and {@link release/1}.
-spec with_permit(key(), MaxPer :: non_neg_integer(), Buckets :: non_neg_integer(), fun(() -> Result)) ->
    {ok, Result} | full.
with_permit(Key, MaxPer, Buckets, Fun) when is_function(Fun, 0) ->
    case call_with_permit(Key, MaxPer, Buckets, Fun) of
        {raise, First, _} ->
            Arguments = [Key, MaxPer, Buckets, Fun],
            ?ANSWER(Arguments, canal_lock_interned:retry(First, fun call_with_permit/4, Arguments));
        Answer ->
            Answer
    end;
with_permit(Key, MaxPer, Buckets, Fun) ->
    ?RAISE(badarg, [Key, MaxPer, Buckets, Fun]).

%% The release uses the same key or handle as the acquire, so a long key is read once, and the release cannot fail.
call_with_permit(KeyOrHandle, MaxPer, Buckets, Fun) ->
    case canal_lock_nif:acquire(KeyOrHandle, MaxPer, Buckets) of
        {acquired, _} ->
            try
                {ok, Fun()}
            after
                release_after(KeyOrHandle)
            end;
        Other ->
            Other
    end.

%% If the table was closed, the permit is void. The result of `Fun' must not be lost because of that.
release_after(KeyOrHandle) ->
    case canal_lock_nif:release(KeyOrHandle) of
        {raise, not_started, _} -> void;
        {raise, Cause, Arguments} -> ?RAISE(Cause, Arguments);
        _ -> ok
    end.

%% @doc Acquires a permit in the table of another node, for the calling process. With `node()' it is {@link acquire/3}.
%%
%% On that node, a process that represents the caller, its <em>proxy</em>, monitors the caller and holds the permit.
%% When the caller dies, or the connection between the nodes is lost, the VM there releases its permits. The caller is
%% not notified of a lost connection; it can monitor `{canal_lock, Node}'. If the manager there crashes and its table is
%% kept, the permits stay held.
%%
%% The call has no timeout. It exits with `{Reason, {canal_lock, acquire_on, _}}', as `gen_server:call/2' does, if the
%% node is not connected (`{nodedown, Node}'), if no manager runs there (`noproc'), or if the manager crashes during the
%% call. Then no permit was acquired. It raises as {@link acquire/3}, and raises `version_mismatch' if the node runs
%% another version of this library.
%%
%% Cost: two round trips. The manager serves the first one, the proxy the second one, so a long key delays no other
%% caller.
-spec acquire_on(node(), key(), MaxPer :: non_neg_integer(), Buckets :: non_neg_integer()) ->
    {acquired, N :: pos_integer()} | full.
acquire_on(Node, Key, MaxPer, Buckets) when Node =:= node() ->
    acquire(Key, MaxPer, Buckets);
acquire_on(Node, Key, MaxPer, Buckets) ->
    Arguments = [Node, Key, MaxPer, Buckets],
    Request = {acquire, Key, MaxPer, Buckets},
    ?CHECKED(Arguments, ?ANSWER_OR_EXIT(Arguments, canal_lock_remote:call(Node, Request))).

%% @doc Releases a permit that the calling process has acquired with {@link acquire_on/4}. With `node()' it is
%% {@link release/1}.
%%
%% Exits, raises and costs as {@link acquire_on/4}. If it exits, call it again: either the permit is still held, because
%% no manager has answered, or the answer is `{error, not_held}', because the proxy has exited and its permits are
%% released.
-spec release_on(node(), key()) -> ok | {error, not_held}.
release_on(Node, Key) when Node =:= node() ->
    release(Key);
release_on(Node, Key) ->
    Arguments = [Node, Key],
    ?CHECKED(Arguments, ?ANSWER_OR_EXIT(Arguments, canal_lock_remote:call(Node, {release, Key}))).

%% @doc The number of permits of `Key' in use. Exact at any time. Raises as described for the module. Cost:
%% constant.
-spec count(key()) -> non_neg_integer().
count(Key) ->
    ?ANSWER([Key], ?CAUGHT(canal_lock_interned:call(Key, fun canal_lock_nif:count/1))).

%% @doc The permits of `Key' in use, as a list of buckets of `MaxPer', a positive integer: `[3,1]' are four permits in
%% buckets of three. Empty buckets are left out. Raises as described for the module. Cost: proportional to the length of
%% the answer.
-spec buckets(key(), MaxPer :: pos_integer()) -> [pos_integer()].
buckets(Key, MaxPer) ->
    Buckets = fun(KeyOrHandle) -> canal_lock_nif:buckets(KeyOrHandle, MaxPer) end,
    {Full, Rest} = ?ANSWER([Key, MaxPer], ?CAUGHT(canal_lock_interned:call(Key, Buckets))),
    lists:duplicate(Full, MaxPer) ++ [Rest || Rest > 0].

%% @doc The processes that hold permits of `Key', each with its number of permits, in no order; a snapshot. A holder on
%% another node is shown by its own pid.
%%
%% Raises as described for the module. Cost: reads the slots of all processes, about 0.1 ms for 1,000 processes, and
%% 4 ms when 262,144 slots have been used.
-spec holders(key()) -> [{pid(), Permits :: pos_integer()}].
holders(Key) ->
    ?ANSWER([Key], ?CAUGHT(canal_lock_view:holders(Key))).

%% @doc The keys that the calling process holds, each with its number of permits, in no order. Raises as described for
%% the module. Cost: a call on a dirty scheduler, and the length of the answer.
-spec held() -> [{key(), Permits :: pos_integer()}].
held() ->
    ?ANSWER([], ?CAUGHT(canal_lock_view:held(self()))).

%% @doc The keys that a process holds in the table of this node, each with its number of permits, in no order; a
%% snapshot. The process can be on another node. Raises and costs as {@link held/0}.
-spec held(pid()) -> [{key(), Permits :: pos_integer()}].
held(Pid) ->
    ?ANSWER([Pid], ?CAUGHT(canal_lock_view:held(Pid))).

%% @doc All keys with permits in use, each with its number of permits, in no order; a snapshot. Raises as described for
%% the module. Cost: reads all keys, about 1 s per million.
-spec keys() -> [{key(), Permits :: pos_integer()}].
keys() ->
    ?ANSWER([], ?CAUGHT(canal_lock_view:keys())).

%% @doc The state of the table, and the totals of its events; see {@type info()}. A snapshot.
%%
%% Raises as described for the module. Cost: reads the records of all holders, but no key, on a dirty scheduler: 0.2 ms
%% for 200,000 processes, less for a million keys that few processes hold (AMD EPYC, OTP 25). It is cheap enough to poll
%% once per second. {@link canal_lock_telemetry} emits the same numbers at each sweep.
-spec info() -> info().
info() ->
    ?ANSWER([], ?CAUGHT(canal_lock_nif:info())).

%% @doc Compares the count of each key with the records of its holders. The answer lists the keys that differ, as
%% `{Key, Counted, Held}'.
%%
%% While no permit is acquired or released the answer is empty; otherwise canal_lock has a bug. In a busy table, permits
%% change between the two readings. Raises as described for the module. Cost: reads everything, several seconds for a
%% million keys, and keeps all keys in the memory of the caller.
-spec audit() -> [{key(), Counted :: non_neg_integer(), Held :: non_neg_integer()}].
audit() ->
    ?ANSWER([], ?CAUGHT(canal_lock_view:audit())).

%% @equiv top(#{})
-spec top() -> ok.
top() ->
    ?ANSWER([], ?CAUGHT(canal_lock_top:run(#{}))).

%% @doc Shows the activity of the table of this node in a shell, as text, until Enter is pressed.
%%
%% The first lines are keys, permits, holders and memory, as in {@link info/0}. The next ones are rates per second since
%% the last refresh: granted, refused, released by calls, by deaths, and not held if there was any such release. A rate
%% is `-' at first and after the table was replaced. Then follow the keys with most permits, and the holders with
%% most permits, with the number of their keys and what identifies the process: its registered name, the function that
%% it was started with, or the function that it runs. For a process of another node, it is the node.
%%
%% Keys are cut to the width of the screen. Control characters, and characters that are not plain letters, are shown as
%% numbers. If no manager runs, the first line says so. If the table is closed, the screen says that canal_lock is not
%% started, until it is started again. `docs/operating.md' has an example.
%%
%% Input and output go through the caller's group leader. So the call works in a shell that is attached to this node
%% (`erl -remsh'), and from another node by `erpc:call(Node, canal_lock, top, [])'. On a terminal, each refresh replaces
%% the text and is cut to the height of the screen. Elsewhere (file, pipe, `dumb' terminal) snapshots are appended, and
%% the first one comes after one interval, with rates. Without input, the call shows one such snapshot and returns.
%%
%% Any line of input ends it. The calling process does all the work: no process is left behind, and the terminal is as
%% before. If the calling process is killed, its request for a line stays with the group leader and can consume one line
%% of input.
%%
%% Raises as described for the module, if canal_lock is not started at the time of the call. Cost: each refresh takes
%% one {@link info/0}, one {@link keys/0} and one pass over the permits of all holders, and keeps at most twice `rows'
%% of them. That is 15 ms for 10,000 keys of 1,000 processes, and 1.1 s and 4 MB of memory for a million keys of 200,000
%% processes. Each key is copied once, and once more for each of its holders, which matters for keys of megabytes. A
%% dirty scheduler does nearly all the work; other calls are not delayed. The next refresh begins `interval_ms' after
%% the last one, or three times as long as the last one took, if that is longer. So it uses at most a quarter of one
%% scheduler.
-spec top(view_options()) -> ok.
top(Options) ->
    ?CHECKED([Options], ?ANSWER([Options], ?CAUGHT(canal_lock_top:run(Options)))).
