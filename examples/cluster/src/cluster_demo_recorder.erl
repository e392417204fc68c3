%% Keeps the register and records the events of all clients. Each client has a connection, so its events arrive even if
%% its node is killed immediately after. cluster_demo_screen shows the important events as they arrive.
%%
%% Times are those of the clock of leases, which all processes of a machine share. So the times of different nodes can
%% be compared.
-module(cluster_demo_recorder).

-export([start/0, note/2, await/4, record/1]).
-export([connect/2, record/2, ask/2]).

-export_type([recorder/0, client/0, connection/0, event/0, a_lock/0, recording/0]).

-opaque recorder() :: {pid(), inet:port_number()}.

%% `Start': how often the node has been started.
-type client() :: {Node :: atom(), Start :: pos_integer(), cluster_demo_client:role()}.

-opaque connection() :: gen_tcp:socket().

%% With the number that its client gave it.
-type a_lock() :: {pos_integer(), read | write, [canal_lock_quorum:name(), ...], Fence :: non_neg_integer()}.

-type event() :: {At_ns :: integer(), client() | demo, event_type()}.

-type event_type() ::
    {granted | at_risk | lost, a_lock()}
    %% Found held by a check that began and ended at these times.
    | {held, a_lock(), Began_ns :: integer(), Ended_ns :: integer()}
    | {refused, [canal_lock_quorum:name(), ...], timeout | no_quorum}
    | {unlocks, a_lock()}
    | {unlocked, a_lock(), ok | {error, not_held | timeout}}
    %% A request to the register, its answer, and whether the lock was still held after that.
    | {test_quorum_register:request(), a_lock(), test_quorum_register:answer(), HeldAfter :: boolean()}
    %% The lock is not held any more, so the client does not write.
    | {abandons, a_lock()}
    %% The client has checked the lock, and writes later without another check; or keeps the lock until another order.
    | {delays | keeps, a_lock()}
    | rests
    %% Events of the demo.
    | {killed, Node :: atom(), Start :: pos_integer()}
    | {said, iodata()}.

%% `log': all requests to the register, with their clients and answers, the first one first.
-type recording() :: #{
    events := [event()],
    log := [{client(), test_quorum_register:request(), test_quorum_register:answer()}],
    values := #{term() => integer()}
}.

-record(state, {
    zero_ns :: integer(),
    register = #{} :: test_quorum_register:register(),
    %% The last one first.
    log = [] :: [tuple()],
    events = [] :: [event()],
    waiting = [] :: [{{pid(), reference()}, fun((event()) -> boolean())}]
}).

-define(HOST, {127, 0, 0, 1}).
-define(TCP_OPTIONS, [{packet, 4}, {nodelay, true}]).

%% Linked to the caller. The times on the screen count from now.
-spec start() -> recorder().
start() ->
    Recorder = spawn_link(fun() -> loop(#state{zero_ns = canal_lock_quorum_nif:now()}) end),
    Listener = test_tcp_server:start([{ip, ?HOST} | ?TCP_OPTIONS], fun(Socket) -> serve(Socket, Recorder) end),
    {ok, Port} = inet:port(Listener),
    {Recorder, Port}.

%% An event of the demo, now.
-spec note(recorder(), event_type()) -> ok.
note({Recorder, _}, Type) ->
    Recorder ! {event, {canal_lock_quorum_nif:now(), demo, Type}},
    ok.

%% The first event since then for which `Is' returns true.
-spec await(recorder(), Since_ns :: integer(), fun((event()) -> boolean()), timeout()) -> event() | none.
await({Recorder, _}, Since_ns, Is, Timeout_ms) ->
    Ref = make_ref(),
    Recorder ! {await, {self(), Ref}, fun(Event) -> element(1, Event) >= Since_ns andalso Is(Event) end},
    receive
        {Ref, Event} -> Event
    after Timeout_ms -> none
    end.

%% All events, the first one first.
-spec record(recorder()) -> recording().
record({Recorder, _}) ->
    Ref = make_ref(),
    Recorder ! {record, {self(), Ref}},
    test_await:answer(Ref).

loop(#state{register = Register, log = Log, events = Events, waiting = Waiting} = State) ->
    receive
        {event, Event} ->
            ok = cluster_demo_screen:show(Event, State#state.zero_ns),
            {Met, Unmet} = lists:partition(fun({_, Is}) -> Is(Event) end, Waiting),
            _ = [Pid ! {Ref, Event} || {{Pid, Ref}, _} <- Met],
            loop(State#state{events = [Event | Events], waiting = Unmet});
        {ask, {Pid, Ref}, Client, Request} ->
            {Answer, Next} = test_quorum_register:handle(Request, Register),
            Pid ! {Ref, Answer},
            loop(State#state{register = Next, log = [{Client, Request, Answer} | Log]});
        {await, {Pid, Ref} = From, Is} ->
            case lists:search(Is, Events) of
                {value, Event} ->
                    Pid ! {Ref, Event},
                    loop(State);
                false ->
                    loop(State#state{waiting = [{From, Is} | Waiting]})
            end;
        {record, {Pid, Ref}} ->
            Pid ! {Ref, #{
                events => lists:reverse(Events),
                log => lists:reverse(Log),
                values => test_quorum_register:values(Register)
            }},
            loop(State)
    end.

serve(Socket, Recorder) ->
    {ok, Hello} = gen_tcp:recv(Socket, 0),
    {hello, Client} = binary_to_term(Hello),
    serve(Socket, Client, Recorder).

%% A client ends when its node does.
serve(Socket, Client, Recorder) ->
    case gen_tcp:recv(Socket, 0) of
        {ok, Bytes} ->
            ok = serve_one(binary_to_term(Bytes), Socket, Client, Recorder),
            serve(Socket, Client, Recorder);
        {error, _} ->
            ok
    end.

serve_one({record, At_ns, Type}, _Socket, Client, Recorder) ->
    Recorder ! {event, {At_ns, Client, Type}},
    ok;
serve_one({ask, Request}, Socket, Client, Recorder) ->
    Ref = make_ref(),
    Recorder ! {ask, {self(), Ref}, Client, Request},
    %% If the client is dead, the next recv returns an error.
    _ = gen_tcp:send(Socket, term_to_binary(test_await:answer(Ref))),
    ok.

%%% For clients

-spec connect(recorder(), client()) -> connection().
connect({_, Port}, Client) ->
    {ok, Socket} = gen_tcp:connect(?HOST, Port, [binary, {active, false} | ?TCP_OPTIONS]),
    ok = gen_tcp:send(Socket, term_to_binary({hello, Client})),
    Socket.

%% An event of the client, now.
-spec record(connection(), event_type()) -> ok.
record(Socket, Type) ->
    ok = gen_tcp:send(Socket, term_to_binary({record, canal_lock_quorum_nif:now(), Type})).

%% A request to the register.
-spec ask(connection(), test_quorum_register:request()) -> test_quorum_register:answer().
ask(Socket, Request) ->
    ok = gen_tcp:send(Socket, term_to_binary({ask, Request})),
    {ok, Bytes} = gen_tcp:recv(Socket, 0),
    binary_to_term(Bytes).
