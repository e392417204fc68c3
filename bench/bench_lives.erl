%% What a short life costs: a process is born, acquires, and ends, "release and exit" in order or "die holding". Each
%% scheduler has a process that gives birth and hears of the ends, so many at a time. `none' is the same life that
%% acquires nothing: what a bare process costs here. `floor' is one that the VM watches for a native library, which does
%% nothing when it hears, and that counts with bare native calls: what any such library must pay.
%%
%% per_life: the time from the first birth until all are dead *and* all is free, by the number of lives. All
%% schedulers work on them, so a life takes that many times as much of a processor. last_death_to_free: from the
%% moment that the last death is heard of until the books have been seen to show no permit of any key, one key after
%% the other, which takes some tens of microseconds in itself. longest_mailbox: of the manager, looked at every
%% millisecond.
%%
%% Of the mode: live_rounds; lives, of each subject in a round.
-module(bench_lives).

-export([measure/2]).
%% Called in the other VM.
-export([each_once/1]).

-define(VARIANTS, ["release and exit", "die holding"]).
-define(SUBJECTS, [ours, ets, floor, none]).

%% So many keys, and each bears all who live at a time.
-define(KEYS, 256).
-define(MAX_PER, 1000000).
%% Alive at a time, of each who gives birth.
-define(AT_A_TIME, 100).
-define(WARM_UP_PART, 10).
-define(LOOK_EVERY_MS, 1).

