//! NIFs of the agent of this node.

use crate::lock::{AgentCell, LockHandle, LockId, CURRENT};
use crate::machine::{self, Running};
use crate::{clock, error::CallError, nodes::Nodes, setup::Setup};
use quorum::agent::{AgentOutput, Loss, Path, Refusal, Request, Status};
use quorum::message::{Mode, Name, Names};
use quorum::node_agent::{NodeAgent, NodeAgentOutput};
use quorum::time::Time;
use quorum::view::{NodeName, ViewId};
use rustler::{Atom, Binary, Decoder, Encoder, Env, NifResult, NifTaggedEnum, NifUnitEnum};
use rustler::{Resource, ResourceArc, Term};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{sync::Arc, time::Duration};

mod atoms {
    rustler::atoms! {
        accepted, adopted, asked, at_risk, bad_frame, granted, infinity, lost, missing, no_quorum, none, ok,
        other_cluster, passed, quorum, recalled, refused, revoked, timeout, unlocked,
    }
}

/// The resource behind the agent's handle.
pub(crate) struct AgentHandle(Arc<AgentCell>);

#[rustler::resource_impl]
impl Resource for AgentHandle {}

/// The usual number of outputs of a step.
const OUTPUTS: usize = 32;

#[derive(NifTaggedEnum)]
#[rustler(decode)]
enum AgentEvent<'a> {
    Frame(Atom, u64, u64, Binary<'a>),
    Lock(u64, LockMode, Vec<Binary<'a>>, Timeout),
    UnlockAsync(LockId, u64),
    /// The function `unlock_async` has unlocked it.
    UnlockMarked(LockId, u64),
    Unlock(LockId, u64),
    Cancel(u64),
    Up(Atom),
    Down(Atom),
    Revoke(Binary<'a>),
}

/// Whole milliseconds, or `infinity`, which is [`Duration::MAX`].
struct Timeout(Duration);

impl<'a> Decoder<'a> for Timeout {
    fn decode(term: Term<'a>) -> NifResult<Timeout> {
        if atoms::infinity() == term {
            return Ok(Timeout(Duration::MAX));
        }
        Ok(Timeout(Duration::from_millis(term.decode()?)))
    }
}

#[derive(NifUnitEnum)]
enum LockMode {
    Read,
    Write,
}

/// `agent_open(Setup) -> Handle`: creates the agent that the calling process runs. Ends the previous agent: none of
/// its locks is held from now on.
#[rustler::nif]
fn agent_open(env: Env<'_>, setup: Setup) -> NifResult<ResourceArc<AgentHandle>> {
    let mut nodes = Nodes::default();
    let setup = setup.agent(env, &mut nodes)?;
    let mut current = CURRENT.lock();
    if let Some(before) = current.take() {
        before.lease.end();
    }
    let (id, most_unlocking) = (setup.lifetime.0 >> 5, setup.rules.pending_unlocks);
    let machine = NodeAgent::new(setup, clock::now());
    let cell = Arc::new(AgentCell {
        id,
        lease: machine.as_agent().lease(),
        running: Running::new(machine, nodes),
        unlocking: AtomicU64::new(0),
        pending: AtomicU64::new(0),
        most_unlocking,
    });
    *current = Some(Arc::clone(&cell));
    Ok(ResourceArc::new(AgentHandle(cell)))
}

/// `agent_close(Handle) -> ok`: ends the agent. None of its locks is held from now on.
#[rustler::nif]
fn agent_close(handle: ResourceArc<AgentHandle>) -> Atom {
    handle.0.lease.end();
    CURRENT.remove(&handle.0);
    atoms::ok()
}

/// `agent_step(Handle, Events) -> {Outputs, WaitMs | infinity, Silent, Pending}`: applies the events and the time
/// that has passed. `Silent` are the members that do not answer. `Pending` is the number of unlocks that more than half
/// of the members have not executed. `long`: nothing was applied, call `agent_long_step`.
#[rustler::nif]
fn agent_step<'a>(
    env: Env<'a>,
    handle: ResourceArc<AgentHandle>,
    events: Vec<AgentEvent<'a>>,
) -> NifResult<Term<'a>> {
    step(env, &handle.0, events, false)
}

/// As `agent_step`, for a step that may be long.
#[rustler::nif(schedule = "DirtyCpu")]
fn agent_long_step<'a>(
    env: Env<'a>,
    handle: ResourceArc<AgentHandle>,
    events: Vec<AgentEvent<'a>>,
) -> NifResult<Term<'a>> {
    step(env, &handle.0, events, true)
}

