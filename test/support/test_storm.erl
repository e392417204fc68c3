%% Checks storms, which are tests with many concurrent processes: the counts during a storm, the records when it pauses,
%% and what is left at its end.
-module(test_storm).

-export([play/2, records_agree/1, level/0, nothing_left/1, nothing_held/0]).

-export_type([level/0]).

-define(MAX_PER, 3).

%% Processes that may start while the test occupies all slots.
-define(SPARE_PROCESSES, 16).

%% More keys than fit into the slot of a holder: the lock that is allocated for the others stays with the slot.
-define(KEYS_BEYOND_THE_SLOT, 3).

%% The library keeps memory for 64 processes that found their slot occupied by a process that was dying, for the keys
%% that one step of the sweep reclaims, and for each scheduler.
-define(MAX_LEFT_BYTES, 16_384).

%% The resources of which there must not be more after a storm than before it.
-type level() :: #{memory | processes | ports := non_neg_integer()}.

%% Runs a storm with its own manager, while other processes sweep and inspect all the time. No inspection shows more
%% permits of a key than its capacity, and nothing is left at the end.
-spec play(#{canal_lock:key() => Capacity :: pos_integer()}, fun(() -> term())) -> ok.
play(Capacities, Storm) ->
    {ok, _} = canal_lock:start_link(?MAX_PER),
    Level = level(),
    Observers = [
        spawn_monitor(fun() -> exit({observed, observe(Inspect, Capacities)}) end)
     || Inspect <- [fun counts/1, fun views/1, fun(_) -> ok = canal_lock_manager:sweep() end]
    ],
    _ = Storm(),
    lists:foreach(fun({Observer, _} = Observed) ->
        Observer ! stop_observing,
        {observed, ok} = test_await:reason(Observed)
    end, Observers),
    ok = nothing_left(Level),
    ok = canal_lock:stop().

%% With pauses, so that the processes of the storm get processor time.
observe(Inspect, Capacities) ->
    Inspect(Capacities),
    receive
        stop_observing -> ok
    after 1 -> observe(Inspect, Capacities)
    end.

counts(Capacities) ->
    [
        {Key, Count, true} = {Key, Count, Count =< Capacity}
     || {Key, Capacity} <- maps:to_list(Capacities), Count <- [canal_lock:count(Key)]
    ].

%% The entries of a list may be of different moments, but each entry is of one moment.
views(Capacities) ->
    Inspections = [
        fun canal_lock:keys/0,
        fun() -> [{Key, Permits} || Key <- maps:keys(Capacities), {_, Permits} <- canal_lock:holders(Key)] end,
        fun() -> [{Key, Counted} || {Key, Counted, _} <- canal_lock:audit()] end
    ],
    [
        {Key, Permits, true} = {Key, Permits, Permits =< maps:get(Key, Capacities, Permits)}
     || Inspect <- Inspections, {Key, Permits} <- Inspect()
    ],
    #{permits := _} = canal_lock:info().

%% In a pause: these processes, and no others, hold these permits, and all inspections agree with that.
-spec records_agree([{pid(), #{canal_lock:key() => pos_integer()}}]) -> ok.
records_agree(Known) ->
    Holders = [{Pid, Held} || {Pid, Held} <- Known, map_size(Held) > 0],
    [{Pid, Held} = {Pid, maps:from_list(canal_lock:held(Pid))} || {Pid, Held} <- Known],
    Sums = lists:foldl(
        fun({_, Held}, Sums) -> maps:merge_with(fun(_, One, Other) -> One + Other end, Held, Sums) end,
        #{},
        Holders
    ),
    Sums = maps:from_list(canal_lock:keys()),
    [{Key, Permits} = {Key, canal_lock:count(Key)} || {Key, Permits} <- maps:to_list(Sums)],
    Holding = lists:sort([{Key, Pid, Permits} || Key <- maps:keys(Sums), {Pid, Permits} <- canal_lock:holders(Key)]),
    Holding = lists:sort([{Key, Pid, Permits} || {Pid, Held} <- Holders, {Key, Permits} <- maps:to_list(Held)]),
    Held = {lists:sum(maps:values(Sums)), length(Holders), []},
    #{permits := Permits, holders := Count} = canal_lock:info(),
    Held = {Permits, Count, canal_lock:audit()},
    ok.

%% In a pause. Each process has a slot in the table, which stays after its death. So the test first creates as many
%% holders as possible, and later holders reuse their slots. Not for a VM with millions of processes.
-spec level() -> level().
level() ->
    occupy_all_slots(),
    ok = canal_lock_manager:sweep(),
    #{memory := Memory} = canal_lock:info(),
    #{memory => Memory, processes => erlang:system_info(process_count), ports => erlang:system_info(port_count)}.

occupy_all_slots() ->
    Count = erlang:system_info(process_limit) - erlang:system_info(process_count) - ?SPARE_PROCESSES,
    Holders = [spawn_monitor(fun occupy_a_slot/0) || _ <- lists:seq(1, Count)],
    [Holder ! die || {Holder, _} <- Holders],
    [died = test_await:reason(Holder) || Holder <- Holders],
    test_await:permits(0).

occupy_a_slot() ->
    [{acquired, _} = canal_lock:acquire({?MODULE, N}, 1 bsl 30, 1) || N <- lists:seq(1, ?KEYS_BEYOND_THE_SLOT)],
    receive die -> exit(died) end.

%% Until no permit is held and the level is not higher than before.
-spec nothing_left(level()) -> ok.
nothing_left(#{memory := Memory, processes := Processes, ports := Ports}) ->
    ok = nothing_held(),
    test_await:value(true, fun() -> erlang:system_info(process_count) =< Processes end),
    test_await:value(true, fun() -> erlang:system_info(port_count) =< Ports end),
    #{memory := Now} = level(),
    {true, _, _} = {Now =< Memory + ?MAX_LEFT_BYTES, Memory, Now},
    ok.

%% Until there is no permit, no holder and no key, and the manager has no monitor and no message.
-spec nothing_held() -> ok.
nothing_held() ->
    test_await:value({0, 0, [], [], [], []}, fun() ->
        #{permits := Permits, holders := Holders} = canal_lock:info(),
        {monitors, Monitors} = process_info(whereis(canal_lock), monitors),
        {Permits, Holders, canal_lock:keys(), canal_lock:audit(), Monitors, ets:tab2list(canal_lock)}
    end),
    {message_queue_len, 0} = process_info(whereis(canal_lock), message_queue_len),
    ok = canal_lock_manager:sweep(),
    #{keys := 0} = canal_lock:info(),
    ok.
