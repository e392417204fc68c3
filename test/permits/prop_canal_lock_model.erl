%% P1, P2, P4, P5, P6, P8, P10 to P14: after each step of a random sequence, `canal_lock' answers, sends and shows what
%% `test_model' allows. Processes of this node and of another one acquire, wait, release, give and die in all ways of
%% test_model:death(). The manager shuts down cleanly, crashes and restarts. The nodes disconnect.
%%
%% A wait is two events: a call or a request that begins to wait, and its end, which a later command causes. A timeout
%% does not depend on the clock: a client with a timeout is suspended while it waits, and goes on at a later command.
%%
%% Calls the functions of PropEr, not its macros: some installations have the application without the header.
-module(prop_canal_lock_model).

-export([model_test_/0]).

-define(LOCAL_CASES, 300).
-define(REMOTE_CASES, 60).

%% At most this many commands, half as many on average.
-define(SIZE, 100).

%% How long to wait for an asynchronous effect: normally, and while PropEr shrinks a failed case.
-define(WAIT_MS, 120_000).
-define(WAIT_WHILE_SHRINKING_MS, 300).

-record(run, {
    keys :: [{Name :: term(), term()}],
    clients :: test_model_clients:clients(),
    model :: test_model:model(),
    %% Clients that have given permits away or were given some.
    gifts = [] :: [{gave | received, test_model:client()}],
    %% The latest call first.
    calls = [] :: [test_model:call()]
}).

model_test_() ->
    test_setup:quietly([
        test_setup:tests(without_manager, [
            {"P1, P2, P4, P5, P6, P8, P10, P11, P12, P13, P14: on one node, answers are those of the model",
                fun() -> check(?LOCAL_CASES, [near1, near2, near3, near4], {here, none}, local_events()) end}
        ]),
        test_nodes:tests(2, [], [
            {"P1, P4, P5, P8, P10, P11, P12, P13: with remote clients, answers are those of the model", fun(Nodes) ->
                check(?REMOTE_CASES, [near1, near2, far1, far2], list_to_tuple(Nodes), remote_events())
            end}
        ])
    ]).

%% Events that must occur: without them the test proves nothing. See tallied/4.
local_events() ->
    each([
        {acquire, [acquired, full, closed]},
        {request, [acquired, waiting, full, closed]},
        {runs, [acquired, waits, full, acquired_later, closed_later]},
        {suspended, [acquired, waits, full]},
        {expire, [acquired, full, closed]},
        {with_permit, [full, closed, returns, nested, throws, raises, exits, dies, stops, handed_over]},
        {cancel, [ok, acquired, not_waiting, collected, handed_over]},
        {read, [acquired, closed]},
        {release, [ok, not_held, closed, handed_over, several, original]},
        {give, [ok, not_held, not_alive, several]},
        {resize, [handed_over, collected]},
        {die, [holder, waiter, collected, granted, gave, received, handed_over]},
        {die, deaths()},
        {sweep, [waiting, no_permits, reclaimed]}, {stop, [ok, waiting]}, {start, [waiting, begins_empty, adopts]},
        {killed, [waiting, kept]}, {crashes, [waiting, kept]}, {shut_down, [waiting]}
    ]).

remote_events() ->
    each([
        {far, [acquire, runs, acquired_later, release, die, waiter, holder, nodedown, closed, full, not_held]},
        {far_die, [without_manager | deaths()]},
        {disconnect, [managed, without_manager]}
    ]).

deaths() ->
    [killed, signalled, returns, shuts_down, raises, throws, kills_itself, linked, acquires].

each(Events) ->
    [{Call, Kind} || {Call, Kinds} <- Events, Kind <- Kinds].

check(Cases, Clients, Nodes, Wanted) ->
    ?MODULE = ets:new(?MODULE, [named_table, public]),
    Terms = test_key_terms:all(),
    ets:insert(?MODULE, [{wait_ms, ?WAIT_MS} | [{{term, Name}, Term} || {Name, Term} <- Terms]]),
    try
        test_property:check(prop_allowed(distinct(Terms), Clients, Nodes), Cases, ?SIZE, ?MODULE, Wanted) orelse fail()
    after
        ets:delete(?MODULE)
    end.

%% A term that occurs twice gets one name.
distinct(Terms) ->
    [Name || {Name, Term} <- Terms, Name =:= hd([First || {First, Same} <- Terms, Same =:= Term])].

