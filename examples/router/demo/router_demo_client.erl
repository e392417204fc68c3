%% A client: sends the next request when it has the answer, immediately or, after a refusal, after a pause. At random it
%% disconnects before it has the answer.
-module(router_demo_client).

-export([run/3]).

%% For an answer, and for clients that leave.
-define(PATIENCE_MS, 60000).
-define(LEAVE_MS, 100).
-define(PAUSE_MS, 30).

-spec run(router:host(), LeaveOneOf :: pos_integer(), router_demo_log:log()) -> no_return().
run(Host, LeaveOneOf, Log) ->
    Begun_ns = erlang:monotonic_time(nanosecond),
    {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, router:port(), [binary, {active, false}, {nodelay, true}]),
    _ = gen_tcp:send(Socket, ["GET / HTTP/1.1\r\nHost: ", Host, "\r\n\r\n"]),
    Patience_ms = case rand:uniform(LeaveOneOf) of 1 -> rand:uniform(?LEAVE_MS); _ -> ?PATIENCE_MS end,
    Received = read(Socket, Patience_ms, <<>>),
    ok = gen_tcp:close(Socket),
    case router_http:parse_answer(Received, <<"GET">>) of
        {ok, {_Status, Headers, _}} ->
            Took_ns = erlang:monotonic_time(nanosecond) - Begun_ns,
            Waited_ns = [1000 * binary_to_integer(Us) || Us <- router_http:values(<<"x-router-waited-us">>, Headers)],
            case router_http:values(<<"x-router-reason">>, Headers) of
                [<<"full">>] ->
                    ok = router_demo_log:note(Log, {refused, Host, Took_ns, Waited_ns}),
                    timer:sleep(rand:uniform(?PAUSE_MS));
                _ ->
                    router_demo_log:note(Log, {admitted, Host, Took_ns, Waited_ns})
            end;
        %% It left, or the process of its request was killed.
        error ->
            router_demo_log:note(Log, {unanswered, Host})
    end,
    run(Host, LeaveOneOf, Log).

read(Socket, Patience_ms, Before) ->
    case gen_tcp:recv(Socket, 0, Patience_ms) of
        {ok, Data} -> read(Socket, Patience_ms, <<Before/binary, Data/binary>>);
        {error, _} -> Before
    end.
