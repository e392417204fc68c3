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

-define(CALLERS, 200).
-define(STOPS, 20).

storm_test_() ->
    test_setup:on_schedulers(?FEW_PROCESSES, [
        {"P4, P11-P14: waits, timeouts, cancels, gifts, kills and new capacities lose and duplicate no permit", fun() ->
            test_storm:play(maps:from_list([{Key, ?CAPACITY} || Key <- keys()]), fun storm/0)
        end},
        {"P12: every waiter of a key that is released again and again is granted", fun() ->
            test_storm:play(#{db => 2}, fun all_granted/0)
        end},
        {"P10: stop/0 in the middle of waits: every caller gets an answer", fun stopped/0},
        {"P10: waits of a kept table survive crashes of the manager", fun crashes/0}
    ]).

keys() ->
    [{app, N} || N <- lists:seq(1, ?KEYS)].

storm() ->
    Left = counters:new(1, []),
    counters:put(Left, 1, test_setup:times(?ROUNDS)),
    Workers = ets:new(workers, [public]),
    Inside = counters:new(?KEYS, []),
    run(Left, Workers, Inside, [start(Left, Workers, Inside) || _ <- lists:seq(1, ?WORKERS)]),
    true = ets:delete(Workers),
    test_await:value(0, fun() -> test_setup:info(waiting) end),
    ok = test_await:nothing_held(),
    #{granted := Granted, released := Released, released_by_death := ByDeath} = Info = canal_lock:info(),
    ?assertEqual(Granted, Released + ByDeath),
    Names = [handed_over, timed_out, transferred, released_by_death],
    [?assert({Name, maps:get(Name, Info)} > {Name, 0}) || Name <- Names].

start(Left, Workers, Inside) ->
    spawn_monitor(fun() ->
        true = ets:insert(Workers, {self()}),
        work(Left, Workers, Inside)
    end).

%% Replaces the workers that are killed.
run(_Left, _Workers, _Inside, []) ->
    ok;
run(Left, Workers, Inside, Running) ->
    receive
        {'DOWN', Monitor, process, Pid, Reason} ->
            true = ets:delete(Workers, Pid),
            Others = lists:delete({Pid, Monitor}, Running),
            case Reason of
                killed -> run(Left, Workers, Inside, [start(Left, Workers, Inside) | Others]);
                normal -> run(Left, Workers, Inside, Others)
            end
    end.

work(Left, Workers, Inside) ->
    ok = counters:sub(Left, 1, 1),
    case counters:get(Left, 1) > 0 of
        true ->
            Key = lists:nth(rand:uniform(?KEYS), keys()),
            ok = round(rand:uniform(10), Key, Workers),
            ok = maybe_kill(Workers),
            ok = release_all(),
            work(Left, Workers, Inside);
        false ->
            %% All that was given to this worker.
            ok = release_all(),
            {message_queue_len, 0} = process_info(self(), message_queue_len),
            ok
    end.

round(1, Key, _) ->
    canal_lock:resized(Key, rand:uniform(?CAPACITY + 1) - 1, 1),
    canal_lock:resized(Key, ?CAPACITY, 1);
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
    ?assertMatch(#{waiting := 0, timed_out := 0}, canal_lock:info()).

stopped() ->
    [stopped_once() || _ <- lists:seq(1, test_setup:times(?STOPS))].

stopped_once() ->
    {ok, _} = canal_lock:start_link(3),
    {acquired, 1} = canal_lock:acquire(db, 1, 1),
    Callers = [spawn_monitor(fun() -> exit(call()) end) || _ <- lists:seq(1, ?CALLERS)],
    Enough = rand:uniform(?CALLERS),
    ok = test_await:value(true, fun() -> canal_lock:waiting(db) >= Enough end),
    ok = canal_lock:stop(),
    ?assertEqual([closed], lists:usort([test_await:reason(Caller) || Caller <- Callers])).

call() ->
    try
        canal_lock:acquire(db, 1, 1, infinity)
    catch
        error:badarg -> closed
    end.

crashes() ->
    process_flag(trap_exit, true),
    Supervisor = test_setup:supervise(1000, [canal_lock:child_spec(3)]),
    Workers = [
        spawn_monitor(fun() ->
            [
                begin
                    {acquired, 1} = canal_lock:acquire(db, 1, 1, infinity),
                    ok = canal_lock:release(db)
                end
             || _ <- lists:seq(1, 20_000)
            ],
            exit(done)
        end)
     || _ <- lists:seq(1, 8)
    ],
    Killer = spawn_link(fun Kill() ->
        _ = [exit(Manager, kill) || Manager <- [whereis(canal_lock)], is_pid(Manager)],
        receive
            stop -> ok
        after 5 -> Kill()
        end
    end),
    ?assertEqual([done], lists:usort([test_await:reason(Worker) || Worker <- Workers])),
    Killer ! stop,
    ok = test_await:value({0, 0, []}, fun() ->
        {canal_lock:waiting(db), canal_lock:count(db), canal_lock:audit()}
    end),
    test_setup:stop_supervisor(Supervisor).
