%% P9: keys that are too long for a normal scheduler behave like other keys and block no scheduler. N1 and N2 are
%% invariants of native/canal_lock_nif/src/key/interned.rs.
-module(canal_lock_long_keys_tests).

-include_lib("eunit/include/eunit.hrl").

%% A normal scheduler reads keys of up to this many bytes.
-define(SHORT_BYTES, 65_536).

-define(PROCESSES, 50).
-define(CAPACITY, 7).

%% Far longer than any part of a call takes on a normal scheduler, and far shorter than reading these keys takes.
-define(LONG_SCHEDULE_MS, 50).

-define(ATTEMPTS, 4).

long_keys_test_() ->
    [
        test_setup:tests([
            {"P1, N2: keys just below and above the length limit are different keys", fun around_the_limit/0},
            {"P5, P6: all calls give the same answers for long keys", fun all_calls/0},
            {"P1, N1: many processes acquire a new long key at once, up to its capacity", fun all_new_at_once/0},
            {"P1, N1: the capacity holds while a long key is acquired, released and reclaimed", fun reclaimed_often/0},
            {"P4: a process that is killed while its key is read leaves nothing behind", fun killed_while_reading/0},
            {"P10: a long key of a closed table is new in the next table", fun one_table_after_the_other/0},
            {"P8: a sweep frees long keys that are no longer held", fun freed/0},
            {"P9: only long keys have handles", fun handles/0},
            {"N2: a list of bytes counts by its elements, however it is stored", fun lists_of_bytes/0}
        ]),
        test_setup:tests(without_manager, [
            {Title, fun() -> ?assertEqual(Expected, test_setup:in_a_vm(Arguments, Test)) end}
         || {Title, Arguments, Expected, Test} <- [
                {"P9: a key of 60 MB blocks no scheduler", ["+S", "2:2"], [], fun blocked_schedulers/0},
                {"P9: refused calls with long keys leave at most one copy behind", [], bounded, fun refused_often/0},
                {"P8: a sweep frees the memory of long keys", [], bounded, fun swept/0},
                {"P8: a process that has used a long key and idles does not keep it in memory", [], bounded,
                    fun idle_users/0}
            ]
        ])
    ].

%% One row for each way in which the library stores or copies a key. Each call creates a new term, which shares nothing.
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

