%% Rules for headers in both directions: which are passed on, and the body length that they specify.
-module(router_headers).

-export([normal/1, are_sound/1, has_control_character/1, end_to_end/2, values/2, body_length/1]).

-export_type([headers/0]).

-type headers() :: [{Name :: string(), Value :: string()}].

%% Valid for one connection only (RFC 9110, section 7.6.1).
-define(HOP_BY_HOP, [
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
    "transfer-encoding", "upgrade"
]).
%% Never dropped, even if `Connection' lists them: they identify the app and the end of a message.
-define(NOT_HOP_BY_HOP, ["host", "content-length"]).

%% Converts the parser's headers, whose well-known names are atoms.
-spec normal([{Name :: atom() | string(), Value :: string()}]) -> headers().
normal(Headers) ->
    [{name(Name), string:trim(Value, both, " \t")} || {Name, Value} <- Headers].

name(Name) when is_atom(Name) -> atom_to_list(Name);
name(Name) -> Name.

%% The parser accepts an empty name, and line breaks within a value. Another program could read such a value as a
%% separate header.
-spec are_sound(headers()) -> boolean().
are_sound(Headers) ->
    lists:all(fun({Name, Value}) -> Name =/= "" andalso not has_control_character(Value) end, Headers).

-spec has_control_character(string()) -> boolean().
has_control_character(Text) ->
    lists:any(fun(Character) -> Character < $\s andalso Character =/= $\t orelse Character =:= 127 end, Text).

%% Returns the headers that are not hop-by-hop and not in Others (in lower case).
-spec end_to_end(headers(), [string()]) -> headers().
end_to_end(Headers, Others) ->
    Named = [string:lexemes(string:lowercase(Value), ", \t") || Value <- values("connection", Headers)],
    Connection = [Name || Name <- lists:append(Named), not lists:member(Name, ?NOT_HOP_BY_HOP)],
    Dropped = ?HOP_BY_HOP ++ Connection ++ Others,
    [Header || {Name, _} = Header <- Headers, not lists:member(string:lowercase(Name), Dropped)].

-spec values(Name :: string(), headers()) -> [string()].
values(Wanted, Headers) ->
    [Value || {Name, Value} <- Headers, string:lowercase(Name) =:= Wanted].

%% The body length. Two headers and values with a sign are wrong, because programs read them differently.
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