fn step<'a>(
    env: Env<'a>,
    cell: &Arc<AgentCell>,
    events: Vec<AgentEvent<'a>>,
    may_be_long: bool,
) -> NifResult<Term<'a>> {
    CURRENT.check(cell)?;
    let mut guard = machine::take(&cell.running)?;
    let running = &mut *guard;
    let views = events.iter().filter_map(|event| match *event {
        AgentEvent::Frame(_, cluster, number, _) => Some(ViewId { cluster, number }),
        _ => None,
    });
    if !may_be_long && running.machine.has_long_step(views) {
        return Ok(machine::atoms::long().encode(env));
    }
    let now = clock::now();
    let mut outputs = Vec::with_capacity(OUTPUTS);
    for event in events {
        outputs.extend(apply(env, cell, running, now, event)?);
    }
    running.machine.tick(now);
    running.machine.flush(now);
    for output in running.machine.outputs() {
        outputs.extend(output_term(env, cell, output, running));
    }
    let pending = running.machine.as_agent().pending_unlocks();
    cell.pending.store(pending, Ordering::Relaxed);
    let wait = machine::wait(env, running.machine.deadline(), now);
    let silent = silent(env, running);
    let answer = (outputs, wait, silent, pending).encode(env);
    drop(guard);
    if !may_be_long {
        machine::account(env, now);
    }
    Ok(answer)
}

/// Applies an event. Returns an immediate output, if there is one.
fn apply<'a>(
    env: Env<'a>,
    cell: &AgentCell,
    running: &mut Running<NodeAgent>,
    now: Time,
    event: AgentEvent<'a>,
) -> Result<Option<Term<'a>>, CallError> {
    let (machine, nodes) = (&mut running.machine, &mut running.nodes);
    let missing = |was: bool, request: u64| (!was).then(|| (atoms::missing(), request).encode(env));
    match event {
        AgentEvent::Frame(from, cluster, number, bytes) => {
            match machine::decoded(cluster, number, &bytes) {
                Ok(envelope) => machine.receive(now, &nodes.name(env, from)?, envelope),
                Err(why) => return Ok(Some((atoms::bad_frame(), from, why).encode(env))),
            }
        }
        AgentEvent::Lock(request, mode, names, Timeout(timeout)) => {
            let mode = match mode {
                LockMode::Read => Mode::Read,
                LockMode::Write => Mode::Write,
            };
            machine
                .agent()
                .lock(now, Request(request), all(names)?, mode, timeout);
        }
        AgentEvent::UnlockAsync(id, request) => {
            let unlock = |token| machine.agent().unlock_async(now, token, Request(request));
            return Ok(missing(cell.token(id).is_some_and(unlock), request));
        }
        AgentEvent::UnlockMarked(id, request) => {
            if let Some(token) = cell.token(id) {
                cell.unlocking.fetch_sub(1, Ordering::Relaxed);
                // The holder has already seen whether the lock was held.
                let _: bool = machine.agent().unlock_async(now, token, Request(request));
            }
        }
        AgentEvent::Unlock(id, request) => {
            let unlock = |token| machine.agent().unlock(now, token, Request(request));
            return Ok(missing(cell.token(id).is_some_and(unlock), request));
        }
        AgentEvent::Cancel(request) => machine.agent().cancel(now, Request(request)),
        AgentEvent::Up(node) => machine.up(now, &nodes.name(env, node)?),
        AgentEvent::Down(node) => machine.down(now, &nodes.name(env, node)?),
        AgentEvent::Revoke(name) => machine.agent().revoke(now, one(&name)?),
    }
    Ok(None)
}

fn output_term<'a>(
    env: Env<'a>,
    cell: &Arc<AgentCell>,
    output: NodeAgentOutput,
    running: &mut Running<NodeAgent>,
) -> Option<Term<'a>> {
    let nodes = &mut running.nodes;
    Some(match output {
        NodeAgentOutput::Post(post) => return running.encoder.send_term(env, &post, nodes),
        NodeAgentOutput::Adopted(record) => {
            let members = machine::members(env, &record, nodes);
            (atoms::adopted(), record.id.number, members).encode(env)
        }
        NodeAgentOutput::OtherCluster { node } => {
            (atoms::other_cluster(), nodes.atom(env, &node)?).encode(env)
        }
        NodeAgentOutput::Agent(output) => agent_output_term(env, cell, output),
    })
}

