%% What is to be done in a process of its own, and what comes of it. Whoever waits goes on only when that process has
%% gone: nothing that is measured next runs beside its end. If it dies of something, so does who waits.
-module(bench_process).

-export([result/2, await/2]).

-spec result([term()], fun(() -> Result)) -> Result.
result(Options, Fun) ->
    Parent = self(),
    {Pid, Monitor} = spawn_opt(fun() -> Parent ! {self(), Fun()} end, [monitor | Options]),
    await(Pid, Monitor).

%% The message `{Pid, Result}' of a process that was spawned with a monitor.
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
