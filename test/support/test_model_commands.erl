%% The commands of prop_canal_lock_model.
%%
%% A command selects a client, a request or permits by a number, among those that exist when it runs. Only the run knows
%% them, since the model allows several outcomes of a death. So the property is no `proper_statem'.
-module(test_model_commands).

-import(proper_types, [oneof/1, range/2, weighted_union/1]).

-export([generator/2, call/2]).

%% One command. On two nodes, clients of the other one cannot be suspended, and connections fail.
-spec generator(Keys :: [term()], one_node | two_nodes) -> proper_types:type().
generator(Keys, Nodes) ->
    Any = range(0, 11),
    Key = oneof(Keys),
    Size = size(),
    Ways = [killed, signalled, returns, shuts_down, raises, throws, kills_itself, linked],
    Death = weighted_union([{length(Ways), oneof(Ways)}, {2, {acquires, Key, Size}}]),
    {Kinds, More} =
        case Nodes of
            one_node ->
                {[runs, suspended], []};
            two_nodes ->
                Disconnect = {disconnect, oneof([near, far])},
                Crash = {end_manager, oneof([killed, crashes])},
                {[runs], [{8, Disconnect}, {12, connect}, {4, Crash}, {6, {die, Any, far_holder, Death}}]}
        end,
    Ending = weighted_union([{12, oneof([returns, nested, throws, raises, exits, dies])}, {1, stops}]),
    Permits = weighted_union([{6, 1}, {2, 2}, {2, 3}]),
    Max = weighted_union([{8, infinity}, {1, range(0, 2)}]),
    weighted_union([
        {10, {acquire, Any, Key, Size, oneof([1, Permits]), none, infinity}},
        {20, {acquire, Any, Key, Size, Permits, request, Max}},
        {10, {acquire, Any, Key, Size, Permits, oneof(Kinds), Max}},
        {5, {with_permit, Any, Key, Size, Ending}},
        {3, {cancel, Any, own}},
        {4, {cancel, Any, waiting}},
        {1, {cancel, Any, Any}},
        {3, {read, Any}},
        {3, {expire, Any}},
        {14, {release, Any, held, Permits}},
        {2, {release, Any, Key, oneof([Permits, Size])}},
        {6, {give, Any, held, Any, Permits}},
        {1, {give, Any, Key, Any, Permits}},
        {5, {resize, Key, Size}},
        {5, {die, Any, oneof([holder, waiter, reader]), Death}},
        {1, {die, Any, any, Death}},
        {2, sweep},
        {2, oneof([stop, {end_manager, shut_down} | lists:duplicate(4, {end_manager, oneof([killed, crashes])})])},
        {12, {start, oneof([plain, keeping, keeping, keeping]), range(1, 9)}}
        | More
    ]).

%% Most are so small that calls are sometimes refused.
size() ->
    Large = [1 bsl 32, 1 bsl 64 - 1, 1 bsl 64, 1 bsl 700],
    weighted_union([
        {20, {range(1, 4), 1}}, {5, {1, range(2, 4)}}, {5, {2, 2}},
        {1, {0, oneof([1 | Large])}}, {1, {range(1, 4), 0}}, {1, {oneof(Large), oneof([1, 1 bsl 63])}}
    ]).

%% The call of a command in this state, if there is one.
-spec call(Command :: term(), test_model:model()) -> test_model:call() | none.
call({acquire, Any, Key, Size, Permits, Kind, Max}, Model) ->
    Idle = [Client || Client <- test_model:idle(Model), Kind =/= request orelse is_near(Client)],
    chosen(Any, Idle, fun(Client) -> {acquire, Client, Key, Size, Permits, Kind, Max} end);
call({with_permit, Any, Key, Size, Ending}, Model) ->
    Clients = [Client || Client <- near(Model), Ending =/= stops orelse test_model:manager(Model) =/= none],
    chosen(Any, Clients, fun(Client) -> {with_permit, Client, Key, Size, Ending} end);
call({cancel, Any, own}, Model) ->
    cancel(Any, test_model:requests(Model), Model);
call({cancel, Any, waiting}, Model) ->
    Waits = test_model:waits(Model),
    %% The end of a request that has collected permits can grant others.
    Collectors = [Wait || Wait = {_, _, #{collected := N}} <- Waits, N > 0],
    Chosen = case Collectors of [] -> Waits; _ -> Collectors end,
    cancel(Any, [{Client, Request} || {Client, _, #{number := Request}} <- Chosen], Model);
call({cancel, Any, Of}, Model) ->
    chosen(Of, near(Model), fun(Client) ->
        chosen(Any, test_model:requests(Model), fun({_, Request}) -> {cancel, Client, Request} end)
    end);
call({read, Any}, Model) ->
    Readers = [Client || Client <- near(Model), maps:get(Client, test_model:mail(Model)) =/= []],
    chosen(Any, Readers, fun(Client) -> {read, Client} end);
call({expire, Any}, Model) ->
    chosen(Any, test_model:suspended(Model), fun(Client) -> {expire, Client} end);
call({release, Any, held, Permits}, Model) ->
    chosen(Any, idle_holders(Model), fun({Client, Key, _}) -> {release, Client, Key, Permits} end);
call({release, Any, Key, Permits}, Model) ->
    Idle = [Client || Client <- test_model:idle(Model), is_integer(Permits) orelse is_near(Client)],
    chosen(Any, Idle, fun(Client) -> {release, Client, Key, Permits} end);
call({give, Any, held, To, Permits}, Model) ->
    Givers = [Holder || Holder = {Client, _, _} <- idle_holders(Model), is_near(Client)],
    chosen(Any, Givers, fun({Client, Key, _}) -> give(Client, Key, To, Permits, Model) end);
call({give, Any, Key, To, Permits}, Model) ->
    chosen(Any, near(Model), fun(Client) -> give(Client, Key, To, Permits, Model) end);
call({die, Any, Who, How}, Model) ->
    Clients =
        case Who of
            any -> test_model:clients(Model);
            holder -> [Client || {Client, _, _} <- test_model:held(Model)];
            far_holder -> [Client || {Client, _, _} <- test_model:held(Model), test_model:is_far(Client)];
            waiter -> [Client || {Client, _, _} <- test_model:waits(Model)];
            reader -> [Client || {Client, [_ | _]} <- maps:to_list(test_model:mail(Model))]
        end,
    %% A client that waits in a call executes nothing more.
    Idle = test_model:idle(Model),
    chosen(Any, Clients, fun(Client) ->
        {die, Client, case How =:= signalled orelse lists:member(Client, Idle) of true -> How; false -> killed end}
    end);
call(Call, Model) ->
    case is_possible(Call, Model) of
        true -> Call;
        false -> none
    end.

is_possible({resize, _, _}, _) -> true;
is_possible(connect, Model) -> not test_model:is_connected(Model);
is_possible({disconnect, _}, Model) -> test_model:is_connected(Model) andalso test_model:waits(Model) =:= [];
is_possible({start, _, _}, Model) -> test_model:manager(Model) =:= none;
is_possible(_NeedsManager, Model) -> test_model:manager(Model) =/= none.

chosen(_, [], _) -> none;
chosen(Any, Choices, Call) -> Call(lists:nth(1 + Any rem length(Choices), Choices)).

cancel(Any, Requests, Model) ->
    Own = [Request || {Client, _} = Request <- Requests, lists:member(Client, near(Model))],
    chosen(Any, Own, fun({Client, Request}) -> {cancel, Client, Request} end).

give(Client, Key, To, Permits, Model) ->
    Targets = [dead | lists:filter(fun is_near/1, test_model:clients(Model))],
    chosen(To, Targets, fun(Target) -> {give, Client, Key, Target, Permits} end).

near(Model) ->
    lists:filter(fun is_near/1, test_model:idle(Model)).

is_near(Client) ->
    not test_model:is_far(Client).

idle_holders(Model) ->
    Idle = test_model:idle(Model),
    [Holder || Holder = {Client, _, _} <- test_model:held(Model), lists:member(Client, Idle)].
