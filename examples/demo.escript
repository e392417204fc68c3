#!/usr/bin/env escript
%%! -kernel logger_level none
%% The demo of permits: evaluates the shell session of the README on this node, then kills a holder, then the manager.
%% `make demo' builds the library, puts it on the code path, and runs this in the root of the project.

-mode(compile).

%% The inputs of the first session in the README.
session() ->
    {ok, Readme} = file:read_file("README.md"),
    {match, [Session]} = re:run(Readme, "^1> .*?```", [multiline, dotall, {capture, first, list}]),
    {match, Inputs} = re:run(Session, "^[0-9]+> (.*)$", [global, multiline, {capture, all_but_first, list}]),
    lists:append(Inputs).

%% A second process acquires the third of four permits and is killed. Its exit is visible before its permit is released
%% (P4 in docs/promises.md), so one expression waits for the release.
a_death() ->
    [
        "Shell = self().",
        "Holder = spawn(fun() -> Shell ! canal_lock:acquire(db, 2, 2), receive after infinity -> ok end end).",
        "receive Answer -> Answer end.",
        "canal_lock:buckets(db, 2).",
        "canal_lock:holders(db).",
        "exit(Holder, kill).",
        "(fun Wait() -> case canal_lock:count(db) of 3 -> Wait(); N -> N end end)().",
        "canal_lock:buckets(db, 2).",
        "canal_lock:info()."
    ].

%% The next manager adopts the permits.
a_crash() ->
    [
        "exit(whereis(canal_lock), kill).",
        "canal_lock:acquire(db, 2, 2).",
        "canal_lock:held().",
        "canal_lock:with_permit(db, 4, fun() -> canal_lock:count(db) end).",
        "canal_lock:audit()."
    ].

main([]) ->
    {AfterSession, Bindings} = evaluate(session(), 1, erl_eval:new_bindings()),
    io:format("~nAnother process acquires a permit and is killed:~n~n"),
    {AfterDeath, MoreBindings} = evaluate(a_death(), AfterSession, Bindings),
    io:format("~nThe manager is killed, and its table stays open:~n~n"),
    _ = evaluate(a_crash(), AfterDeath, MoreBindings),
    ok.

evaluate([], Line, Bindings) ->
    {Line, Bindings};
evaluate([Source | Rest], Line, Bindings) ->
    io:format("~b> ~ts~n", [Line, Source]),
    {ok, Tokens, _} = erl_scan:string(Source),
    {ok, Expressions} = erl_parse:parse_exprs(Tokens),
    {value, Value, NewBindings} = erl_eval:exprs(Expressions, Bindings),
    io:format("~tp~n", [Value]),
    evaluate(Rest, Line + 1, NewBindings).
