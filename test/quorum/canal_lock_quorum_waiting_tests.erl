%% Requests that wait for a lock: how many of a node may wait, and the answers beyond the bound.
-module(canal_lock_quorum_waiting_tests).

-include_lib("eunit/include/eunit.hrl").

-define(MAX, 3).
-define(LONG_MS, 60_000).

bound_test_() ->
    [
        {Title, {setup, fun start/0, fun(_) -> canal_lock_quorum:stop() end, fun(_) -> [{timeout, 60, Test}] end}}
     || {Title, Test} <- [
            {"max_waiting requests wait, and the next one is refused at once", fun refused/0},
            {"a waiter that dies makes room for one request", fun() -> makes_room(fun dies/1) end},
            {"a waiter that times out makes room for one request", fun() -> makes_room(fun times_out/1) end},
            {"a waiter that gets its lock makes room for one request", fun() -> makes_room(fun is_granted/1) end},
            {"a waiter that dies frees the other names of its request", fun frees_names/0},
            {"the agent does not monitor a caller that was refused", fun no_monitor/0}
        ]
    ].

start() ->
    {ok, Pid} = canal_lock_quorum:start_link(#{members => [node()], max_waiting => ?MAX}),
    true = unlink(Pid),
    test_await:value(true, fun() -> maps:get(quorum, canal_lock_quorum:status()) end).

refused() ->
    {ok, Lock} = canal_lock_quorum:lock(x, ?LONG_MS),
    Waiting = [waiter(x, ?LONG_MS) || _ <- lists:seq(1, ?MAX)],
    await_waiting(?MAX),
    %% For any name, in any way, with any timeout.
    lists:foreach(fun({Function, Arguments}) ->
        ?assertEqual({error, too_many_waiting}, apply(canal_lock_quorum, Function, Arguments))
    end, [
        {lock, [x, ?LONG_MS]},
        {lock, [free, 0]},
        {rlock, [free, ?LONG_MS]},
        {lock_many, [[free, also_free], ?LONG_MS]},
        {with_lock, [free, ?LONG_MS, fun(_) -> error(called) end]}
    ]),
    await_waiting(?MAX),
    %% The requests that wait are served.
    ok = canal_lock_quorum:unlock(Lock),
    [?assertEqual(ok, test_await:reason(Waiter)) || Waiter <- Waiting],
    await_waiting(0),
    ?assertMatch({ok, _}, canal_lock_quorum:lock(free, ?LONG_MS)).

%% Then one more request may wait, and not two.
makes_room(Leave) ->
    {ok, Lock} = canal_lock_quorum:lock(x, ?LONG_MS),
    Held = waiter(last, ?LONG_MS, fun test_setup:hold_forever/0),
    await_held(last),
    [waiter(x, ?LONG_MS) || _ <- lists:seq(1, ?MAX - 1)],
    await_waiting(?MAX - 1),
    Leave(Held),
    ?assertEqual(?MAX - 1, waiting()),
    Last = waiter(x, ?LONG_MS),
    await_waiting(?MAX),
    ?assertEqual({error, too_many_waiting}, canal_lock_quorum:lock(x, ?LONG_MS)),
    ok = canal_lock_quorum:unlock(Lock),
    ?assertEqual(ok, test_await:reason(Last)).

dies(_) ->
    {Pid, _} = Waiter = waiter(last, ?LONG_MS),
    await_full(),
    exit(Pid, kill),
    killed = test_await:reason(Waiter),
    await_waiting(?MAX - 1).

%% The answer says that the request has left.
times_out(_) ->
    Waiter = waiter(last, 300),
    await_full(),
    ?assertEqual({error, timeout}, test_await:reason(Waiter)).

is_granted({Holder, _}) ->
    Waiter = waiter(last, ?LONG_MS),
    await_full(),
    exit(Holder, kill),
    ?assertEqual(ok, test_await:reason(Waiter)).

frees_names() ->
    {ok, _} = canal_lock_quorum:lock(x, ?LONG_MS),
    {Pid, _} = Waiter = spawn_monitor(fun() -> canal_lock_quorum:lock_many([x, y], ?LONG_MS) end),
    await_waiting(1),
    ?assertEqual({error, timeout}, canal_lock_quorum:lock(y, 50)),
    exit(Pid, kill),
    killed = test_await:reason(Waiter),
    ?assertMatch({ok, _}, canal_lock_quorum:lock(y, ?LONG_MS div 2)).

no_monitor() ->
    _ = waiter(x, ?LONG_MS, fun test_setup:hold_forever/0),
    await_held(x),
    [?assertEqual({error, timeout}, canal_lock_quorum:lock(x, 10)) || _ <- [1, 2]],
    {monitors, Monitors} = process_info(whereis(canal_lock_quorum_agent), monitors),
    ?assertNot(lists:member({process, self()}, Monitors)).

await_full() ->
    await_waiting(?MAX),
    ?assertEqual({error, too_many_waiting}, canal_lock_quorum:lock(x, ?LONG_MS)).

%% A process that asks for a lock. Its exit reason is `ok' or the answer.
waiter(Name, Timeout_ms) ->
    waiter(Name, Timeout_ms, fun() -> exit(ok) end).

waiter(Name, Timeout_ms, Then) ->
    spawn_monitor(fun() ->
        case canal_lock_quorum:lock(Name, Timeout_ms) of
            {ok, _} -> Then();
            Refused -> exit(Refused)
        end
    end).

await_held(Name) ->
    test_await:value([[Name]], fun() ->
        {Locks, []} = canal_lock_quorum:locks(),
        [Names || #{names := Names} <- Locks, Names =:= [Name]]
    end).

await_waiting(Count) ->
    test_await:value(Count, fun waiting/0).

waiting() ->
    maps:get(waiting, canal_lock_quorum:status()).
