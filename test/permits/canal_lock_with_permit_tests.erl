%% with_permit/4,5: however the fun ends, its permits are released and its result or exception reaches the caller.
-module(canal_lock_with_permit_tests).

-include_lib("eunit/include/eunit.hrl").

-import(test_worker, [caught/1]).

with_permit_test_() ->
    test_setup:quietly([
        test_setup:tests([
            {"it returns the result of the fun, whatever it is", fun returns/0},
            {"a throw, exit or error of the fun reaches the caller with its stack trace", fun goes_through/0},
            {"with options, too, and the fun is called once, with any reason and key", fun goes_through_with_options/0},
            {"with options, a long key is read once", fun long_key_with_options/0},
            {"nested calls with other keys of every kind work", fun nested_other_keys/0},
            {"a refused call does not call the fun", fun full/0},
            {"P5: a fun that releases its own permit releases no other", fun releases_its_own/0},
            {"P5: permits that the fun acquires stay held", fun leaves_something/0},
            {"P10: the result is returned if the manager stops during the call", fun stopped_meanwhile/0},
            {"P10: nothing of a table that is opened during the call is released", fun restarted_meanwhile/0},
            {"no more processes run their funs at once than there are permits", fun many/0}
        ]),
        test_setup:tests(without_manager, [{"P10: without a manager the fun is not called", fun not_started/0}])
    ]).

