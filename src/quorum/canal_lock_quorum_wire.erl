%% @private
%% Sends and checks frames between nodes. A send never waits, neither for a connection (canal_lock_quorum_connections
%% makes it) nor for a busy one: one whose queue in the VM is full, for example because of large messages of another
%% process.
%%
%% If the connection to a member is busy, another process sends the frame, and waits instead of the caller. The frame
%% leaves as soon as the connection allows it. There is at most one such process for each member and kind of frame. If
%% there are newer frames of this kind before it is done, only the newest is kept: it replaces the others for its
%% receiver. (A notice that is lost is repaired: the digest in the next answer shows a vote that the agent does not
%% know, and the voter repeats a recall.) So a busy connection takes little memory, and frames of a kind never overtake
%% each other.
%%
%% A frame for a member that is not connected is dropped; agents and voters tolerate lost frames.
-module(canal_lock_quorum_wire).

-export([send/5, sent/3, received/4, received_by_voter/4, node_of/2, send_and_wait/2]).

-export_type([message/0, kind/0, sending/0]).

-type message() :: {canal_lock_quorum, Fingerprint :: non_neg_integer(), From :: node(), Frame :: binary()}.

%% Batches and fences are for voters, answers and notices for agents.
-type kind() :: batch | floor | ack | notice.

%% A member, or the name of a client.
-type receiver() :: canal_lock_quorum_config:place() | canal_lock_quorum_nif:client().

-type key() :: {kind(), receiver()}.

%% The frames that other processes send, each with the frame to send next.
-type sending() :: #{key() => none | binary()}.

%% Afterwards the caller may get a message `{{sent, Key}, _, process, _, _}', which it passes to `sent/3'.
-spec send(kind(), receiver(), binary(), canal_lock_quorum_config:config(), sending()) -> sending().
send(Kind, Receiver, Frame, _Config, Sending) when Sending =/= #{}, is_map_key({Kind, Receiver}, Sending) ->
    Sending#{{Kind, Receiver} := Frame};
send(Kind, Receiver, Frame, Config = #{fingerprint := Fingerprint}, Sending) ->
    Message = {canal_lock_quorum, Fingerprint, node(), Frame},
    To = {process(Kind), node_of(Receiver, Config)},
    case erlang:send(To, Message, [nosuspend, noconnect]) of
        nosuspend ->
            Key = {Kind, Receiver},
            Sender = spawn(?MODULE, send_and_wait, [To, Message]),
            _ = erlang:monitor(process, Sender, [{tag, {sent, Key}}]),
            Sending#{Key => none};
        _ ->
            Sending
    end.

%% The node of a place, or of the name of a client.
-spec node_of(receiver(), canal_lock_quorum_config:config()) -> node().
node_of(Place, #{members := Members}) when is_integer(Place) -> lists:nth(Place + 1, Members);
node_of(Name, _) -> binary_to_atom(Name, utf8).

-spec send_and_wait({module(), node()}, message()) -> ok.
send_and_wait(To, Message) ->
    _ = erlang:send(To, Message, [noconnect]),
    ok.

%% The process that sent a frame is done.
-spec sent(key(), canal_lock_quorum_config:config(), sending()) -> sending().
sent(Key = {Kind, Receiver}, Config, Sending) ->
    case maps:take(Key, Sending) of
        {none, Others} -> Others;
        {Frame, Others} -> send(Kind, Receiver, Frame, Config, Others)
    end.

process(batch) -> canal_lock_quorum_voter;
process(floor) -> canal_lock_quorum_voter;
process(ack) -> canal_lock_quorum_agent;
process(notice) -> canal_lock_quorum_agent.

%% The place of the sender, and its frame. `ignored' if the sender is not in the list of members, or its configuration
%% differs in what must be the same.
-spec received(non_neg_integer(), node(), binary(), canal_lock_quorum_config:config()) ->
    {frame, canal_lock_quorum_config:place(), binary()} | ignored.
received(Fingerprint, From, Frame, #{fingerprint := Fingerprint, places := Places}) when is_map_key(From, Places) ->
    {frame, maps:get(From, Places), Frame};
received(_, _, _, _) ->
    ignored.

%% The same for a voter, which also answers clients.
-spec received_by_voter(non_neg_integer(), node(), binary(), canal_lock_quorum_config:config()) ->
    {frame, canal_lock_quorum_config:place(), binary()}
    | {client_frame, canal_lock_quorum_nif:client(), binary()}
    | ignored.
received_by_voter(Fingerprint, From, Frame, Config = #{fingerprint := Ours}) ->
    case Fingerprint =:= Ours andalso canal_lock_quorum_config:is_client(From, Config) of
        true -> {client_frame, atom_to_binary(From, utf8), Frame};
        false -> received(Fingerprint, From, Frame, Config)
    end.
