%% Does anybody wait for the growth of the table, for its sweep, or for those who look at it? One process times each
%% of its pairs by itself: "quiet", while nothing else goes on; "beside a sweep" that never rests, while another
%% process makes a new key at each call; "beside keys/0, audit/0 and info/0" of many held keys, each called over and
%% over. What goes on beside has its own schedulers, if there are any, so that it is waited for only where the table
%% makes somebody wait. Compare with the quiet one: on a shared machine the longest of many calls is mostly the
%% machine's.
%%
%% Of the mode: latency_pairs, of each condition; latency_keys, that are looked at.
-module(bench_beside).

-export([pairs/1]).

-define(MAX_PER, 10).
%% As the manager does it.
-define(STEP_KEYS, 256).
-define(WAIT_MS, 1).
%% The manager itself does not sweep.
-define(NEVER_MS, 3600000).
%% Of the keys that are looked at.
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
    ok = bench_books:await_permits(ours, [{Holder, Keys div ?HOLDERS} || Holder <- lists:seq(1, ?HOLDERS)], 1),
    Look = [fun(_) -> canal_lock:keys() end, fun(_) -> canal_lock:audit() end, fun(_) -> canal_lock:info() end],
    LookedAt = beside(Look, Calls),
    [ok = kill(Holder) || Holder <- Holders],
    ok = bench_books:closed(ours),
    [
        {"quiet", ours, pair, Quiet},
        {"beside a sweep", ours, pair, Swept},
        {"beside keys/0, audit/0 and info/0", ours, pair, LookedAt}
    ].

%% Each of the others has gone round once before the first pair is timed, so that all are in the middle of it.
beside(Tasks, Calls) ->
    Others = [other(Task, Number) || {Number, Task} <- lists:enumerate(0, Tasks)],
    [ok = at_work(Other) || Other <- Others],
    Ns = bench_times:of_calls(Calls, fun pair/0),
    [ok = kill(Other) || Other <- Others],
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
        again_and_again(Task, 1)
    end,
    spawn_opt(Run, [monitor, place(Number)]).

at_work({Pid, Monitor}) ->
    receive
        {Pid, at_work} -> ok;
        {'DOWN', Monitor, process, Pid, Reason} -> error({beside, Reason})
    end.

again_and_again(Task, Lap) ->
    Task(Lap),
    again_and_again(Task, Lap + 1).

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
    receive
    after infinity -> ok
    end.

%% Not on the first scheduler, where the pairs are timed, if there is another.
place(Number) ->
    case erlang:system_info(schedulers_online) of
        1 -> {scheduler, 1};
        Schedulers -> {scheduler, 2 + Number rem (Schedulers - 1)}
    end.

kill({Pid, Monitor}) ->
    exit(Pid, kill),
    receive
        {'DOWN', Monitor, process, Pid, Reason} ->
            killed = Reason,
            ok
    end.
