%% @private
%% Keys that are too long to be read on a normal scheduler: of more than 64 KiB, and what does not say beforehand how
%% long it is (a fun, a bitstring, an integer beyond 1024 bits). The native library refuses them with the cause
%% `intern' before anything has changed. A dirty scheduler reads the key, and the call is made again with a handle on
%% it. When the call is over, the handle is emptied: until it is garbage-collected, it would keep the key in memory.
-module(canal_lock_interned).

-export([counted/3, call/2]).

%% The answer of a call that counts, whose first try was to raise this cause with these arguments. If the first of them
%% is a long key, the call is made again. Causes are answered instead of raised.
-spec counted(canal_lock_nif:cause(), fun((...) -> Answer | canal_lock_nif:raise()), [term(), ...]) ->
    Answer | {raise, canal_lock_nif:cause()}.
counted(intern, Call, [Key | Others]) ->
    try canal_lock_nif:intern(Key) of
        Handle ->
            case call_with(Handle, fun(Interned) -> apply(Call, [Interned | Others]) end) of
                {raise, Cause, _} -> {raise, Cause};
                Answer -> Answer
            end
    catch
        error:Cause -> {raise, Cause}
    end;
counted(Cause, _Call, _Arguments) ->
    {raise, Cause}.

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
