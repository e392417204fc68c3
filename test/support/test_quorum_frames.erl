%% Records the frames between the agent of a node and the voters: which batch, and the kinds of its operations. The
%% format of frames is at the head of native/quorum/src/frame.rs.
-module(test_quorum_frames).

-export([recorded/1, is_answered/3, batches/1, operations/2, unanswered/1]).

-export_type([frame/0]).

-type op() :: {lock | confirm | assert | unlock, Token :: pos_integer()} | leave | sync | settled | revoke.

%% To the voter of a node, or from it, in the order in which the agent sent and received them.
-type frame() ::
    {sent, node(), {batch, Seq :: pos_integer(), [op()]}}
    | {received, node(), {ack, Seq :: pos_integer()}}.

%% Calls the function on the node of the agent. Returns its answer and the frames during the call. The function gets a
%% function that returns the frames so far.
-spec recorded(fun((fun(() -> [frame()])) -> Answer)) -> {Answer, [frame()]}.
recorded(Do) ->
    Agent = whereis(canal_lock_quorum_agent),
    Recorder = spawn_link(fun() ->
        1 = erlang:trace(Agent, true, [send, 'receive']),
        record(Agent, [])
    end),
    %% The recorder answers after it has started the trace.
    _ = frames(Recorder),
    Answer = Do(fun() -> frames(Recorder) end),
    All = frames(Recorder),
    Monitor = monitor(process, Recorder),
    Recorder ! stop,
    normal = test_await:reason({Recorder, Monitor}),
    {Answer, All}.

frames(Recorder) ->
    Ref = make_ref(),
    Recorder ! {frames, self(), Ref},
    test_await:answer(Ref).

