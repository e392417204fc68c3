%% The dyno side of an exchange: one connection per request, which ends when the dyno has closed it.
%%
%% The router sends HTTP/1.0 and `Connection: close'. So a dyno answers without chunks and closes its connection after
%% the answer, whose bytes the client gets as they are. The connection belongs to the process of the request, and closes
%% if that process dies.
%%
%% When the client disconnects, the dyno must finish before the permits are released. Otherwise it would get a new
%% request while it still works on this one. So the router closes its sending half, waits until the dyno has closed, and
%% the process of the request exits. If this process is killed, no process can wait, and the dyno notices after the
%% permits are released.
-module(router_dyno).

-export([pass_on/4]).

-define(CONNECT_MS, 2000).
-define(LONGEST_ANSWER, 8388608).
%% Set by the router, whatever the client sends.
-define(OURS, [<<"x-request-id">>, <<"x-router-capacity">>, <<"content-length">>]).

%% Returns the answer of the dyno, or that of the router if the dyno fails. Exits the process if the client disconnects.
%% Capacity: of the app when the request was admitted; sent to the dyno.
-spec pass_on(router:address(), gen_tcp:socket(), router_http:request(), Capacity :: non_neg_integer()) ->
    router_http:answer().
pass_on({Host, Port}, Client, Request, Capacity) ->
    %% The time limit for the whole exchange. The dyno may continue to work after it.
    {ok, Answer_ms} = application:get_env(router, answer_ms),
    Deadline = erlang:monotonic_time(millisecond) + Answer_ms,
    Options = [binary, {active, false}, {nodelay, true}, {send_timeout, Answer_ms}, {show_econnreset, true}],
    case gen_tcp:connect(Host, Port, Options, min(?CONNECT_MS, Answer_ms)) of
        {ok, Dyno} ->
            Received =
                case gen_tcp:send(Dyno, request(Request, Capacity)) of
                    ok -> exchange(Dyno, Client, Deadline, <<>>);
                    {error, _} = Error -> Error
                end,
            ok = gen_tcp:close(Dyno),
            answer(Received);
        {error, _} = Error ->
            answer(Error)
    end.

request(#{method := Method, path := Path, headers := Headers, body := Body}, Capacity) ->
    Theirs = [Header || {Name, _} = Header <- router_http:end_to_end(Headers), not lists:member(Name, ?OURS)],
    Ours = [
        {"Connection", "close"},
        {"Content-Length", integer_to_list(byte_size(Body))},
        {"Via", "1.1 router"},
        %% Each request has its own process.
        {"X-Request-Id", string:trim(pid_to_list(self()), both, "<>")},
        {"X-Router-Capacity", integer_to_list(Capacity)}
    ],
    Lines = [[Name, ": ", Value, "\r\n"] || {Name, Value} <- Theirs ++ Ours],
    [io_lib:format("~s", [Method]), " ", Path, " HTTP/1.0\r\n", Lines, "\r\n", Body].

%% Waits until the dyno has closed its connection. Client: `gone' after it has disconnected.
exchange(_Dyno, _Client, _Deadline, Received) when byte_size(Received) > ?LONGEST_ANSWER ->
    {error, too_long};
exchange(Dyno, Client, Deadline, Received) ->
    _ = inet:setopts(Dyno, [{active, once}]),
    receive
        {tcp, Dyno, Data} ->
            exchange(Dyno, Client, Deadline, <<Received/binary, Data/binary>>);
        {tcp_closed, Dyno} ->
            {ok, Received};
        {tcp_error, Dyno, Reason} ->
            {error, Reason};
        {tcp_closed, Client} ->
            gone(Dyno, Deadline, Received);
        {tcp_error, Client, _} ->
            gone(Dyno, Deadline, Received)
    after max(0, Deadline - erlang:monotonic_time(millisecond)) ->
        {error, timeout}
    end.

-spec gone(gen_tcp:socket(), integer(), binary()) -> no_return().
gone(Dyno, Deadline, Received) ->
    _ = gen_tcp:shutdown(Dyno, write),
    _ = exchange(Dyno, gone, Deadline, Received),
    exit(normal).

answer({ok, Bytes}) ->
    %% The dyno may have died before it had sent the whole head. The client notices a body that ends early.
    case {binary:split(Bytes, <<"\r\n">>), binary:match(Bytes, <<"\r\n\r\n">>)} of
        {[<<"HTTP/1.", _, " ", _/binary>> = StatusLine, Rest], {_, _}} -> {StatusLine, Rest};
        _ -> answer({error, bad_answer})
    end;
answer({error, timeout}) ->
    router_http:text(504, "The dyno did not answer in time");
answer({error, Reason}) ->
    router_http:text(502, io_lib:format("The dyno failed: ~w", [Reason])).
