%% What the members of a cluster must agree on: the fingerprint of frames, the rules in hellos, and the id of the list.
-module(canal_lock_quorum_config_tests).

-include_lib("eunit/include/eunit.hrl").

-define(DEFAULT_PARTITIONS, 4096).

%% The numbers must be the same on all OTP releases.
whole_test_() ->
    Three = [a@h, b@h, c@h],
    List = <<"74cf52cb0fbe2de89fdb61073a7478f3">>,
    Leases = #{holder_lease_ms => 8000, voter_lease_ms => 10_000},
    [
        {Title, fun() -> ?assertEqual({Fingerprint, Rules, List}, agreed(Options)) end}
     || {Title, Fingerprint, Rules, Options} <- [
            {"a list of three", 2259749913, Leases, #{members => Three}},
            {"its order does not matter", 2259749913, Leases, #{members => lists:reverse(Three)}},
            {"nor does replicas", 2259749913, Leases, #{members => Three, replicas => 5}},
            {"nor does replicas if it is the number of members", 2259749913, Leases,
                #{members => Three, replicas => 3}},
            {"nor do partitions", 2259749913, Leases, #{members => Three, rules => #{partitions => 64}}},
            {"a lease is in the fingerprint, and not in the list", 2142728322, Leases#{voter_lease_ms := 12_000},
                #{members => Three, rules => #{voter_lease_ms => 12_000, quarantine_ms => 12_000}}}
        ]
    ].

agreed(Options) ->
    #{fingerprint := Fingerprint, agreed_rules := Rules, list := List} = make(Options),
    {Fingerprint, Rules, List}.

make(Options) ->
    ok = canal_lock_quorum_nif:load(),
    canal_lock_quorum_config:make(Options).

members(Count) ->
    [node() | [list_to_atom(lists:concat(["n", N, "@host"])) || N <- lists:seq(2, Count)]].

with(Count, Options) ->
    make(Options#{members => members(Count)}).

all_members_of_a_small_list_vote_test() ->
    lists:foreach(fun({Count, Options, Replicas}) ->
        Config = #{setup := Setup, agreed_rules := Agreed} = with(Count, Options),
        ?assertMatch(#{count := Count, replicas := Replicas}, Setup),
        ?assertEqual(Replicas < Count, canal_lock_quorum_config:is_grouped(Config)),
        ?assertEqual(case Replicas < Count of true -> Replicas; false -> none end, maps:get(replicas, Agreed, none)),
        ?assertEqual(<<>>, canal_lock_quorum_nif:check(Setup))
    end, [
        {Count, Options, min(Count, Replicas)}
     || Count <- [1, 2, 3, 4, 5, 6, 64],
        {Options, Replicas} <- [{#{}, 5}, {#{replicas => 5}, 5}, {#{replicas => 3}, 3}]
    ]).

groups_are_agreed_on_test() ->
    Six = members(6),
    {Fingerprint, Rules, List} = agreed(#{members => Six}),
    ?assertMatch(#{replicas := 5, partitions := ?DEFAULT_PARTITIONS}, Rules),
    ?assertEqual(agreed(#{members => Six}), agreed(#{members => Six, replicas => 5})),
    Names = [atom_to_binary(Member, utf8) || Member <- lists:sort(Six)],
    ?assertNotEqual(canal_lock_quorum_config:list_of_all(Names), List),
    %% Any other way to choose the voters is another list.
    Others = [
        agreed(#{members => Six, replicas => Replicas, rules => #{partitions => Partitions}})
     || {Replicas, Partitions} <- [{5, 64}, {3, ?DEFAULT_PARTITIONS}, {3, 64}]
    ],
    ?assertMatch(
        [#{replicas := 5, partitions := 64}, #{replicas := 3}, #{replicas := 3, partitions := 64}],
        [Of || {_, Of, _} <- Others]
    ),
    Fingerprints = [Fingerprint | [Of || {Of, _, _} <- Others]],
    Lists = [List | [Of || {_, _, Of} <- Others]],
    ?assertEqual({4, 4}, {length(lists:usort(Fingerprints)), length(lists:usort(Lists))}).

%% The text that is hashed must stay the same, as that of a list without groups.
list_with_groups_test() ->
    #{list := List} = make(#{members => [a@h, b@h, c@h, d@h, e@h, f@h]}),
    ?assertEqual(<<"05994b076acbffd89a1450e6ba9984a2">>, List).

at_most_64_members_test() ->
    ok = canal_lock_quorum_nif:load(),
    Wrong = fun(Count) -> canal_lock_quorum_config:wrong_option(#{members => members(Count), fence_file => none}) end,
    ?assertEqual(none, Wrong(64)),
    ?assertMatch({wrong, members, "be a list of 1 to 64 nodes" ++ _, _}, Wrong(65)),
    #{places := Places} = with(64, #{}),
    ?assertEqual(lists:seq(0, 63), lists:sort(maps:values(Places))).
