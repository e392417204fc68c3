%% What is measured and what is to come of it, as data: the cases, and the ratios between their figures.
-module(bench_cases).

-export([cases/0, shapes/0, ratios/0, title/1, unit/1]).

-export_type([subject/0, op/0, scenario/0, ratio/0, id/0]).

-type subject() :: ours | ets | floor | atomics.
-type op() :: pair | acquire | release | full | table | public_table | os | median | rare | longest.
-type id() :: {Group :: atom(), Variant :: string(), subject(), op()}.
-type scenario() :: #{
    group := atom(),
    variant := string(),
    %% One worker for each.
    keys := [term(), ...],
    max_per := pos_integer(),
    buckets := pos_integer(),
    %% So many other processes hold a permit of each key all the while.
    held := non_neg_integer(),
    ops := [op(), ...],
    subjects := [subject(), ...]
}.
-type ratio() :: #{
    text := string(),
    dividend := id(),
    divisor := id(),
    factor => number(),
    target => {at_most | at_least, number()}
}.

%% More than any sample acquires before it releases.
-define(UNBOUNDED, 1 bsl 40).

-spec shapes() -> [{string(), fun((non_neg_integer()) -> term())}].
shapes() ->
    [
        {"atom", fun(I) -> list_to_atom("db" ++ integer_to_list(I)) end},
        {"tuple", fun(I) -> {app, I} end},
        {"bin32", fun(I) -> <<I:256>> end}
    ].

-spec cases() -> [scenario()].
cases() ->
    lists:append([
        [
            #{group => pair, variant => Variant, keys => [Make(12345)], max_per => 10, buckets => 1,
              held => 0, ops => [pair], subjects => [ours, ets, floor, atomics]}
         || {Variant, Make} <- shapes()
        ],
        [
            #{group => alone, variant => Variant, keys => [Make(12346)], max_per => ?UNBOUNDED, buckets => 1,
              held => 0, ops => [acquire, release], subjects => [ours]}
         || {Variant, Make} <- shapes()
        ],
        [
            #{group => full, variant => Variant, keys => [Make(12347)], max_per => 1, buckets => 1,
              held => 1, ops => [full], subjects => [ours]}
         || {Variant, Make} <- shapes()
        ],
        [
            #{group => below, variant => integer_to_list(Full) ++ " full", keys => [{below, Full}], max_per => 1,
              buckets => Full + 1, held => Full, ops => [pair], subjects => [ours, ets]}
         || Full <- [1, 1000]
        ],
        [
            #{group => two, variant => "distinct keys", keys => [left, right], max_per => 10, buckets => 1,
              held => 0, ops => [pair], subjects => [ours, ets, atomics]},
            #{group => two, variant => "one key", keys => [middle, middle], max_per => 10, buckets => 1,
              held => 0, ops => [pair], subjects => [ours, ets, floor]}
        ]
    ]).

-spec ratios() -> [ratio()].
ratios() ->
    lists:append([
        [
            #{text => "pair, " ++ Variant ++ ": ours / floor", dividend => {pair, Variant, ours, pair},
              divisor => {pair, Variant, floor, pair}, target => {at_most, Target}}
         || {Variant, Target} <- [{"atom", 1.8}, {"tuple", 1.8}, {"bin32", 2.2}]
        ],
        [
            #{text => "pair, " ++ Variant ++ ": ets / ours", dividend => {pair, Variant, ets, pair},
              divisor => {pair, Variant, ours, pair}, target => {at_least, 40}}
         || {Variant, _} <- shapes()
        ],
        [
            #{text => "pair, " ++ Variant ++ ": ours / two atomics", dividend => {pair, Variant, ours, pair},
              divisor => {pair, Variant, atomics, pair}}
         || {Variant, _} <- shapes()
        ],
        [
            #{text => "full, " ++ Variant ++ ": full / acquire alone", dividend => {full, Variant, ours, full},
              divisor => {alone, Variant, ours, acquire}, target => {at_most, 1}}
         || {Variant, _} <- shapes()
        ],
        [
            #{text => "full, " ++ Variant ++ ": full / half a pair", dividend => {full, Variant, ours, full},
              divisor => {pair, Variant, ours, pair}, factor => 2}
         || {Variant, _} <- shapes()
        ],
        [
            %% "The same" with a tenth for the noise of a shared machine.
            #{text => "1000 full buckets / 1: ours", dividend => {below, "1000 full", ours, pair},
              divisor => {below, "1 full", ours, pair}, target => {at_most, 1.1}},
            #{text => "1000 full buckets / 1: ets", dividend => {below, "1000 full", ets, pair},
              divisor => {below, "1 full", ets, pair}},
            #{text => "throughput of two processes, distinct keys / one: ours", dividend => {pair, "atom", ours, pair},
              divisor => {two, "distinct keys", ours, pair}, factor => 2, target => {at_least, 1.8}},
            %% What the machine has to give at that moment: two counters that share nothing.
            #{text => "throughput of two processes, distinct keys / one: atomics",
              dividend => {pair, "atom", atomics, pair},
              divisor => {two, "distinct keys", atomics, pair}, factor => 2},
            #{text => "throughput of two processes, distinct keys / one: ets", dividend => {pair, "atom", ets, pair},
              divisor => {two, "distinct keys", ets, pair}, factor => 2},
            #{text => "two processes on one key: ours / floor", dividend => {two, "one key", ours, pair},
              divisor => {two, "one key", floor, pair}}
        ],
        [
            #{text => "memory, " ++ Variant ++ ": ours / ets (" ++ Text ++ ")",
              dividend => {memory, Variant, ours, OfOurs}, divisor => {memory, Variant, ets, OfEts},
              target => {at_most, 1}}
         || {Variant, _} <- shapes(),
            {Text, OfOurs, OfEts} <- [
                {"both tables", table, table}, {"its public table", table, public_table}, {"as the OS sees it", os, os}
            ]
        ]
    ]).

-spec title(Group :: atom()) -> string().
title(pair) -> "acquire + release, one process";
title(alone) -> "acquires in a row, then releases in a row, one process";
title(full) -> "refused: another process holds the only permit";
title(below) -> "acquire + release above full buckets (MaxPer 1, other processes hold them)";
title(two) -> "acquire + release, two processes at once (as each sees it)";
title(wait) ->
    "how long single calls, sweep steps and pieces of a look take, at worst: quiet, while keys come and go by the "
    "hundred thousand, and while another process looks at all there is";
title(memory) -> "memory of a key in use, one process holding all".

-spec unit(Group :: atom()) -> string().
unit(memory) -> "B";
unit(wait) -> "us";
unit(_) -> "ns".
