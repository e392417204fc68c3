%% Measures short-lived processes that spawn, acquire, and exit normally, with ("release and exit") or without ("die
%% holding") a release. Each scheduler has a spawner that keeps ?AT_A_TIME of them alive and monitors them.
%% `none' acquires nothing: the cost of a bare process. `floor' uses bare native calls that count, and the VM monitors
%% the process for a native library that does nothing on its death: the lower bound for any such library.
%%
%% per_life: time from the first spawn until all processes are dead *and* all permits are free, by the number of
%% processes. All schedulers work in parallel, so the processor time of a process is that times their number.
%%
%% Options of the mode: lives_rounds; lives (per subject and round).
-module(bench_lives).

-export([measure/1]).

-define(SUBJECTS, [ours, ets, floor, none]).
%% The processes use this number of keys; all that are alive fit in one bucket.
-define(KEYS, 256).
-define(MAX_PER, 1000000).
%% Processes alive at a time, per spawner.
-define(AT_A_TIME, 100).
-define(WARM_UP_PART, 10).

-spec measure(bench:mode()) -> bench_results:results().
measure(#{lives_rounds := Rounds, lives := Lives}) ->
    Run = fun(Variant, Subject) ->
        fun() ->
            Ns = bench_builds:once(Subject, fun() -> in_a_vm(Variant, Subject, Lives) end),
            [{{lives, Variant, none, Subject, per_life}, Ns}]
        end
    end,
    Subjects = bench_builds:with_ours(?SUBJECTS),
    bench_rounds:play(Rounds, [
        [Run(Variant, Subject) || Subject <- Subjects]
     || Variant <- ["release and exit", "die holding"]
    ]).

in_a_vm(Variant, Subject, Lives) ->
    ok = bench_subjects:start(Subject),
    _ = [bench_subjects:prepare(Subject, Key) || Key <- keys()],
    Life = life(Variant, Subject),
    _ = of_all(Subject, Life, Lives div ?WARM_UP_PART),
    %% Uses every process slot once, as in a VM that has run for a long time. The ETS design has no slots.
    _ = Subject =:= ets orelse of_all(Subject, Life, erlang:system_info(process_limit)),
    of_all(Subject, Life, Lives) / Lives.

of_all(Subject, Life, Lives) ->
    Spawners = erlang:system_info(schedulers_online),
    Running = atomics:new(1, []),
    ok = atomics:put(Running, 1, Spawners),
    Parent = self(),
    Start = erlang:monotonic_time(),
    Spawn = fun(First) ->
        ok = spawn_lives(Life, First, Spawners, Lives, 0),
        %% The last spawner checks itself: a message to another process takes time.
        atomics:sub_get(Running, 1, 1) =:= 0 andalso (Parent ! {all_free, free_at(Subject)})
    end,
    Monitored = [
        spawn_opt(fun() -> Spawn(Number) end, [monitor, {scheduler, Number}])
     || Number <- lists:seq(1, Spawners)
    ],
    [ok = bench_process:await_exit(Spawner, normal) || Spawner <- Monitored],
    receive
        {all_free, Free} -> bench_times:ns(Start, Free)
    end.

spawn_lives(Life, Next, Step, Last, Alive) when Next =< Last, Alive < ?AT_A_TIME ->
    Key = {app, Next rem ?KEYS},
    _ = spawn_opt(fun() -> Life(Key) end, [monitor]),
    spawn_lives(Life, Next + Step, Step, Last, Alive + 1);
spawn_lives(_Life, _Next, _Step, _Last, 0) ->
    ok;
spawn_lives(Life, Next, Step, Last, Alive) ->
    receive
        {'DOWN', _, process, _, Reason} ->
            normal = Reason,
            spawn_lives(Life, Next, Step, Last, Alive - 1)
    end.

%% Macros, as in bench_loops.
-define(LIFE(Subject, Acquire, Release),
    life("release and exit", Subject) ->
        fun(Key) ->
            {acquired, _} = Acquire,
            ok = Release
        end;
    life("die holding", Subject) ->
        fun(Key) -> {acquired, _} = Acquire end
).

?LIFE(ours, canal_lock:acquire(Key, ?MAX_PER, 1), canal_lock:release(Key, ?MAX_PER, 1));
?LIFE(ets, test_original:acquire(Key, ?MAX_PER, 1), test_original:release(Key, ?MAX_PER, 1));
?LIFE(floor, floor_acquire(Key), bench_floor_nif:floor_release(Key, ?MAX_PER, 1));
life(Variant, other) ->
    life(Variant, ours);
life(_, none) ->
    fun(Key) -> {app, _} = Key end.

floor_acquire(Key) ->
    true = bench_floor_nif:floor_watch(),
    bench_floor_nif:floor_acquire(Key, ?MAX_PER, 1).

free_at(Subject) ->
    lists:member(Subject, [none, floor]) orelse bench_records:await_permits(Subject, keys(), 0),
    erlang:monotonic_time().

keys() ->
    [{app, I} || I <- lists:seq(0, ?KEYS - 1)].
