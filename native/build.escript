#!/usr/bin/env escript
%% Builds native libraries of this workspace and installs them where the VM loads them from.
%%
%%     escript native/build.escript [--package NAME | --faults] [FOLDER]
%%
%% Builds canal_lock_nif (permits) and canal_lock_quorum_nif (quorum locks), or only NAME. Installs FOLDER/NAME.so.
%% FOLDER is the `priv' folder of this project by default. With --faults it builds a canal_lock_nif for tests, which can
%% inject failures. rebar3 and mix call this file. An escript needs only Erlang: no make and no shell.
%%
%% Standard output is one line if something was installed, and empty if everything was up to date: mix relies on that.
%% Everything else goes to standard error. The exit status of a failure is 1. If a library cannot be built, read or
%% checked, the script installs none. It then replaces the files one by one.
%%
%% Environment:
%%   CANAL_LOCK_ARCHIVE          absolute path of an archive of `make dist' to install from instead of building, which
%%                               needs no Rust. The checksum.term of `make dist' must be beside it
%%   CANAL_LOCK_PRECOMPILED_URL  the same with the archive of a release, from an address or the absolute path of a
%%                               folder. `none' builds, whatever the setting below is
%%   CANAL_LOCK_QUORUM           0: leaves out canal_lock_quorum_nif, and removes an existing one from FOLDER, because
%%                               it may be of other sources
%% In a project, rebar.config can have the settings {canal_lock, [{precompiled_url, URL}, {quorum, Boolean}]}, which mix
%% takes from the environment of the application canal_lock. The variables take precedence.
%%
%% CARGO_BUILD_TARGET and the variables that select compilers and flags (RUSTC, RUSTFLAGS...) work as usual. Cargo
%% downloads missing crates. archive.erl gets and checks the archives.

-define(PERMITS, "canal_lock_nif").
-define(QUORUM, "canal_lock_quorum_nif").

main(Args) ->
    %% mix reads the output as UTF-8, whatever the locale is.
    [ok = io:setopts(Device, [{encoding, unicode}]) || Device <- [standard_io, standard_error]],
    try
        {Folder, Libraries} = libraries(Args),
        Targets = [{filename:join(Folder, Name ++ ".so"), Bytes} || {Name, Bytes} <- Libraries],
        report([{install(Target, Bytes), Target} || {Target, Bytes} <- Targets])
    catch
        throw:{sentence, Format, Values} ->
            io:format(standard_error, "canal_lock: " ++ Format ++ "~n", Values),
            halt(1)
    end.

-spec stop(string(), [term()]) -> no_return().
stop(Format, Values) ->
    throw({sentence, Format, Values}).

