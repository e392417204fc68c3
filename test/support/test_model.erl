%% A sequential specification of permits, waiting and gifts, for properties: the possible outcomes of each call. The
%% queue of one key is in `test_model_key'.
%%
%% A client is one process at a time. When the process dies, another one replaces it. A holder is a client with a
%% number, so a process and its successor are different holders. Each wait has a number, the oldest the smallest one.
%%
%% Two steps have several outcomes if requests wait. A dead process releases its permits in up to three parts. Between
%% the second and the third part its requests end, in any order. When a table closes, its requests end in any order, and
%% what one has collected can grant another one. The order shows in answers `{acquired, N}' and in the totals. A client
%% of another node that is granted then can get the answer `closed'.
-module(test_model).

-export([new/2, step/2, snapshot/1, answered/1, total/2, count/2, is_open/1, is_connected/1]).
-export([keys/1, clients/1, idle/1, suspended/1, is_far/1, manager/1, held/1, waits/1, mail/1, requests/1]).

-export_type([model/0, client/0, holder/0, kind/0, call/0, answer/0, size/0, ending/0, death/0]).

-type model() :: #{
    %% A `keeping' manager keeps its table when it crashes.
    manager := none | plain | keeping,
    max_per := pos_integer(),
    %% All keys of the test case, held or not.
    keys := [key()],
    %% A table without a manager is a kept table. A key is in it until a sweep reclaims it.
    table := closed | #{key() => test_model_key:key()},
    totals := #{atom() => non_neg_integer()},
    %% Whether the nodes of the near and the far processes are connected.
    connected := boolean(),
    lives := #{client() => non_neg_integer()},
    %% All requests so far that did not block their clients.
    requests := [{client(), request()}],
    %% Messages of requests that were not received.
    mail := #{client() => [{request() | call, ended()}]},
    %% Clients that wait in a call. They run, or they are suspended until the timeout has expired.
    blocked := #{client() => runs | suspended},
    %% Calls that have returned in this step, after a wait.
    answered := [{client(), ended()}],
    next := request()
}.
-type key() :: term().
-type client() :: near1 | near2 | near3 | near4 | far1 | far2.
-type holder() :: {client(), Life :: non_neg_integer()}.
-type request() :: pos_integer().
-type ended() :: test_model_key:ended().

%% `none' does not wait. `runs' and `suspended' block the client.
-type kind() :: none | request | runs | suspended.

-type size() :: {MaxPer :: non_neg_integer(), Buckets :: non_neg_integer()}.