fn agent_output_term<'a>(env: Env<'a>, cell: &Arc<AgentCell>, output: AgentOutput) -> Term<'a> {
    let id = |token| cell.lock_id(token);
    match output {
        AgentOutput::Send(_) => unreachable!("the agent of a node posts what its agent sends"),
        AgentOutput::Granted {
            request,
            token,
            path,
            fence,
            standing,
            ..
        } => {
            let lock = LockHandle::new(Arc::clone(cell), standing, token, env.pid());
            let lock = ResourceArc::new(lock);
            let path = match path {
                Path::Passed => atoms::passed(),
                Path::Asked => atoms::asked(),
            };
            (atoms::granted(), request.0, id(token), fence.0, lock, path).encode(env)
        }
        AgentOutput::Refused { request, why } => {
            let why = match why {
                Refusal::Timeout => atoms::timeout(),
                Refusal::NoQuorum => atoms::no_quorum(),
            };
            (atoms::refused(), request.0, why).encode(env)
        }
        AgentOutput::Unlocked { request, confirmed } => {
            (atoms::unlocked(), request.0, confirmed).encode(env)
        }
        AgentOutput::Accepted { request } => (atoms::accepted(), request.0).encode(env),
        AgentOutput::GaveBack => atoms::recalled().encode(env),
        AgentOutput::AtRisk { token } => (atoms::at_risk(), id(token)).encode(env),
        AgentOutput::Lost { token, why } => {
            let why = match why {
                Loss::Quorum => atoms::quorum(),
                Loss::Revoked => atoms::revoked(),
            };
            (atoms::lost(), id(token), why).encode(env)
        }
    }
}

/// `agent_status(Handle) -> {Number | none, [{Node, Connected, Answers, ValidMs}]}`: the view, and its members.
/// `ValidMs` is the rest of the lease of the voter's votes. Without a view: the nodes to ask.
#[rustler::nif]
fn agent_status(env: Env<'_>, handle: ResourceArc<AgentHandle>) -> NifResult<Term<'_>> {
    CURRENT.check(&handle.0)?;
    let mut guard = machine::take(&handle.0.running)?;
    let running = &mut *guard;
    let now = clock::now();
    let names = running.machine.nodes();
    let info = |(name, status): (&NodeName, Status)| {
        let left = (status.valid - now).as_millis() as u64;
        let node = running.nodes.atom(env, name)?;
        Some((node, status.connected, status.answers, left).encode(env))
    };
    let members: Vec<_> = names
        .iter()
        .zip(running.machine.as_agent().status())
        .filter_map(info)
        .collect();
    let number = match running.machine.record() {
        Some(record) => record.id.number.encode(env),
        None => atoms::none().encode(env),
    };
    Ok((number, members).encode(env))
}

/// The members that do not answer.
fn silent(env: Env<'_>, running: &mut Running<NodeAgent>) -> Vec<Atom> {
    let silent = running.machine.as_agent().silent();
    let Some(record) = running.machine.record().filter(|_| !silent.is_empty()) else {
        return Vec::new();
    };
    let names: Vec<_> = record
        .members
        .iter()
        .map(|peer| peer.node.clone())
        .collect();
    running
        .nodes
        .atoms(env, silent.iter().map(|member| &names[member.place()]))
}

/// `agent_has_quorum(Handle) -> boolean()`: whether a quorum of members votes for writers.
#[rustler::nif]
fn agent_has_quorum(handle: ResourceArc<AgentHandle>) -> NifResult<bool> {
    CURRENT.check(&handle.0)?;
    let running = machine::take(&handle.0.running)?;
    Ok(running.machine.as_agent().has_quorum())
}

/// `agent_unlocks_arrived(Handle) -> boolean()`: whether all voters that answer have executed all unlocks.
#[rustler::nif]
fn agent_unlocks_arrived(handle: ResourceArc<AgentHandle>) -> NifResult<bool> {
    CURRENT.check(&handle.0)?;
    let running = machine::take(&handle.0.running)?;
    Ok(running.machine.as_agent().unlocks_arrived())
}

fn one(name: &Binary<'_>) -> Result<Name, CallError> {
    Name::new(name.as_slice()).ok_or(CallError::BadArg)
}

fn all(names: Vec<Binary<'_>>) -> Result<Names, CallError> {
    let names = names.iter().map(one).collect::<Result<_, _>>()?;
    Names::new(names).ok_or(CallError::BadArg)
}
