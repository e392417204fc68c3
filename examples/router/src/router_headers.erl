%% What holds of headers on both sides: which may be passed on, and what length they tell.
-module(router_headers).

-export([normal/1, are_sound/1, has_control_character/1, end_to_end/2, values/2, body_length/1]).

-export_type([headers/0]).

-type headers() :: [{Name :: string(), Value :: string()}].

%% They are about one connection, and the next is another (RFC 9110, section 7.6.1).
-define(HOP_BY_HOP, [
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
    "transfer-encoding", "upgrade"
]).
%% Whatever `Connection' says: without them it could not be seen whose a request is, or where an answer ends.
-define(NOT_HOP_BY_HOP, ["host", "content-length"]).

%% As the VM's parser reads them: it has atoms for names that it knows.
-spec normal([{Name :: atom() | string(), Value :: string()}]) -> headers().
normal(Headers) ->
    [{name(Name), string:trim(Value, both, " \t")} || {Name, Value} <- Headers].

name(Name) when is_atom(Name) -> atom_to_list(Name);
name(Name) -> Name.

%% The parser takes an empty name, and lines within a value. Passed on as it is, such a line might be a header of its
%% own to whoever reads it.
-spec are_sound(headers()) -> boolean().
are_sound(Headers) ->
    lists:all(fun({Name, Value}) -> Name =/= "" andalso not has_control_character(Value) end, Headers).

-spec has_control_character(string()) -> boolean().
has_control_character(Text) ->
    lists:any(fun(Character) -> Character < $\s andalso Character =/= $\t orelse Character =:= 127 end, Text).

%% Those that are for the other end, and not among others that are named, in small letters.
-spec end_to_end(headers(), [string()]) -> headers().
end_to_end(Headers, Others) ->
    Named = [string:lexemes(string:lowercase(Value), ", \t") || Value <- values("connection", Headers)],
    Connection = [Name || Name <- lists:append(Named), not lists:member(Name, ?NOT_HOP_BY_HOP)],
    Dropped = ?HOP_BY_HOP ++ Connection ++ Others,
    [Header || {Name, _} = Header <- Headers, not lists:member(string:lowercase(Name), Dropped)].

-spec values(Name :: string(), headers()) -> [string()].
values(Wanted, Headers) ->
    [Value || {Name, Value} <- Headers, string:lowercase(Name) =:= Wanted].

%% Of a body. Only one that everybody reads the same: not what two headers say, nor what has a sign.
-spec body_length(headers()) -> non_neg_integer() | none | wrong.
body_length(Headers) ->
    case values("content-length", Headers) of
        [] -> none;
        [[_ | _] = Digits] -> digits(Digits);
        _ -> wrong
    end.

digits(Digits) ->
    case lists:all(fun(Digit) -> Digit >= $0 andalso Digit =< $9 end, Digits) of
        true -> list_to_integer(Digits);
        false -> wrong
    end.
