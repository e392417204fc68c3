%% Long answers come in pieces of bounded size, so that looking at a large table stops nobody; and all pieces of an
%% answer are of one table.
-module(canal_lock_pieces_tests).

-include_lib("eunit/include/eunit.hrl").

-define(KEYS, 200_000).

%% What canal_lock_view asks for at a time.
-define(LIMIT, 512).

%% A piece of all permits ends behind the process with which it has this many; a piece of one process has this many
%% keys.
-define(SEEN, 4096).
-define(HELD, 1024).

%% Where a look at the holders begins.
-define(FIRST_HOLDER, {false, 0, 0}).

pieces_test_() ->
    test_setup:tests([
        {"keys/3: no piece tells more than the limit, of 200,000 keys that are held", fun held_keys/0},
        {"keys/3: nor looks at more than the limit, of 200,000 idle keys", fun idle_keys/0},
        {"keys/3: with any limit, each key once", fun any_limit/0},
        {"keys/3: a large key counts as several", fun large_keys/0},
        {"permits/2 and holders/3: no piece tells of many more than 4096 permits", fun holders/0},
        {"permits/2 and held/3: what one process holds comes in pieces, each key once", fun one_holder/0},
        {"audit/0 returns keys that lose their holder between its two looks", fun audit_beside_death/0},
        {"a piece of another table is answered `changed'", fun changed/0},
        {"from any number on, whatever it is", fun any_number/0},
        {"a whole answer is of one table, though it be another at the end than at the beginning", fun one_table/0}
    ]).

kept_test_() ->
    test_setup:quietly([
        test_setup:tests(without_manager, [
            {"P10: pieces of a kept table go on when the manager has died, and when there is another", fun kept/0}
        ])
    ]).

held_keys() ->
    Keys = [{key, N} || N <- lists:seq(1, ?KEYS)],
    {_, taken} = test_worker:start(fun() -> take(Keys) end),
    Pieces = pieces(fun(Serial, From) -> canal_lock_nif:keys(Serial, From, ?LIMIT) end),
    ?assert(at_most(?LIMIT, Pieces)),
    ?assertEqual(sorted([{Key, 1} || Key <- Keys]), sorted(lists:append(Pieces))),
    ?assertEqual(sorted(canal_lock:keys()), sorted(lists:append(Pieces))).

idle_keys() ->
    take([{key, N} || N <- lists:seq(1, ?KEYS)]),
    [ok = canal_lock:release({key, N}) || N <- lists:seq(1, ?KEYS), N rem 1000 =/= 0],
    Pieces = pieces(fun(Serial, From) -> canal_lock_nif:keys(Serial, From, ?LIMIT) end),
    ?assert(length(Pieces) >= ?KEYS div ?LIMIT),
    ?assertEqual(sorted([{{key, N}, 1} || N <- lists:seq(1000, ?KEYS, 1000)]), sorted(lists:append(Pieces))).

any_limit() ->
    Keys = [{key, N} || N <- lists:seq(1, 1000)],
    take(Keys),
    [
        begin
            Pieces = pieces(fun(Serial, From) -> canal_lock_nif:keys(Serial, From, Limit) end),
            ?assert(at_most(Limit, Pieces)),
            ?assertEqual({Limit, sorted([{Key, 1} || Key <- Keys])}, {Limit, sorted(lists:append(Pieces))})
        end
     || Limit <- [1, 2, 7, 999, 1000, 1001, 1 bsl 40]
    ].

large_keys() ->
    Make = [
        fun(N) -> <<N:64, 0:(8 * 64 * 1024)>> end,
        fun(N) -> [N | lists:seq(1, 10_000)] end,
        fun(N) -> #{N => lists:seq(1, 10_000)} end
    ],
    Keys = [Large(N) || Large <- Make, N <- lists:seq(1, 50)],
    take(Keys),
    Pieces = pieces(fun(Serial, From) -> canal_lock_nif:keys(Serial, From, ?LIMIT) end),
    %% Of 64 KB and more each, which counts as 65.
    ?assert(at_most(8, Pieces)),
    ?assert(sorted([{Key, 1} || Key <- Keys]) =:= sorted(lists:append(Pieces))).

