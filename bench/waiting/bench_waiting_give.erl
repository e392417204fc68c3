%% Measures the call of give/2. "to a known process": the receiver was given a permit before. "to a new process": each
%% receiver has been created, and has never called the library nor been given anything; it gets one permit.
%%
%% The giver has acquired all permits before, of one key.
%%
%% Options of the mode: those of bench_runs, and new_receivers.
-module(bench_waiting_give).

-export([measure/2]).

-define(UNBOUNDED, 1 bsl 40).

-spec measure(bench_cases:mode(), fun((iodata()) -> ok)) -> bench_results:results().
measure(#{rounds := Rounds, new_receivers := Receivers} = Mode, Report) ->
    Known = bench_runs:measure(
        [#{id => {give, "to a known process", none, ours}, take => fun known/1, workers => 1, measures => [per_loop]}],
        Mode,
        Report
    ),
    New = bench_rounds:play(Rounds, fun(Round) ->
        ok = Report(io_lib:format("give to new processes, round ~b of ~b", [Round, Rounds])),
        [{{give, "to a new process", none, ours, give}, new(Receivers) / Receivers}]
    end),
    maps:merge(maps:filter(fun(Id, _) -> element(5, Id) =:= give end, Known), New).

%% Its death releases the permits.
known(Times) ->
    Receiver = receiver(),
    Key = {?MODULE, known},
    Phases = [{acquire, fun acquire/4, Key, ?UNBOUNDED, 1}, {give, fun give/4, {Key, element(1, Receiver)}, 1, 1}],
    Sample = bench_sample:take([Phases], Times),
    ok = bench_process:kill([Receiver]),
    ok = bench_records:await(0, fun() -> canal_lock:count(Key) end),
    Sample.

receiver() ->
    spawn_monitor(fun() -> receive after infinity -> ok end end).

acquire(_Key, _MaxPer, _Buckets, 0) ->
    ok;
acquire(Key, MaxPer, Buckets, Times) ->
    {acquired, _} = canal_lock:acquire(Key, MaxPer, Buckets),
    acquire(Key, MaxPer, Buckets, Times - 1).

give(_Place, _MaxPer, _Buckets, 0) ->
    ok;
give({Key, Pid} = Place, MaxPer, Buckets, Times) ->
    ok = canal_lock:give(Key, Pid),
    give(Place, MaxPer, Buckets, Times - 1).

new(Count) ->
    Receivers = [receiver() || _ <- lists:seq(1, Count)],
    Pids = [Pid || {Pid, _} <- Receivers],
    Key = {?MODULE, new},
    Ns = bench_process:result([{scheduler, 1}, {min_heap_size, bench_sample:heap(1)}], fun() ->
        ok = acquire(Key, ?UNBOUNDED, 1, Count),
        Start = erlang:monotonic_time(),
        [ok = canal_lock:give(Key, Pid) || Pid <- Pids],
        erlang:convert_time_unit(erlang:monotonic_time() - Start, native, nanosecond)
    end),
    ok = bench_process:kill(Receivers),
    ok = bench_records:await(0, fun() -> canal_lock:count(Key) end),
    Ns.
