%% @private
%% Keys that are too long to be read on a normal scheduler: more than 64 KiB, and what does not say beforehand how long
%% it is (a fun, a bitstring, an integer beyond 1024 bits). The native library refuses them with the cause `intern'
%% before anything has changed. A dirty scheduler reads the key, and the call is made again with a handle on it.
-module(canal_lock_interned).

-export([counted/2, call/2]).

%% The second try of a call that counts, which answers causes instead of raising them: with these arguments, of which
%% the first one is the key.
-spec counted(fun((...) -> Answer), [canal_lock:key() | term(), ...]) -> Answer | canal_lock_nif:raise().
counted(Native, [Key | Others]) ->
    try canal_lock_nif:intern(Key) of
        Handle -> apply(Native, [Handle | Others])
    catch
        error:Cause -> {raise, Cause, [Key]}
    end.

%% Any other call, both tries of it.
-spec call(canal_lock:key(), fun((canal_lock_nif:key()) -> Answer)) -> Answer.
call(Key, Call) ->
    try
        Call(Key)
    catch
        error:intern -> Call(canal_lock_nif:intern(Key))
    end.
