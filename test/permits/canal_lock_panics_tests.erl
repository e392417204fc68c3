%% P9: a panic (a bug of the library) or a failed allocation inside a native call raises an error in the caller. It
%% changes nothing, and later calls work. The tests inject one failure at each point where one can occur.
-module(canal_lock_panics_tests).

-include_lib("eunit/include/eunit.hrl").

%% The first test builds the library with cargo.
-define(BUILD_TIMEOUT_S, 300).

%% One key for each form in which the library stores keys.
-define(KEYS, [db, "a list of bytes", #{a => [map]}]).

%% Longer and deeper than the stack buffers of a call.
-define(BEYOND_THE_STACK, {lists:seq(1, 100), {{{{{{deep}}}}}}}).

%% Keys that are too long to pass directly: intern/1 must store them first.
-define(LONG_KEYS, [<<"a bitstring", 1:1>>, binary:copy(<<"x">>, 100_000)]).

%% `one_allocation' fails one allocation, `all_allocations' every allocation from one point on.
-define(FAILURES, [panic, one_allocation, all_allocations]).

panics_test_() ->
    {timeout, ?BUILD_TIMEOUT_S,
        {setup, fun test_fault_injection:build/0, fun(Library) ->
            Passes = fun(Test) -> passed = test_fault_injection:in_a_vm(Library, fun() -> _ = Test(), passed end) end,
            Timeout_s = test_setup:timeout_s(),
            {inparallel, 4, [{timeout, Timeout_s, {Title, fun() -> Passes(Test) end}} || {Title, Test} <- tests()]}
        end}}.

%% The first tests take longest, so they have a VM for each kind of failure.
tests() ->
    [
        {lists:concat(["P9: ", Failure, " anywhere in a native function raises and changes nothing"]), fun() ->
            every_native(Failure)
        end}
     || Failure <- ?FAILURES
    ] ++ other_tests().

other_tests() ->
    [
        {"P9: an injected failure while requests end leaves counts, records and queues usable", fun halfway/0},
        {"P9: an injected failure anywhere in a public function raises an explained error", fun every_public/0},
        {"P9: a panic anywhere in acquire/4 is raised", fun acquires/0},
        {"P9: a panic anywhere in a call that times out leaves no request and no message", fun timeouts/0},
        {"P4, P9: a panic anywhere in the handling of a holder's death loses no permit", fun deaths/0},
        {"P4, P9: a death releases permits and grants waiters without allocating memory", fun deaths_without_memory/0},
        {"P10: a panic anywhere in the handling of a manager's death still closes the table", fun deaths_of_managers/0},
        {"P8, P9: 1,000 injected failures leak no memory", fun a_thousand/0},
        {"P8: refused memory barriers are counted, and keys are freed once barriers work", fun refused_barriers/0}
    ].

%%% Native functions

every_native(Failure) ->
    Cases = cases(),
    All = Cases ++ halfway_cases(),
    ?assertEqual(test_fault_injection:natives(), lists:usort([Native || {Native, _, _} <- All])),
    [with_each_failure(Case, unchanged, Failure) || Case <- test_setup:sample(Cases)].

%% These calls end several requests, or one request and its effects, one after the other.
halfway() ->
    [with_each_failure(Case, consistent, Failure) || Case <- test_setup:sample(halfway_cases()), Failure <- ?FAILURES].

%% `{Native, Prepare, Call}': a process prepares the table and then makes the call. `Prepare' gets the handle of the
%% table and returns the last argument of `Call', which checks its own answer. Another process holds one permit of each
%% of the three keys.
cases() ->
    Nothing = fun(Handle) -> Handle end,
    Three = fun(Handle) -> acquire(?KEYS), Handle end,
    Twice = fun(Handle) -> acquire(?KEYS ++ ?KEYS), Handle end,
    Many = fun(Handle) -> acquire(?KEYS ++ more_keys()), Handle end,
    TwiceAndMany = fun(Handle) -> acquire(?KEYS), Many(Handle) end,
    Idle = fun(Handle) -> acquire(more_keys()), release(more_keys()), Handle end,
    Closed = fun(Handle) -> acquire(more_keys()), ok = canal_lock_nif:close(Handle), open(1024, 3, false) end,
    Joined = fun(_) -> canal_lock_nif:join(false) end,
    Kept = fun(_) -> Kept = open(1024, 3, true), acquire(?KEYS), Kept end,
    Proxy = fun(Handle) -> ok = canal_lock_nif:represent(remote()), Three(Handle) end,
    Waiting = fun(_) -> wait(db, 1, 1) end,
    Serial = fun(_) -> element(1, canal_lock_nif:shared_keys(0, 0, 1)) end,
    Shared = fun(Handle) ->
        [done = canal_lock_nif:set_share(Serial(Handle), Key, 3, 3, 3) || Key <- ?KEYS],
        Serial(Handle)
    end,
    SharedHeld = fun(Handle) ->
        Same = Shared(Handle),
        [{acquired, 1} = answer(canal_lock_nif:acquire_shared(Key, 3, 1, 1)) || Key <- ?KEYS],
        Same
    end,
    Ended = fun(Handle) ->
        Same = SharedHeld(Handle),
        [done = canal_lock_nif:set_share(Same, Key, 0, 0, none) || Key <- ?KEYS],
        Same
    end,
    Any = [Nothing, Three, Many],
    New = [{new, key}, "a new key"],
    OfKeys = [
        {{acquire, 3}, Any, ?KEYS ++ New ++ [{a, [#{new => "key"}]}, ?BEYOND_THE_STACK], fun(Key, _) ->
            {acquired, _} = answer(canal_lock_nif:acquire(Key, 3, 1))
        end},
        {{acquire, 3}, [Many], ?KEYS, fun(Key, _) -> full = answer(canal_lock_nif:acquire(Key, 1, 1)) end},
        {{acquire, 4}, Any, ?KEYS ++ [{new, key}, ?BEYOND_THE_STACK], fun(Key, _) ->
            {acquired, _} = answer(canal_lock_nif:acquire(Key, 3, 1, 0))
        end},
        {{acquire, 4}, [Many], ?KEYS, fun(Key, _) -> full = answer(canal_lock_nif:acquire(Key, 1, 1, 0)) end},
        {{release, 1}, [Three, Many], ?KEYS, fun(Key, _) -> ok = answer(canal_lock_nif:release(Key)) end},
        {{release, 1}, [Nothing], ?KEYS, fun(Key, _) -> {error, not_held} = answer(canal_lock_nif:release(Key)) end},
        {{release, 3}, [Three, Many], ?KEYS, fun(Key, _) -> ok = answer(canal_lock_nif:release(Key, 3, 1)) end},
        {{release, 3}, [Nothing], ?KEYS, fun(Key, _) -> not_held = answer(canal_lock_nif:release(Key, 3, 1)) end},
        {{count, 1}, [Three], ?KEYS, fun(Key, _) -> 2 = canal_lock_nif:count(Key) end},
        {{holders, 4}, [Three, Many], ?KEYS, fun(Key, _) ->
            {_, [_, _], _} = canal_lock_nif:holders(local, 0, {0, 0, 0}, Key)
        end},
        {{intern, 1}, [Nothing], ?LONG_KEYS, fun(Key, _) -> true = is_reference(canal_lock_nif:intern(Key)) end},
        %% Several permits.
        {{acquire_many, 4}, Any, ?KEYS ++ New, fun(Key, _) ->
            {acquired, _} = canal_lock_nif:acquire_many(Key, 9, 1, 2)
        end},
        {{acquire_many, 4}, [Many], ?KEYS, fun(Key, _) -> full = canal_lock_nif:acquire_many(Key, 3, 1, 2) end},
        {{release_many, 3}, [Twice, TwiceAndMany], ?KEYS, fun(Key, _) ->
            ok = canal_lock_nif:release_many(local, Key, 2)
        end},
        {{release_many, 3}, [Three], ?KEYS, fun(Key, _) ->
            {error, not_held} = canal_lock_nif:release_many(local, Key, 2)
        end},
        %% Waits.
        {{wait, 7}, Any, ?KEYS, fun(Key, _) -> wait(Key, 1, 1) end},
        {{wait, 7}, [Nothing, Many], New, fun(Key, _) -> wait(Key, 0, 2) end},
        {{wait, 7}, [awaited(Three)], ?KEYS, fun(Key, _) -> wait(Key, 2, 1) end},
        {{wait, 7}, [Nothing], ?KEYS, fun(Key, _) ->
            {acquired, 3} = canal_lock_nif:wait(local, Key, 3, 1, 2, 9, make_ref())
        end},
        {{resize, 4}, [Three], ?KEYS, fun(Key, _) -> done = canal_lock_nif:resize(Key, 9, 1, 9) end},
        {{settle, 2}, [Three], ?KEYS, fun(Key, _) -> done = canal_lock_nif:settle(local, Key) end},
        %% To a process that has nothing, holds permits, or was given one before.
        {{give, 4}, [gift(Three, Receiver) || Receiver <- receivers()], ?KEYS, fun(Key, Pid) ->
            ok = canal_lock_nif:give(local, Key, Pid, 1)
        end},
        %% Shared keys.
        {{acquire_shared, 4}, [Shared, SharedHeld], ?KEYS, fun(Key, _) ->
            {acquired, _} = answer(canal_lock_nif:acquire_shared(Key, 3, 1, 1))
        end},
        {{acquire_shared, 4}, [Shared], ?KEYS, fun(Key, _) ->
            declare = answer(canal_lock_nif:acquire_shared(Key, 4, 1, 1))
        end},
        {{release_many, 3}, [SharedHeld], ?KEYS, fun(Key, _) ->
            ok = canal_lock_nif:release_many(shared, Key, 1)
        end},
        {{give, 4}, [gift(Of, Receiver) || Of <- [SharedHeld, Ended], Receiver <- receivers()], ?KEYS, fun(Key, Pid) ->
            ok = canal_lock_nif:give(shared, Key, Pid, 1)
        end},
        {{release_shared, 1}, [SharedHeld], ?KEYS, fun(Key, _) ->
            ok = answer(canal_lock_nif:release_shared(Key))
        end},
        {{set_share, 5}, [Serial, Shared], ?KEYS, fun(Key, Same) ->
            done = canal_lock_nif:set_share(Same, Key, 2, 2, 2)
        end},
        {{lose, 3}, [Ended], ?KEYS, fun(Key, Same) ->
            %% A call that is repeated finds what the first one has done.
            true = lists:member(canal_lock_nif:lose(Same, Key, self()), [0, 1])
        end},
        {{take_share, 2}, [SharedHeld], ?KEYS, fun(Key, _) ->
            {Same, _, _} = canal_lock_nif:shared_keys(0, 0, 1),
            {3, 3, 1, 0, 0, 0, {false, true}} = canal_lock_nif:take_share(Same, Key)
        end}
    ],
    Others = [
        {{shared_keys, 3}, [Shared], fun(_) -> {_, [_ | _], _} = canal_lock_nif:shared_keys(0, 0, 100) end},
        {{keys, 3}, [Many], fun(_) -> {_, [_ | _], done} = canal_lock_nif:keys(0, 0, 100) end},
        {{permits, 3}, [Many, Proxy], fun(_) -> {_, [_ | _], _} = canal_lock_nif:permits(local, 0, {0, 0, 0}) end},
        {{held, 3}, [Many], fun(_) -> {_, [_ | _], done} = canal_lock_nif:held(0, 0, self()) end},
        {{holder, 3}, [Many], fun(_) -> {_, [_ | _], done} = canal_lock_nif:holder(0, 0, self()) end},
        {{held, 3}, [Proxy], fun(_) -> {_, [_, _, _], done} = canal_lock_nif:held(0, 0, remote()) end},
        {{info, 0}, [Many], fun(_) -> #{holders := 2} = canal_lock_nif:info() end},
        {{open, 4}, [Many], fun(_) -> open(1024, "any term", false) end},
        {{open, 4}, [Many], fun(_) -> open(1024, 3, true) end},
        {{open, 4}, [Kept], fun(_) -> open(1024, 4, true) end},
        {{configure, 3}, [Many], fun(Handle) -> ok = canal_lock_nif:configure(Handle, "any term", 1000) end},
        {{join, 1}, [Many], fun(_) -> true = is_reference(canal_lock_nif:join(false)) end},
        {{adopt, 3}, [Many], fun(Handle) -> ok = canal_lock_nif:adopt(Handle, "any term", 1000) end},
        {{is_open, 1}, [Nothing], fun(Handle) -> true = canal_lock_nif:is_open(Handle) end},
        {{leave, 1}, [Joined], fun(Handle) -> others = canal_lock_nif:leave(Handle) end},
        {{close, 1}, [Many], fun canal_lock_nif:close/1},
        {{advance_clock, 2}, [Nothing], fun(Handle) -> ok = canal_lock_nif:advance_clock(Handle, 1) end},
        {{take_longest_wait, 1}, [Nothing], fun(Handle) -> 0 = canal_lock_nif:take_longest_wait(Handle) end},
        {{sweep_step, 2}, [Idle], fun(Handle) -> steps(fun() -> canal_lock_nif:sweep_step(Handle, 2) end) end},
        {{dismantle_step, 0}, [Closed], fun(_) -> steps(fun canal_lock_nif:dismantle_step/0) end},
        {{free_unused, 0}, [Closed], fun(_) -> free_closed() end},
        {{represent, 1}, [Nothing, Proxy], fun(_) -> ok = canal_lock_nif:represent(remote()) end},
        {{proxy_of, 1}, [Nothing], fun(_) -> none = canal_lock_nif:proxy_of(remote()) end},
        {{proxy_of, 1}, [Proxy], fun(_) -> true = canal_lock_nif:proxy_of(remote()) =:= self() end},
        {{wait, 7}, [Waiting], fun(_) -> full = canal_lock_nif:wait(local, db, 1, 1, 1, 1, make_ref()) end},
        {{count_refusal, 0}, [Nothing], fun(_) -> ok = canal_lock_nif:count_refusal() end},
        {{cancel, 2}, [Nothing], fun(_) -> not_waiting = canal_lock_nif:cancel(make_ref(), true) end},
        {{resize, 4}, [Waiting], fun(_) -> done = canal_lock_nif:resize(db, 1, 1, 9) end},
        {{waiting, 1}, [Waiting], fun(_) -> 1 = canal_lock_nif:waiting(db) end},
        {{queues, 2}, [Waiting], fun(_) -> [{db, 1, _, _}] = queues({0, 0}) end},
        {{give, 4}, [fun(_) -> self() end], fun(Pid) -> {error, not_held} = canal_lock_nif:give(local, db, Pid, 1) end}
    ],
    OfLongKeys = [
        {{acquire, 3}, fun(Long) -> {acquired, _} = answer(canal_lock_nif:acquire(Long, 3, 1)) end},
        {{forget, 1}, fun(Long) -> ok = canal_lock_nif:forget(Long) end},
        {{has_unused, 0}, fun(_) -> canal_lock_nif:has_unused() end},
        {{free_unused, 0}, fun(_) -> ok = canal_lock_nif:free_unused() end}
    ],
    of_keys(OfKeys) ++
        [{Native, Prepare, Call} || {Native, All, Call} <- Others, Prepare <- All] ++
        [{Native, fun(_) -> canal_lock_nif:intern(Key) end, Call} || {Native, Call} <- OfLongKeys, Key <- ?LONG_KEYS].

%% A case for each key and each preparation.
of_keys(Rows) ->
    [
        {Native, Prepare, fun(Prepared) -> Call(Key, Prepared) end}
     || {Native, All, Keys, Call} <- Rows, Key <- Keys, Prepare <- All
    ].

%% The caller holds a permit of each key, which the next release passes on.
awaited(First) ->
    fun(Handle) ->
        First(Handle),
        [waiter(Key, 2) || Key <- ?KEYS]
    end.

gift(First, Receiver) ->
    fun(Handle) ->
        First(Handle),
        Receiver()
    end.

receivers() ->
    [
        fun() -> test_worker:start() end,
        fun() -> element(1, test_worker:start(fun() -> acquire(?KEYS) end)) end,
        fun() ->
            acquire(?KEYS),
            Receiver = test_worker:start(),
            [ok = canal_lock_nif:give(local, Key, Receiver, 1) || Key <- ?KEYS],
            Receiver
        end
    ].

%% After a failure, the calls can be repeated, and answer what is true then.
halfway_cases() ->
    Waiting = fun(_) -> wait(db, 1, 1) end,
    %% The first request has collected one of two permits. The second one gets it when the first one ends.
    Collecting = fun(_) ->
        Ref = wait(db, 2, 2),
        _ = wait(db, 2, 1),
        Ref
    end,
    Awaited = awaited(fun(_) -> acquire(?KEYS) end),
    Closing = fun(_) ->
        Handle = open(1024, 3, false),
        _ = [waiter(Key, 0) || Key <- [db, db, "a key"]],
        Handle
    end,
    of_keys([
        {{release, 1}, [Awaited], ?KEYS, fun(Key, _) -> answer(canal_lock_nif:release(Key)) end},
        {{release, 3}, [Awaited], ?KEYS, fun(Key, _) -> answer(canal_lock_nif:release(Key, 3, 1)) end},
        {{release_many, 3}, [Awaited], ?KEYS, fun(Key, _) -> canal_lock_nif:release_many(local, Key, 1) end}
    ]) ++
        [{{cancel, 2}, First, fun(Ref) -> canal_lock_nif:cancel(Ref, IsTimeout) end}
         || First <- [Waiting, Collecting], IsTimeout <- [true, false]] ++
        [{{resize, 4}, First, fun(_) -> done = canal_lock_nif:resize(db, Capacity, 1, 9) end}
         || First <- [Waiting, Collecting], Capacity <- [1, 2, 4]] ++
        [
            {{end_waits, 1}, Closing, fun(Handle) -> done = steps(fun() -> canal_lock_nif:end_waits(Handle) end) end},
            {{close, 1}, Closing, fun canal_lock_nif:close/1}
        ].

more_keys() ->
    [{key, N} || N <- lists:seq(1, 5)].

open(ProcessLimit, MaxPer, Keep) ->
    canal_lock_nif:open(ProcessLimit, MaxPer, Keep, 1000).

acquire(Keys) ->
    [{acquired, _} = canal_lock_nif:acquire(Key, 3, 1) || Key <- Keys].

%% A request of the caller for permits of a key.
wait(Key, Capacity, Permits) ->
    Ref = make_ref(),
    waiting = canal_lock_nif:wait(local, Key, Capacity, 1, Permits, 9, Ref),
    Ref.

%% A process that waits for a permit. It ends with the caller.
waiter(Key, Capacity) ->
    {Waiter, _} = test_worker:start(fun() -> wait(Key, Capacity, 1) end),
    Waiter.

queues(From) ->
    case canal_lock_nif:queues(0, From) of
        {_, Queues, done} -> Queues;
        {_, Queues, Next} -> Queues ++ queues(Next)
    end.

release(Keys) ->
    [ok = canal_lock_nif:release(Key) || Key <- Keys].

remote() ->
    test_setup:remote_pid(7).

%% The hot calls return the reason that the caller raises.
answer({raise, not_held, [_Key, 3, 1]}) -> not_held;
answer({raise, full, [_Key, 1, 1, 0]}) -> full;
answer({raise, Cause, _}) -> error(Cause);
answer(Answer) -> Answer.

%% Repeats a step as the manager does, but gives up after 1,000 waits: while allocations fail, `Step' always answers
%% `waiting'.
steps(Step) ->
    steps(Step, 1000).

steps(_Step, 0) ->
    waiting;
steps(Step, Waits) ->
    case Step() of
        done ->
            done;
        more ->
            steps(Step, Waits);
        waiting ->
            erlang:yield(),
            steps(Step, Waits - 1)
    end.

%% Injects the failure at point 0, 1, 2 and so on, until the call passes fewer points.
with_each_failure(Case, After, Failure) ->
    with_each_failure(Case, After, Failure, 0, open(1024, 3, false)).

with_each_failure(Case, After, Failure, Point, Handle) ->
    try attempt(Case, After, Failure, Point, Handle) of
        {true, Next} ->
            with_each_failure(Case, After, Failure, Point + 1, Next);
        {false, Last} ->
            %% Each native function has at least one point of its own.
            ?assertNotEqual({element(1, Case), 0, panic}, {element(1, Case), Point, Failure}),
            close(Last)
    catch
        Class:Reason:Stack -> erlang:raise(Class, {element(1, Case), Failure, Point, Reason}, Stack)
    end.

close(Handle) ->
    done = steps(fun() -> canal_lock_nif:end_waits(Handle) end),
    ok = canal_lock_nif:close(Handle),
    free_closed().

free_closed() ->
    done = steps(fun canal_lock_nif:dismantle_step/0),
    ok = canal_lock_nif:free_unused().

%% One process holds permits, another one makes the call. Returns whether the failure occurred, and the table for the
%% next attempt. `After' is what a failure leaves: the state is unchanged, or only consistent.
attempt({_, Prepare, Call}, After, Failure, Point, Handle) ->
    {Other, _} = test_worker:start(fun() -> acquire(?KEYS) end),
    {Caller, Prepared} = test_worker:start(fun() -> Prepare(Handle) end),
    Before = {state(), proxy()},
    {Outcome, Occurred} = test_worker:order(Caller, fun() ->
        with_failure(Failure, Point, fun() -> Call(Prepared) end)
    end),
    consistent(),
    case Outcome of
        {answered, _} ->
            ok;
        {raised, Reason} ->
            true = Occurred,
            ?assertEqual(reason(Failure), Reason),
            After =:= consistent orelse ?assertEqual(Before, {state(), proxy()}),
            {answered, _} = test_worker:order(Caller, fun() -> outcome(fun() -> Call(Prepared) end) end),
            consistent()
    end,
    {Occurred, check_afterwards(Handle, Caller, Other)}.

with_failure(Failure, Point, Call) ->
    test_fault_injection:arm(Failure, Point),
    Outcome = outcome(Call),
    {Outcome, test_fault_injection:disarm()}.

outcome(Call) ->
    try
        {answered, Call()}
    catch
        error:Reason -> {raised, Reason}
    end.

reason(panic) -> nif_panicked;
reason(_) -> system_limit.

%% All permits and counts, if a table is open.
state() ->
    try
        {lists:sort(test_setup:permits()), lists:sort(canal_lock_view:keys()), canal_lock:info()}
    of
        {Permits, Keys, Info} ->
            Items = [permits, holders, waiting, max_per, released, released_by_death, transferred],
            {Permits, Keys, maps:with(Items, Info)}
    catch
        error:_ -> closed
    end.

proxy() ->
    try
        canal_lock_nif:proxy_of(remote())
    catch
        error:not_started -> closed
    end.

%% The counts agree with the records of the holders.
consistent() ->
    state() =:= closed orelse ?assertEqual([], canal_lock:audit()).

%% If the table is still open, deaths release permits, no internal lock remains locked, and two sweeps reclaim all idle
%% keys.
check_afterwards(Handle, Caller, Other) ->
    Held = [{Key, 1} || Key <- lists:sort(?KEYS)],
    Next = try lists:sort(canal_lock:held(Other)) of
        Held ->
            ok = test_worker:kill(Caller),
            test_await:value(none, fun proxy/0),
            test_await:permits(length(?KEYS)),
            test_await:value({0, []}, fun() -> {test_setup:info(waiting), queues({0, 0})} end),
            Held = lists:sort(canal_lock:held(Other)),
            [] = canal_lock:audit(),
            {Serial, Shared, _} = canal_lock_nif:shared_keys(0, 0, 100),
            [done = canal_lock_nif:set_share(Serial, Key, 0, 0, none) || {Key, _, _} <- Shared],
            [done = sweep(Handle) || _ <- [1, 2]],
            ?assertEqual(length(?KEYS), maps:get(keys, canal_lock:info())),
            Handle;
        [] ->
            %% The call has opened another table.
            open_another(Caller)
    catch
        error:badarg -> open_another(Caller)
    end,
    ok = test_worker:kill(Other),
    test_await:nothing_held(),
    Next.

open_another(Caller) ->
    ok = test_worker:kill(Caller),
    Handle = open(1024, 3, false),
    free_closed(),
    Handle.

%%% Deaths

deaths() ->
    %% The dying holder has a slot in the array (limit 1024) or has none (limit 1, where the other holder has the only
    %% slot).
    [death(Limit, 0) || Limit <- [1024, 1]].

death(Limit, Point) ->
    Handle = open(Limit, 3, false),
    Keys = ?KEYS ++ more_keys(),
    {Other, _} = test_worker:start(fun() -> acquire(Keys) end),
    {Dying, _} = test_worker:start(fun() -> acquire(Keys ++ Keys) end),
    test_fault_injection:arm(panic, Point),
    ok = test_worker:kill(Dying),
    Occurred = test_fault_injection:disarm(),
    test_await:permits(length(Keys)),
    ?assertMatch(#{released_by_death := ByDeath} when ByDeath =:= 2 * length(Keys), canal_lock:info()),
    [1 = canal_lock:count(Key) || Key <- Keys],
    [] = canal_lock:audit(),
    ?assertEqual(lists:sort([{Key, 1} || Key <- Keys]), lists:sort(canal_lock:held(Other))),
    ok = test_worker:kill(Other),
    test_await:nothing_held(),
    close(Handle),
    case Occurred of
        true -> death(Limit, Point + 1);
        %% The test disarmed the failure before the table handled the death (P4 allows the delay): try this point again.
        false when Point =< length(Keys) -> death(Limit, Point);
        false -> ok
    end.

deaths_without_memory() ->
    Handle = open(1024, 3, false),
    Keys = ?KEYS ++ more_keys(),
    lists:foreach(fun(_) ->
        {Dying, _} = test_worker:start(fun() -> acquire(Keys ++ Keys) end),
        Waiter = waiter(db, 2),
        test_fault_injection:arm(all_allocations, 0),
        ok = test_worker:kill(Dying),
        %% Counting allocates nothing either.
        [ok = test_await:count(Key, 0) || Key <- Keys -- [db]],
        ok = test_await:count(db, 1),
        _ = test_fault_injection:disarm(),
        test_await:value([{db, 1}], fun() -> canal_lock:held(Waiter) end),
        ok = test_worker:kill(Waiter),
        test_await:nothing_held()
    end, lists:seq(1, 20)),
    close(Handle).

sweep(Handle) ->
    steps(fun() -> canal_lock_nif:sweep_step(Handle, 256) end).

deaths_of_managers() ->
    death_of_a_manager(0).

death_of_a_manager(Point) ->
    {Manager, _} = test_worker:start(fun() -> open(1024, 3, false) end),
    acquire(?KEYS),
    test_fault_injection:arm(panic, Point),
    ok = test_worker:kill(Manager),
    test_await:value(closed, fun state/0),
    Occurred = test_fault_injection:disarm(),
    free_closed(),
    case Occurred of
        true -> death_of_a_manager(Point + 1);
        false -> ?assert(Point > 0)
    end.

%%% Public functions

every_public() ->
    false = process_flag(trap_exit, true),
    [starts(Failure, 0) || Failure <- ?FAILURES],
    [replaces(Failure, 0) || Failure <- ?FAILURES],
    [stops(Failure, 0) || Failure <- ?FAILURES],
    [sweeps(Failure, 0) || Failure <- ?FAILURES],
    {ok, _} = canal_lock:start_link(3),
    [public(Call, Failure, 0) || Call <- test_setup:sample(public_calls()), Failure <- ?FAILURES],
    ok = canal_lock:stop().

public_calls() ->
    lists:append([
        [
            fun() -> canal_lock:acquire(Key, 9, 1) end,
            fun() -> canal_lock:release(Key, 9, 1) end,
            fun() -> canal_lock:release(Key) end,
            fun() -> canal_lock:with_permit(Key, 9, 1, fun() -> done end) end,
            fun() -> canal_lock:acquire(Key, 9, 1, 5) end,
            fun() -> canal_lock:acquire(Key, 9, 1, #{timeout_ms => 5, permits => 2}) end,
            fun() -> canal_lock:acquire(Key, 0, 1, 1) end,
            fun() -> canal_lock:request(Key, 9, 1) end,
            fun() -> canal_lock:request(Key, 0, 1, #{permits => 2}) end,
            fun() -> canal_lock:release(Key, #{permits => 1}) end,
            fun() -> canal_lock:with_permit(Key, 9, 1, #{timeout_ms => 5, permits => 2}, fun() -> done end) end,
            fun() -> canal_lock:give(Key, self()) end,
            fun() -> canal_lock:resize(Key, 9, 1) end,
            fun() -> canal_lock:waiting(Key) end,
            fun() -> canal_lock:count(Key) end,
            fun() -> canal_lock:buckets(Key, 2) end,
            fun() -> canal_lock:holders(Key) end
        ]
     || Key <- ?KEYS ++ ?LONG_KEYS
    ]) ++
        [
            fun canal_lock:held/0,
            fun() -> canal_lock:held(self()) end,
            fun canal_lock:keys/0,
            fun canal_lock:info/0,
            fun canal_lock:audit/0
        ].

%% The error has an explanation, and the manager is not affected.
public(Call, Failure, Point) ->
    Manager = whereis(canal_lock),
    {Caller, _} = test_worker:start(fun() -> acquire(?KEYS ++ more_keys()) end),
    {Outcome, Occurred} = test_worker:order(Caller, fun() ->
        with_failure(Failure, Point, fun() -> explained(Call) end)
    end),
    case Outcome of
        {answered, {raised, Reason, Explanation}} ->
            ?assertEqual({true, reason(Failure)}, {Occurred, Reason}),
            ?assertMatch(#{general := _}, Explanation);
        {answered, _} ->
            ok
    end,
    [] = canal_lock:audit(),
    ok = test_worker:kill(Caller),
    test_await:nothing_held(),
    Manager = whereis(canal_lock),
    Occurred andalso public(Call, Failure, Point + 1).

%% A call that has panicked is not repeated.
acquires() ->
    {ok, _} = canal_lock:start_link(3),
    [
        acquires(fun() -> canal_lock:acquire(Key, 9, 1, Options) end, Key, 0)
     || Key <- ?KEYS, Options <- [0, 5, #{timeout_ms => 5}, #{permits => 1}]
    ],
    ok = canal_lock:stop().

acquires(Acquire, Key, Point) ->
    case with_failure(panic, Point, Acquire) of
        {Outcome, true} ->
            ?assertEqual({raised, nif_panicked}, Outcome),
            acquires(Acquire, Key, Point + 1);
        {Outcome, false} ->
            ?assertEqual({answered, {acquired, 1}}, Outcome),
            ?assert(Point > 0),
            ok = canal_lock:release(Key)
    end.

%% The caller forgets a request after its timeout, so it must not stay in the queue.
timeouts() ->
    {ok, _} = canal_lock:start_link(3),
    {Other, _} = test_worker:start(fun() -> acquire(?KEYS) end),
    [timeout(Key, Permits, 0) || Key <- ?KEYS, Permits <- [1, 2]],
    ok = test_worker:kill(Other),
    ok = canal_lock:stop().

%% With a capacity of two, a request for two permits has collected one when its time ends.
timeout(Key, Permits, Point) ->
    Options = #{timeout_ms => 1, permits => Permits},
    {Outcome, Occurred} = with_failure(panic, Point, fun() -> canal_lock:acquire(Key, Permits, 1, Options) end),
    ?assert(lists:member(Outcome, [{answered, full}, {raised, nif_panicked}])),
    ?assertEqual({0, 1, []}, {canal_lock:waiting(Key), canal_lock:count(Key), test_await:messages()}),
    Occurred andalso timeout(Key, Permits, Point + 1).

explained(Call) ->
    try
        Call()
    catch
        error:Reason:Stack -> {raised, Reason, canal_lock_errors:format_error(Reason, Stack)}
    end.

%% The start succeeds or returns the reason. After a failed start, the next one succeeds.
starts(Failure, Point) ->
    {{answered, Outcome}, Occurred} = with_failure(Failure, Point, fun() -> canal_lock:start_link(3) end),
    case Outcome of
        {error, {Reason, _}} ->
            ?assertEqual({true, reason(Failure)}, {Occurred, Reason}),
            %% Since OTP 26, start_link waits until the manager has exited.
            test_await:value(undefined, fun() -> whereis(canal_lock) end),
            test_await:value(closed, fun state/0),
            {ok, _} = canal_lock:start_link(3);
        {ok, _} ->
            %% The manager may have crashed after start_link returned.
            ok
    end,
    end_of_manager(),
    Occurred andalso starts(Failure, Point + 1).

%% A start that fails leaves the table that it should replace: requests can wait for it.
replaces(Failure, Point) ->
    Opener = spawn_monitor(fun() -> open(1024, 3, true) end),
    normal = test_await:reason(Opener),
    {acquired, 1} = canal_lock:acquire(held, 1, 1),
    {{answered, Outcome}, Occurred} = with_failure(Failure, Point, fun() -> canal_lock:start_link(3) end),
    case Outcome of
        {error, _} ->
            test_await:value(undefined, fun() -> whereis(canal_lock) end),
            %% A manager that fails later has replaced the table, and its own one closes.
            Permits = fun() -> case state() of closed -> closed; {Rows, _, _} -> length(Rows) end end,
            test_await:value(true, fun() -> lists:member(Permits(), [closed, 1]) end),
            case Permits() of
                closed ->
                    ok;
                1 ->
                    {waiting, Ref} = canal_lock:request(db, 0, 1),
                    ok = canal_lock:cancel(Ref)
            end,
            {ok, _} = canal_lock:start_link(3);
        {ok, _} ->
            ok
    end,
    end_of_manager(),
    Occurred andalso replaces(Failure, Point + 1).

%% The manager stops or crashes. The next one starts with an empty table.
stops(Failure, Point) ->
    {ok, Manager} = canal_lock:start_link(3),
    acquire(?KEYS),
    _ = sys:get_state(Manager),
    test_fault_injection:arm(Failure, Point),
    try
        canal_lock:stop()
    catch
        exit:_ -> ended
    end,
    Occurred = test_fault_injection:disarm(),
    _ = test_await:exit_reason(Manager),
    test_await:value(closed, fun state/0),
    {ok, _} = canal_lock:start_link(3),
    ?assertMatch(#{permits := 0}, canal_lock:info()),
    end_of_manager(),
    Occurred andalso stops(Failure, Point + 1).

%% A manager that crashes keeps its table for the next one, which reclaims all idle keys.
sweeps(Failure, Point) ->
    {ok, Manager} = canal_lock:start_link(3, #{keep_on_crash => true}),
    acquire(?KEYS ++ more_keys()),
    release(more_keys()),
    ok = canal_lock_manager:sweep(),
    release(tl(?KEYS)),
    test_fault_injection:arm(Failure, Point),
    Sweep = gen_server:send_request(canal_lock, sweep),
    %% While allocations fail, the manager never finishes the sweep, so wait only 20 ms.
    Swept = gen_server:wait_response(Sweep, 20),
    Occurred = test_fault_injection:disarm(),
    %% The manager can also fail after the wait, before the failures end.
    Answer = case Swept of timeout -> gen_server:wait_response(Sweep, infinity); _ -> Swept end,
    case Answer of
        {reply, ok} -> ok;
        {error, {{nif_panicked, _}, _}} -> {ok, _} = canal_lock:start_link(3, #{keep_on_crash => true})
    end,
    ok = canal_lock_manager:sweep(),
    ?assertMatch(#{keys := 1, permits := 1}, canal_lock:info()),
    end_of_manager(),
    _ = test_await:exit_reason(Manager),
    Occurred andalso sweeps(Failure, Point + 1).

end_of_manager() ->
    try
        canal_lock:stop()
    catch
        exit:_ -> ok
    end.

%%% Memory

a_thousand() ->
    %% 16 slots, so that the first rounds allocate all memory that slots keep.
    Handle = open(16, 3, false),
    Rounds = fun() ->
        [failing_round(lists:nth(1 + N rem 3, ?FAILURES), N rem 17) || N <- lists:seq(1, 500)],
        [done = sweep(Handle) || _ <- [1, 2]],
        {test_setup:info(memory), test_setup:resident_bytes()}
    end,
    {Memory, Resident} = Rounds(),
    {MemoryAfter, ResidentAfter} = Rounds(),
    ?assertEqual(Memory, MemoryAfter),
    ?assertMatch(_ when ResidentAfter - Resident < 4 * 1024 * 1024, ResidentAfter - Resident).

refused_barriers() ->
    Handle = open(1024, 3, false),
    Keys = [{key, N} || N <- lists:seq(1, 1000)],
    acquire(Keys),
    release(Keys),
    ?assertMatch(#{barriers_refused := 0, keys := 1000}, canal_lock:info()),
    ok = test_fault_injection:arm(barriers, 0),
    ?assertEqual([done, waiting], [sweep(Handle), sweep(Handle)]),
    #{barriers_refused := Refused, keys := 0, memory := Unlinked} = canal_lock:info(),
    ?assert(Refused > 0),
    ?assert(test_fault_injection:disarm()),
    ?assertEqual(done, sweep(Handle)),
    #{barriers_refused := Refused, memory := Freed} = canal_lock:info(),
    ?assert(Unlinked - Freed >= 1000 * 64).

%% Each key has a term of 16 KiB, so that the resident memory shows a leak.
failing_round(Failure, Point) ->
    Blob = binary:copy(<<Point>>, 16 * 1024),
    Keys = [{Blob, N} || N <- lists:seq(1, 3)] ++ [#{N => Blob} || N <- [1, 2]],
    {Caller, _} = test_worker:start(fun() ->
        with_failure(Failure, Point, fun() ->
            [outcome(fun() -> canal_lock_nif:acquire(Key, 3, 1) end) || Key <- Keys],
            outcome(fun() -> canal_lock_nif:represent(remote()) end),
            [outcome(fun() -> canal_lock_nif:release(Key) end) || Key <- tl(Keys)],
            outcome(fun canal_lock:held/0)
        end)
    end),
    test_fault_injection:arm(Failure, Point),
    ok = test_worker:kill(Caller),
    _ = test_fault_injection:disarm(),
    test_await:nothing_held().
