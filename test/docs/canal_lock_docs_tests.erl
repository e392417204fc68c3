%% Runs the shell sessions in the documents and in the docs of modules, checks links and the tables of calls, and
%% checks that the shell shows the docs of every public function.
-module(canal_lock_docs_tests).

-include_lib("eunit/include/eunit.hrl").

-define(TIMEOUT_S, 300).

%% Public modules whose docs contain sessions.
-define(MODULES, ["src/canal_lock.erl", "src/quorum/canal_lock_quorum.erl"]).

%%% Transcripts

%% Each session runs in a shell of its own, which finds the modules of the page.
transcripts_test_() ->
    {inparallel, 2, [
        {timeout, ?TIMEOUT_S, {lists:concat([File, ", line ", Line]), fun() -> assert_shows(Steps, Modules) end}}
     || File <- ["README.md" | ?MODULES ++ filelib:wildcard("docs/*.md")],
        Modules <- [modules(File)],
        {Line, Steps} <- transcripts(File)
    ]}.

%% Fails if transcripts/1 no longer finds sessions.
there_are_transcripts_test_() ->
    {timeout, ?TIMEOUT_S, fun there_are_transcripts/0}.

there_are_transcripts() ->
    [?assertNotEqual([], transcripts(File)) || File <- ["README.md" | ?MODULES]].

%% Blocks that begin with the first prompt of a shell: `{LineNumber, Steps}'.
transcripts(File) ->
    {ok, Text} = file:read_file(File),
    Lines = [without_comment(Line) || Line <- string:split(unicode:characters_to_list(Text), "\n", all)],
    Numbered = lists:zip(lists:seq(1, length(Lines)), Lines),
    [
        {Number, steps([Line || {_, Line} <- lists:takewhile(fun is_inside/1, Block)])}
     || {Number, "1> " ++ _} <- Numbered,
        Block <- [lists:nthtail(Number - 1, Numbered)]
    ].

%% The docs of a module are comments.
without_comment("%% " ++ Line) -> Line;
without_comment(Line) -> Line.

is_inside({_, "```" ++ _}) -> false;
is_inside({_, "'''" ++ _}) -> false;
is_inside(_) -> true.

%% `{Typed, Shown}' for each prompt.
steps([]) ->
    [];
steps([Prompted | Lines]) ->
    {match, [First]} = re:run(Prompted, "^[0-9]+> (.*)$", [{capture, all_but_first, list}]),
    {Typed, Others} = typed(First, Lines),
    {Shown, Rest} = lists:splitwith(fun(Line) -> re:run(Line, "^[0-9]+> ") =:= nomatch end, Others),
    [{Typed, lists:join($\n, Shown)} | steps(Rest)].

%% An expression ends with a full stop at the end of a line.
typed(Typed, Lines) ->
    case {lists:suffix(".", Typed), Lines} of
        {true, _} -> {Typed, Lines};
        {false, [Line | Rest]} -> typed(Typed ++ [$\n | Line], Rest)
    end.

%% The folder of the compiled modules. A module is a block that begins with its name.
modules(File) ->
    Folder = filename:join("_build/modules of docs", filename:basename(File)),
    lists:foreach(
        fun([Text, Name]) ->
            Source = filename:join(Folder, Name ++ ".erl"),
            ok = filelib:ensure_dir(Source),
            ok = file:write_file(Source, unicode:characters_to_binary(Text)),
            {ok, _} = compile:file(Source, [{outdir, Folder}, warnings_as_errors, report])
        end,
        matches(File, "(?s)^```erlang\n(-module\\(([a-z_]+)\\).*?)^```")
    ),
    Folder.

assert_shows(Steps, Modules) ->
    {Typed, Expected} = lists:unzip(Steps),
    Shown = shell(Typed, [Modules]),
    ?assertEqual(length(Typed), length(Shown)),
    [
        ?assertEqual({Input, test_shown:value(Wanted)}, {Input, test_shown:value(Got)})
     || {Input, Wanted, Got} <- lists:zip3(Typed, Expected, Shown)
    ].

shell(Typed) ->
    shell(Typed, []).

%% The output of a new shell after each input, with these folders of modules.
shell(Typed, Folders) ->
    Erl = filename:join([code:root_dir(), "bin", "erl"]),
    Ebin = filename:dirname(code:which(canal_lock)),
    Port = open_port({spawn_executable, Erl}, [
        {args, ["-kernel", "logger_level", "none", "-pa", Ebin | Folders]},
        {env, [{"TERM", "dumb"}]}, exit_status, use_stdio
    ]),
    true = port_command(Port, [[[Line, $\n] || Line <- Typed], "halt().\n"]),
    %% Since OTP 26 the prompt is shown again in front of each further line of an input.
    [_Greeting | Shown] = re:split(output(Port, []), "^(?:[0-9]+> )+", [multiline, {return, list}]),
    %% Without the prompt of `halt().', which OTP 25 shows.
    lists:sublist(Shown, length(Typed)).

