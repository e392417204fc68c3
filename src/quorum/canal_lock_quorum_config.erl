%% @private
%% Checks the options of the quorum locks and makes a configuration of them. Members, leases, the voters of each name
%% and the version of frames must be the same on all nodes. Each frame carries a fingerprint of these, and a node
%% ignores frames with another one.
-module(canal_lock_quorum_config).

-export([options/0, wrong_option/1, make/1, voter_lease_ms/1, quarantine_ms/1, is_grouped/1, list_of_all/1]).
-export([is_client/2, is_node_name/1]).

-export_type([config/0, options/0, place/0]).

%% The index of a member in the sorted list of members, from 0.
-type place() :: 0..63.

-type options() :: #{
    members := [node(), ...],
    voter => boolean(),
    clients => none | all | [node()],
    replicas => 3 | 5,
    fence_file => file:name_all() | none,
    forget => [node()],
    reconnect_ms => pos_integer(),
    max_waiting => pos_integer(),
    totals_interval_ms => pos_integer(),
    rules => #{atom() => pos_integer()}
}.

-type config() :: #{
    members := [node(), ...],
    %% 32 hexadecimal digits that identify the list of members, and which of them vote for a name.
    list := binary(),
    places := #{node() => place()},
    %% Whether this node is a member, and not a client.
    is_member := boolean(),
    %% The nodes that may lock here without being members.
    clients := none | all | [node()],
    fingerprint := non_neg_integer(),
    %% The rules that all members must have, and the replicas, if not all members vote for each name.
    agreed_rules := #{atom() => pos_integer()},
    frame_version := byte(),
    %% Members of earlier lists that are dead.
    forget := [node()],
    setup := canal_lock_quorum_nif:setup(),
    reconnect_ms := pos_integer(),
    max_waiting := pos_integer(),
    totals := canal_lock_quorum_totals:ref(),
    totals_interval_ms := pos_integer(),
    fence_file := binary() | none
}.

-define(MAX_MEMBERS, 64).

%% How many members vote for each name, if there are that many. With more, each lock costs more and is hardly more
%% available. MAX_REPLICAS in native/quorum/src/members.rs.
-define(REPLICAS, 5).

%% In milliseconds. A lease minus the time until a lost connection is noticed leaves about three seconds, and a
%% restarted node waits for this. An attempt to connect to a machine that is down costs a few packets.
-define(RECONNECT_MS, 1000).

%% Requests of a node that wait for a lock. A request takes about 2 kB with its process, and 10,000 of them time out
%% within 0.1 s. A node that needs more at a time is overloaded, or a lock is held for too long.
-define(MAX_WAITING, 10_000).

