%% What a key in use costs in memory, measured in a VM of its own: where earlier cases have freed memory, the
%% operating system sees no growth.
-module(bench_memory).

-export([measure/3]).
%% Called in the other VM.
-export([hold/3]).

%% Acquires between two looks at the manager of the ETS design, so that its mailbox does not count as memory of keys.
-define(SYNC_EVERY, 1000).

-spec measure(Variant :: string(), bench_cases:subject(), Keys :: pos_integer()) -> [{bench_cases:op(), float()}].
measure(Variant, Subject, Keys) ->
    bench_vm:call(Subject, ?MODULE, hold, [Variant, Subject, Keys]).

-spec hold(Variant :: string(), bench_cases:subject(), Keys :: pos_integer()) -> [{bench_cases:op(), float()}].
hold(Variant, Subject, Keys) ->
    {Variant, Make} = lists:keyfind(Variant, 1, bench_cases:shapes()),
    %% Literals of the VM: the keys themselves exist before, and walking over them allocates nothing.
    persistent_term:put(?MODULE, [Make(I) || I <- lists:seq(1, Keys)]),
    ok = bench_subjects:start(Subject),
    Module = bench_subjects:module(Subject),
    Parent = self(),
    {Holder, Monitor} = spawn_monitor(fun() ->
        %% One key first: what a holder and a table cost once is not a cost of each key.
        {acquired, 1} = Module:acquire(first, 1, 1),
        Before = account(Subject),
        acquire_all(Module, Subject, persistent_term:get(?MODULE), 0),
        After = account(Subject),
        Parent ! {self(), [{Op, (Bytes - proplists:get_value(Op, Before)) / Keys} || {Op, Bytes} <- After]}
    end),
    receive
        {Holder, PerKey} -> PerKey;
        {'DOWN', Monitor, process, Holder, Reason} -> error({holder, Reason})
    end.

acquire_all(_Module, Subject, [], _) ->
    bench_subjects:settle(Subject);
acquire_all(Module, Subject, Keys, ?SYNC_EVERY) ->
    bench_subjects:settle(Subject),
    acquire_all(Module, Subject, Keys, 0);
acquire_all(Module, Subject, [Key | Keys], Since) ->
    {acquired, 1} = Module:acquire(Key, 1, 1),
    acquire_all(Module, Subject, Keys, Since + 1).

account(Subject) ->
    resident() ++ bench_subjects:memory(Subject).

%% Where there is no /proc only the tables' own account is given.
resident() ->
    case file:read_file("/proc/self/status") of
        {ok, Status} ->
            {match, [KB]} = re:run(Status, "^VmRSS:\\s*(\\d+) kB$", [multiline, {capture, all_but_first, list}]),
            [{os, list_to_integer(KB) * 1024}];
        {error, _} ->
            []
    end.
