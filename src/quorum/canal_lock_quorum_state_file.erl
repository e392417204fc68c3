%% @private
%% What the voter of this node must know after a restart, and how it starts with that. The format of the file is in
%% native/quorum_nif/src/state_file.rs.
%%
%% - The life counts the starts of the voter. It is stored before the voter sends a frame. Other voters remember it, and
%%   so notice a file that is older than the last one of this node.
%% - A file that is empty or damaged is a lost one. Any other file that is not one of this node is not changed, and the
%%   voter does not start.
%% - Without a file, the wall clock in seconds is the life. It is above the lives of files, which start at that clock
%%   and grow by one.
-module(canal_lock_quorum_state_file).

-export([check/1, start/2, start/3, store/2, number/0]).
-export([former/1, with_mark/2, with_lease/2, with_guests/2, agreed/1]).

-export_type([started/0, found/0]).

%% What the file contained.
-type found() :: nothing | own | {lost, Sentence :: binary()}.

-type started() :: #{
    start := canal_lock_quorum_nif:start(),
    found := found(),
    %% The members at the last start, if the file has them.
    previous_members := none | [binary()],
    %% Whether these were other ones.
    list_changed := boolean(),
    %% The content of the file from now on.
    state := none | canal_lock_quorum_nif:state()
}.

%% A clock that is far ahead must leave room for lives above it, which have 32 bits.
-define(MAX_CLOCK_LIFE, (1 bsl 32) - (1 bsl 24)).

%% Whether a voter can start with this file: it can be written, and is not another file. Keeps other VMs away from it,
%% and makes the folder of the default one.
-spec check(none | binary()) -> ok | {error, {state_file_in_use, binary()} | {atom(), binary(), Text :: binary()}}.
check(none) ->
    ok;
check(Path) ->
    _ = Path =:= canal_lock_quorum_config:default_state_file() andalso filelib:ensure_dir(Path),
    case lock(Path) of
        ok ->
            case found(Path) of
                {error, Sentence} -> {error, {state_file_not_usable, Path, advice(Sentence)}};
                _ -> ok
            end;
        in_use ->
            {error, {state_file_in_use, Path}};
        {error, Sentence} ->
            {error, {state_file_not_writable, Path, advice(Sentence)}}
    end.

advice(Sentence) ->
    <<Sentence/binary, ". Nothing was changed. The option state_file names a file for this node alone, which is new or "
        "its own">>.

%% An error if the file cannot be written.
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
start(Config = #{state_file := none}, Seen, _) ->
    Start = #{
        floor => nil,
        origin => clock_fence(),
        life => max(clock_life(), Seen + 1),
        quarantine_ms => maps:get(lease_ms, Config),
        durable => false,
        guests => maps:get(may_have_clients, Config),
        misconfigured => false
    },
    {ok, #{start => Start, found => nothing, previous_members => none, list_changed => false, state => none}};
start(Config = #{state_file := Path}, Seen, Number) ->
    case lock(Path) of
        ok -> start(Path, Config, Seen, Number);
        in_use -> {error, <<"another node on this machine uses the file">>};
        Error -> Error
    end.

start(Path, Config, Seen, Number) ->
    case found(Path) of
        {error, Sentence} -> {error, Sentence};
        {Found, Earlier} -> start(Found, Earlier, Path, Config, Seen, Number)
    end.

start(Found, Earlier, Path, Config, Seen, Number) ->
    {Mark, Origin} = fences(Earlier, Config, Seen),
    State = #{life := Life, lease_ms := Longest_ms, guests := Guests} = next(Earlier, Config, Seen, Mark),
    case canal_lock_quorum_nif:state_store(Path, State, Number) of
        {ok, true} ->
            Start = #{
                floor => Mark,
                origin => Origin,
                life => Life,
                quarantine_ms => Longest_ms,
                durable => true,
                guests => Guests,
                misconfigured => former(State) =/= []
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

found(Path) ->
    Me = name(node()),
    case canal_lock_quorum_nif:state_read(Path) of
        {ok, nil} -> {nothing, none};
        {ok, State = #{node := Me}} -> {own, State};
        {ok, #{node := Other}} -> {error, <<"it is the file of node ", Other/binary>>};
        {lost, Sentence} -> {{lost, Sentence}, none};
        {error, Sentence} -> {error, Sentence}
    end.

-spec store(binary(), canal_lock_quorum_nif:state()) -> {ok, boolean()} | {error, Sentence :: binary()}.
store(Path, State) ->
    canal_lock_quorum_nif:state_store(Path, State, number()).

%% The number of a write: higher than all before. So a write of a process that was killed does not replace a later one,
%% if the process that decides what to write calls this.
-spec number() -> pos_integer().
number() ->
    erlang:unique_integer([positive, monotonic]).

%% A file that is lost or old may have said that there are guests.
guests(#{guests := Guests}, 0, _) -> Guests;
guests(_, _, #{may_have_clients := MayHaveClients}) -> MayHaveClients.

%% The mark, or `nil' if it is lost or does not count, and the origin.
fences(none, _, _) ->
    {nil, clock_fence()};
fences(Earlier = #{mark := Mark}, Config, Seen) ->
    case {Seen, has_shrunk(Earlier, Config)} of
        {0, false} -> {Mark, clock_fence()};
        {_, false} -> {nil, clock_fence()};
        %% The voters that learn from each other begin above all of their marks, even if a clock was set back.
        {_, true} -> {nil, lists:max([clock_fence() | [Mark || Mark =/= nil]])}
    end.

%% Whether a member has left the list. Then a quorum of the new list may not know a fence that a quorum of the old one
%% has recorded.
has_shrunk(#{members := Names}, #{members := Members}) ->
    Names -- [name(Member) || Member <- Members] =/= [].

next(Earlier, Config, Seen, Mark) ->
    {Life, EarlierLease_ms, Former} =
        case Earlier of
            none ->
                {clock_life(), 0, []};
            #{life := Last, lease_ms := Longest_ms} ->
                {Last + 1, Longest_ms, canal_lock_quorum_lists:former_after(Earlier, Config)}
        end,
    %% Promises of earlier lives end only with the quarantine.
    Lease_ms = max(EarlierLease_ms, maps:get(lease_ms, Config)),
    #{members := Members, list := List} = Config,
    #{
        node => name(node()),
        members => [name(Member) || Member <- Members],
        list => List,
        former => Former,
        guests => guests(Earlier, Seen, Config),
        life => max(Life, Seen + 1),
        lease_ms => Lease_ms,
        mark => Mark
    }.

previous_members(none) -> none;
previous_members(#{members := Members}) -> Members.

has_changed(none, _) -> false;
has_changed(#{list := Theirs}, #{list := Ours}) -> Theirs =/= Ours.

%% The wall clock in units of 16 ns. It is above every earlier fence if no clock was set back, because voters
%% assign fewer fences than 62 million per second.
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

-spec with_mark(pos_integer(), canal_lock_quorum_nif:state()) -> canal_lock_quorum_nif:state().
with_mark(Mark, State) ->
    State#{mark := Mark}.

-spec with_guests(boolean(), canal_lock_quorum_nif:state()) -> canal_lock_quorum_nif:state().
with_guests(Guests, State) ->
    State#{guests := Guests}.

-spec with_lease(pos_integer(), canal_lock_quorum_nif:state()) -> canal_lock_quorum_nif:state().
with_lease(Lease_ms, State) ->
    State#{lease_ms := Lease_ms}.

name(Node) ->
    atom_to_binary(Node, utf8).
