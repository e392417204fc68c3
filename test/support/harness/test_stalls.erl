%% Repeats a failed test if the machine has stalled meanwhile. Leases of tests are one second, and locks end when all
%% nodes stand still for most of it, as they should. On a machine that does other work too, that happens.
%%
%% The stalls are those of this VM, and the code under test runs in others: what it does to its own VM is no stall.
-module(test_stalls).

-export([again/1]).

%% The shortest time that a vote counts is 400 ms. The nodes may have stalled for longer than this VM.
-define(STALL_MS, 100).

-define(PAUSE_MS, 10).

%% How often a test is repeated at most.
-define(REPEATS, 2).

%% The answer of the test. A failed test must leave its nodes as it found them.
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
                    io:format(user, "the machine stalled for ~b ms: the failed test is repeated~n", [Longest_ms]),
                    again(Test, Left - 1);
                _ ->
                    erlang:raise(Class, Reason, Trace)
            end
    end.

%% How much longer than its pause it has waited.
watch(Since, Longest_ms) ->
    receive
        {stop, From} -> From ! {self(), Longest_ms}
    after ?PAUSE_MS ->
        Now = now_ms(),
        watch(Now, max(Longest_ms, Now - Since - ?PAUSE_MS))
    end.

stop(Watch) ->
    Watch ! {stop, self()},
    receive {Watch, Longest_ms} -> Longest_ms end.

now_ms() ->
    erlang:monotonic_time(millisecond).
