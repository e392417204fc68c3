%% P4 at all moments: holders that are linked, out of memory, suspended, asleep or up to the neck in messages die in any
%% way, alone and together, in their calls and between them; and nothing is lost and nothing comes back twice.
-module(canal_lock_death_storm_tests).

-include_lib("eunit/include/eunit.hrl").

-export([wait_on/0]).

-define(CAPACITY, 40).

-define(ROUNDS, 10).
%% Of each way to die, in a round.
-define(HOLDERS, 5).

%% Processes at a time, how many of them are linked to each other, and how many die in all.
-define(WORKERS, 40).
-define(FAMILY, 4).
-define(DEATHS, 500).

-define(FIRST_CALLS, 5_000).

%% How many hold at once, and room for them.
-define(VERY_MANY, 200_000).
-define(ROOM, ["+P", "262144"]).

%% Words of heap for a process that must not have more, as a shell or a connection may be told.
-define(HEAP_LIMIT, 20_000).

death_storm_test_() ->
    [
        test_setup:on_schedulers(["+P", "4096"], [
            {Title, fun() -> test_storm:play(capacities(), Storm) end}
         || {Title, Storm} <- [
                {"P4: every way to die, of those who hold and wait", fun every_way/0},
                {"P4: every way to die, in the middle of things", fun in_the_middle/0},
                {"P4: killed before, in and after their first calls", fun around_the_first_call/0},
                {"P4: with a million messages", fun full_mailboxes/0},
                {"P4, P8: who comes later has the places of the dead", fun places_of_the_dead/0}
            ]
        ]),
        %% Measured here on a busy machine: all was free within 10 to 15 us after the last of them was gone.
        test_setup:on_schedulers(?ROOM, [{"P4: 200,000 at once", fun very_many/0}])
    ].

capacities() ->
    maps:from_list([{Key, ?CAPACITY} || Key <- keys()]).

