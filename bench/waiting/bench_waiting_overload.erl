%% Measures ten times overload: 1,000 clients share 100 permits. Each client acquires, holds the permit and releases, in
%% a loop. "holds of 1 ms": the client sleeps by a timer of the VM, which lasts between 1 and 2 ms. "holds of 5 us": it
%% reads the clock until 5 us have passed, so that all schedulers are always busy.
%%
%% The subject `none' is the bound: as many processes as permits do the same without acquiring. It has the same timers
%% and the same spinning, so no subject can grant more permits per second.
%%
%% Measures: permits released within the window, per second; the median and the 99.9th percentile of the waits (from the
%% call of the acquire to its return); and the mean time from there to the release (`hold').
%%
%% Options of the mode: overload_rounds; overload_ms (the window); warm_up_ms.
-module(bench_waiting_overload).

-export([measure/2, loads/0, run/4, spin/1, hold/1]).

-export_type([load/0]).

-type load() :: {sleep, Ms :: pos_integer()} | {spin, Ns :: pos_integer()}.

-record(client, {
    place :: bench_waiting_subjects:place(),
    load :: load(),
    %% 0: warm-up, 1: the window, 2: stop.
    phase = atomics:new(1, []) :: atomics:atomics_ref(),
    %% The releases and the sum of the holds in nanoseconds.
    sums = counters:new(2, [write_concurrency]) :: counters:counters_ref(),
    waits = bench_cluster_waits:new() :: bench_cluster_waits:waits()
}).

-define(CLIENTS, 1000).
-define(PERMITS, 100).

-spec loads() -> [{Variant :: string(), load()}].
loads() ->
    [{"holds of 1 ms", {sleep, 1}}, {"holds of 5 us", {spin, 5000}}].

-spec measure(map(), fun((iodata()) -> ok)) -> bench_results:results().
measure(#{overload_rounds := Rounds} = Mode, Report) ->
    bench_rounds:play(Rounds, fun(Round) ->
        [
            {{overload, Variant, none, Subject, Measure}, Value}
         || {Variant, Load} <- bench_rounds:shuffle(loads()),
            ok =:= Report(io_lib:format("overload, ~s, round ~b of ~b", [Variant, Round, Rounds])),
            Subject <- bench_rounds:shuffle([none | bench_waiting_subjects:present()]),
            {Measure, Value} <- sample(Subject, Load, Mode)
        ]
    end).

sample(Subject, Load, Mode) ->
    Place = bench_waiting_subjects:open(Subject, ?PERMITS),
    {Measures, _} = run(Place, Load, Mode, fun() -> none end),
    ok = bench_waiting_subjects:close(Place),
    case Subject of
        none -> [{per_second, proplists:get_value(per_second, Measures)}];
        _ -> Measures
    end.

%% Calls the function during the window.
-spec run(bench_waiting_subjects:place(), load(), map(), fun(() -> Result)) ->
    {[{bench_cases:measure(), float()}], Result}.
run(Place, Load, #{overload_ms := Window_ms, warm_up_ms := WarmUp_ms}, Fun) ->
    %% So that it sees the end of the window in time.
    Before = process_flag(priority, high),
    Client = #client{place = Place, load = Load, phase = Phase} = new(Place, Load),
    Clients = [spawn_monitor(fun() -> client(Client) end) || _ <- lists:seq(1, clients(Place))],
    timer:sleep(WarmUp_ms),
    Start = erlang:monotonic_time(),
    ok = atomics:put(Phase, 1, 1),
    Result = Fun(),
    timer:sleep(max(0, Window_ms - ms_since(Start))),
    ok = atomics:put(Phase, 1, 2),
    Ns = erlang:convert_time_unit(erlang:monotonic_time() - Start, native, nanosecond),
    lists:foreach(fun(Process) -> bench_process:await_exit(Process, normal) end, Clients),
    _ = process_flag(priority, Before),
    {measures(Client, Ns), Result}.

new(Place, Load) ->
    #client{place = Place, load = Load}.

clients(none) -> ?PERMITS;
clients(_) -> ?CLIENTS.

ms_since(Start) ->
    erlang:convert_time_unit(erlang:monotonic_time() - Start, native, millisecond).

%% A client that waits at the end gets its permit from one that stops.
client(#client{place = Place, load = Load, phase = Phase} = Client) ->
    Asked = erlang:monotonic_time(nanosecond),
    Permit = bench_waiting_subjects:acquire(Place),
    Got = erlang:monotonic_time(nanosecond),
    ok = hold(Load),
    Ends = erlang:monotonic_time(nanosecond),
    ok = bench_waiting_subjects:release(Place, Permit),
    case atomics:get(Phase, 1) of
        0 ->
            client(Client);
        1 ->
            ok = counters:add(Client#client.sums, 1, 1),
            ok = counters:add(Client#client.sums, 2, Ends - Got),
            ok = bench_cluster_waits:note(Client#client.waits, Got - Asked),
            client(Client);
        2 ->
            ok
    end.

measures(#client{sums = Sums, waits = Waits}, Ns) ->
    [Releases, Hold_ns] = [counters:get(Sums, I) || I <- [1, 2]],
    Filled = bench_cluster_waits:filled(Waits),
    [
        {per_second, Releases / Ns * 1.0e9},
        {wait_median, bench_cluster_waits:percentile(50, Filled)},
        {wait_p999, bench_cluster_waits:percentile(99.9, Filled)},
        {hold, Hold_ns / Releases}
    ].

-spec hold(load()) -> ok.
hold({sleep, Ms}) -> receive after Ms -> ok end;
hold({spin, Ns}) -> spin(Ns).

%% With a clock that takes no lock. erlang:monotonic_time/0 takes one, which spinning schedulers would contend for.
-spec spin(Ns :: pos_integer()) -> ok.
spin(Ns) ->
    spin_until(os:perf_counter() + erlang:convert_time_unit(Ns, nanosecond, perf_counter)).

spin_until(End) ->
    case os:perf_counter() < End of
        true -> spin_until(End);
        false -> ok
    end.
