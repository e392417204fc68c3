%% P9: keys that are too long for a normal scheduler are keys like others, and hold none of them up. N1 and N2 are the
%% invariants of native/canal_lock_nif/src/interned.rs.
-module(canal_lock_long_keys_tests).

-include_lib("eunit/include/eunit.hrl").

%% What is read on a normal scheduler, in bytes.
-define(BRIEF, 65_536).

-define(PROCESSES, 50).
-define(CAPACITY, 7).

%% Far longer than any part of a call takes on a normal scheduler, and far shorter than to read these keys takes.
-define(HELD_UP_MS, 50).

long_keys_test_() ->
    [
        test_setup:tests([
            {"P1, N2: around the length from which on keys are long", fun around_the_bound/0},
            {"P5, P6: all calls answer as for other keys", fun all_calls/0},
            {"P1, N1: many come at once with a key that is new", fun all_new_at_once/0},
            {"P1, N1: many take and release one, while it comes and goes", fun come_and_go/0},
            {"P4: killed while the key is read", fun killed_while_reading/0},
            {"P10: the same key in one table after the other", fun one_table_after_the_other/0},
            {"P8: what nobody uses any more is freed", fun freed/0},
            {"P9: a handle is made of long keys only", fun handles/0},
            {"N2: a list of bytes is as long as its elements, however it is stored", fun lists_of_bytes/0}
        ]),
        test_setup:tests(without_manager, [
            {"P9: no scheduler is held up by a key of 60 MB", fun() ->
                ?assertEqual([], test_setup:in_a_vm(["+S", "2:2"], fun held_up/0))
            end},
            {"P9: refusals of long keys leave no more than one behind", fun() ->
                ?assertEqual(bounded, test_setup:in_a_vm([], fun refused_again_and_again/0))
            end},
            {"P8: with the sweep, the memory of long keys goes back", fun() ->
                ?assertEqual(bounded, test_setup:in_a_vm([], fun swept_away/0))
            end},
            {"P8: a process that has used a long key and idles does not keep it in memory", fun() ->
                ?assertEqual(bounded, test_setup:in_a_vm([], fun idle_users/0))
            end}
        ])
    ].

