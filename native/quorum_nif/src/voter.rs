//! NIFs of the voter of this node. The voter's state is in this library and not in its process. A restarted process
//! therefore continues with it, without a quarantine in which the node has no vote.

use crate::machine::{self, Current, Running};
use crate::setup::{FencesKnown, Setup};
use crate::{clock, error::CallError};
use quorum::members::{Member, Members};
use quorum::message::Fence;
use quorum::rules::Rules;
use quorum::voter::{Voter, VoterOutput};
use rustler::{Atom, Binary, Encoder, Env, NifResult, NifTaggedEnum, Resource, ResourceArc, Term};
use std::sync::{Arc, Mutex};

mod atoms {
    rustler::atoms! { bad_frame, ok, store }
}

/// The voter and its configuration.
pub(crate) struct VoterCell {
    running: Mutex<Running<Voter>>,
    members: Members,
    rules: Rules,
    /// Whether its fences are stored.
    durable: bool,
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
}

/// `voter_open(Setup, Fences) -> {Handle, IsNew}`: opens the voter that the calling process runs. An existing voter
/// continues if it has the same members, rules and durability, and no panic has interrupted a step. `Fences` are then
/// ignored.
#[rustler::nif]
fn voter_open(setup: Setup, known: FencesKnown) -> NifResult<(ResourceArc<VoterHandle>, bool)> {
    let rules = setup.rules();
    rules.check().map_err(|_| CallError::BadArg)?;
    let new = setup.voter(&known)?;
    let now = clock::now();
    let mut current = CURRENT.lock();
    if let Some(cell) = &*current {
        if (cell.members, cell.rules, cell.durable) == (new.members, rules, new.fences.durable) {
            if let Ok(mut running) = cell.running.lock() {
                running.machine.interrupted(now);
                return Ok((ResourceArc::new(VoterHandle(Arc::clone(cell))), false));
            }
        }
    }
    let cell = Arc::new(VoterCell {
        running: Running::new(Voter::new(new, now)),
        members: new.members,
        rules,
        durable: new.fences.durable,
    });
    *current = Some(Arc::clone(&cell));
    Ok((ResourceArc::new(VoterHandle(cell)), true))
}

/// `voter_close(Handle) -> ok`: removes the voter and its votes.
#[rustler::nif]
fn voter_close(handle: ResourceArc<VoterHandle>) -> Atom {
    CURRENT.remove(&handle.0);
    atoms::ok()
}

/// `voter_step(Handle, Events) -> {Outputs, WaitMs | infinity, IsVoting}`: applies the events and the time that has
/// passed.
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
    let (voter, bytes) = (&mut running.machine, &mut running.bytes);
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
        }
    }
    voter.tick(now);
    for output in voter.outputs() {
        outputs.push(match output {
            VoterOutput::Send(send) => machine::to_send(env, &send, bytes),
            VoterOutput::Store(mark) => (atoms::store(), mark.0).encode(env),
        });
    }
    let wait = machine::wait(env, voter.deadline(), now);
    let answer = (outputs, wait, voter.is_voting()).encode(env);
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
