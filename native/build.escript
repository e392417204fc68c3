#!/usr/bin/env escript
%% Builds a crate of this workspace and installs the library where the VM will look for it.
%%
%%     escript native/build.escript [--package NAME] [--faults] [FOLDER]
%%
%% NAME is canal_lock_nif unless told otherwise, FOLDER the `priv' folder of this project. The library is
%% FOLDER/NAME.so (.dll on Windows). With --faults it is one for tests, which goes wrong when they say so. rebar3 and
%% mix both call this file: an escript asks nothing of a machine that Erlang does not bring along, neither make nor a
%% shell.
%%
%% Standard output is one line when something was installed, and empty when the library was up to date: mix tells by it
%% whether there was anything to do. All else goes to standard error, and a failure exits with status 1.
%%
%% Environment:
%%   CANAL_LOCK_NIF_LIBRARY  absolute path of a canal_lock_nif library to install; no Rust is needed then
%%   CARGO                   the cargo to use; otherwise PATH is searched, then cargo's home
%% Whatever else cargo listens to (CARGO_TARGET_DIR, CARGO_BUILD_TARGET, RUSTFLAGS...) works as it always does.

-define(OURS, "canal_lock_nif").

main(Args) ->
    %% Paths in whatever letters: mix, which reads our output, stumbles over anything but UTF-8.
    [ok = io:setopts(Device, [{encoding, unicode}]) || Device <- [standard_io, standard_error]],
    try
        Priv = filename:join(filename:dirname(workspace()), "priv"),
        Defaults = #{package => ?OURS, faults => false, folder => Priv},
        #{package := Package, faults := Faults, folder := Folder} = options(Args, Defaults),
        install(library(Package, Faults), Folder, Package ++ extension())
    catch
        throw:{sentence, Format, Values} ->
            io:format(standard_error, "canal_lock: " ++ Format ++ "~n", Values),
            halt(1)
    end.

-spec stop(string(), [term()]) -> no_return().
stop(Format, Values) ->
    throw({sentence, Format, Values}).

options(["--package", Name | Rest], Options) -> options(Rest, Options#{package := Name});
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

library(?OURS, false) ->
    case os:getenv("CANAL_LOCK_NIF_LIBRARY", "") of
        "" ->
            build(?OURS, release());
        Path ->
            %% A dependency is built in a folder of its own, so a relative path would not mean what its author saw.
            filename:pathtype(Path) =:= absolute orelse
                stop("CANAL_LOCK_NIF_LIBRARY must be an absolute path, and ~ts is not.", [Path]),
            Path
    end;
library(Package, false) ->
    build(Package, release());
library(Package, true) ->
    build(Package, faults()).

release() -> ["--release"].

%% In a folder of its own, so that neither build makes the other's work anew.
faults() -> ["--profile", "faults", "--features", "faults", "--target-dir", "../_build/cargo-faults"].

%%% Cargo

build(Package, Kind) ->
    {Cargo, Env} = cargo(),
    check_version("cargo", Cargo, Env),
    check_version("rustc", rustc(Env), Env),
    %% -p: rustler writes the entry point of a library only for the package that cargo was asked for.
    Args = ["build" | Kind] ++ ["--locked", "-p", Package, "--message-format=json-render-diagnostics"],
    case run(Cargo, Args, Env) of
        {0, Lines} ->
            case [Path || Line <- Lines, Path <- libraries(Line, Package)] of
                [Path | _] -> Path;
                [] -> stop("cargo built ~ts but named no shared library of it.", [Package])
            end;
        {Status, _} ->
            stop("cargo could not build ~ts (status ~b); its own words are above.", [Package, Status])
    end.

%% The environment puts cargo's folder first where PATH does not lead to it, so that cargo finds the rustc beside it.
cargo() ->
    Home = filename:join(os:getenv("CARGO_HOME", filename:join(home(), ".cargo")), "bin"),
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
    "\"rustup update\" brings the newest (rustup itself: https://rustup.rs), "
    "and CANAL_LOCK_NIF_LIBRARY can name a library built elsewhere".

%% Runs in the workspace, where cargo finds its .cargo/config.toml. Standard error goes straight to the user's.
run(Program, Args, Env) ->
    Options = [{args, Args}, {cd, workspace()}, {env, Env}, {line, 65536}, binary, exit_status, hide],
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
libraries(Line, Package) ->
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

%%% Installing

%% By rename: a VM that has the old library loaded keeps its file, where writing into it would crash that VM, and
%% another build at the same moment sees the old file or the new one, whole. Same bytes: nothing is touched.
install(Library, Folder, Name) ->
    Target = filename:join(Folder, Name),
    Bytes = must("read", Library, file:read_file(Library)),
    case file:read_file(Target) of
        {ok, Bytes} ->
            ok;
        _ ->
            must("make the folder of", Target, filelib:ensure_dir(Target)),
            Temporary = lists:flatten([Target, ".", os:getpid(), ".tmp"]),
            must("write", Temporary, file:write_file(Temporary, Bytes)),
            case file:rename(Temporary, Target) of
                ok -> io:format("canal_lock: installed ~ts~n", [Target]);
                Error -> _ = file:delete(Temporary), must("replace", Target, Error)
            end
    end.

must(_, _, ok) -> ok;
must(_, _, {ok, Value}) -> Value;
must(What, Path, {error, Reason}) -> stop("cannot ~ts ~ts: ~ts.", [What, Path, file:format_error(Reason)]).
