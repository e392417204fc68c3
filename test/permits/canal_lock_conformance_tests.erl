%% What lock managers are known to get wrong, each as a case that shows it in whatever implementation has it: by calls
%% of `acquire/3' and `release/3' and what is answered, not by a look inside. `make conformance' prints a table of
%% what the original's design and `canal_lock' show.
-module(canal_lock_conformance_tests).

-export([main/0, conformance_test_/0]).

-type implementation() :: canal_lock | test_original.

%% What a case has shown. A race is shown in some rounds of many.
-type shown() :: boolean() | {In :: non_neg_integer(), Of :: pos_integer()}.

-type defect() :: #{
    title := string(),
    %% The label of what `canal_lock' promises about it.
    promise := string(),
    kind := certain | race,
    shown_by := fun((implementation()) -> shown())
}.

%% In a race somebody is stopped in the middle of a call, after so many steps of it at most (the VM counts
%% reductions), and so often at each.
-define(STEPS, 30).
-define(TIMES, 5).

%% So much a process may do before the VM lets others go on.
-define(TIME_SLICE_REDUCTIONS, 4000).

-define(ONE_SHOT_KEYS, 1000).

%% The manager is suspended for as long, so any time does.
-define(RELEASE_TIMEOUT_MS, 100).

%% That `canal_lock' shows none of them; and that the original shows what does not depend on chance, so the cases can
%% tell.
conformance_test_() ->
    Defects = defects(),
    test_setup:quietly(
        test_setup:tests(
            without_manager,
            [
                {Promise ++ ": not " ++ Title, fun() -> false = is_shown(shows(Defect, canal_lock)) end}
             || Defect = #{promise := Promise, title := Title} <- Defects
            ] ++
                [
                    {"By the original: " ++ Title, fun() -> true = is_shown(shows(Defect, test_original)) end}
                 || Defect = #{kind := certain, title := Title} <- Defects
                ]
        )
    ).

