%% What a node does with messages that a random history rarely has, and how soon it reports what changes.
-module(canal_lock_cluster_node_tests).

-include_lib("eunit/include/eunit.hrl").
-include("../../src/cluster/canal_lock_cluster.hrl").

-define(NOW_MS, 10_000).

all_test_() ->
    [
        {"CP1: messages of an allocator with an older term are ignored", fun older_term/0},
        {"CP4: a key with a waiter is kept, although its limit is too low", fun too_low/0},
        {"CP4: while the limit is not enough, a node reports within 20 ms what it no longer uses", fun released/0},
        {"CP4: the first refused callers wait for 100 ms, later ones not", fun stands/0},
        {"CP4: after an answer that leaves callers short, later ones do not wait", fun stands_at_once/0},
        {"CP4: after a message of the allocator, refused callers ask again while the limit is enough", fun ask_again/0},
        {"CP4: a refused call counts for 1 s, and a marked refusal too", fun refused/0},
        {"CP4: what was given for a refused call is needed for a turn", fun room/0},
        {"CP4: while calls are refused, a node needs its share also at a moment when it does not use it", fun moment/0},
        {"CP4: a node needs what the largest refused call needs, and at least half of what it uses", fun needs/0},
        {"CP4: a call that was granted needs nothing more", fun granted/0},
        {"CP4: a demand is sent at once, and its changes once in 20 ms", fun once_in_a_turn/0},
        {"CP4: a small change is sent if it makes permits free, or if more are needed", fun small_changes/0},
        {"CP4: a refused call does not collect permits", fun no_collecting/0},
        {"in a new session terms can start over", fun terms_start_over/0},
        {"CP4: what must go back is read every 5 ms", fun recall/0},
        {"a key of which all permits are in use is read every 2.5 s, and another one every 0.5 s", fun held/0},
        {"a limit below what a waiter needs is set again", fun limit_again/0},
        {"a capacity that another one follows within 100 ms is declared later", fun declared_later/0},
        {"a new session greets the allocators again, and after the end of one, too", fun greets/0},
        {"a report of many keys has pieces, and ends with the allocator", fun pieces/0},
        {"CP3: what a node has not used for 5 s goes back", fun idle/0},
        {"a share that short calls use stays, as all shares do without an allocator", fun stays/0}
    ].

%% A node with a session, an allocator, and a key with this share.
node_with(Key, Share, Limit, Contended) ->
    Asked = handles([{session, 5}, {ask, n1, 7, 1}], canal_lock_cluster_node:new()),
    {_, Wanted} = handle({want, Key, Limit, 1, caller}, Asked),
    {_, Set} = handle({set, 7, 5, [set(Key, 1, Share, Limit, Contended)]}, Wanted),
    Set.

set(Key, Number, Share, Limit, Contended) ->
    #set{
        key = Key,
        number = Number,
        share = Share,
        target = Share,
        limit = Limit,
        version = {7, 1},
        contended = Contended,
        declared = 1
    }.

handles(Events, Node) ->
    lists:foldl(fun(Event, To) -> element(2, handle(Event, To)) end, Node, Events).

handle(Event, Node) ->
    handle(Event, 0, Node).

handle(Event, After_ms, Node) ->
    {Effects, Next} = canal_lock_cluster_node:handle(Event, ?NOW_MS + After_ms, Node),
    {[Effect || Effect <- Effects, element(1, Effect) =/= count], Next}.

%% What the table has.
use(Key, Share, InUse, Waiting, Need, Next) ->
    {use, Key, {Share, Share, InUse, Waiting, Need, Next, {false, false}}}.

haves(Effects) ->
    [Have || {send, n1, {have, 7, 5, Haves}} <- Effects, Have <- Haves].

older_term() ->
    Node = node_with(db, 3, 9, false),
    {[], Same} = handle({ask, n2, 6, 1}, Node),
    {[], Same} = handle({set, 6, 5, [set(db, 2, 8, 9, false)]}, Same),
    ?assertEqual({7, n1}, {canal_lock_cluster_node:term(Same), canal_lock_cluster_node:allocator(Same)}),
    {[{set_share, db, 4, 9, 9}], _} = handle({set, 7, 5, [set(db, 2, 4, 9, false)]}, Same).

