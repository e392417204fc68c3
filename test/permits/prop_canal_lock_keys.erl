%% P9, with random terms: two terms are one key if and only if they are `=:=', and the views return a key unchanged.
%%
%% Calls the functions of PropEr, not its macros: some installations have the application without the header.
-module(prop_canal_lock_keys).

-import(proper_types, [
    atom/0, binary/0, bitstring/0, float/0, integer/0, list/1, non_neg_integer/0, range/2,
    bind/3, oneof/1, sized/1, weighted_union/1
]).

-export([prop_one_key_iff_identical/0, one_key_iff_identical_test_/0]).
-export([prop_key_comes_back/0, key_comes_back_test_/0]).

-define(CASES, 5000).

%% Terms of some hundred words. Generating larger ones takes 100 times as long and finds nothing more.
-define(MAX_SIZE, 24).

one_key_iff_identical_test_() ->
    test_setup:tests([
        {"P9: two random terms are one key if and only if they are =:=",
            fun() -> check(prop_one_key_iff_identical(), ?CASES) end}
    ]).

check(Property, Cases) ->
    true = proper:quickcheck(Property, [{numtests, test_setup:times(Cases)}, {max_size, ?MAX_SIZE}, quiet]).

prop_one_key_iff_identical() ->
    Cases = {key(), key(), oneof([copy, near, near, other]), non_neg_integer()},
    proper:forall(Cases, fun({Left, Other, Way, Choice}) ->
        Right = right(Way, Left, Other, Choice),
        Answers = answers(Left, Right),
        Show = fun() -> io:format(user, "~tp~n~tp~nidentical: ~p~n~tp~n", [Left, Right, Left =:= Right, Answers]) end,
        proper:whenfail(Show, fun() -> Answers =:= expected(Left =:= Right) end)
    end).

%% The calls leave no permit for the next case, whether the terms are equal or not. No call raises: older versions of
%% PropEr cannot report an exception.
answers(Left, Right) ->
    [
        canal_lock:acquire(Left, 1, 1),
        canal_lock:acquire(Right, 1, 1),
        canal_lock:count(Left),
        canal_lock:release(Right),
        canal_lock:count(Left),
        canal_lock:release(Left),
        canal_lock:release(Right),
        canal_lock:count(Left),
        canal_lock:count(Right)
    ].

expected(true) -> [{acquired, 1}, full, 1, ok, 0, {error, not_held}, {error, not_held}, 0, 0];
expected(false) -> [{acquired, 1}, {acquired, 1}, 1, ok, 1, ok, {error, not_held}, 0, 0].

key_comes_back_test_() ->
    test_setup:tests([
        {"P9: the views return a random key unchanged", fun() -> check(prop_key_comes_back(), ?CASES div 2) end}
    ]).

%% Alone, and together with another key.
prop_key_comes_back() ->
    proper:forall({key(), key()}, fun({Key, Other}) ->
        Rows = rows(Key, Other),
        Show = fun() -> io:format(user, "~tp~n~tp~n~tp~n", [Key, Other, Rows]) end,
        proper:whenfail(Show, fun() -> lists:all(fun({Wanted, Answer}) -> Wanted =:= Answer end, Rows) end)
    end).

rows(Key, Other) ->
    {acquired, 1} = canal_lock:acquire(Key, 1, 1),
    Alone = [{[{Key, 1}], Answer} || Answer <- [canal_lock:keys(), canal_lock:held()]],
    {acquired, Number} = canal_lock:acquire(Other, 2, 1),
    Both = maps:from_list([{Key, 1}, {Other, Number}]),
    Together = [{Both, maps:from_list(Answer)} || Answer <- [canal_lock:keys(), canal_lock:held()]],
    Holders = [{[{self(), Number}], canal_lock:holders(Other)}],
    ok = canal_lock:release(Key),
    ok = canal_lock:release(Other),
    Alone ++ Together ++ Holders.

right(other, _, Other, _) -> Other;
right(copy, Left, _, Choice) -> choose(Choice, test_key_terms:copies(Left));
right(near, Left, _, Choice) -> choose(Choice, near(Left)).

choose(Choice, List) ->
    lists:nth(1 + Choice rem length(List), List).

key() ->
    sized(fun key/1).

key(Size) when Size =< 1 ->
    leaf();
key(Size) ->
    Part = key(Size div 4),
    weighted_union([
        {2, leaf()},
        {2, list(Part)},
        {2, made_of(list(Part), fun list_to_tuple/1)},
        {2, made_of(list({Part, Part}), fun maps:from_list/1)},
        {1, made_of({list(Part), leaf()}, fun({Parts, Tail}) -> Parts ++ Tail end)},
        %% A map with more than 32 keys has another internal form.
        {1, made_of(range(0, 20), fun(Start) -> maps:from_list([{N, N} || N <- lists:seq(Start, Start + 32)]) end)},
        {1, made_of(Part, fun(Captured) -> fun() -> Captured end end)}
    ]).

leaf() ->
    weighted_union([
        {3, oneof([a, b, '', 'ä', [], {}, #{}, <<>>, atom()])},
        {3, integer()},
        {2, made_of({oneof([59, 60, 63, 64, 70]), range(-1, 1), oneof([1, -1])}, fun({Bits, Near, Sign}) ->
            Sign * ((1 bsl Bits) + Near)
        end)},
        {2, oneof([0.0, -0.0, 1.0, -1.0, float()])},
        {2, binary()},
        {1, made_of(range(0, 70), fun(Size) -> <<0:Size/unit:8>> end)},
        {2, bitstring()},
        {1, list(range($a, $z))},
        {1, made_of(oneof([init, code_server, canal_lock]), fun erlang:whereis/1)}
    ]).

made_of(Parts, Make) ->
    bind(Parts, Make, false).

%% Terms that differ from this one in one place, or that have a similar form in memory.
near(Term) when is_tuple(Term), Term =/= {} ->
    %% Some variants of the list are improper and cannot be tuples.
    Elements = [Near || Near <- near_parts(tuple_to_list(Term)), length(Near) > 0],
    [tuple_to_list(Term), {Term}, erlang:append_element(Term, []) | lists:map(fun list_to_tuple/1, Elements)];
near([Head | Tail] = List) ->
    [Tail, Head, [List], {List}, [Head | {Tail}]] ++ near_parts(List);
near(Map) when is_map(Map), Map =/= #{} ->
    [{Key, Value} | _] = Pairs = maps:to_list(Map),
    Without = maps:remove(Key, Map),
    [Without, Pairs, Map#{Value => Key}] ++
        [Map#{Key := Near} || Near <- near(Value)] ++ [Without#{Near => Value} || Near <- near(Key)];
near(Integer) when is_integer(Integer), abs(Integer) < 1 bsl 1000 ->
    [Integer + 1, Integer - 1, -Integer, float(Integer), <<Integer:64>>, <<Integer:64/native>>, [Integer], {Integer}];
near(Float) when is_float(Float) ->
    [-Float, trunc(Float), <<Float/float-native>>, Float / 2, {Float}];
near(Bits) when is_bitstring(Bits) ->
    [<<Bits/bitstring, 0>>, <<Bits/bitstring, 0:1>>, <<0:1, Bits/bitstring>>, [Bits], {Bits}];
near(Atom) when is_atom(Atom) ->
    [atom_to_list(Atom), atom_to_binary(Atom), {Atom}, [Atom]];
near(Fun) when is_function(Fun, 0) ->
    [fun() -> Near end || Near <- near(Fun())];
near(Other) ->
    [{Other}, [Other], #{Other => Other}].

%% With one part changed, and with the rest removed.
near_parts([Head | Tail]) ->
    [[Near | Tail] || Near <- near(Head)] ++ [[Head | Near] || Near <- near_tail(Tail)];
near_parts(_) ->
    [].

near_tail([_ | _] = Tail) -> [[] | near_parts(Tail)];
near_tail(Tail) -> near(Tail).
