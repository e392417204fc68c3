-module(test_stalls_tests).

-include_lib("eunit/include/eunit.hrl").

answer_test() ->
    ?assertEqual(answer, test_stalls:again(fun() -> answer end)).

a_failed_test_runs_again_after_a_stall_test() ->
    ?assertEqual(3, runs_of(fun stall/0)).

a_failed_test_runs_again_on_an_overloaded_machine_test() ->
    ?assertEqual(3, runs_of(fun overload/0)).

%% This one takes microseconds.
a_failed_test_does_not_run_again_without_a_stall_test() ->
    ?assertEqual(1, runs_of(fun() -> ok end)).

runs_of(Before) ->
    Runs = counters:new(1, []),
    Test = fun() ->
        ok = counters:add(Runs, 1, 1),
        _ = Before(),
        error(failed)
    end,
    ?assertError(failed, test_stalls:again(Test)),
    counters:get(Runs, 1).

%% The watch does not run for a while.
stall() ->
    {links, Links} = process_info(self(), links),
    [Watch] = [Pid || Pid <- Links, is_pid(Pid), {current_function, {test_stalls, watch, 2}} <-
        [process_info(Pid, current_function)]],
    test_worker:suspend(Watch),
    timer:sleep(300),
    test_worker:resume(Watch).

%% Eight loops for each processor.
overload() ->
    Loop = "timeout 0.5 sh -c 'while :; do :; done' &",
    Loops = lists:duplicate(8 * erlang:system_info(logical_processors_available), Loop),
    os:cmd(lists:append(Loops) ++ " wait").
