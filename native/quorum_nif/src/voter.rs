//! NIFs of the voter of this node.

use crate::clients::Clients;
use crate::machine::{self, Running};
use crate::setup::{Setup, VoterStart};
use crate::{clock, error::CallError};
use quorum::members::Member;
use quorum::message::{Fence, VoterState};
use quorum::voter::{Voter, VoterOutput};
use rustler::{Binary, Encoder, Env, NifResult, NifTaggedEnum};
use rustler::{Resource, ResourceArc, Term};
use std::sync::Mutex;

mod atoms {
    rustler::atoms! { bad_frame, guests, store, superseded }
}

/// The state machine, and the names of its clients.
struct VoterOfNames {
    voter: Voter,
    clients: Clients,
}

/// The resource behind the voter's handle. Only the voter's process has it.
pub(crate) struct VoterHandle(Mutex<Running<VoterOfNames>>);

#[rustler::resource_impl]
impl Resource for VoterHandle {}

/// The usual number of outputs of a step.
const OUTPUTS: usize = 16;

#[derive(NifTaggedEnum)]
enum VoterEvent<'a> {
    Frame(usize, Binary<'a>),
    ClientFrame(Binary<'a>, Binary<'a>),
    GuestsStored,
    Stored(u64),
    Misconfigured(bool),
    Down(usize),
    ClientDown(Binary<'a>),
}

/// `voter_open(Setup, Start) -> Handle`: opens a voter that the calling process runs.
#[rustler::nif]
fn voter_open(setup: Setup, start: VoterStart) -> NifResult<ResourceArc<VoterHandle>> {
    let voter = Voter::new(setup.voter(&start)?, clock::now());
    let clients = Clients::default();
    let running = Running::new(VoterOfNames { voter, clients });
    Ok(ResourceArc::new(VoterHandle(running)))
}

/// `voter_step(Handle, Events) -> {Outputs, WaitMs | infinity, IsVoting}`: applies the events and the time that has
/// passed. `IsVoting`: whether it votes for writers.
#[rustler::nif]
fn voter_step<'a>(
    env: Env<'a>,
    handle: ResourceArc<VoterHandle>,
    events: Vec<VoterEvent<'a>>,
) -> NifResult<Term<'a>> {
    let mut guard = machine::take(&handle.0)?;
    let running = &mut *guard;
    let (VoterOfNames { voter, clients }, encoder) = (&mut running.machine, &mut running.encoder);
    let now = clock::now();
    let mut outputs = Vec::with_capacity(OUTPUTS);
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
                    voter.receive(now, from, frame);
                }
                Err(why) => outputs.push((atoms::bad_frame(), name, why).encode(env)),
            },
            VoterEvent::GuestsStored => voter.guests_stored(now),
            VoterEvent::Stored(mark) => voter.stored(now, Fence(mark)),
            VoterEvent::Misconfigured(is_misconfigured) => {
                voter.misconfigured(now, is_misconfigured);
            }
            VoterEvent::Down(place) => {
                let member = Member::at(place).ok_or(CallError::BadArg)?;
                voter.down(now, member.into());
            }
            VoterEvent::ClientDown(name) => {
                if let Some(client) = clients.known(&name) {
                    voter.down(now, client);
                }
            }
        }
    }
    voter.tick(now);
    for output in voter.outputs() {
        outputs.push(match output {
            VoterOutput::Send(send) => encoder.send_term(env, &send, clients),
            VoterOutput::Store(mark) => (atoms::store(), mark.0).encode(env),
            VoterOutput::StoreGuests(guests) => (atoms::guests(), guests).encode(env),
            VoterOutput::Superseded { seen } => (atoms::superseded(), seen.life()).encode(env),
        });
    }
    // After the outputs, which have names.
    clients.retain(|client| voter.knows(client));
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
    let running = machine::take(&handle.0)?;
    let VoterOfNames { voter, clients } = &running.machine;
    let now = clock::now();
    let agents = voter.agents().filter(|agent| agent.0.is_client());
    let info = |(node, votes, waiting, heard)| {
        let heard_ms = (now - heard).as_millis() as u64;
        (clients.name(env, node), votes, waiting, heard_ms).encode(env)
    };
    Ok(agents.map(info).collect())
}

/// `voter_status(Handle) -> {IsEmpty, Queued, Places}`: whether the voter has no votes and no queue positions, how many
/// positions it has, and the members that it waits for before it votes.
#[rustler::nif]
fn voter_status(handle: ResourceArc<VoterHandle>) -> NifResult<(bool, usize, Vec<usize>)> {
    let voter = &machine::take(&handle.0)?.machine.voter;
    let waits_for = voter.waits_for().iter().map(Member::place).collect();
    Ok((voter.is_empty(), voter.queued(), waits_for))
}
