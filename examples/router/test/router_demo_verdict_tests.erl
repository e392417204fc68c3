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
            {"a phase without requests", ["shop: no request while its capacity was 1 (1 times)"],
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
    ?assertEqual(
        ["blog: 2 requests together instead of 1 (1 times)"],
        judge(Blog ++ Shop, #{apps => #{<<"shop">> => 0, <<"blog">> => 0}})
    ).

waits_test_() ->
    Waited = fun(Ns) -> {15, {admitted, <<"shop">>, Ns, [Ns]}} end,
    Refused = fun(Took_ns) -> {15, {refused, <<"shop">>, Took_ns, []}} end,
    Request = events(<<"shop">>, [{1, a, 10, 20}], [{0, 1}], []),
    [
        ?_assertEqual(Broken, judge(Request ++ Answers, #{apps => #{<<"shop">> => Wait_ms}}))
     || {Broken, Wait_ms, Answers} <- [
            {[], 0, [Refused(1)]},
            {["shop: 1 requests waited, although it refuses at once (1 times)"], 0, [Waited(1)]},
            {["shop: no request waited (1 times)"], 200, []},
            {[], 200, [Waited(1), Waited(450 * ?MS), Refused(200 * ?MS)]},
            {["shop: a request waited for 451 ms instead of at most 200 (1 times)"], 200, [
                Waited(450 * ?MS + 1), Waited(1)
            ]},
            {["shop: 1 refused before their deadline of 200 ms (1 times)"], 200, [Waited(1), Refused(200 * ?MS - 1)]}
        ]
    ].

left_over_test_() ->
    Request = events(<<"shop">>, [{1, a, 10, 20}], [{0, 1}], []),
    [
        ?_assertMatch([_], judge(Request, #{Name => Number}))
     || {Name, Number} <- [
            {permits, 1}, {holders, 1}, {differing, 1}, {not_held, 1}, {at_work, 1}, {granted, 8}, {released, 5},
            {released_by_death, 2}, {waiting, 1}, {queued, 1}, {clients, 1}
        ]
    ].

broken(Requests, Scalings, Kills) ->
    judge(events(<<"shop">>, Requests, Scalings, Kills), #{}).

%% The broken promises. Changes: of a state in which nothing is left over.
judge(Events, Changes) ->
    AtTheEnd = #{
        permits => 0, holders => 0, granted => 7, released => 4, released_by_death => 3, not_held => 0, differing => 0,
        at_work => 0, waiting => 0, queued => 0, apps => #{<<"shop">> => 0}, late_ms => 250, clients => 2
    },
    {_Summary, Broken} = router_demo_verdict:judge(Events, maps:merge(AtTheEnd, Changes)),
    Broken.

events(Host, Requests, Scalings, Kills) ->
    [{At_ns, {scaled, Host, 1, Dynos}} || {At_ns, Dynos} <- Scalings] ++
        [{At_ns, {killed, Host, Number}} || {Number, At_ns} <- Kills] ++
        lists:flatmap(fun(Request) -> request(Host, Request, Scalings) end, Requests).

request(Host, {Number, Dyno, Begun_ns, Ended_ns}, Scalings) ->
    Capacity = lists:last([Dynos || {At_ns, Dynos} <- Scalings, At_ns =< Begun_ns]),
    request(Host, {Capacity, Number, Dyno, Begun_ns, Ended_ns}, Scalings);
request(Host, {Capacity, Number, Dyno, Begun_ns, Ended_ns}, _Scalings) ->
    [{Begun_ns, {begins, Host, Number, Dyno, Capacity}}, {Ended_ns, {ends, Host, Number}}].
