%% P4, P9: what a process does with its heap is no matter of its permits. Keys are made, used, and forgotten; the heap
%% is collected, moved and shrunk; and equal keys that are made anew are the same keys. And what a key keeps in memory
%% it keeps for as long as it is there.
-module(canal_lock_gc_tests).

-include_lib("eunit/include/eunit.hrl").

-define(WORKERS, 8).
-define(PAIRS, 3_000).

-define(MIB, (1024 * 1024)).

gc_test_() ->
    test_setup:on_schedulers(["+P", "4096"], [
        {"P4, P9: keys of every kind, forgotten by their holder", played(fun forgotten/0)},
        {"P4, P9: keys that are garbage at once, of many processes", played(fun garbage_at_once/0)},
        {"P8: binaries, and parts of them, that a key keeps or does not keep", fun binaries/0}
    ]).

played(Test) ->
    fun() -> test_storm:play(#{}, Test) end.

%% Terms of every kind, as bytes; but for those that are not the same when they come back from bytes.
kinds() ->
    [{Name, term_to_binary(Term)} || {Name, Term} <- test_key_terms:all()].

forgotten() ->
    Kinds = kinds(),
    Rebuilt = fun(Bytes) -> lists:last(test_key_terms:copies(binary_to_term(Bytes))) end,
    Different = maps:from_list([{binary_to_term(Bytes), Name} || {Name, Bytes} <- Kinds]),
    Wanted = maps:values(Different),
    Keys = [Kind || {Name, _} = Kind <- Kinds, lists:member(Name, Wanted)],
    {Holder, _} = test_worker:start(fun() ->
        [{acquired, N} = canal_lock:acquire(binary_to_term(Bytes), 3, 1) || {_, Bytes} <- Keys, N <- [1, 2]],
        taken
    end),
    collect(Holder),
    [?assertEqual({Name, 2}, {Name, canal_lock:count(Rebuilt(Bytes))}) || {Name, Bytes} <- Keys],
    ?assertEqual(
        maps:map(fun(_, _) -> 2 end, Different),
        maps:from_list(test_worker:order(Holder, fun canal_lock:held/0))
    ),
    ok = test_storm:records_agree([{Holder, maps:map(fun(_, _) -> 2 end, Different)}]),
    Release = fun() ->
        [{Name, Answer} || {Name, Bytes} <- Keys, Answer <- [canal_lock:release(Rebuilt(Bytes))], Answer =/= ok]
    end,
    ?assertEqual([], test_worker:order(Holder, Release)),
    collect(Holder),
    [?assertEqual({Name, 1}, {Name, canal_lock:count(binary_to_term(Bytes))}) || {Name, Bytes} <- Keys],
    ?assertEqual([], test_worker:order(Holder, Release)),
    ?assertEqual(length(Keys), length(test_worker:order(Holder, Release))),
    test_worker:kill(Holder).

%% The heap is left as small as can be.
collect(Holder) ->
    test_worker:order(Holder, fun() -> erlang:garbage_collect() end),
    true = erlang:garbage_collect(Holder).

%% Heaps that are collected with each growth, and have room for next to nothing.
garbage_at_once() ->
    Kinds = list_to_tuple([Bytes || {_, Bytes} <- kinds(), byte_size(Bytes) < 2000]),
    Work = fun() -> use(test_setup:times(?PAIRS), Kinds) end,
    Workers = [
        spawn_opt(fun() -> exit(Work()) end, [monitor, {fullsweep_after, Sweep}, {min_heap_size, 1}])
     || N <- lists:seq(1, ?WORKERS), Sweep <- [N rem 2 * 10]
    ],
    [?assertEqual(done, test_await:reason(Worker)) || Worker <- Workers].

use(0, _) ->
    [] = canal_lock:held(),
    done;
use(Left, Kinds) ->
    Bytes = [element(rand:uniform(tuple_size(Kinds)), Kinds) || _ <- lists:seq(1, rand:uniform(4))],
    [{acquired, _} = canal_lock:acquire(binary_to_term(Key), 4 * ?WORKERS, 1) || Key <- Bytes],
    Left rem 4 =:= 0 andalso erlang:garbage_collect(),
    [ok = canal_lock:release(binary_to_term(Key)) || Key <- Bytes],
    use(Left - 1, Kinds).

%% How much of a binary of 16 MiB is still there when its only holder has forgotten it and has its permit: nothing, if
%% the key is encoded; all of it, if more than 64 bytes of it are in a key that holds a reference or a fun, which the VM
%% copies as it copies a message. No process is shown such a key in the meantime, because it would keep the binary too.
binaries() ->
    {ok, _} = canal_lock:start_link(3),
    Reference = make_ref(),
    [
        begin
            Before = erlang:memory(binary),
            {Holder, {acquired, 1}} = test_worker:start(fun() ->
                canal_lock:acquire(Wrap(binary:copy(<<"k">>, 16 * ?MIB)), 1, 1)
            end),
            collect(Holder),
            Kept = fun() -> (erlang:memory(binary) - Before + 8 * ?MIB) div (16 * ?MIB) end,
            test_await:value(Expected, Kept),
            ?assertEqual(full, canal_lock:acquire(Wrap(binary:copy(<<"k">>, 16 * ?MIB)), 1, 1)),
            ok = test_worker:kill(Holder),
            test_await:permits(0),
            %% Whoever called with a long key has something left of it.
            erlang:garbage_collect(),
            ok = canal_lock_manager:sweep(),
            ?assertMatch(#{keys := 0}, canal_lock:info()),
            test_await:value(0, Kept)
        end
     || {Expected, Wrap} <- [
            {0, fun(Binary) -> binary:part(Binary, 0, 100) end},
            {0, fun(Binary) -> {part, binary:part(Binary, 5, 10)} end},
            {0, fun(Binary) -> binary:part(Binary, 1, ?MIB) end},
            {0, fun(Binary) -> #{part => binary:part(Binary, 1, 100)} end},
            {0, fun(Binary) -> #{whole => Binary} end},
            {0, fun(Binary) -> <<Binary/binary, 1:1>> end},
            {0, fun(Binary) -> {Reference, binary:part(Binary, 1, 10)} end},
            {1, fun(Binary) -> {Reference, binary:part(Binary, 1, 100)} end},
            {1, fun(Binary) -> fun() -> Binary end end}
        ]
    ].