%% `Frames': the last one first.
record(Agent, Frames) ->
    receive
        {trace, _, send, {canal_lock_quorum, _, _, Frame}, To} ->
            record(Agent, add({sent, node_of(To), parse(Frame)}, Frames));
        {trace, _, 'receive', {canal_lock_quorum, _, From, Frame}} ->
            record(Agent, add({received, From, parse(Frame)}, Frames));
        {frames, From, Ref} ->
            put(erlang:trace_delivered(Agent), {From, Ref}),
            record(Agent, Frames);
        {trace_delivered, _, Delivered} ->
            {From, Ref} = erase(Delivered),
            From ! {Ref, lists:reverse(Frames)},
            record(Agent, Frames);
        stop ->
            1 = erlang:trace(Agent, false, [send, 'receive']);
        _ ->
            record(Agent, Frames)
    end.

add({_, _, notice}, Frames) -> Frames;
add(Frame, Frames) -> [Frame | Frames].

node_of({canal_lock_quorum_voter, Node}) -> Node;
node_of(canal_lock_quorum_voter) -> node().

%% The batches to each voter.
-spec batches([frame()]) -> #{node() => [[op()]]}.
batches(Frames) ->
    Sent = [{Node, Ops} || {sent, Node, {batch, _, Ops}} <- Frames],
    maps:groups_from_list(fun({Node, _}) -> Node end, fun({_, Ops}) -> Ops end, Sent).

%% How many operations of this kind are in each of the batches that have any. A `vote' is requested by `lock' or
%% `assert'.
-spec operations(lock | vote | unlock, [[op()]]) -> [pos_integer()].
operations(Kind, Batches) ->
    [Count || Ops <- Batches, Count <- [length([Op || {Of, _} = Op <- Ops, is_kind(Kind, Of)])], Count > 0].

is_kind(vote, Of) -> Of =:= lock orelse Of =:= assert;
is_kind(Kind, Of) -> Of =:= Kind.

%% Whether each voter was sent at least this many operations of this kind, and has answered all batches.
-spec is_answered(vote | unlock, pos_integer(), [frame()]) -> boolean().
is_answered(Kind, Count, Frames) ->
    Asked = [Batches || Batches <- maps:values(batches(Frames)), lists:sum(operations(Kind, Batches)) >= Count],
    {_, UnderWay} = lists:foldl(fun step/2, {[], #{}}, Frames),
    length(Asked) =:= 1 + length(nodes(connected)) andalso map_size(UnderWay) =:= 0.

%% Batches that were sent before the voter had answered the previous one.
-spec unanswered([frame()]) -> [frame()].
unanswered(Frames) ->
    {Unanswered, _} = lists:foldl(fun step/2, {[], #{}}, Frames),
    Unanswered.

step({sent, Node, {batch, _, _}} = Sent, {Unanswered, UnderWay}) when is_map_key(Node, UnderWay) ->
    {[Sent | Unanswered], UnderWay};
step({sent, Node, {batch, Seq, _}}, {Unanswered, UnderWay}) ->
    {Unanswered, UnderWay#{Node => Seq}};
step({received, Node, {ack, Seq}}, {Unanswered, UnderWay}) ->
    case UnderWay of
        #{Node := Seq} -> {Unanswered, maps:remove(Node, UnderWay)};
        %% The answer to a batch that was sent before the recording.
        _ -> {Unanswered, UnderWay}
    end.

%%% The format. Each function returns what it has read, and the bytes after it.

parse(<<1, 0, Batch/binary>>) ->
    {_Agent, AfterAgent} = number(Batch),
    [Seq, _Stamp, _Clock, AfterClock] = numbers(3, maybe_session(AfterAgent)),
    {Ops, <<>>} = list(fun op/1, AfterClock),
    {batch, Seq, Ops};
parse(<<1, 1, Ack/binary>>) ->
    {_Clock, <<_State, AfterState/binary>>} = number(Ack),
    {_Agent, AfterAgent} = number(AfterState),
    {Seq, _} = number(session(AfterAgent)),
    {ack, Seq};
parse(<<1, 2, _/binary>>) ->
    notice.

maybe_session(<<0, Rest/binary>>) -> Rest;
maybe_session(<<1, Session/binary>>) -> session(Session).

session(Bytes) ->
    [_Voter, _Generation, Rest] = numbers(2, Bytes),
    Rest.

op(<<0, Bytes/binary>>) ->
    {Token, <<_Mode, AfterMode/binary>>} = number(Bytes),
    [_Clock, _First, <<_Wait, AfterWait/binary>>] = numbers(2, AfterMode),
    {_Run, AfterRun} = number(AfterWait),
    {{lock, Token}, names(AfterRun)};
op(<<1, Bytes/binary>>) ->
    [Token, _Fence, Rest] = numbers(2, Bytes),
    {{confirm, Token}, Rest};
op(<<2, Bytes/binary>>) ->
    {Token, <<_Mode, AfterMode/binary>>} = number(Bytes),
    {_Fence, <<_Continues, AfterFlag/binary>>} = number(AfterMode),
    {{assert, Token}, names(AfterFlag)};
op(<<3, Bytes/binary>>) ->
    [Token, _Fence, Rest] = numbers(2, Bytes),
    {{unlock, Token}, Rest};
op(<<4, Bytes/binary>>) ->
    [_From, _To, AfterTo] = numbers(2, Bytes),
    {_Live, Rest} = list(fun number/1, AfterTo),
    {sync, Rest};
op(<<5, Rest/binary>>) ->
    {settled, Rest};
op(<<6, Bytes/binary>>) ->
    {_Name, Rest} = name(Bytes),
    {revoke, Rest};
op(<<7, Bytes/binary>>) ->
    {_Agent, Rest} = number(Bytes),
    {end_agent, Rest}.

names(Bytes) ->
    {_Names, Rest} = list(fun name/1, Bytes),
    Rest.

name(Bytes) ->
    {Length, AfterLength} = number(Bytes),
    <<Name:Length/binary, Rest/binary>> = AfterLength,
    {Name, Rest}.

list(One, Bytes) ->
    {Count, Rest} = number(Bytes),
    lists:mapfoldl(fun(_, Left) -> One(Left) end, Rest, lists:seq(1, Count)).

numbers(0, Rest) ->
    [Rest];
numbers(Count, Bytes) ->
    {Number, Rest} = number(Bytes),
    [Number | numbers(Count - 1, Rest)].

%% Seven bits in each byte, the lowest first. The highest bit of a byte says whether another one follows.
number(Bytes) ->
    number(Bytes, 0, 0).

number(<<0:1, Bits:7, Rest/binary>>, Shift, Sum) -> {Sum bor (Bits bsl Shift), Rest};
number(<<1:1, Bits:7, Rest/binary>>, Shift, Sum) -> number(Rest, Shift + 7, Sum bor (Bits bsl Shift)).
