%% Measures the death of many holders at once. Each process holds one permit.
%%
%% last_death_to_free: from the last death until no key has a permit in use. A watcher starts, monitors and kills all
%% processes, and its last 'DOWN' message is the last death. It runs at high priority: otherwise it would receive most
%% 'DOWN' messages late, and the result would be too small. The time to read the counts is included.
%%
%% Each sample runs in a new VM. Its process limit must allow this number of processes.
%%
%% Options of the mode: die_off_rounds; die_off_holders.
-module(bench_die_off).

-export([measure/1, variant/1]).

-define(SUBJECTS, [ours, ets]).
%% The holders are spread evenly over this number of keys; all of them fit in one bucket.
-define(KEYS, 250).
-define(MAX_PER, 1000000).
%% Words. The 'DOWN' messages are outside the heap (off_heap).
-define(WATCHER_HEAP_WORDS, 4000000).
%% Between two deaths.
-define(DEADLINE_MS, 60000).

-spec measure(bench:mode()) -> bench_results:results().
measure(#{die_off_rounds := Rounds, die_off_holders := Holders}) ->
    Run = fun(Subject) ->
        fun() ->
            Ns = bench_builds:once(Subject, fun() -> die(Subject, Holders) end),
            [{{die_off, variant(Holders), none, Subject, last_death_to_free}, Ns}]
        end
    end,
    bench_rounds:play(Rounds, [[Run(Subject) || Subject <- bench_builds:with_ours(?SUBJECTS)]]).

-spec variant(Holders :: pos_integer()) -> string().
variant(Holders) ->
    integer_to_list(Holders) ++ " holders".

die(Subject, Holders) ->
    ok = bench_subjects:start(Subject),
    [Key = bench_subjects:prepare(Subject, Key) || Key <- keys()],
    bench_process:result(
        [{priority, high}, {message_queue_data, off_heap}, {min_heap_size, ?WATCHER_HEAP_WORDS}],
        fun() -> watch(Subject, Holders) end
    ).

watch(Subject, Holders) ->
    Pids = [
        begin
            {Pid, _} = spawn_monitor(fun() -> hold(Subject, {app, I rem ?KEYS}) end),
            Pid
        end
     || I <- lists:seq(1, Holders)
    ],
    0 = Holders rem ?KEYS,
    ok = await_permits(Subject, Holders div ?KEYS),
    ok = bench_subjects:settle(Subject),
    [exit(Pid, kill) || Pid <- Pids],
    ok = deaths(Holders),
    LastDeath = erlang:monotonic_time(),
    ok = await_permits(Subject, 0),
    bench_times:ns(LastDeath, erlang:monotonic_time()).

hold(Subject, Key) ->
    {acquired, _} = (bench_subjects:module(Subject)):acquire(Key, ?MAX_PER, 1),
    timer:sleep(infinity).

deaths(0) ->
    ok;
deaths(Left) ->
    receive
        {'DOWN', _, process, _, Reason} ->
            killed = Reason,
            deaths(Left - 1)
    after ?DEADLINE_MS -> error({still_alive, Left})
    end.

%% Waits until each key has this number of permits in use. All permits are in the first bucket.
await_permits(Subject, Permits) ->
    lists:foreach(fun(Key) -> test_await:value(Permits, fun() -> count(Subject, Key) end) end, keys()).

count(ets, Key) ->
    case ets:lookup(test_original, {Key, 1}) of
        [{_, Count}] -> Count;
        [] -> 0
    end;
count(_, Key) ->
    canal_lock:count(Key).

keys() ->
    [{app, I} || I <- lists:seq(0, ?KEYS - 1)].