%% How a function of `with_permit' ends.
-type ending() :: returns | nested | throws | raises | exits | dies | stops.

%% How a process dies. In the last case it acquires a permit immediately before.
-type death() ::
    killed | signalled | returns | shuts_down | raises | throws | kills_itself | linked | {acquires, key(), size()}.

-type call() ::
    {acquire, client(), key(), size(), Permits :: pos_integer(), kind(), MaxWaiting :: term()}
    | {with_permit, client(), key(), size(), ending()}
    | {cancel, client(), request()}
    %% The client receives its messages.
    | {read, client()}
    %% The timeout of a suspended client expires, then the client goes on.
    | {expire, client()}
    %% In the form of the original, with a size.
    | {release, client(), key(), pos_integer() | size()}
    | {give, client(), key(), client() | dead, pos_integer()}
    | {resize, key(), size()}
    | {die, client(), death()}
    | {start, plain | keeping, MaxPer :: pos_integer()}
    | sweep | stop | {end_manager, killed | crashes | shut_down}
    %% By the node of the near or the far processes, while no request waits.
    | {disconnect, near | far}
    | connect.
-type answer() :: term().

-define(TOTALS, [refused, released, released_by_death, not_held, reclaimed, handed_over, timed_out, transferred]).

-spec new([key()], [client()]) -> model().
new(Keys, Clients) ->
    #{
        manager => none,
        max_per => 1,
        table => closed,
        keys => Keys,
        totals => #{},
        connected => true,
        lives => maps:from_list([{Client, 0} || Client <- Clients]),
        requests => [],
        mail => maps:from_list([{Client, []} || Client <- Clients]),
        blocked => #{},
        answered => [],
        next => 1
    }.

keys(#{keys := Keys}) -> Keys.
clients(#{lives := Lives}) -> maps:keys(Lives).
idle(Model = #{blocked := Blocked}) -> clients(Model) -- maps:keys(Blocked).
suspended(#{blocked := Blocked}) -> [Client || {Client, suspended} <- maps:to_list(Blocked)].
manager(#{manager := Manager}) -> Manager.
is_open(#{table := Table}) -> Table =/= closed.
is_connected(#{connected := Connected}) -> Connected.
%% Whether the processes of a client are on another node than the table.
is_far(Client) -> lists:member(Client, [far1, far2]).
answered(#{answered := Answered}) -> lists:sort(Answered).
total(Total, #{totals := Totals}) -> maps:get(Total, Totals, 0).
mail(#{mail := Mail}) -> Mail.
requests(#{requests := Requests}) -> Requests.
count(Key, Model) -> test_model_key:out(state(Key, Model)).

%% The permits of clients, without those that their requests have collected.
held(Model) ->
    [
        {Client, Key, N}
     || {Key, #{held := Held}} <- table(Model),
        {{Client, _} = Holder, N} <- maps:to_list(Held),
        Holder =:= holder(Client, Model)
    ].

%% The clients with requests that wait.
waits(Model) ->
    [{Client, Key, Waiter} || {Key, #{queue := Queue}} <- table(Model), Waiter = #{holder := {Client, _}} <- Queue].

table(#{table := closed}) -> [];
table(#{table := Table}) -> maps:to_list(Table).

holder(Client, #{lives := Lives}) ->
    {Client, maps:get(Client, Lives)}.

%% The possible outcomes: answers, and states after the call.
-spec step(call(), model()) -> [{answer(), model()}].
step(Call, Model) ->
    lists:usort([{Answer, delivered(After)} || {Answer, After} <- outcomes(Call, Model#{answered := []})]).

outcomes({read, Client}, Model = #{mail := Mail}) ->
    [{maps:get(Client, Mail), Model#{mail := Mail#{Client := []}}}];
outcomes({cancel, Client, Request}, Model) ->
    [cancel(Client, Request, Model)];
outcomes({expire, Client}, Model = #{blocked := Blocked}) ->
    Awake = Model#{blocked := maps:remove(Client, Blocked)},
    case [Number || {Of, _, #{kind := suspended, number := Number}} <- waits(Model), Of =:= Client] of
        [Number] ->
            {ok, After} = cancel(Client, Number, Awake),
            [{full, timed_out(After)}];
        [] ->
            [cancel(Client, call, Awake)]
    end;
outcomes({die, Client, {acquires, Key, Size}}, Model) ->
    [{_, Before}] = outcomes({acquire, Client, Key, Size, 1, none, infinity}, Model),
    outcomes({die, Client, returns}, Before);
outcomes({die, Client, _How}, Model = #{lives := Lives, mail := Mail, blocked := Blocked}) ->
    Dead = Model#{
        lives := maps:update_with(Client, fun(Life) -> Life + 1 end, Lives),
        mail := Mail#{Client := []},
        blocked := maps:remove(Client, Blocked)
    },
    [{dead, After} || After <- die(holder(Client, Model), [Dead])];
outcomes({start, Kind, MaxPer}, Model = #{manager := none}) ->
    [{ok, start(Kind, MaxPer, Model)}];
outcomes(sweep, Model) ->
    [{ok, swept(Model)}];
outcomes({end_manager, How}, Model = #{manager := keeping}) when How =/= shut_down ->
    [{ok, Model#{manager := none}}];
outcomes(Call, Model) when Call =:= stop; element(1, Call) =:= end_manager ->
    [{ok, After} || After <- closed(Model)];
outcomes({disconnect, _}, Model = #{lives := Lives}) ->
    Far = [{Client, Life} || {Client, Last} <- maps:to_list(Lives), is_far(Client), Life <- lists:seq(0, Last)],
    [{ok, After} || After <- lists:foldl(fun die/2, [Model#{connected := false}], Far)];
outcomes(connect, Model) ->
    [{ok, Model#{connected := true}}];
outcomes({resize, _, _}, Model = #{table := closed}) ->
    [{closed, Model}];
outcomes({resize, Key, Size}, Model) ->
    [{ok, changed(Key, fun(State) -> test_model_key:resize(capacity(Size), State) end, Model)}];
outcomes(Call, Model = #{connected := IsConnected, manager := Manager, table := Table}) ->
    case is_far(element(2, Call)) of
        true when not IsConnected -> [{nodedown, Model}];
        true when Manager =:= none -> [{closed, Model}];
        false when Table =:= closed -> [{closed, Model}];
        _ -> permits(Call, holder(element(2, Call), Model), state(element(3, Call), Model), Model)
    end.

%% Calls of a process with the permits of one key.
permits({acquire, Client, Key, Size, Permits, Kind, MaxWaiting}, Holder, State = #{queue := Queue}, Model) ->
    Capacity = capacity(Size),
    Out = test_model_key:out(State) + Permits,
    #{next := Number, requests := Requests, blocked := Blocked} = Model,
    Refused = add(refused, 1, Model),
    Waiter = #{holder => Holder, kind => Kind, capacity => Capacity, weight => Permits, collected => 0},
    Queued = put_state(Key, test_model_key:queued(Waiter#{number => Number}, State), Model#{next := Number + 1}),
    if
        Out =< Capacity ->
            [{{acquired, Out}, put_state(Key, test_model_key:held(Holder, Permits, State), Model)}];
        Kind =:= none; length(Queue) >= MaxWaiting ->
            [{full, Refused}];
        Kind =:= request ->
            [{{waiting, Number}, Queued#{requests := [{Client, Number} | Requests]}}];
        true ->
            %% On a busy machine the timeout expires before the client is suspended.
            [{waits, Queued#{blocked := Blocked#{Client => Kind}}}] ++
                [{full, timed_out(put_state(Key, State, Model))} || Kind =:= suspended]
    end;
permits({with_permit, Client, Key, Size, Ending}, Holder, State, Model) ->
    case permits({acquire, Client, Key, Size, 1, none, infinity}, Holder, State, Model) of
        [{full, _}] = Refused -> Refused;
        [{{acquired, _}, Within}] -> ending(Ending, Client, Key, Size, Within)
    end;
permits({release, Client, Key, {_, _}}, Holder, State, Model) ->
    [{_, After}] = permits({release, Client, Key, 1}, Holder, State, Model),
    [{ok, After}];
permits({release, _, Key, Permits}, Holder, State, Model) ->
    case test_model_key:held(Holder, State) >= Permits of
        true ->
            Released = test_model_key:settled(test_model_key:held(Holder, -Permits, State)),
            [{ok, add(released, Permits, put_state(Key, Released, Model))}];
        false ->
            [{{error, not_held}, add(not_held, 1, Model)}]
    end;
permits({give, Client, Key, Target, Permits}, Holder, State, Model) ->
    case test_model_key:held(Holder, State) >= Permits of
        false ->
            [{{error, not_held}, Model}];
        true when Target =:= dead ->
            [{{error, not_alive}, Model}];
        true when Target =:= Client ->
            [{ok, Model}];
        true ->
            Taken = test_model_key:held(Holder, -Permits, State),
            Given = test_model_key:held(holder(Target, Model), Permits, Taken),
            [{ok, add(transferred, Permits, put_state(Key, Given, Model))}]
    end.

timed_out(Model) ->
    add(refused, 1, add(timed_out, 1, Model)).

%% The answers of `with_permit', and what happens to the permit.
ending(stops, _, _, _, Model) ->
    [{{ok, ok}, After} || After <- closed(Model)];