%% Where to install, and the bytes of each library, or `none' for one that must not be there. The variants for tests
%% have a target folder of their own, so that neither build causes the other to start over.
libraries(["--package", Package | Rest]) -> {folder(Rest), cargo([Package], "cargo", "release", [])};
libraries(["--faults" | Rest]) -> {folder(Rest), cargo([?PERMITS], "cargo-faults", "faults", ["faults"])};
libraries(Rest) -> {folder(Rest), released()}.

folder([]) -> filename:join(root(), "priv");
folder([[First | _] = Folder]) when First =/= $- -> Folder;
folder(_) -> stop("usage: escript build.escript [--package NAME | --faults] [FOLDER]", []).

released() ->
    {Packages, LeftOut} =
        case has_quorum() of
            true -> {[?PERMITS, ?QUORUM], []};
            false -> {[?PERMITS], [{?QUORUM, none}]}
        end,
    Libraries =
        case {os:getenv("CANAL_LOCK_ARCHIVE", ""), url()} of
            {"", none} -> cargo(Packages, "cargo", "release", []);
            {"", Url} -> archive(release, Url, Packages);
            {Path, _} -> archive(own, Path, Packages)
        end,
    Libraries ++ LeftOut.

archive(Kind, From, Packages) ->
    {ok, archive, Code} = compile:file(filename:join(workspace(), "archive.erl"), [binary, report]),
    {module, archive} = code:load_binary(archive, "archive.erl", Code),
    archive:libraries(Kind, From, Packages, root()).

%% The working directory of the caller does not matter.
workspace() ->
    filename:dirname(filename:absname(escript:script_name())).

root() ->
    filename:dirname(workspace()).

%%% Settings

has_quorum() ->
    case setting("CANAL_LOCK_QUORUM", quorum) of
        No when No =:= "0"; No =:= false -> false;
        Yes when Yes =:= "1"; Yes =:= true; Yes =:= none -> true;
        Other -> stop("CANAL_LOCK_QUORUM must be 0 or 1, or the setting quorum of canal_lock true or false, got: ~tp.",
                      [Other])
    end.

url() ->
    case setting("CANAL_LOCK_PRECOMPILED_URL", precompiled_url) of
        None when None =:= "none"; None =:= none -> none;
        [Character | _] = Url when is_integer(Character) -> Url;
        Other -> stop("the setting precompiled_url of canal_lock must be a string, got: ~tp.", [Other])
    end.

%% In the environment, or in the project that rebar3 builds. mix.exs sets the variables.
setting(Variable, Key) ->
    case os:getenv(Variable, "") of
        "" ->
            case file:consult(filename:join(os:getenv("REBAR_ROOT_DIR", "/nowhere"), "rebar.config")) of
                {ok, Terms} -> proplists:get_value(Key, proplists:get_value(canal_lock, Terms, []), none);
                {error, _} -> none
            end;
        Value ->
            Value
    end.

%%% Cargo

%% Cargo decides what is not up to date. With an explicit target, its output is in a known folder.
cargo(Packages, Folder, Profile, Features) ->
    {Cargo, Target, Env} = rust(),
    check_flags(Target),
    TargetDir = filename:join([root(), "_build", Folder]),
    %% In one call, so that shared crates are compiled once. rustler generates the entry point of a library only for
    %% packages that are named on cargo's command line.
    Args = ["build", "--locked", "--target-dir", TargetDir, "--target", Target, "--profile", Profile]
        ++ lists:append([["--features", Feature] || Feature <- Features] ++ [["-p", Package] || Package <- Packages]),
    case run(Cargo, Args, Env) of
        {0, _} ->
            Files = [{Package, filename:join([TargetDir, Target, Profile, file_name(Package, Target)])}
                     || Package <- Packages],
            [{Package, must("read", File, file:read_file(File))} || {Package, File} <- Files];
        {Status, _} ->
            stop("cargo failed to build ~ts (status ~b); see its output above. If it found no linker `cc', install a C "
                 "compiler. If it could not download crates, read \"Without a network\" in ~ts.",
                 [lists:join(" and ", Packages), Status, filename:join([root(), "docs", "installing.md"])])
    end.

file_name(Package, Target) ->
    "lib" ++ Package ++ case string:find(Target, "-apple-") of nomatch -> ".so"; _ -> ".dylib" end.

%% Without this check, cargo would succeed and leave the library of an earlier build.
check_flags(Target) ->
    Flags = os:getenv("CARGO_ENCODED_RUSTFLAGS", os:getenv("RUSTFLAGS", "-crt-static")),
    string:find(Target, "-musl") =:= nomatch orelse string:find(Flags, "-crt-static") =/= nomatch orelse
        stop("for musl, rustc builds a shared library only with \"-C target-feature=-crt-static\". RUSTFLAGS or "
             "CARGO_ENCODED_RUSTFLAGS in the environment replaces this flag of native/.cargo/config.toml: add it "
             "there.", []).

