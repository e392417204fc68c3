%% Tests the verdict of the demo on synthetic records: it reports violations, and only those.
-module(router_demo_verdict_tests).

-include_lib("eunit/include/eunit.hrl").

-define(S, 1000000000).
-define(MS, 1000000).

%% Requests are {Number, Dyno, Begun, Ended}, or {Capacity, Number, Dyno, Begun, Ended} if they were admitted with
%% another capacity than that at their start. The limit of each dyno is one. Scalings are {At, Dynos}, kills are
%% {Number of the request, At}.
verdict_test_() ->
    Two = "shop: 2 requests together instead of 1 (1 times)",
    [
        {Title, ?_assertEqual(Broken, broken(Requests, Scalings, Kills))}
     || {Title, Broken, Requests, Scalings, Kills} <- [
            {"no violation", [], [{1, a, 10, 20}, {2, b, 15, 30}, {3, a, 20, 25}], [{0, 2}], []},
            {"too many together", ["shop: 3 requests together instead of 2 (2 times)"],
                [{1, a, 10, 20}, {2, b, 10, 20}, {3, c, 12, 20}, {4, d, 13, 20}], [{0, 2}], []},
            {"too many on one dyno", ["shop: 2 requests on a dyno with a limit of 1 (1 times)"],
                [{1, a, 10, 20}, {2, a, 12, 20}], [{0, 2}], []},
            {"a request that starts when another one ends", [], [{2, a, 20, 30}, {1, b, 10, 20}], [{0, 1}], []},
            {"a request that starts before another one ends", [Two], [{2, a, 19, 30}, {1, b, 10, 20}], [{0, 1}], []},
            {"a request counts until its process is killed", [], [{1, a, 10, 40}, {2, b, 20, 30}], [{0, 1}], [{1, 20}]},
            {"and not before", [Two], [{1, a, 10, 40}, {2, b, 20, 30}], [{0, 1}], [{1, 21}]},
            {"killed at its start", [], [{1, a, 10, 40}, {2, b, 20, 30}], [{0, 1}], [{1, 10}]},
            {"killed before its start", [], [{1, a, 10, 40}, {2, b, 20, 30}], [{0, 1}], [{1, 5}]},
            {"killed after its end", [], [{1, a, 10, 15}, {2, b, 20, 30}], [{0, 1}], [{1, 25}]},
            {"a dyno notices a kill late", [], [{1, a, 10, 20 + 5 * ?S}, {2, b, 20, 30}], [{0, 1}], [{1, 20}]},
            {"a dyno notices a kill too late", ["shop: a dyno worked for 5.0 s after its request was killed"],
                [{1, a, 10, 21 + 5 * ?S}, {2, b, 20, 30}], [{0, 1}], [{1, 20}]},
            {"an app that shrank", [],
                [{1, a, 10, 40}, {2, b, 10, 40}, {3, c, 10, 30}, {4, a, 40, 50}], [{0, 3}, {20, 1}], []},
            {"a request starts before a shrunk app is below its capacity",
                ["shop: 3 requests together instead of 1 (1 times)"],
                [{1, a, 10, 40}, {2, b, 10, 40}, {3, c, 10, 30}, {4, d, 35, 50}], [{0, 3}, {20, 1}], []},
            {"a late request beside one with the new capacity", [],
                [{2, 1, a, 10, 15}, {1, 2, a, 21, 50}, {2, 3, b, 25, 40}], [{0, 2}, {20, 1}], []},
            {"two requests with the new capacity beside a late one", [Two],
                [{2, 1, a, 10, 15}, {2, 2, a, 21, 50}, {1, 3, c, 25, 40}, {1, 4, d, 26, 40}], [{0, 2}, {20, 1}], []},
            {"a late request beside too many", ["shop: 3 requests together instead of 2 (1 times)"],
                [{2, 1, a, 10, 30}, {2, 2, b, 10, 30}, {2, 3, c, 25, 40}, {1, 9, a, 60, 70}], [{0, 2}, {20, 1}], []},
            {"a late request after a growth", [],
                [{1, 1, a, 10, 15}, {2, 2, b, 21, 40}, {1, 3, a, 25, 40}], [{0, 1}, {20, 2}], []},
            {"too many with a late request after a growth", ["shop: 3 requests together instead of 2 (1 times)"],
                [{1, 1, a, 10, 15}, {2, 2, b, 21, 40}, {2, 4, c, 22, 40}, {1, 3, a, 25, 40}], [{0, 1}, {20, 2}], []},
            {"after the next scaling a late request counts as any other", [Two],
                [{3, 1, a, 10, 15}, {3, 2, a, 21, 50}, {2, 3, b, 25, 26}, {1, 4, c, 40, 45}],
                [{0, 3}, {20, 2}, {30, 1}], []},
            {"the exception ends with the late request", [Two],
                [{2, 1, a, 10, 15}, {2, 2, a, 21, 25}, {1, 3, b, 30, 40}, {1, 4, c, 31, 40}], [{0, 2}, {20, 1}], []},
            {"late by two scalings", ["shop: a request admitted with capacity 3 instead of 1 (1 times)"],
                [{3, 1, a, 10, 15}, {2, 3, b, 25, 26}, {3, 5, c, 61, 62}, {1, 9, a, 70, 80}],
                [{0, 3}, {20, 2}, {51, 1}], []},
            {"late by three seconds", [], [{2, 1, a, 10, 20}, {2, 2, a, 30 + 3 * ?S, 40 + 3 * ?S}],
                [{0, 2}, {30, 1}], []},
            {"too late", ["shop: a request admitted with capacity 2 instead of 1 (1 times)"],
                [{2, 1, a, 10, 20}, {2, 2, a, 31 + 3 * ?S, 40 + 3 * ?S}], [{0, 2}, {30, 1}], []},
            {"a capacity that never was", ["shop: a request admitted with capacity 7 instead of 1 (1 times)"],
                [{2, 1, a, 10, 20}, {7, 2, a, 40, 50}], [{0, 2}, {30, 1}], []},
            {"a phase without requests", ["shop: no request while it had 1 dynos"],
                [{2, 1, a, 10, 15}], [{0, 2}, {20, 1}], []},
            {"a phase without dynos", [], [{1, a, 10, 20}], [{0, 1}, {30, 0}], []},
            {"a request without dynos", ["shop: 1 requests together instead of 0 (1 times)"],
                [{1, a, 10, 20}, {0, 2, b, 35, 40}], [{0, 1}, {30, 0}], []}
        ]
    ].

