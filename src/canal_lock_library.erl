%% @private
%% Finds the native library of a module. If it does not load, explains what is wrong with the file and how to build it.
%% Two modules have a native library. The library of canal_lock_nif is loaded with its module. The library of
%% canal_lock_quorum_nif is loaded when it is first used, so a node that uses only permits never loads it.
%%
%% Each module must call `erlang:load_nif/2' itself. It must not pass this module a fun that calls it: if the -on_load
%% function of a new version of the module fails, the VM cannot call local funs of the old version (OTP 25: badfun).
%%
%% The explanation includes the error text of the system's loader, which alone would mislead. The loader of glibc
%% reports "No such file or directory" for a library for another machine. For a library for another libc, it reports a
%% missing symbol or a missing, unrelated file.
-module(canal_lock_library).

-export([path/1, check/2, on_load/2, was_loaded/1, on_load_again/2, ensure_loaded/0]).

-export_type([answer/0, refusal/0]).

%% The answer of `erlang:load_nif/2'.
-type answer() :: ok | {error, {Kind :: atom(), Text :: string()}}.

%% The answer of an -on_load function, which the VM logs. A string, because the VM logs only the beginning of a binary.
-type refusal() :: {error, {not_loaded, Sentences :: string()}}.

%% The text of a module's last failure. The process that loads the module stores it, and other processes read it.
-define(FAILURE(Module), {?MODULE, failure, Module}).
%% Set once a module has loaded its library in this VM.
-define(LOADED(Module), {?MODULE, loaded, Module}).

%% Names of ELF's machine numbers.
-define(MACHINES, #{
    3 => "x86", 8 => "MIPS", 21 => "PowerPC", 22 => "S/390", 40 => "ARM", 62 => "x86-64", 183 => "AArch64",
    243 => "RISC-V", 258 => "LoongArch"
}).

%% The argument for `erlang:load_nif/2'. A truncated library would crash the VM, because the system's loader does not
%% check the length. For such a file, this answers a path that does not exist.
%%
%% In a release this is called while the node boots, when only the code server and the file server run.
-spec path(module()) -> file:filename().
path(Module) ->
    Path = base_path(Module),
    case is_truncated(Path ++ extension()) of
        false -> Path;
        true -> Path ++ " is truncated"
    end.

%% Evaluates the answer of `erlang:load_nif/2'. It is no error if the library is already loaded.
-spec check(module(), answer()) -> ok | {error, Sentences :: binary()}.
check(Module, ok) -> persistent_term:put(?LOADED(Module), true);
check(_, {error, {reload, _}}) -> ok;
check(Module, {error, Failure}) -> {error, explain(Module, base_path(Module) ++ extension(), Failure)}.

%% The same for the -on_load function of a module that cannot work without its library.
-spec on_load(module(), answer()) -> ok | refusal().
on_load(Module, Answer) ->
    case check(Module, Answer) of
        ok ->
            ok;
        {error, Sentences} ->
            ok = persistent_term:put(?FAILURE(Module), Sentences),
            {error, {not_loaded, lists:flatmap(fun printable/1, unicode:characters_to_list(Sentences))}}
    end.

%% Whether a module has loaded its library in this VM. If so, the library may be in use, and each new version of the
%% module must load it in -on_load.
-spec was_loaded(module()) -> boolean().
was_loaded(Module) ->
    persistent_term:get(?LOADED(Module), false).

%% As on_load/2, for such a new version. If the library does not load and the old version exists, the new version is
%% refused. If the old version was deleted, the new one is loaded without the library, so that its load function can
%% answer the reason.
-spec on_load_again(module(), answer()) -> ok | refusal().
on_load_again(Module, Answer) ->
    Loaded = on_load(Module, Answer),
    case erlang:function_exported(Module, module_info, 0) of
        true -> Loaded;
        false -> ok
    end.

%% Loads canal_lock_nif with its library, if it is not loaded.
-spec ensure_loaded() -> ok | {error, Sentences :: binary()}.
ensure_loaded() ->
    case code:ensure_loaded(canal_lock_nif) of
        {module, _} ->
            ok;
        {error, on_load_failure} ->
            {error, persistent_term:get(?FAILURE(canal_lock_nif))};
        {error, Reason} ->
            Sentence = io_lib:format("canal_lock cannot load its module canal_lock_nif: ~tp.", [Reason]),
            {error, unicode:characters_to_binary(Sentence)}
    end.

base_path(Module) ->
    filename:join(priv_dir(Module), atom_to_list(Module)).

priv_dir(Module) ->
    case code:priv_dir(canal_lock) of
        {error, bad_name} ->
            %% The application is not loaded: priv is next to the ebin folder of the module.
            filename:join([filename:dirname(code:which(Module)), "..", "priv"]);
        Dir ->
            Dir
    end.

