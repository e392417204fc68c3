%% Inspection calls read the table in pieces of bounded size, so that reading a large table blocks no scheduler. All
%% pieces of an answer come from one table.
-module(canal_lock_pieces_tests).

-include_lib("eunit/include/eunit.hrl").

-define(KEYS, 200_000).

%% The limit that canal_lock_view uses.
-define(LIMIT, 512).

%% A piece of all permits ends after the process with which it reaches this many permits.
-define(PERMITS, 4096).

%% A piece of one process has this many keys.
-define(HELD, 1024).

%% The position of the first holder.
-define(FIRST_HOLDER, {0, 0, 0}).

pieces_test_() ->
    test_setup:tests([
        {"keys/3: no piece has more keys than the limit, with 200,000 held keys", fun held_keys/0},
        {"keys/3: no piece reads more keys than the limit, with 200,000 idle keys", fun idle_keys/0},
        {"keys/3: each key is returned once, with any limit", fun any_limit/0},
        {"keys/3: a large key counts as several", fun large_keys/0},
        {"permits/2 and holders/3: a piece ends soon after 4096 permits", fun holders/0},
        {"permits/2 and held/3: the keys of one process come in pieces, each key once", fun one_holder/0},
        {"audit/0 returns keys that lose their holder between its two reads", fun audit_beside_death/0},
        {"a request for the next piece returns `changed' when another table is open", fun changed/0},
        {"any start position is accepted; wrong arguments raise badarg", fun any_number/0},
        {"an answer is of one table, even if another one is opened during the call", fun one_table/0}
    ]).

kept_test_() ->
    test_setup:quietly([
        test_setup:tests(without_manager, [
            {"P10: the pieces of a kept table continue after a crash of the manager and its restart", fun kept/0}
        ])
    ]).

held_keys() ->
    Keys = [{key, N} || N <- lists:seq(1, ?KEYS)],
    {_, acquired} = test_worker:start(fun() -> acquire(Keys) end),
    Pieces = key_pieces(?LIMIT),
    ?assert(at_most(?LIMIT, Pieces)),
    ?assertEqual(sorted([{Key, 1} || Key <- Keys]), sorted(lists:append(Pieces))),
    ?assertEqual(sorted(canal_lock:keys()), sorted(lists:append(Pieces))).

idle_keys() ->
    acquire([{key, N} || N <- lists:seq(1, ?KEYS)]),
    [ok = canal_lock:release({key, N}) || N <- lists:seq(1, ?KEYS), N rem 1000 =/= 0],
    Pieces = key_pieces(?LIMIT),
    ?assert(length(Pieces) >= ?KEYS div ?LIMIT),
    ?assertEqual(sorted([{{key, N}, 1} || N <- lists:seq(1000, ?KEYS, 1000)]), sorted(lists:append(Pieces))).

any_limit() ->
    Keys = [{key, N} || N <- lists:seq(1, 1000)],
    acquire(Keys),
    lists:foreach(fun(Limit) ->
        Pieces = key_pieces(Limit),
        ?assert(at_most(Limit, Pieces)),
        ?assertEqual({Limit, sorted([{Key, 1} || Key <- Keys])}, {Limit, sorted(lists:append(Pieces))})
    end, [1, 2, 7, 999, 1000, 1001, 1 bsl 40]).

large_keys() ->
    Make = [
        fun(N) -> <<N:64, 0:(8 * 64 * 1024)>> end,
        fun(N) -> [N | lists:seq(1, 10_000)] end,
        fun(N) -> #{N => lists:seq(1, 10_000)} end
    ],
    Keys = [Large(N) || Large <- Make, N <- lists:seq(1, 50)],
    acquire(Keys),
    Pieces = key_pieces(?LIMIT),
    %% Each key has 64 KB or more, which counts as 65.
    ?assert(at_most(8, Pieces)),
    ?assert(sorted([{Key, 1} || Key <- Keys]) =:= sorted(lists:append(Pieces))).

%% A piece ends after the group of slots in which it reaches the limit. There are more permits than two pieces hold.
holders() ->
    Workers = [test_worker:start() || _ <- lists:seq(1, 3 * ?PERMITS)],
    Orders = [test_worker:send_order(Worker, fun() -> acquire([db, {own, self()}]) end) || Worker <- Workers],
    [acquired = test_await:answer(Order) || Order <- Orders],
    Permits = pieces(fun(Serial, From) -> canal_lock_nif:permits(local, Serial, From) end, ?FIRST_HOLDER),
    Wanted = [{Worker, Key, 1} || Worker <- Workers, Key <- [db, {own, Worker}]],
    ?assertEqual(sorted(Wanted), sorted(without_times(lists:append(Permits)))),
    ?assert(at_most(?PERMITS + 2, Permits)),
    Holders = pieces(fun(Serial, From) -> canal_lock_nif:holders(local, Serial, From, db) end, ?FIRST_HOLDER),
    ?assertEqual(sorted([{Worker, 1} || Worker <- Workers]), sorted(lists:append(Holders))),
    ?assert(at_most(?PERMITS + 1, Holders)),
    [?assert(length(Pieces) > 2) || Pieces <- [Permits, Holders]].

