//! NIFs of the voter of this node. The voter's state is in this library and not in its process. A restarted process
//! therefore continues with it, without a quarantine in which the node has no vote.

use crate::clients::Clients;
use crate::machine::{self, Current, Running};
use crate::setup::{Bytes, Setup, VoterStart};
use crate::{clock, error::CallError};
use quorum::members::{Member, Members, Node};
use quorum::message::{Fence, VoterState};
use quorum::rules::Rules;
use quorum::voter::{Voter, VoterOutput};
use rustler::{Atom, Binary, Encoder, Env, NifResult, NifTaggedEnum};
use rustler::{Resource, ResourceArc, Term};
use std::sync::{Arc, Mutex};

mod atoms {
    rustler::atoms! { bad_frame, ok, register, store, superseded, unregister }
}

/// The voter and its configuration.
pub(crate) struct VoterCell {
    running: Mutex<Running<VoterOfNames>>,
    config: Config,
}

/// The state machine, and the names of its clients.
struct VoterOfNames {
    voter: Voter,
    clients: Clients,
}

/// A voter continues only with an equal configuration.
#[derive(PartialEq)]
struct Config {
    members: Members,
    me: Member,
    rules: Rules,
    identity: Bytes,
}

impl Config {
    fn new(setup: &Setup) -> Result<Config, CallError> {
        let rules = setup.rules();
        rules.check().map_err(|_| CallError::BadArg)?;
        Ok(Config {
            members: setup.members()?,
            me: setup.me()?,
            rules,
            identity: setup.identity(),
        })
    }
}

/// The resource behind the voter's handle.
pub(crate) struct VoterHandle(Arc<VoterCell>);

#[rustler::resource_impl]
impl Resource for VoterHandle {}

/// The usual number of outputs of a step.
const OUTPUTS: usize = 16;

static CURRENT: Current<VoterCell> = Current::none();

#[derive(NifTaggedEnum)]
enum VoterEvent<'a> {
    Frame(usize, Binary<'a>),
    ClientFrame(Binary<'a>, Binary<'a>),
    Registered(Vec<Binary<'a>>),
    Stored(u64),
    Conflict(bool),
}

type Adopted<'a> = (ResourceArc<VoterHandle>, u32, u64, Vec<Term<'a>>);

