%% The clients of the demo. They run on the nodes, lock a name, add one to its number in the register, and report what
%% they see to cluster_demo_recorder.
%%
%% Each node has two. The `actor' locks the name `account' as the demo orders; the screen shows what it does. The
%% `extra' locks other names all the time, as a writer, as a reader or two names at once, for milliseconds; its locks
%% are only counted.
-module(cluster_demo_client).

-export([start/2, order/2]).

-export_type([role/0, order/0]).

-type role() :: actor | extra.

-type order() ::
    %% Lock, hold for this time, unlock; repeatedly.
    {turns, Hold_ms :: pos_integer()}
    %% Lock, and unlock when there is another order.
    | keep
    %% Lock, check, wait for this time, and write without another check; once.
    | {delay, Delay_ms :: pos_integer()}
    | rest.

-record(client, {
    role :: role(),
    connection :: cluster_demo_recorder:connection(),
    order = rest :: order(),
    locks = 0 :: non_neg_integer()
}).

-define(ACCOUNT, account).
-define(SHELVES, [{shelf, Number} || Number <- [1, 2, 3]]).
-define(LOCK_MS, 8000).
%% The pause after a refusal: without a quorum a request is refused at once.
-define(PAUSE_AFTER_REFUSAL_MS, 800).
-define(CHECK_EVERY_MS, 10).
-define(EXTRA_HOLD_MS, 20).
-define(EXTRA_PAUSE_MS, 60).

%% Both clients of this node.
-spec start({Node :: atom(), Start :: pos_integer()}, cluster_demo_recorder:recorder()) -> ok.
start({Node, Start}, Recorder) ->
    _ = [spawn(fun() -> init(Role, {Node, Start, Role}, Recorder) end) || Role <- [actor, extra]],
    ok.

%% To the actor of the node; to rest, to both clients.
-spec order(test_nodes:a_node(), order()) -> ok.
order(Node, Order) ->
    Roles = case Order of rest -> [actor, extra]; _ -> [actor] end,
    _ = test_nodes:call(Node, fun() -> [process(Role) ! {order, Order} || Role <- Roles] end),
    ok.

process(actor) -> cluster_demo_actor;
process(extra) -> cluster_demo_extra.

init(Role, Client, Recorder) ->
    true = register(process(Role), self()),
    Connection = cluster_demo_recorder:connect(Recorder, Client),
    case Role of
        actor -> rest(#client{role = Role, connection = Connection});
        extra -> work(#client{role = Role, connection = Connection, order = {turns, ?EXTRA_HOLD_MS}})
    end.

rest(Client) ->
    ok = record(rests, Client),
    receive
        {order, Order} -> work(Client#client{order = Order})
    end.

work(#client{order = rest} = Client) ->
    rest(Client);
work(#client{role = Role} = Client) ->
    {Mode, Names} = names_for(Role),
    case lock(Mode, Names) of
        {ok, Held} ->
            Number = Client#client.locks + 1,
            Lock = {Number, Mode, Names, canal_lock_quorum:fence(Held)},
            ok = record({granted, Lock}, Client),
            next(use(Held, Lock, latest_order(Client#client{locks = Number})));
        {error, Reason} ->
            ok = record({refused, Names, Reason}, Client),
            next(Client, ?PAUSE_AFTER_REFUSAL_MS)
    end.

%% Another order may have arrived during the wait for the lock. The order to rest is executed after this lock.
latest_order(Client) ->
    receive
        {order, Order} when Order =/= rest -> latest_order(Client#client{order = Order})
    after 0 -> Client
    end.

names_for(actor) ->
    {write, [?ACCOUNT]};
names_for(extra) ->
    One = one_of(?SHELVES),
    case rand:uniform(5) of
        1 -> {write, lists:usort([One, one_of(?SHELVES)])};
        2 -> {write, [One]};
        _ -> {read, [One]}
    end.

one_of(List) ->
    lists:nth(rand:uniform(length(List)), List).

lock(read, [Name]) -> canal_lock_quorum:rlock(Name, ?LOCK_MS);
lock(write, [Name]) -> canal_lock_quorum:lock(Name, ?LOCK_MS);
lock(write, Names) -> canal_lock_quorum:lock_many(Names, ?LOCK_MS).

next(#client{role = extra} = Client) -> next(Client, rand:uniform(?EXTRA_PAUSE_MS));
next(#client{order = {delay, _}} = Client) -> next(Client#client{order = rest}, 0);
next(Client) -> next(Client, 0).

next(Client, Pause_ms) ->
    receive
        {order, Order} -> next(Client#client{order = Order}, Pause_ms)
    after Pause_ms -> work(Client)
    end.

%%% With a lock

use(Held, {_, Mode, Names, _} = Lock, Client) ->
    Request = case Mode of read -> look; write -> read end,
    Values = [{Name, Value} || Name <- Names, {ok, Value} <- [ask({Request, Name}, Held, Lock, Client)]],
    finish(hold(Held, Lock, Client), Values, Held, Lock).

%% Until the time is over, another order arrives, or the lock is lost.
hold(Held, Lock, #client{order = keep} = Client) ->
    ok = record({keeps, Lock}, Client),
    hold_until(infinity, Held, Lock, Client);
hold(Held, Lock, #client{order = {delay, Delay_ms}} = Client) ->
    case check(Held, Lock, Client) of
        true ->
            ok = record({delays, Lock}, Client),
            %% The delay in which the demo suspends the node.
            ok = timer:sleep(Delay_ms),
            {delayed, Client};
        false ->
            {held, Client}
    end;
hold(Held, Lock, #client{order = {turns, Turn_ms}, role = Role} = Client) ->
    Hold_ms = case Role of extra -> rand:uniform(Turn_ms); actor -> Turn_ms end,
    hold_until(erlang:monotonic_time(millisecond) + Hold_ms, Held, Lock, Client).

hold_until(Until_ms, Held, Lock, Client) ->
    IsHeld = check(Held, Lock, Client),
    receive
        {canal_lock_quorum, at_risk, Held} ->
            ok = record({at_risk, Lock}, Client),
            hold_until(Until_ms, Held, Lock, Client);
        {canal_lock_quorum, lost, Held} ->
            ok = record({lost, Lock}, Client),
            {lost, Client};
        {order, Order} when Until_ms =:= infinity ->
            {held, Client#client{order = Order}}
    after ?CHECK_EVERY_MS ->
        %% An integer is less than `infinity'. If the lock is not held, the message that it is lost will arrive.
        case IsHeld andalso erlang:monotonic_time(millisecond) >= Until_ms of
            true -> {held, Client};
            false -> hold_until(Until_ms, Held, Lock, Client)
        end
    end.

