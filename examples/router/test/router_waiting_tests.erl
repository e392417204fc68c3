%% Tests requests that wait because their app is at its capacity: the order, the deadline, disconnects, kills, and
%% changes of the app.
-module(router_waiting_tests).

-include_lib("eunit/include/eunit.hrl").

-import(router_test_setup, [
    answer/1, ask/1, await_held/1, await_waiting/1, closed/1, dyno/0, none_passed/0, open/1, passed/1, reply/1,
    status/1
]).

%% The deadline in tests that reach it, and in tests that must not.
-define(SOON_MS, 300).
-define(NEVER_MS, 60000).
-define(ROUNDS, 10000).

waiting_test_() ->
    [
        router_test_setup:tests([
            {"requests above the capacity wait, and are admitted in the order of their arrival", fun in_order/0},
            {"a request waits until the deadline and gets 503", fun deadline/0},
            {"a client disconnects while it waits: the next one is admitted", fun disconnects/0},
            {"additional dynos admit requests that wait", fun grow/0},
            {"after dynos are removed no request that waits is admitted until enough are answered", fun shrink/0},
            {"a request that waited goes to a dyno that was added during its wait", fun replaced/0},
            {"a request whose app grew between its look-up and its wait is admitted", fun grew_before_wait/0},
            {"a request that is admitted just before its app shrinks waits again", fun shrank_after_wait/0},
            {"a permit that is granted at the deadline is used", fun at_the_deadline/0},
            {"of concurrent changes, requests that wait get the last one", fun concurrent_changes/0},
            {"an app is deleted while requests wait: 404", fun deleted/0},
            {"an app stops to let requests wait: those that wait continue to", fun mode_changes/0}
        ]),
        router_test_setup:noisy([
            {"a process is killed while it waits: the next one is admitted", fun killed/0},
            {"an admitted request is killed: a request that waits gets its permits", fun holder_killed/0},
            {"P10: requests continue, and continue to wait, while the manager is restarted", fun manager_dies/0}
        ])
    ].

put_app(MaxPer, Dynos) ->
    router:put(<<"shop">>, MaxPer, Dynos, ?NEVER_MS).

%% Returns a request that waits behind this number of others.
wait(Path, Before) ->
    Client = ask(Path),
    ok = await_waiting(Before + 1),
    Client.

answered({Client, Request}) ->
    ok = reply(Request),
    {200, Headers, _} = answer(Client),
    %% Whether it has waited.
    lists:keymember(<<"x-router-waited-us">>, 1, Headers).

%% The process of the only request that waits, once it has checked that its app has not changed.
waiter() ->
    Waiting = fun() ->
        [P || P <- processes(), process_info(P, current_function) =:= {current_function, {router_request, wait, 3}}]
    end,
    ok = test_await:value(1, fun() -> length(Waiting()) end),
    hd(Waiting()).

in_order() ->
    ok = put_app(1, [dyno()]),
    First = open(<<"/first">>),
    Paths = [<<"/", Letter>> || Letter <- "abcde"],
    Waiting = lists:zip(Paths, [wait(Path, Before) || {Before, Path} <- lists:enumerate(0, Paths)]),
    none_passed(),
    Last = lists:foldl(
        fun({Path, Client}, Present) ->
            ?assertEqual(Present =/= First, answered(Present)),
            Next = {Client, passed(Path)},
            none_passed(),
            Next
        end,
        First,
        Waiting
    ),
    true = answered(Last).

deadline() ->
    ok = router:put(<<"shop">>, 1, [dyno()], ?SOON_MS),
    Open = open(<<"/open">>),
    lists:foreach(fun(_) ->
        Begun_ms = erlang:monotonic_time(millisecond),
        ?assertEqual({503, <<"full">>}, status(ask("/"))),
        ?assert(erlang:monotonic_time(millisecond) - Begun_ms >= ?SOON_MS),
        ?assertEqual(0, canal_lock:waiting(<<"shop">>))
    end, [1, 2]),
    answered(Open).

