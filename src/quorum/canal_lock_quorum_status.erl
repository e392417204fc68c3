%% @private
%% The state of this node, from its agent and its voter.
-module(canal_lock_quorum_status).

-export([read/0]).

%% Exits with `noproc' if canal_lock_quorum is not started on this node.
-spec read() -> canal_lock_quorum:status().
read() ->
    Status = #{is_member := IsMember} = canal_lock_quorum_agent:status(),
    OfAgent = maps:without([is_member, may_have_clients], Status),
    maps:merge(OfAgent#{held => canal_lock_quorum_agent:count()}, of_voter(IsMember)).

of_voter(true) ->
    State = maps:remove(empty, canal_lock_quorum_voter:state()),
    State#{clients => case canal_lock_quorum_voter:clients() of not_known -> []; Clients -> Clients end};
of_voter(false) ->
    #{voting => false, waits_for => [], clients => [], queued => 0}.
