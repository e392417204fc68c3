#!/usr/bin/env escript
%% Builds native libraries of this workspace and installs them where the VM loads them from.
%%
%%     escript native/build.escript [--package NAME] [--faults | --next-version] [FOLDER]
%%
%% Builds canal_lock_nif (permits) and canal_lock_quorum_nif (quorum locks), or only NAME. Installs FOLDER/NAME.so.
%% FOLDER is the `priv' folder of this project by default. With --faults it builds a canal_lock_nif for tests, which can
%% inject failures; with --next-version a canal_lock_quorum_nif for tests of upgrades. rebar3 and mix call this file. An
%% escript needs only Erlang: no make and no shell.
%%
%% Standard output is one line if something was installed, and empty if everything was up to date: mix relies on that.
%% Everything else goes to standard error. The exit status of a failure is 1. If a library cannot be built, read or
%% checked, the script installs none. It then replaces the files one by one.
%%
%% Environment:
%%   CANAL_LOCK_NIF_LIBRARY         absolute path of a file to install instead of building, which needs no Rust: an
%%                                  archive from `make dist' (.tar.gz) with its checksum beside it (.tar.gz.sha256),
%%                                  which contains both libraries; or canal_lock_nif alone (.so, .dylib, .dll)
%%   CANAL_LOCK_QUORUM_NIF_LIBRARY  the same for canal_lock_quorum_nif; takes precedence over the archive above
%%   CANAL_LOCK_PRECOMPILED_URL     where a release has its archives: an address, or the absolute path of a folder. If
%%                                  this machine lacks Rust, precompiled.escript gets the archive from there
%%   CANAL_LOCK_PRECOMPILED         1: gets the archive even if there is Rust; 0: never gets it
%%   CANAL_LOCK_QUORUM              0: leaves out canal_lock_quorum_nif
%%   CARGO                          the cargo to use; by default, that on PATH or in cargo's home
%% In a project, rebar.config can have the settings {canal_lock, [{precompiled_url, URL}, {precompiled, Boolean},
%% {quorum, Boolean}]}, which mix takes from the environment of the application canal_lock. The variables take
%% precedence.
%%
%% If CANAL_LOCK_NIF_LIBRARY is canal_lock_nif alone, canal_lock_quorum_nif is not built, because the machine probably
%% has no Rust. If canal_lock_quorum_nif is not built or left out, an existing one in FOLDER is removed, because it may
%% be of other sources. Permits work without it; starting the quorum locks fails then, and the error explains how to
%% install it.
%%
%% Cargo's own variables (CARGO_TARGET_DIR, CARGO_BUILD_TARGET, RUSTFLAGS...) work as usual. Cargo downloads missing
%% crates. If it cannot, this script explains how to provide them.

-define(OURS, "canal_lock_nif").
-define(QUORUM, "canal_lock_quorum_nif").

