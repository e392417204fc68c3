%% @private
%% A lock in the hands of its holder. It is worth something on its own node alone.
-module(canal_lock_quorum_lock).

-export([new/5, is_lock/1, held/1, give_back/1, claim/1, token/1, fence/1, mode/1, names/1]).

-export_type([lock/0, token/0, mode/0]).

-type token() :: pos_integer().
-type mode() :: read | write.

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

%% Whether it looks like one.
-spec is_lock(term()) -> boolean().
is_lock({canal_lock_quorum, Handle, _Token, _Fence, _Mode, _Names}) -> is_reference(Handle);
is_lock(_) -> false.

%% What does not look like a lock is `wrong', here and below. What is one of another node, or of an earlier life of this
%% one, raises `badarg'.
-spec held(lock()) -> boolean() | wrong.
held({canal_lock_quorum, Handle, _, _, _, _}) when is_reference(Handle) -> canal_lock_quorum_nif:held(Handle);
held(_) -> wrong.

%% Without waiting, unless too many wait for a quorum.
-spec give_back(lock()) -> ok | not_held | full | wrong.
give_back({canal_lock_quorum, Handle, _, _, _, _}) when is_reference(Handle) -> canal_lock_quorum_nif:give_back(Handle);
give_back(_) -> wrong.

%% For the agent's process: whether nobody has given it back without waiting.
-spec claim(lock()) -> boolean().
claim({_, Handle, _, _, _, _}) ->
    canal_lock_quorum_nif:claim(Handle).

%% The number by which the agent of this node knows it.
-spec token(lock()) -> token() | not_held | wrong.
token({canal_lock_quorum, Handle, _, _, _, _}) when is_reference(Handle) -> canal_lock_quorum_nif:token(Handle);
token(_) -> wrong.

-spec fence(lock()) -> non_neg_integer() | wrong.
fence({canal_lock_quorum, Handle, _, Fence, _, _}) when is_reference(Handle) -> Fence;
fence(_) -> wrong.

-spec mode(lock()) -> mode().
mode({_, _, _, _, Mode, _}) -> Mode.

-spec names(lock()) -> [canal_lock_quorum_names:name(), ...].
names({_, _, _, _, _, Names}) -> Names.
