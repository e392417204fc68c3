%% Runs a shorter demo, as `make demo' does in a separate VM, and checks its exit status and output: of the router, and
%% of a router that breaks promises.
-module(router_demo_tests).

%% Called in the VM of the demo.
-export([run/1]).

-include_lib("eunit/include/eunit.hrl").

demo_test_() ->
    {inparallel, [
        {timeout, 120, {Title, fun() -> check(Router, Status, Expected) end}}
     || {Title, Router, Status, Expected} <- [
            {"the demo keeps every promise", correct, 0, [
                "shop: 3 dynos", "blog: 6 dynos", "the manager is killed", "\nAll promises were kept.\n"
            ]},
            {"the demo reports a router that exceeds the limit, refuses too early, and leaves a waiter", wrong, 1, [
                "on a dyno with a limit of 3", "admitted with capacity 4 instead of 3",
                "refused before their deadline of 200 ms", "1 requests that still wait",
                "1 requests in the queues of the apps"
            ]}
        ]
    ]}.

check(Router, Status, Expected) ->
    Paths = [filename:dirname(code:which(Module)) || Module <- [router, ?MODULE, canal_lock]],
    Call = lists:concat([?MODULE, ":run(", Router, ")."]),
    Port = open_port({spawn_executable, filename:join([code:root_dir(), "bin", "erl"])}, [
        {args, ["-noinput", "-router", "port", "0", "-pa"] ++ Paths ++ ["-eval", Call]}, exit_status
    ]),
    {Status, Output} = output(Port, ""),
    [?assertMatch({_, _, true}, {Text, Output, string:find(Output, Text) =/= nomatch}) || Text <- Expected].

output(Port, Before) ->
    receive
        {Port, {data, Data}} -> output(Port, Before ++ Data);
        {Port, {exit_status, Status}} -> {Status, Before}
    end.

%% An eighth of the demo's duration, with less load.
-spec run(correct | wrong) -> no_return().
run(Router) ->
    Changes = [{0, {dynos, 1}}, {1000, {dynos, 3}}, {2000, {dynos, 6}}, {2500, crash}, {3000, {dynos, 2}}],
    Scenario = #{
        apps => [{<<"shop">>, 3, 24, 0}, {<<"blog">>, 3, 24, 200}],
        total_ms => 4000,
        events => Changes,
        work_ms => 10,
        reset_one_of => 20,
        leave_one_of => 20,
        kill_every_ms => 20,
        %% Longer than on any machine.
        late_ms => 20000,
        end_ms => 10000
    },
    case Router of
        correct ->
            router_demo:run(Scenario);
        wrong ->
            _ = spawn_link(fun tamper/0),
            %% Without other changes, so the last one remains.
            router_demo:run(Scenario#{total_ms := 2000, events := [hd(Changes)], end_ms := 3000})
    end.

%% Acts as soon as the router knows both apps, without a record of it.
tamper() ->
    case [ets:whereis(router) =/= undefined andalso router:find(Host) || Host <- [<<"shop">>, <<"blog">>]] of
        [{ok, #{dynos := Shop}}, {ok, #{dynos := Blog}}] ->
            ok = router:put(<<"shop">>, 4, Shop, 0),
            ok = router:put(<<"blog">>, 3, Blog, 20),
            %% More permits than the app ever has.
            {waiting, _} = canal_lock:request(<<"blog">>, 0, 0, #{permits => 100}),
            timer:sleep(infinity);
        _ ->
            erlang:yield(),
            tamper()
    end.
