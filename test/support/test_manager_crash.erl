%% Makes managers crash, and checks what is left.
-module(test_manager_crash).

-export([tests/1, alone/1, forget/0, kill/1, another/1, in_a_callback/1, await_closed/0, calls_raise/0]).

%% Tests that start managers, each `alone', without the reports of crashes.
-spec tests([{Title :: string(), fun(() -> term())}]) -> term().
tests(Tests) ->
    test_setup:quietly(test_setup:tests(without_manager, [{Title, alone(Test)} || {Title, Test} <- Tests])).

%% A test that starts managers and traps their exits. A table that it leaves behind does not affect the next test.
-spec alone(fun(() -> term())) -> fun(() -> ok).
alone(Test) ->
    fun() ->
        false = process_flag(trap_exit, true),
        try
            _ = Test(),
            ok
        after
            forget(),
            process_flag(trap_exit, false),
            flush()
        end
    end.

%% Afterwards there is no manager and no kept table: a plain start closes the old table.
-spec forget() -> ok.
forget() ->
    _ = [canal_lock:stop() || whereis(canal_lock) =/= undefined],
    {ok, _} = canal_lock:start_link(1),
    ok = canal_lock:stop().

flush() ->
    receive
        {'EXIT', _, _} -> flush()
    after 0 -> ok
    end.

%% When this returns the manager is dead and its name is free. The VM may notify other processes later than the caller.
-spec kill(pid()) -> ok.
kill(Manager) ->
    Monitor = monitor(process, Manager),
    exit(Manager, kill),
    killed = test_await:reason({Manager, Monitor}),
    ok.

%% The manager that a supervisor has started after this one.
-spec another(pid()) -> pid().
another(Manager) ->
    test_await:value(true, fun() -> not lists:member(whereis(canal_lock), [undefined, Manager]) end),
    %% It has its name before it is initialized, and answers after that.
    _ = sys:get_state(canal_lock),
    whereis(canal_lock).

%% As by a bug: the manager loses the handle of its table and then sweeps. It is dead when this returns.
-spec in_a_callback(pid()) -> ok.
in_a_callback(Manager) ->
    Monitor = monitor(process, Manager),
    _ = sys:replace_state(Manager, fun(State) -> setelement(3, State, no_handle) end),
    Manager ! {'$gen_call', {self(), make_ref()}, sweep},
    {badarg, _} = test_await:reason({Manager, Monitor}),
    ok.

%% The VM notifies the table of the manager's death at about the same time as other processes.
-spec await_closed() -> ok.
await_closed() ->
    ok = test_await:value(raised, fun() -> raised(fun() -> canal_lock:count(db) end) end),
    calls_raise().

%% All calls raise, since there is no table.
-spec calls_raise() -> ok.
calls_raise() ->
    Calls = [
        fun() -> canal_lock:acquire(db, 3, 1) end,
        fun() -> canal_lock:release(db) end,
        fun() -> canal_lock:release(db, 3, 1) end,
        fun() -> canal_lock:with_permit(db, 3, 1, fun() -> called end) end,
        fun() -> canal_lock:count(db) end,
        fun() -> canal_lock:buckets(db, 3) end,
        fun() -> canal_lock:holders(db) end,
        fun() -> canal_lock:held() end,
        fun() -> canal_lock:held(self()) end,
        fun() -> canal_lock:keys() end,
        fun() -> canal_lock:info() end,
        fun() -> canal_lock:audit() end
    ],
    [raised = raised(Call) || Call <- Calls],
    ok.

raised(Call) ->
    try
        {answered, Call()}
    catch
        error:badarg -> raised
    end.
