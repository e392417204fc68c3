%% Listens to what the agent of a node says to the voters, and what they answer, as far as the tests want to know it:
%% which batch, and what is to be done in it. The format is that at the head of native/quorum/src/frame.rs.
-module(test_quorum_tap).

-export([listening/1, is_quiet/3, batches/1, done/2, unanswered/1]).

-export_type([heard/0]).

-type op() :: {lock | confirm | assert | unlock, Token :: pos_integer()} | leave | sync | settled | revoke.

%% To the voter of a node, or from it; in the order in which the agent has sent and got them.
-type heard() :: {sent, node(), {batch, Seq :: pos_integer(), [op()]}} | {got, node(), {ack, Seq :: pos_integer()}}.

%% For a process of the node. What it does, and what is heard meanwhile; it may ask how far that has got.
-spec listening(fun((fun(() -> [heard()])) -> Answer)) -> {Answer, [heard()]}.
listening(Do) ->
    Agent = whereis(canal_lock_quorum_agent),
    Ear = spawn_link(fun() ->
        1 = erlang:trace(Agent, true, [send, 'receive']),
        hear(Agent, [])
    end),
    %% It listens when it has answered.
    _ = heard(Ear),
    Answer = Do(fun() -> heard(Ear) end),
    All = heard(Ear),
    Monitor = monitor(process, Ear),
    Ear ! stop,
    normal = test_await:reason({Ear, Monitor}),
    {Answer, All}.

heard(Ear) ->
    Ref = make_ref(),
    Ear ! {tell, self(), Ref},
    test_await:answer(Ref).

%% The last one first.
hear(Agent, Heard) ->
    receive
        {trace, _, send, {canal_lock_quorum, _, _, Frame}, To} ->
            hear(Agent, add({sent, node_of(To), frame(Frame)}, Heard));
        {trace, _, 'receive', {canal_lock_quorum, _, From, Frame}} ->
            hear(Agent, add({got, From, frame(Frame)}, Heard));
        {tell, Whom, Ref} ->
            put(erlang:trace_delivered(Agent), {Whom, Ref}),
            hear(Agent, Heard);
        {trace_delivered, _, Delivered} ->
            {Whom, Ref} = erase(Delivered),
            Whom ! {Ref, lists:reverse(Heard)},
            hear(Agent, Heard);
        stop ->
            1 = erlang:trace(Agent, false, [send, 'receive']);
        _ ->
            hear(Agent, Heard)
    end.

add({_, _, notice}, Heard) -> Heard;
add(What, Heard) -> [What | Heard].

node_of({canal_lock_quorum_voter, Node}) -> Node;
node_of(canal_lock_quorum_voter) -> node().

%% To each voter.
-spec batches([heard()]) -> #{node() => [[op()]]}.
batches(Heard) ->
    Said = [{Node, Ops} || {sent, Node, {batch, _, Ops}} <- Heard],
    maps:from_list([{Node, [Ops || {To, Ops} <- Said, To =:= Node]} || {Node, _} <- Said]).

%% Operations of a kind in each of the batches that have any.
-spec done(lock | unlock, [[op()]]) -> [pos_integer()].
done(Kind, Batches) ->
    [Count || Ops <- Batches, Count <- [length([Op || {Of, _} = Op <- Ops, Of =:= Kind])], Count > 0].

%% Whether each voter has been sent at least this many operations of a kind, and has answered everything.
-spec is_quiet(lock | unlock, pos_integer(), [heard()]) -> boolean().
is_quiet(Kind, Count, Heard) ->
    Asked = [Batches || Batches <- maps:values(batches(Heard)), lists:sum(done(Kind, Batches)) >= Count],
    {_, UnderWay} = walk(Heard),
    length(Asked) =:= 1 + length(nodes(connected)) andalso map_size(UnderWay) =:= 0.

%% Batches that were sent while another one to the same voter was not answered.
-spec unanswered([heard()]) -> [heard()].
unanswered(Heard) ->
    {Unanswered, _} = walk(Heard),
    Unanswered.

