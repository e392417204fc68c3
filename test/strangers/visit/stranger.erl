-module(stranger).

-export([visit/0]).

%% Far more than it takes.
-define(PATIENCE_MS, 10_000).

%% Three get in, and the fourth does not, until one of the three has died.
visit() ->
    [{First, Monitor}, _, _] = [holder() || _ <- [1, 2, 3]],
    full = canal_lock:acquire(db, 3, 1),
    exit(First, kill),
    receive
        {'DOWN', Monitor, process, First, killed} -> ok
    end,
    %% The permit may be there some microseconds later than the news of the death.
    {acquired, 3} = admitted(erlang:monotonic_time(millisecond) + ?PATIENCE_MS),
    io:format("canal_lock: three got in, a fourth found it full, and the permit of one that died came back~n").

holder() ->
    Visitor = self(),
    {Holder, Monitor} = spawn_monitor(fun() ->
        Visitor ! {self(), canal_lock:acquire(db, 3, 1)},
        receive
            stop -> ok
        end
    end),
    receive
        {Holder, {acquired, _}} -> {Holder, Monitor};
        {Holder, Answer} -> exit({not_admitted, Answer});
        {'DOWN', Monitor, process, Holder, Reason} -> exit(Reason)
    end.

admitted(Deadline_ms) ->
    case canal_lock:acquire(db, 3, 1) of
        full ->
            true = erlang:monotonic_time(millisecond) < Deadline_ms,
            true = erlang:yield(),
            admitted(Deadline_ms);
        Acquired ->
            Acquired
    end.
