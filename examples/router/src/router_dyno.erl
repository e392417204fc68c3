%% The side of the dyno: a connection for each request, and the answer passed on as it comes.
%%
%% The dyno is asked in HTTP/1.0 and told to close, so that an answer ends where its connection does, or after as many
%% bytes as its head says; its head is read by the VM's own parser. The connection belongs to the process of the
%% request, and ends with it.
%%
%% When the client goes away, the dyno has to be let go of before the permits are: it would be given other work while it
%% is still busy with this. So it is told (by the end of what we send), and the process dies when the dyno has closed.
%% If the process is killed, nobody can wait, and the dyno hears of it a moment after the permits are back.
-module(router_dyno).

-export([pass_on/4, is_address/1]).

-export_type([address/0, outcome/0]).

-type address() :: {inet:ip_address() | inet:hostname(), inet:port_number()}.

-type outcome() ::
    {answered, Last :: fun(() -> term())} | cut_short | timeout | closed | bad_answer | inet:posix().
%% Last: passes on the last piece of the answer, which the client does not have yet. `cut_short': the head of the answer
%% has been passed on, and not all of the rest.

-record(exchange, {
    socket :: gen_tcp:socket(),
    client :: router_client:client(),
    deadline :: integer(),
    status = none :: none | pos_integer(),
    headers = [] :: [{atom() | string(), string()}],
    %% Once the head is there: what is left of the body, and where it goes.
    left = unknown :: unknown | non_neg_integer(),
    answer = none :: none | router_client:answer(),
    %% What becomes of the client's connection.
    next = next :: next | close
}).

-define(CONNECT_MS, 2000).
%% An endless head would fill the memory.
-define(MOST_HEADERS, 200).
-define(LONGEST_LINE, 16384).

%% Whether it could be one; not whether anybody is there.
-spec is_address(term()) -> boolean().
is_address({Host, Port}) when is_integer(Port), Port > 0, Port < 65536 ->
    inet:is_ip_address(Host) orelse is_atom(Host) orelse (Host =/= "" andalso io_lib:latin1_char_list(Host));
is_address(_) ->
    false.

%% Passes a request on, and the answer back; and says whether the client may send another on its connection.
%% Capacity: how many requests the app bears, as it was when this one was admitted; the dyno is told.
-spec pass_on(address(), router_client:client(), Body :: binary(), Capacity :: non_neg_integer()) ->
    {outcome(), next | close}.
pass_on({Host, Port}, Client, Body, Capacity) ->
    %% From the connection to the end of the answer. What takes longer is given up, though the dyno may go on with it.
    {ok, Answer_ms} = application:get_env(router, answer_ms),
    Options = [
        binary, {active, false}, {nodelay, true}, {packet, http}, {packet_size, ?LONGEST_LINE},
        {show_econnreset, true}, {send_timeout, Answer_ms}, {send_timeout_close, true}
    ],
    case gen_tcp:connect(Host, Port, Options, ?CONNECT_MS) of
        {ok, Socket} ->
            Deadline = erlang:monotonic_time(millisecond) + Answer_ms,
            Outcome = exchange(Socket, Client, request(Client, Body, Capacity), Deadline),
            forget(Socket),
            Outcome;
        {error, Reason} ->
            {Reason, next}
    end.

request(Client, Body, Capacity) ->
    Headers = router_client:headers(Client),
    Ours = [
        {"connection", "close"},
        {"content-length", integer_to_list(byte_size(Body))},
        {"x-request-id", request_id()},
        {"x-router-capacity", integer_to_list(Capacity)},
        %% After those whom it has come by (RFC 9110, section 7.6.3, for the second).
        {"x-forwarded-for", and_then("x-forwarded-for", Headers, router_client:peer(Client))},
        {"via", and_then("via", Headers, "1.1 router")}
    ],
    %% What is expected has been answered.
    Theirs = router_headers:end_to_end(Headers, ["expect" | [Name || {Name, _} <- Ours]]),
    [
        router_client:request_line(Client),
        [[Name, ": ", Value, "\r\n"] || {Name, Value} <- Ours ++ Theirs],
        "\r\n",
        Body
    ].

and_then(Name, Headers, Next) ->
    lists:append(lists:join(", ", router_headers:values(Name, Headers) ++ [Next])).

%% Unique on this node, and whose process it is can be seen.
request_id() ->
    "<" ++ Pid = pid_to_list(self()),
    lists:concat([lists:droplast(Pid), "-", erlang:unique_integer([positive])]).

exchange(Socket, Client, Request, Deadline) ->
    case gen_tcp:send(Socket, Request) of
        ok ->
            ok = router_client:watch(Client),
            await(#exchange{socket = Socket, client = Client, deadline = Deadline});
        {error, Reason} ->
            {Reason, next}
    end.

%% Waits for what comes next, from either side.
await(#exchange{socket = Socket} = Exchange) ->
    _ = inet:setopts(Socket, [{active, once}]),
    await_either(Exchange).

%% Looks at the clock first: of one that sends fast enough there is always something.
await_either(#exchange{deadline = Deadline} = Exchange) ->
    case Deadline - erlang:monotonic_time(millisecond) of
        Left_ms when Left_ms > 0 -> await_either(Exchange, Left_ms);
        _ -> fail(Exchange, timeout)
    end.

await_either(#exchange{socket = Socket, client = Client, headers = Headers} = Exchange, Left_ms) ->
    ClientSocket = router_client:socket(Client),
    receive
        {http, Socket, {http_response, _, Status, _}} when Status >= 200, Status =< 999 ->
            await(Exchange#exchange{status = Status});
        {http, Socket, {http_header, _, Name, _, Value}} when length(Headers) < ?MOST_HEADERS ->
            await(Exchange#exchange{headers = [{Name, Value} | Headers]});
        {http, Socket, http_eoh} ->
            head(Exchange, router_headers:normal(lists:reverse(Headers)));
        {http, Socket, _} ->
            fail(Exchange, bad_answer);
        {tcp, Socket, Data} ->
            body(Exchange, Data);
        {tcp_closed, Socket} ->
            closed(Exchange);
        {tcp_error, Socket, Reason} ->
            fail(Exchange, Reason);
        {tcp_closed, ClientSocket} ->
            let_go(Exchange);
        {tcp_error, ClientSocket, _} ->
            let_go(Exchange);
        {tcp, ClientSocket, _} ->
            %% It is ahead of its answer. What it has sent is lost to the next request, but it is still listened to. (As
            %% the dyno is: asked twice for one message, the VM would read on in a body as if it were the head.)
            ok = router_client:watch(Client),
            await_either(Exchange#exchange{next = close})
    after Left_ms ->
        fail(Exchange, timeout)
    end.

head(#exchange{client = Client, socket = Socket, status = Status} = Exchange, Headers) ->
    ok = inet:setopts(Socket, [{packet, raw}]),
    case router_headers:are_sound(Headers) andalso length_of_body(Status, Headers, router_client:is_head(Client)) of
        Wrong when Wrong =:= wrong; Wrong =:= false -> fail(Exchange, bad_answer);
        Length -> begin_answer(Exchange#exchange{left = Length}, router_headers:end_to_end(Headers, []))
    end.

length_of_body(Status, Headers, IsHead) ->
    case {router_headers:body_length(Headers), router_headers:values("transfer-encoding", Headers)} of
        {wrong, _} -> wrong;
        %% We have asked in a version that knows of none.
        {_, [_ | _]} -> wrong;
        _ when IsHead; Status =:= 204; Status =:= 304 -> 0;
        {none, []} -> unknown;
        {Length, []} -> Length
    end.

begin_answer(#exchange{client = Client, status = Status, left = 0} = Exchange, Headers) ->
    last(Exchange, fun() -> router_client:begin_answer(Client, Status, Headers, plain) end);
begin_answer(#exchange{client = Client, status = Status, left = Left} = Exchange, Headers) ->
    Framing = case Left of unknown -> chunked; _ -> plain end,
    case router_client:begin_answer(Client, Status, Headers, Framing) of
        {ok, Answer} -> await(Exchange#exchange{answer = Answer});
        gone -> let_go(Exchange)
    end.

%% The client may send its next request as soon as it has all of this answer, and that is not for us to read. So the
%% watch ends before the last piece is sent.
last(Exchange, Last) ->
    {{answered, Last}, unwatch(Exchange)}.

unwatch(#exchange{client = Client, next = Next}) ->
    case router_client:unwatch(Client) of
        next -> Next;
        close -> close
    end.

body(#exchange{answer = Answer, left = Left} = Exchange, Data) when byte_size(Data) >= Left ->
    %% What goes beyond the length would be taken for the next answer.
    last(Exchange, fun() -> router_client:send(Answer, binary:part(Data, 0, Left)) end);
body(#exchange{answer = Answer, left = Left} = Exchange, Data) ->
    case router_client:send(Answer, Data) of
        ok when Left =:= unknown -> await(Exchange);
        ok -> await(Exchange#exchange{left = Left - byte_size(Data)});
        gone -> let_go(Exchange)
    end.

closed(#exchange{answer = none} = Exchange) ->
    fail(Exchange, closed);
closed(#exchange{answer = Answer, left = unknown} = Exchange) ->
    last(Exchange, fun() -> router_client:end_answer(Answer) end);
closed(Exchange) ->
    fail(Exchange, closed).

fail(#exchange{answer = none} = Exchange, Reason) ->
    {Reason, unwatch(Exchange)};
fail(_Exchange, _Reason) ->
    {cut_short, close}.

%% The client has gone. The dyno is told, and has its time to close; then the process dies, and gives back what it
%% holds by that.
-spec let_go(#exchange{}) -> no_return().
let_go(#exchange{socket = Socket, deadline = Deadline} = Exchange) ->
    _ = gen_tcp:shutdown(Socket, write),
    Left_ms = Deadline - erlang:monotonic_time(millisecond),
    %% An error: it has closed already.
    _ = Left_ms > 0 andalso inet:setopts(Socket, [{active, once}]) =:= ok orelse exit(normal),
    receive
        {Kind, Socket, _} when Kind =:= http; Kind =:= tcp -> let_go(Exchange);
        {tcp_closed, Socket} -> exit(normal);
        {tcp_error, Socket, _} -> exit(normal)
    after Left_ms ->
        exit(normal)
    end.

%% Nothing of this connection may be found by what the process does next.
forget(Socket) ->
    ok = gen_tcp:close(Socket),
    flush(Socket).

flush(Socket) ->
    receive
        {_, Socket} -> flush(Socket);
        {_, Socket, _} -> flush(Socket)
    after 0 -> ok
    end.
