%% Measures an acquire that finds a free permit, and its release, by one process: with acquire/3, with a timeout, with a
%% map of options, for two permits, by request/3 and with_permit/4,5, and with the other subjects. And give/2 to a
%% process that was given a permit before.
%%
%% Options of the mode: rounds; sample_ms.
-module(bench_waiting_pairs).

-export([measure/1]).

-define(TIMEOUT_MS, 5000).
-define(PERMITS, 10).
-define(UNBOUNDED, 1 bsl 40).

-define(LOOP(Name, Acquire, Release),
    Name(_Place, _MaxPer, _Buckets, 0) ->
        ok;
    Name(Place, MaxPer, Buckets, Times) ->
        Acquire,
        Release,
        Name(Place, MaxPer, Buckets, Times - 1)
).

-spec measure(bench:mode()) -> bench_results:results().
measure(#{rounds := Rounds} = Mode) ->
    bench_builds:in_vms(fun(Vm) ->
        Run = fun(Case, Variant, Subject, Workers) ->
            bench_sample:runs(Vm(Subject), {Case, Variant, none, Subject}, #{workers => Workers}, Mode)
        end,
        bench_rounds:play(Rounds, [
            [
                Run(uncontended, Variant, Subject, fun() -> pairs(Subject, Loop) end)
             || {Variant, Loop, Subjects} <- [
                    {"with a timeout", fun of_others/4, bench_waiting_subjects:present() -- bench_builds:ours()}
                    | [{Variant, Loop, bench_builds:ours()} || {Variant, Loop} <- of_ours()]
                ],
                Subject <- Subjects
            ],
            [Run(give, "to a known process", Subject, fun gifts/0) || Subject <- bench_builds:ours()]
        ])
    end).

of_ours() ->
    [
        {"acquire/3", fun three/4},
        {"acquire/4, timeout", fun timeout/4},
        {"acquire/4, map", fun map/4},
        {"acquire/4, two permits", fun two/4},
        {"request/3", fun request/4},
        {"with_permit/4", fun within/4},
        {"with_permit/5, timeout", fun within_timeout/4}
    ].

pairs(Subject, Loop) ->
    Place =
        case bench_waiting_subjects:open(Subject, ?PERMITS) of
            {ours, Key, _} -> Key;
            Other -> Other
        end,
    [#{phases => [{pair, Loop, Place, ?PERMITS, 1}]}].

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

?LOOP(of_others, Permit = bench_waiting_subjects:acquire(Place), ok = bench_waiting_subjects:release(Place, Permit)).

%% The process acquires all permits before, of one key. The receiver releases them after the sample.
gifts() ->
    {ours, Key, _} = bench_waiting_subjects:open(ours, ?PERMITS),
    Receiver = spawn_link(fun() -> receive_gifts(Key) end),
    [
        #{
            phases => [{acquire, fun acquire/4, Key, ?UNBOUNDED, 1}, {give, fun give/4, {Key, Receiver}, 1, 1}],
            around => fun(Run) ->
                Laps = Run(),
                Receiver ! {release, self()},
                receive {Receiver, released} -> Laps end
            end
        }
    ].

?LOOP(acquire, {acquired, _} = canal_lock:acquire(Place, MaxPer, Buckets), ok).

give(_Place, _MaxPer, _Buckets, 0) ->
    ok;
give({Key, Receiver} = Place, MaxPer, Buckets, Times) ->
    ok = canal_lock:give(Key, Receiver),
    give(Place, MaxPer, Buckets, Times - 1).

receive_gifts(Key) ->
    receive
        {release, Giver} ->
            [ok = canal_lock:release(Key) || _ <- lists:seq(1, canal_lock:count(Key))],
            Giver ! {self(), released},
            receive_gifts(Key)
    end.
