%% @private
%% The native library when it does not load: what is wrong with the file, and how to come by a right one.
%%
%% The VM's own words are shown, but they do not tell it all. To the loader of glibc a library of another machine is
%% "No such file or directory"; and one that was made for another libc lacks some symbol, or a file that nobody knows.
-module(canal_lock_library).

-export([ensure_loaded/0, is_cut_short/1, explain/2]).

%% The last failure in words, from the process that loads to those that ask. It stays, and does not grow.
-define(FAILURE, {?MODULE, failure}).

-spec ensure_loaded() -> ok | {error, Sentences :: binary()}.
ensure_loaded() ->
    case code:ensure_loaded(canal_lock_nif) of
        {module, _} ->
            ok;
        {error, on_load_failure} ->
            {error, persistent_term:get(?FAILURE)};
        {error, Reason} ->
            Sentence = io_lib:format("canal_lock cannot load its module canal_lock_nif: ~tp.", [Reason]),
            {error, unicode:characters_to_binary(Sentence)}
    end.

%% To be asked before `erlang:load_nif/2', because the system's loader does not look: half a library ends the VM that
%% loads it. Of ELF the table of sections comes last; of another kind than that of 64 bits and little-endian, nothing is
%% known.
-spec is_cut_short(Path :: file:filename()) -> boolean().
is_cut_short(Path) ->
    case file:read_file(Path ++ extension()) of
        {ok,
            <<16#7f, "ELF", 2, 1, _:34/binary, Sections:64/little, _:10/binary, Size:16/little, Number:16/little,
                _/binary>> = Bytes} ->
            Sections + Size * Number > byte_size(Bytes);
        _ ->
            false
    end.

%% What `erlang:load_nif/2' has answered for a path, in sentences. A string, because the VM's report of a module that
%% does not load cuts binaries short. In a release this is called while the node boots: of servers, only those of code
%% and files are there.
-spec explain(Path :: file:filename(), {Kind :: atom(), Words :: string()}) -> string().
explain(Path, {Kind, Words}) ->
    File = Path ++ extension(),
    Format = "canal_lock cannot load its native library ~ts: ~ts. ~ts",
    Trimmed = string:trim(decoded(Words), trailing, "."),
    Remedy =
        case string:find(Trimmed, "static TLS") of
            nomatch -> remedy(Kind);
            _ -> remedy(no_room_for_thread_locals)
        end,
    Sentences = lists:flatten(io_lib:format(Format, [File, cause(File, Trimmed), Remedy])),
    ok = persistent_term:put(?FAILURE, unicode:characters_to_binary(Sentences)),
    lists:flatmap(fun reported/1, Sentences).

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

%% Its file may have been replaced since then, so that nothing is to be learned from it.
remedy(Kind) when Kind =:= upgrade; Kind =:= reload ->
    "The one that this node has loaded before is in use, and stays: a new version needs a new node.";
remedy(no_room_for_thread_locals) ->
    "Other libraries have used up what the C library keeps for the thread-locals of those that are loaded later (we "
    "need 152 bytes): start the node with GLIBC_TUNABLES=glibc.rtld.optional_static_tls=4096 in its environment.";
remedy(_) ->
    "Build it again, for a machine such as this one, with `rebar3 do clean --apps canal_lock, compile' or "
    "`mix deps.compile canal_lock --force' in the project that depends on it; CANAL_LOCK_NIF_LIBRARY in the "
    "environment may name a ready-made one.".

cause(File, Words) ->
    case file:read_file(File) of
        {error, Reason} ->
            [file:format_error(Reason), in_parentheses(Words)];
        {ok, Bytes} ->
            case differences(built_for(Bytes), this_vm()) of
                [] -> Words;
                Differences -> [lists:join(", and ", Differences), in_parentheses(Words)]
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
