%% The answers of each function in sequential use.
-module(canal_lock_tests).

-include_lib("eunit/include/eunit.hrl").

answers_test_() ->
    test_setup:tests([
        {"P1: the transcript of the original gives the same answers", fun transcript/0},
        {"P6: the resize timeline of the original grants A, B, C, D and refuses E", fun resize_timeline/0},
        {"P6: the capacity is MaxPer * Buckets, whichever of the two grows", fun capacity_is_the_product/0},
        {"P6: capacity 0 refuses every call", fun capacity_0/0},
        {"P6: integers of any size are accepted; the product saturates", fun any_size/0},
        {"P3: a thousand buckets take no more memory than one", fun memory_of_buckets/0},
        {"P2: a refusal creates no key and no holder", fun refusal_changes_nothing/0},
        {"P5: release/1 returns ok or not_held", fun strict_release/0},
        {"P5: the numbers of a release have no effect", fun numbers_of_a_release/0},
        {"count/1 returns the permits of a key", fun count/0},
        {"buckets/2 returns full buckets first", fun buckets/0},
        {"P9: buckets/2 does not list more than 1,000 buckets", fun too_many_buckets/0},
        {"info/0 returns keys, permits and holders", fun info/0}
    ]).

start_and_stop_test_() ->
    test_setup:tests(without_manager, [
        {"start_link/1 accepts large integers", fun large_start/0}
    ]).

%% The shell transcript of "Usage" in the text of the original: the calls of one process.
transcript() ->
    in_both(fun(Implementation) ->
        [
            ?assertEqual({Implementation, Answer}, {Implementation, Implementation:Call(db, 3, Buckets)})
         || {Call, Buckets, Answer} <- [
                {acquire, 1, {acquired, 1}},
                {acquire, 1, {acquired, 2}},
                {acquire, 1, {acquired, 3}},
                {acquire, 1, full},
                {acquire, 2, {acquired, 4}},
                {acquire, 1, full},
                {release, 1, ok},
                {acquire, 1, full},
                {release, 2, ok},
                {acquire, 1, {acquired, 3}},
                {acquire, 1, full}
            ]
        ]
    end).

%% "Behaviour Under Concurrent Resizes": five processes acquire in this order.
resize_timeline() ->
    in_both(fun(Implementation) ->
        lists:foreach(fun({Name, Buckets, Expected}) ->
            {_, Answer} = test_worker:start(fun() -> Implementation:acquire(app, 3, Buckets) end),
            ?assertEqual({Implementation, Name, Expected}, {Implementation, Name, Answer})
        end, [
            {b, 1, {acquired, 1}},
            {a, 1, {acquired, 2}},
            {c, 2, {acquired, 3}},
            {e, 1, full},
            {d, 2, {acquired, 4}}
        ])
    end),
    ?assertEqual([3, 1], canal_lock:buckets(app, 3)).

%% In canal_lock, and in the design of the original.
in_both(Test) ->
    {ok, _} = test_original:start_link(3),
    try
        lists:foreach(Test, [canal_lock, test_original])
    after
        test_original:stop()
    end.

capacity_is_the_product() ->
    [{acquired, N} = canal_lock:acquire(db, 2, 3) || N <- lists:seq(1, 6)],
    [
        ?assertEqual({MaxPer, Buckets, full}, {MaxPer, Buckets, canal_lock:acquire(db, MaxPer, Buckets)})
     || {MaxPer, Buckets} <- [{2, 3}, {3, 2}, {6, 1}, {1, 6}, {5, 1}, {1, 1}, {0, 9}]
    ],
    ?assertEqual({acquired, 7}, canal_lock:acquire(db, 1, 7)),
    ?assertEqual({acquired, 8}, canal_lock:acquire(db, 8, 1)).

capacity_0() ->
    {acquired, 1} = canal_lock:acquire(used, 1, 1),
    Huge = 1 bsl 200,
    [
        ?assertEqual({Key, MaxPer, Buckets, full}, {Key, MaxPer, Buckets, canal_lock:acquire(Key, MaxPer, Buckets)})
     || Key <- [new, used], {MaxPer, Buckets} <- [{0, 0}, {0, 1}, {1, 0}, {0, Huge}, {Huge, 0}]
    ],
    ?assertEqual([0, 1], [canal_lock:count(Key) || Key <- [new, used]]).

any_size() ->
    %% Near the widths at which the VM and the library change the form of an integer.
    Bits = [27, 31, 32, 58, 59, 60, 61, 62, 63, 64, 70, 128, 4000],
    Sizes = [1 bsl Bit + Near || Bit <- Bits, Near <- [-1, 0, 1]],
    Pairs = [{MaxPer, Buckets} || Size <- Sizes, {MaxPer, Buckets} <- [{Size, 1}, {1, Size}, {Size, Size}]],
    [
        ?assertEqual({MaxPer, Buckets, {acquired, N}}, {MaxPer, Buckets, canal_lock:acquire(db, MaxPer, Buckets)})
     || {N, {MaxPer, Buckets}} <- lists:enumerate(Pairs)
    ],
    %% A product whose low 64 bits are 0 is still large.
    ?assertMatch({acquired, _}, canal_lock:acquire(db, 1 bsl 32, 1 bsl 32)),
    ?assertMatch({acquired, _}, canal_lock:acquire(db, 1 bsl 63, 2)).

