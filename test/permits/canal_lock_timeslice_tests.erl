%% What our calls and the steps of the manager count as, so that the VM lets other processes run in time: the reductions
%% of the calling process grow in proportion to the work. How long others wait is in canal_lock_stalls_tests.
-module(canal_lock_timeslice_tests).

-include_lib("eunit/include/eunit.hrl").

-define(NEVER_MS, 3_600_000).

%% A timeslice has 4000 reductions and is meant to last 1 ms. A key that is looked at or freed takes 0.4 us at most.
-define(REDUCTIONS_PER_KEY, 1.6).

timeslice_test_() ->
    test_setup:tests(without_manager, [
        {"a step of the sweep, of idle keys and of keys in use", fun sweep/0},
        {"other processes run while a table is freed", fun free_keys/0},
        {"a step of dismantling takes a timeslice for some monitors", fun dismantle/0},
        {"a manager asks for a dirty scheduler only if there is something to free", fun dirty/0},
        {"to open a table", fun open/0},
        {"a step that finds nothing to do", fun idle/0},
        {"a call with a key that takes long to read", fun long_to_read/0},
        {"a call that stops reading its key because it is too long", fun too_long_to_read/0}
    ]).

sweep() ->
    Handle = opened(),
    ok = use(20_000),
    %% The first pass clears the mark of use, the second one unlinks, the third one is of an empty table.
    [?assert(enough(pass(fun() -> canal_lock_nif:sweep_step(Handle, 256) end), 20_000)) || _ <- [1, 2]],
    ?assertMatch(#{keys := 0}, canal_lock:info()),
    Empty = pass(fun() -> canal_lock_nif:sweep_step(Handle, 256) end),
    ok = take(20_000),
    Held = pass(fun() -> canal_lock_nif:sweep_step(Handle, 256) end),
    ?assert(enough(Held - Empty, 20_000)),
    %% No step takes much more than its budget.
    Step = reductions(fun() -> more = canal_lock_nif:sweep_step(Handle, 256) end),
    ?assert(enough(Step, 200)),
    ?assertNot(enough(Step, 1000)),
    ok = canal_lock_nif:close(Handle).

%% Whatever it may do, what counts is what it has done.
idle() ->
    Handle = opened(),
    [?assertNot(enough(reductions(fun() -> canal_lock_nif:sweep_step(Handle, 256) end), 256)) || _ <- [1, 2, 3, 4]],
    ok = canal_lock_nif:close(Handle).

%% The VM has one scheduler. If that were occupied, the other process would have its next turn afterwards.
free_keys() ->
    Turns = test_setup:in_a_vm(["+S", "1:1"], fun() ->
        Handle = opened(),
        ok = use(100_000),
        ok = canal_lock_nif:close(Handle),
        _ = dismantled(),
        true = canal_lock_nif:has_unused(),
        Test = self(),
        spawn_link(fun() ->
            Test ! freeing,
            Test ! {freed, canal_lock_nif:free_unused()}
        end),
        receive
            freeing -> turns_before_freed(0)
        end
    end),
    ?assert(Turns > 1000).

turns_before_freed(Turns) ->
    receive
        {freed, ok} -> Turns
    after 0 ->
        erlang:yield(),
        turns_before_freed(Turns + 1)
    end.

%% The holders of one place share a watch: there are 1024.
dismantle() ->
    Holders = 5_000,
    Handle = opened(),
    _ = [test_worker:holder(#{db => 1}) || _ <- lists:seq(1, Holders)],
    ok = canal_lock_nif:close(Handle),
    Test = self(),
    Reductions = reductions(fun() -> Test ! {steps, dismantled()} end),
    Steps =
        receive
            {steps, Number} -> Number
        end,
    ?assert(Steps > Holders / (64 + Holders / 1024 * 2)),
    ?assert(Reductions > 3000 * Steps),
    ok = canal_lock_nif:free_unused().

dirty() ->
    {ok, Manager} = canal_lock:start_link(3, #{sweep_interval_ms => ?NEVER_MS}),
    ok = canal_lock_manager:sweep(),
    1 = erlang:trace_pattern({canal_lock_nif, free_unused, 0}, true, []),
    1 = erlang:trace(Manager, true, [call]),
    Sweep = fun() ->
        ok = canal_lock_manager:sweep(),
        Delivered = erlang:trace_delivered(Manager),
        receive
            {trace_delivered, Manager, Delivered} -> ok
        end
    end,
    ok = use(1_000),
    Sweep(),
    ?assertMatch(#{keys := 0}, canal_lock:info()),
    receive
        {trace, Manager, call, Needless} -> ?assertEqual(none, Needless)
    after 0 -> ok
    end,
    Long = lists:seq(1, 9_000),
    {ok, ok} = canal_lock:with_permit(Long, 1, 1, fun() -> ok end),
    Sweep(),
    receive
        {trace, Manager, call, {canal_lock_nif, free_unused, []}} -> ok
    after 0 -> ?assert(false, "the long key has not been freed")
    end,
    erlang:trace_pattern({canal_lock_nif, free_unused, 0}, false, []),
    ok = canal_lock:stop().

open() ->
    Reductions = reductions(fun() -> canal_lock_nif:open(1024, 3, false) end),
    ?assert(Reductions >= 400),
    ok = test_manager_crash:forget().

%% A percent of a timeslice for 10 us: these take 20 us at least.
long_to_read() ->
    Handle = opened(),
    Keys = [
        [1 bsl 64 + N || N <- lists:seq(1, 100)],
        lists:duplicate(1500, #{}),
        lists:foldl(fun(_, Inner) -> #{1 => Inner} end, a, lists:seq(1, 300)),
        lists:foldl(fun(_, Inner) -> {Inner} end, a, lists:seq(1, 1500)),
        <<0:(8 * 40_000)>>
    ],
    Pair = fun(Key) -> {{acquired, _}, ok} = {canal_lock_nif:acquire(Key, 3, 1), canal_lock_nif:release(Key)} end,
    [Pair(Key) || Key <- Keys],
    [?assertMatch({_, Reductions} when Reductions >= 2 * 80, {Key, reductions(fun() -> Pair(Key) end)}) || Key <- Keys],
    ?assert(reductions(fun() -> Pair(db) end) < 40),
    ok = canal_lock_nif:close(Handle).

%% Two thousand of its elements are read, twice.
too_long_to_read() ->
    Handle = opened(),
    Key = lists:duplicate(9_000, {}),
    Reductions = reductions(fun() -> {raise, intern, _} = canal_lock_nif:acquire(Key, 3, 1) end),
    ?assert(Reductions >= 200),
    ok = canal_lock_nif:close(Handle).

enough(Reductions, Keys) ->
    Reductions >= 0.8 * ?REDUCTIONS_PER_KEY * Keys.

opened() ->
    ok = test_manager_crash:forget(),
    canal_lock_nif:open(1024, 3, false).

%% How many steps it takes to free what has been closed.
dismantled() ->
    case canal_lock_nif:dismantle_step() of
        more ->
            1 + dismantled();
        waiting ->
            timer:sleep(1),
            dismantled();
        done ->
            0
    end.

use(Keys) ->
    _ = [{ok, ok} = canal_lock:with_permit({key, N}, 1, 1, fun() -> ok end) || N <- lists:seq(1, Keys)],
    ok.

take(Keys) ->
    _ = [{acquired, _} = canal_lock:acquire({key, N}, 1, 1) || N <- lists:seq(1, Keys)],
    ok.

%% The reductions of all steps until there is no more to do.
pass(Step) ->
    pass(Step, 0).

pass(Step, Sum) ->
    Parent = self(),
    Reductions = reductions(fun() -> Parent ! {progress, Step()} end),
    receive
        {progress, more} ->
            pass(Step, Sum + Reductions);
        {progress, waiting} ->
            timer:sleep(1),
            pass(Step, Sum);
        {progress, done} ->
            Sum + Reductions
    end.

reductions(Work) ->
    {reductions, Before} = process_info(self(), reductions),
    _ = Work(),
    {reductions, After} = process_info(self(), reductions),
    After - Before.
