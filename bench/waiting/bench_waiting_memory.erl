%% Measures the memory of a waiter, in a new VM for each sample. "request": one process has made all requests, with
%% request/3, and does not keep the references. "process": each waiter is a process in acquire/4. The processes exist
%% before the measurement; the growth of processes that get the same message and then wait in a receive is subtracted.
%%
%%   own  growth of the table's account (canal_lock:info/0)
%%   vm   growth of erlang:memory(total), which includes the table's
%%   os   growth of the resident set
%%
%% Options of the mode: memory_rounds; memory_waiters.
-module(bench_waiting_memory).

-export([measure/2]).
%% Called in the other VM.
-export([run/2]).

-define(KEY, db).
-define(TIMEOUT_MS, 600000).

-spec measure(map(), fun((iodata()) -> ok)) -> bench_results:results().
measure(#{memory_rounds := Rounds, memory_waiters := Waiters}, Report) ->
    bench_rounds:play(Rounds, fun(Round) ->
        ok = Report(io_lib:format("memory of waiters, round ~b of ~b", [Round, Rounds])),
        [None, Process, Request] = [
            bench_vm:call(ours, ?MODULE, run, [What, Waiters])
         || What <- [none, process, request]
        ],
        Beyond = maps:map(fun(Of, Bytes) -> Bytes - maps:get(Of, None) end, Process),
        [
            {{waiter, Variant, none, ours, Of}, Bytes}
         || {Variant, Growth} <- [{"request", Request}, {"process", Beyond}], {Of, Bytes} <- maps:to_list(Growth)
        ]
    end).

-spec run(none | process | request, Waiters :: pos_integer()) -> #{own | vm | os => float()}.
run(What, Waiters) ->
    {ok, _} = canal_lock:start_link(1),
    {acquired, 1} = canal_lock:acquire(?KEY, 1, 1),
    %% The parts of the table that the first waiter creates are not part of the cost of a waiter.
    {waiting, Ref} = canal_lock:request(?KEY, 1, 1),
    ok = canal_lock:cancel(Ref),
    grown(What, Waiters).

grown(request, Waiters) ->
    bench_process:result([], fun() ->
        Before = bench_memory:account(ours),
        ok = request(Waiters),
        Growth = bench_memory:growth(Before, bench_memory:account(ours), Waiters),
        Waiters = canal_lock:waiting(?KEY),
        Growth
    end);
grown(What, Waiters) ->
    Ready = atomics:new(1, []),
    Pids = [spawn_link(fun() -> receive wait -> wait(What, Ready) end end) || _ <- lists:seq(1, Waiters)],
    Before = bench_memory:account(ours),
    [Pid ! wait || Pid <- Pids],
    ok = bench_records:await(Waiters, fun() -> ready(What, Ready) end),
    bench_memory:growth(Before, bench_memory:account(ours), Waiters).

request(0) ->
    ok;
request(Left) ->
    {waiting, _} = canal_lock:request(?KEY, 1, 1),
    request(Left - 1).

wait(none, Ready) ->
    ok = atomics:add(Ready, 1, 1),
    receive never -> ok after ?TIMEOUT_MS -> ok end;
wait(process, _Ready) ->
    canal_lock:acquire(?KEY, 1, 1, ?TIMEOUT_MS).

ready(none, Ready) -> atomics:get(Ready, 1);
ready(process, _Ready) -> canal_lock:waiting(?KEY).
