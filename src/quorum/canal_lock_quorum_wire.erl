%% @private
%% Sends and checks frames between nodes. A send never waits, neither for a connection (canal_lock_quorum_links makes
%% it) nor for a slow one. A frame that cannot be sent is dropped; agents and voters tolerate lost frames.
-module(canal_lock_quorum_wire).

-export([send/4, received/4]).

-export_type([message/0]).

-type message() :: {canal_lock_quorum, Fingerprint :: non_neg_integer(), From :: node(), Frame :: binary()}.

-spec send(agent | voter, canal_lock_quorum_config:place(), binary(), canal_lock_quorum_config:config()) -> ok.
send(To, Place, Frame, #{members := Members, fingerprint := Fingerprint}) ->
    Message = {canal_lock_quorum, Fingerprint, node(), Frame},
    _ = erlang:send({process(To), lists:nth(Place + 1, Members)}, Message, [nosuspend, noconnect]),
    ok.

process(agent) -> canal_lock_quorum_agent;
process(voter) -> canal_lock_quorum_voter.

%% The place of the sender, and its frame. `not_a_member' if the sender is not in the list of members, or has other
%% members or rules than this node.
-spec received(non_neg_integer(), node(), binary(), canal_lock_quorum_config:config()) ->
    {frame, canal_lock_quorum_config:place(), binary()} | not_a_member.
received(Fingerprint, From, Frame, #{fingerprint := Fingerprint, places := Places}) when is_map_key(From, Places) ->
    {frame, maps:get(From, Places), Frame};
received(_, _, _, _) ->
    not_a_member.
