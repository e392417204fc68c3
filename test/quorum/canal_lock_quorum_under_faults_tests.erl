%% Q1, Q5, Q8 to Q11 on nodes with faults: some of the faults, with short leases. soak_quorum_faults runs all faults
%% with the default lease.
-module(canal_lock_quorum_under_faults_tests).

-include_lib("eunit/include/eunit.hrl").

-define(TIMEOUT_S, 120).

%% So that there is something to judge: granted locks and additions to the register. And in each setting three or more
%% faults end a lock that is certainly held.
-define(GRANTED, 100).
-define(ADDS, 50).
-define(LOST, 3).

faults_test_() ->
    Tests = [
        {timeout, test_setup:times(?TIMEOUT_S), {Title, fun() ->
            [run(Setting, Faults) || _ <- lists:seq(1, test_setup:times(1))]
        end}}
     || {Title, Setting, Faults} <- settings()
    ],
    test_setup:quietly([in_namespaces() | Tests]).

in_namespaces() ->
    case test_network:possible() of
        true -> [];
        {false, Why} -> test_setup:skipped("locks under faults in network namespaces; they run on proxies instead", Why)
    end.

settings() ->
    Cut = [cut_off_from_all, sends_nothing, suspended_for_longer_than_leases, one_is_killed, all_are_killed],
    Ended = [voter_dies, agent_dies, connections_are_closed],
    Late = [voters_forget_a_holder, answers_are_late, held_back_answers],
    [
        {"Q1, Q5, Q8, Q9, Q10, Q11: nodes are cut off, suspended and killed", setting(#{}), Cut},
        {"Q1, Q3, Q5, Q8, Q9: processes end, connections are closed, messages are held back",
            setting(#{network => proxies}), Ended ++ Late},
        {"Q1, Q3, Q5, Q8, Q9: the same on a client, and on members that have clients",
            setting(#{nodes => 5, clients => [1, 5], network => proxies}), Ended ++ Late ++ [one_is_killed]}
    ].

setting(More) ->
    Setting = #{
        nodes => 3, lease_ms => test_quorum_cluster:lease_ms(), enough => #{granted => ?GRANTED, adds => ?ADDS}
    },
    maps:merge(Setting, More).

run(Setting, Faults) ->
    #{wrong := Wrong, counts := Counts, seen := Seen} = test_quorum_fault_run:run(Setting, Faults),
    ?assertEqual({[], Seen, Counts}, {Wrong, Seen, Counts}),
    #{granted := Granted, lost := Lost, adds := Adds} = Counts,
    ?assertEqual({true, true, true, Counts}, {Granted >= ?GRANTED, Lost >= ?LOST, Adds >= ?ADDS, Counts}).
