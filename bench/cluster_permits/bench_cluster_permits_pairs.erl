%% Loops of calls of one process: acquire and release while a permit is free, and calls that are refused while another
%% node holds the only permit.
%%
%% On two nodes, because the semaphore in `global' is on the other one. That is the case of all nodes but one. The calls
%% of `ours' and `local' (canal_lock) send no message.
-module(bench_cluster_permits_pairs).

-include("../bench_loop.hrl").

-export([measure/1]).

-define(LIMIT, 10).

-spec measure(bench:mode()) -> bench_results:results().
measure(#{rounds := Rounds, lease_ms := Lease_ms} = Mode) ->
    [{Vm, _} = Node, Other] = Nodes = bench_cluster_permits_nodes:start(2, Lease_ms),
    Redis = bench_redis:start(),
    ok = test_nodes:call(Node, fun bench_builds:serve/0),
    ok = test_nodes:call(Other, fun bench_global_semaphore:start/0),
    ok = test_nodes:call(Node, fun global:sync/0),
    {acquired, 1} = test_nodes:order(test_nodes:worker(Other), fun() ->
        canal_lock_cluster:acquire(refused, 1, 1, infinity)
    end),
    Run = fun(Case, Subject) ->
        Workers = fun() -> [{loop(Case, Subject), place(Case, Subject, Redis), limit(Case), 1}] end,
        bench_sample:run(Vm, {Case, "one process", none, Subject}, [call(Case)], Workers, Mode)
    end,
    Pairs = [Run(pair, Subject) || Subject <- [ours, local, redis, global]],
    Refused = [Run(refused, Subject) || Subject <- [ours, local]],
    Results = bench_rounds:play(Rounds, [Pairs, Refused]),
    ok = bench_redis:stop(Redis),
    ok = bench_cluster_permits_nodes:stop(Nodes),
    Results.

call(pair) -> pair;
call(refused) -> full.

limit(pair) -> ?LIMIT;
limit(refused) -> 1.

%% In the VM. The process that calls this stays, and so does its connection.
place(_, redis, Redis) ->
    bench_redis:connect(Redis);
place(refused, local, _) ->
    Ref = make_ref(),
    Self = self(),
    _ = spawn_link(fun() ->
        Self ! {Ref, canal_lock:acquire(refused, 1, 1)},
        receive after infinity -> ok end
    end),
    {acquired, 1} = test_await:answer(Ref),
    refused;
place(Case, _, _) ->
    Case.

loop(pair, ours) -> fun ours_pair/4;
loop(pair, local) -> fun local_pair/4;
loop(pair, redis) -> fun redis_pair/4;
loop(pair, global) -> fun global_pair/4;
loop(refused, ours) -> fun ours_full/4;
loop(refused, local) -> fun local_full/4.

-define(PAIR(Module), begin
    {acquired, _} = Module:acquire(Key, MaxPer, Buckets),
    ok = Module:release(Key)
end).

?LOOP(ours_pair, ?PAIR(canal_lock_cluster)).
?LOOP(local_pair, ?PAIR(canal_lock)).
?LOOP(redis_pair, begin
    acquired = bench_redis:acquire(Key, <<"pair">>, MaxPer * Buckets),
    ok = bench_redis:release(Key, <<"pair">>)
end).
?LOOP(global_pair, begin
    acquired = bench_global_semaphore:acquire(Key, MaxPer * Buckets),
    ok = bench_global_semaphore:release(Key)
end).

?LOOP(ours_full, full = canal_lock_cluster:acquire(Key, MaxPer, Buckets)).
?LOOP(local_full, full = canal_lock:acquire(Key, MaxPer, Buckets)).
