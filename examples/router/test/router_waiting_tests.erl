%% Tests requests that wait because their app is at its capacity: the order, the deadline, disconnects, kills, and
%% changes of the app.
-module(router_waiting_tests).

-include_lib("eunit/include/eunit.hrl").

%% The deadline in tests that reach it, and in tests that must not.
-define(SOON_MS, 300).
-define(NEVER_MS, 60000).
-define(CLIENTS, 60).
-define(CHANGES, 40).
-define(ROUNDS, 10000).
-define(ANSWER, "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok").

waiting_test_() ->
    [
        router_test_setup:tests([
            {"requests above the capacity wait, and are admitted in the order of their arrival", fun in_order/0},
            {"a request waits until the deadline and gets 503; its connection stays usable", fun deadline/0},
            {"put/3 uses the wait_ms of the application", fun of_the_application/0},
            {"a wrong time is named and changes nothing", fun wrong_time/0},
            {"a client disconnects while it waits: the next one is admitted", fun disconnects/0},
            {"a client sends data while it waits: its connection closes after the answer", fun sends_more/0},
            {"a client that keeps sending does not move its deadline", fun keeps_sending/0},
            {"a process is killed while it waits: the next one is admitted", fun killed/0},
            {"an admitted request is killed: a request that waits gets its permits", fun holder_killed/0},
            {"additional dynos admit requests that wait", fun grow/0},
            {"requests for an app without dynos wait for the first dyno", fun first_dyno/0},
            {"after dynos are removed no request that waits is admitted until enough are answered", fun shrink/0},
            {"a request that waited goes to a dyno that was added during its wait", fun replaced/0},
            {"a request whose app grew between its look-up and its wait is admitted", fun grew_before_wait/0},
            {"a request that is admitted just before its app shrinks waits again", fun shrank_after_wait/0},
            {"a permit that is granted at the deadline is used", fun at_the_deadline/0},
            {"of concurrent changes, requests that wait get the last one", fun concurrent_changes/0},
            {"an app is deleted while requests wait: 404", fun deleted/0},
            {"an app stops to let requests wait: those that wait continue to", fun mode_changes/0},
            {"no dyno gets more requests than its limit while dynos come and go", fun changes/0},
            {"statistics: waits that end with a permit, at the deadline, and by a disconnect", fun statistics/0}
        ]),
        router_test_setup:noisy([
            {"P10: requests continue to wait while the manager is restarted", fun manager_dies/0}
        ])
    ].

put_app(MaxPer, Dynos) ->
    router:put(<<"shop">>, MaxPer, Dynos, ?NEVER_MS).

%% Returns a request that has reached a dyno.
open(Path) ->
    reached(router_test_client:get(Path), Path).

