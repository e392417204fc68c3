%% Views of a table that changes during the call: they return each permit that is held all the time, once, and nothing
%% that was never true.
-module(canal_lock_view_storm_tests).

-include_lib("eunit/include/eunit.hrl").

%% Processes that start and die, and the keys that they acquire and release. Few keys, so that many are full.
-define(CHURNERS, 8).
-define(KEYS, 12).
-define(CAPACITY, 3).

%% Calls of each view.
-define(VIEWS, 300).
-define(VIEWS_OF_ONE_PROCESS, test_setup:in_soak(20_000, 2_000)).

storm_test_() ->
    test_setup:quietly([
        test_setup:tests([
            {Name ++ " is correct while others acquire, release and die", fun() -> during_churn(Times, View) end}
         || {Name, Times, View} <- [
                {"keys/0", ?VIEWS, fun keys/1},
                {"holders/1", ?VIEWS div 5, fun holders/1},
                {"held/1", ?VIEWS, fun held/1},
                {"audit/0", ?VIEWS div 5, fun audit/1},
                {"info/0", ?VIEWS, fun info/1},
                {"all views at once", ?VIEWS div 20, fun at_once/1}
            ]
        ]),
        test_setup:tests([
            {"a key that moves within its holder's record is returned once", fun moving/0},
            {"the permits of a key are not shown for the next key in the same entry", fun same_entry/0}
        ])
    ]).

during_churn(Times, View) ->
    Kept = maps:from_list([{test_worker:holder(Held), Held} || Held <- kept()]),
    Parent = test_worker:start(),
    Deaths = test_worker:send_order(Parent, fun() -> replace(births(?CHURNERS), 0) end),
    [View(Kept) || _ <- lists:seq(1, test_setup:times(Times))],
    Parent ! stop,
    %% The table was busy.
    Died = test_await:answer(Deaths),
    #{granted := Granted, refused := Refused, released_by_death := ByDeath} = canal_lock:info(),
    ?assertEqual([], [Count || Count <- [Granted, Refused, ByDeath, Died], Count < 100]),
    %% The views changed nothing.
    AllKept = test_setup:sums(maps:values(Kept)),
    test_await:permits(lists:sum(maps:values(AllKept))),
    ?assertEqual(AllKept, maps:from_list(canal_lock:keys())),
    ?assertEqual([], canal_lock:audit()).

%% Permits that are held all the time, by processes with few keys and with many, in every form of a key.
kept() ->
    [
        #{{kept, 1} => 1},
        #{kept => 2, "kept" => 1},
        #{kept => 1, {kept, [2]} => 3, #{kept => 3} => 1, <<"kept">> => 2},
        maps:from_list([{{kept, N}, 1 + N rem 2} || N <- lists:seq(2, 700)])
    ].

%% Replaces each process that dies; every second death kills another process. Returns the number of deaths.
replace(Alive, Deaths) ->
    receive
        {'DOWN', _, process, Dead, _} when is_map_key(Dead, Alive) ->
            Others = maps:remove(Dead, Alive),
            [Next | _] = maps:keys(Others),
            Deaths rem 2 =:= 0 andalso exit(Next, kill),
            replace(maps:merge(Others, births(1)), Deaths + 1);
        %% The test has ended or failed.
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

key(N) when N rem 4 =:= 0 -> {churn, N};
key(N) when N rem 4 =:= 1 -> integer_to_list(N);
key(N) when N rem 4 =:= 2 -> #{churn => N};
key(N) -> <<"churn", N>>.

keys(Kept) ->
    AllKept = test_setup:sums(maps:values(Kept)),
    {Rows, Others} = lists:partition(fun({Key, _}) -> is_map_key(Key, AllKept) end, canal_lock:keys()),
    ?assertEqual(lists:sort(maps:to_list(AllKept)), lists:sort(Rows)),
    are_fair(Others).

holders(Kept) ->
    [
        ?assertEqual({Key, [Permits]}, {Key, [N || {Holder, N} <- canal_lock:holders(Key), Holder =:= Pid]})
     || {Pid, Held} <- maps:to_list(Kept), {Key, Permits} <- lists:sublist(maps:to_list(Held), 5)
    ],
    lists:foreach(fun(N) ->
        Holders = canal_lock:holders(key(N)),
        ?assertEqual({N, []}, {N, Holders -- lists:ukeysort(1, Holders)}),
        [are_fair([{key(N), Permits}]) || {_, Permits} <- Holders]
    end, lists:seq(1, ?KEYS)).

