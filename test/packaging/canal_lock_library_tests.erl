%% A native library that does not load: the VM's log and the answer of `start_link' name the file, the reason and the
%% remedy. For the library of the quorum locks, which is loaded on demand, the answer of `load' does. Each test runs
%% in a VM of its own with a copy of canal_lock that has such a file.
-module(canal_lock_library_tests).

-include_lib("eunit/include/eunit.hrl").

-export([log/2]).

library_test_() ->
    test_setup:tests(without_manager, [
        {"the application without its native library does not start and says why", fun application_says_why/0},
        {"the next start loads a correct library that has replaced a wrong one", fun another_start/0},
        {"an escript with canal_lock says what to do, and that works", fun in_an_escript/0},
        {"P9: a native library in use is not replaced, and the error says why", fun in_use/0},
        {"the library of the quorum locks is loaded on demand, and once. If it is missing, permits work", fun quorum/0}
    ]).

far_path_test_() ->
    Title = "a path with characters that not every log can show",
    case file:native_name_encoding() of
        utf8 -> test_setup:tests(without_manager, [{Title, fun far_path/0}]);
        latin1 -> test_setup:skipped(Title, {impossible, "file names are bytes on this system, not UTF-8"})
    end.

elf_test_() ->
    case os:type() of
        {unix, linux} ->
            test_setup:tests(without_manager, [
                {"P9: a wrong or truncated library does not crash the VM, and the error says why", fun wrong/0},
                {"the libraries load when other libraries have used up the static TLS space", fun no_static_tls/0},
                {"the library of the quorum locks is truncated before and after it is loaded", fun quorum_cut_short/0},
                {"the library of the quorum locks is not in memory before the first use", fun quorum_mapped/0}
            ]);
        _ ->
            test_setup:skipped("wrong native libraries", {impossible, "the tests read ELF files of Linux"})
    end.

no_static_tls() ->
    [_, _] = Libraries = filelib:wildcard(filename:join(code:priv_dir(canal_lock), "*.so")),
    lists:foreach(fun(Library) ->
        Flags = os:cmd("readelf --dynamic '" ++ Library ++ "'"),
        ?assertNotEqual({Flags, nomatch}, {Flags, string:find(Flags, "(NEEDED)")}),
        ?assertEqual({Flags, nomatch}, {Flags, string:find(Flags, "STATIC_TLS")})
    end, Libraries).

far_path() ->
    Copy = copy([16#65e5], none),
    {{error, {nif_not_loaded, Sentences}}, [Report]} = in_a_vm(Copy, fun() ->
        reported(fun() -> canal_lock:start_link(3) end)
    end),
    names(Copy, Sentences),
    ?assert(io_lib:printable_latin1_list(Report)),
    ?assertNotEqual(nomatch, string:find(Report, [16#e9 | "\\x{65E5}/canal_lock/priv/"])),
    %% The text of the VM contains the path too.
    [_, _, _] = string:split(Sentences, <<"\x{65e5}"/utf8>>, all).

%% A file, and what the system's loader or the VM says about it. Libraries are cut at the start, in the header, in the
%% middle and before the last byte. 22 is ELF's number of a rare machine.
wrong() ->
    Library = library(),
    <<Before:18/binary, _:2/binary, After/binary>> = Library,
    lists:foreach(fun({File, Text}) -> contains(is_refused("wrong", File), Text) end, [
        {none, <<"No such file or directory">>},
        {<<"no library, but more than the twenty bytes of a header">>, <<"file too short">>},
        {binary:copy(<<"no library ">>, 1000), <<"invalid ELF header">>},
        {<<Before/binary, 22:16/little, After/binary>>, <<"cannot open shared object file">>},
        %% Without one of the functions.
        {replaced(<<0, "has_unused", 0>>, <<0, "had_unused", 0>>), <<"canal_lock_nif:had_unused/0">>}
        | [{binary:part(Library, 0, Bytes), <<"file too short">>} || Bytes <- [0, 10]]
        ++ [{binary:part(Library, 0, Bytes), <<": the file is truncated. Rebuild it for this kind of machine">>}
            || Bytes <- [100, 100_000, byte_size(Library) - 1]]
    ]).

contains(Sentences, Part) ->
    ?assertMatch({_, {_, _}}, {Sentences, binary:match(Sentences, Part)}).

lacks(Sentences, Part) ->
    ?assertEqual({Sentences, nomatch}, {Sentences, binary:match(Sentences, Part)}).

application_says_why() ->
    Copy = copy("application", none),
    Answer = in_a_vm(Copy, fun() ->
        application:start(canal_lock)
    end),
    {error, {{nif_not_loaded, Sentences}, {canal_lock_app, start, _}}} = Answer,
    names(Copy, Sentences).

another_start() ->
    Copy = copy("another start", <<"no library">>),
    Good = library(),
    {Refused, Started} = in_a_vm(Copy, fun() ->
        Refused = canal_lock:start_link(3),
        ok = file:write_file(native(Copy), Good),
        {ok, _} = canal_lock:start_link(3),
        {Refused, canal_lock:acquire(db, 3, 1)}
    end),
    ?assertMatch({error, {nif_not_loaded, _}}, Refused),
    ?assertEqual({acquired, 1}, Started).

%% The escript contains the modules of canal_lock and its native libraries. It adds its arguments to the code path.
in_an_escript() ->
    Copy = copy("escript", library()),
    Source = filename:join(filename:dirname(Copy), "program.erl"),
    ok = file:write_file(Source,
        "-module(program). -export([main/1]).\n"
        "main(Paths) ->\n"
        "    ok = code:add_pathsa(Paths),\n"
        "    io:format(\"~0tp\", [{canal_lock:start_link(3), catch canal_lock:acquire(db, 3, 1)}]).\n"
    ),
    {ok, program, Main} = compile:file(Source, [binary]),
    Files = [
        {filename:join(["canal_lock", Folder, filename:basename(File)]), Bytes}
     || Folder <- ["ebin", "priv"],
        File <- filelib:wildcard(filename:join([Copy, Folder, "*"])),
        {ok, Bytes} <- [file:read_file(File)]
    ],
    Script = filename:rootname(Source),
    ok = escript:create(Script, [
        {emu_args, "-escript main program -kernel logger_level none"},
        {archive, [{"program/ebin/program.beam", Main} | Files], []}
    ]),
    Said = run_escript([Script]),
    [contains(Said, Part) || Part <- [<<"{{error,{nif_not_loaded,">>, <<"from an escript">>, <<"code:add_patha(">>]],
    lacks(Said, <<"Rebuild">>),
    ?assertMatch({match, _}, re:run(run_escript([Script, filename:join(Copy, "ebin")]), "^{{ok,<.*>},{acquired,1}}$")).

run_escript(Arguments) ->
    {0, Output} = test_program:run(filename:join([code:root_dir(), "bin", "escript"]), Arguments),
    Output.

in_use() ->
    Copy = copy("in use", library()),
    {Reports, Answer} = in_a_vm(Copy, fun() ->
        {ok, _} = canal_lock:start_link(3),
        %% Changes of the file after the load have no effect.
        ok = file:delete(native(Copy)),
        {{error, on_load_failure}, Reports} = reported(fun() -> code:load_file(canal_lock_nif) end),
        ok = canal_lock:stop(),
        true = code:delete(canal_lock_nif),
        {Reports, canal_lock:start_link(3)}
    end),
    {error, {nif_not_loaded, Sentences}} = Answer,
    [Report] = Reports,
    ?assertEqual(Report, unicode:characters_to_list(Sentences)),
    contains(Sentences, <<"a new version needs a new node.">>),
    lacks(Sentences, <<"No such file">>),
    lacks(Sentences, <<"rebar3">>).

%% Once a correct file exists, the next call loads it. Deleting the file after that has no effect.
quorum() ->
    Copy = copy("quorum", library()),
    Native = native(Copy, canal_lock_quorum_nif),
    Right = library(canal_lock_quorum_nif),
    Sentences = in_a_vm(Copy, fun() ->
        {ok, _} = canal_lock:start_link(3),
        {module, _} = code:ensure_loaded(canal_lock_quorum_nif),
        {{error, Sentences}, []} = reported(0, fun() -> canal_lock_quorum_nif:load() end),
        ?assertError(not_loaded, canal_lock_quorum_nif:now()),
        ?assertEqual({acquired, 1}, canal_lock:acquire(db, 3, 1)),
        ok = file:write_file(Native, Right),
        ?assertEqual(ok, canal_lock_quorum_nif:load()),
        ?assert(is_integer(canal_lock_quorum_nif:now())),
        ok = file:delete(Native),
        ?assertEqual(ok, canal_lock_quorum_nif:load()),
        Sentences
    end),
    names(Copy, canal_lock_quorum_nif, Sentences),
    Ways = [
        <<"No such file or directory">>,
        <<"`mix deps.compile canal_lock --force'">>,
        <<" A build with CANAL_LOCK_QUORUM=0, or">>
    ],
    [contains(Sentences, Way) || Way <- Ways].

