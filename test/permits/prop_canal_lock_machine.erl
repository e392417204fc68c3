%% P1, P2, P4, P5, P6, P8, P10: after each step of a random sequence, `canal_lock' answers and shows what `test_model'
%% predicts. Processes of this node and of another one acquire, release and die in all ways of test_model:death(). The
%% manager shuts down cleanly, crashes and restarts. The nodes disconnect.
%%
%% Calls the functions of PropEr, not its macros: some installations have the application without the header.
-module(prop_canal_lock_machine).

-import(proper_types, [oneof/1, range/2, weighted_union/1]).

-export([machine_test_/0]).

%% Callbacks of proper_statem.
-export([command/1, precondition/2, postcondition/3, next_state/3]).

%% The commands.
-export([acquire/4, release/2, release/4, with_permit/5, count/1, held/1, die/2]).
-export([start/2, stop/0, sweep/0, end_manager/1, disconnect/1, connect/0]).

-define(LOCAL_CASES, 200).
-define(REMOTE_CASES, 40).

%% At most this many commands, half as many on average. PropEr generates them in quadratic time.
-define(SIZE, 40).

%% More than the two keys that fit into a slot.
-define(KEYS, 5).

%% For a manager that sweeps only on request.
-define(NEVER_MS, 3_600_000).

%% How long to wait for an asynchronous effect: normally, and while PropEr shrinks a failed case.
-define(WAIT_MS, 120_000).
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

%% Events that must occur: without them the test proves nothing. See tally/5.
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
        {die, [with_permits]}
    ]) ++
        each(connection, [{disconnected, [managed, without_manager]}]).

each(Where, Events) ->
    [{Where, Call, Kind} || {Call, Kinds} <- Events, Kind <- Kinds].

check(Cases, Clients, TableNode, Far, Wanted) ->
    ?MODULE = ets:new(?MODULE, [named_table, public]),
    Terms = test_key_terms:all(),
    ets:insert(?MODULE, [{{term, Name}, Term} || {Name, Term} <- Terms]),
    ets:insert(?MODULE, [{table_node, TableNode}, {far, Far}, {wait_ms, ?WAIT_MS}]),
    try
        Property = prop_matches_model(distinct(Terms), Clients),
        test_property:check(Property, Cases, ?SIZE, ?MODULE, Wanted) orelse fail()
    after
        ets:delete(?MODULE)
    end.

%% Prints the case that failed last, which is the shortest one.
fail() ->
    [{failed, Commands, Outcome, Difference}] = ets:lookup(?MODULE, failed),
    Keys = ets:lookup_element(?MODULE, terms, 2),
    io:format(user, "~n~ts~tp~n~tp~nkeys: ~0tP~n", [test_model:format(Commands), Outcome, Difference, Keys, 100]),
    error(differs_from_model).

%% A term that occurs twice gets one name.
distinct(Terms) ->
    [Name || {Name, Term} <- Terms, Name =:= hd([First || {First, Same} <- Terms, Same =:= Term])].

prop_matches_model(Names, Clients) ->
    Keys = proper_types:vector(?KEYS, oneof(Names)),
    proper:forall(Keys, fun(Chosen) ->
        Start = test_model:new(lists:usort(Chosen), Clients),
        proper:forall(proper_statem:commands(?MODULE, Start), fun(Commands) -> run(Commands, Clients) end)
    end).

run(Commands = [{init, Start} | _], Clients) ->
    ets:insert(?MODULE, {difference, none}),
    ets:insert(?MODULE, {terms, [{Name, term(Name)} || Name <- test_model:keys(Start)]}),
    [start_worker(Client) || Client <- [parent | Clients]],
    try
        {_, _, Outcome} = proper_statem:run_commands(?MODULE, Commands),
        Outcome =:= ok orelse failed(Commands, Outcome)
    catch
        %% Older versions of PropEr cannot report an exception.
        Class:Reason:Stack -> failed(Commands, {Class, Reason, Stack})
    after
        on(table_node(), fun test_manager_crash:forget/0),
        [kill(worker(Client)) || Client <- [parent | Clients]],
        ets:match_delete(?MODULE, {{holder, '_'}, '_'}),
        ets:lookup_element(?MODULE, far, 2) =:= none orelse connect()
    end.

