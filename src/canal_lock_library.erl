%% @private
%% Finds the native library of a module. If it does not load, says why, in the words of the system's loader, and how to
%% build it.
%% Two modules have a native library. The library of canal_lock_nif is loaded with its module. The library of
%% canal_lock_quorum_nif is loaded when it is first used, so a node that uses only permits never loads it.
%%
%% Each module must call `erlang:load_nif/2' itself. It must not pass this module a fun that calls it: if the -on_load
%% function of a new version of the module fails, the VM cannot call local funs of the old version (OTP 25: badfun).
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

%% `erlang:load_nif/2' appends it.
-define(EXTENSION, ".so").

%% The argument for `erlang:load_nif/2'. A truncated library would crash the VM, because the system's loader does not
%% check the length. For such a file, this answers a path that does not exist.
%%
%% In a release this is called while the node boots, when only the code server and the file server run.
-spec path(module()) -> file:filename().
path(Module) ->
    Path = base_path(Module),
    case is_truncated(Path ++ ?EXTENSION) of
        false -> Path;
        true -> Path ++ " is truncated"
    end.

%% Evaluates the answer of `erlang:load_nif/2'. It is no error if the library is already loaded.
-spec check(module(), answer()) -> ok | {error, Sentences :: binary()}.
check(Module, ok) -> persistent_term:put(?LOADED(Module), true);
check(_, {error, {reload, _}}) -> ok;
check(Module, {error, Failure}) -> {error, explain(Module, base_path(Module) ++ ?EXTENSION, Failure)}.

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

%% The text for a failure of `erlang:load_nif/2'. In an upgrade, the file of the loaded library may have been replaced,
%% so the file is not examined.
explain(Module, File, {Kind, Text}) ->
    Cause =
        case Kind =/= upgrade andalso is_truncated(File) of
            true -> "the file is truncated";
            false -> string:trim(decoded(Text), trailing, ".")
        end,
    Format = "canal_lock cannot load its native library ~ts: ~ts. ~ts",
    unicode:characters_to_binary(io_lib:format(Format, [File, Cause, remedy(Kind, Module, File)])).

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

remedy(upgrade, _, _) ->
    "The library that this node has loaded is in use and stays loaded: a new version needs a new node.";
remedy(_, Module, File) ->
    case file:read_file_info(File) of
        %% A folder of its path is a file.
        {error, enotdir} ->
            "A native library cannot be loaded from an escript: copy the folder canal_lock, with ebin and priv, from "
            "_build/default/lib (mix: _build/dev/lib), and call code:add_patha(\"FOLDER/canal_lock/ebin\") before "
            "canal_lock starts.";
        _ ->
            rebuild(Module)
    end.

rebuild(Module) ->
    "Rebuild it for this kind of machine with `rebar3 do clean --apps canal_lock, compile' or "
    "`mix deps.compile canal_lock --force' in the project that depends on it; the environment variable "
    "CANAL_LOCK_ARCHIVE can name an archive that was built before." ++ left_out(Module).

left_out(canal_lock_nif) ->
    "";
left_out(canal_lock_quorum_nif) ->
    " A build with CANAL_LOCK_QUORUM=0, or with the setting quorum of canal_lock set to false, leaves it out. Permits "
    "work without it.".
