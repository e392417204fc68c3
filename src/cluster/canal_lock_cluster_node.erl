%% @private The agent of a node as a state machine: what this node has of each shared key, and what it needs. It calls
%% no table, sends nothing and has no clock; canal_lock_cluster_agent is its process.
%%
%% The table decides the calls. Its share of a key is what the node may use: the target of the last message of the
%% allocator, which is at most the share in the ledger. What is above the target and not in use goes back: the node
%% reports what it keeps. In the table, a count at or above the share cannot rise. So what was read after the share was
%% set bounds what is in use until the share is set again (CP1).
-module(canal_lock_cluster_node).

-include("canal_lock_cluster.hrl").

-export([new/0, handle/3, session/1, term/1, allocator/1, wake_ms/2, keys/1]).

-export_type([state/0, event/0, effect/0, message/0]).

%% A demand that changes is reported at most once in this time, and read as often. As the turns of the allocator.
-define(TURN_MS, 20).

%% How often a key is read of which permits must go back, and any other key.
-define(RECALL_MS, 5).
-define(READ_MS, 500).

%% The same for a key of which all permits are in use: nothing can go back.
-define(HELD_MS, 2500).

%% What a node has not used for so long goes back.
-define(IDLE_MS, 5000).

%% How long the first refused callers wait for an answer of the allocator, and how long a demand stands after the last
%% one.
-define(ANSWER_MS, 100).
-define(STANDS_MS, 1000).

%% A node declares the capacity of a key at most once in this time.
-define(DECLARE_MS, 100).

%% Keys that are read in one step, and keys in a message. A step should take about a millisecond.
-define(KEYS, 1000).

