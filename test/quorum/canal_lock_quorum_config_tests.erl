%% What the native library gets of the options.
-module(canal_lock_quorum_config_tests).

-include_lib("eunit/include/eunit.hrl").

make(Options) ->
    ok = canal_lock_quorum_nif:load(),
    canal_lock_quorum_config:make(Options).

members(Count) ->
    [node() | [list_to_atom(lists:concat(["n", N, "@host"])) || N <- lists:seq(2, Count)]].

at_most_16_members_test() ->
    Wrong = fun(Count) -> canal_lock_quorum_config:wrong_option(#{members => members(Count)}) end,
    ?assertEqual(none, Wrong(16)),
    ?assertMatch({wrong, members, "be a list of 1 to 16 nodes", _}, Wrong(17)).

a_member_that_is_added_later_test() ->
    ?assertEqual(none, canal_lock_quorum_config:wrong_option(#{members => [a@host]})).

setup_test() ->
    %% A node without distribution has no file by default, and no clients.
    ?assertMatch(
        #{
            members := [a@host, b@host],
            setup := #{
                node := nonode@nohost, seeds := [_, _], lease_ms := 10_000, run := 16, durable := false,
                clients := false
            }
        },
        make(#{members => [b@host, a@host]})
    ),
    ?assertMatch(
        #{setup := #{durable := true, lease_ms := 2000, run := 3}},
        make(#{members => [a@host], state_file => "f", lease_ms => 2000, run => 3})
    ).

clients_test() ->
    Is = fun(Clients) ->
        canal_lock_quorum_config:is_client(a@host, make(#{members => [node()], clients => Clients}))
    end,
    ?assertEqual([true, false, true, false], [Is(Clients) || Clients <- [all, none, [a@host], [b@host]]]).
