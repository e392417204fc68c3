%% A back-end: works on each request for a random time and records it. It does not limit its requests: the router does,
%% and the verdict checks it. A configurable share of requests ends with a reset of the connection, as after a crash.
-module(router_demo_dyno).

-export([start/3, stop/1, address/1]).
-export([handle/4]).

-export_type([dyno/0, behavior/0]).

-type dyno() :: pid().

-type behavior() :: #{
    %% Mean duration of a request. The maximum is five times as long.
    work_ms := pos_integer(),
    %% One in this number of requests is reset.
    reset_one_of := pos_integer() | never
}.

-define(HOST, {127, 0, 0, 1}).

%% Linked to the caller.
-spec start(router_apps:host(), router_demo_log:log(), behavior()) -> dyno().
start(Host, Log, Behavior) ->
    Loop = {?MODULE, handle, [Host, Log, Behavior]},
    {ok, Dyno} = mochiweb_http:start_link([
        {name, undefined}, {ip, ?HOST}, {port, 0}, {backlog, 256}, {nodelay, true}, {loop, Loop}
    ]),
    Dyno.

%% Aborts the requests in progress.
-spec stop(dyno()) -> ok.
stop(Dyno) ->
    true = unlink(Dyno),
    Monitor = monitor(process, Dyno),
    ok = mochiweb_socket_server:stop(Dyno),
    receive
        {'DOWN', Monitor, process, Dyno, _} -> ok
    end.

-spec address(dyno()) -> router_dyno:address().
address(Dyno) ->
    {?HOST, mochiweb_socket_server:get(Dyno, port)}.

-spec handle(term(), router_apps:host(), router_demo_log:log(), behavior()) -> ok.
handle(Request, Host, Log, Behavior) ->
    Begun_ns = router_demo_log:begin_request(Log, Host),
    Socket = mochiweb_request:get(socket, Request),
    {ok, Address} = inet:sockname(Socket),
    Entry = #{
        host => Host,
        dyno => Address,
        process => hd(string:split(mochiweb_request:get_header_value("x-request-id", Request), "-")),
        capacity => list_to_integer(mochiweb_request:get_header_value("x-router-capacity", Request))
    },
    How = work(Socket, Behavior),
    ok = router_demo_log:end_request(Log, Entry, Begun_ns, How),
    conclude(How, Request, Socket).

%% Returns immediately when the router disconnects.
work(Socket, #{work_ms := Mean_ms, reset_one_of := One_of}) ->
    _ = inet:setopts(Socket, [{active, once}]),
    %% Exponential distribution: most requests are shorter than the mean.
    Work_ms = min(5 * Mean_ms, round(-Mean_ms * math:log(rand:uniform()))),
    receive
        {tcp_closed, Socket} -> disconnected;
        {tcp_error, Socket, _} -> disconnected
    after Work_ms ->
        _ = inet:setopts(Socket, [{active, false}]),
        case is_integer(One_of) andalso rand:uniform(One_of) =:= 1 of
            true -> reset;
            false -> answered
        end
    end.

conclude(answered, Request, _Socket) ->
    _ = mochiweb_request:respond({200, [{"Content-Type", "text/plain"}], <<"done\n">>}, Request),
    ok;
conclude(reset, _Request, Socket) ->
    _ = inet:setopts(Socket, [{linger, {true, 0}}]),
    ok = gen_tcp:close(Socket),
    exit(normal);
conclude(disconnected, _Request, Socket) ->
    ok = gen_tcp:close(Socket),
    exit(normal).