%% Each app is judged separately.
apps_test() ->
    Blog = events(<<"blog">>, [{1, a, 10, 20}, {2, b, 12, 20}], [{0, 1}], []),
    Shop = events(<<"shop">>, [{3, a, 10, 20}, {4, b, 12, 20}], [{0, 2}], []),
    #{broken := Broken} = router_demo_verdict:judge(Blog ++ Shop, at_the_end(#{<<"shop">> => 0, <<"blog">> => 0})),
    ?assertEqual(["blog: 2 requests together instead of 1 (1 times)"], Broken).

%% At least 100 refusals in a phase require that half of the capacity was in use.
underused_test_() ->
    One = [{1, a, 10, 20}, {2, b, 30, 40}],
    Full = [{N, N, 10, 40} || N <- [1, 2, 3]] ++ [{4, d, 41, 42}],
    [
        ?_assertEqual(
            ["shop: 100 refused, although at most 1 of 3 were in use" || IsBroken],
            maps:get(broken, judge(Requests, Scalings, [], [refusal(At, 0) || At <- Refused]))
        )
     || {IsBroken, Requests, Scalings, Refused} <- [
            {true, One, [{0, 3}], lists:duplicate(100, 15)},
            {false, One, [{0, 3}], lists:duplicate(99, 15)},
            {false, One, [{0, 2}], lists:duplicate(100, 15)},
            {false, [{3, c, 12, 20} | One], [{0, 3}], lists:duplicate(100, 15)},
            %% Each phase counts its own refusals.
            {false, One, [{0, 1}, {25, 3}], lists:duplicate(500, 15) ++ lists:duplicate(99, 26)},
            {true, One, [{0, 1}, {25, 3}], lists:duplicate(500, 15) ++ lists:duplicate(100, 26)},
            %% Full use at the start of the phase is enough.
            {false, Full, [{0, 4}, {25, 3}], lists:duplicate(100, 26)}
        ]
    ].

refusal(At_ns, Took_ns) ->
    {At_ns, {refused, <<"shop">>, Took_ns, []}}.

