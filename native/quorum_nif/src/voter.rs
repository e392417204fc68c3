//! NIFs of the voter of this node.

use crate::machine::{self, Running};
use crate::nodes::Nodes;
use crate::setup::Setup;
use crate::{clock, error::CallError};
use quorum::message::VoterState;
use quorum::node_voter::{Awaits, ChangeAnswer, NodeVoter, NodeVoterOutput, Phase, State, Why};
use quorum::rules::Rules;
use quorum::view::{NodeName, ViewId};
use quorum::voter::Voter;
use rustler::{Atom, Binary, Encoder, Env, NewBinary, NifResult, NifTaggedEnum};
use rustler::{Resource, ResourceArc, Term};
use std::sync::Mutex;
use std::time::Duration;

mod atoms {
    rustler::atoms! {
        accept, answer, bad_frame, changing, client, down, error, kept, lease, lease_ms, lost,
        no_answer_of_agents, none, not_known, not_ready, ok, other_cluster, other_list, running, seal, settle,
        start, starting, state_file, store, took, unknown, voting,
    }
}

/// The resource behind the voter's handle. Only the voter's process has it.
pub(crate) struct VoterHandle(Mutex<Running<NodeVoter>>);

#[rustler::resource_impl]
impl Resource for VoterHandle {}

/// The usual number of outputs of a step.
const OUTPUTS: usize = 16;

#[derive(NifTaggedEnum)]
#[rustler(decode)]
enum VoterEvent<'a> {
    Frame(Atom, u64, u64, Binary<'a>),
    Stored(u64),
    NotStored(String),
    Down(Atom),
    Change(u64, Vec<Atom>),
    Reset(u64, Vec<Atom>),
}

/// `voter_open(Setup, Stored | nil) -> Handle`: opens a voter that the calling process runs. `Stored` is the content of
/// the state file.
#[rustler::nif]
fn voter_open(
    env: Env<'_>,
    setup: Setup,
    stored: Option<Binary<'_>>,
) -> NifResult<ResourceArc<VoterHandle>> {
    let decode = |bytes: Binary<'_>| State::decode(&bytes).map_err(|_| CallError::BadArg);
    let stored = stored.map(decode).transpose()?;
    let mut nodes = Nodes::default();
    let voter = NodeVoter::new(setup.voter(env, &mut nodes)?, stored, clock::now());
    Ok(ResourceArc::new(VoterHandle(Running::new(voter, nodes))))
}

/// `voter_step(Handle, Events) -> {Outputs, WaitMs | infinity, IsVoting}`: applies the events and the time that has
/// passed. `IsVoting`: whether it votes for writers. `long`: nothing was applied, call `voter_long_step`.
#[rustler::nif]
fn voter_step<'a>(
    env: Env<'a>,
    handle: ResourceArc<VoterHandle>,
    events: Vec<VoterEvent<'a>>,
) -> NifResult<Term<'a>> {
    step(env, &handle, events, false)
}

/// As `voter_step`, for a step that may be long.
#[rustler::nif(schedule = "DirtyCpu")]
fn voter_long_step<'a>(
    env: Env<'a>,
    handle: ResourceArc<VoterHandle>,
    events: Vec<VoterEvent<'a>>,
) -> NifResult<Term<'a>> {
    step(env, &handle, events, true)
}

fn step<'a>(
    env: Env<'a>,
    handle: &VoterHandle,
    events: Vec<VoterEvent<'a>>,
    may_be_long: bool,
) -> NifResult<Term<'a>> {
    let mut guard = machine::take(&handle.0)?;
    let running = &mut *guard;
    let views = events.iter().filter_map(|event| match *event {
        VoterEvent::Frame(_, cluster, number, _) => Some(ViewId { cluster, number }),
        _ => None,
    });
    if !may_be_long && running.machine.has_long_step(views) {
        return Ok(machine::atoms::long().encode(env));
    }
    let now = clock::now();
    let mut outputs = Vec::with_capacity(OUTPUTS);
    for event in events {
        outputs.extend(apply(env, running, event)?);
    }
    running.machine.tick(now);
    for output in running.machine.outputs() {
        outputs.extend(output_term(env, running, output));
    }
    let voter = &running.machine;
    let wait = machine::wait(env, voter.deadline(), now);
    let votes = voter
        .voter()
        .is_some_and(|voter| voter.state() == VoterState::Voting);
    let answer = (outputs, wait, votes).encode(env);
    drop(guard);
    if !may_be_long {
        machine::account(env, now);
    }
    Ok(answer)
}