reached(Socket, Path) ->
    {Connection, #{dyno := Dyno}} = router_test_dyno:request(Path),
    {Socket, Connection, Dyno}.

%% Returns a request that waits behind this number of others.
wait(Path, Before) ->
    Socket = router_test_client:get(Path),
    ok = router_test_setup:await_waiting(Before + 1),
    Socket.

answer({Socket, Connection, _}) ->
    ok = router_test_dyno:answer(Connection, ?ANSWER),
    ?assertMatch(#{status := 200, body := <<"ok">>}, router_test_client:answer(Socket)).

reason(Socket) ->
    #{status := Status, headers := Headers} = router_test_client:answer(Socket),
    {Status, proplists:get_value(<<"x-router-reason">>, Headers)}.

%% The process of the only request that waits, once it has checked that its app has not changed.
waiter() ->
    Waiting = fun() ->
        [Pid || Pid <- processes(), process_info(Pid, current_function) =:= {current_function, {router_queue, wait, 5}}]
    end,
    ok = test_await:value(1, fun() -> length(Waiting()) end),
    hd(Waiting()).

in_order() ->
    ok = put_app(1, [router_test_dyno:start()]),
    First = open(<<"/first">>),
    Paths = [<<"/", Letter>> || Letter <- "abcde"],
    Waiting = lists:zip(Paths, [wait(Path, Before) || {Before, Path} <- lists:enumerate(0, Paths)]),
    ok = router_test_dyno:no_request(),
    Last = lists:foldl(
        fun({Path, Socket}, Present) ->
            answer(Present),
            Next = reached(Socket, Path),
            ok = router_test_dyno:no_request(),
            Next
        end,
        First,
        Waiting
    ),
    answer(Last).

deadline() ->
    Dynos = [router_test_dyno:start()],
    ok = router:put(<<"shop">>, 1, Dynos, ?SOON_MS),
    Open = open(<<"/open">>),
    Socket = router_test_client:connect(),
    lists:foreach(fun(_) ->
        Begun_ms = erlang:monotonic_time(millisecond),
        ok = router_test_client:get(Socket, "/"),
        ?assertEqual({503, <<"full">>}, reason(Socket)),
        ?assert(erlang:monotonic_time(millisecond) - Begun_ms >= ?SOON_MS),
        ?assertEqual(0, canal_lock:waiting(<<"shop">>))
    end, [1, 2]),
    ok = put_app(1, Dynos),
    ok = router_test_client:get(Socket, "/then"),
    ok = router_test_setup:await_waiting(1),
    answer(Open),
    answer(reached(Socket, <<"/then">>)),
    ok = router_test_dyno:no_request().

of_the_application() ->
    ok = application:set_env(router, wait_ms, ?NEVER_MS),
    ok = router:put(<<"shop">>, 1, [router_test_dyno:start()]),
    Open = open(<<"/open">>),
    Waiting = wait(<<"/waits">>, 0),
    answer(Open),
    answer(reached(Waiting, <<"/waits">>)).

wrong_time() ->
    ok = put_app(0, []),
    [?assertError({not_a_time, Time}, router:put(<<"shop">>, 1, [], Time)) || Time <- [-1, 1.0, infinity, 1 bsl 32]],
    ?assertMatch({ok, #{max_per := 0, wait_ms := ?NEVER_MS}}, router_apps:find(<<"shop">>)),
    ok = router:put(<<"shop">>, 1, [], 1 bsl 32 - 1),
    ok = gen_tcp:close(wait(<<"/">>, 0)),
    ok = router_test_setup:await_waiting(0).

disconnects() ->
    ok = put_app(1, [router_test_dyno:start()]),
    Open = open(<<"/open">>),
    lists:foreach(fun(Disconnect) ->
        Socket = wait(<<"/disconnects">>, 0),
        Next = wait(<<"/next">>, 1),
        ok = Disconnect(Socket),
        ok = router_test_setup:await_waiting(1),
        ok = Disconnect(Next),
        ok = router_test_setup:await_waiting(0)
    end, [
        fun gen_tcp:close/1,
        fun router_test_client:reset/1,
        fun(Socket) -> gen_tcp:shutdown(Socket, write) end
    ]),
    Socket = wait(<<"/disconnects">>, 0),
    Next = wait(<<"/next">>, 1),
    ok = gen_tcp:close(Socket),
    ok = router_test_setup:await_waiting(1),
    answer(Open),
    answer(reached(Next, <<"/next">>)),
    ok = router_test_dyno:no_request().

sends_more() ->
    ok = router:put(<<"shop">>, 1, [router_test_dyno:start()], ?SOON_MS),
    Open = open(<<"/open">>),
    Refused = get_twice("/refused"),
    ?assertEqual({503, <<"full">>}, reason(Refused)),
    ?assertEqual(<<>>, router_test_client:rest(Refused)),
    ok = put_app(1, [Dyno || {_, _, Dyno} <- [Open]]),
    Admitted = get_twice("/admitted"),
    ok = router_test_setup:await_waiting(1),
    answer(Open),
    answer(reached(Admitted, <<"/admitted">>)),
    ?assertEqual(<<>>, router_test_client:rest(Admitted)),
    %% Its disconnect is noticed as well.
    Again = open(<<"/again">>),
    Leaves = get_twice("/leaves"),
    ok = router_test_setup:await_waiting(1),
    ok = gen_tcp:close(Leaves),
    ok = router_test_setup:await_waiting(0),
    answer(Again),
    ok = router_test_dyno:no_request().

%% In one piece, so that the router has the second request when the first one begins to wait.
get_twice(Path) ->
    router_test_client:request(lists:duplicate(2, ["GET ", Path, " HTTP/1.1\r\nHost: shop\r\n\r\n"])).

keeps_sending() ->
    ok = router:put(<<"shop">>, 0, [], ?SOON_MS),
    Socket = router_test_client:get("/"),
    {Sender, _} = Monitored = spawn_monitor(fun() -> send_until_closed(Socket) end),
    ?assertEqual({503, <<"full">>}, reason(Socket)),
    true = exit(Sender, kill),
    killed = test_await:reason(Monitored).

send_until_closed(Socket) ->
    case gen_tcp:send(Socket, binary:copy(<<"more">>, 1000)) of
        ok -> send_until_closed(Socket);
        {error, _} -> timer:sleep(infinity)
    end.

killed() ->
    ok = put_app(1, [router_test_dyno:start()]),
    Open = open(<<"/open">>),
    Socket = wait(<<"/killed">>, 0),
    true = exit(waiter(), kill),
    ok = router_test_setup:await_waiting(0),
    ?assertEqual(<<>>, router_test_client:rest(Socket)),
    Next = wait(<<"/next">>, 0),
    answer(Open),
    answer(reached(Next, <<"/next">>)),
    ok = router_test_dyno:no_request().

holder_killed() ->
    ok = put_app(1, [router_test_dyno:start()]),
    {_, Connection, _} = open(<<"/open">>),
    Waiting = wait(<<"/waits">>, 0),
    true = exit(router_test_setup:holder(<<"shop">>), kill),
    answer(reached(Waiting, <<"/waits">>)),
    ok = router_test_dyno:ended(Connection).

grow() ->
    [First | _] = Dynos = [router_test_dyno:start() || _ <- [1, 2]],
    ok = put_app(1, [First]),
    One = open(<<"/1">>),
    [Second, Third, Fourth] = [wait(<<"/", (integer_to_binary(N))/binary>>, N - 2) || N <- [2, 3, 4]],
    ok = put_app(1, Dynos),
    Two = reached(Second, <<"/2">>),
    ok = router_test_setup:await_waiting(2),
    %% MaxPer may grow, too.
    ok = put_app(2, Dynos),
    Others = [reached(Third, <<"/3">>), reached(Fourth, <<"/4">>)],
    ?assertEqual([2, 2], [length([x || {_, _, At} <- [One, Two | Others], At =:= Dyno]) || Dyno <- Dynos]),
    [answer(Request) || Request <- [One, Two | Others]].

first_dyno() ->
    ok = put_app(1, []),
    Waiting = wait(<<"/">>, 0),
    ok = put_app(1, [router_test_dyno:start()]),
    answer(reached(Waiting, <<"/">>)).

shrink() ->
    [First | _] = Dynos = [router_test_dyno:start() || _ <- [1, 2, 3]],
    ok = put_app(1, Dynos),
    Requests = [open(Path) || Path <- [<<"/1">>, <<"/2">>, <<"/3">>]],
    Waiting = wait(<<"/waits">>, 0),
    ok = put_app(1, [First]),
    {[Kept], Others} = lists:partition(fun({_, _, Dyno}) -> Dyno =:= First end, Requests),
    lists:foreach(fun(Request) ->
        answer(Request),
        ok = router_test_dyno:no_request(),
        ?assertEqual(1, canal_lock:waiting(<<"shop">>))
    end, Others),
    answer(Kept),
    {_, _, First} = Next = reached(Waiting, <<"/waits">>),
    answer(Next).

replaced() ->
    [Old, New] = [router_test_dyno:start() || _ <- [1, 2]],
    ok = put_app(1, [Old]),
    Open = open(<<"/open">>),
    Waiting = wait(<<"/waits">>, 0),
    ok = put_app(1, [New]),
    answer(Open),
    {_, _, New} = Next = reached(Waiting, <<"/waits">>),
    answer(Next).

%% Called as by the router, with the app as it was before.
grew_before_wait() ->
    ok = put_app(1, []),
    {ok, Before} = router_apps:find(<<"shop">>),
    ok = put_app(1, [router_test_dyno:start()]),
    {ok, Present} = router_apps:find(<<"shop">>),
    Begun_ns = erlang:monotonic_time(nanosecond),
    ?assertEqual(
        {{acquired, Present}, next}, router_queue:await(router_queue:acquire(Before), client(), Before, Begun_ns)
    ),
    ok = router_queue:release(Present).

client() ->
    mochiweb_request:new(router_test_client:connect(), 'GET', "/", {1, 1}, mochiweb_headers:make([])).

%% The deadline has passed, and the message with the permit has come.
at_the_deadline() ->
    ok = put_app(1, []),
    {ok, Before} = router_apps:find(<<"shop">>),
    {waiting, _} = Waiting = router_queue:acquire(Before),
    ok = put_app(1, [router_test_dyno:start()]),
    {ok, Present} = router_apps:find(<<"shop">>),
    Long_ago_ns = erlang:monotonic_time(nanosecond) - 2 * ?NEVER_MS * 1000000,
    ?assertEqual({{acquired, Present}, next}, router_queue:await(Waiting, client(), Before, Long_ago_ns)),
    ok = router_queue:release(Present).

%% Two permits are in use. When one is released, the request is admitted if the app has two dynos in the end.
concurrent_changes() ->
    [First, _] = Dynos = [router_test_dyno:start() || _ <- [1, 2]],
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
        {ok, #{dynos := Last}} = router_apps:find(<<"shop">>),
        ?assertEqual(length(Last), canal_lock:count(<<"shop">>)),
        _ = canal_lock:cancel(Ref),
        [ok = canal_lock:release(<<"shop">>) || _ <- Last]
    end, lists:seq(1, ?ROUNDS)).

%% The app has changed, but the request does not have the new capacity yet.
shrank_after_wait() ->
    Dynos = [router_test_dyno:start()],
    ok = put_app(1, Dynos),
    Open = open(<<"/open">>),
    Waiting = wait(<<"/waits">>, 0),
    _ = waiter(),
    ok = router_apps:put(<<"shop">>, 1, [], ?NEVER_MS),
    answer(Open),
    test_await:value(1, fun() -> maps:get(handed_over, canal_lock:info()) end),
    ok = router_test_setup:await_held(0),
    ok = router_test_setup:await_waiting(1),
    ok = router_test_dyno:no_request(),
    ok = put_app(1, Dynos),
    answer(reached(Waiting, <<"/waits">>)).

deleted() ->
    ok = put_app(1, [router_test_dyno:start()]),
    Open = open(<<"/open">>),
    Waiting = [wait(<<"/waits">>, Before) || Before <- [0, 1, 2]],
    ok = router:delete(<<"shop">>),
    answer(Open),
    [?assertEqual({404, <<"unknown-app">>}, reason(Socket)) || Socket <- Waiting],
    ok = router_test_dyno:no_request().

mode_changes() ->
    Dynos = [router_test_dyno:start()],
    ok = put_app(1, Dynos),
    Open = open(<<"/open">>),
    Waiting = wait(<<"/waits">>, 0),
    ok = router:put(<<"shop">>, 1, Dynos, 0),
    ?assertEqual({503, <<"full">>}, reason(router_test_client:get("/refused"))),
    answer(Open),
    answer(reached(Waiting, <<"/waits">>)).

%% Each dyno counts its requests. No request is refused because its app is full.
changes() ->
    Busy = atomics:new(4, []),
    TooMany = counters:new(1, []),
    Dynos = [router_test_dyno:start(serve_counting(Busy, Index, TooMany)) || Index <- lists:seq(1, 4)],
    ok = put_app(2, Dynos),
    Clients = [
        spawn_monitor(fun() ->
            Socket = router_test_client:connect(),
            [ok = until_served(Socket) || _ <- lists:seq(1, 10)]
        end)
     || _ <- lists:seq(1, ?CLIENTS)
    ],
    lists:foreach(fun(Change) ->
        ok = put_app(2, lists:sublist(Dynos, Change rem 5)),
        timer:sleep(1)
    end, lists:seq(1, ?CHANGES)),
    ok = put_app(2, Dynos),
    [normal = test_await:reason(Client) || Client <- Clients],
    ?assertEqual(0, counters:get(TooMany, 1)).

%% A request that was admitted with dynos that have been removed can occupy the place of another one on a dyno that has
%% stayed. Then the other one finds no dyno.
until_served(Socket) ->
    ok = router_test_client:get(Socket, "/"),
    case router_test_client:answer(Socket) of
        #{status := 200} ->
            ok;
        #{status := 503, headers := Headers} ->
            <<"no-dyno">> = proplists:get_value(<<"x-router-reason">>, Headers),
            until_served(Socket)
    end.

serve_counting(Busy, Index, TooMany) ->
    fun(_Request, Socket) ->
        [counters:add(TooMany, 1, 1) || atomics:add_get(Busy, Index, 1) > 2],
        [erlang:yield() || _ <- lists:seq(1, 100)],
        ok = atomics:sub(Busy, Index, 1),
        ok = gen_tcp:send(Socket, ?ANSWER)
    end.

statistics() ->
    Dynos = [router_test_dyno:start()],
    ok = put_app(1, Dynos),
    Open = open(<<"/open">>),
    ok = gen_tcp:close(wait(<<"/disconnects">>, 0)),
    ok = router_test_setup:await_waiting(0),
    Waiting = wait(<<"/waits">>, 0),
    ok = router:put(<<"shop">>, 1, Dynos, ?SOON_MS),
    ?assertEqual({503, <<"full">>}, reason(router_test_client:get("/refused"))),
    answer(Open),
    answer(reached(Waiting, <<"/waits">>)),
    {ok, #{stats := Stats}} = router_apps:find(<<"shop">>),
    test_await:value([2, 1, 3], fun() ->
        #{granted := Granted, refused := Refused, waits := Waits} = router_stats:read(Stats),
        [Granted, Refused, router_stats:total(Waits)]
    end),
    #{waits := Waits, times := Times} = router_stats:read(Stats),
    ?assert(router_stats:quantile(Waits, 1000) > ?SOON_MS * 1000000),
    %% The time of an acquire does not include the wait.
    ?assert(router_stats:quantile(Times, 1000) < ?SOON_MS * 1000000).

manager_dies() ->
    ok = put_app(1, [router_test_dyno:start()]),
    Open = open(<<"/open">>),
    Waiting = wait(<<"/waits">>, 0),
    Manager = whereis(canal_lock),
    ok = test_manager_crash:kill(Manager),
    Another = wait(<<"/another">>, 1),
    _ = test_manager_crash:another(Manager),
    answer(Open),
    answer(reached(Waiting, <<"/waits">>)),
    answer(reached(Another, <<"/another">>)).
