%% Q1, Q5, Q8 to Q11 of locks on nodes that things happen to: a selection, with constants that make it short. All of
%% it, with those that clusters run with, is scripts/quorum_faults.sh.
-module(canal_lock_quorum_under_faults_tests).

-include_lib("eunit/include/eunit.hrl").

-define(TIMEOUT_S, 120).

%% So that there is something to be judged: locks that were granted, and what they protect. And of each of the settings,
%% three faults or more end a lock that is surely held.
-define(GRANTED, 100).
-define(ADDS, 50).
-define(LOST, 3).

faults_test_() ->
    Tests = [
        {timeout, test_setup:times(?TIMEOUT_S), {Title, fun() ->
            [hold(Setting, Faults) || _ <- lists:seq(1, test_setup:times(1))]
        end}}
     || {Title, Setting, Faults} <- settings()
    ],
    test_setup:quietly([in_namespaces() | Tests]).

%% Without them, what is cut off is held back by wires.
in_namespaces() ->
    case test_network:possible() of
        true -> [];
        {false, Why} -> test_setup:skipped("locks under faults in network namespaces, on wires instead", Why)
    end.

settings() ->
    Cut = [cut_off_from_all, is_heard_by_nobody, stopped_for_longer_than_leases, one_is_killed, all_are_killed],
    Ended = [voter_dies, agent_dies, connections_are_closed],
    Late = [voters_forget_a_holder, answers_are_late, held_back_answers],
    [
        {"Q1, Q5, Q8, Q9, Q10, Q11: nodes are cut off, stopped and killed", setting(#{}), Cut},
        {"Q1, Q3, Q5, Q8, Q9: processes end, connections are closed, messages are held back",
            setting(#{kind => wires}), Ended ++ Late}
    ].

setting(More) ->
    More#{nodes => 3, rules => test_quorum_trial:short(), enough => #{granted => ?GRANTED, adds => ?ADDS}}.

hold(Setting, Faults) ->
    #{wrong := Wrong, counts := Counts, seen := Seen} = test_quorum_trial:run(Setting, Faults),
    ?assertEqual({[], Seen, Counts}, {Wrong, Seen, Counts}),
    #{granted := Granted, lost := Lost, adds := Adds} = Counts,
    ?assertEqual({true, true, true, Counts}, {Granted >= ?GRANTED, Lost >= ?LOST, Adds >= ?ADDS, Counts}).
