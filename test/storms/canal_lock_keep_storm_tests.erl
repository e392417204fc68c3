%% P1, P4, P10: the manager dies again and again under full load, and nobody notices: nothing is lost, and nothing is
%% there twice.
-module(canal_lock_keep_storm_tests).

-include_lib("eunit/include/eunit.hrl").

-define(KILLS, 100).
-define(WORKERS, 6).
-define(CAPACITY, 2).

%% So many permits are granted between a death and the next start, and again after it.
-define(GRANTS_PER_PHASE, 1000).

%% A worker holds no more than this.
-define(MOST_HELD, 4).

%% What the workers have seen, in counters; and whether they shall go on.
-define(GRANTED, 1).
-define(REFUSED, 2).
-define(RELEASED, 3).
-define(TOO_MANY, 4).
-define(LOOKED, 5).
-define(STOP, 6).

keep_storm_test_() ->
    test_setup:on_schedulers(["+P", "4096"], [
        {"P1, P4, P10: killed 100 times under load, and nothing lost, nothing doubled",
            test_manager_crash:alone(fun killed_under_load/0)}
    ]).

keys() ->
    {db, {app, 12345}, <<"0123456789abcdef0123456789abcdef">>, #{rare => "map"}, 1 bsl 70}.

killed_under_load() ->
    Seen = counters:new(6, []),
    Out = atomics:new(tuple_size(keys()), []),
    First = start(1),
    Level = test_storm:level(),
    #{given_back := Before} = canal_lock:info(),
    Workers = [test_worker:start() || _ <- lists:seq(1, ?WORKERS)],
    Work = [send_order(Worker, fun() -> work([], Out, Seen) end) || Worker <- Workers],
    Observer = test_worker:start(),
    Look = send_order(Observer, fun() -> look(Seen) end),
    Kills = test_setup:times(?KILLS),
    {_, OfTheDead} = lists:foldl(
        fun(Turn, {Manager, Sum}) ->
            {Next, Permits} = kill_and_start(Turn, Manager, Out, Seen),
            {Next, Sum + Permits}
        end,
        {First, 0},
        lists:seq(1, Kills)
    ),
    ok = counters:put(Seen, ?STOP, 1),
    stopped = answer(Look),
    Held = [{Worker, answer(Order)} || {Worker, Order} <- lists:zip(Workers, Work)],
    test_await:value(Before + OfTheDead, fun() -> maps:get(given_back, canal_lock:info()) end),
    nothing_lost(Held, Seen, Before, OfTheDead),
    ?assertMatch(Looks when Looks > Kills, counters:get(Seen, ?LOOKED)),
    ?assertMatch(Refusals when Refusals > Kills, counters:get(Seen, ?REFUSED)),
    %% The last of the managers has a table like any other.
    ok = test_worker:kill([Observer | Workers]),
    ok = test_storm:nothing_left(Level),
    ?assertMatch(#{max_per := Last} when Last =:= Kills + 1, canal_lock:info()).

start(MaxPer) ->
    {ok, Manager} = canal_lock:start_link(MaxPer, #{keep_on_crash => true, sweep_interval_ms => 20}),
    Manager.

%% A mortal takes what there is, and dies before or after the next manager is there.
kill_and_start(Turn, Manager, Out, Seen) ->
    {Mortal, Taken} = test_worker:start(fun() -> [Key || Key <- numbers(), take(Key, Out, Seen)] end),
    ok =
        case Turn rem 3 of
            0 -> test_manager_crash:in_a_callback(Manager);
            _ -> test_manager_crash:kill(Manager)
        end,
    wait_for_grants(Seen),
    Turn rem 2 =:= 0 orelse die(Mortal, Taken, Out),
    Next = start(Turn + 1),
    Turn rem 2 =:= 0 andalso die(Mortal, Taken, Out),
    wait_for_grants(Seen),
    {Next, length(Taken)}.

wait_for_grants(Seen) ->
    Before = counters:get(Seen, ?GRANTED),
    test_await:value(true, fun() -> counters:get(Seen, ?GRANTED) - Before > ?GRANTS_PER_PHASE end).

die(Mortal, Taken, Out) ->
    [atomics:sub(Out, Key, 1) || Key <- Taken],
    ok = test_worker:kill(Mortal).

numbers() ->
    lists:seq(1, tuple_size(keys())).

%% The count in Out goes up after the table's, and down before it: it can only be smaller.
take(Key, Out, Seen) ->
    case canal_lock:acquire(element(Key, keys()), ?CAPACITY, 1) of
        {acquired, N} ->
            Ours = atomics:add_get(Out, Key, 1),
            max(N, Ours) =< ?CAPACITY orelse counters:add(Seen, ?TOO_MANY, 1),
            counters:add(Seen, ?GRANTED, 1),
            true;
        full ->
            counters:add(Seen, ?REFUSED, 1),
            false
    end.

%% Answers what it holds at last. Whatever raises ends it, and its order remains without an answer.
work(Held, Out, Seen) ->
    case counters:get(Seen, ?STOP) of
        1 ->
            Held;
        0 ->
            Key = rand:uniform(tuple_size(keys())),
            case rand:uniform(2) of
                1 when length(Held) < ?MOST_HELD ->
                    work([Key || take(Key, Out, Seen)] ++ Held, Out, Seen);
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

%% Who looks sees a table that goes on, and never too much in it.
look(Seen) ->
    [counters:add(Seen, ?TOO_MANY, 1) || {_, Permits} <- canal_lock:keys(), Permits > ?CAPACITY],
    [counters:add(Seen, ?TOO_MANY, 1) || {_, Permits} <- canal_lock:holders(db), Permits > ?CAPACITY],
    _ = canal_lock:audit(),
    #{permits := _} = canal_lock:info(),
    counters:add(Seen, ?LOOKED, 1),
    case counters:get(Seen, ?STOP) of
        1 -> stopped;
        0 -> look(Seen)
    end.

nothing_lost(Held, Seen, Before, OfTheDead) ->
    Count = fun(Keys) -> maps:from_list([{element(N, keys()), length([N || M <- Keys, M =:= N])} || N <- Keys]) end,
    ok = test_storm:records_agree([{Worker, Count(Keys)} || {Worker, Keys} <- Held]),
    ?assertEqual(0, counters:get(Seen, ?TOO_MANY)),
    Permits = length(lists:append([Keys || {_, Keys} <- Held])),
    [Granted, Refused, Released] = [counters:get(Seen, What) || What <- [?GRANTED, ?REFUSED, ?RELEASED]],
    ?assertEqual(Granted, Released + OfTheDead + Permits),
    {AllGranted, AllGivenBack} = {Before + Granted, Before + OfTheDead},
    ?assertMatch(
        #{granted := AllGranted, refused := Refused, released := Released, given_back := AllGivenBack, not_held := 0},
        canal_lock:info()
    ).

send_order(Worker, Order) ->
    {test_worker:send_order(Worker, Order), monitor(process, Worker)}.

answer({Order, Monitor}) ->
    test_await:answer(Order, Monitor).
