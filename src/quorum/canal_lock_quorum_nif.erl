%% @private
%% The functions of the native library of the quorum locks, and nothing else.
%%
%% The first use loads the library, not the module. So a node that uses only permits never loads it, even in a release
%% that loads all modules at boot.
-module(canal_lock_quorum_nif).

-export([load/0, now/0]).
-export([is_held/1, unlock_async/1, mark_unlocked/1, id/1]).
-export([agent_open/1, agent_close/1, agent_step/2, agent_long_step/2]).
-export([agent_status/1, agent_has_quorum/1, agent_unlocks_arrived/1]).
-export([voter_open/2, voter_step/2, voter_long_step/2, voter_status/1, voter_clients/1]).
-export([voter_names/2, answers_ms/1]).
-export([state_lock/1, state_read/2, state_store/3]).

-export_type([setup/0, agent/0, voter/0, wait/0]).
-export_type([agent_event/0, agent_output/0, voter_event/0, voter_output/0]).

-opaque agent() :: reference().
-opaque voter() :: reference().

%% `seeds': whom to ask for a view. `durable': whether the voter has a file. `clients': whether nodes that are no
%% members may lock at it.
-type setup() :: #{
    node := node(),
    seeds := [node(), ...],
    lease_ms := pos_integer(),
    run := pos_integer(),
    durable := boolean(),
    clients := boolean()
}.

%% Milliseconds until the next step is due.
-type wait() :: non_neg_integer() | infinity.

-type id() :: canal_lock_quorum_lock:id().
%% The number of a request. Each number is used once.
-type request() :: pos_integer().
-type count() :: non_neg_integer().

-type frame() :: {frame, From :: node(), Cluster :: count(), Number :: count(), Bytes :: binary()}.

%% What both machines can request.
-type sending() ::
    canal_lock_quorum_wire:post()
    | {bad_frame, From :: node(), Sentence :: binary()}.

-type agent_event() ::
    frame()
    | {lock, request(), canal_lock_quorum_lock:mode(), [binary(), ...], Timeout_ms :: timeout()}
    | {cancel, request()}
    | {unlock | unlock_async | unlock_marked, id(), request()}
    | {up | down, node()}
    | {revoke, binary()}.

-type agent_output() ::
    sending()
    | {granted, request(), id(), Fence :: non_neg_integer(), Handle :: reference(), passed | asked}
    | {refused, request(), timeout | no_quorum}
    | {unlocked, request(), Confirmed :: boolean()}
    | {accepted, request()}
    | {missing, request()}
    | recalled
    | {at_risk, id()}
    | {lost, id(), quorum | revoked}
    | {adopted, count(), [node(), ...]}
    | {other_cluster, node()}.

-type agent_step() :: {[agent_output()], wait(), Silent :: [node()], Pending :: non_neg_integer()}.

