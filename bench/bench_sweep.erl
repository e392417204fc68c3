%% Measures the sweep: sweeps a table of idle keys in two passes, like the manager. The first pass spares the keys, the
%% second reclaims them. For the effect on callers see "beside a sweep" of bench_background.
%%
%% "step": duration of each step; the manager can serve requests between steps. Steps in which the sweep only waits for
%% other threads are excluded. "per key", reclaim: total of all steps by the number of keys.
%%
%% Options of the mode: sweep_rounds; sweep_keys.
-module(bench_sweep).

-export([measure/2]).
%% Called in the other VM.
-export([sweep/1]).

%% As the manager.
-define(STEP_KEYS, 256).
-define(WAIT_MS, 1).
-define(PASSES, 2).
%% The manager itself does not sweep.
-define(NEVER_MS, 3600000).

-spec measure(map(), fun((iodata()) -> ok)) -> #{bench_results:id() => [{pos_integer(), float()}]}.
measure(#{sweep_rounds := Rounds, sweep_keys := Keys}, Report) ->
    bench_rounds:play(Rounds, fun(Round) ->
        ok = Report(io_lib:format("sweep of ~b keys, round ~b of ~b", [Keys, Round, Rounds])),
        Ns = bench_vm:call(ours, ?MODULE, sweep, [Keys]),
        [
            {{sweep, "per key", none, ours, reclaim}, lists:sum(Ns) / Keys}
            | [{{sweep, "step", none, ours, Measure}, Us} || {Measure, Us} <- bench_times:worst_us(Ns)]
        ]
    end).

-spec sweep(Keys :: pos_integer()) -> [Ns :: integer()].
sweep(Keys) ->
    {ok, _} = canal_lock:start_link(1, #{sweep_interval_ms => ?NEVER_MS}),
    Handle = element(3, sys:get_state(canal_lock)),
    [
        {{acquired, 1}, ok} = {canal_lock:acquire({app, I}, 1, 1), canal_lock:release({app, I}, 1, 1)}
     || I <- lists:seq(1, Keys)
    ],
    #{keys := Keys, reclaimed := 0} = canal_lock:info(),
    Ns = [bench_times:of_native(Time) || Time <- bench_times:in_a_process(fun() -> passes(Handle, ?PASSES, []) end)],
    #{keys := 0, reclaimed := Keys} = canal_lock:info(),
    ok = bench_records:closed(ours),
    Ns.

passes(_Handle, 0, Times) ->
    Times;
passes(Handle, Left, Times) ->
    Start = erlang:monotonic_time(),
    Progress = canal_lock_nif:sweep_step(Handle, ?STEP_KEYS),
    Time = erlang:monotonic_time() - Start,
    case Progress of
        more ->
            passes(Handle, Left, [Time | Times]);
        done ->
            passes(Handle, Left - 1, [Time | Times]);
        waiting ->
            timer:sleep(?WAIT_MS),
            passes(Handle, Left, Times)
    end.