%% The case that failed last is the shortest one.
fail() ->
    show("the shortest"),
    error(not_allowed).

show(Title) ->
    [{failed, Calls, Keys, Difference}] = ets:lookup(?MODULE, failed),
    Shown = [Title, [io_lib:format("    ~0tp~n", [Call]) || Call <- Calls], Difference, Keys, 100],
    io:format(user, "~n~s:~n~ts~tp~nkeys: ~0tP~n", Shown).

%% The slot of a process stores two keys. With few keys, requests wait more often.
prop_allowed(Names, Clients, Nodes) ->
    Where = case Nodes of {here, _} -> one_node; _ -> two_nodes end,
    Name = proper_types:oneof(Names),
    proper:forall(proper_types:oneof([[Name], [Name, Name], [Name, Name, Name, Name]]), fun(Chosen) ->
        Keys = lists:usort(Chosen),
        Commands = proper_types:list(test_model_commands:generator(Keys, Where)),
        proper:forall({proper_types:oneof([plain, keeping]), Commands}, fun({First, Rest}) ->
            run([{start, First, 1} | Rest], Keys, Clients, Nodes)
        end)
    end).

run(Commands, Keys, Names, Nodes) ->
    Terms = [{Key, ets:lookup_element(?MODULE, {term, Key}, 2)} || Key <- Keys],
    Clients = test_model_clients:start(Terms, Names, Nodes),
    steps(Commands, #run{keys = Terms, clients = Clients, model = test_model:new(Keys, Names)}).

steps([], Run = #run{clients = Clients}) ->
    try test_model_clients:stop(Clients) of
        ok -> true
    catch
        Class:Reason:Stack -> failed({Class, Reason, Stack}, Run)
    end;
steps([Command | Commands], Run = #run{model = Model, calls = Calls}) ->
    case test_model_commands:call(Command, Model) of
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
    {Answer, Later} = test_model_clients:perform(Call, Clients),
    Outcomes = test_model:step(Call, Model),
    case observed(is_asynchronous(Call), [After || {Of, After} <- Outcomes, Of =:= Answer], Later) of
        {allowed, After, Last} ->
            {allowed, tallied(Call, Answer, Run#run{model = After, clients = Last}, Model)};
        {differs, Shown} ->
            Allowed = [{Of, differing(Shown, shows(After))} || {Of, After} <- Outcomes],
            {differs, [{answer, Answer}, {allowed, Allowed}, {before, Model}]}
    end.

%% Shows the first case at once: shrinking may take longer than the test may.
failed(Difference, #run{keys = Keys, clients = Clients, calls = Calls}) ->
    IsFirst = not ets:member(?MODULE, failed),
    ets:insert(?MODULE, [{failed, lists:reverse(Calls), Keys, Difference}, {wait_ms, ?WAIT_WHILE_SHRINKING_MS}]),
    IsFirst andalso show("the first that failed"),
    try
        ok = test_model_clients:stop(Clients)
    catch
        _:_ -> ok
    end,
    false.

differing(Shown, Shows) ->
    Differs = [{Of, Is, instead_of, maps:get(Of, Shows, none)} || {Of, Is} <- maps:to_list(Shown)],
    [Difference || Difference = {_, Is, _, Wanted} <- Differs, Is =/= Wanted].

shows(Model) ->
    (test_model:snapshot(Model))#{returned => test_model:answered(Model)}.

%% Commands whose effect may follow their answer: the VM handles deaths later (P4). All others take effect before they
%% answer. Only calls of other processes that have waited may return later.
is_asynchronous({with_permit, _, _, _, Ending}) -> Ending =:= dies;
is_asynchronous(Call) -> is_tuple(Call) andalso lists:member(element(1, Call), [die, end_manager, disconnect]).

observed(IsAsynchronous, Outcomes, Clients) ->
    Shown = test_model_clients:snapshot(Clients),
    Ask = fun() -> if IsAsynchronous -> test_model_clients:snapshot(Clients); true -> Shown end end,
    Deadline_ms = erlang:monotonic_time(millisecond) + ets:lookup_element(?MODULE, wait_ms, 2),
    observed(Ask, [{shows(Outcome), Outcome} || Outcome <- Outcomes], [], Clients, Deadline_ms).

observed(Ask, Outcomes, Before, Clients, Deadline_ms) ->
    {Returned, Later} = test_model_clients:returned(Clients),
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
    [ets:insert(?MODULE, {{seen, Event}}) || Event <- lists:append([
        answered(Call, Answer, After), waited(Call, Before, After), events(Call, Before, After, Gifts)
    ])],
    case Call of
        {give, Giver, _, Target, _} when Answer =:= ok, Giver =/= Target ->
            Run#run{gifts = [{gave, Giver}, {received, Target} | Gifts]};
        {die, Client, _} ->
            Run#run{gifts = [Gift || Gift = {_, Of} <- Gifts, Of =/= Client]};
        _ ->
            Run
    end.

%% The answers of this call, and of those that have waited.
answered(Call, Answer, After) ->
    Name = name(Call),
    Returned = test_model:answered(After),
    lists:append([
        [{Name, kind(Answer)}],
        [{Name, several} || Answer =:= ok, is_tuple(Call), is_integer(element(tuple_size(Call), Call)),
            element(tuple_size(Call), Call) > 1],
        [{far, Event} || is_far(Call), Event <- [Name, kind(Answer)]],
        [{runs, later(Ended)} || {_, Ended} <- Returned],
        [{far, later(Ended)} || {Client, Ended} <- Returned, test_model:is_far(Client)]
    ]).

is_far(Call) ->
    is_tuple(Call) andalso test_model:is_far(element(2, Call)).

%% What the call did to those that waited.
waited(Call, Before, After) ->
    Name = name(Call),
    Waits = test_model:waits(Before),
    Collected = [N || is_tuple(Call), {Client, _, #{collected := N}} <- Waits, N > 0, Client =:= element(2, Call)],
    [{Name, handed_over} || grew(handed_over, Before, After)] ++ [{Name, waiting} || Waits =/= []] ++
        [{Name, collected} || Collected =/= []].

grew(Total, Before, After) ->
    test_model:total(Total, After) > test_model:total(Total, Before).

events({with_permit, _, _, _, Ending}, Before, After, _) ->
    [{with_permit, Ending} || test_model:is_open(Before), not grew(refused, Before, After)];
events({release, _, _, {_, _}}, Before, After, _) ->
    [{release, original} || grew(released, Before, After)];
events({die, Client, How}, Before, After, Gifts) ->
    Granted = [N || {_, {acquired, N}} <- maps:get(Client, test_model:mail(Before))],
    Of = [holder || lists:keymember(Client, 1, test_model:held(Before))] ++
        [waiter || lists:keymember(Client, 1, test_model:waits(Before))],
    [{die, Event} || Event <- Of] ++ [{far, Event} || Event <- Of, test_model:is_far(Client)] ++
        [{die, granted} || Granted =/= []] ++
        [{die, Gift} || {Gift, Which} <- Gifts, Which =:= Client] ++
        [
            {case test_model:is_far(Client) of true -> far_die; false -> die end, Event}
         || grew(released_by_death, Before, After),
            Event <- [name(How)] ++ [without_manager || test_model:manager(Before) =:= none]
        ];
events({resize, Key, _}, Before, _, _) ->
    [{resize, collected} || {_, Of, #{collected := N}} <- test_model:waits(Before), N > 0, Of =:= Key];
events(sweep, Before, After, _) ->
    Held = test_model:held(Before),
    [{sweep, no_permits} || {_, Key, _} <- test_model:waits(Before), not lists:keymember(Key, 2, Held)] ++
        [{sweep, reclaimed} || grew(reclaimed, Before, After)];
events({start, _, _}, Before, _, _) ->
    [{start, case test_model:is_open(Before) of true -> adopts; false -> begins_empty end}];
events({end_manager, How}, _, After, _) ->
    [{How, kept} || test_model:is_open(After)];
events({disconnect, _}, Before, After, _) ->
    Manager = case test_model:manager(Before) of none -> without_manager; _ -> managed end,
    [{disconnect, Manager} || grew(released_by_death, Before, After)];
events(_, _, _, _) ->
    [].

name({acquire, _, _, _, _, Kind, _}) when Kind =/= none -> Kind;
name({end_manager, How}) -> How;
name(Call) when is_tuple(Call) -> element(1, Call);
name(Call) -> Call.

later({acquired, _}) -> acquired_later;
later(closed) -> closed_later.

kind({error, Kind}) -> Kind;
kind({Kind, _}) -> Kind;
kind([{_, Ended} | _]) -> kind(Ended);
kind(Answer) -> Answer.
