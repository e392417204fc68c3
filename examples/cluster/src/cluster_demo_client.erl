%% Runs on the nodes, and uses the locks: adds one to the number of a name while it holds that name, and tells the
%% book what it sees.
%%
%% There are two on each node. The `actor' does what the demo orders, with the name `account'; what it does is shown.
%% The `extra' locks other names all the time, alone, as a reader or two at once, for milliseconds; what it does is
%% counted.
-module(cluster_demo_client).

-export([start/2, order/2]).

-export_type([role/0, order/0]).

-type role() :: actor | extra.

-type order() ::
    %% Lock, work for so long, give back; again and again.
    {turns, Work_ms :: pos_integer()}
    %% Lock, and give it back when there is another order.
    | keep
    %% Lock, look, do nothing for so long, and write without another look; once.
    | {dawdle, pos_integer()}
    | rest.

-record(client, {
    role :: role(),
    line :: cluster_demo_book:line(),
    order = rest :: order(),
    locks = 0 :: non_neg_integer()
}).

-define(ACCOUNT, account).
-define(SHELVES, [{shelf, Number} || Number <- [1, 2, 3]]).
-define(LOCK_MS, 8000).
%% When there is no quorum.
-define(AGAIN_MS, 800).
-define(LOOK_EVERY_MS, 10).
-define(EXTRA_WORK_MS, 20).
-define(EXTRA_PAUSE_MS, 60).

%% Both of this node, in a process each that ends with it.
-spec start({Node :: atom(), Life :: pos_integer()}, inet:port_number()) -> ok.
start({Node, Life}, Port) ->
    _ = [spawn(fun() -> init(Role, {Node, Life, Role}, Port) end) || Role <- [actor, extra]],
    ok.

-spec order(cluster_demo_nodes:a_node(), order()) -> ok.
order(Node, Order) ->
    _ = [cluster_demo_nodes:send(Node, process(actor), {order, Order}) || Order =/= rest],
    _ = [cluster_demo_nodes:send(Node, process(Role), {order, rest}) || Order =:= rest, Role <- [actor, extra]],
    ok.

process(actor) -> cluster_demo_actor;
process(extra) -> cluster_demo_extra.

init(Role, Who, Port) ->
    true = register(process(Role), self()),
    Line = cluster_demo_book:connect(Port, Who),
    case Role of
        actor -> rest(#client{role = Role, line = Line});
        extra -> work(#client{role = Role, line = Line, order = {turns, ?EXTRA_WORK_MS}})
    end.

rest(Client) ->
    ok = tell(rests, Client),
    receive
        {order, Order} -> work(Client#client{order = Order})
    end.

work(#client{order = rest} = Client) ->
    rest(Client);
work(#client{role = Role} = Client) ->
    {Mode, Names} = wanted(Role),
    case lock(Mode, Names) of
        {ok, Held} ->
            Number = Client#client.locks + 1,
            Lock = {Number, Mode, Names, canal_lock_quorum:fence(Held)},
            ok = tell({granted, Lock}, Client),
            next(use(Held, Lock, what_for(Client#client{locks = Number})));
        {error, Why} ->
            ok = tell({refused, Names, Why}, Client),
            next(Client, ?AGAIN_MS)
    end.

%% Another order may have come while it waited for the lock. To rest it gives this one back first.
what_for(Client) ->
    receive
        {order, Order} when Order =/= rest -> what_for(Client#client{order = Order})
    after 0 -> Client
    end.

wanted(actor) ->
    {write, [?ACCOUNT]};
wanted(extra) ->
    One = any_of(?SHELVES),
    case rand:uniform(5) of
        1 -> {write, lists:usort([One, any_of(?SHELVES)])};
        2 -> {write, [One]};
        _ -> {read, [One]}
    end.

any_of(List) ->
    lists:nth(rand:uniform(length(List)), List).

lock(read, [Name]) -> canal_lock_quorum:rlock(Name, ?LOCK_MS);
lock(write, [Name]) -> canal_lock_quorum:lock(Name, ?LOCK_MS);
lock(write, Names) -> canal_lock_quorum:lock_many(Names, ?LOCK_MS).

next(#client{role = extra} = Client) -> next(Client, rand:uniform(?EXTRA_PAUSE_MS));
next(#client{order = {dawdle, _}} = Client) -> next(Client#client{order = rest}, 0);
next(Client) -> next(Client, 0).

%% Another order may have come.
next(Client, Pause_ms) ->
    receive
        {order, Order} -> next(Client#client{order = Order}, Pause_ms)
    after Pause_ms -> work(Client)
    end.

%%% With a lock

use(Held, {_, Mode, Names, _} = Lock, Client) ->
    Request = case Mode of read -> look; write -> read end,
    Values = [{Name, Value} || Name <- Names, {ok, Value} <- [ask({Request, Name}, Held, Lock, Client)]],
    finish(hold(Held, Lock, work_ms(Client), Client), Values, Held, Lock).

work_ms(#client{order = {turns, Work_ms}, role = extra}) -> rand:uniform(Work_ms);
work_ms(#client{order = {turns, Work_ms}}) -> Work_ms;
work_ms(#client{order = Order}) -> Order.

%% Until the time is over, there is another order, or the lock is lost.
hold(Held, Lock, keep, Client) ->
    ok = tell({keeps, Lock}, Client),
    hold_until(infinity, Held, Lock, Client);
hold(Held, Lock, {dawdle, Dawdle_ms}, Client) ->
    case look(Held, Lock, Client) of
        true ->
            ok = tell({dawdles, Lock}, Client),
            ok = timer:sleep(Dawdle_ms),
            {dawdled, Client};
        false ->
            {held, Client}
    end;
hold(Held, Lock, Work_ms, Client) ->
    hold_until(erlang:monotonic_time(millisecond) + Work_ms, Held, Lock, Client).

hold_until(Until_ms, Held, Lock, Client) ->
    IsHeld = look(Held, Lock, Client),
    receive
        {canal_lock_quorum, at_risk, Held} ->
            ok = tell({at_risk, Lock}, Client),
            hold_until(Until_ms, Held, Lock, Client);
        {canal_lock_quorum, lost, Held} ->
            ok = tell({lost, Lock}, Client),
            {lost, Client};
        {order, Order} when Until_ms =:= infinity ->
            {held, Client#client{order = Order}}
    after ?LOOK_EVERY_MS ->
        %% Integers are less than atoms.
        case erlang:monotonic_time(millisecond) < Until_ms of
            true -> hold_until(Until_ms, Held, Lock, Client);
            false when IsHeld -> {held, Client};
            %% The message is on its way.
            false -> hold_until(Until_ms, Held, Lock, Client)
        end
    end.

finish({lost, Client}, _Values, _Held, _Lock) ->
    Client;
finish({How, Client}, Values, Held, {_, Mode, _, _} = Lock) ->
    case How =:= dawdled orelse look(Held, Lock, Client) of
        true ->
            _ = [ask({write, Name, Value + 1}, Held, Lock, Client) || {Name, Value} <- Values, Mode =:= write],
            give_back(Held, Lock, Client);
        false ->
            ok = tell({gives_up, Lock}, Client),
            await_lost(Held, Lock, Client)
    end.

%% Now and then it is waited for.
give_back(Held, {Number, _, _, _} = Lock, Client) ->
    ok = tell({gives_back, Lock}, Client),
    Answer =
        case Number rem 4 of
            0 -> canal_lock_quorum:unlock(Held);
            _ -> canal_lock_quorum:try_unlock(Held)
        end,
    ok = tell({given, Lock, Answer}, Client),
    case Answer of
        {error, not_held} -> await_lost(Held, Lock, Client);
        _ -> forget(Held, Client)
    end.

await_lost(Held, Lock, Client) ->
    receive
        {canal_lock_quorum, lost, Held} ->
            ok = tell({lost, Lock}, Client),
            forget(Held, Client)
    end.

%% That it was at risk is of no interest any more.
forget(Held, Client) ->
    receive
        {canal_lock_quorum, _, Held} -> forget(Held, Client)
    after 0 -> Client
    end.

look(Held, Lock, Client) ->
    Began_ns = canal_lock_quorum_nif:now(),
    IsHeld = canal_lock_quorum:held(Held),
    Ended_ns = canal_lock_quorum_nif:now(),
    _ = [ok = tell({held, Lock, Began_ns, Ended_ns}, Client) || IsHeld],
    IsHeld.

%% The register, with the fence; and tells what it has answered to whom.
ask(What, Held, {_, _, _, Fence} = Lock, #client{line = Line} = Client) ->
    Request = erlang:insert_element(3, What, Fence),
    Answer = cluster_demo_book:ask(Line, Request),
    ok = tell({Request, Lock, Answer, look(Held, Lock, Client)}, Client),
    Answer.

tell(What, #client{line = Line}) ->
    cluster_demo_book:tell(Line, What).
