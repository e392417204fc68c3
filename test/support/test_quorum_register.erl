%% What locks are there to protect, outside of all nodes: counters that clients read, add one to, and write back. Two
%% of each name. One is fenced: it refuses whoever comes with a lower fence than it has seen, reading or writing, so it
%% loses nothing, whatever becomes of clients and clocks. The other one believes whoever says that it has just found
%% its lock held; so it loses something when two hold one name.
%%
%% Clients reach it by a socket of the file system, which no fault of the network concerns.
-module(test_quorum_register).

-export([start/1, stop/1, result/1]).
-export([connect/1, add_fenced/3, add_plain/3]).

-export_type([connection/0]).

-opaque connection() :: gen_tcp:socket().

-define(OPTIONS, [binary, {packet, 4}, {active, false}]).
-define(ANSWER_MS, 20_000).

%% In this file.
-spec start(file:filename()) -> pid().
start(Path) ->
    {ok, Listening} = gen_tcp:listen(0, [{ifaddr, {local, Path}}, {backlog, 256} | ?OPTIONS]),
    Register = spawn_link(fun() -> serve(#{values => #{}, adds => #{}, refused => 0, slowest_ns => 0}) end),
    Acceptor = spawn_link(fun() -> receive go -> accept(Listening, Register) end end),
    ok = gen_tcp:controlling_process(Listening, Acceptor),
    Acceptor ! go,
    Register.

-spec stop(pid()) -> ok.
stop(Register) ->
    Monitor = monitor(process, Register),
    unlink(Register),
    exit(Register, shutdown),
    _ = test_await:reason({Register, Monitor}),
    ok.

%% What each counter should be and is, where that is not the same; how often, and for how long a writer took from
%% finding its lock held until its write was here.
-spec result(pid()) ->
    #{
        lost := [{fenced | plain, Name :: term(), Added :: integer(), Is :: integer()}],
        adds := non_neg_integer(),
        refused_by_fence := non_neg_integer(),
        slowest_ms := non_neg_integer()
    }.
result(Register) ->
    #{values := Values, adds := Adds, refused := Refused, slowest_ns := Slowest} = ask(Register, result),
    #{
        lost => [
            {Kind, Name, Added, value(Of, Values)}
         || {Of = {Kind, Name}, Added} <- maps:to_list(Adds), value(Of, Values) =/= Added
        ],
        adds => lists:sum(maps:values(Adds)),
        refused_by_fence => Refused,
        slowest_ms => Slowest div 1_000_000
    }.

%%% For clients

-spec connect(file:filename()) -> connection().
connect(Path) ->
    {ok, Socket} = gen_tcp:connect({local, Path}, 0, ?OPTIONS),
    Socket.

-spec add_fenced(connection(), Name :: term(), Fence :: non_neg_integer()) -> ok | refused.
add_fenced(Connection, Name, Fence) ->
    case request(Connection, {read, Name, Fence}) of
        refused -> refused;
        Value -> request(Connection, {write, Name, Fence, Value + 1})
    end.

%% `IsHeld' is asked at the last moment.
-spec add_plain(connection(), Name :: term(), IsHeld :: fun(() -> boolean())) -> ok | not_held.
add_plain(Connection, Name, IsHeld) ->
    Value = request(Connection, {read, Name}),
    At = os:perf_counter(nanosecond),
    case IsHeld() of
        true -> request(Connection, {write, Name, Value + 1, {held_at, At}});
        false -> not_held
    end.

request(Connection, Request) ->
    ok = gen_tcp:send(Connection, term_to_binary(Request)),
    {ok, Answer} = gen_tcp:recv(Connection, 0, ?ANSWER_MS),
    binary_to_term(Answer).

%%% The register

accept(Listening, Register) ->
    {ok, Socket} = gen_tcp:accept(Listening),
    Server = spawn_link(fun() -> receive go -> serve(Socket, Register) end end),
    ok = gen_tcp:controlling_process(Socket, Server),
    Server ! go,
    accept(Listening, Register).

serve(Socket, Register) ->
    case gen_tcp:recv(Socket, 0) of
        {ok, Request} ->
            _ = gen_tcp:send(Socket, term_to_binary(ask(Register, binary_to_term(Request)))),
            serve(Socket, Register);
        {error, _} ->
            ok
    end.

ask(Register, Request) ->
    Ref = monitor(process, Register),
    Register ! {Request, self(), Ref},
    Answer = test_await:answer(Ref, Ref),
    true = demonitor(Ref, [flush]),
    Answer.

serve(State) ->
    receive
        {Request, From, Ref} ->
            {Answer, Next} = answer(Request, State),
            From ! {Ref, Answer},
            serve(Next)
    end.

answer(result, State) ->
    {State, State};
answer({read, Name}, State = #{values := Values}) ->
    {value({plain, Name}, Values), State};
answer({write, Name, Value, {held_at, At}}, State = #{slowest_ns := Slowest}) ->
    {ok, written({plain, Name}, Value, State#{slowest_ns := max(Slowest, os:perf_counter(nanosecond) - At)})};
answer({read, Name, Fence}, State = #{values := Values}) ->
    fenced(Name, Fence, fun(Passed) -> {value({fenced, Name}, Values), Passed} end, State);
answer({write, Name, Fence, Value}, State) ->
    fenced(Name, Fence, fun(Passed) -> {ok, written({fenced, Name}, Value, Passed)} end, State).

fenced(Name, Fence, Do, State = #{values := Values, refused := Refused}) ->
    case value({fence, Name}, Values) of
        Seen when Fence < Seen -> {refused, State#{refused := Refused + 1}};
        _ -> Do(State#{values := Values#{{fence, Name} => Fence}})
    end.

written(Of, Value, State = #{values := Values, adds := Adds}) ->
    State#{values := Values#{Of => Value}, adds := Adds#{Of => value(Of, Adds) + 1}}.

value(Of, Values) ->
    maps:get(Of, Values, 0).
