%% Makes each call of the native library a few times, for tools that check its memory and make a VM 100 times as slow
%% (scripts/valgrind_nif.sh). Other tests check the answers; this module only checks that the calls succeed.
%%
%% It does not call `audit/0', with which the VM crashes under valgrind (valgrind_nif.sh says why).
-module(soak_every_call).

-export([run/0]).

-define(MAX_PER, 1000).

%% Concurrent holders.
-define(CROWD, 20).

%% Enough keys for the table to grow, and to shrink again.
-define(MANY_KEYS, 5000).

-spec run() -> ok.
run() ->
    _ = process_flag(trap_exit, true),
    {ok, Manager} = canal_lock:start_link(?MAX_PER, #{keep_on_crash => true}),
    Keys = [Key || {_, Key} <- test_key_terms:all()],
    hold_and_die(Keys),
    crowd(Keys),
    grow_and_shrink(),
    proxies(Keys),
    ok = adopt(Manager, Keys),
    ok = canal_lock:stop(),
    %% Each killed manager leaves a full table to the next one.
    [leave(Keys) || _ <- [1, 2]],
    {ok, _} = canal_lock:start_link(?MAX_PER),
    ok = canal_lock:stop().

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
    [_ | _] = canal_lock:keys(),
    [_ | _] = test_setup:permits(),
    #{holders := 1} = canal_lock:info(),
    ok = test_worker:kill(Holder),
    test_await:permits(0),
    %% Idle keys are reclaimed.
    ok = canal_lock_manager:sweep(),
    #{keys := 0} = canal_lock:info(),
    {'EXIT', {badarg, _}} = test_worker:caught(fun() -> canal_lock:acquire(db, -1, 1) end).

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
    ok = test_manager_crash:kill(Manager),
    ok = test_manager_crash:await_closed().