ending(dies, Client, _, _, Model) ->
    outcomes({die, Client, killed}, Model);
ending(nested, Client, Key, Size, Model) ->
    [{Answer, Within}] = outcomes({with_permit, Client, Key, Size, returns}, Model),
    [{{ok, Answer}, returned(Client, Key, Within)}];
ending(Ending, Client, Key, _, Model) ->
    Answers = #{returns => {ok, count(Key, Model)}, throws => {throw, meant}, raises => {error, meant}},
    [{maps:get(Ending, Answers, {exit, meant}), returned(Client, Key, Model)}].

returned(Client, Key, Model) ->
    [{ok, After}] = outcomes({release, Client, Key, 1}, Model),
    After.

capacity({MaxPer, Buckets}) ->
    MaxPer * Buckets.

%% P13: of a request that waits, or of one whose message was not received.
cancel(Client, Request, Model = #{mail := Mail}) ->
    Unread = maps:get(Client, Mail),
    case [Key || {Of, Key, #{number := Number}} <- waits(Model), Of =:= Client, Number =:= Request] of
        [Key] ->
            {ok, changed(Key, fun(State) -> test_model_key:settled(test_model_key:without(Request, State)) end, Model)};
        [] ->
            Read = Model#{mail := Mail#{Client := lists:keydelete(Request, 1, Unread)}},
            case lists:keyfind(Request, 1, Unread) of
                {call, Ended} -> {Ended, Read};
                {_, closed} -> {ok, Read};
                {_, Acquired} -> {Acquired, Read};
                false -> {{error, not_waiting}, Model}
            end
    end.

%% P4.
die(Holder, Models) ->
    each_key(
        fun(Key, Model) ->
            Outcomes = test_model_key:deaths(Holder, state(Key, Model)),
            [add(released_by_death, N, put_state(Key, State, Model)) || {State, N} <- Outcomes]
        end,
        Models
    ).

%% P10.
closed(Model) ->
    Close = fun(Key, Of) ->
        [put_state(Key, State, Of) || State <- late_answers(test_model_key:closed(state(Key, Of)))]
    end,
    [(delivered(After))#{manager := none, table := closed} || After <- each_key(Close, [Model])].

%% A proxy that gets a grant when the table is closed answers `closed', since its permits are released.
late_answers(State = #{ended := Ended}) ->
    Answers = fun
        (End = {Waiter = #{holder := {Client, _}}, {acquired, _}}) ->
            [End] ++ [{Waiter, closed} || is_far(Client)];
        (End) ->
            [End]
    end,
    Each = lists:foldr(fun(End, Rest) -> [[E | R] || E <- Answers(End), R <- Rest] end, [[]], Ended),
    [State#{ended := Answered} || Answered <- Each].

%% All combinations of the outcomes of all keys in the table.
each_key(Outcomes, Models = [#{table := Table} | _]) when Table =/= closed ->
    Next = fun(Key, Each) -> lists:usort([After || Model <- Each, After <- Outcomes(Key, Model)]) end,
    lists:foldl(Next, Models, maps:keys(Table));
each_key(_, Models) ->
    Models.

%% Delivers the ends of requests.
delivered(Model = #{table := closed}) ->
    Model;
delivered(Model = #{table := Table}) ->
    Ends = lists:append([Ended || #{ended := Ended} <- maps:values(Table)]),
    lists:foldl(fun deliver/2, Model#{table := maps:map(fun(_, State) -> State#{ended := []} end, Table)}, Ends).

deliver({#{number := Number, holder := {Client, Life}, kind := Kind}, Ended}, Model) ->
    Counted = add(handed_over, if Ended =:= closed -> 0; true -> 1 end, Model),
    #{mail := Mail, blocked := Blocked, answered := Answered, lives := Lives} = Counted,
    Message = {case Kind of request -> Number; _ -> call end, Ended},
    case maps:get(Client, Lives) of
        Life when Kind =:= runs ->
            Counted#{blocked := maps:remove(Client, Blocked), answered := [{Client, Ended} | Answered]};
        Life ->
            Counted#{mail := Mail#{Client := lists:sort([Message | maps:get(Client, Mail)])}};
        %% It is dead.
        _ ->
            Counted
    end.

%% A manager that adopts a table sweeps it.
start(Kind, MaxPer, Model = #{table := Table}) when Table =/= closed ->
    swept(Model#{manager := Kind, max_per := MaxPer});
start(Kind, MaxPer, Model) ->
    Model#{manager := Kind, max_per := MaxPer, table := #{}, totals := #{}}.

%% P8.
swept(Model = #{table := Table}) ->
    IsUsed = fun(_, State = #{queue := Queue}) -> test_model_key:out(State) > 0 orelse Queue =/= [] end,
    Used = maps:filter(IsUsed, Table),
    add(reclaimed, maps:size(Table) - maps:size(Used), Model#{table := Used}).

%% The visible state.
-spec snapshot(model()) -> map().
snapshot(#{table := closed, mail := Mail}) ->
    #{table => closed, mail => near(Mail)};
snapshot(Model = #{table := Table, mail := Mail, totals := Totals}) ->
    Shown = [{Key, test_model_key:shown(state(Key, Model))} || Key <- keys(Model)],
    Holders = lists:usort([Holder || {_, Of} <- Shown, {Holder, _} <- Of]),
    Counts = [{Key, count(Key, Model)} || Key <- keys(Model)],
    Permits = lists:sum([Out || {_, Out} <- Counts]),
    Waiting = [{Key, length(maps:get(queue, state(Key, Model)))} || Key <- keys(Model)],
    All = maps:merge(maps:from_list([{Total, 0} || Total <- ?TOTALS]), Totals),
    #{
        mail => near(Mail),
        table => open,
        info => All#{
            max_per => maps:get(max_per, Model),
            keys => maps:size(Table),
            permits => Permits,
            holders => length(Holders),
            waiting => lists:sum([N || {_, N} <- Waiting]),
            granted => Permits + maps:get(released, All) + maps:get(released_by_death, All)
        },
        counts => Counts,
        buckets => [{Key, lists:duplicate(Out div 2, 2) ++ [1 || Out rem 2 =:= 1]} || {Key, Out} <- Counts],
        waiting => Waiting,
        keys => lists:sort([{Key, Out} || {Key, Out} <- Counts, Out > 0]),
        holders => Shown,
        held => [{Holder, [{Key, N} || {Key, Of} <- Shown, {Who, N} <- Of, Who =:= Holder]} || Holder <- Holders],
        audit => []
    }.

near(Mail) -> maps:filter(fun(Client, _) -> not is_far(Client) end, Mail).

state(Key, #{table := Table}) ->
    maps:get(Key, Table, test_model_key:new()).

%% A key that is not in the table has nothing to change.
changed(Key, Change, Model = #{table := Table}) ->
    Model#{table := maps:map(fun(Of, State) -> if Of =:= Key -> Change(State); true -> State end end, Table)}.

put_state(Key, State, Model = #{table := Table}) ->
    Model#{table := Table#{Key => State}}.

add(Total, N, Model = #{totals := Totals}) ->
    Model#{totals := Totals#{Total => N + maps:get(Total, Totals, 0)}}.
