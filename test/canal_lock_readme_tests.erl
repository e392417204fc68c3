%% What the README shows of the shell is what the shell shows.
-module(canal_lock_readme_tests).

-include_lib("eunit/include/eunit.hrl").

readme_test_() ->
    canal_lock_stage:tests(without_manager, [
        {"what the shell says of an error", fun errors/0},
        {"every function that the table of calls names is there", fun calls/0}
    ]).

errors() ->
    Readme = readme(),
    shows(Readme, fun() -> canal_lock:acquire(db, 3, 1) end),
    {ok, _} = canal_lock:start_link(3),
    shows(Readme, fun() -> canal_lock:acquire(db, three, 1) end).

%% But for how the lines are laid out, and what is called by whom beneath.
shows(Readme, Call) ->
    try Call() of
        Answer -> error({no_error, Answer})
    catch
        Class:Reason:Stack ->
            Text = erl_error:format_exception(Class, Reason, lists:sublist(Stack, 1)),
            ?assertNotEqual(nomatch, string:find(words(Readme), words(without_place(Text))))
    end.

%% The shell does not name the line.
without_place(Text) ->
    re:replace(Text, " \\(.*canal_lock\\.erl, line [0-9]+\\)", "", [{return, list}]).

words(Text) ->
    lists:flatten(lists:join(" ", string:lexemes(unicode:characters_to_list(Text), " \n"))).

calls() ->
    {match, Named} = re:run(readme(), "`([a-z_]+)\\(([A-Za-z, ]*)\\)`", [global, {capture, all_but_first, list}]),
    Exported = canal_lock:module_info(exports),
    Missing = [
        {Name, Arguments}
     || [Name, Arguments] <- Named,
        not lists:member({list_to_atom(Name), length(string:lexemes(Arguments, ","))}, Exported)
    ],
    ?assertEqual([], Missing).

readme() ->
    {ok, Text} = file:read_file("README.md"),
    Text.
