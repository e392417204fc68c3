%% Tests admission: no dyno gets more requests than its limit, even when the app changes. Requests that wait are
%% admitted in order. A request holds its permits until its dyno has finished, also if the client disconnects or the
%% dyno fails.
-module(router_request_tests).

-include_lib("eunit/include/eunit.hrl").

-import(router_test_setup, [
    answered/1, ask/1, await_held/1, await_waiting/1, closed/1, dyno/0, none_passed/0, open/1, passed/1, reply/2,
    request/1, status/1, ways_to_leave/0
]).

%% The deadline in tests that reach it, and in tests that must not.
-define(SOON_MS, 300).
-define(NEVER_MS, 60000).
-define(ROUNDS, 10000).

request_test_() ->
    router_test_setup:tests([
        {"a request above the capacity gets 503 immediately; each dyno gets up to its limit", fun full/0},
        {"a client that has its answer finds its permit free", fun free_at_once/0},
        {"apps do not use each other's permits", fun two_apps/0},
        {"requests above the capacity wait, and are admitted in the order of their arrival", fun in_order/0},
        {"a request waits until the deadline and gets 503", fun deadline/0},
        {"additional dynos admit requests that wait", fun grow/0},
        {"after a change no request is admitted until enough are answered; then on the new dynos", fun shrink/0},
        {"an app may be deleted while requests are open and wait", fun deleted/0},
        {"a request whose app grew between its look-up and its wait is admitted", fun grew_before_wait/0},
        {"a request that is admitted just before its app shrinks waits again", fun shrank_after_wait/0},
        {"a permit that is granted at the deadline is used", fun at_the_deadline/0},
        {"of concurrent changes, requests that wait get the last one", fun concurrent_changes/0},
        {"a client disconnects: the permits are held until the dyno has closed", fun client_leaves/0},
        {"a client disconnects and the dyno does not close: released after the timeout", fun never_closes/0},
        {"a client disconnects while it waits: the next one is admitted", fun waiting_client_leaves/0},
        {"a client that sends or reads slowly does not hold a permit", fun slow_client/0},
        {"a dyno dies: 502, and the permits are released", fun dyno_dies/0},
        {"a dyno does not answer, or does not read: 504, and the permits are released", fun silent/0},
        {"a dyno sends without end: 502, and the permits are released", fun endless/0},
        {"processes are killed that wait and that hold permits: the next one is admitted", fun killed/0}
    ]).

%% An app that refuses, and one that lets requests wait.
refuse(MaxPer, Dynos) ->
    router:put(<<"shop">>, MaxPer, Dynos, 0).

let_wait(MaxPer, Dynos) ->
    router:put(<<"shop">>, MaxPer, Dynos, ?NEVER_MS).

refused() ->
    ?assertEqual(503, status(ask("/refused"))).

%% Returns a request that waits behind this number of others.
wait(Path, Before) ->
    Client = ask(Path),
    ok = await_waiting(Before + 1),
    Client.

