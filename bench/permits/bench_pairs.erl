%% Measures loops of calls: the scenarios below, each with all of its subjects.
%%
%% Options of the mode: rounds; sample_ms.
-module(bench_pairs).

-export([measure/1, keys/0]).

-type scenario() :: #{
    id := {Case :: atom(), Variant :: string(), X :: number() | none},
    subjects := [bench_results:subject(), ...],
    %% Of each worker the key that it uses.
    keys := [Key :: term(), ...],
    max_per := pos_integer(),
    buckets := pos_integer(),
    %% The number of other processes that hold a permit of the key during the measurement.
    held := non_neg_integer(),
    call := pair | full,
    measures := [bench_results:measure(), ...]
}.

%% More than any sample acquires before it releases.
-define(UNBOUNDED, 1 bsl 40).
-define(UUID, <<"3f2504e0-4f89-41d3-9a0c-0305e82c3301">>).

-spec measure(bench:mode()) -> bench_results:results().
measure(#{rounds := Rounds} = Mode) ->
    Subjects = lists:usort(lists:append([bench_builds:with_ours(Of) || #{subjects := Of} <- scenarios()])),
    bench_builds:in_vms(fun(Vm) ->
        [ok = bench_builds:call(Vm(Subject), fun() -> bench_subjects:start(Subject) end) || Subject <- Subjects],
        Runs = [
            {
                {Case, Variant},
                bench_sample:run(Vm(Subject), {Case, Variant, X, Subject}, Measures, workers_of(Id, Subject), Mode)
            }
         || #{id := {Case, Variant, X} = Id, subjects := Of, measures := Measures} <- scenarios(),
            Subject <- bench_builds:with_ours(Of)
        ],
        Groups = maps:groups_from_list(fun({Compared, _}) -> Compared end, fun({_, Run}) -> Run end, Runs),
        bench_rounds:play(Rounds, maps:values(Groups))
    end).

%% Finds the scenario again in the VM in which it is measured, because its keys can be a pid or a reference.
workers_of(Id, Subject) ->
    fun() ->
        [Scenario] = [Scenario || #{id := I} = Scenario <- scenarios(), I =:= Id],
        workers(Scenario, Subject)
    end.

-spec workers(scenario(), bench_results:subject()) -> [bench_sample:worker(), ...].
workers(#{keys := Keys, max_per := MaxPer, buckets := Buckets, held := Held, call := Call}, Subject) ->
    Places = maps:from_list([{Key, bench_subjects:prepare(Subject, Key)} || Key <- lists:usort(Keys)]),
    ok = bench_subjects:hold(Subject, lists:duplicate(Held, [hd(Keys)]), MaxPer, Buckets),
    [{bench_loops:loop(Subject, Call), maps:get(Key, Places), MaxPer, Buckets} || Key <- Keys].

-spec scenarios() -> [scenario(), ...].
scenarios() ->
    lists:append([pairs(), refused(), buckets(), crowd()]).

pairs() ->
    [pair({pair, Variant, none}, subjects_of_pairs(Variant), [Key]) || {Variant, Key} <- keys()].

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
    [
        (pair({refused, Variant, none}, [ours, ets, counters, floor], [Key]))#{
            max_per := 1, held := 1, call := full, measures := [full]
        }
     || {Variant, Key} <- [{"atom", refused}, {"{app, 12345}", {refused, 12345}}, {"32-byte binary", <<12346:256>>}]
    ].

buckets() ->
    [
        (pair({buckets, "MaxPer 1", Full}, [ours, ets], [{below, Full}]))#{
            max_per := 1, buckets := Full + 1, held := Full
        }
     || Full <- [1, 1000]
    ].

%% The workers have a scheduler each. The floor has one counter for all keys, so it cannot run the variant with several
%% keys.
crowd() ->
    lists:append([
        [
            crowd("one key", Processes, [ours, ets, counters, atomics, floor], [
                {one, Processes} || _ <- lists:seq(1, Processes)
            ]),
            crowd("distinct keys", Processes, [ours, ets, counters, atomics], [
                {distinct, Processes, I} || I <- lists:seq(1, Processes)
            ])
        ]
     || Processes <- lists:usort([1, 2, erlang:system_info(schedulers_online)])
    ]).

crowd(Variant, Processes, Subjects, Keys) ->
    (pair({crowd, Variant, Processes}, Subjects, Keys))#{max_per := ?UNBOUNDED, measures := [pair, per_second]}.

pair(Id, Subjects, Keys) ->
    #{
        id => Id,
        subjects => Subjects,
        keys => Keys,
        max_per => 10,
        buckets => 1,
        held => 0,
        call => pair,
        measures => [pair]
    }.
