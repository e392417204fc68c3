%% P9: every kind of term can be a key, and two terms are one key if and only if they are `=:='. The tests evaluate
%% `=:=' at run time, because its result for 0.0 and -0.0 depends on the OTP release.
-module(canal_lock_keys_tests).

-include_lib("eunit/include/eunit.hrl").

keys_test_() ->
    test_setup:tests([
        {"P9: of any two terms, the library tells apart those that =:= tells apart", fun pairwise/0},
        {"P9: a copy is the same key, however it is made", fun copies/0},
        {"P9: one process holds keys of every kind at once and releases them through copies", fun held_at_once/0},
        {"P9: binaries of lengths 0 to 80 are the same key at every bit offset", fun binaries/0},
        {"P9: large binaries that differ in the last byte are two keys", fun large_binaries/0},
        {"P9: maps that are built in different orders are one key", fun map_orders/0},
        {"P9: funs of one definition are one key if their environments are equal", fun funs/0},
        {"P9: a key stays valid after its term has left memory", fun key_outlives_term/0},
        {"P9: every list of up to four cells, of atoms and empty lists, is a key of its own", fun nested_lists/0},
        {"P9: a term with shared parts that expands to 2^40 cells raises system_limit", fun shared_without_end/0},
        {"P9: copies of a remote reference of one word are one key", fun short_reference/0},
        {"P9: equal references of different lengths are one key", fun lengths_of_references/0},
        {"P8: the memory includes the copied term of a key that contains a reference", fun memory_of_copies/0},
        {"P9: local pids, ports and references stay the same keys when the node gets or loses a name",
            fun node_gets_a_name/0},
        {lists:concat(["P9: keys that are ", levels(), " levels deep"]), fun deep/0},
        {lists:concat(["P9: funs that capture a term of ", levels(), " levels"]), fun deep_in_a_fun/0}
    ]).

%% Recursion this deep would overflow the stack of a scheduler thread.
levels() ->
    test_setup:in_soak(1_000_000, 100_000).

%% Assertions compare booleans and names, because some terms are too large to print.
%%
%% Long keys, which a dirty scheduler reads, are compared only with each other. Comparing them with the others would
%% take ten times as many calls that wait for a dirty scheduler. held_at_once/0 holds all terms together.
pairwise() ->
    {Long, Brief} = lists:partition(fun({_, Term}) -> test_setup:is_long_key(Term) end, test_key_terms:all()),
    ?assertMatch({[_ | _], [_ | _]}, {Long, Brief}),
    lists:foreach(fun({Terms, Name, Term}) ->
        {acquired, 1} = canal_lock:acquire(Term, 1, 1),
        [?assertMatch({_, _, true}, {Name, OtherName, agree(Term, Other)}) || {OtherName, Other} <- Terms],
        ok = canal_lock:release(Term)
    end, [{Terms, Name, Term} || Terms <- [Long, Brief], {Name, Term} <- Terms]).

%% Whether the library and `=:=' agree on `Other' and `Held', of which this process holds the only permit.
agree(Held, Other) ->
    case canal_lock:acquire(Other, 1, 1) of
        full ->
            Held =:= Other andalso canal_lock:count(Other) =:= 1;
        {acquired, 1} ->
            ok = canal_lock:release(Other),
            Held =/= Other andalso canal_lock:count(Held) =:= 1
    end.

copies() ->
    lists:foreach(fun({Name, Term, Copy}) ->
        true = Term =:= Copy,
        {acquired, 1} = canal_lock:acquire(Term, 2, 1),
        ?assertEqual({Name, 1}, {Name, canal_lock:count(Copy)}),
        ?assertEqual({Name, {acquired, 2}}, {Name, canal_lock:acquire(Copy, 2, 1)}),
        ?assertEqual({Name, full}, {Name, canal_lock:acquire(Copy, 2, 1)}),
        ?assertEqual({Name, ok, ok}, {Name, canal_lock:release(Copy), canal_lock:release(Copy)}),
        ?assertEqual({Name, {error, not_held}}, {Name, canal_lock:release(Term)})
    end, [{Name, Term, Copy} || {Name, Term} <- test_key_terms:all(), Copy <- test_key_terms:copies(Term)]).