failed(Commands, Outcome) ->
    Difference = ets:lookup_element(?MODULE, difference, 2),
    ets:insert(?MODULE, [{failed, Commands, Outcome, Difference}, {wait_ms, ?WAIT_WHILE_SHRINKING_MS}]),
    false.

%% The state machine. Its state is the model.

command(Model) ->
    Clients = test_model:clients(Model),
    Client = oneof(Clients),
    Near = oneof(Clients -- far_clients(Clients)),
    Key = oneof(test_model:keys(Model)),
    weighted_union(
        [
            {40, call(acquire, [Client, Key, max_per(), buckets()])},
            {3, call(release, [Client, Key])},
            {2, call(release, [Near, Key, max_per(), buckets()])},
            {10, call(with_permit, [Near, Key, max_per(), buckets(), ending()])},
            {5, call(die, [Client, death(Key)])},
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

%% Most commands run with an open table, but some must run while no manager runs.
start_weight(Model) ->
    case {test_model:manager(Model), test_model:is_open(Model)} of
        {none, true} -> 15;
        {none, false} -> 60;
        _ -> 1
    end.

%% Nodes disconnect more often while a permit is held across the connection. Sometimes they disconnect after a crash,
%% while no manager runs.
connection_commands(Model) ->
    case far_clients(test_model:clients(Model)) of
        [] ->
            [];
        _ ->
            Across = length(far_clients([Client || {Client, _} <- test_model:permits(Model)])),
            Disconnect = call(disconnect, [oneof([near, far])]),
            case test_model:manager(Model) of
                none -> [{1 + 30 * Across, Disconnect}];
                _ -> [{1 + 2 * Across, Disconnect}, {4 * Across, call(end_manager, [oneof([killed, crashes])])}]
            end ++ [{30, call(connect, [])}]
    end.

far_clients(Clients) ->
    lists:filter(fun test_model:is_far/1, Clients).

call(Function, Arguments) ->
    {call, ?MODULE, Function, Arguments}.

%% Most are so small that calls are sometimes refused.
max_per() ->
    weighted_union([{20, range(1, 3)}, {2, 0}, {1, oneof([1 bsl 32, 1 bsl 64 - 1, 1 bsl 64, 1 bsl 700])}]).

buckets() ->
    weighted_union([{20, range(1, 2)}, {2, 0}, {1, oneof([1 bsl 32, 1 bsl 63, 1 bsl 700])}]).

ending() ->
    weighted_union([{12, oneof([returns, nested, throws, raises, exits, dies])}, {1, stops}]).

death(Key) ->
    Ways = [returns, shuts_down, raises, throws, kills_itself, killed, signalled, linked],
    weighted_union([{length(Ways), oneof(Ways)}, {2, {acquires, Key, max_per(), buckets()}}]).

precondition(Model, {call, _, disconnect, _}) -> test_model:is_connected(Model);
precondition(Model, {call, _, connect, _}) -> not test_model:is_connected(Model);
precondition(_, _) -> true.

next_state(Model, _Answer, {call, _, Function, Arguments}) ->
    {_, After} = test_model:step(Function, Arguments, Model),
    After.

postcondition(Model, {call, _, Function, Arguments}, Answer) ->
    {Wanted, After} = test_model:step(Function, Arguments, Model),
    Keys = test_model:keys(Model),
    Shows = test_model:snapshot(After),
    is_asynchronous(Function, Arguments) andalso await(Shows, Keys),
    case {Answer, snapshot(Keys)} of
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
        test_await:value(Shows, fun() -> snapshot(Keys) end, ets:lookup_element(?MODULE, wait_ms, 2))
    catch
        error:{still, _, instead_of, Shows} -> too_late
    end.

differing(Shown = #{}, Shows = #{}) ->
    [{Of, Is, instead_of, maps:get(Of, Shows)} || {Of, Is} <- maps:to_list(Shown), Is =/= maps:get(Of, Shows)];
differing(Shown, Shows) ->
    [{Shown, instead_of, Shows}].

%% Commands whose effect may follow their answer: the VM or the manager handles deaths and starts later (P4). All others
%% take effect before they answer.
is_asynchronous(with_permit, Arguments) -> lists:last(Arguments) =:= dies;
is_asynchronous(Function, _) -> lists:member(Function, [die, end_manager, disconnect, start]).

%% The visible state, in the terms of the model.
snapshot(Names) ->
    Terms = [term(Name) || Name <- Names],
    {Pids, Holders} = lists:unzip([{Pid, Holder} || [Pid, Holder] <- ets:match(?MODULE, {{holder, '$1'}, '$2'})]),
    case on(table_node(), fun() -> local_snapshot(Terms, Pids) end) of
        closed ->
            closed;
        Snapshot = #{keys := Keys, counts := Counts, buckets := Buckets, holders := HoldersOf, held := Held} ->
            HolderOf = fun(Pid) -> proplists:get_value(Pid, lists:zip(Pids, Holders), {unknown, Pid}) end,
            Snapshot#{
                keys := named(Keys),
                counts := lists:zip(Names, Counts),
                buckets := lists:zip(Names, Buckets),
                holders := lists:zip(Names, [lists:sort([{HolderOf(Pid), N} || {Pid, N} <- Of]) || Of <- HoldersOf]),
                held := lists:sort([{Holder, named(Of)} || {Holder, [_ | _] = Of} <- lists:zip(Holders, Held)])
            }
    end.

local_snapshot(Terms, Pids) ->
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
    Released = test_model:more(released_by_death, Before, After) > 0,
    Events =
        case {Function, Arguments} of
            {with_permit, [_, _, _, _, Ending]} when Answer =/= full, Answer =/= {error, badarg} ->
                [{near, with_permit, Ending}];
            {die, [Client, How]} ->
                [{distance(Client), die, Of} || Released, Of <- [kind(How), with_permits]];
            {start, [keeping, _]} when Answer =:= ok, Kept ->
                [{manager, start, adopts}];
            {start, _} when Answer =:= ok ->
                [{manager, start, begins_empty}];
            {end_manager, _} when Answer =:= ok ->
                [{manager, end_manager, kept} || test_model:is_open(After)];
            {sweep, []} when Answer =:= ok ->
                [{manager, sweep, reclaimed} || test_model:more(reclaimed, Before, After) > 0];
            {disconnect, _} ->
                Managed = test_model:manager(Before) =/= none,
                [{connection, disconnected, if Managed -> managed; true -> without_manager end} || Released];
            {_, [Client | _]} ->
                [{distance(Client), Function, kind(Answer)}];
            {_, []} ->
                [{manager, Function, kind(Answer)}]
        end,
    [ets:insert(?MODULE, {{seen, Event}}) || Event <- Events].

distance(Client) ->
    case test_model:is_far(Client) of
        true -> far;
        false -> near
    end.

kind({error, Kind}) -> Kind;
kind({exit, Kind}) -> Kind;
kind(Answer) when is_tuple(Answer) -> element(1, Answer);
kind(Answer) when is_list(Answer) -> list;
kind(Answer) -> Answer.

%% The commands, with answers in the terms of the model. No command raises.

acquire(Client, Name, MaxPer, Buckets) ->
    perform(Client, acquiring(Client, Name, MaxPer, Buckets)).

acquiring(Client, Name, MaxPer, Buckets) ->
    calling(Client, acquire, acquire_on, [term(Name), MaxPer, Buckets]).

release(Client, Name) ->
    perform(Client, calling(Client, release, release_on, [term(Name)])).

%% The call of a client on the node of the table or on another one.
calling(Client, Near, Far, Arguments) ->
    case test_model:is_far(Client) of
        true ->
            There = test_nodes:name(table_node()),
            fun() -> apply(canal_lock, Far, [There | Arguments]) end;
        false ->
            fun() -> apply(canal_lock, Near, Arguments) end
    end.

release(Client, Name, MaxPer, Buckets) ->
    Key = term(Name),
    perform(Client, fun() -> canal_lock:release(Key, MaxPer, Buckets) end).

with_permit(Client, Name, MaxPer, Buckets, Ending) ->
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
    case perform(Client, fun() -> canal_lock:with_permit(Key, MaxPer, Buckets, Fun) end) of
        dead ->
            start_worker(Client),
            dead;
        Answer ->
            Answer
    end.

count(Name) ->
    Key = term(Name),
    perform(near1, fun() -> canal_lock:count(Key) end).

held(Client) ->
    case perform(Client, fun canal_lock:held/0) of
        Permits when is_list(Permits) -> named(Permits);
        Raised -> Raised
    end.

die(Client, How) ->
    {Where, Pid} = worker(Client),
    Last =
        case How of
            returns -> fun() -> ok end;
            shuts_down -> fun() -> exit(shutdown) end;
            raises -> fun() -> error(meant) end;
            throws -> fun() -> throw(meant) end;
            kills_itself -> fun() -> exit(self(), kill) end;
            linked -> fun() -> [spawn_link(fun() -> exit(meant) end) | test_setup:hold_forever()] end;
            {acquires, Name, MaxPer, Buckets} -> acquiring(Client, Name, MaxPer, Buckets);
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
    start_worker(Client),
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
            %% The first pass of a manager that adopts a table does not count as a sweep. The test waits until the
            %% permits of dead holders are released, then requests a full sweep, so that the model can predict the keys.
            test_await:value([], fun unreachable_holders/0),
            sweep();
        _ ->
            Started
    end.

%% Holders in the records that are dead or on a disconnected node.
unreachable_holders() ->
    Ask = fun() -> {[Pid || {Pid, _, _} <- test_setup:permits()], [node() | nodes()]} end,
    {Pids, Reached} = on(table_node(), Ask),
    [Pid || Pid <- lists:usort(Pids), not (lists:member(node(Pid), Reached) andalso lives(Pid))].

lives(Pid) ->
    Where = case node(Pid) =:= on(table_node(), fun() -> node() end) of
        true -> table_node();
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

%% The argument is the node that closes the connection.
disconnect(near) -> test_nodes:cut(table_node(), far());
disconnect(far) -> test_nodes:cut(far(), table_node()).

connect() ->
    test_nodes:connect(table_node(), far()).

%% Names, nodes and workers.

term(Name) ->
    ets:lookup_element(?MODULE, {term, Name}, 2).

%% Only the names of the case: another name may have the same term.
named(Permits) ->
    Terms = ets:lookup_element(?MODULE, terms, 2),
    Name = fun(Key) -> hd([Name || {Name, Term} <- Terms, Term =:= Key] ++ [{unknown, Key}]) end,
    lists:sort([{Name(Key), N} || {Key, N} <- Permits]).

%% The node with the table.
table_node() ->
    ets:lookup_element(?MODULE, table_node, 2).

far() ->
    ets:lookup_element(?MODULE, far, 2).

on(here, Fun) -> Fun();
on(Node, Fun) -> test_nodes:call(Node, Fun).

worker(Client) ->
    ets:lookup_element(?MODULE, {worker, Client}, 2).

%% The next process of a client.
start_worker(Client) ->
    Where =
        case test_model:is_far(Client) of
            true -> far();
            false -> table_node()
        end,
    Pid =
        case Where of
            here -> test_worker:start();
            _ -> element(2, test_nodes:worker(Where))
        end,
    Life = length(ets:match(?MODULE, {{holder, '_'}, {Client, '_'}})),
    ets:insert(?MODULE, [{{worker, Client}, {Where, Pid}}, {{holder, Pid}, {Client, Life}}]).

kill({Where, Pid}) ->
    on(Where, fun() -> test_worker:kill(Pid) end).

%% Runs a function in the process of a client. Returns `dead' if the process dies.
perform(Client, Fun) ->
    {Where, Pid} = worker(Client),
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

%% The reason without the failed call.
cause({{nodedown, _}, {canal_lock, _, _}}) -> nodedown;
cause({noproc, {_, _, _}}) -> noproc;
cause(Reason) -> Reason.
