%% A back-end: takes its time for each request, and notes in the book what it has seen. It does not count what it bears:
%% that is the router's business, and the verdict's.
%%
%% One request in so many is broken off by a reset of the connection, as by a back-end that crashes.
-module(router_demo_dyno).

-export([start/3, stop/1, address/1]).
-export([handle/4]).

-export_type([dyno/0, manners/0]).

-type dyno() :: pid().

-type manners() :: #{
    %% How long it takes for a request: on average, and never more than five times as long.
    work_ms := pos_integer(),
    %% One request of so many is broken off.
    reset_one_of := pos_integer() | never
}.

-define(HOST, {127, 0, 0, 1}).

%% Linked to the caller.
-spec start(router_apps:host(), router_demo_book:book(), manners()) -> dyno().
start(Host, Book, Manners) ->
    Loop = {?MODULE, handle, [Host, Book, Manners]},
    {ok, Dyno} = mochiweb_http:start_link([
        {name, undefined}, {ip, ?HOST}, {port, 0}, {backlog, 256}, {nodelay, true}, {loop, Loop}
    ]),
    Dyno.

%% Requests that it works on are broken off.
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

-spec handle(term(), router_apps:host(), router_demo_book:book(), manners()) -> ok.
handle(Request, Host, Book, Manners) ->
    Begun_ns = router_demo_book:begin_request(Book, Host),
    Socket = mochiweb_request:get(socket, Request),
    {ok, Address} = inet:sockname(Socket),
    Entry = #{
        host => Host,
        dyno => Address,
        process => hd(string:split(mochiweb_request:get_header_value("x-request-id", Request), "-")),
        capacity => list_to_integer(mochiweb_request:get_header_value("x-router-capacity", Request))
    },
    How = work(Socket, Manners),
    ok = router_demo_book:end_request(Book, Entry, Begun_ns, How),
    conclude(How, Request, Socket).

%% Ends at once when the router goes away.
work(Socket, #{work_ms := Mean_ms, reset_one_of := One_of}) ->
    _ = inet:setopts(Socket, [{active, once}]),
    %% Most take less than the mean, and some much more.
    Work_ms = min(5 * Mean_ms, round(-Mean_ms * math:log(rand:uniform()))),
    receive
        {tcp_closed, Socket} -> hung_up;
        {tcp_error, Socket, _} -> hung_up
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
conclude(hung_up, _Request, Socket) ->
    ok = gen_tcp:close(Socket),
    exit(normal).
