//! Code that the agent's and the voter's state machine (the *machines*) share.
//!
//! A VM has at most one agent: the *current* one. Voters would take two active agents of one node for successive
//! lifetimes of one agent. The current agent is therefore ended before a new one is created, and the calls of a process
//! that has the old one raise.

use crate::{clients::Clients, clock, error::CallError};
use quorum::frame;
use quorum::message::{Frame, Send};
use quorum::time::Time;
use rustler::{Binary, Encoder as _, Env, NewBinary, Term};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

mod atoms {
    rustler::atoms! { ack, batch, floor, infinity, notice, send }
}

/// The current machine.
pub(crate) struct Current<M>(Mutex<Option<Arc<M>>>);

impl<M> Current<M> {
    pub(crate) const fn none() -> Self {
        Self(Mutex::new(None))
    }

    /// Locks the cell. A panicking thread leaves a valid value, so poisoning is ignored.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Option<Arc<M>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an error unless `machine` is the current one.
    pub(crate) fn check(&self, machine: &Arc<M>) -> Result<(), CallError> {
        match &*self.lock() {
            Some(current) if Arc::ptr_eq(current, machine) => Ok(()),
            _ => Err(CallError::Ended),
        }
    }

    /// Removes `machine`, if it is the current one.
    pub(crate) fn remove(&self, machine: &Arc<M>) {
        let mut current = self.lock();
        current.take_if(|current| Arc::ptr_eq(current, machine));
    }
}

/// A machine, and what encodes its frames.
pub(crate) struct Running<M> {
    pub(crate) machine: M,
    pub(crate) encoder: Encoder,
}

/// Encodes frames. The buffer is reused because allocation dominates the time of a short step.
pub(crate) struct Encoder {
    bytes: Vec<u8>,
}

impl<M> Running<M> {
    pub(crate) fn new(machine: M) -> Mutex<Self> {
        let encoder = Encoder { bytes: Vec::new() };
        Mutex::new(Self { machine, encoder })
    }
}

/// Locks a machine for a step. Fails if a panic has interrupted an earlier step, because its state may be
/// inconsistent.
pub(crate) fn take<M>(machine: &Mutex<M>) -> Result<MutexGuard<'_, M>, CallError> {
    machine.lock().map_err(|_| CallError::Broken)
}

/// 64 random bits. Two results are equal with a probability of 2^-64.
pub(crate) fn random() -> Result<u64, CallError> {
    getrandom::u64().map_err(|_| CallError::NoRandom)
}

/// Decodes a frame, or explains why it is invalid.
pub(crate) fn decoded(bytes: &Binary<'_>) -> Result<Frame, String> {
    frame::decode(bytes.as_slice()).map_err(|error| error.to_string())
}

impl Encoder {
    /// `{send, Kind, Place | ClientName, Frame}`
    pub(crate) fn send_term<'a>(
        &mut self,
        env: Env<'a>,
        send: &Send,
        clients: &Clients,
    ) -> Term<'a> {
        let to = match send.to.member() {
            Some(member) => member.place().encode(env),
            None => clients.name(env, send.to),
        };
        frame::encode_into(&send.frame, &mut self.bytes);
        let mut binary = NewBinary::new(env, self.bytes.len());
        binary.as_mut_slice().copy_from_slice(&self.bytes);
        let kind = match send.frame {
            Frame::Batch(_) => atoms::batch(),
            Frame::Floor(_) => atoms::floor(),
            Frame::Ack(_) => atoms::ack(),
            Frame::Notice(_) => atoms::notice(),
        };
        (atoms::send(), kind, to, Binary::from(binary)).encode(env)
    }
}

/// The milliseconds until `deadline`, rounded up: a timer that fires early would have to be set again.
pub(crate) fn wait<'a>(env: Env<'a>, deadline: Option<Time>, now: Time) -> Term<'a> {
    match deadline {
        Some(at) => ((at - now).as_nanos().div_ceil(1_000_000) as u64).encode(env),
        None => atoms::infinity().encode(env),
    }
}

/// Reports the duration of a step to the scheduler, so that a process with long steps runs less often.
pub(crate) fn account(env: Env<'_>, since: Time) {
    const TIMESLICE_NS: u128 = 1_000_000;
    let percent = (clock::now() - since).as_nanos() * 100 / TIMESLICE_NS;
    rustler::schedule::consume_timeslice(env, percent.clamp(1, 100) as i32);
}
