%% Calls and steps of the manager count reductions in proportion to their work, so that the VM schedules other
%% processes in time. canal_lock_stalls_tests measures how long other processes wait.
-module(canal_lock_timeslice_tests).

-include_lib("eunit/include/eunit.hrl").

-define(NEVER_MS, 3_600_000).

%% A timeslice has 4000 reductions and should last 1 ms. Reading or freeing a key takes at most 0.4 us.
-define(REDUCTIONS_PER_KEY, 1.6).

timeslice_test_() ->
    test_setup:tests(without_manager, [
        {"a step of the sweep counts idle keys and keys in use", fun sweep/0},
        {"other processes run while a table is freed", fun free_keys/0},
        {"a step of dismantling a table counts a timeslice for some monitors", fun dismantle/0},
        {"the manager uses a dirty scheduler only if there is something to free", fun dirty/0},
        {"opening a table counts reductions", fun open/0},
        {"ending the waits of a table counts reductions", fun end_waits/0},
        {"each piece of the grants of a resize counts half a timeslice", fun resize/0},
        {"a step that finds nothing to do counts little", fun idle/0},
        {"a call with a key that takes long to read counts reductions", fun long_to_read/0},
        {"a call that stops reading a key that is too long counts reductions", fun too_long_to_read/0}
    ]).

