%% @private
%% The quorum locks of the cluster permits.
-module(canal_lock_cluster_locks).

-export([lock/2, is_member/0, live_nodes/0]).

%% A lock for the calling process.
-spec lock(canal_lock_quorum_names:reserved(), timeout()) ->
    {ok, canal_lock_quorum:lock()} | {error, canal_lock_quorum:refusal() | ended}.
lock(Name, Timeout_ms) ->
    Encoded = canal_lock_quorum_names:encode_reserved(Name),
    try
        canal_lock_quorum_agent:lock(write, [Name], [Encoded], Timeout_ms)
    catch
        exit:_ -> {error, ended}
    end.

%% Whether this node is a member of the quorum locks.
-spec is_member() -> boolean().
is_member() ->
    try canal_lock_quorum_agent:status() of
        #{members := Members} -> lists:any(fun(#{node := Node}) -> Node =:= node() end, Members)
    catch
        exit:_ -> false
    end.

%% The nodes whose locks are held, and have been since this call began. See canal_lock_quorum_live.
-spec live_nodes() -> {ok, [node()]} | {error, no_quorum}.
live_nodes() ->
    case canal_lock_quorum_live:names(canal_lock_quorum_names:prefix(node)) of
        {ok, Names} -> {ok, [Node || {canal_lock_cluster, node, Node} <- Names]};
        {error, no_quorum} -> {error, no_quorum}
    end.
