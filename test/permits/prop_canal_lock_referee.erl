%% P1, P4, P6: used by one process at a time, `canal_lock' answers what the referee answers, the design of the
%% original with a vector of buckets per key. Left out is what the two are meant to do differently: releases of what
%% is not held, and a MaxPer that varies.
%%
%% PropEr is called by its functions. Its macros would be shorter, but not everybody who has the application has the
%% header.
-module(prop_canal_lock_referee).

-import(proper_types, [list/1, oneof/1, range/2, resize/2, weighted_union/1]).

-export([prop_same_answers/0, same_answers_test_/0]).

-define(CASES, 300).
-define(CALLS, 150).
-define(MAX_BUCKETS, 4).

same_answers_test_() ->
    test_setup:tests(without_manager, [
        {"P1, P4, P6: the same answers as the referee", fun() ->
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
        %% PropEr's older versions cannot tell of what is raised.
        Class:Reason:Stack -> {Class, Reason, Stack}
    after
        canal_lock:stop(),
        test_original:stop()
    end.

%% Workers are with what they hold. The first difference ends it.
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
    [
        begin
            Left = length([Key || {_, Held} <- maps:values(After), Key <- Held, Key =:= Which]),
            test_await:count(Which, Left),
            %% Not only its sum, which is right for a moment before it is done.
            test_await:value(canal_lock:buckets(Which, MaxPer), fun() -> referee_buckets(Which, MaxPer) end)
        end
     || Which <- [db, {app, 1}]
    ],
    {{dead, dead}, After}.

answers(Worker, Call, Key, MaxPer, Buckets) ->
    test_worker:order(Worker, fun() ->
        {canal_lock:Call(Key, MaxPer, Buckets), test_original:Call(Key, MaxPer, Buckets)}
    end).

%% Its vector, without the overflow value and what is empty at the end.
referee_buckets(Key, MaxPer) ->
    Counts = [
        min(Count, MaxPer)
     || Bucket <- lists:seq(1, ?MAX_BUCKETS), {_, Count} <- ets:lookup(test_original, {Key, Bucket})
    ],
    lists:reverse(lists:dropwhile(fun(Count) -> Count =:= 0 end, lists:reverse(Counts))).
