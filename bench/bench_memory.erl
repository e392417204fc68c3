%% Measures the memory of a key in use and of a holder. Each sample runs in a new VM, because a VM that reuses freed
%% memory does not grow.
%%
%% A key: one process holds one permit of each of many keys of one shape. per_key is the growth of the memory that the
%% subject reports (for `ets' the public table and the manager's table; per_key_public is the public one alone).
%% per_key_os is the growth of the resident set. The key terms exist before the measurement.
%%
%% A holder: many processes hold one permit each of a common key. The processes exist before the measurement, so their
%% own memory does not count. The subject `none' measures processes that get the same message and do not acquire. Its
%% growth is subtracted.
%%   per_holder             growth of the reported memory. For canal_lock, without the slot array: the VM has already
%%                          started and ended as many processes as it allows, so all slots exist. (A holder of one or
%%                          two keys needs no memory beyond its slot.)
%%   per_holder_with_slots  the same in a new VM: each process has a slot in an array, and later processes reuse it. The
%%                          table allocates 1,024 slots at a time.
%%   per_holder_vm          additional memory of the VM, by erlang:memory/1: its monitors, which the subject does not
%%                          report, and in the ETS design garbage on the heaps of the callers.
%%   per_holder_os          growth of the resident set in a new VM, which includes all of the above.
%%
%% Options of the mode: memory_rounds; memory_keys; memory_holders.
-module(bench_memory).

-export([measure/2]).
%% Called in the other VM.
-export([keys/3, holders/2]).
%% For the memory of waiters.
-export([account/1, growth/3]).

-export_type([growth/0]).

-define(MAX_PER, 1000000).

%% Bytes per key or holder: reported by the subject (own, and its public part), by the VM, and by the operating system
%% (only with /proc).
-type growth() :: #{own => float(), public => float(), vm := float(), os => float()}.

-spec measure(map(), fun((iodata()) -> ok)) -> #{bench_results:id() => [{pos_integer(), float()}]}.
measure(#{memory_rounds := Rounds, memory_keys := Keys, memory_holders := Holders}, Report) ->
    Shapes = ["atom", "tuple", "bin32"],
    bench_rounds:play(Rounds, fun(Round) ->
        OfKeys = [
            {{memory, Shape, none, Subject, Measure}, Bytes}
         || Shape <- Shapes,
            Subject <- bench_rounds:shuffle([ours, ets]),
            ok =:= Report(io_lib:format("memory of keys, ~s, ~s, round ~b of ~b", [Shape, Subject, Round, Rounds])),
            {Measure, Bytes} <- bench_vm:call(ours, ?MODULE, keys, [Shape, Subject, Keys])
        ],
        ok = Report(io_lib:format("memory of holders, round ~b of ~b", [Round, Rounds])),
        [Ours, Ets, None] = [bench_vm:call(ours, ?MODULE, holders, [S, Holders]) || S <- [ours, ets, none]],
        OfHolders = [
            {{memory, "holder", none, Subject, Measure}, Bytes}
         || {Subject, Growth} <- [{ours, Ours}, {ets, Ets}], {Measure, Bytes} <- beyond(None, Growth)
        ],
        OfKeys ++ OfHolders
    end).

-spec keys(Shape :: string(), bench_cases:subject(), Keys :: pos_integer()) -> [{bench_cases:measure(), float()}].
keys(Shape, Subject, Keys) ->
    {Shape, Make} = lists:keyfind(Shape, 1, bench_cases:shapes()),
    %% A persistent term, so that the keys exist before the measurement and traversing them allocates nothing.
    persistent_term:put(?MODULE, [Make(I) || I <- lists:seq(1, Keys)]),
    ok = bench_subjects:start(Subject),
    Growth = bench_process:result([], fun() ->
        %% One key first, because the one-time costs of a holder and a table do not belong to a key.
        ok = bench_subjects:acquire_each(Subject, [first], ?MAX_PER, 1),
        Before = account(Subject),
        ok = bench_subjects:acquire_each(Subject, persistent_term:get(?MODULE), ?MAX_PER, 1),
        After = account(Subject),
        ok = check_acquired(Subject, Keys + 1),
        growth(Before, After, Keys)
    end),
    %% The ETS design's manager would take seconds to release this holder's permits, so its VM just stops.
    [ok = bench_records:closed(ours) || Subject =:= ours],
    Names = [{own, per_key}, {public, per_key_public}, {os, per_key_os}],
    [{Name, maps:get(Of, Growth)} || {Of, Name} <- Names, is_map_key(Of, Growth)].

check_acquired(ours, Keys) ->
    #{keys := Keys, permits := Keys} = canal_lock:info(),
    ok;
check_acquired(ets, Keys) ->
    %% Two rows per key (bucket and highest bucket), and two rows of the manager per permit.
    [Rows, Rows] = [ets:info(Table, size) || Table <- [test_original, canal_lock_ets_monitors]],
    Rows = 2 * Keys,
    ok.

%% The growth in a new VM and, for canal_lock, also when all slots exist.
-spec holders(bench_cases:subject(), Holders :: pos_integer()) -> #{new_vm := growth(), all_slots_exist => growth()}.
holders(Subject, Holders) ->
    ok = start(Subject),
    NewVm = bench_process:result([], fun() -> hold(Subject, Holders) end),
    ok = closed(Subject),
    case Subject of
        ours ->
            [ok = acquire_and_exit(Subject) || _ <- lists:seq(1, erlang:system_info(process_limit))],
            AllSlotsExist = bench_process:result([], fun() -> hold(Subject, Holders) end),
            ok = closed(Subject),
            #{new_vm => NewVm, all_slots_exist => AllSlotsExist};
        _ ->
            #{new_vm => NewVm}
    end.

start(none) ->
    ok;
start(Subject) ->
    ok = bench_subjects:start(Subject),
    same = bench_subjects:prepare(Subject, same),
    ok.

closed(none) -> ok;
closed(Subject) -> bench_records:closed(Subject).

hold(Subject, Holders) ->
    Acquired = counters:new(1, []),
    Hold = fun() ->
        receive
            acquire ->
                ok = acquire(Subject),
                ok = counters:add(Acquired, 1, 1),
                receive
                after infinity -> ok
                end
        end
    end,
    Pids = [spawn(Hold) || _ <- lists:seq(1, Holders)],
    Before = account(Subject),
    [Pid ! acquire || Pid <- Pids],
    ok = bench_records:await(Holders, fun() -> counters:get(Acquired, 1) end),
    ok = bench_subjects:settle(Subject),
    After = account(Subject),
    ok = bench_process:kill([{Pid, monitor(process, Pid)} || Pid <- Pids]),
    growth(Before, After, Holders).

acquire(none) ->
    ok;
acquire(Subject) ->
    {acquired, _} = (bench_subjects:module(Subject)):acquire(same, ?MAX_PER, 1),
    ok.

acquire_and_exit(Subject) ->
    bench_process:await_exit(spawn_monitor(fun() -> ok = acquire(Subject) end), normal).

%% The memory of a holder beyond that of its process without a permit.
beyond(#{new_vm := None}, #{new_vm := NewVm} = Growths) ->
    #{own := WithSlots} = NewVm,
    Own =
        case Growths of
            #{all_slots_exist := #{own := Beyond}} -> [{per_holder, Beyond}, {per_holder_with_slots, WithSlots}];
            #{} -> [{per_holder, WithSlots}]
        end,
    Vm = maps:get(vm, NewVm) - WithSlots - maps:get(vm, None),
    Resident = [{per_holder_os, Os - OfNone} || #{os := Os} <- [NewVm], #{os := OfNone} <- [None]],
    Own ++ [{per_holder_vm, Vm} | Resident].

-spec account(bench_cases:subject()) -> #{own => integer(), public => integer(), vm := integer(), os => integer()}.
account(Subject) ->
    true = erlang:garbage_collect(),
    maps:from_list([{vm, erlang:memory(total)} | resident() ++ own(Subject)]).

own(ours) ->
    #{memory := Bytes} = canal_lock:info(),
    [{own, Bytes}];
own(ets) ->
    [Public, Private] = [
        ets:info(Table, memory) * erlang:system_info(wordsize)
     || Table <- [test_original, canal_lock_ets_monitors]
    ],
    [{public, Public}, {own, Public + Private}];
own(none) ->
    [].

resident() ->
    case file:read_file("/proc/self/status") of
        {ok, Status} ->
            {match, [KB]} = re:run(Status, "^VmRSS:\\s*(\\d+) kB$", [multiline, {capture, all_but_first, list}]),
            [{os, list_to_integer(KB) * 1024}];
        {error, _} ->
            []
    end.

%% By the count, from one account to the next.
-spec growth(map(), map(), Count :: pos_integer()) -> growth().
growth(Before, After, Count) ->
    maps:map(fun(Of, Bytes) -> (Bytes - maps:get(Of, Before)) / Count end, After).
