%% The dyno side of an exchange: one connection per request. The answer is passed on as it arrives.
%%
%% The router sends HTTP/1.0 and `Connection: close'. So an answer ends with the connection or after the length in its
%% head. The VM's own parser reads the head. The connection belongs to the process of the request and closes with it.
%%
%% When the client disconnects, the dyno must finish before the permits are released. Otherwise it would get a new
%% request while it still works on this one. So the router closes its sending half, waits until the dyno has closed,
%% and the process of the request exits. If this process is killed, no process can wait, and the dyno notices after the
%% permits are released.
-module(router_dyno).

-export([pass_on/4, is_address/1]).

-export_type([address/0, outcome/0]).

-type address() :: {inet:ip_address() | inet:hostname(), inet:port_number()}.

-type outcome() ::
    {answered, Last :: fun(() -> term())} | cut_short | timeout | closed | bad_answer | inet:posix().
%% Last: sends the last piece of the answer to the client. `cut_short': the head of the answer has been sent, and the
%% rest is incomplete.

-record(exchange, {
    socket :: gen_tcp:socket(),
    client :: router_client:client(),
    deadline :: integer(),
    status = none :: none | pos_integer(),
    headers = [] :: [{atom() | string(), string()}],
    %% After the head: the remaining length of the body, and the answer to the client.
    left = unknown :: unknown | non_neg_integer(),
    answer = none :: none | router_client:answer(),
    %% What to do with the client's connection afterwards.
    next = next :: next | close
}).

-define(CONNECT_MS, 2000).
%% Limits the memory for a head.
-define(MOST_HEADERS, 200).
-define(LONGEST_LINE, 16384).

%% Checks the form of the address only.
-spec is_address(term()) -> boolean().
is_address({Host, Port}) when is_integer(Port), Port > 0, Port < 65536 ->
    inet:is_ip_address(Host) orelse is_atom(Host) orelse (Host =/= "" andalso io_lib:latin1_char_list(Host));
is_address(_) ->
    false.

%% Passes the request to the dyno and the answer to the client. Returns whether the client's connection stays open.
%% Capacity: of the app when the request was admitted; sent to the dyno.
-spec pass_on(address(), router_client:client(), Body :: binary(), Capacity :: non_neg_integer()) ->
    {outcome(), next | close}.
pass_on({Host, Port}, Client, Body, Capacity) ->
    %% Time limit from the established connection to the end of the answer. The dyno may continue to work after it.
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
        %% Appended to the values of earlier proxies (for Via see RFC 9110, section 7.6.3).
        {"x-forwarded-for", and_then("x-forwarded-for", Headers, router_client:peer(Client))},
        {"via", and_then("via", Headers, "1.1 router")}
    ],
    %% The router has answered Expect itself.
    Theirs = router_headers:end_to_end(Headers, ["expect" | [Name || {Name, _} <- Ours]]),
    [
        router_client:request_line(Client),
        [[Name, ": ", Value, "\r\n"] || {Name, Value} <- Ours ++ Theirs],
        "\r\n",
        Body
    ].

and_then(Name, Headers, Next) ->
    lists:append(lists:join(", ", router_headers:values(Name, Headers) ++ [Next])).

%% Unique on this node; begins with the pid of the process.
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

%% Waits for data from the dyno or a disconnect of the client.
await(#exchange{socket = Socket} = Exchange) ->
    _ = inet:setopts(Socket, [{active, once}]),
    await_either(Exchange).

%% Checks the deadline first: a dyno that sends fast would otherwise never time out.
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
            release_dyno(Exchange);
        {tcp_error, ClientSocket, _} ->
            release_dyno(Exchange);
        {tcp, ClientSocket, _} ->
            %% The client has sent data before it has its answer. The data is lost, so its connection closes after the
            %% answer. Its disconnect must still be detected. (The dyno's socket stays active: setting it active again
            %% would make the VM parse the body as a head.)
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
        %% The request was HTTP/1.0, which has no transfer codings.
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
        disconnected -> release_dyno(Exchange)
    end.

%% The client may send its next request as soon as it has the whole answer, and this process must not receive it here.
%% So the watch ends before the last piece is sent.
last(Exchange, Last) ->
    {{answered, Last}, unwatch(Exchange)}.

unwatch(#exchange{client = Client, next = Next}) ->
    case router_client:unwatch(Client) of
        next -> Next;
        close -> close
    end.

body(#exchange{answer = Answer, left = Left} = Exchange, Data) when byte_size(Data) >= Left ->
    %% The client would read excess data as the next answer.
    last(Exchange, fun() -> router_client:send(Answer, binary:part(Data, 0, Left)) end);
body(#exchange{answer = Answer, left = Left} = Exchange, Data) ->
    case router_client:send(Answer, Data) of
        ok when Left =:= unknown -> await(Exchange);
        ok -> await(Exchange#exchange{left = Left - byte_size(Data)});
        disconnected -> release_dyno(Exchange)
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

%% The client has disconnected. Closes the sending half to the dyno, waits until the dyno closes (or the deadline), and
%% the process of the request exits, which releases the permits.
-spec release_dyno(#exchange{}) -> no_return().
release_dyno(#exchange{socket = Socket, deadline = Deadline} = Exchange) ->
    _ = gen_tcp:shutdown(Socket, write),
    Left_ms = Deadline - erlang:monotonic_time(millisecond),
    %% setopts fails if the dyno has already closed.
    _ = Left_ms > 0 andalso inet:setopts(Socket, [{active, once}]) =:= ok orelse exit(normal),
    receive
        {Kind, Socket, _} when Kind =:= http; Kind =:= tcp -> release_dyno(Exchange);
        {tcp_closed, Socket} -> exit(normal);
        {tcp_error, Socket, _} -> exit(normal)
    after Left_ms ->
        exit(normal)
    end.

%% Removes messages of this connection from the mailbox of the process.
forget(Socket) ->
    ok = gen_tcp:close(Socket),
    flush(Socket).

flush(Socket) ->
    receive
        {_, Socket} -> flush(Socket);
        {_, Socket, _} -> flush(Socket)
    after 0 -> ok
    end.
