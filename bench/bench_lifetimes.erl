%% Measures short-lived processes that spawn, acquire, and exit normally, with ("release and exit") or without ("die
%% holding") a release. Each scheduler has a spawner that keeps ?AT_A_TIME of them alive and monitors them.
%% `none' acquires nothing: the cost of a bare process. `floor' uses bare native calls that count, and the VM monitors
%% the process for a native library that does nothing on its death: the lower bound for any such library.
%%
%% per_life: time from the first spawn until all processes are dead *and* all permits are free, by the number of
%% processes. All schedulers work in parallel, so the processor time of a process is that times their number.
%% last_death_to_free: from the last 'DOWN' until no key has a permit in use. The keys are read one after the other,
%% which itself takes less than 100 microseconds.
%% longest_mailbox: of the manager, read every millisecond.
%%
%% Options of the mode: lifetime_rounds; lifetimes (per subject and round).
-module(bench_lifetimes).

-export([measure/2]).
%% Called in the other VM.
-export([each_once/1]).

-define(VARIANTS, ["release and exit", "die holding"]).
-define(SUBJECTS, [ours, ets, floor, none]).

%% The processes use this number of keys; all that are alive fit in one bucket.
-define(KEYS, 256).
-define(MAX_PER, 1000000).
%% Processes alive at a time, per spawner.
-define(AT_A_TIME, 100).
-define(WARM_UP_PART, 10).
-define(SAMPLE_EVERY_MS, 1).

-spec measure(map(), fun((iodata()) -> ok)) -> #{bench_results:id() => [{pos_integer(), float()}]}.
measure(#{lifetime_rounds := Rounds, lifetimes := Lifetimes}, Report) ->
    bench_rounds:play(Rounds, fun(Round) ->
        ok = Report(io_lib:format("short-lived processes, round ~b of ~b", [Round, Rounds])),
        [
            {{lives, Variant, none, Subject, Measure}, Value}
         || {Variant, Subject, Measure, Value} <- bench_vm:call(ours, ?MODULE, each_once, [Lifetimes])
        ]
    end).

-spec each_once(Lifetimes :: pos_integer()) ->
    [{Variant :: string(), bench_cases:subject(), bench_cases:measure(), number()}].
each_once(Lifetimes) ->
    [ok = bench_subjects:start(Subject) || Subject <- [ours, ets, floor]],
    [Key = bench_subjects:prepare(Subject, Key) || Subject <- [ours, ets], Key <- keys()],
    Runs = [{Variant, Subject} || Variant <- ?VARIANTS, Subject <- ?SUBJECTS],
    [_ = play(Variant, Subject, Lifetimes div ?WARM_UP_PART) || {Variant, Subject} <- Runs],
    %% Uses every process slot once, as in a VM that has run for a long time.
    _ = play("die holding", ours, erlang:system_info(process_limit)),
    [
        {Variant, Subject, Measure, Value}
     || {Variant, Subject} <- bench_rounds:shuffle(Runs),
        {Measure, Value} <- play(Variant, Subject, Lifetimes)
    ].

play(Variant, Subject, Lifetimes) ->
    Lifetime = lifetime(Variant, Subject),
    Granted = granted(Subject),
    Sampler = start_sampler(Subject),
    Start = erlang:monotonic_time(),
    {LastDeath, Free} = run_lifetimes(Subject, Lifetime, Lifetimes),
    Longest = stop_sampler(Sampler),
    ok = closed(Subject, Granted, Lifetimes),
    [{per_life, ns(Free - Start) / Lifetimes}] ++
        case Subject of
            Bare when Bare =:= none; Bare =:= floor -> [];
            _ -> [{last_death_to_free, ns(Free - LastDeath) / 1000}, {longest_mailbox, Longest}]
        end.

%% Returns the time of the last 'DOWN' and the time when all permits were free.
run_lifetimes(Subject, Lifetime, Lifetimes) ->
    Spawners = erlang:system_info(schedulers_online),
    Running = atomics:new(1, []),
    ok = atomics:put(Running, 1, Spawners),
    Parent = self(),
    Spawn = fun(First) ->
        ok = spawn_lifetimes(Lifetime, First, Spawners, Lifetimes, 0),
        LastDeath = erlang:monotonic_time(),
        %% The last spawner checks itself: a message to another process would take longer than the time to measure.
        case atomics:sub_get(Running, 1, 1) of
            0 -> Parent ! {all_dead, LastDeath, free_at(Subject)};
            _ -> ok
        end
    end,
    Monitored = [
        spawn_opt(fun() -> Spawn(Number) end, [monitor, {scheduler, Number}])
     || Number <- lists:seq(1, Spawners)
    ],
    [ok = bench_process:await_exit(Spawner, normal) || Spawner <- Monitored],
    receive
        {all_dead, LastDeath, Free} -> {LastDeath, Free}
    end.

spawn_lifetimes(Lifetime, Next, Step, Last, Alive) when Next =< Last, Alive < ?AT_A_TIME ->
    Key = {app, Next rem ?KEYS},
    _ = spawn_opt(fun() -> Lifetime(Key) end, [monitor]),
    spawn_lifetimes(Lifetime, Next + Step, Step, Last, Alive + 1);
spawn_lifetimes(_Life, _Next, _Step, _Last, 0) ->
    ok;
spawn_lifetimes(Lifetime, Next, Step, Last, Alive) ->
    receive
        {'DOWN', _, process, _, Reason} ->
            normal = Reason,
            spawn_lifetimes(Lifetime, Next, Step, Last, Alive - 1)
    end.

lifetime("release and exit", ours) ->
    fun(Key) ->
        {acquired, _} = canal_lock:acquire(Key, ?MAX_PER, 1),
        ok = canal_lock:release(Key, ?MAX_PER, 1)
    end;
lifetime("release and exit", ets) ->
    fun(Key) ->
        {acquired, _} = test_original:acquire(Key, ?MAX_PER, 1),
        ok = test_original:release(Key, ?MAX_PER, 1)
    end;
lifetime("die holding", ours) ->
    fun(Key) -> {acquired, _} = canal_lock:acquire(Key, ?MAX_PER, 1) end;
lifetime("die holding", ets) ->
    fun(Key) -> {acquired, _} = test_original:acquire(Key, ?MAX_PER, 1) end;
lifetime("release and exit", floor) ->
    fun(Key) ->
        true = bench_floor_nif:floor_watch(),
        {acquired, _} = bench_floor_nif:floor_acquire(Key, ?MAX_PER, 1),
        ok = bench_floor_nif:floor_release(Key, ?MAX_PER, 1)
    end;
lifetime("die holding", floor) ->
    fun(Key) ->
        true = bench_floor_nif:floor_watch(),
        {acquired, _} = bench_floor_nif:floor_acquire(Key, ?MAX_PER, 1)
    end;
lifetime(_, none) ->
    fun(Key) -> {app, _} = Key end.

free_at(Bare) when Bare =:= none; Bare =:= floor ->
    erlang:monotonic_time();
free_at(Subject) ->
    ok = bench_records:await_permits(Subject, keys(), 0),
    erlang:monotonic_time().

keys() ->
    [{app, I} || I <- lists:seq(0, ?KEYS - 1)].

%% Counts acquires, to check that each process had its permit. The ETS design has no such counter.
granted(ours) -> maps:get(granted, canal_lock:info());
granted(_) -> 0.

closed(Bare, _Granted, _Lifetimes) when Bare =:= none; Bare =:= floor ->
    ok;
closed(ets, _Granted, _Lifetimes) ->
    bench_records:closed(ets);
closed(ours, Granted, Lifetimes) ->
    ok = bench_records:closed(ours),
    Lifetimes = granted(ours) - Granted,
    ok.

%% Runs for all subjects; without a manager it samples an idle process.
start_sampler(Subject) ->
    Parent = self(),
    spawn_link(fun() ->
        Manager = manager(Subject),
        Parent ! {self(), sample(Manager, 0)}
    end).

manager(Bare) when Bare =:= none; Bare =:= floor -> whereis(init);
manager(Subject) -> whereis(bench_subjects:module(Subject)).

sample(Manager, Longest) ->
    {message_queue_len, Length} = process_info(Manager, message_queue_len),
    receive
        stop -> max(Length, Longest)
    after ?SAMPLE_EVERY_MS -> sample(Manager, max(Length, Longest))
    end.

stop_sampler(Sampler) ->
    Sampler ! stop,
    receive
        {Sampler, Longest} -> Longest
    end.

ns(Native) ->
    erlang:convert_time_unit(Native, native, nanosecond).
