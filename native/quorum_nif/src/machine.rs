//! Code that the agent's and the voter's state machine (the *machines*) share.
//!
//! A VM has at most one agent: the *current* one. Voters would take two active agents of one node for successive
//! lifetimes of one agent. The current agent is therefore ended before a new one is created, and the calls of a process
//! that has the old one raise.

use crate::{clock, error::CallError, nodes::Nodes};
use quorum::envelope::{Content, Envelope, Post};
use quorum::frame;
use quorum::message::Frame;
use quorum::time::Time;
use quorum::view::Role;
use quorum::view::{Record, ViewId};
use rustler::{Atom, Binary, Encoder as _, Env, NewBinary, Term};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) mod atoms {
    rustler::atoms! {
        ack, batch, infinity, life, long, members, notice, number, send, view_agent, view_voter
    }
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

/// A machine, and what its messages need.
pub(crate) struct Running<M> {
    pub(crate) machine: M,
    pub(crate) encoder: Encoder,
    pub(crate) nodes: Nodes,
}

/// Encodes frames. The buffer is reused because allocation dominates the time of a short step.
pub(crate) struct Encoder {
    bytes: Vec<u8>,
}

impl<M> Running<M> {
    pub(crate) fn new(machine: M, nodes: Nodes) -> Mutex<Self> {
        let encoder = Encoder { bytes: Vec::new() };
        Mutex::new(Self {
            machine,
            encoder,
            nodes,
        })
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

/// Decodes a message of a node with this view, or explains why it is invalid.
pub(crate) fn decoded(cluster: u64, number: u64, bytes: &Binary<'_>) -> Result<Envelope, String> {
    let content = frame::decode_content(bytes.as_slice()).map_err(|error| error.to_string())?;
    let view = ViewId { cluster, number };
    Ok(Envelope { view, content })
}

impl Encoder {
    /// `{send, Kind, Node, Cluster, Number, Bytes}`. `None` if no node can have the name of the receiver.
    pub(crate) fn send_term<'a>(
        &mut self,
        env: Env<'a>,
        post: &Post,
        nodes: &mut Nodes,
    ) -> Option<Term<'a>> {
        let to = nodes.atom(env, &post.to)?;
        let Envelope { view, content } = &post.envelope;
        frame::encode_content(content, &mut self.bytes);
        let mut binary = NewBinary::new(env, self.bytes.len());
        binary.as_mut_slice().copy_from_slice(&self.bytes);
        let kind = match content {
            Content::Frame(Frame::Batch(_)) => atoms::batch(),
            Content::Frame(Frame::Life(_)) => atoms::life(),
            Content::Frame(Frame::Ack(_)) => atoms::ack(),
            Content::Frame(Frame::Notice(_)) => atoms::notice(),
            Content::View(_) if post.role == Role::Agent => atoms::view_agent(),
            Content::View(_) => atoms::view_voter(),
        };
        let bytes = Binary::from(binary);
        Some((atoms::send(), kind, to, view.cluster, view.number, bytes).encode(env))
    }
}

/// The nodes of a view.
pub(crate) fn members(env: Env<'_>, record: &Record, nodes: &mut Nodes) -> Vec<Atom> {
    nodes.atoms(env, record.members.iter().map(|peer| &peer.node))
}

/// `#{number := Number, members := [Node]}`
pub(crate) fn record_term<'a>(env: Env<'a>, record: &Record, nodes: &mut Nodes) -> Term<'a> {
    let members = members(env, record, nodes).encode(env);
    let pairs = [
        (atoms::number(), record.id.number.encode(env)),
        (atoms::members(), members),
    ];
    Term::map_from_pairs(env, &pairs).expect("its keys differ")
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
