%% P1, P2, P4, P5, P6, P8, P10: after each step of a random sequence, `canal_lock' answers and shows what `test_model'
%% predicts. Processes of this node and of another one acquire, release and die in every way; the manager shuts down
%% cleanly, crashes and restarts; the connection is lost.
%%
%% Calls the functions of PropEr, not its macros: some installations have the application without the header.
-module(prop_canal_lock_machine).

-import(proper_types, [oneof/1, range/2, weighted_union/1]).

-export([machine_test_/0]).

%% Callbacks of proper_statem.
-export([command/1, precondition/2, postcondition/3, next_state/3]).

%% The commands.
-export([acquire/4, release/2, release/4, with_permit/5, count/1, held/1, die/2]).
-export([start/2, stop/0, sweep/0, end_manager/1, cut/1, connect/0]).

-define(LOCAL_CASES, 200).
-define(REMOTE_CASES, 40).
-define(TRIES, 5).

%% At most this many commands, half as many on average. PropEr generates them in quadratic time.
-define(SIZE, 40).

%% More than the two keys that fit into a slot.
-define(KEYS, 5).

%% For a manager that sweeps only on request.
-define(NEVER_MS, 3_600_000).

%% How long to wait for an asynchronous effect: normally, and while PropEr shrinks a failed case.
-define(WAIT_MS, 20_000).
-define(WAIT_WHILE_SHRINKING_MS, 500).

machine_test_() ->
    test_setup:quietly([
        test_setup:tests(without_manager, [
            {"P1, P2, P4, P5, P6, P8, P10: on one node, canal_lock does what the model predicts", fun() ->
                check(?LOCAL_CASES, [near1, near2, near3], here, none, local_events())
            end}
        ]),
        test_nodes:tests(2, [], [
            {"P1, P4, P5, P8, P10: with remote holders, canal_lock does what the model predicts", fun([There, Far]) ->
                check(?REMOTE_CASES, [near1, far1, far2], There, Far, remote_events())
            end}
        ])
    ]).

%% Events that must occur, or the test has proved nothing. See tally/5.
local_events() ->
    each(near, [
        {acquire, [acquired, full, badarg]},
        {release, [ok, not_held, badarg]},
        {with_permit, [full, badarg, returns, nested, throws, raises, exits, dies, stops]},
        {die, [returns, shuts_down, raises, throws, kills_itself, killed, signalled, linked, acquires]}
    ]) ++
        each(manager, [{start, [begins_empty, adopts]}, {stop, [ok]}, {end_manager, [kept]}, {sweep, [reclaimed]}]).

remote_events() ->
    each(far, [
        {acquire, [acquired, full, nodedown, noproc]},
        {release, [ok, not_held]},
        {die, [of_something]}
    ]) ++
        each(connection, [{lost, [managed, without_a_manager]}]).

each(Where, Events) ->
    [{Where, Call, Kind} || {Call, Kinds} <- Events, Kind <- Kinds].

check(Cases, Slots, Place, Far, Wanted) ->
    ?MODULE = ets:new(?MODULE, [named_table, public]),
    Terms = test_key_terms:all(),
    ets:insert(?MODULE, [{{term, Name}, Term} || {Name, Term} <- Terms]),
    ets:insert(?MODULE, [{place, Place}, {far, Far}, {wait_ms, ?WAIT_MS}]),
    try
        Options = [{numtests, test_setup:times(Cases)}, {start_size, ?SIZE}, {max_size, ?SIZE}, quiet],
        check_until_seen(Wanted, prop_as_the_model(distinct(Terms), Slots), Options, ?TRIES)
    after
        ets:delete(?MODULE)
    end.

%% A rare event may need more cases.
check_until_seen(Wanted, Property, Options, Tries) ->
    proper:quickcheck(Property, Options) orelse fail(),
    case [Event || Event <- Wanted, not ets:member(?MODULE, {seen, Event})] of
        [] -> ok;
        _ when Tries > 1 -> check_until_seen(Wanted, Property, Options, Tries - 1);
        Missing -> error({did_not_occur, Missing})
    end.

%% Prints the case that failed last, which is the shortest one.
fail() ->
    [{failed, Commands, Outcome, Difference}] = ets:lookup(?MODULE, failed),
    Keys = ets:lookup_element(?MODULE, terms, 2),
    io:format(user, "~n~ts~tp~n~tp~nkeys: ~0tP~n", [
        test_model:format(Commands), Outcome, Difference, Keys, 100
    ]),
    error(not_as_the_model).