%% Cargo, its target, and the environment to run it in. The version is checked first, because an old cargo fails with an
%% error about the lock file before it compares versions. rustup extends PATH only for shells that start later.
rust() ->
    Home = filename:join(os:getenv("CARGO_HOME", filename:join(os:getenv("HOME", "/"), ".cargo")), "bin"),
    Path = os:getenv("PATH", "") ++ ":" ++ Home,
    Env = [{"PATH", Path}],
    [Cargo, Rustc] = [find(Program, Path, Home) || Program <- ["cargo", os:getenv("RUSTC", "rustc")]],
    {_, Text} = run(Rustc, ["-vV"], Env),
    case re:run(Text, "^host: (.+)\nrelease: ([0-9.]+)", [multiline, {capture, all_but_first, list}]) of
        {match, [Host, Found]} ->
            numbers(Found) >= numbers(needed()) orelse
                no_rust("~ts is ~ts: run \"rustup update\", or install rustup from https://rustup.rs", [Rustc, Found]),
            {Cargo, target(Host), Env};
        nomatch ->
            no_rust("~ts does not print its version: install Rust from https://rustup.rs", [Rustc])
    end.

find(Program, Path, Home) ->
    case os:find_executable(Program, Path) of
        false ->
            no_rust("there is no ~ts on PATH or in ~ts: install Rust from https://rustup.rs, or the package cargo of "
                    "Debian 13 or later", [Program, Home]);
        Found -> Found
    end.

no_rust(Format, Values) ->
    Url = if_released("CANAL_LOCK_PRECOMPILED_URL to where this release has its archives, or "),
    stop("the build needs Rust ~ts or newer, but " ++ Format ++ ". Without Rust, set ~tsCANAL_LOCK_ARCHIVE to an "
         "archive that you made on another machine with \"make dist WHAT=host\".", [needed() | Values] ++ [Url]).

%% The sources of a release list its archives.
if_released(Words) ->
    case file:consult(filename:join(root(), "checksum.term")) of
        {ok, [_ | _]} -> Words;
        _ -> ""
    end.

needed() ->
    {ok, Manifest} = file:read_file(filename:join(workspace(), "Cargo.toml")),
    {match, [Version]} = re:run(Manifest, "^rust-version *= *\"([0-9.]+)\"", [multiline, {capture, [1], list}]),
    Version.

numbers(Version) ->
    [list_to_integer(Number) || Number <- string:lexemes(Version, ".")].

target(Host) ->
    case os:getenv("CARGO_BUILD_TARGET", "") of
        "" -> Host;
        Target -> Target
    end.

%% Runs in the workspace, where cargo reads .cargo/config.toml. Standard error is not captured.
run(Program, Args, Env) ->
    Port = open_port({spawn_executable, Program}, [{args, Args}, {cd, workspace()}, {env, Env}, binary, exit_status]),
    output(Port, []).

output(Port, Output) ->
    receive
        {Port, {data, Data}} -> output(Port, [Output, Data]);
        {Port, {exit_status, Status}} -> {Status, Output}
    end.

%%% Installing

install(Target, none) ->
    case file:delete(Target) of
        {error, enoent} -> up_to_date;
        Other -> must("remove", Target, Other), removed
    end;
install(Target, Bytes) ->
    case file:read_file(Target) of
        {ok, Bytes} -> up_to_date;
        _ -> replace(Target, Bytes), installed
    end.

%% By rename. Writing into the file would crash a VM that has it loaded, and a concurrent build could read half of it.
replace(Target, Bytes) ->
    Temporary = Target ++ "." ++ os:getpid() ++ ".tmp",
    must("make the folder of", Target, filelib:ensure_dir(Target)),
    must("write", Temporary, file:write_file(Temporary, Bytes)),
    must("replace", Target, file:rename(Temporary, Target)).

report(Changes) ->
    Parts = [[atom_to_list(Change), " ", lists:join(" and ", Targets)]
             || Change <- [installed, removed],
                Targets <- [[Target || {By, Target} <- Changes, By =:= Change]],
                Targets =/= []],
    Parts =:= [] orelse io:format("canal_lock: ~ts~n", [lists:join(", ", Parts)]).

must(_, _, ok) -> ok;
must(_, _, {ok, Value}) -> Value;
must(What, Path, {error, Reason}) -> stop("cannot ~ts ~ts: ~ts.", [What, Path, file:format_error(Reason)]).