without_times(Rows) ->
    [{Pid, Key, Permits} || {Pid, Key, Permits, _Held_ms} <- Rows].

one_holder() ->
    Keys = [{key, N} || N <- lists:seq(1, ?KEYS)],
    acquire(Keys),
    {Worker, acquired} = test_worker:start(fun() -> acquire([db, http]) end),
    Held = pieces(fun(Serial, From) -> canal_lock_nif:held(Serial, From, self()) end),
    ?assertEqual(sorted([{Key, 1} || Key <- Keys]), sorted(lists:append(Held))),
    ?assertEqual(sorted(canal_lock:held()), sorted(lists:append(Held))),
    Permits = pieces(fun(Serial, From) -> canal_lock_nif:permits(local, Serial, From) end, ?FIRST_HOLDER),
    Wanted = [{self(), Key, 1} || Key <- Keys] ++ [{Worker, Key, 1} || Key <- [db, http]],
    ?assertEqual(sorted(Wanted), sorted(without_times(lists:append(Permits)))),
    %% Plus the two keys that are in the slot itself.
    [?assert(at_most(?HELD + 2, Pieces)) || Pieces <- [Held, Permits]].

%% The audit has read the permits when it requests the first piece of the keys. If the death came too late, the test
%% tries again.
audit_beside_death() ->
    audit_beside_death(100).

audit_beside_death(Tries) ->
    {Holder, acquired} = test_worker:start(fun() -> acquire([{key, N} || N <- lists:seq(1, 20_000)]) end),
    acquire([db]),
    {Differing, _} = traced_call(fun canal_lock:audit/0, fun() ->
        receive {trace, _, call, {canal_lock_nif, keys, [0, 0, _]}} -> test_worker:kill(Holder) end
    end),
    ok = canal_lock:release(db),
    case Differing of
        [] when Tries > 1 -> audit_beside_death(Tries - 1);
        [_ | _] -> ?assertEqual([{0, 1}], lists:usort([{Count, Held} || {_, Count, Held} <- Differing]))
    end.

changed() ->
    First = first_pieces(),
    ok = canal_lock:stop(),
    [?assertError(not_started, Next()) || {_, Next} <- First],
    {ok, _} = canal_lock:start_link(3),
    [?assertEqual({Call, changed}, {Call, Next()}) || {Call, Next} <- First],
    %% The new table gives its own second pieces.
    Second = first_pieces(),
    have_pieces(Second).

have_pieces(Requests) ->
    [?assertMatch({Call, {_, _, _}}, {Call, Next()}) || {Call, Next} <- Requests].

