%% Measures a hand-over: from the call of the release to the instant when the waiter has returned from its acquire. Two
%% processes take turns with one permit. Both instants are readings of the clock; the holder stores the first one for
%% the waiter.
%%
%% "two schedulers": a process on each of two schedulers. The holder keeps its scheduler busy for 100 us, in which the
%% other one begins to wait, and its scheduler has nothing to do. "two schedulers, asleep": the holder sleeps for 3 ms.
%% "one scheduler": only one is online. The holder yields until the other one waits. That one runs after the holder has
%% waited again, and that call is included.
%%
%% The subject `none' is the bound: each process sends a message to the other one, and waits for its answer.
%%
%% Options of the mode: hand_over_rounds; hand_overs (for each subject and round); slow_hand_overs (those of "asleep").
-module(bench_waiting_hand_over).

-export([measure/1, with_schedulers/2]).

%% Longer than a request to a process takes, also if a thread of the VM must be woken for it.
-define(HOLD_NS, 100000).
-define(SLEEP_MS, 3).

-spec measure(bench:mode()) -> bench_results:results().
measure(#{hand_over_rounds := Rounds, hand_overs := Many, slow_hand_overs := Few}) ->
    Variants = [
        {"two schedulers", 2, spin, Many},
        {"two schedulers, asleep", 2, sleep, Few},
        {"one scheduler", 1, yield, Many}
    ],
    bench_builds:in_vms(fun(Vm) ->
        Run = fun({Variant, Schedulers, Hold, Count}, Subject) ->
            fun() ->
                Times = bench_builds:call(Vm(Subject), fun() -> sample(Subject, Schedulers, Hold, Count) end),
                Percentiles = bench_times:percentiles(Times),
                [{{hand_over, Variant, Percent, Subject, to_run}, Value} || {Percent, Value} <- Percentiles]
            end
        end,
        bench_rounds:play(Rounds, [
            [Run(Variant, Subject) || Subject <- [none | bench_waiting_subjects:present()]]
         || Variant <- Variants, element(2, Variant) =< erlang:system_info(schedulers)
        ])
    end).

sample(Subject, Schedulers, Hold, Count) ->
    Place = bench_waiting_subjects:open(Subject, 1),
    Times = bench_times:new(),
    %% The turn, and when the last holder released.
    Shared = atomics:new(2, []),
    ok = with_schedulers(Schedulers, fun() ->
        Both = [
            spawn_opt(
                fun() ->
                    case Subject of
                        none -> receive {other, Other} -> pass(Other, Hold, Times, Count, Shared) end;
                        _ -> turns(Place, Hold, Times, Count, Shared)
                    end
                end,
                [monitor, {scheduler, (I - 1) rem Schedulers + 1}]
            )
         || I <- [1, 2]
        ],
        [{First, _}, {Second, _}] = Both,
        [Pid ! Message || {Pid, Message} <- [{First, {other, Second}}, {Second, {other, First}}, {First, turn}]],
        lists:foreach(fun(Process) -> bench_process:await_exit(Process, normal) end, Both)
    end),
    ok = bench_waiting_subjects:close(Place),
    Filled = bench_times:filled(Times),
    Count = bench_times:count(Filled),
    Filled.

%% Turn 0 found the permit free. After the last turn, the other process gets the permit once more.
turns(Place, Hold, Times, Count, Shared) ->
    Permit = bench_waiting_subjects:acquire(Place),
    case turn(erlang:monotonic_time(), Times, Count, Shared) < Count of
        true ->
            ok = hold(Hold, Place),
            ok = releases(Shared),
            ok = bench_waiting_subjects:release(Place, Permit),
            turns(Place, Hold, Times, Count, Shared);
        false ->
            bench_waiting_subjects:release(Place, Permit)
    end.

pass(Other, Hold, Times, Count, Shared) ->
    receive
        turn ->
            Turn = turn(erlang:monotonic_time(), Times, Count, Shared),
            ok = hold(Hold, none),
            ok = releases(Shared),
            Other ! turn,
            Turn < Count andalso pass(Other, Hold, Times, Count, Shared)
    end.

turn(Runs, Times, Count, Shared) ->
    Released = atomics:get(Shared, 2),
    Turn = atomics:add_get(Shared, 1, 1) - 1,
    Turn > 0 andalso Turn =< Count andalso bench_times:note(Times, bench_times:ns(Released, Runs)),
    Turn.

releases(Shared) ->
    atomics:put(Shared, 2, erlang:monotonic_time()).

hold(spin, _Place) -> bench_waiting_subjects:spin(?HOLD_NS);
hold(sleep, _Place) -> timer:sleep(?SLEEP_MS);
hold(yield, none) -> ok;
hold(yield, Place) -> bench_waiting_subjects:await_waiting(Place, 1).

%% Calls the function while this number of schedulers is online. Processes of the others move.
-spec with_schedulers(pos_integer(), fun(() -> Result)) -> Result.
with_schedulers(Schedulers, Fun) ->
    Before = erlang:system_flag(schedulers_online, Schedulers),
    try
        Fun()
    after
        erlang:system_flag(schedulers_online, Before)
    end.