held_at_once() ->
    Terms = test_key_terms:all(),
    %% Maps compare their keys with `=:=' too.
    Count = fun({_, Term}, Counts) -> maps:update_with(Term, fun(N) -> N + 1 end, 1, Counts) end,
    Wanted = lists:foldl(Count, #{}, Terms),
    [{acquired, _} = canal_lock:acquire(Term, 100, 1) || {_, Term} <- Terms],
    [?assertEqual({Name, maps:get(Term, Wanted)}, {Name, canal_lock:count(Term)}) || {Name, Term} <- Terms],
    #{keys := Keys, permits := Permits} = canal_lock:info(),
    ?assertEqual({map_size(Wanted), length(Terms)}, {Keys, Permits}),
    [
        ?assertEqual({Name, ok}, {Name, canal_lock:release(lists:last(test_key_terms:copies(Term)))})
     || {Name, Term} <- Terms
    ],
    ?assertMatch(#{permits := 0, holders := 0}, canal_lock:info()),
    [?assertEqual({Name, {error, not_held}}, {Name, canal_lock:release(Term)}) || {Name, Term} <- Terms].

binaries() ->
    Source = list_to_binary([rand:uniform(256) - 1 || _ <- lists:seq(1, 4096)]),
    lists:foreach(fun(Length) ->
        Plain = binary:copy(binary:part(Source, 0, Length)),
        {acquired, 1} = canal_lock:acquire(Plain, 1, 1),
        lists:foreach(fun(Offset) ->
            <<_:Offset, Shifted:Length/binary, _/bitstring>> = <<1:Offset, Plain/binary, 0:9>>,
            <<_:Offset, Cut:Length/binary, _/bitstring>> = <<(-1):Offset, Plain/binary, (-1):300>>,
            ?assertEqual({Length, Offset, full}, {Length, Offset, canal_lock:acquire(Shifted, 1, 1)}),
            ?assertEqual({Length, Offset, 1}, {Length, Offset, canal_lock:count(Cut)})
        end, lists:seq(0, 16)),
        ?assert(Length =:= 0 orelse canal_lock:count(binary:part(Plain, 0, Length - 1)) =:= 0),
        ?assertEqual({Length, 0}, {Length, canal_lock:count(<<Plain/binary, 0>>)}),
        ok = canal_lock:release(Plain)
    end, lists:seq(0, 80)).

large_binaries() ->
    Wraps = [fun(Binary) -> Binary end, fun(Binary) -> #{key => Binary} end, fun(Binary) -> <<Binary/binary, 1:1>> end],
    lists:foreach(fun({Length, Wrap}) ->
        Large = binary:copy(<<"x">>, Length),
        Other = <<(binary:part(Large, 0, Length - 1))/binary, "y">>,
        {acquired, 1} = canal_lock:acquire(Wrap(Large), 1, 1),
        ?assertEqual({Length, full}, {Length, canal_lock:acquire(Wrap(binary:copy(Large)), 1, 1)}),
        ?assertEqual({Length, {acquired, 1}}, {Length, canal_lock:acquire(Wrap(Other), 1, 1)}),
        ok = canal_lock:release(Wrap(Large)),
        ok = canal_lock:release(Wrap(Other))
    end, [{Length, Wrap} || Length <- [100_000, 100_001, 5_000_000], Wrap <- Wraps]).

map_orders() ->
    lists:foreach(fun(Size) ->
        Pairs = [{{N, rand:uniform()}, #{N => rand:uniform()}} || N <- lists:seq(1, Size)],
        Map = insert(Pairs),
        {acquired, 1} = canal_lock:acquire(Map, 1, 1),
        [
            ?assertEqual({Size, full}, {Size, canal_lock:acquire(insert(test_setup:shuffled(Pairs)), 1, 1)})
         || _ <- lists:seq(1, 10)
        ],
        %% A map that was larger before may have another internal form.
        Grown = insert(test_setup:shuffled([{N, N} || N <- lists:seq(1, 100)] ++ Pairs)),
        ?assertEqual({Size, 1}, {Size, canal_lock:count(maps:without(lists:seq(1, 100), Grown))}),
        [{Key, Value} | _] = Pairs,
        ?assertEqual({Size, 0}, {Size, canal_lock:count(Map#{Key := {Value}})}),
        ?assertEqual({Size, 0}, {Size, canal_lock:count(maps:remove(Key, Map))})
    end, [1, 2, 3, 10, 31, 32, 33, 34, 64, 1000, 20_000]).

insert(Pairs) ->
    lists:foldl(fun({Key, Value}, Map) -> Map#{Key => Value} end, #{}, Pairs).

funs() ->
    Make = fun(Captured) -> fun() -> Captured end end,
    {_, MadeElsewhere} = test_worker:start(fun() -> Make({1, #{a => "b"}}) end),
    Captures = [{1, #{a => "b"}}, {1, #{a => "c"}}, {1.0, #{a => "b"}}, Make(1), Make(2)],
    Candidates = [MadeElsewhere | lists:map(Make, Captures)],
    lists:foreach(fun(Fun) ->
        {acquired, 1} = canal_lock:acquire(Fun, 1, 1),
        [?assert(agree(Fun, Other)) || Other <- Candidates],
        ok = canal_lock:release(Fun)
    end, Candidates).

%% The terms leave memory while their keys are held: literals of a module, persistent terms, and terms on the heap of a
%% process.
key_outlives_term() ->
    Rare = #{name => "literal", id => 1 bsl 100, list => lists:seq(1, 100)},
    Parts = lists:zip(lists:seq(1, 4), [Rare, {Rare, <<1:3>>}, [fun erlang:abs/1, "string"], lists:seq(1, 50)]),
    Keys = [{Number, term_to_binary(Part)} || {Number, Part} <- Parts],
    [ok = persistent_term:put({?MODULE, Number}, Part) || {Number, Part} <- Parts],
    {Holder, _} = test_worker:start(fun() ->
        [{acquired, 1} = canal_lock:acquire(persistent_term:get({?MODULE, Number}), 9, 1) || {Number, _} <- Keys],
        [{acquired, 2} = canal_lock:acquire(binary_to_term(Binary), 9, 1) || {_, Binary} <- Keys],
        done
    end),
    [persistent_term:erase({?MODULE, Number}) || {Number, _} <- Keys],
    test_worker:order(Holder, fun() -> erlang:garbage_collect() end),
    [erlang:garbage_collect(Process) || Process <- processes()],
    [?assertEqual({Number, 2}, {Number, canal_lock:count(binary_to_term(Binary))}) || {Number, Binary} <- Keys],
    ok = test_worker:kill(Holder),
    [test_await:count(binary_to_term(Binary), 0) || {_, Binary} <- Keys].

%% The end of a list and an empty list in it must be stored differently: `[[a], []]' and `[[a, []]]' were once one key.
nested_lists() ->
    Terms = lists:append([trees(Cells) || Cells <- lists:seq(0, 4)]),
    lists:foreach(fun(Term) ->
        {acquired, 1} = canal_lock:acquire(Term, 1, 1),
        ?assertEqual([], [{Term, Other} || Other <- Terms, not agree(Term, Other)]),
        ok = canal_lock:release(Term)
    end, Terms).

