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
                "refused before their deadline of 500 ms", "1 requests that still wait",
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

%% An eighth of the duration of `make demo'. Waits may end later than on any machine.
-spec run(correct | wrong) -> no_return().
run(Router) ->
    Router =:= wrong andalso spawn_link(fun() -> tamper(0) end),
    router_demo:run(1000, 20000).

%% Changes the limit of `shop' and the deadline of `blog' after each change of the demo, without a record of it.
tamper(Waiters) ->
    Hosts = [<<"shop">>, <<"blog">>],
    case [App || ets:whereis(router) =/= undefined, Host <- Hosts, {ok, App} <- [router:find(Host)]] of
        [#{dynos := Dynos, max_per := 3}, #{dynos := Others, wait_ms := 500}] ->
            ok = router:put(<<"shop">>, 4, Dynos, 0),
            ok = router:put(<<"blog">>, 3, Others, 20),
            %% More permits than the app ever has.
            [{waiting, _} = canal_lock:request(<<"blog">>, 0, 0, #{permits => 100}) || Waiters =:= 0],
            tamper(1);
        _ ->
            erlang:yield(),
            tamper(Waiters)
    end.
