%% Repeats a test that failed on a machine that stalled during the test.
%%
%% Leases of tests are one second. A lock that voters have just passed to the next waiter can end when its nodes do not
%% run for 167 ms (`confirming' in native/quorum/src/agent/link.rs). Then the failure does not show a bug.
%%
%% A process measures the stalls of this VM. The code under test runs in other VMs, so its long calls are not counted.
-module(test_stalls).

-export([again/1]).

-define(STALL_MS, 150).

-define(PAUSE_MS, 10).

%% The maximum number of repeats.
-define(REPEATS, 2).

%% Returns the answer of the test. What a failed test leaves behind must not disturb its next run. scripts/eunit.sh
%% prints which tests ran again.
-spec again(fun(() -> Answer)) -> Answer.
again(Test) ->
    again(Test, ?REPEATS).

again(Test, Left) ->
    Watch = spawn_opt(fun() -> watch(now_ms(), 0) end, [link, {priority, max}]),
    try
        Answer = Test(),
        _ = stop(Watch),
        Answer
    catch
        Class:Reason:Trace ->
            case stop(Watch) of
                Longest_ms when Longest_ms >= ?STALL_MS, Left > 0 ->
                    io:format(user, "~nREPEATED: after a stall of ~b ms: ~0tp ~0tp~n", [Longest_ms, Reason, Trace]),
                    again(Test, Left - 1);
                _ ->
                    erlang:raise(Class, Reason, Trace)
            end
    end.

%% Measures the longest time that it waited beyond its pause.
watch(Since, Longest_ms) ->
    Stopped =
        receive {stop, From} -> {ok, From}
        after ?PAUSE_MS -> no
        end,
    Now = now_ms(),
    Longer_ms = max(Longest_ms, Now - Since - ?PAUSE_MS),
    case Stopped of
        {ok, By} -> By ! {self(), Longer_ms};
        no -> watch(Now, Longer_ms)
    end.

stop(Watch) ->
    Watch ! {stop, self()},
    receive {Watch, Longest_ms} -> Longest_ms end.

now_ms() ->
    erlang:monotonic_time(millisecond).