disconnects() ->
    ok = put_app(1, [dyno()]),
    Open = open(<<"/open">>),
    lists:foreach(fun(Disconnect) ->
        ok = Disconnect(wait(<<"/disconnects">>, 0)),
        ok = await_waiting(0)
    end, [fun gen_tcp:close/1, fun router_test_setup:reset/1, fun(Client) -> gen_tcp:shutdown(Client, write) end]),
    Client = wait(<<"/disconnects">>, 0),
    Next = wait(<<"/next">>, 1),
    ok = gen_tcp:close(Client),
    ok = await_waiting(1),
    answered(Open),
    answered({Next, passed(<<"/next">>)}),
    none_passed().

killed() ->
    ok = put_app(1, [dyno()]),
    Open = open(<<"/open">>),
    Client = wait(<<"/killed">>, 0),
    true = exit(waiter(), kill),
    ok = await_waiting(0),
    ok = closed(Client),
    Next = wait(<<"/next">>, 0),
    answered(Open),
    answered({Next, passed(<<"/next">>)}),
    none_passed().

holder_killed() ->
    ok = put_app(1, [dyno()]),
    {_, #{socket := Socket}} = open(<<"/open">>),
    Client = wait(<<"/waits">>, 0),
    true = exit(router_test_setup:holder(), kill),
    answered({Client, passed(<<"/waits">>)}),
    ok = closed(Socket).

grow() ->
    [First | _] = Dynos = [dyno(), dyno()],
    ok = put_app(1, []),
    Paths = [<<"/1">>, <<"/2">>, <<"/3">>, <<"/4">>],
    Clients = [{Path, wait(Path, Before)} || {Before, Path} <- lists:enumerate(0, Paths)],
    Passed = fun(Numbers) -> [{Client, passed(Path)} || N <- Numbers, {Path, Client} <- [lists:nth(N, Clients)]] end,
    ok = put_app(1, [First]),
    One = Passed([1]),
    ok = await_waiting(3),
    ok = put_app(1, Dynos),
    Two = Passed([2]),
    ok = await_waiting(2),
    %% MaxPer may grow, too.
    ok = put_app(2, Dynos),
    Four = One ++ Two ++ Passed([3, 4]),
    ?assertEqual(lists:sort(Dynos ++ Dynos), lists:sort([Dyno || {_, #{dyno := Dyno}} <- Four])),
    [answered(Request) || Request <- Four].

shrink() ->
    [First | _] = Dynos = [dyno(), dyno(), dyno()],
    ok = put_app(1, Dynos),
    Requests = [open(Path) || Path <- [<<"/1">>, <<"/2">>, <<"/3">>]],
    Client = wait(<<"/waits">>, 0),
    ok = put_app(1, [First]),
    {[Kept], Others} = lists:partition(fun({_, #{dyno := Dyno}}) -> Dyno =:= First end, Requests),
    lists:foreach(fun(Request) ->
        answered(Request),
        none_passed(),
        ?assertEqual(1, canal_lock:waiting(<<"shop">>))
    end, Others),
    answered(Kept),
    #{dyno := First} = Request = passed(<<"/waits">>),
    answered({Client, Request}).

replaced() ->
    [Old, New] = [dyno(), dyno()],
    ok = put_app(1, [Old]),
    Open = open(<<"/open">>),
    Client = wait(<<"/waits">>, 0),
    ok = put_app(1, [New]),
    answered(Open),
    #{dyno := New} = Request = passed(<<"/waits">>),
    answered({Client, Request}).

%% Called as by the router, with the app as it was before.
grew_before_wait() ->
    {Before, Present} = grown(),
    Acquired = router_request:acquire(Before),
    Begun_ns = erlang:monotonic_time(nanosecond),
    ?assertEqual({acquired, Present}, router_request:await(Acquired, no_client, Before, Begun_ns)),
    ok = router_request:release(Present).

grown() ->
    ok = put_app(1, []),
    {ok, Before} = router:find(<<"shop">>),
    ok = put_app(1, [dyno()]),
    {ok, Present} = router:find(<<"shop">>),
    {Before, Present}.

%% The deadline has passed, and the message with the permit has come.
at_the_deadline() ->
    {Before, Present} = grown(),
    {waiting, _} = Waiting = router_request:acquire(Before),
    ok = router:resize(<<"shop">>),
    Long_ago_ns = erlang:monotonic_time(nanosecond) - 2 * ?NEVER_MS * 1000000,
    ?assertEqual({acquired, Present}, router_request:await(Waiting, no_client, Before, Long_ago_ns)),
    ok = router_request:release(Present).

%% Two permits are in use. When one is released, the request is admitted if the app has two dynos in the end.
concurrent_changes() ->
    [First, _] = Dynos = [dyno(), dyno()],
    ok = put_app(1, Dynos),
    lists:foreach(fun(_) ->
        [{acquired, _} = canal_lock:acquire(<<"shop">>, 1, 2) || _ <- [1, 2]],
        {waiting, Ref} = canal_lock:request(<<"shop">>, 1, 2),
        Gate = counters:new(1, []),
        Put = fun(Some) -> ok = test_await:gate(Gate), ok = put_app(1, Some) end,
        Puts = [spawn_monitor(fun() -> Put(Some) end) || Some <- [[First], Dynos]],
        ok = counters:add(Gate, 1, 1),
        [normal = test_await:reason(One) || One <- Puts],
        ok = canal_lock:release(<<"shop">>),
        {ok, #{dynos := Last}} = router:find(<<"shop">>),
        ?assertEqual(length(Last), canal_lock:count(<<"shop">>)),
        _ = canal_lock:cancel(Ref),
        [ok = canal_lock:release(<<"shop">>) || _ <- Last]
    end, lists:seq(1, ?ROUNDS)).

%% The app has changed, but the request does not have the new capacity yet.
shrank_after_wait() ->
    Dynos = [dyno()],
    ok = put_app(1, Dynos),
    {ok, Present} = router:find(<<"shop">>),
    Open = open(<<"/open">>),
    Client = wait(<<"/waits">>, 0),
    _ = waiter(),
    true = ets:insert(router, {<<"shop">>, Present#{dynos := []}}),
    answered(Open),
    test_await:value(1, fun() -> maps:get(handed_over, canal_lock:info()) end),
    ok = await_held(0),
    ok = await_waiting(1),
    none_passed(),
    ok = put_app(1, Dynos),
    answered({Client, passed(<<"/waits">>)}).

deleted() ->
    ok = put_app(1, [dyno()]),
    Open = open(<<"/open">>),
    Waiting = [wait(<<"/waits">>, Before) || Before <- [0, 1, 2]],
    ok = router:delete(<<"shop">>),
    answered(Open),
    [?assertEqual({404, <<"unknown-app">>}, status(Client)) || Client <- Waiting],
    none_passed().

mode_changes() ->
    Dynos = [dyno()],
    ok = put_app(1, Dynos),
    Open = open(<<"/open">>),
    Client = wait(<<"/waits">>, 0),
    ok = router:put(<<"shop">>, 1, Dynos, 0),
    ?assertEqual({503, <<"full">>}, status(ask("/refused"))),
    answered(Open),
    answered({Client, passed(<<"/waits">>)}).

manager_dies() ->
    ok = put_app(2, [dyno()]),
    First = open(<<"/first">>),
    Manager = whereis(canal_lock),
    ok = test_manager_crash:kill(Manager),
    %% A new manager may or may not have started.
    Second = open(<<"/second">>),
    Client = wait(<<"/waits">>, 0),
    _ = test_manager_crash:another(Manager),
    Another = wait(<<"/another">>, 1),
    answered(First),
    Third = {Client, passed(<<"/waits">>)},
    answered(Second),
    [answered(Request) || Request <- [Third, {Another, passed(<<"/another">>)}]].