quorum_cut_short() ->
    Copy = copy("quorum cut short", none),
    Native = native(Copy, canal_lock_quorum_nif),
    Right = library(canal_lock_quorum_nif),
    Half = binary:part(Right, 0, byte_size(Right) div 2),
    ok = file:write_file(Native, Half),
    Sentences = in_a_vm(Copy, fun() ->
        {error, Sentences} = canal_lock_quorum_nif:load(),
        ok = file:write_file(Native, Right),
        ?assertEqual(ok, canal_lock_quorum_nif:load()),
        %% Not overwritten in place: the VM has mapped the file.
        ok = file:delete(Native),
        ok = file:write_file(Native, Half),
        ?assertEqual(ok, canal_lock_quorum_nif:load()),
        Sentences
    end),
    names(Copy, canal_lock_quorum_nif, Sentences),
    contains(Sentences, <<": the file is truncated. Rebuild it">>).

%% Nodes that use only permits do not load it.
quorum_mapped() ->
    test_setup:in_a_vm([], fun() ->
        {ok, _} = canal_lock:start_link(3),
        {acquired, 1} = canal_lock:acquire(db, 3, 1),
        {module, _} = code:ensure_loaded(canal_lock_quorum_nif),
        ?assertEqual([true, false], [is_mapped(Module) || Module <- [canal_lock_nif, canal_lock_quorum_nif]]),
        ok = canal_lock_quorum_nif:load(),
        ?assert(is_mapped(canal_lock_quorum_nif))
    end).

