%% What the demo shows on a terminal.
-module(router_demo_screen_tests).

-include_lib("eunit/include/eunit.hrl").

terminal_test() ->
    First = router_demo_screen:new({terminal, 80}),
    {Second, Shown} = said(fun() -> router_demo_screen:show(picture(4000), First) end),
    ?assertEqual(
        [
            "Requests through a router, which gives each app as many as its dynos bear.",
            "[##########..............................] 4 of 16 s, 7 processes killed",
            "",
            "app  dynos buckets       capacity busy granted/s refused/s died/s p50 us p99 us",
            "shop     6 [3,3,3,3,3,1]       18   15      1234       789      3    0.4   12.0",
            "(p50, p99: what an acquire takes. busy: requests that dynos work on.)",
            ""
        ],
        lines(Shown)
    ),
    %% In place of what was there, and what has happened below.
    Said = router_demo_screen:say({4200, "shop: 6 -> 2 dynos"}, Second),
    {_, Again} = said(fun() -> router_demo_screen:show(picture(16000), Said) end),
    ?assertEqual("\e[7A\r", lists:sublist(Again, 5)),
    ?assertEqual("  4.2 s  shop: 6 -> 2 dynos", lists:last(lines(Again))),
    ?assertMatch([_, "[########################################] 16" ++ _ | _], lines(lists:nthtail(5, Again))).

%% Lines that are too long for it are cut.
narrow_test() ->
    Screen = router_demo_screen:say({0, lists:duplicate(100, $x)}, router_demo_screen:new({terminal, 40})),
    {_, Shown} = said(fun() -> router_demo_screen:show(picture(0), Screen) end),
    ?assertEqual([39, 39, 0, 39, 39, 39, 0, 39], [length(Line) || Line <- lines(Shown)]).

few_events_stay_test() ->
    Say = fun(Number, Screen) -> router_demo_screen:say({1000 * Number, integer_to_list(Number)}, Screen) end,
    Screen = lists:foldl(Say, router_demo_screen:new({terminal, 80}), lists:seq(1, 20)),
    {_, Shown} = said(fun() -> router_demo_screen:show(picture(0), Screen) end),
    ?assertEqual(["15", "16", "17", "18", "19", "20"], [lists:last(string:lexemes(L, " ")) || L <- tail(Shown, 6)]).

tail(Shown, Count) ->
    Lines = lines(Shown),
    lists:nthtail(length(Lines) - Count, Lines).

lines(Shown) ->
    [string:prefix(Line, "\e[K") || Line <- string:split(Shown, "\n", all), Line =/= "\e[J"].

said(Show) ->
    router_demo_listener:listen(Show).

picture(Elapsed_ms) ->
    Row = #{
        host => <<"shop">>, dynos => 6, capacity => 18, buckets => [3, 3, 3, 3, 3, 1], at_work => 15,
        granted_s => 1234.4, refused_s => 789.0, died_s => 2.6, p50_ns => 400, p99_ns => 12000
    },
    #{elapsed_ms => Elapsed_ms, all_ms => 16000, killed => 7, rows => [Row]}.