%% A term that occurs twice gets one name.
distinct(Terms) ->
    {Names, _} = lists:foldl(
        fun({Name, Term}, {Names, Before}) ->
            case [Same || Same <- Before, Same =:= Term] of
                [] -> {[Name | Names], [Term | Before]};
                _ -> {Names, Before}
            end
        end,
        {[], []},
        Terms
    ),
    lists:reverse(Names).

prop_as_the_model(Names, Slots) ->
    Keys = proper_types:vector(?KEYS, oneof(Names)),
    proper:forall(Keys, fun(Chosen) ->
        Start = test_model:new(lists:usort(Chosen), Slots),
        proper:forall(proper_statem:commands(?MODULE, Start), fun(Commands) -> run(Commands, Slots) end)
    end).

run(Commands = [{init, Start} | _], Slots) ->
    ets:insert(?MODULE, {difference, none}),
    ets:insert(?MODULE, {terms, [{Name, term(Name)} || Name <- test_model:keys(Start)]}),
    [start_worker(Slot) || Slot <- [parent | Slots]],
    try
        {_, _, Outcome} = proper_statem:run_commands(?MODULE, Commands),
        Outcome =:= ok orelse failed(Commands, Outcome)
    catch
        %% Older versions of PropEr cannot report an exception.
        Class:Reason:Stack -> failed(Commands, {Class, Reason, Stack})
    after
        on(place(), fun test_manager_crash:forget/0),
        [kill(worker(Slot)) || Slot <- [parent | Slots]],
        ets:match_delete(?MODULE, {{who, '_'}, '_'}),
        ets:lookup_element(?MODULE, far, 2) =:= none orelse connect()
    end.

failed(Commands, Outcome) ->
    Difference = ets:lookup_element(?MODULE, difference, 2),
    ets:insert(?MODULE, [
        {failed, Commands, Outcome, Difference},
        {wait_ms, ?WAIT_WHILE_SHRINKING_MS}
    ]),
    false.

%% The state machine. Its state is the model.

command(Model) ->
    Slots = test_model:slots(Model),
    Slot = oneof(Slots),
    Near = oneof(Slots -- far_slots(Slots)),
    Key = oneof(test_model:keys(Model)),
    weighted_union(
        [
            {40, call(acquire, [Slot, Key, max_per(), buckets()])},
            {3, call(release, [Slot, Key])},
            {2, call(release, [Near, Key, max_per(), buckets()])},
            {10, call(with_permit, [Near, Key, max_per(), buckets(), ending()])},
            {5, call(die, [Slot, death(Key)])},
            {1, call(count, [Key])},
            {1, call(held, [Near])},
            {2, call(sweep, [])},
            {1, call(stop, [])},
            {3, call(end_manager, [oneof([killed, crashes, killed, crashes, shut_down])])},
            {start_weight(Model), call(start, [oneof([plain, keeping, keeping, keeping]), range(1, 9)])}
        ] ++
            [{2, call(release, [Holder, Held])} || {Holder, Held} <- test_model:permits(Model)] ++
            [{1, call(die, [Holder, death(Key)])} || {Holder, _} <- test_model:permits(Model)] ++
            connection_commands(Model)
    ).

%% Most commands run with an open table, but some must run while no manager does.
start_weight(Model) ->
    case {test_model:manager(Model), test_model:is_open(Model)} of
        {none, true} -> 15;
        {none, false} -> 60;
        _ -> 1
    end.

%% Cuts are more likely while a permit is held across the connection. Some come after a crash, with no manager running.
connection_commands(Model) ->
    case far_slots(test_model:slots(Model)) of
        [] ->
            [];
        _ ->
            Across = length(far_slots([Slot || {Slot, _} <- test_model:permits(Model)])),
            Cut = call(cut, [oneof([near, far])]),
            case test_model:manager(Model) of
                none -> [{1 + 30 * Across, Cut}];
                _ -> [{1 + 2 * Across, Cut}, {4 * Across, call(end_manager, [oneof([killed, crashes])])}]
            end ++ [{30, call(connect, [])}]
    end.

far_slots(Slots) ->
    lists:filter(fun test_model:is_far/1, Slots).

call(Function, Arguments) ->
    {call, ?MODULE, Function, Arguments}.

