%% P1, P4, P6, P8, P10 to P14: after each step of a random sequence with waits, several permits and gifts, `canal_lock'
%% answers, sends and shows what `test_wait_model' allows.
%%
%% A wait is two events: a call or a request that begins to wait, and its end, which a later command causes. A timeout
%% does not depend on the clock: a client with a timeout is suspended while it waits, and goes on at a later command.
%%
%% Calls the functions of PropEr, not its macros: some installations have the application without the header.
-module(prop_canal_lock_waits).

-export([waits_test_/0]).

-define(LOCAL_CASES, 200).
-define(REMOTE_CASES, 25).

%% At most this many commands, half as many on average.
-define(SIZE, 100).

%% The second one is read on a dirty scheduler.
-define(KEYS, [db, {app, fun lists:sort/1}]).

%% How long to wait for an asynchronous effect: normally, and while PropEr shrinks a failed case.
-define(WAIT_MS, 120_000).
-define(WAIT_WHILE_SHRINKING_MS, 300).

-record(run, {
    clients :: test_wait_clients:clients(),
    model :: test_wait_model:model(),
    %% Clients that have given permits away or were given some.
    gifts = [] :: [{gave | received, test_wait_model:client()}],
    %% The latest call first.
    calls = [] :: [test_wait_model:call()]
}).

waits_test_() ->
    test_setup:quietly([
        test_setup:tests(without_manager, [
            {"P1, P4, P5, P6, P8, P10, P11, P12, P13, P14: waits and gifts do what the model allows", fun() ->
                check(?LOCAL_CASES, [near1, near2, near3, near4], {here, none}, local_events())
            end}
        ]),
        test_nodes:tests(2, [], [
            {"P1, P4, P5, P11, P12, P13: with remote clients, waits do what the model allows", fun([There, Far]) ->
                check(?REMOTE_CASES, [near1, near2, far1, far2], {There, Far}, remote_events())
            end}
        ])
    ]).

%% Events that must occur: without them the test proves nothing. See events/5.
local_events() ->
    [{Call, Kind} || {Call, Kinds} <- [
        {acquire, [acquired, full, closed]},
        {request, [acquired, waiting, full, closed]},
        {runs, [acquired, waits, full, acquired_later, closed_later]},
        {suspended, [acquired, waits, full]},
        {expire, [acquired, full, closed]},
        {cancel, [ok, acquired, not_waiting, collected, handed_over]},
        {read, [acquired, closed]},
        {release, [ok, not_held, handed_over, several]},
        {give, [ok, not_held, not_alive, several]},
        {resized, [handed_over, collected]},
        {die, [holder, waiter, collected, granted, gave, received, handed_over]},
        {sweep, [waiting, no_permits]}, {stop, [waiting]}, {crash, [waiting, kept]}, {start, [waiting]}
    ], Kind <- Kinds].

remote_events() ->
    [{far, Event} || Event <- [acquire, runs, acquired_later, release, die, waiter]].

check(Cases, Clients, Nodes, Wanted) ->
    ?MODULE = ets:new(?MODULE, [named_table, public]),
    ets:insert(?MODULE, {wait_ms, ?WAIT_MS}),
    try
        test_property:check(prop_allowed(Clients, Nodes), Cases, ?SIZE, ?MODULE, Wanted) orelse fail()
    after
        ets:delete(?MODULE)
    end.

%% The case that failed last is the shortest one.
fail() ->
    show("the shortest"),
    error(not_allowed).

show(Title) ->
    [{failed, Calls, Difference}] = ets:lookup(?MODULE, failed),
    io:format(user, "~n~s:~n~ts~tp~n", [Title, [io_lib:format("    ~0tp~n", [Call]) || Call <- Calls], Difference]).

prop_allowed(Clients, Nodes) ->
    %% A client of another node cannot be suspended.
    Kinds = case Nodes of {here, _} -> [runs, suspended]; _ -> [runs] end,
    Commands = proper_types:list(test_wait_commands:generator(?KEYS, Kinds)),
    proper:forall({proper_types:oneof([plain, keeping]), Commands}, fun({First, Rest}) ->
        run([{start, First} | Rest], Clients, Nodes)
    end).

