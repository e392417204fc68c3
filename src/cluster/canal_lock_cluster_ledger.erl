%% @private
%% The allocator as a state machine: which share of each key each node has, and which it should have. It sends nothing
%% and has no clock; canal_lock_cluster_allocator is its process.
%%
%% It keeps for each key that the sum of the shares is at most the limit (CP1), or falls until it is. So a share is
%% raised in the ledger before it is sent, and lowered only when the node has confirmed the latest number.
%%
%% A <em>session</em> is the fence of the lock that a node holds while it is alive. A new allocator asks all nodes
%% whose locks are held, and <em>learns</em> until each has reported, or is missing in a later list of held locks. What
%% the reports leave of a limit can belong to a node that is silent. So it is not given, only what nodes return is.
-module(canal_lock_cluster_ledger).

-include("canal_lock_cluster.hrl").

-export([new/1, handle/3, silent/2, usage/2, keys/1, wake_ms/2]).

-export_type([ledger/0, event/0, version/0, message/0, silent/0]).

%% A node keeps the permits of its turn for so long after it has confirmed them. Longer, if it has other permits: then
%% the next node has others too, and each turn costs messages.
-define(TURN_MS, 20).
-define(LONG_TURN_MS, 100).

%% While no permit of a key is given, each turn is twice as long as the one before. The turns are counted up to this.
-define(IDLE_TURNS, 6).
-define(LONGEST_TURN_MS, 640).

%% How often a key is divided while the limit is not enough.
-define(DIVIDE_MS, 5).

%% A node that has sent nothing for so long is silent. Each sends a message per second.
-define(SILENT_MS, 2500).

%% Keys per step. A step should take less than a millisecond.
-define(KEYS, 100).

%% Of a limit: the term of the allocator that has set it, and a number.
-type version() :: {Term :: non_neg_integer(), pos_integer()}.

