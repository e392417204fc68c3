%% @private
%% The functions of the native library, and nothing else: a module with a loaded library cannot be replaced while
%% anything of it is in use, so what may ever change lives elsewhere.
%%
%% What is called with a key may be called with a handle on it instead, and has to be if it raises `intern': the key is
%% long then. See canal_lock_interned.
%%
%% `acquire/3', `release/1' and `release/3' answer `{raise, Cause, Arguments}' where `canal_lock' is to raise (or, as it
%% may be with `intern' and `not_held', to do something else); all others raise `Cause' themselves. See
%% canal_lock_errors for the causes.
-module(canal_lock_nif).

%% The calls that count.
-export([acquire/3, release/1, release/3]).
%% The calls that look.
-export([intern/1, forget/1, count/1, buckets/2, keys/3, permits/2, holders/3, held/3, info/0]).
%% The manager's calls.
-export([open/3, close/1, sweep_step/2, dismantle_step/0, has_unused/0, free_unused/0]).
%% Of proxies.
-export([represent/1, proxy_of/1]).

-export_type([handle/0, key/0, cause/0, raise/0, serial/0, from/0, piece/2]).

-on_load(load/0).

%% The manager's handle on its table.
-opaque handle() :: reference().

%% A key, or a handle on a long one.
-type key() :: canal_lock:key() | reference().

-type cause() :: canal_lock_errors:cause() | intern | not_held.
-type raise() :: {raise, cause(), Arguments :: [term(), ...]}.

%% Which table a piece is of. With 0, the first piece is of the one that is open.
-type serial() :: non_neg_integer().

%% How far a look at the holders has come; at first it is `{false, 0, 0}'.
-type from() :: {boolean(), non_neg_integer(), non_neg_integer()}.

%% A piece of a long answer, and from where to go on; or the table is not the one of the pieces before.
-type piece(Element, From) :: {serial(), [Element], From | done} | changed.

-spec acquire(key(), non_neg_integer(), non_neg_integer()) ->
    {acquired, pos_integer()} | full | raise().
acquire(_Key, _MaxPer, _Buckets) ->
    erlang:nif_error(not_loaded).

-spec release(key()) -> ok | {error, not_held} | raise().
release(_Key) ->
    erlang:nif_error(not_loaded).

%% The numbers are not looked at. They come back with a cause.
-spec release(key(), non_neg_integer(), non_neg_integer()) -> ok | raise().
release(_Key, _MaxPer, _Buckets) ->
    erlang:nif_error(not_loaded).

%% A handle on a long key.
-spec intern(canal_lock:key()) -> reference().
intern(_Key) ->
    erlang:nif_error(not_loaded).

%% The call that the handle was made for is over.
-spec forget(reference()) -> ok.
forget(_Handle) ->
    erlang:nif_error(not_loaded).

-spec count(key()) -> non_neg_integer().
count(_Key) ->
    erlang:nif_error(not_loaded).

%% Full buckets, and the permits in the next one.
-spec buckets(key(), pos_integer()) -> {non_neg_integer(), non_neg_integer()}.
buckets(_Key, _MaxPer) ->
    erlang:nif_error(not_loaded).

%% Keys with permits out, of about so many that are looked at; from 0 on.
-spec keys(serial(), non_neg_integer(), pos_integer()) ->
    piece({canal_lock:key(), pos_integer()}, non_neg_integer()).
keys(_Serial, _After, _Limit) ->
    erlang:nif_error(not_loaded).

%% Who holds what. The permits of one process come in a row, which may go on in the next piece.
-spec permits(serial(), from()) -> piece({pid(), canal_lock:key(), pos_integer()}, from()).
permits(_Serial, _From) ->
    erlang:nif_error(not_loaded).

%% Who holds permits of a key.
-spec holders(serial(), from(), key()) -> piece({pid(), pos_integer()}, from()).
holders(_Serial, _From, _Key) ->
    erlang:nif_error(not_loaded).

%% What a process holds; from 0 on.
-spec held(serial(), non_neg_integer(), pid()) -> piece({canal_lock:key(), pos_integer()}, non_neg_integer()).
held(_Serial, _From, _Pid) ->
    erlang:nif_error(not_loaded).

-spec info() -> canal_lock:info().
info() ->
    erlang:nif_error(not_loaded).

%% A table that the caller manages from now on, in a VM of so many processes. It is an empty one, which closes the one
%% before; or, if it is to be kept when the caller dies, one that was kept.
-spec open(ProcessLimit :: pos_integer(), MaxPer :: pos_integer(), Keep :: boolean()) -> handle().
open(_ProcessLimit, _MaxPer, _Keep) ->
    erlang:nif_error(not_loaded).

-spec close(handle()) -> ok.
close(_Handle) ->
    erlang:nif_error(not_loaded).

%% Looks at this many keys, or frees them.
-spec sweep_step(handle(), pos_integer()) -> more | waiting | done.
sweep_step(_Handle, _Budget) ->
    erlang:nif_error(not_loaded).

%% Lets go monitors of tables that have been closed.
-spec dismantle_step() -> more | waiting | done.
dismantle_step() ->
    erlang:nif_error(not_loaded).

%% Whether there are closed tables without monitors, or long keys that are not in use.
-spec has_unused() -> boolean().
has_unused() ->
    erlang:nif_error(not_loaded).

%% Frees them, on a dirty scheduler: about a quarter of a second for each million keys.
-spec free_unused() -> ok.
free_unused() ->
    erlang:nif_error(not_loaded).

%% The caller represents a process of another node from now on, unless another process that is alive does.
-spec represent(Holder :: pid()) -> ok | Proxy :: pid().
represent(_Holder) ->
    erlang:nif_error(not_loaded).

-spec proxy_of(Holder :: pid()) -> Proxy :: pid() | none.
proxy_of(_Holder) ->
    erlang:nif_error(not_loaded).

load() ->
    canal_lock_library:on_load(?MODULE, erlang:load_nif(canal_lock_library:path(?MODULE), 0)).
