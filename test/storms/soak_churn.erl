%% The soak run that finds memory leaks, started by scripts/soak.sh. For the given number of minutes (default 60),
%% processes acquire and release keys of all kinds, holders start and die on two nodes, tables are kept and adopted,
%% closed and opened, and other processes call the views.
%%
%% There are three nodes: this one measures; the second one has the table, so that its memory is that of the library and
%% its users; the third one has the remote holders.
-module(soak_churn).

-export([main/1]).

%% A small process table, so that all slots are in use from the beginning.
-define(PROCESS_LIMIT, "4096").

-define(OPTIONS, #{keep_on_crash => true, sweep_interval_ms => 100}).
-define(MAX_PER, 3).

%% The processes pause at this interval, and the run measures the memory that is left.
-define(BETWEEN_PAUSES_MS, 5000).
-define(PRINT_MS, 60_000).

%% The first tenth of the time, in which the allocators of the VM fill their reserves.
-define(WARM_UP, 10).

%% The allowed growth between the medians of the first and the last quarter of the samples after the warm-up. `system',
%% memory that the VM has allocated for other users than processes, such as the library, varies by 0.1 MiB. `resident'
%% depends on the highest use at any time, and so on the load of the machine. The smallest leak per acquire and release
%% is some bytes: hundreds of MiB in an hour.
-define(MAX_GROWTH, #{system => 1024 * 1024, resident => 40 * 1024 * 1024}).

%% Processes of each role.
-define(CHURNERS, 3).
-define(PARENTS, 2).
-define(REMOTE_HOLDERS, 4).

%% Pairs of acquire and release between two pauses, and holders at a time.
-define(BATCH, 100).
-define(HOLDERS, 20).

%% The longest time from the start of a manager to its end; on average half of it.
-define(LIFETIME_MS, 500).

%% Counters of the work, the number of busy processes, and the flag to continue.
-define(PAIRS, 1).
-define(DEATHS, 2).
-define(VIEWS, 3).
-define(TABLES, 4).
-define(BUSY, 5).
-define(CONTINUE, 6).

-spec main([string()]) -> no_return().
main([Minutes]) ->
    try churn(60_000 * list_to_integer(Minutes)) of
        ok -> halt(0)
    catch
        Class:Reason:Stack ->
            io:format("churn: failed: ~p~n", [{Class, Reason, Stack}]),
            halt(1)
    end.

churn(Duration_ms) ->
    There = test_nodes:start(["+P", ?PROCESS_LIMIT]),
    Here = test_nodes:start(),
    ok = test_nodes:connect(There, Here),
    [test_nodes:connect_by_themselves(Node, true) || Node <- [There, Here]],
    [test_nodes:call(Node, fun make_counters/0) || Node <- [There, Here]],
    {_, Parent} = test_remote:start_manager(There, ?OPTIONS),
    Name = test_nodes:name(There),
    start(Here, [fun() -> churn_remotely(Name) end || _ <- lists:seq(1, ?REMOTE_HOLDERS)]),
    start(There, [
        fun call_views/0
        | [fun churn_keys/0 || _ <- lists:seq(1, ?CHURNERS)] ++ [fun start_holders/0 || _ <- lists:seq(1, ?PARENTS)]
    ]),
    test_nodes:call(There, fun() -> test_worker:send_order(Parent, fun() -> repeat(fun replace_manager/0) end) end),
    Level = test_nodes:call(There, fun test_storm:level/0),
    io:format("~s~n", [
        "minutes      pairs     deaths   views tables  resident kB   table kB      VM kB   atoms processes ports"
    ]),
    Samples = samples([There, Here], Level, erlang:monotonic_time(millisecond), Duration_ms, ?PRINT_MS),
    [test_nodes:stop(Node) || Node <- [There, Here]],
    judge(Samples).

make_counters() ->
    persistent_term:put(?MODULE, counters:new(?CONTINUE, [])).

add(Counter, Times) ->
    counters:add(persistent_term:get(?MODULE), Counter, Times).

done(Counter) ->
    counters:get(persistent_term:get(?MODULE), Counter).

%% Each process repeats its work while the flag says to continue.
start(Node, Works) ->
    test_nodes:call(Node, fun() -> [spawn(fun() -> repeat(Work) end) || Work <- Works] end).

repeat(Work) ->
    add(?BUSY, 1),
    done(?CONTINUE) =:= 1 andalso Work(),
    add(?BUSY, -1),
    pause(),
    repeat(Work).

%% Lets the other processes run, so that memory use stays even.
pause() ->
    receive after 1 -> ok end.

%%% Measurement

%% The memory in each pause.
samples(Nodes = [There | _], Level, Start_ms, Duration_ms, Print_ms) ->
    [test_nodes:call(Node, fun() -> add(?CONTINUE, 1) end) || Node <- Nodes],
    receive after ?BETWEEN_PAUSES_MS -> ok end,
    Sample = test_nodes:call(There, fun sample/0),
    [test_nodes:call(Node, fun() -> add(?CONTINUE, -1) end) || Node <- Nodes],
    [test_nodes:call(Node, fun() -> test_await:value(0, fun() -> done(?BUSY) end) end) || Node <- Nodes],
    InPause = test_nodes:call(There, fun() -> in_pause(Level) end),
    Elapsed_ms = erlang:monotonic_time(millisecond) - Start_ms,
    Elapsed_ms < Print_ms orelse print(Elapsed_ms, Nodes, Sample),
    Next_ms = ?PRINT_MS * (1 + Elapsed_ms div ?PRINT_MS),
    case Elapsed_ms < Duration_ms of
        true -> [InPause | samples(Nodes, Level, Start_ms, Duration_ms, Next_ms)];
        false -> [InPause]
    end.

in_pause(Level) ->
    ok = test_storm:nothing_left(Level),
    [erlang:garbage_collect(Process) || Process <- processes()],
    #{system => erlang:memory(system), resident => test_setup:resident_bytes()}.

sample() ->
    [
        test_setup:resident_bytes(),
        table_memory(),
        erlang:memory(total),
        erlang:system_info(atom_count),
        erlang:system_info(process_count),
        erlang:system_info(port_count)
    ].

%% Waits until a table is open.
table_memory() ->
    try
        maps:get(memory, canal_lock:info())
    catch
        error:badarg ->
            pause(),
            table_memory()
    end.

print(Elapsed_ms, Nodes = [There, _], [Resident, Table, Total | Others]) ->
    [Views, Tables] = [sum([There], Counter) || Counter <- [?VIEWS, ?TABLES]],
    [Pairs, Deaths] = [sum(Nodes, Counter) || Counter <- [?PAIRS, ?DEATHS]],
    io:format(
        "~7b ~10b ~10b ~7b ~6b ~12b ~10b ~10b ~7b ~9b ~5b~n",
        [Elapsed_ms div 60_000, Pairs, Deaths, Views, Tables] ++
            [Bytes div 1024 || Bytes <- [Resident, Table, Total]] ++ Others
    ).

sum(Nodes, Counter) ->
    lists:sum([test_nodes:call(Node, fun() -> done(Counter) end) || Node <- Nodes]).

judge(Samples) ->
    Warm = lists:nthtail(length(Samples) div ?WARM_UP, Samples),
    Quarter = length(Warm) div 4,
    Growth = maps:map(fun(Memory, Max) ->
        First = median([maps:get(Memory, Sample) || Sample <- lists:sublist(Warm, Quarter)]),
        Last = median([maps:get(Memory, Sample) || Sample <- lists:nthtail(length(Warm) - Quarter, Warm)]),
        io:format("churn: ~s memory in pauses: at first ~b kB, at last ~b kB, ~b kB more; allowed are ~b kB~n", [
            Memory | [Bytes div 1024 || Bytes <- [First, Last, Last - First, Max]]
        ]),
        Last - First =< Max
    end, ?MAX_GROWTH),
    #{system := true, resident := true} = Growth,
    ok.

median(List) ->
    lists:nth((length(List) + 1) div 2, lists:sort(List)).

%%% Work

%% Stops when the table is closed: its permits are void.
while_open(Do) ->
    try
        Do()
    catch
        error:badarg -> closed
    end.

%% A process that stays alive and uses keys that always exist, and one-shot keys of the cheap kinds and of all kinds.
churn_keys() ->
    while_open(fun() -> [pair(key()) || _ <- lists:seq(1, ?BATCH)] end),
    add(?PAIRS, ?BATCH).

key() ->
    case rand:uniform(10) of
        1 -> {unique(), any_term()};
        N when N =< 3 -> {app, unique()};
        _ -> any_term()
    end.

unique() ->
    erlang:unique_integer().

any_term() ->
    Terms = terms(),
    element(rand:uniform(tuple_size(Terms)), Terms).

%% Created once per process, because it takes long.
terms() ->
    case get(?MODULE) of
        undefined ->
            Terms = list_to_tuple([Term || {_, Term} <- test_key_terms:all()]),
            put(?MODULE, Terms),
            Terms;
        Terms ->
            Terms
    end.

pair(Key) ->
    case canal_lock:acquire(Key, ?MAX_PER, 1) of
        {acquired, _} -> canal_lock:release(Key);
        full -> full
    end.

%% Holders of 1 to 300 keys. Each of them exits or is killed at a random moment.
start_holders() ->
    Keys = [{unique(), any_term()} || _ <- lists:seq(1, 2 * ?HOLDERS)],
    Holders = [spawn_monitor(fun() -> hold(Keys) end) || _ <- lists:seq(1, ?HOLDERS)],
    [exit(Holder, kill) || {Holder, _} <- Holders, rand:uniform(2) =:= 1],
    [test_await:reason(Holder) || Holder <- Holders],
    add(?DEATHS, ?HOLDERS).

hold(Keys) ->
    while_open(fun() ->
        Count = lists:nth(rand:uniform(5), [1, 2, 3, length(Keys), 300]),
        [canal_lock:acquire(Key, ?MAX_PER, 1) || Key <- lists:sublist(Keys, Count)],
        [canal_lock:acquire({N, self()}, ?MAX_PER, 1) || N <- lists:seq(1, Count - length(Keys))],
        [canal_lock:release(Key) || Key <- lists:sublist(Keys, rand:uniform(Count))]
    end).

call_views() ->
    while_open(fun() ->
        [canal_lock:held(Pid) || {Pid, _} <- canal_lock:holders(any_term())],
        [canal_lock:holders(Key) || {Key, _} <- lists:sublist(canal_lock:keys(), 10)],
        [canal_lock:held(), canal_lock:audit(), canal_lock:info()]
    end),
    add(?VIEWS, 1).

%% Managers crash and their tables are adopted, or they stop and their tables are closed. Connections are lost.
replace_manager() ->
    receive after rand:uniform(?LIFETIME_MS) -> ok end,
    case rand:uniform(20) of
        1 -> [erlang:disconnect_node(Node) || Node <- nodes()];
        2 -> restart_after(fun canal_lock:stop/0);
        _ -> restart_after(fun() -> test_manager_crash:kill(whereis(canal_lock)) end)
    end.

restart_after(End) ->
    Manager = whereis(canal_lock),
    ok = End(),
    _ = test_await:exit_reason(Manager),
    {ok, _} = canal_lock:start_link(?MAX_PER, ?OPTIONS),
    add(?TABLES, 1).

%% Processes on another node that acquire permits and die.
churn_remotely(Node) ->
    Keys = [any_term() || _ <- lists:seq(1, rand:uniform(3))],
    Holder = spawn_monitor(fun() -> hold_remotely(Node, Keys) end),
    rand:uniform(4) > 1 orelse exit(element(1, Holder), kill),
    _ = test_await:reason(Holder),
    add(?DEATHS, 1).

hold_remotely(Node, Keys) ->
    [test_remote:attempt(fun() -> canal_lock:acquire_on(Node, Key, ?MAX_PER, 1) end) || Key <- Keys],
    test_remote:attempt(fun() -> canal_lock:release_on(Node, hd(Keys)) end).