main(Args) ->
    %% mix reads the output as UTF-8, whatever the locale is.
    [ok = io:setopts(Device, [{encoding, unicode}]) || Device <- [standard_io, standard_error]],
    try
        Priv = filename:join(filename:dirname(workspace()), "priv"),
        Options = options(Args, #{variant => release, folder => Priv}),
        report(install(libraries(Options), maps:get(folder, Options)))
    catch
        throw:{sentence, Format, Values} ->
            io:format(standard_error, "canal_lock: " ++ Format ++ "~n", Values),
            halt(1)
    end.

-spec stop(string(), [term()]) -> no_return().
stop(Format, Values) ->
    throw({sentence, Format, Values}).

options(["--package", Name | Rest], Options) -> options(Rest, Options#{package => Name});
options(["--faults" | Rest], Options) -> options(Rest, Options#{variant := faults});
options(["--next-version" | Rest], Options) -> options(Rest, Options#{variant := next_version});
options([], Options) -> Options;
options([[First | _] = Folder], Options) when First =/= $- -> Options#{folder := Folder};
options(_, _) -> stop("usage: escript build.escript [--package NAME] [--faults | --next-version] [FOLDER]", []).

%% The working directory of the caller does not matter.
workspace() ->
    filename:dirname(filename:absname(escript:script_name())).

%% The extension that erlang:load_nif/2 appends. On macOS cargo uses another.
extension() ->
    case os:type() of
        {win32, _} -> ".dll";
        _ -> ".so"
    end.

%% The packages to install, and those that must not be there.
packages(#{package := Name}) -> {[Name], []};
packages(#{variant := faults}) -> {[?OURS], []};
packages(#{variant := next_version}) -> {[?QUORUM], []};
packages(#{}) ->
    case flag("CANAL_LOCK_QUORUM", quorum) of
        false -> {[?OURS], [?QUORUM]};
        _ -> {[?OURS, ?QUORUM], []}
    end.

%% true, false or none.
flag(Variable, Key) ->
    case setting(Variable, Key) of
        "0" -> false;
        "1" -> true;
        Flag when is_boolean(Flag); Flag =:= none -> Flag;
        Other -> stop("~ts must be 0 or 1, or the setting ~s of canal_lock true or false, got: ~tp.",
                      [Variable, Key, Other])
    end.

text(Variable, Key) ->
    Value = setting(Variable, Key),
    Value =:= none orelse io_lib:printable_unicode_list(Value) orelse
        stop("the setting ~s of canal_lock must be a string, got: ~tp.", [Key, Value]),
    Value.

%% In the environment or in the project that is built.
setting(Variable, Key) ->
    case {os:getenv(Variable, ""), lists:keyfind(Key, 1, project_settings())} of
        {[_ | _] = Value, _} -> Value;
        {"", {Key, Value}} -> Value;
        {"", false} -> none
    end.

%% Of a project that rebar3 builds. mix.exs sets the variables.
project_settings() ->
    case file:consult(filename:join(os:getenv("REBAR_ROOT_DIR", "/nowhere"), "rebar.config")) of
        {ok, Terms} -> proplists:get_value(canal_lock, Terms, []);
        {error, _} -> []
    end.

%% The bytes of each library, or `none' for one that must not be there.
libraries(#{variant := Variant} = Options) when Variant =/= release ->
    {Packages, []} = packages(Options),
    build(Packages, for_tests(Variant));
libraries(Options) ->
    {Packages, LeftOut} = packages(Options),
    %% First, because these checks are quick and cargo is not.
    Ready = [{Package, ready_made(By, Path, Package)} || Package <- Packages, {By, Path} <- named(Package)],
    Ready ++ made([Package || Package <- Packages, not lists:keymember(Package, 1, Ready)]) ++
        [{Package, none} || Package <- LeftOut].

made([]) ->
    [];
made(Packages) ->
    case archive_address(Packages) of
        none ->
            build(Packages, release());
        Address ->
            {Archive, Bytes} = precompiled(Address),
            [{Package, from_archive(Archive, Bytes, Package ++ extension())} || Package <- Packages]
    end.

%% `none' to build with cargo.
archive_address(Packages) ->
    Url = text("CANAL_LOCK_PRECOMPILED_URL", precompiled_url),
    case {Packages -- [?OURS, ?QUORUM], flag("CANAL_LOCK_PRECOMPILED", precompiled), Url} of
        {[_ | _], _, _} -> none;
        {[], true, none} -> stop("CANAL_LOCK_PRECOMPILED is set, but CANAL_LOCK_PRECOMPILED_URL is not.", []);
        {[], true, _} -> Url;
        {[], none, [_ | _]} -> case has_rust() of true -> none; false -> Url end;
        {[], _, _} -> none
    end.

%% A verified archive. The script prints its own errors. The checksum is compared again with what is read here.
precompiled(Address) ->
    Escript = filename:join([code:root_dir(), "bin", "escript"]),
    case run(Escript, [filename:join(workspace(), "precompiled.escript"), Address], []) of
        {0, [<<Sum:64/binary, " ", Utf8/binary>> | _]} ->
            Path = unicode:characters_to_list(Utf8),
            Bytes = must("read", Path, file:read_file(Path)),
            compare(Path, Sum, sha256(Path, Bytes)),
            {Path, Bytes};
        {_, _} ->
            halt(1)
    end.

%% The file to install instead of building, if there is one.
named(Package) ->
    Set = [{Variable, Path} || Variable <- variables(Package), Path <- [os:getenv(Variable, "")], Path =/= ""],
    lists:sublist(Set, 1).

%% The first one that is set is used.
variables(?OURS) -> ["CANAL_LOCK_NIF_LIBRARY"];
variables(?QUORUM) -> ["CANAL_LOCK_QUORUM_NIF_LIBRARY", "CANAL_LOCK_NIF_LIBRARY"];
variables(_) -> [].

release() -> ["--release"].

%% With a target folder of its own, so that neither build causes the other to start over.
for_tests(Feature) ->
    ["--profile", "faults", "--features", atom_to_list(Feature), "--target-dir", "../_build/cargo-faults"].

%%% Cargo

build([], _) ->
    [];
build(Packages, Kind) ->
    {Cargo, Env} = cargo(),
    check_version("cargo", Cargo, Env),
    check_version("rustc", rustc(Env), Env),
    %% In one call, so that shared crates are compiled once.
    Args = ["build" | Kind] ++ ["--locked", "--message-format=json-render-diagnostics" | asked_for(Packages)],
    case run(Cargo, Args, Env) of
        {0, Lines} ->
            [{Package, built(Package, Lines)} || Package <- Packages];
        {Status, _} ->
            stop("cargo failed to build ~ts (status ~b); see its output above.~ts",
                 [in_words(Packages), Status, help(Cargo, Packages, Env)])
    end.

%% rustler generates the entry point of a library only for packages that are named on cargo's command line.
asked_for(Packages) ->
    lists:append([["-p", Package] || Package <- Packages]).

built(Package, Lines) ->
    case [Path || Line <- Lines, Path <- announced(Line, Package)] of
        [Path | _] -> must("read", Path, file:read_file(Path));
        [] -> stop("cargo built ~ts but no shared library of it. ~ts", [Package, musl()])
    end.

in_words([Package]) -> "the library " ++ Package;
in_words(Packages) -> "the libraries " ++ lists:join(" and ", Packages).

%% Advice for failures that cargo's output does not explain.
help(Cargo, Packages, Env) ->
    case are_crates_missing(Cargo, Packages, Env) of
        true ->
            io_lib:format(
                " Crates are missing on this machine, and cargo cannot download them. On a machine with network "
                "access, run \"cargo vendor --locked FOLDER\" in a copy of ~ts. Copy FOLDER to this machine, and write "
                "the lines that cargo printed into ~ts, with the absolute path of FOLDER on this machine. Or ~ts.",
                [workspace(), filename:join(cargo_home(), "config.toml"), elsewhere()]);
        false ->
            [[" ", musl()] || is_for_musl(Env), are_flags_replaced()] ++
                [" There is no cc on PATH, which Rust uses as its linker: install a C compiler."
                 || {unix, _} <- [os:type()], os:find_executable("cc") =:= false]
    end.

%% Cargo downloads all crates before it compiles any, so after a failure of another kind none is missing. This asks for
%% the crates of this build only: others in the lock file may never have been downloaded.
are_crates_missing(Cargo, Packages, Env) ->
    Args = ["tree", "--locked", "--offline", "-e", "no-dev" | asked_for(Packages)],
    {Status, Lines} = run(Cargo, Args, Env, [stderr_to_stdout]),
    Status =/= 0 andalso re:run(Lines, "--offline was specified|offline mode \\((via `)?--offline") =/= nomatch.

musl() ->
    "For musl, rustc builds a shared library only with \"-C target-feature=-crt-static\". RUSTFLAGS or "
    "CARGO_ENCODED_RUSTFLAGS in the environment replaces this flag of native/.cargo/config.toml: add it there.".

is_for_musl(Env) ->
    {_, Lines} = run(rustc(Env), ["-vV"], Env),
    Host = [Host || <<"host: ", Host/binary>> <- Lines],
    string:find(os:getenv("CARGO_BUILD_TARGET", Host), "-musl") =/= nomatch.

are_flags_replaced() ->
    Flags = [Flags || Name <- ["CARGO_ENCODED_RUSTFLAGS", "RUSTFLAGS"], Flags <- [os:getenv(Name, "")], Flags =/= ""],
    Flags =/= [] andalso string:find(hd(Flags), "-crt-static") =:= nomatch.

cargo() ->
    case find_cargo() of
        none ->
            stop("the build needs Rust ~ts or newer, but there is no cargo in $CARGO, on PATH or in ~ts: ~ts.",
                 [needed_version(), filename:join(cargo_home(), "bin"), remedy()]);
        Found ->
            Found
    end.

has_rust() ->
    case find_cargo() of
        none ->
            false;
        {Cargo, Env} ->
            case version("cargo", Cargo, Env) of
                none -> false;
                Found -> numbers(Found) >= numbers(needed_version())
            end
    end.

%% If PATH does not contain cargo's folder, the environment adds it, so that cargo finds the rustc beside it.
find_cargo() ->
    Home = filename:join(cargo_home(), "bin"),
    case {os:getenv("CARGO", ""), os:find_executable("cargo"), os:find_executable("cargo", Home)} of
        {"", false, false} ->
            none;
        {"", false, InHome} ->
            {InHome, path_with(InHome)};
        {"", OnPath, _} ->
            {OnPath, []};
        {Given, _, _} ->
            case os:find_executable(Given) of
                false -> stop("the environment variable CARGO is ~ts, which is not a program.", [Given]);
                Cargo -> {Cargo, path_with(Cargo)}
            end
    end.

cargo_home() ->
    os:getenv("CARGO_HOME", filename:join(home(), ".cargo")).

home() ->
    case init:get_argument(home) of
        {ok, [[Home] | _]} -> Home;
        _ -> "/"
    end.

path_with(Cargo) ->
    Separator = case os:type() of {win32, _} -> ";"; _ -> ":" end,
    [{"PATH", filename:dirname(Cargo) ++ Separator ++ os:getenv("PATH", "")}].

rustc(Env) ->
    Path = proplists:get_value("PATH", Env, os:getenv("PATH", "")),
    case os:find_executable(os:getenv("RUSTC", "rustc"), Path) of
        false -> stop("there is cargo but no rustc: ~ts.", [remedy()]);
        Rustc -> Rustc
    end.

%% Checked first, because an old cargo fails with an error about the lock file before it compares versions.
check_version(Name, Program, Env) ->
    Needed = needed_version(),
    case version(Name, Program, Env) of
        none ->
            stop("the build needs Rust ~ts or newer, but ~ts does not print its version: ~ts.",
                 [Needed, Program, remedy()]);
        Found ->
            numbers(Found) >= numbers(Needed) orelse
                stop("the build needs Rust ~ts or newer, but ~ts is ~ts: ~ts.", [Needed, Program, Found, remedy()])
    end.

version(Name, Program, Env) ->
    {Status, Lines} = run(Program, ["--version"], Env),
    case re:run(Lines, "^" ++ Name ++ " ([0-9]+\\.[0-9]+(\\.[0-9]+)?)", [{capture, [1], list}]) of
        {match, [Found]} when Status =:= 0 -> Found;
        _ -> none
    end.

needed_version() ->
    {ok, Manifest} = file:read_file(filename:join(workspace(), "Cargo.toml")),
    {match, [Needed]} = re:run(Manifest, "^rust-version *= *\"([0-9.]+)\"", [multiline, {capture, [1], list}]),
    Needed.

numbers(Version) ->
    [list_to_integer(Number) || Number <- string:lexemes(Version, ".")].

remedy() ->
    "run \"rustup update\" (to install rustup: https://rustup.rs), set CANAL_LOCK_PRECOMPILED_URL to where a release "
    "has its archives, or " ++ elsewhere().

elsewhere() ->
    "set CANAL_LOCK_NIF_LIBRARY to a library or archive that was built on another machine".

%% Runs in the workspace, where cargo reads .cargo/config.toml. Standard error is not captured.
run(Program, Args, Env) ->
    run(Program, Args, Env, []).

run(Program, Args, Env, More) ->
    Options = [{args, Args}, {cd, workspace()}, {env, Env}, {line, 65536}, binary, exit_status, hide | More],
    try open_port({spawn_executable, Program}, Options) of
        Port -> lines(Port, [], [])
    catch
        error:Reason -> stop("cannot start ~ts: ~tp.", [Program, Reason])
    end.

lines(Port, Part, Lines) ->
    receive
        {Port, {data, {noeol, Text}}} -> lines(Port, [Part, Text], Lines);
        {Port, {data, {eol, Text}}} -> lines(Port, [], [iolist_to_binary([Part, Text]) | Lines]);
        {Port, {exit_status, Status}} -> {Status, lists:reverse(Lines, [iolist_to_binary(Part)])}
    end.

%% The shared libraries of the package in one of cargo's messages. OTP has no JSON decoder before 27, and this needs
%% none: cargo writes one message per line, without spaces between tokens, and a quotation mark inside a JSON string
%% always follows a backslash, so the patterns below match keys only.
announced(Line, Package) ->
    Name = iolist_to_binary(["\"name\":\"", Package, "\""]),
    Has = fun(Pattern) -> binary:match(Line, Pattern) =/= nomatch end,
    case Has(<<"\"reason\":\"compiler-artifact\"">>) andalso Has(<<"\"cdylib\"">>) andalso Has(Name) of
        true ->
            [_, Files] = binary:split(Line, <<"\"filenames\":[">>),
            [File || File <- strings(Files),
                     lists:member(filename:extension(File), [<<".so">>, <<".dylib">>, <<".dll">>])];
        false ->
            []
    end.

strings(<<$", Rest/binary>>) -> string(Rest, <<>>);
strings(<<$,, Rest/binary>>) -> strings(Rest);
strings(<<$], _/binary>>) -> [].

%% Paths contain only these two of JSON's escapes; the others are control characters.
string(<<$\\, Char, Rest/binary>>, File) when Char =:= $\\; Char =:= $" -> string(Rest, <<File/binary, Char>>);
string(<<$", Rest/binary>>, File) -> [File | strings(Rest)];
string(<<Char, Rest/binary>>, File) -> string(Rest, <<File/binary, Char>>).

%%% A library made elsewhere

ready_made(Variable, Path, Package) ->
    %% A dependency is built in another working directory than that of the user.
    filename:pathtype(Path) =:= absolute orelse
        stop("~ts must be an absolute path, got: ~ts.", [Variable, Path]),
    Bytes =
        case file:read_file(Path) of
            {ok, Read} -> Read;
            {error, Reason} -> stop("~ts: cannot read ~ts: ~ts.", [Variable, Path, file:format_error(Reason)])
        end,
    case {lists:suffix(".tar.gz", Path), lists:member(filename:extension(Path), [".so", ".dylib", ".dll"])} of
        {true, _} ->
            check_sum(Path, Bytes),
            from_archive(Path, Bytes, Package ++ extension());
        {_, true} ->
            is_library(Bytes) orelse
                stop("~ts: ~ts is not a library, or is truncated.", [Variable, Path]),
            alone(Variable, Package, Bytes);
        _ ->
            stop("~ts: ~ts is neither a library (.so, .dylib, .dll) nor an archive (.tar.gz).",
                 [Variable, Path])
    end.

%% A single file provides one library only.
alone("CANAL_LOCK_NIF_LIBRARY", ?QUORUM, _) -> none;
alone(_, _, Bytes) -> Bytes.

%% ELF, Mach-O (for one processor or several), or Windows, for any machine. The system's loader does not detect a
%% truncated file. canal_lock_library repeats the check for ELF before a VM loads the file; here it fails the build.
is_library(<<16#7f, "ELF", 2, 1, _:34/binary, Sections:64/little, _:10/binary, Size:16/little, Number:16/little,
             _/binary>> = Bytes) ->
    Sections + Size * Number =< byte_size(Bytes);
is_library(<<16#7f, "ELF", _/binary>>) -> true;
is_library(<<16#cffaedfe:32, _/binary>>) -> true;
is_library(<<16#cafebabe:32, _/binary>>) -> true;
is_library(<<"MZ", _/binary>>) -> true;
is_library(_) -> false.

%% In the format of `sha256sum'.
check_sum(Archive, Bytes) ->
    File = Archive ++ ".sha256",
    Wanted =
        case file:read_file(File) of
            {ok, Text} ->
                case re:run(Text, "^([0-9a-f]{64})([ \t\r\n]|$)", [{capture, [1], binary}]) of
                    {match, [Sum]} -> Sum;
                    nomatch -> stop("~ts is not a checksum in the format of sha256sum.", [File])
                end;
            {error, Reason} ->
                stop("~ts must have its checksum beside it, but ~ts cannot be read: ~ts.",
                     [Archive, File, file:format_error(Reason)])
        end,
    compare(Archive, Wanted, sha256(Archive, Bytes)).

compare(_, Sum, Sum) -> ok;
compare(Archive, Wanted, Found) ->
    stop("~ts does not match its checksum: expected ~ts, but the file has ~ts.", [Archive, Wanted, Found]).

%% Minimal installations of Erlang lack crypto.
sha256(File, Bytes) ->
    case code:ensure_loaded(crypto) of
        {module, _} -> iolist_to_binary([io_lib:format("~2.16.0b", [Byte]) || <<Byte>> <= crypto:hash(sha256, Bytes)]);
        {error, _} -> sha256_by_program(File)
    end.

sha256_by_program(File) ->
    Programs = [{"sha256sum", []}, {"shasum", ["-a", "256"]}],
    case [{Program, Args} || {Name, Args} <- Programs, Program <- [os:find_executable(Name)], Program =/= false] of
        [] ->
            stop("cannot check ~ts: Erlang's crypto or the program sha256sum or shasum is required.",
                 [File]);
        [{Program, Args} | _] ->
            {Status, Lines} = run(Program, Args ++ [File], []),
            %% The line begins with a backslash if the file name contains one.
            case re:run(Lines, "^\\\\?([0-9a-f]{64}) ", [{capture, [1], binary}]) of
                {match, [Sum]} when Status =:= 0 -> Sum;
                _ -> stop("~ts did not print the checksum of ~ts (status ~b).", [Program, File, Status])
            end
    end.

%% Unpacks in memory, so that paths in the archive cannot write files.
from_archive(Archive, Bytes, Library) ->
    App = "canal_lock-" ++ version(),
    Wanted = lists:flatten(lists:join("/", [App, "priv", Library])),
    case unpacked(Bytes) of
        {ok, Entries} ->
            Libraries = [Entry || Entry = {Name, _} <- Entries, filename:basename(Name) =:= Library],
            case {lists:keyfind(Wanted, 1, Libraries), Libraries} of
                {{_, Found}, _} ->
                    Found;
                {false, []} ->
                    stop("~ts does not contain ~ts.", [Archive, Library]);
                {false, [{Other, _} | _]} ->
                    stop("these sources are ~ts, but ~ts contains ~ts.", [App, Archive, Other])
            end;
        {error, Reason} ->
            stop("cannot unpack ~ts: ~ts.", [Archive, erl_tar:format_error(Reason)])
    end.

%% erl_tar crashes on some archives (OTP 25: on an absolute path).
unpacked(Bytes) ->
    try
        erl_tar:extract({binary, Bytes}, [compressed, memory])
    catch
        error:_ -> {error, "it was not made by `make dist'"}
    end.

version() ->
    {ok, [{application, canal_lock, Keys}]} =
        file:consult(filename:join([filename:dirname(workspace()), "src", "canal_lock.app.src"])),
    {vsn, Version} = lists:keyfind(vsn, 1, Keys),
    Version.

%%% Installing

%% Returns what changed in the folder.
install(Libraries, Folder) ->
    [{Change, Target}
     || {Package, Bytes} <- Libraries,
        Target <- [filename:join(Folder, Package ++ extension())],
        Change <- [in_place(Bytes, Target)],
        Change =/= up_to_date].

in_place(none, Target) ->
    case file:delete(Target) of
        {error, enoent} -> up_to_date;
        Other -> must("remove", Target, Other), removed
    end;
in_place(Bytes, Target) ->
    case file:read_file(Target) of
        {ok, Bytes} -> up_to_date;
        _ -> replace(Bytes, Target), installed
    end.

%% By rename. Writing into the file would crash a VM that has it loaded, and a concurrent build could read half of it.
replace(Bytes, Target) ->
    must("make the folder of", Target, filelib:ensure_dir(Target)),
    Temporary = lists:flatten([Target, ".", os:getpid(), ".tmp"]),
    must("write", Temporary, file:write_file(Temporary, Bytes)),
    case file:rename(Temporary, Target) of
        ok -> ok;
        Error -> _ = file:delete(Temporary), must("replace", Target, Error)
    end.

report([]) ->
    ok;
report(Changes) ->
    Parts = [[atom_to_list(Change), " ", lists:join(" and ", Targets)]
             || Change <- [installed, removed],
                Targets <- [[Target || {By, Target} <- Changes, By =:= Change]],
                Targets =/= []],
    io:format("canal_lock: ~ts~n", [lists:join(", ", Parts)]).

must(_, _, ok) -> ok;
must(_, _, {ok, Value}) -> Value;
must(What, Path, {error, Reason}) -> stop("cannot ~ts ~ts: ~ts.", [What, Path, file:format_error(Reason)]).
