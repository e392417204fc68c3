%% The load of a node in a sample: processes that lock and unlock in a loop, from the same moment on all nodes.
%%
%% It counts the locks that are granted within the window. If a process still waits at the end of the window, its wait
%% so far counts for the maximum: otherwise a starving process would not be in the results. Then all processes are
%% killed, which ends their locks.
-module(bench_cluster_load).

-export([run/2]).

-export_type([calls/0, work/0, plan/0, done/0]).

%% With `lock/2' or `rlock/2', and this unlock; or `global'.
-type calls() :: unlock_async | unlock | global.

-type work() :: #{
    calls := calls(),
    %% own: each name once only. one: the same name always. readers: one of ten names; nine of ten locks are shared.
    names := own | one | readers,
    loops := non_neg_integer()
}.

%% In wall clock time, which the nodes of a machine share.
-type plan() :: #{starts_ns := integer(), warm_up_ms := pos_integer(), window_ms := pos_integer()}.

-type done() :: #{
    waits := bench_times:filled(),
    ends := bench_times:filled(),
    longest_ns := non_neg_integer(),
    frames := non_neg_integer(),
    cpu_ns := non_neg_integer() | unknown
}.

-record(loop, {
    calls :: calls(),
    names :: own | one | readers,
    %% The nodes on which `global' locks.
    nodes :: [node()],
    starts :: integer(),
    begins :: integer(),
    ends :: integer(),
    waits = bench_times:new() :: bench_times:times(),
    unlocks = bench_times:new() :: bench_times:times(),
    %% Since when it waits, in nanoseconds after the start, or 0; and its longest wait.
    notes = atomics:new(2, []) :: atomics:atomics_ref()
}).

-define(SINCE, 1).
-define(LONGEST, 2).

%% Longer than any sample. A process that is refused ends the run with an error.
-define(TIMEOUT_MS, 600_000).
-define(READ_NAMES, 10).
-define(READS_OF_TEN, 9).

-spec run(work(), plan()) -> done().
run(#{calls := Calls, names := Names, loops := Count}, #{starts_ns := At_ns} = Plan) ->
    #{warm_up_ms := WarmUp_ms, window_ms := Window_ms} = Plan,
    Starts = now_ns() + At_ns - os:system_time(nanosecond),
    Begins = Starts + WarmUp_ms * 1_000_000,
    Ends = Begins + Window_ms * 1_000_000,
    Nodes = [node() | nodes()],
    Started = [
        begin
            Loop = #loop{
                calls = Calls, names = Names, nodes = Nodes, starts = Starts, begins = Begins, ends = Ends
            },
            {spawn_monitor(fun() -> start(Loop) end), Loop}
        end
     || _ <- lists:seq(1, Count)
    ],
    sleep_until(Begins),
    {Frames, Cpu_ns} = {bench_cluster_nodes:frames_sent(), bench_cluster_nodes:cpu_ns()},
    sleep_until(Ends),
    {FramesAfter, CpuAfter_ns} = {bench_cluster_nodes:frames_sent(), bench_cluster_nodes:cpu_ns()},
    Longest = [longest(Loop) || {_, Loop} <- Started],
    _ = [kill(Process) || {Process, _} <- Started],
    #{
        waits => bench_times:all([bench_times:filled(Waits) || {_, #loop{waits = Waits}} <- Started]),
        ends => bench_times:all([bench_times:filled(Took) || {_, #loop{unlocks = Took}} <- Started]),
        longest_ns => lists:max([0 | Longest]),
        frames => FramesAfter - Frames,
        cpu_ns => case Cpu_ns of unknown -> unknown; _ -> CpuAfter_ns - Cpu_ns end
    }.

%% The longest wait, also one that has not ended.
longest(#loop{notes = Notes, starts = Starts, ends = Ends}) ->
    case atomics:get(Notes, ?SINCE) of
        0 -> atomics:get(Notes, ?LONGEST);
        Since -> max(atomics:get(Notes, ?LONGEST), Ends - Starts - Since)
    end.

%% A process that has already ended was refused.
kill({Pid, Monitor}) ->
    true = exit(Pid, kill),
    receive
        {'DOWN', Monitor, process, Pid, killed} -> ok;
        {'DOWN', Monitor, process, Pid, Reason} -> error({loop_failed, Reason})
    end.

start(Loop = #loop{starts = Starts}) ->
    sleep_until(Starts),
    loop(Loop).

loop(Loop = #loop{calls = Calls, names = Names, nodes = Nodes, starts = Starts, notes = Notes}) ->
    {Mode, Name} = next(Names),
    Asked = now_ns(),
    ok = atomics:put(Notes, ?SINCE, max(1, Asked - Starts)),
    Lock = lock(Calls, Mode, Name, Nodes),
    Got = now_ns(),
    ok = note_wait(Loop, Asked, Got),
    ok = unlock(Calls, Lock, Nodes),
    ok = note_end(Loop, Got, now_ns()),
    loop(Loop).

next(own) -> {write, {bench, node(), erlang:unique_integer()}};
next(one) -> {write, bench};
next(readers) ->
    Name = {bench, rand:uniform(?READ_NAMES)},
    case rand:uniform(10) =< ?READS_OF_TEN of
        true -> {read, Name};
        false -> {write, Name}
    end.

%% `global' has no shared locks.
lock(global, _Mode, Name, Nodes) ->
    Id = {Name, self()},
    true = global:set_lock(Id, Nodes, infinity),
    Id;
lock(_, write, Name, _Nodes) ->
    {ok, Lock} = canal_lock_quorum:lock(Name, ?TIMEOUT_MS),
    Lock;
lock(_, read, Name, _Nodes) ->
    {ok, Lock} = canal_lock_quorum:rlock(Name, ?TIMEOUT_MS),
    Lock.

unlock(global, Id, Nodes) ->
    true = global:del_lock(Id, Nodes),
    ok;
unlock(unlock_async, Lock, _Nodes) ->
    canal_lock_quorum:unlock_async(Lock);
unlock(unlock, Lock, _Nodes) ->
    canal_lock_quorum:unlock(Lock).

%% Stores the wait before it resets the start, so that a concurrent read finds at least one of the two.
note_wait(#loop{begins = Begins, ends = Ends, waits = Waits, notes = Notes}, Asked, Got) ->
    Wait = min(Got, Ends) - Asked,
    Got >= Begins andalso Wait > atomics:get(Notes, ?LONGEST) andalso atomics:put(Notes, ?LONGEST, Wait),
    Got >= Begins andalso Got < Ends andalso bench_times:note(Waits, Got - Asked),
    atomics:put(Notes, ?SINCE, 0).

note_end(#loop{begins = Begins, ends = Ends, unlocks = Unlocks}, Got, Done) ->
    Got >= Begins andalso Got < Ends andalso bench_times:note(Unlocks, Done - Got),
    ok.

sleep_until(Then) ->
    case Then - now_ns() of
        Left when Left > 0 -> timer:sleep(Left div 1_000_000 + 1);
        _ -> ok
    end.

now_ns() ->
    erlang:monotonic_time(nanosecond).
