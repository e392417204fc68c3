%% @private
%% What the voter of this node must know after a restart, and how it starts with that. The format of the file is in
%% native/quorum_nif/src/state_file.rs.
%%
%% - The life counts the starts of the voter. It is stored before the voter sends a frame. Other voters remember it, and
%%   so notice a file that is older than the last one of this node.
%% - The file of another node says nothing about this one: neither its life nor its fences are used.
%% - Without a file, the wall clock in seconds is the life. It is above the lives of files, which start at that clock
%%   and grow by one.
-module(canal_lock_quorum_state).

-export([lock/1, start/2, start/3, store/2, number/0, adopted/4]).
-export([former/1, with_mark/2, with_lease/2, agreed/1, register/2, unregister/2]).

-export_type([started/0, found/0]).

%% What the file contained.
-type found() :: nothing | own | {other_node, binary()} | {unreadable, Sentence :: binary()}.

-type started() :: #{
    start := canal_lock_quorum_nif:start(),
    found := found(),
    %% The members at the last start, if the file has them.
    previous_members := none | [binary()],
    %% Whether these were other ones, or chose the voters of a name in another way.
    list_changed := boolean(),
    %% The content of the file from now on.
    state := none | canal_lock_quorum_nif:state()
}.

%% A clock that is far ahead must leave room for lives above it, which have 32 bits.
-define(MAX_CLOCK_LIFE, (1 bsl 32) - (1 bsl 24)).

%% Keeps other VMs away from the file. An error if the file cannot be written.
-spec lock(none | binary()) -> ok | in_use | {error, Sentence :: binary()}.
lock(none) ->
    ok;
lock(Path) ->
    case canal_lock_quorum_nif:state_lock(Path) of
        {ok, true} -> ok;
        {ok, false} -> in_use;
        {error, Sentence} -> {error, Sentence}
    end.

%% Begins a life: when this returns, it is stored. `Seen' is 0, or a life of this node that another member knows and
%% that the file did not have. Then the mark in the file may be too low, and is removed.
-spec start(canal_lock_quorum_config:config(), Seen :: non_neg_integer()) ->
    {ok, started()} | {error, Sentence :: binary()}.
start(Config, Seen) ->
    start(Config, Seen, number()).

%% `Number' is that of the write.
-spec start(canal_lock_quorum_config:config(), Seen :: non_neg_integer(), Number :: pos_integer()) ->
    {ok, started()} | {error, Sentence :: binary()}.
start(Config = #{fence_file := none}, Seen, _) ->
    Start = #{
        floor => nil,
        origin => clock_fence(),
        life => max(clock_life(), Seen + 1),
        quarantine_ms => canal_lock_quorum_config:quarantine_ms(Config),
        durable => false,
        clients => [],
        knows_clients => allows_none(Config),
        conflicted => false
    },
    {ok, #{start => Start, found => nothing, previous_members => none, list_changed => false, state => none}};
start(Config = #{fence_file := Path}, Seen, Number) ->
    case lock(Path) of
        ok -> start(Path, Config, Seen, Number);
        in_use -> {error, <<"another node on this machine uses the file">>};
        Error -> Error
    end.

start(Path, Config, Seen, Number) ->
    {Found, Earlier} = found(canal_lock_quorum_nif:state_read(Path)),
    {Mark, Origin} = fences(Earlier, Config, Seen),
    State = #{life := Life, lease_ms := Longest_ms, clients := Clients} = next(Earlier, Config, Seen, Mark),
    case canal_lock_quorum_nif:state_store(Path, State, Number) of
        {ok, true} ->
            Start = #{
                floor => Mark,
                origin => Origin,
                life => Life,
                quarantine_ms => max(Longest_ms, canal_lock_quorum_config:quarantine_ms(Config)),
                durable => true,
                clients => Clients,
                knows_clients => allows_none(Config) orelse has_register(Earlier, Seen),
                conflicted => former(State) =/= []
            },
            {ok, #{
                start => Start,
                found => Found,
                previous_members => previous_members(Earlier),
                list_changed => has_changed(Earlier, Config),
                state => State
            }};
        {ok, false} ->
            %% The voter's process tries again, if it was not killed.
            {error, <<"another process of this node has written it at the same time">>};
        Error ->
            Error
    end.

found({ok, nil}) ->
    {nothing, none};
found({error, Sentence}) ->
    {{unreadable, Sentence}, none};
