%% P4 at random moments: holders that are linked, out of memory, suspended, hibernating or with a full mailbox die in
%% every way, alone and together, during calls and between them. No permit is lost and none is released twice.
-module(canal_lock_death_storm_tests).

-include_lib("eunit/include/eunit.hrl").

-export([wait_for_end/0]).

-import(test_setup, [spin/1, hold_forever/0]).

-define(CAPACITY, 40).

-define(ROUNDS, 10).
%% Holders of each way to die, in a round.
-define(HOLDERS, 5).

%% Processes at a time, processes that are linked to each other, and deaths in all.
-define(WORKERS, 40).
-define(GROUP, 4).
-define(DEATHS, 500).

-define(FIRST_CALLS, 5_000).

%% Holders at once, and a process table for them.
-define(VERY_MANY, 200_000).
-define(PROCESS_LIMIT, ["+P", "262144"]).

%% Heap limit of a process, in words.
-define(HEAP_LIMIT, 20_000).

death_storm_test_() ->
    [
        test_setup:on_schedulers(["+P", "4096"], [
            {Title, fun() -> test_storm:play(capacities(), Storm) end}
         || {Title, Storm} <- [
                {"P4: every way to die, of waiting holders", fun every_way/0},
                {"P4: every way to die, during calls", fun during_calls/0},
                {"P4: killed before, in and after the first call", fun around_the_first_call/0},
                {"P4: a holder with a million messages in its mailbox", fun full_mailboxes/0},
                {"P4, P8: later holders use the slots of dead ones", fun slots_of_dead_holders/0}
            ]
        ]),
        %% Measured on a busy machine: all permits were released 10 to 15 us after the last death.
        test_setup:on_schedulers(?PROCESS_LIMIT, [{"P4: 200,000 holders that die at once", fun very_many/0}])
    ].

capacities() ->
    maps:from_list([{Key, ?CAPACITY} || Key <- keys()]).

