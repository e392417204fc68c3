%% Keys of every kind of term. Many of them differ only slightly in one of the forms in which keys are stored.
-module(test_key_terms).

-export([all/0, for_maps/0, by_kind/0, copies/1, deep/2, not_counts/0]).

%% With numbers, because some terms are too long to print.
-spec all() -> [{{Kind :: atom(), pos_integer()}, term()}].
all() ->
    [
        {{Kind, Number}, Term}
     || {Kind, Terms} <- by_kind(), {Number, Term} <- lists:zip(lists:seq(1, length(Terms)), Terms)
    ].

%% Those that work as keys of a map. OTP 27 and 29 do not order funs of two versions of a module: whether two maps that
%% contain such funs are equal depends on the order of the insertions.
-spec for_maps() -> [{{Kind :: atom(), pos_integer()}, term()}].
for_maps() ->
    [Row || {_, Term} = Row <- all(), not is_of_another_version(Term)].

-spec by_kind() -> [{Kind :: atom(), [term()]}].
by_kind() ->
    [
        {atoms, atoms()},
        {integers, integers()},
        {floats, floats()},
        {binaries, binaries()},
        {bitstrings, bitstrings()},
        {lists, lists()},
        {tuples, tuples()},
        {maps, maps()},
        {local_processes_and_ports, [self(), whereis(init), whereis(code_server) | lists:sublist(erlang:ports(), 3)]},
        {references, references()},
        {from_other_nodes, from_other_nodes()},
        {funs, funs()},
        {native_records, native_records()},
        {mixed, mixed()}
    ].

atoms() ->
    [a, b, 'A', 'a\0', '', true, false, undefined, 'ä', 'линия', '鍵', binary_to_atom(binary:copy(<<"x">>, 255))].

%% Around the limits at which the VM and the library change the form of an integer: 2^59, 2^63, 2^64. And integers with
%% the same word as another kind of term, from which only a tag distinguishes them.
integers() ->
    Bits = [27, 31, 32, 58, 59, 60, 61, 62, 63, 64, 65, 127, 128, 1000],
    Large = [1 bsl Bit + Near || Bit <- Bits, Near <- [-1, 0, 1]],
    <<OneAsFloat:64>> = <<1.0/float>>,
    lists:seq(-2, 17) ++ Large ++ [-N || N <- Large] ++ [OneAsFloat, binary:decode_unsigned(<<"12345678">>, little)].

floats() ->
    [0.0, -0.0, 1.0, -1.0, 2.0, 0.1, 1.5] ++
        [5.0e-324, 1.0e300, 1.7976931348623157e308, float(1 bsl 53), float(1 bsl 63)].

binaries() ->
    Bytes = binary:copy(<<"0123456789abcdef">>, 7),
    [binary:part(Bytes, 0, Length) || Length <- lists:seq(0, 80)] ++
        [<<0:Size/unit:8>> || Size <- lists:seq(1, 40)] ++
        [<<1:64/native>>, <<"12345678">>, <<1.0/float-native>>] ++
        [<<1:64, 1:64, 1:64, 1:64>>, <<1:64, 1:64, 1:64, 1:64, 0>>].

bitstrings() ->
    [<<0:1>>, <<1:1>>, <<0:2>>, <<1:2>>, <<0:7>>, <<0:9>>, <<1:9>>, <<"ab", 1:1>>, <<"ab", 0:1>>, <<"ab", 1:3>>] ++
        [<<1:Size>> || Size <- [63, 65, 127, 513, 1025, 4095]] ++
        [<<(binary:copy(<<7>>, 300))/binary, Last:5>> || Last <- [1, 2]].

lists() ->
    [[], [[]], [[], []], [[[]]], [a], [a | b], [a, b], [a, b | []], [a, b | c]] ++
        [[a, [b]], [[a], b], [[a, b]], [[a | b]], [[a] | b], [a, b, []]] ++
        ["a", "ab", "ba", "db", "Leiter", "ключ", [1.0], [1], [1 | 1.0]] ++
        %% Bytes, and lists that begin with bytes: as many as fit into a word, more and fewer.
        [Bytes ++ End || N <- [1, 7, 8, 9, 16, 17], Bytes <- [lists:seq(1, N)], End <- [[], [0], [255], [256], [-1]]] ++
        [Bytes ++ End || N <- [1, 8, 9], Bytes <- [lists:seq(1, N)], End <- [[a], [[]], [<<>>], a, 0, <<"b">>, {a}]] ++
        [[0], [0, 0], lists:duplicate(8, 0), lists:duplicate(9, 0), [256], [256, 1], [-1], [a | "bc"]] ++
        [[1, <<>>], [1 | <<>>], [<<1>>], [<<1>> | 1]] ++
        [lists:seq(1, 2000), lists:seq(1, 2000) ++ end_of_list, lists:duplicate(300, []), lists:duplicate(300, 0.5)].

