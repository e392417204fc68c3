%% Measures whether the number of waiters of a key changes the cost of a hand-over and of a cancel.
%%
%% "hand-over, processes": processes take turns with one permit, with one scheduler online. Each releases and waits
%% again, so a turn is a release, a new wait and a switch to another process. With 10,000 waiters, each turn uses a
%% process whose memory was last used 10,000 turns ago.
%%
%% "hand-over, requests" (of canal_lock only): one process has made all requests. A turn is its release, the message to
%% itself, and a new request. "cancel": the same, but a turn is the cancel of one of its requests, in random order, and
%% a new request.
%%
%% Options of the mode: queue_rounds; waiters; turns (timed, for each subject and round).
-module(bench_waiting_queue).

-export([measure/1]).

%% Of the process that cancels: collections would copy its live references. The others have the default heap.
-define(HEAP_WORDS, 1048576).

-spec measure(bench:mode()) -> bench_results:results().
measure(#{queue_rounds := Rounds, waiters := Counts, turns := Turns}) ->
    Variants = [
        {"hand-over, processes", fun processes/3, bench_waiting_subjects:present()},
        {"hand-over, requests", fun requests/3, bench_builds:ours()},
        {"cancel", fun cancels/3, bench_builds:ours()}
    ],
    bench_builds:in_vms(fun(Vm) ->
        Run = fun(Variant, Take, Subject, Count) ->
            fun() ->
                Ns = bench_builds:call(Vm(Subject), fun() -> Take(Subject, Count, Turns) end),
                [{{queue, Variant, Count, Subject, turn}, Ns / Turns}]
            end
        end,
        bench_rounds:play(Rounds, [
            [Run(Variant, Take, Subject, Count) || Subject <- Subjects, Count <- Counts]
         || {Variant, Take, Subjects} <- Variants
        ])
    end).

%% Turns are numbered in an atomics. Each process has one turn before the first that is timed. The processes with the
%% first and the last turn send the time. All processes end, because each passes the permit on.
processes(Subject, Waiters, Turns) ->
    bench_waiting_hand_over:with_schedulers(1, fun() ->
        Place = bench_waiting_subjects:open(Subject, 1),
        First = Waiters + 2,
        Last = First + Turns,
        Turn = {atomics:new(1, []), First, Last, self()},
        Permit = bench_waiting_subjects:acquire(Place),
        All = [spawn_monitor(fun() -> take_turns(Place, Turn) end) || _ <- lists:seq(0, Waiters)],
        ok = bench_waiting_subjects:await_waiting(Place, Waiters + 1),
        ok = bench_waiting_subjects:release(Place, Permit),
        receive {First, Start} -> ok end,
        receive {Last, End} -> ok end,
        lists:foreach(fun(Process) -> bench_process:await_exit(Process, normal) end, All),
        ok = bench_waiting_subjects:close(Place),
        bench_times:ns(Start, End)
    end).

take_turns(Place, {Turns, First, Last, Parent} = Turn) ->
    Permit = bench_waiting_subjects:acquire(Place),
    case atomics:add_get(Turns, 1, 1) of
        Timed when Timed =:= First; Timed =:= Last -> Parent ! {Timed, erlang:monotonic_time()};
        _ -> ok
    end,
    IsOver = atomics:get(Turns, 1) >= Last,
    ok = bench_waiting_subjects:release(Place, Permit),
    IsOver orelse take_turns(Place, Turn).

requests(_Subject, Waiters, Turns) ->
    in_a_process([], fun(Key) ->
        lists:foreach(fun(_) -> request(Key) end, lists:seq(1, Waiters)),
        fun() -> release_and_request(Key, Turns) end
    end).

release_and_request(_Key, 0) ->
    ok;
release_and_request(Key, Turns) ->
    ok = canal_lock:release(Key),
    receive {canal_lock, _, {acquired, 1}} -> ok end,
    _ = request(Key),
    release_and_request(Key, Turns - 1).

cancels(_Subject, Waiters, Turns) ->
    in_a_process([{min_heap_size, ?HEAP_WORDS}], fun(Key) ->
        Refs = bench_rounds:shuffle([request(Key) || _ <- lists:seq(1, Waiters)]),
        true = erlang:garbage_collect(),
        fun() -> cancel_and_request(Key, Refs, [], Turns) end
    end).

cancel_and_request(_Key, _Refs, _New, 0) ->
    ok;
cancel_and_request(Key, [], New, Turns) ->
    cancel_and_request(Key, New, [], Turns);
cancel_and_request(Key, [Ref | Refs], New, Turns) ->
    ok = canal_lock:cancel(Ref),
    cancel_and_request(Key, Refs, [request(Key) | New], Turns - 1).

request(Key) ->
    {waiting, Ref} = canal_lock:request(Key, 1, 1),
    Ref.

%% The process holds the permit of the key.
in_a_process(Options, Prepare) ->
    bench_process:result([{scheduler, 1} | Options], fun() ->
        {ours, Key, 1} = bench_waiting_subjects:open(ours, 1),
        {acquired, 1} = canal_lock:acquire(Key, 1, 1),
        Run = Prepare(Key),
        Start = erlang:monotonic_time(),
        ok = Run(),
        bench_times:ns(Start, erlang:monotonic_time())
    end).
