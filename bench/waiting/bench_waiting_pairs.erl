%% Measures an acquire that finds a free permit, and its release, by one process: with acquire/3, with a timeout, with a
%% map of options, for two permits, by request/3 and with_permit/4,5, and with the other subjects.
%%
%% Options of the mode: those of bench_runs.
-module(bench_waiting_pairs).

-export([measure/2]).

-define(TIMEOUT_MS, 5000).
-define(PERMITS, 10).

-define(LOOP(Name, Acquire, Release),
    Name(_Place, _MaxPer, _Buckets, 0) ->
        ok;
    Name(Place, MaxPer, Buckets, Times) ->
        Acquire,
        Release,
        Name(Place, MaxPer, Buckets, Times - 1)
).

-spec measure(bench_cases:mode(), fun((iodata()) -> ok)) -> bench_results:results().
measure(Mode, Report) ->
    {ok, Queue} = bench_queue:start_link(?PERMITS),
    Pools = [
        Pool
     || poolboy <- bench_waiting_subjects:present(),
        {ok, Pool} <- [poolboy:start_link([{worker_module, bench_waiting_worker}, {size, ?PERMITS}], [])]
    ],
    Runs = [
        #{
            id => {uncontended, "acquire + release", none, Subject},
            take => fun(Times) -> bench_sample:take([[{Kind, Loop, Place, ?PERMITS, 1}]], Times) end,
            workers => 1,
            measures => [per_loop]
        }
     || {Subject, Kind, Loop, Place} <- [
            {ours, 'acquire/3', fun three/4, db},
            {ours, 'acquire/4 timeout', fun timeout/4, db},
            {ours, 'acquire/4 map', fun map/4, db},
            {ours, 'acquire/4 two', fun two/4, db},
            {ours, 'request/3', fun request/4, db},
            {ours, 'with_permit/4', fun within/4, db},
            {ours, 'with_permit/5', fun within_timeout/4, db},
            {gen_server, 'with timeout', fun queue/4, Queue}
            | [{poolboy, 'with timeout', fun pool/4, Pool} || Pool <- Pools]
        ]
    ],
    Results = bench_runs:measure(Runs, Mode, Report),
    ok = gen_server:stop(Queue),
    lists:foreach(fun poolboy:stop/1, Pools),
    Results.

?LOOP(three, {acquired, _} = canal_lock:acquire(Place, MaxPer, Buckets), ok = canal_lock:release(Place)).

?LOOP(timeout, {acquired, _} = canal_lock:acquire(Place, MaxPer, Buckets, ?TIMEOUT_MS), ok = canal_lock:release(Place)).

?LOOP(
    map,
    {acquired, _} = canal_lock:acquire(Place, MaxPer, Buckets, #{timeout_ms => ?TIMEOUT_MS}),
    ok = canal_lock:release(Place)
).

?LOOP(
    two,
    {acquired, _} = canal_lock:acquire(Place, MaxPer, Buckets, #{timeout_ms => ?TIMEOUT_MS, permits => 2}),
    ok = canal_lock:release(Place, #{permits => 2})
).

?LOOP(request, {acquired, _} = canal_lock:request(Place, MaxPer, Buckets), ok = canal_lock:release(Place)).

?LOOP(within, Answer = canal_lock:with_permit(Place, MaxPer, Buckets, fun held/0), {ok, held} = Answer).

?LOOP(
    within_timeout,
    Answer = canal_lock:with_permit(Place, MaxPer, Buckets, ?TIMEOUT_MS, fun held/0),
    {ok, held} = Answer
).

held() -> held.

?LOOP(queue, {acquired, Permit} = bench_queue:acquire(Place, ?TIMEOUT_MS), ok = bench_queue:release(Place, Permit)).

?LOOP(pool, Worker = poolboy:checkout(Place, true, ?TIMEOUT_MS), ok = poolboy:checkin(Place, Worker)).
