#!/usr/bin/env escript
%%! +pc unicode
%% Fails if source files of a Rust crate, or Erlang modules of the library, import each other in a cycle.
%%
%%     escript scripts/cycles.escript [--imports]
%%
%% With --imports it also prints every import. An import is a path in the code, in a `use' or inline. If a module
%% re-exports a name, the import counts for the file that defines the name. Comments, `mod name;' and unit tests do not
%% count. Erlang specs, types and records are ignored, so they may refer to each other.

main(Arguments) ->
    ok = file:set_cwd(filename:dirname(filename:dirname(filename:absname(escript:script_name())))),
    Groups = [{"src", erlang_imports()} | [{Crate, rust_imports(Crate)} || Crate <- filelib:wildcard("native/*/src")]],
    [io:format("~ts: ~ts -> ~ts~n", [Group, From, To])
     || Arguments =:= ["--imports"], {Group, {_, Imports}} <- Groups, {From, To} <- Imports],
    Cycles = [{Group, Cycle} || {Group, {Files, Imports}} <- Groups, Cycle <- cycles(Files, Imports)],
    [io:format("cycles: these files of ~ts import each other: ~ts~n", [Group, lists:join(" ", lists:sort(Cycle))])
     || {Group, Cycle} <- Cycles],
    Count = lists:sum([length(Files) || {_, {Files, _}} <- Groups]),
    Cycles =:= [] andalso io:format("cycles: none in ~b files~n", [Count]),
    halt(length(Cycles)).

cycles(Files, Imports) ->
    Graph = digraph:new(),
    [digraph:add_vertex(Graph, File) || File <- Files],
    [digraph:add_edge(Graph, From, To) || {From, To} <- Imports],
    digraph_utils:cyclic_strong_components(Graph).

%%% Erlang: modules by name

erlang_imports() ->
    Texts = [{filename:basename(File, ".erl"), erlang_code(File)} || File <- filelib:wildcard("src/**/*.erl")],
    Names = [Name || {Name, _} <- Texts],
    {Names, lists:usort([{Name, To} || {Name, Text} <- Texts, [To] <- matches(Text, "\\b([a-z]\\w*):[a-z]"),
                                       To =/= Name, lists:member(To, Names)])}.

%% Without specs, types and records.
erlang_code(File) ->
    Types = "^-(spec|type|opaque|record)\\b.*?\\.$",
    re:replace(code(File, "%"), Types, "", [global, multiline, dotall, {return, list}]).

%%% Rust: files by the path of their module, such as ["key", "read"]

rust_imports(Folder) ->
    Paths = [Path || Path <- filelib:wildcard("**/*.rs", Folder), filename:basename(Path) =/= "tests.rs"],
    Modules = maps:from_list([{module(Path), rust(filename:join(Folder, Path))} || Path <- Paths]),
    Imports = [{name(From), name(To)} || {From, Text} <- maps:to_list(Modules), Used <- used(From, Text, Modules),
                                         To <- [defined_in(Used, Modules, 9)], To =/= From],
    {[name(Module) || Module <- maps:keys(Modules)], lists:usort(Imports)}.

module(Path) ->
    case lists:reverse(filename:split(filename:rootname(Path))) of
        ["lib"] -> [];
        ["mod" | Folders] -> lists:reverse(Folders);
        Names -> lists:reverse(Names)
    end.

name([]) -> "lib";
name(Module) -> lists:flatten(lists:join("/", Module)).

%% Without its unit tests. Modules inside a file belong to it, so they may refer to the code around them.
rust(File) ->
    Tests = "^#\\[cfg\\([^\n]*test[^\n]*\\)\\]\\s+mod \\w+ \\{.*?^\\}$",
    Text = re:replace(code(File, "//"), Tests, "", [global, multiline, dotall, {return, list}]),
    Inner = re:split(Text, "^((?:pub(?:\\S*) )?mod \\w+ \\{.*?^\\})$", [multiline, dotall, {return, list}]),
    lists:append([case Part of
                      [First | _] when First =:= $m; First =:= $p -> string:replace(Part, "super::", "", all);
                      _ -> Part
                  end || Part <- Inner]).

