%% @private
%% Sends and checks messages between nodes. A send never waits, neither for a connection (canal_lock_quorum_connections
%% makes it) nor for a busy one: one whose queue in the VM is full, for example because of large messages of another
%% process.
%%
%% If the connection to a node is busy, another process sends the message, and waits instead of the caller. The message
%% leaves as soon as the connection allows it. There is at most one such process for each node and kind of message. If
%% there are newer messages of this kind before it is done, only the newest is kept: it replaces the others for its
%% receiver. (A notice that is lost is repaired: the digest in the next answer shows a vote that the agent does not
%% know, and the voter repeats a recall. Questions about views are repeated.) So a busy connection takes little memory,
%% and messages of a kind never overtake each other.
%%
%% A message for a node that is not connected is dropped; agents and voters tolerate lost messages.
-module(canal_lock_quorum_wire).

-export([send/2, sent/2, received/1, is_batch/1, send_and_wait/2]).

-export_type([message/0, kind/0, post/0, sending/0]).

%% With the view of the sender. The native library defines the bytes: native/quorum/src/frame.rs.
-type message() :: {
    canal_lock_quorum, {Cluster :: non_neg_integer(), Number :: non_neg_integer()}, From :: node(), Bytes :: binary()
}.

%% Batches and questions about lives are for voters, answers and notices for agents.
-type kind() :: batch | life | ack | notice | view_agent | view_voter.

%% A message that a machine sends.
-type post() ::
    {send, kind(), To :: node(), Cluster :: non_neg_integer(), Number :: non_neg_integer(), Bytes :: binary()}.

-type key() :: {kind(), node()}.

%% The messages that other processes send, each with the one to send next.
-type sending() :: #{key() => none | message()}.

%% Afterwards the caller may get a message `{{sent, Key}, _, process, _, _}', which it passes to `sent/2'.
-spec send(post(), sending()) -> sending().
send({send, Kind, Node, Cluster, Number, Bytes}, Sending) ->
    send({Kind, Node}, {canal_lock_quorum, {Cluster, Number}, node(), Bytes}, Sending).

send(Key, Message, Sending) when Sending =/= #{}, is_map_key(Key, Sending) ->
    Sending#{Key := Message};
send(Key = {Kind, Node}, Message, Sending) ->
    To = {process(Kind), Node},
    case erlang:send(To, Message, [nosuspend, noconnect]) of
        nosuspend ->
            Sender = spawn(?MODULE, send_and_wait, [To, Message]),
            _ = erlang:monitor(process, Sender, [{tag, {sent, Key}}]),
            Sending#{Key => none};
        _ ->
            Sending
    end.

-spec send_and_wait({module(), node()}, message()) -> ok.
send_and_wait(To, Message) ->
    _ = erlang:send(To, Message, [noconnect]),
    ok.

%% The process that sent a message is done.
-spec sent(key(), sending()) -> sending().
sent(Key, Sending) ->
    case maps:take(Key, Sending) of
        {none, Others} -> Others;
        {Message, Others} -> send(Key, Message, Others)
    end.

process(batch) -> canal_lock_quorum_voter;
process(life) -> canal_lock_quorum_voter;
process(view_voter) -> canal_lock_quorum_voter;
process(ack) -> canal_lock_quorum_agent;
process(notice) -> canal_lock_quorum_agent;
process(view_agent) -> canal_lock_quorum_agent.

%% The event for the machine. `ignored' if the message is not one of this library.
-spec received(message()) ->
    {frame, node(), Cluster :: non_neg_integer(), Number :: non_neg_integer(), Bytes :: binary()} | ignored.
received({canal_lock_quorum, {Cluster, Number}, From, Bytes}) when
    is_integer(Cluster), Cluster >= 0, Cluster < 1 bsl 64,
    is_integer(Number), Number >= 0, Number < 1 bsl 64,
    is_atom(From), From =/= '', is_binary(Bytes)
->
    {frame, From, Cluster, Number, Bytes};
received(_) ->
    ignored.

%% Whether an agent asks for votes: the kind of a frame is its second byte.
-spec is_batch(binary()) -> boolean().
is_batch(<<_Version, 0, _/binary>>) -> true;
is_batch(_) -> false.
