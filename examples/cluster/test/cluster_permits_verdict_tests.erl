%% The verdict of the demo of cluster permits: it accepts a correct record, and reports each thing that is wrong in one.
-module(cluster_permits_verdict_tests).

-include_lib("eunit/include/eunit.hrl").

-define(LIMIT, 2).
-define(PROMISED_MS, 1000).

nothing_wrong_test() ->
    Verdict = judge(events(), []),
    ?assertMatch(
        #{
            broken := [],
            most := 2,
            served := #{n1 := 1, n2 := 2},
            lost := 1,
            disconnected := 1,
            recoveries := [{"n1 is killed", 990}, {"n2 is cut off", 500}]
        },
        Verdict
    ),
    ?assertEqual("All promises were kept.", lists:flatten(lists:last(cluster_permits_verdict:lines(Verdict)))).

wrong_test_() ->
    [
        {Sentence, fun() -> ?assertMatch([_ | _], found(Sentence, judge(Events, Missing))) end}
     || {Sentence, Events, Missing} <- [
            %% The cut-off node does not cancel its request in time.
            {"3 requests were at work at once, and the limit is 2",
                with([{2200, {ended, n2, lost}}], [{2800, {ended, n2, lost}}]), []},
            {"n1 is killed: the other nodes used all permits after 1090 ms, and 1000",
                with([{1000, {began, n2}}, {1010, {ended, n2, served}}, {1020, {began, n2}}], [{1100, {began, n2}}]),
                []},
            {"n2 is cut off: the other nodes used all permits after never ms", before(2500), []},
            {"no request ended because its permit was lost", as_served(lost), []},
            {"no request was at work on a node that was killed", as_served(disconnected), []},
            {"only one node was served", with([{5, {ended, n1, served}}, {5, {began, n1}}], []), []},
            {"awaited without success: n1", events(), ["n1"]}
        ]
    ].

%% The text contains what was found.
broken_lines_test() ->
    Lines = [lists:flatten(Line) || Line <- cluster_permits_verdict:lines(judge([], []))],
    ?assertNot(lists:member("All promises were kept.", Lines)),
    ?assert(lists:member("BROKEN  there was no fault", Lines)).

%%% A record: n1 is killed, n2 uses all permits and is cut off, n3 gets them.

events() ->
    [
        {0, {began, n1}},
        {0, {began, n2}},
        {5, {ended, n1, served}},
        {5, {began, n1}},
        {10, {fault, "n1 is killed", n1}},
        {20, {ended, n1, disconnected}},
        {1000, {began, n2}},
        {1010, {ended, n2, served}},
        {1020, {began, n2}},
        {2000, {fault, "n2 is cut off", n2}},
        {2100, {ended, n2, served}},
        {2200, {ended, n2, lost}},
        {2400, {began, n3}},
        {2500, {began, n3}}
    ].

with(Less, More) ->
    lists:keysort(1, (events() -- Less) ++ More).

before(Until_ms) ->
    [Event || Event = {At_ms, _} <- events(), At_ms < Until_ms].

as_served(How) ->
    [
        case Event of {At_ms, {ended, Node, How}} -> {At_ms, {ended, Node, served}}; _ -> Event end
     || Event <- events()
    ].

judge(Events, Missing) ->
    cluster_permits_verdict:judge(Events, #{limit => ?LIMIT, promised_ms => ?PROMISED_MS, missing => Missing}).

found(Sentence, #{broken := Broken}) ->
    [Found || Found <- Broken, string:find(Found, Sentence) =/= nomatch].
