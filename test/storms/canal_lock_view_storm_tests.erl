%% What is told of a table that changes meanwhile: what was so all the time is told, and once; and nothing is told
%% that was never so.
-module(canal_lock_view_storm_tests).

-include_lib("eunit/include/eunit.hrl").

%% Processes that come and go, and the keys that they take and give; few keys, so that many are full.
-define(CHURNERS, 8).
-define(KEYS, 12).
-define(CAPACITY, 3).

%% So often is looked.
-define(LOOKS, 300).
-define(LOOKS_AT_ONE_PROCESS, test_setup:in_soak(20_000, 2_000)).

storm_test_() ->
    test_setup:quietly([
        test_setup:tests([
            {What ++ " while permits come and go, and holders die", fun() -> while_others_churn(Looks, Look) end}
         || {What, Looks, Look} <- [
                {"keys/0", ?LOOKS, fun keys/1},
                {"holders/1", ?LOOKS div 5, fun holders/1},
                {"held/1", ?LOOKS, fun held/1},
                {"audit/0", ?LOOKS div 5, fun audit/1},
                {"info/0", ?LOOKS, fun info/1},
                {"all of them at once", ?LOOKS div 20, fun at_once/1}
            ]
        ]),
        test_setup:tests([
            {"a key that moves about in its holder's record is told once", fun moving/0},
            {"permits of one key are not told of the next one in its place", fun in_one_place/0}
        ])
    ]).

while_others_churn(Looks, Look) ->
    Kept = maps:from_list([{element(1, test_worker:start(fun() -> take(Held) end)), Held} || Held <- kept()]),
    Nursery = test_worker:start(),
    Deaths = test_worker:send_order(Nursery, fun() -> nurse(births(?CHURNERS), 0) end),
    [Look(Kept) || _ <- lists:seq(1, test_setup:times(Looks))],
    Nursery ! stop,
    %% There was something to be seen.
    Died = test_await:answer(Deaths),
    #{granted := Granted, refused := Refused, given_back := GivenBack} = canal_lock:info(),
    ?assertEqual([], [Times || Times <- [Granted, Refused, GivenBack, Died], Times < 100]),
    %% And it was not disturbed by those who looked.
    AllKept = sums(Kept),
    test_await:permits(lists:sum(maps:values(AllKept))),
    ?assertEqual(AllKept, maps:from_list(canal_lock:keys())),
    ?assertEqual([], canal_lock:audit()).

%% What is held all the time: by processes with few keys and with many, stored in all ways that there are.
kept() ->
    [
        #{{kept, 1} => 1},
        #{kept => 2, "kept" => 1},
        #{kept => 1, {kept, [2]} => 3, #{kept => 3} => 1, <<"kept">> => 2},
        maps:from_list([{{kept, N}, 1 + N rem 2} || N <- lists:seq(2, 700)])
    ].

take(Held) ->
    [
        {acquired, _} = canal_lock:acquire(Key, 1 bsl 30, 1)
     || {Key, Permits} <- maps:to_list(Held), _ <- lists:seq(1, Permits)
    ].