/// Applies an event. Returns an immediate output, if there is one.
fn apply<'a>(
    env: Env<'a>,
    running: &mut Running<NodeVoter>,
    event: VoterEvent<'a>,
) -> Result<Option<Term<'a>>, CallError> {
    let (voter, nodes, now) = (&mut running.machine, &mut running.nodes, clock::now());
    match event {
        VoterEvent::Frame(from, cluster, number, bytes) => {
            match machine::decoded(cluster, number, &bytes) {
                Ok(envelope) => voter.receive(now, &nodes.name(env, from)?, envelope),
                Err(why) => return Ok(Some((atoms::bad_frame(), from, why).encode(env))),
            }
        }
        VoterEvent::Stored(number) => voter.stored(now, number),
        VoterEvent::NotStored(why) => voter.not_stored(&why),
        VoterEvent::Down(node) => voter.down(now, &nodes.name(env, node)?),
        VoterEvent::Change(request, names) => voter.change(now, request, nodes.names(env, &names)?),
        VoterEvent::Reset(request, names) => voter.reset(now, request, nodes.names(env, &names)?),
    }
    Ok(None)
}

fn output_term<'a>(
    env: Env<'a>,
    running: &mut Running<NodeVoter>,
    output: NodeVoterOutput,
) -> Option<Term<'a>> {
    let nodes = &mut running.nodes;
    Some(match output {
        NodeVoterOutput::Post(post) => return running.encoder.send_term(env, &post, nodes),
        NodeVoterOutput::Store(number, state) => {
            (atoms::store(), number, binary(env, &state.encode())).encode(env)
        }
        NodeVoterOutput::Answer(request, answer) => {
            (atoms::answer(), request, answer_term(env, &answer, nodes)).encode(env)
        }
        NodeVoterOutput::Took(record) => {
            let members = machine::members(env, &record, nodes);
            (atoms::took(), record.id.number, members).encode(env)
        }
        NodeVoterOutput::Lost => atoms::lost().encode(env),
        NodeVoterOutput::OtherCluster(node, cluster) => {
            (atoms::other_cluster(), nodes.atom(env, &node)?, cluster).encode(env)
        }
        NodeVoterOutput::OtherList(node) => {
            (atoms::other_list(), nodes.atom(env, &node)?).encode(env)
        }
    })
}

/// The answer of `canal_lock_quorum:change_members/1`.
fn answer_term<'a>(env: Env<'a>, answer: &ChangeAnswer, nodes: &mut Nodes) -> Term<'a> {
    let error = |what: Atom, why: Term<'a>| (atoms::error(), (what, why)).encode(env);
    match answer {
        ChangeAnswer::Done(number) => (atoms::ok(), number).encode(env),
        ChangeAnswer::NotReady(why) => {
            let why = why.iter().filter_map(|(node, why)| {
                let node = nodes.atom(env, node)?;
                Some((node, why_term(env, why, nodes)))
            });
            let why: Vec<_> = why.collect();
            error(atoms::not_ready(), why.encode(env))
        }
        ChangeAnswer::Changing(record) => {
            error(atoms::changing(), machine::record_term(env, record, nodes))
        }
        ChangeAnswer::Unknown(record) => {
            error(atoms::unknown(), machine::record_term(env, record, nodes))
        }
        ChangeAnswer::Starting(record) => {
            error(atoms::starting(), machine::record_term(env, record, nodes))
        }
        ChangeAnswer::Running(names) => {
            error(atoms::running(), nodes.atoms(env, names).encode(env))
        }
    }
}

fn why_term<'a>(env: Env<'a>, why: &Why, nodes: &mut Nodes) -> Term<'a> {
    match why {
        Why::Down => atoms::down().encode(env),
        Why::Lease(lease_ms) => (atoms::lease_ms(), lease_ms).encode(env),
        Why::StateFile(reason) => (atoms::state_file(), reason).encode(env),
        Why::OtherCluster(cluster) => (atoms::other_cluster(), cluster).encode(env),
        Why::NoAnswerOfAgents(names) => {
            (atoms::no_answer_of_agents(), nodes.atoms(env, names)).encode(env)
        }
    }
}

