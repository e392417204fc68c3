%% What storms are judged by: what is seen while one rages, what the books say when it pauses, and what is left of it.
-module(test_storm).

-export([play/2, books_agree/1, level/0, nothing_left/1, nothing_held/0]).

-export_type([level/0]).

-define(MAX_PER, 3).

%% Room for the processes of others while all places are taken.
-define(SPARE_PROCESSES, 16).

%% More keys than fit into a holder's place: the lock that is made for the others stays with the place.
-define(KEYS_BEYOND_THE_PLACE, 3).

%% A table keeps room for 64 processes that have found their place taken by one that was just dying.
-define(MAX_LEFT_BYTES, 4096).

%% What there has to be as much of after a storm as before it.
-type level() :: #{memory | processes | ports := non_neg_integer()}.

%% Plays a storm with a manager of its own that sweeps all the time, and has it watched: nobody who looks sees more
%% permits of a key than its capacity, and nothing is left when it is over.
-spec play(#{canal_lock:key() => Capacity :: pos_integer()}, fun(() -> term())) -> ok.
play(Capacities, Storm) ->
    {ok, _} = canal_lock:start_link(?MAX_PER),
    Level = level(),
    Observers = [
        spawn_monitor(fun() -> exit({looked, observe(Look, Capacities)}) end)
     || Look <- [fun counts/1, fun views/1, fun(_) -> ok = canal_lock_manager:sweep() end]
    ],
    _ = Storm(),
    [
        begin
            Observer ! stop_observing,
            {looked, at_last} = test_await:reason(Observed)
        end
     || {Observer, _} = Observed <- Observers
    ],
    ok = nothing_left(Level),
    ok = canal_lock:stop().

%% Not all the time, or those who are to be seen come to nothing.
observe(Look, Capacities) ->
    Look(Capacities),
    receive
        stop_observing -> at_last
    after 1 -> observe(Look, Capacities)
    end.

counts(Capacities) ->
    [
        {Key, Count, true} = {Key, Count, Count =< Capacity}
     || {Key, Capacity} <- maps:to_list(Capacities), Count <- [canal_lock:count(Key)]
    ].

%% What is told in pieces may be of different moments, but each entry is of one.
views(Capacities) ->
    Tell = [
        fun canal_lock:keys/0,
        fun() -> [{Key, Permits} || Key <- maps:keys(Capacities), {_, Permits} <- canal_lock:holders(Key)] end,
        fun() -> [{Key, Counted} || {Key, Counted, _} <- canal_lock:audit()] end
    ],
    [
        {Key, Permits, true} = {Key, Permits, Permits =< maps:get(Key, Capacities, Permits)}
     || Told <- Tell, {Key, Permits} <- Told()
    ],
    #{permits := _} = canal_lock:info().

%% Nothing goes on, and these processes say that they hold so many permits of these keys, and nobody else any: all who
%% can be asked say the same.
-spec books_agree([{pid(), #{canal_lock:key() => pos_integer()}}]) -> ok.
books_agree(Known) ->
    Holders = [{Pid, Held} || {Pid, Held} <- Known, map_size(Held) > 0],
    [{Pid, Held} = {Pid, maps:from_list(canal_lock:held(Pid))} || {Pid, Held} <- Known],
    Sums = lists:foldl(
        fun({_, Held}, Sums) -> maps:merge_with(fun(_, One, Other) -> One + Other end, Held, Sums) end,
        #{},
        Holders
    ),
    Sums = maps:from_list(canal_lock:keys()),
    [{Key, Permits} = {Key, canal_lock:count(Key)} || {Key, Permits} <- maps:to_list(Sums)],
    Told = lists:sort([{Key, Pid, Permits} || Key <- maps:keys(Sums), {Pid, Permits} <- canal_lock:holders(Key)]),
    Told = lists:sort([{Key, Pid, Permits} || {Pid, Held} <- Holders, {Key, Permits} <- maps:to_list(Held)]),
    Out = {lists:sum(maps:values(Sums)), length(Holders), []},
    #{permits := Permits, holders := Count} = canal_lock:info(),
    Out = {Permits, Count, canal_lock:audit()},
    ok.

%% When nothing goes on. Each process has a place in the table, which stays when it is gone: so first there are as many
%% holders at once as there can be, and whatever comes later takes the places of these. Not for a VM with millions of
%% processes.
-spec level() -> level().
level() ->
    take_all_places(),
    ok = canal_lock_manager:sweep(),
    #{memory := Memory} = canal_lock:info(),
    #{
        memory => Memory,
        processes => erlang:system_info(process_count),
        ports => erlang:system_info(port_count)
    }.

take_all_places() ->
    Count = erlang:system_info(process_limit) - erlang:system_info(process_count) - ?SPARE_PROCESSES,
    Holders = [spawn_monitor(fun take_a_place/0) || _ <- lists:seq(1, Count)],
    [Holder ! die || {Holder, _} <- Holders],
    [died = test_await:reason(Holder) || Holder <- Holders],
    test_await:permits(0).

take_a_place() ->
    [{acquired, _} = canal_lock:acquire({?MODULE, N}, 1 bsl 30, 1) || N <- lists:seq(1, ?KEYS_BEYOND_THE_PLACE)],
    receive
        die -> exit(died)
    end.

%% Soon: nothing is held; and there is no memory, process or port that was not there before.
-spec nothing_left(level()) -> ok.
nothing_left(#{memory := Memory, processes := Processes, ports := Ports}) ->
    ok = nothing_held(),
    test_await:value(true, fun() -> erlang:system_info(process_count) =< Processes end),
    test_await:value(true, fun() -> erlang:system_info(port_count) =< Ports end),
    #{memory := Now} = level(),
    {true, _, _} = {Now =< Memory + ?MAX_LEFT_BYTES, Memory, Now},
    ok.

%% Soon: not a permit, a holder or a key, and the manager has nobody to watch and nothing to do.
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
