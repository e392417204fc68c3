%% P11 to P14 with many concurrent processes: waits that end by grants, timeouts, cancels, deaths and new capacities,
%% and permits that are given away. The permits of a key never exceed the capacity, every wait ends, and nothing is
%% left.
-module(canal_lock_wait_storm_tests).

-include_lib("eunit/include/eunit.hrl").

%% A small process table, so that the VM reuses pids quickly.
-define(FEW_PROCESSES, ["+P", "4096"]).

-define(KEYS, 3).
-define(CAPACITY, 4).
-define(WORKERS, 24).

%% Rounds of all workers together, for each number of schedulers. The soak multiplies them.
-define(ROUNDS, 100_000).

%% The longest timeout, in milliseconds. Most are shorter than a scheduler's pause.
-define(TIMEOUT_MS, 3).

%% Of this many rounds, one kills another worker.
-define(ROUNDS_PER_KILL, 50).

-define(CALLERS, 1000).
-define(STOPS, 20).

%% The longest timeout of a wait for a table that is replaced, in milliseconds.
-define(REPLACED_MS, 10).

storm_test_() ->
    test_setup:on_schedulers(?FEW_PROCESSES, [
        {"P4, P11-P14: waits, timeouts, cancels, gifts, kills and new capacities lose and duplicate no permit", fun() ->
            test_storm:play(maps:from_list([{Key, ?CAPACITY} || Key <- keys()]), fun storm/0)
        end},
        {"P12: every waiter of a key that is released again and again is granted", fun() ->
            test_storm:play(#{db => 2}, fun all_granted/0)
        end},
        {"P10: stop/0 in the middle of calls: every caller gets an answer", fun stopped/0},
        {"P10, P13: a start replaces a table while its waits time out: each ends once", fun replaced/0},
        {"P10: waits of a kept table survive crashes of the manager", fun crashes/0}
    ]).

keys() ->
    [{app, N} || N <- lists:seq(1, ?KEYS)].

storm() ->
    ok = rounds(test_setup:times(?ROUNDS)),
    ok = nothing_left(),
    Info = canal_lock:info(),
    Names = [handed_over, timed_out, transferred, released_by_death],
    [?assert({Name, maps:get(Name, Info)} > {Name, 0}) || Name <- Names].

nothing_left() ->
    test_await:value(0, fun() -> test_setup:info(waiting) end),
    ok = test_await:nothing_held(),
    #{granted := Granted, released := Released, released_by_death := ByDeath} = canal_lock:info(),
    ?assertEqual(Granted, Released + ByDeath).

%% This many by all workers together.
rounds(Rounds) ->
    Left = counters:new(1, []),
    counters:put(Left, 1, Rounds),
    Workers = ets:new(workers, [public]),
    run(Left, Workers, [start(Left, Workers) || _ <- lists:seq(1, ?WORKERS)]),
    true = ets:delete(Workers),
    ok.

start(Left, Workers) ->
    spawn_monitor(fun() ->
        true = ets:insert(Workers, {self()}),
        work(Left, Workers)
    end).

%% Replaces the workers that are killed.
run(_Left, _Workers, []) ->
    ok;
run(Left, Workers, Running) ->
    receive
        {'DOWN', Monitor, process, Pid, Reason} ->
            true = ets:delete(Workers, Pid),
            Others = lists:delete({Pid, Monitor}, Running),
            case Reason of
                killed -> run(Left, Workers, [start(Left, Workers) | Others]);
                normal -> run(Left, Workers, Others)
            end
    end.

work(Left, Workers) ->
    ok = counters:sub(Left, 1, 1),
    case counters:get(Left, 1) > 0 of
        true ->
            Key = lists:nth(rand:uniform(?KEYS), keys()),
            ok = round(rand:uniform(10), Key, Workers),
            ok = maybe_kill(Workers),
            ok = release_all(),
            work(Left, Workers);
        false ->
            %% All that was given to this worker.
            ok = release_all(),
            {message_queue_len, 0} = process_info(self(), message_queue_len),
            ok
    end.

round(1, Key, _) ->
    canal_lock:resize(Key, rand:uniform(?CAPACITY + 1) - 1, 1),
    canal_lock:resize(Key, ?CAPACITY, 1);
round(2, Key, _) ->
    case canal_lock:request(Key, ?CAPACITY, 1, #{permits => rand:uniform(3)}) of
        {waiting, Ref} ->
            rand:uniform(2) =:= 1 andalso erlang:yield(),
            case canal_lock:cancel(Ref) of
                ok -> ok;
                {acquired, N} when N =< ?CAPACITY -> ok
            end;
        {acquired, N} when N =< ?CAPACITY ->
            ok;
        full ->
            ok
    end;
round(3, Key, Workers) ->
    case canal_lock:acquire(Key, ?CAPACITY, 1, rand:uniform(?TIMEOUT_MS)) of
        {acquired, _} ->
            Target = any(Workers),
            case canal_lock:give(Key, Target) of
                ok -> ok;
                {error, not_alive} -> ok
            end;
        full ->
            ok
    end;
round(_, Key, _) ->
    Options = #{timeout_ms => rand:uniform(?TIMEOUT_MS + 1) - 1, permits => rand:uniform(2)},
    case canal_lock:acquire(Key, ?CAPACITY, 1, Options) of
        {acquired, N} when N =< ?CAPACITY -> ok;
        full -> ok
    end.

any(Workers) ->
    Pids = [Pid || {Pid} <- ets:tab2list(Workers)],
    lists:nth(rand:uniform(length(Pids)), Pids).

maybe_kill(Workers) ->
    case rand:uniform(?ROUNDS_PER_KILL) of
        1 ->
            Target = any(Workers),
            Target =/= self() andalso exit(Target, kill),
            ok;
        _ ->
            ok
    end.

%% Another worker can give a permit at any time.
release_all() ->
    lists:foreach(fun(Key) -> release_all(Key) end, keys()).

release_all(Key) ->
    case canal_lock:release(Key) of
        ok -> release_all(Key);
        {error, not_held} -> ok
    end.

all_granted() ->
    Answers = test_setup:concurrently(?WORKERS, fun() ->
        [
            begin
                Permits = rand:uniform(2),
                {acquired, N} = canal_lock:acquire(db, 2, 1, #{timeout_ms => infinity, permits => Permits}),
                true = N =< 2,
                ok = canal_lock:release(db, #{permits => Permits})
            end
         || _ <- lists:seq(1, test_setup:times(500))
        ]
    end),
    ?assertEqual([ok], lists:usort(lists:append(Answers))),
    ?assertMatch(#{waiting := 0, timed_out := 0}, canal_lock:info()),
    ok.

stopped() ->
    [stopped_once() || _ <- lists:seq(1, test_setup:times(?STOPS))].

stopped_once() ->
    {ok, _} = canal_lock:start_link(3),
    {acquired, 1} = canal_lock:acquire(db, 1, 1),
    Wait = fun() -> canal_lock:acquire(db, 1, 1, infinity) end,
    Waiters = [spawn_monitor(fun() -> until_closed(Wait) end) || _ <- lists:seq(1, ?CALLERS)],
    Left = counters:new(1, []),
    counters:put(Left, 1, 1 bsl 60),
    Table = ets:new(workers, [public]),
    Workers = [spawn_monitor(fun() ->
        true = ets:insert(Table, {self()}),
        until_closed(fun() -> work(Left, Table) end)
    end) || _ <- lists:seq(1, ?WORKERS)],
    Enough = rand:uniform(?CALLERS),
    ok = test_await:value(true, fun() -> canal_lock:waiting(db) >= Enough end),
    ok = canal_lock:stop(),
    ?assertEqual([closed], lists:usort([test_await:reason(Waiter) || Waiter <- Waiters])),
    Ends = lists:usort([test_await:reason(Worker) || Worker <- Workers]),
    true = ets:delete(Table),
    ?assertEqual([closed], Ends -- [killed]).

%% Exits when the table closes. Then no message is left.
until_closed(Calls) ->
    try
        Calls()
    catch
        error:badarg -> ok
    end,
    {messages, []} = process_info(self(), messages),
    exit(closed).

replaced() ->
    [replaced_once() || _ <- lists:seq(1, test_setup:times(?STOPS))].

replaced_once() ->
    {Opener, Monitor} = spawn_monitor(fun() -> canal_lock_nif:open(4096, 3, true, ?CALLERS) end),
    normal = test_await:reason({Opener, Monitor}),
    Wait = fun() -> canal_lock:acquire(db, 0, 1, rand:uniform(?REPLACED_MS)) end,
    Callers = [
        spawn_monitor(fun() -> until_closed(fun() -> full = Wait(), timer:sleep(?REPLACED_MS) end) end)
     || _ <- lists:seq(1, ?CALLERS)
    ],
    ok = timer:sleep(?REPLACED_MS div 2),
    {ok, _} = canal_lock:start_link(3),
    ?assertEqual([closed], lists:usort([test_await:reason(Caller) || Caller <- Callers])),
    ?assertEqual(0, canal_lock:waiting(db)),
    ok = canal_lock:stop().

crashes() ->
    process_flag(trap_exit, true),
    Supervisor = test_setup:supervise(1_000_000, [canal_lock:child_spec(3)]),
    Killer = spawn_link(fun Kill() ->
        _ = [exit(Manager, kill) || Manager <- [whereis(canal_lock)], is_pid(Manager)],
        receive
            stop -> ok
        after 5 -> Kill()
        end
    end),
    ok = all_granted(),
    ok = rounds(test_setup:times(?ROUNDS)),
    Killer ! stop,
    normal = test_await:exit_reason(Killer),
    ok = test_await:value(true, fun() -> is_pid(whereis(canal_lock)) end),
    ok = nothing_left(),
    test_setup:stop_supervisor(Supervisor).
