%% P4: whatever a holder holds and however it dies, all of it comes back, and comes back once.
-module(canal_lock_death_tests).

-include_lib("eunit/include/eunit.hrl").

-define(MANY, 10_000).

death_test_() ->
    test_setup:quietly([
        test_setup:tests([
            {lists:concat(["P4: ", Way, " while holding ", What]), fun() -> dies_holding(Way, Hold) end}
         || Way <- ways(), {What, Hold} <- holdings()
        ]),
        test_setup:tests([
            {"P4: several ways at once", fun at_once/0},
            {"P4: what had been released is not given back again", fun after_releases/0},
            {"P4: a successor that waits for the death may have to wait for the permit", fun successor/0},
            {"P4: ten thousand die together", fun die_together/0}
        ])
    ]).

ways() ->
    [normal_exit, shutdown, error, throw, kill, exit_signal, linked, by_its_own_hand].

%% What is held, and by how many permits of which keys.
holdings() ->
    [
        {"nothing any more", fun() ->
            take([{1, once}]),
            ok = canal_lock:release(once),
            []
        end},
        {"one key", fun() -> take([{1, db}]) end},
        {"two keys", fun() -> take([{2, db}, {1, {app, 1}}]) end},
        {"three keys", fun() -> take([{1, db}, {3, {app, 1}}, {2, "string"}]) end},
        {"10,000 keys", fun() -> take([{1, {key, N}} || N <- lists:seq(1, ?MANY)]) end},
        {"10,000 permits of one key", fun() -> take([{?MANY, db}]) end},
        {"keys of every kind", fun() -> take([{2, Term} || {_, Term} <- test_key_terms:all()]) end}
    ].

take(Wanted) ->
    [{acquired, _} = canal_lock:acquire(Key, ?MANY, 2) || {Permits, Key} <- Wanted, _ <- lists:seq(1, Permits)],
    Wanted.

dies_holding(Way, Hold) ->
    %% One that stays: what the dead did not hold must not come back.
    {_, [_]} = test_worker:start(fun() -> take([{1, db}]) end),
    {Holder, Held} = test_worker:start(Hold),
    All = lists:sum([Permits || {Permits, _} <- Held]),
    ?assertMatch(#{permits := Out} when Out =:= All + 1, canal_lock:info()),
    ok = die(Way, Holder),
    test_await:permits(1),
    [?assertEqual(0, canal_lock:count(Key)) || {_, Key} <- Held, Key =/= db],
    ?assertEqual(1, canal_lock:count(db)),
    ?assertMatch(#{holders := 1}, canal_lock:info()).

die(normal_exit, Holder) -> test_worker:release_then_die(Holder, fun() -> bye end);
die(shutdown, Holder) -> test_worker:release_then_die(Holder, fun() -> exit(shutdown) end);
die(error, Holder) -> test_worker:release_then_die(Holder, fun() -> error(meant) end);
die(throw, Holder) -> test_worker:release_then_die(Holder, fun() -> throw(meant) end);
die(kill, Holder) -> test_worker:kill(Holder);
die(by_its_own_hand, Holder) -> test_worker:release_then_die(Holder, fun() -> exit(self(), kill) end);
die(exit_signal, Holder) ->
    exit(Holder, meant),
    test_await:down([Holder]);
die(linked, Holder) ->
    Friend = test_worker:start(),
    true = test_worker:order(Holder, fun() -> link(Friend) end),
    ok = test_worker:kill(Friend),
    test_await:down([Holder]).

at_once() ->
    Numbered = [
        {N, element(1, test_worker:start(fun() -> take([{2, db}, {1, app}, {1, {key, N}}]) end))}
     || N <- lists:seq(1, 300)
    ],
    [
        case N rem 3 of
            0 -> exit(Holder, kill);
            1 -> exit(Holder, shutdown);
            2 -> test_worker:send_order(Holder, fun() -> exit(normal) end)
        end
     || {N, Holder} <- Numbered
    ],
    test_await:down([Holder || {_, Holder} <- Numbered]),
    [test_await:count(Key, 0) || Key <- [db, app | [{key, N} || N <- lists:seq(1, 300)]]].

after_releases() ->
    Keys = [{key, N} || N <- lists:seq(1, 50)],
    {Stays, _} = test_worker:start(fun() -> take([{1, Key} || Key <- Keys]) end),
    {Holder, _} = test_worker:start(fun() -> take([{3, Key} || Key <- Keys]) end),
    {Odd, Even} = lists:partition(fun({key, N}) -> N rem 2 =:= 1 end, Keys),
    Release = fun() -> [canal_lock:release(Key) || Key <- Odd ++ Odd ++ Odd ++ Even] end,
    ?assertEqual([ok], lists:usort(test_worker:order(Holder, Release))),
    ?assertEqual({[1], [3]}, {counts(Odd), counts(Even)}),
    ok = test_worker:kill(Holder),
    test_await:value([1], fun() -> counts(Keys) end),
    ok = test_worker:kill(Stays),
    test_await:value([0], fun() -> counts(Keys) end).

counts(Keys) ->
    lists:usort([canal_lock:count(Key) || Key <- Keys]).

%% What a restarted worker has to do: it hears `full' for as long as its predecessor's permit is out, and not for
%% ever.
successor() ->
    lists:foldl(
        fun(_, Predecessor) ->
            exit(Predecessor, kill),
            {Next, ok} = test_worker:start(fun() ->
                test_await:value({acquired, 1}, fun() -> canal_lock:acquire(db, 1, 1) end)
            end),
            Next
        end,
        test_worker:start(),
        lists:seq(1, test_setup:times(2000))
    ).

die_together() ->
    Parent = test_worker:start(),
    Hold = fun() ->
        take([{1, db}, {1, {key, self()}}]),
        receive
        after infinity -> ok
        end
    end,
    Holders = test_worker:order(Parent, fun() -> [spawn_link(Hold) || _ <- lists:seq(1, ?MANY)] end),
    test_await:count(db, ?MANY),
    ok = test_worker:kill(Parent),
    test_await:count(db, 0),
    test_await:value([0], fun() -> counts([{key, Holder} || Holder <- Holders]) end),
    test_await:value(0, fun() -> maps:get(holders, canal_lock:info()) end).
