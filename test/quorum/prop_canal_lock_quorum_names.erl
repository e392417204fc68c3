%% Property: two names of quorum locks have the same bytes if and only if they are `=:=', and the bytes decode to the
%% name.
-module(prop_canal_lock_quorum_names).

-import(proper_types, [binary/0, integer/0, list/1, bind/3, oneof/1]).

-export([prop_one_form/0, one_form_test_/0]).

-define(CASES, 1000).
-define(TIMEOUT_S, 300).

%% The depth of a name, and the number of elements in each list and tuple.
-define(DEPTH, 2).
-define(WIDTH, 4).

one_form_test_() ->
    {timeout, ?TIMEOUT_S, fun() ->
        Options = [{numtests, test_setup:times(?CASES)}, quiet],
        true = proper:quickcheck(prop_one_form(), Options)
    end}.

prop_one_form() ->
    proper:forall({name(?DEPTH), name(?DEPTH)}, fun({One, Other}) ->
        {ok, Bytes} = canal_lock_quorum_names:encode(One),
        {ok, Others} = canal_lock_quorum_names:encode(Other),
        Show = fun() -> io:format(user, "~tp~n~tp~n", [One, Other]) end,
        IsOne = (Bytes =:= Others) =:= (One =:= Other),
        proper:whenfail(Show, fun() -> IsOne andalso binary_to_term(Bytes) =:= One end)
    end).

%% Few values of each kind, so that two names are often equal or almost equal.
name(0) ->
    Alike = [a, b, 'é', <<"a">>, "a", <<"é"/utf8>>, 0, 1, -1, 1 bsl 70, [], {}, <<>>],
    oneof([oneof(Alike), oneof(Alike), binary(), integer()]);
name(Depth) ->
    Some = bind(list(name(Depth - 1)), fun(Names) -> lists:sublist(Names, ?WIDTH) end, false),
    AsTuple = bind(Some, fun(Names) -> list_to_tuple(Names) end, false),
    oneof([name(0), Some, AsTuple]).