full() ->
    [A, B, C] = [dyno(), dyno(), dyno()],
    lists:foreach(fun({MaxPer, Dynos, Each}) ->
        ok = refuse(MaxPer, Dynos),
        Open = [open(<<"/">>) || _ <- Each],
        ?assertEqual(lists:sort(Each), lists:sort([Dyno || {_, #{dyno := Dyno}} <- Open])),
        refused(),
        Again = [
            begin
                false = answered(Request),
                Next = open(<<"/">>),
                refused(),
                Next
            end
         || Request <- Open
        ],
        lists:foreach(fun router_test_setup:answered/1, Again)
    end, [{0, [A], []}, {3, [], []}, {2, [A], [A, A]}, {1, [A, A], [A]}, {2, [A, B, C], [A, A, B, B, C, C]}]
        ++ lists:duplicate(20, {1, [A, B], [A, B]})),
    none_passed().

%% Many times, and with different ends of the answer.
free_at_once() ->
    ok = refuse(1, [dyno()]),
    [
        begin
            {Client, Request} = open(<<"/">>),
            ok = reply(Request, Answer),
            ?assertEqual(Status, status(Client))
        end
     || _ <- lists:seq(1, 50),
        {Status, Answer} <- [
            {200, "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok"}, {201, "HTTP/1.0 201 OK\r\n\r\nok"},
            {502, "rubbish"}
        ]
    ].

two_apps() ->
    Dyno = dyno(),
    ok = refuse(1, [Dyno]),
    ok = router:put(<<"BLOG.example">>, 1, [Dyno], 0),
    Shop = open(<<"/">>),
    Client = request("GET /blog HTTP/1.1\r\nHost: Blog.Example:8080\r\n\r\n"),
    Blog = {Client, passed(<<"/blog">>)},
    refused(),
    [answered(Request) || Request <- [Blog, Shop]].

in_order() ->
    ok = let_wait(1, [dyno()]),
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
        refused(),
        ?assert(erlang:monotonic_time(millisecond) - Begun_ms >= ?SOON_MS),
        ?assertEqual(0, canal_lock:waiting(<<"shop">>))
    end, [1, 2]),
    answered(Open).

%% MaxPer may grow, too.
grow() ->
    [A, B] = [dyno(), dyno()],
    ok = let_wait(1, []),
    Paths = [<<"/1">>, <<"/2">>, <<"/3">>],
    Clients = [wait(Path, Before) || {Before, Path} <- lists:enumerate(0, Paths)],
    Sizes = [{1, [A], A, 2}, {1, [A, B], B, 1}, {3, [A], A, 0}],
    Requests = [
        begin
            ok = let_wait(MaxPer, Dynos),
            #{dyno := Dyno} = Request = passed(Path),
            ok = await_waiting(Left),
            {Client, Request}
        end
     || {Path, Client, {MaxPer, Dynos, Dyno, Left}} <- lists:zip3(Paths, Clients, Sizes)
    ],
    lists:foreach(fun router_test_setup:answered/1, Requests).

%% The app then refuses requests, but those that wait continue to.
shrink() ->
    [New | Dynos] = [dyno(), dyno(), dyno(), dyno()],
    ok = let_wait(1, Dynos),
    Open = [open(Path) || Path <- [<<"/1">>, <<"/2">>, <<"/3">>]],
    Client = wait(<<"/waits">>, 0),
    ok = refuse(1, [New]),
    lists:foreach(fun(Request) ->
        none_passed(),
        refused(),
        ?assertEqual(1, canal_lock:waiting(<<"shop">>)),
        answered(Request)
    end, Open),
    #{dyno := New} = Request = passed(<<"/waits">>),
    refused(),
    true = answered({Client, Request}).

deleted() ->
    Dynos = [dyno()],
    ok = let_wait(2, Dynos),
    [First, Second] = [open(<<"/open">>) || _ <- [1, 2]],
    Waiting = [wait(<<"/waits">>, Before) || Before <- [0, 1, 2]],
    ok = router:delete(<<"Shop">>),
    ?assertEqual(404, status(ask("/"))),
    answered(First),
    [?assertEqual(404, status(Client)) || Client <- Waiting],
    none_passed(),
    %% Open requests count when the app is put again.
    ok = refuse(1, Dynos),
    refused(),
    answered(Second).

%% Called as by the router, with the app as it was before.
grew_before_wait() ->
    {Before, Present} = grown(),
    Acquired = router_request:acquire(Before),
    Begun_ns = erlang:monotonic_time(nanosecond),
    ?assertEqual({acquired, Present}, router_request:await(Acquired, no_client, Before, Begun_ns)),
    ok = router_request:release(Present).

grown() ->
    ok = let_wait(1, []),
    {ok, Before} = router:find(<<"shop">>),
    ok = let_wait(1, [dyno()]),
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
    ok = let_wait(1, Dynos),
    lists:foreach(fun(_) ->
        [{acquired, _} = canal_lock:acquire(<<"shop">>, 1, 2) || _ <- [1, 2]],
        {waiting, Ref} = canal_lock:request(<<"shop">>, 1, 2),
        Gate = counters:new(1, []),
        Put = fun(Some) -> ok = test_await:gate(Gate), ok = let_wait(1, Some) end,
        Puts = [spawn_monitor(fun() -> Put(Some) end) || Some <- [[First], Dynos]],
        ok = counters:add(Gate, 1, 1),
        [normal = test_await:reason(One) || One <- Puts],
        ok = canal_lock:release(<<"shop">>),
        {ok, #{dynos := Last}} = router:find(<<"shop">>),
        ?assertEqual(length(Last), canal_lock:count(<<"shop">>)),
        _ = canal_lock:cancel(Ref),
        [ok = canal_lock:release(<<"shop">>) || _ <- Last]
    end, lists:seq(1, ?ROUNDS)).

%% The process of the only request that waits, once it has checked that its app has not changed.
waiter() ->
    Waiting = {current_function, {router_request, wait, 3}},
    Waiters = fun() -> [Pid || Pid <- processes(), process_info(Pid, current_function) =:= Waiting] end,
    ok = test_await:value(1, fun() -> length(Waiters()) end),
    hd(Waiters()).

%% The app has changed, but the request does not have the new capacity yet.
shrank_after_wait() ->
    Dynos = [dyno()],
    ok = let_wait(1, Dynos),
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
    ok = let_wait(1, Dynos),
    answered({Client, passed(<<"/waits">>)}).

client_leaves() ->
    ok = refuse(1, [dyno()]),
    lists:foreach(fun(Leave) ->
        {Client, #{socket := Socket}} = open(<<"/">>),
        ok = Leave(Client),
        ok = closed(Socket),
        refused(),
        await_held(1),
        %% Later data of the dyno is discarded.
        ok = gen_tcp:send(Socket, "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok"),
        refused(),
        ok = gen_tcp:close(Socket),
        await_held(0)
    end, ways_to_leave()).

never_closes() ->
    ok = refuse(1, [dyno()]),
    ok = application:set_env(router, answer_ms, ?SOON_MS),
    {Client, #{socket := Socket}} = open(<<"/">>),
    ok = gen_tcp:close(Client),
    await_held(0),
    ok = closed(Socket).

waiting_client_leaves() ->
    ok = let_wait(1, [dyno()]),
    Open = open(<<"/open">>),
    Clients = [wait(<<"/leaves">>, Before) || Before <- [0, 1, 2]],
    Next = wait(<<"/next">>, 3),
    [ok = Leave(Client) || {Leave, Client} <- lists:zip(ways_to_leave(), Clients)],
    ok = await_waiting(1),
    answered(Open),
    answered({Next, passed(<<"/next">>)}),
    none_passed().

%% The answer is larger than the socket buffers.
slow_client() ->
    ok = refuse(1, [dyno()]),
    Slow = request("POST /slow HTTP/1.1\r\nHo"),
    answered(open(<<"/next">>)),
    ok = gen_tcp:send(Slow, "st: shop\r\nContent-Length: 4\r\n\r\nbo"),
    answered(open(<<"/next">>)),
    ok = gen_tcp:send(Slow, "dy"),
    #{body := <<"body">>} = Request = passed(<<"/slow">>),
    ok = inet:setopts(Slow, [{recbuf, 4096}]),
    ok = reply(Request, ["HTTP/1.0 200 OK\r\n\r\n", binary:copy(<<0>>, 8000000)]),
    await_held(0),
    answered(open(<<"/next">>)).

dyno_dies() ->
    ok = refuse(1, [dyno()]),
    [_Close, Reset | _] = ways_to_leave(),
    lists:foreach(fun(Bytes) ->
        {Client, #{socket := Socket}} = open(<<"/">>),
        ok = gen_tcp:send(Socket, Bytes),
        ok = Reset(Socket),
        ?assertEqual(502, status(Client)),
        answered(open(<<"/next">>))
    end, ["", "HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\ncut"]),
    {ok, Listener} = gen_tcp:listen(0, []),
    {ok, Port} = inet:port(Listener),
    ok = gen_tcp:close(Listener),
    ok = refuse(1, [{{127, 0, 0, 1}, Port}]),
    [?assertEqual(502, status(ask("/"))) || _ <- [1, 2]].

%% The longest body does not fit into the socket buffers of a dyno that does not read.
silent() ->
    ok = application:set_env(router, answer_ms, ?SOON_MS),
    {ok, Listener} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}, {active, false}, {recbuf, 4096}]),
    {ok, Port} = inet:port(Listener),
    ok = refuse(1, [{{127, 0, 0, 1}, Port}]),
    Long = ["Content-Length: 1000000\r\n\r\n", binary:copy(<<0>>, 1000000)],
    [
        ?assertEqual(504, status(request(["PUT / HTTP/1.1\r\nHost: shop\r\n", Rest])))
     || Rest <- ["\r\n", Long]
    ].

endless() ->
    ok = refuse(1, [dyno()]),
    {Client, #{socket := Socket}} = open(<<"/">>),
    _ = gen_tcp:send(Socket, ["HTTP/1.0 200 OK\r\n\r\n", binary:copy(<<0>>, 20000000)]),
    ?assertEqual(502, status(Client)),
    await_held(0).

killed() ->
    ok = let_wait(1, [dyno()]),
    {Client, #{socket := Socket}} = open(<<"/open">>),
    Killed = wait(<<"/killed">>, 0),
    true = exit(waiter(), kill),
    ok = await_waiting(0),
    ok = closed(Killed),
    Next = wait(<<"/next">>, 0),
    true = exit(router_test_setup:holder(), kill),
    answered({Next, passed(<<"/next">>)}),
    [ok = closed(One) || One <- [Socket, Client]],
    none_passed().
