%% Measures the memory of a waiter, in a new VM for each sample. "request": one process has made all requests, with
%% request/3, and does not keep the references. "process": each waiter is a process in acquire/4. The processes exist
%% before the measurement; the growth of processes that get the same message and then wait in a receive is subtracted.
%%
%%   own  growth of the table's account (canal_lock:info/0)
%%   vm   growth of erlang:memory(total), which includes the table's
%%
%% Options of the mode: memory_rounds; memory_waiters.
-module(bench_waiting_memory).

-export([measure/1]).

-define(KEY, db).
-define(TIMEOUT_MS, 600000).

-spec measure(bench:mode()) -> bench_results:results().
measure(#{memory_rounds := Rounds, memory_waiters := Waiters}) ->
    bench_rounds:play(Rounds, [[fun() -> sample(Subject, Waiters) end || Subject <- bench_builds:ours()]]).

sample(Subject, Waiters) ->
    [None, Process, Request] = [
        bench_builds:once(Subject, fun() -> waiters(What, Waiters) end)
     || What <- [none, process, request]
    ],
    [
        {{waiter, Variant, none, Subject, Of}, Bytes}
     || {Variant, Growth, Base} <- [{"request", Request, #{own => 0, vm => 0}}, {"process", Process, None}],
        Of <- [own, vm],
        Bytes <- [maps:get(Of, Growth) - maps:get(Of, Base)]
    ].

waiters(What, Waiters) ->
    {ok, _} = canal_lock:start_link(1),
    {acquired, 1} = canal_lock:acquire(?KEY, 1, 1),
    %% The parts of the table that the first waiter creates are not part of the cost of a waiter.
    {waiting, Ref} = canal_lock:request(?KEY, 1, 1),
    ok = canal_lock:cancel(Ref),
    grown(What, Waiters).

grown(request, Waiters) ->
    bench_process:result([], fun() ->
        Before = bench_growth:account(ours),
        [{waiting, _} = canal_lock:request(?KEY, 1, 1) || _ <- lists:seq(1, Waiters)],
        Growth = bench_growth:by(Waiters, Before, bench_growth:account(ours)),
        Waiters = canal_lock:waiting(?KEY),
        Growth
    end);
grown(What, Waiters) ->
    Ready = atomics:new(1, []),
    Pids = [spawn_link(fun() -> receive wait -> wait(What, Ready) end end) || _ <- lists:seq(1, Waiters)],
    Before = bench_growth:account(ours),
    [Pid ! wait || Pid <- Pids],
    ok = bench_records:await(Waiters, fun() -> ready(What, Ready) end),
    bench_growth:by(Waiters, Before, bench_growth:account(ours)).

wait(none, Ready) ->
    ok = atomics:add(Ready, 1, 1),
    receive never -> ok after ?TIMEOUT_MS -> ok end;
wait(process, _Ready) ->
    canal_lock:acquire(?KEY, 1, 1, ?TIMEOUT_MS).

ready(none, Ready) -> atomics:get(Ready, 1);
ready(process, _Ready) -> canal_lock:waiting(?KEY).
