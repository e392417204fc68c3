%% The run that finds leaks: for an hour, or as many minutes as are asked for, keys of all kinds come and go, holders
%% are born and die, here and on another node, tables are kept and adopted, closed and opened, and others look on.
%% scripts/soak.sh starts it.
%%
%% There are three nodes: this one keeps the minutes; another is churned, so that its memory is that of the library
%% and of what uses it; and on the third live the holders from elsewhere.
-module(soak_churn).

-export([main/1]).

%% Few places, so that all of them are taken from the beginning.
-define(PROCESS_LIMIT, "4096").

-define(OPTIONS, #{keep_on_crash => true, sweep_interval_ms => 100}).
-define(MAX_PER, 3).

%% So often all of them pause, and it is looked how much is left of what they have done.
-define(BETWEEN_PAUSES_MS, 5000).
-define(PRINT_MS, 60_000).

%% A tenth of the time: by then the allocators of the VM have their reserves.
-define(WARM_UP, 10).

%% Between the medians of the first and the last quarter of what comes after that, all of them in pauses. What the VM
%% has given out to others than processes, so to the library, wavers by 0.1 MiB then. What it has from the operating
%% system goes with the most that was ever in use at a time, and so with the load of the machine. The least that could
%% leak for each pair is some bytes: hundreds of MiB in an hour.
-define(MAX_GROWTH, #{system => 1024 * 1024, resident => 40 * 1024 * 1024}).

%% Who churns.
-define(CHURNERS, 3).
-define(NURSERIES, 2).
-define(FROM_ELSEWHERE, 4).

%% Keys taken and given between two pauses, and holders at a time.
-define(BATCH, 100).
-define(BIRTHS, 20).

%% A manager reigns for half of it, on average.
-define(REIGN_MS, 500).

%% What has been done, in counters; who is doing something, and whether to go on.
-define(PAIRS, 1).
-define(DEATHS, 2).
-define(LOOKS, 3).
-define(TABLES, 4).
-define(BUSY, 5).
-define(GO_ON, 6).

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
    {_, Ruler} = test_remote:start_manager(There, ?OPTIONS),
    Name = test_nodes:name(There),
    start(Here, [fun() -> churn_from_elsewhere(Name) end || _ <- lists:seq(1, ?FROM_ELSEWHERE)]),
    start(There, [
        fun look/0
        | [fun churn_keys/0 || _ <- lists:seq(1, ?CHURNERS)] ++ [fun bear/0 || _ <- lists:seq(1, ?NURSERIES)]
    ]),
    test_nodes:call(There, fun() -> test_worker:send_order(Ruler, fun() -> again(fun rule/0) end) end),
    Level = test_nodes:call(There, fun test_storm:level/0),
    io:format("~s~n", [
        "minutes      pairs     deaths   looks tables  resident kB   table kB      VM kB   atoms processes ports"
    ]),
    Samples = watch([There, Here], Level, erlang:monotonic_time(millisecond), Duration_ms, ?PRINT_MS),
    [test_nodes:stop(Node) || Node <- [There, Here]],
    judge(Samples).

make_counters() ->
    persistent_term:put(?MODULE, counters:new(?GO_ON, [])).

add(What, Times) ->
    counters:add(persistent_term:get(?MODULE), What, Times).

done(What) ->
    counters:get(persistent_term:get(?MODULE), What).

%% Each of these does the same again and again, when it is told to go on.
start(Node, Lives) ->
    test_nodes:call(Node, fun() -> [spawn(fun() -> again(Life) end) || Life <- Lives] end).

again(Life) ->
    add(?BUSY, 1),
    done(?GO_ON) =:= 1 andalso Life(),
    add(?BUSY, -1),
    pause(),
    again(Life).

%% So that there is as much of everything in use at all times, and others have their turn.
pause() ->
    receive
    after 1 -> ok
    end.

%% --- what is seen of it ----------------------------------------------------------------------------------------------

%% What is left in each pause.
watch(Nodes = [There | _], Level, Start_ms, Duration_ms, Print_ms) ->
    [test_nodes:call(Node, fun() -> add(?GO_ON, 1) end) || Node <- Nodes],
    receive
    after ?BETWEEN_PAUSES_MS -> ok
    end,
    Sample = test_nodes:call(There, fun sample/0),
    [test_nodes:call(Node, fun() -> add(?GO_ON, -1) end) || Node <- Nodes],
    [test_nodes:call(Node, fun() -> test_await:value(0, fun() -> done(?BUSY) end) end) || Node <- Nodes],
    InPause = test_nodes:call(There, fun() -> in_pause(Level) end),
    Elapsed_ms = erlang:monotonic_time(millisecond) - Start_ms,
    Elapsed_ms < Print_ms orelse print(Elapsed_ms, Nodes, Sample),
    Next_ms = ?PRINT_MS * (1 + Elapsed_ms div ?PRINT_MS),
    case Elapsed_ms < Duration_ms of
        true -> [InPause | watch(Nodes, Level, Start_ms, Duration_ms, Next_ms)];
        false -> [InPause]
    end.

in_pause(Level) ->
    ok = test_storm:nothing_left(Level),
    [erlang:garbage_collect(Process) || Process <- processes()],
    #{system => erlang:memory(system), resident => test_setup:resident_bytes()}.

sample() ->
    [
        test_setup:resident_bytes(),
        account(),
        erlang:memory(total),
        erlang:system_info(atom_count),
        erlang:system_info(process_count),
        erlang:system_info(port_count)
    ].

%% There may be no table at the moment.
account() ->
    try
        maps:get(memory, canal_lock:info())
    catch
        error:badarg ->
            pause(),
            account()
    end.

print(Elapsed_ms, Nodes = [There, _], [Resident, Table, Total | Others]) ->
    [Looks, Tables] = [sum([There], What) || What <- [?LOOKS, ?TABLES]],
    [Pairs, Deaths] = [sum(Nodes, What) || What <- [?PAIRS, ?DEATHS]],
    io:format(
        "~7b ~10b ~10b ~7b ~6b ~12b ~10b ~10b ~7b ~9b ~5b~n",
        [Elapsed_ms div 60_000, Pairs, Deaths, Looks, Tables] ++
            [Bytes div 1024 || Bytes <- [Resident, Table, Total]] ++ Others
    ).

sum(Nodes, What) ->
    lists:sum([test_nodes:call(Node, fun() -> done(What) end) || Node <- Nodes]).

judge(Samples) ->
    Warm = lists:nthtail(length(Samples) div ?WARM_UP, Samples),
    Quarter = length(Warm) div 4,
    Growth = maps:map(
        fun(Memory, Max) ->
            First = median([maps:get(Memory, Sample) || Sample <- lists:sublist(Warm, Quarter)]),
            Last = median([maps:get(Memory, Sample) || Sample <- lists:nthtail(length(Warm) - Quarter, Warm)]),
            io:format("churn: ~s memory in pauses: at first ~b kB, at last ~b kB, ~b kB more; allowed are ~b kB~n", [
                Memory | [Bytes div 1024 || Bytes <- [First, Last, Last - First, Max]]
            ]),
            Last - First =< Max
        end,
        ?MAX_GROWTH
    ),
    #{system := true, resident := true} = Growth,
    ok.

median(List) ->
    lists:nth((length(List) + 1) div 2, lists:sort(List)).

%% --- what happens ----------------------------------------------------------------------------------------------------

%% Whatever is held of a table is void when there is none any more.
while_open(Do) ->
    try
        Do()
    catch
        error:badarg -> closed
    end.

%% One process that lives on: keys that are there all the time, and keys that come once, of the cheap kind and of all
%% kinds.
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

%% Made once per process, for it takes its time.
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

%% Holders of one key and of very many, each of which dies of its own accord or is killed, at any moment.
bear() ->
    Keys = [{unique(), any_term()} || _ <- lists:seq(1, 2 * ?BIRTHS)],
    Holders = [spawn_monitor(fun() -> hold(Keys) end) || _ <- lists:seq(1, ?BIRTHS)],
    [exit(Holder, kill) || {Holder, _} <- Holders, rand:uniform(2) =:= 1],
    [test_await:reason(Holder) || Holder <- Holders],
    add(?DEATHS, ?BIRTHS).

hold(Keys) ->
    while_open(fun() ->
        Count = lists:nth(rand:uniform(5), [1, 2, 3, length(Keys), 300]),
        [canal_lock:acquire(Key, ?MAX_PER, 1) || Key <- lists:sublist(Keys, Count)],
        [canal_lock:acquire({N, self()}, ?MAX_PER, 1) || N <- lists:seq(1, Count - length(Keys))],
        [canal_lock:release(Key) || Key <- lists:sublist(Keys, rand:uniform(Count))]
    end).

look() ->
    while_open(fun() ->
        [canal_lock:held(Pid) || {Pid, _} <- canal_lock:holders(any_term())],
        [canal_lock:holders(Key) || {Key, _} <- lists:sublist(canal_lock:keys(), 10)],
        [canal_lock:held(), canal_lock:audit(), canal_lock:info()]
    end),
    add(?LOOKS, 1).

%% Managers crash, and their tables are adopted; or they end, and theirs are closed; and connections are lost.
rule() ->
    receive
    after rand:uniform(?REIGN_MS) -> ok
    end,
    case rand:uniform(20) of
        1 -> [erlang:disconnect_node(Node) || Node <- nodes()];
        2 -> succeed(fun canal_lock:stop/0);
        _ -> succeed(fun() -> test_manager_crash:kill(whereis(canal_lock)) end)
    end.

succeed(End) ->
    Manager = whereis(canal_lock),
    ok = End(),
    receive
        {'EXIT', Manager, _} -> ok
    end,
    {ok, _} = canal_lock:start_link(?MAX_PER, ?OPTIONS),
    add(?TABLES, 1).

%% Processes of another node, each of which has some permits and dies.
churn_from_elsewhere(Node) ->
    Keys = [any_term() || _ <- lists:seq(1, rand:uniform(3))],
    Holder = spawn_monitor(fun() -> hold_from_elsewhere(Node, Keys) end),
    rand:uniform(4) > 1 orelse exit(element(1, Holder), kill),
    _ = test_await:reason(Holder),
    add(?DEATHS, 1).

hold_from_elsewhere(Node, Keys) ->
    [test_remote:attempt(fun() -> canal_lock:acquire_on(Node, Key, ?MAX_PER, 1) end) || Key <- Keys],
    test_remote:attempt(fun() -> canal_lock:release_on(Node, hd(Keys)) end).
