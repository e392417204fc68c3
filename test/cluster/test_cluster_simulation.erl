%% Random histories of cluster permits: the machines of the agents and of the allocators (canal_lock_cluster_node and
%% canal_lock_cluster_ledger), with models of the tables, the locks and the connections, in one process.
%%
%% A history has rounds. In a round nodes are killed, cut off and suspended, processes die, and the limits change. Then
%% all is repaired, but for one node that stays dead or suspended: each waiter must be served, and each node must get
%% the whole limit of each key (CP3, CP4). After each step the valid permits of a key, and the shares of the nodes, are
%% at most its limit (CP1).
-module(test_cluster_simulation).

-export([run/1, trace/1]).

%% For how long a lock is held after it was renewed, and for how long the voters keep it.
-define(HELD_MS, 800).
-define(KEPT_MS, 1000).

-define(FOR_EVER_MS, 1_000_000_000).

-define(STEPS, 500).
-define(CALM_STEPS, 6000).

-record(table, {
    share = 0,
    limit = none,
    passed = none,
    was_refused = false,
    %% `{Permits, Session, IsLost}'.
    permits = [],
    %% `{Permits, Collected, Session}'.
    queue = [],
    %% Calls that have got permits, and check their session next.
    unchecked = []
}).

-record(node, {
    up = true,
    asleep_ms = 0,
    %% canal_lock_cluster_node, and the table that it knows.
    agent = none,
    serial = 0,
    agent_serial = 0,
    tables = #{},
    %% `{Ledger, Term}', and a question for the list of locks.
    allocator = none,
    list = none,
    %% Cut off from the voters.
    alone = false
}).

-record(world, {
    now_ms = 10_000,
    nodes,
    keys,
    %% `{Fence, Holder, Renewed_ms}' by names.
    locks = #{},
    fence = 0,
    %% Messages by `{From, To}', the oldest first.
    links = #{},
    cut = #{},
    %% Until when the messages from one node to another are delayed.
    slow = #{},
    %% The limit that callers pass, and the highest one since all was repaired.
    limits,
    bounds,
    calm = false,
    counts = #{}
}).

%% Counts of a history without a violation. A violation raises.
run(Seed) ->
    _ = rand:seed(exsss, Seed),
    Nodes = lists:seq(1, 2 + below(3)),
    Keys = lists:sublist([1, 1.0], 1 + below(2)),
    Limits = maps:from_list([{Key, 1 + below(5)} || Key <- Keys]),
    New = #node{tables = tables(Keys)},
    World = #world{
        nodes = maps:from_list([{Node, New} || Node <- Nodes]),
        keys = Keys,
        limits = Limits,
        bounds = Limits
    },
    Ended = lists:foldl(fun(_, W) -> one_round(W) end, World, [1, 2]),
    Ended#world.counts.

trace(Seed) ->
    put(trace, true),
    run(Seed).

say(W, Format, Arguments) ->
    case get(trace) of
        true -> io:format("~8w " ++ Format ++ "~n", [W#world.now_ms | Arguments]);
        _ -> ok
    end.

count(What, W = #world{counts = Counts}) ->
    W#world{counts = maps:update_with(What, fun(N) -> N + 1 end, 1, Counts)}.

below(N) -> rand:uniform(N) - 1.
one_in(N) -> below(N) =:= 0.
any(List) -> lists:nth(rand:uniform(length(List)), List).

tables(Keys) -> maps:from_list([{Key, #table{}} || Key <- Keys]).

one_round(W) ->
    Disturbed = repeat(?STEPS, fun step/1, calm(false, W), fun(_) -> false end),
    Calm = repair(calm(true, Disturbed)),
    say(Calm, "calm", []),
    Served = repeat(?CALM_STEPS, fun step/1, Calm, fun is_served/1),
    is_served(Served) orelse violated(Served, 'CP4', "a waiter was not served"),
    Asking = lists:foldl(
        fun({Node, Key}, To) -> ask_for_all(Node, Key, To) end,
        Served,
        [{Node, Key} || Node <- up(Served), Key <- Served#world.keys]
    ),
    All = repeat(?CALM_STEPS, fun step/1, Asking, fun has_no_waiter/1),
    has_no_waiter(All) orelse violated(All, 'CP3', "a node does not get the whole limit"),
    IsOver = fun(Over) -> is_served(Over) andalso is_quiet(Over) end,
    Free = repeat(?CALM_STEPS, fun step/1, All, IsOver),
    IsOver(Free) orelse violated(Free, 'CP1', "the shares stay above a limit"),
    %% A node that hangs can pass an older limit later.
    case length(up(Free)) =:= length([N || N = #node{up = true} <- maps:values(Free#world.nodes)]) of
        true -> Free#world{bounds = Free#world.limits};
        false -> Free
    end.

repeat(0, _, W, _) -> W;
repeat(N, Step, W, Until) ->
    case Until(W) of
        true -> W;
        false -> repeat(N - 1, Step, Step(W), Until)
    end.

calm(Calm, W) -> W#world{calm = Calm}.

violated(W, Label, Text) ->
    say(W, "~p", [maps:map(fun(_, N) -> {N#node.tables, N#node.agent, N#node.allocator} end, W#world.nodes)]),
    error({violated, Label, lists:flatten(Text), W#world.now_ms}).

%%% Steps

step(W0) ->
    W1 = W0#world{now_ms = W0#world.now_ms + pause()},
    W = case W1#world.calm of
        true -> lists:foldl(fun renew/2, W1, maps:keys(W1#world.nodes));
        false -> W1
    end,
    Node = any(maps:keys(W#world.nodes)),
    Stepped = case {below(20), is_awake(Node, W)} of
        {0, _} when not W#world.calm -> fault(W);
        {N, true} when N =< 2 -> renew(Node, W);
        {N, true} when N =< 5 -> agent(Node, W);
        {N, true} when N =< 8 -> allocator(Node, W);
        {N, true} when N =< 12 -> caller(Node, any(W#world.keys), W);
        _ -> deliver(W)
    end,
    check(Stepped).

pause() ->
    case one_in(60) of
        true -> below(400);
        false -> below(4)
    end.

node(Node, #world{nodes = Nodes}) -> maps:get(Node, Nodes).
put_node(Node, N, W = #world{nodes = Nodes}) -> W#world{nodes = Nodes#{Node := N}}.
table(Node, Key, W) -> maps:get(Key, (node(Node, W))#node.tables).
put_table(Node, Key, T, W) ->
    N = node(Node, W),
    put_node(Node, N#node{tables = (N#node.tables)#{Key := T}}, W).

is_awake(Node, W) ->
    #node{up = Up, asleep_ms = Asleep_ms} = node(Node, W),
    Up andalso Asleep_ms =< W#world.now_ms.

up(#world{nodes = Nodes}) ->
    [Node || {Node, #node{up = true, asleep_ms = Asleep_ms}} <- maps:to_list(Nodes), Asleep_ms < ?FOR_EVER_MS].

%%% Locks

is_held(_, none, _) -> false;
is_held(Name, Fence, #world{locks = Locks, now_ms = Now_ms}) ->
    case Locks of
        #{Name := {Fence, _, Renewed_ms}} -> Now_ms < Renewed_ms + ?HELD_MS;
        #{} -> false
    end.

is_kept(Name, #world{locks = Locks, now_ms = Now_ms}) ->
    case Locks of
        #{Name := {_, _, Renewed_ms}} -> Now_ms < Renewed_ms + ?KEPT_MS;
        #{} -> false
    end.

lock(Name, Node, W = #world{locks = Locks, fence = Fence}) ->
    case is_kept(Name, W) orelse (node(Node, W))#node.alone of
        true -> none;
        false -> {Fence + 1, W#world{locks = Locks#{Name => {Fence + 1, Node, W#world.now_ms}}, fence = Fence + 1}}
    end.

unlock(Name, Node, W = #world{locks = Locks}) ->
    case Locks of
        #{Name := {_, Node, _}} -> W#world{locks = maps:remove(Name, Locks)};
        #{} -> W
    end.

renew(Node, W = #world{locks = Locks, now_ms = Now_ms}) ->
    case (node(Node, W))#node.alone of
        true ->
            W;
        false ->
            Renew = fun
                (Name, {Fence, Holder, _}) when Holder =:= Node ->
                    case is_held(Name, Fence, W) andalso is_used(Name, Fence, node(Node, W)) of
                        true -> {Fence, Node, Now_ms};
                        false -> maps:get(Name, Locks)
                    end;
                (_, Lock) ->
                    Lock
            end,
            W#world{locks = maps:map(Renew, Locks)}
    end.

%% Whether the process that has got the lock lives.
is_used(allocator, Term, #node{allocator = {_, Current}}) -> Term =:= Current;
is_used({node, _}, Fence, #node{agent = Agent}) when Agent =/= none -> canal_lock_cluster_node:session(Agent) =:= Fence;
is_used(_, _, _) -> false.

%%% Connections.

send(From, To, Message, W = #world{links = Links, cut = Cut}) ->
    case is_map_key({From, To}, Cut) orelse not (node(To, W))#node.up of
        true -> W;
        false ->
            count(messages, W#world{links = Links#{{From, To} => maps:get({From, To}, Links, []) ++ [Message]}})
    end.

cut(A, A, W) -> W;
cut(A, B, W = #world{links = Links, cut = Cut}) ->
    case is_map_key({A, B}, Cut) of
        true -> W;
        false ->
            say(W, "cut ~p ~p", [A, B]),
            W#world{
                links = Links#{{A, B} => [ended], {B, A} => [ended]},
                cut = Cut#{{A, B} => true, {B, A} => true}
            }
    end.

join(A, B, W = #world{links = Links, cut = Cut}) ->
    case is_map_key({A, B}, Cut) andalso (node(A, W))#node.up andalso (node(B, W))#node.up of
        true ->
            say(W, "join ~p ~p", [A, B]),
            Up = fun(Pair) -> maps:get(Pair, Links, []) ++ [up] end,
            W#world{
                links = Links#{{A, B} => Up({A, B}), {B, A} => Up({B, A})},
                cut = maps:without([{A, B}, {B, A}], Cut)
            };
        false ->
            W
    end.

deliver(W = #world{links = Links}) ->
    IsSlow = fun(Pair) -> maps:get(Pair, W#world.slow, 0) > W#world.now_ms end,
    case [Pair || {Pair = {_, To}, [_ | _]} <- maps:to_list(Links), is_awake(To, W), not IsSlow(Pair)] of
        [] -> W;
        Pairs ->
            Pair = {From, To} = any(Pairs),
            #{Pair := [Message | Rest]} = Links,
            message(Message, From, To, W#world{links = Links#{Pair := Rest}})
    end.

message(up, From, To, W) ->
    hello(To, From, W);
message(ended, From, To, W) ->
    to_agent({ended, From}, To, W);
message({ask, Term, Ask}, From, To, W) ->
    to_agent({ask, From, Term, Ask}, To, W);
message({set, _, _, _} = Set, _, To, W) ->
    to_agent(Set, To, W);
message({hello, Session}, From, To, W) ->
    to_ledger({hello, From, Session}, To, W);
message({over, Session}, From, To, W) ->
    to_ledger({over, From, Session}, To, W);
message({alive, Session}, From, To, W) ->
    to_ledger({alive, From, Session}, To, W);
message({have, Term, Session, Haves}, From, To, W) ->
    to_ledger({have, From, Term, Session, Haves}, To, W);
message({report, Term, Session, Ask, Haves, IsLast}, From, To, W) ->
    to_ledger({report, From, Term, Session, Ask, Haves, IsLast}, To, W).

%%% Agents

to_agent(Event, Node, W) ->
    case node(Node, W) of
        #node{agent = none} ->
            W;
        N = #node{agent = Agent} ->
            {Effects, Next} = canal_lock_cluster_node:handle(Event, W#world.now_ms, Agent),
            Handled = put_node(Node, N#node{agent = Next}, W),
            lists:foldl(fun(Effect, To) -> effect(Effect, Node, To) end, Handled, Effects)
    end.

effect({send, To, Message}, Node, W) ->
    send(Node, To, Message, W);
effect({count, _, _}, _, W) ->
    W;
effect({stands, _, _}, _, W) ->
    W;
effect({reply, {How, Key, Permits, Session}}, Node, W) ->
    case acquire(How, Node, Key, Permits, Session, W) of
        {waiting, Waiting} -> to_agent({want, Key, maps:get(Key, W#world.limits), 0, none}, Node, Waiting);
        {_, Answered} -> Answered
    end;
effect({set_share, Key, Share, Limit, Passed}, Node, W) ->
    #node{serial = Serial, agent_serial = Known} = node(Node, W),
    case Serial of
        Known -> set_share(Key, Share, Limit, Passed, Node, W);
        _ -> W
    end;
effect({read, Key}, Node, W) ->
    case table(Node, Key, W) of
        #table{limit = none} ->
            to_agent({use, Key, none}, Node, W);
        T = #table{share = Share, passed = Passed, was_refused = WasRefused} ->
            Fitting = [K - C || {K, C, _} <- T#table.queue, K =< T#table.limit],
            Next = case [K || {K, _, _} <- T#table.queue, K =< T#table.limit] of [] -> 0; [First | _] -> First end,
            Use = {Share, Passed, in_use(T), length(T#table.queue), lists:sum(Fitting), Next, {WasRefused, false}},
            to_agent({use, Key, Use}, Node, put_table(Node, Key, T#table{was_refused = false}, W))
    end.

set_share(Key, Share, Limit, Passed, Node, W) ->
    say(W, "~p sets the share of ~p to ~p, limit ~p, passed ~p", [Node, Key, Share, Limit, Passed]),
    T = table(Node, Key, W),
    Queue = [{K, 0, S} || {K, _, S} <- T#table.queue],
    Set = settle(T#table{share = Share, limit = Limit, passed = Passed, queue = Queue}),
    %% Others run before it is read.
    Run = put_table(Node, Key, Set, W),
    effect({read, Key}, Node, case one_in(4) of true -> caller(Node, Key, Run); false -> Run end).

%% Starts, gets its lock, loses it, or reads its table.
agent(Node, W) ->
    N = #node{agent = Agent} = node(Node, W),
    Name = {node, Node},
    Session = case Agent of none -> none; _ -> canal_lock_cluster_node:session(Agent) end,
    IsHeld = is_held(Name, Session, W),
    if
        Agent =:= none ->
            end_session(Node, put_node(Node, N#node{agent = canal_lock_cluster_node:new()}, W));
        Session =:= none ->
            case lock(Name, Node, W) of
                {Fence, Locked} ->
                    say(W, "~p session ~p", [Node, Fence]),
                    Begun = put_node(Node, N#node{agent_serial = N#node.serial}, Locked),
                    hello_all(Node, to_agent({session, Fence}, Node, Begun));
                none ->
                    W
            end;
        not IsHeld; N#node.serial =/= N#node.agent_serial ->
            say(W, "~p loses its session", [Node]),
            Ended = unlock(Name, Node, end_session(Node, to_agent(lost, Node, W))),
            case canal_lock_cluster_node:allocator(Agent) of
                none -> Ended;
                To -> send(Node, To, {over, Session}, Ended)
            end;
        true ->
            Again = case canal_lock_cluster_node:allocator(Agent) of
                none -> case one_in(4) of true -> hello_all(Node, W); false -> W end;
                To -> case one_in(8) of true -> send(Node, To, {alive, Session}, W); false -> W end
            end,
            case canal_lock_cluster_node:wake_ms(W#world.now_ms, Agent) of
                0 -> to_agent(step, Node, Again);
                _ -> Again
            end
    end.

%% Ends the shares, so that no permit is granted. Then notifies the holders.
end_session(Node, W) ->
    N = #node{tables = Tables} = node(Node, W),
    End = fun(_, T = #table{permits = Permits, queue = Queue}) ->
        T#table{
            share = 0,
            %% So that the next call declares its capacity.
            passed = none,
            queue = [{K, 0, S} || {K, _, S} <- Queue],
            permits = [{K, S, true} || {K, S, _} <- Permits]
        }
    end,
    put_node(Node, N#node{tables = maps:map(End, Tables)}, W).

hello_all(Node, W) ->
    lists:foldl(fun(To, Into) -> hello(Node, To, Into) end, W, maps:keys(W#world.nodes)).

hello(Node, To, W) ->
    case node(Node, W) of
        #node{agent = none} -> W;
        #node{agent = Agent} ->
            case canal_lock_cluster_node:session(Agent) of
                none -> W;
                Session -> send(Node, To, {hello, Session}, W)
            end
    end.

%%% Allocators

to_ledger(Event, Node, W) ->
    case node(Node, W) of
        #node{allocator = none} ->
            W;
        N = #node{allocator = {Ledger, Term}} ->
            {Messages, Next} = canal_lock_cluster_ledger:handle(Event, W#world.now_ms, Ledger),
            case is_held(allocator, Term, W) of
                true ->
                    lists:foldl(
                        fun({To, Message}, Into) ->
                            say(Into, "~p to ~p: ~p", [Node, To, Message]),
                            send(Node, To, Message, Into)
                        end,
                        put_node(Node, N#node{allocator = {Next, Term}}, W),
                        Messages
                    );
                false ->
                    end_allocator(Node, W)
            end
    end.

%% The agents monitor its process.
end_allocator(Node, W = #world{nodes = Nodes}) ->
    Ended = put_node(Node, (node(Node, W))#node{allocator = none, list = none}, W),
    lists:foldl(fun(To, Into) -> send(Node, To, ended, Into) end, Ended, maps:keys(Nodes)).

allocator(Node, W) ->
    case node(Node, W) of
        N = #node{allocator = none} ->
            case lock(allocator, Node, W) of
                {Term, Locked} ->
                    say(W, "~p allocator ~p", [Node, Term]),
                    Ledger = canal_lock_cluster_ledger:new(Term),
                    put_node(Node, N#node{allocator = {Ledger, Term}, list = none}, Locked);
                none ->
                    W
            end;
        N = #node{allocator = {Ledger, _}, list = none, alone = Alone} ->
            case canal_lock_cluster_ledger:silent(W#world.now_ms, Ledger) of
                Silent when Silent =/= [], not Alone ->
                    Held = [Each || Each <- maps:keys(W#world.nodes), is_kept({node, Each}, W)],
                    put_node(Node, N#node{list = {Silent, Held}}, W);
                _ ->
                    to_ledger_step(Node, W)
            end;
        N = #node{list = {Silent, Held}} ->
            to_ledger({listed, Silent, Held}, Node, put_node(Node, N#node{list = none}, W))
    end.

to_ledger_step(Node, W) ->
    #node{allocator = {Ledger, _}} = node(Node, W),
    case canal_lock_cluster_ledger:wake_ms(W#world.now_ms, Ledger) of
        0 -> to_ledger(step, Node, W);
        _ -> W
    end.

%%% Callers and tables

%% Lost permits are not counted.
in_use(#table{permits = Permits, queue = Queue, unchecked = Unchecked}) ->
    lists:sum([K || {K, _, false} <- Permits] ++ [C || {_, C, _} <- Queue] ++ [K || {K, _} <- Unchecked]).

settle(T = #table{queue = Queue, share = Share, limit = Limit, unchecked = Unchecked}) ->
    Free = Share - in_use(T),
    case [W || W = {K, _, _} <- Queue, K =< Limit] of
        [First = {K, C, S} | _] when Free > 0 ->
            case min(Free, K - C) of
                Missing when Missing =:= K - C ->
                    settle(T#table{queue = lists:delete(First, Queue), unchecked = Unchecked ++ [{K, S}]});
                Some ->
                    {Before, [First | After]} = lists:splitwith(fun(Other) -> Other =/= First end, Queue),
                    T#table{queue = Before ++ [{K, C + Some, S} | After]}
            end;
        _ ->
            T
    end.

%% A call that has got permits checks its lock; or a call acquires, waits, stops to wait, or releases.
caller(Node, Key, W = #world{calm = Calm, limits = Limits}) ->
    T = #table{permits = Permits, queue = Queue, unchecked = Unchecked, passed = Passed} = table(Node, Key, W),
    #{Key := Limit} = Limits,
    case below(10) of
        N when N < 5, Unchecked =/= [] ->
            check_lock(hd(Unchecked), Node, Key, T#table{unchecked = tl(Unchecked)}, W);
        N when N < 4, Calm, Passed =/= Limit ->
            call(try_once, Node, Key, W);
        N when N < 4, not Calm ->
            call(any([try_once, wait]), Node, Key, W);
        4 when not Calm, Queue =/= [] ->
            Rest = lists:delete(any(Queue), Queue),
            put_table(Node, Key, settle(T#table{queue = Rest}), W);
        5 ->
            %% Waiters check their lock once a second.
            Held = [Each || Each = {_, _, Session} <- Queue, is_held({node, Node}, Session, W)],
            put_table(Node, Key, settle(T#table{queue = Held}), W);
        _ when Permits =/= [] ->
            put_table(Node, Key, settle(T#table{permits = lists:delete(any(Permits), Permits)}), W);
        _ ->
            W
    end.

check_lock({Permits, Session}, Node, Key, T, W) ->
    case is_held({node, Node}, Session, W) of
        true ->
            count(grants, put_table(Node, Key, T#table{permits = [{Permits, Session, false} | T#table.permits]}, W));
        false ->
            put_table(Node, Key, settle(T), W)
    end.

call(How, Node, Key, W) ->
    case published(Node, W) of
        none -> W;
        Session ->
            Permits = 1 + below(min(3, maps:get(Key, W#world.limits))),
            {Answer, Tried} = acquire(How, Node, Key, Permits, Session, W),
            From = case one_in(2) of true -> {How, Key, Permits, Session}; false -> none end,
            case Answer of
                acquired -> Tried;
                _ -> to_agent({want, Key, maps:get(Key, W#world.limits), Permits, From}, Node, Tried)
            end
    end.

published(Node, W) ->
    case (node(Node, W))#node.agent of
        none -> none;
        Agent ->
            case canal_lock_cluster_node:term(Agent) of
                0 -> none;
                _ -> canal_lock_cluster_node:session(Agent)
            end
    end.

acquire(How, Node, Key, Permits, Session, W = #world{limits = Limits}) ->
    T = #table{share = Share, queue = Queue, unchecked = Unchecked, passed = Passed} = table(Node, Key, W),
    #{Key := Limit} = Limits,
    case in_use(T) + Permits =< Share of
        _ when Passed =/= Limit ->
            {declare, W};
        true ->
            {acquired, put_table(Node, Key, T#table{unchecked = Unchecked ++ [{Permits, Session}]}, W)};
        false when How =:= wait, length(Queue) < 3, Permits =< Limit ->
            %% A request needs no more than the passed capacity.
            Waiting = T#table{
                queue = Queue ++ [{Permits, 0, Session}],
                limit = case Queue of [] -> Passed; _ -> T#table.limit end
            },
            {waiting, put_table(Node, Key, settle(Waiting), W)};
        false ->
            {full, put_table(Node, Key, T#table{was_refused = true}, W)}
    end.

%%% The end of a round

%% A node may stay down.
repair(W0 = #world{nodes = Nodes0}) ->
    Node = any(maps:keys(Nodes0)),
    case {map_size(Nodes0) > 2, below(6)} of
        {true, 0} -> repair(Node, none, kill(Node, W0));
        {true, 1} -> repair(none, Node, W0);
        _ -> repair(none, none, W0)
    end.

%% A node that hangs sends nothing, and its connections stay open.
repair(Down, Hung, W = #world{nodes = Nodes, limits = Limits}) ->
    Mended = maps:map(
        fun(Node, N = #node{tables = Tables}) ->
            Fits = fun(Key, T = #table{queue = Queue}) ->
                settle(T#table{queue = [Each || Each = {K, _, _} <- Queue, K =< maps:get(Key, Limits)]})
            end,
            Asleep_ms = case Node of Hung -> ?FOR_EVER_MS; _ -> 0 end,
            N#node{up = Node =/= Down, alone = Node =:= Hung, asleep_ms = Asleep_ms, tables = maps:map(Fits, Tables)}
        end,
        Nodes
    ),
    Pairs = [{A, B} || A <- maps:keys(Nodes), B <- maps:keys(Nodes), A < B],
    lists:foldl(fun({A, B}, To) -> join(A, B, To) end, W#world{nodes = Mended}, Pairs).

is_served(W = #world{limits = Limits}) ->
    lists:all(
        fun(Node) ->
            published(Node, W) =/= none andalso
                lists:all(
                    fun({Key, #table{permits = Permits, queue = Queue, unchecked = Unchecked, passed = Passed}}) ->
                        Permits =:= [] andalso Queue =:= [] andalso Unchecked =:= [] andalso
                            Passed =:= maps:get(Key, Limits)
                    end,
                    maps:to_list((node(Node, W))#node.tables)
                )
        end,
        up(W)
    ).

%% The shares are within the limits that callers pass now, and no other limit is on its way.
is_quiet(W = #world{links = Links, nodes = Nodes, limits = Limits}) ->
    Shares = fun(Key) -> [maps:get(Key, Tables) || #node{tables = Tables} <- maps:values(maps:with(up(W), Nodes))] end,
    Arrived = fun({{_, To}, Messages}) -> Messages =:= [] orelse not lists:member(To, up(W)) end,
    lists:all(Arrived, maps:to_list(Links)) andalso
        lists:all(
            fun({Key, Limit}) -> lists:sum([Share || #table{share = Share} <- Shares(Key)]) =< Limit end,
            maps:to_list(Limits)
        ).

has_no_waiter(W = #world{nodes = Nodes}) ->
    Tables = [Table || N <- maps:values(maps:with(up(W), Nodes)), Table <- maps:values(N#node.tables)],
    lists:all(fun(#table{queue = Queue}) -> Queue =:= [] end, Tables).

ask_for_all(Node, Key, W = #world{limits = Limits}) ->
    #{Key := Limit} = Limits,
    case acquire(wait, Node, Key, Limit, published(Node, W), W) of
        {acquired, Acquired} -> Acquired;
        {waiting, Waiting} -> to_agent({want, Key, Limit, 0, none}, Node, Waiting)
    end.

%%% Faults

fault(W = #world{nodes = Nodes, keys = Keys, limits = Limits, bounds = Bounds}) ->
    Node = any(maps:keys(Nodes)),
    Other = any(maps:keys(Nodes)),
    N = node(Node, W),
    case below(18) of
        17 ->
            W#world{slow = (W#world.slow)#{{Node, Other} => W#world.now_ms + below(3000)}};
        0 ->
            cut(Node, Other, W);
        1 ->
            say(W, "~p does not reach the voters", [Node]),
            put_node(Node, N#node{alone = true}, W);
        2 ->
            say(W, "~p is suspended", [Node]),
            put_node(Node, N#node{asleep_ms = W#world.now_ms + below(2200)}, W);
        3 when N#node.up ->
            kill(Node, W);
        4 ->
            say(W, "the agent of ~p is killed", [Node]),
            unlock({node, Node}, Node, put_node(Node, N#node{agent = none}, W));
        5 ->
            say(W, "the allocator of ~p is killed", [Node]),
            unlock(allocator, Node, end_allocator(Node, W));
        6 ->
            say(W, "the quorum locks of ~p start again", [Node]),
            unlock(allocator, Node, unlock({node, Node}, Node, W));
        7 ->
            say(W, "~p has a new table", [Node]),
            put_node(Node, N#node{tables = tables(Keys), serial = N#node.serial + 1}, W);
        What when What =< 9 ->
            Key = any(Keys),
            Limit = 1 + below(6),
            say(W, "the limit of ~p is ~p", [Key, Limit]),
            W#world{limits = Limits#{Key := Limit}, bounds = Bounds#{Key := max(Limit, maps:get(Key, Bounds))}};
        _ ->
            join(Node, Other, put_node(Node, N#node{alone = false, up = true}, W))
    end.

kill(Node, W = #world{keys = Keys, nodes = Nodes}) ->
    say(W, "~p is killed", [Node]),
    #node{serial = Serial} = node(Node, W),
    Alone = lists:foldl(fun(Other, To) -> cut(Node, Other, To) end, W, maps:keys(Nodes)),
    Links = maps:filter(fun({_, To}, _) -> To =/= Node end, Alone#world.links),
    put_node(Node, #node{up = false, tables = tables(Keys), serial = Serial + 1}, Alone#world{links = Links}).

%%% What must hold after each step

check(W = #world{keys = Keys, bounds = Bounds}) ->
    lists:foreach(fun(Key) -> check(Key, maps:get(Key, Bounds), W) end, Keys),
    W.

check(Key, Bound, W = #world{nodes = Nodes}) ->
    Alive = [
        {Node, Fence, maps:get(Key, N#node.tables), N}
     || {Node, N = #node{up = true}} <- maps:to_list(Nodes), Fence <- [fence({node, Node}, W)], Fence =/= none
    ],
    Valid = lists:sum([
        K
     || {_, Fence, #table{permits = Permits}, _} <- Alive, {K, Session, false} <- Permits, Session =:= Fence
    ]),
    Valid =< Bound orelse violated(W, 'CP1', io_lib:format("~p valid permits of ~p, limit ~p", [Valid, Key, Bound])),
    Shares = lists:sum([Share || {_, Fence, #table{share = Share}, N} <- Alive, is_session(Fence, N)]),
    Shares =< Bound orelse violated(W, 'CP1', io_lib:format("shares of ~p: ~p, limit ~p", [Key, Shares, Bound])),
    [
        violated(W, 'CP6', io_lib:format("a holder of ~p on ~p was not notified", [Key, Node]))
     || {Node, Fence, #table{permits = Permits}, N} <- Alive, is_session(Fence, N),
        {_, Session, false} <- Permits, Session < Fence
    ],
    ok.

is_session(_, #node{agent = none}) -> false;
is_session(Fence, #node{agent = Agent, serial = Serial, agent_serial = Serial}) ->
    canal_lock_cluster_node:session(Agent) =:= Fence;
is_session(_, _) -> false.

fence(Name, W = #world{locks = Locks}) ->
    case Locks of
        #{Name := {Fence, _, _}} -> case is_held(Name, Fence, W) of true -> Fence; false -> none end;
        #{} -> none
    end.
