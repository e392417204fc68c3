%% Wires between nodes of one machine that hold back what goes over them, in one direction or in both: for each two
%% nodes a proxy that their connection goes through. Nothing is lost on it and nothing is closed: bytes, and the news
%% that a connection has ended, stay where they are until they are let go. So a message can be kept until the world in
%% which it was sent is gone; and to nodes it is a network that is cut, whoever may not make namespaces
%% (test_network).
-module(test_slow_links).

-export([start/0, stop/1, port/3, lead_to/3, hold/3, let_go/3, held/3]).

-export_type([wires/0, place/0]).

-opaque wires() :: pid().
-type place() :: pos_integer().

-define(HOST, {127, 0, 0, 1}).
-define(OPTIONS, [binary, {packet, raw}, {active, false}, {nodelay, true}]).

%% What a pump that holds back takes in before it leaves the rest to the operating system's buffers.
-define(MOST_BYTES, 100_000_000).

-spec start() -> wires().
start() ->
    spawn_link(fun() ->
        process_flag(trap_exit, true),
        serve(#{listening => #{}, targets => #{}, pumps => #{}, holding => #{}})
    end).

-spec stop(wires()) -> ok.
stop(Wires) ->
    unlink(Wires),
    Monitor = monitor(process, Wires),
    exit(Wires, shutdown),
    _ = test_await:reason({Wires, Monitor}),
    ok.

%% Where the one is to call when it wants the other.
-spec port(wires(), From :: place(), To :: place()) -> inet:port_number().
port(Wires, From, To) ->
    ask(Wires, {port, From, To}).

%% Calls for this node go to this port from now on.
-spec lead_to(wires(), place(), inet:port_number()) -> ok.
lead_to(Wires, Place, Port) ->
    ask(Wires, {lead_to, Place, Port}).

%% When this returns nothing gets from the one to the other any more.
-spec hold(wires(), From :: place(), To :: place()) -> ok.
hold(Wires, From, To) ->
    ask(Wires, {holding, From, To, true}).

%% All that was held is on its way, in its order, when this returns.
-spec let_go(wires(), From :: place(), To :: place()) -> ok.
let_go(Wires, From, To) ->
    ask(Wires, {holding, From, To, false}).

%% How many bytes are held.
-spec held(wires(), From :: place(), To :: place()) -> non_neg_integer().
held(Wires, From, To) ->
    ask(Wires, {held, From, To}).

ask(Whom, Question) ->
    Monitor = monitor(process, Whom),
    Whom ! {ask, self(), Monitor, Question},
    Answer = test_await:answer(Monitor, Monitor),
    true = demonitor(Monitor, [flush]),
    Answer.

serve(State = #{pumps := Pumps, holding := Holding, targets := Targets}) ->
    receive
        {ask, From, Ref, Question} ->
            {Answer, Next} = answer(Question, State),
            From ! {Ref, Answer},
            serve(Next);
        {target, Acceptor, Place} ->
            Acceptor ! {target, maps:get(Place, Targets, none)},
            serve(State);
        {join, Acceptor, Direction} ->
            Pump = spawn_link(fun() -> pump(maps:get(Direction, Holding, false)) end),
            Acceptor ! {pump, Pump},
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
            Port = listen(self(), From, To),
            {Port, State#{listening := Listening#{{From, To} => Port}}}
    end;
answer({lead_to, Place, Port}, State = #{targets := Targets}) ->
    {ok, State#{targets := Targets#{Place => Port}}};
answer({holding, From, To, Whether}, State = #{holding := Holding}) ->
    [ask_pump(Pump, {holding, Whether}, ok) || Pump <- pumps({From, To}, State)],
    {ok, State#{holding := Holding#{{From, To} => Whether}}};
answer({held, From, To}, State) ->
    {lists:sum([ask_pump(Pump, held, 0) || Pump <- pumps({From, To}, State)]), State}.

%% It may have come to its end.
ask_pump(Pump, Question, Otherwise) ->
    Ref = monitor(process, Pump),
    Pump ! {ask, self(), Ref, Question},
    receive
        {Ref, Answer} ->
            true = demonitor(Ref, [flush]),
            Answer;
        {'DOWN', Ref, process, _, _} ->
            Otherwise
    end.

pumps(Direction, #{pumps := Pumps}) ->
    [Pump || {Pump, Its} <- maps:to_list(Pumps), Its =:= Direction].

listen(Wires, From, To) ->
    {ok, Listening} = gen_tcp:listen(0, [{ip, ?HOST}, {backlog, 64} | ?OPTIONS]),
    {ok, Port} = inet:port(Listening),
    Accept = fun() -> accept(Wires, Listening, From, To) end,
    Acceptor = spawn_link(fun() -> receive go -> Accept() end end),
    ok = gen_tcp:controlling_process(Listening, Acceptor),
    Acceptor ! go,
    Port.

accept(Wires, Listening, From, To) ->
    {ok, Caller} = gen_tcp:accept(Listening),
    Wires ! {target, self(), To},
    Target =
        receive
            {target, Port} -> connect(Port)
        end,
    case Target of
        {ok, Called} -> join(Wires, {Caller, From}, {Called, To});
        {error, _} -> gen_tcp:close(Caller)
    end,
    accept(Wires, Listening, From, To).

connect(none) -> {error, nobody};
connect(Port) -> gen_tcp:connect(?HOST, Port, ?OPTIONS).

join(Wires, {Caller, From}, {Called, To}) ->
    Forth = new_pump(Wires, {From, To}),
    Back = new_pump(Wires, {To, From}),
    ok = gen_tcp:controlling_process(Caller, Forth),
    ok = gen_tcp:controlling_process(Called, Back),
    Forth ! {carry, Caller, Called},
    Back ! {carry, Called, Caller},
    ok.

new_pump(Wires, Direction) ->
    Wires ! {join, self(), Direction},
    receive
        {pump, Pump} -> Pump
    end.

%% Carries one direction of one connection. When it ends, and nothing is held, the other end hears of it. What cannot
%% be delivered is dropped: that its receiver is gone, a sender hears from the other direction, when that is let go.
pump(Holding) ->
    receive
        {ask, From, Ref, {holding, Whether}} ->
            From ! {Ref, ok},
            pump(Whether);
        {ask, From, Ref, held} ->
            From ! {Ref, 0},
            pump(Holding);
        {carry, Source, Sink} ->
            _ = inet:setopts(Source, [{active, once}]),
            carry(Source, Sink, Holding, [], open)
    end.

carry(_, Sink, false, [], ended) ->
    _ = gen_tcp:shutdown(Sink, write),
    ok;
carry(Source, Sink, false, Kept = [_ | _], Ended) ->
    _ = gen_tcp:send(Sink, lists:reverse(Kept)),
    _ = more(Source, Ended),
    carry(Source, Sink, false, [], Ended);
carry(Source, Sink, Holding, Kept, Ended) ->
    receive
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