keys() ->
    [db, {app, 1}, "string", <<"0123456789abcdef0123456789abcdef">>, #{rare => [map]}, 1 bsl 70].

random_key() ->
    lists:nth(rand:uniform(length(keys())), keys()).

%% How a holder waits for its end, and how the test ends it.
ways() ->
    [
        {killed, fun(Holder) -> exit(Holder, kill) end},
        {signalled, fun(Holder) -> exit(Holder, meant) end},
        {out_of_memory, fun(Holder) -> Holder ! grow end},
        {by_a_link, fun(Holder) -> Holder ! linked_process_dies end},
        {ends, fun(Holder) -> Holder ! 'end' end},
        {fails, fun(Holder) -> Holder ! fail end},
        {in_its_messages, fun(Holder) -> exit(Holder, kill) end},
        {suspended, fun(Holder) -> ok = test_worker:suspend(Holder), exit(Holder, kill) end},
        {asleep, fun(Holder) -> exit(Holder, kill) end},
        {woken, fun(Holder) -> Holder ! 'end' end},
        {released, fun(Holder) -> Holder ! release end}
    ].

every_way() ->
    [round_of_all_ways() || _ <- lists:seq(1, test_setup:times(?ROUNDS))].

round_of_all_ways() ->
    Started = [start(Way, End) || {Way, End} <- ways(), _ <- lists:seq(1, ?HOLDERS)],
    Known = [{Holder, test_await:answer(Ref, Monitor)} || {{Holder, Monitor}, Ref, _, _} <- Started],
    ok = test_storm:records_agree(Known),
    %% Some of them die one by one: the records of the others stay exact.
    {First, Last} = lists:partition(fun(_) -> rand:uniform(2) =:= 1 end, Started),
    [ends(Monitored, Way, End) || {Monitored, _, Way, End} <- First],
    Left = [{Holder, proplists:get_value(Holder, Known)} || {{Holder, _}, _, _, _} <- Last],
    Out = lists:sum([Permits || {_, Held} <- Left, Permits <- maps:values(Held)]),
    test_await:permits(Out),
    ok = test_storm:records_agree(Left),
    %% The others die at once.
    [End(Holder) || {{Holder, _}, _, _, End} <- Last],
    [test_await:reason(Monitored) || {Monitored, _, _, _} <- Last],
    [test_await:count(Key, 0) || Key <- keys()].

start(Way, End) ->
    Test = self(),
    Ref = make_ref(),
    Live = fun() ->
        Held = acquire(rand:uniform(6), #{}),
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

acquire(0, Held) ->
    Held;
acquire(Left, Held) ->
    Key = lists:nth(rand:uniform(2), [random_key(), {own, self(), Left}]),
    case canal_lock:acquire(Key, ?CAPACITY, 1) of
        {acquired, _} -> acquire(Left - 1, maps:update_with(Key, fun(N) -> N + 1 end, 1, Held));
        full -> acquire(Left, Held)
    end.

prepare(out_of_memory) -> limit_heap();
prepare(in_its_messages) -> [self() ! {message, N} || N <- lists:seq(1, 2000)];
prepare(_) -> ok.

limit_heap() ->
    process_flag(max_heap_size, #{size => ?HEAP_LIMIT, kill => true, error_logger => false}).

wait(Way) when Way =:= asleep; Way =:= woken; Way =:= released ->
    erlang:hibernate(?MODULE, wait_for_end, []);
wait(_) ->
    wait_for_end().

wait_for_end() ->
    receive
        grow ->
            grow([]);
        linked_process_dies ->
            spawn_link(fun() -> exit(lost) end),
            wait_for_end();
        release ->
            [ok = canal_lock:release(Key) || {Key, Permits} <- canal_lock:held(), _ <- lists:seq(1, Permits)];
        fail ->
            exit(failed);
        'end' ->
            ok
    end.

grow(List) ->
    grow([List | List]).

%% Groups of linked processes acquire and release. A whole group dies when one member dies: by a signal, at its heap
%% limit, or while it is suspended.
during_calls() ->
    #{released_by_death := Before} = canal_lock:info(),
    Groups = [group() || _ <- lists:seq(1, ?WORKERS div ?GROUP)],
    Last = during_calls(test_setup:times(?DEATHS), Groups),
    [end_group(killed, Group) || Group <- Last],
    ?assertMatch(#{released_by_death := Count} when Count > Before + ?DEATHS, canal_lock:info()).

during_calls(Left, Groups) when Left =< 0 ->
    Groups;
during_calls(Left, [First | Others]) ->
    spin(rand:uniform(20_000)),
    end_group(lists:nth(rand:uniform(4), [killed, signalled, suspended, heap_limit]), First),
    during_calls(Left - ?GROUP, Others ++ [group()]).

group() ->
    {Leader, _} = Monitored = spawn_monitor(fun acquire_until_dead/0),
    Others = [
        spawn_monitor(fun() ->
            link(Leader),
            acquire_until_dead()
        end)
     || _ <- lists:seq(2, ?GROUP)
    ],
    [Monitored | Others].

%% The heap grows with each call, so that it can reach its limit in any call.
acquire_until_dead() ->
    limit_heap(),
    acquire_and_release([], []).

acquire_and_release(Held, Ballast) ->
    Key = random_key(),
    case rand:uniform(2) of
        1 ->
            case canal_lock:acquire(Key, ?CAPACITY, 1) of
                {acquired, N} -> acquire_and_release([Key | Held], [N, Held | Ballast]);
                full -> acquire_and_release(Held, Ballast)
            end;
        2 when Held =/= [] ->
            ok = canal_lock:release(hd(Held)),
            acquire_and_release(tl(Held), Ballast);
        2 ->
            acquire_and_release(Held, [Held | Ballast])
    end.

end_group(How, [{Leader, _} | _] = Group) ->
    case How of
        killed -> exit(Leader, kill);
        signalled -> exit(Leader, meant);
        suspended -> suspend(Leader) andalso exit(Leader, kill);
        heap_limit -> reached_by_itself
    end,
    [test_await:reason(Member) || Member <- Group].

%% A suspended holder keeps its permits.
suspend(Pid) ->
    try test_worker:suspend(Pid) of
        ok ->
            Held = lists:sort(canal_lock:held(Pid)),
            spin(rand:uniform(20_000)),
            Still = lists:sort(canal_lock:held(Pid)),
            %% Unless it has been killed with its group.
            ?assertEqual([], [{Held, Still} || Held =/= Still, is_process_alive(Pid)]),
            true
    catch
        error:badarg -> true
    end.

%% Kills at random moments around the acquire that makes a process a holder and starts its monitor.
around_the_first_call() ->
    Times = test_setup:times(?FIRST_CALLS),
    Acquired = counters:new(1, []),
    Holders = [killed_around_the_first_call(Acquired) || _ <- lists:seq(1, Times)],
    test_await:down(Holders),
    [test_await:count(Key, 0) || Key <- [first, second]],
    %% Some were killed before their acquire, and some after it.
    ?assertMatch(N when N > 0 andalso N < Times, counters:get(Acquired, 1)).

killed_around_the_first_call(Acquired) ->
    Holder = spawn(fun() ->
        {acquired, _} = canal_lock:acquire(first, 1_000_000, 1),
        ok = counters:add(Acquired, 1, 1),
        {acquired, _} = canal_lock:acquire(second, 1_000_000, 1),
        hold_forever()
    end),
    spin(rand:uniform(5000)),
    exit(Holder, kill),
    Holder.

full_mailboxes() ->
    lists:foreach(fun({Messages, Kept, End, Reason}) ->
        {Holder, Monitor} = spawn_opt(fun() -> hold_under(Messages) end, [monitor, {message_queue_data, Kept}]),
        test_await:value([1, 2], fun() -> [canal_lock:count(Key) || Key <- [db, "string"]] end),
        ?assertEqual({message_queue_len, Messages}, process_info(Holder, message_queue_len)),
        End(Holder),
        ?assertEqual({Monitor, Reason}, {Monitor, test_await:reason({Holder, Monitor})}),
        [test_await:count(Key, 0) || Key <- [db, "string"]]
    end, [
        {1_000_000, on_heap, fun(Holder) -> exit(Holder, kill) end, killed},
        {100_000, off_heap, fun(Holder) -> Holder ! 'end' end, normal}
    ]).

hold_under(Messages) ->
    {acquired, 1} = canal_lock:acquire(db, ?CAPACITY, 1),
    {acquired, 1} = canal_lock:acquire({app, 1}, ?CAPACITY, 1),
    flood(Messages),
    ok = canal_lock:release({app, 1}),
    [{acquired, _} = canal_lock:acquire("string", ?CAPACITY, 1) || _ <- [1, 2]],
    receive 'end' -> ok end.

flood(0) ->
    ok;
flood(Left) ->
    self() ! {message, Left},
    flood(Left - 1).

%% All slots have been used before. A thousand new ones would take at least 64 bytes each. Another part of the table may
%% grow, for example by 32 KiB.
slots_of_dead_holders() ->
    #{memory := Before} = canal_lock:info(),
    Holders = [
        element(1, test_worker:start(fun() -> {acquired, _} = canal_lock:acquire(many, 1000, 1) end))
     || _ <- lists:seq(1, 1000)
    ],
    #{memory := Now, holders := 1000} = canal_lock:info(),
    ?assertMatch(More when More < 1000 * 64, Now - Before),
    test_worker:kill(Holders).

very_many() ->
    {ok, _} = canal_lock:start_link(?CAPACITY),
    Before = erlang:system_info(process_count),
    Parent = test_worker:start(),
    Hold = fun() ->
        {acquired, _} = canal_lock:acquire(db, ?VERY_MANY, 1),
        hold_forever()
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
