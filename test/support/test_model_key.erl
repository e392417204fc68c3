%% The sequential specification of one key: its permits by holder, and its requests that wait. A part of `test_model'.
%%
%% It has no lanes and no permits in hand. What is released is free for a moment, and no call can see that.
-module(test_model_key).

-export([new/0, settled/1, queued/2, resize/2, without/2, held/2, held/3, out/1, shown/1, deaths/2, closed/1]).

-export_type([key/0, waiter/0, ended/0]).

-type key() :: #{
    held := #{holder() => pos_integer()},
    %% The oldest first.
    queue := [waiter()],
    %% Requests that were granted or closed in this step.
    ended := [{waiter(), ended()}]
}.
-type waiter() :: #{
    number := pos_integer(),
    holder := holder(),
    kind := test_model:kind(),
    capacity := non_neg_integer(),
    weight := pos_integer(),
    collected := non_neg_integer()
}.
-type holder() :: test_model:holder().
-type ended() :: {acquired, pos_integer()} | closed.

-spec new() -> key().
new() ->
    #{held => #{}, queue => [], ended => []}.

-spec queued(waiter(), key()) -> key().
queued(Waiter, Key = #{queue := Queue}) ->
    settled(Key#{queue := Queue ++ [Waiter]}).

%% P6.
-spec resize(Capacity :: non_neg_integer(), key()) -> key().
resize(Capacity, Key = #{queue := Queue}) ->
    settled(Key#{queue := [Waiter#{capacity := Capacity, collected := 0} || Waiter <- Queue]}).

-spec without(Number :: pos_integer(), key()) -> key().
without(Number, Key = #{queue := Queue}) ->
    Key#{queue := [Waiter || Waiter = #{number := Other} <- Queue, Other =/= Number]}.

%% P1, P11, P12: the next candidate takes what it can have of the free permits. The oldest one collects them.
-spec settled(key()) -> key().
settled(Key = #{queue := Queue}) ->
    Candidates = candidates(Queue),
    Out = out(Key),
    case [{Waiter, N} || Waiter <- Candidates, N <- [share(Waiter, hd(Candidates), Out)], N > 0] of
        [] -> Key;
        [{Waiter, N} | _] -> settled(hand(Waiter, N, Out + N, Key))
    end.

%% The oldest of each capacity whose permits fit it.
candidates(Queue) ->
    Satisfiable = [Waiter || Waiter = #{weight := Weight, capacity := Capacity} <- Queue, Weight =< Capacity],
    lists:uniq(fun(#{capacity := Capacity}) -> Capacity end, Satisfiable).

share(Waiter = #{capacity := Capacity, weight := Weight, collected := Collected}, Oldest, Out) ->
    Free = max(0, Capacity - Out),
    case Weight - Collected of
        Needed when Waiter =:= Oldest -> min(Needed, Free);
        Needed when Needed =< Free -> Needed;
        _ -> 0
    end.

hand(Waiter = #{weight := Weight, collected := Had}, N, _, Key = #{queue := Queue}) when Had + N < Weight ->
    Key#{queue := [case Each of Waiter -> Waiter#{collected := Had + N}; _ -> Each end || Each <- Queue]};
hand(Waiter = #{number := Number, holder := Holder, weight := Weight}, _, Out, Key) ->
    held(Holder, Weight, ended(Waiter, {acquired, Out}, without(Number, Key))).

%% In the order of a set, so that equal outcomes are equal terms.
ended(Waiter, Ended, Key = #{ended := All}) ->
    Key#{ended := ordsets:add_element({Waiter, Ended}, All)}.

%% P4: the outcomes of a death, each with the number of permits released. First its requests end. Then its permits go
%% back in up to three parts.
-spec deaths(holder(), key()) -> [{key(), non_neg_integer()}].
deaths(Holder, Key) ->
    lists:usort([
        {back(Holder, Held - A - B, back(Holder, B, back(Holder, A, Ended))), Held}
     || Ended <- end_waits(Holder, [Key]),
        Held <- [held(Holder, Ended)],
        A <- lists:seq(0, Held),
        B <- lists:seq(0, Held - A)
    ]).

back(Holder, N, Key) ->
    settled(held(Holder, -N, Key)).

%% P10: all requests end, and each gets the message `closed'.
-spec closed(key()) -> key().
closed(Key = #{queue := Queue}) ->
    Close = fun(Waiter = #{number := Number}, Open) -> ended(Waiter, closed, without(Number, Open)) end,
    lists:foldl(Close, Key, Queue).

%% The requests of a holder that dies end in any order.
end_waits(_, []) ->
    [];
end_waits(Of, Keys) ->
    Next = fun(Key = #{queue := Queue}) ->
        [settled(without(Number, Key)) || #{holder := Holder, number := Number} <- Queue, Of =:= Holder]
    end,
    Each = [{Key, Next(Key)} || Key <- Keys],
    lists:usort([Key || {Key, []} <- Each] ++ end_waits(Of, lists:usort(lists:append([More || {_, More} <- Each])))).

%% Permits by holder, with those that requests have collected.
-spec shown(key()) -> [{holder(), pos_integer()}].
shown(#{held := Held, queue := Queue}) ->
    Collected = [{Holder, N} || #{holder := Holder, collected := N} <- Queue, N > 0],
    Add = fun({Holder, N}, Sums) -> maps:update_with(Holder, fun(Sum) -> Sum + N end, N, Sums) end,
    maps:to_list(lists:foldl(Add, Held, Collected)).

-spec out(key()) -> non_neg_integer().
out(Key) ->
    lists:sum([N || {_, N} <- shown(Key)]).

-spec held(holder(), key()) -> non_neg_integer().
held(Holder, #{held := Held}) ->
    maps:get(Holder, Held, 0).

%% Adds a number of permits, which can be negative.
-spec held(holder(), More :: integer(), key()) -> key().
held(Holder, More, Key = #{held := Held}) ->
    case held(Holder, Key) + More of
        0 -> Key#{held := maps:remove(Holder, Held)};
        N when N > 0 -> Key#{held := Held#{Holder => N}}
    end.