is_mapped(Module) ->
    {ok, Maps} = file:read_file("/proc/self/maps"),
    binary:match(Maps, iolist_to_binary(["/", atom_to_list(Module), ".so\n"])) =/= nomatch.

%% The text of the error, which is the same in the VM's log and in the answer.
is_refused(Name, Library) ->
    Copy = copy(Name, Library),
    {{error, {nif_not_loaded, Sentences}}, Reports} = in_a_vm(Copy, fun() ->
        reported(fun() -> canal_lock:start_link(3) end)
    end),
    ?assertEqual([unicode:characters_to_list(Sentences)], Reports),
    names(Copy, Sentences),
    Ways = [
        <<"`rebar3 do clean --apps canal_lock, compile'">>,
        <<"`mix deps.compile canal_lock --force'">>,
        <<"CANAL_LOCK_ARCHIVE">>
    ],
    [contains(Sentences, Way) || Way <- Ways],
    Sentences.

names(Copy, Sentences) ->
    names(Copy, canal_lock_nif, Sentences).

names(Copy, Module, Sentences) ->
    File = unicode:characters_to_binary(native(Copy, Module)),
    contains(Sentences, <<"library ", File/binary, ": ">>).

%% A copy of canal_lock with this library or none, and without the library of the quorum locks. Its path has a space and
%% non-ASCII characters.
copy(Name, Library) ->
    Copy = filename:absname(filename:join(["_build/library tests", [$\x{e9} | Name], "canal_lock"])),
    ok = filelib:ensure_dir(filename:join([Copy, "ebin", "file"])),
    ok = filelib:ensure_dir(native(Copy)),
    _ = file:delete(native(Copy, canal_lock_quorum_nif)),
    Ebin = filename:dirname(code:which(canal_lock_nif)),
    [{ok, _} = file:copy(File, filename:join([Copy, "ebin", filename:basename(File)]))
     || File <- filelib:wildcard(filename:join(Ebin, "*"))],
    case Library of
        none -> _ = file:delete(native(Copy));
        _ -> ok = file:write_file(native(Copy), Library)
    end,
    Copy.

native(Copy) ->
    native(Copy, canal_lock_nif).

native(Copy, Module) ->
    filename:join([Copy, "priv", atom_to_list(Module) ++ ".so"]).

library() ->
    library(canal_lock_nif).

library(Module) ->
    {ok, Bytes} = file:read_file(filename:join(code:priv_dir(canal_lock), atom_to_list(Module) ++ ".so")),
    Bytes.

%% `Old' must occur in the library.
replaced(Old, New) when byte_size(Old) =:= byte_size(New) ->
    Library = library(),
    [_, _ | _] = Parts = binary:split(Library, Old, [global]),
    iolist_to_binary(lists:join(New, Parts)).

in_a_vm(Copy, Test) ->
    test_setup:in_a_vm([], fun() ->
        true = code:add_patha(filename:join(Copy, "ebin")),
        Test()
    end).

%% The answer of a call, and the texts of the VM's reports.
reported(Call) ->
    reported(1, Call).

%% Waits for this many reports. The VM sends all of them before the call returns, so a further one would be here too.
reported(Count, Call) ->
    ok = logger:set_primary_config(level, warning),
    ok = logger:remove_handler(default),
    ok = logger:add_handler(?MODULE, ?MODULE, #{config => self()}),
    Answer = Call(),
    Receive = fun() -> receive {report, [canal_lock_nif, {error, {_, Sentences}}, _]} -> Sentences end end,
    Reports = [Receive() || _ <- lists:seq(1, Count)],
    ok = logger:remove_handler(?MODULE),
    receive
        {report, More} -> error({reported, More})
    after 0 -> ok
    end,
    {Answer, Reports}.

%% Callback of logger.
log(#{msg := {report, #{label := {error_logger, warning_msg}, args := Arguments}}}, #{config := Test}) ->
    Test ! {report, Arguments};
log(_, _) ->
    ok.