%% A piece ends behind the group of places in which it has so many; there are more than two could tell.
holders() ->
    Workers = [test_worker:start() || _ <- lists:seq(1, 3 * ?SEEN)],
    Orders = [test_worker:send_order(Worker, fun() -> take([db, {own, self()}]) end) || Worker <- Workers],
    [taken = test_await:answer(Order) || Order <- Orders],
    Permits = pieces(fun canal_lock_nif:permits/2, ?FIRST_HOLDER),
    Wanted = [{Worker, Key, 1} || Worker <- Workers, Key <- [db, {own, Worker}]],
    ?assertEqual(sorted(Wanted), sorted(lists:append(Permits))),
    ?assert(at_most(?SEEN + 2, Permits)),
    Holders = pieces(fun(Serial, From) -> canal_lock_nif:holders(Serial, From, db) end, ?FIRST_HOLDER),
    ?assertEqual(sorted([{Worker, 1} || Worker <- Workers]), sorted(lists:append(Holders))),
    ?assert(at_most(?SEEN + 1, Holders)),
    [?assert(length(Pieces) > 2) || Pieces <- [Permits, Holders]].

one_holder() ->
    Keys = [{key, N} || N <- lists:seq(1, ?KEYS)],
    take(Keys),
    {Worker, taken} = test_worker:start(fun() -> take([db, http]) end),
    Held = pieces(fun(Serial, From) -> canal_lock_nif:held(Serial, From, self()) end),
    ?assertEqual(sorted([{Key, 1} || Key <- Keys]), sorted(lists:append(Held))),
    ?assertEqual(sorted(canal_lock:held()), sorted(lists:append(Held))),
    Permits = pieces(fun canal_lock_nif:permits/2, ?FIRST_HOLDER),
    Wanted = [{self(), Key, 1} || Key <- Keys] ++ [{Worker, Key, 1} || Key <- [db, http]],
    ?assertEqual(sorted(Wanted), sorted(lists:append(Permits))),
    %% And the two keys that are in the slot.
    [?assert(at_most(?HELD + 2, Pieces)) || Pieces <- [Held, Permits]].

%% The first look is over when the first piece of the keys is asked for. Tried again if the death came too late.
audit_beside_death() ->
    audit_beside_death(100).

audit_beside_death(Tries) ->
    {Holder, taken} = test_worker:start(fun() -> take([{key, N} || N <- lists:seq(1, 20_000)]) end),
    take([db]),
    Auditor = test_worker:start(),
    1 = erlang:trace(Auditor, true, [call]),
    1 = erlang:trace_pattern({canal_lock_nif, keys, 3}, true, []),
    Answer = test_worker:send_order(Auditor, fun canal_lock:audit/0),
    receive
        {trace, Auditor, call, {canal_lock_nif, keys, [0, 0, _]}} -> test_worker:kill(Holder)
    end,
    Differing = test_await:answer(Answer),
    1 = erlang:trace_pattern({canal_lock_nif, keys, 3}, false, []),
    _ = first_calls(Auditor),
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
    [?assertEqual({What, changed}, {What, Next()}) || {What, Next} <- First],
    %% And so it does for an answer that has just begun.
    Second = first_pieces(),
    [?assertMatch({What, {_, _, _}}, {What, Next()}) || {What, Next} <- Second].