walk(Heard) ->
    lists:foldl(fun step/2, {[], #{}}, Heard).

step({sent, Node, {batch, _, _}} = Sent, {Unanswered, UnderWay}) when is_map_key(Node, UnderWay) ->
    {[Sent | Unanswered], UnderWay};
step({sent, Node, {batch, Seq, _}}, {Unanswered, UnderWay}) ->
    {Unanswered, UnderWay#{Node => Seq}};
step({got, Node, {ack, Seq}}, {Unanswered, UnderWay}) ->
    case UnderWay of
        #{Node := Seq} -> {Unanswered, maps:remove(Node, UnderWay)};
        %% To one that was sent before somebody listened.
        _ -> {Unanswered, UnderWay}
    end.

frame(<<1, 0, Batch/binary>>) ->
    {_Epoch, AfterEpoch} = number(Batch),
    {_Agent, AfterAgent} = number(AfterEpoch),
    {Seq, AfterSeq} = number(maybe_session(AfterAgent)),
    {_Stamp, AfterStamp} = number(AfterSeq),
    {Ops, <<>>} = list(fun op/1, AfterStamp),
    {batch, Seq, Ops};
frame(<<1, 1, Ack/binary>>) ->
    {_Epoch, AfterEpoch} = number(Ack),
    {_Agent, AfterAgent} = number(AfterEpoch),
    {Seq, _} = number(session(AfterAgent)),
    {ack, Seq};
frame(<<1, 2, _/binary>>) ->
    notice.

maybe_session(<<0, Rest/binary>>) -> Rest;
maybe_session(<<1, Session/binary>>) -> session(Session).

session(Bytes) ->
    {_Voter, AfterVoter} = number(Bytes),
    {_Generation, Rest} = number(AfterVoter),
    Rest.

op(<<0, Bytes/binary>>) ->
    {Token, <<_Mode, _Turn, AfterTurn/binary>>} = number(Bytes),
    {_Guess, <<_Run, AfterRun/binary>>} = number(AfterTurn),
    {{lock, Token}, names(AfterRun)};
op(<<1, Bytes/binary>>) ->
    token_and_fence(confirm, Bytes);
op(<<2, Bytes/binary>>) ->
    {Token, <<_Mode, AfterMode/binary>>} = number(Bytes),
    {_Fence, AfterFence} = number(AfterMode),
    {{assert, Token}, names(AfterFence)};
op(<<3, Bytes/binary>>) ->
    token_and_fence(unlock, Bytes);
op(<<4, Bytes/binary>>) ->
    {leave, names(Bytes)};
op(<<5, Bytes/binary>>) ->
    {_From, AfterFrom} = number(Bytes),
    {_To, AfterTo} = number(AfterFrom),
    {_Live, Rest} = list(fun number/1, AfterTo),
    {sync, Rest};
op(<<6, Rest/binary>>) ->
    {settled, Rest};
op(<<7, Bytes/binary>>) ->
    {_Name, Rest} = name(Bytes),
    {revoke, Rest}.

token_and_fence(Kind, Bytes) ->
    {Token, AfterToken} = number(Bytes),
    {_Fence, Rest} = number(AfterToken),
    {{Kind, Token}, Rest}.

names(Bytes) ->
    {_Names, Rest} = list(fun name/1, Bytes),
    Rest.

name(Bytes) ->
    {Length, AfterLength} = number(Bytes),
    <<Name:Length/binary, Rest/binary>> = AfterLength,
    {Name, Rest}.

list(One, Bytes) ->
    {Count, Rest} = number(Bytes),
    list(One, Count, Rest, []).

list(_One, 0, Rest, Found) ->
    {lists:reverse(Found), Rest};
list(One, Count, Bytes, Found) ->
    {Element, Rest} = One(Bytes),
    list(One, Count - 1, Rest, [Element | Found]).

%% Seven bits a byte, the lowest first.
number(Bytes) ->
    number(Bytes, 0, 0).

number(<<0:1, Bits:7, Rest/binary>>, Shift, Sum) -> {Sum bor (Bits bsl Shift), Rest};
number(<<1:1, Bits:7, Rest/binary>>, Shift, Sum) -> number(Rest, Shift + 7, Sum bor (Bits bsl Shift)).