%% To the process canal_lock_cluster_allocator of a node.
-type message() ::
    {have, Term :: pos_integer(), Session :: pos_integer(), [#have{}]}
    | {report, Term :: pos_integer(), Session :: pos_integer(), Ask :: pos_integer(), [#have{}], IsLast :: boolean()}.

-type event() ::
    %% This node has a new lock: no share of the table is above 0.
    {session, pos_integer()}
    %% The lock was lost, or the table is another one.
    | lost
    %% The allocator of a node has ended, or the connection to it.
    | {ended, node()}
    %% The allocator of a node asks for all keys.
    | {ask, node(), Term :: pos_integer(), Ask :: pos_integer()}
    | {set, Term :: pos_integer(), Session :: pos_integer(), [#set{}]}
    %% A call was refused, or passes another capacity. `Permits': how many it needs; 0 if it waits in the queue, or
    %% needs more than its capacity. `From': the caller, if it waits for the allocator's answer.
    | {want, canal_lock:key(), Capacity :: non_neg_integer(), Permits :: non_neg_integer(), From :: term() | none}
    %% What the table has, after an effect `read' or `set_share'.
    | {use, canal_lock:key(), canal_lock_nif:share() | none}
    | step.

-type effect() ::
    {set_share, canal_lock:key(), Share :: non_neg_integer(), Limit :: non_neg_integer(),
        Passed :: non_neg_integer() | none}
    | {read, canal_lock:key()}
    | {reply, From :: term()}
    %% Whether the allocator knows the demand, so that refused calls need not ask.
    | {stands, canal_lock:key(), boolean()}
    | {count, received | returned | recalled, pos_integer()}
    | {send, node(), message()}.

-record(key, {
    %% Of the last message of the allocator of that term.
    term = 0 :: non_neg_integer(),
    number = 0 :: non_neg_integer(),
    %% What this session keeps of what it was given, and how much of it may be used.
    given = 0 :: non_neg_integer(),
    target = 0 :: non_neg_integer(),
    limit = 0 :: non_neg_integer(),
    version = none :: canal_lock_cluster_ledger:version() | none,
    contended = false :: boolean(),
    %% The capacity that the table compares with, the one that was declared last, and when.
    passed = none :: none | non_neg_integer(),
    declared = none :: none | {pos_integer(), Capacity :: non_neg_integer()},
    %% A capacity that is to be declared later.
    wished = none :: none | non_neg_integer(),
    declared_ms :: integer(),
    %% The last read.
    in_use = 0 :: non_neg_integer(),
    need = 0 :: non_neg_integer(),
    next = 0 :: non_neg_integer(),
    waiting = 0 :: non_neg_integer(),
    %% The largest call that was refused, what was in use then, and until when it counts.
    wants = 1 :: pos_integer(),
    busy = 0 :: non_neg_integer(),
    until_ms :: integer(),
    %% When the first caller asked, and the callers that wait for an answer.
    asked_ms = none :: none | integer(),
    callers = [] :: [term()],
    stands = false :: boolean(),
    %% Whether the allocator must get a message. The demand in the last one, what the oldest request needed, and when it
    %% was sent.
    unsent = false :: boolean(),
    sent = 0 :: non_neg_integer(),
    sent_next = 0 :: non_neg_integer(),
    sent_ms :: integer(),
    %% What was used at most since then.
    peak = 0 :: non_neg_integer(),
    peak_ms :: integer(),
    %% When it is read next.
    due_ms = none :: none | integer()
}).

-record(state, {
    session = none :: none | pos_integer(),
    term = 0 :: non_neg_integer(),
    allocator = none :: none | node(),
    keys = #{} :: #{canal_lock:key() => #key{}},
    %% The keys to read, by their intervals; each queue by time.
    reads = #{?RECALL_MS => queue:new(), ?TURN_MS => queue:new(), ?READ_MS => queue:new(), ?HELD_MS => queue:new()} ::
        #{pos_integer() => queue:queue({integer(), canal_lock:key()})},
    %% The number of the last declaration. Of all keys, because a key that was forgotten may be known to the allocator.
    declarations = 0 :: non_neg_integer(),
    report = none :: none | {Ask :: pos_integer(), maps:iterator(canal_lock:key(), #key{})},
    haves = [] :: [#have{}],
    %% The newest first.
    effects = [] :: [effect()]
}).

-opaque state() :: #state{}.

-spec new() -> state().
new() ->
    #state{}.

-spec session(state()) -> pos_integer() | none.
session(#state{session = Session}) -> Session.

%% The highest term that this node knows. 0: none.
-spec term(state()) -> non_neg_integer().
term(#state{term = Term}) -> Term.

%% The node of the allocator that has asked in this session. `none': the agent repeats its greeting to all members.
-spec allocator(state()) -> node() | none.
allocator(#state{allocator = Node}) -> Node.

-spec keys(state()) -> non_neg_integer().
keys(#state{keys = Keys}) -> map_size(Keys).

%% The effects are to be executed in their order. After `read' and `set_share' follows an event `use'.
-spec handle(event(), Now_ms :: integer(), state()) -> {[effect()], state()}.
handle(Event, Now_ms, S) ->
    effects(event(Event, Now_ms, S)).

effects(S = #state{effects = Effects, haves = []}) ->
    {lists:reverse(Effects), S#state{effects = []}};
effects(S = #state{haves = Haves, allocator = Node, term = Term, session = Session}) ->
    effects(effect({send, Node, {have, Term, Session, lists:reverse(Haves)}}, S#state{haves = []})).

effect(Effect, S = #state{effects = Effects}) ->
    S#state{effects = [Effect | Effects]}.

%% How long to wait for the event `step'.
-spec wake_ms(Now_ms :: integer(), state()) -> timeout().
wake_ms(_, #state{report = {_, _}}) ->
    0;
wake_ms(Now_ms, #state{reads = Reads}) ->
    Heads = [At_ms || Queue <- maps:values(Reads), {value, {At_ms, _}} <- [queue:peek(Queue)]],
    case Heads of
        [] -> infinity;
        _ -> max(0, lists:min(Heads) - Now_ms)
    end.

%% Terms start over if the members have lost their state. What an older allocator sends is for an older session.
event({session, Session}, _, S) ->
    S#state{session = Session, term = 0, allocator = none, keys = #{}};
event({ended, Node}, _, S = #state{allocator = Node}) ->
    S#state{allocator = none, report = none};
event({ended, _}, _, S) ->
    S;
event(lost, _, S = #state{keys = Keys}) ->
    Ended = maps:fold(fun(Key, K, To) -> stands(Key, false, answer(Key, K, To)) end, S, Keys),
    Ended#state{session = none, keys = #{}, report = none, haves = []};
event({ask, _, Term, _}, _, S = #state{term = Last}) when Term < Last ->
    S;
event({ask, _, _, _}, _, S = #state{session = none}) ->
    S;
event({ask, Node, Term, Ask}, _, S = #state{keys = Keys}) ->
    report(S#state{term = Term, allocator = Node, report = {Ask, maps:iterator(Keys)}});
event({set, Term, Session, Sets}, Now_ms, S = #state{term = Term, session = Session}) ->
    lists:foldl(fun(Set, To) -> set(Set, Now_ms, To) end, S, Sets);
event({set, _, _, _}, _, S) ->
    S;
event({want, _, _, _, From}, _, S = #state{session = none}) ->
    reply(From, S);
event({want, Key, Capacity, Permits, From}, Now_ms, S) ->
    want(Key, Capacity, Permits, From, Now_ms, S);
event({use, Key, Use}, Now_ms, S = #state{keys = Keys}) ->
    case Keys of
        #{Key := K} -> use(Key, K, Use, Now_ms, S);
        #{} -> S
    end;
event(step, Now_ms, S = #state{report = none}) ->
    lists:foldl(fun(Interval_ms, To) -> reads(?KEYS, Interval_ms, Now_ms, To) end, S, maps:keys(S#state.reads));
event(step, _, S) ->
    report(S).

%%% Messages of the allocator

%% The next piece of a report.
report(S = #state{report = {Ask, Iterator}, term = Term, session = Session, allocator = Node}) ->
    {Haves, Next} = piece(?KEYS, maps:next(Iterator), [], S),
    Message = {report, Term, Session, Ask, Haves, Next =:= none},
    effect({send, Node, Message}, S#state{report = case Next of none -> none; _ -> {Ask, Next} end}).

piece(_, none, Haves, _) ->
    {Haves, none};
piece(1, {Key, _, Next}, Haves, S) ->
    {row(Key, S) ++ Haves, Next};
piece(Left, {Key, _, Next}, Haves, S) ->
    piece(Left - 1, maps:next(Next), row(Key, S) ++ Haves, S).

%% The current state of a key, which may be newer than the iterator.
row(Key, S = #state{keys = Keys}) ->
    [have(Key, K, S) || #{Key := K} <- [Keys]].

have(Key, K, #state{term = Term}) ->
    #have{
        key = Key,
        number = number(Term, K),
        share = K#key.given,
        in_use = K#key.in_use,
        need = K#key.need,
        next = K#key.next,
        waiting = K#key.waiting,
        passed = case K of #key{declared = {_, Capacity}} -> Capacity; #key{passed = Passed} -> Passed end,
        declared = K#key.declared,
        limit = K#key.limit,
        version = K#key.version
    }.

%% Numbers begin with each term.
number(Term, #key{term = Term, number = Number}) -> Number;
number(_, _) -> 0.

%% Messages of a process arrive in their order, without a copy.
set(#set{key = Key, share = Share, target = Target, contended = Contended} = Set, Now_ms, S = #state{keys = Keys}) ->
    K0 = #key{declared = Declared} = maps:get(Key, Keys, new_key(Now_ms)),
    true = Set#set.number > number(S#state.term, K0),
    IsSeen = Declared =/= none andalso element(1, Declared) =< Set#set.declared,
    K = K0#key{
        term = S#state.term,
        number = Set#set.number,
        given = Share,
        target = min(Share, Target),
        limit = Set#set.limit,
        version = Set#set.version,
        contended = Contended,
        passed = case IsSeen of true -> element(2, Declared); false -> K0#key.passed end,
        declared = case IsSeen of true -> none; false -> Declared end,
        %% Callers are refused now, which the table shows when it is read next.
        until_ms = case Contended andalso K0#key.callers =/= [] of
            true -> max(K0#key.until_ms, Now_ms + 2 * ?TURN_MS);
            false -> K0#key.until_ms
        end,
        unsent = true,
        peak = 0,
        peak_ms = Now_ms
    },
    Recalls = case Target < K0#key.target of true -> 1; false -> 0 end,
    Counted = count(received, Share - K0#key.given, count(recalled, Recalls, S)),
    %% An answer to a call that was refused: the allocator knows the demand. Messages can follow each other faster than
    %% in `ANSWER_MS', so the demand must not wait for a time without one.
    Stands = Contended andalso (K#key.stands orelse Now_ms < K#key.until_ms),
    stands(Key, Stands, answer(Key, K, set_share(Key, K, Counted))).

count(Total, Count, S) when Count > 0 -> effect({count, Total, Count}, S);
count(_, _, S) -> S.

set_share(Key, #key{target = Target, limit = Limit, passed = Passed}, S) ->
    effect({set_share, Key, Target, Limit, Passed}, S).

%% After this, the callers find what the table has now.
answer(Key, K = #key{callers = Callers}, S) ->
    put_key(Key, K#key{callers = [], asked_ms = none}, lists:foldl(fun reply/2, S, Callers)).

reply(none, S) -> S;
reply(From, S) -> effect({reply, From}, S).

%% Of a key in the map.
stands(Key, Stands, S = #state{keys = Keys}) ->
    case Keys of
        #{Key := #key{stands = Stands}} -> S;
        #{Key := K} -> put_key(Key, K#key{stands = Stands}, effect({stands, Key, Stands}, S))
    end.

put_key(Key, K, S = #state{keys = Keys}) ->
    S#state{keys = Keys#{Key => K}}.

new_key(Now_ms) ->
    Never_ms = Now_ms - ?IDLE_MS,
    #key{declared_ms = Never_ms, until_ms = Never_ms, sent_ms = Never_ms, peak_ms = Now_ms}.

%%% Callers

want(Key, Capacity, Permits, From, Now_ms, S = #state{keys = Keys}) ->
    K0 = maps:get(Key, Keys, new_key(Now_ms)),
    IsAsking = From =/= none orelse Permits > 0,
    K = K0#key{
        wants = max(Permits, K0#key.wants),
        until_ms = case From of none when Permits > 0 -> Now_ms + ?STANDS_MS; _ -> K0#key.until_ms end,
        asked_ms = case K0#key.asked_ms of none when IsAsking -> Now_ms; Asked_ms -> Asked_ms end,
        callers = [From || IsAsking] ++ K0#key.callers
    },
    Wanted = case K of
        #key{declared = {_, Capacity}} -> put_key(Key, K, S);
        #key{declared = none, passed = Capacity, stands = true} -> answer(Key, K, S);
        #key{declared = none, passed = Capacity} -> put_key(Key, K, S);
        #key{declared_ms = Declared_ms} when Now_ms >= Declared_ms + ?DECLARE_MS ->
            declare(Key, Capacity, K, Now_ms, S);
        %% It is declared later. The limit in force serves, if there is one.
        #key{version = none} -> put_key(Key, K#key{wished = Capacity}, S);
        _ ->
            Passed = K#key{passed = Capacity, wished = Capacity},
            answer(Key, Passed, set_share(Key, Passed, S))
    end,
    effect({read, Key}, Wanted).

declare(Key, Capacity, K, Now_ms, S = #state{declarations = Last}) ->
    Declared = K#key{declared = {Last + 1, Capacity}, declared_ms = Now_ms, wished = none, unsent = true},
    put_key(Key, Declared, S#state{declarations = Last + 1}).

%%% What the table has

use(Key, K, none, Now_ms, S) ->
    used(Key, K, {0, none, 0, 0, 0, 0, {false, false}}, Now_ms, S);
%% A queue has no limit before this: its requests can need up to the passed capacity.
use(Key, K = #key{limit = Limit, version = Version}, {_, _, _, _, _, Next, _}, _, S) when
    Next > Limit, Version =/= none
->
    set_share(Key, K, S);
use(Key, K, Use, Now_ms, S) ->
    used(Key, K, Use, Now_ms, S).

used(Key, Last, {Share, _, InUse, Waiting, _, _, {_, WasUsed}} = Use, Now_ms, S) ->
    K0 = #key{until_ms = Until_ms} = refused(Use, Last, Now_ms),
    {Need, Next} = need(Use, K0, Now_ms),
    Wants = case Now_ms < Until_ms orelse K0#key.callers =/= [] of true -> K0#key.wants; false -> 1 end,
    K1 = K0#key{in_use = InUse, need = Need, next = Next, waiting = Waiting, wants = Wants},
    %% Short calls are rarely at work when the table is read.
    Used = max(InUse + Need, case WasUsed of true -> 1; false -> 0 end),
    case idle(K1#key{peak = max(K1#key.peak, Used)}, Now_ms, S) of
        {target, K} when K#key.target < Share -> set_share(Key, K, put_key(Key, K, S));
        {_, K} -> back(Key, K, Now_ms, S)
    end.

%% A refused call counts for a second, but only for a turn while the share has room for it.
refused({Share, _, InUse, _, _, _, {true, _}}, K, Now_ms) ->
    K#key{busy = max(InUse, Share), until_ms = Now_ms + ?STANDS_MS};
refused({Share, _, InUse, _, _, _, _}, K = #key{until_ms = Until_ms, wants = Wants}, Now_ms) when
    InUse + Wants =< Share
->
    K#key{until_ms = min(Until_ms, Now_ms + ?TURN_MS)};
refused(_, K, _) ->
    K.

%% How many permits more are needed, and how many the oldest request needs in all. Permits are collected only for
%% requests that wait.
need({_, _, _, Waiting, Need, Next, _}, _, _) when Waiting > 0 ->
    {Need, Next};
need({_, _, InUse, _, _, _, _}, K = #key{until_ms = Until_ms, wants = Wants}, Now_ms) when Now_ms < Until_ms ->
    %% The table can be read at a moment between two calls. The limit must not seem to be enough at such moments.
    Used = case K of #key{contended = true} -> max(InUse, min(K#key.busy, K#key.target)); _ -> InUse end,
    {Used - InUse + max(Wants, Used div 2), 1};
need({Share, _, InUse, _, _, _, _}, #key{callers = [_ | _], wants = Wants}, _) when InUse + Wants > Share ->
    {max(Wants, InUse div 2), 1};
need(_, _, _) ->
    {0, 0}.

%% What was not used goes back. Without an allocator it stays: nothing could replace it.
idle(K, _, #state{allocator = none}) ->
    {same, K};
idle(K = #key{peak = Peak, peak_ms = Peak_ms, target = Target}, Now_ms, _) when Now_ms - Peak_ms >= ?IDLE_MS ->
    {target, K#key{target = min(Target, Peak), peak = 0, peak_ms = Now_ms}};
idle(K, _, _) ->
    {same, K}.

%% What is above the target and not in use goes back.
back(Key, K = #key{given = Given, target = Target, in_use = InUse}, Now_ms, S) ->
    case min(Given, max(Target, InUse)) of
        Given -> send(Key, K, Now_ms, S);
        Kept -> send(Key, K#key{given = Kept, unsent = true}, Now_ms, count(returned, Given - Kept, S))
    end.

send(Key, K0 = #key{wished = Wished, declared_ms = Declared_ms, declared = none}, Now_ms, S) when
    Wished =/= none, Now_ms >= Declared_ms + ?DECLARE_MS
->
    Declared = #state{keys = #{Key := K}} = declare(Key, Wished, K0, Now_ms, S),
    send(Key, K, Now_ms, Declared);
send(Key, #key{given = 0, in_use = 0, need = 0, waiting = 0, declared = none, callers = []} = K, Now_ms, S) when
    Now_ms >= K#key.until_ms
->
    %% The node forgets the key, and so does the allocator.
    Ended = stands(Key, false, put_key(Key, K, S)),
    Sent = Ended#state{haves = [have(Key, K, S) || S#state.allocator =/= none] ++ Ended#state.haves},
    Sent#state{keys = maps:remove(Key, Sent#state.keys)};
send(Key, K, Now_ms, S) ->
    Demand = demand(K),
    MaySend = K#key.sent =:= 0 orelse Now_ms - K#key.sent_ms >= ?TURN_MS,
    Asked = stands_now(Key, K, Now_ms, S),
    case K#key.unsent orelse MaySend andalso is_news(Demand, K) of
        true ->
            #{Key := Now} = Asked#state.keys,
            Sent = Now#key{unsent = false, sent = Demand, sent_next = Now#key.next, sent_ms = Now_ms},
            Haves = [have(Key, Sent, S) || S#state.allocator =/= none] ++ Asked#state.haves,
            schedule(Key, Sent, Now_ms, Asked#state{haves = Haves});
        false ->
            schedule(Key, maps:get(Key, Asked#state.keys), Now_ms, Asked)
    end.

%% After 100 ms without an answer the demand stands, and ends when no refused caller repeats it.
stands_now(Key, K = #key{asked_ms = Asked_ms}, Now_ms, S) when Asked_ms =/= none, Now_ms - Asked_ms >= ?ANSWER_MS ->
    stands(Key, true, answer(Key, K, S));
stands_now(Key, K = #key{need = 0, until_ms = Until_ms}, Now_ms, S) when Now_ms >= Until_ms ->
    stands(Key, false, put_key(Key, K, S));
stands_now(Key, K, _, S) ->
    put_key(Key, K, S).

%% The demand that the allocator gets. If the limit is not enough, a larger one would not change the division. If it is
%% enough, the allocator need not know what a node uses that needs nothing.
demand(#key{in_use = InUse, need = Need, given = Given, contended = true}) -> min(InUse + Need, 2 * Given + 1);
demand(#key{need = 0}) -> 0;
demand(#key{in_use = InUse, need = Need}) -> InUse + Need.

is_news(_, #key{contended = true, given = Given, next = Next, sent_next = Sent}) when Next > Given, Next =/= Sent ->
    true;
is_news(Demand, #key{sent = Sent}) when Demand =:= 0; Sent =:= 0 -> Demand =/= Sent;
%% What the node does not need is free for others. Above its share it needs more, and an estimate is enough.
is_news(Demand, #key{sent = Sent, given = Given, contended = true}) when Demand > Given, Sent > Given ->
    4 * abs(Demand - Sent) > Sent;
is_news(Demand, #key{sent = Sent, contended = true}) -> Demand =/= Sent;
is_news(Demand, #key{sent = Sent}) -> Demand > Sent.

%%% Reads

schedule(Key, K, Now_ms, S = #state{reads = Reads}) ->
    Interval_ms = interval_ms(K, Now_ms),
    At_ms = Now_ms + Interval_ms,
    case K#key.due_ms of
        Due_ms when Due_ms =/= none, Due_ms =< At_ms ->
            put_key(Key, K, S);
        _ ->
            #{Interval_ms := Queue} = Reads,
            Later = S#state{reads = Reads#{Interval_ms := queue:in({At_ms, Key}, Queue)}},
            put_key(Key, K#key{due_ms = At_ms}, Later)
    end.

interval_ms(#key{given = Given, target = Target}, _) when Given > Target -> ?RECALL_MS;
interval_ms(#key{need = Need, contended = IsContended}, _) when Need > 0; IsContended -> ?TURN_MS;
interval_ms(#key{callers = [_ | _]}, _) -> ?TURN_MS;
interval_ms(#key{wished = Wished}, _) when Wished =/= none -> ?TURN_MS;
interval_ms(#key{until_ms = Until_ms}, Now_ms) when Now_ms < Until_ms -> ?TURN_MS;
interval_ms(#key{in_use = InUse, given = Given}, _) when InUse > 0, InUse >= Given -> ?HELD_MS;
interval_ms(_, _) -> ?READ_MS.

reads(0, _, _, S) ->
    S;
reads(Left, Interval_ms, Now_ms, S = #state{reads = Reads, keys = Keys}) ->
    #{Interval_ms := Queue} = Reads,
    case queue:peek(Queue) of
        {value, {At_ms, Key}} when At_ms =< Now_ms ->
            Rest = S#state{reads = Reads#{Interval_ms := queue:drop(Queue)}},
            case Keys of
                #{Key := K = #key{due_ms = At_ms}} ->
                    reads(Left - 1, Interval_ms, Now_ms, effect({read, Key}, put_key(Key, K#key{due_ms = none}, Rest)));
                #{} ->
                    reads(Left - 1, Interval_ms, Now_ms, Rest)
            end;
        _ ->
            S
    end.
