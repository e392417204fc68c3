%% What can only be tried in a VM of its own: other limits on processes.
-module(canal_lock_vm_tests).

-include_lib("eunit/include/eunit.hrl").

vm_test_() ->
    test_setup:tests(without_manager, [
        {Title, fun() -> ?assertEqual(passed, test_setup:in_a_vm(Arguments, fun() -> passed(Test) end)) end}
     || {Title, Arguments, Test} <- [
            {"P4: few processes at a time, so that their numbers return soon", ["+P", "1024"], fun numbers_return/0},
            {"P4: room for very many processes", ["+P", "4000000"], fun numbers_return/0}
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
            Holders = [test_worker:start() || _ <- lists:seq(1, 500)],
            Orders = [
                test_worker:send_order(Holder, fun() -> hold(N rem 7) end)
             || {N, Holder} <- numbered(Holders)
            ],
            [held = test_await:answer(Order) || Order <- Orders],
            ?assertEqual(500, canal_lock:count(db)),
            ?assertMatch(#{holders := 500}, canal_lock:info()),
            ok = test_worker:kill(Holders),
            test_await:value({0, 0}, fun() ->
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
