%% Counts requests that overtook an equal one. canal_lock only, because the order of requests must be certain.
%%
%% "one process, ...": during the load of bench_waiting_overload, a process has 20 requests at any time. It made them
%% one after the other, so their order is certain. The messages of grants are sent under the lock of the queue, so they
%% arrive in the order of the grants. A request overtakes if its message is not that of the oldest request.
%%
%% "1,000 processes": each makes one request at a time, for one permit. A clock that all share, a counter, is read
%% before the request, after the answer that it waits, and while its process has the permit. The permit is held by one
%% process at a time, so the last number is in the order of the grants. A request overtakes if it began after another
%% one waited, and was granted before that one. Two requests that began at the same time have no certain order, and are
%% not compared.
%%
%% Options of the mode: order_rounds; order_grants; overload_ms; warm_up_ms.
-module(bench_waiting_order).

-export([measure/2]).

-define(PERMITS, 100).
-define(OUTSTANDING, 20).
-define(PROCESSES, 1000).

-spec measure(map(), fun((iodata()) -> ok)) -> bench_results:results().
measure(#{order_rounds := Rounds, order_grants := Grants} = Mode, Report) ->
    bench_rounds:play(Rounds, fun(Round) ->
        ok = Report(io_lib:format("order, round ~b of ~b", [Round, Rounds])),
        Counts =
            [{"1,000 processes", of_processes(Grants)}] ++
                [
                    {"one process, " ++ Variant, of_one(Load, Mode)}
                 || {Variant, Load} <- bench_waiting_overload:loads()
                ],
        [
            {{order, Variant, none, ours, Measure}, Count}
         || {Variant, {Checked, Overtaking}} <- Counts,
            {Measure, Count} <- [{checked, Checked}, {overtaking, Overtaking}]
        ]
    end).

of_one(Load, #{overload_ms := Window_ms} = Mode) ->
    Place = {ours, Key, ?PERMITS} = bench_waiting_subjects:open(ours, ?PERMITS),
    {_, Counts} = bench_waiting_overload:run(Place, Load, Mode, fun() ->
        End = erlang:monotonic_time(millisecond) + Window_ms,
        bench_process:result([], fun() ->
            Waiting = lists:foldl(fun(_, Queue) -> request(Key, Queue) end, queue:new(), lists:seq(1, ?OUTSTANDING)),
            observe(Key, Load, End, Waiting, {0, 0})
        end)
    end),
    ok = bench_waiting_subjects:close(Place),
    Counts.

%% If the table has a free permit, the request is not part of the check.
request(Key, Waiting) ->
    case canal_lock:request(Key, ?PERMITS, 1) of
        {waiting, Ref} ->
            queue:in(Ref, Waiting);
        {acquired, _} ->
            ok = canal_lock:release(Key),
            Waiting
    end.

%% Requests that still wait at the end are ended by the death of the process.
observe(Key, Load, End, Waiting, {Checked, Overtaking}) ->
    {canal_lock, Ref, {acquired, _}} = receive Message -> Message after 60000 -> error(no_grant) end,
    ok = bench_waiting_overload:hold(Load),
    ok = canal_lock:release(Key),
    {{value, First}, Others} = queue:out(Waiting),
    {Counts, Left} =
        case Ref of
            First -> {{Checked + 1, Overtaking}, Others};
            _ -> {{Checked + 1, Overtaking + 1}, queue:delete(Ref, Waiting)}
        end,
    case erlang:monotonic_time(millisecond) < End of
        true -> observe(Key, Load, End, request(Key, Left), Counts);
        false -> Counts
    end.

of_processes(Grants) ->
    Place = {ours, Key, 1} = bench_waiting_subjects:open(ours, 1),
    Clock = atomics:new(1, []),
    Parent = self(),
    Client = fun() -> Parent ! {self(), requests(Key, Clock, Grants div ?PROCESSES, [])} end,
    Clients = [spawn_monitor(Client) || _ <- lists:seq(1, ?PROCESSES)],
    All = lists:append([bench_process:await(Pid, Monitor) || {Pid, Monitor} <- Clients]),
    ok = bench_waiting_subjects:close(Place),
    {length(All), overtaking(lists:reverse(lists:sort(All)), infinity, 0)}.

requests(_Key, _Clock, 0, Done) ->
    Done;
requests(Key, Clock, Left, Done) ->
    Begins = atomics:add_get(Clock, 1, 1),
    Answer = canal_lock:request(Key, 1, 1),
    Waits = atomics:add_get(Clock, 1, 1),
    ok =
        case Answer of
            {waiting, Ref} -> receive {canal_lock, Ref, {acquired, 1}} -> ok end;
            {acquired, 1} -> ok
        end,
    Granted = atomics:add_get(Clock, 1, 1),
    ok = canal_lock:release(Key),
    requests(Key, Clock, Left - 1, [{Granted, Begins, Waits} | Done]).

%% From the last grant to the first. Earliest: when the earliest of those that were granted later had begun to wait. An
%% atom is greater than any number.
overtaking([], _Earliest, Count) ->
    Count;
overtaking([{_, Begins, Waits} | Before], Earliest, Count) ->
    Overtakes = case Begins > Earliest of true -> 1; false -> 0 end,
    overtaking(Before, min(Waits, Earliest), Count + Overtakes).
