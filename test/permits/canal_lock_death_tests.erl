%% P4: when a holder dies, in any way and with any number of permits, the VM releases each permit exactly once.
-module(canal_lock_death_tests).

-include_lib("eunit/include/eunit.hrl").

-define(MANY, 10_000).

death_test_() ->
    test_setup:quietly([
        test_setup:tests([
            {lists:concat(["P4: a holder of ", Held, " that ", Text, " releases everything"]), fun() ->
                dies_holding(Way, Hold)
            end}
         || {Way, Text} <- ways(), {Held, Hold} <- holdings()
        ]),
        test_setup:tests([
            {"P4: holders that die in different ways at once release everything", fun at_once/0},
            {"P4: 10,000 holders that die together release everything", fun die_together/0}
        ]),
        test_setup:tests(without_manager, [
            {Title, fun() -> ?assertEqual(passed, test_setup:in_a_vm(["+P", Limit], fun generations/0)) end}
         || {Title, Limit} <- [
                {"P4: deaths release everything when the VM reuses pids quickly (+P 1024)", "1024"},
                {"P4: deaths release everything with a process limit of 4,000,000", "4000000"}
            ]
        ])
    ]).

ways() ->
    [
        {normal_exit, "returns"},
        {shutdown, "exits with shutdown"},
        {error, "raises an error"},
        {throw, "throws"},
        {kill, "is killed"},
        {exit_signal, "gets an exit signal"},
        {linked, "is linked to a process that is killed"},
        {kills_itself, "kills itself"}
    ].

%% The permits as text, and a function that acquires them and returns `[{Permits, Key}]'.
holdings() ->
    [
        {"only released permits", fun() ->
            acquire([{1, once}]),
            ok = canal_lock:release(once),
            []
        end},
        {"a permit of one key", fun() -> acquire([{1, db}]) end},
        {"permits of two keys", fun() -> acquire([{2, db}, {1, {app, 1}}]) end},
        {"permits of three keys", fun() -> acquire([{1, db}, {3, {app, 1}}, {2, "string"}]) end},
        {"permits of 10,000 keys", fun() -> acquire([{1, {key, N}} || N <- lists:seq(1, ?MANY)]) end},
        {"10,000 permits of one key", fun() -> acquire([{?MANY, db}]) end},
        {"permits of keys of every kind", fun() -> acquire([{2, Term} || {_, Term} <- test_key_terms:all()]) end}
    ].

acquire(Wanted) ->
    [{acquired, _} = canal_lock:acquire(Key, ?MANY, 2) || {Permits, Key} <- Wanted, _ <- lists:seq(1, Permits)],
    Wanted.

dies_holding(Way, Hold) ->
    %% Another holder survives: the death must not release its permit.
    {_, [_]} = test_worker:start(fun() -> acquire([{1, db}]) end),
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
die(kills_itself, Holder) -> test_worker:release_then_die(Holder, fun() -> exit(self(), kill) end);
die(exit_signal, Holder) ->
    exit(Holder, meant),
    test_await:down([Holder]);
die(linked, Holder) ->
    Linked = test_worker:start(),
    true = test_worker:order(Holder, fun() -> link(Linked) end),
    ok = test_worker:kill(Linked),
    test_await:down([Holder]).

at_once() ->
    Holders = [
        {N, element(1, test_worker:start(fun() -> acquire([{2, db}, {1, app}, {1, {key, N}}]) end))}
     || N <- lists:seq(1, 300)
    ],
    [
        case N rem 3 of
            0 -> exit(Holder, kill);
            1 -> exit(Holder, shutdown);
            2 -> test_worker:send_order(Holder, fun() -> exit(normal) end)
        end
     || {N, Holder} <- Holders
    ],
    test_await:down([Holder || {_, Holder} <- Holders]),
    [test_await:count(Key, 0) || Key <- [db, app | [{key, N} || N <- lists:seq(1, 300)]]].

counts(Keys) ->
    lists:usort([canal_lock:count(Key) || Key <- Keys]).

die_together() ->
    Parent = test_worker:start(),
    Hold = fun() ->
        acquire([{1, db}, {1, {key, self()}}]),
        test_setup:hold_forever()
    end,
    Holders = test_worker:order(Parent, fun() -> [spawn_link(Hold) || _ <- lists:seq(1, ?MANY)] end),
    test_await:count(db, ?MANY),
    ok = test_worker:kill(Parent),
    test_await:count(db, 0),
    test_await:value([0], fun() -> counts([{key, Holder} || Holder <- Holders]) end),
    test_await:nothing_held().

%% Twenty generations of 500 holders. Each holder has up to 7 keys, more than fit into its slot, when it is killed.
generations() ->
    {ok, _} = canal_lock:start_link(3),
    lists:foreach(fun(_) ->
        Holders = [test_worker:start() || _ <- lists:seq(1, 500)],
        Keys = fun(N) -> maps:from_list([{Key, 1} || Key <- [db | [{key, K} || K <- lists:seq(1, N rem 7)]]]) end,
        Sent = [
            test_worker:send_order(Holder, fun() -> test_worker:take(Keys(N)) end)
         || {N, Holder} <- lists:enumerate(Holders)
        ],
        [#{db := 1} = test_await:answer(Ref) || Ref <- Sent],
        ?assertEqual(500, canal_lock:count(db)),
        ?assertMatch(#{holders := 500}, canal_lock:info()),
        ok = test_worker:kill(Holders),
        test_await:nothing_held()
    end, lists:seq(1, 20)),
    ok = canal_lock:stop(),
    passed.
