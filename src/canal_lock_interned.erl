%% @private
%% Keys that are too long to be read on a normal scheduler: of more than 64 KiB, and what does not say beforehand how
%% long it is (a fun, a bitstring, an integer beyond 1024 bits). The native library refuses them with the cause
%% `intern' before anything has changed. A dirty scheduler reads the key, and the call is made again with a handle on
%% it. When the call is over, the handle is emptied: until it is garbage-collected, it would keep the key in memory.
-module(canal_lock_interned).

-export([counted/2, with_handle/2, call/2]).

%% The second try of a call that counts, which answers causes instead of raising them: with these arguments, of which
%% the first one is the key.
-spec counted(fun((...) -> Answer), [canal_lock:key() | term(), ...]) -> Answer | canal_lock_nif:raise().
counted(Native, [Key | Others]) ->
    with_handle(Key, fun(Handle) -> apply(Native, [Handle | Others]) end).

%% Several calls that count.
-spec with_handle(canal_lock:key(), fun((reference()) -> Answer)) -> Answer | canal_lock_nif:raise().
with_handle(Key, Calls) ->
    try canal_lock_nif:intern(Key) of
        Handle -> call_with(Handle, Calls)
    catch
        error:Cause -> {raise, Cause, [Key]}
    end.

%% Any other call, both tries of it.
-spec call(canal_lock:key(), fun((canal_lock_nif:key()) -> Answer)) -> Answer.
call(Key, Call) ->
    try
        Call(Key)
    catch
        error:intern -> call_with(canal_lock_nif:intern(Key), Call)
    end.

call_with(Handle, Call) ->
    try
        Call(Handle)
    after
        ok = canal_lock_nif:forget(Handle)
    end.