found({ok, State = #{node := Node}}) ->
    %% Without a node: format 1.
    case Node =:= <<>> orelse Node =:= name(node()) of
        true -> {own, State};
        false -> {{other_node, Node}, none}
    end.

-spec store(binary(), canal_lock_quorum_nif:state()) -> {ok, boolean()} | {error, Sentence :: binary()}.
store(Path, State) ->
    canal_lock_quorum_nif:state_store(Path, State, number()).

%% The number of a write: higher than all before. So a write of a process that was killed does not replace a later one,
%% if the process that decides what to write calls this.
-spec number() -> pos_integer().
number() ->
    erlang:unique_integer([positive, monotonic]).

%% An old file may lack clients, and so does a new one in place of a lost one. A voter stores a mark after its
%% quarantine. So in a file with a mark, the register is complete.
has_register(#{below := Mark}, 0) -> Mark =/= nil;
has_register(_, _) -> false.

allows_none(#{clients := Clients}) ->
    Clients =:= none.

%% The mark, or `nil' if it is lost or does not count, and the origin.
fences(none, _, _) ->
    {nil, clock_fence()};
fences(Earlier = #{below := Mark}, Config, Seen) ->
    case {Seen, is_regrouped(Earlier, Config)} of
        {0, false} -> {Mark, clock_fence()};
        {_, false} -> {nil, clock_fence()};
        %% The voters that learn from each other begin above all of their marks, even if a clock was set back.
        {_, true} -> {nil, lists:max([clock_fence() | [Mark || Mark =/= nil]])}
    end.

%% Whether the list has changed so that a quorum of the new list may not know a fence that a quorum of the old one has
%% recorded. This is so if a member has left. And if not all members of the old or of the new list vote for each name:
%% then this node may vote for names for which it did not vote before.
is_regrouped(Earlier = #{members := Names}, Config = #{members := Members}) ->
    IsGrouped = was_grouped(Earlier) orelse canal_lock_quorum_config:is_grouped(Config),
    HasShrunk = Names -- [name(Member) || Member <- Members] =/= [],
    (IsGrouped orelse HasShrunk) andalso not has_list(Earlier, Config).

%% Format 1 is older than groups.
was_grouped(#{members := []}) -> false;
was_grouped(#{members := Names, list := List}) -> List =/= canal_lock_quorum_config:list_of_all(Names).

has_list(#{list := Theirs}, #{list := Ours}) -> Theirs =:= Ours.

next(Earlier, Config, Seen, Mark) ->
    {Life, EarlierLease_ms, Former, Clients} =
        case Earlier of
            none ->
                {clock_life(), 0, [], []};
            #{life := Last, lease_ms := Longest_ms, clients := Registered} ->
                {Last + 1, Longest_ms, canal_lock_quorum_lists:former_after(Earlier, Config), Registered}
        end,
    %% Promises of earlier lives end only with the quarantine.
    Lease_ms = max(EarlierLease_ms, canal_lock_quorum_config:voter_lease_ms(Config)),
    State = content(Config, max(Life, Seen + 1), Lease_ms, Mark, Clients),
    State#{former := Former}.

content(#{members := Members, list := List}, Life, Lease_ms, Mark, Clients) ->
    #{
        node => name(node()),
        members => [name(Member) || Member <- Members],
        list => List,
        former => [],
        clients => Clients,
        life => Life,
        lease_ms => Lease_ms,
        below => Mark
    }.

%% The content of the file for a voter that another process has opened, and that is in no conflict. No lease was longer
%% than its quarantine. The mark in the file stays: no write of this life lowers it.
-spec adopted(canal_lock_quorum_config:config(), pos_integer(), pos_integer(), [canal_lock_quorum_nif:client()]) ->
    none | canal_lock_quorum_nif:state().
adopted(#{fence_file := none}, _, _, _) -> none;
adopted(Config, Life, Quarantine_ms, Clients) -> content(Config, Life, Quarantine_ms, nil, Clients).

previous_members(#{members := [_ | _] = Members}) -> Members;
previous_members(_) -> none.

has_changed(Earlier, Config) ->
    previous_members(Earlier) =/= none andalso not has_list(Earlier, Config).

%% The wall clock in units of 16 ns. It is above every earlier fence if no clock was set back, because voters never
%% assign fences faster: native/quorum/src/voter/pace.rs.
clock_fence() ->
    max(0, erlang:system_time(nanosecond) div 16).

clock_life() ->
    min(max(1, erlang:system_time(second)), ?MAX_CLOCK_LIFE).

%% Members of earlier lists that may still have one of these.
-spec former(none | canal_lock_quorum_nif:state()) -> [node()].
former(none) -> [];
former(#{former := Former}) -> [binary_to_atom(Name, utf8) || Name <- Former].

%% No member has an earlier list.
-spec agreed(canal_lock_quorum_nif:state()) -> canal_lock_quorum_nif:state().
agreed(State) ->
    State#{former := []}.

-spec register(canal_lock_quorum_nif:client(), canal_lock_quorum_nif:state()) ->
    {ok, canal_lock_quorum_nif:state()} | bad_name.
register(Client, State = #{clients := Clients}) ->
    case canal_lock_quorum_config:is_node_name(binary_to_atom(Client, utf8)) of
        true -> {ok, State#{clients := lists:usort([Client | Clients])}};
        false -> bad_name
    end.

-spec unregister(canal_lock_quorum_nif:client(), none | canal_lock_quorum_nif:state()) ->
    none | canal_lock_quorum_nif:state().
unregister(_, none) -> none;
unregister(Client, State = #{clients := Clients}) -> State#{clients := lists:delete(Client, Clients)}.

-spec with_mark(pos_integer(), canal_lock_quorum_nif:state()) -> canal_lock_quorum_nif:state().
with_mark(Mark, State) ->
    State#{below := Mark}.

-spec with_lease(pos_integer(), canal_lock_quorum_nif:state()) -> canal_lock_quorum_nif:state().
with_lease(Lease_ms, State) ->
    State#{lease_ms := Lease_ms}.

name(Node) ->
    atom_to_binary(Node, utf8).
