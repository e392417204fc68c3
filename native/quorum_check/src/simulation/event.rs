//! Events: what happens to a node at a moment.

use crate::simulation::clock::Real;
use quorum::message::{Fence, Frame};
use std::rc::Rc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Agent,
    Voter,
}

impl Role {
    pub fn of_receiver(frame: &Frame) -> Role {
        match frame {
            Frame::Batch(_) | Frame::Life(_) => Role::Voter,
            Frame::Ack(_) | Frame::Notice(_) => Role::Agent,
        }
    }
}

/// An event for a node carries the version or lifetime that it was scheduled for. If that has changed, it is ignored.
#[derive(Clone, Debug)]
pub enum Event {
    Frame {
        from: usize,
        to: usize,
        role: Role,
        bytes: Rc<[u8]>,
    },
    /// The deadline of a machine, for this version of its timer.
    Timer(usize, Role, u64),
    /// The mailbox of an agent of this lifetime is empty: it flushes.
    Flush(usize, u64),
    /// A fence of a voter of this lifetime is on its disk.
    Stored(usize, u64, Fence),
    /// What a voter of this lifetime stores next of guests is on its disk.
    GuestsStored(usize, u64),
    /// The next step of a client of a node, for this version of the client.
    Client(usize, usize, u64),
    Connection {
        node: usize,
        about: usize,
        up: bool,
    },
    /// The voter is informed that the node of an agent is disconnected.
    Closed {
        voter: usize,
        node: usize,
    },
    Fault,
    /// A question to all voters which names have votes.
    LiveQuestion,
    /// The voter reads it, if it is up.
    LiveAnswer {
        question: usize,
        voter: usize,
    },
    /// These links are cut for this long.
    Cut(Vec<(usize, usize)>, Real),
    Recovery(Recovery),
    /// All faults end, and clients send no new requests.
    Heal,
    /// All voters must vote, unless one of them has started since this was scheduled.
    Voting,
    /// All tables must be empty, unless probes are running.
    Empty,
    /// All tables must be empty, and each node locks once more.
    Probe,
    End,
}

impl Event {
    /// The machine that it is for. If it is for one lifetime of it, which one.
    pub fn machine(&self) -> Option<(usize, Role, Option<u64>)> {
        match *self {
            Event::Frame { to, role, .. } => Some((to, role, None)),
            Event::Timer(node, role, _) => Some((node, role, None)),
            Event::Stored(node, lifetime, _) | Event::GuestsStored(node, lifetime) => {
                Some((node, Role::Voter, Some(lifetime)))
            }
            Event::Closed { voter, .. } => Some((voter, Role::Voter, None)),
            Event::Flush(node, lifetime) => Some((node, Role::Agent, Some(lifetime))),
            Event::Client(node, ..) | Event::Connection { node, .. } => {
                Some((node, Role::Agent, None))
            }
            _ => None,
        }
    }
}

#[derive(Clone, Debug)]
pub enum Recovery {
    Start(usize, Role),
    Resume(usize, Role),
    /// These links are no longer cut.
    Links(Vec<(usize, usize)>),
    /// This link is as good as the others.
    Link(usize, usize),
    /// This node's clocks run at a normal rate.
    Clock(usize),
}