%% To the process canal_lock_cluster_agent of a node.
-type message() ::
    {ask, Term :: pos_integer(), Ask :: pos_integer()}
    | {set, Term :: pos_integer(), Session :: pos_integer(), [#set{}]}.

-type event() ::
    %% The nodes whose locks were held when the question was asked, and what was silent before.
    {listed, silent(), [node()]}
    %% A node has a session, or a connection again.
    | {hello, node(), Session :: pos_integer()}
    %% Once per second.
    | {alive, node(), Session :: pos_integer()}
    %% A session has ended.
    | {over, node(), Session :: pos_integer()}
    %% A message to the node was refused.
    | {again, node()}
    | {have, node(), Term :: pos_integer(), Session :: pos_integer(), [#have{}]}
    %% All keys of a node, in pieces.
    | {report, node(), Term :: pos_integer(), Session :: pos_integer(), Ask :: pos_integer(), [#have{}],
        IsLast :: boolean()}
    | step.

-type silent() :: [{node(), Session :: pos_integer() | unknown}] | all.

%% What a node has of a key.
-record(row, {
    session :: pos_integer(),
    share = 0 :: non_neg_integer(),
    target = 0 :: non_neg_integer(),
    %% Of the last message, and the last one that the node has confirmed. They grow over all keys.
    number :: non_neg_integer(),
    seen :: non_neg_integer(),
    in_use = 0 :: non_neg_integer(),
    need = 0 :: non_neg_integer(),
    next = 0 :: non_neg_integer(),
    waiting = 0 :: non_neg_integer(),
    %% Since when it has needed permits, or since the end of its turn.
    since = 0 :: integer(),
    %% What its turn reserves, and when it has confirmed that.
    turn = none :: none | {pos_integer(), unconfirmed | integer()},
    declared = 0 :: non_neg_integer(),
    passed = none :: non_neg_integer() | none,
    %% Of the limit that it knows.
    version :: version() | none,
    %% The last question to the node after which it has confirmed the last number.
    ask :: non_neg_integer()
}).

-record(key, {
    limit = 0 :: non_neg_integer(),
    version = none :: version() | none,
    %% While this allocator learns: what nodes have returned, less what the limit was lowered.
    returned = 0 :: integer(),
    rows = #{} :: #{node() => #row{}},
    contended = false :: boolean(),
    %% How many times turns have begun since a permit of the key was given.
    idle_turns = 0 :: non_neg_integer(),
    divided_ms = 0 :: integer(),
    %% When it is to be divided again.
    due_ms = none :: none | integer()
}).

-record(ledger, {
    term :: pos_integer(),
    %% Nodes that have not reported.
    learning = all :: all | #{node() => unknown},
    %% Nodes that must be asked when the first list is there.
    greeted = [] :: [node()],
    %% Those that are not over.
    sessions = #{} :: #{node() => Session :: pos_integer()},
    %% When each of them has sent the last message.
    heard = #{} :: #{node() => integer()},
    %% The last question to a node, and the last one that it has answered completely.
    asks = #{} :: #{node() => {Asked :: pos_integer(), Answered :: non_neg_integer()}},
    keys = #{} :: #{canal_lock:key() => #key{}},
    %% With a number, because a set takes 1 and 1.0 for the same key.
    due = gb_sets:new() :: gb_sets:set({integer(), pos_integer(), canal_lock:key()}),
    %% A pass over all keys, and whether another must follow.
    pass = none :: none | maps:iterator(canal_lock:key(), #key{}),
    pass_again = false :: boolean(),
    %% The last number of a row, of a question or of a version.
    number = 0 :: non_neg_integer(),
    %% The newest first.
    sets = #{} :: #{node() => [#set{}]},
    questions = [] :: [{node(), pos_integer()}]
}).

-opaque ledger() :: #ledger{}.

-spec new(Term :: pos_integer()) -> ledger().
new(Term) ->
    #ledger{term = Term}.

%% The messages that follow, to each node at most one of a kind.
-spec handle(event(), Now_ms :: integer(), ledger()) -> {[{node(), message()}], ledger()}.
handle(Event, Now_ms, Ledger) ->
    messages(due(Now_ms, event(Event, Now_ms, Ledger))).

messages(L = #ledger{term = Term, sets = Sets, questions = Questions}) ->
    Asked = [{Node, {ask, Term, Ask}} || {Node, Ask} <- lists:reverse(Questions)],
    Set = [
        {Node, {set, Term, session(Node, L), lists:reverse(Rows)}}
     || {Node, Rows} <- maps:to_list(Sets)
    ],
    {Asked ++ Set, L#ledger{sets = #{}, questions = []}}.

%% Whose locks must be in the next list, or they are over. `all' before the first list.
-spec silent(Now_ms :: integer(), ledger()) -> silent().
silent(_, #ledger{learning = all}) ->
    all;
silent(Now_ms, #ledger{learning = Learning, sessions = Sessions, heard = Heard}) ->
    Silent = [{Node, map_get(Node, Sessions)} || {Node, At_ms} <- maps:to_list(Heard), Now_ms - At_ms >= ?SILENT_MS],
    maps:to_list(Learning) ++ Silent.

%% What the nodes have of a key, as far as they have reported.
-spec usage(canal_lock:key(), ledger()) -> #{
    limit := non_neg_integer() | none,
    nodes := #{node() => #{share := non_neg_integer(), in_use := non_neg_integer(), waiting := non_neg_integer()}}
}.
usage(Key, L = #ledger{keys = Keys}) ->
    #key{limit = Limit, version = Version, rows = Rows} = maps:get(Key, Keys, #key{}),
    Of = fun(_, #row{share = Share, in_use = InUse, waiting = Waiting}) ->
        #{share => Share, in_use => InUse, waiting => Waiting}
    end,
    #{limit => case Version of none -> none; _ -> Limit end, nodes => maps:map(Of, live(Rows, L))}.

%% How many keys it knows.
-spec keys(ledger()) -> non_neg_integer().
keys(#ledger{keys = Keys}) -> map_size(Keys).

%% How long to wait for the event `step'.
-spec wake_ms(Now_ms :: integer(), ledger()) -> timeout().
wake_ms(Now_ms, #ledger{due = Due, pass = none}) ->
    case gb_sets:is_empty(Due) of
        true -> infinity;
        false -> max(0, element(1, gb_sets:smallest(Due)) - Now_ms)
    end;
wake_ms(_, _) ->
    0.

%%% Sessions

event({listed, all, Nodes}, _, L = #ledger{learning = all, greeted = Greeted}) ->
    Learning = L#ledger{learning = maps:from_list([{Node, unknown} || Node <- Nodes]), greeted = []},
    lists:foldl(fun ask/2, Learning, lists:usort(Nodes ++ Greeted));
event({listed, Silent, Nodes}, _, L) ->
    lists:foldl(fun over/2, L, [Each || Each = {Node, _} <- Silent, not lists:member(Node, Nodes)]);
event({hello, Node, _}, _, L = #ledger{learning = all, greeted = Greeted}) ->
    L#ledger{greeted = lists:usort([Node | Greeted])};
event({hello, Node, Session}, Now_ms, L) ->
    ask(Node, case is_current(Node, Session, L) of true -> heard(Node, Now_ms, L); false -> L end);
event({alive, Node, Session}, Now_ms, L) ->
    case is_current(Node, Session, L) of
        true -> heard(Node, Now_ms, L);
        false -> event({hello, Node, Session}, Now_ms, L)
    end;
event({over, Node, Session}, _, L) ->
    over({Node, Session}, L);
event({again, Node}, _, L) ->
    ask(Node, L);
event({have, Node, Term, Session, Haves}, Now_ms, L = #ledger{term = Term}) ->
    case is_current(Node, Session, L) of
        true ->
            Heard = heard(Node, Now_ms, L),
            lists:foldl(fun(Have, To) -> have(Node, Session, Have, Now_ms, To) end, Heard, Haves);
        false -> L
    end;
event({report, Node, Term, Session, Ask, Haves, IsLast}, Now_ms, L = #ledger{term = Term, asks = Asks}) ->
    case Asks of
        #{Node := {Ask, _}} ->
            Begun = heard(Node, Now_ms, L#ledger{sessions = (L#ledger.sessions)#{Node => Session}}),
            Reported = lists:foldl(fun(Have, To) -> reported(Node, Session, Have, Now_ms, To) end, Begun, Haves),
            report_end(IsLast, Node, Ask, Reported);
        #{} ->
            L
    end;
event(step, Now_ms, L = #ledger{pass = Pass}) when Pass =/= none ->
    pass(?KEYS, Now_ms, L);
event(_, _, L) ->
    L.

ask(Node, L = #ledger{asks = Asks, number = Number, questions = Questions}) ->
    {_, Answered} = maps:get(Node, Asks, {0, 0}),
    L#ledger{
        asks = Asks#{Node => {Number + 1, Answered}},
        number = Number + 1,
        questions = [{Node, Number + 1} | Questions]
    }.

heard(Node, At_ms, L = #ledger{heard = Heard}) ->
    L#ledger{heard = Heard#{Node => At_ms}}.

is_current(Node, Session, #ledger{sessions = Sessions}) ->
    case Sessions of
        #{Node := Session} -> true;
        #{} -> false
    end.

report_end(false, _, _, L) ->
    L;
report_end(true, Node, Ask, L = #ledger{asks = Asks}) ->
    learned(Node, start_pass(L#ledger{asks = Asks#{Node := {Ask, Ask}}})).

learned(Node, L = #ledger{learning = Learning}) ->
    L#ledger{learning = maps:remove(Node, Learning)}.

over({Node, unknown}, L = #ledger{learning = Learning}) when is_map_key(Node, Learning) ->
    start_pass(learned(Node, L));
over({Node, Session}, L = #ledger{sessions = Sessions, heard = Heard}) ->
    case Sessions of
        #{Node := Session} ->
            start_pass(L#ledger{sessions = maps:remove(Node, Sessions), heard = maps:remove(Node, Heard)});
        #{} ->
            L
    end.

session(Node, #ledger{sessions = Sessions}) ->
    map_get(Node, Sessions).

live(Rows, L) ->
    maps:filter(fun(Node, #row{session = Session}) -> is_current(Node, Session, L) end, Rows).

%%% Rows

%% A row of a report. It differs from others while this allocator learns: then the share is what the node says.
reported(Node, Session, H, Now_ms, L = #ledger{learning = Learning}) ->
    K = with_limit(H, key(H#have.key, L)),
    case row(Node, Session, K) of
        none when is_map_key(Node, Learning) -> confirmed(Node, H, new_row(Session, H), K, Now_ms, L);
        _ -> have(Node, Session, H, Now_ms, L)
    end.

have(Node, Session, H, Now_ms, L) ->
    K = with_limit(H, key(H#have.key, L)),
    case row(Node, Session, K) of
        %% The share of a session that this allocator does not know, or its report follows. If the lock of the session
        %% had been held when the list was made, the list would have it. So an unknown session is over.
        none when H#have.share > 0 -> L;
        none -> confirmed(Node, H, new_row(Session, H), K, Now_ms, L);
        Row -> confirmed(Node, H, Row, K, Now_ms, L)
    end.

new_row(Session, #have{share = Share, number = Number, version = Version}) ->
    #row{session = Session, share = Share, target = Share, number = Number, seen = Number, version = Version, ask = 0}.

%% The latest limit that a node knows.
with_limit(#have{limit = Limit, version = Version}, K = #key{version = Last}) when
    Version =/= none, Last =:= none orelse Version > Last
->
    limit(Limit, Version, K);
with_limit(_, K) ->
    K.

%% What was returned of a higher limit is not free below a lower one.
limit(Limit, Version, K = #key{limit = Before, returned = Returned}) ->
    K#key{limit = Limit, version = Version, returned = Returned - max(0, Before - Limit)}.

confirmed(Node, H, Row, K, Now_ms, L) ->
    #have{key = Key, number = Number, share = Share, in_use = InUse, need = Need, declared = Declared} = H,
    {Asked, _} = maps:get(Node, L#ledger.asks),
    Needing = Row#row{
        in_use = InUse,
        need = Need,
        next = H#have.next,
        waiting = H#have.waiting,
        passed = H#have.passed,
        since = case Row#row.need of 0 -> Now_ms; _ -> Row#row.since end,
        seen = max(Number, Row#row.seen),
        ask = case Number =:= Row#row.number of true -> Asked; false -> Row#row.ask end
    },
    %% A node never has more than the ledger says.
    Returned = case Number =:= Row#row.number of
        true when Share =< Row#row.share -> Row#row.share - Share;
        false -> 0
    end,
    Lowered = turn(Needing#row{share = Row#row.share - Returned}, K#key.idle_turns, Now_ms),
    Key1 = with_row(Node, Lowered, K#key{returned = K#key.returned + Returned}),
    {Key2, L1} = declare(Node, Declared, Key1, L),
    forget_or_divide(Key, Node, Returned, Key2, Now_ms, L1).

turn(Row = #row{turn = none}, _, _) ->
    Row;
turn(Row = #row{turn = {Amount, unconfirmed}, share = Share, number = Number, seen = Number}, _, Now_ms) when
    Share >= Amount
->
    Row#row{turn = {Amount, Now_ms}};
turn(Row = #row{turn = {_, unconfirmed}}, _, _) ->
    Row;
turn(Row, Idle, Now_ms) ->
    case Now_ms >= turn_ends_ms(Row, Idle) of
        true -> Row#row{turn = none, since = Now_ms};
        false -> Row
    end.

turn_ends_ms(#row{turn = {Amount, Confirmed_ms}, next = Next}, Idle) ->
    Turn_ms = if Amount > 1, Amount > Next -> ?LONG_TURN_MS; true -> ?TURN_MS end,
    Confirmed_ms + min(Turn_ms bsl max(0, Idle - 1), ?LONGEST_TURN_MS).

declare(Node, {Number, Limit}, K = #key{rows = Rows}, L) when Number > (map_get(Node, Rows))#row.declared ->
    #{Node := Row} = Rows,
    Version = L#ledger.number + 1,
    Declared = with_row(Node, Row#row{declared = Number}, K),
    {limit(Limit, {L#ledger.term, Version}, Declared), L#ledger{number = Version}};
declare(_, _, K, L) ->
    {K, L}.

%% What a node returns is given at once, because another node waits for it.
forget_or_divide(Key, Node, Returned, K = #key{rows = Rows, version = Version}, Now_ms, L) ->
    case Rows of
        #{Node := #row{share = 0, in_use = 0, need = 0, waiting = 0, number = N, seen = N, version = Version}} ->
            divide_soon(Key, K#key{rows = maps:remove(Node, Rows)}, Now_ms, L);
        #{Node := #row{version = Version}} when Returned =:= 0 ->
            divide_soon(Key, K, Now_ms, L);
        #{} ->
            divide(Key, K, Now_ms, L)
    end.

%%% Keys

key(Key, #ledger{keys = Keys}) ->
    maps:get(Key, Keys, #key{}).

%% While this allocator learns, a silent node may have an older limit.
put_key(Key, #key{rows = Rows}, L = #ledger{keys = Keys, learning = Learning}) when
    map_size(Rows) =:= 0, map_size(Learning) =:= 0
->
    L#ledger{keys = maps:remove(Key, Keys)};
put_key(Key, K, L = #ledger{keys = Keys}) ->
    L#ledger{keys = Keys#{Key => K}}.

%% The row of this session.
row(Node, Session, #key{rows = Rows}) ->
    case Rows of
        #{Node := Row = #row{session = Session}} -> Row;
        #{} -> none
    end.

with_row(Node, Row, K = #key{rows = Rows}) ->
    K#key{rows = Rows#{Node => Row}}.

divide_soon(Key, K = #key{contended = true, divided_ms = Divided_ms}, Now_ms, L) when
    Now_ms < Divided_ms + ?DIVIDE_MS
->
    schedule(Key, K, Divided_ms + ?DIVIDE_MS, L);
divide_soon(Key, K, Now_ms, L) ->
    divide(Key, K, Now_ms, L).

schedule(Key, K = #key{due_ms = Due_ms}, At_ms, L) when Due_ms =/= none, Due_ms =< At_ms ->
    put_key(Key, K, L);
schedule(Key, K, At_ms, L) ->
    Number = L#ledger.number + 1,
    Due = gb_sets:insert({At_ms, Number, Key}, L#ledger.due),
    put_key(Key, K#key{due_ms = At_ms}, L#ledger{due = Due, number = Number}).

%% Divides the keys that are due.
due(Now_ms, L) ->
    due(?KEYS, Now_ms, L).

due(0, _, L) ->
    L;
due(Left, Now_ms, L = #ledger{due = Due, keys = Keys}) ->
    case gb_sets:is_empty(Due) orelse gb_sets:take_smallest(Due) of
        {{At_ms, _, Key}, Others} when At_ms =< Now_ms ->
            Rest = L#ledger{due = Others},
            case Keys of
                #{Key := K = #key{due_ms = At_ms}} -> due(Left - 1, Now_ms, divide(Key, K, Now_ms, Rest));
                #{} -> due(Left - 1, Now_ms, Rest)
            end;
        _ ->
            L
    end.

%% A limit that no node passes any more is replaced, by the lowest one that is passed.
divide(Key, K = #key{limit = Limit, rows = Rows}, Now_ms, L = #ledger{term = Term, number = Number}) ->
    Live = live(Rows, L),
    Passed = [Of || #row{passed = Of} <- maps:values(Live), Of =/= none],
    case Passed =:= [] orelse lists:member(Limit, Passed) orelse map_size(L#ledger.learning) > 0 of
        true ->
            divide_limit(Key, K#key{rows = Live}, Now_ms, L);
        false ->
            Replaced = K#key{limit = lists:min(Passed), version = {Term, Number + 1}, rows = Live},
            divide_limit(Key, Replaced, Now_ms, L#ledger{number = Number + 1})
    end.

%% Sends what changes: targets, the limit, whether it is enough.
divide_limit(Key, K0 = #key{limit = Limit, rows = Rows, contended = Was}, Now_ms, L) ->
    Live = maps:map(fun(_, Row) -> turn(Row, K0#key.idle_turns, Now_ms) end, Rows),
    Demands = [
        #{node => Node, demand => InUse + Need, next => min(Next, Limit), reserved => amount(Turn), since => Since}
     || {Node, #row{in_use = InUse, need = Need, next = Next, turn = Turn, since = Since}} <- maps:to_list(Live)
    ],
    {Enough, Targets, Turns} = canal_lock_cluster_division:divide(Limit, Demands, ?TURN_MS, Now_ms),
    Begun = maps:map(
        fun(Node, Row) ->
            case Turns of
                #{Node := Amount} -> turn(Row#row{turn = {Amount, unconfirmed}}, 0, Now_ms);
                #{} -> Row
            end
        end,
        Live
    ),
    Idle = case map_size(Turns) of 0 -> K0#key.idle_turns; _ -> min(K0#key.idle_turns + 1, ?IDLE_TURNS) end,
    K = K0#key{rows = Begun, contended = Enough =:= short, idle_turns = Idle, divided_ms = Now_ms, due_ms = none},
    Free = free(K, L),
    Lacking = lists:sum([
        max(0, maps:get(Node, Targets) - Share)
     || {Node, #row{share = Share, need = Need}} <- maps:to_list(Begun), Need > 0
    ]),
    IsRecall = Lacking > max(Free, 0) orelse Free < 0,
    IsNews = Was =/= K#key.contended andalso K#key.version =/= none,
    Oldest = lists:sort(fun({_, #row{since = A}}, {_, #row{since = B}}) -> A =< B end, maps:to_list(Begun)),
    {Changed, _, L1} = lists:foldl(
        fun({Node, Row}, {To, Left, Into}) ->
            Wanted = maps:get(Node, Targets),
            More = case Row#row.need of 0 -> 0; _ -> max(0, min(Wanted - Row#row.share, Left)) end,
            {Given, Sent} = give(Key, Node, Row, Wanted, More, {IsRecall, Free >= 0, IsNews}, To, Into),
            {Given, Left - More, Sent}
        end,
        {K, Free, L},
        Oldest
    ),
    reschedule(Key, Changed, Now_ms, L1).

amount(none) -> 0;
amount({Amount, _}) -> Amount.

%% What can be given: during learning, what was returned.
free(#key{limit = Limit, rows = Rows, returned = Returned}, #ledger{learning = Learning}) ->
    Free = Limit - lists:sum([Share || #row{share = Share} <- maps:values(Rows)]),
    case map_size(Learning) of
        0 -> Free;
        _ -> min(Free, Returned)
    end.

%% While the shares are above a limit that was lowered, no target rises. Otherwise they could stay above it.
give(Key, Node, Row = #row{share = Share, target = Target}, Wanted, More, {IsRecall, IsEnough, IsNews}, K, L) ->
    if
        More > 0 ->
            set(Key, Node, Row#row{share = Share + More, target = Share + More}, More, K, L);
        Share > Wanted, IsRecall, Target > Wanted ->
            set(Key, Node, Row#row{target = Wanted}, 0, K, L);
        Target < Share, Target < Wanted, IsEnough ->
            set(Key, Node, Row#row{target = min(Share, Wanted)}, 0, K, L);
        IsNews, Share > 0 orelse Row#row.need > 0; Row#row.version =/= K#key.version ->
            set(Key, Node, Row, 0, K, L);
        true ->
            {K, L}
    end.

%% The share is in the ledger before it is sent.
set(Key, Node, Row0, More, K, L = #ledger{sets = Sets}) ->
    #key{limit = Limit, version = Version, contended = Contended} = K,
    Number = L#ledger.number + 1,
    Row = Row0#row{number = Number, version = Version},
    Set = #set{
        key = Key,
        number = Number,
        share = Row#row.share,
        target = Row#row.target,
        limit = Limit,
        version = Version,
        contended = Contended,
        declared = Row#row.declared
    },
    {
        (with_row(Node, Row, K))#key{
            returned = K#key.returned - More,
            idle_turns = case More of 0 -> K#key.idle_turns; _ -> 0 end
        },
        L#ledger{number = Number, sets = Sets#{Node => [Set | maps:get(Node, Sets, [])]}}
    }.

%% When the next turn ends, or when a node has waited for a turn of each other node.
reschedule(Key, K = #key{rows = Rows, contended = Contended, idle_turns = Idle}, Now_ms, L) ->
    Waiting = [Since || #row{need = Need, turn = none, since = Since} <- maps:values(Rows), Contended, Need > 0],
    Round_ms = ?TURN_MS * (length([Next || #row{next = Next} <- maps:values(Rows), Next > 0]) - 1),
    Ends = [
        turn_ends_ms(Row, Idle)
     || Row = #row{turn = {_, Confirmed_ms}} <- maps:values(Rows), is_integer(Confirmed_ms)
    ],
    case Ends ++ [Since + Round_ms || Since <- Waiting, Since + Round_ms > Now_ms] of
        [] -> put_key(Key, K, L);
        Times -> schedule(Key, K, max(Now_ms + 1, lists:min(Times)), L)
    end.

%%% A pass over all keys: removes the rows of sessions that are over, sends again what a node has not reported, and
%%% divides what is free.

start_pass(L = #ledger{pass = none, keys = Keys}) ->
    L#ledger{pass = maps:iterator(Keys)};
start_pass(L) ->
    L#ledger{pass_again = true}.

pass(0, _, L) ->
    L;
pass(Left, Now_ms, L = #ledger{pass = Iterator, keys = Keys, pass_again = Again}) ->
    case maps:next(Iterator) of
        none when Again ->
            start_pass(L#ledger{pass = none, pass_again = false});
        none ->
            L#ledger{pass = none};
        {Key, _, Next} ->
            Rest = L#ledger{pass = Next},
            case Keys of
                #{Key := K} -> pass(Left - 1, Now_ms, repair(Key, K, Now_ms, Rest));
                #{} -> pass(Left - 1, Now_ms, Rest)
            end
    end.

repair(Key, K = #key{rows = Rows}, Now_ms, L) ->
    Live = live(Rows, L),
    {Repaired, L1} = maps:fold(
        fun(Node, Row = #row{ask = Ask}, {To, Into}) ->
            case maps:get(Node, Into#ledger.asks) of
                {_, Answered} when Ask < Answered -> set(Key, Node, Row#row{ask = Answered}, 0, To, Into);
                _ -> {To, Into}
            end
        end,
        {K#key{rows = Live}, L},
        Live
    ),
    divide(Key, Repaired, Now_ms, L1).
