%% Scrapes the example as Prometheus does, and reads its answer strictly: as the text format, version 0.0.4, requires,
%% and with a tool of Prometheus if that is installed.
-module(permit_metrics_tests).

-include_lib("eunit/include/eunit.hrl").

%% Longer than any test, so no sweep changes a number.
-define(NEVER_MS, 1_000_000_000).

permit_metrics_test_() ->
    Inets = fun() -> {ok, _} = application:ensure_all_started(inets) end,
    {setup, Inets, fun(_) -> application:stop(inets) end, [
        test_setup:tests(without_manager, [
            {"the numbers of info/0 are metrics", fun numbers/0},
            {"without a table the answer is 500", fun without_table/0}
        ]),
        with_promtool("promtool accepts the metrics and the configuration", fun promtool/1)
    ]}.

%% setup.sh does not install Prometheus for this test alone.
with_promtool(Title, Test) ->
    case os:find_executable("promtool") of
        false -> test_setup:skipped(Title, {impossible, "Prometheus is not installed"});
        Promtool -> test_setup:tests(without_manager, [{Title, fun() -> Test(Promtool) end}])
    end.

%%% Set-up

%% With the child that the head of the example describes, on a free port.
with_server(Test) ->
    process_flag(trap_exit, true),
    Before = erlang:ports(),
    Child = #{id => permit_metrics, start => {permit_metrics, start_link, [0]}, type => supervisor},
    Supervisor = test_setup:supervise(0, [Child]),
    [Port] = [Port || Listener <- erlang:ports() -- Before, {ok, Port} <- [inet:port(Listener)]],
    try
        Test(lists:concat(["http://localhost:", Port, "/metrics"]))
    after
        test_setup:stop_supervisor(Supervisor)
    end.

%% The text of a table in which each event of a permit has happened.
text() ->
    {ok, _} = canal_lock:start_link(3, #{sweep_interval_ms => ?NEVER_MS}),
    {Holder, _} = test_worker:start(fun() -> [canal_lock:acquire(Key, 9) || Key <- [1, 2, 3]] end),
    {acquired, 2} = canal_lock:acquire(1, 9),
    full = canal_lock:acquire(1, 1),
    full = canal_lock:acquire(1, 1, #{timeout_ms => 2}),
    {waiting, _} = canal_lock:request(2, 1),
    ok = test_worker:kill(Holder),
    test_await:permits(2),
    ok = canal_lock:give(2, test_worker:start()),
    ok = canal_lock:release(1),
    {error, not_held} = canal_lock:release(1),
    {waiting, _} = canal_lock:request(2, 1),
    with_server(fun(Url) ->
        {ok, {{_, 200, _}, Head, Text}} = httpc:request(Url),
        ?assertEqual("text/plain; version=0.0.4", proplists:get_value("content-type", Head)),
        Text
    end).

%% `{Name, Type, Value}' of each metric. It has three lines, and nothing else is in the text.
metrics(Text) ->
    Metric = "# HELP ([a-z_]+) [A-Z][^\\\\\n]*\\.\n# TYPE \\1 (gauge|counter)\n\\1 ([0-9]+(?:\\.[0-9]{6})?)\n",
    {match, Metrics} = re:run(Text, Metric, [global, {capture, all_but_first, list}]),
    ?assertEqual("", re:replace(Text, Metric, "", [global, {return, list}])),
    [{Name, list_to_atom(Type), Value} || [Name, Type, Value] <- Metrics].

%%% The tests

numbers() ->
    Metrics = metrics(text()),
    Info = maps:without([max_per, granted], canal_lock:info()),
    Events = [refused, released, released_by_death, not_held, handed_over, timed_out, transferred, waiting, permits],
    ?assertEqual([], [Event || Event <- Events, map_get(Event, Info) =:= 0]),
    ?assertEqual(lists:sort(maps:keys(Info)), lists:sort([number(Name) || {Name, _, _} <- Metrics])),
    [?assertEqual({Name, type(Name)}, {Name, Type}) || {Name, Type, _} <- Metrics],
    %% The table frees memory a little later.
    [
        ?assertEqual({Name, map_get(number(Name), Info)}, {Name, value(Name, Value)})
     || {Name, _, Value} <- Metrics, Name =/= "canal_lock_memory_bytes"
    ].

%% The number of info/0 that has this metric.
number("canal_lock_" ++ Name) ->
    Renamed = [{"_total$", ""}, {"_seconds$", "_us"}, {"_bytes$", ""}],
    list_to_atom(lists:foldl(fun({From, To}, Text) -> re:replace(Text, From, To, [{return, list}]) end, Name, Renamed)).

type(Name) ->
    Totals = [
        refused, released, released_by_death, not_held, reclaimed, handed_over, timed_out, wait_us, transferred,
        barriers_refused
    ],
    IsTotal = lists:member(number(Name), Totals),
    ?assertEqual({Name, IsTotal}, {Name, lists:suffix("_total", Name)}),
    case IsTotal of
        true -> counter;
        false -> gauge
    end.

value(Name, Value) ->
    case lists:member(number(Name), [wait_us, longest_wait_us]) of
        true -> round(list_to_float(Value) * 1_000_000);
        false -> list_to_integer(Value)
    end.

without_table() ->
    with_server(fun(Url) -> ?assertMatch({ok, {{_, 500, _}, _, _}}, httpc:request(Url)) end).

promtool(Promtool) ->
    File = "_build/permit_metrics.txt",
    ok = file:write_file(File, text()),
    ?assertEqual({0, <<>>}, test_program:run("/bin/sh", ["-c", "'" ++ Promtool ++ "' check metrics < " ++ File])),
    ?assertMatch({0, _}, test_program:run(Promtool, ["check", "config", "examples/prometheus/prometheus.yml"])).
