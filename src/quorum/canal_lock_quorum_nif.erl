%% @private
%% The functions of the native library of the quorum locks, and nothing else.
%%
%% The first use loads the library, not the module. So a node that uses only permits never loads it, even in a release
%% that loads all modules at boot.
-module(canal_lock_quorum_nif).

-export([load/0, now/0, frame_version/0]).
-export([is_held/1, unlock_async/1, mark_unlocked/1, id/1]).
-export([agent_open/1, agent_close/1, agent_step/2, agent_status/1, agent_has_quorum/1, agent_unlocks_arrived/1]).
-export([voter_open/2, voter_step/2, voter_status/1, voter_clients/1]).
-export([state_lock/1, state_read/1, state_store/3]).

-export_type([setup/0, start/0, state/0, agent/0, voter/0, wait/0, sending/0, client/0]).
-export_type([agent_event/0, agent_output/0, voter_event/0, voter_output/0]).

-opaque agent() :: reference().
-opaque voter() :: reference().

%% `me' is `nil' on a client.
-type setup() :: #{
    count := pos_integer(),
    me := canal_lock_quorum_config:place() | nil,
    lease_ms := pos_integer(),
    run := pos_integer()
}.

%% What a voter starts with: the number of its start, the fences of earlier ones (`floor' is `nil' if they are lost),
%% whether clients may have votes of earlier ones, and whether it waits for members that may have another list.
-type start() :: #{
    life := pos_integer(),
    quarantine_ms := pos_integer(),
    floor := non_neg_integer() | nil,
    durable := boolean(),
    origin := non_neg_integer(),
    guests := boolean(),
    misconfigured := boolean()
}.

%% The content of a state file: see native/quorum_nif/src/state_file.rs.
-type state() :: #{
    node := binary(),
    members := [binary()],
    list := binary(),
    former := [binary()],
    guests := boolean(),
    life := non_neg_integer(),
    lease_ms := non_neg_integer(),
    mark := non_neg_integer() | nil
}.

%% Milliseconds until the next step is due.
-type wait() :: non_neg_integer() | infinity.

%% The name of a node that is no member.
-type client() :: binary().

-type place() :: canal_lock_quorum_config:place().
-type id() :: canal_lock_quorum_lock:id().
%% The number of a request. Each number is used once.
-type request() :: pos_integer().

-type sending() ::
    {send, canal_lock_quorum_wire:kind(), place() | client(), Frame :: binary()}
    | {bad_frame, From :: place() | client(), Sentence :: binary()}.

-type agent_event() ::
    {frame, place(), binary()}
    | {lock, request(), canal_lock_quorum_lock:mode(), [binary(), ...], Timeout_ms :: timeout()}
    | {cancel, request()}
    | {unlock | unlock_async | unlock_marked, id(), request()}
    | {up | down, place()}
    | {revoke, binary()}
    | {differing, [place()]}.

-type agent_output() ::
    sending()
    | {granted, request(), id(), Fence :: non_neg_integer(), Handle :: reference(), passed | asked}
    | {refused, request(), timeout | no_quorum | misconfigured}
    | {unlocked, request(), Confirmed :: boolean()}
    | {accepted, request()}
    | {missing, request()}
    | recalled
    | {at_risk, id()}
    | {lost, id(), quorum | revoked}.

-type voter_event() ::
    {frame, place(), binary()}
    | {client_frame, client(), binary()}
    | guests_stored
    | {stored, Mark :: pos_integer()}
    | {misconfigured, boolean()}
    | {down, place()}
    | {client_down, client()}.

-type voter_output() ::
    sending()
    | {store, Mark :: pos_integer()}
    | {guests, boolean()}
    | {superseded, Life :: pos_integer()}.

-on_load(load_again/0).

%% Loads the library. It is no error if it is loaded already.
-spec load() -> ok | {error, Sentences :: binary()}.
load() ->
    canal_lock_library:check(?MODULE, load_nif()).

%% Called when a version of this module is loaded. Does nothing before the first load/0. After it, a new version of the
%% module must load the library, or is refused.
load_again() ->
    case canal_lock_library:was_loaded(?MODULE) of
        true -> canal_lock_library:on_load_again(?MODULE, load_nif());
        false -> ok
    end.

load_nif() ->
    erlang:load_nif(canal_lock_library:path(?MODULE), 0).

