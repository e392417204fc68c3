%% What a shell shows, for comparison with what a document says.
-module(test_shown).

-export([words/1, value/1]).

%% The words of a text, without line breaks, the numbers in pids, references and funs, and the colors that OTP 27 shows
%% on any terminal.
-spec words(string()) -> string().
words(Text) ->
    Plain = re:replace(Text, "\e\\[[0-9;]*m", "", [global, {return, list}, unicode]),
    Named = re:replace(Plain, "(#Ref|#Fun|)<[^ >]*[0-9]+\\.[0-9]+[^ >]*>", "\\1<>", [global, {return, list}, unicode]),
    lists:flatten(lists:join(" ", string:lexemes(Named, " \n"))).

%% The term of a text, because maps are shown in an order that differs between releases. The text if it is no term.
-spec value(string()) -> term().
value(Shown) ->
    Text = words(Shown),
    {ok, Tokens, _} = erl_scan:string(Text ++ "."),
    case erl_parse:parse_term(Tokens) of
        {ok, Term} -> Term;
        {error, _} -> Text
    end.
