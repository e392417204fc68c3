%% @private
%% The lock that a holder gets. It can be used on its own node only.
%%
%% A term that is no lock answers `{raise, badarg}', and a lock of another node `{raise, foreign_lock}'. A lock of an
%% earlier lifetime of this node, or of before its native library was loaded again, is not held.
-module(canal_lock_quorum_lock).

-export([new/4, pattern/1, is_lock/1, is_held/1, unlock_async/1, mark_unlocked/1, id/1, fence/1, mode/1, names/1]).

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
is_held(Lock) -> call(Lock, fun canal_lock_quorum_nif:is_held/1, false).

%% Unlocks without a wait. `full' if too many unlocks are pending; then nothing has changed.
-spec unlock_async(lock()) -> ok | not_held | full | raise().
unlock_async(Lock) -> call(Lock, fun canal_lock_quorum_nif:unlock_async/1, not_held).

%% Called by the agent's process before it unlocks for a waiting caller. `false' if the lock is unlocked already.
-spec mark_unlocked(lock()) -> boolean().
mark_unlocked({_, Handle, _, _, _}) ->
    canal_lock_quorum_nif:mark_unlocked(Handle).

%% By which the agent of this node knows the lock. `not_held' if another agent got the lock.
-spec id(lock()) -> id() | not_held | raise().
id(Lock) -> call(Lock, fun canal_lock_quorum_nif:id/1, not_held).

%% `Unknown' is the answer of a reference of this node that the native library does not know.
call({canal_lock_quorum, Handle, _, _, _}, Call, Unknown) when is_reference(Handle), node(Handle) =:= node() ->
    try
        Call(Handle)
    catch
        error:badarg -> Unknown;
        error:not_loaded -> {raise, not_started}
    end;
call({canal_lock_quorum, Handle, _, _, _}, _, _) when is_reference(Handle) ->
    {raise, foreign_lock};
call(_, _, _) ->
    {raise, badarg}.

-spec fence(lock()) -> non_neg_integer() | raise().
fence({canal_lock_quorum, Handle, Fence, _, _}) when is_reference(Handle) -> Fence;
fence(_) -> {raise, badarg}.

-spec mode(lock()) -> mode().
mode({_, _, _, Mode, _}) -> Mode.

-spec names(lock()) -> [canal_lock_quorum_names:name(), ...].
names({_, _, _, _, Names}) -> Names.