%% Of any size; most are so small that calls are sometimes refused.
max_per() ->
    weighted_union([{20, range(1, 3)}, {2, 0}, {1, oneof([1 bsl 32, 1 bsl 64 - 1, 1 bsl 64, 1 bsl 700])}]).

buckets() ->
    weighted_union([{20, range(1, 2)}, {2, 0}, {1, oneof([1 bsl 32, 1 bsl 63, 1 bsl 700])}]).

ending() ->
    weighted_union([{12, oneof([returns, nested, throws, raises, exits, dies])}, {1, stops}]).

death(Key) ->
    Ways = [returns, shuts_down, raises, throws, kills_itself, killed, signalled, linked],
    weighted_union([{length(Ways), oneof(Ways)}, {2, {acquires, Key, max_per(), buckets()}}]).

precondition(Model, {call, _, cut, _}) -> test_model:is_connected(Model);
precondition(Model, {call, _, connect, _}) -> not test_model:is_connected(Model);
precondition(_, _) -> true.

next_state(Model, _Answer, {call, _, Function, Arguments}) ->
    {_, After} = test_model:step(Function, Arguments, Model),
    After.

postcondition(Model, {call, _, Function, Arguments}, Answer) ->
    {Wanted, After} = test_model:step(Function, Arguments, Model),
    Keys = test_model:keys(Model),
    Shows = test_model:look(After),
    is_asynchronous(Function, Arguments) andalso await(Shows, Keys),
    case {Answer, look(Keys)} of
        {Wanted, Shows} ->
            tally(Function, Arguments, Answer, Model, After),
            true;
        {_, Shown} ->
            ets:insert(?MODULE, {difference, [{answer, Answer, instead_of, Wanted} | differing(Shown, Shows)]}),
            false
    end.

%% On a timeout, the caller reads the state again and reports the difference.
await(Shows, Keys) ->
    try
        test_await:value(Shows, fun() -> look(Keys) end, ets:lookup_element(?MODULE, wait_ms, 2))
    catch
        error:{still, _, instead_of, Shows} -> too_late
    end.

differing(Shown = #{}, Shows = #{}) ->
    [{Of, Is, instead_of, maps:get(Of, Shows)} || {Of, Is} <- maps:to_list(Shown), Is =/= maps:get(Of, Shows)];
differing(Shown, Shows) ->
    [{Shown, instead_of, Shows}].

%% P4: the VM or the manager handles these after the command. All other commands take effect before they answer.
is_asynchronous(with_permit, Arguments) -> lists:last(Arguments) =:= dies;
is_asynchronous(Function, _) -> lists:member(Function, [die, end_manager, cut, start]).

%% The visible state, in the terms of the model.
look(Names) ->
    Terms = [term(Name) || Name <- Names],
    {Pids, Holders} = lists:unzip([{Pid, Holder} || [Pid, Holder] <- ets:match(?MODULE, {{who, '$1'}, '$2'})]),
    case on(place(), fun() -> look_here(Terms, Pids) end) of
        closed ->
            closed;
        Look = #{keys := Keys, counts := Counts, buckets := Buckets, holders := HoldersOf, held := Held} ->
            HolderOf = fun(Pid) -> proplists:get_value(Pid, lists:zip(Pids, Holders), {unknown, Pid}) end,
            Look#{
                keys := named(Keys),
                counts := lists:zip(Names, Counts),
                buckets := lists:zip(Names, Buckets),
                holders := lists:zip(Names, [lists:sort([{HolderOf(Pid), N} || {Pid, N} <- Of]) || Of <- HoldersOf]),
                held := lists:sort([{Holder, named(Of)} || {Holder, [_ | _] = Of} <- lists:zip(Holders, Held)])
            }
    end.

look_here(Terms, Pids) ->
    try
        #{
            info => maps:without([memory, barriers_refused], canal_lock:info()),
            keys => canal_lock:keys(),
            counts => [canal_lock:count(Key) || Key <- Terms],
            buckets => [canal_lock:buckets(Key, 2) || Key <- Terms],
            holders => [canal_lock:holders(Key) || Key <- Terms],
            held => [canal_lock:held(Pid) || Pid <- Pids],
            audit => canal_lock:audit()
        }
    catch
        error:badarg -> closed
    end.

