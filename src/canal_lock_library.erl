%% @private
%% How a module comes by its native library; and, when it does not load, what is wrong with the file, and how to come
%% by a right one. There are two such modules. The library of canal_lock_nif is loaded with its module; that of
%% canal_lock_quorum_nif by those who use it, so that a node that counts permits and nothing else does without.
%%
%% The module itself has to call `erlang:load_nif/2', and it may not hand a fun over that does: after a version of a
%% module is refused by its -on_load, the VM calls no local fun of the version that goes on (OTP 25: badfun).
%%
%% The VM's own words are shown, but they do not tell it all. To the loader of glibc a library of another machine is
%% "No such file or directory"; and one that was made for another libc lacks some symbol, or a file that nobody knows.
-module(canal_lock_library).

-export([path/1, loaded/2, on_load/2, was_loaded/1, on_load_again/2, ensure_loaded/0]).

-export_type([answer/0, refusal/0]).

%% Of `erlang:load_nif/2'.
-type answer() :: ok | {error, {Kind :: atom(), Words :: string()}}.

%% A function of -on_load answers it, and the VM shows it in its report of a module that does not load: a string,
%% because of binaries it shows the beginning only.
-type refusal() :: {error, {not_loaded, Sentences :: string()}}.

%% A module's last failure in words, from the process that loads it to those that ask. It stays, and does not grow.
-define(FAILURE(Module), {?MODULE, failure, Module}).
%% That a module has had its library in this VM.
-define(LOADED(Module), {?MODULE, loaded, Module}).

%% What `erlang:load_nif/2' is to be called with. The system's loader does not look whether a file is whole, and half
%% a library ends the VM that loads it: in place of such a file one is named that there is not.
%%
%% In a release this is called while the node boots: of servers, only those of code and files are there.
-spec path(module()) -> file:filename().
path(Module) ->
    Path = whole_path(Module),
    case is_cut_short(Path ++ extension()) of
        false -> Path;
        true -> Path ++ " is not whole"
    end.

%% What `erlang:load_nif/2' has answered. That the module has its library already is no error.
-spec loaded(module(), answer()) -> ok | {error, Sentences :: binary()}.
loaded(Module, ok) -> persistent_term:put(?LOADED(Module), true);
loaded(_, {error, {reload, _}}) -> ok;
loaded(Module, {error, Failure}) -> {error, explain(Module, whole_path(Module) ++ extension(), Failure)}.

%% The same for -on_load of a module that is nothing without its library.
-spec on_load(module(), answer()) -> ok | refusal().
on_load(Module, Answer) ->
    case loaded(Module, Answer) of
        ok ->
            ok;
        {error, Sentences} ->
            ok = persistent_term:put(?FAILURE(Module), Sentences),
            {error, {not_loaded, lists:flatmap(fun reported/1, unicode:characters_to_list(Sentences))}}
    end.

%% Whether a module whose library is loaded by those who use it has had it in this VM. From then on each version of it
%% that is loaded has to come with the library, by its -on_load: somebody is at work with it.
-spec was_loaded(module()) -> boolean().
was_loaded(Module) ->
    persistent_term:get(?LOADED(Module), false).

%% The same for that -on_load. Where the version before has the library in use, it goes on, and this one is refused.
%% If that has been deleted, this one comes without, so that who calls it to load the library hears why it cannot.
-spec on_load_again(module(), answer()) -> ok | refusal().
on_load_again(Module, Answer) ->
    Loaded = on_load(Module, Answer),
    case erlang:function_exported(Module, module_info, 0) of
        true -> Loaded;
        false -> ok
    end.

%% Whether the library of canal_lock_nif is there.
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

whole_path(Module) ->
    filename:join(priv_dir(Module), atom_to_list(Module)).

priv_dir(Module) ->
    case code:priv_dir(canal_lock) of
        {error, bad_name} ->
            %% Not loaded as an application: priv is beside the ebin that the module comes from.
            filename:join([filename:dirname(code:which(Module)), "..", "priv"]);
        Dir ->
            Dir
    end.

%% Of ELF the table of sections comes last; of another kind than that of 64 bits and little-endian, nothing is known.
is_cut_short(File) ->
    case file:read_file(File) of
        {ok,
            <<16#7f, "ELF", 2, 1, _:34/binary, Sections:64/little, _:10/binary, Size:16/little, Number:16/little,
                _/binary>> = Bytes} ->
            Sections + Size * Number > byte_size(Bytes);
        _ ->
            false
    end.