%% By kind: as the library stores them, or copies them. Made anew each time, so that no two share anything.
long_keys() ->
    [
        {binary, fun() -> binary:copy(<<"x">>, 200_000) end},
        {list, fun() -> lists:seq(1, 20_000) end},
        {improper_list, fun() -> lists:seq(1, 20_000) ++ tail end},
        {tuple, fun() -> list_to_tuple(lists:seq(1, 20_000)) end},
        {map, fun() -> maps:from_list([{N, {N}} || N <- lists:seq(1, 5_000)]) end},
        {integer, fun() -> 1 bsl 1_000_000 end},
        {negative, fun() -> -(1 bsl 1_000_000) end},
        {bitstring, fun() -> binary_to_term(term_to_binary(<<"abc", 1:1>>)) end},
        {'fun', fun() -> captured("xyz") end},
        {inside, fun() -> #{[1] => {captured(1), <<1:1>>, [binary:copy(<<"x">>, 100_000)]}} end}
    ].

captured(Term) ->
    fun() -> Term end.

around_the_bound() ->
    Lengths = [?BRIEF + Near || Near <- lists:seq(-24, 8)],
    Keys =
        [binary:copy(<<"x">>, Length) || Length <- Lengths] ++
            [lists:duplicate(Length div 8, a) || Length <- Lengths] ++
            [#{binary:copy(<<"x">>, Length) => 1} || Length <- Lengths] ++
            [1 bsl (8 * 128 + Near) || Near <- [-2, -1, 0, 1]] ++ [-(1 bsl (8 * 128 + Near)) || Near <- [-1, 0, 1]],
    Different = lists:usort(Keys),
    [?assertEqual({acquired, 1}, canal_lock:acquire(Key, 1, 1)) || Key <- Different],
    [?assert(canal_lock:acquire(copy(Key), 1, 1) =:= full) || Key <- Different],
    ?assertEqual(length(Different), maps:get(keys, canal_lock:info())),
    %% Some of each were long, and some were not.
    ?assertMatch({[_ | _], [_ | _]}, lists:partition(fun is_long/1, Different)),
    [?assertEqual(ok, canal_lock:release(copy(Key))) || Key <- Different].

copy(Term) ->
    binary_to_term(term_to_binary(Term)).

is_long(Key) ->
    try canal_lock_nif:count(Key) of
        _ -> false
    catch
        error:intern -> true
    end.

all_calls() ->
    [
        begin
            ?assert(is_long(Make())),
            Test = self(),
            ?assertEqual({Kind, {acquired, 1}}, {Kind, canal_lock:acquire(Make(), 1, 1)}),
            ?assertEqual({Kind, full}, {Kind, canal_lock:acquire(Make(), 1, 1)}),
            ?assertEqual({Kind, {acquired, 2}}, {Kind, canal_lock:acquire(Make(), 1, 2)}),
            Count = fun() -> canal_lock:count(Make()) end,
            ?assertEqual({Kind, {ok, 3}}, {Kind, canal_lock:with_permit(Make(), 3, 1, Count)}),
            ?assertEqual({Kind, full}, {Kind, canal_lock:with_permit(Make(), 2, 1, Count)}),
            ?assertEqual({Kind, 2, [1, 1]}, {Kind, canal_lock:count(Make()), canal_lock:buckets(Make(), 1)}),
            ?assertEqual({Kind, [{Test, 2}]}, {Kind, canal_lock:holders(Make())}),
            %% Shown by their own eyes, not by ours: they are long.
            ?assert(canal_lock:held() =:= [{Make(), 2}]),
            ?assert(canal_lock:keys() =:= [{Make(), 2}]),
            ?assertEqual({Kind, []}, {Kind, canal_lock:audit()}),
            ?assertEqual({Kind, ok}, {Kind, canal_lock:release(Make(), 1, 2)}),
            ?assertEqual({Kind, ok}, {Kind, canal_lock:release(Make())}),
            ?assertEqual({Kind, {error, not_held}}, {Kind, canal_lock:release(Make())}),
            ?assertEqual({Kind, 0, []}, {Kind, canal_lock:count(Make()), canal_lock:holders(Make())})
        end
     || {Kind, Make} <- long_keys()
    ].

all_new_at_once() ->
    Large = binary:copy(<<"x">>, 3_000_000),
    [
        begin
            Gate = counters:new(1, []),
            Workers = [test_worker:start() || _ <- lists:seq(1, ?PROCESSES)],
            Acquire = fun() ->
                Key = {Round, Make()},
                test_await:gate(Gate),
                canal_lock:acquire(Key, ?CAPACITY, 1)
            end,
            Answers = [test_worker:send_order(Worker, Acquire) || Worker <- Workers],
            counters:add(Gate, 1, 1),
            Acquired = lists:sort([N || {acquired, N} <- [test_await:answer(Answer) || Answer <- Answers]]),
            ?assertEqual({Kind, lists:seq(1, ?CAPACITY)}, {Kind, Acquired}),
            ok = test_worker:kill(Workers),
            test_await:count({Round, Make()}, 0)
        end
     || Round <- lists:seq(1, test_setup:times(3)),
        %% The last one takes so long to read that all who can read at once do.
        {Kind, Make} <- long_keys() ++ [{very_long, fun() -> Large end}]
    ].

%% The holders themselves count. The sweep beside them takes the key out whenever nobody holds it.
come_and_go() ->
    Held = atomics:new(1, []),
    Workers = [test_worker:start() || _ <- lists:seq(1, 8)],
    Times = lists:seq(1, test_setup:times(500)),
    TakeAndGive = fun() -> lists:max([take_and_give(Held, N) || N <- Times]) end,
    Orders = [test_worker:send_order(Worker, TakeAndGive) || Worker <- Workers],
    ?assertMatch(Most when Most =< 2, lists:max([test_await:answer(Order) || Order <- Orders])),
    ?assertMatch(#{permits := 0, reclaimed := Reclaimed} when Reclaimed > 0, canal_lock:info()),
    ok = test_worker:kill(Workers).

take_and_give(Held, N) ->
    _ = N rem 10 =:= 0 andalso canal_lock_manager:sweep(),
    Key = captured(key),
    case canal_lock:acquire(Key, 2, 1) of
        {acquired, _} ->
            Now = atomics:add_get(Held, 1, 1),
            ok = atomics:sub(Held, 1, 1),
            ok = canal_lock:release(Key),
            Now;
        full ->
            0
    end.

killed_while_reading() ->
    Key = binary:copy(<<"x">>, 3_000_000),
    Holders = [
        begin
            Holder = spawn(fun() -> read_again_and_again(Key) end),
            erlang:yield(),
            Holder
        end
     || _ <- lists:seq(1, test_setup:times(200))
    ],
    [
        begin
            spin(rand:uniform(20_000)),
            exit(Holder, kill)
        end
     || Holder <- Holders
    ],
    test_await:down(Holders),
    test_await:count(Key, 0),
    test_await:value({0, []}, fun() -> {maps:get(holders, canal_lock:info()), canal_lock:audit()} end).

read_again_and_again(Key) ->
    _ = canal_lock:acquire(Key, 1_000_000, 1),
    _ = rand:uniform(2) =:= 1 andalso canal_lock:release(Key),
    read_again_and_again(Key).

spin(0) -> ok;
spin(Turns) -> spin(Turns - 1).

one_table_after_the_other() ->
    [
        begin
            {Holder, {acquired, 1}} = test_worker:start(fun() -> canal_lock:acquire(Make(), 1, 1) end),
            ok = canal_lock:stop(),
            {ok, _} = canal_lock:start_link(3),
            ?assertEqual({Kind, 0}, {Kind, canal_lock:count(Make())}),
            ?assertEqual({Kind, {acquired, 1}}, {Kind, canal_lock:acquire(Make(), 1, 1)}),
            Late = test_worker:order(Holder, fun() -> canal_lock:release(Make()) end),
            ?assertEqual({Kind, {error, not_held}}, {Kind, Late}),
            ok = test_worker:kill(Holder),
            ?assertEqual({Kind, 1}, {Kind, canal_lock:count(Make())})
        end
     || {Kind, Make} <- long_keys()
    ].

freed() ->
    #{memory := Before} = canal_lock:info(),
    {Holder, _} = test_worker:start(fun() ->
        [{acquired, 1} = canal_lock:acquire({N, Make()}, 1, 1) || {_, Make} <- long_keys(), N <- lists:seq(1, 20)]
    end),
    #{memory := Held} = canal_lock:info(),
    ?assert(Held - Before > 20 * 10 * 2_000),
    ok = test_worker:kill(Holder),
    test_await:permits(0),
    ok = canal_lock_manager:sweep(),
    #{keys := 0, memory := After} = canal_lock:info(),
    %% A chunk of slots may have come.
    ?assert(After - Before < 100_000).

%% Or one key would be two.
handles() ->
    Others = [db, {app, 1}, "string", #{a => 1}, make_ref(), 1 bsl 100],
    [?assertError(badarg, canal_lock_nif:intern(Key)) || Key <- Others],
    [?assert(is_reference(canal_lock_nif:intern(Make()))) || {_, Make} <- long_keys()].

lists_of_bytes() ->
    Answer = fun(Length) -> canal_lock_nif:acquire(lists:duplicate(Length, $x), 1, 1) end,
    ?assertEqual({acquired, 1}, Answer(?BRIEF div 8 - 8)),
    [?assertMatch({raise, intern, _}, Answer(Length)) || Length <- [?BRIEF div 8 + 1, ?BRIEF, 8 * ?BRIEF]].

%% How long schedulers have been held up by calls with each key, if it was for too long.
held_up() ->
    {ok, Manager} = canal_lock:start_link(3),
    lists:append([held_up(Kind, Make, Manager) || {Kind, Make} <- very_long_keys()]).

very_long_keys() ->
    [
        {binary, fun() -> binary:copy(<<"x">>, 60_000_000) end},
        {bitstring, fun() -> <<(binary:copy(<<"x">>, 60_000_000))/binary, 1:3>> end},
        {list, fun() -> lists:seq(1, 1_000_000) end},
        {shared, fun() -> lists:foldl(fun(_, Part) -> [Part | Part] end, [], lists:seq(1, 20)) end},
        {deep, fun() -> test_key_terms:deep(tuple, 500_000) end},
        {map, fun() -> maps:from_list([{N, N} || N <- lists:seq(1, 300_000)]) end},
        {'fun', fun() -> captured(lists:seq(1, 1_000_000)) end}
    ].

held_up(Kind, Make, Manager) ->
    Test = self(),
    Caller = spawn_link(fun() ->
        Keys = {Make(), Make()},
        %% So that what is measured is not how long it takes to look after these terms.
        erlang:garbage_collect(),
        Test ! {self(), ready},
        receive
            {Test, go} -> call(Keys)
        end,
        Test ! {self(), done},
        receive
            {Test, stop} -> ok
        end
    end),
    receive
        {Caller, ready} -> ok
    end,
    _ = erlang:system_monitor(Test, [{long_schedule, ?HELD_UP_MS}]),
    Caller ! {Test, go},
    receive
        {Caller, done} -> ok
    end,
    ok = canal_lock_manager:sweep(),
    _ = erlang:system_monitor(undefined),
    Caller ! {Test, stop},
    [{Kind, Process, How} || {Process, How} <- long_schedules(), lists:member(Process, [Caller, Manager])].

call({Key, Same}) ->
    {acquired, 1} = canal_lock:acquire(Key, 1, 1),
    full = canal_lock:acquire(Same, 1, 1),
    1 = canal_lock:count(Same),
    [_] = canal_lock:holders(Same),
    {ok, 2} = canal_lock:with_permit(Same, 2, 1, fun() -> canal_lock:count(Key) end),
    ok = canal_lock:release(Same).

long_schedules() ->
    receive
        {monitor, Process, long_schedule, How} -> [{Process, How} | long_schedules()]
    after 0 -> []
    end.

-define(KEYS, 20).
-define(KEY_BYTES, 10_000_000).

%% Each refusal leaves a copy of a key behind which nobody uses; the next one frees it.
refused_again_and_again() ->
    {ok, _} = canal_lock:start_link(3, #{sweep_interval_ms => 1_000_000}),
    growth(fun() ->
        [
            begin
                full = canal_lock:acquire(<<N:64, 0:?KEY_BYTES/unit:8>>, 0, 1),
                erlang:garbage_collect()
            end
         || N <- lists:seq(1, ?KEYS)
        ]
    end).

swept_away() ->
    {ok, _} = canal_lock:start_link(3, #{sweep_interval_ms => 1_000_000}),
    growth(fun() ->
        {Holder, _} = test_worker:start(fun() ->
            [{acquired, 1} = canal_lock:acquire(<<N:64, 0:?KEY_BYTES/unit:8>>, 1, 1) || N <- lists:seq(1, ?KEYS)]
        end),
        ok = test_worker:kill(Holder),
        test_await:permits(0),
        ok = canal_lock_manager:sweep()
    end).

%% Each user idles with the garbage of its calls on its heap. The key is small there, because its parts are shared; to
%% store it takes four megabytes.
idle_users() ->
    {ok, _} = canal_lock:start_link(3, #{sweep_interval_ms => 1_000_000}),
    growth(fun() ->
        [
            {_, ok} = test_worker:start(fun() ->
                Key = lists:foldl(fun(_, Part) -> [Part | Part] end, N, lists:seq(1, 18)),
                {acquired, 1} = canal_lock:acquire(Key, 1, 1),
                {ok, 2} = canal_lock:with_permit(Key, 2, 1, fun() -> canal_lock:count(Key) end),
                ok = canal_lock:release(Key, 1, 1)
            end)
         || N <- lists:seq(1, ?KEYS)
        ],
        ok = canal_lock_manager:sweep()
    end).

%% Of memory, by something that has so many keys of so many bytes pass. By the VM's own account, in which ours is: it
%% gives back to the operating system by and by.
growth(Pass) ->
    Before = erlang:memory(total),
    _ = [Pass() || _ <- [once, again]],
    erlang:garbage_collect(),
    case erlang:memory(total) - Before of
        Growth when Growth < ?KEYS * ?KEY_BYTES div 4 -> bounded;
        Growth -> {grown_by, Growth}
    end.
