%% Statistics of an app: counters of requests, and a histogram of acquire times. Updates are lock-free.
-module(router_stats).

-export([new/0, granted/2, refused/2, ended/1, failed/1]).
-export([read/1, since/2, quantile/2]).

-export_type([stats/0, reading/0]).

-opaque stats() :: counters:counters_ref().

-type reading() :: #{
    granted := non_neg_integer(),
    refused := non_neg_integer(),
    %% Answered by a dyno or by the router. The VM released the permits of the other granted requests after a death.
    ended := non_neg_integer(),
    %% The part of `ended' without a complete answer of a dyno.
    failed := non_neg_integer(),
    %% Histogram of acquire times.
    times := [{Below_ns :: pos_integer(), Acquires :: pos_integer()}]
}.

-define(GRANTED, 1).
-define(REFUSED, 2).
-define(ENDED, 3).
-define(FAILED, 4).
%% Times are counted in classes. Each power of two has eight classes, so the width of a class is at most 1/8 of its
%% time. The range ends at 2^40 ns (18 minutes).
-define(FIRST_CLASS, 5).
-define(POWERS, 40).
-define(LAST_CLASS, (?FIRST_CLASS + 8 * (?POWERS - 2) - 1)).

-spec new() -> stats().
new() ->
    counters:new(?LAST_CLASS, [write_concurrency]).

%% Took_ns: duration of the acquire.
-spec granted(stats(), non_neg_integer()) -> ok.
granted(Stats, Took_ns) ->
    counters:add(Stats, ?GRANTED, 1),
    counters:add(Stats, class(Took_ns), 1).

-spec refused(stats(), non_neg_integer()) -> ok.
refused(Stats, Took_ns) ->
    counters:add(Stats, ?REFUSED, 1),
    counters:add(Stats, class(Took_ns), 1).

-spec ended(stats()) -> ok.
ended(Stats) ->
    counters:add(Stats, ?ENDED, 1).

-spec failed(stats()) -> ok.
failed(Stats) ->
    counters:add(Stats, ?FAILED, 1).

-spec read(stats()) -> reading().
read(Stats) ->
    %% `granted' is read last, so that `ended' is never greater.
    Ended = counters:get(Stats, ?ENDED),
    #{
        ended => Ended,
        failed => counters:get(Stats, ?FAILED),
        refused => counters:get(Stats, ?REFUSED),
        times => [
            {below_ns(Class), Acquires}
         || Class <- lists:seq(?FIRST_CLASS, ?LAST_CLASS), Acquires <- [counters:get(Stats, Class)], Acquires > 0
        ],
        granted => counters:get(Stats, ?GRANTED)
    }.

%% The difference to an earlier reading.
-spec since(reading(), reading()) -> reading().
since(#{times := Before} = Earlier, #{times := Now} = Later) ->
    Times = [{Below, Acquires - proplists:get_value(Below, Before, 0)} || {Below, Acquires} <- Now],
    Counts = maps:map(fun(Name, Count) -> Count - maps:get(Name, Earlier) end, maps:remove(times, Later)),
    Counts#{times => [Time || {_, Acquires} = Time <- Times, Acquires > 0]}.

%% The upper bound of the class at this quantile; 0 if there are no times.
-spec quantile(reading(), 1..1000) -> non_neg_integer().
quantile(#{times := Times}, Thousandths) ->
    All = lists:sum([Acquires || {_, Acquires} <- Times]),
    quantile(Times, (All * Thousandths + 999) div 1000, 0).

quantile([{Below, Acquires} | _], Rank, Before) when Before + Acquires >= Rank -> Below;
quantile([{_, Acquires} | Rest], Rank, Before) -> quantile(Rest, Rank, Before + Acquires);
quantile([], _, _) -> 0.

%% Each time below 8 ns has its own class. The class of other times is their highest bit and the next three.
class(Time_ns) when Time_ns < 8 ->
    ?FIRST_CLASS + Time_ns;
class(Time_ns) ->
    Power = power(Time_ns),
    min(?LAST_CLASS, ?FIRST_CLASS + 8 * (Power - 2) + ((Time_ns bsr (Power - 3)) band 7)).

power(Time_ns) ->
    length(integer_to_list(Time_ns, 2)) - 1.

below_ns(Class) ->
    case Class - ?FIRST_CLASS of
        Small when Small < 8 -> Small + 1;
        Place -> (8 + Place rem 8 + 1) bsl (Place div 8 - 1)
    end.