%% Between two telemetry events. As often as permits emit theirs: the default of `sweep_interval_ms'.
-define(TOTALS_INTERVAL_MS, 5000).
-define(FENCE_FILE,
    "be the name of a file that belongs to this node alone, or none (see \"The state file\" in docs/cluster.md)").
-define(FORGET, "be a list of nodes that are dead, without this node").
-define(CLIENTS, "be none, all, or a list of the nodes that may lock without being members").

%% The options, as rules of canal_lock_errors.
-spec options() -> [canal_lock_errors:option()].
options() ->
    [
        {members, {required, fun members/1}},
        {voter, boolean},
        {clients, fun clients/1},
        {replicas, fun replicas/1},
        {fence_file, fun fence_file/1},
        {forget, fun forget/1},
        {reconnect_ms, positive_ms},
        {max_waiting, positive},
        {totals_interval_ms, positive_ms},
        {rules, map}
    ].

%% What is wrong with the options, if anything. Loads the native library, which checks the rules. If it does not load,
%% the rules are not checked.
-spec wrong_option(term()) -> none | canal_lock_errors:wrong_option().
wrong_option(Options) ->
    case canal_lock_errors:wrong_option(options(), Options) of
        none ->
            case {wrong_role(Options), canal_lock_quorum_nif:load()} of
                {none, ok} -> wrong_rules(Options);
                {none, {error, _}} -> none;
                {Wrong, _} -> Wrong
            end;
        Wrong ->
            Wrong
    end.

%% Of options that are valid each by itself: this node is a member, or a client.
wrong_role(Options = #{members := Members, voter := false}) ->
    case {lists:member(node(), Members), maps:keys(maps:with([fence_file, forget, clients], Options))} of
        {true, _} ->
            {wrong, members, ["not contain this node, ", atom_to_list(node()), ", because voter is false"], Members};
        {false, [Option | _]} ->
            {wrong, Option, "not be set, because voter is false", maps:get(Option, Options)};
        {false, []} ->
            none
    end;
wrong_role(Options = #{members := Members}) ->
    case {lists:member(node(), Members), needs_file(Options)} of
        {false, _} ->
            {wrong, members, ["contain this node, ", atom_to_list(node()), ", or voter must be false"], Members};
        {true, true} ->
            {missing, fence_file, ?FENCE_FILE};
        {true, false} ->
            none
    end.

%% A member that has lost its fences needs answers of the others before it votes. So `none' must be a decision.
needs_file(#{fence_file := _}) -> false;
needs_file(#{members := [_]}) -> false;
needs_file(_) -> true.

members(Members) when length(Members) >= 1, length(Members) =< ?MAX_MEMBERS ->
    case {lists:all(fun is_atom/1, Members), length(lists:usort(Members)) =:= length(Members)} of
        {true, true} ->
            {lists:all(fun is_node_name/1, Members), "contain names of nodes, without spaces"};
        {true, false} -> {false, "contain each node once"};
        {false, _} -> not_nodes()
    end;
members(_) ->
    not_nodes().

%% The state file separates them by spaces.
-spec is_node_name(node()) -> boolean().
is_node_name(Node) ->
    Node =/= '' andalso nomatch =:= re:run(atom_to_list(Node), "[\\s[:cntrl:]]", [unicode, ucp]).

not_nodes() ->
    {false, "be a list of 1 to 64 nodes, the same on each of them"}.

clients(Clients) when Clients =:= none; Clients =:= all ->
    {true, ?CLIENTS};
clients(Clients) ->
    {are_nodes(Clients), ?CLIENTS}.

replicas(Replicas) ->
    {Replicas =:= 3 orelse Replicas =:= 5, "be 3 or 5, the same on all nodes"}.

fence_file(Path) ->
    try
        {Path =:= none orelse is_binary(path(Path)), ?FENCE_FILE}
    catch
        error:_ -> {false, ?FENCE_FILE}
    end.

forget(Nodes) ->
    {are_nodes(Nodes) andalso not lists:member(node(), Nodes), ?FORGET}.

are_nodes(Nodes) ->
    try
        lists:all(fun is_atom/1, Nodes)
    catch
        error:_ -> false
    end.

wrong_rules(Options) ->
    Rules = maps:get(rules, Options, #{}),
    Known = [{Rule, fun rule_value/1} || Rule <- maps:keys(canal_lock_quorum_nif:default_rules())],
    case canal_lock_errors:wrong_option(Known, Rules) of
        none ->
            case canal_lock_quorum_nif:check(setup(Options)) of
                <<>> -> none;
                Sentence -> {wrong, rules, ["be consistent (", Sentence, ")"], Rules}
            end;
        {unknown, Name, _} ->
            {wrong, rules, ["contain only known rules, not ", canal_lock_text:short(Name, 50)], Rules};
        {wrong, Rule, Must, _} ->
            {wrong, rules, ["set ", atom_to_list(Rule), " to ", Must], Rules}
    end.

rule_value(Value) ->
    {is_integer(Value) andalso Value > 0 andalso Value < 1 bsl 32, "a positive integer below 2^32"}.

%% For options that have been checked.
-spec make(options()) -> config().
make(Options = #{members := Given}) ->
    %% Sorted, because nodes may list them in different orders.
    Members = lists:sort(Given),
    FenceFile =
        case Options of
            #{fence_file := Path} when Path =/= none -> path(Path);
            _ -> none
        end,
    %% Two sets of members or files are equal if these bytes are.
    Identity = term_to_binary({Members, FenceFile}),
    Setup = (setup(Options))#{identity := Identity},
    Agreed = agreed_rules(Setup),
    FrameVersion = canal_lock_quorum_nif:frame_version(),
    #{
        members => Members,
        list => list_id(Members, Setup),
        places => maps:from_list(lists:zip(Members, lists:seq(0, length(Members) - 1))),
        is_member => maps:get(voter, Options, true),
        clients => maps:get(clients, Options, none),
        fingerprint => erlang:phash2({FrameVersion, Members, lists:sort(maps:to_list(Agreed))}, 1 bsl 32),
        agreed_rules => Agreed,
        frame_version => FrameVersion,
        forget => maps:get(forget, Options, []),
        setup => Setup,
        reconnect_ms => maps:get(reconnect_ms, Options, ?RECONNECT_MS),
        max_waiting => maps:get(max_waiting, Options, ?MAX_WAITING),
        totals => canal_lock_quorum_totals:new(),
        totals_interval_ms => maps:get(totals_interval_ms, Options, ?TOTALS_INTERVAL_MS),
        fence_file => FenceFile
    }.

-spec voter_lease_ms(config()) -> pos_integer().
voter_lease_ms(#{setup := #{rules := #{voter_lease_ms := Lease_ms}}}) -> Lease_ms.

-spec quarantine_ms(config()) -> pos_integer().
quarantine_ms(#{setup := #{rules := #{quarantine_ms := Quarantine_ms}}}) -> Quarantine_ms.

%% Whether this node may lock here without being a member.
-spec is_client(node(), config()) -> boolean().
is_client(Node, #{places := Places}) when is_map_key(Node, Places) -> false;
is_client(_, #{clients := none}) -> false;
is_client(Node, #{clients := all}) -> is_atom(Node);
is_client(Node, #{clients := Clients}) -> lists:member(Node, Clients).

%% Whether only some of the members vote for each name: its group.
-spec is_grouped(config()) -> boolean().
is_grouped(#{setup := Setup}) -> has_groups(Setup).

has_groups(#{count := Count, replicas := Replicas}) -> Replicas < Count.

setup(Options = #{members := Given}) ->
    Members = lists:sort(Given),
    Before = lists:takewhile(fun(Member) -> Member =/= node() end, Members),
    Count = length(Members),
    #{
        count => Count,
        me => case maps:get(voter, Options, true) of true -> length(Before); false -> nil end,
        replicas => min(Count, maps:get(replicas, Options, ?REPLICAS)),
        identity => <<>>,
        rules => maps:merge(canal_lock_quorum_nif:default_rules(), maps:get(rules, Options, #{}))
    }.

%% Agents rely on the leases of voters. The replicas and partitions choose the voters of a name, if not all members vote
%% for each name. Other rules only change what their own node does.
agreed_rules(Setup = #{replicas := Replicas, rules := Rules}) ->
    case has_groups(Setup) of
        true -> (maps:with([holder_lease_ms, voter_lease_ms, partitions], Rules))#{replicas => Replicas};
        false -> maps:with([holder_lease_ms, voter_lease_ms], Rules)
    end.

list_id(Members, Setup = #{replicas := Replicas, rules := #{partitions := Partitions}}) ->
    Names = [atom_to_binary(Member, utf8) || Member <- Members],
    case has_groups(Setup) of
        true -> hash([lines(Names), io_lib:format("replicas ~b partitions ~b~n", [Replicas, Partitions])]);
        false -> list_of_all(Names)
    end.

%% The id of a list of which all members vote for each name. The same on nodes of all OTP releases, although these
%% encode atoms differently.
-spec list_of_all([Name :: binary()]) -> binary().
list_of_all(Names) ->
    hash(lines(Names)).

%% A name contains no space, so no other line is that of a name.
lines(Names) ->
    [[Name, $\n] || Name <- Names].

hash(Text) ->
    string:lowercase(binary:encode_hex(erlang:md5(Text))).

%% Encoded for the file system, and absolute, because the current folder can change.
path(Path) ->
    case filename:absname(Path) of
        Bytes when is_binary(Bytes) -> Bytes;
        Characters -> unicode:characters_to_binary(Characters, unicode, file:native_name_encoding())
    end.
