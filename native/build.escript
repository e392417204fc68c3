#!/usr/bin/env escript
%% Builds libraries of this workspace and installs them where the VM will look for them.
%%
%%     escript native/build.escript [--package NAME] [--faults] [FOLDER]
%%
%% These are canal_lock_nif, which counts permits, and canal_lock_quorum_nif, of the quorum locks; or the one called
%% NAME. FOLDER is the `priv' folder of this project unless told otherwise. A library is FOLDER/NAME.so (.dll on
%% Windows). With --faults it is a canal_lock_nif for tests, which goes wrong when they say so. rebar3 and mix both
%% call this file: an escript asks nothing of a machine that Erlang does not bring along, neither make nor a shell.
%%
%% Standard output is one line when anything was installed, and empty when all was up to date: mix tells by it whether
%% there was anything to do. All else goes to standard error, and a failure exits with status 1. Either all libraries
%% are right, or none is installed.
%%
%% Environment:
%%   CANAL_LOCK_NIF_LIBRARY         absolute path of what to install instead of building, so that no Rust is needed:
%%                                  an archive that `make dist' has made (.tar.gz) with the checksum that was made
%%                                  with it beside it (.tar.gz.sha256), which holds both libraries; or canal_lock_nif
%%                                  alone (.so, .dylib, .dll)
%%   CANAL_LOCK_QUORUM_NIF_LIBRARY  the same for canal_lock_quorum_nif; it comes before the other one's archive
%%   CARGO                          the cargo to use; otherwise PATH is searched, then cargo's home
%% Where canal_lock_nif is brought alone, canal_lock_quorum_nif is not built either: who brings it has no Rust. One
%% that is in FOLDER is removed then, because nobody knows of which sources it was made. Permits do without it; the
%% quorum locks say how to bring it when they are started.
%%
%% Whatever else cargo listens to (CARGO_TARGET_DIR, CARGO_BUILD_TARGET, RUSTFLAGS...) works as it always does. Cargo
%% fetches crates unless they are on the machine; where it cannot, this says how to bring them there.

-define(OURS, "canal_lock_nif").
-define(QUORUM, "canal_lock_quorum_nif").

