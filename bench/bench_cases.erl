%% The measurements as data: the scenarios that bench_scenarios samples, and the title and unit of every case,
%% including those of the other benchmark groups.
-module(bench_cases).

-export([scenarios/1, cases/0, subjects/0, variants/0, keys/0, shapes/0, unit/2]).

-export_type([subject/0, measure/0, mode/0, scenario/0, kind/0]).

-type subject() :: ours | elixir | ets | counters | atomics | floor | gen_server | poolboy | none.
%% pair, acquire, release, full, per_second, and the measures of the other groups.
-type measure() :: atom().
-type mode() :: #{atom() => term()}.
-type kind() :: pair | acquire | release | full | pair_of_choices | pair_of_many | mix.
-type scenario() :: #{
    id := {Case :: atom(), Variant :: string(), X :: number() | none},
    subjects := [subject(), ...],
    %% fresh: new processes for each sample, one for each of `keys'. resident: one process that stays. It holds the
    %% given number of permits or keys in addition to the pairs that are measured.
    workers := fresh | {resident, beside()},
    %% What the worker's loop uses; bench_subjects:prepare/2 converts it for the subject.
    keys := [bench_subjects:key_source(), ...],
    max_per := pos_integer(),
    buckets := pos_integer(),
    %% Number of other processes that hold a permit of each key during the measurement.
    held := non_neg_integer(),
    %% Timed one after the other, each from the start of the first worker to the end of the last.
    phases := [kind(), ...],
    %% The unit of a sample: nanoseconds per loop as each worker sees it, or loops per second of all workers.
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
        {refused, "refusals while another process holds the only permit (full); series of acquires and of releases"},
        {buckets, "acquire + release above X full buckets (MaxPer 1, other processes hold them)"},
        {keys, "acquire + release of a random key among X keys in use, one process"},
        {crowd, "acquire + release by X concurrent processes"},
        {held, "acquire + release by a process that holds X permits"},
        {mix, "90 % pairs, 5 % refusals, 4 % deaths, 1 % resizes, 1000 keys, as many processes as schedulers"},
        {latency, "duration of single calls (X is the percentile)"},
        {lives, "short-lived processes"},
        {die_off, "many holders killed at once"},
        {sweep, "sweep of idle keys, and inspection of the table"},
        {info, "duration of an inspection"},
        {memory, "memory of a key in use, and of a holder"},
        %% Of bench/waiting.
        {uncontended, "acquire of a free permit + release, one process"},
        {hand_over, "from the release to the instant when the waiter runs (X is the percentile)"},
        {queue, "a turn with X waiters on the key"},
        {waiter, "memory of a waiter"},
        {overload, "1,000 clients and 100 permits"},
        {order, "requests that were compared, and those that overtook an equal one"},
        {give, "give of a permit to another process"},
        {death, "life of a process that dies with a permit"}
    ].

%% In the order of the report: the API, what it is compared with, and the lower bounds.
-spec subjects() -> [subject()].
subjects() ->
    [ours, elixir, ets, counters, atomics, floor, gen_server, poolboy, none].

%% Variants in the order of the report. Other variants follow alphabetically.
-spec variants() -> [string()].
variants() ->
    [Variant || {Variant, _} <- keys() ++ shapes()].

-spec unit(Case :: atom(), measure()) -> string().
unit(_, per_second) -> "1/s";
unit(_, longest_mailbox) -> "messages";
unit(memory, _) -> "B";
unit(waiter, _) -> "B";
unit(order, _) -> "requests";
unit(die_off, _) -> "ms";
unit(lives, last_death_to_free) -> "us";
unit(sweep, reclaim) -> "ns";
unit(sweep, _) -> "us";
unit(info, _) -> "us";
unit(_, _) -> "ns".

%% Generators for measurements that need many keys of one shape.
-spec shapes() -> [{string(), fun((non_neg_integer()) -> term())}].
shapes() ->
    [
        {"atom", fun(I) -> list_to_atom("db" ++ integer_to_list(I)) end},
        {"tuple", fun(I) -> {app, I} end},
        {"bin32", fun(I) -> <<I:256>> end}
    ].

%% The case `keys' is not here: bench_keys starts a VM for each number of keys.
-spec scenarios(mode()) -> [scenario(), ...].
scenarios(#{held := Held, crowds := Crowds}) ->
    lists:append([pairs(), refused(), buckets(), crowd(Crowds), held(Held), mix()]).

pairs() ->
    [pair({pair, Variant, none}, subjects_of_pairs(Variant), [{key, Key}]) || {Variant, Key} <- keys()].

%% `atomics' and `floor' do not read the key, and `elixir' passes it on. Three shapes are enough for them.
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
            %% The floor has one counter for all keys, so it cannot run the variants with several keys.
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
