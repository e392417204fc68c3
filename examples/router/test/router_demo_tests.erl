%% Runs a shorter demo, as `make demo' does in a separate VM, and checks its exit status and output: of the router, and
%% of routers that break promises.
-module(router_demo_tests).

%% Called in the VM of the demo.
-export([run/2, raise_limit/0, exchange_modes/0, leave_waiter/0]).

-include_lib("eunit/include/eunit.hrl").

demo_test_() ->
    {inparallel, [
        {timeout, 120, {Title, fun() -> check(Scenario, Tamper, Status, Expected) end}}
     || {Title, Scenario, Tamper, Status, Expected} <- [
            {"the demo keeps every promise", "full", "none", 0, [
                "shop: 3 dynos", "blog: 6 dynos", "the manager is killed", "\nAll promises were kept.\n"
            ]},
            {"the demo reports a router that exceeds the limit", "short", "raise_limit", 1, [
                "on a dyno with a limit of 3", "admitted with capacity 5 instead of 3"
            ]},
            {"the demo reports apps in the wrong mode", "short", "exchange_modes", 1, [
                "requests waited, although it refuses at once", "refused before their deadline of 200 ms"
            ]},
            {"the demo reports waits beyond the deadline, and waiters that are left", "slow", "leave_waiter", 1, [
                "ms instead of at most 200", "1 requests that still wait", "1 requests in the queues of the apps"
            ]}
        ]
    ]}.

check(Scenario, Tamper, Status, Expected) ->
    Paths = [filename:dirname(code:which(Module)) || Module <- [router, ?MODULE, test_await, canal_lock]],
    Call = lists:concat([?MODULE, ":run(", Scenario, ", ", Tamper, ")."]),
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

-spec run(full | short | slow, atom()) -> no_return().
run(Scenario, none) ->
    router_demo:present(scenario(Scenario));
run(Scenario, Tamper) ->
    _ = spawn_link(?MODULE, Tamper, []),
    run(Scenario, none).

%% An eighth of the demo's duration, with less load.
scenario(full) ->
    #{
        apps => [{<<"shop">>, 3, 24, 0}, {<<"blog">>, 3, 24, 200}],
        total_ms => 4000,
        events => [{0, {dynos, 1}}, {1000, {dynos, 3}}, {2000, {dynos, 6}}, {2500, crash}, {3000, {dynos, 2}}],
        behavior => #{work_ms => 10, reset_one_of => 20},
        leave_one_of => 20,
        kill_every_ms => 20,
        %% Longer than on any machine.
        late_ms => 20000,
        end_ms => 10000
    };
%% Without changes after the start.
scenario(short) ->
    (scenario(full))#{total_ms := 2000, events := [{0, {dynos, 1}}]};
%% So slow, and with so few kills, that clients wait for longer than the deadline and what the verdict adds. One request
%% is never granted.
scenario(slow) ->
    (scenario(short))#{
        behavior := #{work_ms => 150, reset_one_of => never},
        kill_every_ms := 1000,
        late_ms := 250,
        end_ms := 3000
    }.

%% Each of these acts as soon as the router knows the apps, without a record of it.
-spec raise_limit() -> ok.
raise_limit() ->
    change(<<"shop">>, fun(Dynos) -> router:put(<<"shop">>, 5, Dynos, 0) end).

-spec exchange_modes() -> ok.
exchange_modes() ->
    ok = change(<<"shop">>, fun(Dynos) -> router:put(<<"shop">>, 3, Dynos, 200) end),
    change(<<"blog">>, fun(Dynos) -> router:put(<<"blog">>, 3, Dynos, 0) end).

-spec leave_waiter() -> no_return().
leave_waiter() ->
    ok = change(<<"blog">>, fun(Dynos) -> router:put(<<"blog">>, 3, Dynos, 5000) end),
    %% More permits than the app ever has.
    {waiting, _} = canal_lock:request(<<"blog">>, 0, 0, #{permits => 100}),
    timer:sleep(infinity).

change(Host, Change) ->
    case ets:whereis(router) =/= undefined andalso router:find(Host) of
        {ok, #{dynos := Dynos}} -> Change(Dynos);
        _ -> erlang:yield(), change(Host, Change)
    end.
