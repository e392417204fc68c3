%% The longest time for which other processes wait for a scheduler while the library works: at most 1 ms, as
%% docs/inside.md says. Only `make soak' runs this test, because it measures times and needs an idle machine.
%% canal_lock_timeslice_tests has the tests that do not depend on time.
%%
%% In a VM with one scheduler, a waiter yields all the time and records its longest wait. A worker does the work. Other
%% load of the machine can only lengthen the wait, so the best of five rounds counts. In the control round the worker
%% does not call the library: its longest wait is the timeslice of the VM plus the load of the machine. It is added to
%% the limit.
-module(canal_lock_stalls_tests).

-include_lib("eunit/include/eunit.hrl").

-define(KEYS, 1_000_000).
-define(HOLDERS, 100_000).
-define(ROUNDS, 5).
-define(LIMIT_US, 1000).
-define(NEVER_MS, 3_600_000).

stalls_test_() ->
    case os:getenv("CANAL_LOCK_SOAK") of
        false -> [];
        _ -> {timeout, 3600, {"no work of the library blocks a scheduler for more than 1 ms", fun stalls/0}}
    end.

stalls() ->
    Works = works(),
    Rounds = [[stall_us(Work) || {_, Work} <- Works] || _ <- lists:seq(1, ?ROUNDS)],
    Best = lists:foldl(fun(Round, Before) -> lists:zipwith(fun min/2, Round, Before) end, hd(Rounds), tl(Rounds)),
    Stalls = [{Title, Us} || {{Title, _}, Us} <- lists:zip(Works, Best)],
    [io:format(user, "~8b us  ~ts~n", [Us, Title]) || {Title, Us} <- Stalls],
    [{_, Control} | _] = Stalls,
    ?assertEqual([], [Stall || {_, Us} = Stall <- Stalls, Us > ?LIMIT_US + Control]).

%% For each title: `before' prepares; `work' gets its result and the waiter; `first' is what the waiter does first, and
%% `turn' what it does each time before it yields.
works() ->
    [
        {"control", work(fun count_down/0)},
        {"sweep of a million idle keys", work(fun idle_keys/0, fun(_, _) -> canal_lock_manager:sweep() end)},
        {"sweep of a million held keys", work(fun held_keys/0, fun(_, _) -> canal_lock_manager:sweep() end)},
        {"stop/0", work(fun idle_keys/0, fun(_, _) -> canal_lock:stop() end)},
        {"stop/0 with many holders", work(fun many_holders/0, fun(_, _) -> canal_lock:stop() end)},
        {"stop/0 with many requests that wait", work(fun many_requests/0, fun(_, _) -> canal_lock:stop() end)},
        {"resize/3 of many requests",
            work(fun many_requests/0, fun(_, _) -> ok = canal_lock:resize(app, 1, ?HOLDERS) end)},
        {"info/0 and the queues with many requests", work(fun many_requests/0, fun(_, _) -> waiting_keys() end)},
        {"start over a closed table", work(fun closed_table/0, fun(_, _) -> start() end)},
        {"keys/0", work(fun held_keys/0, fun(_, _) -> ?KEYS = length(canal_lock:keys()) end)},
        {"audit/0", work(fun held_keys/0, fun(_, _) -> [] = canal_lock:audit() end)},
        {"held/1", work(fun held_keys/0, fun(Holder, _) -> ?KEYS = length(canal_lock:held(Holder)) end)},
        {"holders/1", work(fun many_holders/0, fun(_, _) -> ?HOLDERS = length(canal_lock:holders(db)) end)},
        {"held/1 of a process that acquires and releases", #{
            before => fun start/0,
            work => fun(_, Waiter) -> true = length(canal_lock:held(Waiter)) >= ?KEYS end,
            first => fun() -> hold(?KEYS) end,
            turn => fun() -> pair(further) end
        }}
    ] ++
        [
            {"pairs of " ++ Title, work(fun start/0, fun(_, _) -> [pair(Key) || _ <- lists:seq(1, 2000)] end)}
         || {Title, Key} <- [
                {"2,258 integers of 65 bits", [1 bsl 64 + N || N <- lists:seq(1, 2258)]},
                {"2,500 empty maps", lists:duplicate(2500, #{})},
                {"500 nested maps", lists:foldl(fun(_, Inner) -> #{1 => Inner} end, a, lists:seq(1, 500))}
            ]
        ].

work(Work) ->
    work(fun() -> none end, fun(_, _) -> Work() end).

work(Before, Work) ->
    #{before => Before, work => Work, first => fun() -> ok end, turn => fun() -> ok end}.

stall_us(#{before := Before, work := Work, first := First, turn := Turn}) ->
    test_setup:in_a_vm(["+S", "1:1", "+P", "1000000"], fun() ->
        %% Loading a module takes milliseconds of a scheduler. The measurement must not include it.
        ok = application:load(canal_lock),
        {ok, Modules} = application:get_key(canal_lock, modules),
        ok = code:ensure_modules_loaded(Modules),
        State = Before(),
        Test = self(),
        Waiter = spawn_link(fun() ->
            First(),
            %% The measurement must not include the collection of this garbage.
            true = erlang:garbage_collect(),
            Test ! {self(), ready},
            Test ! {self(), longest_wait(Turn)}
        end),
        ready = answer(Waiter),
        Worker = spawn_link(fun() ->
            _ = Work(State, Waiter),
            Test ! {self(), done}
        end),
        done = answer(Worker),
        Waiter ! stop,
        erlang:convert_time_unit(answer(Waiter), native, microsecond)
    end).

answer(Pid) ->
    receive {Pid, Answer} -> Answer end.

longest_wait(Turn) ->
    longest_wait(Turn, erlang:monotonic_time(), 0).

longest_wait(Turn, Last, Longest) ->
    receive
        stop -> Longest
    after 0 ->
        _ = Turn(),
        erlang:yield(),
        Now = erlang:monotonic_time(),
        longest_wait(Turn, Now, max(Longest, Now - Last))
    end.

count_down() ->
    lists:foldl(fun(N, Sum) -> N + Sum end, 0, lists:seq(1, 20_000_000)).

start() ->
    {ok, Manager} = canal_lock:start_link(1, #{sweep_interval_ms => ?NEVER_MS}),
    true = unlink(Manager),
    Manager.

pair(Key) ->
    {ok, ok} = canal_lock:with_permit(Key, 1, 1, fun() -> ok end).

idle_keys() ->
    _ = start(),
    lists:foreach(fun(N) -> pair({key, N}) end, lists:seq(1, ?KEYS)).

held_keys() ->
    _ = start(),
    Test = self(),
    Holder = spawn(fun() ->
        hold(?KEYS),
        Test ! {self(), held},
        receive stop -> ok end
    end),
    held = answer(Holder),
    Holder.

many_holders() ->
    _ = start(),
    lists:foreach(fun(_) -> test_worker:holder(#{db => 1}) end, lists:seq(1, ?HOLDERS)).

%% By a hundred processes.
many_requests() ->
    _ = start(),
    Each = ?HOLDERS div 100,
    lists:foreach(fun(_) ->
        test_worker:start(fun() -> [{waiting, _} = canal_lock:request(app, 1, 0) || _ <- lists:seq(1, Each)] end)
    end, lists:seq(1, 100)),
    ?HOLDERS = canal_lock:waiting(app).

waiting_keys() ->
    [{app, ?HOLDERS, _, _}] = canal_lock_view:fold_queues(fun lists:append/2, []),
    #{waiting := ?HOLDERS} = canal_lock:info().

hold(Keys) ->
    _ = [{acquired, 1} = canal_lock:acquire({key, N}, 1, 1) || N <- lists:seq(1, Keys)],
    ok.

closed_table() ->
    _ = idle_keys(),
    test_manager_crash:kill(whereis(canal_lock)).