%% Records the events that have occurred.
tally(Function, Arguments, Answer, Before, After) ->
    Kept = test_model:is_open(Before),
    GivesBack = test_model:more(released_by_death, Before, After) > 0,
    Events =
        case {Function, Arguments} of
            {with_permit, [_, _, _, _, Ending]} when Answer =/= full, Answer =/= {error, badarg} ->
                [{near, with_permit, Ending}];
            {die, [Slot, How]} ->
                [{distance(Slot), die, Of} || GivesBack, Of <- [kind(How), of_something]];
            {start, [keeping, _]} when Answer =:= ok, Kept ->
                [{manager, start, adopts}];
            {start, _} when Answer =:= ok ->
                [{manager, start, begins_empty}];
            {end_manager, _} when Answer =:= ok ->
                [{manager, end_manager, kept} || test_model:is_open(After)];
            {sweep, []} when Answer =:= ok ->
                [{manager, sweep, reclaimed} || test_model:more(reclaimed, Before, After) > 0];
            {cut, _} ->
                Managed = test_model:manager(Before) =/= none,
                [{connection, lost, if Managed -> managed; true -> without_a_manager end} || GivesBack];
            {_, [Slot | _]} ->
                [{distance(Slot), Function, kind(Answer)}];
            {_, []} ->
                [{manager, Function, kind(Answer)}]
        end,
    [ets:insert(?MODULE, {{seen, Event}}) || Event <- Events].

distance(Slot) ->
    case test_model:is_far(Slot) of
        true -> far;
        false -> near
    end.

kind({error, Kind}) -> Kind;
kind({exit, Kind}) -> Kind;
kind(Answer) when is_tuple(Answer) -> element(1, Answer);
kind(Answer) when is_list(Answer) -> list;
kind(Answer) -> Answer.

%% The commands, with answers in the terms of the model. No command raises.

acquire(Slot, Name, MaxPer, Buckets) ->
    perform(Slot, acquiring(Slot, Name, MaxPer, Buckets)).

acquiring(Slot, Name, MaxPer, Buckets) ->
    Key = term(Name),
    case test_model:is_far(Slot) of
        true ->
            There = test_nodes:name(place()),
            fun() -> canal_lock:acquire_on(There, Key, MaxPer, Buckets) end;
        false ->
            fun() -> canal_lock:acquire(Key, MaxPer, Buckets) end
    end.

release(Slot, Name) ->
    Key = term(Name),
    case test_model:is_far(Slot) of
        true ->
            There = test_nodes:name(place()),
            perform(Slot, fun() -> canal_lock:release_on(There, Key) end);
        false ->
            perform(Slot, fun() -> canal_lock:release(Key) end)
    end.

release(Slot, Name, MaxPer, Buckets) ->
    Key = term(Name),
    perform(Slot, fun() -> canal_lock:release(Key, MaxPer, Buckets) end).

with_permit(Slot, Name, MaxPer, Buckets, Ending) ->
    Key = term(Name),
    Fun =
        case Ending of
            returns -> fun() -> canal_lock:count(Key) end;
            nested -> fun() -> canal_lock:with_permit(Key, MaxPer, Buckets, fun() -> canal_lock:count(Key) end) end;
            throws -> fun() -> throw(meant) end;
            raises -> fun() -> error(meant) end;
            exits -> fun() -> exit(meant) end;
            dies -> fun() -> exit(self(), kill) end;
            stops -> fun canal_lock:stop/0
        end,
    case perform(Slot, fun() -> canal_lock:with_permit(Key, MaxPer, Buckets, Fun) end) of
        dead ->
            start_worker(Slot),
            dead;
        Answer ->
            Answer
    end.

count(Name) ->
    Key = term(Name),
    perform(near1, fun() -> canal_lock:count(Key) end).

held(Slot) ->
    case perform(Slot, fun canal_lock:held/0) of
        Permits when is_list(Permits) -> named(Permits);
        Raised -> Raised
    end.

die(Slot, How) ->
    {Where, Pid} = worker(Slot),
    Last =
        case How of
            returns -> fun() -> ok end;
            shuts_down -> fun() -> exit(shutdown) end;
            raises -> fun() -> error(meant) end;
            throws -> fun() -> throw(meant) end;
            kills_itself -> fun() -> exit(self(), kill) end;
            linked -> fun() -> [spawn_link(fun() -> exit(meant) end) | test_setup:hold_forever()] end;
            {acquires, Name, MaxPer, Buckets} -> acquiring(Slot, Name, MaxPer, Buckets);
            _ -> none
        end,
    on(Where, fun() ->
        case How of
            killed -> exit(Pid, kill);
            signalled -> exit(Pid, meant);
            _ -> Pid ! {last_order, Last}
        end,
        test_await:down([Pid])
    end),
    start_worker(Slot),
    dead.

