%% What is measured, as data: the scenarios whose samples bench_timed takes, and the title and unit of every case, of
%% the other rooms', too.
-module(bench_cases).

-export([scenarios/1, cases/0, subjects/0, variants/0, keys/0, shapes/0, unit/2]).

-export_type([subject/0, measure/0, mode/0, scenario/0, kind/0]).

-type subject() :: ours | elixir | ets | counters | atomics | floor | none.
%% pair, acquire, release, full, per_second; and what else the rooms yield.
-type measure() :: atom().
-type mode() :: #{atom() => term()}.
-type kind() :: pair | acquire | release | full | pair_of_choices | pair_of_many | mix.
-type scenario() :: #{
    id := {Case :: atom(), Variant :: string(), X :: number() | none},
    subjects := [subject(), ...],
    %% fresh: processes of their own for each sample, one for each of `keys'. resident: one process that takes so many
    %% permits of so many keys beside the one that is measured, and stays.
    workers := fresh | {resident, beside()},
    %% What its worker's loop runs on; bench_subjects:place/2 says what the subject makes of it.
    keys := [bench_subjects:where(), ...],
    max_per := pos_integer(),
    buckets := pos_integer(),
    %% So many other processes hold a permit of each key all the while.
    held := non_neg_integer(),
    %% Timed one after the other, each from the first worker that begins to the last that ends.
    phases := [kind(), ...],
    %% What a sample is worth: nanoseconds for one loop as each worker sees it, or loops per second of all together.
    measures := [per_loop | per_second, ...]
}.
-type beside() :: {permits | keys, non_neg_integer()}.

%% More than any sample acquires before it releases.
-define(UNBOUNDED, 1 bsl 40).
-define(ZIPF_KEYS, 100).
-define(UUID, <<"3f2504e0-4f89-41d3-9a0c-0305e82c3301">>).

%% The cases in the order of the report.
-spec cases() -> [{Case :: atom(), Title :: string()}].
cases() ->
    [
        {pair, "acquire + release, one process"},
        {refused, "another process holds the only permit (full); acquires and releases in a row, timed apart"},
        {buckets, "acquire + release above full buckets (X of them; MaxPer 1, other processes hold them)"},
        {keys, "acquire + release of a key picked at random among X that are in use, one process"},
        {crowd, "acquire + release by X processes at once"},
        {held, "acquire + release by a process that holds X permits"},
        {mix, "90 % pairs, 5 % refused, 4 % deaths, 1 % resizes, over 1000 keys, as many processes as schedulers"},
        {latency, "how long single calls take (X is the percentile)"},
        {lives, "short-lived processes"},
        {die_off, "many holders killed at once"},
        {sweep, "the sweep of idle keys, and looks at the table"},
        {info, "what a look costs"},
        {memory, "memory of a key in use, and of a holder"}
    ].

%% In the order of the report: what is compared, what it is compared with, and what lies below.
-spec subjects() -> [subject()].
subjects() ->
    [ours, elixir, ets, counters, atomics, floor, none].

%% Those that have an order of their own; the others follow by the alphabet.
-spec variants() -> [string()].
variants() ->
    [Variant || {Variant, _} <- keys() ++ shapes()].

-spec unit(Case :: atom(), measure()) -> string().
unit(_, per_second) -> "1/s";
unit(_, longest_mailbox) -> "messages";
unit(memory, _) -> "B";
unit(die_off, _) -> "ms";
unit(lives, last_death_to_free) -> "us";
unit(sweep, reclaim) -> "ns";
unit(sweep, _) -> "us";
unit(info, _) -> "us";
unit(_, _) -> "ns".

%% For whoever needs many keys of a kind.
-spec shapes() -> [{string(), fun((non_neg_integer()) -> term())}].
shapes() ->
    [
        {"atom", fun(I) -> list_to_atom("db" ++ integer_to_list(I)) end},
        {"tuple", fun(I) -> {app, I} end},
        {"bin32", fun(I) -> <<I:256>> end}
    ].

%% The counts of `keys' are not here: bench_keys has a VM of its own for each.
-spec scenarios(mode()) -> [scenario(), ...].
scenarios(#{held := Held, crowds := Crowds}) ->
    lists:append([pairs(), refused(), buckets(), crowd(Crowds), held(Held), mix()]).

pairs() ->
    [pair({pair, Variant, none}, subjects_of_pairs(Variant), [{key, Key}]) || {Variant, Key} <- keys()].

%% `atomics' and `floor' do not look at the key, and `elixir' passes it on: three shapes say what they cost.
subjects_of_pairs(Variant) ->
    case lists:member(Variant, ["atom", "{app, 12345}", "32-byte binary"]) of
        true -> [ours, elixir, ets, counters, atomics, floor];
        false -> [ours, ets, counters]
    end.

%% A key of each shape, from the smallest to the largest of a kind.
-spec keys() -> [{Variant :: string(), Key :: term()}, ...].
keys() ->
    [
        {"atom", db},
        {"integer", 12345},
        {"pid", self()},
        {"reference", make_ref()},
        {"{app, 12345}", {app, 12345}},
        {"{mod, function, 3}", {mod, function, 3}},
        {"{shop, {eu, {cart, 7}}}", {shop, {eu, {cart, 7}}}},
        {"{a,{b,{c,<<\"d\">>}}}", {a, {b, {c, <<"d">>}}}},
        {"{{10,0,0,1}, 8080}", {{10, 0, 0, 1}, 8080}},
        {"{<<\"tenant-1234\">>, 42}", {<<"tenant-1234">>, 42}},
        {"{<<\"acme\">>, <<\"printer-7\">>}", {<<"acme">>, <<"printer-7">>}},
        {"{app, UUID}", {app, ?UUID}},
        {"32-byte binary", <<12345:256>>},
        {"UUID, 36-byte binary", ?UUID},
        {"100-byte binary", <<12345:800>>},
        {"\"host.example\"", "host.example"},
        {"40-character string", "tenants/1234/documents/5678/thumbnails/9"},
        {"#{app => 1, region => eu}", #{app => 1, region => eu}}
    ].

refused() ->
    Shapes = [{"atom", refused, alone}, {"{app, 12345}", {refused, 12345}, {alone, 12345}},
              {"32-byte binary", <<12346:256>>, <<12347:256>>}],
    lists:append([
        [
            (pair({refused, Variant, none}, [ours, ets, counters, floor], [{key, Full}]))#{
                max_per := 1, held := 1, phases := [full]
            },
            (pair({refused, Variant, none}, [ours], [{key, Alone}]))#{
                max_per := ?UNBOUNDED, phases := [acquire, release]
            }
        ]
     || {Variant, Full, Alone} <- Shapes
    ]).

