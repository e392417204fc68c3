%% Proxies between nodes of one machine, which can hold back bytes in one direction or in both. A proxy loses no
%% bytes and closes no connection by itself. It forwards held bytes, and the end of a connection, when the test
%% releases them. So a test can delay a message for any time, also after its sender is dead.
%% A test can also disconnect nodes where network namespaces (test_network) are not possible.
-module(test_slow_links).

-export([start/0, stop/1, port/3, set_target/3, hold/3, resume/3, bytes_held_back/3]).

-export_type([proxies/0, index/0]).

-opaque proxies() :: pid().
-type index() :: pos_integer().

-define(HOST, {127, 0, 0, 1}).
-define(OPTIONS, [{packet, raw}, {nodelay, true}]).

%% A pump that holds back reads this much, and leaves the rest to the buffers of the operating system.
-define(MOST_BYTES, 100_000_000).

-spec start() -> proxies().
start() ->
    spawn_link(fun() ->
        process_flag(trap_exit, true),
        serve(#{listening => #{}, targets => #{}, pumps => #{}, holding => #{}})
    end).

-spec stop(proxies()) -> ok.
stop(Proxies) ->
    unlink(Proxies),
    Monitor = monitor(process, Proxies),
    exit(Proxies, shutdown),
    _ = test_await:reason({Proxies, Monitor}),
    ok.

%% The port to which the first node connects to reach the second one.
-spec port(proxies(), From :: index(), To :: index()) -> inet:port_number().
port(Proxies, From, To) ->
    ask(Proxies, {port, From, To}).

%% Proxies forward new connections to this node to this port.
-spec set_target(proxies(), index(), inet:port_number()) -> ok.
set_target(Proxies, Index, Port) ->
    ask(Proxies, {set_target, Index, Port}).

%% When this returns, no byte passes from the first node to the second one.
-spec hold(proxies(), From :: index(), To :: index()) -> ok.
hold(Proxies, From, To) ->
    ask(Proxies, {holding, From, To, true}).

%% Sends what was held back, in the same order.
-spec resume(proxies(), From :: index(), To :: index()) -> ok.
resume(Proxies, From, To) ->
    ask(Proxies, {holding, From, To, false}).

%% The number of bytes that the proxy holds back.
-spec bytes_held_back(proxies(), From :: index(), To :: index()) -> non_neg_integer().
bytes_held_back(Proxies, From, To) ->
    ask(Proxies, {held, From, To}).

ask(Proxies, Request) ->
    Monitor = monitor(process, Proxies),
    Proxies ! {ask, self(), Monitor, Request},
    Answer = test_await:answer(Monitor, Monitor),
    true = demonitor(Monitor, [flush]),
    Answer.

serve(State = #{pumps := Pumps, holding := Holding, targets := Targets}) ->
    receive
        {ask, From, Ref, Request} ->
            {Answer, Next} = answer(Request, State),
            From ! {Ref, Answer},
            serve(Next);
        {connected, Caller, Index} ->
            Caller ! {target, maps:get(Index, Targets, none)},
            serve(State);
        {new_pump, Caller, Direction} ->
            Pump = spawn_link(fun() -> carry(none, none, maps:get(Direction, Holding, false), [], open) end),
            Caller ! {pump, Pump},
            serve(State#{pumps := Pumps#{Pump => Direction}});
        {'EXIT', Pump, _} when is_map_key(Pump, Pumps) ->
            serve(State#{pumps := maps:remove(Pump, Pumps)});
        {'EXIT', _, Reason} ->
            exit(Reason)
    end.

answer({port, From, To}, State = #{listening := Listening}) ->
    case Listening of
        #{{From, To} := Port} ->
            {Port, State};
        _ ->
            Proxies = self(),
            Serve = fun(Socket) -> connected(Proxies, Socket, From, To) end,
            {ok, Port} = inet:port(test_tcp_server:start([{ip, ?HOST} | ?OPTIONS], Serve)),
            {Port, State#{listening := Listening#{{From, To} => Port}}}
    end;
answer({set_target, Index, Port}, State = #{targets := Targets}) ->
    {ok, State#{targets := Targets#{Index => Port}}};
answer({holding, From, To, Whether}, State = #{holding := Holding}) ->
    [ask_pump(Pump, {holding, Whether}, ok) || Pump <- pumps({From, To}, State)],
    {ok, State#{holding := Holding#{{From, To} => Whether}}};
answer({held, From, To}, State) ->
    {lists:sum([ask_pump(Pump, held, 0) || Pump <- pumps({From, To}, State)]), State}.

%% The pump may have ended.
ask_pump(Pump, Request, Default) ->
    Ref = monitor(process, Pump),
    Pump ! {ask, self(), Ref, Request},
    receive
        {Ref, Answer} ->
            true = demonitor(Ref, [flush]),
            Answer;
        {'DOWN', Ref, process, _, _} ->
            Default
    end.

pumps(Direction, #{pumps := Pumps}) ->
    [Pump || {Pump, Its} <- maps:to_list(Pumps), Its =:= Direction].

connected(Proxies, Socket, From, To) ->
    case request(Proxies, {connected, self(), To}) of
        {target, none} ->
            gen_tcp:close(Socket);
        {target, Port} ->
            case gen_tcp:connect(?HOST, Port, [binary, {active, false} | ?OPTIONS]) of
                {ok, Target} ->
                    {pump, There} = request(Proxies, {new_pump, self(), {From, To}}),
                    {pump, Back} = request(Proxies, {new_pump, self(), {To, From}}),
                    ok = gen_tcp:controlling_process(Socket, There),
                    ok = gen_tcp:controlling_process(Target, Back),
                    There ! {carry, Socket, Target},
                    Back ! {carry, Target, Socket};
                {error, _} ->
                    gen_tcp:close(Socket)
            end
    end.

request(Proxies, Request) ->
    Proxies ! Request,
    receive
        {target, _} = Answer -> Answer;
        {pump, _} = Answer -> Answer
    end.

%% A pump carries one direction of a connection. When the connection ends and nothing is held back, the pump closes this
%% direction at the other end. Bytes that cannot be delivered are dropped: the sender sees the end of the connection in
%% the other direction, when that is not held back. A new pump has no sockets yet.
carry(_, Sink, false, [], ended) ->
    _ = gen_tcp:shutdown(Sink, write),
    ok;
carry(Source, Sink, false, Kept = [_ | _], Ended) ->
    _ = gen_tcp:send(Sink, lists:reverse(Kept)),
    _ = more(Source, Ended),
    carry(Source, Sink, false, [], Ended);
carry(Source, Sink, Holding, Kept, Ended) ->
    receive
        {carry, From, To} ->
            _ = more(From, Ended),
            carry(From, To, Holding, Kept, Ended);
        {tcp, Source, Bytes} when Holding ->
            _ = iolist_size(Kept) < ?MOST_BYTES andalso more(Source, Ended),
            carry(Source, Sink, true, [Bytes | Kept], Ended);
        {tcp, Source, Bytes} ->
            _ = gen_tcp:send(Sink, Bytes),
            _ = more(Source, Ended),
            carry(Source, Sink, false, [], Ended);
        {tcp_closed, Source} ->
            carry(Source, Sink, Holding, Kept, ended);
        {tcp_error, Source, _} ->
            carry(Source, Sink, Holding, Kept, ended);
        {ask, From, Ref, {holding, Whether}} ->
            From ! {Ref, ok},
            carry(Source, Sink, Whether, Kept, Ended);
        {ask, From, Ref, held} ->
            From ! {Ref, iolist_size(Kept)},
            carry(Source, Sink, Holding, Kept, Ended)
    end.

more(Source, open) -> inet:setopts(Source, [{active, once}]);
more(_, ended) -> ok.
