-module(test_stalls_tests).

-include_lib("eunit/include/eunit.hrl").

answer_test() ->
    ?assertEqual(answer, test_stalls:again(fun() -> answer end)).

a_failed_test_runs_again_after_a_stall_test() ->
    ?assertEqual(3, runs_of(fun stall/0)).

a_failed_test_runs_again_on_an_overloaded_machine_test() ->
    Processors = erlang:system_info(logical_processors_available),
    ?assertEqual(3, runs_of(fun() -> timer:sleep(300) end, fun() -> 8 * Processors end)).

%% The schedulers of this VM want to run all the time. Elsewhere than on Linux nothing is counted.
running_test() ->
    Busy = [spawn(fun busy/0) || _ <- lists:seq(1, erlang:system_info(schedulers_online))],
    Counts = fun() -> test_stalls:running() >= length(Busy) end,
    try
        not filelib:is_regular("/proc/loadavg") orelse test_await:value(true, Counts)
    after
        [exit(Pid, kill) || Pid <- Busy]
    end.

busy() -> busy().

%% This one takes microseconds.
a_failed_test_does_not_run_again_without_a_stall_test() ->
    ?assertEqual(1, runs_of(fun() -> ok end)).

runs_of(Before) ->
    runs_of(Before, fun() -> 0 end).

runs_of(Before, Running) ->
    Runs = counters:new(1, []),
    Test = fun() ->
        ok = counters:add(Runs, 1, 1),
        _ = Before(),
        error(failed)
    end,
    ?assertError(failed, test_stalls:again(Test, Running)),
    counters:get(Runs, 1).

%% The watch does not run for a while.
stall() ->
    {links, Links} = process_info(self(), links),
    [Watch] = [Pid || Pid <- Links, is_pid(Pid), {current_function, {test_stalls, watch, 3}} <-
        [process_info(Pid, current_function)]],
    test_worker:suspend(Watch),
    timer:sleep(300),
    test_worker:resume(Watch).
