%% @private
%% Encodes names of locks as bytes. All nodes must encode a name as the same bytes, on any release of Erlang. Otherwise
%% two nodes could hold the same name at the same time.
%%
%% So a name may contain only terms with one stable external format. Excluded are maps (the order of their keys varies),
%% floats (`0.0' and `-0.0' were equal in older releases), pids and references (they contain the creation number of
%% their node), funs (they depend on code) and bitstrings.
-module(canal_lock_quorum_names).

-export([encode/1, encode_all/1, encode_reserved/1, prefix/1]).

-export_type([name/0, reserved/0]).

%% The names of canal_lock_cluster. No caller of canal_lock_quorum may lock or revoke one.
-type reserved() :: {canal_lock_cluster, allocator} | {canal_lock_cluster, node, node()}.

-type name() :: binary() | atom() | integer() | [name()] | tuple().

%% In bytes, and names per lock: the limits of a frame. See native/quorum/src/frame.rs, MAX_NAME and MAX_NAMES.
-define(MAX_BYTES, 1024).
-define(MAX_NAMES, 64).

%% `Must' is what a name must be, for the explanation of an error.
-spec encode(term()) -> {ok, binary()} | {error, Must :: string()}.
encode(Name) when element(1, Name) =:= canal_lock_cluster ->
    {error, "not be a tuple that begins with canal_lock_cluster, which is reserved"};
encode(Name) ->
    %% Minor version 2 encodes atoms as UTF-8. It is the default from OTP 26 on.
    case is_name(Name) andalso term_to_binary(Name, [{minor_version, 2}]) of
        false -> {error, "be a binary, an atom, an integer, or a tuple or list of these"};
        Bytes when byte_size(Bytes) =< ?MAX_BYTES -> {ok, Bytes};
        _ -> {error, "have at most 1024 bytes in the external term format"}
    end.

-spec encode_reserved(reserved()) -> binary().
encode_reserved(Name) ->
    term_to_binary(Name, [{minor_version, 2}]).

%% What the encoded names of all node locks begin with: `{canal_lock_cluster, node, ''}' without the bytes of `'''.
-spec prefix(node) -> binary().
prefix(node) ->
    Empty = encode_reserved({canal_lock_cluster, node, ''}),
    binary:part(Empty, 0, byte_size(Empty) - 2).

-spec encode_all(term()) -> {ok, [binary(), ...]} | {error, Must :: iodata()}.
encode_all(Names) when length(Names) >= 1, length(Names) =< ?MAX_NAMES ->
    encode_each(Names, []);
encode_all(_) ->
    {error, "be a list of 1 to 64 names"}.

encode_each([], Encoded) ->
    case length(lists:usort(Encoded)) =:= length(Encoded) of
        true -> {ok, Encoded};
        false -> {error, "contain each name once"}
    end;
encode_each([Name | Names], Encoded) ->
    case encode(Name) of
        {ok, Bytes} -> encode_each(Names, [Bytes | Encoded]);
        {error, Must} -> {error, ["be a list of names; each name must ", Must]}
    end.

is_name(Name) when is_binary(Name); is_atom(Name); is_integer(Name) -> true;
is_name(Name) when is_tuple(Name) -> lists:all(fun is_name/1, tuple_to_list(Name));
is_name([Head | Tail]) -> is_name(Head) andalso is_list(Tail) andalso is_name(Tail);
is_name([]) -> true;
is_name(_) -> false.
