%% @private
%% The lock that a holder gets. It can be used on its own node only.
%%
%% A term that is no lock answers `{raise, badarg}'. A lock of another node, or of an earlier lifetime of this one,
%% answers `{raise, foreign_lock}'.
-module(canal_lock_quorum_lock).

-export([new/5, is_lock/1, is_held/1, unlock_async/1, claim/1, token/1, fence/1, mode/1, names/1]).

-export_type([lock/0, token/0, mode/0, raise/0]).

-type token() :: pos_integer().
-type mode() :: read | write.
-type raise() :: {raise, canal_lock_errors:cause()}.

-opaque lock() :: {
    canal_lock_quorum,
    Handle :: reference(),
    token(),
    Fence :: non_neg_integer(),
    mode(),
    [canal_lock_quorum_names:name(), ...]
}.

-spec new(reference(), token(), non_neg_integer(), mode(), [canal_lock_quorum_names:name(), ...]) -> lock().
new(Handle, Token, Fence, Mode, Names) ->
    {canal_lock_quorum, Handle, Token, Fence, Mode, Names}.

%% Whether a term has the shape of a lock.
-spec is_lock(term()) -> boolean().
is_lock({canal_lock_quorum, Handle, _Token, _Fence, _Mode, _Names}) -> is_reference(Handle);
is_lock(_) -> false.

-spec is_held(lock()) -> boolean() | raise().
is_held(Lock) -> call(Lock, fun canal_lock_quorum_nif:held/1).

%% Unlocks without a wait. `full' if too many unlocks wait for a quorum; then nothing has changed.
-spec unlock_async(lock()) -> ok | not_held | full | raise().
unlock_async(Lock) -> call(Lock, fun canal_lock_quorum_nif:give_back/1).

%% Called by the agent's process. `false' if unlock_async/1 has unlocked it already.
-spec claim(lock()) -> boolean().
claim({_, Handle, _, _, _, _}) ->
    canal_lock_quorum_nif:claim(Handle).

%% The number by which the agent of this node knows the lock.
-spec token(lock()) -> token() | not_held | raise().
token(Lock) -> call(Lock, fun canal_lock_quorum_nif:token/1).

call({canal_lock_quorum, Handle, _, _, _, _}, Call) when is_reference(Handle) ->
    try
        Call(Handle)
    catch
        error:badarg -> {raise, foreign_lock};
        error:not_loaded -> {raise, not_started}
    end;
call(_, _) ->
    {raise, badarg}.

-spec fence(lock()) -> non_neg_integer() | raise().
fence({canal_lock_quorum, Handle, _, Fence, _, _}) when is_reference(Handle) -> Fence;
fence(_) -> {raise, badarg}.

-spec mode(lock()) -> mode().
mode({_, _, _, _, Mode, _}) -> Mode.

-spec names(lock()) -> [canal_lock_quorum_names:name(), ...].
names({_, _, _, _, _, Names}) -> Names.
