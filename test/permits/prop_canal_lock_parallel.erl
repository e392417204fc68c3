%% P1, P4, P5, P8, P10: for calls that two processes make at the same time, there is a sequential order in which
%% `test_model' gives the same answers as `canal_lock'.
%%
%% An effect on several keys need not be atomic: a death releases permits key by key. So cases with deaths have only one
%% key. The property leaves out calls of two steps: with_permit/4, and calls that read the whole table.
%%
%% Calls the functions of PropEr, not its macros: some installations have the application without the header.
-module(prop_canal_lock_parallel).

-import(proper_types, [oneof/1, range/2, weighted_union/1]).

-export([parallel_test_/0]).

%% Callbacks of proper_statem.
-export([command/1, precondition/2, postcondition/3, next_state/3]).

%% The commands.
-export([acquire/3, release/2, count/1, die/1, sweep/0, restart/0]).

%% PropEr takes long to generate a case, so each case runs 40 times. The interleaving differs between runs.
-define(CASES, 60).
-define(ROUNDS, 40).
-define(ROUNDS_WHILE_SHRINKING, 400).

%% The size of the sequential prefix.
-define(SIZE, 8).

-define(CLIENTS, [near1, near2, near3]).

%% A holder with a call waits this many iterations (10 to 100 us) for another holder with a call. Then both make their
%% calls within 100 ns. Without this wait, calls rarely overlap.
-define(ITERATIONS, 3000).

%% Indexes of the atomics array through which they meet.
-define(ARRIVED, 1).
-define(MET, 2).

parallel_test_() ->
    test_setup:quietly(
        test_setup:tests(without_manager, [
            {"P1, P4, P5, P8, P10: answers of concurrent calls are those of some sequential order", fun side_by_side/0}
        ])
    ).

side_by_side() ->
    ?MODULE = ets:new(?MODULE, [named_table, public]),
    Meeting = atomics:new(2, []),
    ets:insert(?MODULE, [{test, self()}, {meeting, Meeting}, {rounds, ?ROUNDS}]),
    ets:insert(?MODULE, [{Client, start_client(N)} || {N, Client} <- lists:zip([1, 2, 3], ?CLIENTS)]),
    ets:insert(?MODULE, [{Helper, test_worker:start()} || Helper <- [parent, undertaker]]),
    ok = test_worker:order(the(parent), fun start_manager/0),
    try
        Wanted =
            [{acquire, acquired}, {acquire, full}, {release, ok}, {release, not_held}] ++
                [{count, a_number}, {die, dead}, {sweep, ok}, {restart, ok}] ++
                [calls_met || erlang:system_info(schedulers_online) > 1],
        test_property:check(prop_some_order(), ?CASES, ?SIZE, ?MODULE, Wanted) orelse fail()
    after
        test_manager_crash:forget(),
        [test_worker:kill(the(Who)) || Who <- [parent, undertaker | ?CLIENTS]],
        ets:delete(?MODULE)
    end.

%% Prints the case that failed last, which is the shortest one.
fail() ->
    [{failed, {Before, Branches}, Outcome, Answers}] = ets:lookup(?MODULE, failed),
    Parts = lists:zip(["before", "on one side", "on the other"], [Before | Branches]),
    Case = [
        [Title, ":\n", [io_lib:format("    ~p~0tp~n", [Name, Of]) || {set, _, {call, _, Name, Of}} <- Commands]]
     || {Title, Commands} <- Parts
    ],
    io:format(user, "~n~ts~tp~n~tp~n", [Case, Outcome, Answers]),
    error(no_such_order).