output(Port, Output) ->
    receive
        {Port, {data, Data}} -> output(Port, [Output | Data]);
        {Port, {exit_status, 0}} -> Output
    end.

%%% Calls and links

the_tables_of_calls_match_the_exports_test_() ->
    [
        {File, ?_assertEqual(lists:sort(functions(Module)), calls(File, Module))}
     || {File, Module} <- [
            {"docs/api.md", canal_lock},
            {"docs/cluster.md", canal_lock_quorum},
            {"docs/cluster_permits.md", canal_lock_cluster}
        ]
    ].

%% The calls in backquotes, with names as arguments: `acquire(Key, MaxPer, Buckets)'.
calls(File, Module) ->
    Named = matches(File, lists:concat(["`(?:", Module, ":)?([a-z_]+)\\(([A-Za-z_, ]*)\\)`"])),
    ?assertNotEqual([], Named),
    lists:usort([{list_to_atom(Name), length(string:lexemes(Arguments, ","))} || [Name, Arguments] <- Named]).

every_link_leads_to_a_file_or_heading_test_() ->
    [
        {File ++ ": " ++ Link, ?_assert(has_target(filename:dirname(File), File, Link))}
     || Files <- ["*.md", "{docs,bench}/*.md", "examples/*/*.md"],
        File <- filelib:wildcard(Files),
        [Link] <- matches(File, "\\]\\(([^)]*)\\)"),
        string:prefix(Link, "https://") =:= nomatch
    ].

has_target(Folder, From, Link) ->
    case string:split(Link, "#") of
        [Path] -> filelib:is_file(filename:join(Folder, Path));
        ["", Heading] -> lists:member(Heading, headings(From));
        [Path, Heading] -> lists:member(Heading, headings(filename:join(Folder, Path)))
    end.

%% The anchors that GitHub and ExDoc make of headings.
headings(File) ->
    [anchor(Heading) || [Heading] <- matches(File, "^#+ (.*)$")].

anchor(Heading) ->
    Plain = re:replace(string:lowercase(Heading), "[^\\w -]", "", [global, unicode, {return, list}]),
    lists:flatten(string:replace(Plain, " ", "-", all)).

matches(File, Pattern) ->
    {ok, Text} = file:read_file(File),
    case re:run(Text, Pattern, [global, multiline, unicode, {capture, all_but_first, list}]) of
        {match, Found} -> Found;
        nomatch -> []
    end.

functions(Module) ->
    Module:module_info(exports) -- [{module_info, 0}, {module_info, 1}].

%%% Docs in the shell

%% The build writes them to where the shell reads them (EEP 48).
every_function_has_docs_test_() ->
    Modules = [canal_lock, canal_lock_quorum, canal_lock_cluster],
    [{atom_to_list(Module), fun() -> has_docs(Module) end} || Module <- Modules].

has_docs(Module) ->
    {ok, {docs_v1, _, erlang, _, #{<<"en">> := Head}, _, Docs}} = code:get_doc(Module),
    Documented = [{Name, Arity} || {{function, Name, Arity}, _, _, #{<<"en">> := [_ | _]}, _} <- Docs],
    ?assertEqual(lists:sort(functions(Module)), lists:sort(Documented)),
    Listed = [{Name, Arity} || {{function, Name, Arity}, _, _, _, _} <- Docs],
    ?assertEqual([], Listed -- Documented),
    Texts = [Head | [Text || {_, _, _, #{<<"en">> := Text}, _} <- Docs]],
    ?assertEqual([], lists:flatmap(fun without_space/1, Texts)).

%% EDoc loses a space between two marks, such as `code' and emphasis.
without_space([{First, _, Left}, {Second, _, Right} = Next | Rest]) ->
    Marks = [code, em, a],
    Lost = [{Left, Right} || lists:member(First, Marks), lists:member(Second, Marks)],
    Lost ++ without_space(Left) ++ without_space([Next | Rest]);