%% The section table is the last part of an ELF file. Only 64-bit little-endian files are checked.
is_truncated(File) ->
    case file:read_file(File) of
        {ok,
            <<16#7f, "ELF", 2, 1, _:34/binary, Sections:64/little, _:10/binary, Size:16/little, Number:16/little,
                _/binary>> = Bytes} ->
            Sections + Size * Number > byte_size(Bytes);
        _ ->
            false
    end.

%% The text for a failure of `erlang:load_nif/2'.
explain(Module, File, {Kind, Text}) ->
    Format = "canal_lock cannot load its native library ~ts: ~ts. ~ts",
    Trimmed = string:trim(decoded(Text), trailing, "."),
    unicode:characters_to_binary(io_lib:format(Format, [File, cause(Kind, File, Trimmed), remedy(Kind, Module)])).

%% The VM passes the loader's message as bytes. If they are not UTF-8, or are decoded already, they are used as they
%% are.
decoded(Text) ->
    try unicode:characters_to_list(list_to_binary(Text)) of
        Decoded when is_list(Decoded) -> Decoded;
        _ -> Text
    catch
        error:badarg -> Text
    end.

%% Escapes characters above 255: the VM would log a string that contains one as a list of numbers.
printable(Character) when Character =< 16#ff -> [Character];
printable(Character) -> io_lib:format("\\x{~.16B}", [Character]).

%% The extension that `erlang:load_nif/2' appends.
extension() ->
    case os:type() of
        {win32, _} -> ".dll";
        _ -> ".so"
    end.

remedy(upgrade, _) ->
    "The library that this node has loaded is in use and stays loaded: a new version needs a new node.";
remedy(_, Module) ->
    "Rebuild it for this kind of machine with `rebar3 do clean --apps canal_lock, compile' or "
    "`mix deps.compile canal_lock --force' in the project that depends on it; the environment variable "
    "CANAL_LOCK_ARCHIVE can name an archive that was built before." ++ left_out(Module).

left_out(canal_lock_nif) ->
    "";
left_out(canal_lock_quorum_nif) ->
    " A build with CANAL_LOCK_QUORUM=0, or with the setting quorum of canal_lock set to false, leaves it out. Permits "
    "work without it.".

%% In an upgrade, the file of the loaded library may have been replaced, so the file is not examined.
cause(upgrade, _, Text) ->
    Text;
cause(_, File, Text) ->
    case file:read_file(File) of
        {error, Reason} ->
            [file:format_error(Reason), in_parentheses(Text)];
        {ok, Bytes} ->
            case {differences(built_for(Bytes), this_vm()), is_truncated(File)} of
                {_, true} -> "the file is truncated";
                {[], false} -> Text;
                {Differences, false} -> [lists:join(", and ", Differences), in_parentheses(Text)]
            end
    end.

in_parentheses(Text) ->
    [" (", Text, ")"].

%% If there is a /proc, the VM's own program shows what a library must be built for.
this_vm() ->
    case file:read_file("/proc/self/exe") of
        {ok, Bytes} -> built_for(Bytes);
        {error, _} -> unknown
    end.

%% The machine (bits of a word, byte order, ELF's machine number) and the libc that an ELF file is built for.
built_for(<<16#7f, "ELF", Class, Order, _:10/binary, _Type:2/binary, Machine:2/binary, _/binary>> = Bytes) ->
    Endianness = case Order of 2 -> big; _ -> little end,
    {{32 * Class, Endianness, binary:decode_unsigned(Machine, Endianness)}, libc(Bytes)};
built_for(_) ->
    unknown.

%% Recognized by the name of the libc file that the library needs. A library may need none.
libc(Bytes) ->
    Names = [{"glibc", <<0, "libc.so.6", 0>>}, {"musl", <<0, "libc.so", 0>>}, {"musl", <<0, "libc.musl-">>}],
    case [Libc || {Libc, Name} <- Names, binary:match(Bytes, Name) =/= nomatch] of
        [Libc | _] -> Libc;
        [] -> unknown
    end.

differences(_, unknown) ->
    [];
differences(unknown, _) ->
    ["it is not a library for this system"];
differences({Machine, Libc}, {OurMachine, OurLibc}) ->
    machines(Machine, OurMachine) ++
        [differ(Libc, OurLibc) || Libc =/= OurLibc, Libc =/= unknown, OurLibc =/= unknown].

machines(Same, Same) -> [];
machines({_, _, Number} = Machine, {_, _, Number} = Ours) -> [differ(in_full(Machine), in_full(Ours))];
machines({_, _, Number}, {_, _, Ours}) -> [differ(name(Number), name(Ours))].

differ(What, Ours) ->
    io_lib:format("it is built for ~ts, but this VM for ~ts", [What, Ours]).

in_full({Bits, Endianness, Number}) ->
    io_lib:format("~ts (~b bits, ~ts-endian)", [name(Number), Bits, Endianness]).

name(Number) ->
    maps:get(Number, ?MACHINES, io_lib:format("ELF machine ~b", [Number])).