prop_some_order() ->
    proper:forall(oneof([[db], [#{rare => <<"map">>}], [db, #{rare => <<"map">>}]]), fun(Keys) ->
        Commands = proper_statem:parallel_commands(?MODULE, start(Keys)),
        proper:forall(Commands, fun(Case) -> lists:all(fun(_) -> run(Case) end, lists:seq(1, the(rounds))) end)
    end).

start(Keys) ->
    [{ok, Start}] = test_model:step({start, keeping, 1}, test_model:new(Keys, ?CLIENTS)),
    Start.

run(Case) ->
    %% Older versions of PropEr cannot report an exception.
    try
        {_, Answers, Outcome} = proper_statem:run_parallel_commands(?MODULE, Case),
        lists:foreach(fun release_all/1, ?CLIENTS),
        case {Outcome, canal_lock:audit()} of
            {ok, []} ->
                [tally(Name, Answer) || Side <- Answers, {{set, _, {call, _, Name, _}}, Answer} <- Side],
                atomics:get(the(meeting), ?MET) > 0 andalso ets:insert(?MODULE, {{seen, calls_met}}),
                true;
            Differs ->
                failed(Case, Differs, [[Answer || {_, Answer} <- Side] || Side <- Answers])
        end
    catch
        Class:Reason:Stack -> failed(Case, {Class, Reason, Stack}, none)
    end.

failed(Case, Outcome, Answers) ->
    ets:insert(?MODULE, [{failed, Case, Outcome, Answers}, {rounds, ?ROUNDS_WHILE_SHRINKING}]),
    false.

%% Records the events that have occurred.
tally(Function, Answer) ->
    ets:insert(?MODULE, {{seen, {Function, kind(Answer)}}}).

kind({error, Kind}) -> Kind;
kind({acquired, _}) -> acquired;
kind(Answer) when is_integer(Answer) -> a_number;
kind(Answer) -> Answer.

%% The state machine. Its state is the model.

command(Model) ->
    Client = oneof(?CLIENTS),
    Keys = test_model:keys(Model),
    Key = oneof(Keys),
    weighted_union(
        [
            {12, call(acquire, [Client, Key, range(1, 3)])},
            {8, call(release, [Client, Key])},
            {3, call(count, [Key])},
            {1, call(sweep, [])},
            {1, call(restart, [])}
        ] ++ [{3, call(die, [Client])} || length(Keys) =:= 1]
    ).

call(Function, Arguments) ->
    {call, ?MODULE, Function, Arguments}.

precondition(_, _) ->
    true.

next_state(Model, _Answer, {call, _, Function, Arguments}) ->
    {_, After} = step(Function, Arguments, Model),
    After.

postcondition(Model, {call, _, Function, Arguments}, Answer) ->
    {Wanted, _} = step(Function, Arguments, Model),
    Answer =:= Wanted.

%% Without waits, a call has one outcome.
step(restart, [], Model) ->
    {ok, Model};
step(count, [Key], Model) ->
    {test_model:count(Key, Model), Model};
step(Function, Arguments, Model) ->
    [Outcome] = test_model:step(model_call(Function, Arguments), Model),
    Outcome.

model_call(acquire, [Client, Key, Capacity]) -> {acquire, Client, Key, {Capacity, 1}, 1, none, infinity};
model_call(release, [Client, Key]) -> {release, Client, Key, 1};
model_call(die, [Client]) -> {die, Client, killed};
model_call(sweep, []) -> sweep.

%% The commands.

acquire(Client, Key, Capacity) ->
    perform(Client, fun() -> canal_lock:acquire(Key, Capacity, 1) end).

release(Client, Key) ->
    perform(Client, fun() -> canal_lock:release(Key) end).

count(Key) ->
    (meeting())(),
    canal_lock:count(Key).

%% P4: answers when all permits are released. Only one holder dies at a time, so that the total shows its permits.
die(Client) ->
    test_worker:order(the(Client), fun() ->
        Holder = get(holder),
        test_worker:order(the(undertaker), fun() ->
            ByDeath = test_setup:info(released_by_death) + lists:sum([N || {_, N} <- canal_lock:held(Holder)]),
            test_worker:kill(Holder),
            test_await:value(ByDeath, fun() -> test_setup:info(released_by_death) end)
        end),
        start_holder(),
        dead
    end).

%% A sweep and a restart change no answer. The manager may be down when a sweep is requested.
sweep() ->
    try
        canal_lock_manager:sweep()
    catch
        exit:_ -> ok
    end.

restart() ->
    test_worker:order(the(parent), fun() ->
        test_worker:kill(whereis(canal_lock)),
        start_manager()
    end).

start_manager() ->
    process_flag(trap_exit, true),
    {ok, _} = canal_lock:start_link(1, #{keep_on_crash => true}),
    ok.

%% Workers and settings.

the(Item) ->
    ets:lookup_element(?MODULE, Item, 2).

%% A client is a process with one holder at a time. It sends the holder one order at a time.
start_client(N) ->
    Client = test_worker:start(),
    test_worker:order(Client, fun() ->
        put(scheduler, 1 + N rem erlang:system_info(schedulers_online)),
        start_holder()
    end),
    Client.

start_holder() ->
    put(holder, test_worker:start_on(get(scheduler))),
    ok.

perform(Client, Fun) ->
    Meet = meeting(),
    test_worker:order(the(Client), fun() ->
        test_worker:order(get(holder), fun() ->
            Meet(),
            Fun()
        end)
    end).

release_all(Client) ->
    test_worker:order(the(Client), fun() ->
        test_worker:order(get(holder), fun() ->
            [ok = canal_lock:release(Key) || {Key, N} <- canal_lock:held(), _ <- lists:seq(1, N)]
        end)
    end).

%% A command of one of the two parallel processes first meets a command of the other one.
meeting() ->
    case the(test) =:= self() of
        true ->
            fun() -> ok end;
        false ->
            Meeting = the(meeting),
            fun() -> meet(Meeting) end
    end.

%% The first process waits for the second one, up to ITERATIONS.
meet(Meeting) ->
    case atomics:add_get(Meeting, ?ARRIVED, 1) of
        Second when Second rem 2 =:= 0 -> ok;
        First -> wait(Meeting, First, ?ITERATIONS)
    end.

wait(_, _, 0) ->
    ok;
wait(Meeting, First, Left) ->
    case atomics:get(Meeting, ?ARRIVED) of
        First -> wait(Meeting, First, Left - 1);
        _ -> atomics:add(Meeting, ?MET, 1)
    end.
