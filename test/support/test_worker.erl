%% A process that does what a test orders, one thing after the other, and dies with the test at the latest. The
%% permits that it acquires are its own, so a test can have as many holders as it likes.
-module(test_worker).

-export([start/0, start/1, start_on/1, holder/1, take/1, order/2, send_order/2, kill/1, release_then_die/2]).

-spec start() -> pid().
start() ->
    Test = self(),
    spawn(fun() -> obey(monitor(process, Test)) end).

%% With a first order, and what came of it.
-spec start(fun(() -> Answer)) -> {pid(), Answer}.
start(Order) ->
    Worker = start(),
    {Worker, order(Worker, Order)}.

%% On this scheduler. The VM leaves processes that do little together on one, where they never run at the same time.
-spec start_on(Scheduler :: pos_integer()) -> pid().
start_on(Scheduler) ->
    Test = self(),
    spawn_opt(fun() -> obey(monitor(process, Test)) end, [{scheduler, Scheduler}]).

%% One that has taken so many permits of each key.
-spec holder(#{canal_lock:key() => non_neg_integer()}) -> pid().
holder(Wanted) ->
    {Holder, Wanted} = start(fun() -> take(Wanted) end),
    Holder.

%% Takes them for the caller.
-spec take(Wanted) -> Wanted when Wanted :: #{canal_lock:key() => non_neg_integer()}.
take(Wanted) ->
    [
        {acquired, _} = canal_lock:acquire(Key, 1 bsl 30, 1)
     || {Key, Permits} <- maps:to_list(Wanted), _ <- lists:seq(1, Permits)
    ],
    Wanted.

-spec order(pid(), fun(() -> Answer)) -> Answer.
order(Worker, Order) ->
    Monitor = monitor(process, Worker),
    Ref = send_order(Worker, Order),
    try
        test_await:answer(Ref, Monitor)
    after
        demonitor(Monitor, [flush])
    end.

%% The answer comes as `{Ref, Answer}'.
-spec send_order(pid(), fun(() -> term())) -> Ref :: reference().
send_order(Worker, Order) ->
    Ref = make_ref(),
    Worker ! {order, self(), Ref, Order},
    Ref.

%% Dead when this returns; P4: its permits may come back a little later.
-spec kill(pid() | [pid()]) -> ok.
kill(Worker) when is_pid(Worker) ->
    kill([Worker]);
kill(Workers) ->
    [exit(Worker, kill) || Worker <- Workers],
    test_await:down(Workers).

%% The order is the last thing that it does: nothing comes between it and the death.
-spec release_then_die(pid(), fun(() -> term())) -> ok.
release_then_die(Worker, Order) ->
    Worker ! {last_order, Order},
    test_await:down([Worker]).

obey(Monitor) ->
    receive
        {order, From, Ref, Order} ->
            From ! {Ref, Order()},
            obey(Monitor);
        {last_order, Order} ->
            Order();
        {'DOWN', Monitor, process, _, _} ->
            ok
    end.
