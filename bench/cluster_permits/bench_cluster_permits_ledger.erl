%% The messages that the state machine of the allocator (canal_lock_cluster_ledger) handles in a second. Four nodes want
%% the only permit of each of X keys, all the time. So it moves each turn: a recall, its answer, a share, its answer.
%% The time of the ledger is simulated, and advances when no answer is left. Only its calls are measured.
%%
%% Each row is a message of its own. Nodes send rows together, which is cheaper.
-module(bench_cluster_permits_ledger).

-include("../../src/cluster/canal_lock_cluster.hrl").

-export([measure/1, targets/0]).

-define(NODES, [a, b, c, d]).
-define(TERM, 1).
-define(SESSION, 1).
-define(VARIANT, "four nodes, limit 1").
%% Messages of a sample.
-define(MESSAGES, 200_000).
-define(ROUNDS, 5).

-record(run, {
    ledger :: canal_lock_cluster_ledger:ledger(),
    now_ms = 0 :: non_neg_integer(),
    answers = queue:new() :: queue:queue({node(), #have{}}),
    handled = 0 :: non_neg_integer(),
    ns = 0 :: non_neg_integer()
}).

-spec measure(bench:mode()) -> bench_results:results().
measure(#{ledger_keys := Counts}) ->
    bench_rounds:play(?ROUNDS, [
        [
            fun() ->
                PerSecond = bench_builds:once(ours, fun() -> sample(Keys) end),
                [{{ledger, ?VARIANT, Keys, ours, per_second}, PerSecond}]
            end
         || Keys <- Counts
        ]
    ]).

sample(Keys) ->
    Asked = event({listed, all, ?NODES}, #run{ledger = canal_lock_cluster_ledger:new(?TERM)}),
    Wants = [
        {Node, #have{
            key = {bench, Key}, number = 0, share = 0, in_use = 0, need = 1, next = 1, waiting = 1,
            passed = 1, declared = {Key, 1}, limit = 0, version = none
        }}
     || Key <- lists:seq(1, Keys), Node <- ?NODES
    ],
    Begun = play(4 * Keys, Asked#run{answers = queue:from_list(Wants)}),
    #run{handled = Handled, ns = Ns} = play(?MESSAGES, Begun#run{handled = 0, ns = 0}),
    Handled * 1.0e9 / Ns.

play(Messages, Run = #run{handled = Handled}) when Handled >= Messages ->
    Run;
play(Messages, Run = #run{answers = Answers, handled = Handled, now_ms = Now_ms, ledger = Ledger}) ->
    case queue:out(Answers) of
        {{value, {Node, Have}}, Rest} ->
            Event = {have, Node, ?TERM, ?SESSION, [Have]},
            play(Messages, event(Event, Run#run{answers = Rest, handled = Handled + 1}));
        {empty, _} ->
            Wake_ms = canal_lock_cluster_ledger:wake_ms(Now_ms, Ledger),
            play(Messages, event(step, Run#run{now_ms = Now_ms + Wake_ms}))
    end.

event(Event, Run = #run{ledger = Ledger, now_ms = Now_ms, ns = Ns}) ->
    Begun = os:perf_counter(nanosecond),
    {Messages, Next} = canal_lock_cluster_ledger:handle(Event, Now_ms, Ledger),
    _ = canal_lock_cluster_ledger:wake_ms(Now_ms, Next),
    Done = os:perf_counter(nanosecond),
    lists:foldl(fun answer/2, Run#run{ledger = Next, ns = Ns + Done - Begun}, Messages).

%% What a node answers that always has a waiter more.
answer({Node, {ask, ?TERM, Ask}}, Run) ->
    event({report, Node, ?TERM, ?SESSION, Ask, [], true}, Run);
answer({Node, {set, ?TERM, ?SESSION, Sets}}, Run) ->
    lists:foldl(fun(Set, To) -> later(Node, have(Set), To) end, Run, Sets).

later(Node, Have, Run = #run{answers = Answers}) ->
    Run#run{answers = queue:in({Node, Have}, Answers)}.

have(#set{key = Key, number = Number, share = Share, target = Target, limit = Limit, version = Version}) ->
    Kept = min(Share, Target),
    #have{
        key = Key, number = Number, share = Kept, in_use = Kept, need = 1, next = 1, waiting = 1, passed = 1,
        declared = none, limit = Limit, version = Version
    }.

-spec targets() -> [bench:target()].
targets() ->
    [{{value, {ledger, ?VARIANT, Keys, ours, per_second}}, {at_least, 100_000}} || Keys <- [1000, 100_000]].
