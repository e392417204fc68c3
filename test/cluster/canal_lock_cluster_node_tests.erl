%% What a node does with messages that a random history rarely has, and how soon it tells what changes.
-module(canal_lock_cluster_node_tests).

-include_lib("eunit/include/eunit.hrl").
-include("../../src/cluster/canal_lock_cluster.hrl").

-define(NOW_MS, 10_000).

all_test_() ->
    [
        {"CP1: messages of an allocator with an older term are ignored", fun older_term/0},
        {"CP4: a key with a waiter is kept, although its limit is too low", fun too_low/0},
        {"CP4: while the limit is not enough, a node tells within 20 ms what it no longer uses", fun released/0},
        {"CP4: the first refused callers wait for 100 ms, later ones not", fun stands/0},
        {"CP3: what a node has not used for 5 s goes back", fun idle/0}
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
    canal_lock_cluster_node:handle(Event, ?NOW_MS + After_ms, Node).

%% What the table has.
use(Key, Share, InUse, Waiting, Need, Next) ->
    {use, Key, {Share, Share, InUse, Waiting, Need, Next, false}}.

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
    {Effects, Kept} = handle(use(db, 0, 0, 1, 0, 0), 2000, Node),
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
    {_, Refused} = handle({want, Key, 9, 1, first}, node_with(Key, 0, 9, true)),
    {Early, Waiting} = handle(use(Key, 0, 0, 0, 0, 0), 90, Refused),
    ?assertEqual([], [Each || Each <- Early, element(1, Each) =/= send]),
    {Late, Stands} = handle(use(Key, 0, 0, 0, 0, 0), 100, Waiting),
    ?assertMatch([{reply, first}, {stands, Key, true} | _], Late),
    ?assertMatch({[{reply, second}, {read, Key}], _}, handle({want, Key, 9, 1, second}, 200, Stands)),
    %% After a second without a refused call it ends.
    {End, _} = handle(use(Key, 0, 0, 0, 0, 0), 1300, Stands),
    ?assertMatch([{stands, Key, false} | _], End).

idle() ->
    {_, Used} = handle(use(db, 5, 2, 0, 0, 0), 2000, node_with(db, 5, 9, false)),
    ?assertMatch({[], _}, handle(use(db, 5, 1, 0, 0, 0), 4999, Used)),
    {[{set_share, db, 2, 9, 9}], Lowered} = handle(use(db, 5, 1, 0, 0, 0), 5000, Used),
    {Effects, _} = handle(use(db, 2, 1, 0, 0, 0), 5000, Lowered),
    ?assertMatch([#have{share = 2, in_use = 1}], haves(Effects)).