%% The table stores nothing per bucket, so calls have nothing to walk over. The case `buckets' of bench/ measures the
%% cost of calls.
memory_of_buckets() ->
    Fill = fun(Bucket) -> [{acquired, _} = canal_lock:acquire(db, 5, Bucket) || _ <- lists:seq(1, 5)] end,
    Fill(1),
    #{memory := One} = canal_lock:info(),
    lists:foreach(Fill, lists:seq(2, 1000)),
    #{memory := All, permits := 5000} = canal_lock:info(),
    %% Less than a word for each bucket. A sweep in between allocates its lists.
    ?assert(All - One < 1000 * 8),
    ?assertEqual(full, canal_lock:acquire(db, 5, 1000)),
    ?assertEqual({acquired, 5001}, canal_lock:acquire(db, 5, 1001)).

refusal_changes_nothing() ->
    {Holder, {acquired, 1}} = test_worker:start(fun() -> canal_lock:acquire(db, 1, 1) end),
    Before = without_memory(),
    full = canal_lock:acquire(db, 1, 1),
    full = canal_lock:acquire(unknown, 0, 1),
    ?assertEqual(Before#{refused := 2}, without_memory()),
    %% The library does not monitor a process that was refused.
    {_, full} = test_worker:start(fun() -> canal_lock:acquire(db, 1, 1) end),
    ?assertEqual(Before#{refused := 3}, without_memory()),
    ?assertEqual(ok, test_worker:order(Holder, fun() -> canal_lock:release(db) end)).

without_memory() ->
    maps:remove(memory, canal_lock:info()).

strict_release() ->
    ?assertEqual({error, not_held}, canal_lock:release(db)),
    [{acquired, N} = canal_lock:acquire(db, 3, 1) || N <- [1, 2, 3]],
    ?assertEqual([ok, ok, ok, {error, not_held}], [canal_lock:release(db) || _ <- [1, 2, 3, 4]]),
    ?assertEqual(0, canal_lock:count(db)).

numbers_of_a_release() ->
    Numbers = [{0, 0}, {1, 1}, {7, 3}, {1 bsl 70, 1 bsl 70}],
    [{acquired, N} = canal_lock:acquire(db, 4, 1) || N <- [1, 2, 3, 4]],
    [?assertEqual(ok, canal_lock:release(db, MaxPer, Buckets)) || {MaxPer, Buckets} <- Numbers],
    ?assertEqual(0, canal_lock:count(db)).

count() ->
    ?assertEqual(0, canal_lock:count(db)),
    [{acquired, N} = canal_lock:acquire(db, 2, 2) || N <- [1, 2, 3, 4]],
    ?assertEqual(4, canal_lock:count(db)),
    ?assertEqual(0, canal_lock:count(never_seen)),
    ok = canal_lock:release(db),
    ?assertEqual(3, canal_lock:count(db)).

too_many_buckets() ->
    Acquire = fun(Permits) -> {acquired, _} = canal_lock:acquire(db, 1 bsl 40, 1, #{permits => Permits}) end,
    Acquire(1000),
    ?assertEqual(lists:duplicate(1000, 1), canal_lock:buckets(db, 1)),
    Acquire(1),
    ?assertError(system_limit, canal_lock:buckets(db, 1)),
    ?assertEqual(lists:duplicate(500, 2) ++ [1], canal_lock:buckets(db, 2)),
    Acquire(1000),
    %% 1,000 full buckets and one more permit.
    ?assertError(system_limit, canal_lock:buckets(db, 2)),
    Acquire(1 bsl 36),
    ?assertError(system_limit, canal_lock:buckets(db, 1)),
    ?assertEqual([1 bsl 36, 2001], canal_lock:buckets(db, 1 bsl 36)).

buckets() ->
    ?assertEqual([], canal_lock:buckets(db, 3)),
    Views = [
        begin
            {acquired, N} = canal_lock:acquire(db, 3, 3),
            canal_lock:buckets(db, 3)
        end
     || N <- lists:seq(1, 7)
    ],
    ?assertEqual([[1], [2], [3], [3, 1], [3, 2], [3, 3], [3, 3, 1]], Views),
    ?assertEqual(
        [[1, 1, 1, 1, 1, 1, 1], [2, 2, 2, 1], [7], [7], [7]],
        [canal_lock:buckets(db, MaxPer) || MaxPer <- [1, 2, 7, 8, 1 bsl 70]]
    ).

info() ->
    #{memory := Memory} = Empty = canal_lock:info(),
    Rest = maps:without([max_per, memory], Empty),
    ?assertMatch(#{max_per := 3}, Empty),
    ?assertEqual([0], lists:usort(maps:values(Rest))),
    ?assert(Memory > 0),
    [{acquired, N} = canal_lock:acquire(db, 5, 1) || N <- [1, 2, 3]],
    {acquired, 1} = canal_lock:acquire(other, 5, 1),
    {Worker, {acquired, 4}} = test_worker:start(fun() -> canal_lock:acquire(db, 5, 1) end),
    ?assertMatch(#{keys := 2, permits := 5, holders := 2}, canal_lock:info()),
    ok = test_worker:order(Worker, fun() -> canal_lock:release(db) end),
    ?assertMatch(#{keys := 2, permits := 4, holders := 1}, canal_lock:info()).

large_start() ->
    {ok, _} = canal_lock:start_link(1 bsl 70),
    ?assertMatch(#{max_per := 1 bsl 70}, canal_lock:info()),
    ok = canal_lock:stop().