sweep() ->
    Handle = opened(),
    ok = use(20_000),
    %% The first pass clears the mark of use, the second one unlinks, the third one is of an empty table.
    [?assert(enough(pass(fun() -> canal_lock_nif:sweep_step(Handle, 256) end), 20_000)) || _ <- [1, 2]],
    ?assertMatch(#{keys := 0}, canal_lock:info()),
    Empty = pass(fun() -> canal_lock_nif:sweep_step(Handle, 256) end),
    ok = hold(20_000),
    Held = pass(fun() -> canal_lock_nif:sweep_step(Handle, 256) end),
    ?assert(enough(Held - Empty, 20_000)),
    %% No step takes much more than its budget.
    Step = reductions(fun() -> more = canal_lock_nif:sweep_step(Handle, 256) end),
    ?assert(enough(Step, 200)),
    ?assertNot(enough(Step, 1000)),
    ok = canal_lock_nif:close(Handle).

%% A step counts the work that it has done, not its budget.
idle() ->
    Handle = opened(),
    [?assertNot(enough(reductions(fun() -> canal_lock_nif:sweep_step(Handle, 256) end), 256)) || _ <- [1, 2, 3, 4]],
    ok = canal_lock_nif:close(Handle).

%% The VM has one scheduler. If freeing blocked it, the other process would run at most twice before it ends.
free_keys() ->
    Yields = test_setup:in_a_vm(["+S", "1:1"], fun() ->
        Handle = opened(),
        ok = use(100_000),
        ok = canal_lock_nif:close(Handle),
        _ = run(fun canal_lock_nif:dismantle_step/0),
        true = canal_lock_nif:has_unused(),
        Test = self(),
        spawn_link(fun() ->
            Test ! freeing,
            Test ! {freed, canal_lock_nif:free_unused()}
        end),
        receive freeing -> yields_before_freed(0) end
    end),
    ?assert(Yields > 10).

yields_before_freed(Yields) ->
    receive
        {freed, ok} -> Yields
    after 0 ->
        erlang:yield(),
        yields_before_freed(Yields + 1)
    end.

%% The holders of one slot share a watch. There are 1024 slots.
dismantle() ->
    Holders = 5_000,
    Handle = opened(),
    _ = [test_worker:holder(#{db => 1}) || _ <- lists:seq(1, Holders)],
    ok = canal_lock_nif:close(Handle),
    {Reductions, Steps} = run(fun canal_lock_nif:dismantle_step/0),
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
        [Call || {trace, _, call, Call} <- test_await:traced(Manager)]
    end,
    ok = use(1_000),
    ?assertEqual([], Sweep()),
    ?assertMatch(#{keys := 0}, canal_lock:info()),
    Long = lists:seq(1, 9_000),
    {ok, ok} = canal_lock:with_permit(Long, 1, 1, fun() -> ok end),
    %% The long key is freed.
    ?assertMatch([{canal_lock_nif, free_unused, []} | _], Sweep()),
    erlang:trace_pattern({canal_lock_nif, free_unused, 0}, false, []),
    ok = canal_lock:stop().

open() ->
    Reductions = reductions(fun() -> canal_lock_nif:open(1024, 3, false, 1000) end),
    ?assert(Reductions >= 400),
    ok = test_manager_crash:forget(),
    Handle = opened(),
    Refs = [Ref || _ <- lists:seq(1, 400), {waiting, Ref} <- [canal_lock:request(db, 0, 1)]],
    more = canal_lock_nif:end_waits(Handle),
    %% Each call ends a piece of the waits that an interrupted shutdown has left. The table is open until then.
    [?assert(reductions(fun() -> more = canal_lock_nif:open(1024, 3, false, 1000) end) >= 1000) || _ <- [1, 2]],
    ?assertEqual(400 - 3 * 128, canal_lock:waiting(db)),
    _ = canal_lock_nif:open(1024, 3, false, 1000),
    [receive {canal_lock, Ref, closed} -> ok end || Ref <- Refs],
    ok = test_manager_crash:forget().

%% Each step counts a quarter of a timeslice.
end_waits() ->
    Handle = opened(),
    Refs = [Ref || _ <- lists:seq(1, 300), {waiting, Ref} <- [canal_lock:request(db, 0, 1)]],
    {Reductions, Steps} = run(fun() -> canal_lock_nif:end_waits(Handle) end),
    ?assertEqual(2, Steps),
    ?assert(Reductions >= 1000 * (Steps + 1)),
    [receive {canal_lock, Ref, closed} -> ok end || Ref <- Refs],
    ok = canal_lock_nif:close(Handle).

resize() ->
    Handle = opened(),
    Refs = [Ref || _ <- lists:seq(1, 900), {waiting, Ref} <- [canal_lock:request(db, 0, 1)]],
    ?assert(reductions(fun() -> more = canal_lock_nif:resize(db, 900, 1, 900) end) >= 2000),
    {Reductions, Steps} = run(fun() -> canal_lock_nif:settle(local, db) end),
    ?assert(Steps > 0),
    ?assert(Reductions >= 2000 * Steps),
    [receive {canal_lock, Ref, {acquired, _}} -> ok end || Ref <- Refs],
    ok = canal_lock_nif:close(Handle).

%% 10 us count as 1 % of a timeslice. Each of these calls takes at least 20 us.
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

%% The call reads 2000 elements of the key, twice.
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
    canal_lock_nif:open(1024, 3, false, 1000).

use(Keys) ->
    _ = [{ok, ok} = canal_lock:with_permit({key, N}, 1, 1, fun() -> ok end) || N <- lists:seq(1, Keys)],
    ok.

hold(Keys) ->
    _ = [{acquired, _} = canal_lock:acquire({key, N}, 1, 1) || N <- lists:seq(1, Keys)],
    ok.

%% Runs a step until it returns `done'. Returns the reductions of the steps, and how many of them return `more'.
run(Step) ->
    run(Step, 0, 0).

run(Step, Sum, Steps) ->
    case measured(Step) of
        {Reductions, more} -> run(Step, Sum + Reductions, Steps + 1);
        {Reductions, done} -> {Sum + Reductions, Steps};
        {_, waiting} ->
            true = erlang:yield(),
            run(Step, Sum, Steps)
    end.

pass(Step) ->
    element(1, run(Step)).

reductions(Work) ->
    element(1, measured(Work)).

%% A native function counts at most the rest of the timeslice, so the work begins with a new one.
measured(Work) ->
    true = erlang:yield(),
    {reductions, Before} = process_info(self(), reductions),
    Answer = Work(),
    {reductions, After} = process_info(self(), reductions),
    {After - Before, Answer}.
