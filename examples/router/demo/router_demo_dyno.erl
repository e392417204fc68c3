%% A back-end: works on each request for a random time and records it. It does not limit its requests: the router does,
%% and the verdict checks it. A share of requests ends with a reset of the connection, as after a crash.
-module(router_demo_dyno).

-export([start/2]).

%% The mean duration of a request. The maximum is five times as long.
-define(WORK_MS, 30).
-define(RESET_ONE_OF, 50).

-spec start(router:host(), router_demo_log:log()) -> router:address().
start(Host, Log) ->
    {ok, _, Port} = router_server:start_link(0, fun(Socket) -> serve(Socket, Host, Log) end),
    {{127, 0, 0, 1}, Port}.

serve(Socket, Host, Log) ->
    case router_http:read_request(Socket) of
        {ok, #{headers := Headers}} ->
            [Id] = router_http:values(<<"x-request-id">>, Headers),
            [Capacity] = router_http:values(<<"x-router-capacity">>, Headers),
            Process = list_to_pid("<" ++ binary_to_list(Id) ++ ">"),
            {ok, Dyno} = inet:sockname(Socket),
            ok = router_demo_log:note(Log, {begins, Host, Process, Dyno, binary_to_integer(Capacity)}),
            Answer = work(Socket),
            ok = router_demo_log:note(Log, {ends, Host, Process}),
            _ = case rand:uniform(?RESET_ONE_OF) of
                1 -> inet:setopts(Socket, [{linger, {true, 0}}]);
                _ -> gen_tcp:send(Socket, Answer)
            end,
            ok;
        closed ->
            ok
    end,
    gen_tcp:close(Socket).

%% Returns immediately when the router disconnects.
work(Socket) ->
    %% Otherwise the VM would close the socket before this process has recorded the end of the request.
    _ = inet:setopts(Socket, [{exit_on_close, false}, {active, once}]),
    receive
        {tcp_closed, Socket} -> "";
        {tcp_error, Socket, _} -> ""
    %% Exponential distribution: most requests are shorter than the mean.
    after min(5 * ?WORK_MS, round(-?WORK_MS * math:log(rand:uniform()))) ->
        "HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\ndone\n"
    end.
