%% P9: code that is loaded again while permits are out. Each test has a VM of its own.
%%
%% The library is loaded into the VM together with canal_lock_nif, and refuses to be loaded twice. So a release of
%% this software that changes the library takes a VM that is started again; all the other modules can be replaced. So
%% it is with canal_lock_quorum_nif once its library has been asked for; before, that is a module like any other.
-module(canal_lock_reload_tests).

-include_lib("eunit/include/eunit.hrl").

%% To load a module takes the VM 0.1 s, whatever it is, when all its schedulers are busy.
-define(RELOADS, 50).
-define(RELOADS_OF_ALL, test_setup:in_soak(3, 1)).
-define(WORKERS, 2).
-define(CAPACITY, 3).

reload_test_() ->
    test_setup:tests(without_manager, [
        {Title, fun() -> ?assertEqual(passed, test_setup:in_a_vm([], fun() -> passed(Test) end)) end}
     || {Title, Test} <- [
            {"P9: canal_lock loaded again, with permits held", fun public_module/0},
            {"P9: all modules but the native one loaded again, while the manager lives", fun all_modules/0},
            {"P9: all modules but the native one loaded again under load", fun all_modules_under_load/0},
            {"P9: one that is inside with_permit goes on after canal_lock is loaded again", fun inside_once/0},
            {"P4, P9: after the second time it is killed, and its permit comes back", fun inside_twice/0},
            {"P9: the native module loaded again refuses, and goes on", fun native_refuses/0},
            {"P4, P9: the native module deleted: calls raise, and deaths give back", fun native_deleted/0},
            {"P9, P10: the native module loaded anew: a manager that keeps is replaced by one", fun native_kept/0},
            {"P9, P10: the native module loaded anew: a plain manager loses its table", fun native_plain/0},
            {"P9, P10: the native module loaded anew: stopping the manager is a crash", fun native_stop/0},
            {"P9: the native module loaded anew when nothing of it is in use", fun native_unused/0},
            {"P9: the native module deleted and loaded anew under load", fun native_under_load/0},
            {"P9: the module of the quorum locks' library, loaded again before the library", fun quorum_without/0},
            {"P9: the module of the quorum locks' library, loaded again, refuses, and goes on", fun quorum_refuses/0},
            {"P9: the module of the quorum locks' library, deleted: it says why it has none", fun quorum_deleted/0},
            {"P9: the module of the quorum locks' library, loaded anew, comes with it", fun quorum_anew/0}
        ]
    ]).

passed(Test) ->
    _ = process_flag(trap_exit, true),
    Test(),
    passed.

%% As the shell's `l/1' does it.
load(Module) ->
    _ = code:purge(Module),
    code:load_file(Module).

load_again(Modules) ->
    ?assertEqual([{module, Module} || Module <- Modules], [load(Module) || Module <- Modules]).

modules() ->
    ok = ensure(application:load(canal_lock)),
    {ok, Modules} = application:get_key(canal_lock, modules),
    [canal_lock_nif] = [Module || Module <- Modules, Module =:= canal_lock_nif],
    Modules -- [canal_lock_nif].

ensure({error, {already_loaded, _}}) -> ok;
ensure(ok) -> ok.

