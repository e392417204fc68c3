-module(test_stalls_tests).

-include_lib("eunit/include/eunit.hrl").

answer_test() ->
    ?assertEqual(answer, test_stalls:again(fun() -> answer end)).

a_failed_test_is_repeated_after_a_stall_test() ->
    Runs = counters:new(1, []),
    Test = fun() ->
        ok = counters:add(Runs, 1, 1),
        stall(),
        error(failed)
    end,
    ?assertError(failed, test_stalls:again(Test)),
    ?assertEqual(3, counters:get(Runs, 1)).

%% The watch does not run for a while.
stall() ->
    {links, Links} = process_info(self(), links),
    [Watch] = [Pid || Pid <- Links, is_pid(Pid), {current_function, {test_stalls, watch, 2}} <-
        [process_info(Pid, current_function)]],
    erlang:suspend_process(Watch),
    timer:sleep(300),
    erlang:resume_process(Watch).