returns() ->
    [
        ?assertEqual({ok, Result}, canal_lock:with_permit(db, 1, 1, fun() -> Result end))
     || Result <- [ok, full, {ok, full}, {error, not_held}, {raise, badarg, []}, {'EXIT', normal}, [], #{}]
    ],
    no_permits().

goes_through() ->
    [
        try canal_lock:with_permit(Key, 1, 1, fun() -> fails(Class, Reason) end) of
            Answer -> error({no_failure, Answer})
        catch
            Class:Caught:Stack ->
                ?assertEqual(Reason, Caught),
                ?assertMatch([{?MODULE, fails, 2, _} | _], Stack),
                no_permits()
        end
     || Class <- [throw, exit, error],
        Reason <- [meant, normal, full, {ok, result}, badarg, not_started, {raise, badarg, []}],
        Key <- [db, "string", #{}]
    ],
    %% An error of the VM, and an error of another call of canal_lock.
    ?assertError(badarith, canal_lock:with_permit(db, 1, 1, fun() -> 1 div canal_lock:count(other) end)),
    ?assertError(badarg, canal_lock:with_permit(db, 1, 1, fun() -> canal_lock:acquire(db, -1, 1) end)),
    %% A fun of a missing module is a fun.
    ?assertError(undef, canal_lock:with_permit(db, 1, 1, fun no_such_module:f/0)),
    no_permits().

fails(throw, Reason) -> throw(Reason);
fails(exit, Reason) -> exit(Reason);
fails(error, Reason) -> error(Reason).

%% Reasons that the library itself raises or catches are among them.
goes_through_with_options() ->
    Calls = counters:new(1, []),
    Ends =
        [{error, Reason} || Reason <- [badarg, intern, not_started, system_limit, nif_panicked, {raise, badarg}]] ++
            [{throw, intern}, {exit, intern}],
    [
        begin
            counters:put(Calls, 1, 0),
            Fun = fun() ->
                counters:add(Calls, 1, 1),
                2 = canal_lock:count(Key),
                erlang:raise(Class, Reason, [])
            end,
            Got =
                try
                    canal_lock:with_permit(Key, 2, 1, #{timeout_ms => 5, permits => 2}, Fun)
                catch
                    Caught:Why -> {Caught, Why}
                end,
            ?assertEqual({{Class, Reason}, 1}, {Got, counters:get(Calls, 1)}),
            no_permits()
        end
     || {Class, Reason} <- Ends, Key <- [db, lists:duplicate(9_000, {})]
    ].

long_key_with_options() ->
    Long = lists:duplicate(9_000, {}),
    1 = erlang:trace_pattern({canal_lock_nif, intern, 1}, true, []),
    Caller = test_worker:start(),
    1 = erlang:trace(Caller, true, [call]),
    Call = fun() -> canal_lock:with_permit(Long, 2, 1, #{permits => 2}, fun() -> done end) end,
    ?assertEqual({ok, done}, test_worker:order(Caller, Call)),
    Read = test_await:traced(Caller),
    1 = erlang:trace_pattern({canal_lock_nif, intern, 1}, false, []),
    ?assertMatch([_], Read),
    no_permits().

nested_other_keys() ->
    Keys = [Key || {_, Key} <- test_key_terms:all()],
    Innermost = fun() -> maps:get(permits, canal_lock:info()) end,
    Around = fun(Key, Inner) -> fun() -> canal_lock:with_permit(Key, 1000, 1, Inner) end end,
    Nested = lists:foldl(Around, Innermost, Keys),
    Answer = lists:foldl(fun(_, Inner) -> {ok, Inner} end, length(Keys), Keys),
    ?assert(Nested() =:= Answer),
    no_permits().

full() ->
    {_, {acquired, 1}} = test_worker:start(fun() -> canal_lock:acquire(db, 1, 1) end),
    Called = fun() -> self() ! called end,
    [
        ?assertEqual(full, canal_lock:with_permit(Key, MaxPer, Buckets, Called))
     || {Key, MaxPer, Buckets} <- [{db, 1, 1}, {db, 0, 9}, {db, 9, 0}, {other, 0, 1}, {other, 1, 0}, {#{}, 0, 0}]
    ],
    is_not_called(),
    ?assertEqual([], canal_lock:held()),
    ?assertMatch(#{permits := 1}, canal_lock:info()).

%% The fun must not do this, but it affects no other holder.
releases_its_own() ->
    {Other, {acquired, 1}} = test_worker:start(fun() -> canal_lock:acquire(db, 9, 1) end),
    ?assertEqual({ok, ok}, canal_lock:with_permit(db, 9, 1, fun() -> canal_lock:release(db) end)),
    ?assertEqual({1, []}, {canal_lock:count(db), canal_lock:held()}),
    ?assertEqual([{db, 1}], canal_lock:held(Other)),
    Release = fun() ->
        ok = canal_lock:release(db),
        throw(thrown)
    end,
    ?assertEqual(thrown, caught(fun() -> canal_lock:with_permit(db, 9, 1, Release) end)),
    ?assertMatch(#{permits := 1, not_held := 2}, canal_lock:info()).

leaves_something() ->
    {ok, {acquired, 1}} = canal_lock:with_permit(db, 9, 1, fun() -> canal_lock:acquire(app, 9, 1) end),
    ?assertEqual([{app, 1}], canal_lock:held()),
    {ok, {acquired, 2}} = canal_lock:with_permit(db, 9, 1, fun() -> canal_lock:acquire(db, 9, 1) end),
    ?assertEqual([{app, 1}, {db, 1}], lists:sort(canal_lock:held())).

stopped_meanwhile() ->
    Stopping = fun(Key, Then) ->
        canal_lock:with_permit(Key, 1, 1, fun() ->
            ok = canal_lock:stop(),
            Then()
        end)
    end,
    Start = fun() -> {ok, _} = canal_lock:start_link(3) end,
    ?assertEqual({ok, result}, Stopping(db, fun() -> result end)),
    ?assertError(badarg, canal_lock:count(db)),
    Start(),
    ?assertThrow(meant, Stopping(db, fun() -> throw(meant) end)),
    Start(),
    ?assertError(meant, Stopping("string", fun() -> error(meant) end)),
    Start(),
    StoppingTwo = fun(Then) ->
        canal_lock:with_permit(db, 2, 1, #{permits => 2}, fun() ->
            ok = canal_lock:stop(),
            Then()
        end)
    end,
    ?assertEqual({ok, result}, StoppingTwo(fun() -> result end)),
    Start(),
    ?assertThrow(meant, StoppingTwo(fun() -> throw(meant) end)),
    Start(),
    ?assertExit(meant, Stopping(#{}, fun() -> exit(meant) end)),
    Start(),
    Nested = fun() -> Stopping(app, fun() -> result end) end,
    ?assertEqual({ok, {ok, result}}, canal_lock:with_permit(db, 1, 1, Nested)).

restarted_meanwhile() ->
    {ok, Other} = canal_lock:with_permit(db, 3, 1, fun() ->
        ok = canal_lock:stop(),
        {ok, _} = canal_lock:start_link(3),
        element(1, test_worker:start(fun() -> canal_lock:acquire(db, 3, 1) end))
    end),
    ?assertEqual([{Other, 1}], canal_lock:holders(db)),
    ?assertMatch(#{permits := 1, granted := 1, released := 0}, canal_lock:info()).

not_started() ->
    Called = fun() -> self() ! called end,
    [?assertError(badarg, canal_lock:with_permit(Key, 1, 1, Called)) || Key <- [db, "string", #{}]],
    is_not_called().

many() ->
    Inside = atomics:new(1, []),
    Enter = fun() ->
        Now = atomics:add_get(Inside, 1, 1),
        erlang:yield(),
        ok = atomics:sub(Inside, 1, 1),
        rand:uniform(3) =:= 1 andalso throw(Now),
        Now
    end,
    Times = lists:seq(1, test_setup:times(5000)),
    EnterOften = fun() -> [caught(fun() -> canal_lock:with_permit(db, 3, 1, Enter) end) || _ <- Times] end,
    Answers = lists:usort(lists:append(test_setup:concurrently(8, EnterOften))),
    ?assertEqual([], Answers -- [full, 1, 2, 3, {ok, 1}, {ok, 2}, {ok, 3}]),
    no_permits().

no_permits() ->
    ?assertMatch(#{permits := 0, holders := 0, not_held := 0}, canal_lock:info()).

is_not_called() ->
    ?assertEqual(not_called, receive called -> called after 0 -> not_called end).
