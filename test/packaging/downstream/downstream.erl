-module(downstream).

-export([use_library/1]).

%% Much longer than the release takes.
-define(TIMEOUT_MS, 10_000).

%% Acquires three permits; the fourth acquire is refused until a holder dies. Takes the module of either language.
use_library(Module) ->
    [{First, Monitor}, _, _] = [holder(Module) || _ <- [1, 2, 3]],
    full = Module:acquire(db, 3, 1),
    exit(First, kill),
    receive
        {'DOWN', Monitor, process, First, killed} -> ok
    end,
    %% The permit may be released some microseconds after the 'DOWN' message.
    {acquired, 3} = acquire_until(Module, erlang:monotonic_time(millisecond) + ?TIMEOUT_MS),
    io:format("canal_lock: three permits acquired, the fourth refused, and the permit of a dead holder released~n"),
    use_quorum_library().

%% The VM maps the library of the quorum locks when it is first used, even if all modules were loaded at boot. Linux
%% lists the mapped files.
use_quorum_library() ->
    {module, _} = code:ensure_loaded(canal_lock_quorum_nif),
    true = is_mapped("canal_lock_nif", true),
    false = is_mapped("canal_lock_quorum_nif", false),
    case canal_lock_quorum_nif:load() of
        ok ->
            true = is_mapped("canal_lock_quorum_nif", true),
            io:format("canal_lock: the library of the quorum locks loads when it is used~n");
        {error, Sentences} ->
            io:format("~ts~n", [Sentences])
    end.

is_mapped(Library, Default) ->
    case file:read_file("/proc/self/maps") of
        {ok, Maps} -> binary:match(Maps, list_to_binary(["/", Library, ".so"])) =/= nomatch;
        {error, enoent} -> Default
    end.

holder(Module) ->
    Parent = self(),
    {Holder, Monitor} = spawn_monitor(fun() ->
        Parent ! {self(), Module:acquire(db, 3, 1)},
        receive
            stop -> ok
        end
    end),
    receive
        {Holder, {acquired, _}} -> {Holder, Monitor};
        {Holder, Answer} -> exit({not_acquired, Answer});
        {'DOWN', Monitor, process, Holder, Reason} -> exit(Reason)
    end.

acquire_until(Module, Deadline_ms) ->
    case Module:acquire(db, 3, 1) of
        full ->
            true = erlang:monotonic_time(millisecond) < Deadline_ms,
            true = erlang:yield(),
            acquire_until(Module, Deadline_ms);
        Acquired ->
            Acquired
    end.
