%% P4, P8, P9: garbage collection does not affect permits. Keys are created, used and discarded while heaps are
%% collected, moved and shrunk; an equal key that is created later is the same key. A key keeps its part of a binary in
%% memory exactly as long as the key exists.
-module(canal_lock_gc_tests).

-include_lib("eunit/include/eunit.hrl").

-define(WORKERS, 8).
-define(PAIRS, 3_000).

-define(BYTES, (16 * 1024 * 1024)).

gc_test_() ->
    test_setup:on_schedulers(["+P", "4096"], [
        {"P4, P9: keys of every kind stay held after their holder discards the terms", played(fun discarded/0)},
        {"P4, P9: keys that become garbage at once, in many processes", played(fun garbage_at_once/0)},
        {"P8: a key keeps only its own copy of a binary, or the part that the VM copies", fun binaries/0}
    ]).

played(Test) ->
    fun() -> test_storm:play(#{}, Test) end.

%% Terms of every kind, encoded. Decoding some of them gives another term; callers compare what they decode.
encoded_terms() ->
    [{Name, term_to_binary(Term)} || {Name, Term} <- test_key_terms:for_maps()].

discarded() ->
    Encoded = encoded_terms(),
    Rebuilt = fun(Bytes) -> lists:last(test_key_terms:copies(binary_to_term(Bytes))) end,
    Different = maps:from_list([{binary_to_term(Bytes), Name} || {Name, Bytes} <- Encoded]),
    Wanted = maps:values(Different),
    Keys = [Row || {Name, _} = Row <- Encoded, lists:member(Name, Wanted)],
    TwoOfEach = maps:map(fun(_, _) -> 2 end, Different),
    {Holder, _} = test_worker:start(fun() ->
        [{acquired, N} = canal_lock:acquire(binary_to_term(Bytes), 3, 1) || {_, Bytes} <- Keys, N <- [1, 2]],
        acquired
    end),
    collect(Holder),
    [?assertEqual({Name, 2}, {Name, canal_lock:count(Rebuilt(Bytes))}) || {Name, Bytes} <- Keys],
    ?assertEqual(TwoOfEach, maps:from_list(test_worker:order(Holder, fun canal_lock:held/0))),
    ok = test_storm:records_agree([{Holder, TwoOfEach}]),
    Release = fun() ->
        [{Name, Answer} || {Name, Bytes} <- Keys, Answer <- [canal_lock:release(Rebuilt(Bytes))], Answer =/= ok]
    end,
    ?assertEqual([], test_worker:order(Holder, Release)),
    collect(Holder),
    [?assertEqual({Name, 1}, {Name, canal_lock:count(binary_to_term(Bytes))}) || {Name, Bytes} <- Keys],
    ?assertEqual([], test_worker:order(Holder, Release)),
    ?assertEqual(length(Keys), length(test_worker:order(Holder, Release))),
    test_worker:kill(Holder).

%% The second collection leaves the heap as small as possible.
collect(Holder) ->
    test_worker:order(Holder, fun() -> erlang:garbage_collect() end),
    true = erlang:garbage_collect(Holder).

%% The heaps start at the minimum size and are collected each time they grow.
garbage_at_once() ->
    Encoded = list_to_tuple([Bytes || {_, Bytes} <- encoded_terms(), byte_size(Bytes) < 2000]),
    Work = fun() -> acquire_and_release(test_setup:times(?PAIRS), Encoded) end,
    Workers = [
        spawn_opt(fun() -> exit(Work()) end, [monitor, {fullsweep_after, Sweep}, {min_heap_size, 1}])
     || N <- lists:seq(1, ?WORKERS), Sweep <- [N rem 2 * 10]
    ],
    [?assertEqual(done, test_await:reason(Worker)) || Worker <- Workers].

acquire_and_release(0, _) ->
    [] = canal_lock:held(),
    done;
acquire_and_release(Left, Encoded) ->
    Keys = [element(rand:uniform(tuple_size(Encoded)), Encoded) || _ <- lists:seq(1, rand:uniform(4))],
    [{acquired, _} = canal_lock:acquire(binary_to_term(Key), 4 * ?WORKERS, 1) || Key <- Keys],
    Left rem 4 =:= 0 andalso erlang:garbage_collect(),
    [ok = canal_lock:release(binary_to_term(Key)) || Key <- Keys],
    acquire_and_release(Left - 1, Encoded).

%% How many binaries of 16 MiB stay in memory after their only holder has discarded the term but not the permit. None,
%% if the library encodes the key. One, if the key contains a reference or a fun and more than 64 bytes of the binary:
%% the VM copies such a key as it copies a message. No process may read the key in between, as it would keep the binary.
binaries() ->
    {ok, _} = canal_lock:start_link(3),
    Reference = make_ref(),
    lists:foreach(fun({Expected, Wrap}) ->
        Before = erlang:memory(binary),
        Acquire = fun() -> canal_lock:acquire(Wrap(binary:copy(<<"k">>, ?BYTES)), 1, 1) end,
        {Holder, {acquired, 1}} = test_worker:start(Acquire),
        collect(Holder),
        Kept = fun() -> (erlang:memory(binary) - Before + ?BYTES div 2) div ?BYTES end,
        test_await:value(Expected, Kept),
        ?assertEqual(full, Acquire()),
        ok = test_worker:kill(Holder),
        test_await:permits(0),
        %% A caller with a long key keeps garbage of the call on its heap.
        erlang:garbage_collect(),
        ok = canal_lock_manager:sweep(),
        ?assertMatch(#{keys := 0}, canal_lock:info()),
        test_await:value(0, Kept)
    end, [
        {0, fun(Binary) -> binary:part(Binary, 0, 100) end},
        {0, fun(Binary) -> {part, binary:part(Binary, 5, 10)} end},
        {0, fun(Binary) -> binary:part(Binary, 1, 1024 * 1024) end},
        {0, fun(Binary) -> #{part => binary:part(Binary, 1, 100)} end},
        {0, fun(Binary) -> #{whole => Binary} end},
        {0, fun(Binary) -> <<Binary/binary, 1:1>> end},
        {0, fun(Binary) -> {Reference, binary:part(Binary, 1, 10)} end},
        {1, fun(Binary) -> {Reference, binary:part(Binary, 1, 100)} end},
        {1, fun(Binary) -> fun() -> Binary end end}
    ]).
