%% @private
%% Checks the options of the quorum locks and makes a configuration of them.
-module(canal_lock_quorum_config).

%% For ?MAX_MS.
-define(ERRORS, canal_lock_quorum_errors).
-include("../canal_lock_errors.hrl").

-export([options/0, wrong_option/1, make/1, totals_interval_ms/1]).
-export([is_client/2, wrong_members/1, default_state_file/0]).

-export_type([config/0, options/0]).

-type options() :: #{
    members := [node(), ...],
    voter => boolean(),
    clients => none | all | [node()],
    state_file => file:filename_all(),
    reconnect_ms => pos_integer(),
    lease_ms => pos_integer(),
    run => pos_integer(),
    max_waiting => pos_integer(),
    totals_interval_ms => pos_integer()
}.

-type config() :: #{
    %% This node, by its name at the start.
    node := node(),
    %% In ascending order. Whom to ask: the members are those of the view.
    members := [node(), ...],
    %% Whether this node has a voter, which votes if the view has this node.
    has_voter := boolean(),
    %% The nodes that may lock here without being members.
    clients := none | all | [node()],
    %% Whether there are such nodes: not without distribution.
    may_have_clients := boolean(),
    lease_ms := pos_integer(),
    setup := canal_lock_quorum_nif:setup(),
    reconnect_ms := pos_integer(),
    max_waiting := pos_integer(),
    totals := canal_lock_quorum_totals:ref(),
    totals_interval_ms := pos_integer(),
    %% `none' on a client, and by default without distribution.
    state_file := binary() | none
}.

-define(MAX_MEMBERS, 16).

%% In milliseconds. A lease minus the time until a lost connection is noticed leaves about three seconds, and a
%% restarted node waits for this. An attempt to connect to a machine that is down costs a few packets.
-define(RECONNECT_MS, 1000).

%% The lease of a vote, and the time in which a restarted voter grants nothing. A holder that cannot be reached keeps
%% its name from others for this long, and has four fifths of it to notice. A lease of less than a second expires by
%% pauses of a busy node.
-define(LEASE_MS, 10_000).
-define(MIN_LEASE_MS, 1000).

%% How many processes of a node may hold a name one after the other while other nodes wait. More of them need fewer
%% messages for each lock, and other nodes wait longer.
-define(RUN, 16).
-define(MAX_RUN, 255).

%% Requests of a node that wait for a lock. A request takes about 2 kB with its process, and 10,000 of them time out
%% within 0.1 s. A node that needs more at a time is overloaded, or a lock is held for too long.
-define(MAX_WAITING, 10_000).

%% Between two telemetry events. As often as permits emit theirs: the default of `sweep_interval_ms'.
-define(TOTALS_INTERVAL_MS, 5000).
-define(STATE_FILE,
    "be the name of a file that belongs to this node alone (see \"The state file\" in docs/cluster.md)").
-define(CLIENTS, "be none, all, or a list of the nodes that may lock without being members").

%% The options, as rules of canal_lock_errors.
-spec options() -> [canal_lock_errors:option()].
options() ->
    [
        {members, {required, fun members/1}},
        {voter, boolean},
        {clients, fun clients/1},
        {state_file, fun state_file/1},
        {reconnect_ms, positive_ms},
        {lease_ms, fun lease_ms/1},
        {run, fun run/1},
        {max_waiting, positive},
        {totals_interval_ms, positive_ms}
    ].

%% What is wrong with the options, if anything.
-spec wrong_option(term()) -> none | canal_lock_errors:wrong_option().
wrong_option(Options) ->
    case canal_lock_errors:wrong_option(options(), Options) of
        none -> wrong_role(Options);
        Wrong -> Wrong
    end.

