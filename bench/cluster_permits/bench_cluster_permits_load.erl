%% The load of a node in a sample: callers that acquire, hold and release in a loop, from the same moment on all nodes.
%%
%% Each caller records when it held a permit: from the return of its acquire to the call of its release, by a clock that
%% all processes of a machine share. So the intervals of all nodes show how many permits were held at the same time, at
%% most and on average. Callers that still wait when the window ends get their permits after it, and their waits count.
-module(bench_cluster_permits_load).

-export([run/2, starts_ns/0, judge/3]).

-export_type([work/0, plan/0, done/0]).

-type work() :: #{
    calls := ours | global | {redis, bench_redis:server()},
    key := atom(),
    limit := pos_integer(),
    callers := pos_integer(),
    hold_ms := non_neg_integer()
}.

-type plan() :: #{starts_ns := integer(), warm_up_ms := pos_integer(), window_ms := pos_integer()}.

%% `in_use': what the table of this node has counted, on average; only of `ours'.
-type done() :: #{
    held := [{From_ns :: integer(), To_ns :: integer()}],
    waits := bench_times:filled(),
    longest_ns := non_neg_integer(),
    in_use := float(),
    frames := non_neg_integer()
}.

-record(caller, {
    work :: work(),
    connection = none :: bench_redis:connection() | none,
    begins :: integer(),
    ends :: integer(),
    waits :: bench_times:times(),
    longest_ns = 0 :: non_neg_integer(),
    held = [] :: [{integer(), integer()}]
}).

%% So that all nodes have the order before.
-define(LEAD_NS, 500_000_000).
-define(SAMPLE_MS, 2).

%% For a plan.
-spec starts_ns() -> integer().
starts_ns() ->
    now_ns() + ?LEAD_NS.

-spec run(work(), plan()) -> done().
run(#{callers := Callers, key := Key} = Work, #{starts_ns := Starts} = Plan) ->
    #{warm_up_ms := WarmUp_ms, window_ms := Window_ms} = Plan,
    Begins = Starts + WarmUp_ms * 1_000_000,
    Ends = Begins + Window_ms * 1_000_000,
    Waits = bench_times:new(),
    Self = self(),
    Started = [
        spawn_monitor(fun() ->
            Caller = #caller{work = Work, connection = connect(Work), begins = Begins, ends = Ends, waits = Waits},
            ok = sleep_until(Starts),
            Self ! {self(), loop(Caller)}
        end)
     || _ <- lists:seq(1, Callers)
    ],
    ok = sleep_until(Begins),
    Frames = bench_cluster_nodes:frames_sent(),
    InUse = sample(Key, Ends, []),
    ok = sleep_until(Ends),
    FramesAfter = bench_cluster_nodes:frames_sent(),
    Results = [bench_process:await(Pid, Monitor) || {Pid, Monitor} <- Started],
    #{
        held => lists:append([Held || #caller{held = Held} <- Results]),
        waits => bench_times:filled(Waits),
        longest_ns => lists:max([Longest || #caller{longest_ns = Longest} <- Results]),
        in_use => lists:sum(InUse) / max(1, length(InUse)),
        frames => FramesAfter - Frames
    }.

connect(#{calls := {redis, Server}}) -> bench_redis:connect(Server);
connect(_) -> none.

sample(Key, Ends, Counts) ->
    case now_ns() >= Ends of
        true ->
            Counts;
        false ->
            Now = [InUse || {Of, _, InUse} <- canal_lock_view:fold_shares(fun lists:append/2, []), Of =:= Key],
            timer:sleep(?SAMPLE_MS),
            sample(Key, Ends, [lists:sum(Now) | Counts])
    end.

loop(C = #caller{work = #{hold_ms := Hold_ms}, ends = Ends}) ->
    case now_ns() of
        Asked when Asked >= Ends ->
            C;
        Asked ->
            ok = acquire(C),
            Got = now_ns(),
            ok = hold(Hold_ms),
            Held = now_ns(),
            ok = release(C),
            loop(note(Asked, Got, Held, C))
    end.

note(Asked, Got, Held, C = #caller{begins = Begins, ends = Ends}) when Held > Begins, Asked < Ends ->
    _ = Got >= Begins andalso bench_times:note(C#caller.waits, Got - Asked),
    C#caller{
        longest_ns = max(Got - max(Asked, Begins), C#caller.longest_ns),
        held = [{max(Got, Begins), Held} | C#caller.held]
    };
note(_, _, _, C) ->
    C.

acquire(#caller{work = #{calls := ours, key := Key, limit := Limit}}) ->
    {acquired, _} = canal_lock_cluster:acquire(Key, Limit, 1, infinity),
    ok;
acquire(#caller{work = #{calls := global, key := Key, limit := Limit}}) ->
    acquired = bench_global_semaphore:acquire(Key, Limit),
    ok;
acquire(#caller{work = #{key := Key, limit := Limit}, connection = Connection}) ->
    acquired = bench_redis:acquire_waiting(Connection, atom_to_binary(Key), Limit),
    ok.

release(#caller{work = #{calls := ours, key := Key}}) -> canal_lock_cluster:release(Key);
release(#caller{work = #{calls := global, key := Key}}) -> bench_global_semaphore:release(Key);
release(#caller{work = #{key := Key}, connection = Connection}) -> bench_redis:release(Connection, atom_to_binary(Key)).

hold(0) -> ok;
hold(Hold_ms) -> timer:sleep(Hold_ms).

sleep_until(Then) ->
    case Then - now_ns() of
        Left when Left > 0 -> timer:sleep(Left div 1_000_000 + 1);
        _ -> ok
    end.

%% The measures of a sample of all nodes. `use': of the limit, in percent, as the callers see it. `counted': as the
%% tables see it, from the moment of the grant on. `most': how many permits were held at the same time, at most.
-spec judge(work(), plan(), [done()]) -> #{bench_results:measure() => number()}.
judge(#{calls := Calls, limit := Limit}, Plan, Done) ->
    #{starts_ns := Starts, warm_up_ms := WarmUp_ms, window_ms := Window_ms} = Plan,
    Ends = Starts + (WarmUp_ms + Window_ms) * 1_000_000,
    Held = lists:append([Held || #{held := Held} <- Done]),
    Waits = bench_times:all([Waits || #{waits := Waits} <- Done]),
    Sum = lists:sum([min(To, Ends) - From || {From, To} <- Held, From < Ends]),
    maps:merge(
        #{
            per_second => 1000 * bench_times:count(Waits) / Window_ms,
            use => Sum / Limit / Window_ms / 1.0e4,
            most => most(Held),
            wait_p50 => bench_times:percentile(50, Waits),
            wait_p99 => bench_times:percentile(99, Waits),
            wait_longest => lists:max([Longest || #{longest_ns := Longest} <- Done]),
            frames => 1000 * lists:sum([Frames || #{frames := Frames} <- Done]) / length(Done) / Window_ms
        },
        maps:from_list([
            {counted, 100 * lists:sum([InUse || #{in_use := InUse} <- Done]) / Limit}
         || Calls =:= ours
        ])
    ).

%% At the same instant, an end comes first.
most(Held) ->
    Changes = lists:sort(lists:append([[{From, 1}, {To, -1}] || {From, To} <- Held])),
    {Most, _} = lists:foldl(fun({_, By}, {Max, Now}) -> {max(Max, Now + By), Now + By} end, {0, 0}, Changes),
    Most.

%% The clock of all processes of this machine, in nanoseconds.
now_ns() ->
    os:perf_counter(nanosecond).