keys() ->
    [db, {app, 1}, "string", <<"0123456789abcdef0123456789abcdef">>, #{rare => [map]}, 1 bsl 70].

random_key() ->
    lists:nth(rand:uniform(length(keys())), keys()).

%% How a holder waits for its end, and how that comes.
ways() ->
    [
        {killed, fun(Holder) -> exit(Holder, kill) end},
        {signalled, fun(Holder) -> exit(Holder, meant) end},
        {out_of_memory, fun(Holder) -> Holder ! grow end},
        {by_a_link, fun(Holder) -> Holder ! lose_a_friend end},
        {ends, fun(Holder) -> Holder ! 'end' end},
        {fails, fun(Holder) -> Holder ! fail end},
        {in_its_messages, fun(Holder) -> exit(Holder, kill) end},
        {suspended, fun(Holder) -> true = erlang:suspend_process(Holder) andalso exit(Holder, kill) end},
        {asleep, fun(Holder) -> exit(Holder, kill) end},
        {woken, fun(Holder) -> Holder ! 'end' end},
        {released, fun(Holder) -> Holder ! release end}
    ].

every_way() ->
    [round_of_all_ways() || _ <- lists:seq(1, test_setup:times(?ROUNDS))].

round_of_all_ways() ->
    Born = [birth(Way, End) || {Way, End} <- ways(), _ <- lists:seq(1, ?HOLDERS)],
    Known = [{Holder, test_await:answer(Ref, Monitor)} || {{Holder, Monitor}, Ref, _, _} <- Born],
    ok = test_storm:records_agree(Known),
    %% Some of them first, one by one: the books agree on the others.
    {First, Last} = lists:partition(fun(_) -> rand:uniform(2) =:= 1 end, Born),
    [ends(Monitored, Way, End) || {Monitored, _, Way, End} <- First],
    Left = [{Holder, proplists:get_value(Holder, Known)} || {{Holder, _}, _, _, _} <- Last],
    Out = lists:sum([Permits || {_, Held} <- Left, Permits <- maps:values(Held)]),
    test_await:permits(Out),
    ok = test_storm:records_agree(Left),
    %% And the others at once.
    [End(Holder) || {{Holder, _}, _, _, End} <- Last],
    [test_await:reason(Monitored) || {Monitored, _, _, _} <- Last],
    [test_await:count(Key, 0) || Key <- keys()].

birth(Way, End) ->
    Test = self(),
    Ref = make_ref(),
    Live = fun() ->
        Held = take(rand:uniform(6), #{}),
        prepare(Way),
        Test ! {Ref, Held},
        wait(Way)
    end,
    {spawn_monitor(Live), Ref, Way, End}.

ends({Holder, _} = Monitored, Way, End) ->
    _ = End(Holder),
    Reasons = #{
        signalled => meant, by_a_link => lost, ends => normal, fails => failed, woken => normal, released => normal
    },
    ?assertEqual({Way, maps:get(Way, Reasons, killed)}, {Way, test_await:reason(Monitored)}).

take(0, Held) ->
    Held;
take(Left, Held) ->
    Key = lists:nth(rand:uniform(2), [random_key(), {own, self(), Left}]),
    case canal_lock:acquire(Key, ?CAPACITY, 1) of
        {acquired, _} -> take(Left - 1, maps:update_with(Key, fun(N) -> N + 1 end, 1, Held));
        full -> take(Left, Held)
    end.

prepare(out_of_memory) -> limit_heap();
prepare(in_its_messages) -> [self() ! {message, N} || N <- lists:seq(1, 2000)];
prepare(_) -> ok.

limit_heap() ->
    process_flag(max_heap_size, #{size => ?HEAP_LIMIT, kill => true, error_logger => false}).

wait(Way) when Way =:= asleep; Way =:= woken; Way =:= released ->
    erlang:hibernate(?MODULE, wait_on, []);
wait(_) ->
    wait_on().

wait_on() ->
    receive
        grow ->
            grow([]);
        lose_a_friend ->
            spawn_link(fun() -> exit(lost) end),
            wait_on();
        release ->
            [ok = canal_lock:release(Key) || {Key, Permits} <- canal_lock:held(), _ <- lists:seq(1, Permits)];
        fail ->
            exit(failed);
        'end' ->
            ok
    end.

grow(List) ->
    grow([List | List]).

%% Families of processes that take and give die as a whole when one of them dies: of a signal, of its memory, or while
%% it is suspended.
in_the_middle() ->
    #{given_back := Before} = canal_lock:info(),
    Families = [family() || _ <- lists:seq(1, ?WORKERS div ?FAMILY)],
    Last = in_the_middle(test_setup:times(?DEATHS), Families),
    [end_family(killed, Family) || Family <- Last],
    ?assertMatch(#{given_back := Some} when Some > Before + ?DEATHS, canal_lock:info()).

in_the_middle(Left, Families) when Left =< 0 ->
    Families;
in_the_middle(Left, [First | Others]) ->
    spin(rand:uniform(20_000)),
    end_family(lists:nth(rand:uniform(4), [killed, signalled, suspended, left_alone]), First),
    in_the_middle(Left - ?FAMILY, Others ++ [family()]).

family() ->
    {Eldest, _} = Monitored = spawn_monitor(fun live_on/0),
    Siblings = [
        spawn_monitor(fun() ->
            link(Eldest),
            live_on()
        end)
     || _ <- lists:seq(2, ?FAMILY)
    ],
    [Monitored | Siblings].

%% Its heap grows with each call, so that its memory ends in any of them.
live_on() ->
    limit_heap(),
    take_and_give([], []).

take_and_give(Held, Ballast) ->
    Key = random_key(),
    case rand:uniform(2) of
        1 ->
            case canal_lock:acquire(Key, ?CAPACITY, 1) of
                {acquired, N} -> take_and_give([Key | Held], [N, Held | Ballast]);
                full -> take_and_give(Held, Ballast)
            end;
        2 when Held =/= [] ->
            ok = canal_lock:release(hd(Held)),
            take_and_give(tl(Held), Ballast);
        2 ->
            take_and_give(Held, [Held | Ballast])
    end.

end_family(How, [{Eldest, _} | _] = Family) ->
    case How of
        killed -> exit(Eldest, kill);
        signalled -> exit(Eldest, meant);
        suspended -> suspend(Eldest) andalso exit(Eldest, kill);
        left_alone -> it_runs_out_of_memory
    end,
    [test_await:reason(Member) || Member <- Family].

%% What it holds stays.
suspend(Pid) ->
    try erlang:suspend_process(Pid) of
        true ->
            Held = lists:sort(canal_lock:held(Pid)),
            spin(rand:uniform(20_000)),
            Still = lists:sort(canal_lock:held(Pid)),
            %% Unless it has been killed meanwhile, with its family.
            ?assertEqual([], [{Held, Still} || Held =/= Still, is_process_alive(Pid)]),
            true
    catch
        error:badarg -> true
    end.

%% At all moments around the acquire that makes a process a holder, which is when its death begins to be watched.
around_the_first_call() ->
    Times = test_setup:times(?FIRST_CALLS),
    Acquired = counters:new(1, []),
    Holders = [killed_around_the_first_call(Acquired) || _ <- lists:seq(1, Times)],
    test_await:down(Holders),
    [test_await:count(Key, 0) || Key <- [first, second]],
    %% There were some of both.
    ?assertMatch(Some when Some > 0 andalso Some < Times, counters:get(Acquired, 1)).

killed_around_the_first_call(Acquired) ->
    Holder = spawn(fun() ->
        {acquired, _} = canal_lock:acquire(first, 1_000_000, 1),
        ok = counters:add(Acquired, 1, 1),
        {acquired, _} = canal_lock:acquire(second, 1_000_000, 1),
        receive
        after infinity -> ok
        end
    end),
    spin(rand:uniform(5000)),
    exit(Holder, kill),
    Holder.

spin(0) -> ok;
spin(Turns) -> spin(Turns - 1).

full_mailboxes() ->
    [
        begin
            {Holder, Monitor} = spawn_opt(fun() -> hold_under(Messages) end, [monitor, {message_queue_data, Kept}]),
            test_await:value([1, 2], fun() -> [canal_lock:count(Key) || Key <- [db, "string"]] end),
            ?assertEqual({message_queue_len, Messages}, process_info(Holder, message_queue_len)),
            End(Holder),
            ?assertEqual({Monitor, Reason}, {Monitor, test_await:reason({Holder, Monitor})}),
            [test_await:count(Key, 0) || Key <- [db, "string"]]
        end
     || {Messages, Kept, End, Reason} <- [
            {1_000_000, on_heap, fun(Holder) -> exit(Holder, kill) end, killed},
            {100_000, off_heap, fun(Holder) -> Holder ! 'end' end, normal}
        ]
    ].

hold_under(Messages) ->
    {acquired, 1} = canal_lock:acquire(db, ?CAPACITY, 1),
    {acquired, 1} = canal_lock:acquire({app, 1}, ?CAPACITY, 1),
    flood(Messages),
    ok = canal_lock:release({app, 1}),
    [{acquired, _} = canal_lock:acquire("string", ?CAPACITY, 1) || _ <- [1, 2]],
    receive
        'end' -> ok
    end.

flood(0) ->
    ok;
flood(Left) ->
    self() ! {message, Left},
    flood(Left - 1).

%% All places have been taken before. A thousand new ones would be 64 bytes each at least.
places_of_the_dead() ->
    #{memory := Before} = canal_lock:info(),
    Holders = [
        element(1, test_worker:start(fun() -> {acquired, _} = canal_lock:acquire(many, 1000, 1) end))
     || _ <- lists:seq(1, 1000)
    ],
    #{memory := Now, holders := 1000} = canal_lock:info(),
    ?assertMatch(More when More < 1000 * 64 div 2, Now - Before),
    test_worker:kill(Holders).

very_many() ->
    {ok, _} = canal_lock:start_link(?CAPACITY),
    Before = erlang:system_info(process_count),
    Parent = test_worker:start(),
    Hold = fun() ->
        {acquired, _} = canal_lock:acquire(db, ?VERY_MANY, 1),
        receive
        after infinity -> ok
        end
    end,
    test_worker:send_order(Parent, fun() -> [spawn_link(Hold) || _ <- lists:seq(1, ?VERY_MANY)], born end),
    test_await:count(db, ?VERY_MANY),
    ?assertEqual(full, canal_lock:acquire(db, ?VERY_MANY, 1)),
    ?assertMatch(#{permits := ?VERY_MANY, holders := ?VERY_MANY}, canal_lock:info()),
    ?assertEqual(?VERY_MANY, length(canal_lock:holders(db))),
    ?assertEqual([], canal_lock:audit()),
    exit(Parent, kill),
    test_await:value(true, fun() -> erlang:system_info(process_count) =< Before end),
    test_await:count(db, 0),
    test_storm:nothing_held().