start(Kind, MaxPer) ->
    Started = perform(parent, fun() ->
        process_flag(trap_exit, true),
        case canal_lock:start_link(MaxPer, #{keep_on_crash => Kind =:= keeping, sweep_interval_ms => ?NEVER_MS}) of
            {ok, _} -> ok;
            {error, {already_started, _}} -> already_started
        end
    end),
    case {Started, Kind} of
        {ok, keeping} ->
            %% A manager that adopts a table first finishes a pass of the sweep. Here it sweeps completely, including
            %% the keys of holders that have died while no manager ran.
            test_await:value([], fun unreachable_holders/0),
            sweep();
        _ ->
            Started
    end.

%% Holders on record that are dead or on a disconnected node.
unreachable_holders() ->
    Seen = on(place(), fun() -> {[Pid || {Pid, _, _} <- test_setup:permits()], [node() | nodes()]} end),
    {Pids, Reached} = Seen,
    [Pid || Pid <- lists:usort(Pids), not (lists:member(node(Pid), Reached) andalso lives(Pid))].

lives(Pid) ->
    Where = case node(Pid) =:= on(place(), fun() -> node() end) of
        true -> place();
        false -> far()
    end,
    on(Where, fun() -> is_process_alive(Pid) end).

stop() ->
    perform(near1, fun canal_lock:stop/0).

sweep() ->
    perform(near1, fun canal_lock_manager:sweep/0).

end_manager(How) ->
    perform(near1, fun() ->
        case whereis(canal_lock) of
            undefined ->
                exit(noproc);
            Manager ->
                Signal = maps:get(How, #{killed => kill, crashes => meant, shut_down => shutdown}),
                Monitor = monitor(process, Manager),
                exit(Manager, Signal),
                _ = test_await:reason({Manager, Monitor}),
                ok
        end
    end).

%% The argument says which node disconnects.
cut(near) -> test_nodes:cut(place(), far());
cut(far) -> test_nodes:cut(far(), place()).

connect() ->
    test_nodes:connect(place(), far()).

%% Names, nodes and workers.

term(Name) ->
    ets:lookup_element(?MODULE, {term, Name}, 2).

%% Only the names of the case: another name may have the same term.
named(Permits) ->
    Terms = ets:lookup_element(?MODULE, terms, 2),
    Name = fun(Key) -> hd([Name || {Name, Term} <- Terms, Term =:= Key] ++ [{unknown, Key}]) end,
    lists:sort([{Name(Key), N} || {Key, N} <- Permits]).

%% The node with the table.
place() ->
    ets:lookup_element(?MODULE, place, 2).

far() ->
    ets:lookup_element(?MODULE, far, 2).

on(here, Fun) -> Fun();
on(Node, Fun) -> test_nodes:call(Node, Fun).

worker(Slot) ->
    ets:lookup_element(?MODULE, {worker, Slot}, 2).

%% The next process of a slot.
start_worker(Slot) ->
    Where =
        case test_model:is_far(Slot) of
            true -> far();
            false -> place()
        end,
    Pid =
        case Where of
            here -> test_worker:start();
            _ -> element(2, test_nodes:worker(Where))
        end,
    Life = length(ets:match(?MODULE, {{who, '_'}, {Slot, '_'}})),
    ets:insert(?MODULE, [{{worker, Slot}, {Where, Pid}}, {{who, Pid}, {Slot, Life}}]).

kill({Where, Pid}) ->
    on(Where, fun() -> test_worker:kill(Pid) end).

%% Runs a function in the process of a slot. Returns `dead' if the process dies.
perform(Slot, Fun) ->
    {Where, Pid} = worker(Slot),
    on(Where, fun() ->
        try
            test_worker:order(Pid, fun() -> attempt(Fun) end)
        catch
            error:{died_before_it_answered, _} -> dead
        end
    end).

attempt(Fun) ->
    try
        Fun()
    catch
        Class:Reason -> {Class, cause(Reason)}
    end.

%% The reason without the call that has failed.
cause({{nodedown, _}, {canal_lock, _, _}}) -> nodedown;
cause({noproc, {_, _, _}}) -> noproc;
cause(Reason) -> Reason.
