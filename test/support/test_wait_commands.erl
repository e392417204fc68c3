%% The commands of prop_canal_lock_waits.
%%
%% A command selects a client, a request or permits by a number, among those that exist when it runs. Only the run knows
%% them, since the model allows several outcomes of a death. So the property is no `proper_statem'.
-module(test_wait_commands).

-import(proper_types, [oneof/1, range/2, weighted_union/1]).

-export([generator/2, call/2]).

%% One command. `Kinds' are those of calls that wait.
-spec generator([term()], Kinds :: [runs | suspended]) -> proper_types:type().
generator(Keys, Kinds) ->
    Any = range(0, 11),
    Key = oneof(Keys),
    Capacity = weighted_union([{20, range(1, 4)}, {1, 0}]),
    Permits = weighted_union([{6, 1}, {2, 2}, {2, 3}]),
    Max = weighted_union([{8, infinity}, {1, range(0, 2)}]),
    weighted_union([
        {8, {acquire, Any, Key, Capacity, Permits, none, infinity}},
        {20, {acquire, Any, Key, Capacity, Permits, request, Max}},
        {10, {acquire, Any, Key, Capacity, Permits, oneof(Kinds), Max}},
        {3, {cancel, Any, own}},
        {4, {cancel, Any, waiting}},
        {1, {cancel, Any, Any}},
        {3, {read, Any}},
        {3, {expire, Any}},
        {14, {release, Any, held, Permits}},
        {1, {release, Any, Key, Permits}},
        {6, {give, Any, held, Any, Permits}},
        {1, {give, Any, Key, Any, Permits}},
        {5, {resized, Key, Capacity}},
        {5, {die, Any, oneof([holder, waiter, reader])}},
        {1, {die, Any, any}},
        {2, sweep},
        {2, oneof([stop, crash, crash])},
        {5, {start, oneof([plain, keeping, keeping, keeping])}}
    ]).

%% The call of a command in this state, if there is one.
-spec call(Command :: term(), test_wait_model:model()) -> test_wait_model:call() | none.
call({acquire, Any, Key, Capacity, Permits, Kind, Max}, Model) ->
    Idle = [Client || Client <- test_wait_model:idle(Model), Kind =/= request orelse is_near(Client)],
    chosen(Any, Idle, fun(Client) -> {acquire, Client, Key, Capacity, Permits, Kind, Max} end);
call({cancel, Any, own}, Model) ->
    cancel(Any, test_wait_model:requests(Model), Model);
call({cancel, Any, waiting}, Model) ->
    Waits = test_wait_model:waits(Model),
    %% The end of a request that has collected permits can grant others.
    Collectors = [Wait || Wait = {_, _, #{collected := N}} <- Waits, N > 0],
    Chosen = case Collectors of [] -> Waits; _ -> Collectors end,
    cancel(Any, [{Client, Request} || {Client, _, #{number := Request}} <- Chosen], Model);
call({cancel, Any, Of}, Model) ->
    chosen(Of, near(Model), fun(Client) ->
        chosen(Any, test_wait_model:requests(Model), fun({_, Request}) -> {cancel, Client, Request} end)
    end);
call({read, Any}, Model) ->
    Readers = [Client || Client <- near(Model), maps:get(Client, test_wait_model:mail(Model)) =/= []],
    chosen(Any, Readers, fun(Client) -> {read, Client} end);
call({expire, Any}, Model) ->
    chosen(Any, test_wait_model:suspended(Model), fun(Client) -> {expire, Client} end);
call({release, Any, held, Permits}, Model) ->
    chosen(Any, idle_holders(Model), fun({Client, Key, _}) -> {release, Client, Key, Permits} end);
call({release, Any, Key, Permits}, Model) ->
    chosen(Any, test_wait_model:idle(Model), fun(Client) -> {release, Client, Key, Permits} end);
call({give, Any, held, To, Permits}, Model) ->
    Givers = [Holder || Holder = {Client, _, _} <- idle_holders(Model), is_near(Client)],
    chosen(Any, Givers, fun({Client, Key, _}) -> give(Client, Key, To, Permits, Model) end);
call({give, Any, Key, To, Permits}, Model) ->
    chosen(Any, near(Model), fun(Client) -> give(Client, Key, To, Permits, Model) end);
call({die, Any, Who}, Model) ->
    Clients =
        case Who of
            any -> test_wait_model:clients(Model);
            holder -> [Client || {Client, _, _} <- test_wait_model:held(Model)];
            waiter -> [Client || {Client, _, _} <- test_wait_model:waits(Model)];
            reader -> [Client || {Client, [_ | _]} <- maps:to_list(test_wait_model:mail(Model))]
        end,
    chosen(Any, Clients, fun(Client) -> {die, Client} end);
call({start, Kind}, Model) ->
    case test_wait_model:manager(Model) of
        none -> {start, Kind};
        _ -> none
    end;
call(Call, Model) ->
    NeedsManager = is_atom(Call),
    case test_wait_model:manager(Model) of
        none when NeedsManager -> none;
        _ -> Call
    end.

chosen(_, [], _) -> none;
chosen(Any, Choices, Call) -> Call(lists:nth(1 + Any rem length(Choices), Choices)).

cancel(Any, Requests, Model) ->
    Own = [Request || {Client, _} = Request <- Requests, lists:member(Client, near(Model))],
    chosen(Any, Own, fun({Client, Request}) -> {cancel, Client, Request} end).

give(Client, Key, To, Permits, Model) ->
    Targets = [dead | lists:filter(fun is_near/1, test_wait_model:clients(Model))],
    chosen(To, Targets, fun(Target) -> {give, Client, Key, Target, Permits} end).

near(Model) ->
    lists:filter(fun is_near/1, test_wait_model:idle(Model)).

is_near(Client) ->
    not test_wait_model:is_far(Client).

idle_holders(Model) ->
    Idle = test_wait_model:idle(Model),
    [Holder || Holder = {Client, _, _} <- test_wait_model:held(Model), lists:member(Client, Idle)].