run(Commands, Names, Nodes) ->
    Clients = test_wait_clients:start(?KEYS, Names, Nodes),
    steps(Commands, #run{clients = Clients, model = test_wait_model:new(?KEYS, Names)}).

steps([], Run = #run{clients = Clients}) ->
    try test_wait_clients:stop(Clients) of
        ok -> true
    catch
        Class:Reason:Stack -> failed({Class, Reason, Stack}, Run)
    end;
steps([Command | Commands], Run = #run{model = Model, calls = Calls}) ->
    case test_wait_commands:call(Command, Model) of
        none ->
            steps(Commands, Run);
        Call ->
            Next = Run#run{calls = [Call | Calls]},
            %% Older versions of PropEr cannot report an exception.
            try step(Call, Next) of
                {allowed, After} -> steps(Commands, After);
                {differs, Difference} -> failed(Difference, Next)
            catch
                Class:Reason:Stack -> failed({Class, Reason, Stack}, Next)
            end
    end.

step(Call, Run = #run{model = Model, clients = Clients}) ->
    {Answer, Later} = test_wait_clients:perform(Call, Clients),
    Outcomes = test_wait_model:step(Call, Model),
    case observed(is_asynchronous(Call), [After || {Of, After} <- Outcomes, Of =:= Answer], Later) of
        {allowed, After, Last} ->
            {allowed, tallied(Call, Answer, Run#run{model = After, clients = Last}, Model)};
        {differs, Shown} ->
            Allowed = [{Of, differing(Shown, shows(After))} || {Of, After} <- Outcomes],
            {differs, [{answer, Answer}, {allowed, Allowed}, {before, Model}]}
    end.

%% Shows the first case at once: shrinking may take longer than the test may.
failed(Difference, #run{clients = Clients, calls = Calls}) ->
    IsFirst = not ets:member(?MODULE, failed),
    ets:insert(?MODULE, [{failed, lists:reverse(Calls), Difference}, {wait_ms, ?WAIT_WHILE_SHRINKING_MS}]),
    IsFirst andalso show("the first that failed"),
    try
        ok = test_wait_clients:stop(Clients)
    catch
        _:_ -> ok
    end,
    false.

differing(Shown, Shows) ->
    Differs = [{Of, Is, instead_of, maps:get(Of, Shows, none)} || {Of, Is} <- maps:to_list(Shown)],
    [Difference || Difference = {_, Is, _, Wanted} <- Differs, Is =/= Wanted].

shows(Model) ->
    (test_wait_model:snapshot(Model))#{returned => test_wait_model:answered(Model)}.

%% Commands whose effect may follow their answer: the VM handles deaths later (P4). All others take effect before they
%% answer. Only calls of other processes that have waited may return later.
is_asynchronous({die, _}) -> true;
is_asynchronous(Call) -> Call =:= crash.

observed(IsAsynchronous, Outcomes, Clients) ->
    Shown = test_wait_clients:snapshot(Clients),
    Ask = fun() -> if IsAsynchronous -> test_wait_clients:snapshot(Clients); true -> Shown end end,
    Deadline_ms = erlang:monotonic_time(millisecond) + ets:lookup_element(?MODULE, wait_ms, 2),
    observed(Ask, [{shows(Outcome), Outcome} || Outcome <- Outcomes], [], Clients, Deadline_ms).

observed(Ask, Outcomes, Before, Clients, Deadline_ms) ->
    {Returned, Later} = test_wait_clients:returned(Clients),
    All = lists:sort(Before ++ Returned),
    Shown = (Ask())#{returned => All},
    case lists:keyfind(Shown, 1, Outcomes) of
        {_, Outcome} ->
            {allowed, Outcome, Later};
        false ->
            case Outcomes =/= [] andalso erlang:monotonic_time(millisecond) < Deadline_ms of
                true ->
                    erlang:yield(),
                    observed(Ask, Outcomes, All, Later, Deadline_ms);
                false ->
                    {differs, Shown}
            end
    end.

%% Records the events that have occurred.
tallied(Call, Answer, Run = #run{model = After, gifts = Gifts}, Before) ->
    Events = events(Call, Answer, Before, After, Gifts),
    [ets:insert(?MODULE, {{seen, Event}}) || Event <- Events],
    case Call of
        {give, Giver, _, Target, _} when Answer =:= ok, Giver =/= Target ->
            Run#run{gifts = [{gave, Giver}, {received, Target} | Gifts]};
        {die, Client} ->
            Run#run{gifts = [Gift || Gift = {_, Of} <- Gifts, Of =/= Client]};
        _ ->
            Run
    end.

events(Call, Answer, Before, After, Gifts) ->
    Name = name(Call),
    Waited = test_wait_model:waits(Before),
    Own = [Waiter || is_tuple(Call), {Client, _, Waiter} <- Waited, Client =:= element(2, Call)],
    Returned = test_wait_model:answered(After),
    Growth = test_wait_model:total(handed_over, After) - test_wait_model:total(handed_over, Before),
    lists:append([
        [{Name, kind(Answer)}],
        [{Name, handed_over} || Growth > 0],
        [{Name, waiting} || Waited =/= []],
        [{Name, several} || Answer =:= ok, is_tuple(Call), element(tuple_size(Call), Call) > 1],
        [{Name, collected} || #{collected := N} <- Own, N > 0],
        [{far, Name} || is_tuple(Call), test_wait_model:is_far(element(2, Call))],
        [{runs, later(Ended)} || {_, Ended} <- Returned],
        [{far, later(Ended)} || {Client, Ended} <- Returned, test_wait_model:is_far(Client)],
        events(Call, Before, Own, Gifts)
    ]).

events({die, Client}, Before, Own, Gifts) ->
    Holds = lists:keymember(Client, 1, test_wait_model:held(Before)),
    Granted = [N || {_, {acquired, N}} <- maps:get(Client, test_wait_model:mail(Before))],
    [{die, holder} || Holds] ++ [{die, waiter} || Own =/= []] ++ [{die, granted} || Granted =/= []] ++
        [{die, How} || {How, Of} <- Gifts, Of =:= Client] ++
        [{far, waiter} || Own =/= [], test_wait_model:is_far(Client)];
events({resized, Key, _}, Before, _, _) ->
    [{resized, collected} || {_, Of, #{collected := N}} <- test_wait_model:waits(Before), N > 0, Of =:= Key];
events(sweep, Before, _, _) ->
    Held = test_wait_model:held(Before),
    [{sweep, no_permits} || {_, Key, _} <- test_wait_model:waits(Before), not lists:keymember(Key, 2, Held)];
events(crash, Before, _, _) ->
    [{crash, kept} || test_wait_model:manager(Before) =:= keeping];
events(_, _, _, _) ->
    [].

name({acquire, _, _, _, _, Kind, _}) when Kind =/= none -> Kind;
name(Call) when is_tuple(Call) -> element(1, Call);
name(Call) -> Call.

later({acquired, _}) -> acquired_later;
later(closed) -> closed_later.

kind({error, Kind}) -> Kind;
kind({Kind, _}) -> Kind;
kind([{_, Ended} | _]) -> kind(Ended);
kind(Answer) -> Answer.
