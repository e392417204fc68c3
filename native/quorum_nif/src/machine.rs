//! What the two machines have in common at the border.
//!
//! A VM has at most one agent and one voter: that one is the *current* one. Two agents of one node that both spoke
//! would take each other for an earlier life, and so would voters; so the current one is ended before there is
//! another, and a process that still has the old one is refused.

use crate::clock;
use crate::error::CallError;
use quorum::frame;
use quorum::message::{Frame, Send};
use quorum::time::Time;
use rustler::{Atom, Binary, Encoder, Env, NewBinary, Term};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

mod atoms {
    rustler::atoms! { agent, infinity, send, voter }
}

/// The current one of its kind.
pub(crate) struct Current<M>(Mutex<Option<Arc<M>>>);

impl<M> Current<M> {
    pub(crate) const fn none() -> Self {
        Self(Mutex::new(None))
    }

    /// To look at it and to change it. Whoever panics meanwhile leaves one or the other, so poison means nothing.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Option<Arc<M>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nobody's steps but those of the current one are taken.
    pub(crate) fn check(&self, machine: &Arc<M>) -> Result<(), CallError> {
        match &*self.lock() {
            Some(current) if Arc::ptr_eq(current, machine) => Ok(()),
            _ => Err(CallError::Ended),
        }
    }
}

/// A machine, and room to write frames in, which is used again and again: memory is the dearest part of a short step.
pub(crate) struct Running<M> {
    pub(crate) machine: M,
    pub(crate) bytes: Vec<u8>,
}

impl<M> Running<M> {
    pub(crate) fn new(machine: M) -> Mutex<Self> {
        Mutex::new(Self {
            machine,
            bytes: Vec::new(),
        })
    }
}

/// A machine for the length of a step. If one has panicked in the middle of a step, it is what nobody has thought of.
pub(crate) fn take<M>(machine: &Mutex<M>) -> Result<MutexGuard<'_, M>, CallError> {
    machine.lock().map_err(|_| CallError::Broken)
}

/// A word that nobody has drawn before.
pub(crate) fn random() -> Result<u64, CallError> {
    getrandom::u64().map_err(|_| CallError::NoRandom)
}

/// What is in a frame, or what is wrong with it.
pub(crate) fn decoded(bytes: &Binary<'_>) -> Result<Frame, String> {
    frame::decode(bytes.as_slice()).map_err(|error| error.to_string())
}

/// `{send, agent | voter, Place, Frame}`
pub(crate) fn to_send<'a>(env: Env<'a>, send: &Send, bytes: &mut Vec<u8>) -> Term<'a> {
    frame::encode_into(&send.frame, bytes);
    let mut binary = NewBinary::new(env, bytes.len());
    binary.as_mut_slice().copy_from_slice(bytes);
    let to = match send.frame {
        Frame::Batch(_) | Frame::Floor(_) => atoms::voter(),
        Frame::Ack(_) | Frame::Notice(_) => atoms::agent(),
    };
    (atoms::send(), to, send.to.place(), Binary::from(binary)).encode(env)
}

/// How many milliseconds until then, at least: a timer that comes early would have to be set again.
pub(crate) fn wait<'a>(env: Env<'a>, deadline: Option<Time>, now: Time) -> Term<'a> {
    match deadline {
        Some(at) => ((at - now).as_nanos().div_ceil(1_000_000) as u64).encode(env),
        None => infinity().encode(env),
    }
}

fn infinity() -> Atom {
    atoms::infinity()
}

/// Tells the scheduler how long a step has taken, so that a process that takes long ones has fewer of them.
pub(crate) fn account(env: Env<'_>, since: Time) {
    const TIMESLICE_NS: u128 = 1_000_000;
    let percent = (clock::now() - since).as_nanos() * 100 / TIMESLICE_NS;
    rustler::schedule::consume_timeslice(env, percent.clamp(1, 100) as i32);
}