sums(Kept) ->
    Add = fun(_, One, Other) -> One + Other end,
    lists:foldl(fun(Held, Sums) -> maps:merge_with(Add, Held, Sums) end, #{}, maps:values(Kept)).

%% Whoever dies is replaced, and every second one takes another with it. Answers at last how many have died.
nurse(Alive, Deaths) ->
    receive
        {'DOWN', _, process, Dead, _} when is_map_key(Dead, Alive) ->
            [Next | _] = maps:keys(Others = maps:remove(Dead, Alive)),
            Deaths rem 2 =:= 0 andalso exit(Next, kill),
            nurse(maps:merge(Others, births(1)), Deaths + 1);
        %% The test says so, or has failed.
        _ ->
            [exit(Churner, kill) || Churner <- maps:keys(Alive)],
            [test_await:reason(Churner) || Churner <- maps:to_list(Alive)],
            Deaths
    end.

births(Count) ->
    maps:from_list([spawn_monitor(fun churn/0) || _ <- lists:seq(1, Count)]).

churn() ->
    Key = key(rand:uniform(?KEYS)),
    _ =
        case rand:uniform(100) of
            N when N =< 60 -> canal_lock:acquire(Key, ?CAPACITY, 1);
            N when N =< 98 -> canal_lock:release(Key);
            99 -> exit(meant);
            100 -> exit(self(), kill)
        end,
    churn().

key(N) when N rem 4 =:= 0 -> {come_and_go, N};
key(N) when N rem 4 =:= 1 -> integer_to_list(N);
key(N) when N rem 4 =:= 2 -> #{come_and_go => N};
key(N) -> <<"come and go", N>>.

keys(Kept) ->
    AllKept = sums(Kept),
    {Told, Others} = lists:partition(fun({Key, _}) -> is_map_key(Key, AllKept) end, canal_lock:keys()),
    ?assertEqual(lists:sort(maps:to_list(AllKept)), lists:sort(Told)),
    are_fair(Others).

holders(Kept) ->
    [
        ?assertEqual({Key, [Permits]}, {Key, [N || {Holder, N} <- canal_lock:holders(Key), Holder =:= Pid]})
     || {Pid, Held} <- maps:to_list(Kept), {Key, Permits} <- lists:sublist(maps:to_list(Held), 5)
    ],
    [
        begin
            Holders = canal_lock:holders(key(N)),
            ?assertEqual({N, []}, {N, Holders -- lists:ukeysort(1, Holders)}),
            [are_fair([{key(N), Permits}]) || {_, Permits} <- Holders]
        end
     || N <- lists:seq(1, ?KEYS)
    ].

held(Kept) ->
    [
        ?assertEqual(lists:sort(maps:to_list(Held)), lists:sort(canal_lock:held(Pid)))
     || {Pid, Held} <- maps:to_list(Kept)
    ],
    [are_fair(canal_lock:held(Pid)) || {Pid, _} <- canal_lock:holders(key(rand:uniform(?KEYS)))].

%% Keys that come and go may be counted with what is not on record any more, and the other way round.
audit(Kept) ->
    AllKept = sums(Kept),
    Differ = canal_lock:audit(),
    ?assertEqual([], [Differing || {Key, _, _} = Differing <- Differ, is_map_key(Key, AllKept)]),
    are_fair([{Key, Counted} || {Key, Counted, _} <- Differ, Counted > 0]),
    ?assertEqual([], [Differing || {_, Counted, Held} = Differing <- Differ, Counted < 0 orelse Held < 0]).

%% A permit that goes from hand to hand may be seen in several; but in no hand more than what it can have, and once more
%% what has just moved within it.
info(Kept) ->
    #{keys := Keys, permits := Permits, holders := Holders} = canal_lock:info(),
    AllKept = sums(Kept),
    Least = lists:sum(maps:values(AllKept)),
    Most = Least + (Holders - map_size(Kept)) * 2 * ?KEYS * ?CAPACITY,
    ?assertMatch(N when N >= Least andalso N =< Most, Permits),
    ?assertMatch(N when N >= map_size(AllKept) andalso N =< map_size(AllKept) + ?KEYS, Keys),
    ?assertMatch(N when N >= map_size(Kept), Holders).

at_once(Kept) ->
    Looks = [fun keys/1, fun holders/1, fun held/1, fun audit/1, fun info/1],
    Observers = [spawn_monitor(fun() -> [Look(Kept) || Look <- Looks] end) || _ <- [one, two, three]],
    [?assertEqual(normal, test_await:reason(Observer)) || Observer <- Observers].

%% Keys that come and go: each once, and with no more permits than there are.
are_fair(Told) ->
    Possible = [{key(N), Permits} || N <- lists:seq(1, ?KEYS), Permits <- lists:seq(1, ?CAPACITY)],
    ?assertEqual([], Told -- Possible),
    ?assertEqual([], Told -- lists:ukeysort(1, Told)).

%% To the second entry for a key, to the table for further keys, and back to the first.
moving() ->
    look_at(
        fun() ->
            [take_one(Key) || Key <- [moves, b]],
            ok = canal_lock:release(moves),
            take_one(c),
            ok = canal_lock:release(b),
            take_one(moves),
            ok = canal_lock:release(moves),
            [take_one(Key) || Key <- [b, moves]],
            [ok = canal_lock:release(Key) || Key <- [moves, b, c]]
        end,
        fun(Holder) ->
            ?assertEqual([], canal_lock:holders(moves) -- [{Holder, 1}]),
            ?assertEqual([], canal_lock:held(Holder) -- [{moves, 1}, {b, 1}, {c, 1}])
        end
    ).

in_one_place() ->
    look_at(
        fun() ->
            [take_one(several) || _ <- [1, 2]],
            [ok = canal_lock:release(several) || _ <- [1, 2]],
            take_one(one),
            ok = canal_lock:release(one)
        end,
        fun(Holder) ->
            ?assertEqual([], canal_lock:holders(one) -- [{Holder, 1}]),
            ?assertMatch([], canal_lock:held(Holder) -- [{several, 1}, {several, 2}, {one, 1}])
        end
    ).

take_one(Key) ->
    {acquired, _} = canal_lock:acquire(Key, 9, 1).

%% At a process that does the same again and again.
look_at(Do, Look) ->
    Holder = spawn_link(fun Again() ->
        Do(),
        Again()
    end),
    [Look(Holder) || _ <- lists:seq(1, test_setup:times(?LOOKS_AT_ONE_PROCESS))],
    unlink(Holder),
    test_worker:kill(Holder).