-spec measure(map(), fun((iodata()) -> ok)) -> #{bench_results:id() => [{pos_integer(), float()}]}.
measure(#{live_rounds := Rounds, lives := Lives}, Tell) ->
    bench_rounds:play(Rounds, fun(Round) ->
        ok = Tell(io_lib:format("short lives, round ~b of ~b", [Round, Rounds])),
        [
            {{lives, Variant, none, Subject, Measure}, Value}
         || {Variant, Subject, Measure, Value} <- bench_vm:call(ours, ?MODULE, each_once, [Lives])
        ]
    end).

-spec each_once(Lives :: pos_integer()) ->
    [{Variant :: string(), bench_cases:subject(), bench_cases:measure(), number()}].
each_once(Lives) ->
    [ok = bench_subjects:start(Subject) || Subject <- [ours, ets, floor]],
    [Key = bench_subjects:place(Subject, Key) || Subject <- [ours, ets], Key <- keys()],
    Runs = [{Variant, Subject} || Variant <- ?VARIANTS, Subject <- ?SUBJECTS],
    [_ = play(Variant, Subject, Lives div ?WARM_UP_PART) || {Variant, Subject} <- Runs],
    %% In a VM that has been up for a while, the places of all processes have been used.
    _ = play("die holding", ours, erlang:system_info(process_limit)),
    [
        {Variant, Subject, Measure, Value}
     || {Variant, Subject} <- bench_rounds:shuffle(Runs),
        {Measure, Value} <- play(Variant, Subject, Lives)
    ].

play(Variant, Subject, Lives) ->
    Life = life(Variant, Subject),
    Granted = granted(Subject),
    Sampler = start_sampler(Subject),
    Start = erlang:monotonic_time(),
    {LastDeath, Free} = live(Subject, Life, Lives),
    Longest = stop_sampler(Sampler),
    ok = closed(Subject, Granted, Lives),
    [{per_life, ns(Free - Start) / Lives}] ++
        case Subject of
            Bare when Bare =:= none; Bare =:= floor -> [];
            _ -> [{last_death_to_free, ns(Free - LastDeath) / 1000}, {longest_mailbox, Longest}]
        end.

%% When the last of them was heard to be dead, and when all was free.
live(Subject, Life, Lives) ->
    Mothers = erlang:system_info(schedulers_online),
    StillBearing = atomics:new(1, []),
    ok = atomics:put(StillBearing, 1, Mothers),
    Parent = self(),
    Bear = fun(First) ->
        ok = bear(Life, First, Mothers, Lives, 0),
        LastDeath = erlang:monotonic_time(),
        %% The last one looks by itself: a message to somebody else would take longer than what is looked for.
        case atomics:sub_get(StillBearing, 1, 1) of
            0 -> Parent ! {all_dead, LastDeath, free_at(Subject)};
            _ -> ok
        end
    end,
    Monitored = [
        spawn_opt(fun() -> Bear(Number) end, [monitor, {scheduler, Number}])
     || Number <- lists:seq(1, Mothers)
    ],
    [
        receive
            {'DOWN', Monitor, process, Pid, Reason} -> normal = Reason
        end
     || {Pid, Monitor} <- Monitored
    ],
    receive
        {all_dead, LastDeath, Free} -> {LastDeath, Free}
    end.

bear(Life, Next, Step, Last, Alive) when Next =< Last, Alive < ?AT_A_TIME ->
    Key = {app, Next rem ?KEYS},
    _ = spawn_opt(fun() -> Life(Key) end, [monitor]),
    bear(Life, Next + Step, Step, Last, Alive + 1);
bear(_Life, _Next, _Step, _Last, 0) ->
    ok;
bear(Life, Next, Step, Last, Alive) ->
    receive
        {'DOWN', _, process, _, Reason} ->
            normal = Reason,
            bear(Life, Next, Step, Last, Alive - 1)
    end.

life("release and exit", ours) ->
    fun(Key) ->
        {acquired, _} = canal_lock:acquire(Key, ?MAX_PER, 1),
        ok = canal_lock:release(Key, ?MAX_PER, 1)
    end;
life("release and exit", ets) ->
    fun(Key) ->
        {acquired, _} = test_original:acquire(Key, ?MAX_PER, 1),
        ok = test_original:release(Key, ?MAX_PER, 1)
    end;
life("die holding", ours) ->
    fun(Key) -> {acquired, _} = canal_lock:acquire(Key, ?MAX_PER, 1) end;
life("die holding", ets) ->
    fun(Key) -> {acquired, _} = test_original:acquire(Key, ?MAX_PER, 1) end;
life("release and exit", floor) ->
    fun(Key) ->
        true = bench_floor_nif:floor_watch(),
        {acquired, _} = bench_floor_nif:floor_acquire(Key, ?MAX_PER, 1),
        ok = bench_floor_nif:floor_release(Key, ?MAX_PER, 1)
    end;
life("die holding", floor) ->
    fun(Key) ->
        true = bench_floor_nif:floor_watch(),
        {acquired, _} = bench_floor_nif:floor_acquire(Key, ?MAX_PER, 1)
    end;
life(_, none) ->
    fun(Key) -> {app, _} = Key end.

free_at(Bare) when Bare =:= none; Bare =:= floor ->
    erlang:monotonic_time();
free_at(Subject) ->
    ok = bench_books:await_permits(Subject, keys(), 0),
    erlang:monotonic_time().

keys() ->
    [{app, I} || I <- lists:seq(0, ?KEYS - 1)].

%% By the books, so that no life can have been without its permit. The ETS design counts nothing up.
granted(ours) -> maps:get(granted, canal_lock:info());
granted(_) -> 0.

closed(Bare, _Granted, _Lives) when Bare =:= none; Bare =:= floor ->
    ok;
closed(ets, _Granted, _Lives) ->
    bench_books:closed(ets);
closed(ours, Granted, Lives) ->
    ok = bench_books:closed(ours),
    Lives = granted(ours) - Granted,
    ok.

%% Runs beside the lives of all subjects; where there is no manager it looks at one who is idle.
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
    after ?LOOK_EVERY_MS -> sample(Manager, max(Length, Longest))
    end.

stop_sampler(Sampler) ->
    Sampler ! stop,
    receive
        {Sampler, Longest} -> Longest
    end.

ns(Native) ->
    erlang:convert_time_unit(Native, native, nanosecond).
