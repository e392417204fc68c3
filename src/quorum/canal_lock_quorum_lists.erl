%% @private
%% Compares the configurations of the nodes: prevents that two lists of members form two quorums at the same time.
%%
%% Each node tells the others its configuration in a <em>hello</em>. canal_lock_quorum_connections sends and receives
%% them. The voter grants no new vote while this module reports a conflict:
%%
%% - A member of this node's list, or a node whose list has this node, has another list. Or a member has another lease,
%%   or another version of frames.
%% - This node has another name than at the start. Its frames do not reach its own voter, and it is another member.
%% - This node's list has changed. It waits until it has heard each member of the old and of the new list with the new
%%   one, except those in the option `forget'. Until then the members of the earlier lists are stored as `former'.
%%
%% The first rule alone is not enough, because nodes that are separated do not hear each other. The second one is. Say
%% that node V votes in list M, and node X, a member of L and M, votes in another list L, at the same time. If L was a
%% list of V, then V has heard X with M after its own start. So X had list M then, and started with L later. X then
%% waits for the members of M, V among them, until it hears them with L after its own start. But V still has M.
%%
%% A hello answers the start of its receiver (`heard'), so that an old hello that arrives late does not count. And
%% `former' is stored before a node says hello: a node that returns to an earlier list has to wait, too.
%%
%% The list of a client forms no quorum, so another list at a client is a conflict for the client only. But a client
%% with an earlier list may count on votes of a voter that has changed its list. So a voter that may have clients waits
%% for another lease when it has heard all members (canal_lock_quorum_voter).
%%
%% A voter without a file, or with a lost one, does not know its earlier list. It learns the fences from the members of
%% its list. Voters with a conflict do not answer that.
-module(canal_lock_quorum_lists).

-export([new/0, started/1, agreed/0, targets/1, hello_for/2, bye/0, hear/2, gone/1, stopped/1]).
-export([conflicts/1, conflicts/3, differing/2, is_heard/3, former_after/2]).

-export_type([hello/0, conflict/0, own/0]).

%% `id' is another one for each start of a voter. `heard' is the id of the receiver, or `none'. `ask' says that the
%% sender has not got an answer.
-type hello() :: #{
    id := term(),
    members := [node(), ...],
    lease_ms := pos_integer(),
    frame_version := byte(),
    heard := term(),
    ask := boolean(),
    %% Whether the sender is a client, and whether its receiver may lock at the sender.
    is_client := boolean(),
    allows := boolean()
}.

-type conflict() :: #{
    node := node(),
    differs := name | members | frame_version | lease_ms | clients | not_heard,
    %% The name of this node at the start, by which it is configured.
    name => node(),
    members => [node(), ...],
    frame_version => byte(),
    lease_ms => pos_integer()
}.

%% The start of this node: the id of its hellos, and the members of earlier lists that may still have one of these.
-type own() :: {Id :: term(), Former :: [node()]} | none.

%% `{own, Id, Former}', and for each node that was heard `{Node, Hello}', or `{Node, bye}' if it has stopped since. The
%% supervisor owns the table. The voter's process writes the first row, canal_lock_quorum_connections the others.
-define(TABLE, ?MODULE).

-spec new() -> ok.
new() ->
    ?TABLE = ets:new(?TABLE, [named_table, public]),
    ok.

%% A voter has started, and what it must know is stored.
-spec started([node()]) -> ok.
started(Former) ->
    Id = {erlang:system_time(), rand:uniform(1 bsl 58)},
    true = ets:insert(?TABLE, {own, Id, Former}),
    ok.

%% The voter has stored that no member has an earlier list.
-spec agreed() -> ok.
agreed() ->
    true = ets:update_element(?TABLE, own, {3, []}),
    ok.

own() ->
    case ets:lookup(?TABLE, own) of
        [{own, Id, Former}] -> {Id, Former};
        [] -> none
    end.

hellos() ->
    maps:from_list([Row || Row = {_, #{}} <- ets:tab2list(?TABLE)]).

%% The nodes that have not answered the start of this node: members, those of earlier lists, and those that were heard.
-spec targets(canal_lock_quorum_config:config()) -> [node()].
targets(#{members := Members}) ->
    Own = own(),
    Former = case Own of {_, Earlier} -> Earlier; none -> [] end,
    Hellos = hellos(),
    [
        Node
     || Node <- lists:usort(Members ++ Former ++ maps:keys(Hellos)), Node =/= node(), not answers(Node, Own, Hellos)
    ].

%% `none' before the first start of the voter.
-spec hello_for(node(), canal_lock_quorum_config:config()) -> hello() | none.
hello_for(Node, Config = #{members := Members, is_member := IsMember}) ->
    #{frame_version := Version, lease_ms := Lease_ms} = Config,
    Hellos = hellos(),
    case own() of
        none ->
            none;
        Own = {Id, _} ->
            Heard = case Hellos of #{Node := #{id := TheirId}} -> TheirId; _ -> none end,
            Ask = not answers(Node, Own, Hellos),
            Allows = lists:member(Node, Members) orelse canal_lock_quorum_config:is_client(Node, Config),
            #{
                id => Id, members => Members, frame_version => Version, lease_ms => Lease_ms,
                heard => Heard, ask => Ask,
                is_client => not IsMember, allows => Allows
            }
    end.

%% This node stops: the nodes to inform, and what to send.
-spec bye() -> {[node()], {bye, Id :: term()}} | none.
bye() ->
    case own() of
        none -> none;
        {Id, _} -> {maps:keys(hellos()), {bye, Id}}
    end.

%% Whether the node asks for a hello of this one.
-spec hear(node(), hello() | {bye, Id :: term()}) -> boolean().
hear(Node, {bye, Id}) ->
    _ = case ets:lookup(?TABLE, Node) of
        [{_, #{id := Id}}] -> ets:insert(?TABLE, {Node, bye});
        _ -> true
    end,
    false;
hear(Node, Hello = #{ask := Ask}) ->
    true = ets:insert(?TABLE, {Node, Hello}),
    Ask.

%% The connection to a node is lost. Removes its hello if it is a client: it may never return. Returns whether what is
%% known of the node has changed.
-spec gone(node()) -> boolean().
gone(Node) ->
    case ets:lookup(?TABLE, Node) of
        [{_, #{is_client := true}}] -> ets:delete(?TABLE, Node);
        [{_, bye}] -> ets:delete(?TABLE, Node);
        _ -> false
    end.

%% The places of the members that are connected, and on which canal_lock_quorum was stopped cleanly.
-spec stopped(canal_lock_quorum_config:config()) -> [canal_lock_quorum_config:place()].
stopped(#{places := Places}) ->
    [maps:get(Node, Places) || {Node, bye} <- ets:tab2list(?TABLE), is_map_key(Node, Places)].

-spec conflicts(canal_lock_quorum_config:config()) -> [conflict()].
conflicts(Config) ->
    conflicts(Config, own(), hellos()).

-spec conflicts(canal_lock_quorum_config:config(), own(), #{node() => hello()}) -> [conflict()].
conflicts(Config, Own, Hellos) ->
    Differing = lists:append([differs(Node, Hello, Config) || {Node, Hello} <- lists:sort(maps:to_list(Hellos))]),
    Known = [Node || #{node := Node} <- Differing],
    NotHeard = [Node || Node <- not_heard(Config, Own, Hellos), not lists:member(Node, Known)],
    renamed(Config) ++ Differing ++ [#{node => Node, differs => not_heard} || Node <- NotHeard].

renamed(#{node := Node}) when Node =:= node() -> [];
renamed(#{node := Node}) -> [#{node => node(), differs => name, name => Node}].

differs(Node, Hello, Config) ->
    #{members := Theirs, frame_version := TheirVersion, lease_ms := TheirLease_ms} = Hello,
    #{is_client := IsClient, allows := Allows} = Hello,
    #{members := Ours, frame_version := OurVersion, lease_ms := OurLease_ms, is_member := IsMember} = Config,
    %% A client has no voter, so its list forms no quorum. A node of this list should not be one.
    Concerned = lists:member(Node, Ours) orelse (not IsClient andalso lists:member(node(), Theirs)),
    if
        not Concerned -> [];
        Theirs =/= Ours -> [#{node => Node, differs => members, members => Theirs}];
        TheirVersion =/= OurVersion -> [#{node => Node, differs => frame_version, frame_version => TheirVersion}];
        TheirLease_ms =/= OurLease_ms -> [#{node => Node, differs => lease_ms, lease_ms => TheirLease_ms}];
        not IsMember, not Allows -> [#{node => Node, differs => clients}];
        true -> []
    end.

not_heard(_, none, _) -> [];
not_heard(_, {_, []}, _) -> [];
not_heard(#{members := Members, forget := Forgotten}, Own = {_, Former}, Hellos) ->
    Needed = lists:usort(Members ++ Former) -- [node() | Forgotten],
    Has = fun(Node) -> maps:get(members, maps:get(Node, Hellos)) =:= Members end,
    [Node || Node <- Needed, not (answers(Node, Own, Hellos) andalso Has(Node))].

%% Whether the node has heard this start of this node.
answers(Node, {Id, _}, Hellos) ->
    case Hellos of
        #{Node := #{heard := Id}} -> true;
        _ -> false
    end;
answers(_, none, _) ->
    false.

%% Whether all members of this and of the earlier lists have this one, so that the voter may store that.
-spec is_heard(canal_lock_quorum_config:config(), Former :: [node()], [conflict()]) -> boolean().
is_heard(#{members := Members, forget := Forgotten}, Former, Conflicts) ->
    Needed = lists:usort(Members ++ Former) -- Forgotten,
    not lists:any(fun(#{node := Node}) -> lists:member(Node, Needed) end, Conflicts).

%% The members of earlier lists that a voter has to wait for, if its file is this one.
-spec former_after(canal_lock_quorum_nif:state(), canal_lock_quorum_config:config()) -> [Name :: binary()].
former_after(#{list := List, former := Former}, #{list := List}) -> Former;
former_after(#{members := Members, former := Former}, _) -> lists:usort(Members ++ Former).

%% The places of members that ignore the frames of this node.
-spec differing(canal_lock_quorum_config:config(), [conflict()]) -> [canal_lock_quorum_config:place()].
differing(#{places := Places}, [#{differs := name} | _]) ->
    maps:values(Places);
differing(#{places := Places}, Conflicts) ->
    [
        maps:get(Node, Places)
     || #{node := Node, differs := What} <- Conflicts, What =/= not_heard, is_map_key(Node, Places)
    ].
