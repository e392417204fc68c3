%% Terms of any size and content are formatted in bounded time, on one line, and without effect on a terminal.
-module(canal_lock_text_tests).

-include_lib("eunit/include/eunit.hrl").

-define(CHARACTERS, 200).

%% Longer than any test takes on a busy machine, and shorter than it would take without a limit.
-define(TIMEOUT_S, 120).

a_short_term_is_formatted_in_full_test() ->
    [
        ?assertEqual(format("~0tp", [Term]), lists:flatten(canal_lock_text:short(Term, ?CHARACTERS)))
     || Term <- [db, {app, 12345}, "string", <<"binary">>, <<255>>, <<1:3>>, [a | b], #{k => [v]}, 1 bsl 60, -1.5, []]
    ].

a_short_term_is_not_pruned_test() ->
    Keys = [Key || {_, Key} <- test_key_terms:all(), erlang:external_size(Key) < 100],
    ?assert(length(Keys) > 100),
    ?assertEqual([], [Key || Key <- Keys, canal_lock_text:pruned(Key) =/= Key]).

a_long_term_is_cut_test_() ->
    [
        {timeout, ?TIMEOUT_S, {atom_to_list(Name), fun() -> is_cut(Make()) end}}
     || {Name, Make} <- [
            %% Formatting it would take hours without yielding.
            {integer, fun() -> 1 bsl 4_000_000 end},
            {negative_integer, fun() -> -(1 bsl 4_000_000) end},
            {integer_in_a_tuple, fun() -> {app, [#{key => 1 bsl 4_000_000}]} end},
            {integer_as_a_tail, fun() -> [app | 1 bsl 4_000_000] end},
            {integer_as_a_key, fun() -> #{1 bsl 4_000_000 => value} end},
            {binary, fun() -> binary:copy(<<"x">>, 64 bsl 20) end},
            {bits, fun() -> <<(binary:copy(<<"x">>, 64 bsl 20))/binary, 1:1>> end},
            {string, fun() -> lists:duplicate(1_000_000, $x) end},
            {list, fun() -> lists:seq(1, 1_000_000) end},
            {tuple, fun() -> list_to_tuple(lists:seq(1, 1_000_000)) end},
            {map, fun() -> maps:from_list([{N, N} || N <- lists:seq(1, 1_000_000)]) end},
            {shared, fun() -> lists:foldl(fun(_, Part) -> {Part, [Part | Part]} end, leaf, lists:seq(1, 100)) end}
        ] ++
            [
                {Shape, fun() -> test_key_terms:deep(Shape, 1_000_000) end}
             || Shape <- [tuple, list, tail, map, map_key]
            ]
    ].

is_cut(Term) ->
    Text = lists:flatten(canal_lock_text:short(Term, ?CHARACTERS)),
    ?assert(length(Text) =< 2 * ?CHARACTERS + 3).

a_huge_integer_is_replaced_by_an_atom_test() ->
    Small = 1 bsl 4096 - 1,
    ?assertEqual("'a huge integer'", lists:flatten(canal_lock_text:short(Small + 1, ?CHARACTERS))),
    ?assertEqual({Small, -Small, 'a huge integer'}, canal_lock_text:pruned({Small, -Small, -Small - 1})).

%% A binary that is cut inside a character would be shown as numbers.
a_long_binary_stays_text_test() ->
    [
        ?assertMatch("<<\"" ++ _, lists:flatten(canal_lock_text:short(binary:copy(Text, 10_000), ?CHARACTERS)))
     || Text <- [<<"abc">>, <<"é1"/utf8>>]
    ].

a_line_is_cut_to_its_columns_test() ->
    Fit = fun(Text, Columns) -> canal_lock_text:fit(Text, Columns, unicode) end,
    ?assertEqual(
        ["", ".", "..", "...", "a...", "abcde", "abcde"],
        [Fit("abcde", Columns) || Columns <- [0, 1, 2, 3, 4, 5, 6]]
    ),
    ?assertEqual(["", "", "...", "ab"], [Fit(Text, 3) || Text <- ["", <<>>, "abcd", ["a", <<"b">>]]]),
    %% Two columns each.
    ?assertEqual([".", "..", "...", "...", "日...", "日本語"], [Fit("日本語", Columns) || Columns <- lists:seq(1, 6)]).

other_characters_are_shown_as_numbers_test() ->
    [
        ?assertEqual({C, lists:flatten(io_lib:format("\\x{~.16B}", [C]))}, {C, canal_lock_text:fit([C], 80, Encoding)})
     || {Encoding, Cs} <- [
            {unicode, lists:seq(0, 31) ++ lists:seq(127, 160)},
            %% Characters without width.
            {unicode, [16#ad, 16#300, 16#483, 16#3099, 16#200b, 16#feff, 16#fe0f, 16#e0001]},
            %% Right-to-left letters, line ends, and characters whose width differs between terminals.
            {unicode, [16#5d0, 16#200f, 16#202e, 16#2066, 16#2028, 16#1f600, 16#10ffff]},
            {latin1, lists:seq(0, 31) ++ lists:seq(127, 300) ++ [16#65e5]}
        ],
        C <- Cs
    ],
    ?assertEqual("aé я", canal_lock_text:fit("aé я", 80, unicode)).

format(Format, Arguments) ->
    lists:flatten(io_lib:format(Format, Arguments)).