held(Kept) ->
    [
        ?assertEqual(lists:sort(maps:to_list(Held)), lists:sort(canal_lock:held(Pid)))
     || {Pid, Held} <- maps:to_list(Kept)
    ],
    [are_fair(canal_lock:held(Pid)) || {Pid, _} <- canal_lock:holders(key(rand:uniform(?KEYS)))].

%% A count and a record may be read before and after a change, so the audit may list keys of the churn.
audit(Kept) ->
    AllKept = test_setup:sums(maps:values(Kept)),
    Differ = canal_lock:audit(),
    ?assertEqual([], [Differing || {Key, _, _} = Differing <- Differ, is_map_key(Key, AllKept)]),
    are_fair([{Key, Counted} || {Key, Counted, _} <- Differ, Counted > 0]),
    ?assertEqual([], [Differing || {_, Counted, Held} = Differing <- Differ, Counted < 0 orelse Held < 0]).

%% A permit that passes between holders may be seen several times. A holder shows at most the capacity, and once more
%% a key that has just moved within its record.
info(Kept) ->
    #{keys := Keys, permits := Permits, holders := Holders} = canal_lock:info(),
    AllKept = test_setup:sums(maps:values(Kept)),
    Least = lists:sum(maps:values(AllKept)),
    Most = Least + (Holders - map_size(Kept)) * 2 * ?KEYS * ?CAPACITY,
    ?assertMatch(N when N >= Least andalso N =< Most, Permits),
    ?assertMatch(N when N >= map_size(AllKept) andalso N =< map_size(AllKept) + ?KEYS, Keys),
    ?assertMatch(N when N >= map_size(Kept), Holders).

at_once(Kept) ->
    Views = [fun keys/1, fun holders/1, fun held/1, fun audit/1, fun info/1],
    Observers = [spawn_monitor(fun() -> [View(Kept) || View <- Views] end) || _ <- [one, two, three]],
    [?assertEqual(normal, test_await:reason(Observer)) || Observer <- Observers].

%% Keys of the churn: each once, with at most the capacity.
are_fair(Rows) ->
    Possible = [{key(N), Permits} || N <- lists:seq(1, ?KEYS), Permits <- lists:seq(1, ?CAPACITY)],
    ?assertEqual([], Rows -- Possible),
    ?assertEqual([], Rows -- lists:ukeysort(1, Rows)).

%% The key moves to the second entry of the slot, to the table for further keys, and back to the first entry.
moving() ->
    view_repeatedly(fun() ->
        [acquire(Key) || Key <- [moves, b]],
        ok = canal_lock:release(moves),
        acquire(c),
        ok = canal_lock:release(b),
        acquire(moves),
        ok = canal_lock:release(moves),
        [acquire(Key) || Key <- [b, moves]],
        [ok = canal_lock:release(Key) || Key <- [moves, b, c]]
    end, fun(Holder) ->
        ?assertEqual([], canal_lock:holders(moves) -- [{Holder, 1}]),
        ?assertEqual([], canal_lock:held(Holder) -- [{moves, 1}, {b, 1}, {c, 1}])
    end).

same_entry() ->
    view_repeatedly(fun() ->
        [acquire(several) || _ <- [1, 2]],
        [ok = canal_lock:release(several) || _ <- [1, 2]],
        acquire(one),
        ok = canal_lock:release(one)
    end, fun(Holder) ->
        ?assertEqual([], canal_lock:holders(one) -- [{Holder, 1}]),
        ?assertMatch([], canal_lock:held(Holder) -- [{several, 1}, {several, 2}, {one, 1}])
    end).

acquire(Key) ->
    {acquired, _} = canal_lock:acquire(Key, 9, 1).

%% Calls a view of a process that repeats the same calls.
view_repeatedly(Do, View) ->
    Holder = spawn_link(fun Repeat() -> Do(), Repeat() end),
    [View(Holder) || _ <- lists:seq(1, test_setup:times(?VIEWS_OF_ONE_PROCESS))],
    unlink(Holder),
    test_worker:kill(Holder).