%% Prints the table. The status that the VM ends with is how many of them `canal_lock' shows.
-spec main() -> no_return().
main() ->
    ok = logger:set_primary_config(level, none),
    io:format("~-68s ~-20s ~s~n", ["what lock managers get wrong", "original", "canal_lock"]),
    Shown = [report(Number, Defect) || {Number, Defect} <- lists:zip(lists:seq(1, length(defects())), defects())],
    halt(length([true || true <- Shown])).

report(Number, Defect = #{title := Title}) ->
    [Original, Ours] = [shows(Defect, Implementation) || Implementation <- [test_original, canal_lock]],
    io:format("~b. ~-65s ~-20s ~s~n", [Number, Title, in_words(Original), in_words(Ours)]),
    is_shown(Ours).

in_words(true) -> "shown";
in_words(false) -> "not shown";
in_words({In, Of}) -> io_lib:format("in ~b of ~b rounds", [In, Of]).

is_shown({In, _}) -> In > 0;
is_shown(Shown) -> Shown.

%% What never comes about, though it is waited for, is wrong too.
-spec shows(defect(), implementation()) -> shown().
shows(#{shown_by := Case}, Implementation) ->
    try
        Case(Implementation)
    catch
        error:{still, _, instead_of, _} -> true
    end.

%% In the order in which the design lists them.
-spec defects() -> [defect()].
defects() ->
    [
        certain("P5", "who holds nothing releases, and frees another's permit", fun freed_by_a_stranger/1),
        certain("P8", "a key that is used once leaves something behind for ever", fun one_shot_keys_stay/1),
        certain("P10", "a manager that comes back counts from zero while holders live", fun counts_from_zero/1),
        certain("P6", "one with a smaller capacity lowers the count", fun lowered_by_the_smaller/1),
        race("P4", "the permit of a holder that is killed is lost", fun lost_by_a_kill/1),
        certain("P4", "who takes several and dies gives back one too few or too many", fun dies_with_several/1),
        certain("P5", "a release that timed out, and is retried, frees another's permit", fun retried_release/1),
        race("P1", "of two who make buckets of a key at once, one crashes", fun buckets_at_once/1)
    ].

certain(Promise, Title, Case) ->
    #{promise => Promise, title => Title, kind => certain, shown_by => Case}.

race(Promise, Title, Case) ->
    #{promise => Promise, title => Title, kind => race, shown_by => Case}.

%% Two at a limit of one. D1 of test_original.
freed_by_a_stranger(Implementation) ->
    with_manager(Implementation, 1, fun(_) ->
        {_, {acquired, 1}} = acquire(Implementation, db, 1, 1),
        ok = Implementation:release(db, 1, 1),
        is_granted(Implementation, db, 1, 1)
    end).

%% D2.
one_shot_keys_stay(Implementation) ->
    with_manager(Implementation, 1, fun(_) ->
        [
            begin
                {acquired, 1} = Implementation:acquire(Key, 1, 1),
                ok = Implementation:release(Key, 1, 1)
            end
         || Key <- lists:seq(1, ?ONE_SHOT_KEYS)
        ],
        left(Implementation) > 0
    end).

%% What it has on record when it has done what it does about that.
left(canal_lock) ->
    ok = canal_lock_manager:sweep(),
    maps:get(keys, canal_lock:info());
left(test_original) ->
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

%% D4: the sixth is granted.
lowered_by_the_smaller(Implementation) ->
    with_manager(Implementation, 5, fun(_) ->
        [{_, {acquired, N}} = acquire(Implementation, db, 5, 1) || N <- lists:seq(1, 5)],
        is_granted(Implementation, db, 2, 1) orelse is_granted(Implementation, db, 5, 1)
    end).

%% At each step of its call. D5.
lost_by_a_kill(Implementation) ->
    with_manager(Implementation, 1, fun(_) ->
        rounds(fun(Step) ->
            Key = make_ref(),
            Kill = fun(Pid) -> exit(Pid, kill) end,
            Victim = interrupted(Step, fun() -> Implementation:acquire(Key, 1, 1) end, Kill),
            dead(Implementation, Victim),
            not is_granted(Implementation, Key, 1, 1)
        end)
    end).

%% D4 once more: they were taken with another MaxPer than the manager's, which gives them back.
dies_with_several(Implementation) ->
    with_manager(Implementation, 2, fun(_) ->
        {_, {acquired, 1}} = acquire(Implementation, db, 5, 1),
        {Holder, {acquired, 2}} = acquire(Implementation, db, 5, 1),
        Acquire = fun() -> Implementation:acquire(db, 5, 1) end,
        [{acquired, N} = test_worker:order(Holder, Acquire) || N <- [3, 4, 5]],
        ok = test_worker:kill(Holder),
        dead(Implementation, Holder),
        [is_granted(Implementation, db, 5, 1) || _ <- lists:seq(1, 5)] =/= [true, true, true, true, false]
    end).

%% Two at a limit of two, of whom one waits in vain for the answer to its release. D6, and D1 by the retry.
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

%% One that makes the first bucket stops at each step of its call, and the other one makes the second. D8.
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

%% A manager, and how to start it again. Its parent outlives it, as a supervisor.
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

%% As a supervisor does.
start(canal_lock, MaxPer) ->
    #{start := {Module, Function, Arguments}} = canal_lock:child_spec(MaxPer),
    apply(Module, Function, Arguments);
start(test_original, MaxPer) ->
    test_original:start_link(MaxPer).

%% By a process of its own, which lives as long as the case.
acquire(Implementation, Key, MaxPer, Buckets) ->
    test_worker:start(fun() -> Implementation:acquire(Key, MaxPer, Buckets) end).

is_granted(Implementation, Key, MaxPer, Buckets) ->
    {_, Answer} = acquire(Implementation, Key, MaxPer, Buckets),
    Answer =/= full.

%% Waits until it is dead, and the implementation has done all that it does about that.
dead(canal_lock, Pid) ->
    test_await:down([Pid]),
    test_await:value({[], []}, fun() -> {canal_lock:held(Pid), canal_lock:audit()} end);
dead(test_original, Pid) ->
    test_await:down([Pid]),
    %% What it has sent before it died.
    _ = sys:get_state(test_original),
    test_await:value(false, fun() ->
        {monitors, Monitors} = process_info(whereis(test_original), monitors),
        lists:member({process, Pid}, Monitors)
    end),
    _ = sys:get_state(test_original),
    ok.

%% In how many rounds it is so.
rounds(Round) ->
    Rounds = [Round(Step) || _ <- lists:seq(1, test_setup:times(?TIMES)), Step <- lists:seq(1, ?STEPS)],
    {length([true || true <- Rounds]), length(Rounds)}.

%% A worker that makes a call, and gets a signal when it begins: the VM delivers that at the end of the time slice,
%% which comes so many steps later. (Without a second scheduler it comes before the call, and nothing is interrupted.)
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
