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

-export([measure/1, loads/0]).

-type load() :: {sleep, Ms :: pos_integer()} | {spin, Ns :: pos_integer()}.

-record(client, {
    place :: bench_waiting_subjects:place(),
    load :: load(),
    %% 0: warm-up, 1: the window, 2: stop.
    phase = atomics:new(1, []) :: atomics:atomics_ref(),
    %% The releases and the sum of the holds in nanoseconds.
    sums = counters:new(2, [write_concurrency]) :: counters:counters_ref(),
    waits = bench_waits:new() :: bench_waits:waits()
}).

-define(CLIENTS, 1000).
-define(PERMITS, 100).

-spec loads() -> [{Variant :: string(), load()}].
loads() ->
    [{"holds of 1 ms", {sleep, 1}}, {"holds of 5 us", {spin, 5000}}].

-spec measure(bench:mode()) -> bench_results:results().
measure(#{overload_rounds := Rounds} = Mode) ->
    bench_builds:in_vms(fun(Vm) ->
        Run = fun(Variant, Load, Subject) ->
            fun() ->
                Values = bench_builds:call(Vm(Subject), fun() -> sample(Subject, Load, Mode) end),
                [{{overload, Variant, none, Subject, Measure}, Value} || {Measure, Value} <- Values]
            end
        end,
        bench_rounds:play(Rounds, [
            [Run(Variant, Load, Subject) || Subject <- [none | bench_waiting_subjects:present()]]
         || {Variant, Load} <- loads()
        ])
    end).

sample(Subject, Load, #{overload_ms := Window_ms, warm_up_ms := WarmUp_ms}) ->
    %% So that it sees the end of the window in time.
    Before = process_flag(priority, high),
    Place = bench_waiting_subjects:open(Subject, ?PERMITS),
    Client = #client{phase = Phase} = #client{place = Place, load = Load},
    Clients = [spawn_monitor(fun() -> client(Client) end) || _ <- lists:seq(1, clients(Place))],
    timer:sleep(WarmUp_ms),
    Start = erlang:monotonic_time(),
    ok = atomics:put(Phase, 1, 1),
    timer:sleep(Window_ms),
    ok = atomics:put(Phase, 1, 2),
    Ns = bench_times:ns(Start, erlang:monotonic_time()),
    lists:foreach(fun(Process) -> bench_process:await_exit(Process, normal) end, Clients),
    _ = process_flag(priority, Before),
    ok = bench_waiting_subjects:close(Place),
    measures(Client, Ns).

clients(none) -> ?PERMITS;
clients(_) -> ?CLIENTS.

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
            ok = bench_waits:note(Client#client.waits, Got - Asked),
            client(Client);
        2 ->
            ok
    end.

measures(#client{sums = Sums, waits = Waits, place = Place}, Ns) ->
    [Releases, Hold_ns] = [counters:get(Sums, I) || I <- [1, 2]],
    Filled = bench_waits:filled(Waits),
    OfWaits = [{wait_median, bench_waits:percentile(50, Filled)}, {wait_p999, bench_waits:percentile(99.9, Filled)}],
    [
        {per_second, Releases / Ns * 1.0e9},
        {hold, Hold_ns / Releases}
        | [Wait || Place =/= none, Wait <- OfWaits]
    ].

hold({sleep, Ms}) -> receive after Ms -> ok end;
hold({spin, Ns}) -> bench_waiting_subjects:spin(Ns).
