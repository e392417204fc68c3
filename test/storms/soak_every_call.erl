%% Makes each call of the native library a few times, for tools that check its memory and make a VM 100 times as slow
%% (scripts/valgrind_nif.sh). Other tests check the answers; this module only checks that the calls succeed, and that
%% none is missing.
%%
%% It does not call `audit/0', with which the VM crashes under valgrind (valgrind_nif.sh says why).
-module(soak_every_call).

-export([run/0]).

-define(MAX_PER, 1000).

%% Concurrent holders.
-define(CROWD, 20).

%% Requests of one key: more than the first block of a queue has places.
-define(WAITERS, 70).

-define(LONG_MS, 600_000).

%% Enough keys for the table to grow, and to shrink again.
-define(MANY_KEYS, 5000).

-spec run() -> ok.
run() ->
    _ = process_flag(trap_exit, true),
    {module, canal_lock_nif} = code:ensure_loaded(canal_lock_nif),
    _ = erlang:trace_pattern({canal_lock_nif, '_', '_'}, true, [call_count]),
    {ok, Manager} = canal_lock:start_link(?MAX_PER, #{keep_on_crash => true}),
    Keys = [Key || {_, Key} <- test_key_terms:all()],
    hold_and_die(Keys),
    [begin waits(Key), several_permits(Key), gifts(Key) end || Key <- sample(Keys)],
    {'EXIT', {badarg, _}} = test_worker:caught(fun() -> canal_lock:acquire(db, 1, 1, -1) end),
    crowd(Keys),
    grow_and_shrink(),
    proxies(Keys),
    ok = adopt(Manager, Keys),
    Waiters = waiters(Keys),
    ok = canal_lock:stop(),
    ok = ended(Waiters),
    %% Each killed manager leaves a full table, in which requests waited, to the next one.
    [leave(Keys) || _ <- [1, 2]],
    ok = replace(Keys),
    ok = canal_lock:stop(),
    [] = [
        {Function, Arity}
     || {Function, Arity} <- canal_lock_nif:module_info(exports),
        Function =/= module_info,
        {call_count, 0} =:= erlang:trace_info({canal_lock_nif, Function, Arity}, call_count)
    ],
    ok.

%% One key of each form in which the library stores keys, and a few others.
sample(Keys) ->
    [db, "a list of bytes", #{a => [map]}, binary:copy(<<"x">>, 70_000) | lists:sublist(Keys, 4)].

%% All views show what a process holds. It releases one half, and its death releases the other.
hold_and_die(Keys) ->
    {Holder, _} = test_worker:start(fun() ->
        [{acquired, _} = canal_lock:acquire(Key, ?MAX_PER, 1) || Key <- Keys ++ Keys],
        [full = canal_lock:acquire(Key, 1, 1) || Key <- Keys],
        [ok = canal_lock:release(Key) || Key <- Keys],
        [_ | _] = canal_lock:held()
    end),
    [{error, not_held} = canal_lock:release(Key) || Key <- Keys],
    [true = canal_lock:count(Key) > 0 || Key <- Keys],
    [[_ | _] = canal_lock:buckets(Key, 2) || Key <- Keys],
    [[{Holder, _}] = canal_lock:holders(Key) || Key <- lists:sublist(Keys, 20)],
    [_ | _] = canal_lock:held(Holder),
    #{keys := _} = canal_lock:holder_info(Holder),
    [_ | _] = canal_lock:keys(),
    [_ | _] = test_setup:permits(),
    #{holders := 1} = canal_lock:info(),
    ok = test_worker:kill(Holder),
    test_await:permits(0),
    %% Idle keys are reclaimed.
    ok = canal_lock_manager:sweep(),
    #{keys := 0} = canal_lock:info(),
    {'EXIT', {badarg, _}} = test_worker:caught(fun() -> canal_lock:acquire(db, -1, 1) end).

%% Requests that time out, are refused, cancelled before and after their grant, and granted one after the other.
waits(Key) ->
    {acquired, 1} = canal_lock:acquire(Key, 1, 1, 100),
    full = canal_lock:acquire(Key, 1, 1, 5),
    full = canal_lock:acquire(Key, 1, 1, #{timeout_ms => ?LONG_MS, max_waiting => 0}),
    {waiting, Cancelled} = canal_lock:request(Key, 1, 1),
    1 = canal_lock:waiting(Key),
    [{Key, 1, _, _}] = canal_lock_view:fold_queues(fun(Piece, Before) -> Piece ++ Before end, []),
    ok = canal_lock:cancel(Cancelled),
    {error, not_waiting} = canal_lock:cancel(Cancelled),
    {waiting, Granted} = canal_lock:request(Key, 1, 1),
    ok = canal_lock:release(Key),
    {acquired, 1} = canal_lock:cancel(Granted),
    Waiters = [test_worker:start() || _ <- lists:seq(1, ?WAITERS)],
    Orders = [
        test_worker:send_order(Waiter, fun() ->
            canal_lock:with_permit(Key, 1, 1, ?LONG_MS, fun() -> waited end)
        end)
     || Waiter <- Waiters
    ],
    test_await:value(?WAITERS, fun() -> canal_lock:waiting(Key) end),
    ok = canal_lock:release(Key, 1, 1),
    [{ok, waited} = test_await:answer(Order) || Order <- Orders],
    ok = test_worker:kill(Waiters).

%% A request that collects its permits, and new capacities that grant others.
several_permits(Key) ->
    {acquired, 5} = canal_lock:acquire(Key, 5, 1, #{permits => 5}),
    full = canal_lock:acquire(Key, 5, 1, #{permits => 2, timeout_ms => 2}),
    Refs = [
        Ref
     || N <- lists:seq(1, ?WAITERS), {waiting, Ref} <- [canal_lock:request(Key, 5, 1, #{permits => 1 + N rem 5})]
    ],
    ok = canal_lock:release(Key, #{permits => 1}),
    ok = canal_lock:resize(Key, 4, 1),
    ok = canal_lock:resize(Key, ?MAX_PER, 1),
    [receive {canal_lock, Ref, {acquired, _}} -> ok end || Ref <- Refs],
    {error, not_held} = canal_lock:release(Key, #{permits => 1 bsl 20}),
    #{Key := Held} = maps:from_list(canal_lock:held()),
    ok = canal_lock:release(Key, #{permits => Held}).

gifts(Key) ->
    {acquired, 3} = canal_lock:acquire(Key, 3, 1, #{permits => 3}),
    Receiver = test_worker:start(),
    [ok = canal_lock:give(Key, Receiver, Options) || Options <- [#{}, #{permits => 2}]],
    {error, not_held} = canal_lock:give(Key, Receiver),
    ok = test_worker:order(Receiver, fun() -> canal_lock:release(Key, #{permits => 2}) end),
    ok = test_worker:kill(Receiver),
    ok = test_await:count(Key, 0),
    {acquired, 1} = canal_lock:acquire(Key, 1, 1),
    {error, not_alive} = canal_lock:give(Key, Receiver),
    ok = canal_lock:release(Key).

%% Processes whose requests wait, and calls that wait. Their holder has died: one request is granted, and the next one
%% has collected one of two permits.
waiters(Keys) ->
    Sample = sample(Keys),
    Before = test_setup:info(waiting),
    {Holder, _} = test_worker:start(fun() ->
        [{acquired, 2} = canal_lock:acquire({waited, Key}, 2, 1, #{permits => 2}) || Key <- Sample]
    end),
    Waiters = [test_worker:start() || _ <- [1, 2, 3]],
    [
        {waiting, _} = test_worker:order(Waiter, fun() ->
            canal_lock:request({waited, Key}, 2, 1, #{permits => Permits})
        end)
     || Key <- Sample, {Waiter, Permits} <- lists:zip(Waiters, [1, 2, 1])
    ],
    Calls = [
        spawn(fun() -> test_worker:caught(fun() -> canal_lock:acquire({waited, Key}, 2, 1, ?LONG_MS) end) end)
     || Key <- Sample
    ],
    test_await:value(Before + 4 * length(Sample), fun() -> test_setup:info(waiting) end),
    ok = test_worker:kill(Holder),
    {Calls, Waiters}.

%% The calls raise because their table is closed.
ended({Calls, Waiters}) ->
    test_await:down(Calls),
    test_worker:kill(Waiters).

%% The manager of a table in which requests wait is killed, and the next one replaces the table.
replace(Keys) ->
    {ok, Manager} = canal_lock:start_link(?MAX_PER, #{keep_on_crash => true}),
    Waiters = waiters(Keys),
    ok = test_manager_crash:kill(Manager),
    {ok, _} = canal_lock:start_link(?MAX_PER),
    ended(Waiters).

crowd(Keys) ->
    Sample = lists:sublist(Keys, 40),
    Crowd = [test_worker:start() || _ <- lists:seq(1, ?CROWD)],
    Orders = [test_worker:send_order(Worker, fun() -> acquire_and_release(Sample) end) || Worker <- Crowd],
    %% At the same time as the workers.
    ok = canal_lock_manager:sweep(),
    [done = test_await:answer(Order) || Order <- Orders],
    ok = test_worker:kill(Crowd),
    test_await:permits(0).

acquire_and_release(Keys) ->
    [canal_lock:acquire(Key, ?CROWD div 2, 1) || Key <- Keys],
    [canal_lock:release(Key) || Key <- tl(Keys)],
    done.

grow_and_shrink() ->
    Keys = [{many, N} || N <- lists:seq(1, ?MANY_KEYS)],
    [{acquired, 1} = canal_lock:acquire(Key, 1, 1) || Key <- Keys],
    [ok = canal_lock:release(Key) || Key <- Keys],
    ok = canal_lock_manager:sweep(),
    ok = canal_lock_manager:sweep(),
    #{keys := 0} = canal_lock:info().

%% Workers take the place of canal_lock_proxy, because there is no other node.
proxies(Keys) ->
    Proxies = [proxy(N, lists:sublist(Keys, 10)) || N <- lists:seq(1, 50)],
    [_ | _] = canal_lock_view:held(test_setup:remote_pid(1)),
    [_ | _] = test_setup:permits(),
    ok = test_worker:kill(Proxies),
    test_await:permits(0),
    none = canal_lock_nif:proxy_of(test_setup:remote_pid(1)).

proxy(Number, Keys) ->
    {Proxy, ok} = test_worker:start(fun() ->
        ok = canal_lock_nif:represent(test_setup:remote_pid(Number)),
        true = canal_lock_nif:proxy_of(test_setup:remote_pid(Number)) =:= self(),
        %% Refused if another proxy represents the process.
        First = test_setup:remote_pid(1),
        _ = [canal_lock_nif:represent(First) || canal_lock_nif:proxy_of(First) =/= none],
        [{acquired, _} = canal_lock:acquire(Key, 100, 1) || Key <- Keys],
        ok
    end),
    Proxy.

%% A manager crashes, and the next one adopts the table.
adopt(Manager, Keys) ->
    [{acquired, _} = canal_lock:acquire(Key, ?MAX_PER, 1) || Key <- lists:sublist(Keys, 100)],
    Proxy = proxy(2, [hd(Keys)]),
    ok = test_manager_crash:kill(Manager),
    {ok, _} = canal_lock:start_link(7, #{keep_on_crash => true}),
    #{max_per := 7} = canal_lock:info(),
    Proxy = canal_lock_nif:proxy_of(test_setup:remote_pid(2)),
    ok = test_worker:kill(Proxy),
    ok = test_await:count(hd(Keys), 1).

leave(Keys) ->
    {ok, Manager} = canal_lock:start_link(?MAX_PER),
    [{acquired, _} = canal_lock:acquire(Key, ?MAX_PER, 1) || Key <- Keys],
    _ = proxy(2, [hd(Keys)]),
    Waiters = waiters(Keys),
    ok = test_manager_crash:kill(Manager),
    ok = test_manager_crash:await_closed(),
    ended(Waiters).