too_low() ->
    Node = node_with(db, 0, 2, false),
    {_, Used} = handle(use(db, 0, 0, 1, 1, 1), 100, Node),
    {Effects, Kept} = handle(use(db, 0, 0, 1, 0, 0), 2000, Used),
    ?assertMatch([#have{share = 0, need = 0, waiting = 1}], haves(Effects)),
    ?assertEqual(1, canal_lock_cluster_node:keys(Kept)),
    {Last, Forgotten} = handle(use(db, 0, 0, 0, 0, 0), 4000, Kept),
    ?assertMatch([#have{share = 0, need = 0, waiting = 0}], haves(Last)),
    ?assertEqual(0, canal_lock_cluster_node:keys(Forgotten)).

released() ->
    {Effects, Used} = handle(use(db, 3, 3, 0, 0, 0), 2000, node_with(db, 3, 9, true)),
    ?assertMatch([#have{share = 3, in_use = 3}], haves(Effects)),
    ?assertEqual(20, canal_lock_cluster_node:wake_ms(?NOW_MS + 2000, handles([step], Used))),
    {Told, _} = handle(use(db, 3, 1, 0, 0, 0), 2020, Used),
    ?assertMatch([#have{share = 3, in_use = 1}], haves(Told)).

stands() ->
    Key = db,
    {_, Refused} = handle({want, Key, 9, 1, first}, node_with(Key, 0, 9, false)),
    {Early, Waiting} = handle(use(Key, 0, 0, 0, 0, 0), 90, Refused),
    ?assertEqual([], [Each || Each <- Early, element(1, Each) =/= send]),
    {Late, Stands} = handle(use(Key, 0, 0, 0, 0, 0), 100, Waiting),
    ?assertMatch([{reply, first}, {stands, Key, true} | _], Late),
    ?assertMatch({[{reply, second}, {read, Key}], _}, handle({want, Key, 9, 1, second}, 200, Stands)),
    %% After a second without a refused call it ends.
    {End, _} = handle(use(Key, 0, 0, 0, 0, 0), 1300, Stands),
    ?assertMatch([{stands, Key, false} | _], End).

stands_at_once() ->
    {[{reply, first}, {read, db}], _} = handle({want, db, 9, 1, first}, 20, node_with(db, 0, 9, true)).

ask_again() ->
    Key = db,
    {_, Refused} = handle({want, Key, 9, 1, first}, node_with(Key, 0, 9, true)),
    {_, Stands} = handle({use, Key, {0, 0, 0, 0, 0, 0, {true, false}}}, 30, Refused),
    Answer = fun(Contended) -> element(1, handle({set, 7, 5, [set(Key, 2, 1, 9, Contended)]}, Stands)) end,
    ?assertEqual([{set_share, Key, 1, 9, 9}, {stands, Key, false}], Answer(false)),
    ?assertEqual([{set_share, Key, 1, 9, 9}], Answer(true)).

refused() ->
    {_, Used} = handle(use(db, 1, 1, 0, 0, 0), 2000, node_with(db, 1, 9, false)),
    Marked = fun(Share) -> {use, db, {Share, Share, 1, 0, 0, 0, {true, true}}} end,
    {Effects, Wanting} = handle(Marked(1), 3000, Used),
    ?assertMatch([#have{in_use = 1, need = 1}], haves(Effects)),
    %% No call is refused any more.
    ?assertMatch({[], _}, handle(use(db, 1, 1, 0, 0, 0), 3999, Wanting)),
    ?assertMatch([#have{need = 0}], haves(element(1, handle(use(db, 1, 1, 0, 0, 0), 4000, Wanting)))),
    {Room, _} = handle(Marked(2), 3000, Used),
    ?assertMatch([#have{in_use = 1, need = 1}], haves(Room)).

room() ->
    {_, Used} = handle(use(db, 1, 1, 0, 0, 0), 2000, node_with(db, 1, 9, true)),
    {Effects, Refused} = handle({use, db, {1, 1, 1, 0, 0, 0, {true, true}}}, 3000, Used),
    ?assertMatch([#have{in_use = 1, need = 1}], haves(Effects)),
    {_, Set} = handle({set, 7, 5, [set(db, 2, 2, 9, true)]}, 3100, Refused),
    {Still, Given} = handle(use(db, 2, 1, 0, 0, 0), 3100, Set),
    ?assertMatch([#have{share = 2, in_use = 1, need = 1}], haves(Still)),
    {[], Kept} = handle(use(db, 2, 1, 0, 0, 0), 3119, Given),
    ?assertMatch([#have{need = 0}], haves(element(1, handle(use(db, 2, 1, 0, 0, 0), 3120, Kept)))),
    %% It was used.
    ?assertEqual([], haves(element(1, handle(use(db, 2, 2, 0, 0, 0), 3119, Given)))).

moment() ->
    Use = fun(InUse, WasRefused) -> {use, db, {4, 4, InUse, 0, 0, 0, {WasRefused, true}}} end,
    {Effects, Refused} = handle(Use(4, true), 2000, node_with(db, 4, 9, true)),
    ?assertMatch([#have{in_use = 4, need = 2}], haves(Effects)),
    {[], Later} = handle(Use(2, false), 2020, Refused),
    {[], Last} = handle(Use(2, false), 2039, Later),
    ?assertMatch([#have{in_use = 2, need = 0}], haves(element(1, handle(Use(2, false), 2040, Last)))).

needs() ->
    Needs = fun(Permits, InUse) ->
        {_, Used} = handle(use(db, InUse, InUse, 0, 0, 0), 2000, node_with(db, InUse, 99, false)),
        {_, Large} = handle({want, db, 99, Permits, none}, 2050, Used),
        {_, Small} = handle({want, db, 99, 1, none}, 2050, Large),
        {Effects, _} = handle(use(db, InUse, InUse, 0, 0, 0), 2100, Small),
        [#have{need = Need, next = Next}] = haves(Effects),
        {Need, Next}
    end,
    ?assertEqual([{1, 1}, {5, 1}, {10, 1}], [Needs(1, 0), Needs(5, 2), Needs(3, 20)]),
    %% For as long as the call waits for an answer.
    {_, Used} = handle(use(db, 2, 2, 0, 0, 0), 2000, node_with(db, 2, 99, true)),
    {_, Asking} = handle({want, db, 99, 5, caller}, 2050, Used),
    {Effects, First} = handle(use(db, 2, 2, 0, 0, 0), 2050, Asking),
    ?assertMatch([#have{need = 5}], haves(Effects)),
    {_, Second} = handle(use(db, 2, 2, 0, 0, 0), 2070, First),
    ?assertMatch({[], _}, handle(use(db, 2, 2, 0, 0, 0), 2090, Second)).

%% While the limit is not enough. A change of less than a quarter.
small_changes() ->
    {_, Used} = handle(use(db, 9, 9, 0, 0, 0), 2000, node_with(db, 9, 20, true)),
    {Less, _} = handle(use(db, 9, 8, 0, 0, 0), 2020, Used),
    ?assertMatch([#have{in_use = 8, need = 0}], haves(Less)),
    {More, Waiting} = handle(use(db, 9, 9, 1, 1, 1), 2020, Used),
    ?assertMatch([#have{in_use = 9, need = 1}], haves(More)),
    %% The node needs more in any case.
    ?assertMatch({[], _}, handle(use(db, 9, 9, 2, 2, 1), 2040, Waiting)).

%% Only requests that wait collect permits.
no_collecting() ->
    {_, Refused} = handle({want, db, 9, 9, none}, node_with(db, 0, 9, true)),
    {Effects, _} = handle(use(db, 0, 0, 0, 0, 0), 2000, Refused),
    ?assertMatch([#have{need = 0}], haves(Effects)),
    {Sooner, _} = handle(use(db, 0, 0, 0, 0, 0), 20, Refused),
    ?assertMatch([#have{need = 9, next = 1}], haves(Sooner)),
    {Waiting, _} = handle(use(db, 0, 0, 1, 9, 9), 20, Refused),
    ?assertMatch([#have{need = 9, next = 9}], haves(Waiting)).

%% The members have lost their state.
terms_start_over() ->
    Node = node_with(db, 3, 9, false),
    {[], Ended} = handles_lost(Node),
    Next = handles([{session, 2}], Ended),
    {Effects, Asked} = handle({ask, n2, 1, 1}, Next),
    ?assertMatch([{send, n2, {report, 1, 2, 1, [], true}}], Effects),
    ?assertEqual({1, n2}, {canal_lock_cluster_node:term(Asked), canal_lock_cluster_node:allocator(Asked)}).

handles_lost(Node) ->
    {Effects, Ended} = handle(lost, Node),
    {[Effect || Effect <- Effects, element(1, Effect) =/= stands], Ended}.

once_in_a_turn() ->
    {_, Enough} = handle(use(db, 3, 3, 0, 0, 0), 2000, node_with(db, 3, 99, false)),
    {_, Refused} = handle({want, db, 99, 1, caller}, 2001, Enough),
    ?assertMatch([#have{need = 1}], haves(element(1, handle(use(db, 3, 3, 0, 0, 0), 2001, Refused)))),
    {_, Used} = handle(use(db, 3, 3, 0, 0, 0), 2000, node_with(db, 3, 99, true)),
    {Sent, Wanting} = handle(use(db, 3, 3, 9, 9, 1), 2020, Used),
    ?assertMatch([#have{need = 9}], haves(Sent)),
    ?assertMatch({[], _}, handle(use(db, 3, 1, 1, 0, 1), 2039, Wanting)),
    ?assertMatch({[_], _}, handle(use(db, 3, 1, 1, 0, 1), 2040, Wanting)).

recall() ->
    {_, Used} = handle(use(db, 3, 3, 0, 0, 0), 2000, node_with(db, 3, 9, false)),
    Recall = (set(db, 2, 3, 9, false))#set{target = 1},
    {[{set_share, db, 1, 9, 9}], Set} = handle({set, 7, 5, [Recall]}, 2000, Used),
    {Effects, Recalled} = handle(use(db, 1, 3, 0, 0, 0), 2000, Set),
    ?assertMatch([#have{number = 2, share = 3}], haves(Effects)),
    ?assertEqual(5, canal_lock_cluster_node:wake_ms(?NOW_MS + 2000, Recalled)),
    {Back, _} = handle(use(db, 1, 2, 0, 0, 0), 2005, Recalled),
    ?assertMatch([#have{number = 2, share = 2}], haves(Back)).

held() ->
    Wake_ms = fun(InUse) ->
        {_, Used} = handle(use(db, 3, InUse, 0, 0, 0), 2000, node_with(db, 3, 9, false)),
        canal_lock_cluster_node:wake_ms(?NOW_MS + 2000, Used)
    end,
    ?assertEqual([2500, 500], [Wake_ms(3), Wake_ms(2)]).

limit_again() ->
    Node = node_with(db, 0, 2, false),
    ?assertMatch({[{set_share, db, 0, 2, 2}], _}, handle(use(db, 0, 0, 1, 3, 3), Node)).

declared_later() ->
    New = handles([{session, 5}, {ask, n1, 7, 1}], canal_lock_cluster_node:new()),
    {[{read, db}], First} = handle({want, db, 5, 1, first}, New),
    {Sent, Waiting} = handle({use, db, none}, First),
    ?assertMatch([#have{declared = {1, 5}}], haves(Sent)),
    %% No limit is known yet, so the second caller waits, too.
    {[{read, db}], Second} = handle({want, db, 6, 1, second}, 50, Waiting),
    {Set, Known} = handle({set, 7, 5, [set(db, 1, 1, 5, false)]}, 60, Second),
    ?assertEqual([{reply, first}, {reply, second}, {set_share, db, 1, 5, 5}], lists:sort(Set)),
    %% Now the limit in force serves.
    {Third, Passed} = handle({want, db, 7, 1, third}, 70, Known),
    ?assertEqual([{set_share, db, 1, 5, 7}, {reply, third}, {read, db}], Third),
    {Early, Later} = handle(use(db, 1, 1, 0, 0, 0), 99, Passed),
    ?assertMatch([#have{declared = none}], haves(Early)),
    {Declared, _} = handle(use(db, 1, 1, 0, 0, 0), 100, Later),
    ?assertMatch([#have{declared = {2, 7}}], haves(Declared)).

greets() ->
    Node = node_with(db, 3, 9, false),
    Allocator = fun(Events) -> canal_lock_cluster_node:allocator(handles(Events, Node)) end,
    ?assertEqual(
        [n1, none, none, n1, n2],
        [Allocator(Events) || Events <- [[], [lost, {session, 6}], [{ended, n1}], [{ended, n2}], [{ask, n2, 8, 1}]]]
    ).

pieces() ->
    New = handles([{session, 5}, {ask, n1, 7, 1}], canal_lock_cluster_node:new()),
    Sets = [set(Key, Key, 1, 9, false) || Key <- lists:seq(1, 1001)],
    Node = handles([{set, 7, 5, Sets}], New),
    {[{send, n1, {report, 7, 5, 2, First, false}}], Begun} = handle({ask, n1, 7, 2}, Node),
    ?assertEqual(0, canal_lock_cluster_node:wake_ms(?NOW_MS, Begun)),
    {[{send, n1, {report, 7, 5, 2, Last, true}}], _} = handle(step, Begun),
    ?assertEqual(lists:seq(1, 1001), lists:sort([Key || #have{key = Key} <- First ++ Last])),
    ?assertEqual({1000, 1}, {length(First), length(Last)}),
    ?assertEqual(infinity, canal_lock_cluster_node:wake_ms(?NOW_MS, handles([{ended, n1}], Begun))).

idle() ->
    %% The time begins with the last message of the allocator.
    {_, Given} = handle({set, 7, 5, [set(db, 2, 5, 9, false)]}, 1000, node_with(db, 5, 9, false)),
    {_, Used} = handle(use(db, 5, 2, 0, 0, 0), 2000, Given),
    ?assertMatch({[], _}, handle(use(db, 5, 1, 0, 0, 0), 5999, Used)),
    {[{set_share, db, 2, 9, 9}], Lowered} = handle(use(db, 5, 1, 0, 0, 0), 6000, Used),
    {Effects, _} = handle(use(db, 2, 1, 0, 0, 0), 6000, Lowered),
    ?assertMatch([#have{share = 2, in_use = 1}], haves(Effects)).

stays() ->
    {_, Given} = handle({set, 7, 5, [set(db, 2, 5, 9, false)]}, 1000, node_with(db, 5, 9, false)),
    Short = {use, db, {5, 5, 0, 0, 0, 0, {false, true}}},
    {_, Used} = handle(Short, 2000, Given),
    ?assertMatch({[{set_share, db, 1, 9, 9}], _}, handle(use(db, 5, 0, 0, 0, 0), 6000, Used)),
    {_, Alone} = handle({ended, n1}, 3000, Used),
    ?assertMatch({[], _}, handle(use(db, 5, 0, 0, 0, 0), 6000, Alone)).

granted() ->
    {_, Asked} = handle({want, db, 9, 8, first}, 100, node_with(db, 0, 9, false)),
    {_, Wanting} = handle(use(db, 0, 0, 0, 0, 0), 100, Asked),
    {_, Given} = handle({set, 7, 5, [set(db, 2, 8, 9, false)]}, 101, Wanting),
    {Effects, _} = handle(use(db, 8, 8, 0, 0, 0), 102, Given),
    ?assertMatch([#have{in_use = 8, need = 0}], haves(Effects)).
