%% P10: with `keep_on_crash', what is held outlives the manager. Calls and deaths go on without it, and the next one
%% finds everything as it is; unless it has ended in order.
-module(canal_lock_keep_tests).

-behaviour(supervisor).

-include_lib("eunit/include/eunit.hrl").

-export([init/1]).

-define(FRIENDS, 1000).
-define(ROUNDS, 10).

-define(CYCLES, 30).
-define(KEYS_PER_CYCLE, 10_000).
-define(MAX_GROWTH_BYTES, 24 * 1024 * 1024).

%% For a manager that shall not sweep by itself while a test lasts.
-define(NEVER_MS, 3_600_000).

%% Shorter than one interval that nobody has asked for.
-define(SOON_MS, 4000).

keep_test_() ->
    test_setup:quietly(
        test_setup:tests(without_manager, [
            {Title, test_manager_crash:alone(Test)}
         || {Title, Test} <- [
                {"P10: calls go on while it is down", fun calls_go_on/0},
                {"P10: who dies while it is down gives back", fun deaths_in_between/0},
                {"P10: whatever it crashes of, its table is kept", fun crashes/0},
                {"P10: an orderly end closes the table at once", fun orderly_ends/0},
                {"P10: under a supervisor, a crash keeps the table and an orderly end closes it", fun supervised/0},
                {"P10: the normal end of one that it is linked to is not its own", fun friend_ends/0},
                {"P10: a plain start closes what was kept", fun plain_after_kept/0},
                {"P8, P10: and leaves no memory of it behind", fun no_growth/0},
                {"P10: one that keeps begins empty after a crash of one that does not", fun kept_after_plain/0},
                {"P10: only one that keeps traps exits", fun traps_exits/0},
                {"P10: the options are those of the manager that adopts", fun options_of_the_next/0},
                {"P8, P10: it sweeps at its interval, and so does the next", fun sweeps/0},
                {"P8, P10: a pass that its predecessor has begun does not count as one", fun sweep_begun_by_another/0},
                {"P8, P10: after an adoption, a sweep takes two passes", fun passes_after_adoption/0},
                {"P10: what nobody should send it starts no timers, and ends nothing", fun stray_messages/0}
            ]
        ])
    ).

keeping() ->
    keeping(3, #{}).

keeping(MaxPer, Options) ->
    {ok, Manager} = canal_lock:start_link(MaxPer, Options#{keep_on_crash => true}),
    Manager.

holder(Keys) ->
    Acquire = fun() -> [{acquired, _} = canal_lock:acquire(Key, 99, 1) || Key <- Keys] end,
    {Holder, _} = test_worker:start(Acquire),
    Holder.

calls_go_on() ->
    Manager = keeping(),
    Before = holder([db, db, #{rare => "map"}]),
    {acquired, 3} = canal_lock:acquire(db, 4, 1),
    ok = test_manager_crash:kill(Manager),
    ?assertEqual(undefined, whereis(canal_lock)),
    Twice = fun() -> [canal_lock:acquire(db, 4, 1) || _ <- [1, 2]] end,
    {New, [{acquired, 4}, full]} = test_worker:start(Twice),
    ?assertEqual({ok, 1}, canal_lock:with_permit(other, 1, 1, fun() -> canal_lock:count(other) end)),
    ?assertEqual([3, 1], canal_lock:buckets(db, 3)),
    Self = self(),
    ?assertEqual(lists:sort([{Before, 2}, {New, 1}, {Self, 1}]), lists:sort(canal_lock:holders(db))),
    ?assertEqual([{db, 1}], canal_lock:held()),
    ?assertEqual([{db, 2}, {#{rare => "map"}, 1}], lists:sort(canal_lock:held(Before))),
    ?assertEqual([{db, 4}, {#{rare => "map"}, 1}], lists:sort(canal_lock:keys())),
    ?assertMatch(#{max_per := 3, permits := 5, holders := 3, granted := 6, refused := 1}, canal_lock:info()),
    ?assertEqual([], canal_lock:audit()),
    ?assertEqual(ok, canal_lock:release(db)),
    ?assertEqual({error, not_held}, canal_lock:release(db)),
    ?assertEqual(ok, canal_lock:release(db, 4, 1)),
    ?assertEqual(ok, test_worker:order(Before, fun() -> canal_lock:release(db, 4, 1) end)),
    ?assertExit(noproc, canal_lock:stop()),
    All = canal_lock:info(),
    _ = keeping(),
    %% As it was, to the last byte.
    ?assertEqual(All, canal_lock:info()),
    ?assertMatch(#{permits := 3, released := 3, not_held := 2}, All),
    ?assertEqual(lists:sort([{Before, 1}, {New, 1}]), lists:sort(canal_lock:holders(db))),
    %% Whose first permit nobody but the table has seen.
    ok = test_worker:kill(New),
    test_await:count(db, 1).

deaths_in_between() ->
    Manager = keeping(100, #{}),
    Before = [holder([db, {app, N}]) || N <- lists:seq(1, 20)],
    [Survivor | Doomed] = Before,
    ok = test_manager_crash:kill(Manager),
    ok = test_worker:kill(Doomed),
    test_await:count(db, 1),
    %% Born and dead without a manager.
    ok = test_worker:kill([holder([db, N]) || N <- lists:seq(1, 5)]),
    test_await:permits(2),
    ?assertEqual([{db, 1}, {{app, 1}, 1}], lists:sort(canal_lock:keys())),
    _ = keeping(),
    ?assertMatch(#{permits := 2, holders := 1, given_back := 48, granted := 50}, canal_lock:info()),
    ?assertEqual([], canal_lock:audit()),
    ok = test_worker:kill(Survivor),
    test_await:count(db, 0),
    ok = canal_lock_manager:sweep(),
    ?assertMatch(#{keys := 0, permits := 0, given_back := 50}, canal_lock:info()).

%% The table goes on from one to the next. All have a parent that is linked to them and traps no exits.
crashes() ->
    Ways = [
        {"killed", fun(_, Manager) -> exit(Manager, kill) end},
        {"somebody's exit signal", fun(_, Manager) -> exit(Manager, meant) end},
        {"its parent's exit signal", fun(Parent, Manager) -> ended_by(Parent, Manager, meant) end},
        {"its parent crashes", fun(Parent, _) -> exit(Parent, meant) end},
        {"its parent is killed", fun(Parent, _) -> exit(Parent, kill) end},
        {"a friend crashes", fun(_, Manager) -> exit(friend(Manager), meant) end},
        {"a friend is killed", fun(_, Manager) -> exit(friend(Manager), kill) end},
        {"a callback crashes", fun(_, Manager) -> test_manager_crash:in_a_callback(Manager) end},
        {"its state is none", fun(_, Manager) -> [sys:replace_state(Manager, fun(_) -> none end), Manager ! any] end},
        {"ended by sys", fun(_, Manager) -> sys:terminate(Manager, meant) end}
    ],
    _ = [crash(Name, Turn, Crash) || {Turn, {Name, Crash}} <- lists:zip(lists:seq(1, length(Ways)), Ways)],
    _ = keeping(),
    Out = length(Ways),
    ?assertMatch(#{permits := Out, holders := Out, given_back := 0}, canal_lock:info()),
    ?assertEqual([], canal_lock:audit()).

crash(Name, Turn, Crash) ->
    Parent = test_worker:start(),
    Manager = test_worker:order(Parent, fun keeping/0),
    ?assertEqual({Name, Turn - 1}, {Name, canal_lock:count(db)}),
    _ = holder([db]),
    Monitor = monitor(process, Manager),
    _ = Crash(Parent, Manager),
    Reason = test_await:reason({Manager, Monitor}),
    ?assertNot(lists:member(Reason, [normal, shutdown, noproc])),
    ?assertEqual({Name, Turn}, {Name, canal_lock:count(db)}).

%% Without waiting for an answer: the parent may not live to give it.
ended_by(Parent, Manager, Reason) ->
    test_worker:send_order(Parent, fun() -> exit(Manager, Reason) end).

friend(Manager) ->
    {Friend, true} = test_worker:start(fun() -> link(Manager) end),
    Friend.

orderly_ends() ->
    Ways = [
        {"stop/0", normal, fun(_, _) -> canal_lock:stop() end},
        {"somebody's exit signal", shutdown, fun(_, Manager) -> exit(Manager, shutdown) end},
        {"one with more to say", {shutdown, x}, fun(_, Manager) -> exit(Manager, {shutdown, x}) end},
        {"its parent's exit signal", shutdown, fun(Parent, Manager) -> ended_by(Parent, Manager, shutdown) end},
        {"its parent's normal end", normal, fun(Parent, _) ->
            test_worker:release_then_die(Parent, fun() -> done end)
        end},
        {"its parent's shutdown", shutdown, fun(Parent, _) -> exit(Parent, shutdown) end},
        {"a friend's shutdown", shutdown, fun(_, Manager) -> exit(friend(Manager), shutdown) end},
        {"ended by sys", {shutdown, x}, fun(_, Manager) -> sys:terminate(Manager, {shutdown, x}) end}
    ],
    [
        begin
            Parent = test_worker:start(),
            Manager = test_worker:order(Parent, fun keeping/0),
            ?assertMatch({Name, #{keys := 0, granted := 0}}, {Name, canal_lock:info()}),
            Holder = holder([db]),
            {acquired, 2} = canal_lock:acquire(db, 3, 1),
            Monitor = monitor(process, Manager),
            _ = End(Parent, Manager),
            ?assertEqual({Name, Reason}, {Name, test_await:reason({Manager, Monitor})}),
            ok = test_manager_crash:calls_raise(),
            %% Their permits are of no table any more, whatever comes.
            _ = keeping(),
            ?assertEqual({error, not_held}, test_worker:order(Holder, fun() -> canal_lock:release(db) end)),
            ?assertEqual({error, not_held}, canal_lock:release(db)),
            ok = canal_lock:stop()
        end
     || {Name, Reason, End} <- Ways
    ].

supervised() ->
    Child = #{id => canal_lock, start => {canal_lock, start_link, [3, #{keep_on_crash => true}]}},
    {ok, Supervisor} = supervisor:start_link(?MODULE, {#{intensity => 9}, [Child]}),
    _ = holder([db]),
    First = whereis(canal_lock),
    ok = test_manager_crash:in_a_callback(First),
    _ = test_manager_crash:another(First),
    ?assertEqual(1, canal_lock:count(db)),
    ok = supervisor:terminate_child(Supervisor, canal_lock),
    ok = test_manager_crash:calls_raise(),
    {ok, _} = supervisor:restart_child(Supervisor, canal_lock),
    ?assertEqual({acquired, 1}, canal_lock:acquire(db, 3, 1)),
    %% Ended by stop/0, it is started again.
    Second = whereis(canal_lock),
    ok = canal_lock:stop(),
    _ = test_manager_crash:another(Second),
    ?assertEqual({acquired, 1}, canal_lock:acquire(db, 3, 1)),
    exit(Supervisor, shutdown),
    receive
        {'EXIT', Supervisor, shutdown} -> test_manager_crash:calls_raise()
    end.

%% Of the supervisor.
init(Specification) ->
    {ok, Specification}.

%% Nobody but the manager hears of such an end, so it is asked what it has heard.
friend_ends() ->
    Manager = keeping(),
    {acquired, 1} = canal_lock:acquire(db, 3, 1),
    Friend = friend(Manager),
    1 = erlang:trace(Manager, true, ['receive']),
    ok = test_worker:release_then_die(Friend, fun() -> done end),
    receive
        {trace, Manager, 'receive', {'EXIT', Friend, normal}} -> ok
    end,
    1 = erlang:trace(Manager, false, ['receive']),
    ok = canal_lock_manager:sweep(),
    ?assertEqual(Manager, whereis(canal_lock)),
    ?assertEqual({acquired, 2}, canal_lock:acquire(db, 3, 1)).

plain_after_kept() ->
    Manager = keeping(),
    [Early, Both, Late] = [holder([db, {app, 1}]) || _ <- [early, both, late]],
    {acquired, 4} = canal_lock:acquire(db, 9, 1),
    ok = test_manager_crash:kill(Manager),
    ok = test_worker:kill(Early),
    {ok, _} = canal_lock:start_link(5),
    ?assertMatch(#{max_per := 5, keys := 0, permits := 0, holders := 0, granted := 0}, canal_lock:info()),
    ?assertEqual([], canal_lock:holders(db)),
    ?assertEqual([[], []], [canal_lock:held(Pid) || Pid <- [Both, self()]]),
    Release = fun() -> canal_lock:release(db) end,
    NotHeld = {error, not_held},
    ?assertEqual([NotHeld, NotHeld], [test_worker:order(Pid, Release) || Pid <- [Both, Late]]),
    ?assertEqual(NotHeld, Release()),
    {acquired, 1} = canal_lock:acquire(db, 9, 1),
    {acquired, 2} = test_worker:order(Both, fun() -> canal_lock:acquire(db, 9, 1) end),
    ok = test_worker:kill(Late),
    %% It holds in both tables. When its one permit is back, what the death before might have done is done.
    ok = test_worker:kill(Both),
    test_await:count(db, 1),
    ?assertMatch(#{permits := 1, holders := 1, given_back := 1}, canal_lock:info()),
    ?assertEqual([], canal_lock:audit()).

%% In a VM of its own, by what the operating system says, as in canal_lock_memory_tests. The first half has given the
%% allocators their reserves; the tables of the second would be more than 60 MiB.
no_growth() ->
    Growth = test_setup:in_a_vm([], fun() ->
        false = process_flag(trap_exit, true),
        cycles(),
        Before = test_setup:resident_bytes(),
        cycles(),
        test_setup:resident_bytes() - Before
    end),
    ?assertMatch(_ when Growth < ?MAX_GROWTH_BYTES, Growth).

cycles() ->
    [
        begin
            First = keeping(),
            [{acquired, 1} = canal_lock:acquire({Cycle, N}, 1, 1) || N <- lists:seq(1, ?KEYS_PER_CYCLE)],
            ok = test_manager_crash:kill(First),
            ok = test_manager_crash:kill(keeping()),
            {ok, _} = canal_lock:start_link(3),
            ok = canal_lock:stop()
        end
     || Cycle <- lists:seq(1, ?CYCLES)
    ].

%% A parent may start the next one before the old table has heard of the death: it is still open then, and must not be
%% adopted. With very many links the VM takes so long to tell of a death that this is what nearly always happens.
kept_after_plain() ->
    Friends = [test_worker:start() || _ <- lists:seq(1, ?FRIENDS)],
    [false = test_worker:order(Friend, fun() -> process_flag(trap_exit, true) end) || Friend <- Friends],
    [
        begin
            {ok, Plain} = canal_lock:start_link(3),
            [true = test_worker:order(Friend, fun() -> link(Plain) end) || Friend <- Friends],
            Holder = holder([db]),
            exit(Plain, kill),
            receive
                {'EXIT', Plain, killed} -> ok
            end,
            Kept = keeping(),
            ?assertMatch(#{keys := 0, permits := 0, holders := 0, granted := 0}, canal_lock:info()),
            {acquired, 1} = canal_lock:acquire(db, 3, 1),
            %% What the plain one has left does not reach the new table.
            [ok = test_worker:order(Friend, fun() -> hears_of(Plain) end) || Friend <- Friends],
            ok = test_worker:kill(Holder),
            ok = test_manager_crash:kill(Kept),
            ?assertEqual({acquired, 2}, canal_lock:acquire(db, 3, 1))
        end
     || _ <- lists:seq(1, test_setup:times(?ROUNDS))
    ],
    ok = test_worker:kill(Friends).

hears_of(Manager) ->
    receive
        {'EXIT', Manager, killed} -> ok
    end.

traps_exits() ->
    [
        begin
            {ok, Manager} = Start(),
            ?assertEqual({trap_exit, Traps}, process_info(Manager, trap_exit)),
            ok = canal_lock:stop()
        end
     || {Traps, Start} <- [
            {false, fun() -> canal_lock:start_link(3) end},
            {false, fun() -> canal_lock:start_link(3, #{}) end},
            {false, fun() -> canal_lock:start_link(3, #{keep_on_crash => false}) end},
            {true, fun() -> canal_lock:start_link(3, #{keep_on_crash => true}) end}
        ]
    ].

options_of_the_next() ->
    First = keeping(3, #{}),
    {acquired, 1} = canal_lock:acquire(db, 3, 1),
    %% One that does not come to be adopts nothing.
    ?assertEqual({error, {already_started, First}}, canal_lock:start_link(4, #{keep_on_crash => true})),
    ?assertMatch(#{max_per := 3}, canal_lock:info()),
    ok = test_manager_crash:kill(First),
    ?assertMatch(#{max_per := 3}, canal_lock:info()),
    Second = keeping(5, #{}),
    ?assertMatch(#{max_per := 5, permits := 1}, canal_lock:info()),
    ok = test_manager_crash:kill(Second),
    _ = keeping(1 bsl 80, #{}),
    ?assertMatch(#{max_per := 1 bsl 80, permits := 1}, canal_lock:info()).

%% Idle keys go without being asked for, sooner than they would by an interval that nobody has asked for.
sweeps() ->
    Often = #{sweep_interval_ms => 10},
    First = keeping(3, Often),
    {acquired, 1} = canal_lock:acquire(held, 1, 1),
    idle_keys_go(),
    ok = test_manager_crash:kill(First),
    leave_idle_keys(),
    ?assertMatch(#{keys := 101}, canal_lock:info()),
    Second = keeping(3, Often),
    only_held_is_left(),
    idle_keys_go(),
    %% The interval is the new one's: this one would sweep tomorrow.
    ok = test_manager_crash:kill(Second),
    Third = keeping(3, #{sweep_interval_ms => ?NEVER_MS}),
    leave_idle_keys(),
    ok = canal_lock_manager:sweep(),
    only_held_is_left(),
    ok = test_manager_crash:kill(Third),
    _ = keeping(3, Often),
    idle_keys_go(),
    ?assertEqual(1, canal_lock:count(held)).

leave_idle_keys() ->
    [{ok, idle} = canal_lock:with_permit({idle, N}, 1, 1, fun() -> idle end) || N <- lists:seq(1, 100)].

only_held_is_left() ->
    test_await:value(1, fun() -> maps:get(keys, canal_lock:info()) end, ?SOON_MS).

idle_keys_go() ->
    leave_idle_keys(),
    only_held_is_left().

%% The first keys of the walk have been passed by, and are used after that: two passes more have to come by.
sweep_begun_by_another() ->
    Manager = keeping(3, #{sweep_interval_ms => 60_000}),
    Use = fun() -> [{ok, Key} = canal_lock:with_permit(Key, 1, 1, fun() -> Key end) || Key <- lists:seq(1, 2000)] end,
    _ = Use(),
    more = canal_lock_nif:sweep_step(element(3, sys:get_state(Manager)), 1000),
    _ = Use(),
    ok = test_manager_crash:kill(Manager),
    _ = keeping(3, #{sweep_interval_ms => 60_000}),
    ok = canal_lock_manager:sweep(),
    ?assertMatch(#{keys := 0}, canal_lock:info()).

%% Steps that end a pass are counted. The manager begins with the rest of its predecessor's pass, which comes first.
passes_after_adoption() ->
    _ = keeping(3, #{sweep_interval_ms => ?NEVER_MS}),
    leave_idle_keys(),
    ok = test_manager_crash:kill(whereis(canal_lock)),
    Next = keeping(3, #{sweep_interval_ms => ?NEVER_MS}),
    Work = fun() ->
        {status, _, _, [_, _, _, _, Status]} = sys:get_status(Next),
        [maps:get(work, State) || {data, [{"State", State}]} <- Status]
    end,
    test_await:value([[]], Work),
    1 = erlang:trace_pattern({canal_lock_nif, sweep_step, 2}, [{'_', [], [{return_trace}]}], []),
    1 = erlang:trace(Next, true, [call]),
    try
        ok = canal_lock_manager:sweep(),
        Delivered = erlang:trace_delivered(Next),
        receive
            {trace_delivered, Next, Delivered} -> ok
        end
    after
        erlang:trace_pattern({canal_lock_nif, sweep_step, 2}, false, [])
    end,
    ?assertEqual(2, length([done || done <- steps_of(Next)])),
    ?assertMatch(#{keys := 0}, canal_lock:info()).

steps_of(Manager) ->
    receive
        {trace, Manager, return_from, _, Progress} -> [Progress | steps_of(Manager)];
        {trace, Manager, call, _} -> steps_of(Manager)
    after 0 -> []
    end.

%% The call that makes a timer is traced. The manager's own are an hour away.
stray_messages() ->
    1 = erlang:trace_pattern({erlang, start_timer, 3}, true, []),
    try
        [stray_messages(Keep) || Keep <- [true, false]]
    after
        erlang:trace_pattern({erlang, start_timer, 3}, false, [])
    end.

stray_messages(Keep) ->
    {ok, Manager} = canal_lock:start_link(3, #{keep_on_crash => Keep, sweep_interval_ms => ?NEVER_MS}),
    {acquired, 1} = canal_lock:acquire(db, 3, 1),
    1 = erlang:trace(Manager, true, [call]),
    Friend = test_worker:start(),
    [
        Manager ! Message
     || Message <- [
            sweep,
            timeout,
            {timeout, make_ref(), sweep},
            {timeout, none, sweep},
            {'DOWN', make_ref(), process, self(), normal},
            {'EXIT', Friend, normal},
            {acquire, self(), self(), {db, 3, 1}},
            {system, nobody},
            [unknown | message],
            sweep
        ],
        _ <- lists:seq(1, 10)
    ],
    ok = gen_server:cast(Manager, {sweep, now}),
    ?assertEqual({error, unknown_call}, gen_server:call(Manager, {acquire, self(), self(), {db, 3, 1}})),
    ?assertEqual({error, unknown_call}, gen_server:call(Manager, {release, db})),
    ok = canal_lock_manager:sweep(),
    Delivered = erlang:trace_delivered(Manager),
    receive
        {trace_delivered, Manager, Delivered} -> ok
    end,
    ?assertEqual([], timers_made_by(Manager)),
    ?assertEqual(Manager, whereis(canal_lock)),
    ?assertEqual({acquired, 2}, canal_lock:acquire(db, 3, 1)),
    ok = canal_lock:stop().

timers_made_by(Manager) ->
    receive
        {trace, Manager, call, Call} -> [Call | timers_made_by(Manager)]
    after 0 -> []
    end.
