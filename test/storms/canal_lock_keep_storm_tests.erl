%% P1, P4, P10: the manager is killed 100 times under load, and callers do not notice: no permit is lost or counted
%% twice.
-module(canal_lock_keep_storm_tests).

-include_lib("eunit/include/eunit.hrl").

-define(KILLS, 100).
-define(WORKERS, 6).
-define(CAPACITY, 2).

%% Permits that are granted between a death and the next start, and again after it.
-define(GRANTS_PER_PHASE, 1000).

%% A worker holds at most this many permits.
-define(MOST_HELD, 4).

%% Counters of what the workers have seen, and the flag that stops them.
-define(GRANTED, 1).
-define(REFUSED, 2).
-define(RELEASED, 3).
-define(TOO_MANY, 4).
-define(INSPECTED, 5).
-define(STOP, 6).

keep_storm_test_() ->
    test_setup:on_schedulers(["+P", "4096"], [
        {"P1, P4, P10: 100 kills of the manager under load lose and duplicate no permit",
            test_manager_crash:alone(fun killed_under_load/0)}
    ]).

keys() ->
    {db, {app, 12345}, <<"0123456789abcdef0123456789abcdef">>, #{rare => "map"}, 1 bsl 70}.

killed_under_load() ->
    Seen = counters:new(6, []),
    Out = atomics:new(tuple_size(keys()), []),
    First = start(1),
    Level = test_storm:level(),
    #{released_by_death := Before} = canal_lock:info(),
    Workers = [test_worker:start() || _ <- lists:seq(1, ?WORKERS)],
    Work = [send_order(Worker, fun() -> work([], Out, Seen) end) || Worker <- Workers],
    Observer = test_worker:start(),
    Inspection = send_order(Observer, fun() -> inspect(Seen) end),
    Kills = test_setup:times(?KILLS),
    {_, ByDeaths} = lists:foldl(fun(Turn, {Manager, Sum}) ->
        {Next, Permits} = kill_and_start(Turn, Manager, Out, Seen),
        {Next, Sum + Permits}
    end, {First, 0}, lists:seq(1, Kills)),
    ok = counters:put(Seen, ?STOP, 1),
    stopped = answer(Inspection),
    Held = [{Worker, answer(Order)} || {Worker, Order} <- lists:zip(Workers, Work)],
    test_await:value(Before + ByDeaths, fun() -> test_setup:info(released_by_death) end),
    nothing_lost(Held, Seen, Before, ByDeaths),
    ?assertMatch(Inspections when Inspections > Kills, counters:get(Seen, ?INSPECTED)),
    ?assertMatch(Refusals when Refusals > Kills, counters:get(Seen, ?REFUSED)),
    %% The table of the last manager leaves nothing behind.
    ok = test_worker:kill([Observer | Workers]),
    ok = test_storm:nothing_left(Level),
    ?assertMatch(#{max_per := Last} when Last =:= Kills + 1, canal_lock:info()).

start(MaxPer) ->
    {ok, Manager} = canal_lock:start_link(MaxPer, #{keep_on_crash => true, sweep_interval_ms => 20}),
    Manager.

%% A process acquires what it can, and dies before or after the next manager starts.
kill_and_start(Turn, Manager, Out, Seen) ->
    {Doomed, Acquired} = test_worker:start(fun() -> [Key || Key <- numbers(), acquire(Key, Out, Seen)] end),
    ok =
        case Turn rem 3 of
            0 -> test_manager_crash:in_a_callback(Manager);
            _ -> test_manager_crash:kill(Manager)
        end,
    wait_for_grants(Seen),
    Turn rem 2 =:= 0 orelse die(Doomed, Acquired, Out),
    Next = start(Turn + 1),
    Turn rem 2 =:= 0 andalso die(Doomed, Acquired, Out),
    wait_for_grants(Seen),
    {Next, length(Acquired)}.

wait_for_grants(Seen) ->
    Before = counters:get(Seen, ?GRANTED),
    test_await:value(true, fun() -> counters:get(Seen, ?GRANTED) - Before > ?GRANTS_PER_PHASE end).

die(Doomed, Acquired, Out) ->
    [atomics:sub(Out, Key, 1) || Key <- Acquired],
    ok = test_worker:kill(Doomed).

numbers() ->
    lists:seq(1, tuple_size(keys())).

%% The count in Out is never larger than the table's: it rises after the table's count and falls before it.
acquire(Key, Out, Seen) ->
    case canal_lock:acquire(element(Key, keys()), ?CAPACITY, 1) of
        {acquired, N} ->
            Counted = atomics:add_get(Out, Key, 1),
            max(N, Counted) =< ?CAPACITY orelse counters:add(Seen, ?TOO_MANY, 1),
            counters:add(Seen, ?GRANTED, 1),
            true;
        full ->
            counters:add(Seen, ?REFUSED, 1),
            false
    end.

%% Returns what the worker holds at the end. An exception kills the worker, and the test gets no answer.
work(Held, Out, Seen) ->
    case counters:get(Seen, ?STOP) of
        1 ->
            Held;
        0 ->
            Key = rand:uniform(tuple_size(keys())),
            case rand:uniform(2) of
                1 when length(Held) < ?MOST_HELD ->
                    work([Key || acquire(Key, Out, Seen)] ++ Held, Out, Seen);
                _ ->
                    work(release(Held, Out, Seen), Out, Seen)
            end
    end.

release([], _, _) ->
    ?assertEqual([], canal_lock:held()),
    [];
release([Key | Held], Out, Seen) ->
    ok = atomics:sub(Out, Key, 1),
    ok = canal_lock:release(element(Key, keys())),
    counters:add(Seen, ?RELEASED, 1),
    Held.

%% An observer sees an open table with no key above its capacity.
inspect(Seen) ->
    [counters:add(Seen, ?TOO_MANY, 1) || {_, Permits} <- canal_lock:keys(), Permits > ?CAPACITY],
    [counters:add(Seen, ?TOO_MANY, 1) || {_, Permits} <- canal_lock:holders(db), Permits > ?CAPACITY],
    _ = canal_lock:audit(),
    #{permits := _} = canal_lock:info(),
    counters:add(Seen, ?INSPECTED, 1),
    case counters:get(Seen, ?STOP) of
        1 -> stopped;
        0 -> inspect(Seen)
    end.

nothing_lost(Held, Seen, Before, ByDeaths) ->
    Count = fun(Keys) -> maps:from_list([{element(N, keys()), length([N || M <- Keys, M =:= N])} || N <- Keys]) end,
    ok = test_storm:records_agree([{Worker, Count(Keys)} || {Worker, Keys} <- Held]),
    ?assertEqual(0, counters:get(Seen, ?TOO_MANY)),
    Permits = length(lists:append([Keys || {_, Keys} <- Held])),
    [Granted, Refused, Released] = [counters:get(Seen, Counter) || Counter <- [?GRANTED, ?REFUSED, ?RELEASED]],
    ?assertEqual(Granted, Released + ByDeaths + Permits),
    {AllGranted, Died} = {Before + Granted, Before + ByDeaths},
    ?assertMatch(
        #{granted := AllGranted, refused := Refused, released := Released, released_by_death := Died, not_held := 0},
        canal_lock:info()
    ).

send_order(Worker, Order) ->
    {test_worker:send_order(Worker, Order), monitor(process, Worker)}.

answer({Order, Monitor}) ->
    test_await:answer(Order, Monitor).
