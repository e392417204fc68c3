%% P9: modules that are reloaded while permits are held. Each test runs in a VM of its own.
%%
%% canal_lock_nif loads the native library, which refuses to be loaded twice. So a release that changes the library
%% needs a restart of the VM. All other modules can be replaced. canal_lock_quorum_nif behaves the same once its
%% library is loaded; before that it can be replaced too.
-module(canal_lock_reload_tests).

-include_lib("eunit/include/eunit.hrl").

%% Loading any module takes 0.1 s when all schedulers are busy.
-define(RELOADS, 50).
-define(RELOADS_OF_ALL, test_setup:in_soak(3, 1)).
-define(WORKERS, 2).
-define(CAPACITY, 3).

reload_test_() ->
    Tests = [
        {"P9: reloading canal_lock affects no held permit", fun public_module/0},
        {"P9: reloading all modules but the native one affects no held permit", fun all_modules/0},
        {"P9: all modules but the native one can be reloaded under load", fun all_modules_under_load/0},
        {"P9: a process in with_permit continues after canal_lock is reloaded once", fun inside_once/0},
        {"P4, P9: a second reload kills the process in with_permit, and releases its permit", fun inside_twice/0},
        {"P9: the native module refuses to be reloaded and keeps working", fun native_refuses/0},
        {"P4, P9: after a delete of the native module, calls raise and deaths release permits", fun native_deleted/0},
        {"P9, P10: after a reload of the native module, a new manager adopts the kept table", fun native_kept/0},
        {"P9, P10: after a reload of the native module, a plain manager loses its table", fun native_plain/0},
        {"P9, P10: after a reload of the native module, stop/0 crashes the manager", fun native_stop/0},
        {"P9: an unused native module can be deleted and loaded", fun native_unused/0},
        {"P9: the native module can be deleted and loaded under load", fun native_under_load/0},
        {"P9: canal_lock_quorum_nif can be reloaded before its library is loaded", fun quorum_without/0},
        {"P9: canal_lock_quorum_nif with its library refuses a reload and keeps working", fun quorum_refuses/0},
        {"P9: canal_lock_quorum_nif says why it has no library after it is deleted", fun quorum_deleted/0},
        {"P9: canal_lock_quorum_nif loads its library again after a delete and purge", fun quorum_anew/0}
    ],
    Passes = fun(Test) -> ?assertEqual(passed, test_setup:in_a_vm([], fun() -> passed(Test) end)) end,
    test_setup:tests(without_manager, [{Title, fun() -> Passes(Test) end} || {Title, Test} <- Tests]).

passed(Test) ->
    _ = process_flag(trap_exit, true),
    Test(),
    passed.

