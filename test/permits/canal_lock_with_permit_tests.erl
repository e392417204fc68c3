%% with_permit/4: however the fun ends, its permit is back, and what came of it is the caller's.
-module(canal_lock_with_permit_tests).

-include_lib("eunit/include/eunit.hrl").

with_permit_test_() ->
    test_setup:quietly([
        test_setup:tests([
            {"it returns what the fun returns, whatever that is", fun returns/0},
            {"the fun runs in the calling process, under a permit of that process", fun under_a_permit/0},
            {"what the fun throws, exits with or raises goes through, with its stack trace", fun goes_through/0},
            {"nested, under the same key", fun nested_same_key/0},
            {"nested, under other keys of every kind", fun nested_other_keys/0},
            {"an inner one that fails gives back its own permit only", fun inner_fails/0},
            {"full: the fun is not called", fun full/0},
            {"P4: a process that is killed meanwhile", fun killed/0},
            {"P4: a process that exits by a signal meanwhile", fun exit_signal/0},
            {"P5: a fun that releases its own permit", fun releases_its_own/0},
            {"P5: a fun that leaves something held", fun leaves_something/0},
            {"P10: the manager is stopped meanwhile: the result is not lost", fun stopped_meanwhile/0},
            {"P10: another table is opened meanwhile: nothing of it is released", fun restarted_meanwhile/0},
            {"bad arguments: nothing is taken, and no fun called", fun bad_arguments/0},
            {"of many processes, no more are inside than there are permits", fun many/0}
        ]),
        test_setup:tests(without_manager, [
            {"P10: without a manager the fun is not called", fun not_started/0}
        ])
    ]).

