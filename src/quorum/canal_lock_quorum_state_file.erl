%% @private
%% The state file: what the voter of this node must know after a restart. The voter's state machine decides what it
%% contains, see native/quorum/src/node_voter/state.rs.
%%
%% A file that is empty or damaged is a lost one, and the node is another member than before. Any other file that is not
%% one of this node is not changed, and the voter does not start.
-module(canal_lock_quorum_state_file).

-export([check/1, read/1, number/0]).

-export_type([found/0, view/0]).

%% The number, the members and the lease of the view in the file.
-type view() :: {Number :: non_neg_integer(), [node(), ...], Lease_ms :: pos_integer()} | none.

-type found() ::
    {ok, Content :: binary(), view()}
    | nothing
    | {lost, Sentence :: binary()}
    | {error, Sentence :: binary()}.

%% Whether a voter can start with this file: it can be written, and is not another file, and the lease is that of the
%% view. Keeps other VMs away from it, and makes the folder of the default one.
-spec check(canal_lock_quorum_config:config()) ->
    ok
    | {error, {state_file_in_use, binary()}}
    | {error, {state_file_not_writable | state_file_not_usable, binary(), Text :: binary()}}
    | {error, {lease_ms, Given :: pos_integer(), Stored :: pos_integer()}}.
check(#{state_file := none}) ->
    ok;
check(#{state_file := Path, lease_ms := Lease_ms}) ->
    _ = Path =:= canal_lock_quorum_config:default_state_file() andalso filelib:ensure_dir(Path),
    case lock(Path) of
        ok ->
            case found(Path) of
                {ok, _, {_, _, Stored_ms}} when Stored_ms =/= Lease_ms -> {error, {lease_ms, Lease_ms, Stored_ms}};
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

%% What a voter starts with.
-spec read(none | binary()) -> found().
read(none) ->
    nothing;
read(Path) ->
    case lock(Path) of
        ok -> found(Path);
        in_use -> {error, <<"another node on this machine uses the file">>};
        Error -> Error
    end.

found(Path) ->
    case canal_lock_quorum_nif:state_read(Path, node()) of
        nil -> nothing;
        Found -> Found
    end.

%% The number of a write: higher than all before. So a write of a process that was killed does not replace a later one,
%% if the process that decides what to write calls this.
-spec number() -> pos_integer().
number() ->
    erlang:unique_integer([positive, monotonic]).
