%% P4, P10: whoever dies between the request of another node and its answer, the permit is with a holder who knows of
%% it, or it comes back; and a manager that is started after a crash goes on where the last one was.
-module(canal_lock_remote_crash_tests).

-include_lib("eunit/include/eunit.hrl").

-define(KEPT, #{keep_on_crash => true}).

adoption_test_() ->
    tests(3, [
        {"P10: holders are adopted: they hold, release, and are watched", fun adopted/1},
        {"P4, P10: a connection lost while there is no manager", fun cut_unseen/1},
        {"P10: those who die while there is no manager give back to the next", fun die_without_manager/1},
        {"P10: a node that goes while there is no manager gives back to the next", fun node_ends_without_manager/1},
        {"P10: a connection lost and not found again gives back to the next", fun cut_without_manager/1},
        {"P10: many managers one after the other", fun many_managers/1},
        {"P10: an orderly end is void for them too", fun orderly_end/1}
    ]).

late_test_() ->
    tests(2, [
        {"P4: the caller dies while its request waits", fun caller_dies/1},
        {"P4: the caller and its call die while the request waits", fun both_die/1},
        {"P4: the call dies while its request waits", fun call_dies_waiting/1},
        {"P4: the call dies before it has told of the permit", fun call_dies_untold/1},
        {"P4: the connection is lost while the request waits, and comes back", fun cut_and_connected/1},
        {"P4: the connection is lost while the request waits, the watch brings it back", fun connected_by_watch/1},
        {"P4: the connection is lost while the request waits", fun cut_while_waiting/1},
        {"P4: the node of the caller is killed while the request waits", fun node_killed_while_waiting/1},
        {"P4: the connection is lost between the permit and its confirmation, and comes back", fun cut_unconfirmed/1},
        {"P4: the connection is lost between the permit and its confirmation", fun cut_for_good/1},
        {"P10: the manager crashes while the request waits", fun manager_crashes_before/1},
        {"P10: ... between the permit and the answer: taken back", fun manager_crashes_unanswered/1},
        {"P10: ... after the answer, and the call dies: taken back", fun manager_crashes_untold/1},
        {"P10: ... after the answer, and the call tells of it: confirmed to the next", fun told_after_adoption/1},
        {"P10: ... and the call waits until there is one to confirm to", fun told_without_manager/1},
        {"P10: ... and the holder releases it before it is confirmed", fun released_unconfirmed/1},
        {"P10: ... and the holder dies while the call waits", fun holder_dies_unconfirmed/1},
        {"P10: ... and the next manager keeps nothing", fun next_keeps_nothing/1},
        {"P4: a call that dies takes back what it has brought, nothing else", fun takes_back_its_own/1},
        {"P4: each call answers for its own permit", fun several_calls/1}
    ]).

tests(Nodes, Tests) ->
    canal_lock_stage:quietly(canal_lock_there:tests(Nodes, ?KEPT, Tests)).

new_manager(There) ->
    canal_lock_there:kill_manager(There),
    canal_lock_there:start_manager(There, ?KEPT).

%% The next manager was not there to see it, and finds everybody alive; or connects to them by itself.
cut_unseen([There, Here, Elsewhere]) ->
    Stays = canal_lock_nodes:worker(Elsewhere),
    {acquired, 1} = canal_lock_there:acquire(Stays, There, stays),
    [
        begin
            Holder = canal_lock_nodes:worker(Here),
            {acquired, 1} = canal_lock_there:acquire(Holder, There, db),
            ok = canal_lock_there:kill_manager(There),
            canal_lock_nodes:cut(Here, There),
            Reconnect(),
            _ = canal_lock_there:start_manager(There, ?KEPT),
            canal_lock_there:await_count(There, db, 0),
            canal_lock_nodes:connect_by_themselves(There, false),
            canal_lock_nodes:connect(Here, There),
            ?assertEqual({acquired, 1}, canal_lock_there:acquire(Holder, There, db)),
            ok = canal_lock_nodes:kill_worker(Holder),
            canal_lock_there:await_count(There, db, 0)
        end
     || Reconnect <- [
            fun() -> canal_lock_nodes:connect(Here, There) end,
            fun() -> canal_lock_nodes:connect_by_themselves(There, true) end,
            fun() -> not_at_all end
        ]
    ],
    ?assertEqual(1, canal_lock_there:count(There, stays)),
    ?assertEqual(ok, canal_lock_there:release(Stays, There, stays)),
    canal_lock_there:nothing_is_left(There).

adopted([There, Here, Elsewhere]) ->
    {_, One} = Holder = canal_lock_nodes:worker(Here),
    {_, Two} = Other = canal_lock_nodes:worker(Elsewhere),
    [{acquired, N} = canal_lock_there:acquire(Holder, There, db) || N <- [1, 2]],
    {acquired, 3} = canal_lock_there:acquire(Other, There, db),
    {acquired, 1} = canal_lock_there:acquire(Other, There, app),
    canal_lock_await:value([], fun() -> canal_lock_there:unconfirmed(There) end),
    canal_lock_there:kill_manager(There),
    ?assertEqual([3, 1], [canal_lock_there:count(There, Key) || Key <- [db, app]]),
    _ = canal_lock_there:start_manager(There, ?KEPT),
    ?assertEqual([{Pid, holder} || Pid <- lists:sort([One, Two])], canal_lock_there:watched(There)),
    ?assertEqual(
        lists:sort([{One, 2}, {Two, 1}]),
        lists:sort(canal_lock_nodes:call(There, fun() -> canal_lock:holders(db) end))
    ),
    ?assertEqual(full, canal_lock_there:acquire(Holder, There, db)),
    ?assertEqual(ok, canal_lock_there:release(Holder, There, db)),
    ?assertEqual({acquired, 3}, canal_lock_there:acquire(Other, There, db)),
    %% By an exit that it traps, too.
    canal_lock_nodes:call(There, fun() ->
        Manager = whereis(canal_lock),
        exit(Manager, meant),
        canal_lock_await:down([Manager])
    end),
    _ = canal_lock_there:start_manager(There, ?KEPT),
    ok = canal_lock_nodes:kill_worker(Holder),
    canal_lock_there:await_count(There, db, 2),
    canal_lock_nodes:cut(Elsewhere, There),
    canal_lock_there:nothing_is_left(There),
    ?assertMatch(#{granted := 5, released := 1, given_back := 4}, canal_lock_there:info(There)).

die_without_manager([There, Here, Elsewhere]) ->
    {_, Pid} = Stays = canal_lock_nodes:worker(Elsewhere),
    Holder = canal_lock_nodes:worker(Here),
    [{acquired, N} = canal_lock_there:acquire(Holder, There, db) || N <- [1, 2]],
    {acquired, 3} = canal_lock_there:acquire(Stays, There, db),
    canal_lock_await:value([], fun() -> canal_lock_there:unconfirmed(There) end),
    canal_lock_there:kill_manager(There),
    ok = canal_lock_nodes:kill_worker(Holder),
    _ = canal_lock_there:start_manager(There, ?KEPT),
    canal_lock_there:await_count(There, db, 1),
    ?assertEqual([{Pid, holder}], canal_lock_there:watched(There)),
    ?assertEqual(ok, canal_lock_there:release(Stays, There, db)),
    canal_lock_there:nothing_is_left(There).

node_ends_without_manager([There | _]) ->
    [
        begin
            Here = canal_lock_nodes:start(),
            canal_lock_nodes:connect(Here, There),
            {acquired, 1} = canal_lock_there:acquire(canal_lock_nodes:worker(Here), There, db),
            canal_lock_there:kill_manager(There),
            ok = canal_lock_nodes:kill(Here),
            canal_lock_nodes:connect_by_themselves(There, ByThemselves),
            _ = canal_lock_there:start_manager(There, ?KEPT),
            canal_lock_there:nothing_is_left(There)
        end
     || ByThemselves <- [false, true]
    ].

cut_without_manager([There, Here | _]) ->
    Holder = canal_lock_nodes:worker(Here),
    {acquired, 1} = canal_lock_there:acquire(Holder, There, db),
    canal_lock_there:kill_manager(There),
    canal_lock_nodes:cut(Here, There),
    ?assertEqual(1, canal_lock_there:count(There, db)),
    _ = canal_lock_there:start_manager(There, ?KEPT),
    canal_lock_there:nothing_is_left(There),
    canal_lock_nodes:connect(Here, There),
    ?assertEqual({error, not_held}, canal_lock_there:release(Holder, There, db)),
    ?assertEqual({acquired, 1}, canal_lock_there:acquire(Holder, There, db)).

many_managers([There, Here, Elsewhere]) ->
    Workers = [canal_lock_nodes:worker(Node) || Node <- [Here, Elsewhere], _ <- lists:seq(1, 5)],
    Held = lists:foldl(
        fun(Round, Before) ->
            Taking = [{Worker, There, {key, Round, N}} || {N, Worker} <- lists:zip(lists:seq(1, 10), Workers)],
            [{acquired, 1} = canal_lock_there:acquire(Worker, There, Key) || {Worker, _, Key} <- Taking],
            {Going, Staying} = lists:split(5, Before ++ Taking),
            [?assertEqual(ok, canal_lock_there:release(Worker, There, Key)) || {Worker, _, Key} <- Going],
            _ = new_manager(There),
            Staying
        end,
        [],
        lists:seq(1, 10)
    ),
    ?assertMatch(#{permits := 50}, canal_lock_there:info(There)),
    canal_lock_nodes:kill_workers(Here),
    ?assertMatch({_, 5}, {Held, length(lists:usort([Pid || {{Node, Pid}, _, _} <- Held, Node =:= Elsewhere]))}),
    canal_lock_await:value(5, fun() -> length(canal_lock_there:watched(There)) end),
    canal_lock_nodes:kill_workers(Elsewhere),
    canal_lock_there:nothing_is_left(There).

orderly_end([There, Here | _]) ->
    Holder = canal_lock_nodes:worker(Here),
    {acquired, 1} = canal_lock_there:acquire(Holder, There, db),
    canal_lock_nodes:call(There, fun canal_lock:stop/0),
    _ = canal_lock_there:start_manager(There, ?KEPT),
    canal_lock_there:nothing_is_left(There),
    ?assertEqual({error, not_held}, canal_lock_there:release(Holder, There, db)).

%% A request that waits for the manager: whose, what will come of it, and the process that makes the call.
waiting(There, Here) ->
    waiting(There, Here, db).

waiting(There, Here, Key) ->
    Holder = canal_lock_nodes:worker(Here),
    canal_lock_there:suspend_manager(There),
    Outcome = canal_lock_there:send_acquire(Holder, There, Key),
    canal_lock_there:await_request(There),
    {Holder, Outcome, canal_lock_there:call_of(Holder)}.

%% A permit is taken, and the answer has been sent to a call that does not run, until somebody lets it.
unheard(There, Here) ->
    unheard(There, Here, db).

unheard(There, Here, Key) ->
    {Holder, Outcome, Call} = waiting(There, Here, Key),
    Hand = stop(Call),
    canal_lock_there:resume_manager(There),
    canal_lock_there:await_count(There, Key, 1),
    {{_, HolderPid}, {_, CallPid}} = {Holder, Call},
    ?assertEqual(lists:sort([{HolderPid, holder}, {CallPid, {call_of, HolderPid}}]), canal_lock_there:watched(There)),
    ?assertEqual([{HolderPid, CallPid}], canal_lock_there:unconfirmed(There)),
    {Holder, Outcome, Call, Hand}.

%% A process does not run until its hand lets it go.
stop({Here, Pid}) ->
    Hand = canal_lock_nodes:worker(Here),
    true = canal_lock_nodes:order(Hand, fun() -> erlang:suspend_process(Pid) end),
    Hand.

let_go(Hand, {_, Pid}) ->
    true = canal_lock_nodes:order(Hand, fun() -> erlang:resume_process(Pid) end),
    ok.

caller_dies([There, Here]) ->
    {Holder, _, _} = waiting(There, Here),
    ok = canal_lock_nodes:kill_worker(Holder),
    canal_lock_there:resume_manager(There),
    canal_lock_there:nothing_is_left(There),
    ?assertMatch(#{granted := 1}, canal_lock_there:info(There)).

both_die([There, Here]) ->
    {Holder, _, Call} = waiting(There, Here),
    [ok = canal_lock_nodes:kill_worker(Process) || Process <- [Holder, Call]],
    canal_lock_there:resume_manager(There),
    canal_lock_there:nothing_is_left(There),
    ?assertMatch(#{granted := 1}, canal_lock_there:info(There)).

call_dies_waiting([There, Here]) ->
    {Holder, Outcome, Call} = waiting(There, Here),
    ok = canal_lock_nodes:kill_worker(Call),
    lives_on(Holder, {exit, killed, There}, Outcome),
    canal_lock_there:resume_manager(There),
    canal_lock_there:nothing_is_left(There),
    ?assertMatch(#{granted := 1}, canal_lock_there:info(There)),
    ?assertEqual({acquired, 1}, canal_lock_there:acquire(Holder, There, db)).

%% The caller has heard an exit with that reason, nothing else, and can go on.
lives_on(Holder, {exit, Reason, There}, Outcome) ->
    lives_on(Holder, {exit, Reason, There, db}, Outcome);
lives_on(Holder, {exit, Reason, There, Key}, Outcome) ->
    Name = canal_lock_nodes:name(There),
    ?assertEqual({exit, {Reason, {canal_lock, acquire_on, [Name, Key, 3, 1]}}}, canal_lock_await:answer(Outcome)),
    ?assertEqual(
        [{messages, []}],
        canal_lock_nodes:order(Holder, fun() -> process_info(self(), [messages]) end)
    ).

%% The second key is a long one, which is kept in another way.
call_dies_untold([There, Here]) ->
    [
        begin
            {Holder, Outcome, Call, _} = unheard(There, Here, Key),
            ok = canal_lock_nodes:kill_worker(Call),
            lives_on(Holder, {exit, killed, There, Key}, Outcome),
            canal_lock_there:nothing_is_left(There),
            ?assertEqual({acquired, 1}, canal_lock_there:acquire(Holder, There, Key)),
            ?assertEqual(ok, canal_lock_there:release(Holder, There, Key))
        end
     || Key <- [db, <<"a long one", 1:1>>]
    ].

cut_and_connected([There, Here]) ->
    {Holder, Outcome, _} = waiting(There, Here),
    canal_lock_nodes:cut(Here, There),
    lives_on(Holder, {exit, {nodedown, canal_lock_nodes:name(There)}, There}, Outcome),
    canal_lock_nodes:connect(Here, There),
    canal_lock_there:resume_manager(There),
    canal_lock_there:nothing_is_left(There),
    ?assertMatch(#{granted := 1}, canal_lock_there:info(There)),
    ?assertEqual({acquired, 1}, canal_lock_there:acquire(Holder, There, db)).

connected_by_watch([There, Here]) ->
    {Holder, Outcome, _} = waiting(There, Here),
    canal_lock_nodes:cut(Here, There),
    lives_on(Holder, {exit, {nodedown, canal_lock_nodes:name(There)}, There}, Outcome),
    canal_lock_nodes:connect_by_themselves(There, true),
    canal_lock_there:resume_manager(There),
    canal_lock_there:nothing_is_left(There),
    ?assertMatch(#{granted := 1}, canal_lock_there:info(There)),
    ?assertEqual({acquired, 1}, canal_lock_there:acquire(Holder, There, db)).

cut_while_waiting([There, Here]) ->
    {Holder, Outcome, _} = waiting(There, Here),
    canal_lock_nodes:cut(There, Here),
    lives_on(Holder, {exit, {nodedown, canal_lock_nodes:name(There)}, There}, Outcome),
    canal_lock_there:resume_manager(There),
    canal_lock_there:nothing_is_left(There),
    ?assertMatch(#{granted := 1}, canal_lock_there:info(There)).

node_killed_while_waiting([There, _]) ->
    Here = canal_lock_nodes:start(),
    canal_lock_nodes:connect(Here, There),
    _ = waiting(There, Here),
    ok = canal_lock_nodes:kill(Here),
    canal_lock_there:resume_manager(There),
    canal_lock_there:nothing_is_left(There),
    ?assertMatch(#{granted := 1}, canal_lock_there:info(There)).

cut_unconfirmed([There, Here]) ->
    {Holder, Outcome, Call, Hand} = unheard(There, Here),
    canal_lock_nodes:cut(Here, There),
    canal_lock_there:nothing_is_left(There),
    canal_lock_nodes:connect(Here, There),
    let_go(Hand, Call),
    %% The answer came before the connection was lost: it is void, as what it had before would be.
    ?assertEqual({acquired, 1}, canal_lock_await:answer(Outcome)),
    ?assertEqual({error, not_held}, canal_lock_there:release(Holder, There, db)),
    canal_lock_there:nothing_is_left(There).

cut_for_good([There, Here]) ->
    {Holder, Outcome, Call, Hand} = unheard(There, Here),
    canal_lock_nodes:cut(Here, There),
    canal_lock_there:nothing_is_left(There),
    let_go(Hand, Call),
    ?assertEqual({acquired, 1}, canal_lock_await:answer(Outcome)),
    %% There is nothing to confirm.
    canal_lock_await:value([], fun() -> canal_lock_there:calls(Here) end),
    canal_lock_nodes:connect(Here, There),
    ?assertEqual({error, not_held}, canal_lock_there:release(Holder, There, db)).

manager_crashes_before([There, Here]) ->
    {Holder, Outcome, _} = waiting(There, Here),
    _ = new_manager(There),
    lives_on(Holder, {exit, killed, There}, Outcome),
    canal_lock_there:nothing_is_left(There),
    ?assertMatch(#{granted := 0}, canal_lock_there:info(There)).

%% It dies right after the native call, as far as one can see from outside.
manager_crashes_unanswered([There, Here]) ->
    {Holder, Outcome, Call} = waiting(There, Here),
    take(There, Holder, Call, db),
    ?assertEqual(1, canal_lock_there:count(There, db)),
    _ = new_manager(There),
    lives_on(Holder, {exit, killed, There}, Outcome),
    canal_lock_there:nothing_is_left(There),
    ?assertMatch(#{granted := 1}, canal_lock_there:info(There)).

%% The manager takes a permit, and does nothing else for it.
take(There, {_, Holder}, {_, Call}, Key) ->
    in_the_manager(There, fun(Handle) ->
        {_, Connection} = lists:keyfind(node(Holder), 1, erlang:system_info(dist_ctrl)),
        {acquired, _} = canal_lock_nif:remote_acquire(Handle, {Holder, Connection}, Call, {Key, 3, 1})
    end).

in_the_manager(There, Fun) ->
    canal_lock_nodes:call(There, fun() ->
        _ = sys:replace_state(canal_lock, fun(State) ->
            _ = Fun(element(3, State)),
            State
        end),
        ok
    end).

manager_crashes_untold([There, Here]) ->
    {Holder, Outcome, Call, _} = unheard(There, Here),
    canal_lock_there:kill_manager(There),
    ok = canal_lock_nodes:kill_worker(Call),
    lives_on(Holder, {exit, killed, There}, Outcome),
    ?assertEqual(1, canal_lock_there:count(There, db)),
    _ = canal_lock_there:start_manager(There, ?KEPT),
    canal_lock_there:nothing_is_left(There),
    %% The same with a new manager first.
    {Second, SecondOutcome, SecondCall, _} = unheard(There, Here),
    _ = new_manager(There),
    ?assertEqual(1, canal_lock_there:count(There, db)),
    ok = canal_lock_nodes:kill_worker(SecondCall),
    lives_on(Second, {exit, killed, There}, SecondOutcome),
    canal_lock_there:nothing_is_left(There).

told_after_adoption([There, Here]) ->
    {{_, Pid} = Holder, Outcome, {_, CallPid} = Call, Hand} = unheard(There, Here),
    _ = new_manager(There),
    ?assertEqual(lists:sort([{Pid, holder}, {CallPid, {call_of, Pid}}]), canal_lock_there:watched(There)),
    let_go(Hand, Call),
    ?assertEqual({acquired, 1}, canal_lock_await:answer(Outcome)),
    is_held_until_released(There, Here, Holder).

%% ... by one who knows of it.
is_held_until_released(There, Here, {_, Pid} = Holder) ->
    canal_lock_await:value([], fun() -> canal_lock_there:unconfirmed(There) end),
    canal_lock_await:value([], fun() -> canal_lock_there:calls(Here) end),
    ?assertEqual([{Pid, holder}], canal_lock_there:watched(There)),
    ?assertEqual(1, canal_lock_there:count(There, db)),
    %% It stays, when all that was under way is over: nobody else takes it back.
    _ = new_manager(There),
    ?assertEqual([{Pid, holder}], canal_lock_there:watched(There)),
    ?assertEqual([ok, {error, not_held}], [canal_lock_there:release(Holder, There, db) || _ <- [1, 2]]),
    canal_lock_there:nothing_is_left(There).

told_without_manager([There, Here]) ->
    {Holder, Outcome, Call, Hand} = unheard(There, Here),
    canal_lock_there:kill_manager(There),
    let_go(Hand, Call),
    ?assertEqual({acquired, 1}, canal_lock_await:answer(Outcome)),
    {_, CallPid} = Call,
    ?assertEqual([CallPid], canal_lock_there:calls(Here)),
    ?assertEqual(1, canal_lock_there:count(There, db)),
    _ = canal_lock_there:start_manager(There, ?KEPT),
    is_held_until_released(There, Here, Holder).

released_unconfirmed([There, Here]) ->
    {Holder, Outcome, Call, Hand} = unheard(There, Here),
    canal_lock_there:kill_manager(There),
    let_go(Hand, Call),
    {acquired, 1} = canal_lock_await:answer(Outcome),
    Again = stop(Call),
    _ = canal_lock_there:start_manager(There, ?KEPT),
    ?assertEqual([ok, {error, not_held}], [canal_lock_there:release(Holder, There, db) || _ <- [1, 2]]),
    {{_, HolderPid}, {_, CallPid}} = {Holder, Call},
    ?assertEqual([{HolderPid, CallPid}], canal_lock_there:unconfirmed(There)),
    let_go(Again, Call),
    canal_lock_there:nothing_is_left(There),
    ?assertMatch(#{granted := 1, released := 1}, canal_lock_there:info(There)).

holder_dies_unconfirmed([There, Here]) ->
    {Holder, Outcome, Call, Hand} = unheard(There, Here),
    canal_lock_there:kill_manager(There),
    let_go(Hand, Call),
    {acquired, 1} = canal_lock_await:answer(Outcome),
    ok = canal_lock_nodes:kill_worker(Holder),
    canal_lock_await:value([], fun() -> canal_lock_there:calls(Here) end),
    ?assertEqual(1, canal_lock_there:count(There, db)),
    _ = canal_lock_there:start_manager(There, ?KEPT),
    canal_lock_there:nothing_is_left(There).

next_keeps_nothing([There, Here]) ->
    {Holder, Outcome, Call, Hand} = unheard(There, Here),
    canal_lock_there:kill_manager(There),
    _ = canal_lock_there:start_manager(There, #{}),
    {acquired, 1} = canal_lock_there:acquire(canal_lock_nodes:worker(Here), There, db),
    let_go(Hand, Call),
    ?assertEqual({acquired, 1}, canal_lock_await:answer(Outcome)),
    canal_lock_await:value([], fun() -> canal_lock_there:calls(Here) end),
    ?assertEqual({error, not_held}, canal_lock_there:release(Holder, There, db)),
    ?assertEqual(1, canal_lock_there:count(There, db)).

%% The holder knows of three permits, and one is under way.
takes_back_its_own([There, Here]) ->
    {Holder, [Call, Released]} = {canal_lock_nodes:worker(Here), [canal_lock_nodes:worker(Here) || _ <- [1, 2]]},
    {_, Pid} = Holder,
    [{acquired, _} = canal_lock_there:acquire(Holder, There, Key) || Key <- [db, db, app]],
    canal_lock_await:value([], fun() -> canal_lock_there:unconfirmed(There) end),
    take(There, Holder, Call, db),
    take(There, Holder, Released, {app, 2}),
    ?assertEqual([3, 1], [canal_lock_there:count(There, Key) || Key <- [db, {app, 2}]]),
    _ = new_manager(There),
    %% It has heard of one of them all the same.
    ?assertEqual(ok, canal_lock_there:release(Holder, There, {app, 2})),
    [ok = canal_lock_nodes:kill_worker(Dead) || Dead <- [Call, Released]],
    canal_lock_await:value([{Pid, holder}], fun() -> canal_lock_there:watched(There) end),
    ?assertEqual([2, 1, 0], [canal_lock_there:count(There, Key) || Key <- [db, app, {app, 2}]]),
    ?assertMatch(#{granted := 5, released := 2, not_held := 0}, canal_lock_there:info(There)),
    ?assertEqual([ok, ok, {error, not_held}], [canal_lock_there:release(Holder, There, db) || _ <- [1, 2, 3]]),
    ?assertEqual(ok, canal_lock_there:release(Holder, There, app)),
    canal_lock_there:nothing_is_left(There).

%% One confirms, one dies, one is dead before the next manager comes.
several_calls([There, Here]) ->
    {_, Pid} = Holder = canal_lock_nodes:worker(Here),
    [Confirms, Dies, Dead] = Calls = [canal_lock_nodes:worker(Here) || _ <- [1, 2, 3]],
    [take(There, Holder, Call, Key) || {Call, Key} <- lists:zip(Calls, [db, app, {app, 2}])],
    ok = canal_lock_nodes:kill_worker(Dead),
    ?assertEqual([], canal_lock_there:watched(There)),
    _ = new_manager(There),
    canal_lock_there:await_count(There, {app, 2}, 0),
    ?assertEqual(
        lists:sort([{Pid, holder} | [{Call, {call_of, Pid}} || {_, Call} <- [Confirms, Dies]]]),
        canal_lock_there:watched(There)
    ),
    Name = canal_lock_nodes:name(There),
    Confirm = fun() -> gen_server:call({canal_lock, Name}, {confirm, Pid, self()}) end,
    ?assertEqual(ok, canal_lock_nodes:order(Confirms, Confirm)),
    {_, DiesPid} = Dies,
    ?assertEqual(lists:sort([{Pid, holder}, {DiesPid, {call_of, Pid}}]), canal_lock_there:watched(There)),
    [ok = canal_lock_nodes:kill_worker(Call) || Call <- [Confirms, Dies]],
    canal_lock_await:value([{Pid, holder}], fun() -> canal_lock_there:watched(There) end),
    ?assertEqual([1, 0], [canal_lock_there:count(There, Key) || Key <- [db, app]]),
    ?assertEqual([ok, {error, not_held}], [canal_lock_there:release(Holder, There, db) || _ <- [1, 2]]),
    canal_lock_there:nothing_is_left(There).
