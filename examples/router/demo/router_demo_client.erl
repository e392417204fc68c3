%% A client: sends the next request when it has the answer, immediately or, after a refusal, after a pause. At random it
%% disconnects before it has the answer.
-module(router_demo_client).

-export([run/2]).

%% A client leaves in one of this number of requests.
-define(LEAVE_ONE_OF, 20).
%% For an answer, and for clients that leave.
-define(PATIENCE_MS, 60000).
-define(LEAVE_MS, 100).
-define(PAUSE_MS, 30).

-spec run(router:host(), router_demo_log:log()) -> no_return().
run(Host, Log) ->
    Begun_ns = erlang:monotonic_time(nanosecond),
    {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, router:port(), [binary, {active, false}, {nodelay, true}]),
    _ = gen_tcp:send(Socket, ["GET / HTTP/1.1\r\nHost: ", Host, "\r\n\r\n"]),
    Patience_ms = case rand:uniform(?LEAVE_ONE_OF) of 1 -> rand:uniform(?LEAVE_MS); _ -> ?PATIENCE_MS end,
    Answer = read(Socket, Patience_ms, <<>>),
    ok = gen_tcp:close(Socket),
    Took_ns = erlang:monotonic_time(nanosecond) - Begun_ns,
    Waited = re:run(Answer, "\r\nX-Router-Waited-Us: ([0-9]+)\r\n", [{capture, [1], list}]),
    Waited_ns = case Waited of {match, [Us]} -> [1000 * list_to_integer(Us)]; nomatch -> [] end,
    case Answer of
        <<"HTTP/1.1 503", _/binary>> ->
            ok = router_demo_log:note(Log, {refused, Host, Took_ns, Waited_ns}),
            timer:sleep(rand:uniform(?PAUSE_MS));
        %% It left, or the process of its request was killed.
        <<>> ->
            router_demo_log:note(Log, {unanswered, Host});
        _ ->
            router_demo_log:note(Log, {admitted, Host, Took_ns, Waited_ns})
    end,
    run(Host, Log).

read(Socket, Patience_ms, Before) ->
    case gen_tcp:recv(Socket, 0, Patience_ms) of
        {ok, Data} -> read(Socket, Patience_ms, <<Before/binary, Data/binary>>);
        {error, _} -> Before
    end.
