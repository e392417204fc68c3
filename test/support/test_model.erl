%% A sequential model of `canal_lock' as a map, for properties: the answer of each call, and the state after it.
%%
%% A client is one process at a time. When the process dies, another one replaces it. A holder is a client with a
%% number, so a process and its successor are different holders.
-module(test_model).

-export([new/2, keys/1, clients/1, manager/1, is_open/1, is_connected/1, is_far/1, permits/1]).
-export([step/3, snapshot/1, more/3, format/1]).

-export_type([model/0, client/0, holder/0, ending/0, death/0, snapshot/0]).

-type model() :: #{
    %% All keys of the test case, held or not.
    keys := [key()],
    %% A `keeping' manager keeps its table when it crashes.
    manager := none | plain | keeping,
    %% A table without a manager is a kept table.
    table := closed | table(),
    %% Whether the nodes of the near and the far processes are connected.
    connected := boolean(),
    lives := #{client() => non_neg_integer()}
}.

-type table() :: #{
    held := #{{holder(), key()} => pos_integer()},
    %% With the idle keys that no sweep has reclaimed.
    present := [key()],
    max_per := pos_integer(),
    totals := #{atom() => non_neg_integer()}
}.

-type key() :: term().
-type client() :: near1 | near2 | near3 | far1 | far2.
-type holder() :: {client(), non_neg_integer()}.

