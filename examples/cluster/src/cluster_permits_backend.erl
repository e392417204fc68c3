%% The back-end of the demo of cluster permits. It works on each request for a while, and refuses none. It counts the
%% requests at work of each node, records when each one begins and ends, and prints the counts.
%%
%% A request ends before its client gets the answer. If the client cancels it, or the connection ends because the node
%% is dead, the back-end stops working on it.
-module(cluster_permits_backend).

-export([start/1, note/2, await/3, events/1]).
-export([connect/2, work/2]).

-export_type([backend/0, event/0, how/0]).

-opaque backend() :: {pid(), inet:port_number()}.

%% How a request ended. `lost': its client has cancelled it, because its permit was lost. `disconnected': the connection
%% ended.
-type how() :: served | lost | disconnected.

-type event() ::
    {At_ms :: integer(),
        {began, Node :: atom()}
        | {ended, Node :: atom(), how()}
        %% From now on this node must lose its permits.
        | {fault, Text :: string(), Node :: atom()}
        | {said, iodata()}}.

-record(state, {
    zero_ms = now_ms() :: integer(),
    at_work :: #{Node :: atom() => non_neg_integer()},
    served = 0 :: non_neg_integer(),
    %% The last one first.
    events = [] :: [event()],
    waiting = none :: none | {{pid(), reference()}, fun((#{atom() => non_neg_integer()}) -> boolean())}
}).

-define(HOST, {127, 0, 0, 1}).
-define(TCP_OPTIONS, [{packet, 4}, {nodelay, true}]).
%% A request takes this long, or up to three times as long. One of forty takes much longer: if a node that is cut off
%% did not cancel it, the limit would be exceeded. Others get its permits a fifth of the lease after it has lost them.
-define(WORK_MS, 20).
-define(LONG_MS, 3000).
-define(LONG_ONE_OF, 40).
-define(SHOW_EVERY_MS, 500).

%% For nodes with these names. Linked to the caller.
-spec start(Names :: [atom()]) -> backend().
start(Names) ->
    Backend = spawn_link(fun() ->
        {ok, _} = timer:send_interval(?SHOW_EVERY_MS, show),
        loop(#state{at_work = maps:from_list([{Name, 0} || Name <- Names])})
    end),
    Listener = test_tcp_server:start([{ip, ?HOST} | ?TCP_OPTIONS], fun(Socket) -> serve(Socket, Backend) end),
    {ok, Port} = inet:port(Listener),
    {Backend, Port}.

%% An event of the demo, now.
-spec note(backend(), {fault, string(), atom()} | {said, iodata()}) -> ok.
note({Backend, _}, Type) ->
    call(Backend, Type).

%% Until the numbers of requests at work fulfil the condition.
-spec await(backend(), fun((#{Node :: atom() => non_neg_integer()}) -> boolean()), timeout()) -> ok | timeout.
await({Backend, _}, Is, Timeout_ms) ->
    Ref = make_ref(),
    Backend ! {await, {self(), Ref}, Is},
    receive
        {Ref, ok} -> ok
    after Timeout_ms -> timeout
    end.

%% The first one first.
-spec events(backend()) -> [event()].
events({Backend, _}) ->
    call(Backend, events).

%% All requests are counted by one process. When a call returns, it is counted.
call(Backend, Request) ->
    Ref = make_ref(),
    Backend ! {call, {self(), Ref}, Request},
    test_await:answer(Ref).

loop(State = #state{events = Events, zero_ms = Zero_ms}) ->
    receive
        {call, {Pid, Ref}, events} ->
            Pid ! {Ref, lists:reverse(Events)},
            loop(State);
        {call, {Pid, Ref}, Type} ->
            Event = {now_ms() - Zero_ms, Type},
            Pid ! {Ref, ok},
            ok = show(Event),
            loop(met(count(Type, State#state{events = [Event | Events]})));
        {await, From, Is} ->
            loop(met(State#state{waiting = {From, Is}}));
        show ->
            ok = show_counts(now_ms() - Zero_ms, State),
            loop(State)
    end.

count({began, Node}, State = #state{at_work = AtWork}) ->
    State#state{at_work = maps:update_with(Node, fun(Count) -> Count + 1 end, AtWork)};
count({ended, Node, How}, State = #state{at_work = AtWork, served = Served}) ->
    State#state{
        at_work = maps:update_with(Node, fun(Count) -> Count - 1 end, AtWork),
        served = case How of served -> Served + 1; _ -> Served end
    };
count(_, State) ->
    State.

met(State = #state{waiting = {{Pid, Ref}, Is}, at_work = AtWork}) ->
    case Is(AtWork) of
        true ->
            Pid ! {Ref, ok},
            State#state{waiting = none};
        false ->
            State
    end;
met(State) ->
    State.

show({_, {said, Text}}) -> cluster_demo_screen:say(["         ", Text]);
show({At_ms, {fault, Text, _}}) -> cluster_demo_screen:say(io_lib:format("~7.3f  *** ~ts", [At_ms / 1000, Text]));
show(_) -> ok.

show_counts(At_ms, #state{at_work = AtWork, served = Served}) ->
    Counts = [Count || {_, Count} <- lists:sort(maps:to_list(AtWork))],
    Columns = [io_lib:format("~4b", [Count]) || Count <- Counts],
    cluster_demo_screen:say(io_lib:format("~7.3f   ~ts ~8b ~8b", [At_ms / 1000, Columns, lists:sum(Counts), Served])).

%%% Connections

serve(Socket, Backend) ->
    {ok, Node} = gen_tcp:recv(Socket, 0),
    serve(Socket, binary_to_atom(Node), Backend).

serve(Socket, Node, Backend) ->
    case gen_tcp:recv(Socket, 0) of
        {ok, <<"work">>} ->
            ok = call(Backend, {began, Node}),
            ok = call(Backend, {ended, Node, wait_for_end(Socket)}),
            %% If the node is dead, the next recv returns an error.
            _ = gen_tcp:send(Socket, <<"ended">>),
            serve(Socket, Node, Backend);
        %% The request had ended before.
        {ok, <<"cancel">>} ->
            serve(Socket, Node, Backend);
        {error, _} ->
            ok
    end.

wait_for_end(Socket) ->
    Work_ms =
        case rand:uniform(?LONG_ONE_OF) of
            1 -> ?LONG_MS;
            _ -> ?WORK_MS + rand:uniform(2 * ?WORK_MS)
        end,
    case gen_tcp:recv(Socket, 0, Work_ms) of
        {error, timeout} -> served;
        {ok, <<"cancel">>} -> lost;
        {error, _} -> disconnected
    end.

now_ms() ->
    erlang:monotonic_time(millisecond).

%%% For clients

-spec connect(backend(), Node :: atom()) -> gen_tcp:socket().
connect({_, Port}, Node) ->
    {ok, Socket} = gen_tcp:connect(?HOST, Port, [binary, {active, true} | ?TCP_OPTIONS]),
    ok = gen_tcp:send(Socket, atom_to_binary(Node)),
    Socket.

%% A request. When it returns, the back-end does not work on it any more. `Cancel' is a message that cancels it.
-spec work(gen_tcp:socket(), Cancel :: term()) -> ok.
work(Socket, Cancel) ->
    ok = gen_tcp:send(Socket, <<"work">>),
    receive
        {tcp, Socket, <<"ended">>} ->
            ok;
        Cancel ->
            ok = gen_tcp:send(Socket, <<"cancel">>),
            receive {tcp, Socket, <<"ended">>} -> ok end
    end.