/// `voter_clients(Handle) -> [{Node, Votes, Waiting, HeardMs}] | not_known`: the clients that have a lease, with their
/// votes and waiting requests, and the time since their last batch. `not_known`: there is no voter yet.
#[rustler::nif]
fn voter_clients(env: Env<'_>, handle: ResourceArc<VoterHandle>) -> NifResult<Term<'_>> {
    let mut guard = machine::take(&handle.0)?;
    let running = &mut *guard;
    let (voter, now) = (&running.machine, clock::now());
    let Some(of_view) = voter.voter() else {
        return Ok(atoms::not_known().encode(env));
    };
    let clients = of_view.agents().filter(|agent| agent.0.is_client());
    let info = |(node, votes, waiting, heard)| {
        let heard_ms = (now - heard).as_millis() as u64;
        let name = running.nodes.atom(env, &voter.name_of(node)?)?;
        Some((name, votes, waiting, heard_ms).encode(env))
    };
    let clients: Vec<_> = clients.filter_map(info).collect();
    Ok(clients.encode(env))
}

fn binary<'a>(env: Env<'a>, bytes: &[u8]) -> Binary<'a> {
    let mut binary = NewBinary::new(env, bytes.len());
    binary.as_mut_slice().copy_from_slice(bytes);
    binary.into()
}

/// `voter_names(Handle, Prefix) -> {View, Quorum, [Name]} | none`: the view, how many voters are a quorum of it, and
/// the names with votes that begin with `Prefix`. `none` if the voter does not vote.
#[rustler::nif]
fn voter_names<'a>(
    env: Env<'a>,
    handle: ResourceArc<VoterHandle>,
    prefix: Binary<'_>,
) -> NifResult<Term<'a>> {
    let guard = machine::take(&handle.0)?;
    let (voter, record) = (guard.machine.voter(), &guard.machine.state().record);
    let names = voter.and_then(|voter| voter.voted_names(&prefix));
    let (Some(names), Some(record)) = (names, record) else {
        return Ok(atoms::none().encode(env));
    };
    let view = (record.id.cluster, record.id.number);
    let names: Vec<_> = names.map(|name| binary(env, name.bytes())).collect();
    Ok((view, record.list().quorum(), names).encode(env))
}

/// `answers_ms(LeaseMs) -> Milliseconds`: within which time answers of `voter_names` count.
#[rustler::nif]
fn answers_ms(lease_ms: u64) -> u64 {
    let rules = Rules::of(Duration::from_millis(lease_ms));
    rules.answers().as_millis() as u64
}

/// `voter_status(Handle) -> {IsEmpty, Queued, View | none, Phase, WaitsFor}`: whether the voter has no votes and no
/// queue positions, how many positions it has, the number and the nodes of its view, `voting`, `starting`, `client` or
/// `none`, and the nodes that it waits for, with what it waits for.
#[rustler::nif]
fn voter_status(env: Env<'_>, handle: ResourceArc<VoterHandle>) -> NifResult<Term<'_>> {
    let mut guard = machine::take(&handle.0)?;
    let running = &mut *guard;
    let (machine, nodes) = (&running.machine, &mut running.nodes);
    let status = machine.status();
    let view = match &status.record {
        Some(record) => (record.id.number, machine::members(env, record, nodes)).encode(env),
        None => atoms::none().encode(env),
    };
    let phase = match status.phase {
        Phase::Voting => atoms::voting(),
        Phase::Starting => atoms::starting(),
        Phase::Client => atoms::client(),
        Phase::NoView => atoms::none(),
    };
    let what = |awaits: Awaits| match awaits {
        Awaits::Start => atoms::start(),
        Awaits::Report => atoms::seal(),
        Awaits::Settled => atoms::settle(),
        Awaits::Kept => atoms::kept(),
        Awaits::Accepted => atoms::accept(),
        Awaits::Lease => atoms::lease(),
    };
    let waits_for = status.waits_for.iter();
    let awaited =
        |(node, awaits): &(NodeName, Awaits)| Some((nodes.atom(env, node)?, what(*awaits)));
    let waits_for: Vec<_> = waits_for.filter_map(awaited).collect();
    let voter = machine.voter();
    let is_empty = voter.is_none_or(Voter::is_empty);
    let queued = voter.map_or(0, Voter::queued);
    Ok((is_empty, queued, view, phase, waits_for).encode(env))
}
