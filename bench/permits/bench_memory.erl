%% Measures the memory of a key in use and of a holder. Each sample runs in a new VM, because a VM that reuses freed
%% memory does not grow.
%%
%% A key: one process holds one permit of each of many keys of one shape. per_key is the growth of the memory that the
%% subject reports, per_key_os that of the resident set. The key terms exist before the measurement.
%%
%% A holder: many processes hold one permit each of a common key. The processes exist before the measurement, so their
%% own memory does not count. `none' are processes that get the same message and do not acquire. per_holder is the
%% growth of the memory that the subject reports, per_holder_vm the other growth of the VM's memory beyond that of
%% `none': its monitors, and in the ETS design garbage on the heaps of the callers.
%%
%% Options of the mode: memory_rounds; memory_keys; memory_holders.
-module(bench_memory).

-export([measure/1, shapes/0]).

-define(SUBJECTS, [ours, ets]).
-define(MAX_PER, 1000000).
-define(CHUNK_KEYS, 1000).

%% own: reported by the subject. vm: erlang:memory(total), which includes the table's. os: the resident set, only with
%% /proc.
-type account() :: #{own | vm | os => number()}.

-spec measure(bench:mode()) -> bench_results:results().
measure(#{memory_rounds := Rounds, memory_keys := Keys, memory_holders := Holders}) ->
    Subjects = bench_builds:with_ours(?SUBJECTS),
    OfKeys = fun(Shape, Subject) ->
        fun() ->
            Growth = bench_builds:once(Subject, fun() -> keys(Shape, Subject, Keys) end),
            [
                {{memory, Shape, none, Subject, Measure}, maps:get(Of, Growth)}
             || {Of, Measure} <- [{own, per_key}, {os, per_key_os}], is_map_key(Of, Growth)
            ]
        end
    end,
    OfHolders = fun(Subject) ->
        fun() ->
            [#{vm := None}, #{own := Own, vm := Vm}] = [
                bench_builds:once(S, fun() -> holders(S, Holders) end)
             || S <- [none, Subject]
            ],
            Values = [{per_holder, Own}, {per_holder_vm, Vm - Own - None}],
            [{{memory, "holder", none, Subject, Measure}, Bytes} || {Measure, Bytes} <- Values]
        end
    end,
    bench_rounds:play(Rounds, [
        [OfKeys(Shape, Subject) || {Shape, _} <- shapes(), Subject <- Subjects],
        [OfHolders(Subject) || Subject <- Subjects]
    ]).

-spec shapes() -> [{string(), fun((non_neg_integer()) -> term())}].
shapes() ->
    [
        {"atom", fun(I) -> list_to_atom("db" ++ integer_to_list(I)) end},
        {"tuple", fun(I) -> {app, I} end},
        {"bin32", fun(I) -> <<I:256>> end}
    ].

keys(Shape, Subject, Keys) ->
    {Shape, Make} = lists:keyfind(Shape, 1, shapes()),
    %% Persistent terms, so that the keys exist before the measurement and traversing them allocates nothing. Small
    %% ones, because the table would reuse the memory that the garbage of a long list leaves.
    Chunks = [{?MODULE, First} || First <- lists:seq(1, Keys, ?CHUNK_KEYS)],
    MakeChunk = fun(First) -> [Make(I) || I <- lists:seq(First, First + ?CHUNK_KEYS - 1)] end,
    [persistent_term:put(Chunk, MakeChunk(First)) || {_, First} = Chunk <- Chunks],
    ok = bench_subjects:start(Subject),
    bench_process:result([], fun() ->
        %% One key first, because the one-time costs of a holder and a table do not belong to a key.
        ok = bench_subjects:acquire_each(Subject, [first], ?MAX_PER, 1),
        Before = account(Subject),
        [ok = bench_subjects:acquire_each(Subject, persistent_term:get(Chunk), ?MAX_PER, 1) || Chunk <- Chunks],
        After = account(Subject),
        ok = check_acquired(Subject, Keys + 1),
        growth(Keys, Before, After)
    end).

check_acquired(ets, Keys) ->
    %% Two rows per key (bucket and highest bucket), and two rows of the manager per permit.
    [Rows, Rows] = [ets:info(Table, size) || Table <- [test_original, canal_lock_ets_monitors]],
    Rows = 2 * Keys,
    ok;
check_acquired(_, Keys) ->
    #{keys := Keys, permits := Keys} = canal_lock:info(),
    ok.

holders(Subject, Holders) ->
    ok = bench_subjects:start(Subject),
    same = bench_subjects:prepare(Subject, same),
    Acquired = counters:new(1, []),
    Hold = fun() ->
        receive acquire -> ok end,
        ok = acquire(Subject),
        ok = counters:add(Acquired, 1, 1),
        receive after infinity -> ok end
    end,
    Pids = [spawn_link(Hold) || _ <- lists:seq(1, Holders)],
    Before = account(Subject),
    [Pid ! acquire || Pid <- Pids],
    ok = test_await:value(Holders, fun() -> counters:get(Acquired, 1) end),
    ok = bench_subjects:settle(Subject),
    growth(Holders, Before, account(Subject)).

acquire(none) ->
    ok;
acquire(Subject) ->
    {acquired, _} = (bench_subjects:module(Subject)):acquire(same, ?MAX_PER, 1),
    ok.

-spec account(bench_results:subject()) -> account().
account(Subject) ->
    true = erlang:garbage_collect(),
    maps:from_list([{vm, erlang:memory(total)} | resident() ++ own(Subject)]).

own(none) ->
    [];
%% The public table and the manager's.
own(ets) ->
    Words = [ets:info(Table, memory) || Table <- [test_original, canal_lock_ets_monitors]],
    [{own, lists:sum(Words) * erlang:system_info(wordsize)}];
own(_) ->
    #{memory := Bytes} = canal_lock:info(),
    [{own, Bytes}].

resident() ->
    case file:read_file("/proc/self/status") of
        {ok, Status} ->
            {match, [KB]} = re:run(Status, "^VmRSS:\\s*(\\d+) kB$", [multiline, {capture, all_but_first, list}]),
            [{os, list_to_integer(KB) * 1024}];
        {error, _} ->
            []
    end.

%% From one account to another, divided by the count.
growth(Count, Before, After) ->
    maps:map(fun(Of, Bytes) -> (Bytes - maps:get(Of, Before)) / Count end, After).