%% As `l/1' of the shell.
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

%%% Modules that can be replaced

public_module() ->
    survives(fun() -> load_again([canal_lock]) end).

all_modules() ->
    survives(fun() -> load_again(modules()) end).

%% With either kind of manager. The second and third reload also purge old code.
survives(Reload) ->
    [survives(Reload, Keep) || Keep <- [true, false]].

survives(Reload, Keep) ->
    {ok, Manager} = canal_lock:start_link(3, #{keep_on_crash => Keep}),
    Holder = holder(),
    {acquired, 2} = canal_lock:acquire(db, 9, 1),
    {acquired, 3} = canal_lock:acquire(db, 9, 1),
    Before = maps:remove(memory, canal_lock:info()),
    lists:foreach(fun(_) ->
        Reload(),
        ?assertEqual(Before, maps:remove(memory, canal_lock:info())),
        ?assertEqual(lists:sort([{Holder, 1}, {self(), 2}]), lists:sort(canal_lock:holders(db))),
        ?assertEqual([], canal_lock:audit())
    end, [1, 2, 3]),
    ?assertEqual(ok, canal_lock:release(db)),
    ?assertEqual(ok, canal_lock:release(db, 3, 1)),
    ?assertEqual({error, not_held}, canal_lock:release(db)),
    ok = test_worker:kill(Holder),
    test_await:count(db, 0),
    ok = canal_lock_manager:sweep(),
    ?assertMatch(#{keys := 0, released_by_death := 1, released := 2}, canal_lock:info()),
    ?assertEqual(Manager, whereis(canal_lock)),
    ok = canal_lock:stop(),
    test_manager_crash:calls_raise().

inside_once() ->
    _ = keeping(#{}),
    {Inside, Answer} = enter_with_permit(),
    load_again([canal_lock]),
    Inside ! leave,
    ?assertEqual({ok, left}, test_await:answer(Answer)),
    ?assertEqual(0, canal_lock:count(db)),
    ?assertMatch(#{released := 1, released_by_death := 0}, canal_lock:info()).

inside_twice() ->
    _ = keeping(#{}),
    {Inside, _} = enter_with_permit(),
    Monitor = monitor(process, Inside),
    load_again([canal_lock]),
    ?assertNot(code:soft_purge(canal_lock)),
    ?assertEqual(1, canal_lock:count(db)),
    ?assert(code:purge(canal_lock)),
    ?assertEqual(killed, test_await:reason({Inside, Monitor})),
    test_await:count(db, 0),
    ?assertMatch(#{released := 0, released_by_death := 1}, canal_lock:info()),
    ?assertEqual({module, canal_lock}, code:load_file(canal_lock)).

enter_with_permit() ->
    Inside = test_worker:start(),
    Test = self(),
    Wait = fun() ->
        Test ! {inside, self()},
        receive leave -> left end
    end,
    Answer = test_worker:send_order(Inside, fun() -> canal_lock:with_permit(db, 3, 1, Wait) end),
    receive {inside, Inside} -> {Inside, Answer} end.

%%% The native module

native_refuses() ->
    survives(fun() ->
        [?assertEqual({error, on_load_failure}, load(canal_lock_nif)) || _ <- [1, 2, 3]],
        ?assertMatch({file, _}, code:is_loaded(canal_lock_nif))
    end).

%% Without a purge the library is still in memory and refuses to be loaded again.
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
    %% The purge kills no process.
    ?assertNot(code:purge(canal_lock_nif)),
    ok = test_worker:kill(Late),
    %% The next call loads the module: the VM is in interactive mode.
    test_await:count(db, 1),
    ?assertEqual(ok, canal_lock:release(db)),
    ?assertMatch(#{permits := 0, holders := 0, released_by_death := 2, granted := 3}, canal_lock:info()),
    ?assertEqual(Manager, whereis(canal_lock)).

%% Only the manager's handle belongs to the previous library: the manager crashes at its next sweep, and the next one
%% adopts the table.
native_kept() ->
    Manager = keeping(#{}),
    reload_native_with_holders(),
    crashes_at_its_sweep(Manager),
    ?assertEqual([{db, 1}], canal_lock:held()),
    ?assertEqual({acquired, 3}, canal_lock:acquire(db, 9, 1)),
    Next = keeping(#{sweep_interval_ms => 10}),
    ?assertMatch(#{permits := 3, released_by_death := 4, granted := 8}, canal_lock:info()),
    ?assertEqual([], canal_lock:audit()),
    %% The new manager sweeps.
    test_await:value(1, fun() -> test_setup:info(keys) end),
    ?assertEqual([ok, ok, {error, not_held}], [canal_lock:release(db) || _ <- [1, 2, 3]]),
    ?assertEqual(Next, whereis(canal_lock)),
    ok = canal_lock:stop(),
    ok = test_manager_crash:calls_raise(),
    begins_empty().

native_plain() ->
    {ok, Manager} = canal_lock:start_link(3),
    reload_native_with_holders(),
    crashes_at_its_sweep(Manager),
    ok = test_manager_crash:await_closed(),
    begins_empty().

%% The caller of stop/0 sees the crash.
native_stop() ->
    {ok, _} = canal_lock:start_link(3),
    reload_native_with_holders(),
    ?assertExit({badarg, _}, canal_lock:stop()),
    ok = test_manager_crash:await_closed(),
    _ = keeping(#{}),
    reload_native_with_holders(),
    ?assertExit({badarg, _}, canal_lock:stop()),
    ?assertEqual(undefined, whereis(canal_lock)),
    ?assertEqual({acquired, 3}, canal_lock:acquire(db, 9, 1)),
    {ok, _} = canal_lock:start_link(3),
    ?assertMatch(#{permits := 3}, canal_lock:info()),
    ok = canal_lock:stop(),
    begins_empty(),
    test_manager_crash:calls_raise().

%% Of five holders, one dies before the reload, one during it and one after it. The other two, including this process,
%% have one permit each at the end.
reload_native_with_holders() ->
    %% The purge would kill the manager in a dirty call. After its first sweep it makes no dirty call.
    ok = canal_lock_manager:sweep(),
    [Before, During, After, _] = [holder() || _ <- [1, 2, 3, 4]],
    {acquired, 5} = canal_lock:acquire(db, 9, 1),
    ok = test_worker:kill(Before),
    test_await:count(db, 4),
    true = code:delete(canal_lock_nif),
    ?assertNot(code:purge(canal_lock_nif)),
    ?assertNot(code:is_loaded(canal_lock_nif)),
    ok = test_worker:kill(During),
    ?assertEqual({module, canal_lock_nif}, code:ensure_loaded(canal_lock_nif)),
    test_await:count(db, 3),
    ?assertEqual({ok, 1}, canal_lock:with_permit(idle, 1, 1, fun() -> canal_lock:count(idle) end)),
    %% The library monitors new holders like those before.
    New = holder(),
    ?assertEqual(4, canal_lock:count(db)),
    ok = test_worker:kill([New, After]),
    test_await:count(db, 2),
    ?assertMatch(#{permits := 2, holders := 2, granted := 7, released := 1, released_by_death := 4}, canal_lock:info()).

crashes_at_its_sweep(Manager) ->
    ?assertEqual(Manager, whereis(canal_lock)),
    ?assertExit({{badarg, _}, {gen_server, call, _}}, canal_lock_manager:sweep()),
    {badarg, _} = test_await:exit_reason(Manager),
    ok.

begins_empty() ->
    {ok, _} = canal_lock:start_link(3),
    ?assertMatch(#{keys := 0, permits := 0, granted := 0}, canal_lock:info()),
    ?assertEqual({acquired, 1}, canal_lock:acquire(db, 3, 1)),
    ok = canal_lock_manager:sweep(),
    ok = canal_lock:stop().

%% No object of the library is alive, so the VM may unload it.
native_unused() ->
    lists:foreach(fun(Use) ->
        ?assertEqual({module, canal_lock_nif}, code:ensure_loaded(canal_lock_nif)),
        Use(),
        true = erlang:garbage_collect(),
        true = code:delete(canal_lock_nif),
        ?assertNot(code:purge(canal_lock_nif))
    end, [fun() -> unused end, fun() -> unused end, fun test_manager_crash:calls_raise/0, fun begins_empty/0]),
    begins_empty().

%%% The library of the quorum locks

quorum_without() ->
    load_again([canal_lock_quorum_nif, canal_lock_quorum_nif]),
    ?assertError(not_loaded, canal_lock_quorum_nif:now()),
    ?assertEqual(ok, canal_lock_quorum_nif:load()),
    ?assert(is_integer(canal_lock_quorum_nif:now())).

quorum_refuses() ->
    ok = canal_lock_quorum_nif:load(),
    lists:foreach(fun(_) ->
        ?assertEqual({error, on_load_failure}, load(canal_lock_quorum_nif)),
        ?assert(is_integer(canal_lock_quorum_nif:now())),
        ?assertEqual(ok, canal_lock_quorum_nif:load())
    end, [1, 2, 3]).

%% The module comes back without its library, because the old version is still loaded. A purge removes that.
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

%% The next call loads the module, so callers continue.
quorum_anew() ->
    ok = canal_lock_quorum_nif:load(),
    true = code:delete(canal_lock_quorum_nif),
    ?assertNot(code:purge(canal_lock_quorum_nif)),
    ?assertNot(code:is_loaded(canal_lock_quorum_nif)),
    ?assert(is_integer(canal_lock_quorum_nif:now())).

%%% Under load

%% The purge kills processes that run old code of canal_lock, as always in the VM. Their permits are released.
all_modules_under_load() ->
    Modules = modules(),
    Manager = keeping(#{sweep_interval_ms => 1}),
    under_load(?RELOADS_OF_ALL, [], fun() -> load_again(Modules) end),
    ?assertEqual(Manager, whereis(canal_lock)).

%% Calls raise between the deletion and the next load, and work otherwise. The test restarts the manager, as a
%% supervisor would.
native_under_load() ->
    _ = keeping(#{sweep_interval_ms => 1}),
    under_load(?RELOADS, [undef], fun() ->
        Manager = whereis(canal_lock),
        true = code:delete(canal_lock_nif),
        _ = code:purge(canal_lock_nif),
        %% Another call may be loading it already; a load before the purge fails.
        test_await:value({module, canal_lock_nif}, fun() -> code:ensure_loaded(canal_lock_nif) end),
        receive
            {'EXIT', Manager, {Reason, _}} when Reason =:= badarg; Reason =:= undef -> ok;
            %% The purge kills it in a dirty call.
            {'EXIT', Manager, killed} -> ok
        end,
        keeping(#{sweep_interval_ms => 1})
    end).

%% Counters of what the workers have seen, and the flag that stops them.
-define(GRANTED, 1).
-define(TOO_MANY, 2).
-define(STOP, 3).

under_load(Times, Errors, Reload) ->
    Seen = counters:new(3, []),
    Workers = [test_worker:start() || _ <- lists:seq(1, ?WORKERS)],
    Use = fun() -> generations(Errors, Seen) end,
    Orders = [test_worker:send_order(Worker, Use) || Worker <- Workers],
    lists:foreach(fun(_) ->
        Before = counters:get(Seen, ?GRANTED),
        Reload(),
        test_await:value(true, fun() -> counters:get(Seen, ?GRANTED) > Before + 100 end)
    end, lists:seq(1, Times)),
    ok = counters:put(Seen, ?STOP, 1),
    [stopped = test_await:answer(Order) || Order <- Orders],
    ?assertEqual(0, counters:get(Seen, ?TOO_MANY)),
    test_await:permits(0),
    #{granted := Granted, released := Released, released_by_death := ByDeath} = canal_lock:info(),
    ?assertEqual(Granted, Released + ByDeath),
    ?assertEqual([], canal_lock:audit()),
    ok = canal_lock_manager:sweep(),
    ?assertMatch(#{keys := 0, holders := 0}, canal_lock:info()).

%% Replaces a process that the purge kills. No process may die for another reason.
generations(Errors, Seen) ->
    {User, Monitor} = spawn_monitor(fun() -> use(Errors, Seen, 1000) end),
    receive
        {'DOWN', Monitor, process, User, Reason} when Reason =:= normal; Reason =:= killed ->
            case counters:get(Seen, ?STOP) of
                1 -> stopped;
                0 -> generations(Errors, Seen)
            end
    end.

%% A process that is killed may hold permits.
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