%% What `erlang:load_nif/2' has answered for a file, in sentences.
explain(Module, File, {Kind, Words}) ->
    Format = "canal_lock cannot load its native library ~ts: ~ts. ~ts",
    Trimmed = string:trim(decoded(Words), trailing, "."),
    unicode:characters_to_binary(io_lib:format(Format, [File, cause(Kind, File, Trimmed), remedy(Kind, Module)])).

%% The VM passes on the bytes of what the loader has said. Should they be no UTF-8, or should it read them one day, they
%% are as good as they are.
decoded(Words) ->
    try unicode:characters_to_list(list_to_binary(Words)) of
        Decoded when is_list(Decoded) -> Decoded;
        _ -> Words
    catch
        error:badarg -> Words
    end.

%% With anything else in it, the VM's report would show numbers.
reported(Character) when Character =< 16#ff -> [Character];
reported(Character) -> io_lib:format("\\x{~.16B}", [Character]).

%% What `erlang:load_nif/2' appends.
extension() ->
    case os:type() of
        {win32, _} -> ".dll";
        _ -> ".so"
    end.

remedy(upgrade, _) ->
    "The one that this node has loaded before is in use, and stays: a new version needs a new node.";
remedy(_, Module) ->
    "Build it again, for a machine such as this one, with `rebar3 do clean --apps canal_lock, compile' or "
    "`mix deps.compile canal_lock --force' in the project that depends on it; " ++ ready_made(Module).

%% As native/build.escript has it.
ready_made(canal_lock_nif) ->
    "CANAL_LOCK_NIF_LIBRARY in the environment may name a ready-made one.";
ready_made(canal_lock_quorum_nif) ->
    "CANAL_LOCK_QUORUM_NIF_LIBRARY in the environment may name a ready-made one, and has to where "
    "CANAL_LOCK_NIF_LIBRARY names a library and not an archive. Permits do without it.".

%% The file of one that is in use may have been replaced, so that nothing is to be learned from it.
cause(upgrade, _, Words) ->
    Words;
cause(_, File, Words) ->
    case file:read_file(File) of
        {error, Reason} ->
            [file:format_error(Reason), in_parentheses(Words)];
        {ok, Bytes} ->
            case {differences(built_for(Bytes), this_vm()), is_cut_short(File)} of
                {_, true} -> "the file is not whole";
                {[], false} -> Words;
                {Differences, false} -> [lists:join(", and ", Differences), in_parentheses(Words)]
            end
    end.

in_parentheses(Words) ->
    [" (", Words, ")"].

%% Where there is a /proc, what is loaded into this VM must be as its own program is.
this_vm() ->
    case file:read_file("/proc/self/exe") of
        {ok, Bytes} -> built_for(Bytes);
        {error, _} -> unknown
    end.

%% For which machine an ELF file is (with words of how many bits, and a number out of ELF's list), and for which libc.
built_for(<<16#7f, "ELF", Class, Order, _:10/binary, _Type:2/binary, Machine:2/binary, _/binary>> = Bytes) ->
    Endianness = case Order of 2 -> big; _ -> little end,
    {{32 * Class, Endianness, binary:decode_unsigned(Machine, Endianness)}, libc(Bytes)};
built_for(_) ->
    unknown.

%% By the name of the file that it needs, which is a string of its own. It may need none.
libc(Bytes) ->
    Names = [{"glibc", <<0, "libc.so.6", 0>>}, {"musl", <<0, "libc.so", 0>>}, {"musl", <<0, "libc.musl-">>}],
    case [Libc || {Libc, Name} <- Names, binary:match(Bytes, Name) =/= nomatch] of
        [Libc | _] -> Libc;
        [] -> unknown
    end.

differences(_, unknown) ->
    [];
differences(unknown, _) ->
    ["it is no library of this system"];
differences({Machine, Libc}, {OurMachine, OurLibc}) ->
    machines(Machine, OurMachine) ++
        [differ(Libc, OurLibc) || Libc =/= OurLibc, Libc =/= unknown, OurLibc =/= unknown].

machines(Same, Same) -> [];
machines({_, _, Number} = Machine, {_, _, Number} = Ours) -> [differ(in_full(Machine), in_full(Ours))];
machines({_, _, Number}, {_, _, Ours}) -> [differ(name(Number), name(Ours))].

differ(What, Ours) ->
    io_lib:format("it is for ~ts, while this VM is for ~ts", [What, Ours]).

in_full({Bits, Endianness, Number}) ->
    io_lib:format("~ts of ~b bits, ~ts-endian", [name(Number), Bits, Endianness]).

name(3) -> "x86";
name(8) -> "MIPS";
name(21) -> "PowerPC";
name(22) -> "S/390";
name(40) -> "ARM";
name(62) -> "x86-64";
name(183) -> "AArch64";
name(243) -> "RISC-V";
name(258) -> "LoongArch";
name(Number) -> io_lib:format("machine ~b of ELF's list", [Number]).
