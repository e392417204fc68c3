%% @private
%% The state of this node, from its agent and its voter.
-module(canal_lock_quorum_status).

-export([read/0]).

%% Exits with `noproc' if canal_lock_quorum is not started on this node.
-spec read() -> canal_lock_quorum:status().
read() ->
    Status = #{is_member := IsMember} = canal_lock_quorum_agent:status(),
    {#{voting := Voting}, Clients} =
        case IsMember of
            true -> {canal_lock_quorum_voter:state(), clients()};
            false -> {#{voting => false}, []}
        end,
    OfNode = maps:without([is_member, may_have_clients], Status),
    OfNode#{voting => Voting, clients => Clients, held => canal_lock_quorum_agent:count()}.

clients() ->
    case canal_lock_quorum_voter:clients() of not_known -> []; Clients -> Clients end.