main(Args) ->
    %% Paths in whatever letters: mix, which reads our output, stumbles over anything but UTF-8.
    [ok = io:setopts(Device, [{encoding, unicode}]) || Device <- [standard_io, standard_error]],
    try
        Priv = filename:join(filename:dirname(workspace()), "priv"),
        Options = options(Args, #{faults => false, folder => Priv}),
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
options(["--faults" | Rest], Options) -> options(Rest, Options#{faults := true});
options([], Options) -> Options;
options([[First | _] = Folder], Options) when First =/= $- -> Options#{folder := Folder};
options(_, _) -> stop("usage: escript build.escript [--package NAME] [--faults] [FOLDER]", []).

%% By this file's own place, because the caller's working directory may be anything.
workspace() ->
    filename:dirname(filename:absname(escript:script_name())).

%% What erlang:load_nif/2 appends to a path, which on macOS is not what cargo calls it.
extension() ->
    case os:type() of
        {win32, _} -> ".dll";
        _ -> ".so"
    end.

packages(#{package := Name}) -> [Name];
packages(#{faults := true}) -> [?OURS];
packages(#{}) -> [?OURS, ?QUORUM].

%% The bytes of each library; or that there is to be none.
libraries(#{faults := true} = Options) ->
    build(packages(Options), faults());
libraries(#{faults := false} = Options) ->
    Packages = packages(Options),
    %% First, so that cargo does not work in vain.
    Ready = [{Package, ready_made(By, Path, Package)} || Package <- Packages, {By, Path} <- named(Package)],
    Ready ++ build([Package || Package <- Packages, not lists:keymember(Package, 1, Ready)], release()).

%% What is to be installed instead of building.
named(Package) ->
    Set = [{Variable, Path} || Variable <- variables(Package), Path <- [os:getenv(Variable, "")], Path =/= ""],
    lists:sublist(Set, 1).

%% The first that is set counts.
variables(?OURS) -> ["CANAL_LOCK_NIF_LIBRARY"];
variables(?QUORUM) -> ["CANAL_LOCK_QUORUM_NIF_LIBRARY", "CANAL_LOCK_NIF_LIBRARY"];
variables(_) -> [].

release() -> ["--release"].

%% In a folder of its own, so that neither build makes the other's work anew.
faults() -> ["--profile", "faults", "--features", "faults", "--target-dir", "../_build/cargo-faults"].

%%% Cargo

build([], _) ->
    [];
build(Packages, Kind) ->
    {Cargo, Env} = cargo(),
    check_version("cargo", Cargo, Env),
    check_version("rustc", rustc(Env), Env),
    %% All in one call, for what they share is then compiled once.
    Args = ["build" | Kind] ++ ["--locked", "--message-format=json-render-diagnostics" | asked_for(Packages)],
    case run(Cargo, Args, Env) of
        {0, Lines} ->
            [{Package, built(Package, Lines)} || Package <- Packages];
        {Status, _} ->
            stop("cargo could not build ~ts (status ~b); its own words are above.~ts",
                 [in_words(Packages), Status, help(Cargo, Packages, Env)])
    end.

%% rustler writes the entry point of a library only for the packages that cargo was asked for.
asked_for(Packages) ->
    lists:append([["-p", Package] || Package <- Packages]).

built(Package, Lines) ->
    case [Path || Line <- Lines, Path <- announced(Line, Package)] of
        [Path | _] -> must("read", Path, file:read_file(Path));
        [] -> stop("cargo built ~ts but named no shared library of it. ~ts", [Package, musl()])
    end.

in_words([Package]) -> "the library " ++ Package;
in_words(Packages) -> "the libraries " ++ lists:join(" and ", Packages).

%% For failures that cargo's own words leave one alone with.
help(Cargo, Packages, Env) ->
    case are_crates_missing(Cargo, Packages, Env) of
        true ->
            io_lib:format(
                " The crates that it needs are not on this machine, and cargo cannot fetch them. On a machine with a "
                "network, run \"cargo vendor --locked FOLDER\" in a copy of ~ts; bring FOLDER here, and write the "
                "lines that it printed into ~ts, with the absolute path that FOLDER has here. Or ~ts.",
                [workspace(), filename:join(cargo_home(), "config.toml"), elsewhere()]);
        false ->
            [[" ", musl()] || is_for_musl(Env), are_flags_replaced()] ++
                [" There is no cc on PATH, which Rust links with unless it is told of another: install a C compiler."
                 || {unix, _} <- [os:type()], os:find_executable("cc") =:= false]
    end.

%% Cargo fetches all crates before it compiles any, so that without a network it still answers this after a failure of
%% another kind. The question is only about what this build needs: what else is in the lock file may never have been
%% fetched.
are_crates_missing(Cargo, Packages, Env) ->
    Args = ["tree", "--locked", "--offline", "-e", "no-dev" | asked_for(Packages)],
    {Status, Lines} = run(Cargo, Args, Env, [stderr_to_stdout]),
    Status =/= 0 andalso re:run(Lines, "--offline was specified|offline mode \\(--offline\\)") =/= nomatch.

musl() ->
    "For musl it makes one only with \"-C target-feature=-crt-static\", which native/.cargo/config.toml has, unless "
    "RUSTFLAGS or CARGO_ENCODED_RUSTFLAGS in the environment takes its place: add it there.".

is_for_musl(Env) ->
    {_, Lines} = run(rustc(Env), ["-vV"], Env),
    Host = [Host || <<"host: ", Host/binary>> <- Lines],
    string:find(os:getenv("CARGO_BUILD_TARGET", Host), "-musl") =/= nomatch.

are_flags_replaced() ->
    Flags = [Flags || Name <- ["CARGO_ENCODED_RUSTFLAGS", "RUSTFLAGS"], Flags <- [os:getenv(Name, "")], Flags =/= ""],
    Flags =/= [] andalso string:find(hd(Flags), "-crt-static") =:= nomatch.

%% The environment puts cargo's folder first where PATH does not lead to it, so that cargo finds the rustc beside it.
cargo() ->
    Home = filename:join(cargo_home(), "bin"),
    case {os:getenv("CARGO", ""), os:find_executable("cargo"), os:find_executable("cargo", Home)} of
        {"", false, false} ->
            stop("building needs Rust ~ts or newer, and there is no cargo in $CARGO, on PATH or in ~ts; ~ts.",
                 [needed_version(), Home, remedy()]);
        {"", false, InHome} ->
            {InHome, path_with(InHome)};
        {"", OnPath, _} ->
            {OnPath, []};
        {Given, _, _} ->
            case os:find_executable(Given) of
                false -> stop("CARGO is ~ts, which is not a program.", [Given]);
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
        false -> stop("there is cargo but no rustc; ~ts.", [remedy()]);
        Rustc -> Rustc
    end.

%% Asked first, because an old cargo stumbles over the lock file before it compares versions, and blames the lock file.
check_version(Name, Program, Env) ->
    Needed = needed_version(),
    {Status, Lines} = run(Program, ["--version"], Env),
    case re:run(Lines, "^" ++ Name ++ " ([0-9]+\\.[0-9]+(\\.[0-9]+)?)", [{capture, [1], list}]) of
        {match, [Found]} when Status =:= 0 ->
            numbers(Found) >= numbers(Needed) orelse
                stop("building needs Rust ~ts or newer, and ~ts is ~ts; ~ts.", [Needed, Program, Found, remedy()]);
        _ ->
            stop("building needs Rust ~ts or newer, and ~ts does not tell its version; ~ts.",
                 [Needed, Program, remedy()])
    end.

needed_version() ->
    {ok, Manifest} = file:read_file(filename:join(workspace(), "Cargo.toml")),
    {match, [Needed]} = re:run(Manifest, "^rust-version *= *\"([0-9.]+)\"", [multiline, {capture, [1], list}]),
    Needed.

numbers(Version) ->
    [list_to_integer(Number) || Number <- string:lexemes(Version, ".")].

remedy() ->
    "\"rustup update\" brings the newest (rustup itself: https://rustup.rs), or " ++ elsewhere().

elsewhere() ->
    "let CANAL_LOCK_NIF_LIBRARY name what was built elsewhere".

%% Runs in the workspace, where cargo finds its .cargo/config.toml. Standard error goes straight to the user's.
run(Program, Args, Env) ->
    run(Program, Args, Env, []).

run(Program, Args, Env, More) ->
    Options = [{args, Args}, {cd, workspace()}, {env, Env}, {line, 65536}, binary, exit_status, hide | More],
    try open_port({spawn_executable, Program}, Options) of
        Port -> lines(Port, [], [])
    catch
        error:Reason -> stop("~ts does not start (~tp).", [Program, Reason])
    end.

lines(Port, Part, Lines) ->
    receive
        {Port, {data, {noeol, Text}}} -> lines(Port, [Part, Text], Lines);
        {Port, {data, {eol, Text}}} -> lines(Port, [], [iolist_to_binary([Part, Text]) | Lines]);
        {Port, {exit_status, Status}} -> {Status, lists:reverse(Lines, [iolist_to_binary(Part)])}
    end.

%% The shared libraries that one of cargo's messages announces for the package. No JSON decoder before OTP 27, and none
%% is needed: cargo writes a message per line and no space between tokens, and a quotation mark inside a JSON string
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

%% Of JSON's escapes a path has use only for these two; the others stand for control characters.
string(<<$\\, Char, Rest/binary>>, File) when Char =:= $\\; Char =:= $" -> string(Rest, <<File/binary, Char>>);
string(<<$", Rest/binary>>, File) -> [File | strings(Rest)];
string(<<Char, Rest/binary>>, File) -> string(Rest, <<File/binary, Char>>).

%%% A library made elsewhere

ready_made(Variable, Path, Package) ->
    %% A dependency is built in a folder of its own, so a relative path would not mean what its author saw.
    filename:pathtype(Path) =:= absolute orelse
        stop("~ts must be an absolute path, and ~ts is not.", [Variable, Path]),
    Bytes =
        case file:read_file(Path) of
            {ok, Read} -> Read;
            {error, Reason} -> stop("~ts names ~ts: ~ts.", [Variable, Path, file:format_error(Reason)])
        end,
    case {lists:suffix(".tar.gz", Path), lists:member(filename:extension(Path), [".so", ".dylib", ".dll"])} of
        {true, _} ->
            check_sum(Path, Bytes),
            from_archive(Path, Bytes, Package ++ extension());
        {_, true} ->
            is_library(Bytes) orelse
                stop("~ts names ~ts, which is no library, or not a whole one.", [Variable, Path]),
            alone(Variable, Package, Bytes);
        _ ->
            stop("~ts names ~ts, which is neither a library (.so, .dylib, .dll) nor an archive (.tar.gz).",
                 [Variable, Path])
    end.

%% One file is one library.
alone("CANAL_LOCK_NIF_LIBRARY", ?QUORUM, _) -> none;
alone(_, _, Bytes) -> Bytes.

%% Of any machine: ELF, Mach-O (of one processor or of several), or Windows. The system's loader does not look whether
%% a file is whole. canal_lock_library asks that once more, of ELF in the same way, before a VM loads it; but who builds
%% a release hears of it here.
is_library(<<16#7f, "ELF", 2, 1, _:34/binary, Sections:64/little, _:10/binary, Size:16/little, Number:16/little,
             _/binary>> = Bytes) ->
    Sections + Size * Number =< byte_size(Bytes);
is_library(<<16#7f, "ELF", _/binary>>) -> true;
is_library(<<16#cffaedfe:32, _/binary>>) -> true;
is_library(<<16#cafebabe:32, _/binary>>) -> true;
is_library(<<"MZ", _/binary>>) -> true;
is_library(_) -> false.

%% As `sha256sum' writes it.
check_sum(Archive, Bytes) ->
    File = Archive ++ ".sha256",
    Wanted =
        case file:read_file(File) of
            {ok, Text} ->
                case re:run(Text, "^([0-9a-f]{64})([ \t\r\n]|$)", [{capture, [1], binary}]) of
                    {match, [Sum]} -> Sum;
                    nomatch -> stop("~ts is no checksum as sha256sum writes it.", [File])
                end;
            {error, Reason} ->
                stop("~ts is installed only if its checksum is beside it, and ~ts cannot be read: ~ts.",
                     [Archive, File, file:format_error(Reason)])
        end,
    case sha256(Archive, Bytes) of
        Wanted -> ok;
        Found -> stop("~ts is not what its checksum was made of: that is ~ts, and the file's is ~ts.",
                      [Archive, Wanted, Found])
    end.

%% Some minimal Erlangs come without crypto.
sha256(File, Bytes) ->
    case code:ensure_loaded(crypto) of
        {module, _} -> iolist_to_binary([io_lib:format("~2.16.0b", [Byte]) || <<Byte>> <= crypto:hash(sha256, Bytes)]);
        {error, _} -> sha256_by_program(File)
    end.

sha256_by_program(File) ->
    Programs = [{"sha256sum", []}, {"shasum", ["-a", "256"]}],
    case [{Program, Args} || {Name, Args} <- Programs, Program <- [os:find_executable(Name)], Program =/= false] of
        [] ->
            stop("to check ~ts it takes Erlang's crypto, or the program sha256sum or shasum, and none is here.",
                 [File]);
        [{Program, Args} | _] ->
            {Status, Lines} = run(Program, Args ++ [File], []),
            %% It begins with a backslash if one is in the name of the file.
            case re:run(Lines, "^\\\\?([0-9a-f]{64}) ", [{capture, [1], binary}]) of
                {match, [Sum]} when Status =:= 0 -> Sum;
                _ -> stop("~ts does not tell the checksum of ~ts (status ~b).", [Program, File, Status])
            end
    end.

%% Out of memory, so that nothing in it is written to where it says.
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
                    stop("there is no ~ts in ~ts.", [Library, Archive]);
                {false, [{Other, _} | _]} ->
                    stop("these sources are ~ts, and what is in ~ts is ~ts.", [App, Archive, Other])
            end;
        {error, Reason} ->
            stop("~ts cannot be unpacked: ~ts.", [Archive, erl_tar:format_error(Reason)])
    end.

%% There are archives that erl_tar trips over (OTP 25, of a path that is absolute).
unpacked(Bytes) ->
    try
        erl_tar:extract({binary, Bytes}, [compressed, memory])
    catch
        error:_ -> {error, "it is not as `make dist' makes them"}
    end.

version() ->
    {ok, [{application, canal_lock, Keys}]} =
        file:consult(filename:join([filename:dirname(workspace()), "src", "canal_lock.app.src"])),
    {vsn, Version} = lists:keyfind(vsn, 1, Keys),
    Version.

%%% Installing

%% What has changed in the folder.
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

%% By rename: a VM that has the old library loaded keeps its file, where writing into it would crash that VM, and
%% another build at the same moment sees the old file or the new one, whole. Same bytes: nothing is touched.
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
    Words = [[atom_to_list(Change), " ", lists:join(" and ", Targets)]
             || Change <- [installed, removed],
                Targets <- [[Target || {By, Target} <- Changes, By =:= Change]],
                Targets =/= []],
    io:format("canal_lock: ~ts~n", [lists:join(", ", Words)]).

must(_, _, ok) -> ok;
must(_, _, {ok, Value}) -> Value;
must(What, Path, {error, Reason}) -> stop("cannot ~ts ~ts: ~ts.", [What, Path, file:format_error(Reason)]).
