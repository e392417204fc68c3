%% @doc Per-key concurrency limits for the processes of the BEAM.
%%
%% A <em>key</em> is what a limit is for: any term. A process that acquires a <em>permit</em> of a key is a
%% <em>holder</em>. If it dies for any reason, the VM releases its permits. Each call passes its limit, and the table
%% stores none.
%%
%% ```
%% 1> {ok, _Pid} = canal_lock:start_link().
%% {ok,<0.84.0>}
%% 2> canal_lock:acquire(db, 3).
%% {acquired,1}
%% 3> canal_lock:release(db).
%% ok
%% '''
%%
%% A limit can be a product: `MaxPer' permits in each of a number of <em>buckets</em>, such as the back-ends of an app.
%% The product is the <em>capacity</em> of the call.
%%
%% {@link acquire/3} and {@link release/1} wait for no process, and send no message unless a process waits for the key.
%% {@link acquire/4} can wait: then the caller joins a queue of the key, first in, first out. The <em>manager</em>, a
%% process registered as `canal_lock', opens and closes the table of permits, reclaims idle keys, and starts the proxies
%% of holders on other nodes. No local call goes through it.
%%
%% == Snapshots ==
%% Calls that read more than one key or holder are exact while no permit is acquired or released. In a busy table they
%% answer an approximate snapshot. Other calls are not delayed.
%%
%% == Errors ==
%% A wrong argument raises `badarg'. So does a call while this node has no open table, with two exceptions:
%% {@link cancel/1} answers as usual; {@link stop/0}, {@link acquire_on/4}, {@link release_on/2} and
%% {@link with_permit_on/5} exit if there is no manager. The shell shows which argument is wrong, and why (`error_info',
%% EEP 54). A call that raises has changed nothing.
-module(canal_lock).

-define(ERRORS, canal_lock_errors).
-include("canal_lock_errors.hrl").

%% The most buckets that buckets/2 lists. A key can have 2^60 - 1 permits, and a list of 2^36 buckets would end the VM.
-define(MAX_BUCKETS, 1000).

%% The answer of another node.
-define(ON(Arguments, Call), ?CHECKED(Arguments, ?ANSWER_OR_EXIT(Arguments, Call))).

-export([start_link/0, start_link/1, start_link/2, child_spec/0, child_spec/1, stop/0]).
-export([acquire/2, acquire/3, acquire/4, release/1, release/2, release/3]).
-export([with_permit/3, with_permit/4, with_permit/5]).
-export([acquire_many/1, acquire_many/2, with_permits/2, with_permits/3]).
-export([request/2, request/3, request/4, cancel/1, resize/2, resize/3, waiting/1]).
-export([give/2, give/3]).
-export([acquire_on/4, acquire_on/5, release_on/2, release_on/3, release_on_async/2, release_on_async/3]).
-export([with_permit_on/5, with_permit_on/6]).
-export([count/1, buckets/2, holders/1, held/0, held/1, holder_info/1, keys/0, info/0, audit/0]).
-export([top/0, top/1]).

-export_type([key/0, limit/0, options/0, info/0, holder_info/0, view_options/0]).
-export_type([wait_options/0, request_options/0, many_options/0, permits_options/0, capacity/0]).

-type key() :: term().
%% What permits are counted for. Keys are compared with `=:=': `1' and `1.0' are two keys. A key that contains a
%% reference or a fun is copied as the VM copies a message: a small part of a large binary in it keeps the whole binary
%% in memory until the key is reclaimed.

-type limit() ::
    {key(), Limit :: non_neg_integer()} | {key(), MaxPer :: non_neg_integer(), Buckets :: non_neg_integer()}.
%% A key and its capacity, for a call with several keys.

-type options() :: #{
    max_per => pos_integer(),
    keep_on_crash => boolean(),
    sweep_interval_ms => pos_integer(),
    max_waiting => non_neg_integer()
}.
%% `max_per' (no default) is shown by {@link info/0} and limits nothing: each call passes its own. `keep_on_crash'
%% (default `false'): if the last process that keeps the table open crashes, the table stays open, with its counts and
%% holders and their monitors. The next start adopts it. `sweep_interval_ms' (default 5000): the interval of the sweep,
%% in milliseconds. An idle key is reclaimed after two intervals. `max_waiting' (default 100000): the largest
%% number of requests that wait, of all keys together. Beyond that, a call that would wait answers `full'.

-type wait_options() :: #{
    timeout_ms => timeout(), permits => pos_integer(), max_waiting => non_neg_integer() | infinity
}.
%% `timeout_ms' (default 0): how long the call may wait, in milliseconds. `permits' (default 1): how many permits to
%% acquire, all or none. `max_waiting' (default `infinity'): if at least that many requests wait for the key, the call
%% does not wait.

-type capacity() :: fun(() -> {MaxPer :: non_neg_integer(), Buckets :: non_neg_integer()}).
%% Returns the capacity of a key at the moment.

-type many_options() :: #{timeout_ms => timeout(), max_waiting => non_neg_integer() | infinity}.
%% As in {@type wait_options()}. The timeout is that of the whole call.

-type request_options() :: #{permits => pos_integer(), max_waiting => non_neg_integer() | infinity}.
%% As in {@type wait_options()}.

-type permits_options() :: #{permits => pos_integer()}.
%% `permits' (default 1): how many permits, all or none.

-type info() :: #{
    max_per := pos_integer() | undefined,
    keys := non_neg_integer(),
    permits := non_neg_integer(),
    holders := non_neg_integer(),
    waiting := non_neg_integer(),
    longest_wait_us := non_neg_integer(),
    memory := non_neg_integer(),
    barriers_refused := non_neg_integer(),
    granted := non_neg_integer(),
    refused := non_neg_integer(),
    released := non_neg_integer(),
    released_by_death := non_neg_integer(),
    not_held := non_neg_integer(),
    reclaimed := non_neg_integer(),
    handed_over := non_neg_integer(),
    timed_out := non_neg_integer(),
    wait_us := non_neg_integer(),
    transferred := non_neg_integer()
}.
%% The state of the table: `max_per', the first that a start has given, or `undefined'; `keys' in the table, including
%% idle keys that are not reclaimed yet; `permits' in use, of all keys together; `holders', the processes that
%% hold them; `waiting', the requests that wait; and `memory', the bytes that the native library has allocated, with
%% closed tables that are not freed yet. `longest_wait_us' is the longest wait, in microseconds, of the requests that
%% were granted or timed out since the last sweep began. `barriers_refused' counts the memory barriers that the
%% operating system has refused since the VM started. Each one delays the freeing of memory; the number should be 0.
%% A number above 2^64 - 1 is not exact.
%%
%% Events since the table was opened: permits `granted'; calls `refused' with `full'; permits `released' by calls;
%% permits `released_by_death' because the holder died or its connection was lost; releases by callers that did not hold
%% the key (`not_held'); idle keys `reclaimed'; requests that waited and were granted (`handed_over'); requests that
%% waited until their timeout (`timed_out'), whose calls are `refused', too; the time that these two kinds of requests
%% have waited, in microseconds (`wait_us'); and permits given to another process (`transferred'). The time of a request
%% that was cancelled, closed or ended by a death does not count.
%%
%% `granted' is the sum of `permits', `released' and `released_by_death'. The numbers are not read at one instant: in a
%% busy table `granted' can differ from the sum by the events during the call, and can be less than in the call before.
%% `permits' is summed holder by holder, so a permit that moves from one holder to another during the call can be
%% counted twice or not at all. Only {@link count/1} is exact at any time.

-type holder_info() :: #{permits := pos_integer(), keys := pos_integer(), held_ms := non_neg_integer()}.
%% What a process holds: the number of its `permits', and of its `keys'. `held_ms': for how long, in milliseconds, it
%% has held at least one permit without interruption.
%%
%% `held_ms' never exceeds the true time, and is less by at most one `sweep_interval_ms' and 0.2 s: it is 0 until the
%% next sweep begins. If the manager is late, or a kept table has no manager, it can exceed the true time by as much.

-type view_options() :: #{
    interval_ms => pos_integer(),
    rows => pos_integer(),
    show => fun((term()) -> unicode:chardata())
}.
%% `interval_ms' (default 1000): the pause between two refreshes, in milliseconds. `rows' (default 10): the largest
%% number of rows of each list. `show': formats a key, a pid, a name or a function. Without it, or if it
%% fails, terms are formatted as by `~p' of `io:format/2'.

%% @equiv start_link(#{})
-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() ->
    canal_lock_manager:start_link(#{}).

%% @doc Opens the table of this node, and keeps it open while the started process lives.
%%
%% The application does this when it starts. Call it where the application does not run, such as in a plain shell, or
%% use {@link child_spec/1}. The argument is a map, see {@type options()}, or only its `max_per'.
%%
%% The first process to be started is the <em>manager</em>, registered as `canal_lock'. Others wait until the manager
%% ends; then one of them goes on with the same table. So several applications of a node can call this. `keep_on_crash'
%% is an option of each process. Of each other option, the first value that a start has given is in force. If a later
%% start gives another one, it has no effect, and a warning is logged.
%%
%% The table is empty at first, unless the last of these processes has crashed with `keep_on_crash'. Then the next start
%% adopts its table. In any other case, the permits of an earlier table are void: a death or a late release of their
%% holders changes nothing.
%%
%% The table is closed by {@link stop/0}; when the last of these processes shuts down cleanly (an exit with `normal',
%% `shutdown' or `{shutdown, _}'); and when the last one crashes without `keep_on_crash'. A process without
%% `keep_on_crash' does not trap exits, so it outlives a parent that exits with `normal'. A process with
%% `keep_on_crash' traps exits and exits with its parent. While a kept table has no manager, local calls work, calls
%% from other nodes exit with `noproc', and idle keys are not reclaimed.
%%
%% Answers `{error, {already_started, Pid}}' if a process that is not of this library has the name `canal_lock'. Answers
%% `{error, {nif_not_loaded, Text}}' if the native library does not load. `Text', a binary, names the file, the
%% reason, and what to do. Raises `badarg' if an argument is wrong.
-spec start_link(MaxPer :: pos_integer() | options()) -> {ok, pid()} | {error, term()}.
start_link(MaxPerOrOptions) ->
    ?CHECKED([MaxPerOrOptions], canal_lock_manager:start_link(start_options(MaxPerOrOptions))).

%% @doc As {@link start_link/1}, with `max_per' beside the other options.
-spec start_link(MaxPer :: pos_integer(), options()) -> {ok, pid()} | {error, term()}.
start_link(MaxPer, Options) ->
    ?CHECKED([MaxPer, Options], canal_lock_manager:start_link(start_options({MaxPer, Options}))).

start_options({MaxPer, Options}) -> Options#{max_per => MaxPer};
start_options(Options) when is_map(Options) -> Options;
start_options(MaxPer) -> #{max_per => MaxPer}.

%% @equiv child_spec(#{})
-spec child_spec() -> supervisor:child_spec().
child_spec() ->
    child_spec(#{}).

%% @doc A child specification for a supervisor: a process of {@link start_link/1} with a supervisor of its own.
%%
%% It is needed only if the application does not open the table (`{start, false}' in its environment), or to keep the
%% table open when the application stops. `keep_on_crash' is `true' by default here. If the manager crashes, the child's
%% own supervisor restarts it, up to 10 times in 10 seconds.
%%
%% The argument is a map of options, `MaxPer', or `{MaxPer, Options}'. Raises `badarg' if it is wrong. In Elixir, the
%% child is `CanalLock'.
-spec child_spec(MaxPer | {MaxPer, options()} | options()) -> supervisor:child_spec() when MaxPer :: pos_integer().
child_spec(Argument) ->
    ?CHECKED([Argument], canal_lock_starter:child_spec(canal_lock, start_options(Argument))).

%% @doc Closes the table for all who have opened it. All permits are void, and calls raise until the next start. All
%% processes of {@link start_link/1} end with `normal', and the supervisors of {@link child_spec/1} and of the
%% application do not restart them. Exits with `noproc' if no manager runs; a kept table stays open then.
-spec stop() -> ok.
stop() ->
    canal_lock_manager:stop().

%% @doc Acquires a permit of `Key' for the calling process, if fewer than `Limit' are in use.
%%
%% `acquire(Key, Limit)' is {@link acquire/3} with `MaxPer = Limit' and `Buckets = 1'.
%%
%% With a map in the place of the limit, the capacity is a function: `acquire(Key, #{capacity => Capacity, timeout_ms =>
%% 200})'. The other options are {@type wait_options()}. The calling process calls the function before the attempt, and
%% again after its request has joined the queue, until two capacities in a row are equal. So a process that stores a new
%% capacity and then calls {@link resize/3} misses no waiter. If the function raises, the request ends and the error
%% passes to the caller. Raises `badarg' if the function returns anything but `{MaxPer, Buckets}'.
-spec acquire(key(), Limit :: non_neg_integer() | #{capacity := capacity(), atom() => term()}) ->
    {acquired, N :: pos_integer()} | full.
acquire(Key, Options) when is_map(Options) ->
    ?ANSWER([Key, Options], canal_lock_capacity:acquire(Key, Options));
acquire(Key, Limit) ->
    case canal_lock_nif:acquire(Key, Limit, 1) of
        {raise, First, Arguments} ->
            Retried = canal_lock_interned:retry(First, fun canal_lock_nif:acquire/3, Arguments),
            ?ANSWER(lists:droplast(Arguments), Retried);
        Answer ->
            Answer
    end.

%% @doc Acquires a permit of `Key' for the calling process, if fewer than `MaxPer * Buckets' are in use.
%%
%% With a map in the place of `Buckets', it is {@link acquire/4} with one bucket: `acquire(Key, Limit, #{timeout_ms =>
%% 200})'. A number there is a number of buckets, not a timeout.
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
-spec acquire(key(), MaxPer :: non_neg_integer(), Buckets :: non_neg_integer() | wait_options()) ->
    {acquired, N :: pos_integer()} | full.
acquire(Key, Limit, Options) when is_map(Options) ->
    ?ANSWER([Key, Limit, Options], acquire_with(Key, Limit, 1, Options, canal_lock_wait:options(Options)));
acquire(Key, MaxPer, Buckets) ->
    %% The native call returns the arguments with a cause, so the VM need not keep them across the call.
    case canal_lock_nif:acquire(Key, MaxPer, Buckets) of
        {raise, First, Arguments} ->
            ?ANSWER(Arguments, canal_lock_interned:retry(First, fun canal_lock_nif:acquire/3, Arguments));
        Answer ->
            Answer
    end.

%% @doc As {@link acquire/3}, and waits if the key is full.
%%
%% The last argument is a timeout in milliseconds, `infinity', or a map; see {@type wait_options()}. If no permit is
%% free, the caller joins the queue of the key. A release hands its permit to the first waiter in the same step, so no
%% caller with the same or a smaller capacity can overtake. If the timeout expires, the answer is `full'. With a timeout
%% of 0, the call never waits. If the caller dies, its request ends.
%%
%% Each waiter has the capacity of its call. If the resource changes its size, call {@link resize/3}. A waiter whose
%% smaller capacity is reached is passed over, as {@link acquire/3} with that capacity would be refused.
%%
%% With `permits => K', the answer is `{acquired, N}' if the caller has all K permits. The oldest waiter collects its
%% permits one by one; these count as in use. Other waiters get all their permits at once. No waiter overtakes an older
%% one with the same capacity. If `K' is above the capacity, no release can satisfy the request. It waits for {@link
%% resize/3}, and blocks no other waiter. The requests that wait for a key can have at most 256 different capacities; a
%% request with another one is answered `full'.
%%
%% A caller can wait for a permit that only it can release, and two processes can wait for each other. The library
%% does not detect this. A timeout ends it.
%%
%% Raises as {@link acquire/3}, and `badarg' if the table closes while the caller waits. Cost: with a free permit, that
%% of {@link acquire/3}, and up to 25 ns more with a map; for several permits, 0.15 µs. Otherwise some microseconds, and
%% about 0.2 KB of memory for the time of the wait; the first wait of a process takes 0.4 KB more, until the process
%% ends.
-spec acquire(key(), MaxPer :: non_neg_integer(), Buckets :: non_neg_integer(), timeout() | wait_options()) ->
    {acquired, N :: pos_integer()} | full.
acquire(Key, MaxPer, Buckets, Timeout) when ?IS_TIMEOUT(Timeout) ->
    acquire_one(Key, MaxPer, Buckets, Timeout);
acquire(Key, MaxPer, Buckets, Options = #{timeout_ms := Timeout}) when map_size(Options) =:= 1, ?IS_TIMEOUT(Timeout) ->
    acquire_one(Key, MaxPer, Buckets, Options);
acquire(Key, MaxPer, Buckets, TimeoutOrOptions) ->
    case canal_lock_wait:options(TimeoutOrOptions) of
        {_, 1, _} ->
            acquire_one(Key, MaxPer, Buckets, TimeoutOrOptions);
        Options ->
            Answer = acquire_with(Key, MaxPer, Buckets, TimeoutOrOptions, Options),
            ?ANSWER([Key, MaxPer, Buckets, TimeoutOrOptions], Answer)
    end.

acquire_with(_Key, _MaxPer, _Buckets, _TimeoutOrOptions, invalid) ->
    {raise, badarg};
acquire_with(Key, MaxPer, Buckets, TimeoutOrOptions, {_, 1, _}) ->
    case canal_lock_nif:acquire(Key, MaxPer, Buckets, TimeoutOrOptions) of
        {raise, Cause, Arguments} -> after_attempt(Cause, Arguments);
        Acquired -> Acquired
    end;
acquire_with(Key, MaxPer, Buckets, _TimeoutOrOptions, Options) ->
    acquire_or_wait(Key, MaxPer, Buckets, Options).

%% Inlined, so that `acquire/4' is the function that raises.
-compile({inline, acquire_one/4}).
acquire_one(Key, MaxPer, Buckets, TimeoutOrOptions) ->
    case canal_lock_nif:acquire(Key, MaxPer, Buckets, TimeoutOrOptions) of
        {raise, Cause, Arguments} -> ?ANSWER(Arguments, after_attempt(Cause, Arguments));
        Acquired -> Acquired
    end.

after_attempt(full, [Key, MaxPer, Buckets, TimeoutOrOptions]) ->
    ?CAUGHT(canal_lock_wait:wait(Key, MaxPer, Buckets, canal_lock_wait:options(TimeoutOrOptions)));
after_attempt(intern, [Key, MaxPer, Buckets, TimeoutOrOptions]) ->
    acquire_or_wait(Key, MaxPer, Buckets, canal_lock_wait:options(TimeoutOrOptions));
after_attempt(Cause, _Arguments) ->
    {raise, Cause}.

acquire_or_wait(Key, MaxPer, Buckets, Options) ->
    ?CAUGHT(canal_lock_interned:call(Key, fun(K) -> canal_lock_wait:acquire(K, MaxPer, Buckets, Options) end)).

%% @doc Acquires a permit of `Key', or waits for it without blocking the caller, if `Limit' permits are in use.
%%
%% It is {@link request/3} with `MaxPer = Limit' and `Buckets = 1'. The limit can be a function, as in {@link
%% acquire/2}.
-spec request(key(), Limit :: non_neg_integer() | #{capacity := capacity(), atom() => term()}) ->
    {acquired, N :: pos_integer()} | {waiting, reference()} | full.
request(Key, Options) when is_map(Options) ->
    ?ANSWER([Key, Options], canal_lock_capacity:request(Key, Options));
request(Key, Limit) ->
    ?ANSWER([Key, Limit], request_or_wait(Key, Limit, 1, canal_lock_wait:options(0))).

%% @doc {@link request/4} without options. With a map in the place of `Buckets', it is {@link request/4} with one
%% bucket.
-spec request(key(), MaxPer :: non_neg_integer(), Buckets :: non_neg_integer() | request_options()) ->
    {acquired, N :: pos_integer()} | {waiting, reference()} | full.
request(Key, Limit, Options) when is_map(Options) ->
    ?ANSWER([Key, Limit, Options], request_or_wait(Key, Limit, 1, canal_lock_wait:request_options(Options)));
request(Key, MaxPer, Buckets) ->
    ?ANSWER([Key, MaxPer, Buckets], request_or_wait(Key, MaxPer, Buckets, canal_lock_wait:options(0))).

%% @doc As {@link acquire/4}, but the request waits, not the caller.
%%
%% With the answer `{waiting, Ref}', the caller gets one message: `{canal_lock, Ref, {acquired, N}}' when it has the
%% permits, or `{canal_lock, Ref, closed}' if the table closes. {@link cancel/1} ends the request before that. For a
%% timeout, the caller uses a timer of its own. Options: see {@type request_options()}. With `max_waiting => 0', it
%% never waits. Raises and costs as {@link acquire/4}.
-spec request(key(), MaxPer :: non_neg_integer(), Buckets :: non_neg_integer(), request_options()) ->
    {acquired, N :: pos_integer()} | {waiting, reference()} | full.
request(Key, MaxPer, Buckets, Options) ->
    ?ANSWER(
        [Key, MaxPer, Buckets, Options],
        request_or_wait(Key, MaxPer, Buckets, canal_lock_wait:request_options(Options))
    ).

request_or_wait(_Key, _MaxPer, _Buckets, invalid) ->
    {raise, badarg};
request_or_wait(Key, MaxPer, Buckets, Options) ->
    ?CAUGHT(canal_lock_interned:call(Key, fun(K) -> canal_lock_wait:request(K, MaxPer, Buckets, Options) end)).

%% @doc Ends a request of the calling process.
%%
%% `ok': the caller holds nothing because of it, and no message comes. `{acquired, N}': it had been granted; its message
%% is removed from the mailbox, and the permits are the caller's, to use or to release. `{error, not_waiting}': there is
%% no such request, or its message was received. Then nothing has changed. Raises `badarg' if the argument is not a
%% reference. Cost: about 0.3 µs.
-spec cancel(reference()) -> ok | {acquired, N :: pos_integer()} | {error, not_waiting}.
cancel(Ref) ->
    ?ANSWER([Ref], ?CAUGHT(canal_lock_wait:cancel(Ref))).

%% @equiv resize(Key, Limit, 1)
-spec resize(key(), Limit :: non_neg_integer()) -> ok.
resize(Key, Limit) ->
    ?ANSWER([Key, Limit], resize_queue(Key, Limit, 1)).

%% @doc Gives all requests that wait for `Key' another capacity, `MaxPer * Buckets', in one step.
%%
%% Call it when the resource changes its size. Then the requests that the new capacity admits are granted, the oldest
%% first, before the call returns. They are also granted if the caller is killed. A request that begins to wait later
%% keeps its own capacity. Raises as {@link acquire/3}. Cost: about 1 µs, and 0.5 µs for each request that is granted,
%% in pieces of at most 1 ms, between which other processes run.
-spec resize(key(), MaxPer :: non_neg_integer(), Buckets :: non_neg_integer()) -> ok.
resize(Key, MaxPer, Buckets) ->
    ?ANSWER([Key, MaxPer, Buckets], resize_queue(Key, MaxPer, Buckets)).

resize_queue(Key, MaxPer, Buckets) ->
    ?CAUGHT(canal_lock_interned:call(Key, fun(K) -> canal_lock_wait:resize(K, MaxPer, Buckets) end)).

%% @doc The number of requests that wait for `Key'. Raises as described for the module. Cost: constant.
-spec waiting(key()) -> non_neg_integer().
waiting(Key) ->
    ?ANSWER([Key], ?CAUGHT(canal_lock_interned:call(Key, fun canal_lock_nif:waiting/1))).

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
                {raise, not_held} -> canal_lock_reports:unexpected_release(hd(Arguments));
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

%% @doc As {@link release/1}, for several permits: all of them, or none with `{error, not_held}'. Options: see {@type
%% permits_options()}. Cost: that of {@link release/1}, plus a lock.
-spec release(key(), permits_options()) -> ok | {error, not_held}.
release(Key, Options) ->
    Permits = canal_lock_wait:permits(Options),
    Release = fun(KeyOrHandle) -> canal_lock_nif:release_many(local, KeyOrHandle, Permits) end,
    ?ANSWER([Key, Options], ?CAUGHT(canal_lock_interned:call(Key, Release))).

%% @equiv give(Key, Pid, #{})
-spec give(key(), pid()) -> ok | {error, not_held | not_alive}.
give(Key, Pid) ->
    ?ANSWER([Key, Pid], give_permits(Key, Pid, 1)).

%% @doc Gives permits of `Key' that the calling process holds to another process of this node: all of them, or none.
%%
%% After `ok', `Pid' holds the permits: it releases them, and they are released when it dies. The count does not change.
%% No message is sent to `Pid'. A message that the caller sends to it afterwards finds it with the permits. The answer
%% is `{error, not_held}' if the caller holds fewer, and `{error, not_alive}' if `Pid' has died; then
%% nothing has changed. Options: see {@type permits_options()}. Raises as {@link acquire/3}, and `badarg' if `Pid' is on
%% another node. Cost: 0.3 µs, and 1 µs more for a process that never waited and was never given a permit.
-spec give(key(), pid(), permits_options()) -> ok | {error, not_held | not_alive}.
give(Key, Pid, Options) ->
    ?ANSWER([Key, Pid, Options], give_permits(Key, Pid, canal_lock_wait:permits(Options))).

give_permits(Key, Pid, Permits) ->
    Give = fun(KeyOrHandle) -> canal_lock_nif:give(local, KeyOrHandle, Pid, Permits) end,
    ?CAUGHT(canal_lock_interned:call(Key, Give)).

%% @doc Calls `Fun', a function of arity 0, with a permit of `Key', if fewer than `Limit' are in use.
%%
%% It is {@link with_permit/4} with `MaxPer = Limit' and `Buckets = 1'. The limit can be a function, as in {@link
%% acquire/2}.
-spec with_permit(key(), Limit :: non_neg_integer() | #{capacity := capacity(), atom() => term()}, fun(() -> Result)) ->
    {ok, Result} | full.
with_permit(Key, Options, Fun) when is_map(Options), is_function(Fun, 0) ->
    case ?ANSWER([Key, Options, Fun], canal_lock_capacity:acquire(Key, Options)) of
        {acquired, _} ->
            try
                {ok, Fun()}
            after
                canal_lock_interned:release(Key, maps:get(permits, Options, 1))
            end;
        full ->
            full
    end;
with_permit(Key, Limit, Fun) when is_function(Fun, 0) ->
    case call_with_permit(Key, Limit, 1, Fun) of
        {raise, First, _} ->
            Retried = canal_lock_interned:retry(First, fun call_with_permit/4, [Key, Limit, 1, Fun]),
            ?ANSWER([Key, Limit, Fun], Retried);
        Answer ->
            Answer
    end;
with_permit(Key, Limit, Fun) ->
    ?RAISE(badarg, [Key, Limit, Fun]).

%% @doc Calls `Fun', a function of arity 0, while the caller holds a permit of `Key'.
%%
%% With a map in the place of `Buckets', it is {@link with_permit/5} with one bucket: `with_permit(Key, Limit,
%% #{timeout_ms => 200}, Fun)'.
%%
%% The permit is released when `Fun' returns (then the answer is `{ok, Result}'), when it throws, exits or raises (which
%% passes to the caller), and when the process is killed. If no permit is free, the answer is `full' and `Fun' is not
%% called. Calls can be nested; each acquires a permit of its own. `Fun' must not release the permit. If the table is
%% closed while `Fun' runs, the permit is void, and the call still returns the result of `Fun'. Raises and costs as
%% {@link acquire/3} and {@link release/1}.
-spec with_permit(
    key(), MaxPer :: non_neg_integer(), Buckets :: non_neg_integer() | wait_options(), fun(() -> Result)
) ->
    {ok, Result} | full.
with_permit(Key, Limit, Options, Fun) when is_map(Options), is_function(Fun, 0) ->
    ?ANSWER([Key, Limit, Options, Fun], with_options(Key, Limit, 1, canal_lock_wait:options(Options), Fun));
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
                release_after(KeyOrHandle, 1)
            end;
        Other ->
            Other
    end.

%% @doc As {@link with_permit/4}, and waits as {@link acquire/4}. With `permits => K', the caller holds K permits while
%% `Fun' runs.
-spec with_permit(
    key(),
    MaxPer :: non_neg_integer(),
    Buckets :: non_neg_integer(),
    timeout() | wait_options(),
    fun(() -> Result)
) -> {ok, Result} | full.
with_permit(Key, MaxPer, Buckets, TimeoutOrOptions, Fun) when is_function(Fun, 0) ->
    ?ANSWER(
        [Key, MaxPer, Buckets, TimeoutOrOptions, Fun],
        with_options(Key, MaxPer, Buckets, canal_lock_wait:options(TimeoutOrOptions), Fun)
    );
with_permit(Key, MaxPer, Buckets, TimeoutOrOptions, Fun) ->
    ?RAISE(badarg, [Key, MaxPer, Buckets, TimeoutOrOptions, Fun]).

with_options(_Key, _MaxPer, _Buckets, invalid, _Fun) ->
    {raise, badarg};
with_options(Key, MaxPer, Buckets, Options, Fun) ->
    case call_with_permits(Key, MaxPer, Buckets, Options, Fun) of
        {raise, First, All} -> canal_lock_interned:retry(First, fun call_with_permits/5, All);
        Answer -> Answer
    end.

%% As call_with_permit/4, which needs no `try' around the acquire. Errors of `Fun' are not caught.
call_with_permits(KeyOrHandle, MaxPer, Buckets, Options = {_, Permits, _}, Fun) ->
    try ?CAUGHT(canal_lock_wait:acquire(KeyOrHandle, MaxPer, Buckets, Options)) of
        {acquired, _} ->
            try
                {ok, Fun()}
            after
                release_after(KeyOrHandle, Permits)
            end;
        {raise, Cause} ->
            {raise, Cause, []};
        full ->
            full
    catch
        error:intern -> {raise, intern, [KeyOrHandle, MaxPer, Buckets, Options, Fun]}
    end.

%% If the table was closed, the permit is void. The result of `Fun' must not be lost because of that.
release_after(KeyOrHandle, 1) ->
    case canal_lock_nif:release(KeyOrHandle) of
        {raise, not_started, _} -> void;
        {raise, Cause, Arguments} -> ?RAISE(Cause, Arguments);
        _ -> ok
    end;
release_after(KeyOrHandle, Permits) ->
    case ?CAUGHT(canal_lock_nif:release_many(local, KeyOrHandle, Permits)) of
        {raise, not_started} -> void;
        {raise, Cause} -> ?RAISE(Cause, [KeyOrHandle, Permits]);
        _ -> ok
    end.

%% @equiv acquire_many(Limits, 0)
-spec acquire_many([limit()]) -> {acquired, [N :: pos_integer()]} | full.
acquire_many(Limits) ->
    ?ANSWER([Limits], canal_lock_many:acquire(Limits, 0)).

%% @doc Acquires one permit of each of several keys: all of them, or none with `full'.
%%
%% `Limits' is a list of `{Key, Limit}' and `{Key, MaxPer, Buckets}', in which each key occurs once. The answer has the
%% numbers of {@link acquire/3}, in the order of the list. The last argument is a timeout in milliseconds, `infinity',
%% or a map, see {@type many_options()}. The timeout is that of the whole call.
%%
%% The keys are acquired one after the other in the order of terms, so calls of this function never wait for each other
%% in a circle. A call that waits for one key holds its permits of the keys before it. A caller that holds other permits
%% during the call can still be part of a circle; a timeout ends it. Each key is released by {@link release/1}.
%%
%% Raises as {@link acquire/4}; then the caller holds none of the permits. Cost: that of {@link acquire/4} for each key,
%% and the sorting of the list.
-spec acquire_many([limit()], timeout() | many_options()) -> {acquired, [N :: pos_integer()]} | full.
acquire_many(Limits, TimeoutOrOptions) ->
    ?ANSWER([Limits, TimeoutOrOptions], canal_lock_many:acquire(Limits, TimeoutOrOptions)).

%% @equiv with_permits(Limits, 0, Fun)
-spec with_permits([limit()], fun(() -> Result)) -> {ok, Result} | full.
with_permits(Limits, Fun) when is_function(Fun, 0) ->
    ?ANSWER([Limits, Fun], call_with_limits(Limits, 0, Fun));
with_permits(Limits, Fun) ->
    ?RAISE(badarg, [Limits, Fun]).

%% @doc Calls `Fun' while the caller holds one permit of each key of `Limits', see {@link acquire_many/2}. Answers as
%% {@link with_permit/4}.
-spec with_permits([limit()], timeout() | many_options(), fun(() -> Result)) -> {ok, Result} | full.
with_permits(Limits, TimeoutOrOptions, Fun) when is_function(Fun, 0) ->
    ?ANSWER([Limits, TimeoutOrOptions, Fun], call_with_limits(Limits, TimeoutOrOptions, Fun));
with_permits(Limits, TimeoutOrOptions, Fun) ->
    ?RAISE(badarg, [Limits, TimeoutOrOptions, Fun]).

call_with_limits(Limits, TimeoutOrOptions, Fun) ->
    case canal_lock_many:acquire(Limits, TimeoutOrOptions) of
        {acquired, _} ->
            try
                {ok, Fun()}
            after
                canal_lock_many:release(Limits)
            end;
        Other ->
            Other
    end.

%% @doc Acquires a permit in the table of another node, for the calling process. With `node()' it is {@link acquire/3}.
%%
%% On that node, a process that represents the caller, its <em>proxy</em>, monitors the caller and holds the permit.
%% When the caller dies, or the connection between the nodes is lost, the VM there releases its permits. The caller is
%% not notified of a lost connection; it can monitor `{canal_lock, Node}'. If the manager there crashes and its table is
%% kept, the permits stay held.
%%
%% The answer is `{error, timeout}' if the other node has not answered within 5 s: the node or the connection hangs, or
%% the manager there is busy. Then the caller holds nothing. A permit that is granted later is released at once.
%%
%% The call exits with `{Reason, {canal_lock, acquire_on, _}}', as `gen_server:call/2' does, if the node is not
%% connected (`{nodedown, Node}'), if no manager runs there (`noproc'), or if the manager crashes during the call. Then
%% no permit was acquired. It raises as {@link acquire/3}, and raises `version_mismatch' if the node runs another
%% version of this library.
%%
%% Cost: two round trips, and a process of this node that makes them. The manager serves the first one, the proxy the
%% second one, so a long key delays no other caller.
-spec acquire_on(node(), key(), MaxPer :: non_neg_integer(), Buckets :: non_neg_integer()) ->
    {acquired, N :: pos_integer()} | full | {error, timeout}.
acquire_on(Node, Key, MaxPer, Buckets) when Node =:= node() ->
    acquire(Key, MaxPer, Buckets);
acquire_on(Node, Key, MaxPer, Buckets) ->
    Arguments = [Node, Key, MaxPer, Buckets],
    ?ON(Arguments, canal_lock_remote:acquire(Node, Key, MaxPer, Buckets, canal_lock_wait:options(0))).

%% @doc As {@link acquire_on/4}, and waits as {@link acquire/4}, in one queue with the callers of that node. If the
%% caller dies or the connection is lost, its request ends.
%%
%% `full' comes from the other node, after the timeout. If it has not arrived 100 ms after the timeout, the answer is
%% `{error, timeout}'. With a timeout of 0 the call waits 5 s for its answer, and with `infinity' for as long as the
%% node is connected.
-spec acquire_on(
    node(), key(), MaxPer :: non_neg_integer(), Buckets :: non_neg_integer(), timeout() | wait_options()
) ->
    {acquired, N :: pos_integer()} | full | {error, timeout}.
acquire_on(Node, Key, MaxPer, Buckets, TimeoutOrOptions) when Node =:= node() ->
    acquire(Key, MaxPer, Buckets, TimeoutOrOptions);
acquire_on(Node, Key, MaxPer, Buckets, TimeoutOrOptions) ->
    Arguments = [Node, Key, MaxPer, Buckets, TimeoutOrOptions],
    Options = canal_lock_wait:options(TimeoutOrOptions),
    ?ON(Arguments, canal_lock_remote:acquire(Node, Key, MaxPer, Buckets, Options)).

%% @doc Releases a permit that the calling process has acquired with {@link acquire_on/4}. With `node()' it is
%% {@link release/1}.
%%
%% The answer is `{error, timeout}' if the other node has not answered within 5 s. The release goes on in the
%% background. Do not repeat it: another permit would be released. A caller that must not wait for the other node calls
%% {@link release_on_async/2}.
%%
%% Exits, raises and costs as {@link acquire_on/4}. If it exits, call it again: either the permit is still held, because
%% no manager has answered, or the answer is `{error, not_held}', because the proxy has exited and its permits are
%% released.
-spec release_on(node(), key()) -> ok | {error, not_held | timeout}.
release_on(Node, Key) when Node =:= node() ->
    release(Key);
release_on(Node, Key) ->
    ?ON([Node, Key], canal_lock_remote:release(Node, Key, 1)).

%% @doc As {@link release_on/2}, for several permits: all of them, or none with `{error, not_held}'. Options: see {@type
%% permits_options()}.
-spec release_on(node(), key(), permits_options()) -> ok | {error, not_held | timeout}.
release_on(Node, Key, Options) when Node =:= node() ->
    release(Key, Options);
release_on(Node, Key, Options) ->
    ?ON([Node, Key, Options], canal_lock_remote:release(Node, Key, canal_lock_wait:permits(Options))).

%% @doc As {@link release_on/2}, but does not wait for the other node, and its answer is always `ok'. With `node()' the
%% permit is released before the call returns.
%%
%% A process of this node makes the release. If no manager runs there, it tries again for 10 s. If a manager does not
%% return in that time, the permit stays held until the caller dies or the connection is lost. Another call, of this or
%% of another process, can reach the other node before the release. Raises `badarg' if an argument is wrong. Cost:
%% microseconds.
-spec release_on_async(node(), key()) -> ok.
release_on_async(Node, Key) when Node =:= node() ->
    _ = release(Key),
    ok;
release_on_async(Node, Key) ->
    ?CHECKED([Node, Key], canal_lock_remote:release_async(Node, Key, 1)).

%% @doc As {@link release_on_async/2}, for several permits: all of them or none. Options: see {@type permits_options()}.
-spec release_on_async(node(), key(), permits_options()) -> ok.
release_on_async(Node, Key, Options) when Node =:= node() ->
    _ = release(Key, Options),
    ok;
release_on_async(Node, Key, Options) ->
    ?CHECKED([Node, Key, Options], canal_lock_remote:release_async(Node, Key, canal_lock_wait:permits(Options))).

%% @doc Calls `Fun', a function of arity 0, while the caller holds a permit of the table of another node. With `node()'
%% it is {@link with_permit/4}.
%%
%% The permit is acquired as by {@link acquire_on/4}; if that answers `full' or `{error, timeout}', so does this call,
%% and `Fun' is not called. The permit is released when `Fun' returns, throws, exits or raises. That release is
%% asynchronous, as {@link release_on_async/2}, but needs no manager. Exits and raises as {@link acquire_on/4} before
%% `Fun' is called.
-spec with_permit_on(
    node(), key(), MaxPer :: non_neg_integer(), Buckets :: non_neg_integer(), fun(() -> Result)
) -> {ok, Result} | full | {error, timeout}.
with_permit_on(Node, Key, MaxPer, Buckets, Fun) when Node =:= node() ->
    with_permit(Key, MaxPer, Buckets, Fun);
with_permit_on(Node, Key, MaxPer, Buckets, Fun) ->
    Arguments = [Node, Key, MaxPer, Buckets, Fun],
    Held = ?ON(Arguments, canal_lock_remote:hold(Node, Key, MaxPer, Buckets, canal_lock_wait:options(0))),
    call_with_held(Held, Key, 1, Fun).

%% @doc As {@link with_permit_on/5}, and waits as {@link acquire_on/5}. With `permits => K', the caller holds K permits
%% while `Fun' runs.
-spec with_permit_on(
    node(),
    key(),
    MaxPer :: non_neg_integer(),
    Buckets :: non_neg_integer(),
    timeout() | wait_options(),
    fun(() -> Result)
) -> {ok, Result} | full | {error, timeout}.
with_permit_on(Node, Key, MaxPer, Buckets, TimeoutOrOptions, Fun) when Node =:= node() ->
    with_permit(Key, MaxPer, Buckets, TimeoutOrOptions, Fun);
with_permit_on(Node, Key, MaxPer, Buckets, TimeoutOrOptions, Fun) ->
    Arguments = [Node, Key, MaxPer, Buckets, TimeoutOrOptions, Fun],
    Options = canal_lock_wait:options(TimeoutOrOptions),
    Held = ?ON(Arguments, canal_lock_remote:hold(Node, Key, MaxPer, Buckets, Options)),
    call_with_held(Held, Key, element(2, Options), Fun).

call_with_held({held, Proxy}, Key, Permits, Fun) ->
    try
        {ok, Fun()}
    after
        canal_lock_remote:let_go(Proxy, Key, Permits)
    end;
call_with_held(Refusal, _Key, _Permits, _Fun) ->
    Refusal.

%% @doc The number of permits of `Key' in use. Exact at any time. Raises as described for the module. Cost:
%% constant.
-spec count(key()) -> non_neg_integer().
count(Key) ->
    ?ANSWER([Key], ?CAUGHT(canal_lock_interned:call(Key, fun canal_lock_nif:count/1))).

%% @doc The permits of `Key' in use, as a list of buckets of `MaxPer', a positive integer: `[3,1]' are four permits in
%% buckets of three. Empty buckets are left out. Raises as described for the module, and `system_limit' if there are
%% more than 1,000 buckets. Cost: proportional to the length of the answer.
-spec buckets(key(), MaxPer :: pos_integer()) -> [pos_integer()].
buckets(Key, MaxPer) when is_integer(MaxPer), MaxPer > 0 ->
    Permits = ?ANSWER([Key, MaxPer], ?CAUGHT(canal_lock_interned:call(Key, fun canal_lock_nif:count/1))),
    if
        Permits > ?MAX_BUCKETS * MaxPer -> ?RAISE(too_many_buckets, [Key, MaxPer]);
        true -> lists:duplicate(Permits div MaxPer, MaxPer) ++ [Rest || Rest <- [Permits rem MaxPer], Rest > 0]
    end;
buckets(Key, MaxPer) ->
    ?RAISE(badarg, [Key, MaxPer]).

%% @doc The processes that hold permits of `Key', each with its number of permits, in no order; a snapshot. A holder on
%% another node is shown by its own pid.
%%
%% Raises as described for the module. Cost: reads the slots of all processes, about 0.1 ms for 1,000 processes, and
%% 4 ms when 262,144 slots have been used.
-spec holders(key()) -> [{pid(), Permits :: pos_integer()}].
holders(Key) ->
    ?ANSWER([Key], ?CAUGHT(canal_lock_view:holders(local, Key))).

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

%% @doc How many permits a process holds in the table of this node, of how many keys, and for how long; see {@type
%% holder_info()}. `none' if it holds nothing; a snapshot.
%%
%% The process can be on another node. `held_ms' counts from the first permit of the process: acquired, handed over,
%% collected by a request, or given. It begins again when the process has released all its permits and gets another
%% one. Raises as described for the module. Cost: a call on a dirty scheduler, and a
%% time proportional to the number of keys.
-spec holder_info(pid()) -> holder_info() | none.
holder_info(Pid) ->
    ?ANSWER([Pid], ?CAUGHT(canal_lock_view:holder_info(Pid))).

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
    ?ANSWER([], canal_lock_screen:run(canal_lock_top, #{})).

%% @doc Shows the activity of the table of this node in a shell, as text, until Enter is pressed.
%%
%% It shows numbers of {@link info/0}, the rates at which they grow, the keys and the holders with most permits, and the
%% keys that most requests wait for. `docs/operating.md' explains each column, with an example. On a small screen, each
%% list gets an equal share. Keys are cut to the width of the screen. Control characters, and characters that are not
%% plain letters, are shown as numbers.
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
%% one {@link info/0}, one {@link keys/0}, one pass over the permits of all holders and one over the queues, and keeps
%% at most twice `rows' of each. That is 15 ms for 10,000 keys of 1,000 processes, and 1.1 s and 4 MB of memory for a
%% million keys of 200,000 processes. Each key is copied once, and once more for each of its holders, which matters for
%% keys of megabytes. A dirty scheduler does nearly all the work; other calls are not delayed. The next refresh begins
%% `interval_ms' after the last one, or three times as long as the last one took, if that is longer. So it uses at most
%% a quarter of one scheduler.
-spec top(view_options()) -> ok.
top(Options) ->
    ?CHECKED([Options], ?ANSWER([Options], canal_lock_screen:run(canal_lock_top, Options))).
