%% Tests what the demo shows on a terminal.
-module(router_demo_screen_tests).

-include_lib("eunit/include/eunit.hrl").

terminal_test() ->
    First = router_demo_screen:new({terminal, 80}),
    {Second, Shown} = captured(fun() -> router_demo_screen:show(picture(4000), First) end),
    ?assertEqual(
        [
            "Requests through a router that limits each app to the capacity of its dynos.",
            "[##########..............................] 4 of 16 s, 7 processes killed",
            "",
            "app  dynos buckets       capacity busy granted/s refused/s died/s p50 us p99 us",
            "shop     6 [3,3,3,3,3,1]       18   15      1234       789      3    0.4   12.0",
            "(p50, p99: duration of an acquire. busy: requests in progress on dynos.)",
            ""
        ],
        lines(Shown)
    ),
    %% The table is updated in place, and events are listed below.
    WithEvent = router_demo_screen:add_event({4200, "shop: 6 -> 2 dynos"}, Second),
    {_, Again} = captured(fun() -> router_demo_screen:show(picture(16000), WithEvent) end),
    ?assertEqual("\e[7A\r", lists:sublist(Again, 5)),
    ?assertEqual("  4.2 s  shop: 6 -> 2 dynos", lists:last(lines(Again))),
    ?assertMatch([_, "[########################################] 16" ++ _ | _], lines(lists:nthtail(5, Again))).

%% Long lines are cut to the width of the terminal.
narrow_test() ->
    Screen = router_demo_screen:add_event({0, lists:duplicate(100, $x)}, router_demo_screen:new({terminal, 40})),
    {_, Shown} = captured(fun() -> router_demo_screen:show(picture(0), Screen) end),
    ?assertEqual([39, 39, 0, 39, 39, 39, 0, 39], [length(Line) || Line <- lines(Shown)]).

few_events_stay_test() ->
    AddEvent = fun(Number, Screen) ->
        router_demo_screen:add_event({1000 * Number, integer_to_list(Number)}, Screen)
    end,
    Screen = lists:foldl(AddEvent, router_demo_screen:new({terminal, 80}), lists:seq(1, 20)),
    {_, Shown} = captured(fun() -> router_demo_screen:show(picture(0), Screen) end),
    ?assertEqual(["15", "16", "17", "18", "19", "20"], [lists:last(string:lexemes(L, " ")) || L <- tail(Shown, 6)]).

tail(Shown, Count) ->
    Lines = lines(Shown),
    lists:nthtail(length(Lines) - Count, Lines).

lines(Shown) ->
    [string:prefix(Line, "\e[K") || Line <- string:split(Shown, "\n", all), Line =/= "\e[J"].

captured(Show) ->
    router_demo_output:capture(Show).

picture(Elapsed_ms) ->
    Row = #{
        host => <<"shop">>, dynos => 6, capacity => 18, buckets => [3, 3, 3, 3, 3, 1], at_work => 15,
        granted_s => 1234.4, refused_s => 789.0, died_s => 2.6, p50_ns => 400, p99_ns => 12000
    },
    #{elapsed_ms => Elapsed_ms, total_ms => 16000, killed => 7, rows => [Row]}.
