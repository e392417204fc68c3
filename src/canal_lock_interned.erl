%% @private
%% Calls with long keys: keys of more than 64 KiB, and keys that do not show their length beforehand (with a fun, a
%% native record, a bitstring or an integer beyond 1024 bits). The native library refuses them with the cause `intern'.
%% The call is then repeated with a handle, which is emptied afterwards. See key/interned.rs of the native library.
-module(canal_lock_interned).

-include("canal_lock_errors.hrl").

-export([retry/3, call/2, release/2]).

%% Repeats a call of canal_lock_nif that has answered `{raise, Cause, Arguments}', if the cause is a long key.
-spec retry(canal_lock_nif:cause(), fun((...) -> Answer | canal_lock_nif:raise()), [term(), ...]) ->
    Answer | {raise, canal_lock_nif:cause()}.
retry(intern, Call, [Key | Others]) ->
    case ?CAUGHT(canal_lock_nif:intern(Key)) of
        {raise, Cause} ->
            {raise, Cause};
        Handle ->
            case call_with(Handle, fun(Interned) -> apply(Call, [Interned | Others]) end) of
                {raise, Cause, _} -> {raise, Cause};
                Answer -> Answer
            end
    end;
retry(Cause, _Call, _Arguments) ->
    {raise, Cause}.

%% Makes a call of canal_lock_nif that raises its causes, with a handle if the key is long.
-spec call(canal_lock:key(), fun((canal_lock_nif:key()) -> Answer)) -> Answer.
call(Key, Call) ->
    try
        Call(Key)
    catch
        error:intern -> call_with(canal_lock_nif:intern(Key), Call)
    end.

%% Releases permits that the calling process holds, unless the table has been closed.
-spec release(canal_lock:key(), pos_integer()) -> ok.
release(Key, Permits) ->
    _ = ?CAUGHT(call(Key, fun(KeyOrHandle) -> canal_lock_nif:release_many(local, KeyOrHandle, Permits) end)),
    ok.

call_with(Handle, Call) ->
    try
        Call(Handle)
    after
        ok = canal_lock_nif:forget(Handle)
    end.
