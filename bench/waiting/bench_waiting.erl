%% Measures waiting for permits and giving them away, beside a gen_server queue and poolboy. bench/README.md describes
%% the method. Prints a report and writes the results to files, as `bench' does.
-module(bench_waiting).

-export([main/0]).

%% full: figures to publish. quick: a check that the benchmark works.
-define(MODES, #{
    "full" => #{
        rounds => 21,
        sample_ms => 30,
        new_receivers => 2000,
        death_rounds => 41,
        deaths => 20000,
        hand_over_rounds => 9,
        hand_overs => 10000,
        slow_hand_overs => 200,
        queue_rounds => 11,
        waiters => [1, 100, 10000],
        turns => 30000,
        memory_rounds => 3,
        memory_waiters => 50000,
        overload_rounds => 7,
        overload_ms => 1500,
        warm_up_ms => 300,
        order_rounds => 3,
        order_grants => 100000
    },
    "quick" => #{
        rounds => 3,
        sample_ms => 5,
        new_receivers => 300,
        death_rounds => 3,
        deaths => 3000,
        hand_over_rounds => 1,
        hand_overs => 5000,
        slow_hand_overs => 100,
        queue_rounds => 1,
        waiters => [1, 10000],
        turns => 5000,
        memory_rounds => 1,
        memory_waiters => 10000,
        overload_rounds => 1,
        overload_ms => 300,
        warm_up_ms => 100,
        order_rounds => 1,
        order_grants => 10000
    }
}).

-define(GROUPS, [
    {bench_waiting_pairs, "free permits", #{"full" => 5, "quick" => 1}},
    {bench_waiting_give, "give", #{"full" => 3, "quick" => 1}},
    {bench_waiting_death, "deaths", #{"full" => 7, "quick" => 1}},
    {bench_waiting_hand_over, "hand-over", #{"full" => 90, "quick" => 3}},
    {bench_waiting_queue, "many waiters", #{"full" => 35, "quick" => 3}},
    {bench_waiting_overload, "overload", #{"full" => 110, "quick" => 4}},
    {bench_waiting_order, "order", #{"full" => 15, "quick" => 2}},
    {bench_waiting_memory, "memory of waiters", #{"full" => 10, "quick" => 4}}
]).

-spec main() -> no_return().
main() ->
    bench:halt_after(fun() -> main(init:get_plain_arguments()) end).

main([Name, Folder, Output]) ->
    {ok, _} = canal_lock:start_link(1),
    Suite = #{
        groups => ?GROUPS,
        targets => bench_waiting_targets:targets(),
        prefix => "waiting-",
        facts => [{"poolboy", poolboy()}]
    },
    ok = bench:run(Suite, {Name, maps:get(Name, ?MODES), Folder, Output}),
    ok = bench_records:closed(ours),
    0.

poolboy() ->
    case bench_waiting_subjects:poolboy() of
        none -> "not installed, so this subject is left out";
        Version -> Version
    end.