trees(0) ->
    [[], a];
trees(Cells) ->
    [[Head | Tail] || Left <- lists:seq(0, Cells - 1), Head <- trees(Left), Tail <- trees(Cells - 1 - Left)].

%% The term takes 40 cells in memory and has 2^40 when it is expanded, so the test never prints it. The library
%% refuses it after a fixed amount of work. A remote pid counts as 60 times the work of an empty list, so it is
%% refused sooner.
shared_without_end() ->
    #{from_other_nodes := Terms} = maps:from_list(test_key_terms:by_kind()),
    [There | _] = [Pid || Pid <- Terms, is_pid(Pid)],
    Shared = lists:foldl(fun(_, Part) -> [Part | Part] end, test_setup:in_soak([], There), lists:seq(1, 40)),
    lists:foreach(fun(Key) ->
        ?assert(raises_system_limit(fun() -> canal_lock:acquire(Key, 1, 1) end)),
        ?assert(raises_system_limit(fun() -> canal_lock:release(Key) end))
    end, [Shared, {#{}, Shared}]),
    ?assertMatch(#{keys := 0, permits := 0}, canal_lock:info()).

raises_system_limit(Fun) ->
    test_remote:attempt(Fun) =:= {error, system_limit}.

%% The node gets a name, and loses it again.
node_gets_a_name() ->
    passed = test_setup:in_a_vm(test_epmd:arguments(), fun() ->
        {ok, _} = canal_lock:start_link(3),
        Local = [self(), make_ref(), hd(erlang:ports())],
        Keys = Local ++ [{Key, tag} || Key <- Local] ++ [Local, #{Local => Local}],
        Pass = fun(Permits) ->
            [{acquired, Permits} = canal_lock:acquire(Key, 3, 1) || Key <- Keys],
            [Permits = canal_lock:count(Key) || Key <- Keys],
            ?assertEqual(lists:sort([{Key, Permits} || Key <- Keys]), lists:sort(canal_lock:held()))
        end,
        Pass(1),
        {ok, _} = net_kernel:start(['canal_lock_named@127.0.0.1', longnames]),
        Pass(2),
        ok = net_kernel:stop(),
        Pass(3),
        [[ok, ok, ok, {error, not_held}] = [canal_lock:release(Key) || _ <- lists:seq(1, 4)] || Key <- Keys],
        passed
    end).

%% In OTP 25 the VM's own hash of such a reference reads words beyond its end, so copies have different hashes.
short_reference() ->
    <<131, Node/binary>> = term_to_binary(there@nowhere),
    Copy = fun(_) -> binary_to_term(<<131, 90, 1:16, Node/binary, 1:32, 1:32>>) end,
    Copies = lists:map(Copy, lists:seq(1, 20)),
    ?assertEqual(lists:seq(1, 20), [N || Key <- Copies, {acquired, N} <- [canal_lock:acquire(Key, 20, 1)]]),
    ?assertEqual([ok], lists:usort([canal_lock:release(Key) || Key <- Copies])).

%% Missing words count as zeros.
lengths_of_references() ->
    <<131, Node/binary>> = term_to_binary(there@nowhere),
    Keys = [
        binary_to_term(<<131, 90, Words:16, Node/binary, 1:32, 1:32, 2:32, 3:32, 0:(32 * (Words - 3))>>)
     || Words <- [3, 4, 5]
    ],
    [true = Key =:= hd(Keys) || Key <- Keys],
    ?assertEqual([{acquired, N} || N <- [1, 2, 3]], [canal_lock:acquire(Key, 3, 1) || Key <- Keys]),
    ?assertMatch(#{keys := 1}, canal_lock:info()),
    ?assertEqual([ok, ok, ok], [canal_lock:release(Key) || Key <- lists:reverse(Keys)]).

%% The library stores the words of the key, as for any key, and a copy of the term: 16 bytes per list cell.
memory_of_copies() ->
    {acquired, 1} = canal_lock:acquire(db, 1, 1),
    Growth = fun(Key) ->
        #{memory := Before} = canal_lock:info(),
        {acquired, 1} = canal_lock:acquire(Key, 1, 1),
        #{memory := After} = canal_lock:info(),
        ok = canal_lock:release(Key),
        After - Before
    end,
    Long = lists:duplicate(5_000, a),
    ?assert(Growth({make_ref(), Long}) - Growth({1.5, Long}) > 5_000 * 8),
    ok = canal_lock:release(db).

deep() ->
    lists:foreach(fun(Shape) ->
        Key = test_key_terms:deep(Shape, levels()),
        Encoded = term_to_binary(Key),
        Deeper = test_key_terms:deep(Shape, levels() + 1),
        Hold = fun() -> canal_lock:acquire(binary_to_term(Encoded), 1, 1) end,
        {Holder, {acquired, 1}} = test_worker:start(Hold),
        ?assertEqual({Shape, full}, {Shape, canal_lock:acquire(Key, 1, 1)}),
        ?assertEqual({Shape, {acquired, 1}}, {Shape, canal_lock:acquire(Deeper, 1, 1)}),
        ?assertEqual({Shape, ok}, {Shape, canal_lock:release(Deeper)}),
        ok = test_worker:kill(Holder),
        test_await:count(Key, 0)
    end, [tuple, list, tail, map, map_key]),
    %% Freeing the keys does not recurse either.
    ok = canal_lock_manager:sweep(),
    ?assertMatch(#{keys := 0}, canal_lock:info()).

deep_in_a_fun() ->
    Deep = test_key_terms:deep(tuple, levels()),
    Encoded = term_to_binary(fun() -> Deep end),
    {acquired, 1} = canal_lock:acquire(binary_to_term(Encoded), 1, 1),
    ?assertEqual(full, canal_lock:acquire(binary_to_term(Encoded), 1, 1)),
    ?assertEqual(ok, canal_lock:release(binary_to_term(Encoded))),
    ok = canal_lock_manager:sweep().