%% The absolute paths that a module names.
used(Module, Text, Modules) ->
    Uses = [Path || [Tree] <- matches(Text, "\\buse ([^;]+);"), Path <- flatten(Tree)],
    Inline = [string:split(Path, "::", all) || [Path] <- matches(Text, "\\b((?:crate|super|self)(?:::\\w+)+)")],
    Children = [[Child | string:split(Rest, "::", all)]
                || [Child, Rest] <- matches(Text, "\\b([a-z_]\\w*)::(\\w+(?:::\\w+)*)"),
                   maps:is_key(Module ++ [Child], Modules)],
    [Absolute || Path <- Uses ++ Inline ++ Children, {ok, Absolute} <- [absolute(Path, Module, Modules)]].

absolute(["crate" | Path], _, _) -> {ok, Path};
absolute(["self" | Path], Module, _) -> {ok, Module ++ Path};
absolute(["super", "super" | Path], Module, Modules) -> absolute(["super" | Path], lists:droplast(Module), Modules);
absolute(["super" | Path], Module, _) when Module =/= [] -> {ok, lists:droplast(Module) ++ Path};
absolute([First | _] = Path, Module, Modules) ->
    case maps:is_key(Module ++ [First], Modules) of
        true -> {ok, Module ++ Path};
        false -> other_crate
    end;
absolute(_, _, _) -> other_crate.

%% `a::{b, c::{d, e}}' as its paths.
flatten(Tree) ->
    {Paths, ""} = tree(re:replace(Tree, "\\s+as\\s+\\w+|\\s+", "", [global, {return, list}]), []),
    Paths.

tree(Text, Prefix) ->
    {Name, Rest} = string:take(Text, "{},:", true),
    case Rest of
        "::" ++ Further -> tree(Further, Prefix ++ [Name]);
        "{" ++ Further -> branches(Further, Prefix, []);
        _ -> {[Prefix ++ [Name]], Rest}
    end.

branches("}" ++ Rest, _, Paths) -> {Paths, Rest};
branches("," ++ Rest, Prefix, Paths) -> branches(Rest, Prefix, Paths);
branches(Text, Prefix, Paths) ->
    {More, Rest} = tree(Text, Prefix),
    branches(Rest, Prefix, Paths ++ More).

%% The module that defines what a path names. The longest beginning of the path that is a module either defines the next
%% name or re-exports it.
defined_in(Path, Modules, Depth) ->
    Module = longest(Path, Modules),
    case lists:nthtail(length(Module), Path) of
        [Name | _] when Depth > 0 ->
            Text = maps:get(Module, Modules),
            Trees = matches(Text, "\\bpub(?:\\([^)]*\\))? use ([^;]+);"),
            Sources = [Absolute || [Tree] <- Trees, Source <- flatten(Tree), lists:last(Source) =:= Name,
                                   {ok, Absolute} <- [absolute(Source, Module, Modules)]],
            case Sources of
                [Source | _] -> defined_in(Source, Modules, Depth - 1);
                [] -> Module
            end;
        _ ->
            Module
    end.

longest(Path, Modules) ->
    case maps:is_key(Path, Modules) orelse Path =:= [] of
        true -> Path;
        false -> longest(lists:droplast(Path), Modules)
    end.

%%% Text

%% Without comments and strings. A quotation mark can also be a character literal.
code(File, Comment) ->
    {ok, Text} = file:read_file(File),
    Skipped = ["'\"'|\\$\"|\"(?:[^\"\\\\]|\\\\.)*\"|", Comment, "[^\n]*"],
    unicode:characters_to_list(re:replace(Text, Skipped, "", [global, dotall])).

matches(Text, Pattern) ->
    case re:run(Text, Pattern, [global, unicode, {capture, all_but_first, list}]) of
        {match, Found} -> Found;
        nomatch -> []
    end.
