%% P1, P4, P6: with one call at a time, `canal_lock' gives the same answers as the referee, which is the design of the
%% original with a vector of buckets per key. The property leaves out the intended differences: releases by a
%% non-holder, and a MaxPer that varies.
%%
%% Calls the functions of PropEr, not its macros: some installations have the application without the header.
-module(prop_canal_lock_referee).

-import(proper_types, [list/1, oneof/1, range/2, resize/2, weighted_union/1]).

-export([prop_same_answers/0, same_answers_test_/0]).

-define(CASES, 300).
-define(CALLS, 150).
-define(MAX_BUCKETS, 4).

same_answers_test_() ->
    test_setup:tests(without_manager, [
        {"P1, P4, P6: canal_lock gives the same answers as the referee", fun() ->
            true = proper:quickcheck(prop_same_answers(), [{numtests, test_setup:times(?CASES)}, quiet])
        end}
    ]).

prop_same_answers() ->
    proper:forall({range(1, 4), resize(?CALLS, list(step()))}, fun({MaxPer, Steps}) ->
        Differences = run(MaxPer, Steps),
        Show = fun() -> io:format(user, "MaxPer ~p~n~p~ndiffers: ~p~n", [MaxPer, Steps, Differences]) end,
        proper:whenfail(Show, fun() -> Differences =:= [] end)
    end).

step() ->
    Worker = oneof([1, 2, 3]),
    Key = oneof([db, {app, 1}]),
    weighted_union([
        {6, {acquire, Worker, Key, range(1, ?MAX_BUCKETS)}},
        {4, {release, Worker, Key, range(1, ?MAX_BUCKETS)}},
        {1, {die, Worker}}
    ]).

run(MaxPer, Steps) ->
    {ok, _} = canal_lock:start_link(MaxPer),
    {ok, _} = test_original:start_link(MaxPer),
    Workers = maps:from_list([{N, {test_worker:start(), []}} || N <- [1, 2, 3]]),
    try
        compare(MaxPer, Steps, Workers)
    catch
        %% Older versions of PropEr cannot report an exception.
        Class:Reason:Stack -> {Class, Reason, Stack}
    after
        canal_lock:stop(),
        test_original:stop()
    end.

%% `Workers' has the keys that each worker holds. Stops at the first difference.
compare(_, [], _) ->
    [];
compare(MaxPer, [Step | Steps], Workers) ->
    {Answers, After} = step(Step, MaxPer, Workers),
    Views = [{canal_lock:buckets(Key, MaxPer), referee_buckets(Key, MaxPer)} || Key <- [db, {app, 1}]],
    case [Pair || {Ours, Referees} = Pair <- [Answers | Views], Ours =/= Referees] of
        [] -> compare(MaxPer, Steps, After);
        Different -> [{Step, Different}]
    end.

step({acquire, Number, Key, Buckets}, MaxPer, Workers) ->
    #{Number := {Worker, Held}} = Workers,
    case answers(Worker, acquire, Key, MaxPer, Buckets) of
        {{acquired, _}, _} = Answers -> {Answers, Workers#{Number := {Worker, [Key | Held]}}};
        Answers -> {Answers, Workers}
    end;
step({release, Number, Key, Buckets}, MaxPer, Workers) ->
    #{Number := {Worker, Held}} = Workers,
    case lists:member(Key, Held) of
        true ->
            Answers = answers(Worker, release, Key, MaxPer, Buckets),
            {Answers, Workers#{Number := {Worker, lists:delete(Key, Held)}}};
        false ->
            {{left_out, left_out}, Workers}
    end;
step({die, Number}, MaxPer, Workers) ->
    #{Number := {Worker, _}} = Workers,
    ok = test_worker:kill(Worker),
    After = Workers#{Number := {test_worker:start(), []}},
    lists:foreach(fun(Released) ->
        Left = length([Key || {_, Held} <- maps:values(After), Key <- Held, Key =:= Released]),
        test_await:count(Released, Left),
        %% The whole vector: its sum is right for a moment before the referee has finished.
        test_await:value(canal_lock:buckets(Released, MaxPer), fun() -> referee_buckets(Released, MaxPer) end)
    end, [db, {app, 1}]),
    {{dead, dead}, After}.

answers(Worker, Call, Key, MaxPer, Buckets) ->
    test_worker:order(Worker, fun() ->
        {canal_lock:Call(Key, MaxPer, Buckets), test_original:Call(Key, MaxPer, Buckets)}
    end).

%% The vector of the referee, without overflow values and without empty buckets at the end.
referee_buckets(Key, MaxPer) ->
    Counts = [
        min(Count, MaxPer)
     || Bucket <- lists:seq(1, ?MAX_BUCKETS), {_, Count} <- ets:lookup(test_original, {Key, Bucket})
    ],
    lists:reverse(lists:dropwhile(fun(Count) -> Count =:= 0 end, lists:reverse(Counts))).