kept() ->
    {ok, Manager} = canal_lock:start_link(3, #{keep_on_crash => true}),
    true = unlink(Manager),
    First = first_pieces(),
    exit(Manager, kill),
    test_await:value(undefined, fun() -> whereis(canal_lock) end),
    [?assertMatch({What, {_, _, _}}, {What, Next()}) || {What, Next} <- First],
    {ok, _} = canal_lock:start_link(3, #{keep_on_crash => true}),
    [?assertMatch({What, {_, _, _}}, {What, Next()}) || {What, Next} <- First],
    ok = canal_lock:stop().

%% Calls for the second pieces of answers whose first pieces have come.
first_pieces() ->
    take([db | [{key, N} || N <- lists:seq(1, 3 * ?HELD)]]),
    {Serial, [_ | _], Next} = canal_lock_nif:keys(0, 0, ?LIMIT),
    ?assert(is_integer(Next)),
    {Serial, [_ | _], NextHeld} = canal_lock_nif:held(0, 0, self()),
    ?assert(is_integer(NextHeld)),
    {Serial, [_ | _], NextPermits} = canal_lock_nif:permits(0, ?FIRST_HOLDER),
    ?assertMatch({false, _, _}, NextPermits),
    [
        {keys, fun() -> canal_lock_nif:keys(Serial, Next, ?LIMIT) end},
        {held, fun() -> canal_lock_nif:held(Serial, NextHeld, self()) end},
        {permits, fun() -> canal_lock_nif:permits(Serial, NextPermits) end},
        {holders, fun() -> canal_lock_nif:holders(Serial, ?FIRST_HOLDER, db) end}
    ].

any_number() ->
    take([db, {app, 1}, "string"]),
    Numbers = [0, 1, 2, 1000] ++ [1 bsl Bit - Near || Bit <- [31, 32, 62, 63, 64], Near <- [1, 2]],
    [
        begin
            {_, Keys, _} = canal_lock_nif:keys(0, From, ?LIMIT),
            ?assertEqual({From, []}, {From, Keys -- [{Key, 1} || Key <- [db, {app, 1}, "string"]]}),
            {_, Held, _} = canal_lock_nif:held(0, From, self()),
            ?assertEqual({From, []}, {From, Held -- [{Key, 1} || Key <- [db, {app, 1}, "string"]]}),
            [
                begin
                    ?assertMatch({Holder, {_, _, _}}, {Holder, canal_lock_nif:permits(0, Holder)}),
                    ?assertMatch({Holder, {_, _, _}}, {Holder, canal_lock_nif:holders(0, Holder, db)})
                end
             || Displaced <- [false, true],
                Other <- [0, 1 bsl 40],
                Holder <- [{Displaced, From, Other}, {Displaced, Other, From}]
            ]
        end
     || From <- Numbers
    ],
    [
        begin
            ?assertError(badarg, canal_lock_nif:keys(Bad, 0, ?LIMIT)),
            ?assertError(badarg, canal_lock_nif:keys(0, Bad, ?LIMIT)),
            ?assertError(badarg, canal_lock_nif:keys(0, 0, Bad)),
            ?assertError(badarg, canal_lock_nif:held(Bad, 0, self())),
            ?assertError(badarg, canal_lock_nif:held(0, Bad, self())),
            ?assertError(badarg, canal_lock_nif:permits(Bad, ?FIRST_HOLDER)),
            ?assertError(badarg, canal_lock_nif:holders(Bad, ?FIRST_HOLDER, db)),
            [
                begin
                    ?assertError(badarg, canal_lock_nif:permits(0, From)),
                    ?assertError(badarg, canal_lock_nif:holders(0, From, db))
                end
             || From <- [Bad, {false, Bad, 0}, {false, 0, Bad}]
            ]
        end
     || Bad <- [-1, 1.0, atom, 1 bsl 64, [], self()]
    ],
    ?assertEqual(3, length(canal_lock:keys())).

%% While somebody looks, another table is opened in place of the one that is looked at. Tried again if the look was over
%% by then.
one_table() ->
    one_table(100).

one_table(Tries) ->
    _ = canal_lock_nif:open(1024, 3, false),
    take([{old, N} || N <- lists:seq(1, 50_000)]),
    Looker = test_worker:start(),
    1 = erlang:trace(Looker, true, [call]),
    1 = erlang:trace_pattern({canal_lock_nif, keys, 3}, true, []),
    Answer = test_worker:send_order(Looker, fun canal_lock:keys/0),
    receive
        {trace, Looker, call, {canal_lock_nif, keys, [Serial, _, _]}} when Serial > 0 ->
            _ = canal_lock_nif:open(1024, 3, false)
    end,
    take([{new, N} || N <- lists:seq(1, 5_000)]),
    Tables = lists:usort([Table || {{Table, _}, 1} <- test_await:answer(Answer)]),
    1 = erlang:trace_pattern({canal_lock_nif, keys, 3}, false, []),
    ok = test_worker:kill(Looker),
    %% It has come further than its first piece; has it begun anew?
    case {first_calls(Looker), Tables} of
        {[first], [old]} when Tries > 1 -> one_table(Tries - 1);
        {[first, first], Tables} -> ?assertEqual([], Tables -- [new])
    end.

first_calls(Looker) ->
    receive
        {trace, Looker, call, {canal_lock_nif, keys, [0, 0, _]}} -> [first | first_calls(Looker)];
        {trace, Looker, call, _} -> first_calls(Looker)
    after 0 -> []
    end.

take(Keys) ->
    [{acquired, _} = canal_lock:acquire(Key, 1 bsl 30, 1) || Key <- Keys],
    taken.

%% All pieces of an answer, which must come to an end.
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