waits_test_() ->
    Waited = fun(Ns) -> {15, {admitted, <<"shop">>, Ns, [Ns]}} end,
    [
        ?_assertEqual(Broken, maps:get(broken, judge(Wait_ms, [{1, a, 10, 20}], [{0, 1}], [], Answers)))
     || {Broken, Wait_ms, Answers} <- [
            {[], 0, [refusal(15, 1)]},
            {["shop: 1 requests waited, although it refuses at once"], 0, [Waited(1)]},
            {["shop: no request waited"], 200, []},
            {[], 200, [Waited(1), Waited(450 * ?MS), refusal(15, 200 * ?MS)]},
            {["shop: a request waited for 451 ms instead of at most 200"], 200, [Waited(450 * ?MS + 1), Waited(1)]},
            {["shop: 1 refused before their deadline of 200 ms"], 200, [Waited(1), refusal(15, 200 * ?MS - 1)]}
        ]
    ].

left_over_test_() ->
    Judge = fun(Changes) ->
        Events = events(<<"shop">>, [{1, a, 10, 20}], [{0, 1}], []),
        router_demo_verdict:judge(Events, maps:merge(at_the_end(#{<<"shop">> => 0}), Changes))
    end,
    [?_assertMatch(#{broken := []}, Judge(#{}))] ++
        [
            ?_assertMatch(#{broken := [_]}, Judge(#{Name => Number}))
         || {Name, Number} <- [
                {permits, 1}, {holders, 1}, {differing, 1}, {not_held, 1}, {at_work, 1}, {granted, 8}, {released, 5},
                {released_by_death, 2}, {waiting, 1}, {queued, 1}, {clients, 1}
            ]
        ].

lines_test() ->
    Answers = [{15, {admitted, <<"shop">>, 1, [90 * ?MS]}} | [refusal(15, 1) || _ <- lists:seq(1, 20)]],
    Requests = [{2, 1, a, 10, 30}, {2, 2, b, 12, 25}, {2, 3, c, 26, 28}, {1, 4, a, 31, 40}],
    Lines = router_demo_verdict:lines(judge(0, Requests, [{0, 2}, {20, 1}], [{4, 35}], Answers)),
    [
        ?assert(lists:member(Line, Lines))
     || Line <- [
            "shop      2   0.0 s        2        2       1             0             0",
            "shop      1   0.0 s        1        1       1             2             1",
            "shop     0 ms         1        20         1   90 ms   90 ms   90 ms",
            "shop        4        0             0        1             1 ms"
        ]
    ],
    ?assertEqual(["BROKEN  ", "shop: 1 requests waited, although it refuses at once"], lists:last(Lines)),
    Kept = router_demo_verdict:lines(judge([{1, a, 10, 20}], [{0, 1}], [], [])),
    ?assertEqual("All promises were kept.", lists:last(Kept)).

broken(Requests, Scalings, Kills) ->
    maps:get(broken, judge(Requests, Scalings, Kills, [])).

judge(Requests, Scalings, Kills, Answers) ->
    judge(0, Requests, Scalings, Kills, Answers).

judge(Wait_ms, Requests, Scalings, Kills, Answers) ->
    Events = events(<<"shop">>, Requests, Scalings, Kills) ++ Answers,
    router_demo_verdict:judge(Events, at_the_end(#{<<"shop">> => Wait_ms})).

events(Host, Requests, Scalings, Kills) ->
    [{At_ns, {scaled, Host, 1, Dynos}} || {At_ns, Dynos} <- Scalings] ++
        [{At_ns, {killed, Host, Number}} || {Number, At_ns} <- Kills] ++
        lists:flatmap(fun(Request) -> request(Host, Request, Scalings) end, Requests).

request(Host, {Number, Dyno, Begun_ns, Ended_ns}, Scalings) ->
    Capacity = lists:last([Dynos || {At_ns, Dynos} <- Scalings, At_ns =< Begun_ns]),
    request(Host, {Capacity, Number, Dyno, Begun_ns, Ended_ns}, Scalings);
request(Host, {Capacity, Number, Dyno, Begun_ns, Ended_ns}, _Scalings) ->
    [{Begun_ns, {begins, Host, Number, Dyno, Capacity}}, {Ended_ns, {ends, Host, Number, answered}}].

at_the_end(Apps) ->
    #{
        permits => 0, holders => 0, granted => 7, released => 4, released_by_death => 3, not_held => 0, differing => 0,
        at_work => 0, waiting => 0, queued => 0, apps => Apps, late_ms => 250, clients => 2
    }.
