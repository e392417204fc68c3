%% @private
%% The functions of the native library, and nothing else: a module with a loaded library cannot be replaced while
%% anything of it is in use, so what may ever change lives elsewhere.
-module(canal_lock_nif).

-export([acquire/3, release/1, release/3, count/1, buckets/2, usage/0]).
-export([open/1, close/1, sweep_step/2, dismantle_step/1]).

-export_type([handle/0]).

-on_load(load/0).

%% The manager's handle on the table that it has opened.
-opaque handle() :: reference().

-spec acquire(canal_lock:key(), non_neg_integer(), non_neg_integer()) ->
    {acquired, pos_integer()} | full.
acquire(_Key, _MaxPer, _Buckets) ->
    erlang:nif_error(not_loaded).

-spec release(canal_lock:key()) -> ok | {error, not_held}.
release(_Key) ->
    erlang:nif_error(not_loaded).

-spec release(canal_lock:key(), non_neg_integer(), non_neg_integer()) -> ok.
release(_Key, _MaxPer, _Buckets) ->
    erlang:nif_error(not_loaded).

-spec count(canal_lock:key()) -> non_neg_integer().
count(_Key) ->
    erlang:nif_error(not_loaded).

%% Full buckets, and the permits in the next one.
-spec buckets(canal_lock:key(), pos_integer()) -> {non_neg_integer(), non_neg_integer()}.
buckets(_Key, _MaxPer) ->
    erlang:nif_error(not_loaded).

%% Opens an empty table that the caller manages, for so many processes. It closes the one before.
-spec open(pos_integer()) -> handle().
open(_ProcessLimit) ->
    erlang:nif_error(not_loaded).

-spec close(handle()) -> ok.
close(_Handle) ->
    erlang:nif_error(not_loaded).

%% Looks at so many keys.
-spec sweep_step(handle(), pos_integer()) -> more | waiting | done.
sweep_step(_Handle, _Budget) ->
    erlang:nif_error(not_loaded).

%% Frees about so many keys of tables that have been closed.
-spec dismantle_step(pos_integer()) -> more | waiting | done.
dismantle_step(_Budget) ->
    erlang:nif_error(not_loaded).

-spec usage() -> #{keys | permits | holders | memory := non_neg_integer()}.
usage() ->
    erlang:nif_error(not_loaded).

load() ->
    erlang:load_nif(filename:join(priv_dir(), ?MODULE_STRING), 0).

priv_dir() ->
    case code:priv_dir(canal_lock) of
        {error, bad_name} ->
            %% Not loaded as an application: priv is beside the ebin that this module comes from.
            filename:join([filename:dirname(code:which(?MODULE)), "..", "priv"]);
        Dir ->
            Dir
    end.
