%% P4, identity: a new process that gets the pid of a dead holder before the death is reported. Local pids have 28
%% bits in OTP 25 and so many bits in later releases that none is reused, so the test runs on OTP 25 only. The models
%% and storms of permit_table test the table's part, late reports of deaths, on every release.
%%
%% The process table is full except for the entry of the dying holder, so each new process gets this entry and its next
%% pid; 2^28 / 1024 pids share an entry. The VM frees the entry first and reports the death after the holder's monitors.
%% The holder has 100,000 monitors and low priority on the only scheduler, so the VM reports nothing while other
%% processes run.
-module(canal_lock_reused_pid_tests).

-include_lib("eunit/include/eunit.hrl").

-define(PROCESSES, 1024).
-define(PIDS_PER_ENTRY, ((1 bsl 28) div ?PROCESSES)).
-define(MONITORS, 100_000).

reused_pid_test_() ->
    case list_to_integer(erlang:system_info(otp_release)) =< 25 of
        false -> [];
        true -> {timeout, 120, {"P4: a process with the pid of a dead one keeps its permits", fun reused_pid/0}}
    end.

reused_pid() ->
    Arguments = ["+S", "1:1", "+P", integer_to_list(?PROCESSES)],
    ?assertEqual(passed, test_setup:in_a_vm(Arguments, fun dying_and_next/0)).

dying_and_next() ->
    {ok, _} = canal_lock:start_link(1),
    Test = self(),
    Watched = spawn(fun idle/0),
    Dying = spawn_opt(fun() -> hold(Test, Watched) end, [{priority, low}]),
    receive {Dying, holds} -> ok end,
    Death = monitor(process, Dying),
    fill(),
    Alive = erlang:system_info(process_count),
    exit(Dying, kill),
    normal = process_flag(priority, low),
    ok = await_free_entry(Alive),
    low = process_flag(priority, max),
    Dying = next(Dying, ?PIDS_PER_ENTRY),
    %% The death is not reported yet: the new process has the permits of the dead one. None of these calls waits.
    Acquire = fun(Key) -> canal_lock:acquire(Key, 1, 1) end,
    Inherited = ask(Dying, fun() -> [canal_lock:release(db), Acquire(db), Acquire(http)] end),
    ?assertEqual([ok, {acquired, 1}, {acquired, 1}], Inherited),
    receive
        {'DOWN', Death, process, Dying, _} -> error(too_early)
    after 0 -> process_flag(priority, low)
    end,
    receive {'DOWN', Death, process, Dying, killed} -> ok end,
    %% The death is reported now.
    ?assertEqual({[{db, 1}, {http, 1}], full}, {lists:sort(canal_lock:held(Dying)), canal_lock:acquire(http, 1, 1)}),
    ?assertMatch(#{released_by_death := 0, permits := 2}, canal_lock:info()),
    ?assertEqual([ok, {error, not_held}], ask(Dying, fun() -> [canal_lock:release(db), canal_lock:release(db)] end)),
    %% The death of the new process releases its permits.
    exit(Dying, kill),
    test_await:value({0, 0}, fun() -> {canal_lock:count(db), canal_lock:count(http)} end),
    ?assertMatch(#{released_by_death := 1, holders := 0}, canal_lock:info()),
    passed.

hold(Test, Watched) ->
    {acquired, 1} = canal_lock:acquire(db, 1, 1),
    _ = [monitor(process, Watched) || _ <- lists:seq(1, ?MONITORS)],
    Test ! {self(), holds},
    idle().

idle() ->
    receive
        {From, Ask} ->
            From ! {self(), Ask()},
            idle()
    end.

ask(Pid, Ask) ->
    Pid ! {self(), Ask},
    receive {Pid, Answer} -> Answer end.

fill() ->
    try spawn(fun idle/0) of
        _ -> fill()
    catch
        error:system_limit -> ok
    end.

%% Both processes have the same priority, so each yield gives the dying process one timeslice.
await_free_entry(Alive) ->
    case erlang:system_info(process_count) of
        Alive ->
            true = erlang:yield(),
            await_free_entry(Alive);
        _ ->
            ok
    end.

%% Starts short-lived processes until one of them has this pid.
next(Pid, Left) when Left > 0 ->
    case spawn_opt(fun() -> [idle() || self() =:= Pid] end, [{priority, max}]) of
        Pid ->
            Pid;
        _ ->
            true = erlang:yield(),
            next(Pid, Left - 1)
    end.
