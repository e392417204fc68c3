%% Random histories of cluster permits, and the seeded bugs that they find.
-module(canal_lock_cluster_simulation_tests).

-include_lib("eunit/include/eunit.hrl").

-define(HISTORIES, 1000).

all_test_() ->
    Found = [{"found: " ++ element(1, Bug), fun() -> found(Bug) end} || Bug <- test_cluster_bugs:all()],
    [
        {Title, {timeout, 300, Test}}
     || {Title, Test} <- [{"CP1, CP3, CP4, CP6: histories with faults", fun histories/0} | Found]
    ].

histories() ->
    Counts = [test_cluster_simulation:run(Seed) || Seed <- lists:seq(1, test_setup:times(?HISTORIES))],
    [?assert(lists:any(fun(Count) -> maps:get(What, Count, 0) > 0 end, Counts)) || What <- [messages, grants]].

%% If a change of the machines changes the histories, others find it.
found(Bug) ->
    ?assertNotEqual(none, test_cluster_bugs:search(Bug, lists:seq(1, 20_000))).
