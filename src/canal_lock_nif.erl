%% @private
%% The functions of the native library, and nothing else. A module with a loaded library cannot be replaced while the
%% library is in use, so code that may change belongs in other modules.
%%
%% Functions that take a key also take a handle on it. They need the handle if the key is long; then the key raises
%% `intern'. See canal_lock_interned.
%%
%% `acquire/3,4', `release/1,3', `acquire_shared/4' and `release_shared/1' answer `{raise, Cause, Arguments}' if
%% `canal_lock' must raise (or, for `intern', `not_held' and `full', act otherwise). All others raise `Cause'. See
%% canal_lock_errors for the causes.
%%
%% The files of `native/canal_lock_nif/src' say what each function does: calls.rs, waits.rs, inspect.rs, manager.rs,
%% shares.rs and key/handle.rs.
-module(canal_lock_nif).

%% Acquire and release.
-export([acquire/3, acquire/4, release/1, release/3]).
%% Several permits, requests that wait, gifts.
-export([acquire_many/4, release_many/3, count_refusal/0, wait/7, cancel/2, resize/4, settle/2, waiting/1, give/4]).
%% Shared keys: keys of which this node has a share.
-export([acquire_shared/4, release_shared/1, set_share/5, lose/3, take_share/2, shared_keys/3]).
%% Handles on long keys.
-export([intern/1, forget/1]).
%% Inspection.
-export([count/1, keys/3, permits/3, holders/4, held/3, holder/3, queues/2, info/0]).
%% For the manager.
-export([open/4, join/1, adopt/3, is_open/1, leave/1, configure/3]).
-export([end_waits/1, close/1, sweep_step/2, dismantle_step/0, has_unused/0, free_unused/0]).
-export([advance_clock/2, take_longest_wait/1]).
%% For proxies.
-export([represent/1, proxy_of/1]).

-export_type([handle/0, key/0, cause/0, raise/0, serial/0, from/0, piece/2, namespace/0, share/0]).

-on_load(load/0).

%% The manager's handle on its table.
-opaque handle() :: reference().

%% A key, or a handle on a long one.
-type key() :: canal_lock:key() | reference().

-type cause() :: canal_lock_errors:cause() | intern | not_held | full.
-type raise() :: {raise, cause(), Arguments :: [term(), ...]}.

%% Of a key. Equal terms in different namespaces are different keys.
-type namespace() :: local | shared.

%% The table that a piece belongs to. 0 asks for the first piece of the open table.
-type serial() :: non_neg_integer().

%% The position in a reading of all holders; at first `{0, 0, 0}'. The others begin with 0 or `{0, 0}'.
-type from() :: {non_neg_integer(), non_neg_integer(), non_neg_integer()}.