%% `N' numbers the contents of the state file: the last one that is stored.
-type voter_event() ::
    frame()
    | {stored, N :: pos_integer()}
    | {not_stored, Sentence :: binary()}
    | {down, node()}
    | {change | reset, request(), [node(), ...]}.

-type voter_output() ::
    sending()
    | {store, N :: pos_integer(), Content :: binary()}
    | {answer, request(), canal_lock_quorum:change_answer()}
    | {took, count(), [node(), ...]}
    | lost
    | {other_list, node()}
    | {other_cluster, node(), Cluster :: count()}.

-type voter_step() :: {[voter_output()], wait(), IsVoting :: boolean()}.

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

%% Passes events and the time to the agent. `Silent' are the members whose voters do not answer. `Pending' is the number
%% of unlocks that more than half of the members have not executed.
%%
%% `long': the step would change the list of members of very many locks. Nothing has happened: call agent_long_step/2,
%% which runs on a dirty scheduler.
-spec agent_step(agent(), [agent_event()]) -> agent_step() | long.
agent_step(_Agent, _Events) -> erlang:nif_error(not_loaded).

-spec agent_long_step(agent(), [agent_event()]) -> agent_step().
agent_long_step(_Agent, _Events) -> erlang:nif_error(not_loaded).

%% The number of the view, and the status of each member, with how long its votes stay valid. Without a view: that of
%% each node to ask.
-spec agent_status(agent()) ->
    {none | count(), [{node(), Connected :: boolean(), Answers :: boolean(), Valid_ms :: non_neg_integer()}]}.
agent_status(_Agent) -> erlang:nif_error(not_loaded).

%% Whether a quorum of members votes for writers.
-spec agent_has_quorum(agent()) -> boolean().
agent_has_quorum(_Agent) -> erlang:nif_error(not_loaded).

%% Whether all voters that answer have executed all unlocks.
-spec agent_unlocks_arrived(agent()) -> boolean().
agent_unlocks_arrived(_Agent) -> erlang:nif_error(not_loaded).

%% Opens a voter for the calling process, with the content of its state file.
-spec voter_open(setup(), Stored :: binary() | nil) -> voter().
voter_open(_Setup, _Stored) -> erlang:nif_error(not_loaded).

%% As `agent_step/2'.
-spec voter_step(voter(), [voter_event()]) -> voter_step() | long.
voter_step(_Voter, _Events) -> erlang:nif_error(not_loaded).

-spec voter_long_step(voter(), [voter_event()]) -> voter_step().
voter_long_step(_Voter, _Events) -> erlang:nif_error(not_loaded).

%% Whether the voter has neither votes nor waiting requests; how many requests wait; its view; whether it votes there;
%% and the nodes that it waits for: that they start, report what they have sealed, settle, or say that no lock relies on
%% the view before.
-spec voter_status(voter()) ->
    {
        IsEmpty :: boolean(),
        Queued :: non_neg_integer(),
        View :: none | {count(), [node(), ...]},
        Phase :: voting | starting | client | none,
        WaitsFor :: [{node(), start | seal | settle | kept | lease | accept}]
    }.
voter_status(_Voter) -> erlang:nif_error(not_loaded).

%% The clients that have a lease: their votes and waiting requests, and the time since their last batch. `not_known'
%% while it starts in a view.
-spec voter_clients(voter()) ->
    [{node(), Votes :: non_neg_integer(), Waiting :: non_neg_integer(), Heard_ms :: non_neg_integer()}] | not_known.
voter_clients(_Voter) -> erlang:nif_error(not_loaded).

%% The view, how many voters are a quorum of it, and the names with votes that begin with `Prefix'. `none' if the voter
%% does not vote.
-spec voter_names(voter(), Prefix :: binary()) -> canal_lock_quorum_live:answer().
voter_names(_Voter, _Prefix) -> erlang:nif_error(not_loaded).

%% Within which time answers of voter_names/2 count, for this lease.
-spec answers_ms(Lease_ms :: pos_integer()) -> pos_integer().
answers_ms(_Lease_ms) -> erlang:nif_error(not_loaded).

%% Keeps other VMs away from this state file until this VM ends. `{ok, false}' if another VM does.
-spec state_lock(Path :: binary()) -> {ok, boolean()} | {error, Sentence :: binary()}.
state_lock(_Path) -> erlang:nif_error(not_loaded).

%% The content of the state file of this node, and the view in it. `nil' if there is no file. `{lost, Sentence}' if it
%% is empty or damaged. `{error, Sentence}' if it is another file, or cannot be read.
-spec state_read(Path :: binary(), node()) ->
    {ok, Content :: binary(), canal_lock_quorum_state_file:view()} | nil | {lost | error, Sentence :: binary()}.
state_read(_Path, _Node) -> erlang:nif_error(not_loaded).

%% After `{ok, true}' this content is stored. `{ok, false}': there was a write with a higher number.
-spec state_store(Path :: binary(), Content :: binary(), Number :: pos_integer()) ->
    {ok, boolean()} | {error, Sentence :: binary()}.
state_store(_Path, _Content, _Number) -> erlang:nif_error(not_loaded).
