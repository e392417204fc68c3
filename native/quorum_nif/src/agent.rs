//! NIFs of the agent of this node.

use crate::clients::Clients;
use crate::lock::{AgentCell, LockHandle, LockId, CURRENT};
use crate::machine::{self, Running};
use crate::{clock, error::CallError, setup::Setup};
use quorum::agent::{Agent, AgentOutput, Loss, Path, Refusal, Request};
use quorum::members::Member;
use quorum::message::{Mode, Name, Names};
use quorum::time::Time;
use rustler::{Atom, Binary, Decoder, Encoder, Env, NifResult, NifTaggedEnum, NifUnitEnum};
use rustler::{Resource, ResourceArc, Term};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{sync::Arc, time::Duration};

mod atoms {
    rustler::atoms! {
        accepted, asked, at_risk, bad_frame, granted, infinity, lost, misconfigured, missing, no_quorum, ok, passed,
        quorum, recalled, refused, revoked, timeout, unlocked,
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
    Frame(usize, Binary<'a>),
    Lock(u64, LockMode, Vec<Binary<'a>>, Timeout),
    UnlockAsync(LockId, u64),
    /// The function `unlock_async` has unlocked it.
    UnlockMarked(LockId, u64),
    Unlock(LockId, u64),
    Cancel(u64),
    Up(usize),
    Down(usize),
    Revoke(Binary<'a>),
    Differing(Vec<usize>),
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
fn agent_open(setup: Setup) -> NifResult<ResourceArc<AgentHandle>> {
    let setup = setup.agent()?;
    let mut current = CURRENT.lock();
    if let Some(before) = current.take() {
        before.lease.end();
    }
    let machine = Agent::new(setup, clock::now());
    let cell = Arc::new(AgentCell {
        id: setup.lifetime.0 >> 5,
        lease: machine.lease(),
        running: Running::new(machine),
        unlocking: AtomicU64::new(0),
        pending: AtomicU64::new(0),
        most_unlocking: setup.rules.pending_unlocks,
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
/// that has passed. `Silent` is a bit set of the members that do not answer, by index. `Pending` is the number of
/// unlocks that more than half of the members have not executed.
#[rustler::nif]
fn agent_step<'a>(
    env: Env<'a>,
    handle: ResourceArc<AgentHandle>,
    events: Vec<AgentEvent<'a>>,
) -> NifResult<Term<'a>> {
    let cell = &handle.0;
    CURRENT.check(cell)?;
    let mut guard = machine::take(&cell.running)?;
    let running = &mut *guard;
    let now = clock::now();
    let mut outputs = Vec::with_capacity(OUTPUTS);
    for event in events {
        outputs.extend(apply(env, cell, running, now, event)?);
    }
    let (agent, encoder) = (&mut running.machine, &mut running.encoder);
    agent.tick(now);
    agent.flush(now);
    for output in agent.outputs() {
        outputs.push(output_term(env, cell, output, encoder));
    }
    let pending = agent.pending_unlocks();
    cell.pending.store(pending, Ordering::Relaxed);
    let wait = machine::wait(env, agent.deadline(), now);
    let answer = (outputs, wait, agent.silent().bits(), pending).encode(env);
    drop(guard);
    machine::account(env, now);
    Ok(answer)
}

/// Applies an event. Returns an immediate output, if there is one.
fn apply<'a>(
    env: Env<'a>,
    cell: &AgentCell,
    running: &mut Running<Agent>,
    now: Time,
    event: AgentEvent<'a>,
) -> Result<Option<Term<'a>>, CallError> {
    let agent = &mut running.machine;
    let missing = |was: bool, request: u64| (!was).then(|| (atoms::missing(), request).encode(env));
    match event {
        AgentEvent::Frame(place, bytes) => match machine::decoded(&bytes) {
            Ok(frame) => agent.receive(now, member(place)?, frame),
            Err(why) => return Ok(Some((atoms::bad_frame(), place, why).encode(env))),
        },
        AgentEvent::Lock(request, mode, names, Timeout(timeout)) => {
            let mode = match mode {
                LockMode::Read => Mode::Read,
                LockMode::Write => Mode::Write,
            };
            agent.lock(now, Request(request), all(names)?, mode, timeout);
        }
        AgentEvent::UnlockAsync(id, request) => {
            let unlock = |token| agent.unlock_async(now, token, Request(request));
            return Ok(missing(cell.token(id).is_some_and(unlock), request));
        }
        AgentEvent::UnlockMarked(id, request) => {
            if let Some(token) = cell.token(id) {
                cell.unlocking.fetch_sub(1, Ordering::Relaxed);
                // The holder has already seen whether the lock was held.
                let _: bool = agent.unlock_async(now, token, Request(request));
            }
        }
        AgentEvent::Unlock(id, request) => {
            let unlock = |token| agent.unlock(now, token, Request(request));
            return Ok(missing(cell.token(id).is_some_and(unlock), request));
        }
        AgentEvent::Cancel(request) => agent.cancel(now, Request(request)),
        AgentEvent::Up(place) => agent.up(now, member(place)?),
        AgentEvent::Down(place) => agent.down(now, member(place)?),
        AgentEvent::Revoke(name) => agent.revoke(now, one(&name)?),
        AgentEvent::Differing(places) => {
            let members = places.into_iter().map(member).collect::<Result<_, _>>()?;
            agent.differing(now, members);
        }
    }
    Ok(None)
}

fn output_term<'a>(
    env: Env<'a>,
    cell: &Arc<AgentCell>,
    output: AgentOutput,
    encoder: &mut machine::Encoder,
) -> Term<'a> {
    let id = |token| cell.lock_id(token);
    match output {
        // An agent sends to members only.
        AgentOutput::Send(send) => encoder.send_term(env, &send, &Clients::default()),
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
                Refusal::Misconfigured => atoms::misconfigured(),
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

/// `agent_status(Handle) -> [{Connected, Answers, ValidMs}]`, in the order of the member list. `ValidMs` is the rest
/// of the lease of the voter's votes.
#[rustler::nif]
fn agent_status(handle: ResourceArc<AgentHandle>) -> NifResult<Vec<(bool, bool, u64)>> {
    CURRENT.check(&handle.0)?;
    let running = machine::take(&handle.0.running)?;
    let now = clock::now();
    let status = running.machine.status().map(|status| {
        let left = (status.valid - now).as_millis() as u64;
        (status.connected, status.answers, left)
    });
    Ok(status.collect())
}

/// `agent_has_quorum(Handle) -> boolean()`: whether a quorum of members votes for writers.
#[rustler::nif]
fn agent_has_quorum(handle: ResourceArc<AgentHandle>) -> NifResult<bool> {
    CURRENT.check(&handle.0)?;
    let running = machine::take(&handle.0.running)?;
    Ok(running.machine.has_quorum())
}

/// `agent_unlocks_arrived(Handle) -> boolean()`: whether all voters that answer have executed all unlocks.
#[rustler::nif]
fn agent_unlocks_arrived(handle: ResourceArc<AgentHandle>) -> NifResult<bool> {
    CURRENT.check(&handle.0)?;
    let running = machine::take(&handle.0.running)?;
    Ok(running.machine.unlocks_arrived())
}

fn member(place: usize) -> Result<Member, CallError> {
    Member::at(place).ok_or(CallError::BadArg)
}

fn one(name: &Binary<'_>) -> Result<Name, CallError> {
    Name::new(name.as_slice()).ok_or(CallError::BadArg)
}

fn all(names: Vec<Binary<'_>>) -> Result<Names, CallError> {
    let names = names.iter().map(one).collect::<Result<_, _>>()?;
    Names::new(names).ok_or(CallError::BadArg)
}