returns() ->
    [
        ?assertEqual({ok, Result}, canal_lock:with_permit(db, 1, 1, fun() -> Result end))
     || Result <- [ok, full, {ok, full}, {error, not_held}, {raise, badarg, []}, {'EXIT', normal}, [], #{}]
    ],
    nothing_is_out().

under_a_permit() ->
    Self = self(),
    Look = fun() -> {self(), canal_lock:held(), canal_lock:count(db), canal_lock:acquire(db, 2, 1)} end,
    {acquired, 1} = canal_lock:acquire(db, 2, 1),
    ?assertEqual({ok, {Self, [{db, 2}], 2, full}}, canal_lock:with_permit(db, 2, 1, Look)),
    ?assertEqual([{db, 1}], canal_lock:held()),
    ok = canal_lock:release(db),
    nothing_is_out().

goes_through() ->
    [
        try canal_lock:with_permit(Key, 1, 1, fun() -> fails(Class, Reason) end) of
            Answer -> error({no_failure, Answer})
        catch
            Class:Caught:Stack ->
                ?assertEqual(Reason, Caught),
                ?assertMatch([{?MODULE, fails, 2, _} | _], Stack),
                nothing_is_out()
        end
     || Class <- [throw, exit, error],
        Reason <- [meant, normal, full, {ok, result}, badarg, not_started, {raise, badarg, []}],
        Key <- [db, "string", #{}]
    ],
    %% What the VM raises itself, and what is raised by another call of canal_lock.
    ?assertError(badarith, canal_lock:with_permit(db, 1, 1, fun() -> 1 div canal_lock:count(other) end)),
    ?assertError(badarg, canal_lock:with_permit(db, 1, 1, fun() -> canal_lock:acquire(db, -1, 1) end)),
    nothing_is_out().

fails(throw, Reason) -> throw(Reason);
fails(exit, Reason) -> exit(Reason);
fails(error, Reason) -> error(Reason).

nested_same_key() ->
    Nested = fun
        Nest([_, _, _, _]) ->
            too_many;
        Nest(Counts) ->
            case canal_lock:with_permit(db, 3, 1, fun() -> Nest([canal_lock:count(db) | Counts]) end) of
                {ok, Innermost} -> Innermost;
                full -> Counts
            end
    end,
    ?assertEqual([3, 2, 1], Nested([])),
    nothing_is_out().

nested_other_keys() ->
    Keys = [Key || {_, Key} <- test_key_terms:all()],
    Innermost = fun() -> maps:get(permits, canal_lock:info()) end,
    Around = fun(Key, Inner) -> fun() -> canal_lock:with_permit(Key, 1000, 1, Inner) end end,
    Nested = lists:foldl(Around, Innermost, Keys),
    Answer = lists:foldl(fun(_, Inner) -> {ok, Inner} end, length(Keys), Keys),
    ?assert(Nested() =:= Answer),
    nothing_is_out().

inner_fails() ->
    {ok, Seen} = canal_lock:with_permit(db, 3, 1, fun() ->
        thrown = (catch canal_lock:with_permit(db, 3, 1, fun() -> throw(thrown) end)),
        thrown = (catch canal_lock:with_permit(app, 3, 1, fun() -> throw(thrown) end)),
        canal_lock:held()
    end),
    ?assertEqual([{db, 1}], Seen),
    nothing_is_out().

full() ->
    {_, {acquired, 1}} = test_worker:start(fun() -> canal_lock:acquire(db, 1, 1) end),
    Called = fun() -> self() ! called end,
    [
        ?assertEqual(full, canal_lock:with_permit(Key, MaxPer, Buckets, Called))
     || {Key, MaxPer, Buckets} <- [{db, 1, 1}, {db, 0, 9}, {db, 9, 0}, {other, 0, 1}, {other, 1, 0}, {#{}, 0, 0}]
    ],
    ?assertEqual(not_called, receive called -> called after 0 -> not_called end),
    ?assertEqual([], canal_lock:held()),
    ?assertMatch(#{permits := 1}, canal_lock:info()).

%% A process that is inside, and stays there.
inside(Key) ->
    Test = self(),
    Process = spawn(fun() ->
        canal_lock:with_permit(Key, 1, 1, fun() ->
            canal_lock:with_permit({Key, nested}, 1, 1, fun() ->
                Test ! {inside, self()},
                receive
                after infinity -> ok
                end
            end)
        end)
    end),
    receive
        {inside, Process} -> Process
    end.

killed() ->
    Process = inside(db),
    ?assertMatch(#{permits := 2}, canal_lock:info()),
    ?assertEqual(full, canal_lock:with_permit(db, 1, 1, fun() -> not_called end)),
    ok = test_worker:kill(Process),
    [test_await:count(Key, 0) || Key <- [db, {db, nested}]],
    ?assertEqual({ok, mine}, canal_lock:with_permit(db, 1, 1, fun() -> mine end)),
    nothing_is_out().

exit_signal() ->
    Process = inside(#{}),
    exit(Process, meant),
    test_await:down([Process]),
    [test_await:count(Key, 0) || Key <- [#{}, {#{}, nested}]],
    test_await:value(0, fun() -> maps:get(holders, canal_lock:info()) end),
    nothing_is_out().

%% It must not; but it harms nobody else.
releases_its_own() ->
    {Other, {acquired, 1}} = test_worker:start(fun() -> canal_lock:acquire(db, 9, 1) end),
    ?assertEqual({ok, ok}, canal_lock:with_permit(db, 9, 1, fun() -> canal_lock:release(db) end)),
    ?assertEqual({1, []}, {canal_lock:count(db), canal_lock:held()}),
    ?assertEqual([{db, 1}], canal_lock:held(Other)),
    ?assertEqual(
        thrown,
        catch canal_lock:with_permit(db, 9, 1, fun() ->
            ok = canal_lock:release(db),
            throw(thrown)
        end)
    ),
    ?assertMatch(#{permits := 1, not_held := 2}, canal_lock:info()).

leaves_something() ->
    {ok, {acquired, 1}} = canal_lock:with_permit(db, 9, 1, fun() -> canal_lock:acquire(app, 9, 1) end),
    ?assertEqual([{app, 1}], canal_lock:held()),
    {ok, {acquired, 2}} = canal_lock:with_permit(db, 9, 1, fun() -> canal_lock:acquire(db, 9, 1) end),
    ?assertEqual([{app, 1}, {db, 1}], lists:sort(canal_lock:held())).

stopped_meanwhile() ->
    Stop = fun(Then) ->
        fun() ->
            ok = canal_lock:stop(),
            Then()
        end
    end,
    Start = fun() -> {ok, _} = canal_lock:start_link(3) end,
    ?assertEqual({ok, result}, canal_lock:with_permit(db, 1, 1, Stop(fun() -> result end))),
    ?assertError(badarg, canal_lock:count(db)),
    Start(),
    ?assertThrow(meant, canal_lock:with_permit(db, 1, 1, Stop(fun() -> throw(meant) end))),
    Start(),
    ?assertError(meant, canal_lock:with_permit("string", 1, 1, Stop(fun() -> error(meant) end))),
    Start(),
    ?assertExit(meant, canal_lock:with_permit(#{}, 1, 1, Stop(fun() -> exit(meant) end))),
    Start(),
    Nested = fun() -> canal_lock:with_permit(app, 1, 1, Stop(fun() -> result end)) end,
    ?assertEqual({ok, {ok, result}}, canal_lock:with_permit(db, 1, 1, Nested)).

restarted_meanwhile() ->
    {ok, Other} = canal_lock:with_permit(db, 3, 1, fun() ->
        ok = canal_lock:stop(),
        {ok, _} = canal_lock:start_link(3),
        element(1, test_worker:start(fun() -> canal_lock:acquire(db, 3, 1) end))
    end),
    ?assertEqual([{Other, 1}], canal_lock:holders(db)),
    ?assertMatch(#{permits := 1, granted := 1, released := 0}, canal_lock:info()).

bad_arguments() ->
    Called = fun() -> self() ! called end,
    [
        ?assertError(badarg, canal_lock:with_permit(db, MaxPer, Buckets, Fun))
     || {MaxPer, Buckets, Fun} <- [
            {-1, 1, Called},
            {1, -1, Called},
            {one, 1, Called},
            {1, 1.0, Called},
            {1, 1, not_a_fun},
            {1, 1, fun(_) -> self() ! called end},
            {1, 1, fun erlang:self/1},
            {1, 1, {?MODULE, nothing_is_out}},
            {0, 1, not_a_fun},
            {one, one, one}
        ]
    ],
    ?assertEqual(not_called, receive called -> called after 0 -> not_called end),
    ?assertMatch(#{keys := 0, granted := 0, refused := 0}, canal_lock:info()),
    %% A fun of a module that is not there is a fun: it fails when it is called.
    ?assertError(undef, canal_lock:with_permit(db, 1, 1, fun no_such_module:f/0)),
    nothing_is_out().

not_started() ->
    Called = fun() -> self() ! called end,
    [?assertError(badarg, canal_lock:with_permit(Key, 1, 1, Called)) || Key <- [db, "string", #{}]],
    ?assertEqual(not_called, receive called -> called after 0 -> not_called end).

many() ->
    Inside = atomics:new(1, []),
    Enter = fun() ->
        Now = atomics:add_get(Inside, 1, 1),
        erlang:yield(),
        ok = atomics:sub(Inside, 1, 1),
        rand:uniform(3) =:= 1 andalso throw(Now),
        Now
    end,
    Workers = [test_worker:start() || _ <- lists:seq(1, 8)],
    Orders = [
        test_worker:send_order(Worker, fun() ->
            [catch canal_lock:with_permit(db, 3, 1, Enter) || _ <- lists:seq(1, test_setup:times(5000))]
        end)
     || Worker <- Workers
    ],
    Answers = lists:usort(lists:append([test_await:answer(Order) || Order <- Orders])),
    ?assertEqual([], Answers -- [full, 1, 2, 3, {ok, 1}, {ok, 2}, {ok, 3}]),
    nothing_is_out().

nothing_is_out() ->
    ?assertMatch(#{permits := 0, holders := 0, not_held := 0}, canal_lock:info()).
