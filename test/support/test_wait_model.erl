%% A sequential specification of waiting, several permits and gifts, for properties: the possible outcomes of each call.
%% The queue of one key is in `test_wait_key'.
%%
%% A client is one process at a time, as in `test_model'. Each wait has a number, the oldest the smallest one.
%%
%% Two steps have several outcomes. A dead process releases its permits in up to three parts. Between the second and the
%% third part its requests end, in any order. When a table closes, its requests end in any order, and what one has
%% collected can grant another one. The order shows in answers `{acquired, N}' and in the totals. A client of another
%% node that is granted then can get the answer `closed'.
-module(test_wait_model).

-export([new/2, step/2, snapshot/1, answered/1, total/2]).
-export([clients/1, idle/1, suspended/1, is_far/1, manager/1, held/1, waits/1, mail/1, requests/1]).

-export_type([model/0, client/0, holder/0, kind/0, call/0, answer/0]).

-type model() :: #{
    manager := none | plain | keeping,
    keys := [key()],
    %% A table without a manager is a kept table. A key is in it until a sweep reclaims it.
    table := closed | #{key() => test_wait_key:key()},
    totals := #{atom() => non_neg_integer()},
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
-type ended() :: test_wait_key:ended().

%% `none' does not wait. `runs' and `suspended' block the client.
-type kind() :: none | request | runs | suspended.

-type call() ::
    {acquire, client(), key(), Capacity :: non_neg_integer(), Permits :: pos_integer(), kind(), MaxWaiting :: term()}
    | {cancel, client(), request()}
    %% The client receives its messages.
    | {read, client()}
    %% The timeout of a suspended client expires, then the client goes on.
    | {expire, client()}
    | {release, client(), key(), pos_integer()}
    | {give, client(), key(), client() | dead, pos_integer()}
    | {resized, key(), Capacity :: non_neg_integer()}
    | {die, client()}
    | {start, plain | keeping}
    | sweep | stop | crash.
-type answer() :: term().

-define(TOTALS, [refused, released, released_by_death, not_held, reclaimed, handed_over, timed_out, transferred]).

