%% Runs a function in another process and returns its result after the process has exited, so that its exit does not
%% overlap with the next measurement. If the process crashes, the caller raises an error.
-module(bench_process).

-export([result/2, await/2, await_exit/2]).

-spec result([term()], fun(() -> Result)) -> Result.
result(Options, Fun) ->
    Parent = self(),
    {Pid, Monitor} = spawn_opt(fun() -> Parent ! {self(), Fun()} end, [monitor | Options]),
    await(Pid, Monitor).

%% Receives `{Pid, Result}' from a monitored process, then its 'DOWN'.
-spec await(pid(), reference()) -> Result :: term().
await(Pid, Monitor) ->
    receive
        {Pid, Result} ->
            receive
                {'DOWN', Monitor, process, Pid, normal} -> Result
            end;
        {'DOWN', Monitor, process, Pid, Reason} ->
            error({worker, Reason})
    end.

-spec await_exit({pid(), reference()}, Reason :: term()) -> ok.
await_exit({Pid, Monitor}, Reason) ->
    receive
        {'DOWN', Monitor, process, Pid, Actual} ->
            Reason = Actual,
            ok
    end.
