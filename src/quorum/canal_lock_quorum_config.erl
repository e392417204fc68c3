%% @private
%% What the quorum locks of a node are started with. Members and rules have to be the same on all nodes; a fingerprint
%% of both goes with each message, and who has another one is not listened to.
-module(canal_lock_quorum_config).

-export([fault/1, make/1]).

-export_type([config/0, options/0, place/0]).

%% Of a member in the list of members, from 0.
-type place() :: 0..15.

-type options() :: #{
    members := [node(), ...],
    fence_file => file:name_all(),
    reconnect_ms => pos_integer(),
    rules => #{atom() => pos_integer()}
}.

-type config() :: #{
    members := [node(), ...],
    places := #{node() => place()},
    fingerprint := non_neg_integer(),
    setup := canal_lock_quorum_nif:setup(),
    reconnect_ms := pos_integer(),
    fence_file := binary() | none
}.

-define(MAX_MEMBERS, 16).

%% Three seconds without a node are one lease less the time to hear of it, and whoever restarts a node waits for this.
%% A connection attempt to a machine that is not there is a few packets.
-define(RECONNECT_MS, 1000).

%% Changes with all that nodes must agree on to understand each other, but for the format of frames.
-define(PROTOCOL, 1).

%% What is wrong with the options, if anything. The library has to be loaded, which knows the rules.
-spec fault(term()) -> none | binary().
fault(Options = #{members := Members}) ->
    first_fault([
        fun() -> members_fault(Members) end,
        fun() -> fence_file_fault(maps:get(fence_file, Options, none)) end,
        fun() -> reconnect_fault(maps:get(reconnect_ms, Options, ?RECONNECT_MS)) end,
        fun() -> unknown_fault(maps:keys(Options) -- [members, fence_file, reconnect_ms, rules], "option") end,
        fun() -> rules_fault(maps:get(rules, Options, #{}), Members) end
    ]);
fault(Options) when is_map(Options) ->
    <<"members is missing: the list of all nodes that vote, the same on each">>;
fault(_) ->
    <<"not a map of options">>.

first_fault([]) ->
    none;
first_fault([Look | Looks]) ->
    case Look() of
        none -> first_fault(Looks);
        Fault -> Fault
    end.

members_fault(Members) ->
    case is_list(Members) andalso (catch lists:all(fun is_atom/1, Members)) of
        true ->
            case {length(lists:usort(Members)), length(Members), lists:member(node(), Members)} of
                {_, Length, _} when Length < 1; Length > ?MAX_MEMBERS -> <<"members are 1 to 16 nodes">>;
                {Different, Length, _} when Different < Length -> <<"members has a node twice">>;
                {_, _, false} -> sentence("members does not list this node, ~tp", [node()]);
                _ -> none
            end;
        _ ->
            <<"members is not a list of nodes">>
    end.

fence_file_fault(none) ->
    none;
fence_file_fault(Path) ->
    try path(Path) of
        <<>> -> <<"fence_file is empty">>;
        _ -> none
    catch
        error:_ -> <<"fence_file is not the name of a file">>
    end.

reconnect_fault(Ms) when is_integer(Ms), Ms > 0, Ms < 1 bsl 32 -> none;
reconnect_fault(_) -> <<"reconnect_ms is not a positive integer below 2^32, in milliseconds">>.

unknown_fault([], _) -> none;
unknown_fault([Name | _], What) -> sentence("no such ~ts: ~0tP", [What, Name, 10]).

rules_fault(Rules, Members) when is_map(Rules) ->
    Known = maps:keys(canal_lock_quorum_nif:default_rules()),
    Wrong = [Name || {Name, Value} <- maps:to_list(Rules), not is_rule(Value)],
    case {maps:keys(Rules) -- Known, Wrong} of
        {[], []} ->
            case canal_lock_quorum_nif:check(setup(Members, Rules)) of
                <<>> -> none;
                Sentence -> <<"rules: ", Sentence/binary>>
            end;
        {[], [Name | _]} ->
            sentence("rules: ~ts is not a positive integer below 2^32", [Name]);
        {Unknown, _} ->
            unknown_fault(Unknown, "rule")
    end;
rules_fault(_, _) ->
    <<"rules is not a map">>.

is_rule(Value) -> is_integer(Value) andalso Value > 0 andalso Value < 1 bsl 32.

sentence(Format, Values) ->
    unicode:characters_to_binary(io_lib:format(Format, Values)).

%% Of options without fault.
-spec make(options()) -> config().
make(Options = #{members := Given}) ->
    %% In whatever order they are listed.
    Members = lists:sort(Given),
    Setup = setup(Members, maps:get(rules, Options, #{})),
    FenceFile =
        case Options of
            #{fence_file := Path} -> path(Path);
            _ -> none
        end,
    #{
        members => Members,
        places => maps:from_list(lists:zip(Members, lists:seq(0, length(Members) - 1))),
        fingerprint => erlang:phash2({?PROTOCOL, Members, maps:get(rules, Setup)}, 1 bsl 32),
        setup => Setup,
        reconnect_ms => maps:get(reconnect_ms, Options, ?RECONNECT_MS),
        fence_file => FenceFile
    }.

setup(Given, Rules) ->
    Members = lists:sort(Given),
    Before = lists:takewhile(fun(Member) -> Member =/= node() end, Members),
    All = maps:merge(canal_lock_quorum_nif:default_rules(), Rules),
    #{count => length(Members), me => length(Before), rules => All}.

%% As the file system takes it. From now on wherever the current folder is.
path(Path) ->
    case filename:absname(Path) of
        Bytes when is_binary(Bytes) -> Bytes;
        Characters -> unicode:characters_to_binary(Characters, unicode, file:native_name_encoding())
    end.