-spec new([key()], [client()]) -> model().
new(Keys, Clients) ->
    #{
        manager => none,
        table => closed,
        keys => Keys,
        totals => #{},
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
is_far(Client) -> lists:member(Client, [far1, far2]).
answered(#{answered := Answered}) -> lists:sort(Answered).
total(Total, #{totals := Totals}) -> maps:get(Total, Totals, 0).
mail(#{mail := Mail}) -> Mail.
requests(#{requests := Requests}) -> Requests.

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
            [{full, add(timed_out, 1, After)}];
        [] ->
            [cancel(Client, call, Awake)]
    end;
outcomes({die, Client}, Model = #{lives := Lives, mail := Mail, blocked := Blocked}) ->
    Dead = Model#{
        lives := maps:update_with(Client, fun(Life) -> Life + 1 end, Lives),
        mail := Mail#{Client := []},
        blocked := maps:remove(Client, Blocked)
    },
    [{dead, After} || After <- die(holder(Client, Model), [Dead])];
outcomes({start, plain}, Model = #{manager := none, table := Table}) when Table =/= closed ->
    [{ok, start(plain, After)} || After <- closed(Model)];
outcomes({start, Kind}, Model = #{manager := none}) ->
    [{ok, start(Kind, Model)}];
outcomes(sweep, Model) ->
    [{ok, swept(Model)}];
outcomes(crash, Model = #{manager := keeping}) ->
    [{ok, Model#{manager := none}}];
outcomes(Call, Model) when Call =:= stop; Call =:= crash ->
    [{ok, After} || After <- closed(Model)];
outcomes(_, Model = #{table := closed}) ->
    [{closed, Model}];
outcomes({resized, Key, Capacity}, Model) ->
    [{ok, changed(Key, fun(State) -> test_wait_key:resized(Capacity, State) end, Model)}];
outcomes(Call, Model) ->
    case is_far(element(2, Call)) andalso manager(Model) =:= none of
        true -> [{closed, Model}];
        false -> permits(Call, holder(element(2, Call), Model), state(element(3, Call), Model), Model)
    end.

%% Calls of a process with the permits of one key.
permits({acquire, Client, Key, Capacity, Permits, Kind, MaxWaiting}, Holder, State = #{queue := Queue}, Model) ->
    Out = test_wait_key:out(State) + Permits,
    Refused = #{next := Number, requests := Requests, blocked := Blocked} = add(refused, 1, Model),
    Waiter = #{holder => Holder, kind => Kind, capacity => Capacity, weight => Permits, collected => 0},
    Queued = put_state(Key, test_wait_key:queued(Waiter#{number => Number}, State), Refused#{next := Number + 1}),
    if
        Out =< Capacity ->
            [{{acquired, Out}, put_state(Key, test_wait_key:held(Holder, Permits, State), Model)}];
        Kind =:= none; length(Queue) >= MaxWaiting ->
            [{full, Refused}];
        Kind =:= request ->
            [{{waiting, Number}, Queued#{requests := [{Client, Number} | Requests]}}];
        true ->
            %% On a busy machine the timeout expires before the client is suspended.
            [{waits, Queued#{blocked := Blocked#{Client => Kind}}}] ++
                [{full, add(timed_out, 1, put_state(Key, State, Refused))} || Kind =:= suspended]
    end;
permits({release, _, Key, Permits}, Holder, State, Model) ->
    case test_wait_key:held(Holder, State) >= Permits of
        true ->
            Released = test_wait_key:settled(test_wait_key:held(Holder, -Permits, State)),
            [{ok, add(released, Permits, put_state(Key, Released, Model))}];
        false ->
            [{{error, not_held}, add(not_held, 1, Model)}]
    end;
permits({give, Client, Key, Target, Permits}, Holder, State, Model) ->
    case test_wait_key:held(Holder, State) >= Permits of
        false ->
            [{{error, not_held}, Model}];
        true when Target =:= dead ->
            [{{error, not_alive}, Model}];
        true when Target =:= Client ->
            [{ok, Model}];
        true ->
            Taken = test_wait_key:held(Holder, -Permits, State),
            Given = test_wait_key:held(holder(Target, Model), Permits, Taken),
            [{ok, add(transferred, Permits, put_state(Key, Given, Model))}]
    end.

%% P13: of a request that waits, or of one whose message was not received.
cancel(Client, Request, Model = #{mail := Mail}) ->
    Unread = maps:get(Client, Mail),
    case [Key || {Of, Key, #{number := Number}} <- waits(Model), Of =:= Client, Number =:= Request] of
        [Key] ->
            {ok, changed(Key, fun(State) -> test_wait_key:settled(test_wait_key:without(Request, State)) end, Model)};
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
            Outcomes = test_wait_key:deaths(Holder, state(Key, Model)),
            [add(released_by_death, N, put_state(Key, State, Model)) || {State, N} <- Outcomes]
        end,
        Models
    ).

%% P10.
closed(Model) ->
    Close = fun(Key, Of) ->
        [put_state(Key, State, Of) || Closed <- test_wait_key:closings(state(Key, Of)), State <- late_answers(Closed)]
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
start(keeping, Model = #{table := Table}) when Table =/= closed -> swept(Model#{manager := keeping});
start(Kind, Model) -> Model#{manager := Kind, table := #{}, totals := #{}}.

%% P8.
swept(Model = #{table := Table}) ->
    IsUsed = fun(_, State = #{queue := Queue}) -> test_wait_key:out(State) > 0 orelse Queue =/= [] end,
    Used = maps:filter(IsUsed, Table),
    add(reclaimed, maps:size(Table) - maps:size(Used), Model#{table := Used}).

%% The visible state.
-spec snapshot(model()) -> map().
snapshot(#{table := closed, mail := Mail}) ->
    #{table => closed, mail => near(Mail)};
snapshot(Model = #{table := Table, mail := Mail, totals := Totals}) ->
    Shown = [{Key, test_wait_key:shown(state(Key, Model))} || Key <- keys(Model)],
    Holders = lists:usort([Holder || {_, Of} <- Shown, {Holder, _} <- Of]),
    Counts = [{Key, test_wait_key:out(state(Key, Model))} || Key <- keys(Model)],
    Permits = lists:sum([Out || {_, Out} <- Counts]),
    Waiting = [{Key, length(maps:get(queue, state(Key, Model)))} || Key <- keys(Model)],
    All = maps:merge(maps:from_list([{Total, 0} || Total <- ?TOTALS]), Totals),
    #{
        mail => near(Mail),
        table => open,
        info => All#{
            keys => maps:size(Table),
            permits => Permits,
            holders => length(Holders),
            waiting => lists:sum([N || {_, N} <- Waiting]),
            granted => Permits + maps:get(released, All) + maps:get(released_by_death, All)
        },
        counts => Counts,
        waiting => Waiting,
        keys => lists:sort([{Key, Out} || {Key, Out} <- Counts, Out > 0]),
        holders => Shown,
        held => [{Holder, [{Key, N} || {Key, Of} <- Shown, {Who, N} <- Of, Who =:= Holder]} || Holder <- Holders],
        audit => []
    }.

near(Mail) -> maps:filter(fun(Client, _) -> not is_far(Client) end, Mail).

state(Key, #{table := Table}) ->
    maps:get(Key, Table, test_wait_key:new()).

%% A key that is not in the table has nothing to change.
changed(Key, Change, Model = #{table := Table}) ->
    Model#{table := maps:map(fun(Of, State) -> if Of =:= Key -> Change(State); true -> State end end, Table)}.

put_state(Key, State, Model = #{table := Table}) ->
    Model#{table := Table#{Key => State}}.

add(Total, N, Model = #{totals := Totals}) ->
    Model#{totals := Totals#{Total => N + maps:get(Total, Totals, 0)}}.