%% A piece of a long answer, and the position of the next one. `changed' if the table of the earlier pieces is not open
%% any more.
-type piece(Element, From) :: {serial(), [Element], From | done} | changed.

%% What this node has of a shared key, and what its waiters need: how many permits more, and how many the oldest.
-type share() :: {
    Share :: non_neg_integer(),
    Passed :: non_neg_integer() | none,
    InUse :: non_neg_integer(),
    Waiting :: non_neg_integer(),
    Need :: non_neg_integer(),
    Next :: non_neg_integer(),
    %% Whether a call was refused, and one granted, since the last take_share/2.
    {WasRefused :: boolean(), WasUsed :: boolean()}
}.

-spec acquire(key(), non_neg_integer(), non_neg_integer()) ->
    {acquired, pos_integer()} | full | raise().
acquire(_Key, _MaxPer, _Buckets) -> erlang:nif_error(not_loaded).

-spec acquire(key(), non_neg_integer(), non_neg_integer(), term()) -> {acquired, pos_integer()} | raise().
acquire(_Key, _MaxPer, _Buckets, _Other) -> erlang:nif_error(not_loaded).

-spec release(key()) -> ok | {error, not_held} | raise().
release(_Key) -> erlang:nif_error(not_loaded).

-spec release(key(), non_neg_integer(), non_neg_integer()) -> ok | raise().
release(_Key, _MaxPer, _Buckets) -> erlang:nif_error(not_loaded).

-spec acquire_many(key(), non_neg_integer(), non_neg_integer(), Permits :: pos_integer()) ->
    {acquired, pos_integer()} | full.
acquire_many(_Key, _MaxPer, _Buckets, _Permits) -> erlang:nif_error(not_loaded).

-spec release_many(namespace(), key(), Permits :: pos_integer()) -> ok | {error, not_held}.
release_many(_Namespace, _Key, _Permits) -> erlang:nif_error(not_loaded).

-spec count_refusal() -> ok.
count_refusal() -> erlang:nif_error(not_loaded).

-spec wait
    (local, key(), non_neg_integer(), non_neg_integer(), pos_integer(), non_neg_integer(), reference()) ->
        {acquired, pos_integer()} | waiting | full;
    (shared, key(), non_neg_integer(), non_neg_integer(), pos_integer(), non_neg_integer(), reference()) ->
        {acquired, pos_integer()} | waiting | full | declare.
wait(_Namespace, _Key, _MaxPer, _Buckets, _Permits, _MaxWaiting, _Ref) -> erlang:nif_error(not_loaded).

-spec cancel(Ref :: reference(), IsTimeout :: boolean()) -> ok | not_waiting.
cancel(_Ref, _IsTimeout) -> erlang:nif_error(not_loaded).

-spec resize(key(), non_neg_integer(), non_neg_integer(), Most :: non_neg_integer()) -> done | more | many.
resize(_Key, _MaxPer, _Buckets, _Most) -> erlang:nif_error(not_loaded).

-spec settle(namespace(), key()) -> done | more.
settle(_Namespace, _Key) -> erlang:nif_error(not_loaded).

-spec waiting(key()) -> non_neg_integer().
waiting(_Key) -> erlang:nif_error(not_loaded).

-spec give(namespace(), key(), pid(), Permits :: pos_integer()) -> ok | {error, not_held | not_alive}.
give(_Namespace, _Key, _Pid, _Permits) -> erlang:nif_error(not_loaded).

-spec acquire_shared(key(), non_neg_integer(), non_neg_integer(), Permits :: pos_integer()) ->
    {acquired, pos_integer()} | full | declare | raise().
acquire_shared(_Key, _MaxPer, _Buckets, _Permits) -> erlang:nif_error(not_loaded).

-spec release_shared(key()) -> ok | {error, not_held} | raise().
release_shared(_Key) -> erlang:nif_error(not_loaded).

-spec set_share(
    serial(), key(), Share :: non_neg_integer(), Limit :: non_neg_integer(), Passed :: non_neg_integer() | none
) -> done | more | changed.
set_share(_Serial, _Key, _Share, _Limit, _Passed) -> erlang:nif_error(not_loaded).

-spec lose(serial(), key(), pid()) -> Lost :: non_neg_integer() | changed.
lose(_Serial, _Key, _Pid) -> erlang:nif_error(not_loaded).

-spec take_share(serial(), key()) -> share() | none | changed.
take_share(_Serial, _Key) -> erlang:nif_error(not_loaded).

-spec shared_keys(serial(), non_neg_integer(), pos_integer()) ->
    piece({canal_lock:key(), Share :: non_neg_integer(), InUse :: non_neg_integer()}, non_neg_integer()).
shared_keys(_Serial, _After, _Limit) -> erlang:nif_error(not_loaded).

-spec intern(canal_lock:key()) -> reference().
intern(_Key) -> erlang:nif_error(not_loaded).

-spec forget(reference()) -> ok.
forget(_Handle) -> erlang:nif_error(not_loaded).

-spec count(key()) -> non_neg_integer().
count(_Key) -> erlang:nif_error(not_loaded).

-spec keys(serial(), non_neg_integer(), pos_integer()) ->
    piece({canal_lock:key(), pos_integer()}, non_neg_integer()).
keys(_Serial, _After, _Limit) -> erlang:nif_error(not_loaded).

-spec permits(namespace(), serial(), from()) ->
    piece({pid(), canal_lock:key(), pos_integer(), Held_ms :: non_neg_integer()}, from()).
permits(_Namespace, _Serial, _From) -> erlang:nif_error(not_loaded).

-spec holders(namespace(), serial(), from(), key()) -> piece({pid(), pos_integer()}, from()).
holders(_Namespace, _Serial, _From, _Key) -> erlang:nif_error(not_loaded).

-spec held(serial(), non_neg_integer(), pid()) -> piece({canal_lock:key(), pos_integer()}, non_neg_integer()).
held(_Serial, _From, _Pid) -> erlang:nif_error(not_loaded).

-spec holder(serial(), non_neg_integer(), pid()) ->
    piece({pos_integer(), Held_ms :: non_neg_integer()}, non_neg_integer()).
holder(_Serial, _From, _Pid) -> erlang:nif_error(not_loaded).

-spec queues(serial(), {non_neg_integer(), non_neg_integer()}) ->
    piece(
        {canal_lock:key(), Waiting :: pos_integer(), pid(), Waited_ms :: non_neg_integer()},
        {non_neg_integer(), non_neg_integer()}
    ).
queues(_Serial, _From) -> erlang:nif_error(not_loaded).

-spec info() -> canal_lock:info().
info() -> erlang:nif_error(not_loaded).

-spec open(
    ProcessLimit :: pos_integer(),
    MaxPer :: pos_integer() | undefined,
    Keep :: boolean(),
    MaxWaiting :: non_neg_integer()
) -> handle() | more.
open(_ProcessLimit, _MaxPer, _Keep, _MaxWaiting) -> erlang:nif_error(not_loaded).

-spec join(KeepOnCrash :: boolean()) -> handle() | none.
join(_KeepOnCrash) -> erlang:nif_error(not_loaded).

-spec adopt(handle(), MaxPer :: pos_integer() | undefined, MaxWaiting :: non_neg_integer()) -> ok | closed | more.
adopt(_Handle, _MaxPer, _MaxWaiting) -> erlang:nif_error(not_loaded).

-spec is_open(handle()) -> boolean().
is_open(_Handle) -> erlang:nif_error(not_loaded).

-spec leave(handle()) -> last | others.
leave(_Handle) -> erlang:nif_error(not_loaded).

-spec configure(handle(), MaxPer :: pos_integer() | undefined, MaxWaiting :: non_neg_integer()) -> ok.
configure(_Handle, _MaxPer, _MaxWaiting) -> erlang:nif_error(not_loaded).

-spec end_waits(handle()) -> more | done.
end_waits(_Handle) -> erlang:nif_error(not_loaded).

-spec close(handle()) -> ok.
close(_Handle) -> erlang:nif_error(not_loaded).

-spec advance_clock(handle(), Interval_ms :: pos_integer()) -> ok.
advance_clock(_Handle, _Interval_ms) -> erlang:nif_error(not_loaded).

-spec take_longest_wait(handle()) -> Wait_us :: non_neg_integer().
take_longest_wait(_Handle) -> erlang:nif_error(not_loaded).

-spec sweep_step(handle(), pos_integer()) -> more | waiting | done.
sweep_step(_Handle, _Budget) -> erlang:nif_error(not_loaded).

-spec dismantle_step() -> more | waiting | done.
dismantle_step() -> erlang:nif_error(not_loaded).

-spec has_unused() -> boolean().
has_unused() -> erlang:nif_error(not_loaded).

-spec free_unused() -> ok.
free_unused() -> erlang:nif_error(not_loaded).

-spec represent(Holder :: pid()) -> ok | Proxy :: pid().
represent(_Holder) -> erlang:nif_error(not_loaded).

-spec proxy_of(Holder :: pid()) -> Proxy :: pid() | none.
proxy_of(_Holder) -> erlang:nif_error(not_loaded).

load() ->
    %% From these the library learns how the VM numbers processes.
    Info = {self(), erlang:system_info(process_limit)},
    canal_lock_library:on_load(?MODULE, erlang:load_nif(library(), Info)).

%% Tests replace it.
library() ->
    canal_lock_library:path(?MODULE).
