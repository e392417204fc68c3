%% What locks protect, outside of all nodes: a number for each name, as in a database. For each name the register keeps
%% the highest fence that a writer has shown, and refuses requests with a lower fence. It knows nothing of locks.
%%
%% A writer shows its fence also when it reads. Otherwise a late write could arrive between the read and the write of
%% the next holder, and be overwritten. A `look', as of a reader, must not have a lower fence either, but its fence is
%% not kept: the next writer's fence need not be higher than a reader's.
%%
%% The functions on registers are used by the cluster demo. Tests use the server, where clients read a number, add one,
%% and write it. Each name has two numbers there. One is fenced, so no addition is lost, whatever happens to clients and
%% clocks. The other is written without fences by clients that have just found their lock held, so additions are lost
%% when two clients hold one lock. Clients reach the server through a socket of the file system, which no fault of the
%% network affects.
-module(test_quorum_register).

-export([handle/2, values/1]).
-export([start/1, stop/1, result/1]).
-export([connect/1, add_fenced/3, add_plain/3]).

-export_type([register/0, request/0, answer/0, connection/0]).

-type name() :: term().
-type fence() :: non_neg_integer().
-type request() :: {look | read, name(), fence()} | {write, name(), fence(), Value :: integer()}.
-type answer() :: {ok, Value :: integer()} | {refused, Highest :: fence()}.
-type register() :: #{name() => {Value :: integer(), Highest :: fence()}}.

-opaque connection() :: gen_tcp:socket().

-define(PACKET, {packet, 4}).
-define(ANSWER_MS, 120_000).

-spec handle(request(), register()) -> {answer(), register()}.
handle(Request, Register) ->
    Name = element(2, Request),
    {Answer, Entry} = answer(Request, maps:get(Name, Register, {0, 0})),
    {Answer, Register#{Name => Entry}}.

answer(Request, {Value, Highest}) when element(3, Request) < Highest -> {{refused, Highest}, {Value, Highest}};
answer({look, _, _}, {Value, Highest}) -> {{ok, Value}, {Value, Highest}};
answer({read, _, Fence}, {Value, _}) -> {{ok, Value}, {Value, Fence}};
answer({write, _, Fence, Value}, _) -> {{ok, Value}, {Value, Fence}}.

-spec values(register()) -> #{name() => integer()}.
values(Register) ->
    maps:map(fun(_, {Value, _}) -> Value end, Register).

%%% The server

%% On a socket with this path.
-spec start(file:filename()) -> pid().
start(Path) ->
    Register = spawn_link(fun() -> loop(#{register => #{}, adds => #{}, refused => 0, slowest_ns => 0}) end),
    _ = test_tcp_server:start([{ifaddr, {local, Path}}, ?PACKET], fun(Socket) -> serve(Socket, Register) end),
    Register.

-spec stop(pid()) -> ok.
stop(Register) ->
    Monitor = monitor(process, Register),
    unlink(Register),
    exit(Register, shutdown),
    _ = test_await:reason({Register, Monitor}),
    ok.

%% `lost': the numbers that differ from the count of additions. `slowest_ms': the longest time from when a writer found
%% its lock held until its write arrived.
-spec result(pid()) ->
    #{
        lost := [{fenced | plain, name(), Added :: integer(), Value :: integer()}],
        adds := non_neg_integer(),
        refused_by_fence := non_neg_integer(),
        slowest_ms := non_neg_integer()
    }.
result(Register) ->
    #{register := Numbers, adds := Adds, refused := Refused, slowest_ns := Slowest_ns} = ask(Register, result),
    #{
        lost => [
            {Kind, Name, Added, Value}
         || {{Kind, Name} = Of, Added} <- maps:to_list(Adds), Value <- [maps:get(Of, values(Numbers))], Value =/= Added
        ],
        adds => lists:sum(maps:values(Adds)),
        refused_by_fence => Refused,
        slowest_ms => Slowest_ns div 1_000_000
    }.

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

loop(State = #{register := Register, adds := Adds, refused := Refused, slowest_ns := Slowest_ns}) ->
    receive
        {result, From, Ref} ->
            From ! {Ref, State},
            loop(State);
        {{Request, HeldAt_ns}, From, Ref} ->
            {Answer, Next} = handle(Request, Register),
            From ! {Ref, Answer},
            Slowest = lists:max([Slowest_ns | [now_ns() - HeldAt_ns || HeldAt_ns =/= none]]),
            Changed = State#{register := Next, slowest_ns := Slowest},
            case {Request, Answer} of
                {_, {refused, _}} -> loop(Changed#{refused := Refused + 1});
                {{write, Of, _, _}, _} -> loop(Changed#{adds := Adds#{Of => maps:get(Of, Adds, 0) + 1}});
                _ -> loop(Changed)
            end
    end.

%%% Its clients

-spec connect(file:filename()) -> connection().
connect(Path) ->
    {ok, Socket} = gen_tcp:connect({local, Path}, 0, [binary, ?PACKET, {active, false}]),
    Socket.

-spec add_fenced(connection(), name(), fence()) -> ok | refused.
add_fenced(Connection, Name, Fence) ->
    add(Connection, {fenced, Name}, Fence, fun() -> none end).

%% Calls `IsHeld' immediately before it writes.
-spec add_plain(connection(), name(), IsHeld :: fun(() -> boolean())) -> ok | not_held.
add_plain(Connection, Name, IsHeld) ->
    add(Connection, {plain, Name}, 0, fun() ->
        At_ns = now_ns(),
        case IsHeld() of
            true -> At_ns;
            false -> not_held
        end
    end).

add(Connection, Of, Fence, HeldAt_ns) ->
    case request(Connection, {{read, Of, Fence}, none}) of
        {refused, _} ->
            refused;
        {ok, Value} ->
            case HeldAt_ns() of
                not_held -> not_held;
                At_ns -> element(1, request(Connection, {{write, Of, Fence, Value + 1}, At_ns}))
            end
    end.

request(Connection, Request) ->
    ok = gen_tcp:send(Connection, term_to_binary(Request)),
    {ok, Answer} = gen_tcp:recv(Connection, 0, ?ANSWER_MS),
    binary_to_term(Answer).

now_ns() ->
    os:perf_counter(nanosecond).
