%% Known defects of lock managers, each as a case that shows the defect in any implementation that has it. A case calls
%% `acquire/3' and `release/3' and compares answers; it does not inspect the implementation.
%% `make test WHAT=conformance' prints a table of the defects that the original's design and `canal_lock' show.
-module(canal_lock_conformance_tests).

-export([main/0, conformance_test_/0]).

-type implementation() :: canal_lock | test_original.

%% A race shows its defect in some of many rounds.
-type shown() :: boolean() | {In :: non_neg_integer(), Of :: pos_integer()}.

-type defect() :: #{
    title := string(),
    %% The label of the promise of `canal_lock' that excludes the defect.
    promise := string(),
    kind := certain | race,
    shown_by := fun((implementation()) -> shown())
}.

%% A race interrupts a process after 1 to 30 steps of its call (the VM counts reductions), 5 times at each step.
-define(STEPS, 30).
-define(TIMES, 5).

%% The VM preempts a process after this many reductions.
-define(TIME_SLICE_REDUCTIONS, 4000).

-define(ONE_SHOT_KEYS, 1000).

%% The manager is suspended all the time, so any value times out.
-define(RELEASE_TIMEOUT_MS, 100).

%% `canal_lock' has none of the defects. The original shows each defect that does not depend on chance, so the cases can
%% detect them.
conformance_test_() ->
    Tests = fun(Prefix, Implementation, Expected, Kinds) ->
        [
            {Prefix(Defect) ++ Title, fun() -> Expected = is_shown(shows(Defect, Implementation)) end}
         || Defect = #{kind := Kind, title := Title} <- defects(), lists:member(Kind, Kinds)
        ]
    end,
    test_setup:quietly(
        test_setup:tests(
            without_manager,
            Tests(fun(#{promise := Promise}) -> Promise ++ ": no " end, canal_lock, false, [certain, race]) ++
                Tests(fun(_) -> "The original shows: " end, test_original, true, [certain])
        )
    ).

%% Prints the table. The exit status of the VM is the number of defects that `canal_lock' shows.
-spec main() -> no_return().
main() ->
    ok = logger:set_primary_config(level, none),
    io:format("~-68s ~-20s ~s~n", ["defects of lock managers", "original", "canal_lock"]),
    Shown = [report(Number, Defect) || {Number, Defect} <- lists:enumerate(defects())],
    halt(length([true || true <- Shown])).

report(Number, Defect = #{title := Title}) ->
    [Original, Ours] = [shows(Defect, Implementation) || Implementation <- [test_original, canal_lock]],
    io:format("~b. ~-65s ~-20s ~s~n", [Number, Title, format(Original), format(Ours)]),
    is_shown(Ours).

format(true) -> "shown";
format(false) -> "not shown";
format({In, Of}) -> io_lib:format("in ~b of ~b rounds", [In, Of]).

is_shown({In, _}) -> In > 0;
is_shown(Shown) -> Shown.

%% A state that a case waits for in vain is a defect too.
-spec shows(defect(), implementation()) -> shown().
shows(#{shown_by := Case}, Implementation) ->
    try
        Case(Implementation)
    catch
        error:{still, _, instead_of, _} -> true
    end.

%% In the order of the design page.
-spec defects() -> [defect()].
defects() ->
    [
        #{promise => Promise, title => Title, kind => Kind, shown_by => Case}
     || {Promise, Kind, Title, Case} <- [
            {"P5", certain, "release of another's permit by a process that holds none", fun freed_by_another/1},
            {"P8", certain, "entries left behind by keys that are used once", fun one_shot_keys_stay/1},
            {"P10", certain, "count from zero after a manager restart while holders live", fun counts_from_zero/1},
            {"P6", certain, "count lowered by a caller with a smaller capacity", fun lowered_by_the_smaller/1},
            {"P4", race, "permit lost when its holder is killed", fun lost_by_a_kill/1},
            {"P4", certain, "wrong number of permits released by the death of their holder",
                fun dies_with_several/1},
            {"P5", certain, "release of another's permit by the retry of a timed-out release",
                fun retried_release/1},
            {"P1", race, "crash of a caller when two create buckets of a key at once", fun buckets_at_once/1}
        ]
    ].

%% Two callers at a capacity of 1. D1 of test_original.
freed_by_another(Implementation) ->
    with_manager(Implementation, 1, fun(_) ->
        {_, {acquired, 1}} = acquire(Implementation, db, 1, 1),
        ok = Implementation:release(db, 1, 1),
        is_granted(Implementation, db, 1, 1)
    end).

%% D2.
one_shot_keys_stay(Implementation) ->
    with_manager(Implementation, 1, fun(_) ->
        [
            {{acquired, 1}, ok} = {Implementation:acquire(Key, 1, 1), Implementation:release(Key, 1, 1)}
         || Key <- lists:seq(1, ?ONE_SHOT_KEYS)
        ],
        entries(Implementation) > 0
    end).

%% The entries on record once the implementation has removed those that it removes.
entries(canal_lock) ->
    ok = canal_lock_manager:sweep(),
    test_setup:info(keys);
entries(test_original) ->
    _ = sys:get_state(test_original),
    ets:info(test_original, size).

%% D3.
counts_from_zero(Implementation) ->
    with_manager(Implementation, 1, fun(Restart) ->
        {_, {acquired, 1}} = acquire(Implementation, db, 1, 1),
        ok = test_worker:kill(whereis(Implementation)),
        Restart(),
        is_granted(Implementation, db, 1, 1)
    end).

%% D4: the original grants a sixth permit.
lowered_by_the_smaller(Implementation) ->
    with_manager(Implementation, 5, fun(_) ->
        [{_, {acquired, N}} = acquire(Implementation, db, 5, 1) || N <- lists:seq(1, 5)],
        is_granted(Implementation, db, 2, 1) orelse is_granted(Implementation, db, 5, 1)
    end).

%% Killed at each step of the call. D5.
lost_by_a_kill(Implementation) ->
    with_manager(Implementation, 1, fun(_) ->
        rounds(fun(Step) ->
            Key = make_ref(),
            Kill = fun(Pid) -> exit(Pid, kill) end,
            Victim = interrupted(Step, fun() -> Implementation:acquire(Key, 1, 1) end, Kill),
            await_dead(Implementation, Victim),
            not is_granted(Implementation, Key, 1, 1)
        end)
    end).

%% D4 again: the permits were acquired with another MaxPer than that of the manager, which releases them.
dies_with_several(Implementation) ->
    with_manager(Implementation, 2, fun(_) ->
        {_, {acquired, 1}} = acquire(Implementation, db, 5, 1),
        {Holder, {acquired, 2}} = acquire(Implementation, db, 5, 1),
        Acquire = fun() -> Implementation:acquire(db, 5, 1) end,
        [{acquired, N} = test_worker:order(Holder, Acquire) || N <- [3, 4, 5]],
        ok = test_worker:kill(Holder),
        await_dead(Implementation, Holder),
        [is_granted(Implementation, db, 5, 1) || _ <- lists:seq(1, 5)] =/= [true, true, true, true, false]
    end).

%% Two holders at a capacity of 2; the release of one times out. D6, and D1 by the retry.
retried_release(Implementation) ->
    with_manager(Implementation, 2, fun(_) ->
        {Holder, {acquired, 1}} = acquire(Implementation, db, 2, 1),
        {_, {acquired, 2}} = acquire(Implementation, db, 2, 1),
        Release = fun() -> test_remote:attempt(fun() -> release_or_exit(Implementation, db, 2, 1) end) end,
        ok = sys:suspend(Implementation),
        First = test_worker:order(Holder, Release),
        ok = sys:resume(Implementation),
        true = is_granted(Implementation, db, 2, 1),
        First =:= ok orelse test_worker:order(Holder, Release),
        is_granted(Implementation, db, 2, 1)
    end).

release_or_exit(canal_lock, Key, MaxPer, Buckets) ->
    canal_lock:release(Key, MaxPer, Buckets);
release_or_exit(test_original, Key, MaxPer, Buckets) ->
    test_original:release(Key, MaxPer, Buckets, ?RELEASE_TIMEOUT_MS).

%% The caller that creates the first bucket is suspended at each step of its call while another creates the second. D8.
buckets_at_once(Implementation) ->
    with_manager(Implementation, 1, fun(_) ->
        rounds(fun(Step) ->
            Key = make_ref(),
            Suspend = fun(Pid) -> true = erlang:suspend_process(Pid, [asynchronous]) end,
            First = interrupted(Step, fun() -> Implementation:acquire(Key, 1, 1) end, Suspend),
            test_await:value({status, suspended}, fun() -> process_info(First, status) end),
            {_, Second} = test_worker:start(fun() ->
                test_remote:attempt(fun() -> Implementation:acquire(Key, 1, 2) end)
            end),
            true = erlang:resume_process(First),
            ok = test_worker:kill(First),
            element(1, Second) =:= error
        end)
    end).

%% Runs a case with a manager and a function that starts another one. Their parent outlives them, as a supervisor does.
with_manager(Implementation, MaxPer, Case) ->
    Parent = test_worker:start(),
    Start = fun() ->
        process_flag(trap_exit, true),
        {ok, _} = start(Implementation, MaxPer),
        ok
    end,
    ok = test_worker:order(Parent, Start),
    try
        Case(fun() -> ok = test_worker:order(Parent, Start) end)
    after
        Implementation:stop(),
        test_worker:kill(Parent)
    end.

%% As a supervisor starts it.
start(canal_lock, MaxPer) ->
    #{start := {Module, Function, Arguments}} = canal_lock:child_spec(MaxPer),
    apply(Module, Function, Arguments);
start(test_original, MaxPer) ->
    test_original:start_link(MaxPer).

%% In a process of its own, which lives until the case ends.
acquire(Implementation, Key, MaxPer, Buckets) ->
    test_worker:start(fun() -> Implementation:acquire(Key, MaxPer, Buckets) end).

is_granted(Implementation, Key, MaxPer, Buckets) ->
    {_, Answer} = acquire(Implementation, Key, MaxPer, Buckets),
    Answer =/= full.

%% Waits until the process is dead and the implementation has handled the death.
await_dead(canal_lock, Pid) ->
    test_await:down([Pid]),
    test_await:value({[], []}, fun() -> {canal_lock:held(Pid), canal_lock:audit()} end);
await_dead(test_original, Pid) ->
    test_await:down([Pid]),
    %% The manager has handled the messages that the process sent before it died.
    _ = sys:get_state(test_original),
    test_await:value(false, fun() ->
        {monitors, Monitors} = process_info(whereis(test_original), monitors),
        lists:member({process, Pid}, Monitors)
    end),
    _ = sys:get_state(test_original),
    ok.

%% The number of rounds that show the defect, of all rounds.
rounds(Round) ->
    Rounds = [Round(Step) || _ <- lists:seq(1, test_setup:times(?TIMES)), Step <- lists:seq(1, ?STEPS)],
    {length([true || true <- Rounds]), length(Rounds)}.

%% A worker that makes a call and receives a signal in it. The VM delivers the signal at the end of the time slice,
%% which comes after this many steps of the call. (With one scheduler it comes before the call, and interrupts nothing.)
interrupted(Step, Call, Interrupt) ->
    Turn = atomics:new(1, []),
    Another = 1 + erlang:system_info(scheduler_id) rem erlang:system_info(schedulers_online),
    Worker = test_worker:start_on(Another),
    _ = test_worker:send_order(Worker, fun() ->
        true = erlang:yield(),
        Before = reductions(),
        atomics:put(Turn, 1, 1),
        await_turn(Turn, 2),
        true = erlang:bump_reductions(max(1, ?TIME_SLICE_REDUCTIONS - (reductions() - Before) - Step)),
        Call()
    end),
    await_turn(Turn, 1),
    Interrupt(Worker),
    atomics:put(Turn, 1, 2),
    Worker.

reductions() ->
    {reductions, Reductions} = process_info(self(), reductions),
    Reductions.

await_turn(Turn, Wanted) ->
    case atomics:get(Turn, 1) of
        Wanted -> ok;
        _ -> await_turn(Turn, Wanted)
    end.
