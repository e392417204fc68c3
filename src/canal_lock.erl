%% @doc Limits who may use what, right now.
%%
%% A <em>key</em> is what is limited: any term. It has so many <em>buckets</em>, each of which bears so many
%% <em>permits</em> at a time (`MaxPer'). Both numbers come with each call, because they change while permits are out. A
%% caller that gets a permit is a <em>holder</em>, and the VM gives its permits back when it dies, whatever it dies of.
%%
%% ```
%% 1> {ok, _Pid} = canal_lock:start_link(3).
%% {ok,<0.84.0>}
%% 2> canal_lock:acquire(db, 3, 1).
%% {acquired,1}
%% 3> canal_lock:release(db, 3, 1).
%% ok
%% '''
%%
%% {@link acquire/3} and {@link release/1} send no message and wait for no process. The manager, a process registered as
%% `canal_lock', owns the life of the table and starts the proxies of holders on other nodes. No local call passes
%% through it.
%%
%% == Errors ==
%% A wrong argument raises `badarg', and so does any call while canal_lock is not started: there is no manager, and no
%% table that one has kept. The shell says which argument it is, and why (`error_info', EEP 54). When something raises,
%% nothing has changed.
-module(canal_lock).

-export([start_link/1, start_link/2, child_spec/1, stop/0]).
-export([acquire/3, release/1, release/3, with_permit/4]).
-export([acquire_on/4, release_on/2]).
-export([count/1, buckets/2, holders/1, held/0, held/1, keys/0, info/0, audit/0]).
-export([top/0, top/1]).

-export_type([key/0, options/0, info/0, view_options/0]).

%% With an explanation, and the arguments, for whoever shows the error. A macro: the function that raises is the one
%% that is shown.
-define(RAISE(Cause, Arguments),
    error(
        canal_lock_errors:reason(Cause),
        canal_lock_errors:arguments(Cause, Arguments),
        [{error_info, #{module => canal_lock_errors, cause => Cause}}]
    )
).

%% The call, if nothing is wrong with the arguments.
-define(CHECKED(Arguments, Call),
    case canal_lock_errors:faults(?FUNCTION_NAME, Arguments) of
        Faults when map_size(Faults) =:= 0 -> Call;
        _ -> ?RAISE(badarg, Arguments)
    end
).

%% A call whose errors are causes, unless they come from elsewhere: a library that is not there, say.
-define(EXPLAINED(Arguments, Call),
    try
        Call
    catch
        error:Cause:Stack ->
            true = canal_lock_errors:is_cause(Cause) orelse erlang:raise(error, Cause, Stack),
            ?RAISE(Cause, Arguments)
    end
).

%% An answer, unless it says what to raise.
-define(ANSWERED(Arguments, Answer),
    case Answer of
        {raise, Cause} -> ?RAISE(Cause, Arguments);
        Answered -> Answered
    end
).

%% A call of another node's manager, which answers causes, and exits as `gen_server:call/2' does.
-define(REMOTE(Arguments, Call),
    try
        ?ANSWERED(Arguments, Call)
    catch
        exit:Reason -> exit({Reason, {?MODULE, ?FUNCTION_NAME, Arguments}})
    end
).

-type key() :: term().
%% What permits are counted for. Keys are compared with `=:=': `1' and `1.0' are two keys. A key that holds a
%% reference or a fun is copied as the VM copies a message: a small part of a large binary in it keeps the whole
%% binary in memory until the key is reclaimed.

-type options() :: #{keep_on_crash => boolean(), sweep_interval_ms => pos_integer()}.
%% `keep_on_crash' (`false'): if the manager crashes, counts, holders and their watch go on without it, and the next
%% manager that is started with this option adopts them. `sweep_interval_ms' (5000): an idle key is gone after two of
%% these intervals.

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
    given_back := non_neg_integer(),
    not_held := non_neg_integer(),
    reclaimed := non_neg_integer()
}.
%% What the table is and costs: the `MaxPer' that the manager was started with; keys in the table, with those idle
%% ones that the sweep has not reached yet; permits out, of all keys together; processes that hold any; bytes
%% allocated by the table; and memory barriers that the operating system has refused this VM since it was started
%% (each of them delays the freeing of memory; it should be 0). And what has happened since it was opened: permits
%% granted; calls that were answered `full'; permits released; permits given back after the death of their holders, or
%% when their connection was lost; releases of what the caller did not hold; idle keys that the sweep has taken out.
%% `granted' is the sum of `permits', `released' and `given_back'; these are not read at one instant, so in a busy
%% table it may be more or less by what goes on just then, and less than a moment before. The permits are those that
%% the holders have, one looked at after the other: so one that goes from a holder to another meanwhile may be seen
%% twice or not at all, and only {@link count/1} is exact at any time. The records of proxies of holders on other
%% nodes are not in `memory'.

-type view_options() :: #{
    interval_ms => pos_integer(),
    rows => pos_integer(),
    show => fun((term()) -> unicode:chardata())
}.
%% `interval_ms' (1000): how long to wait between two looks. `rows' (10): how many keys, and how many holders, to
%% show at most. `show': how to write a key, a pid, a name or a function; if it is not given, or fails, as `~p' of
%% `io:format/2' does.

%% @equiv start_link(MaxPer, #{})
-spec start_link(MaxPer :: pos_integer()) -> {ok, pid()} | {error, term()}.
start_link(MaxPer) ->
    ?CHECKED([MaxPer], canal_lock_manager:start_link(MaxPer, #{})).

%% @doc Starts the manager, linked to the caller and registered as `canal_lock'.
%%
%% `MaxPer', a positive integer, is how many permits a bucket bears. It is shown by {@link info/0} and decides nothing:
%% each call brings its own. `Options' is a map; see {@type options()}.
%%
%% The table is empty at first, unless `keep_on_crash' is `true' and a manager with that option has crashed: then its
%% table goes on. In any other case, whatever permits are still held from an earlier manager are void from now on: the
%% deaths and late releases of their holders change nothing.
%%
%% An orderly end of the manager (`stop/0', or an exit with `normal', `shutdown' or `{shutdown, _}') closes the table.
%% So does any other end of one without `keep_on_crash'. Such a one does not trap exits, and outlives a parent that ends
%% normally. One with `keep_on_crash' does, and ends with its parent. If nobody starts another after a crash, the table
%% stays, and calls go on, but idle keys are not swept away.
%%
%% If a manager is running, the answer is `{error, {already_started, Pid}}' and its table is left alone. If the native
%% library does not load, it is `{error, {nif_not_loaded, Sentences}}', a binary that names the file, what is wrong with
%% it, and the command that builds it.
-spec start_link(MaxPer :: pos_integer(), options()) -> {ok, pid()} | {error, term()}.
start_link(MaxPer, Options) ->
    ?CHECKED([MaxPer, Options], canal_lock_manager:start_link(MaxPer, Options)).

%% @doc For a supervisor: a manager that is restarted whenever it ends, and keeps its table when it crashes, unless the
%% options say otherwise.
%%
%% In Erlang the child is `canal_lock:child_spec(3)', in Elixir `{:canal_lock, 3}'; with options,
%% `{3, #{sweep_interval_ms => 1000}}' in place of the number.
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

%% @doc Stops the manager. The table is closed: all permits are void, and calls raise until the next start.
%%
%% Exits with `noproc' if there is no manager; a table that one has kept stays open then. One that has a supervisor is
%% started again by it, with an empty table.
-spec stop() -> ok.
stop() ->
    canal_lock_manager:stop().

%% @doc Takes a permit of `Key' for the calling process, if fewer than `MaxPer * Buckets' are out.
%%
%% `MaxPer' (permits per bucket) and `Buckets' are non-negative integers of any size; with a product of 0 nobody is
%% admitted. `N' is the number of permits out, this one included. A process may take several, of one key and of many.
%%
%% Raises `badarg' as the module says; `system_limit' when there is no memory, and for a key of more than half a
%% gigabyte (counted with shared parts as often as they occur).
%%
%% Cost: constant, some tens of nanoseconds; it depends neither on `Buckets' nor on what is held already. The first
%% permit that a process takes costs a monitor more. A long key is read to the end by each call: one of more than 64
%% KiB, or with a fun, a bitstring or an integer beyond 1024 bits in it, by a dirty scheduler, which takes some
%% microseconds more.
-spec acquire(key(), MaxPer :: non_neg_integer(), Buckets :: non_neg_integer()) ->
    {acquired, N :: pos_integer()} | full.
acquire(Key, MaxPer, Buckets) ->
    %% The arguments come back with a cause, so that none need be kept across the call.
    case canal_lock_nif:acquire(Key, MaxPer, Buckets) of
        {raise, First, Arguments} ->
            ?ANSWERED(Arguments, canal_lock_interned:counted(First, fun canal_lock_nif:acquire/3, Arguments));
        Answer ->
            Answer
    end.

%% @doc Gives one permit of `Key' back, if the calling process holds one.
%%
%% `MaxPer' and `Buckets' are those of {@link acquire/3}; they are checked, and decide nothing. A caller that holds no
%% permit of `Key' hears `ok' too, and no count changes: only a holder releases. But it is a mistake, and is reported
%% to the logger (once a second at most) with the key and those who do hold it. Use {@link release/1} to be told.
%%
%% Raises and costs as {@link acquire/3}; a report costs milliseconds.
-spec release(key(), MaxPer :: non_neg_integer(), Buckets :: non_neg_integer()) -> ok.
release(Key, MaxPer, Buckets) when MaxPer bor Buckets >= 0 ->
    %% That is so of two non-negative integers and of nothing else, asked at once. And as in `acquire/3', the arguments
    %% come back with a cause.
    case canal_lock_nif:release(Key, MaxPer, Buckets) of
        ok ->
            ok;
        {raise, First, Arguments} ->
            case canal_lock_interned:counted(First, fun canal_lock_nif:release/3, Arguments) of
                ok -> ok;
                {raise, not_held} -> canal_lock_reports:unexpected_unlock(hd(Arguments));
                {raise, Cause} -> ?RAISE(Cause, Arguments)
            end
    end;
release(Key, MaxPer, Buckets) ->
    ?RAISE(badarg, [Key, MaxPer, Buckets]).

%% @doc Gives one permit of `Key' back; `{error, not_held}' if the calling process holds none.
%%
%% Raises and costs as {@link acquire/3}.
-spec release(key()) -> ok | {error, not_held}.
release(Key) ->
    case canal_lock_nif:release(Key) of
        {raise, First, Arguments} ->
            ?ANSWERED(Arguments, canal_lock_interned:counted(First, fun canal_lock_nif:release/1, Arguments));
        Answer ->
            Answer
    end.

%% @doc Calls `Fun', a function of no arguments, with a permit of `Key', which is given back however `Fun' ends: when
%% it returns (`{ok, Result}'), when it throws, exits or raises (which goes on to the caller), and when the process is
%% killed.
%%
%% If there is none to be had, the answer is `full', and `Fun' is not called. Calls may be nested; each takes a permit
%% of its own. `Fun' must not release what it runs under. If the table is closed meanwhile, the permit is void, and the
%% result of `Fun' is answered all the same.
%%
%% Raises and costs as {@link acquire/3} and {@link release/1}.
-spec with_permit(key(), MaxPer :: non_neg_integer(), Buckets :: non_neg_integer(), fun(() -> Result)) ->
    {ok, Result} | full.
with_permit(Key, MaxPer, Buckets, Fun) when is_function(Fun, 0) ->
    case with_permit_of(Key, MaxPer, Buckets, Fun) of
        {raise, First, _} ->
            Arguments = [Key, MaxPer, Buckets, Fun],
            ?ANSWERED(Arguments, canal_lock_interned:counted(First, fun with_permit_of/4, Arguments));
        Answer ->
            Answer
    end;
with_permit(Key, MaxPer, Buckets, Fun) ->
    ?RAISE(badarg, [Key, MaxPer, Buckets, Fun]).

%% What it was acquired with, it is released with: so a long key is read once, and nothing can fail afterwards.
with_permit_of(KeyOrHandle, MaxPer, Buckets, Fun) ->
    case canal_lock_nif:acquire(KeyOrHandle, MaxPer, Buckets) of
        {acquired, _} ->
            try
                {ok, Fun()}
            after
                return(KeyOrHandle)
            end;
        Other ->
            Other
    end.

%% What came of `Fun' must not be lost because its permit is void by now.
return(KeyOrHandle) ->
    case canal_lock_nif:release(KeyOrHandle) of
        {raise, not_started, _} -> void;
        {raise, Cause, Arguments} -> ?RAISE(Cause, Arguments);
        _ -> ok
    end.

%% @doc Acquires a permit in the table of another node, for the calling process. With `node()' it is {@link acquire/3}.
%%
%% On that node, a process that represents the caller, its <em>proxy</em>, monitors the caller and holds the permit.
%% When the caller dies, or the connection between the nodes is lost, the VM there releases its permits. The caller is
%% not notified of a lost connection; it can monitor `{canal_lock, Node}'. A crash of the manager loses nothing if its
%% table is kept.
%%
%% The call waits as long as it takes. It exits with `{Reason, {canal_lock, acquire_on, _}}', as `gen_server:call/2'
%% does, if the node is not connected (`{nodedown, Node}'), if no manager runs there (`noproc'), or if the manager
%% crashes during the call. Then no permit was acquired. It raises as {@link acquire/3}; and `version_mismatch', if
%% the node runs another version of this library.
%%
%% Cost: two round trips. The first one is served by the manager, the second one by the proxy, so a long key holds up no
%% other caller.
-spec acquire_on(node(), key(), MaxPer :: non_neg_integer(), Buckets :: non_neg_integer()) ->
    {acquired, N :: pos_integer()} | full.
acquire_on(Node, Key, MaxPer, Buckets) when Node =:= node() ->
    acquire(Key, MaxPer, Buckets);
acquire_on(Node, Key, MaxPer, Buckets) ->
    Arguments = [Node, Key, MaxPer, Buckets],
    ?CHECKED(Arguments, ?REMOTE(Arguments, canal_lock_remote:call(Node, {acquire, Key, MaxPer, Buckets}))).

%% @doc Releases a permit that the calling process has acquired by {@link acquire_on/4}. With `node()' it is
%% {@link release/1}.
%%
%% Exits, raises and costs as {@link acquire_on/4}. If it exits, call it again: either the permit is still held,
%% because no manager has answered, or the answer is `{error, not_held}', because the proxy is gone and all permits
%% with it.
-spec release_on(node(), key()) -> ok | {error, not_held}.
release_on(Node, Key) when Node =:= node() ->
    release(Key);
release_on(Node, Key) ->
    Arguments = [Node, Key],
    ?CHECKED(Arguments, ?REMOTE(Arguments, canal_lock_remote:call(Node, {release, Key}))).

%% @doc How many permits of `Key' are out.
%%
%% Raises as the module says. Cost: constant.
-spec count(key()) -> non_neg_integer().
count(Key) ->
    ?EXPLAINED([Key], canal_lock_interned:call(Key, fun canal_lock_nif:count/1)).

%% @doc The permits of `Key' that are out, as buckets of `MaxPer', a positive integer: `[3,1]' are four of three each.
%% Empty buckets are not shown.
%%
%% Raises as the module says. Cost: the length of the answer.
-spec buckets(key(), MaxPer :: pos_integer()) -> [pos_integer()].
buckets(Key, MaxPer) ->
    Buckets = fun(KeyOrHandle) -> canal_lock_nif:buckets(KeyOrHandle, MaxPer) end,
    {Full, Rest} = ?EXPLAINED([Key, MaxPer], canal_lock_interned:call(Key, Buckets)),
    lists:duplicate(Full, MaxPer) ++ [Rest || Rest > 0].

%% @doc Who holds permits of `Key', and how many; in no order. Holders on other nodes are shown by their own pids.
%%
%% Exact when nothing is going on, a fair snapshot otherwise. Raises as the module says. Cost: looks at the holders of
%% all keys, about 0.1 ms for a thousand processes; calls go on meanwhile.
-spec holders(key()) -> [{pid(), Permits :: pos_integer()}].
holders(Key) ->
    ?EXPLAINED([Key], canal_lock_view:holders(Key)).

%% @doc What the calling process holds, in no order.
%%
%% Raises as the module says. Cost: a call on a dirty scheduler, and the length of the answer.
-spec held() -> [{key(), Permits :: pos_integer()}].
held() ->
    ?EXPLAINED([], canal_lock_view:held(self())).

%% @doc What a process holds here, in no order. It may be one on another node.
%%
%% Exact when nothing is going on, a fair snapshot otherwise. Raises and costs as {@link held/0}.
-spec held(pid()) -> [{key(), Permits :: pos_integer()}].
held(Pid) ->
    ?EXPLAINED([Pid], canal_lock_view:held(Pid)).

%% @doc All keys that have permits out, each with their number; in no order.
%%
%% Exact when nothing is going on, a fair snapshot otherwise. Raises as the module says. Cost: looks at all keys, about
%% a second for a million; calls go on meanwhile.
-spec keys() -> [{key(), Permits :: pos_integer()}].
keys() ->
    ?EXPLAINED([], canal_lock_view:keys()).

%% @doc What the table is and costs, and what has happened in it; see {@type info()}.
%%
%% Exact when nothing is going on, a fair snapshot otherwise. Raises as the module says. Cost: looks at all holders, and
%% at no key, on a dirty scheduler: some milliseconds for 200,000 processes, less than one for a million keys that a
%% hundred processes hold. So it can be polled each second; calls go on meanwhile. {@link canal_lock_telemetry} tells
%% the same by itself.
-spec info() -> info().
info() ->
    ?EXPLAINED([], canal_lock_nif:info()).

%% @doc Compares the count of each key with what its holders have on record. The answer is a list of those that differ,
%% `{Key, Counted, Held}'.
%%
%% When nothing is going on it is empty, or there is a bug in canal_lock. Otherwise permits come and go between the two
%% looks. Raises as the module says. Cost: looks at everything, some seconds for a million keys, and keeps all of them
%% in the memory of the caller; calls go on meanwhile.
-spec audit() -> [{key(), Counted :: non_neg_integer(), Held :: non_neg_integer()}].
audit() ->
    ?EXPLAINED([], canal_lock_view:audit()).

%% @equiv top(#{})
-spec top() -> ok.
top() ->
    ?EXPLAINED([], canal_lock_top:run(#{})).

%% @doc Shows what goes on in the table of this node, in plain text, until Enter is pressed: for people, in a shell.
%%
%% Keys, permits, holders and memory, as {@link info/0} says. What has been granted, refused, released and given back
%% since the last look, per second; and releases of what was not held, if there ever were any. (`-' stands where that
%% is not known: at the first look, and when another table has taken the place of the one before.) Then the keys that
%% have most permits out, and the processes that hold most permits: how many, of how many keys, and what the process
%% is known by. That is its name, what it was started with, or the function that it is in; of another node's, the
%% node.
%%
%% A key is cut to the line, and what could move the cursor, or is no plain letter, is shown as its number. If the
%% manager has gone, the first line says so. If the table closes meanwhile, the picture says that canal_lock is not
%% started, until it is again.
%%
%% ```
%% canal_lock on shop@host, 14:03:27; Enter ends this
%%          keys      permits      holders       memory
%%            26         1755           51     338.6 kB
%%     granted/s    refused/s   released/s given back/s
%%           479         4536          471            8
%%
%%       permits  key
%%            90  {app,10}
%%            87  {app,9}
%%
%%       permits         keys  holder
%%           480            6  <0.199.0>  pool
%%            50            1  <0.198.0>  fun shop_worker:init/1
%% '''
%%
%% It reads and writes where the caller does: so it can be called in a shell that is attached to this node (`erl
%% -remsh'), and from another node by `erpc:call(Node, canal_lock, top, [])'. On a terminal a picture is drawn over
%% the one before, as much of it as there is room for. Elsewhere (a file, a pipe, a terminal that is `dumb') one
%% follows the other, and the first one comes after an interval, with rates. Where there is no input, or it has
%% ended, there is one picture with rates, and then the answer.
%%
%% Any line ends it, whatever is in it. The calling process does all of this: no process is left behind, and the
%% terminal is as it was. Only if the calling process is killed, its question for a line stays with the group leader,
%% and may be answered with a line that was meant for others.
%%
%% Raises as the module says, if canal_lock is not started in the beginning. Cost: each look is one of {@link info/0}
%% and of {@link keys/0}, and one at what all holders hold, though no more than twice `rows' are kept: 15 ms for ten
%% thousand keys of a thousand processes; 1.1 s, and 4 MB of memory, for a million keys of 200,000 processes. Each
%% key is copied once, and once more for each of its holders, which counts where keys are megabytes. Nearly all of it
%% is done by a dirty scheduler; calls go on meanwhile, and nothing is counted for it. The next look begins
%% `interval_ms' after the last one has ended, or three times as long as that one took if this is more: so looking
%% takes a quarter of one scheduler at most.
-spec top(view_options()) -> ok.
top(Options) ->
    ?CHECKED([Options], ?EXPLAINED([Options], canal_lock_top:run(Options))).
