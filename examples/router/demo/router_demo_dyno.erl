%% A back-end: works on each request for a random time and records it. It does not limit its requests: the router does,
%% and the verdict checks it. A configurable share of requests ends with a reset of the connection, as after a crash.
-module(router_demo_dyno).

-export([start/3, stop/1, address/1]).

-export_type([dyno/0, behavior/0]).

-opaque dyno() :: {Server :: pid(), inet:port_number()}.

-type behavior() :: #{
    %% Mean duration of a request. The maximum is five times as long.
    work_ms := pos_integer(),
    %% One in this number of requests is reset.
    reset_one_of := pos_integer() | never
}.

-define(READ_MS, 10000).

%% Linked to the caller.
-spec start(router:host(), router_demo_log:log(), behavior()) -> dyno().
start(Host, Log, Behavior) ->
    {ok, Server, Port} = router_server:start_link(0, fun(Socket) -> serve(Socket, Host, Log, Behavior) end),
    {Server, Port}.

%% Aborts the requests in progress.
-spec stop(dyno()) -> ok.
stop({Server, _Port}) ->
    gen_server:stop(Server).

-spec address(dyno()) -> router:address().
address({_Server, Port}) ->
    {{127, 0, 0, 1}, Port}.

serve(Socket, Host, Log, Behavior) ->
    try router_http:read_message(Socket, ?READ_MS) of
        {_, Headers, _} ->
            [Id] = router_http:values(<<"x-request-id">>, Headers),
            [Capacity] = router_http:values(<<"x-router-capacity">>, Headers),
            Process = list_to_pid("<" ++ binary_to_list(Id) ++ ">"),
            {ok, Dyno} = inet:sockname(Socket),
            ok = router_demo_log:note(Log, {begins, Host, Process, Dyno, binary_to_integer(Capacity)}),
            How = work(Socket, Behavior),
            ok = router_demo_log:note(Log, {ends, Host, Process, How}),
            _ = conclude(How, Socket),
            ok
    catch
        throw:closed -> ok
    end,
    gen_tcp:close(Socket).

%% Returns immediately when the router disconnects.
work(Socket, #{work_ms := Mean_ms, reset_one_of := OneOf}) ->
    %% Otherwise the VM would close the socket before this process has recorded the end of the request.
    _ = inet:setopts(Socket, [{exit_on_close, false}, {active, once}]),
    %% Exponential distribution: most requests are shorter than the mean.
    Work_ms = min(5 * Mean_ms, round(-Mean_ms * math:log(rand:uniform()))),
    receive
        {tcp_closed, Socket} -> disconnected;
        {tcp_error, Socket, _} -> disconnected
    after Work_ms ->
        case is_integer(OneOf) andalso rand:uniform(OneOf) =:= 1 of
            true -> reset;
            false -> answered
        end
    end.

conclude(answered, Socket) -> gen_tcp:send(Socket, "HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\ndone\n");
conclude(reset, Socket) -> inet:setopts(Socket, [{linger, {true, 0}}]);
conclude(disconnected, _Socket) -> ok.
