%% P9: whatever goes wrong inside of a native call, be it a panic (a bug of ours) or memory that is not there, the
%% caller hears of it by an error, nothing has changed, nothing is lost, and everything goes on. At each place where
%% something may go wrong, one after the other.
-module(canal_lock_panics_tests).

-include_lib("eunit/include/eunit.hrl").

%% The first build of the library takes as long as cargo does.
-define(BUILD_TIMEOUT_S, 300).

%% Everything comes as a key of each form that keys are stored in.
-define(KEYS, [db, "a list of bytes", #{a => [map]}]).

%% Longer and deeper than what a call has room for on the stack.
-define(BEYOND_THE_STACK, {lists:seq(1, 100), {{{{{{deep}}}}}}}).

%% Those that are too long to be read by the calls themselves.
-define(LONG_KEYS, [<<"a bitstring", 1:1>>, binary:copy(<<"x">>, 100_000)]).

-define(FAULTS, [panic, allocation, memory]).

faults_test_() ->
    {timeout, ?BUILD_TIMEOUT_S,
        {setup, fun test_fault_injection:build/0, fun(Library) ->
            {inparallel, 4, [
                {timeout, 120, {Title, fun() -> ?assertEqual(passed, test_fault_injection:in_a_vm(Library, Test)) end}}
             || {Title, Test} <- tests()
            ]}
        end}}.

tests() ->
    [
        {"P9: a fault anywhere in any native function", fun every_native/0},
        {"P9: a fault anywhere in a public function", fun every_public/0},
        {"P4, P9: a panic anywhere in the death of a holder", fun deaths/0},
        {"P4, P9: the death of a holder without memory", fun deaths_without_memory/0},
        {"P10: a panic anywhere in the death of a manager", fun deaths_of_managers/0},
        {"P8, P9: a thousand faults leave nothing behind", fun a_thousand/0},
        {"P8: refused memory barriers are counted, and keys are freed after them", fun refused_barriers/0}
    ].

%%% Native functions

every_native() ->
    Cases = cases(),
    ?assertEqual(test_fault_injection:natives(), lists:usort([Native || {Native, _, _} <- Cases])),
    [through_faults(Case, Fault) || Case <- Cases, Fault <- ?FAULTS],
    passed.

%% `{Native, Prepare, Call}': what a process does first, and the call that follows. `Prepare' gets the handle of the
%% table; what it answers, goes to `Call', which checks its own answer.
cases() ->
    Nothing = fun(Handle) -> Handle end,
    Three = fun(Handle) -> acquire(?KEYS), Handle end,
    Many = fun(Handle) -> acquire(?KEYS ++ more_keys()), Handle end,
    Idle = fun(Handle) -> acquire(more_keys()), release(more_keys()), Handle end,
    Closed = fun(_) -> acquire(more_keys()), canal_lock_nif:open(1024, 3, false) end,
    Kept = fun(_) -> Kept = canal_lock_nif:open(1024, 3, true), acquire(?KEYS), Kept end,
    Interned = fun(Key) -> fun(_) -> canal_lock_nif:intern(Key) end end,
    Proxy = fun(Handle) -> ok = canal_lock_nif:represent(remote()), Three(Handle) end,
    lists:append([
        [{{acquire, 3}, First, fun(_) -> {acquired, _} = answer(canal_lock_nif:acquire(Key, 3, 1)) end}
         || Key <- ?KEYS ++ [{new, key}, "a new key", {a, [#{new => "key"}]}, ?BEYOND_THE_STACK],
            First <- [Nothing, Three, Many]],
        [{{acquire, 3}, Many, fun(_) -> full = answer(canal_lock_nif:acquire(Key, 1, 1)) end} || Key <- ?KEYS],
        [{{release, 1}, First, fun(_) -> ok = answer(canal_lock_nif:release(Key)) end}
         || Key <- ?KEYS, First <- [Three, Many]],
        [{{release, 1}, Nothing, fun(_) -> {error, not_held} = answer(canal_lock_nif:release(Key)) end}
         || Key <- ?KEYS],
        [{{release, 3}, First, fun(_) -> ok = answer(canal_lock_nif:release(Key, 3, 1)) end}
         || Key <- ?KEYS, First <- [Three, Many]],
        [{{release, 3}, Nothing, fun(_) -> not_held = answer(canal_lock_nif:release(Key, 3, 1)) end}
         || Key <- ?KEYS],
        lists:append([
            [
                {{intern, 1}, Nothing, fun(_) -> true = is_reference(canal_lock_nif:intern(Key)) end},
                {{acquire, 3}, Interned(Key), fun(Long) ->
                    {acquired, _} = answer(canal_lock_nif:acquire(Long, 3, 1))
                end},
                {{forget, 1}, Interned(Key), fun(Long) -> ok = canal_lock_nif:forget(Long) end},
                {{has_unused, 0}, Interned(Key), fun(_) -> canal_lock_nif:has_unused() end},
                {{free_unused, 0}, Interned(Key), fun(_) -> ok = canal_lock_nif:free_unused() end}
            ]
         || Key <- ?LONG_KEYS
        ]),
        [{{count, 1}, Three, fun(_) -> 2 = canal_lock_nif:count(Key) end} || Key <- ?KEYS],
        [{{buckets, 2}, Three, fun(_) -> {2, 0} = canal_lock_nif:buckets(Key, 1) end} || Key <- ?KEYS],
        [{{holders, 3}, First, fun(_) -> {_, [_, _], _} = canal_lock_nif:holders(0, {false, 0, 0}, Key) end}
         || Key <- ?KEYS, First <- [Three, Many]],
        [
            {{keys, 3}, Many, fun(_) -> {_, [_ | _], done} = canal_lock_nif:keys(0, 0, 100) end},
            {{permits, 2}, Many, fun(_) -> {_, [_ | _], _} = canal_lock_nif:permits(0, {false, 0, 0}) end},
            {{held, 3}, Many, fun(_) -> {_, [_ | _], done} = canal_lock_nif:held(0, 0, self()) end},
            {{info, 0}, Many, fun(_) -> #{holders := 2} = canal_lock_nif:info() end},
            {{open, 3}, Many, fun(_) -> canal_lock_nif:open(1024, "any term", false) end},
            {{open, 3}, Many, fun(_) -> canal_lock_nif:open(1024, 3, true) end},
            {{open, 3}, Kept, fun(_) -> canal_lock_nif:open(1024, 4, true) end},
            {{close, 1}, Many, fun canal_lock_nif:close/1},
            {{sweep_step, 2}, Idle, fun(Handle) -> steps(fun() -> canal_lock_nif:sweep_step(Handle, 2) end) end},
            {{dismantle_step, 0}, Closed, fun(_) -> steps(fun canal_lock_nif:dismantle_step/0) end},
            {{free_unused, 0}, Closed, fun(_) -> free_closed() end},
            {{held, 3}, Proxy, fun(_) -> {_, [_, _, _], done} = canal_lock_nif:held(0, 0, remote()) end},
            {{permits, 2}, Proxy, fun(_) -> {_, [_ | _], _} = canal_lock_nif:permits(0, {false, 0, 0}) end},
            {{proxy_of, 1}, Nothing, fun(_) -> none = canal_lock_nif:proxy_of(remote()) end},
            {{proxy_of, 1}, Proxy, fun(_) -> true = canal_lock_nif:proxy_of(remote()) =:= self() end}
        ],
        [{{represent, 1}, First, fun(_) -> ok = canal_lock_nif:represent(remote()) end} || First <- [Nothing, Proxy]]
    ]).

more_keys() ->
    [{key, N} || N <- lists:seq(1, 5)].

acquire(Keys) ->
    [{acquired, _} = canal_lock_nif:acquire(Key, 3, 1) || Key <- Keys].

release(Keys) ->
    [ok = canal_lock_nif:release(Key) || Key <- Keys].

%% A process of a node that is not there.
remote() ->
    <<131, Node/binary>> = term_to_binary('there@nowhere'),
    binary_to_term(<<131, 88, Node/binary, 7:32, 0:32, 1:32>>).

%% The hot calls say what to raise.
answer({raise, not_held, [_Key, 3, 1]}) -> not_held;
answer({raise, Cause, _}) -> error(Cause);
answer(Answer) -> Answer.

%% As the manager does, but for its patience: without memory there is no end of it.
steps(Step) ->
    steps(Step, 1000).

steps(_Step, 0) ->
    waiting;
steps(Step, Waits) ->
    case Step() of
        done ->
            done;
        more ->
            steps(Step, Waits);
        waiting ->
            erlang:yield(),
            steps(Step, Waits - 1)
    end.

%% With the fault at each place, until the call comes by none any more.
through_faults(Case, Fault) ->
    through_faults(Case, Fault, 0, canal_lock_nif:open(1024, 3, false)).

through_faults(Case, Fault, Grants, Handle) ->
    try attempt(Case, Fault, Grants, Handle) of
        {true, Next} ->
            through_faults(Case, Fault, Grants + 1, Next);
        {false, Last} ->
            %% Each has a place of its own at least.
            ?assert(Grants > 0 orelse Fault =/= panic),
            close(Last)
    catch
        Class:Reason:Stack -> erlang:raise(Class, {element(1, Case), Fault, Grants, Reason}, Stack)
    end.

close(Handle) ->
    ok = canal_lock_nif:close(Handle),
    free_closed().

free_closed() ->
    done = steps(fun canal_lock_nif:dismantle_step/0),
    ok = canal_lock_nif:free_unused().

%% A table, a process that holds something in it, and one that makes the call. Did something go wrong? And which table
%% is the next one's?
attempt({_, Prepare, Call}, Fault, Grants, Handle) ->
    {Other, _} = test_worker:start(fun() -> acquire(?KEYS) end),
    {Caller, Prepared} = test_worker:start(fun() -> Prepare(Handle) end),
    Before = {state(), proxy()},
    {Outcome, Hit} = test_worker:order(Caller, fun() ->
        with_fault(Fault, Grants, fun() -> Call(Prepared) end)
    end),
    consistent(),
    case Outcome of
        {answered, _} ->
            ok;
        {raised, Reason} ->
            true = Hit,
            ?assertEqual(reason(Fault), Reason),
            ?assertEqual(Before, {state(), proxy()}),
            {answered, _} = test_worker:order(Caller, fun() -> outcome(fun() -> Call(Prepared) end) end),
            consistent()
    end,
    {Hit, go_on(Handle, Caller, Other)}.

with_fault(Fault, Grants, Call) ->
    test_fault_injection:arm(Fault, Grants),
    Outcome = outcome(Call),
    {Outcome, test_fault_injection:disarm()}.

outcome(Call) ->
    try
        {answered, Call()}
    catch
        error:Reason -> {raised, Reason}
    end.

reason(panic) -> nif_panicked;
reason(_) -> system_limit.

%% Whoever holds what, if there is a table.
state() ->
    try
        {lists:sort(test_setup:permits()), lists:sort(canal_lock_view:keys()), canal_lock:info()}
    of
        {Permits, Keys, Info} -> {Permits, Keys, maps:with([permits, holders, max_per, released, given_back], Info)}
    catch
        error:_ -> closed
    end.

proxy() ->
    try
        canal_lock_nif:proxy_of(remote())
    catch
        error:not_started -> closed
    end.

%% What is counted is what is on record.
consistent() ->
    state() =:= closed orelse ?assertEqual([], canal_lock:audit()).

%% If the table is still there, deaths give back, no lock is left taken, and nothing is left of what has gone.
go_on(Handle, Caller, Other) ->
    Held = [{Key, 1} || Key <- lists:sort(?KEYS)],
    Next = try lists:sort(canal_lock:held(Other)) of
        Held ->
            ok = test_worker:kill(Caller),
            test_await:value(none, fun proxy/0),
            test_await:permits(length(?KEYS)),
            Held = lists:sort(canal_lock:held(Other)),
            [] = canal_lock:audit(),
            [done = steps(fun() -> canal_lock_nif:sweep_step(Handle, 256) end) || _ <- [1, 2]],
            ?assertEqual(length(?KEYS), maps:get(keys, canal_lock:info())),
            Handle;
        [] ->
            %% Another table has been opened meanwhile.
            another(Caller)
    catch
        error:badarg -> another(Caller)
    end,
    ok = test_worker:kill(Other),
    test_await:value({0, 0}, fun permits_and_holders/0),
    Next.

another(Caller) ->
    ok = test_worker:kill(Caller),
    Handle = canal_lock_nif:open(1024, 3, false),
    free_closed(),
    Handle.

%%% Deaths

deaths() ->
    %% With a place of its own, and without: one process of two has to do without in a table for one.
    [death(Limit, 0) || Limit <- [1024, 1]],
    passed.

death(Limit, Grants) ->
    Handle = canal_lock_nif:open(Limit, 3, false),
    Keys = ?KEYS ++ more_keys(),
    {Other, _} = test_worker:start(fun() -> acquire(Keys) end),
    {Dying, _} = test_worker:start(fun() -> acquire(Keys ++ Keys) end),
    test_fault_injection:arm(panic, Grants),
    ok = test_worker:kill(Dying),
    Hit = test_fault_injection:disarm(),
    test_await:permits(length(Keys)),
    ?assertMatch(#{given_back := GivenBack} when GivenBack =:= 2 * length(Keys), canal_lock:info()),
    [1 = canal_lock:count(Key) || Key <- Keys],
    [] = canal_lock:audit(),
    ?assertEqual(lists:sort([{Key, 1} || Key <- Keys]), lists:sort(canal_lock:held(Other))),
    ok = test_worker:kill(Other),
    test_await:value({0, 0}, fun permits_and_holders/0),
    close(Handle),
    case Hit of
        true -> death(Limit, Grants + 1);
        %% The table was told later than we were (P4): once more.
        false when Grants =< length(Keys) -> death(Limit, Grants);
        false -> ok
    end.

%% Nothing that a death needs has to be allocated.
deaths_without_memory() ->
    Handle = canal_lock_nif:open(1024, 3, false),
    Keys = ?KEYS ++ more_keys(),
    [
        begin
            {Dying, _} = test_worker:start(fun() -> acquire(Keys ++ Keys) end),
            test_fault_injection:arm(memory, 0),
            ok = test_worker:kill(Dying),
            %% To count needs none either.
            ok = test_await:count(lists:last(Keys), 0),
            _ = test_fault_injection:disarm(),
            test_await:value({0, 0}, fun permits_and_holders/0)
        end
     || _ <- lists:seq(1, 20)
    ],
    close(Handle),
    passed.

permits_and_holders() ->
    #{permits := Permits, holders := Holders} = canal_lock:info(),
    {Permits, Holders}.

deaths_of_managers() ->
    death_of_a_manager(0),
    passed.

death_of_a_manager(Grants) ->
    {Manager, _} = test_worker:start(fun() -> canal_lock_nif:open(1024, 3, false) end),
    acquire(?KEYS),
    test_fault_injection:arm(panic, Grants),
    ok = test_worker:kill(Manager),
    test_await:value(closed, fun state/0),
    Hit = test_fault_injection:disarm(),
    free_closed(),
    case Hit of
        true -> death_of_a_manager(Grants + 1);
        false -> ?assert(Grants > 0)
    end.

%%% Public functions

every_public() ->
    false = process_flag(trap_exit, true),
    [starts(Fault, 0) || Fault <- ?FAULTS],
    [stops(Fault, 0) || Fault <- ?FAULTS],
    [sweeps(Fault, 0) || Fault <- ?FAULTS],
    {ok, _} = canal_lock:start_link(3),
    [public(Call, Fault, 0) || Call <- public_calls(), Fault <- ?FAULTS],
    ok = canal_lock:stop(),
    passed.

public_calls() ->
    lists:append([
        [
            fun() -> canal_lock:acquire(Key, 9, 1) end,
            fun() -> canal_lock:release(Key, 9, 1) end,
            fun() -> canal_lock:release(Key) end,
            fun() -> canal_lock:with_permit(Key, 9, 1, fun() -> done end) end,
            fun() -> canal_lock:count(Key) end,
            fun() -> canal_lock:buckets(Key, 2) end,
            fun() -> canal_lock:holders(Key) end
        ]
     || Key <- ?KEYS ++ ?LONG_KEYS
    ]) ++
        [
            fun canal_lock:held/0,
            fun() -> canal_lock:held(self()) end,
            fun canal_lock:keys/0,
            fun canal_lock:info/0,
            fun canal_lock:audit/0
        ].

%% Whatever is raised is explained, and the manager knows nothing of it.
public(Call, Fault, Grants) ->
    Manager = whereis(canal_lock),
    {Caller, _} = test_worker:start(fun() -> acquire(?KEYS ++ more_keys()) end),
    {Outcome, Hit} = test_worker:order(Caller, fun() ->
        with_fault(Fault, Grants, fun() -> explained(Call) end)
    end),
    case Outcome of
        {answered, {raised, Reason, Explanation}} ->
            ?assertEqual({true, reason(Fault)}, {Hit, Reason}),
            ?assertMatch(#{general := _}, Explanation);
        {answered, _} ->
            ok
    end,
    [] = canal_lock:audit(),
    ok = test_worker:kill(Caller),
    test_await:value({0, 0}, fun permits_and_holders/0),
    Manager = whereis(canal_lock),
    case Hit of
        true -> public(Call, Fault, Grants + 1);
        false -> ok
    end.

explained(Call) ->
    try
        Call()
    catch
        error:Reason:Stack -> {raised, Reason, canal_lock_errors:format_error(Reason, Stack)}
    end.

%% It starts, or says why not; and then it does.
starts(Fault, Grants) ->
    {{answered, Outcome}, Hit} = with_fault(Fault, Grants, fun() -> canal_lock:start_link(3) end),
    case Outcome of
        {error, {Reason, _}} ->
            ?assertEqual({true, reason(Fault)}, {Hit, Reason}),
            %% Its name and its table are free when it has gone.
            receive
                {'EXIT', _, {Reason, _}} -> ok
            end,
            {ok, _} = canal_lock:start_link(3);
        {ok, _} ->
            %% It may have crashed since.
            ok
    end,
    end_of_manager(),
    case Hit of
        true -> starts(Fault, Grants + 1);
        false -> ok
    end.

%% It ends, one way or the other, and leaves nothing to the next one.
stops(Fault, Grants) ->
    {ok, Manager} = canal_lock:start_link(3),
    acquire(?KEYS),
    _ = sys:get_state(Manager),
    test_fault_injection:arm(Fault, Grants),
    try
        canal_lock:stop()
    catch
        exit:_ -> ended
    end,
    Hit = test_fault_injection:disarm(),
    receive
        {'EXIT', Manager, _} -> ok
    end,
    test_await:value(closed, fun state/0),
    {ok, _} = canal_lock:start_link(3),
    ?assertMatch(#{permits := 0}, canal_lock:info()),
    end_of_manager(),
    case Hit of
        true -> stops(Fault, Grants + 1);
        false -> ok
    end.

%% A manager that crashes keeps its table for the next one, which sweeps all that is idle.
sweeps(Fault, Grants) ->
    {ok, Manager} = canal_lock:start_link(3, #{keep_on_crash => true}),
    acquire(?KEYS ++ more_keys()),
    release(more_keys()),
    ok = canal_lock_manager:sweep(),
    release(tl(?KEYS)),
    test_fault_injection:arm(Fault, Grants),
    Sweep = gen_server:send_request(canal_lock, sweep),
    %% Without memory it would wait for ever.
    Swept = gen_server:wait_response(Sweep, 20),
    Hit = test_fault_injection:disarm(),
    case Swept of
        timeout -> {reply, ok} = gen_server:wait_response(Sweep, infinity);
        {reply, ok} -> ok;
        {error, {{nif_panicked, _}, _}} -> {ok, _} = canal_lock:start_link(3, #{keep_on_crash => true})
    end,
ok = canal_lock_manager:sweep(),
    ?assertMatch(#{keys := 1, permits := 1}, canal_lock:info()),
    end_of_manager(),
    receive
        {'EXIT', Manager, _} -> ok
    end,
    case Hit of
        true -> sweeps(Fault, Grants + 1);
        false -> ok
    end.

end_of_manager() ->
    try
        canal_lock:stop()
    catch
        exit:_ -> ok
    end.

%%% Memory

a_thousand() ->
    %% Few places for processes: what stays with a place is there after the first rounds.
    Handle = canal_lock_nif:open(16, 3, false),
    Rounds = fun() ->
        [faulty_round(lists:nth(1 + N rem 3, ?FAULTS), N rem 17) || N <- lists:seq(1, 500)],
        [done = steps(fun() -> canal_lock_nif:sweep_step(Handle, 256) end) || _ <- [1, 2]],
        {maps:get(memory, canal_lock:info()), test_setup:resident_bytes()}
    end,
    {Memory, Resident} = Rounds(),
    {MemoryAfter, ResidentAfter} = Rounds(),
    ?assertEqual(Memory, MemoryAfter),
    ?assertMatch(_ when ResidentAfter - Resident < 4 * 1024 * 1024, ResidentAfter - Resident),
    passed.

refused_barriers() ->
    Handle = canal_lock_nif:open(1024, 3, false),
    Sweep = fun() -> steps(fun() -> canal_lock_nif:sweep_step(Handle, 256) end) end,
    Keys = [{key, N} || N <- lists:seq(1, 1000)],
    acquire(Keys),
    release(Keys),
    ?assertMatch(#{barriers_refused := 0, keys := 1000}, canal_lock:info()),
    ok = test_fault_injection:arm(barriers, 0),
    ?assertEqual([done, waiting], [Sweep(), Sweep()]),
    #{barriers_refused := Refused, keys := 0, memory := Unlinked} = canal_lock:info(),
    ?assert(Refused > 0),
    ?assert(test_fault_injection:disarm()),
    ?assertEqual(done, Sweep()),
    #{barriers_refused := Refused, memory := Freed} = canal_lock:info(),
    ?assert(Unlinked - Freed >= 1000 * 64),
    passed.

%% Keys that are kilobytes in memory: what is lost of them shows.
faulty_round(Fault, Grants) ->
    Blob = binary:copy(<<Grants>>, 16 * 1024),
    Keys = [{Blob, N} || N <- lists:seq(1, 3)] ++ [#{N => Blob} || N <- [1, 2]],
    {Caller, _} = test_worker:start(fun() ->
        with_fault(Fault, Grants, fun() ->
            [outcome(fun() -> canal_lock_nif:acquire(Key, 3, 1) end) || Key <- Keys],
            outcome(fun() -> canal_lock_nif:represent(remote()) end),
            [outcome(fun() -> canal_lock_nif:release(Key) end) || Key <- tl(Keys)],
            outcome(fun canal_lock:held/0)
        end)
    end),
    test_fault_injection:arm(Fault, Grants),
    ok = test_worker:kill(Caller),
    _ = test_fault_injection:disarm(),
    test_await:value({0, 0}, fun permits_and_holders/0).