%% The clock of the leases, in nanoseconds.
-spec now() -> integer().
now() -> erlang:nif_error(not_loaded).

%% The version of frames that this library speaks.
-spec frame_version() -> byte().
frame_version() -> erlang:nif_error(not_loaded).

-spec is_held(reference()) -> boolean().
is_held(_Lock) -> erlang:nif_error(not_loaded).

%% Unlocks, and sends `{unlock_async, Id, IsExpired}' to the agent's process. `full' if too many unlocks are pending;
%% then nothing has changed.
-spec unlock_async(reference()) -> ok | not_held | full.
unlock_async(_Lock) -> erlang:nif_error(not_loaded).

%% Unlocks without a message. `false' if the lock was unlocked before.
-spec mark_unlocked(reference()) -> boolean().
mark_unlocked(_Lock) -> erlang:nif_error(not_loaded).

-spec id(reference()) -> id() | not_held.
id(_Lock) -> erlang:nif_error(not_loaded).

%% Opens an agent for the calling process. From now on no lock of the previous agent is held.
-spec agent_open(setup()) -> agent().
agent_open(_Setup) -> erlang:nif_error(not_loaded).

-spec agent_close(agent()) -> ok.
agent_close(_Agent) -> erlang:nif_error(not_loaded).

%% Passes events and the time to the agent. `Silent' has a bit for each place whose voter does not answer. `Pending' is
%% the number of unlocks that more than half of the members have not executed.
-spec agent_step(agent(), [agent_event()]) ->
    {[agent_output()], wait(), Silent :: non_neg_integer(), Pending :: non_neg_integer()}.
agent_step(_Agent, _Events) -> erlang:nif_error(not_loaded).

%% The status of each member, and for how long its votes stay valid.
-spec agent_status(agent()) -> [{Connected :: boolean(), Answers :: boolean(), Valid_ms :: non_neg_integer()}].
agent_status(_Agent) -> erlang:nif_error(not_loaded).

%% Whether a quorum of members votes for writers.
-spec agent_has_quorum(agent()) -> boolean().
agent_has_quorum(_Agent) -> erlang:nif_error(not_loaded).

%% Whether all voters that answer have executed all unlocks.
-spec agent_unlocks_arrived(agent()) -> boolean().
agent_unlocks_arrived(_Agent) -> erlang:nif_error(not_loaded).

%% Opens a voter for the calling process.
-spec voter_open(setup(), start()) -> voter().
voter_open(_Setup, _Start) -> erlang:nif_error(not_loaded).

%% As `agent_step/2'.
-spec voter_step(voter(), [voter_event()]) -> {[voter_output()], wait(), IsVoting :: boolean()}.
voter_step(_Voter, _Events) -> erlang:nif_error(not_loaded).

%% Whether the voter has neither votes nor waiting requests; how many requests wait; and the members whose answers it
%% waits for before it votes.
-spec voter_status(voter()) ->
    {IsEmpty :: boolean(), Queued :: non_neg_integer(), WaitsFor :: [canal_lock_quorum_config:place()]}.
voter_status(_Voter) -> erlang:nif_error(not_loaded).

%% The clients that have a lease: their votes and waiting requests, and the time since their last batch.
-spec voter_clients(voter()) ->
    [{client(), Votes :: non_neg_integer(), Waiting :: non_neg_integer(), Heard_ms :: non_neg_integer()}].
voter_clients(_Voter) -> erlang:nif_error(not_loaded).

%% Keeps other VMs away from this state file until this VM ends. `{ok, false}' if another VM does.
-spec state_lock(Path :: binary()) -> {ok, boolean()} | {error, Sentence :: binary()}.
state_lock(_Path) -> erlang:nif_error(not_loaded).

%% `nil' if there is no file. `{lost, Sentence}' if it is empty or damaged. `{error, Sentence}' if it is another file,
%% or cannot be read.
-spec state_read(Path :: binary()) -> {ok, state() | nil} | {lost | error, Sentence :: binary()}.
state_read(_Path) -> erlang:nif_error(not_loaded).

%% After `{ok, true}' this state is stored, with this mark or a higher one. `{ok, false}': the file has a later life, or
%% there was a write with a higher number.
-spec state_store(Path :: binary(), state(), Number :: pos_integer()) ->
    {ok, boolean()} | {error, Sentence :: binary()}.
state_store(_Path, _State, _Number) -> erlang:nif_error(not_loaded).