keeping(Options) ->
    {ok, Manager} = canal_lock:start_link(3, Options#{keep_on_crash => true}),
    Manager.

holder() ->
    {Holder, {acquired, _}} = test_worker:start(fun() -> canal_lock:acquire(db, 9, 1) end),
    Holder.

%%% What can be replaced

public_module() ->
    goes_on(fun() -> load_again([canal_lock]) end).

all_modules() ->
    goes_on(fun() -> load_again(modules()) end).

%% With either kind of manager, and old code of everything in place by the second time.
goes_on(Reload) ->
    [goes_on(Reload, Keep) || Keep <- [true, false]].

goes_on(Reload, Keep) ->
    {ok, Manager} = canal_lock:start_link(3, #{keep_on_crash => Keep}),
    Holder = holder(),
    {acquired, 2} = canal_lock:acquire(db, 9, 1),
    {acquired, 3} = canal_lock:acquire(db, 9, 1),
    Before = canal_lock:info(),
    [
        begin
            Reload(),
            ?assertEqual(Before, canal_lock:info()),
            ?assertEqual(lists:sort([{Holder, 1}, {self(), 2}]), lists:sort(canal_lock:holders(db))),
            ?assertEqual([], canal_lock:audit())
        end
     || _ <- [1, 2, 3]
    ],
    ?assertEqual(ok, canal_lock:release(db)),
    ?assertEqual(ok, canal_lock:release(db, 3, 1)),
    ?assertEqual({error, not_held}, canal_lock:release(db)),
    ok = test_worker:kill(Holder),
    test_await:count(db, 0),
    ok = canal_lock_manager:sweep(),
    ?assertMatch(#{keys := 0, given_back := 1, released := 2}, canal_lock:info()),
    ?assertEqual(Manager, whereis(canal_lock)),
    ok = canal_lock:stop(),
    test_manager_crash:calls_raise().

inside_once() ->
    _ = keeping(#{}),
    {Inside, Answer} = go_inside(),
    load_again([canal_lock]),
    Inside ! come_out,
    ?assertEqual({ok, came_out}, test_await:answer(Answer)),
    ?assertEqual(0, canal_lock:count(db)),
    ?assertMatch(#{released := 1, given_back := 0}, canal_lock:info()).

inside_twice() ->
    _ = keeping(#{}),
    {Inside, _} = go_inside(),
    Monitor = monitor(process, Inside),
    load_again([canal_lock]),
    ?assertNot(code:soft_purge(canal_lock)),
    ?assertEqual(1, canal_lock:count(db)),
    ?assert(code:purge(canal_lock)),
    ?assertEqual(killed, test_await:reason({Inside, Monitor})),
    test_await:count(db, 0),
    ?assertMatch(#{released := 0, given_back := 1}, canal_lock:info()),
    ?assertEqual({module, canal_lock}, code:load_file(canal_lock)).

go_inside() ->
    Inside = test_worker:start(),
    Test = self(),
    Wait = fun() ->
        Test ! {inside, self()},
        receive
            come_out -> came_out
        end
    end,
    Answer = test_worker:send_order(Inside, fun() -> canal_lock:with_permit(db, 3, 1, Wait) end),
    receive
        {inside, Inside} -> {Inside, Answer}
    end.

%%% What cannot

native_refuses() ->
    goes_on(fun() ->
        [?assertEqual({error, on_load_failure}, load(canal_lock_nif)) || _ <- [1, 2, 3]],
        ?assertMatch({file, _}, code:is_loaded(canal_lock_nif))
    end).

%% Without a purge the library is still there, and does not let itself in again.
native_deleted() ->
    Manager = keeping(#{}),
    [Early, Late] = [holder(), holder()],
    {acquired, 3} = canal_lock:acquire(db, 9, 1),
    true = code:delete(canal_lock_nif),
    ?assertError(undef, canal_lock:acquire(db, 9, 1)),
    ?assertError(undef, canal_lock:release(db)),
    ?assertError(undef, canal_lock:count(db)),
    ?assertError(undef, canal_lock:info()),
    ?assertEqual({error, on_load_failure}, code:ensure_loaded(canal_lock_nif)),
    ok = test_worker:kill(Early),
    %% Its purge kills nobody.
    ?assertNot(code:purge(canal_lock_nif)),
    ok = test_worker:kill(Late),
    %% The next call loads it: this VM loads modules that it misses.
    test_await:count(db, 1),
    ?assertEqual(ok, canal_lock:release(db)),
    ?assertMatch(#{permits := 0, holders := 0, given_back := 2, granted := 3}, canal_lock:info()),
    ?assertEqual(Manager, whereis(canal_lock)).

%% Everything is as before but for the manager's handle, which is of the library before: it crashes by it at its next
%% sweep. The next one adopts.
native_kept() ->
    Manager = keeping(#{}),
    native_anew_with_holders(),
    crashes_at_its_sweep(Manager),
    ?assertEqual([{db, 1}], canal_lock:held()),
    ?assertEqual({acquired, 3}, canal_lock:acquire(db, 9, 1)),
    Next = keeping(#{sweep_interval_ms => 10}),
    ?assertMatch(#{permits := 3, given_back := 4, granted := 8}, canal_lock:info()),
    ?assertEqual([], canal_lock:audit()),
    %% It sweeps again.
    test_await:value(1, fun() -> maps:get(keys, canal_lock:info()) end),
    ?assertEqual([ok, ok, {error, not_held}], [canal_lock:release(db) || _ <- [1, 2, 3]]),
    ?assertEqual(Next, whereis(canal_lock)),
    ok = canal_lock:stop(),
    ok = test_manager_crash:calls_raise(),
    begins_empty().

native_plain() ->
    {ok, Manager} = canal_lock:start_link(3),
    native_anew_with_holders(),
    crashes_at_its_sweep(Manager),
    ok = test_manager_crash:await_closed(),
    begins_empty().

%% To the one who stops it that is no orderly end either.
native_stop() ->
    {ok, _} = canal_lock:start_link(3),
    native_anew_with_holders(),
    ?assertExit({badarg, _}, canal_lock:stop()),
    ok = test_manager_crash:await_closed(),
    _ = keeping(#{}),
    native_anew_with_holders(),
    ?assertExit({badarg, _}, canal_lock:stop()),
    ?assertEqual(undefined, whereis(canal_lock)),
    ?assertEqual({acquired, 3}, canal_lock:acquire(db, 9, 1)),
    begins_empty(),
    test_manager_crash:calls_raise().

%% Of five holders one dies before, one meanwhile and one after; the others, this process among them, have one permit
%% each at the end.
native_anew_with_holders() ->
    %% Inside a dirty call the manager would be killed by the purge. When its first work is done, it makes none.
    ok = canal_lock_manager:sweep(),
    [Before, Meanwhile, After, _] = [holder() || _ <- [1, 2, 3, 4]],
    {acquired, 5} = canal_lock:acquire(db, 9, 1),
    ok = test_worker:kill(Before),
    test_await:count(db, 4),
    true = code:delete(canal_lock_nif),
    ?assertNot(code:purge(canal_lock_nif)),
    ?assertNot(code:is_loaded(canal_lock_nif)),
    ok = test_worker:kill(Meanwhile),
    ?assertEqual({module, canal_lock_nif}, code:ensure_loaded(canal_lock_nif)),
    test_await:count(db, 3),
    ?assertEqual({ok, 1}, canal_lock:with_permit(idle, 1, 1, fun() -> canal_lock:count(idle) end)),
    %% One that comes now is watched as well as those before.
    New = holder(),
    ?assertEqual(4, canal_lock:count(db)),
    ok = test_worker:kill([New, After]),
    test_await:count(db, 2),
    ?assertMatch(#{permits := 2, holders := 2, granted := 7, released := 1, given_back := 4}, canal_lock:info()).

crashes_at_its_sweep(Manager) ->
    ?assertEqual(Manager, whereis(canal_lock)),
    ?assertExit({{badarg, _}, {gen_server, call, _}}, canal_lock_manager:sweep()),
    receive
        {'EXIT', Manager, {badarg, _}} -> ok
    end.

begins_empty() ->
    {ok, _} = canal_lock:start_link(3),
    ?assertMatch(#{keys := 0, permits := 0, granted := 0}, canal_lock:info()),
    ?assertEqual({acquired, 1}, canal_lock:acquire(db, 3, 1)),
    ok = canal_lock_manager:sweep(),
    ok = canal_lock:stop().

%% With nothing of the library alive, the VM may even put it out of its memory.
native_unused() ->
    [
        begin
            ?assertEqual({module, canal_lock_nif}, code:ensure_loaded(canal_lock_nif)),
            Use(),
            true = erlang:garbage_collect(),
            true = code:delete(canal_lock_nif),
            ?assertNot(code:purge(canal_lock_nif))
        end
     || Use <- [fun() -> unused end, fun() -> unused end, fun test_manager_crash:calls_raise/0, fun begins_empty/0]
    ],
    begins_empty().

%%% The library that is loaded by those who use it

quorum_without() ->
    load_again([canal_lock_quorum_nif, canal_lock_quorum_nif]),
    ?assertError(not_loaded, canal_lock_quorum_nif:now()),
    ?assertEqual(ok, canal_lock_quorum_nif:load()),
    ?assert(is_integer(canal_lock_quorum_nif:now())).

quorum_refuses() ->
    ok = canal_lock_quorum_nif:load(),
    [
        begin
            ?assertEqual({error, on_load_failure}, load(canal_lock_quorum_nif)),
            ?assert(is_integer(canal_lock_quorum_nif:now())),
            ?assertEqual(ok, canal_lock_quorum_nif:load())
        end
     || _ <- [1, 2, 3]
    ].

%% It comes back without, because the version before has not gone; and a purge is all that it takes.
quorum_deleted() ->
    ok = canal_lock_quorum_nif:load(),
    true = code:delete(canal_lock_quorum_nif),
    {error, Sentences} = canal_lock_quorum_nif:load(),
    ?assertMatch({_, _}, binary:match(Sentences, <<"canal_lock_quorum_nif.">>)),
    ?assertMatch({_, _}, binary:match(Sentences, <<"a new version needs a new node.">>)),
    ?assertError(not_loaded, canal_lock_quorum_nif:now()),
    ?assertNot(code:purge(canal_lock_quorum_nif)),
    ?assertEqual(ok, canal_lock_quorum_nif:load()),
    ?assert(is_integer(canal_lock_quorum_nif:now())).

%% By the next call, as this VM loads modules that it misses: whoever is at work goes on.
quorum_anew() ->
    ok = canal_lock_quorum_nif:load(),
    true = code:delete(canal_lock_quorum_nif),
    ?assertNot(code:purge(canal_lock_quorum_nif)),
    ?assertNot(code:is_loaded(canal_lock_quorum_nif)),
    ?assert(is_integer(canal_lock_quorum_nif:now())).

%%% Under load

%% Callers that are inside canal_lock at the moment when its old code is purged are killed, which is the VM's rule.
%% What they held comes back.
all_modules_under_load() ->
    Modules = modules(),
    Manager = keeping(#{sweep_interval_ms => 1}),
    under_load(?RELOADS_OF_ALL, [], fun() -> load_again(Modules) end),
    ?assertEqual(Manager, whereis(canal_lock)).

%% Between the deletion and the next loading calls raise; apart from that, all goes on. The manager is started again,
%% as a supervisor would do it.
native_under_load() ->
    _ = keeping(#{sweep_interval_ms => 1}),
    under_load(?RELOADS, [undef], fun() ->
        Manager = whereis(canal_lock),
        true = code:delete(canal_lock_nif),
        _ = code:purge(canal_lock_nif),
        %% Somebody's call may be loading it already, in vain if that was before the purge.
        test_await:value({module, canal_lock_nif}, fun() -> code:ensure_loaded(canal_lock_nif) end),
        receive
            {'EXIT', Manager, {Reason, _}} when Reason =:= badarg; Reason =:= undef -> ok;
            %% By the purge, inside a dirty call.
            {'EXIT', Manager, killed} -> ok
        end,
        keeping(#{sweep_interval_ms => 1})
    end).

%% What the workers have seen, in counters; and whether they shall go on.
-define(GRANTED, 1).
-define(TOO_MANY, 2).
-define(STOP, 3).

under_load(Times, Errors, Reload) ->
    Seen = counters:new(3, []),
    Workers = [test_worker:start() || _ <- lists:seq(1, ?WORKERS)],
    Use = fun() -> generations(Errors, Seen) end,
    Orders = [test_worker:send_order(Worker, Use) || Worker <- Workers],
    [
        begin
            Before = counters:get(Seen, ?GRANTED),
            Reload(),
            test_await:value(true, fun() -> counters:get(Seen, ?GRANTED) > Before + 100 end)
        end
     || _ <- lists:seq(1, Times)
    ],
    ok = counters:put(Seen, ?STOP, 1),
    [stopped = test_await:answer(Order) || Order <- Orders],
    ?assertEqual(0, counters:get(Seen, ?TOO_MANY)),
    test_await:permits(0),
    #{granted := Granted, released := Released, given_back := GivenBack} = canal_lock:info(),
    ?assertEqual(Granted, Released + GivenBack),
    ?assertEqual([], canal_lock:audit()),
    ok = canal_lock_manager:sweep(),
    ?assertMatch(#{keys := 0, holders := 0}, canal_lock:info()).

%% One user after the other, as a purge may kill them. None may die of anything else.
generations(Errors, Seen) ->
    {User, Monitor} = spawn_monitor(fun() -> use(Errors, Seen, 1000) end),
    receive
        {'DOWN', Monitor, process, User, Reason} when Reason =:= normal; Reason =:= killed ->
            case counters:get(Seen, ?STOP) of
                1 -> stopped;
                0 -> generations(Errors, Seen)
            end
    end.

%% Some die of it in full possession.
use(_, _, 0) ->
    ok;
use(Errors, Seen, Left) ->
    Key = {key, rand:uniform(3)},
    try
        case rand:uniform(2) of
            1 ->
                case canal_lock:acquire(Key, ?CAPACITY, 1) of
                    {acquired, N} when N > ?CAPACITY -> counters:add(Seen, ?TOO_MANY, 1);
                    {acquired, _} -> counters:add(Seen, ?GRANTED, 1);
                    full -> ok
                end;
            2 ->
                canal_lock:release(Key)
        end
    catch
        error:Error ->
            case lists:member(Error, Errors) of
                true -> ok;
                false -> exit({raised, Error})
            end
    end,
    use(Errors, Seen, Left - 1).
