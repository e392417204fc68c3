%% CP1 and CP3 to CP6 on nodes with faults, with short leases, judged from what the clients recorded.
-module(canal_lock_cluster_faults_tests).

-include_lib("eunit/include/eunit.hrl").

-define(TIMEOUT_S, 240).

%% So that there is something to judge.
-define(GRANTED, 1000).

faults_test_() ->
    Cut = [cut_off_from_all, sends_nothing, suspended_for_longer_than_leases, one_is_killed, all_are_killed],
    Ended = [voter_dies, agent_dies, connections_are_closed, locks_are_stopped],
    Late = [answers_are_late, held_back_answers],
    Tests = [
        {timeout, test_setup:times(?TIMEOUT_S), {Title, fun() -> run(Setting, Faults) end}}
     || {Title, Setting, Faults} <- [
            {"CP1, CP3, CP4, CP5, CP6: nodes are cut off, suspended and killed", #{nodes => 3}, Cut},
            {"CP1, CP3, CP4, CP5, CP6: processes end, connections are closed, messages are held back; with clients",
                #{nodes => 5, clients => [1, 5], network => proxies}, Ended ++ Late ++ [one_is_killed]}
        ]
    ],
    test_setup:quietly(Tests).

run(Setting, Faults) ->
    Lease_ms = test_quorum_cluster:lease_ms(),
    Enough = #{granted => ?GRANTED, adds => 0},
    #{wrong := Wrong, counts := Counts, seen := Seen} = test_quorum_fault_run:run(
        Setting#{lease_ms => Lease_ms, users => test_cluster_clients, enough => Enough}, Faults
    ),
    ?assertEqual({[], Seen, Counts}, {Wrong, Seen, Counts}),
    ?assert(maps:get(granted, Counts) >= ?GRANTED).