finish({lost, Client}, _Values, _Held, _Lock) ->
    Client;
finish({How, Client}, Values, Held, {_, Mode, _, _} = Lock) ->
    case How =:= delayed orelse check(Held, Lock, Client) of
        true ->
            _ = [ask({write, Name, Value + 1}, Held, Lock, Client) || {Name, Value} <- Values, Mode =:= write],
            unlock(Held, Lock, Client);
        false ->
            ok = record({abandons, Lock}, Client),
            await_lost(Held, Lock, Client)
    end.

%% Every fourth unlock waits for a quorum.
unlock(Held, {Number, _, _, _} = Lock, Client) ->
    ok = record({unlocks, Lock}, Client),
    Answer =
        case Number rem 4 of
            0 -> canal_lock_quorum:unlock(Held);
            _ -> canal_lock_quorum:unlock_async(Held)
        end,
    ok = record({unlocked, Lock, Answer}, Client),
    case Answer of
        {error, not_held} -> await_lost(Held, Lock, Client);
        _ -> flush(Held, Client)
    end.

await_lost(Held, Lock, Client) ->
    receive
        {canal_lock_quorum, lost, Held} ->
            ok = record({lost, Lock}, Client),
            flush(Held, Client)
    end.

flush(Held, Client) ->
    receive
        {canal_lock_quorum, _, Held} -> flush(Held, Client)
    after 0 -> Client
    end.

check(Held, Lock, Client) ->
    Began_ns = canal_lock_quorum_nif:now(),
    IsHeld = canal_lock_quorum:is_held(Held),
    Ended_ns = canal_lock_quorum_nif:now(),
    _ = [ok = record({held, Lock, Began_ns, Ended_ns}, Client) || IsHeld],
    IsHeld.

%% A request to the register with the fence of the lock. Reports its answer.
ask(Request, Held, {_, _, _, Fence} = Lock, #client{connection = Connection} = Client) ->
    Fenced = erlang:insert_element(3, Request, Fence),
    Answer = cluster_demo_recorder:ask(Connection, Fenced),
    ok = record({Fenced, Lock, Answer, check(Held, Lock, Client)}, Client),
    Answer.

record(Type, #client{connection = Connection}) ->
    cluster_demo_recorder:record(Connection, Type).
