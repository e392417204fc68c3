%% A back-end: works on each request for a random time and records it. It does not limit its requests: the router does,
%% and the verdict checks it. A share of requests ends with a reset of the connection, as after a crash.
-module(router_demo_dyno).

-export([start/4]).

%% Work_ms: the mean duration of a request; the maximum is five times as long. One in ResetOneOf requests is reset.
-spec start(router:host(), router_demo_log:log(), Work_ms :: pos_integer(), ResetOneOf :: pos_integer()) ->
    router:address().
start(Host, Log, Work_ms, ResetOneOf) ->
    {ok, _, Port} = router_server:start_link(0, fun(Socket) -> serve(Socket, Host, Log, Work_ms, ResetOneOf) end),
    {{127, 0, 0, 1}, Port}.

serve(Socket, Host, Log, Work_ms, ResetOneOf) ->
    case router_http:read_request(Socket) of
        {ok, #{headers := Headers}} ->
            [Id] = router_http:values(<<"x-request-id">>, Headers),
            [Capacity] = router_http:values(<<"x-router-capacity">>, Headers),
            Process = list_to_pid("<" ++ binary_to_list(Id) ++ ">"),
            {ok, Dyno} = inet:sockname(Socket),
            ok = router_demo_log:note(Log, {begins, Host, Process, Dyno, binary_to_integer(Capacity)}),
            Answer = work(Socket, Work_ms),
            ok = router_demo_log:note(Log, {ends, Host, Process}),
            case rand:uniform(ResetOneOf) of
                1 -> inet:setopts(Socket, [{linger, {true, 0}}]);
                _ -> gen_tcp:send(Socket, Answer)
            end;
        closed ->
            ok
    end,
    gen_tcp:close(Socket).

%% Returns immediately when the router disconnects.
work(Socket, Work_ms) ->
    %% Otherwise the VM would close the socket before this process has recorded the end of the request.
    _ = inet:setopts(Socket, [{exit_on_close, false}, {active, once}]),
    receive
        {tcp_closed, Socket} -> "";
        {tcp_error, Socket, _} -> ""
    %% Exponential distribution: most requests are shorter than the mean.
    after min(5 * Work_ms, round(-Work_ms * math:log(rand:uniform()))) ->
        "HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\ndone\n"
    end.
