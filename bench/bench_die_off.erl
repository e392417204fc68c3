%% Measures the death of many holders at once. Each process holds one permit. The processes are children of one parent
%% per scheduler, and the benchmark kills all parents. `none' is the same without permits: the cost of the deaths alone.
%%
%% last_death_to_free: from the last death until no key has a permit in use. A watcher monitors all processes, and its
%% last 'DOWN' message is the last death. It runs at high priority: otherwise it would receive most 'DOWN' messages
%% late, and the result would be too small. The time to read the counts is included.
%% all_in: from before the kill until all processes are dead and all permits are free.
%%
%% Each sample runs in a new VM. Its process limit must allow this number of processes.
%%
%% Options of the mode: die_off_rounds; die_off_holders.
-module(bench_die_off).

-export([measure/2, many/1]).
%% Called in the other VM.
-export([die/2]).

-define(SUBJECTS, [ours, ets, none]).
%% The holders are spread evenly over this number of keys; all of them fit in one bucket.
-define(KEYS, 250).
-define(MAX_PER, 1000000).
%% Words. The 'DOWN' messages are outside the heap (off_heap).
-define(WATCHER_HEAP_WORDS, 4000000).
%% Between two deaths.
-define(DEADLINE_MS, 60000).

-spec measure(map(), fun((iodata()) -> ok)) -> #{bench_results:id() => [{pos_integer(), float()}]}.
measure(#{die_off_rounds := Rounds, die_off_holders := Holders}, Report) ->
    bench_rounds:play(Rounds, fun(Round) ->
        [
            {{die_off, many(Holders), none, Subject, Measure}, Value}
         || Subject <- bench_rounds:shuffle(?SUBJECTS),
            ok =:= Report(io_lib:format("~s die at once, ~s, round ~b of ~b", [many(Holders), Subject, Round, Rounds])),
            {Measure, Value} <- bench_vm:call(ours, ?MODULE, die, [Subject, Holders])
        ]
    end).

%% With a thousands separator: "200,000 holders".
-spec many(Holders :: pos_integer()) -> string().
many(Holders) when Holders rem 1000 =:= 0 ->
    integer_to_list(Holders div 1000) ++ ",000 holders".

-spec die(bench_cases:subject(), Holders :: pos_integer()) -> [{bench_cases:measure(), Ms :: float()}].
die(Subject, Holders) ->
    ok = start(Subject),
    Test = self(),
    Watch = fun() -> Test ! {self(), watch(Subject, Holders)} end,
    {Watcher, Monitor} = spawn_opt(Watch, [
        monitor, {priority, high}, {message_queue_data, off_heap}, {min_heap_size, ?WATCHER_HEAP_WORDS}
    ]),
    receive
        {Watcher, {Killed, LastDeath, Free}} ->
            ok = closed(Subject, Holders),
            [{all_in, ms(Free - Killed)} | [{last_death_to_free, ms(Free - LastDeath)} || Subject =/= none]];
        {'DOWN', Monitor, process, Watcher, Reason} ->
            error({watcher, Reason})
    end.

start(none) ->
    ok;
start(Subject) ->
    ok = bench_subjects:start(Subject),
    [Key = bench_subjects:prepare(Subject, Key) || Key <- keys()],
    ok.

watch(Subject, Holders) ->
    Keys = keys(),
    Parents = parents(Subject, Holders),
    Children = lists:append([children(Parent) || Parent <- Parents]),
    [monitor(process, Child) || Child <- Children],
    ok = all_hold(Subject, Keys, Holders),
    Killed = erlang:monotonic_time(),
    [exit(Parent, kill) || {Parent, _} <- Parents],
    ok = deaths(length(Parents) + Holders),
    LastDeath = erlang:monotonic_time(),
    ok = all_free(Subject, Keys),
    {Killed, LastDeath, erlang:monotonic_time()}.

parents(Subject, Holders) ->
    Watcher = self(),
    Schedulers = erlang:system_info(schedulers_online),
    SpawnChildren = fun(First) ->
        [spawn_link(fun() -> hold(Subject, {app, I rem ?KEYS}) end) || I <- lists:seq(First, Holders, Schedulers)]
    end,
    [
        spawn_opt(
            fun() ->
                Watcher ! {self(), SpawnChildren(First)},
                timer:sleep(infinity)
            end,
            [monitor, {scheduler, First}]
        )
     || First <- lists:seq(1, Schedulers)
    ].

children({Parent, Monitor}) ->
    receive
        {Parent, Children} -> Children;
        {'DOWN', Monitor, process, Parent, Reason} -> error({parent, Reason})
    end.

hold(none, _Key) ->
    timer:sleep(infinity);
hold(ours, Key) ->
    {acquired, _} = canal_lock:acquire(Key, ?MAX_PER, 1),
    timer:sleep(infinity);
hold(ets, Key) ->
    {acquired, _} = test_original:acquire(Key, ?MAX_PER, 1),
    timer:sleep(infinity).

all_hold(none, _Keys, _Holders) ->
    ok;
all_hold(Subject, Keys, Holders) ->
    0 = Holders rem ?KEYS,
    ok = bench_records:await_permits(Subject, Keys, Holders div ?KEYS),
    bench_subjects:settle(Subject).

deaths(0) ->
    ok;
deaths(Left) ->
    receive
        {'DOWN', _, process, _, Reason} ->
            killed = Reason,
            deaths(Left - 1)
    after ?DEADLINE_MS -> error({still_alive, Left})
    end.

all_free(none, _Keys) -> ok;
all_free(Subject, Keys) -> bench_records:await_permits(Subject, Keys, 0).

closed(none, _Holders) ->
    ok;
closed(ets, _Holders) ->
    bench_records:closed(ets);
closed(ours, Holders) ->
    ok = bench_records:closed(ours),
    #{released_by_death := Holders} = canal_lock:info(),
    ok.

keys() ->
    [{app, I} || I <- lists:seq(0, ?KEYS - 1)].

ms(Native) ->
    erlang:convert_time_unit(Native, native, nanosecond) / 1.0e6.
