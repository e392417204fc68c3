%% Repeats a test that failed on a machine that stalled or was overloaded during the test.
%%
%% Leases of tests are one second. A lock that voters have just passed to the next waiter can end when its nodes do not
%% run for 167 ms (`confirming' in native/quorum/src/agent/link.rs), and a change of members has 0.6 s for all its
%% messages (PR5). Then the failure does not show a bug. A bug that does not depend on time fails each run.
%%
%% A process measures the stalls of this VM. The code under test runs in other VMs, so its long calls are not counted.
%% It also counts the threads of the machine that want to run: if there are many for each processor, each VM gets a
%% processor often enough not to stall, but all of them are slow.
-module(test_stalls).

-export([again/1, again/2, running/0]).

-define(STALL_MS, 150).

-define(PAUSE_MS, 10).

%% Threads for each processor that want to run, on average over a test. With two processors: 0.5 to 2 in most tests of a
%% suite that runs alone, and 2 to 20 beside other suites.
-define(OVERLOAD, 3).

%% In a shorter test, few samples would decide.
-define(FEWEST_SAMPLES, 10).

%% The maximum number of repeats.
-define(REPEATS, 2).

-record(watched, {longest_ms = 0 :: integer(), samples = 0 :: non_neg_integer(), running = 0 :: non_neg_integer()}).

%% Returns the answer of the test. What a failed test leaves behind must not disturb its next run. scripts/eunit.sh
%% prints which tests ran again.
-spec again(fun(() -> Answer)) -> Answer.
again(Test) ->
    again(Test, fun running/0).

%% `Running' counts the threads of the machine that want to run.
-spec again(fun(() -> Answer), fun(() -> non_neg_integer())) -> Answer.
again(Test, Running) ->
    again(Test, Running, ?REPEATS).

again(Test, Running, Left) ->
    Watch = spawn_opt(fun() -> watch(Running, now_ms(), #watched{}) end, [link, {priority, max}]),
    try
        Answer = Test(),
        _ = stop(Watch),
        Answer
    catch
        Class:Reason:Trace ->
            Watched = stop(Watch),
            case is_disturbed(Watched) of
                true when Left > 0 ->
                    io:format(user, "~nREPEATED: stalls and load ~0tp: ~0tp ~0tp~n", [Watched, Reason, Trace]),
                    again(Test, Running, Left - 1);
                _ ->
                    erlang:raise(Class, Reason, Trace)
            end
    end.

is_disturbed(#watched{longest_ms = Longest_ms}) when Longest_ms >= ?STALL_MS ->
    true;
is_disturbed(#watched{samples = Samples, running = Running}) ->
    Processors = erlang:system_info(logical_processors_available),
    Samples >= ?FEWEST_SAMPLES andalso Running >= ?OVERLOAD * Processors * Samples.

%% Measures the longest time that it waited beyond its pause, and counts threads.
watch(Running, Since, Watched = #watched{longest_ms = Longest_ms, samples = Samples}) ->
    Stopped =
        receive {stop, From} -> {ok, From}
        after ?PAUSE_MS -> no
        end,
    Now = now_ms(),
    Next = Watched#watched{
        longest_ms = max(Longest_ms, Now - Since - ?PAUSE_MS),
        samples = Samples + 1,
        running = Watched#watched.running + Running()
    },
    case Stopped of
        {ok, By} -> By ! {self(), Next};
        no -> watch(Running, Now, Next)
    end.

%% Without this thread. 0 where the system does not say.
-spec running() -> non_neg_integer().
running() ->
    case file:read_file("/proc/loadavg") of
        {ok, Text} ->
            [_, _, _, Threads | _] = binary:split(Text, <<" ">>, [global]),
            [Running, _] = binary:split(Threads, <<"/">>),
            binary_to_integer(Running) - 1;
        {error, _} ->
            0
    end.

stop(Watch) ->
    Watch ! {stop, self()},
    receive {Watch, Watched} -> Watched end.

now_ms() ->
    erlang:monotonic_time(millisecond).