%% Of options that are valid each by itself: this node has a voter, or is a client.
wrong_role(Options = #{members := Members, voter := false}) ->
    case {lists:member(node(), Members), maps:keys(maps:with([state_file, clients], Options))} of
        {true, _} ->
            {wrong, members, ["not contain this node, ", atom_to_list(node()), ", because voter is false"], Members};
        {false, [Option | _]} ->
            {wrong, Option, "not be set, because voter is false", maps:get(Option, Options)};
        {false, []} ->
            none
    end;
wrong_role(Options) ->
    wrong_default(Options).

%% A service may run without the environment variable HOME.
wrong_default(#{state_file := _}) ->
    none;
wrong_default(_) ->
    try default_state_file() of
        _ -> none
    catch
        error:_ -> {missing, state_file, [?STATE_FILE, ", because this VM has no home folder"]}
    end.

members(Members) ->
    {wrong_members(Members) =:= none, wrong_text(wrong_members(Members))}.

wrong_text(none) -> "";
wrong_text(Text) -> Text.

%% What is wrong with a list of members, if anything.
-spec wrong_members(term()) -> none | string().
wrong_members(Members) when length(Members) >= 1, length(Members) =< ?MAX_MEMBERS ->
    case {lists:all(fun is_atom/1, Members), length(lists:usort(Members)) =:= length(Members)} of
        {true, true} ->
            case lists:all(fun is_node_name/1, Members) of
                true -> none;
                false -> "contain names of nodes, without spaces"
            end;
        {true, false} ->
            "contain each node once";
        {false, _} ->
            not_nodes()
    end;
wrong_members(_) ->
    not_nodes().

is_node_name(Node) ->
    Node =/= '' andalso nomatch =:= re:run(atom_to_list(Node), "[\\s[:cntrl:]]", [unicode, ucp]).

not_nodes() ->
    "be a list of 1 to 16 nodes".

clients(Clients) when Clients =:= none; Clients =:= all ->
    {true, ?CLIENTS};
clients(Clients) ->
    {are_nodes(Clients), ?CLIENTS}.

%% `undefined', `nil' or `none' is no name.
state_file(Path) when is_atom(Path) ->
    {false, ?STATE_FILE};
state_file(Path) ->
    try
        {is_binary(path(Path)), ?STATE_FILE}
    catch
        error:_ -> {false, ?STATE_FILE}
    end.

are_nodes(Nodes) ->
    try
        lists:all(fun is_atom/1, Nodes)
    catch
        error:_ -> false
    end.

lease_ms(Lease_ms) ->
    {
        is_integer(Lease_ms) andalso Lease_ms >= ?MIN_LEASE_MS andalso Lease_ms =< ?MAX_MS,
        "be an integer from 1000 to 2^32 - 1 (milliseconds), the same on all nodes"
    }.

run(Run) ->
    {is_integer(Run) andalso Run >= 1 andalso Run =< ?MAX_RUN, "be an integer from 1 to 255"}.

-spec totals_interval_ms(options()) -> pos_integer().
totals_interval_ms(Options) ->
    maps:get(totals_interval_ms, Options, ?TOTALS_INTERVAL_MS).

%% For options that have been checked.
-spec make(options()) -> config().
make(Options = #{members := Given}) ->
    HasVoter = maps:get(voter, Options, true),
    StateFile =
        case Options of
            #{state_file := Path} -> path(Path);
            #{voter := false} -> none;
            #{} -> default_state_file()
        end,
    Lease_ms = maps:get(lease_ms, Options, ?LEASE_MS),
    Clients = maps:get(clients, Options, all),
    MayHaveClients = Clients =/= none andalso is_alive(),
    #{
        node => node(),
        members => lists:sort(Given),
        has_voter => HasVoter,
        clients => Clients,
        may_have_clients => MayHaveClients,
        lease_ms => Lease_ms,
        setup => #{
            node => node(),
            seeds => Given,
            lease_ms => Lease_ms,
            run => maps:get(run, Options, ?RUN),
            durable => StateFile =/= none,
            clients => MayHaveClients
        },
        reconnect_ms => maps:get(reconnect_ms, Options, ?RECONNECT_MS),
        max_waiting => maps:get(max_waiting, Options, ?MAX_WAITING),
        totals => canal_lock_quorum_totals:new(),
        totals_interval_ms => totals_interval_ms(Options),
        state_file => StateFile
    }.

%% Whether a node that is no member may lock here.
-spec is_client(node(), config()) -> boolean().
is_client(_, #{clients := none}) -> false;
is_client(_, #{clients := all}) -> true;
is_client(Node, #{clients := Clients}) -> lists:member(Node, Clients).

%% Of a node with a name: two nodes without one would share the file.
-spec default_state_file() -> binary() | none.
default_state_file() ->
    case is_alive() of
        true -> path(filename:join(filename:basedir(user_data, "canal_lock"), lists:concat([node(), ".canal_lock"])));
        false -> none
    end.

%% Encoded for the file system, and absolute, because the current folder can change.
path(Path) ->
    case filename:absname(Path) of
        Bytes when is_binary(Bytes) -> Bytes;
        Characters -> unicode:characters_to_binary(Characters, unicode, file:native_name_encoding())
    end.