%% How a function of `with_permit' ends.
-type ending() :: returns | nested | throws | raises | exits | dies | stops.

%% How a process dies. In the last case it acquires a permit immediately before.
-type death() ::
    returns | shuts_down | raises | throws | kills_itself | killed | signalled | linked
    | {acquires, key(), non_neg_integer(), non_neg_integer()}.

%% The visible state of a table.
-type snapshot() ::
    closed
    | #{
        info := #{atom() => non_neg_integer()},
        keys := [{key(), pos_integer()}],
        counts := [{key(), non_neg_integer()}],
        buckets := [{key(), [pos_integer()]}],
        holders := [{key(), [{holder(), pos_integer()}]}],
        held := [{holder(), [{key(), pos_integer()}]}],
        audit := []
    }.

%% The last three stay 0: prop_canal_lock_waits has the calls that wait, and gifts.
-define(TOTALS, [
    granted, refused, released, released_by_death, not_held, reclaimed, handed_over, timed_out, transferred
]).

-spec new([key()], [client()]) -> model().
new(Keys, Clients) ->
    #{
        keys => Keys,
        manager => none,
        table => closed,
        connected => true,
        lives => maps:from_list([{Client, 0} || Client <- Clients])
    }.

keys(#{keys := Keys}) -> Keys.

clients(#{lives := Lives}) -> maps:keys(Lives).

manager(#{manager := Manager}) -> Manager.

is_open(#{table := Table}) -> Table =/= closed.

is_connected(#{connected := Connected}) -> Connected.

%% The permits of processes that are alive.
-spec permits(model()) -> [{client(), key()}].
permits(#{table := closed}) ->
    [];
permits(Model = #{table := #{held := Held}}) ->
    [{Client, Key} || {{Client, _} = Holder, Key} <- maps:keys(Held), Holder =:= holder(Client, Model)].

%% The present process of a client.
-spec holder(client(), model()) -> holder().
holder(Client, #{lives := Lives}) ->
    {Client, maps:get(Client, Lives)}.

%% Whether the processes of a client are on another node than the table.
-spec is_far(client()) -> boolean().
is_far(Client) ->
    lists:member(Client, [far1, far2]).

%% The growth of a total between two states.
-spec more(Total :: atom(), model(), model()) -> integer().
more(Total, #{table := Before}, #{table := After}) when Before =/= closed, After =/= closed ->
    total(Total, After) - total(Total, Before);
more(_, _, _) ->
    0.

%% The answer of a call, and the state after it.
-spec step(Call :: atom(), Arguments :: [term()], model()) -> {Answer :: term(), model()}.
step(acquire, [Client, Key, MaxPer, Buckets], Model) ->
    reach(Client, Model, fun() -> acquire(holder(Client, Model), Key, MaxPer * Buckets, Model) end);
step(release, [Client, Key], Model) ->
    reach(Client, Model, fun() -> release(holder(Client, Model), Key, Model) end);
step(release, [Client, Key, _MaxPer, _Buckets], Model) ->
    reach(Client, Model, fun() ->
        {_, After} = release(holder(Client, Model), Key, Model),
        {ok, After}
    end);
step(with_permit, [Client, Key, MaxPer, Buckets, Ending], Model) ->
    reach(Client, Model, fun() ->
        case acquire(holder(Client, Model), Key, MaxPer * Buckets, Model) of
            {full, After} -> {full, After};
            {{acquired, N}, Within} -> ending(Ending, {Client, Key, MaxPer * Buckets, N}, Within)
        end
    end);
step(count, [Key], Model) ->
    reach(near1, Model, fun() -> {out(Key, Model), Model} end);
step(held, [Client], Model) ->
    reach(Client, Model, fun() -> {held(holder(Client, Model), Model), Model} end);
step(die, [Client, {acquires, Key, MaxPer, Buckets}], Model) ->
    {_, Before} = step(acquire, [Client, Key, MaxPer, Buckets], Model),
    {dead, die(Client, Before)};
step(die, [Client, _How], Model) ->
    {dead, die(Client, Model)};
step(start, [Kind, MaxPer], Model = #{manager := none}) ->
    %% A manager that adopts a table sweeps it.
    {ok, swept(start(Kind, MaxPer, Model))};
step(start, _, Model) ->
    {already_started, Model};
step(disconnect, [_From], Model = #{lives := Lives}) ->
    Far = [{Client, Life} || {Client, Last} <- maps:to_list(Lives), is_far(Client), Life <- lists:seq(0, Last)],
    {ok, release_all(Far, Model#{connected := false})};
step(connect, [], Model) ->
    {ok, Model#{connected := true}};
%% The other calls need a manager.
step(_, _, Model = #{manager := none}) ->
    {{exit, noproc}, Model};
step(stop, [], Model) ->
    {ok, close(Model)};
step(sweep, [], Model) ->
    {ok, swept(Model)};
step(end_manager, [How], Model = #{manager := Manager}) ->
    case Manager =:= keeping andalso How =/= shut_down of
        true -> {ok, Model#{manager := none}};
        false -> {ok, close(Model)}
    end.

swept(Model = #{table := Table}) ->
    Present = [Key || Key <- maps:get(present, Table), out(Key, Model) > 0],
    Reclaimed = length(maps:get(present, Table)) - length(Present),
    Model#{table := add(reclaimed, Reclaimed, Table#{present := Present})}.

%% The answer of a table, if there is one and the caller can reach it.
reach(Client, Model, Call) ->
    case {is_far(Client), Model} of
        {true, #{connected := false}} -> {{exit, nodedown}, Model};
        {true, #{manager := none}} -> {{exit, noproc}, Model};
        {false, #{table := closed}} -> {{error, badarg}, Model};
        _ -> Call()
    end.

%% P1, P2, P6.
acquire(Holder, Key, Capacity, Model = #{table := Table = #{held := Held, present := Present}}) ->
    case out(Key, Model) of
        Out when Out < Capacity ->
            More = maps:update_with({Holder, Key}, fun(N) -> N + 1 end, 1, Held),
            Taken = add(granted, 1, Table#{held := More, present := lists:usort([Key | Present])}),
            {{acquired, Out + 1}, Model#{table := Taken}};
        _ ->
            {full, Model#{table := add(refused, 1, Table)}}
    end.

%% P5.
release(Holder, Key, Model = #{table := Table = #{held := Held}}) ->
    case maps:get({Holder, Key}, Held, 0) of
        0 -> {{error, not_held}, Model#{table := add(not_held, 1, Table)}};
        1 -> {ok, Model#{table := add(released, 1, Table#{held := maps:remove({Holder, Key}, Held)})}};
        N -> {ok, Model#{table := add(released, 1, Table#{held := Held#{{Holder, Key} := N - 1}})}}
    end.

%% The answer of `with_permit', and what happens to the permit. `N' permits are held.
ending(stops, {Client, Key, _, _}, Model = #{manager := none}) ->
    {{exit, noproc}, returned(holder(Client, Model), Key, Model)};
ending(stops, _, Model) ->
    {{ok, ok}, close(Model)};
ending(dies, {Client, _, _, _}, Model) ->
    {dead, die(Client, Model)};
ending(nested, {Client, Key, Capacity, _}, Model) ->
    Holder = holder(Client, Model),
    case acquire(Holder, Key, Capacity, Model) of
        {full, After} ->
            {{ok, full}, returned(Holder, Key, After)};
        {{acquired, N}, After} ->
            {{ok, {ok, N}}, returned(Holder, Key, returned(Holder, Key, After))}
    end;
ending(Ending, {Client, Key, _, N}, Model) ->
    Answer =
        case Ending of
            returns -> {ok, N};
            throws -> {throw, meant};
            raises -> {error, meant};
            exits -> {exit, meant}
        end,
    {Answer, returned(holder(Client, Model), Key, Model)}.

returned(Holder, Key, Model) ->
    {ok, After} = release(Holder, Key, Model),
    After.

%% P4.
die(Client, Model = #{lives := Lives}) ->
    release_all([holder(Client, Model)], Model#{lives := Lives#{Client := maps:get(Client, Lives) + 1}}).

%% Releases the permits of holders that died or lost the connection.
release_all(_, Model = #{table := closed}) ->
    Model;
release_all(Holders, Model = #{table := Table = #{held := Held}}) ->
    Left = maps:filter(fun({Holder, _}, _) -> not lists:member(Holder, Holders) end, Held),
    Back = sum(maps:values(Held)) - sum(maps:values(Left)),
    Model#{table := add(released_by_death, Back, Table#{held := Left})}.

%% P10.
start(keeping, MaxPer, Model = #{table := Table}) when Table =/= closed ->
    Model#{manager := keeping, table := Table#{max_per := MaxPer}};
start(Kind, MaxPer, Model) ->
    Totals = maps:from_list([{Total, 0} || Total <- ?TOTALS]),
    Empty = #{held => #{}, present => [], max_per => MaxPer, totals => Totals},
    Model#{manager := Kind, table := Empty}.

close(Model) ->
    Model#{manager := none, table := closed}.

-spec snapshot(model()) -> snapshot().
snapshot(#{table := closed}) ->
    closed;
snapshot(Model = #{keys := Keys, table := Table = #{held := Held}}) ->
    Counts = [{Key, out(Key, Model)} || Key <- Keys],
    Holders = lists:usort([Holder || {Holder, _} <- maps:keys(Held)]),
    #{
        info => (maps:get(totals, Table))#{
            waiting => 0,
            max_per => maps:get(max_per, Table),
            keys => length(maps:get(present, Table)),
            permits => sum(maps:values(Held)),
            holders => length(Holders)
        },
        keys => [{Key, Out} || {Key, Out} <- Counts, Out > 0],
        counts => Counts,
        buckets => [{Key, lists:duplicate(Out div 2, 2) ++ [1 || Out rem 2 =:= 1]} || {Key, Out} <- Counts],
        holders => [{Key, lists:sort([{Who, N} || {{Who, Of}, N} <- maps:to_list(Held), Of =:= Key])} || Key <- Keys],
        held => [{Holder, held(Holder, Model)} || Holder <- Holders],
        audit => []
    }.

%% The commands of PropEr, one line each.
-spec format([{init, model()} | {set, Result :: term(), {call, module(), atom(), [term()]}}]) -> iolist().
format(Commands) ->
    [
        ["    ", atom_to_list(Function), "(", lists:join(", ", lists:map(fun format_argument/1, Arguments)), ")\n"]
     || {set, _, {call, _, Function, Arguments}} <- Commands
    ].

format_argument(Argument) ->
    io_lib:format("~0tp", [Argument]).

held(Holder, #{table := #{held := Held}}) ->
    lists:sort([{Key, N} || {{Who, Key}, N} <- maps:to_list(Held), Who =:= Holder]).

out(Key, #{table := #{held := Held}}) ->
    sum([N || {{_, Of}, N} <- maps:to_list(Held), Of =:= Key]).

sum(Numbers) ->
    lists:sum(Numbers).

total(Total, #{totals := Totals}) ->
    maps:get(Total, Totals).

add(Total, N, Table = #{totals := Totals}) ->
    Table#{totals := Totals#{Total := maps:get(Total, Totals) + N}}.
