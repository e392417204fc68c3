%% Measures loops of calls: the scenarios below, each with all of its subjects.
%%
%% Options of the mode: rounds; sample_ms; crowds; held.
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
    %% What the measuring process itself holds besides: further permits of the key, or of as many other keys.
    beside := {permits | keys, non_neg_integer()},
    %% Timed one after the other, each from the start of the first worker to the end of the last.
    phases := [pair | full, ...],
    %% Nanoseconds per loop as each worker sees it, or loops per second of all workers.
    measures := [per_loop | per_second, ...]
}.

%% More than any sample acquires before it releases.
-define(UNBOUNDED, 1 bsl 40).
-define(UUID, <<"3f2504e0-4f89-41d3-9a0c-0305e82c3301">>).

-spec measure(bench:mode()) -> bench_results:results().
measure(#{rounds := Rounds} = Mode) ->
    Scenarios = scenarios(Mode),
    Subjects = lists:usort(lists:append([bench_builds:with_ours(Of) || #{subjects := Of} <- Scenarios])),
    bench_builds:in_vms(fun(Vm) ->
        [ok = bench_builds:call(Vm(Subject), fun() -> bench_subjects:start(Subject) end) || Subject <- Subjects],
        Runs = [
            {{Case, Variant}, bench_sample:runs(Vm(Subject), {Case, Variant, X, Subject}, Options, Mode)}
         || #{id := {Case, Variant, X}, subjects := Of, measures := Measures} <- Scenarios,
            Subject <- bench_builds:with_ours(Of),
            Options <- [#{workers => workers_of({Case, Variant, X}, Subject, Mode), measures => Measures}]
        ],
        Groups = maps:groups_from_list(fun({Compared, _}) -> Compared end, fun({_, Run}) -> Run end, Runs),
        bench_rounds:play(Rounds, maps:values(Groups))
    end).

%% Finds the scenario again in the VM in which it is measured, because its keys can be a pid or a reference.
workers_of(Id, Subject, Mode) ->
    fun() ->
        [Scenario] = [Scenario || #{id := I} = Scenario <- scenarios(Mode), I =:= Id],
        workers(Scenario, Subject)
    end.

-spec workers(scenario(), bench_results:subject()) -> [bench_sample:worker(), ...].
workers(#{keys := Keys, max_per := MaxPer, buckets := Buckets, phases := Phases} = Scenario, Subject) ->
    #{held := Held, beside := Beside} = Scenario,
    Places = maps:from_list([{Key, bench_subjects:prepare(Subject, Key)} || Key <- lists:usort(Keys)]),
    ok = bench_subjects:hold(Subject, lists:duplicate(Held, [hd(Keys)]), MaxPer, Buckets),
    [
        #{
            phases => [
                {Kind, bench_loops:loop(Subject, Kind), maps:get(Key, Places), MaxPer, Buckets}
             || Kind <- Phases
            ],
            around => fun(Run) -> beside(Beside, Key, Run) end
        }
     || Key <- Keys
    ].

%% Only of the builds of the library. Without garbage: a collection would take longer than a sample.
beside({Of, Count}, Key, Run) ->
    Other = fun(I) -> case Of of permits -> Key; keys -> {Key, I} end end,
    ok = each(Count, fun(I) -> {acquired, _} = canal_lock:acquire(Other(I), ?UNBOUNDED, 1) end),
    true = erlang:garbage_collect(),
    Laps = Run(),
    ok = each(Count, fun(I) -> ok = canal_lock:release(Other(I)) end),
    Laps.

each(0, _Fun) ->
    ok;
each(I, Fun) ->
    _ = Fun(I),
    each(I - 1, Fun).

-spec scenarios(bench:mode()) -> [scenario(), ...].
scenarios(#{held := Held, crowds := Crowds}) ->
    lists:append([pairs(), refused(), buckets(), crowd(Crowds), held(Held)]).

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
            max_per := 1, held := 1, phases := [full]
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

%% The floor has one counter for all keys, so it cannot run the variant with several keys.
crowd(Crowds) ->
    lists:append([
        [
            crowd("one key", Processes, [ours, ets, counters, atomics, floor], [
                {one, Processes} || _ <- lists:seq(1, Processes)
            ]),
            crowd("distinct keys", Processes, [ours, ets, counters, atomics], [
                {distinct, Processes, I} || I <- lists:seq(1, Processes)
            ])
        ]
     || Processes <- Crowds
    ]).

crowd(Variant, Processes, Subjects, Keys) ->
    (pair({crowd, Variant, Processes}, Subjects, Keys))#{
        max_per := ?UNBOUNDED, measures := [per_second | [per_loop || Processes =< 2]]
    }.

held(Counts) ->
    [
        (pair({held, Variant, Count}, [ours], [{Of, Count}]))#{max_per := ?UNBOUNDED, beside := {Of, Count}}
     || {Variant, Of} <- [{"permits of the key", permits}, {"permits of other keys", keys}], Count <- Counts
    ].

pair(Id, Subjects, Keys) ->
    #{
        id => Id,
        subjects => Subjects,
        keys => Keys,
        max_per => 10,
        buckets => 1,
        held => 0,
        beside => {keys, 0},
        phases => [pair],
        measures => [per_loop]
    }.
