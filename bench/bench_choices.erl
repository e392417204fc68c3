%% Prepares the sequence of keys for loops that use many keys.
-module(bench_choices).

-export([zipf/2, begin_at/1, seed/0]).

-export_type([place/0]).

-type place() :: {?MODULE, bench_cases:subject()}.

%% A power of two, because the loops wrap around with a mask. Far more than a process uses in one time slice.
-define(CHOICES, 8192).

%% A table of keys in which the key of rank R occurs 1/R times as often as the first key (Zipf, s = 1). It is the same
%% for all subjects. It is a persistent term, which processes read without a copy.
-spec zipf(bench_cases:subject(), Keys :: pos_integer()) -> place().
zipf(Subject, Keys) ->
    Name = {?MODULE, Subject},
    case persistent_term:get(Name, none) of
        none ->
            Places = list_to_tuple([bench_subjects:prepare(Subject, {zipf, Rank}) || Rank <- lists:seq(1, Keys)]),
            persistent_term:put(Name, list_to_tuple([element(Rank, Places) || Rank <- ranks(Keys)]));
        _ ->
            ok
    end,
    Name.

ranks(Keys) ->
    Weights = [1 / Rank || Rank <- lists:seq(1, Keys)],
    Sum = lists:sum(Weights),
    {Ranks, _} = lists:mapfoldl(
        fun(_, Random) ->
            {Point, Next} = rand:uniform_s(Random),
            {rank(Point * Sum, Weights, 1), Next}
        end,
        rand:seed_s(exsss, 1),
        lists:seq(1, ?CHOICES)
    ),
    Ranks.

rank(Point, [Weight | Weights], Rank) when Point >= Weight, Weights =/= [] -> rank(Point - Weight, Weights, Rank + 1);
rank(_, _, Rank) -> Rank.

-spec begin_at(place()) -> {Choices :: tuple(), At :: pos_integer()}.
begin_at(Name) ->
    {persistent_term:get(Name), rand:uniform(?CHOICES)}.

%% Starts a sequence of random numbers in a loop (bench_random.hrl).
-spec seed() -> non_neg_integer().
seed() ->
    rand:uniform(1 bsl 32) - 1.
