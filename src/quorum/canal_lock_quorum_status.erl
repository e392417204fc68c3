%% @private
%% The state of this node, from its agent and its voter.
-module(canal_lock_quorum_status).

-export([read/0]).

%% Exits with `noproc' if canal_lock_quorum is not started on this node.
-spec read() -> canal_lock_quorum:status().
read() ->
    Status = #{has_voter := HasVoter} = canal_lock_quorum_agent:status(),
    OfAgent = maps:without([has_voter, may_have_clients, number], Status),
    maps:merge(OfAgent#{held => canal_lock_quorum_agent:count()}, of_voter(HasVoter, Status)).

of_voter(true, #{members := Known}) ->
    #{voting := Voting, queued := Queued, view := View, phase := Phase, waiting_for := WaitingFor} =
        canal_lock_quorum_voter:state(),
    #{
        voting => Voting,
        queued => Queued,
        role => role(View, Known),
        view => view(View, Phase, WaitingFor),
        waits_for => lists:usort([Node || not Voting, {Node, _} <- WaitingFor, Node =/= node()]),
        clients => case canal_lock_quorum_voter:clients() of not_known -> []; Clients -> Clients end
    };
of_voter(false, #{number := Number, members := Members}) ->
    View = case Number of none -> none; _ -> {Number, [Node || #{node := Node} <- Members]} end,
    #{
        voting => false,
        queued => 0,
        role => client,
        view => view(View, client, []),
        waits_for => [],
        clients => []
    }.

%% Before the first view: of the nodes to ask.
role(none, Known) -> role([Node || #{node := Node} <- Known]);
role({_, Members}, _) -> role(Members).

role(Members) ->
    case lists:member(node(), Members) of
        true -> member;
        false -> client
    end.

view(none, _, _) ->
    none;
view({Number, Members}, Phase, WaitingFor) ->
    #{
        number => Number,
        members => Members,
        %% A member whose file is lost is none by its identity, and becomes one again.
        phase => case {Phase, role(Members)} of {client, member} -> starting; _ -> Phase end,
        waiting_for => WaitingFor
    }.
