%% Statistics of an app: counters of requests, and histograms of acquire times and waits. Updates are lock-free.
-module(router_stats).

-export([new/0, granted/2, refused/2, waited/2, ended/1, failed/1]).
-export([read/1, since/2, total/1, quantile/2]).

-export_type([stats/0, reading/0, histogram/0]).

-opaque stats() :: counters:counters_ref().

-type reading() :: #{
    granted := non_neg_integer(),
    refused := non_neg_integer(),
    %% Answered by a dyno or by the router. The VM released the permits of the other granted requests after a death.
    ended := non_neg_integer(),
    %% The part of `ended' without a complete answer of a dyno.
    failed := non_neg_integer(),
    %% Acquire times of granted and refused requests, without their wait.
    times := histogram(),
    %% Waits that have ended: with a permit, at the deadline, or when the client has disconnected.
    waits := histogram()
}.

-type histogram() :: [{Below_ns :: pos_integer(), Count :: pos_integer()}].

-define(GRANTED, 1).
-define(REFUSED, 2).
-define(ENDED, 3).
-define(FAILED, 4).
%% Times are counted in classes. Each power of two has eight classes, so the width of a class is at most 1/8 of its
%% time. The range ends at 2^40 ns (18 minutes).
-define(FIRST_CLASS, 5).
-define(POWERS, 40).
-define(CLASSES, (8 * (?POWERS - 2))).
%% The counters of the waits follow those of the acquire times.
-define(FIRST_WAIT, (?FIRST_CLASS + ?CLASSES)).

-spec new() -> stats().
new() ->
    counters:new(?FIRST_WAIT + ?CLASSES - 1, [write_concurrency]).

%% Took_ns: duration of the acquire.
-spec granted(stats(), non_neg_integer()) -> ok.
granted(Stats, Took_ns) ->
    counters:add(Stats, ?GRANTED, 1),
    counters:add(Stats, ?FIRST_CLASS + class(Took_ns), 1).

-spec refused(stats(), non_neg_integer()) -> ok.
refused(Stats, Took_ns) ->
    counters:add(Stats, ?REFUSED, 1),
    counters:add(Stats, ?FIRST_CLASS + class(Took_ns), 1).

%% Took_ns: from the arrival of a request that has waited to the end of its wait.
-spec waited(stats(), non_neg_integer()) -> ok.
waited(Stats, Took_ns) ->
    counters:add(Stats, ?FIRST_WAIT + class(Took_ns), 1).

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
        times => histogram(Stats, ?FIRST_CLASS),
        waits => histogram(Stats, ?FIRST_WAIT),
        granted => counters:get(Stats, ?GRANTED)
    }.

histogram(Stats, First) ->
    Counts = [{below_ns(Class), counters:get(Stats, First + Class)} || Class <- lists:seq(0, ?CLASSES - 1)],
    [Row || {_, Count} = Row <- Counts, Count > 0].

%% The difference to an earlier reading.
-spec since(reading(), reading()) -> reading().
since(Earlier, Later) ->
    maps:map(fun(Name, Value) -> difference(Value, maps:get(Name, Earlier)) end, Later).

difference(Now, Before) when is_integer(Now) ->
    Now - Before;
difference(Now, Before) ->
    Counts = [{Below, Count - proplists:get_value(Below, Before, 0)} || {Below, Count} <- Now],
    [Row || {_, Count} = Row <- Counts, Count > 0].

-spec total(histogram()) -> non_neg_integer().
total(Histogram) ->
    lists:sum([Count || {_, Count} <- Histogram]).

%% The upper bound of the class at this quantile; 0 if the histogram is empty.
-spec quantile(histogram(), 1..1000) -> non_neg_integer().
quantile(Histogram, Thousandths) ->
    quantile(Histogram, (total(Histogram) * Thousandths + 999) div 1000, 0).

quantile([{Below, Count} | _], Rank, Before) when Before + Count >= Rank -> Below;
quantile([{_, Count} | Rest], Rank, Before) -> quantile(Rest, Rank, Before + Count);
quantile([], _, _) -> 0.

%% Each time below 8 ns has its own class. The class of other times is their highest bit and the next three.
class(Time_ns) when Time_ns < 8 ->
    Time_ns;
class(Time_ns) ->
    Power = power(Time_ns),
    min(?CLASSES - 1, 8 * (Power - 2) + ((Time_ns bsr (Power - 3)) band 7)).

power(Time_ns) ->
    length(integer_to_list(Time_ns, 2)) - 1.

below_ns(Class) when Class < 8 -> Class + 1;
below_ns(Class) -> (8 + Class rem 8 + 1) bsl (Class div 8 - 1).
