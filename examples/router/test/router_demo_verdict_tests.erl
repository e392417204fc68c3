%% Tests the verdict of the demo on synthetic records: it reports violations, and only those.
-module(router_demo_verdict_tests).

-include_lib("eunit/include/eunit.hrl").

%% Two dynos with a limit of one.
nothing_wrong_test() ->
    Verdict = judge([request(1, a, 10, 20), request(2, b, 15, 30), request(3, a, 20, 25)], [scaling(0, 2)]),
    ?assertMatch(#{broken := [], served := 3, killed := 0, after_kill_ns := 0}, Verdict),
    ?assertMatch([#{highest := 2, highest_on_one := 1, at_start := 0, above_ns := 0, late := 0}], phases(Verdict)).

too_many_together_test() ->
    Requests = [request(1, a, 10, 20), request(2, b, 10, 20), request(3, c, 12, 20), request(4, d, 13, 20)],
    ?assertEqual(["shop: 3 requests together instead of 2 (2 times)"], broken(Requests, [scaling(0, 2)])).

%% A request that starts when another one ends does not overlap with it, in any order of the log.
handed_on_at_one_time_test() ->
    ?assertEqual([], broken([request(2, a, 20, 30), request(1, a, 10, 20)], [scaling(0, 1)])),
    ?assertMatch([_ | _], broken([request(2, a, 19, 30), request(1, a, 10, 20)], [scaling(0, 1)])).

too_many_on_one_test() ->
    ?assertEqual(
        ["shop: 2 requests on a dyno with a limit of 1 (1 times)"],
        broken([request(1, a, 10, 20), request(2, a, 12, 20)], [scaling(0, 2)])
    ).

%% A request counts until its process is killed. A request that starts after the kill never counts.
killed_test() ->
    Requests = [request(1, a, 10, 40), request(2, a, 20, 30)],
    ?assertEqual([], broken(Requests, [scaling(0, 1)], #{"1" => 20})),
    ?assertMatch([_ | _], broken(Requests, [scaling(0, 1)], #{"1" => 21})),
    %% Kills at or before its start, and after its end.
    ?assertEqual([], broken(Requests, [scaling(0, 1)], #{"1" => 10})),
    ?assertEqual([], broken(Requests, [scaling(0, 1)], #{"1" => 5})),
    ?assertEqual([], broken([request(1, a, 10, 15), request(2, a, 20, 30)], [scaling(0, 1)], #{"1" => 25})),
    ?assertMatch(#{after_kill_ns := 20, killed := 1}, judge(Requests, [scaling(0, 1)], #{"1" => 20})).

shrunk_test() ->
    Before = [request(1, a, 10, 40), request(2, b, 10, 40), request(3, c, 10, 30)],
    Scalings = [scaling(0, 3), scaling(20, 1)],
    Right = judge([request(1, 4, a, 40, 50) | Before], Scalings),
    ?assertMatch(#{broken := []}, Right),
    ?assertMatch([#{above_ns := 0}, #{at_start := 3, highest := 1, above_ns := 20}], phases(Right)),
    %% A request starts while the app is above its new capacity.
    Wrong = judge([request(1, 4, d, 35, 50) | Before], Scalings),
    ?assertMatch(#{broken := ["shop: 3 requests together instead of 1 (1 times)"]}, Wrong).

%% An app exactly at its new capacity is not above it.
full_and_shrunk_test() ->
    Verdict = judge([request(1, a, 10, 40), request(2, b, 50, 60)], [scaling(0, 2), scaling(20, 1)]),
    ?assertMatch([_, #{at_start := 1, above_ns := 0}], phases(Verdict)),
    Requests = [request(1, a, 10, 40), request(2, b, 10, 30), request(3, c, 45, 50)],
    ?assertMatch([_, #{above_ns := 10}], phases(judge(Requests, [scaling(0, 2), scaling(20, 1)]))).

never_came_down_test() ->
    Verdict = judge([request(1, a, 10, 90), request(2, b, 10, 90)], [scaling(0, 2), scaling(20, 1), scaling(80, 2)]),
    ?assertMatch([_, #{at_start := 2, above_ns := never, begun := 0}, _], phases(Verdict)),
    ?assertMatch([_ | _], [Line || Line <- lines(Verdict), string:find(Line, "still above capacity") =/= nomatch]).

%% A request admitted with two dynos starts when there is one, in addition to a request admitted with one.
late_test() ->
    Requests = [request(2, 1, a, 10, 15), request(1, 2, a, 21, 50), request(2, 3, b, 25, 40)],
    Verdict = judge(Requests, [scaling(0, 2), scaling(20, 1)]),
    ?assertMatch(#{broken := []}, Verdict),
    ?assertMatch([#{late := 0}, #{late := 1, highest := 1}], phases(Verdict)),
    ?assertMatch([_, _], [Line || Line <- lines(Verdict), string:find(Line, "late") =/= nomatch]),
    %% One request with the new capacity may run beside a late one, but a second one may not.
    Full = [request(2, 1, a, 10, 15), request(2, 2, a, 21, 50), request(1, 3, c, 25, 40), request(1, 4, d, 26, 40)],
    ?assertEqual(
        ["shop: 2 requests together instead of 1 (1 times)"], broken(Full, [scaling(0, 2), scaling(20, 1)])
    ),
    %% A late request finds no more than the larger of both capacities.
    Late = [request(2, 1, a, 10, 30), request(2, 2, b, 10, 30), request(2, 3, c, 25, 40)],
    ?assertEqual(
        ["shop: 3 requests together instead of 2 (1 times)"], broken(Late ++ last(), [scaling(0, 2), scaling(20, 1)])
    ).

%% The other requests started after the app grew.
late_in_growth_test() ->
    Two = [request(1, 1, a, 10, 15), request(2, 2, b, 21, 40)],
    ?assertEqual([], broken([request(1, 3, a, 25, 40) | Two], [scaling(0, 1), scaling(20, 2)])),
    Three = [request(2, 4, c, 22, 40) | Two],
    ?assertEqual(
        ["shop: 3 requests together instead of 2 (1 times)"],
        broken([request(1, 3, a, 25, 40) | Three], [scaling(0, 1), scaling(20, 2)])
    ).

%% After the next scaling a late request counts as any other. When it ends, no other request may use its exception.
late_is_over_test() ->
    Shrinks = [scaling(0, 3), scaling(20, 2), scaling(30, 1)],
    Requests = [request(3, 1, a, 10, 15), request(3, 2, a, 21, 50), request(2, 3, b, 25, 26)],
    ?assertMatch([_, _, #{at_start := 1, late := 0}], phases(judge(Requests ++ last(), Shrinks))),
    ?assertEqual(
        ["shop: 2 requests together instead of 1 (1 times)"], broken([request(1, 4, c, 40, 45) | Requests], Shrinks)
    ),
    Ended = [request(2, 1, a, 10, 15), request(2, 2, a, 21, 25), request(1, 3, b, 30, 40), request(1, 4, c, 31, 40)],
    ?assertEqual(
        ["shop: 2 requests together instead of 1 (1 times)"], broken(Ended, [scaling(0, 2), scaling(20, 1)])
    ),
    %% A request may only be late by one scaling.
    ?assertEqual(
        ["shop: a request admitted with capacity 3 instead of 1 (1 times)"],
        broken([request(3, 5, c, 61, 62) | Requests] ++ last(), [scaling(0, 3), scaling(20, 2), scaling(51, 1)])
    ).

last() ->
    [request(1, 9, a, 60, 70)].

not_scaled_test() ->
    First = request(2, 1, a, 10, 20),
    Scalings = [scaling(0, 2), scaling(30, 1)],
    Seconds = 3000000000,
    ?assertEqual([], broken([First, request(2, 2, a, 30 + Seconds, 40 + Seconds)], Scalings)),
    ?assertEqual(
        ["shop: a request admitted with capacity 2 instead of 1 (1 times)"],
        broken([First, request(2, 2, a, 31 + Seconds, 40 + Seconds)], Scalings)
    ),
    ?assertEqual(
        ["shop: a request admitted with capacity 7 instead of 1 (1 times)"],
        broken([First, request(7, 2, a, 40, 50)], Scalings)
    ).

%% Each app is judged separately.
apps_test() ->
    Others = [(request(1, 7, a, 10, 20))#{host := <<"blog">>}, (request(1, 8, b, 12, 20))#{host := <<"blog">>}],
    Scalings = [scaling(0, 2), (scaling(0, 1))#{host := <<"blog">>}],
    ?assertEqual(
        ["blog: 2 requests together instead of 1 (1 times)"],
        broken([request(1, a, 10, 20), request(2, b, 10, 20) | Others], Scalings)
    ).

phase_without_requests_test() ->
    ?assertEqual(
        ["shop: no request while it had 1 dynos"],
        broken([request(2, 1, a, 10, 15)], [scaling(0, 2), scaling(20, 1)])
    ).

left_over_test_() ->
    [
        ?_assertMatch(#{broken := [_]}, judge_at_the_end(#{Name => Number}))
     || {Name, Number} <- [
            {permits, 1}, {holders, 1}, {differing, 1}, {not_held, 1}, {at_work, 1}, {granted, 8}, {released, 5},
            {released_by_death, 2}, {waiting, 1}, {queued, 1}
        ]
    ] ++ [?_assertMatch(#{broken := []}, judge_at_the_end(#{}))].

%% At least 100 refusals in a phase require that half of the capacity was in use.
underused_test() ->
    Requests = [request(1, a, 10, 20), request(2, b, 30, 40)],
    ?assertMatch(
        #{broken := ["shop: 100 refused, although at most 1 of 3 were in use"]},
        judge_refused(Requests, [scaling(0, 3)], 100)
    ),
    ?assertMatch(#{broken := []}, judge_refused(Requests, [scaling(0, 3)], 99)),
    ?assertMatch(#{broken := []}, judge_refused(Requests, [scaling(0, 2)], 100)),
    ?assertMatch(#{broken := []}, judge_refused([request(3, c, 12, 20) | Requests], [scaling(0, 3)], 100)),
    %% Each phase counts its own refusals.
    Scalings = [scaling(0, 1), (scaling(25, 3))#{refused := 500}],
    ?assertMatch(
        #{broken := [], phases := [#{refused := 500}, #{refused := 99}]}, judge_refused(Requests, Scalings, 599)
    ),
    ?assertMatch(#{broken := [_]}, judge_refused(Requests, Scalings, 600)),
    %% Full use at the start of the phase is enough.
    Shrunk = [request(N, N, 10, 40) || N <- [1, 2, 3]] ++ [request(4, d, 41, 42)],
    ?assertMatch(#{broken := []}, judge_refused(Shrunk, [scaling(0, 4), (scaling(25, 3))#{refused := 0}], 100)).

judge_refused(Requests, Scalings, Refused) ->
    Known = [with_capacity(Request, Scalings) || Request <- Requests],
    AtTheEnd = at_the_end(#{<<"shop">> => {0, stats(Refused, [])}}),
    router_demo_verdict:judge(#{requests => Known, scalings => Scalings, kills => #{}}, AtTheEnd).

slow_after_kill_test() ->
    Seconds = 5000000000,
    Requests = fun(Ended) -> [request(1, a, 10, Ended), request(2, a, 20, 30)] end,
    ?assertEqual([], broken(Requests(20 + Seconds), [scaling(0, 1)], #{"1" => 20})),
    ?assertEqual(
        ["a dyno worked for 5.0 s after its request was killed"],
        broken(Requests(21 + Seconds), [scaling(0, 1)], #{"1" => 20})
    ).

-define(MS, 1000000).

%% An app that refuses at once.
no_waits_test() ->
    ?assertEqual([], broken_waits(0, 50, [])),
    ?assertEqual(["shop: 1 requests waited, although it refuses at once"], broken_waits(0, 50, [{1, 1}])).

%% An app that refuses after 200 ms. A timer may be late by 250 ms.
waits_test() ->
    ?assertEqual([], broken_waits(200, 0, [{1, 1}])),
    ?assertEqual([], broken_waits(200, 3, [{90 * ?MS, 7}, {201 * ?MS, 2}, {450 * ?MS, 1}])),
    ?assertEqual(
        ["shop: a request waited for 451 ms instead of at most 200"],
        broken_waits(200, 0, [{90 * ?MS, 7}, {450 * ?MS + 1, 1}])
    ),
    %% The refused requests and others have waited until the deadline.
    ?assertEqual(
        ["shop: 3 refused, but only 2 waited until the deadline"],
        broken_waits(200, 3, [{90 * ?MS, 7}, {200 * ?MS, 5}, {201 * ?MS, 2}])
    ),
    ?assertEqual(["shop: no request waited"], broken_waits(200, 0, [])).

broken_waits(Wait_ms, Refused, Waits) ->
    #{broken := Broken} = judge_at_the_end(at_the_end(#{<<"shop">> => {Wait_ms, stats(Refused, Waits)}})),
    Broken.

%% With no dynos no request may be admitted.
no_dynos_test() ->
    Requests = [request(1, a, 10, 20)],
    ?assertEqual([], broken(Requests, [scaling(0, 1), scaling(30, 0)])),
    ?assertEqual(
        ["shop: 1 requests together instead of 0 (1 times)"],
        broken([request(0, 2, a, 35, 40) | Requests], [scaling(0, 1), scaling(30, 0)])
    ).

judge_at_the_end(Changes) ->
    Record = #{requests => [request(1, 1, a, 10, 20)], scalings => [scaling(0, 1)], kills => #{}},
    router_demo_verdict:judge(Record, maps:merge(at_the_end(), Changes)).

lines_test() ->
    Kept = lines(judge([request(1, 1, a, 10, 20)], [scaling(0, 1)])),
    ?assertEqual("All promises were kept.", lists:last(Kept)),
    ?assertEqual([], [Line || Line <- Kept, length(Line) > 80]),
    Waits = lines(judge_at_the_end(at_the_end(#{<<"shop">> => {200, stats(20, [{90 * ?MS, 50}, {201 * ?MS, 50}])}}))),
    ?assert(lists:member("shop    200 ms       20        0       20      100   90 ms  201 ms   201 ms", Waits)),
    Broken = lines(judge([request(1, 1, a, 10, 20), request(1, 2, a, 12, 20)], [scaling(0, 1)])),
    ?assertEqual(2, length([Line || "BROKEN" ++ _ = Line <- Broken])),
    ?assertNot(lists:member("All promises were kept.", Broken)).

lines(Verdict) ->
    [lists:flatten(Line) || Line <- router_demo_verdict:lines(Verdict)].

phases(#{phases := Phases}) ->
    Phases.

broken(Requests, Scalings) ->
    broken(Requests, Scalings, #{}).

broken(Requests, Scalings, Kills) ->
    maps:get(broken, judge(Requests, Scalings, Kills)).

judge(Requests, Scalings) ->
    judge(Requests, Scalings, #{}).

judge(Requests, Scalings, Kills) ->
    Known = [with_capacity(Request, Scalings) || Request <- Requests],
    router_demo_verdict:judge(#{requests => Known, scalings => Scalings, kills => Kills}, at_the_end()).

%% The capacity of a request without an explicit one is that of the last scaling before its start.
with_capacity(#{capacity := known, host := Host, begun_ns := Begun} = Request, Scalings) ->
    Found = [Dynos || #{host := H, at_ns := At, dynos := Dynos} <- Scalings, H =:= Host, At =< Begun],
    Request#{capacity := lists:last(Found)};
with_capacity(Request, _Scalings) ->
    Request.

request(Number, Dyno, Begun_ns, Ended_ns) ->
    request(known, Number, Dyno, Begun_ns, Ended_ns).

request(Capacity, Number, Dyno, Begun_ns, Ended_ns) ->
    #{
        host => <<"shop">>, dyno => Dyno, process => integer_to_list(Number), capacity => Capacity,
        begun_ns => Begun_ns, ended_ns => Ended_ns, how => answered
    }.

%% The limit of each dyno is one.
scaling(At_ns, Dynos) ->
    #{host => <<"shop">>, at_ns => At_ns, max_per => 1, dynos => Dynos, refused => 0}.

at_the_end() ->
    at_the_end(maps:from_list([{Host, {0, stats(0, [])}} || Host <- [<<"shop">>, <<"blog">>]])).

at_the_end(Apps) ->
    #{
        permits => 0, holders => 0, granted => 7, released => 4, released_by_death => 3, not_held => 0, differing => 0,
        at_work => 0, waiting => 0, queued => 0, apps => Apps
    }.

stats(Refused, Waits) ->
    (router_stats:read(router_stats:new()))#{refused := Refused, waits := Waits}.
