%% A process that holds many permits while it is measured, and runs a lap on request. It stays for all samples, because
%% acquiring the permits takes longer than a sample.
-module(bench_resident).

-export([start/3, take/2]).

-spec start(bench_cases:subject(), bench_sample:worker(), Beside) -> {pid(), bench_sample:worker()} when
    Beside :: {permits | keys, non_neg_integer()}.
start(Subject, [{_, _, Key, MaxPer, Buckets}] = Worker, {Of, Count}) ->
    Parent = self(),
    Run = fun() ->
        ok = bench_subjects:acquire_each(Subject, [held(Of, Key, I) || I <- lists:seq(1, Count)], MaxPer, Buckets),
        Parent ! {self(), ready},
        serve(Worker)
    end,
    Pid = spawn_opt(Run, [link, {min_heap_size, bench_sample:heap(1)}]),
    receive
        {Pid, ready} -> {Pid, Worker}
    end.

held(permits, Key, _) -> Key;
held(keys, Key, I) -> {Key, I}.

serve(Worker) ->
    receive
        {take, Parent, Times} ->
            Parent ! {self(), bench_sample:laps(Worker, {Times, fun() -> ok end})},
            serve(Worker)
    end.

-spec take({pid(), bench_sample:worker()}, Times :: pos_integer()) -> bench_sample:sample().
take({Pid, Worker}, Times) ->
    Pid ! {take, self(), Times},
    receive
        {Pid, Laps} -> bench_sample:elapsed(Worker, [Laps])
    end.