without_space([{_, _, Inner} | Rest]) ->
    without_space(Inner) ++ without_space(Rest);
without_space([_ | Rest]) ->
    without_space(Rest);
without_space([]) ->
    [].

the_shell_shows_the_docs_test_() ->
    {timeout, ?TIMEOUT_S, fun the_shell_shows_the_docs/0}.

the_shell_shows_the_docs() ->
    [Shown] = shell(["h(canal_lock, acquire, 3)."]),
    [
        ?assertNotEqual(nomatch, string:find(test_shown:words(Shown), Words))
     || Words <- ["-spec acquire(Key :: key(), MaxPer ::", "Acquires a permit of Key for the calling process"]
    ].

the_shell_shows_the_telemetry_events_test_() ->
    {timeout, ?TIMEOUT_S, fun the_shell_shows_the_telemetry_events/0}.

the_shell_shows_the_telemetry_events() ->
    Events = [
        {"canal_lock_telemetry", "[canal_lock, totals]"},
        {"canal_lock_quorum_telemetry", "[canal_lock, quorum, totals]"},
        {"canal_lock_cluster_telemetry", "[canal_lock, cluster, totals]"}
    ],
    [
        begin
            [Shown] = shell(["h(" ++ Module ++ ")."]),
            ?assertNotEqual(nomatch, string:find(test_shown:words(Shown), Event))
        end
     || {Module, Event} <- Events
    ].

%% A chunk is written again only if its source is newer. Only public modules have chunks.
docs_follow_their_sources_test_() ->
    {timeout, ?TIMEOUT_S, fun docs_follow_their_sources/0}.

docs_follow_their_sources() ->
    Folder = "_build/docs tests",
    _ = file:del_dir_r(Folder),
    Chunks = fun() -> lists:sort(filelib:wildcard(filename:join(Folder, "chunks/*"))) end,
    make_docs(Folder),
    Made = Chunks(),
    Modules = [
        canal_lock, canal_lock_cluster, canal_lock_cluster_telemetry, canal_lock_quorum, canal_lock_quorum_singleton,
        canal_lock_quorum_telemetry, canal_lock_telemetry
    ],
    Public = [atom_to_list(Module) ++ ".chunk" || Module <- Modules],
    ?assertEqual(Public, [filename:basename(Chunk) || Chunk <- Made]),
    [One, Other | _] = Made,
    Old = {{2001, 1, 1}, {0, 0, 0}},
    [ok = file:write_file(Chunk, "of another source") || Chunk <- Made],
    ok = file:change_time(One, Old),
    make_docs(Folder),
    ?assertEqual(Made, Chunks()),
    ?assertEqual({ok, <<"of another source">>}, file:read_file(Other)),
    {ok, Chunk} = file:read_file(One),
    ?assertMatch({docs_v1, _, erlang, _, _, _, _}, binary_to_term(Chunk)).

%% The script prints nothing.
make_docs(Folder) ->
    Escript = filename:join([code:root_dir(), "bin", "escript"]),
    ?assertEqual({0, <<>>}, test_program:run(Escript, ["scripts/shell_docs.escript", Folder])).
