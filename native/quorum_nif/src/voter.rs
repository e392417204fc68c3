//! NIFs of the voter of this node. The voter's state is in this library and not in its process. A restarted process
//! therefore continues with it, without a quarantine in which the node has no vote.

use crate::machine::{self, Current, Running};
use crate::setup::{Identity, Setup, VoterStart};
use crate::{clock, error::CallError};
use quorum::members::{Member, Members};
use quorum::message::{Fence, VoterState};
use quorum::rules::Rules;
use quorum::voter::{Voter, VoterOutput};
use rustler::{Atom, Binary, Encoder, Env, NifResult, NifTaggedEnum, Resource, ResourceArc, Term};
use std::sync::{Arc, Mutex};

mod atoms {
    rustler::atoms! { bad_frame, ok, store, superseded }
}

/// The voter and its configuration.
pub(crate) struct VoterCell {
    running: Mutex<Running<Voter>>,
    config: Config,
}

/// A voter continues only with an equal configuration.
#[derive(PartialEq)]
struct Config {
    members: Members,
    rules: Rules,
    identity: Identity,
}

impl Config {
    fn new(setup: &Setup) -> Result<Config, CallError> {
        let rules = setup.rules();
        rules.check().map_err(|_| CallError::BadArg)?;
        Ok(Config {
            members: setup.members()?,
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
    Stored(u64),
    Conflict(bool),
    Frames(Vec<u8>),
}

/// `voter_adopt(Setup) -> {Handle, Life, QuarantineMs} | nil`: continues the voter of a process that has died. `nil` if
/// there is none with the same names of members, rules and state file, if a panic has interrupted one of its steps, or
/// if lists of members conflict: only the state file says which members the voter waits for.
#[rustler::nif]
fn voter_adopt(setup: Setup) -> NifResult<Option<(ResourceArc<VoterHandle>, u32, u64)>> {
    let config = Config::new(&setup)?;
    let current = CURRENT.lock();
    let Some(cell) = current.as_ref().filter(|cell| cell.config == config) else {
        return Ok(None);
    };
    let Ok(mut running) = cell.running.lock() else {
        return Ok(None);
    };
    if running.machine.is_conflicted() {
        return Ok(None);
    }
    running.machine.interrupted(clock::now());
    let handle = ResourceArc::new(VoterHandle(Arc::clone(cell)));
    let quarantine = running.machine.quarantine().as_millis() as u64;
    Ok(Some((
        handle,
        running.machine.lifetime().life(),
        quarantine,
    )))
}

/// `voter_open(Setup, Start) -> Handle`: opens a new voter that the calling process runs, in place of any other.
#[rustler::nif]
fn voter_open(setup: Setup, start: VoterStart) -> NifResult<ResourceArc<VoterHandle>> {
    let config = Config::new(&setup)?;
    let voter = Voter::new(setup.voter(&start)?, clock::now());
    let running = Running::new(voter);
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
    let (voter, encoder) = (&mut running.machine, &mut running.encoder);
    let now = clock::now();
    let mut outputs = Vec::with_capacity(OUTPUTS);
    for event in events {
        match event {
            VoterEvent::Frame(place, bytes) => match machine::decoded(&bytes) {
                Ok(frame) => {
                    let from = Member::at(place).ok_or(CallError::BadArg)?;
                    voter.receive(now, from, frame);
                }
                Err(why) => outputs.push((atoms::bad_frame(), place, why).encode(env)),
            },
            VoterEvent::Stored(mark) => voter.stored(now, Fence(mark)),
            VoterEvent::Conflict(conflicted) => voter.conflict(now, conflicted),
            VoterEvent::Frames(versions) => encoder.set_versions(&versions)?,
        }
    }
    voter.tick(now);
    for output in voter.outputs() {
        outputs.push(match output {
            VoterOutput::Send(send) => encoder.send_term(env, &send),
            VoterOutput::Store(mark) => (atoms::store(), mark.0).encode(env),
            VoterOutput::Superseded { seen } => (atoms::superseded(), seen.life()).encode(env),
        });
    }
    let wait = machine::wait(env, voter.deadline(), now);
    let votes = voter.state() == VoterState::Voting;
    let answer = (outputs, wait, votes).encode(env);
    drop(guard);
    machine::account(env, now);
    Ok(answer)
}

/// `voter_is_empty(Handle) -> boolean()`: whether the voter has no votes and no queue positions.
#[rustler::nif]
fn voter_is_empty(handle: ResourceArc<VoterHandle>) -> NifResult<bool> {
    CURRENT.check(&handle.0)?;
    Ok(machine::take(&handle.0.running)?.machine.is_empty())
}