buckets() ->
    [
        (pair({buckets, "MaxPer 1", Full}, [ours, ets], [{key, {below, Full}}]))#{
            max_per := 1, buckets := Full + 1, held := Full
        }
     || Full <- [1, 10, 100, 1000]
    ].

crowd(Crowds) ->
    lists:append([
        [
            %% The floor has one counter for all keys, so it has no place in the others.
            crowd("one key", Processes, [ours, ets, counters, atomics, floor], [
                {key, {one, Processes}} || _ <- lists:seq(1, Processes)
            ]),
            crowd("distinct keys", Processes, [ours, ets, counters, atomics], [
                {key, {distinct, Processes, I}} || I <- lists:seq(1, Processes)
            ]),
            crowd("100 keys by Zipf", Processes, [ours, ets, counters, atomics], [
                {zipf, ?ZIPF_KEYS} || _ <- lists:seq(1, Processes)
            ])
        ]
     || Processes <- Crowds
    ]).

crowd(Variant, Processes, Subjects, [{Kind, _} | _] = Keys) ->
    Measures = [per_second | [per_loop || Processes =< 2, Kind =:= key]],
    Phase = case Kind of key -> pair; zipf -> pair_of_choices end,
    (pair({crowd, Variant, Processes}, Subjects, Keys))#{
        max_per := ?UNBOUNDED, phases := [Phase], measures := Measures
    }.

held(Counts) ->
    [
        (pair({held, Variant, Count}, [ours, ets], [{key, {Of, Count}}]))#{
            max_per := ?UNBOUNDED, workers := {resident, {Of, Count}}
        }
     || {Variant, Of} <- [{"permits of the key", permits}, {"permits of other keys", keys}],
        Count <- Counts
    ].

mix() ->
    Workers = [mix || _ <- lists:seq(1, erlang:system_info(schedulers_online))],
    [
        (pair({mix, "90/5/4/1", none}, [ours, ets], Workers))#{
            max_per := ?UNBOUNDED, phases := [mix], measures := [per_second]
        }
    ].

pair(Id, Subjects, Keys) ->
    #{
        id => Id,
        subjects => Subjects,
        workers => fresh,
        keys => Keys,
        max_per => 10,
        buckets => 1,
        held => 0,
        phases => [pair],
        measures => [per_loop]
    }.
