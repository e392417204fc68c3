%% What the members of a cluster must agree on: the fingerprint of frames, and the id of the list.
-module(canal_lock_quorum_config_tests).

-include_lib("eunit/include/eunit.hrl").

%% The numbers must be the same on all OTP releases.
agreed_test_() ->
    Three = [a@h, b@h, c@h],
    List = <<"74cf52cb0fbe2de89fdb61073a7478f3">>,
    [
        {Title, fun() -> ?assertEqual({Fingerprint, List}, agreed(Options)) end}
     || {Title, Fingerprint, Options} <- [
            {"a list of three", 1930898961, #{members => Three}},
            {"its order does not matter", 1930898961, #{members => lists:reverse(Three)}},
            {"nor does run", 1930898961, #{members => Three, run => 3}},
            {"a lease is in the fingerprint, and not in the list", 2741496537, #{members => Three, lease_ms => 12_000}}
        ]
    ].

agreed(Options) ->
    #{fingerprint := Fingerprint, list := List} = make(Options),
    {Fingerprint, List}.

make(Options) ->
    ok = canal_lock_quorum_nif:load(),
    canal_lock_quorum_config:make(Options).

members(Count) ->
    [node() | [list_to_atom(lists:concat(["n", N, "@host"])) || N <- lists:seq(2, Count)]].

at_most_16_members_test() ->
    ok = canal_lock_quorum_nif:load(),
    Wrong = fun(Count) -> canal_lock_quorum_config:wrong_option(#{members => members(Count)}) end,
    ?assertEqual(none, Wrong(16)),
    ?assertMatch({wrong, members, "be a list of 1 to 16 nodes" ++ _, _}, Wrong(17)),
    #{places := Places} = make(#{members => members(16)}),
    ?assertEqual(lists:seq(0, 15), lists:sort(maps:values(Places))).