/// `voter_adopt(Setup) -> {Handle, Life, QuarantineMs, Clients} | nil`: continues the voter of a process that has died.
/// `Clients` are those that the state file must have. `nil` if there is none with the same names of members, rules and
/// state file, if a panic has interrupted one of its steps, or if lists of members conflict: only the state file says
/// which members the voter waits for.
#[rustler::nif]
fn voter_adopt(env: Env<'_>, setup: Setup) -> NifResult<Option<Adopted<'_>>> {
    let config = Config::new(&setup)?;
    let current = CURRENT.lock();
    let Some(cell) = current.as_ref().filter(|cell| cell.config == config) else {
        return Ok(None);
    };
    let Ok(mut running) = cell.running.lock() else {
        return Ok(None);
    };
    let VoterOfNames { voter, clients } = &mut running.machine;
    if voter.is_conflicted() {
        return Ok(None);
    }
    voter.interrupted(clock::now());
    let handle = ResourceArc::new(VoterHandle(Arc::clone(cell)));
    let quarantine_ms = voter.quarantine().as_millis() as u64;
    let register = voter.register().map(|node| clients.name(env, node));
    let life = voter.lifetime().life();
    Ok(Some((handle, life, quarantine_ms, register.collect())))
}

/// `voter_open(Setup, Start) -> Handle`: opens a new voter that the calling process runs, in place of any other.
#[rustler::nif]
fn voter_open(setup: Setup, start: VoterStart) -> NifResult<ResourceArc<VoterHandle>> {
    let config = Config::new(&setup)?;
    let mut clients = Clients::default();
    let register = start.clients.iter().map(|name| clients.node(&name.0));
    let register = register.collect::<Result<Vec<Node>, CallError>>()?;
    let voter = Voter::new(setup.voter(&start)?, &register, clock::now());
    let running = Running::new(VoterOfNames { voter, clients });
    let cell = Arc::new(VoterCell { running, config });
    *CURRENT.lock() = Some(Arc::clone(&cell));
    Ok(ResourceArc::new(VoterHandle(cell)))
}

/// `voter_close(Handle) -> ok`: removes the voter and its votes.
#[rustler::nif]
fn voter_close(handle: ResourceArc<VoterHandle>) -> Atom {
    CURRENT.remove(&handle.0);
    atoms::ok()
}

/// `voter_step(Handle, Events) -> {Outputs, WaitMs | infinity, IsVoting}`: applies the events and the time that has
/// passed. `IsVoting`: whether it votes for writers.
#[rustler::nif]
fn voter_step<'a>(
    env: Env<'a>,
    handle: ResourceArc<VoterHandle>,
    events: Vec<VoterEvent<'a>>,
) -> NifResult<Term<'a>> {
    let cell = &handle.0;
    CURRENT.check(cell)?;
    let mut guard = machine::take(&cell.running)?;
    let running = &mut *guard;
    let (VoterOfNames { voter, clients }, encoder) = (&mut running.machine, &mut running.encoder);
    let now = clock::now();
    let mut outputs = Vec::with_capacity(OUTPUTS);
    let is_frame =
        |event: &&VoterEvent| matches!(event, VoterEvent::Frame(..) | VoterEvent::ClientFrame(..));
    voter.waiting(events.iter().filter(is_frame).count());
    let mut named = Vec::new();
    for event in events {
        match event {
            VoterEvent::Frame(place, bytes) => match machine::decoded(&bytes) {
                Ok(frame) => {
                    let from = Member::at(place).ok_or(CallError::BadArg)?;
                    voter.receive(now, from.into(), frame);
                }
                Err(why) => outputs.push((atoms::bad_frame(), place, why).encode(env)),
            },
            VoterEvent::ClientFrame(name, bytes) => match machine::decoded(&bytes) {
                Ok(frame) => {
                    let from = clients.node(&name)?;
                    named.push(from);
                    voter.receive(now, from, frame);
                }
                Err(why) => outputs.push((atoms::bad_frame(), name, why).encode(env)),
            },
            VoterEvent::Registered(names) => {
                let nodes = names.iter().map(|name| clients.node(name));
                voter.registered(now, &nodes.collect::<Result<Vec<Node>, CallError>>()?);
            }
            VoterEvent::Stored(mark) => voter.stored(now, Fence(mark)),
            VoterEvent::Conflict(conflicted) => voter.conflict(now, conflicted),
        }
    }
    voter.tick(now);
    for output in voter.outputs() {
        let name = |client: Node| clients.name(env, client);
        outputs.push(match output {
            VoterOutput::Send(send) => encoder.send_term(env, &send, clients),
            VoterOutput::Store(mark) => (atoms::store(), mark.0).encode(env),
            VoterOutput::Register(client) => (atoms::register(), name(client)).encode(env),
            VoterOutput::Unregister(client) => {
                named.push(client);
                (atoms::unregister(), name(client)).encode(env)
            }
            VoterOutput::Superseded { seen } => (atoms::superseded(), seen.life()).encode(env),
        });
    }
    // After the outputs, which may have its name. Not all frames make a lease, and a client that left may be back.
    for client in named {
        if !voter.knows(client) {
            clients.forget(client);
        }
    }
    let wait = machine::wait(env, voter.deadline(), now);
    let votes = voter.state() == VoterState::Voting;
    let answer = (outputs, wait, votes).encode(env);
    drop(guard);
    machine::account(env, now);
    Ok(answer)
}

/// `voter_clients(Handle) -> [{Name, Votes, Waiting, HeardMs}]`: the clients that have a lease, with their votes and
/// waiting requests, and the time since their last batch.
#[rustler::nif]
fn voter_clients(env: Env<'_>, handle: ResourceArc<VoterHandle>) -> NifResult<Vec<Term<'_>>> {
    CURRENT.check(&handle.0)?;
    let running = machine::take(&handle.0.running)?;
    let VoterOfNames { voter, clients } = &running.machine;
    let now = clock::now();
    let agents = voter.agents().filter(|agent| agent.0.is_client());
    let info = |(node, votes, waiting, heard)| {
        let heard_ms = (now - heard).as_millis() as u64;
        (clients.name(env, node), votes, waiting, heard_ms).encode(env)
    };
    Ok(agents.map(info).collect())
}

/// `voter_load(Handle) -> {IsEmpty, Queued, LongestQueue}`: whether the voter has no votes and no queue positions, how
/// many positions it has, and how many in the partition that has most.
#[rustler::nif]
fn voter_load(handle: ResourceArc<VoterHandle>) -> NifResult<(bool, usize, usize)> {
    CURRENT.check(&handle.0)?;
    let voter = &machine::take(&handle.0.running)?.machine.voter;
    let (queued, longest) = voter.queues();
    Ok((voter.is_empty(), queued, longest))
}
