%% @private
%% The lock that a holder gets. It can be used on its own node only.
%%
%% A term that is no lock answers `{raise, badarg}'. A lock of another node, or of an earlier lifetime of this one,
%% answers `{raise, foreign_lock}'.
-module(canal_lock_quorum_lock).

-export([new/4, pattern/1, is_lock/1, is_held/1, unlock_async/1, claim/1, id/1, fence/1, mode/1, names/1]).

-export_type([lock/0, id/0, mode/0, raise/0]).

%% The number of the agent that got the lock, and the token: the number of the lock at this agent. Each agent counts its
%% locks from 1, so a token alone would also name a lock of the next agent.
-type id() :: {Agent :: non_neg_integer(), Token :: pos_integer()}.
-type mode() :: read | write.
-type raise() :: {raise, canal_lock_errors:cause()}.

-opaque lock() :: {
    canal_lock_quorum,
    Handle :: reference(),
    Fence :: non_neg_integer(),
    mode(),
    [canal_lock_quorum_names:name(), ...]
}.

-spec new(reference(), non_neg_integer(), mode(), [canal_lock_quorum_names:name(), ...]) -> lock().
new(Handle, Fence, Mode, Names) ->
    {canal_lock_quorum, Handle, Fence, Mode, Names}.

%% The locks of these names, in a match specification.
-spec pattern(Names :: term()) -> term().
pattern(Names) ->
    {canal_lock_quorum, '_', '_', '_', Names}.

%% Whether a term has the shape of a lock.
-spec is_lock(term()) -> boolean().
is_lock({canal_lock_quorum, Handle, _Fence, _Mode, _Names}) -> is_reference(Handle);
is_lock(_) -> false.

-spec is_held(lock()) -> boolean() | raise().
is_held(Lock) -> call(Lock, fun canal_lock_quorum_nif:held/1).

%% Unlocks without a wait. `full' if too many unlocks are pending; then nothing has changed.
-spec unlock_async(lock()) -> ok | not_held | full | raise().
unlock_async(Lock) -> call(Lock, fun canal_lock_quorum_nif:give_back/1).

%% Called by the agent's process. `false' if unlock_async/1 has unlocked it already.
-spec claim(lock()) -> boolean().
claim({_, Handle, _, _, _}) ->
    canal_lock_quorum_nif:claim(Handle).

%% By which the agent of this node knows the lock. `not_held' if another agent got the lock.
-spec id(lock()) -> id() | not_held | raise().
id(Lock) -> call(Lock, fun canal_lock_quorum_nif:id/1).

call({canal_lock_quorum, Handle, _, _, _}, Call) when is_reference(Handle) ->
    try
        Call(Handle)
    catch
        error:badarg -> {raise, foreign_lock};
        error:not_loaded -> {raise, not_started}
    end;
call(_, _) ->
    {raise, badarg}.

-spec fence(lock()) -> non_neg_integer() | raise().
fence({canal_lock_quorum, Handle, Fence, _, _}) when is_reference(Handle) -> Fence;
fence(_) -> {raise, badarg}.

-spec mode(lock()) -> mode().
mode({_, _, _, Mode, _}) -> Mode.

-spec names(lock()) -> [canal_lock_quorum_names:name(), ...].
names({_, _, _, _, Names}) -> Names.
