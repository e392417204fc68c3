#!/usr/bin/env escript
%%! -kernel logger_level error
%% The main job, live: the shell session of the README, evaluated expression by expression on this node, and then a
%% death. Run it by `make demo', which builds the library and puts it on the code path.

-mode(compile).

%% The session that the design this library replaces is explained by; the README walks through it.
session() ->
    [
        "MaxPer = 3.",
        "{ok, _Pid} = canal_lock:start_link(MaxPer).",
        "canal_lock:acquire(db, MaxPer, 1).",
        "canal_lock:acquire(db, MaxPer, 1).",
        "canal_lock:acquire(db, MaxPer, 1).",
        "canal_lock:acquire(db, MaxPer, 1).",
        "canal_lock:acquire(db, MaxPer, 2).",
        "canal_lock:acquire(db, MaxPer, 1).",
        "canal_lock:release(db, MaxPer, 1).",
        "canal_lock:acquire(db, MaxPer, 1).",
        "canal_lock:release(db, MaxPer, 2).",
        "canal_lock:acquire(db, MaxPer, 1).",
        "canal_lock:acquire(db, MaxPer, 1)."
    ].

%% A second process takes the fourth of six permits, and dies of a cause that nothing can catch. The last expression
%% waits until the VM has given the permit back: it may tell of a death a moment before.
a_death() ->
    [
        "Shell = self().",
        "Holder = spawn(fun() -> Shell ! canal_lock:acquire(db, MaxPer, 2), receive after infinity -> ok end end).",
        "receive Answer -> Answer end.",
        "canal_lock:buckets(db, MaxPer).",
        "canal_lock:holders(db).",
        "exit(Holder, kill).",
        "(fun Wait() -> case canal_lock:count(db) of 4 -> Wait(); N -> N end end)().",
        "canal_lock:buckets(db, MaxPer).",
        "canal_lock:info()."
    ].

%% The next manager finds what was out, and what was taken while there was none.
a_crash() ->
    [
        "canal_lock:stop().",
        "process_flag(trap_exit, true).",
        "{ok, Manager} = canal_lock:start_link(MaxPer, #{keep_on_crash => true}).",
        "canal_lock:acquire(db, MaxPer, 1).",
        "exit(Manager, kill).",
        "receive {'EXIT', Manager, Reason} -> Reason end.",
        "canal_lock:acquire(db, MaxPer, 1).",
        "{ok, _Next} = canal_lock:start_link(MaxPer, #{keep_on_crash => true}).",
        "canal_lock:held().",
        "canal_lock:with_permit(db, MaxPer, 1, fun() -> canal_lock:count(db) end).",
        "canal_lock:audit()."
    ].

main([]) ->
    {AfterSession, Bindings} = evaluate(session(), 1, erl_eval:new_bindings()),
    io:format("~nAnother process takes a permit, and is killed:~n~n"),
    {AfterDeath, MoreBindings} = evaluate(a_death(), AfterSession, Bindings),
    io:format("~nThe manager is killed, and its table goes on:~n~n"),
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
