%% What can only be tried in a VM of its own: other limits on processes, and native code that somebody tries to load
%% again.
-module(canal_lock_vm_tests).

-include_lib("eunit/include/eunit.hrl").

vm_test_() ->
    canal_lock_stage:tests(without_manager, [
        {Title, fun() -> ?assertEqual(passed, canal_lock_stage:in_a_vm(Arguments, fun() -> passed(Test) end)) end}
     || {Title, Arguments, Test} <- [
            {"P4: few processes at a time, so that their numbers return soon", ["+P", "1024"], fun numbers_return/0},
            {"P4: room for very many processes", ["+P", "4000000"], fun numbers_return/0},
            {"P1, P4: one scheduler", ["+S", "1:1"], fun numbers_return/0},
            {"P9: the native library loaded again", [], fun load_again/0},
            {"P9: the native library deleted, purged and loaded again", [], fun delete_and_load_again/0}
        ]
    ]).

passed(Test) ->
    {ok, _} = canal_lock:start_link(3),
    Test(),
    ok = canal_lock:stop(),
    passed.

%% Twenty generations of processes. Each has more to hold than there is room for in a slot, and dies in full
%% possession.
numbers_return() ->
    [
        begin
            Holders = [canal_lock_worker:start() || _ <- lists:seq(1, 500)],
            Orders = [
                canal_lock_worker:send_order(Holder, fun() -> hold(N rem 7) end)
             || {N, Holder} <- numbered(Holders)
            ],
            [held = canal_lock_await:answer(Order) || Order <- Orders],
            ?assertEqual(500, canal_lock:count(db)),
            ?assertMatch(#{holders := 500}, canal_lock:info()),
            ok = canal_lock_worker:kill(Holders),
            canal_lock_await:value({0, 0}, fun() ->
                #{permits := Permits, holders := Left} = canal_lock:info(),
                {Permits, Left}
            end)
        end
     || _ <- lists:seq(1, 20)
    ].

hold(Further) ->
    {acquired, _} = canal_lock:acquire(db, 1000, 1),
    [{acquired, _} = canal_lock:acquire({key, N}, 1000, 1) || N <- lists:seq(1, Further)],
    held.

numbered(List) ->
    lists:zip(lists:seq(1, length(List)), List).

%% The library refuses to be loaded twice, and what is loaded goes on.
load_again() ->
    {acquired, 1} = canal_lock:acquire(db, 3, 1),
    [?assertEqual({error, on_load_failure}, code:load_file(canal_lock_nif)) || _ <- [1, 2, 3]],
    ?assertEqual({acquired, 2}, canal_lock:acquire(db, 3, 1)),
    ?assertEqual([ok, ok, {error, not_held}], [canal_lock:release(db) || _ <- [1, 2, 3]]).

%% Nobody should; but it must not cost more than the table.
delete_and_load_again() ->
    {Holder, {acquired, 1}} = canal_lock_worker:start(fun() -> canal_lock:acquire(db, 3, 1) end),
    true = code:delete(canal_lock_nif),
    _ = code:purge(canal_lock_nif),
    _ = code:ensure_loaded(canal_lock_nif),
    ok = canal_lock_worker:kill(Holder),
    unlink(whereis(canal_lock)),
    exit(whereis(canal_lock), kill),
    canal_lock_await:value(undefined, fun() -> whereis(canal_lock) end),
    {ok, _} = canal_lock:start_link(3),
    ?assertEqual({acquired, 1}, canal_lock:acquire(db, 3, 1)).