tuples() ->
    [list_to_tuple(lists:seq(1, Arity)) || Arity <- lists:seq(0, 20) ++ [255, 256, 1000]] ++
        [list_to_tuple(lists:duplicate(Arity, [])) || Arity <- lists:seq(1, 9)] ++
        [list_to_tuple(lists:duplicate(Arity, <<>>)) || Arity <- lists:seq(1, 9)] ++
        [{a}, {{a}}, {{{a}}}, {a, b}, {b, a}, {{a}, b}, {a, {b}}, {{a, b}}] ++
        [{a, {b, c}}, {{a, b}, c}, {a, b, c}, {a, [b, c]}, {{a}, {b}}, {{a}, [b]}, {[a], b}, {[a | b]}] ++
        [{{{a}}, b, {c}}, {{{a}, b}, {c}}, {{{a}, b, {c}}}, {"ab", c}, {"ab", "c"}, {"a", "bc"}, {[], "abc"}] ++
        [{app, 12345}, {app, 12345.0}, {app, <<"12345">>}, {app, "12345"}] ++
        [{1, 2}, {1, 2.0}, {1.0, 2}, {[], 1}, {1, []}, {-1}, {1 bsl 63}, {self()}, {self(), 1}] ++
        [{<<>>, 1}, {1, <<>>}, {<<"a">>, <<"b">>}, {<<"ab">>, <<>>}, {<<>>, <<"ab">>}] ++
        [{<<"abcdefgh">>, 1}, {1, <<"abcdefgh">>}, {<<0:64, 0:64, 0:64, 0:64>>}, {<<0:64, 0:64, 0:64>>, 0}] ++
        [{1, 2, 3, 0}, {1, 2, 3, 4, 0}].

