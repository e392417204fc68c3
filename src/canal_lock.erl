%% @doc Limits who may use what, right now.
%%
%% A <em>key</em> is what is limited: any term. It has so many <em>buckets</em>, each of which bears `MaxPer'
%% <em>permits</em> at a time; both numbers come with each call, because they change while permits are out. A caller
%% that gets a permit is a
%% <em>holder</em>, and the VM gives its permits back when it dies, whatever it dies of.
%%
%% ```
%% 1> {ok, _} = canal_lock:start_link(3).
%% 2> canal_lock:acquire(db, 3, 1).
%% {acquired,1}
%% 3> canal_lock:release(db, 3, 1).
%% ok
%% '''
%%
%% {@link acquire/3} and {@link release/1} send no message and wait for nobody. The manager, a process registered as
%% `canal_lock', owns the life of the table; it is not on the way of any call.
-module(canal_lock).

-export([start_link/1, stop/0]).
-export([acquire/3, release/1, release/3]).
-export([count/1, buckets/2, info/0]).

-export_type([key/0, info/0]).

-type key() :: term().
%% What is limited. Keys are compared with `=:=': `1' and `1.0' are two. A key that holds a map, a fun, a reference, a
%% big integer or a bitstring is copied as the VM copies a message: a small part of a large binary in it keeps all of
%% that binary alive, until the key is swept away.

-type info() :: #{
    max_per := pos_integer(),
    keys := non_neg_integer(),
    permits := non_neg_integer(),
    holders := non_neg_integer(),
    memory := non_neg_integer()
}.
%% What the table is and costs: the `MaxPer' that the manager was started with; keys in the table, with those idle
%% ones that the sweep has not reached yet; permits out, of all keys together; processes that hold any; bytes
%% allocated by the table.

%% @doc Starts the manager, linked to the caller and registered as `canal_lock', with an empty table.
%%
%% `MaxPer', a positive integer, is how many permits a bucket bears by default. It is shown by {@link info/0}; each
%% call brings its own.
%%
%% If a manager is running, the answer is `{error, {already_started, Pid}}' and its table is left alone. Otherwise
%% whatever permits are still held from an earlier manager are void from now on: the deaths and late releases of their
%% holders change nothing.
%%
%% Raises `badarg' if `MaxPer' is anything else.
-spec start_link(MaxPer :: pos_integer()) -> {ok, pid()} | {error, term()}.
start_link(MaxPer) when is_integer(MaxPer), MaxPer > 0 ->
    canal_lock_manager:start_link(MaxPer);
start_link(MaxPer) ->
    error(badarg, [MaxPer]).

%% @doc Stops the manager. The table is closed: all permits are void, and calls raise until the next start.
%%
%% Exits with `noproc' if there is no manager.
-spec stop() -> ok.
stop() ->
    canal_lock_manager:stop().

%% @doc Takes a permit of `Key' for the calling process, if fewer than `MaxPer * Buckets' are out.
%%
%% `MaxPer' (permits per bucket) and `Buckets' are non-negative integers of any size; with a product of 0 nobody is
%% admitted. `N' is the number of permits out, this one included. A process may take several, of one key and of many.
%%
%% Raises `badarg' for anything else, and when no manager has been started; `system_limit' when there is no memory,
%% and for a key of more than half a gigabyte (counted with shared parts as often as they occur). Nothing has changed
%% then.
%%
%% Cost: constant, some tens of nanoseconds; it depends neither on `Buckets' nor on what is held already. The first
%% permit that a process takes costs a monitor more. Keys of kilobytes and more are read to the end on each call.
-spec acquire(key(), MaxPer :: non_neg_integer(), Buckets :: non_neg_integer()) ->
    {acquired, N :: pos_integer()} | full.
acquire(Key, MaxPer, Buckets) ->
    canal_lock_nif:acquire(Key, MaxPer, Buckets).

%% @doc Gives one permit of `Key' back, if the calling process holds one.
%%
%% `MaxPer' and `Buckets' are those of {@link acquire/3}; they are checked, and decide nothing. A caller that holds no
%% permit of `Key' hears `ok' too, and no count changes: only a holder releases. Use {@link release/1} to be told.
%%
%% Raises and costs as {@link acquire/3}.
-spec release(key(), MaxPer :: non_neg_integer(), Buckets :: non_neg_integer()) -> ok.
release(Key, MaxPer, Buckets) ->
    canal_lock_nif:release(Key, MaxPer, Buckets).

%% @doc Gives one permit of `Key' back; `{error, not_held}' if the calling process holds none.
%%
%% Raises `badarg' when no manager has been started. Costs as {@link acquire/3}.
-spec release(key()) -> ok | {error, not_held}.
release(Key) ->
    canal_lock_nif:release(Key).

%% @doc How many permits of `Key' are out.
%%
%% Raises `badarg' when no manager has been started. Cost: constant.
-spec count(key()) -> non_neg_integer().
count(Key) ->
    canal_lock_nif:count(Key).

%% @doc The permits of `Key' that are out, as buckets of `MaxPer', a positive integer: `[3,1]' are four of three each.
%% Empty buckets are not shown.
%%
%% Raises `badarg' for any other `MaxPer', and when no manager has been started. Cost: the length of the answer.
-spec buckets(key(), MaxPer :: pos_integer()) -> [pos_integer()].
buckets(Key, MaxPer) ->
    {Full, Rest} = canal_lock_nif:buckets(Key, MaxPer),
    lists:duplicate(Full, MaxPer) ++ [Rest || Rest > 0].

%% @doc What the table is and costs.
%%
%% Exact when nothing is going on, a fair snapshot otherwise. Exits with `noproc' when no manager is running. Cost:
%% walks over all keys, on a dirty scheduler; calls go on meanwhile.
-spec info() -> info().
info() ->
    MaxPer = canal_lock_manager:max_per(),
    (canal_lock_nif:usage())#{max_per => MaxPer}.
