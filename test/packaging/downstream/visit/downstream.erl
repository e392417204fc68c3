-module(downstream).

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
    io:format("canal_lock: three got in, a fourth found it full, and the permit of one that died came back~n"),
    ask_for_quorum().

%% The library of the quorum locks comes when it is asked for: it is in no memory before, even if all modules were
%% loaded at boot. What is in memory, Linux tells.
ask_for_quorum() ->
    {module, _} = code:ensure_loaded(canal_lock_quorum_nif),
    true = is_mapped("canal_lock_nif", true),
    false = is_mapped("canal_lock_quorum_nif", false),
    case canal_lock_quorum_nif:load() of
        ok ->
            true = is_mapped("canal_lock_quorum_nif", true),
            io:format("canal_lock: the library of the quorum locks came when it was asked for~n");
        {error, Sentences} ->
            io:format("~ts~n", [Sentences])
    end.

is_mapped(Library, Elsewhere) ->
    case file:read_file("/proc/self/maps") of
        {ok, Maps} -> binary:match(Maps, list_to_binary(["/", Library, ".so"])) =/= nomatch;
        {error, enoent} -> Elsewhere
    end.

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
