%% @private
%% Names as bytes. All nodes must make the same bytes of a name, whatever release of Erlang they run: otherwise two of
%% them would each hold it and not know of the other. So names are of those terms alone whose external format is one
%% and stays so. It is not for maps (the order of their keys), floats (`0.0' and `-0.0' were equal once), pids and
%% references (their node is written as it was started), funs (their code) and bitstrings.
-module(canal_lock_quorum_names).

-export([encode/1, encode_all/1]).

-export_type([name/0]).

-type name() :: binary() | atom() | integer() | [name()] | tuple().

%% Bytes that a frame takes. See native/quorum/src/frame.rs, MAX_NAME and MAX_NAMES.
-define(MAX_BYTES, 1024).
-define(MAX_NAMES, 64).

-spec encode(term()) -> {ok, binary()} | {error, Fault :: binary()}.
encode(Name) ->
    %% 2: atoms as UTF-8, which is the default from OTP 26 on.
    case is_name(Name) andalso term_to_binary(Name, [{minor_version, 2}]) of
        false -> {error, <<"not a name, which is a binary, an atom, an integer, or a tuple or list of names">>};
        Bytes when byte_size(Bytes) =< ?MAX_BYTES -> {ok, Bytes};
        _ -> {error, <<"a name of more than 1024 bytes in the external term format">>}
    end.

%% Each must be there once.
-spec encode_all(term()) -> {ok, [binary(), ...]} | {error, Fault :: binary()}.
encode_all(Names) when length(Names) >= 1, length(Names) =< ?MAX_NAMES ->
    encode_each(Names, []);
encode_all(_) ->
    {error, <<"not a list of 1 to 64 names">>}.

encode_each([], Encoded) ->
    case length(lists:usort(Encoded)) =:= length(Encoded) of
        true -> {ok, Encoded};
        false -> {error, <<"a name is there twice">>}
    end;
encode_each([Name | Names], Encoded) ->
    case encode(Name) of
        {ok, Bytes} -> encode_each(Names, [Bytes | Encoded]);
        {error, Fault} -> {error, Fault}
    end.

is_name(Name) when is_binary(Name); is_atom(Name); is_integer(Name) -> true;
is_name(Name) when is_tuple(Name) -> lists:all(fun is_name/1, tuple_to_list(Name));
is_name([Head | Tail]) -> is_name(Head) andalso is_list(Tail) andalso is_name(Tail);
is_name([]) -> true;
is_name(_) -> false.
