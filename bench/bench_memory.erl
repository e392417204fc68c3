%% What a key in use and a process that holds cost in memory. Each sample has a VM of its own: where earlier cases
%% have freed memory, the operating system sees no growth.
%%
%% A key: many keys of one shape, a permit of each, held by one process. per_key is the growth of the subject's own
%% account (for `ets' of the public table and the manager's; per_key_public is the first alone), per_key_os that of
%% the resident set. The keys themselves are there before.
%%
%% A holder: many processes take a permit each of one common key. They are there before, so that what a process costs
%% is not what a holder costs; and what is left of that, such as the order to take, is taken from processes that are
%% told to take and do not (`none').
%%   per_holder             the growth of the account. Of ours beyond the slot array: when all slots are there,
%%                          because as many processes have come and gone as the VM has places for. (With one key or
%%                          two a holder needs no more than its slot.)
%%   per_holder_with_slots  the same in a young VM: each process has a slot in an array, which stays for the next
%%                          process of that place. They come a thousand at a time.
%%   per_holder_vm          what the VM takes besides, by erlang:memory/1: its monitors, which no account contains;
%%                          and in the ETS design the garbage that its calls leave on the heaps.
%%   per_holder_os          the growth of the resident set in a young VM: all of it together.
%%
%% Of the mode: memory_rounds; memory_keys; memory_holders.
-module(bench_memory).

-export([measure/2]).
%% Called in the other VM.
-export([keys/3, holders/2]).

-define(MAX_PER, 1000000).

%% Bytes for each key or holder: of the subject's own account (and its public part), of the VM's, and as the operating
%% system sees it, which it can be asked where there is /proc.
-type growth() :: #{own => float(), public => float(), vm := float(), os => float()}.

-spec measure(map(), fun((iodata()) -> ok)) -> #{bench_results:id() => [{pos_integer(), float()}]}.
measure(#{memory_rounds := Rounds, memory_keys := Keys, memory_holders := Holders}, Tell) ->
    Shapes = ["atom", "tuple", "bin32"],
    bench_rounds:play(Rounds, fun(Round) ->
        OfKeys = [
            {{memory, Shape, none, Subject, Measure}, Bytes}
         || Shape <- Shapes,
            Subject <- bench_rounds:shuffle([ours, ets]),
            ok =:= Tell(io_lib:format("memory of keys, ~s, ~s, round ~b of ~b", [Shape, Subject, Round, Rounds])),
            {Measure, Bytes} <- bench_vm:call(ours, ?MODULE, keys, [Shape, Subject, Keys])
        ],
        ok = Tell(io_lib:format("memory of holders, round ~b of ~b", [Round, Rounds])),
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
    %% Literals of the VM: the keys themselves exist before, and walking over them allocates nothing.
    persistent_term:put(?MODULE, [Make(I) || I <- lists:seq(1, Keys)]),
    ok = bench_subjects:start(Subject),
    Growth = bench_process:result([], fun() ->
        %% One key first: what a holder and a table cost once is not a cost of each key.
        ok = bench_subjects:take(Subject, [first], ?MAX_PER, 1),
        Before = account(Subject),
        ok = bench_subjects:take(Subject, persistent_term:get(?MODULE), ?MAX_PER, 1),
        After = account(Subject),
        ok = has_taken(Subject, Keys + 1),
        growth(Before, After, Keys)
    end),
    %% The manager of the ETS design would be busy with this death for seconds; it goes with its VM.
    [ok = bench_books:closed(ours) || Subject =:= ours],
    Names = [{own, per_key}, {public, per_key_public}, {os, per_key_os}],
    [{Name, maps:get(Of, Growth)} || {Of, Name} <- Names, is_map_key(Of, Growth)].

has_taken(ours, Keys) ->
    #{keys := Keys, permits := Keys} = canal_lock:info(),
    ok;
has_taken(ets, Keys) ->
    %% For each key its bucket and its highest; for each permit two of the manager.
    [Rows, Rows] = [ets:info(Table, size) || Table <- [test_original, canal_lock_ets_monitors]],
    Rows = 2 * Keys,
    ok.

%% In a young VM; and of ours, when all slots are there.
-spec holders(bench_cases:subject(), Holders :: pos_integer()) -> #{young := growth(), old => growth()}.
holders(Subject, Holders) ->
    ok = start(Subject),
    Young = bench_process:result([], fun() -> hold(Subject, Holders) end),
    ok = closed(Subject),
    case Subject of
        ours ->
            [ok = live(Subject) || _ <- lists:seq(1, erlang:system_info(process_limit))],
            Old = bench_process:result([], fun() -> hold(Subject, Holders) end),
            ok = closed(Subject),
            #{young => Young, old => Old};
        _ ->
            #{young => Young}
    end.

start(none) ->
    ok;
start(Subject) ->
    ok = bench_subjects:start(Subject),
    same = bench_subjects:place(Subject, same),
    ok.

closed(none) -> ok;
closed(Subject) -> bench_books:closed(Subject).

hold(Subject, Holders) ->
    Taken = counters:new(1, []),
    Hold = fun() ->
        receive
            take ->
                ok = take(Subject),
                ok = counters:add(Taken, 1, 1),
                receive
                after infinity -> ok
                end
        end
    end,
    Pids = [spawn(Hold) || _ <- lists:seq(1, Holders)],
    Before = account(Subject),
    [Pid ! take || Pid <- Pids],
    ok = bench_books:await(Holders, fun() -> counters:get(Taken, 1) end),
    ok = bench_subjects:settle(Subject),
    After = account(Subject),
    Monitors = [monitor(process, Pid) || Pid <- Pids],
    [exit(Pid, kill) || Pid <- Pids],
    [
        receive
            {'DOWN', Monitor, process, _, Reason} -> killed = Reason
        end
     || Monitor <- Monitors
    ],
    growth(Before, After, Holders).

take(none) ->
    ok;
take(Subject) ->
    {acquired, _} = (bench_subjects:module(Subject)):acquire(same, ?MAX_PER, 1),
    ok.

live(Subject) ->
    {Pid, Monitor} = spawn_monitor(fun() -> ok = take(Subject) end),
    receive
        {'DOWN', Monitor, process, Pid, Reason} ->
            normal = Reason,
            ok
    end.

%% What a holder costs beyond what its process does without a permit.
beyond(#{young := None}, #{young := Young} = Growths) ->
    #{own := WithSlots} = Young,
    Own =
        case Growths of
            #{old := #{own := Beyond}} -> [{per_holder, Beyond}, {per_holder_with_slots, WithSlots}];
            #{} -> [{per_holder, WithSlots}]
        end,
    Vm = maps:get(vm, Young) - WithSlots - maps:get(vm, None),
    Resident = [{per_holder_os, Os - OfNone} || #{os := Os} <- [Young], #{os := OfNone} <- [None]],
    Own ++ [{per_holder_vm, Vm} | Resident].

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

growth(Before, After, Count) ->
    maps:map(fun(Of, Bytes) -> (Bytes - maps:get(Of, Before)) / Count end, After).
