%% Clients of quorum locks and of cluster permits on clusters with faults, with the default lease: random samples of the
%% faults until the time is up. Prints what each fault did, as tables for docs/.
%%
%%     erl ... -run soak_quorum_faults main MINUTES SEED
%%
%% exits with status 1 if a promise is broken. scripts/soak.sh calls it.
-module(soak_quorum_faults).

-export([main/1]).

%% The faults of a cluster. Each takes 10 s to a minute.
-define(SAMPLE, 4).

%% Nodes notice soon that they are disconnected, and by default `global' then closes connections with other nodes too.
-define(SOON, ["-kernel", "net_ticktime", "4"]).
-define(NOT_PREVENTED, ["-kernel", "prevent_overlapping_partitions", "false"]).

%% Idle schedulers do not spin.
-define(IDLE, ["+sbwt", "none", "+sbwtdcpu", "none", "+sbwtdio", "none"]).

-spec main([string()]) -> no_return().
main([Minutes, Seed]) ->
    ok = logger:set_primary_config(level, none),
    _ = rand:seed(exsss, list_to_integer(Seed)),
    Results = rounds(1, settings(), erlang:monotonic_time(second) + 60 * list_to_integer(Minutes)),
    Faults = lists:sum([length(Seen) || #{seen := Seen} <- Results]),
    Wrong = lists:append([Wrong || #{wrong := Wrong} <- Results]),
    io:format("~ncovered: ~w clusters, ~w faults: ~w wrong~n", [length(Results), Faults, length(Wrong)]),
    halt(min(1, length(Wrong))).

rounds(Round, Settings, End_s) ->
    [{Title, Setting, Faults} | _] = test_setup:shuffled(Settings),
    Sample = [none | lists:sublist(test_setup:shuffled(Faults), ?SAMPLE)],
    Result = run(Round, Title, Setting, Sample),
    case erlang:monotonic_time(second) < End_s of
        true -> [Result | rounds(Round + 1, Settings, End_s)];
        false -> [Result]
    end.

settings() ->
    Setting = #{lease_ms => 10_000, clocks => os:type() =:= {unix, linux}},
    All = [Fault || Fault <- test_quorum_faults:all(), is_possible(Fault, Setting)],
    Late = [answers_are_late, held_back_answers],
    Held = [voters_forget_a_holder, one_is_killed | Late],
    HeldBack = Setting#{nodes => 3, network => proxies},
    [{"3 nodes, messages held back", HeldBack, Held}, with_permits(HeldBack, All) | with_clients(HeldBack, All)] ++
        settings(Setting, All -- [none | Late]).

%% Node 1, on which most faults are, is a client. 48 nodes would use all processors if their clients checked locks more
%% often, or if idle schedulers spun.
with_clients(Setting, All) ->
    Many = #{nodes => 48, clients => [1 | lists:seq(18, 48)], busy => 1, pause_ms => 50, arguments => ?IDLE},
    [
        {"3 members, 2 clients", Setting#{nodes => 5, clients => [1, 5]}, All -- [none]},
        {"16 members, 32 clients", maps:merge(Setting, Many), All -- [none]}
    ].

%% A node that does not reach the allocator gets no permits, so no two nodes are cut from each other only.
with_permits(Setting, All) ->
    Permits = Setting#{nodes => 9, clients => [1, 7, 8, 9], users => test_cluster_clients},
    {"5 members, 4 clients, cluster permits", Permits,
        All -- [none, two_are_cut_from_each_other, voters_forget_a_holder, unlocked_by_force]}.

settings(Setting, Faults) ->
    case test_network:possible() of
        true ->
            Five = Setting#{nodes => 5, network => namespaces},
            Cut = [cut_off_from_all, receives_nothing, sends_nothing, a_large_message],
            [
                {"3 nodes, network namespaces", Five#{nodes => 3}, Faults},
                {"5 nodes, network namespaces, net_ticktime 4", Five#{arguments => ?SOON}, Faults},
                {"5 nodes, the same without prevent_overlapping_partitions",
                    Five#{arguments => ?SOON ++ ?NOT_PREVENTED}, Faults}
            ] ++ [
                {"3 nodes, TCP sends again each second", Five#{nodes => 3, arguments => Flags}, Cut}
             || {true, Flags} <- [test_network:mends_soon()]
            ];
        {false, {_, Why}} ->
            io:format("no network namespaces, so connections go through proxies: ~ts~n", [Why]),
            [{"3 nodes, proxies", Setting#{nodes => 3, network => proxies}, Faults}]
    end.

is_possible(wall_clocks_jump, #{clocks := Clocks}) -> Clocks;
is_possible(_, _) -> true.

run(Round, Title, Setting, Faults) ->
    Result = #{seen := Seen, counts := Counts, wrong := Wrong} = test_quorum_fault_run:run(Setting, Faults),
    io:format("~n## Round ~w: ~ts~n~n| fault | observation |~n|---|---|~n", [Round, Title]),
    [io:format("| ~ts | ~ts |~n", [name(Fault), Description]) || {Fault, Description} <- Seen],
    Sorted = [io_lib:format("~ts ~w", [Kind, Count]) || {Kind, Count} <- lists:sort(maps:to_list(Counts))],
    io:format("~n~ts~n", [lists:join(", ", Sorted)]),
    [io:format("WRONG: ~0tp~n", [Violation]) || Violation <- Wrong],
    Result.

name(Fault) ->
    lists:join(" ", string:split(atom_to_list(Fault), "_", all)).
