%% P8, P10: closed tables leave no memory behind. Each test runs in a VM of its own and measures the resident memory
%% that the operating system reports: the VM's own statistics do not show leaked memory, and a VM that has run other
%% tests has free memory that hides a leak.
-module(canal_lock_memory_tests).

-include_lib("eunit/include/eunit.hrl").

-define(CYCLES, test_setup:in_soak(100, 40)).
-define(KEYS, 10_000).

%% Less than the smallest leak of one cycle: the record of one holder takes 400 kB.
-define(MAX_GROWTH_PER_CYCLE_BYTES, 300_000).

-define(RUNS, 3).

%% The slot of a process takes 64 bytes.
-define(HOLDERS, 5_000).

slots_test_() ->
    test_setup:tests(without_manager, [
        {"consecutive processes use neighboring slots, in process tables of any size", fun dense/0}
    ]).

memory_test_() ->
    test_setup:tests(without_manager, [
        {Title, fun() -> no_growth(Cycles, MaxGrowth, Cycle, Finish) end}
     || {Title, Cycles, MaxGrowth, Cycle, Finish} <- [
            {"P8, P10: the tables of stopped managers are freed", ?CYCLES, ?CYCLES * ?MAX_GROWTH_PER_CYCLE_BYTES,
                fun(N) -> use(N), canal_lock:stop() end, fun sweep/0},
            {"P8, P10: the tables of killed managers are freed when the next manager sweeps", ?CYCLES,
                ?CYCLES * ?MAX_GROWTH_PER_CYCLE_BYTES,
                fun(N) -> use(N), test_manager_crash:kill(whereis(canal_lock)) end, fun sweep/0},
            %% 30 kept tables would take more than 60 MiB. No sweep is needed.
            {"P8, P10: a kept table is freed when a start without keep_on_crash closes it", 30, 24 * 1024 * 1024,
                fun kept/1, fun() -> ok end}
        ]
    ]).

%% In OTP 26 and later, the size of the process table decides where in a pid the number of the process is.
dense() ->
    [
        ?assertMatch({Limit, Bytes} when Bytes < 2 * 64 * ?HOLDERS, {Limit, bytes_of_holders(Limit)})
     || Limit <- ["8192", "262144", "1048576", "134217727"]
    ].

bytes_of_holders(Limit) ->
    test_setup:in_a_vm(["+P", Limit], fun() ->
        {ok, _} = canal_lock:start_link(3),
        #{memory := Before} = canal_lock:info(),
        _ = [test_worker:holder(#{db => 1}) || _ <- lists:seq(1, ?HOLDERS)],
        #{memory := After} = canal_lock:info(),
        After - Before
    end).

%% The first run of the cycles fills the reserves of the memory allocators; a later run must not grow beyond them. With
%% a leak each run grows. On a busy machine, other allocators can be used for the first time in the second run.
no_growth(Cycles, MaxGrowth, Cycle, Finish) ->
    Run = fun() ->
        [Cycle(N) || N <- lists:seq(1, Cycles)],
        ok = Finish(),
        test_setup:resident_bytes()
    end,
    Growth = test_setup:in_a_vm([], fun() ->
        false = process_flag(trap_exit, true),
        growth(Run, Run(), MaxGrowth, ?RUNS)
    end),
    ?assertMatch(_ when Growth < MaxGrowth, Growth).

growth(Run, Before, MaxGrowth, Left) ->
    case Run() of
        After when After - Before >= MaxGrowth, Left > 1 -> growth(Run, After, MaxGrowth, Left - 1);
        After -> After - Before
    end.

sweep() ->
    {ok, _} = canal_lock:start_link(3),
    ok = canal_lock_manager:sweep(),
    canal_lock:stop().

%% Leaves permits of keys that are stored in each form.
use(Cycle) ->
    {ok, _} = canal_lock:start_link(3),
    Rare = ?KEYS div 20,
    acquire([{Cycle, N} || N <- lists:seq(1, ?KEYS)]),
    acquire([#{Cycle => N} || N <- lists:seq(1, Rare)]),
    acquire([lists:seq(N, N + 100) || N <- lists:seq(1, Rare)]).

%% A manager keeps its table, the next one adopts it, and a plain one closes it.
kept(Cycle) ->
    {ok, First} = canal_lock:start_link(3, #{keep_on_crash => true}),
    acquire([{Cycle, N} || N <- lists:seq(1, ?KEYS)]),
    ok = test_manager_crash:kill(First),
    {ok, Second} = canal_lock:start_link(3, #{keep_on_crash => true}),
    ok = test_manager_crash:kill(Second),
    {ok, _} = canal_lock:start_link(3),
    ok = canal_lock:stop().

acquire(Keys) ->
    [{acquired, 1} = canal_lock:acquire(Key, 3, 1) || Key <- Keys],
    ok.
