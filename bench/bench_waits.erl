%% Does anybody wait for the growth of the table, for its sweep, or for those who look at it? Each call of one process
%% is timed by itself, while nothing else goes on, while another process makes a new key at each call and the manager
%% sweeps all the time, and while another looks at a table of many keys that are held, over and over; and each step of
%% a sweep and each piece of such a look is timed too. On a shared machine the longest of a million calls is mostly the
%% machine's: compare it with the quiet one's.
-module(bench_waits).

-export([measure/1]).
%% Called in the other VM.
-export([run/1]).

-define(CALLS, 1000000).
%% As the manager does it.
-define(STEP_KEYS, 256).
-define(PIECE_KEYS, 512).

-spec measure(Keys :: pos_integer()) -> [{Variant :: string(), bench_cases:op(), Us :: float()}].
measure(Keys) ->
    bench_vm:call(ours, ?MODULE, run, [Keys]).

-spec run(Keys :: pos_integer()) -> [{Variant :: string(), bench_cases:op(), Us :: float()}].
run(Keys) ->
    ok = bench_subjects:start(ours),
    Quiet = in_a_process(fun() -> calls() end),
    Restless = [spawn_link(fun() -> come_and_go(0) end), spawn_link(fun sweep_all_the_time/0)],
    Busy = in_a_process(fun() -> calls() end),
    ok = end_all(Restless),
    in_a_process(fun() -> [one_shot(I) || I <- lists:seq(1, Keys)] end),
    Steps = steps(element(3, sys:get_state(canal_lock)), []),
    Holders = hold(Keys),
    Looking = [spawn_link(fun look_all_the_time/0)],
    LookedAt = in_a_process(fun() -> calls() end),
    ok = end_all(Looking),
    Pieces = in_a_process(fun() -> pieces(0, []) end),
    ok = end_all(Holders),
    lists:append([
        worst("pair, quiet", Quiet),
        worst("pair, in storm", Busy),
        worst("pair, looked at", LookedAt),
        worst("sweep step", Steps),
        worst("piece of keys/0", Pieces)
    ]).

end_all(Pids) ->
    [begin unlink(Pid), exit(Pid, kill) end || Pid <- Pids],
    ok.

%% By a thousand processes.
hold(Keys) ->
    Parent = self(),
    Each = Keys div 1000,
    Take = fun(P) -> [{acquired, 1} = canal_lock:acquire({P, I}, 1, 1) || I <- lists:seq(1, Each)] end,
    Holders = [
        spawn_link(fun() -> Take(P), Parent ! {self(), holding}, receive after infinity -> ok end end)
     || P <- lists:seq(1, 1000)
    ],
    [receive {Holder, holding} -> ok end || Holder <- Holders],
    Holders.

look_all_the_time() ->
    _ = canal_lock:keys(),
    _ = canal_lock:holders(hot),
    _ = canal_lock:audit(),
    _ = canal_lock:info(),
    look_all_the_time().

pieces(From, Times) ->
    Start = erlang:monotonic_time(),
    {_, _, Next} = canal_lock_nif:keys(0, From, ?PIECE_KEYS),
    Time = erlang:monotonic_time() - Start,
    case Next of
        done -> [Time | Times];
        _ -> pieces(Next, [Time | Times])
    end.

calls() ->
    time_each(?CALLS, []).

time_each(0, Times) ->
    Times;
time_each(N, Times) ->
    Start = erlang:monotonic_time(),
    {acquired, _} = canal_lock:acquire(hot, 1, 1),
    ok = canal_lock:release(hot, 1, 1),
    time_each(N - 1, [erlang:monotonic_time() - Start | Times]).

come_and_go(I) ->
    one_shot(I),
    come_and_go(I + 1).

one_shot(I) ->
    {acquired, 1} = canal_lock:acquire({one_shot, I}, 1, 1),
    ok = canal_lock:release({one_shot, I}, 1, 1).

sweep_all_the_time() ->
    ok = canal_lock_manager:sweep(),
    sweep_all_the_time().

%% Two passes: in the first the keys are spared, in the second they go.
steps(Handle, Times) ->
    steps(Handle, 2, Times).

steps(_Handle, 0, Times) ->
    Times;
steps(Handle, Passes, Times) ->
    Start = erlang:monotonic_time(),
    Progress = canal_lock_nif:sweep_step(Handle, ?STEP_KEYS),
    Time = erlang:monotonic_time() - Start,
    case Progress of
        done -> steps(Handle, Passes - 1, [Time | Times]);
        _ -> steps(Handle, Passes, [Time | Times])
    end.

%% A heap large enough that no garbage collection falls into what is timed.
in_a_process(Fun) ->
    Parent = self(),
    Pid = spawn_opt(fun() -> Parent ! {self(), Fun()} end, [link, {min_heap_size, 40000000}]),
    receive
        {Pid, Result} -> Result
    end.

worst(Variant, Times) ->
    Sorted = lists:sort(Times),
    Count = length(Sorted),
    At = fun(Rank) -> us(lists:nth(max(1, min(Count, Rank)), Sorted)) end,
    [
        {Variant, median, At(Count div 2)},
        {Variant, rare, At(ceil(Count * 0.9999))},
        {Variant, longest, At(Count)}
    ].

us(Native) ->
    erlang:convert_time_unit(Native, native, nanosecond) / 1000.
