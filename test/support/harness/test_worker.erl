%% A process that executes the orders of a test, one after the other, and ends when the test ends. The permits that it
%% acquires are its own, so a test can have any number of holders.
-module(test_worker).

-export([start/0, start/1, start_on/1, holder/1, take/1, order/2, send_order/2, kill/1, release_then_die/2, caught/1]).
-export([suspend/1, resume/1]).

-spec start() -> pid().
start() ->
    Test = self(),
    spawn(fun() -> obey(monitor(process, Test)) end).

%% Also executes a first order and returns its answer.
-spec start(fun(() -> Answer)) -> {pid(), Answer}.
start(Order) ->
    Worker = start(),
    {Worker, order(Worker, Order)}.

%% On this scheduler. The VM keeps processes that do little on one scheduler, where they never run at the same time.
%% The option is not documented.
-dialyzer({nowarn_function, start_on/1}).
-spec start_on(Scheduler :: pos_integer()) -> pid().
start_on(Scheduler) ->
    Test = self(),
    spawn_opt(fun() -> obey(monitor(process, Test)) end, [{scheduler, Scheduler}]).

%% A worker that holds these numbers of permits.
-spec holder(#{canal_lock:key() => non_neg_integer()}) -> pid().
holder(Wanted) ->
    {Holder, Wanted} = start(fun() -> take(Wanted) end),
    Holder.

%% Acquires them for the caller.
-spec take(Wanted) -> Wanted when Wanted :: #{canal_lock:key() => non_neg_integer()}.
take(Wanted) ->
    _ = [
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

%% The answer arrives as the message `{Ref, Answer}'.
-spec send_order(pid(), fun(() -> term())) -> Ref :: reference().
send_order(Worker, Order) ->
    Ref = make_ref(),
    Worker ! {order, self(), Ref, Order},
    Ref.

%% They are dead when this returns. P4: the VM may release their permits shortly after that.
-spec kill(pid() | [pid()]) -> ok.
kill(Worker) when is_pid(Worker) ->
    kill([Worker]);
kill(Workers) ->
    [exit(Worker, kill) || Worker <- Workers],
    test_await:down(Workers).

%% The worker executes the order and ends immediately after it.
-spec release_then_die(pid(), fun(() -> term())) -> ok.
release_then_die(Worker, Order) ->
    Worker ! {last_order, Order},
    test_await:down([Worker]).

%% Suspends any process of this VM. The VM sometimes raises `internal_error' for a process that runs, and counts the
%% call all the same.
-spec suspend(pid()) -> ok.
suspend(Process) ->
    try erlang:suspend_process(Process) of
        true -> ok
    catch
        error:internal_error -> suspend(Process)
    end.

%% As often as the caller has suspended it.
-spec resume(pid()) -> ok.
resume(Process) ->
    try erlang:resume_process(Process) of
        true -> resume(Process)
    catch
        error:badarg -> ok
    end.

%% As the deprecated `catch': the value, what was thrown, or `{'EXIT', Reason}'.
-spec caught(fun(() -> term())) -> term().
caught(Fun) ->
    try
        Fun()
    catch
        throw:Thrown -> Thrown;
        error:Reason:Stack -> {'EXIT', {Reason, Stack}};
        exit:Reason -> {'EXIT', Reason}
    end.

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
