%% Measures whether growth of the table, the sweep or inspection delays callers. One process times each of its pairs:
%%   "quiet"             nothing else runs
%%   "beside a sweep"    a sweep runs without pause while another process creates a new key in each call
%%   "beside keys/0, audit/0 and info/0"   each is called in a loop on a table of many held keys
%% The background processes run on other schedulers, if the machine has them, so that only the table can delay a pair.
%% Compare with "quiet": on a shared machine, the machine causes most of the longest calls.
%%
%% Options of the mode: latency_pairs (per condition), latency_keys (keys that are inspected).
-module(bench_background).

-export([pairs/1]).

-define(MAX_PER, 10).
%% As the manager.
-define(STEP_KEYS, 256).
-define(WAIT_MS, 1).
%% The manager itself does not sweep.
-define(NEVER_MS, 3600000).
%% They hold the keys that are inspected.
-define(HOLDERS, 1000).

-spec pairs(map()) -> [{Variant :: string(), ours, pair, [Ns :: integer()]}].
pairs(#{latency_pairs := Calls, latency_keys := Keys}) ->
    {ok, _} = canal_lock:start_link(?MAX_PER, #{sweep_interval_ms => ?NEVER_MS}),
    Handle = element(3, sys:get_state(canal_lock)),
    Quiet = beside([], Calls),
    Swept = beside([fun one_shot/1, fun(_) -> sweep_step(Handle) end], Calls),
    #{reclaimed := Reclaimed} = canal_lock:info(),
    true = Reclaimed > 0,
    Holders = [spawn_monitor(fun() -> hold(Holder, Keys div ?HOLDERS) end) || Holder <- lists:seq(1, ?HOLDERS)],
    ok = bench_records:await_permits(ours, [{Holder, Keys div ?HOLDERS} || Holder <- lists:seq(1, ?HOLDERS)], 1),
    Inspection = [fun(_) -> canal_lock:keys() end, fun(_) -> canal_lock:audit() end, fun(_) -> canal_lock:info() end],
    Inspected = beside(Inspection, Calls),
    ok = bench_process:kill(Holders),
    ok = bench_records:closed(ours),
    [
        {"quiet", ours, pair, Quiet},
        {"beside a sweep", ours, pair, Swept},
        {"beside keys/0, audit/0 and info/0", ours, pair, Inspected}
    ].

%% Each background task has completed once before the first pair is timed.
beside(Tasks, Calls) ->
    Others = [other(Task, Number) || {Number, Task} <- lists:enumerate(0, Tasks)],
    [ok = at_work(Other) || Other <- Others],
    Ns = bench_times:of_calls(Calls, fun pair/0),
    ok = bench_process:kill(Others),
    Ns.

pair() ->
    Start = erlang:monotonic_time(),
    {acquired, _} = canal_lock:acquire(hot, ?MAX_PER, 1),
    ok = canal_lock:release(hot, ?MAX_PER, 1),
    erlang:monotonic_time() - Start.

other(Task, Number) ->
    Parent = self(),
    Run = fun() ->
        Task(0),
        Parent ! {self(), at_work},
        repeat(Task, 1)
    end,
    spawn_opt(Run, [monitor, place(Number)]).

at_work({Pid, Monitor}) ->
    receive
        {Pid, at_work} -> ok;
        {'DOWN', Monitor, process, Pid, Reason} -> error({beside, Reason})
    end.

repeat(Task, Lap) ->
    Task(Lap),
    repeat(Task, Lap + 1).

one_shot(Lap) ->
    {acquired, 1} = canal_lock:acquire({one_shot, Lap}, 1, 1),
    ok = canal_lock:release({one_shot, Lap}, 1, 1).

sweep_step(Handle) ->
    case canal_lock_nif:sweep_step(Handle, ?STEP_KEYS) of
        waiting -> timer:sleep(?WAIT_MS);
        _ -> ok
    end.

hold(Holder, Keys) ->
    [{acquired, 1} = canal_lock:acquire({Holder, Key}, 1, 1) || Key <- lists:seq(1, Keys)],
    timer:sleep(infinity).

%% Not the first scheduler, which times the pairs, if there is another one.
place(Number) ->
    case erlang:system_info(schedulers_online) of
        1 -> {scheduler, 1};
        Schedulers -> {scheduler, 2 + Number rem (Schedulers - 1)}
    end.
