%% Seeded bugs of cluster permits: each changes one place of a machine, or of the simulation, which has the part of the
%% processes. A random history must find it.
-module(test_cluster_bugs).

-export([all/0, search/2]).

-define(LEDGER, "src/cluster/canal_lock_cluster_ledger.erl").
-define(NODE, "src/cluster/canal_lock_cluster_node.erl").
-define(SHELL, "test/cluster/test_cluster_simulation.erl").

%% `{Name, File, Text, Replacement, First}'. The text occurs once. The history `First' finds the bug.
all() ->
    [
        {"the share is sent before it is in the ledger", ?LEDGER,
            "(with_row(Node, Row, K))#key{", "(with_row(Node, Row#row{share = Row#row.share - More}, K))#key{", 1},
        {"the share is lowered before the node has returned it", ?LEDGER,
            "Row#row{target = Wanted}, 0", "Row#row{share = Wanted, target = Wanted}, 0", 1},
        {"an outdated confirmation lowers the share", ?LEDGER,
            "Returned = case Number =:= Row#row.number of", "Returned = case Share =< Row#row.share of", 1},
        {"learning skips a silent node", ?LEDGER,
            "[{Node, unknown} || Node <- Nodes]",
            "[{Node, unknown} || Node <- lists:nthtail(min(1, length(Nodes)), Nodes)]", 1},
        {"what a silent node may have is given", ?LEDGER, "_ -> min(Free, Returned)", "_ -> Free", 1},
        {"a silent node is over", ?LEDGER,
            "Each = {Node, _} <- Silent, not lists:member(Node, Nodes)]",
            "Each = {Node, _} <- Silent, is_list(Nodes), Node =/= none]", 1},
        {"a node that hangs is not silent", ?LEDGER,
            "Now_ms - At_ms >= ?SILENT_MS", "Now_ms - At_ms >= 1000 * ?SILENT_MS", 5},
        {"a node that is not in the list stays", ?LEDGER,
            "start_pass(L#ledger{sessions = maps:remove(Node, Sessions), heard = maps:remove(Node, Heard)})", "L", 5},
        {"nothing is sent again after a report", ?LEDGER,
            "{_, Answered} when Ask < Answered ->", "{_, Answered} when Ask < 0 ->", 850},
        {"a lower limit of an older term is taken", ?LEDGER,
            "Last =:= none orelse Version > Last\n", "Last =:= none orelse Version =/= Last\n", 1},
        {"a node does not get a new limit", ?LEDGER,
            "Row#row.need > 0; Row#row.version =/= K#key.version ->", "Row#row.need > 0 ->", 226},
        {"a turn does not end", ?LEDGER, "case Now_ms >= turn_ends_ms(Row, Idle) of", "case Now_ms < 0 of", 1},
        {"a message of an older term is accepted", ?NODE,
            "event({set, Term, Session, Sets}, Now_ms, S = #state{term = Term, session = Session}) ->",
            "event({set, _, Session, Sets}, Now_ms, S = #state{session = Session}) when Session =/= none ->", 3},
        {"a message to an older session is accepted", ?NODE,
            "event({set, Term, Session, Sets}, Now_ms, S = #state{term = Term, session = Session}) ->",
            "event({set, Term, _, Sets}, Now_ms, S = #state{term = Term, session = Held}) when Held =/= none ->", 1},
        {"numbers go on in the next term", ?NODE,
            "number(_, _) -> 0.", "number(_, #key{number = Number}) -> Number.", 1},
        {"what is in use goes back", ?NODE, "min(Given, max(Target, InUse))", "min(Given, Target)", 2},
        {"the table keeps more than the target", ?NODE,
            "effect({set_share, Key, Target, Limit, Passed}, S).",
            "effect({set_share, Key, Target + 1, Limit, Passed}, S).", 1},
        {"a new limit is not repeated to another allocator", ?NODE,
            "declared = K#key.declared,", "declared = case Term of 1 -> K#key.declared; _ -> none end,", 1},
        {"a demand is sent once", ?NODE, "MaySend andalso is_news(Demand, K)", "false", 3},
        {"a call is granted without the check of the lock", ?SHELL,
            "case is_held({node, Node}, Session, W) of\n        true ->\n            count(grants",
            "case true of\n        true ->\n            count(grants", 2},
        {"the allocator sends without the check of its lock", ?SHELL,
            "case is_held(allocator, Term, W) of", "case is_held(allocator, Term, W) orelse not one_in(40) of", 4},
        {"collected permits stay with a waiter", ?SHELL,
            "Queue = [{K, 0, S} || {K, _, S} <- T#table.queue],", "Queue = T#table.queue,", 1},
        {"a larger request is not reported", ?NODE,
            "when Next > Given, Next =/= Sent ->\n", "when Next > Given, Next =/= Sent, Next < 0 ->\n", 1286},
        {"a node that has waited for its turn is forgotten", ?LEDGER,
            "Since + Round_ms > Now_ms] of", "Since + Round_ms > Now_ms + 1_000_000] of", 1},
        {"a session begins with a share of what is in use", ?SHELL,
            "share = 0,\n            %% So", "share = in_use(T),\n            %% So", 1},
        {"a new agent keeps the shares of the table", ?SHELL,
            "end_session(Node, put_node(Node, N#node{agent = canal_lock_cluster_node:new()}, W));",
            "put_node(Node, N#node{agent = canal_lock_cluster_node:new()}, W);", 1},
        {"a new table is not noticed", ?SHELL,
            "not IsHeld; N#node.serial =/= N#node.agent_serial ->", "not IsHeld ->", 1}
    ].

%% The history that finds the bug, of `First' and `Seeds'. `none': there is none.
search({Name, File, Text, Replacement, First}, Seeds) ->
    Module = list_to_atom(filename:basename(File, ".erl")),
    Root = root(),
    {ok, Source} = file:read_file(filename:join(Root, File)),
    {Name, [_]} = {Name, binary:matches(Source, list_to_binary(Text))},
    Changed = binary:replace(Source, list_to_binary(Text), list_to_binary(Replacement)),
    ok = load(Module, Root, File, Changed),
    try
        first([First | Seeds])
    after
        ok = load(Module, Root, File, Source)
    end.

load(Module, Root, File, Source) ->
    Path = filename:join([Root, "_build", "seeded", filename:basename(File)]),
    ok = filelib:ensure_dir(Path),
    ok = file:write_file(Path, Source),
    Options = [binary, {i, filename:join(Root, filename:dirname(File))}, {i, filename:join(Root, "src/cluster")}],
    {ok, Module, Code} = compile:file(Path, Options),
    _ = code:purge(Module),
    {module, Module} = code:load_binary(Module, Path, Code),
    ok.

first([]) ->
    none;
first([Seed | Seeds]) ->
    try test_cluster_simulation:run(Seed) of
        _ -> first(Seeds)
    catch
        error:Reason -> {Seed, Reason}
    end.

%% The folder of the project.
root() ->
    {ok, Here} = file:get_cwd(),
    Here.
