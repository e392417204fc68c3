%% Tests what the demo shows on a terminal.
-module(router_demo_screen_tests).

-include_lib("eunit/include/eunit.hrl").

terminal_test() ->
    First = router_demo_screen:new({terminal, 80}),
    {Second, Shown} = captured(fun() -> router_demo_screen:show(picture(4000), First) end),
    ?assertEqual(
        [
            "Requests through a router that limits each app to the capacity of its dynos.",
            "If all dynos are busy: shop refuses; blog waits up to 500 ms, then refuses.",
            "[##########..............................] 4 of 16 s, 7 processes killed",
            "",
            "app  dynos buckets        busy queue granted/s refused/s waited/s p99 us p99 ms",
            "shop     6 [3,3,3,3,3,1] 15/18     0      1234       789        0   12.0    0.0",
            "blog     6 [3,3,3,3,3,1] 15/18    32      1234         3     1230   12.0   83.9",
            "(busy: requests on dynos, and capacity. p99 us: of acquires. p99 ms: of waits.)",
            ""
        ],
        lines(Shown)
    ),
    %% The table is updated in place, and events are listed below.
    WithEvent = router_demo_screen:add_event({4200, "shop: 6 -> 2 dynos"}, Second),
    {_, Again} = captured(fun() -> router_demo_screen:show(picture(16000), WithEvent) end),
    ?assertEqual("\e[9A\r", lists:sublist(Again, 5)),
    ?assertEqual("  4.2 s  shop: 6 -> 2 dynos", lists:last(lines(Again))),
    ?assertMatch([_, _, "[########################################] 16" ++ _ | _], lines(lists:nthtail(5, Again))).

%% Long lines are cut to the width of the terminal.
narrow_test() ->
    Screen = router_demo_screen:add_event({0, lists:duplicate(100, $x)}, router_demo_screen:new({terminal, 40})),
    {_, Shown} = captured(fun() -> router_demo_screen:show(picture(0), Screen) end),
    ?assertEqual([39, 39, 39, 0, 39, 39, 39, 39, 0, 39], [length(Line) || Line <- lines(Shown)]).

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
    Shop = #{
        host => <<"shop">>, dynos => 6, capacity => 18, wait_ms => 0, buckets => [3, 3, 3, 3, 3, 1], at_work => 15,
        waiting => 0, granted_s => 1234.4, refused_s => 789.0, waited_s => 0.0,
        acquire_p99_ns => 12000, wait_p99_ns => 0
    },
    Blog = Shop#{
        host := <<"blog">>, wait_ms := 500, waiting := 32, refused_s := 2.6, waited_s := 1230.0,
        wait_p99_ns := 83886080
    },
    #{elapsed_ms => Elapsed_ms, total_ms => 16000, killed => 7, rows => [Shop, Blog]}.