kept() ->
    {ok, Manager} = canal_lock:start_link(3, #{keep_on_crash => true}),
    true = unlink(Manager),
    First = first_pieces(),
    exit(Manager, kill),
    test_await:value(undefined, fun() -> whereis(canal_lock) end),
    have_pieces(First),
    {ok, _} = canal_lock:start_link(3, #{keep_on_crash => true}),
    have_pieces(First),
    ok = canal_lock:stop().

%% Requests for the second pieces of answers, after the first pieces have been read.
first_pieces() ->
    acquire([db | [{key, N} || N <- lists:seq(1, 3 * ?HELD)]]),
    {Serial, [_ | _], Next} = canal_lock_nif:keys(0, 0, ?LIMIT),
    ?assert(is_integer(Next)),
    {Serial, [_ | _], NextHeld} = canal_lock_nif:held(0, 0, self()),
    ?assert(is_integer(NextHeld)),
    {Serial, [_ | _], NextPermits} = canal_lock_nif:permits(local, 0, ?FIRST_HOLDER),
    ?assertMatch({0, _, _}, NextPermits),
    [
        {keys, fun() -> canal_lock_nif:keys(Serial, Next, ?LIMIT) end},
        {held, fun() -> canal_lock_nif:held(Serial, NextHeld, self()) end},
        {holder, fun() -> canal_lock_nif:holder(Serial, NextHeld, self()) end},
        {permits, fun() -> canal_lock_nif:permits(local, Serial, NextPermits) end},
        {holders, fun() -> canal_lock_nif:holders(local, Serial, ?FIRST_HOLDER, db) end}
    ].

any_number() ->
    acquire([db, {app, 1}, "string"]),
    Wanted = [{Key, 1} || Key <- [db, {app, 1}, "string"]],
    Numbers = [0, 1, 2, 1000] ++ [1 bsl Bit - Near || Bit <- [31, 32, 62, 63, 64], Near <- [1, 2]],
    %% The array, displaced slots, the ledger, and none.
    Parts = [0, 1, 2, 3, 64, 65, 66, 67, 1 bsl 32, 1 bsl 64 - 1],
    lists:foreach(fun(From) ->
        {_, Keys, _} = canal_lock_nif:keys(0, From, ?LIMIT),
        ?assertEqual({From, []}, {From, Keys -- Wanted}),
        {_, Held, _} = canal_lock_nif:held(0, From, self()),
        ?assertEqual({From, []}, {From, Held -- Wanted}),
        lists:foreach(fun(Holder) ->
            ?assertMatch({Holder, {_, _, _}}, {Holder, canal_lock_nif:permits(local, 0, Holder)}),
            ?assertMatch({Holder, {_, _, _}}, {Holder, canal_lock_nif:holders(local, 0, Holder, db)})
        end, [{Part, N, M} || Part <- Parts, Other <- [0, 1 bsl 40], {N, M} <- [{From, Other}, {Other, From}]])
    end, Numbers),
    lists:foreach(fun(Bad) ->
        ?assertError(badarg, canal_lock_nif:keys(Bad, 0, ?LIMIT)),
        ?assertError(badarg, canal_lock_nif:keys(0, Bad, ?LIMIT)),
        ?assertError(badarg, canal_lock_nif:keys(0, 0, Bad)),
        ?assertError(badarg, canal_lock_nif:held(Bad, 0, self())),
        ?assertError(badarg, canal_lock_nif:held(0, Bad, self())),
        ?assertError(badarg, canal_lock_nif:permits(local, Bad, ?FIRST_HOLDER)),
        ?assertError(badarg, canal_lock_nif:holders(local, Bad, ?FIRST_HOLDER, db)),
        lists:foreach(fun(From) ->
            ?assertError(badarg, canal_lock_nif:permits(local, 0, From)),
            ?assertError(badarg, canal_lock_nif:holders(local, 0, From, db))
        end, [Bad, {Bad, 0, 0}, {0, Bad, 0}, {0, 0, Bad}, {0, 0}])
    end, [-1, 1.0, atom, 1 bsl 64, [], self()]),
    ?assertEqual(3, length(canal_lock:keys())).

%% The test opens another table while a process reads the keys of the first one. If the call has already ended, the test
%% tries again.
one_table() ->
    one_table(100).

one_table(Tries) ->
    ok = canal_lock_nif:close(open()),
    Handle = open(),
    acquire([{old, N} || N <- lists:seq(1, 50_000)]),
    {Keys, Calls} = traced_call(fun canal_lock:keys/0, fun() ->
        receive
            {trace, Reader, call, {canal_lock_nif, keys, [Serial, _, _]}} when Serial > 0 ->
                ok = test_worker:suspend(Reader),
                ok = canal_lock_nif:close(Handle),
                _ = open(),
                ok = test_worker:resume(Reader)
        end,
        acquire([{new, N} || N <- lists:seq(1, 5_000)])
    end),
    Tables = lists:usort([Table || {{Table, _}, 1} <- Keys]),
    %% The reader had its first piece when the table changed. Two first calls mean that it has then started again.
    case {[first || {trace, _, call, {_, keys, [0, 0, _]}} <- Calls], Tables} of
        {[first], [old]} when Tries > 1 -> one_table(Tries - 1);
        {[first, first], _} -> ?assertEqual([], Tables -- [new])
    end.

open() ->
    canal_lock_nif:open(1024, 3, false, 1000).

%% Makes a call in a worker and does something during the call. Returns the answer, and the traced calls of
%% canal_lock_nif:keys/3 that `Do' has not received.
traced_call(Call, Do) ->
    Worker = test_worker:start(),
    1 = erlang:trace(Worker, true, [call]),
    1 = erlang:trace_pattern({canal_lock_nif, keys, 3}, true, []),
    Sent = test_worker:send_order(Worker, Call),
    _ = Do(),
    Answer = test_await:answer(Sent),
    1 = erlang:trace_pattern({canal_lock_nif, keys, 3}, false, []),
    Calls = test_await:traced(Worker),
    ok = test_worker:kill(Worker),
    {Answer, Calls}.

acquire(Keys) ->
    [{acquired, _} = canal_lock:acquire(Key, 1 bsl 30, 1) || Key <- Keys],
    acquired.

key_pieces(Limit) ->
    pieces(fun(Serial, From) -> canal_lock_nif:keys(Serial, From, Limit) end).

%% All pieces of an answer, which must end.
pieces(Piece) ->
    pieces(Piece, 0).

pieces(Piece, Start) ->
    {Serial, First, Next} = Piece(0, Start),
    [First | pieces(Piece, Serial, Next)].

pieces(_, _, done) ->
    [];
pieces(Piece, Serial, From) ->
    {Serial, Next, Rest} = Piece(Serial, From),
    [Next | pieces(Piece, Serial, Rest)].

at_most(Limit, Pieces) ->
    lists:max([length(Piece) || Piece <- Pieces]) =< Limit.

sorted(List) ->
    lists:sort(List).