around_the_limit() ->
    Lengths = [?SHORT_BYTES + Near || Near <- lists:seq(-24, 8)],
    Bits = 8 * 128,
    Keys =
        [binary:copy(<<"x">>, Length) || Length <- Lengths] ++
            [lists:duplicate(Length div 8, a) || Length <- Lengths] ++
            [#{binary:copy(<<"x">>, Length) => 1} || Length <- Lengths] ++
            [1 bsl (Bits + Near) || Near <- [-2, -1, 0, 1]] ++ [-(1 bsl (Bits + Near)) || Near <- [-1, 0, 1]],
    Different = lists:usort(Keys),
    [?assertEqual({acquired, 1}, canal_lock:acquire(Key, 1, 1)) || Key <- Different],
    [?assert(canal_lock:acquire(copy(Key), 1, 1) =:= full) || Key <- Different],
    ?assertEqual(length(Different), maps:get(keys, canal_lock:info())),
    %% There were keys of both kinds.
    ?assertMatch({[_ | _], [_ | _]}, lists:partition(fun test_setup:is_long_key/1, Different)),
    [?assertEqual(ok, canal_lock:release(copy(Key))) || Key <- Different].

copy(Term) ->
    binary_to_term(term_to_binary(Term)).

all_calls() ->
    lists:foreach(fun({Kind, Make}) ->
        ?assert(test_setup:is_long_key(Make())),
        Test = self(),
        ?assertEqual({Kind, {acquired, 1}}, {Kind, canal_lock:acquire(Make(), 1, 1)}),
        ?assertEqual({Kind, full}, {Kind, canal_lock:acquire(Make(), 1, 1)}),
        ?assertEqual({Kind, {acquired, 2}}, {Kind, canal_lock:acquire(Make(), 1, 2)}),
        Count = fun() -> canal_lock:count(Make()) end,
        ?assertEqual({Kind, {ok, 3}}, {Kind, canal_lock:with_permit(Make(), 3, 1, Count)}),
        ?assertEqual({Kind, full}, {Kind, canal_lock:with_permit(Make(), 2, 1, Count)}),
        ?assertEqual({Kind, 2, [1, 1]}, {Kind, canal_lock:count(Make()), canal_lock:buckets(Make(), 1)}),
        ?assertEqual({Kind, [{Test, 2}]}, {Kind, canal_lock:holders(Make())}),
        %% Not `?assertEqual': the terms are too long to print.
        ?assert(canal_lock:held() =:= [{Make(), 2}]),
        ?assert(canal_lock:keys() =:= [{Make(), 2}]),
        ?assertEqual({Kind, []}, {Kind, canal_lock:audit()}),
        ?assertEqual({Kind, ok}, {Kind, canal_lock:release(Make(), 1, 2)}),
        ?assertEqual({Kind, ok}, {Kind, canal_lock:release(Make())}),
        ?assertEqual({Kind, {error, not_held}}, {Kind, canal_lock:release(Make())}),
        ?assertEqual({Kind, 0, []}, {Kind, canal_lock:count(Make()), canal_lock:holders(Make())})
    end, long_keys()).

all_new_at_once() ->
    Large = binary:copy(<<"x">>, 3_000_000),
    %% Reading the last key takes so long that all dirty schedulers read it at the same time.
    Keys = long_keys() ++ [{very_long, fun() -> Large end}],
    lists:foreach(fun({Round, Kind, Make}) ->
        Acquire = fun(Key) -> canal_lock:acquire(Key, ?CAPACITY, 1) end,
        Answers = test_setup:concurrently(?PROCESSES, fun() -> {Round, Make()} end, Acquire),
        Acquired = lists:sort([N || {acquired, N} <- Answers]),
        ?assertEqual({Kind, lists:seq(1, ?CAPACITY)}, {Kind, Acquired}),
        test_await:count({Round, Make()}, 0)
    end, [{Round, Kind, Make} || Round <- lists:seq(1, test_setup:times(3)), {Kind, Make} <- Keys]).

%% The holders count themselves. The sweep beside them reclaims the key whenever it is not held.
reclaimed_often() ->
    Held = atomics:new(1, []),
    Times = lists:seq(1, test_setup:times(500)),
    Most = test_setup:concurrently(8, fun() -> lists:max([acquire_and_release(Held, N) || N <- Times]) end),
    ?assert(lists:max(Most) =< 2),
    %% On a busy machine, the key may be in use at every sweep.
    case canal_lock:info() of
        #{permits := 0, reclaimed := 0} -> reclaimed_often();
        #{permits := 0} -> ok
    end.

acquire_and_release(Held, N) ->
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
    Holders = [spawn_and_yield(fun() -> acquire_forever(Key) end) || _ <- lists:seq(1, test_setup:times(200))],
    [{ok, true} = {test_setup:spin(rand:uniform(20_000)), exit(Holder, kill)} || Holder <- Holders],
    test_await:down(Holders),
    test_await:count(Key, 0),
    test_await:value({0, []}, fun() -> {maps:get(holders, canal_lock:info()), canal_lock:audit()} end).

spawn_and_yield(Fun) ->
    Pid = spawn(Fun),
    erlang:yield(),
    Pid.

acquire_forever(Key) ->
    _ = canal_lock:acquire(Key, 1_000_000, 1),
    _ = rand:uniform(2) =:= 1 andalso canal_lock:release(Key),
    acquire_forever(Key).

one_table_after_the_other() ->
    lists:foreach(fun({Kind, Make}) ->
        {Holder, {acquired, 1}} = test_worker:start(fun() -> canal_lock:acquire(Make(), 1, 1) end),
        ok = canal_lock:stop(),
        {ok, _} = canal_lock:start_link(3),
        ?assertEqual({Kind, 0}, {Kind, canal_lock:count(Make())}),
        ?assertEqual({Kind, {acquired, 1}}, {Kind, canal_lock:acquire(Make(), 1, 1)}),
        Late = test_worker:order(Holder, fun() -> canal_lock:release(Make()) end),
        ?assertEqual({Kind, {error, not_held}}, {Kind, Late}),
        ok = test_worker:kill(Holder),
        ?assertEqual({Kind, 1}, {Kind, canal_lock:count(Make())})
    end, long_keys()).

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
    %% A chunk of slots may have been allocated.
    ?assert(After - Before < 100_000).

%% If a short key could have a handle, it would be two keys.
handles() ->
    Others = [db, {app, 1}, "string", #{a => 1}, make_ref(), 1 bsl 100],
    [?assertError(badarg, canal_lock_nif:intern(Key)) || Key <- Others],
    [?assert(is_reference(canal_lock_nif:intern(Make()))) || {_, Make} <- long_keys()].

lists_of_bytes() ->
    Answer = fun(Length) -> canal_lock_nif:acquire(lists:duplicate(Length, $x), 1, 1) end,
    ?assertEqual({acquired, 1}, Answer(?SHORT_BYTES div 8 - 8)),
    Long = [?SHORT_BYTES div 8 + 1, ?SHORT_BYTES, 8 * ?SHORT_BYTES],
    [?assertMatch({raise, intern, _}, Answer(Length)) || Length <- Long].

%% The processes that blocked a scheduler in calls with each key, and for how long. On a busy machine the time includes
%% pauses of the VM by the system. A key that blocks does so in each of the attempts.
blocked_schedulers() ->
    {ok, Manager} = canal_lock:start_link(3),
    lists:append([blocked_schedulers(Kind, Make, Manager, ?ATTEMPTS) || {Kind, Make} <- very_long_keys()]).

blocked_schedulers(Kind, Make, Manager, Left) ->
    case blocked_schedulers(Kind, Make, Manager) of
        [_ | _] when Left > 1 -> blocked_schedulers(Kind, Make, Manager, Left - 1);
        Blocked -> Blocked
    end.

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

blocked_schedulers(Kind, Make, Manager) ->
    Test = self(),
    Caller = spawn_link(fun() ->
        Keys = {Make(), Make()},
        %% The measurement must not include the garbage collection of these terms.
        erlang:garbage_collect(),
        Test ! {self(), ready},
        receive {Test, go} -> call(Keys) end,
        Test ! {self(), done},
        receive {Test, stop} -> ok end
    end),
    receive {Caller, ready} -> ok end,
    _ = erlang:system_monitor(Test, [{long_schedule, ?LONG_SCHEDULE_MS}]),
    Caller ! {Test, go},
    receive {Caller, done} -> ok end,
    ok = canal_lock_manager:sweep(),
    _ = erlang:system_monitor(undefined),
    Caller ! {Test, stop},
    [{Kind, Process, Info} || {Process, Info} <- long_schedules(), lists:member(Process, [Caller, Manager])].

call({Key, Same}) ->
    {acquired, 1} = canal_lock:acquire(Key, 1, 1),
    full = canal_lock:acquire(Same, 1, 1),
    1 = canal_lock:count(Same),
    [_] = canal_lock:holders(Same),
    {ok, 2} = canal_lock:with_permit(Same, 2, 1, fun() -> canal_lock:count(Key) end),
    ok = canal_lock:release(Same).

long_schedules() ->
    receive
        {monitor, Process, long_schedule, Info} -> [{Process, Info} | long_schedules()]
    after 0 -> []
    end.

-define(KEYS, 20).
-define(KEY_BYTES, 10_000_000).

%% Each refused call leaves an unused copy of its key behind, which the next call frees.
refused_often() ->
    growth(fun() ->
        [{full, true} = {canal_lock:acquire(long_key(N), 0, 1), erlang:garbage_collect()} || N <- lists:seq(1, ?KEYS)]
    end).

long_key(N) ->
    <<N:64, 0:?KEY_BYTES/unit:8>>.

swept() ->
    growth(fun() ->
        {Holder, _} = test_worker:start(fun() ->
            [{acquired, 1} = canal_lock:acquire(long_key(N), 1, 1) || N <- lists:seq(1, ?KEYS)]
        end),
        ok = test_worker:kill(Holder),
        test_await:permits(0),
        ok = canal_lock_manager:sweep()
    end).

%% Each process idles with the garbage of its calls on its heap. The key is small there, because its parts are shared;
%% the library needs 4 MB to store it. No later call collects the garbage of the last one.
idle_users() ->
    Lasts = [
        {release, fun(Key) -> {error, not_held} = canal_lock:release(Key) end},
        {count, fun(Key) -> 0 = canal_lock:count(Key) end}
    ],
    growth(fun() ->
        [
            {_, ok} = test_worker:start(fun() ->
                Key = lists:foldl(fun(_, Part) -> [Part | Part] end, {Name, N}, lists:seq(1, 18)),
                {acquired, 1} = canal_lock:acquire(Key, 1, 1),
                {ok, 2} = canal_lock:with_permit(Key, 2, 1, fun() -> canal_lock:count(Key) end),
                ok = canal_lock:release(Key, 1, 1),
                _ = Last(Key),
                ok
            end)
         || {Name, Last} <- Lasts, N <- lists:seq(1, ?KEYS)
        ],
        ok = canal_lock_manager:sweep()
    end).

%% Whether memory stays bounded while all the keys are used twice. The VM's own statistics include the library's memory;
%% the VM returns memory to the operating system later.
growth(Use) ->
    {ok, _} = canal_lock:start_link(3, #{sweep_interval_ms => 1_000_000}),
    Before = erlang:memory(total),
    _ = [Use() || _ <- [once, again]],
    erlang:garbage_collect(),
    case erlang:memory(total) - Before of
        Growth when Growth < ?KEYS * ?KEY_BYTES div 4 -> bounded;
        Growth -> {grown_by, Growth}
    end.