maps() ->
    Many = [{N, N * N} || N <- lists:seq(1, 100)],
    [#{}, #{a => 1}, #{a => 1.0}, #{a => 2}, #{b => 1}, #{1 => a}, #{1.0 => a}, #{[] => #{}}] ++
        [#{a => 1, b => 2}, #{a => 2, b => 1}] ++
        [maps:from_list(lists:sublist(Many, Size)) || Size <- [31, 32, 33, 34, 99, 100]] ++
        [(maps:from_list(Many))#{50 => 2500.0}, (maps:from_list(Many))#{50.0 => 2500}] ++
        [#{#{a => 1} => b}, #{#{a => 1.0} => b}, #{b => #{a => 1}}, #{#{#{} => 1} => #{2 => #{}}}] ++
        [#{1 => #{2 => 3}, 4 => #{5 => 6}}, #{1 => #{5 => 6}, 4 => #{2 => 3}}, #{maps:from_list(Many) => 1}] ++
        [#{1 => {2}, 3 => 4, 5 => {6}}, #{1 => {2}, 3 => {4}, 5 => 6}, #{{1} => 2, 3 => {4}, 5 => [6]}] ++
        [[#{a => 1}, #{b => 2}], [#{b => 2}, #{a => 1}]] ++
        [{#{a => 1}, x}, {#{a => 1}, y}, #{a => 1 bsl 70}, #{a => (1 bsl 70) + 1}, #{<<1:1>> => 1}, #{<<1:2>> => 1}].

references() ->
    [make_ref(), make_ref(), monitor(process, whereis(init)), atomics:new(1, []), ets:new(key, []), {make_ref(), 1}].

%% In the external format, because there is no other node here. References have three or five words and differ in the
%% first three, as those of real nodes. OTP 25 itself confuses others as keys of a large map.
from_other_nodes() ->
    Node = there@nowhere,
    [
        binary_to_term(<<131, Encoded/binary>>)
     || {Name, Creation} <- [{Node, 1}, {Node, 2}, {here@nowhere, 1}, {node(), 77}],
        Atom <- [atom_in_external_format(Name)],
        Encoded <- [
            <<88, Atom/binary, 100:32, 0:32, Creation:32>>,
            <<88, Atom/binary, 101:32, 0:32, Creation:32>>,
            <<88, Atom/binary, 100:32, 1:32, Creation:32>>,
            <<89, Atom/binary, 100:32, Creation:32>>,
            <<120, Atom/binary, 100:64, Creation:32>>,
            <<120, Atom/binary, (1 bsl 40 + 100):64, Creation:32>>,
            <<90, 3:16, Atom/binary, Creation:32, 1:32, 2:32, 3:32>>,
            <<90, 3:16, Atom/binary, Creation:32, 1:32, 2:32, 4:32>>,
            <<90, 5:16, Atom/binary, Creation:32, 6:32, 7:32, 8:32, 9:32, 10:32>>
        ]
    ].

atom_in_external_format(Atom) ->
    <<131, Encoded/binary>> = term_to_binary(Atom),
    Encoded.

funs() ->
    Captures = [1, 1.0, 2, <<"abc">>, #{a => 1}, #{a => 1.0}, 1 bsl 70, make_ref(), lists:seq(1, 50)],
    Here = [fun() -> Captured end || Captured <- Captures],
    There = [fun(Argument) -> {Argument, Captured} end || Captured <- Captures],
    Without = fun() -> nothing end,
    Here ++ There ++
        [Without, of_another_version(Without), of_unknown_module(Without)] ++
        [of_another_version(hd(Here)), of_unknown_module(hd(Here))] ++
        [fun erlang:abs/1, fun erlang:abs/2, fun lists:map/2, fun no_such_module:f/3, {fun erlang:abs/1}].

%% As from a node that runs another version of this module.
of_another_version(Fun) ->
    <<131, 112, Size:32, Arity, Unique:128, Rest/binary>> = term_to_binary(Fun),
    binary_to_term(<<131, 112, Size:32, Arity, (Unique bxor 1):128, Rest/binary>>).

is_of_another_version(Fun) when is_function(Fun) ->
    Info = erlang:fun_info(Fun),
    lists:member({module, ?MODULE}, Info) andalso
        lists:keyfind(new_uniq, 1, Info) =/= {new_uniq, ?MODULE:module_info(md5)};
is_of_another_version(_) ->
    false.

of_unknown_module(Fun) ->
    Ours = atom_to_binary(?MODULE),
    Unknown = string:uppercase(Ours),
    binary_to_term(binary:replace(term_to_binary(Fun), Ours, Unknown, [global])).

%% Records of an unknown definition, as from another node: `#geom:vec{x = X, y = Y}'. Earlier releases do not decode
%% them.
native_records() ->
    case list_to_integer(erlang:system_info(otp_release)) >= 29 of
        true -> [native_record(X, Y) || X <- [1, 1.0, 2, make_ref()], Y <- [2, [native_record(1, 2)]]];
        false -> []
    end.

native_record(X, Y) ->
    Names = [<<119, (byte_size(Name)), Name/binary>> || Name <- [<<"geom">>, <<"vec">>, <<"x">>, <<"y">>]],
    Values = [Bytes || Value <- [X, Y], <<131, Bytes/binary>> <- [term_to_binary(Value)]],
    binary_to_term(iolist_to_binary([<<131, 67, 2:32, 1>>, Names, Values])).

mixed() ->
    Deep = deep(tuple, 50),
    [Deep, {Deep, 1}, [Deep | 1], #{Deep => Deep}] ++
        [{a, "b", <<"c">>, 1.0, #{d => [e]}}, {a, "b", <<"c">>, 1, #{d => [e]}}] ++
        [{<<1:1>>, 1}, {<<1:2>>, 1}, [1 bsl 64, <<1:3>>], [1 bsl 64, <<1:4>>]] ++
        [{tag, make_ref(), [self()]}, {db, "shard", 7}].

%% The same term, built in other ways. Each is `=:=' to it, and they may differ in memory.
-spec copies(term()) -> [term()].
copies(Term) ->
    [Term, binary_to_term(term_to_binary(Term)), rebuilt(Term)].

%% The bits start within a byte and more bits follow them. Maps are built from the last pair to the first.
rebuilt(Term) when is_bitstring(Term) ->
    Size = bit_size(Term),
    <<_:3, Bits:Size/bitstring, _/bitstring>> = <<2#101:3, Term/bitstring, 2#1111111:7>>,
    Bits;
rebuilt([Head | Tail]) ->
    [rebuilt(Head) | rebuilt(Tail)];
rebuilt(Term) when is_tuple(Term) ->
    list_to_tuple(rebuilt(tuple_to_list(Term)));
rebuilt(Term) when is_map(Term) ->
    lists:foldr(fun({Key, Value}, Map) -> Map#{rebuilt(Key) => rebuilt(Value)} end, #{}, maps:to_list(Term));
rebuilt(Term) ->
    Term.

%% Nested terms of this shape and depth.
-spec deep(tuple | list | tail | map | map_key, non_neg_integer()) -> term().
deep(Shape, Levels) ->
    deep(Shape, Levels, bottom).

deep(_, 0, Term) -> Term;
deep(tuple, Levels, Term) -> deep(tuple, Levels - 1, {Term});
deep(list, Levels, Term) -> deep(list, Levels - 1, [Term]);
deep(tail, Levels, Term) -> deep(tail, Levels - 1, [x | Term]);
deep(map, Levels, Term) -> deep(map, Levels - 1, #{x => Term});
deep(map_key, Levels, Term) -> deep(map_key, Levels - 1, #{Term => x}).

%% Every kind of term except non-negative integers, for calls that need one.
-spec not_counts() -> [term()].
not_counts() ->
    [three, '', infinity, undefined, -1, -(1 bsl 59) - 1, -(1 bsl 63), -(1 bsl 64), -(1 bsl 70)] ++
        [0.0, -0.0, 1.0, 1.5, -1.5, 1.0e300, [], [1], "3", [1 | 2], {}, {3}, {1, 2}, #{}, #{1 => 1}] ++
        [<<>>, <<3>>, <<"3">>, <<1:1>>, binary:copy(<<1>>, 10), self(), make_ref(), atomics:new(1, [])] ++
        [hd(erlang:ports()), fun() -> 1 end, fun erlang:abs/1].
