%% Builds the next version of the quorum locks, as the tests of upgrades imagine it: its frames of version 3 have one
%% more field than those of version 2, and there is one more rule, `next'.
%%
%% It is the released library with the feature `next_version', and the released modules, of which one is compiled with a
%% macro.
-module(test_next_version).

-export([build/0, use/2]).

-define(FOLDER, "_build/next_version/canal_lock").

%% Returns the folder with the modules. Cargo only builds what is not up to date.
-spec build() -> file:filename().
build() ->
    Folder = filename:absname(?FOLDER),
    Ebin = filename:join(Folder, "ebin"),
    Script = filename:absname("native/build.escript"),
    Escript = filename:join([code:root_dir(), "bin", "escript"]),
    {0, _} = test_program:run(Escript, [Script, "--next-version", filename:join(Folder, "priv")]),
    Released = filename:dirname(code:which(canal_lock_quorum_config)),
    ok = filelib:ensure_dir(filename:join(Ebin, "file")),
    [{ok, _} = file:copy(File, filename:join(Ebin, filename:basename(File))) || File <- files(Released)],
    Source = filename:absname("src/quorum/canal_lock_quorum_config.erl"),
    {ok, _} = compile:file(Source, [{d, 'NEXT_VERSION'}, {outdir, Ebin}, report, debug_info]),
    Ebin.

files(Ebin) ->
    filelib:wildcard(filename:join(Ebin, "*.{beam,app}")).

%% A node that has not used canal_lock yet uses this version.
-spec use(file:filename(), test_nodes:a_node()) -> ok.
use(Ebin, Node) ->
    test_nodes:call(Node, fun() ->
        true = code:add_patha(Ebin),
        ok = canal_lock_quorum_nif:load(),
        {2, 3} = canal_lock_quorum_nif:frame_versions(),
        ok
    end).
